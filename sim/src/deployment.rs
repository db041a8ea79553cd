//! One deployment of the real runtime on simulated parts: everything a process would assemble at
//! its start, on the explorer's executor, a simulated disk and a scripted model.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use continuable::agent::hooks::{AgentHooks, HookContext, HookFuture, PromptDecision};
use continuable::agent::tools::{
    Tool, ToolGuard, ToolInvocation, ToolMode, ToolOutput, ToolRegistry,
};
use continuable::agent::{AgentHost, AgentHostConfig, AgentOptions};
use continuable::control::SubagentControlService;
use continuable::ids::SessionId;
use continuable::message::Message;
use continuable::model::ToolDefinition;
use continuable::model::script::{ScriptedModel, Step};
use continuable::provider::in_process::InProcess;
use continuable::provider::{Registration, SubagentProvider, SubagentService};
use continuable::runtime::{BoxFuture, Runtime};
use continuable::store::{Disk, DiskOperation, SessionStore};
use continuable::task::{Attachment, TaskService, TaskServiceConfig};
use continuable::tools::delegate::{
    DelegateConfig, DelegateMount, DelegateServices, TOOL_NAME_DEFAULT,
};
use continuable::tools::send_message::SendMessageTool;
use continuable::tools::tasks::{TaskTools, TaskToolsConfig, TaskToolsLoaded};
use serde_json::json;

use crate::canary::{HASTY, HastyProvider, Lie, LyingDisk};
use crate::disk::{DiskError, DiskFault, FaultRule, FaultRules, SimDisk};
use crate::explore::SimRuntime;
use crate::invariants::durability::signed;
use crate::plan::{FaultedOperation, Hook, ModelStep, Plan, PlannedFault, Provider};
use crate::probe::Judge;

/// The tool that children call.
pub const WORK_TOOL: &str = "work";

/// Everything that runs.
pub struct Deployment {
    /// The executor's runtime.
    pub runtime: Arc<SimRuntime>,
    /// The disk itself, below any lie.
    pub disk: SimDisk,
    /// The model.
    pub model: ScriptedModel,
    /// The store on the disk.
    pub store: Arc<SessionStore>,
    /// The agents.
    pub agents: Arc<AgentHost>,
    /// The Tasks.
    pub tasks: Arc<TaskService>,
    /// The continuable children.
    pub control: Arc<SubagentControlService>,
    tools: Arc<ToolRegistry>,
    lie: Option<Lie>,
    task_tools: TaskTools,
    surface: Mutex<Option<TaskToolsLoaded>>,
    _tools: Vec<ToolGuard>,
    _delegation: DelegateMount,
    _providers: Vec<Registration>,
    _listener: Option<Attachment>,
}

impl Deployment {
    /// Assembles it for `plan`; `lie` makes one part of it a liar.
    pub fn new(runtime: &Arc<SimRuntime>, plan: &Plan, lie: Option<Lie>) -> Self {
        let shared: Arc<dyn Runtime> = Arc::<SimRuntime>::clone(runtime);
        let (disk, below) = disks(&shared, plan, lie);
        let model = model(&shared);
        let tools = Arc::new(ToolRegistry::default());
        let tasks = TaskService::new(Arc::clone(&shared), TaskServiceConfig::default());
        let store = SessionStore::open(Arc::clone(&shared), below);
        let agents = AgentHost::new(AgentHostConfig {
            runtime: Arc::clone(&shared),
            store: Some(Arc::clone(&store)),
            model: Arc::new(model.clone()),
            tools: Arc::clone(&tools),
            system_prompt: "simulated".to_owned(),
            defaults: AgentOptions::default(),
            hooks: hooks(plan.hook),
        });
        let subagents = SubagentService::new(Arc::clone(&shared));
        let control = SubagentControlService::new(
            Arc::clone(&agents),
            Arc::clone(&tasks),
            Arc::clone(&subagents),
            Some(Arc::clone(&store)),
        );
        let providers = register(&subagents, lie);
        let work: Arc<dyn Tool> = Arc::new(WorkTool { runtime: Arc::clone(&shared) });
        let guards = vec![
            tools.register(work).expect("the name is free"),
            SendMessageTool::new(Arc::clone(&control)).load(&tools).expect("the name is free"),
        ];
        let services = DelegateServices {
            runtime: Arc::clone(&shared),
            subagents,
            tasks: Some(Arc::clone(&tasks)),
            control: Some(Arc::clone(&control)),
        };
        let delegation = DelegateConfig { max_depth: Some(3), ..DelegateConfig::new("spawn") };
        let delegation = DelegateMount::new(delegation, services, Arc::clone(&tools))
            .expect("the configuration is valid");
        let listener = plan
            .panicking_listener
            .then(|| tasks.on_done(Arc::new(|_: &_, _: Option<&_>| planned_panic("listener"))));
        let task_tools = TaskTools::new(shared, Arc::clone(&tasks), TaskToolsConfig::default())
            .expect("the default configuration is valid");
        runtime.set_probe(Judge::new(disk.clone(), &agents));
        let deployment = Self {
            runtime: Arc::clone(runtime),
            disk,
            model,
            store,
            agents,
            tasks,
            control,
            tools,
            lie,
            task_tools,
            surface: Mutex::new(None),
            _tools: guards,
            _delegation: delegation,
            _providers: providers,
            _listener: listener,
        };
        deployment.set_surface(true);
        deployment
    }

