//! The shared test kit: a whole runtime on a temporary directory, with a scripted model.

use std::future::Future;
use std::sync::{Arc, Mutex};

use continuable::agent::hooks::{
    AgentEvent, AgentHooks, AgentStatus, HookContext, HookFuture, PromptDecision, Recovery,
    ToolCall,
};
use continuable::agent::tools::{
    Tool, ToolDefinition, ToolGuard, ToolInvocation, ToolMode, ToolOutput, ToolRegistry,
};
use continuable::agent::{
    Agent, AgentHandle, AgentHost, AgentHostConfig, AgentOptions, CreateAgent, HookError,
};
use continuable::facts::Fact;
use continuable::ids::SessionId;
use continuable::message::{Message, MessageSource};
use continuable::model::ModelRequest;
use continuable::model::script::{ScriptedModel, Step};
use continuable::runtime::{BoxFuture, FactSubscription, Runtime, fresh_message_id};
use continuable::session::{Event, EventBody, Session, TurnEndReason};
use serde_json::json;

use crate::support::Shelf;

/// A host with a store on a real directory, and a model that follows a script.
pub struct Kit {
    pub shelf: Shelf,
    pub runtime: Arc<dyn Runtime>,
    pub model: ScriptedModel,
    pub tools: Arc<ToolRegistry>,
    pub host: Arc<AgentHost>,
    facts: Mutex<FactSubscription>,
}

impl Kit {
    /// The model answers requests, of whatever session, with `steps` in their order.
    pub fn new(steps: impl IntoIterator<Item = Step>) -> Self {
        Self::with_hooks(steps, Vec::new())
    }

    /// The same; every agent has `hooks`.
    pub fn with_hooks(
        steps: impl IntoIterator<Item = Step>,
        hooks: Vec<Arc<dyn AgentHooks>>,
    ) -> Self {
        let shelf = Shelf::new();
        let runtime = Arc::clone(&shelf.runtime);
        let facts = Mutex::new(shelf.tokio.subscribe(100_000));
        let model = ScriptedModel::shared(Arc::clone(&runtime), steps);
        let tools = Arc::new(ToolRegistry::default());
        let host = AgentHost::new(AgentHostConfig {
            runtime: Arc::clone(&runtime),
            store: Some(Arc::clone(&shelf.store)),
            model: Arc::new(model.clone()),
            tools: Arc::clone(&tools),
            system_prompt: "You are a test agent.".to_owned(),
            defaults: AgentOptions {
                provider: Some("mock".to_owned()),
                model: Some("mock".to_owned()),
                ..AgentOptions::default()
            },
            hooks,
        });
        Self { shelf, runtime, model, tools, host, facts }
    }

    /// What [`Kit::create`] creates, to be changed first.
    pub fn request(&self, id: &str) -> CreateAgent {
        CreateAgent { cwd: Some("/project".to_owned()), ..CreateAgent::new(SessionId::new(id)) }
    }

    /// A root agent.
    pub async fn create(&self, id: &str) -> AgentHandle {
        self.host.create(self.request(id)).await.expect("nothing refuses it")
    }

    /// A root agent whose own hooks are `hooks`.
    pub async fn create_with(&self, id: &str, hooks: TestHooks) -> (AgentHandle, Arc<TestHooks>) {
        let hooks = Arc::new(hooks);
        let mut request = self.request(id);
        request.setup.hooks.push(hooks.clone());
        (self.host.create(request).await.expect("nothing refuses it"), hooks)
    }

    /// A message of a person.
    pub fn user(&self, text: &str) -> Message {
        Message::user(fresh_message_id(&*self.runtime), text, MessageSource::User)
    }

    /// Registers a parallel tool that runs `body`.
    pub fn tool<F>(
        &self,
        name: &str,
        body: impl Fn(ToolInvocation) -> F + Send + Sync + 'static,
    ) -> ToolGuard
    where
        F: Future<Output = ToolOutput> + Send + 'static,
    {
        self.register(name, ToolMode::Parallel, body)
    }

    /// Registers a tool that runs `body` beside no other call.
    pub fn exclusive_tool<F>(
        &self,
        name: &str,
        body: impl Fn(ToolInvocation) -> F + Send + Sync + 'static,
    ) -> ToolGuard
    where
        F: Future<Output = ToolOutput> + Send + 'static,
    {
        self.register(name, ToolMode::Exclusive, body)
    }

    fn register<F>(
        &self,
        name: &str,
        mode: ToolMode,
        body: impl Fn(ToolInvocation) -> F + Send + Sync + 'static,
    ) -> ToolGuard
    where
        F: Future<Output = ToolOutput> + Send + 'static,
    {
        let body: ToolBody = Box::new(move |invocation| Box::pin(body(invocation)));
        let tool = FnTool { name: name.to_owned(), mode, body };
        self.tools.register(Arc::new(tool)).expect("the name is free")
    }

    /// Every fact since the last call.
    pub fn facts(&self) -> Vec<Fact> {
        let mut facts = self.facts.lock().expect("no panic inside");
        std::iter::from_fn(|| facts.try_recv()).map(|stamped| (*stamped.fact).clone()).collect()
    }
}

type ToolBody = Box<dyn Fn(ToolInvocation) -> BoxFuture<'static, ToolOutput> + Send + Sync>;

/// A tool without arguments.
struct FnTool {
    name: String,
    mode: ToolMode,
    body: ToolBody,
}

impl Tool for FnTool {
    fn definition(&self) -> ToolDefinition {
        ToolDefinition {
            name: self.name.clone(),
            description: "a test tool".to_owned(),
            parameters: json!({"type": "object", "properties": {}}),
        }
    }

    fn mode(&self) -> ToolMode {
        self.mode
    }

    fn call(&self, invocation: ToolInvocation) -> BoxFuture<'static, ToolOutput> {
        (self.body)(invocation)
    }
}

type Hook<T> = Box<dyn Fn(HookContext) -> BoxFuture<'static, Result<T, HookError>> + Send + Sync>;
type PromptHook = Box<
    dyn Fn(HookContext, Arc<Message>) -> BoxFuture<'static, Result<PromptDecision, HookError>>
        + Send
        + Sync,
>;

type EventListener = Box<dyn Fn(&Agent, &AgentEvent) + Send + Sync>;

/// Hooks that call what they were given, and remember every event.
#[derive(Default)]
pub struct TestHooks {
    pub prompt_submit: Option<PromptHook>,
    pub pre_step: Option<Hook<()>>,
    pub turn_stopping: Option<Hook<()>>,
    pub pre_tool: Option<Hook<Option<ToolOutput>>>,
    pub post_tool: Option<Hook<Option<ToolOutput>>>,
    pub recover: Option<Hook<Recovery>>,
    pub on_event: Option<EventListener>,
    pub events: Mutex<Vec<AgentEvent>>,
}

/// Boxes a hook.
pub fn hook<T, F>(body: impl Fn(HookContext) -> F + Send + Sync + 'static) -> Option<Hook<T>>
where
    F: Future<Output = Result<T, HookError>> + Send + 'static,
{
    Some(Box::new(move |context| Box::pin(body(context))))
}

/// Boxes a prompt-submit hook.
pub fn prompt_hook<F>(
    body: impl Fn(HookContext, Arc<Message>) -> F + Send + Sync + 'static,
) -> Option<PromptHook>
where
    F: Future<Output = Result<PromptDecision, HookError>> + Send + 'static,
{
    Some(Box::new(move |context, message| Box::pin(body(context, message))))
}

impl TestHooks {
    /// Hooks that only remember events and call `listener`.
    pub fn listening(listener: impl Fn(&Agent, &AgentEvent) + Send + Sync + 'static) -> Self {
        Self { on_event: Some(Box::new(listener)), ..Self::default() }
    }

    pub fn events(&self) -> Vec<AgentEvent> {
        self.events.lock().expect("no panic inside").clone()
    }

    /// The status changes so far, as words.
    pub fn statuses(&self) -> Vec<&'static str> {
        let word = |event: &AgentEvent| match event {
            AgentEvent::Status(AgentStatus::Running) => Some("running"),
            AgentEvent::Status(AgentStatus::Idle) => Some("idle"),
            _ => None,
        };
        self.events().iter().filter_map(word).collect()
    }
}