    /// The registered name of a plan's provider.
    pub fn provider(&self, provider: Provider) -> &'static str {
        match (self.lie, provider) {
            (Some(Lie::Dispose), _) => HASTY,
            (_, Provider::Spawn) => "spawn",
            (_, Provider::Fork) => "fork",
        }
    }

    /// Attaches or detaches the control surface, with the tools that are one.
    pub fn set_surface(&self, attached: bool) {
        let mut surface = self.surface.lock().unwrap_or_else(PoisonError::into_inner);
        match (attached, surface.is_some()) {
            (true, false) => {
                *surface = Some(self.task_tools.load(&self.tools).expect("the names are free"));
            }
            (false, true) => *surface = None,
            _ => {}
        }
    }

    /// Lays out what the model answers to `session`.
    pub fn script(&self, session: &SessionId, steps: &[ModelStep]) {
        let steps = steps.iter().flat_map(|step| scripted(*step));
        let always = Step::Always(Box::new(say()));
        self.model.push(session, steps.chain([always]));
    }
}

/// The simulated disk, and what the store is given of it.
fn disks(runtime: &Arc<dyn Runtime>, plan: &Plan, lie: Option<Lie>) -> (SimDisk, Arc<dyn Disk>) {
    let disk = SimDisk::new().with_runtime(Arc::clone(runtime));
    disk.set_faults(Arc::new(FaultRules::new(plan.faults.iter().flat_map(rules))));
    let below: Arc<dyn Disk> = match lie {
        Some(Lie::Flush) => Arc::new(LyingDisk(disk.clone())),
        _ => Arc::new(disk.clone()),
    };
    (disk, below)
}

/// The model. Children that a model started by itself have a short script of their own.
fn model(runtime: &Arc<dyn Runtime>) -> ScriptedModel {
    let model = ScriptedModel::new(Arc::clone(runtime));
    model.set_recording(false);
    model.set_factory(Arc::new(|_, _| {
        let mut steps = scripted(ModelStep::Slow(15));
        steps.push(Step::Always(Box::new(say())));
        Some(steps)
    }));
    model
}

fn register(subagents: &SubagentService, lie: Option<Lie>) -> Vec<Registration> {
    let mut providers: Vec<Arc<dyn SubagentProvider>> = vec![InProcess::spawn(), InProcess::fork()];
    if lie == Some(Lie::Dispose) {
        providers.push(Arc::new(HastyProvider(InProcess::spawn())));
    }
    let registered = providers.into_iter().map(|provider| subagents.register(provider));
    registered.map(|registered| registered.expect("the name is free")).collect()
}

/// The answer is signed by the instance it is given to, so that a result shows whose it is (I23).
fn say() -> Step {
    Step::func(|request| Step::say(signed(request.agent, request.turn, request.step)))
}

fn work(arguments: serde_json::Value) -> Step {
    Step::tool(WORK_TOOL, arguments)
}

/// The Task that a parent's own model waits for and kills.
const FIRST_TASK: &str = "subagent-1";

fn delegate(background: bool) -> Step {
    Step::tool(
        TOOL_NAME_DEFAULT,
        json!({ "description": "more", "prompt": "begin", "run_in_background": background }),
    )
}