impl AgentHooks for TestHooks {
    fn prompt_submit<'a>(
        &'a self,
        context: &'a HookContext,
        message: &'a Arc<Message>,
    ) -> HookFuture<'a, PromptDecision> {
        match &self.prompt_submit {
            Some(hook) => hook(context.clone(), Arc::clone(message)),
            None => Box::pin(async { Ok(PromptDecision::allow()) }),
        }
    }

    fn pre_step<'a>(&'a self, context: &'a HookContext) -> HookFuture<'a, ()> {
        call(self.pre_step.as_ref(), context, ())
    }

    fn turn_stopping<'a>(&'a self, context: &'a HookContext) -> HookFuture<'a, ()> {
        call(self.turn_stopping.as_ref(), context, ())
    }

    fn pre_tool<'a>(
        &'a self,
        context: &'a HookContext,
        _call: &'a ToolCall,
    ) -> HookFuture<'a, Option<ToolOutput>> {
        call(self.pre_tool.as_ref(), context, None)
    }

    fn post_tool<'a>(
        &'a self,
        context: &'a HookContext,
        _call: &'a ToolCall,
        _output: &'a ToolOutput,
    ) -> HookFuture<'a, Option<ToolOutput>> {
        call(self.post_tool.as_ref(), context, None)
    }

    fn recover<'a>(
        &'a self,
        context: &'a HookContext,
        _error: &'a str,
    ) -> HookFuture<'a, Recovery> {
        call(self.recover.as_ref(), context, Recovery::None)
    }

    fn on_event(&self, agent: &Agent, event: &AgentEvent) {
        self.events.lock().expect("no panic inside").push(event.clone());
        if let Some(listener) = &self.on_event {
            listener(agent, event);
        }
    }
}

fn call<T: Send + 'static>(
    hook: Option<&Hook<T>>,
    context: &HookContext,
    default: T,
) -> HookFuture<'static, T> {
    match hook {
        Some(hook) => hook(context.clone()),
        None => Box::pin(async { Ok(default) }),
    }
}

/// A message of a plugin, such as injected context.
pub fn plugin(agent: &Agent, text: &str) -> Message {
    let source = MessageSource::Plugin { plugin: "test".to_owned() };
    Message::user(fresh_message_id(&**agent.runtime()), text, source)
}

/// The log in short, without the stream and the request records: `turn 1`, `user hi`,
/// `steering x`, `step 1`, `assistant ok`, `call t`, `result text`, `end 1 completed`.
pub fn story(session: &Session) -> Vec<String> {
    session.snapshot_from(0).iter().filter_map(|event| line(event)).collect()
}

fn line(event: &Event) -> Option<String> {
    Some(match &event.body {
        EventBody::TurnStart { turn, .. } => format!("turn {turn}"),
        EventBody::TurnEnd { turn, reason } => format!("end {turn} {}", word(reason)),
        EventBody::StepStart { step, .. } => format!("step {step}"),
        EventBody::UserMessage(message) => format!("user {}", message.text()),
        EventBody::SteeringMessage { message, .. } => format!("steering {}", message.text()),
        EventBody::AssistantMessage { message, .. } => format!("assistant {}", message.text()),
        EventBody::ToolCall { name, .. } => format!("call {name}"),
        EventBody::ToolResult { error, .. } => {
            format!("result {}", error.as_ref().map_or("ok", |error| error.code.as_str()))
        }
        EventBody::Descriptor(_) => "descriptor".to_owned(),
        _ => return None,
    })
}

/// The reason's word.
pub fn word(reason: &TurnEndReason) -> &'static str {
    match reason {
        TurnEndReason::Completed => "completed",
        TurnEndReason::Aborted => "aborted",
        TurnEndReason::Error { .. } => "error",
        TurnEndReason::Disposed => "disposed",
        TurnEndReason::MaxTokens => "max-tokens",
        TurnEndReason::Interrupted => "interrupted",
    }
}

/// The words of all turn ends.
pub fn reasons(session: &Session) -> Vec<&'static str> {
    let reason = |event: &Arc<Event>| match &event.body {
        EventBody::TurnEnd { reason, .. } => Some(word(reason)),
        _ => None,
    };
    session.snapshot_from(0).iter().filter_map(reason).collect()
}

/// The texts that a request's user-role messages carry, tool results left out.
pub fn asked(request: &ModelRequest) -> Vec<String> {
    let text = |message: &Arc<Message>| message.text();
    let plain = |message: &&Arc<Message>| {
        !matches!(message.source, MessageSource::Tool { .. } | MessageSource::Model { .. })
    };
    request.messages.iter().filter(plain).map(text).collect()
}

/// Lets every other task run until `condition` holds.
pub async fn wait_until(what: &str, condition: impl Fn() -> bool) {
    for round in 0..20_000_u32 {
        if condition() {
            return;
        }
        if round % 64 == 63 {
            // The real disk works on threads of its own.
            tokio::time::sleep(std::time::Duration::from_millis(1)).await;
        } else {
            tokio::task::yield_now().await;
        }
    }
    panic!("never happened: {what}");
}

/// Lets every other task run for a while, to see that nothing happens.
pub async fn settle() {
    for _ in 0..200 {
        tokio::task::yield_now().await;
    }
}