fn scripted(step: ModelStep) -> Vec<Step> {
    match step {
        ModelStep::Say => vec![say()],
        ModelStep::Slow(pause) => vec![Step::Pause(Duration::from_millis(pause)), say()],
        ModelStep::Empty => vec![Step::Empty],
        ModelStep::Tool => vec![work(json!({}))],
        ModelStep::SlowTool(pause) => vec![work(json!({ "ms": pause }))],
        ModelStep::Conclude(pause) => vec![work(json!({ "ms": pause, "conclude": true }))],
        ModelStep::PanickingTool => vec![work(json!({ "panic": true }))],
        ModelStep::Malformed => vec![Step::MalformedArgs { name: WORK_TOOL.to_owned() }],
        ModelStep::Hang => vec![Step::Hang],
        ModelStep::Error => vec![Step::Err("the model failed".to_owned())],
        ModelStep::MaxTokens => vec![Step::func(|request| {
            Step::MaxTokens(signed(request.agent, request.turn, request.step))
        })],
        ModelStep::Refuse => vec![Step::Refuse],
        ModelStep::Panic => vec![Step::func(|_| planned_panic("model"))],
        ModelStep::Delegate => vec![delegate(false)],
        ModelStep::Background => vec![delegate(true)],
        ModelStep::TaskOutput => vec![Step::tool(
            "task_output",
            json!({ "task_id": FIRST_TASK, "wait": true, "timeout_ms": 25 }),
        )],
        ModelStep::TaskKill => {
            vec![Step::tool("task_kill", json!({ "task_id": FIRST_TASK }))]
        }
    }
}

/// Panics as foreign code does, without the message on standard error.
fn planned_panic(whose: &str) -> ! {
    std::panic::resume_unwind(Box::new(format!("planned: {whose}")))
}

/// The disk rules of one planned fault.
fn rules(fault: &PlannedFault) -> Vec<FaultRule> {
    let operations: &[DiskOperation] = match fault.operation {
        FaultedOperation::Flush => &[DiskOperation::Sync],
        FaultedOperation::Append => &[DiskOperation::Append, DiskOperation::WriteNew],
    };
    let rule = |operation: &DiskOperation| {
        let fails = match (fault.operation, fault.skip % 2) {
            (FaultedOperation::Append, 1) => DiskFault::Torn { keep: 7, error: DiskError::Full },
            _ => DiskFault::Fail(DiskError::Io),
        };
        let rule = if fault.once {
            FaultRule::once(*operation, fails)
        } else {
            FaultRule::from_now_on(*operation, fails)
        };
        rule.after(fault.skip)
    };
    operations.iter().map(rule).collect()
}

fn hooks(hook: Hook) -> Vec<Arc<dyn AgentHooks>> {
    match hook {
        Hook::Absent => Vec::new(),
        hook => vec![Arc::new(PlannedHook { hook, asked: AtomicU64::new(0) })],
    }
}

/// A hook that interferes as planned.
struct PlannedHook {
    hook: Hook,
    asked: AtomicU64,
}

impl PlannedHook {
    fn every(&self, n: u64) -> bool {
        (self.asked.fetch_add(1, Ordering::Relaxed) + 1).is_multiple_of(n)
    }
}

impl AgentHooks for PlannedHook {
    fn prompt_submit<'a>(
        &'a self,
        _context: &'a HookContext,
        _message: &'a Arc<Message>,
    ) -> HookFuture<'a, PromptDecision> {
        let decision = match self.hook {
            Hook::Blocks if self.every(3) => PromptDecision::Block { reason: "planned".to_owned() },
            _ => PromptDecision::allow(),
        };
        Box::pin(std::future::ready(Ok(decision)))
    }

    fn pre_step<'a>(&'a self, _context: &'a HookContext) -> HookFuture<'a, ()> {
        if self.hook == Hook::Panics && self.every(5) {
            planned_panic("hook");
        }
        Box::pin(std::future::ready(Ok(())))
    }
}

/// Works for a while, or panics.
struct WorkTool {
    runtime: Arc<dyn Runtime>,
}

impl Tool for WorkTool {
    fn definition(&self) -> ToolDefinition {
        ToolDefinition {
            name: WORK_TOOL.to_owned(),
            description: "Works for a while.".to_owned(),
            parameters: json!({
                "type": "object",
                "properties": {
                    "ms": { "type": "number" },
                    "panic": { "type": "boolean" },
                    "conclude": { "type": "boolean" },
                },
            }),
        }
    }

    fn mode(&self) -> ToolMode {
        ToolMode::Parallel
    }

    fn call(&self, invocation: ToolInvocation) -> BoxFuture<'static, ToolOutput> {
        let pause = invocation.arguments["ms"].as_u64().unwrap_or(0);
        let panics = invocation.arguments["panic"].as_bool().unwrap_or(false);
        let concludes = invocation.arguments["conclude"].as_bool().unwrap_or(false);
        let asleep = self.runtime.sleep(Duration::from_millis(pause));
        Box::pin(async move {
            if panics {
                planned_panic("tool");
            }
            tokio::select! {
                biased;
                _ = invocation.signal.cancelled() => {}
                () = asleep => {}
            }
            ToolOutput { concludes, ..ToolOutput::text("worked") }
        })
    }
}
