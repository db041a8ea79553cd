//! One deployment of the real runtime on simulated parts: everything a process would assemble at
//! its start, on the explorer's executor, a simulated disk and a scripted model.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use continuable::agent::hooks::{AgentHooks, HookContext, HookFuture, PromptDecision};
use continuable::agent::tools::{
    Tool, ToolGuard, ToolInvocation, ToolMode, ToolOutput, ToolRegistry,
};
use continuable::agent::{Agent, AgentHost, AgentHostConfig, AgentOptions};
use continuable::control::SubagentControlService;
use continuable::ids::SessionId;
use continuable::message::Message;
use continuable::model::script::{ScriptedModel, Step};
use continuable::model::{ModelClient, ToolDefinition};
use continuable::provider::in_process::InProcess;
use continuable::provider::{Registration, SubagentProvider, SubagentService};
use continuable::runtime::{BoxFuture, Runtime};
use continuable::store::{Disk, SessionStore};
use continuable::task::{Attachment, TaskService, TaskServiceConfig, WakePolicy};
use continuable::tools::delegate::{
    DelegateConfig, DelegateMount, DelegateServices, TOOL_NAME_DEFAULT,
};
use continuable::tools::send_message::SendMessageTool;
use continuable::tools::tasks::{TaskTools, TaskToolsConfig, TaskToolsLoaded};
use serde_json::json;

use crate::canary::{HASTY, HastyProvider, Lie, LyingDisk};
use crate::disk::SimDisk;
use crate::explore::SimRuntime;
use crate::faults::Injector;
use crate::invariants::durability::signed;
use crate::plan::{Hook, ModelStep, Part, Plan, Provider};
use crate::probe::{Confirmed, Judge};

/// The tool that children call.
pub const WORK_TOOL: &str = "work";

/// What a deployment stands on; all of it outlives the deployment.
#[derive(Debug, Clone)]
pub struct Ground {
    /// The disk.
    pub disk: SimDisk,
    /// Where scripts are laid out.
    pub scripts: ScriptedModel,
    /// What the agents ask: the scripted model itself, or a client of it across a network.
    pub model: Arc<dyn ModelClient>,
    /// What earlier lives confirmed.
    pub confirmed: Confirmed,
    /// Which part lies, if one does.
    pub lie: Option<Lie>,
    /// Whether this life's faults include the plan's crashes.
    pub crashes: bool,
}

impl Ground {
    /// New ground with the scripted model at hand.
    pub fn new(runtime: &Arc<SimRuntime>, lie: Option<Lie>) -> Self {
        let shared: Arc<dyn Runtime> = Arc::<SimRuntime>::clone(runtime);
        let scripts = model(&shared);
        Self {
            disk: SimDisk::new(),
            model: Arc::new(scripts.clone()),
            scripts,
            confirmed: Confirmed::default(),
            lie,
            crashes: true,
        }
    }
}

/// Everything that runs.
pub struct Deployment {
    /// The executor's runtime.
    pub runtime: Arc<SimRuntime>,
    /// What it stands on; the disk is the one below any lie.
    pub ground: Ground,
    /// The store on the disk.
    pub store: Arc<SessionStore>,
    /// Whether it takes its lease.
    pub leased: bool,
    /// The agents.
    pub agents: Arc<AgentHost>,
    /// The Tasks.
    pub tasks: Arc<TaskService>,
    /// The providers.
    pub subagents: Arc<SubagentService>,
    control: Mutex<Arc<SubagentControlService>>,
    control_unloaded: AtomicBool,
    tools: Arc<ToolRegistry>,
    task_tools: TaskTools,
    surface: Mutex<Option<TaskToolsLoaded>>,
    providers: Mutex<BTreeMap<Provider, Registration>>,
    _hasty: Option<Registration>,
    _tools: Vec<ToolGuard>,
    _delegation: DelegateMount,
    _listener: Option<Attachment>,
}

impl Deployment {
    /// Assembles it for `plan`.
    pub fn new(runtime: &Arc<SimRuntime>, plan: &Plan, ground: Ground) -> Self {
        let shared: Arc<dyn Runtime> = Arc::<SimRuntime>::clone(runtime);
        let store = store(runtime, plan, &ground);
        let tools = Arc::new(ToolRegistry::default());
        let wake = match plan.wakes {
            0 => WakePolicy::Quiet,
            most => WakePolicy::Wake(most),
        };
        let tasks = TaskService::new(Arc::clone(&shared), TaskServiceConfig { wake });
        let agents = AgentHost::new(AgentHostConfig {
            runtime: Arc::clone(&shared),
            store: Some(Arc::clone(&store)),
            model: Arc::clone(&ground.model),
            tools: Arc::clone(&tools),
            system_prompt: "simulated".to_owned(),
            defaults: AgentOptions::default(),
            hooks: hooks(plan.hook),
        });
        let subagents = SubagentService::new(Arc::clone(&shared));
        let control = control(&agents, &tasks, &subagents, &store);
        let work: Arc<dyn Tool> = Arc::new(WorkTool { runtime: Arc::clone(&shared) });
        let guards = vec![
            tools.register(work).expect("the name is free"),
            SendMessageTool::new(Arc::clone(&control)).load(&tools).expect("the name is free"),
        ];
        let services = DelegateServices {
            runtime: Arc::clone(&shared),
            subagents: Arc::clone(&subagents),
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
        runtime.set_probe(Judge::new(ground.disk.clone(), &agents, ground.confirmed.clone()));
        let hasty = (ground.lie == Some(Lie::Dispose)).then(|| {
            let provider = Arc::new(HastyProvider(InProcess::spawn()));
            subagents.register(provider).expect("the name is free")
        });
        let deployment = Self {
            runtime: Arc::clone(runtime),
            ground,
            store,
            leased: plan.lease,
            agents,
            tasks,
            subagents,
            control: Mutex::new(control),
            control_unloaded: AtomicBool::new(false),
            tools,
            task_tools,
            surface: Mutex::new(None),
            providers: Mutex::default(),
            _hasty: hasty,
            _tools: guards,
            _delegation: delegation,
            _listener: listener,
        };
        for part in [Part::Spawn, Part::Fork, Part::Surface] {
            deployment.load(part);
        }
        deployment
    }

    /// The registered name of a plan's provider.
    pub fn provider(&self, provider: Provider) -> &'static str {
        match (self.ground.lie, provider) {
            (Some(Lie::Dispose), _) => HASTY,
            (_, Provider::Spawn) => "spawn",
            (_, Provider::Fork) => "fork",
        }
    }

    /// The continuable children.
    pub fn control(&self) -> Arc<SubagentControlService> {
        Arc::clone(&self.control.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Loads a part that may have been unloaded; the store never comes back.
    pub fn load(&self, part: Part) {
        match part {
            Part::Spawn => self.load_provider(Provider::Spawn, InProcess::spawn()),
            Part::Fork => self.load_provider(Provider::Fork, InProcess::fork()),
            Part::Surface => self.set_surface(true),
            // A disposed service stays so: another one takes its place, never beside it.
            Part::Control if self.control_unloaded.swap(false, Ordering::Relaxed) => {
                let fresh = control(&self.agents, &self.tasks, &self.subagents, &self.store);
                let before = std::mem::replace(
                    &mut *self.control.lock().unwrap_or_else(PoisonError::into_inner),
                    fresh,
                );
                drop(before);
            }
            Part::Control | Part::Store => {}
        }
    }

    fn load_provider(&self, name: Provider, provider: Arc<dyn SubagentProvider>) {
        let mut providers = self.providers.lock().unwrap_or_else(PoisonError::into_inner);
        providers
            .entry(name)
            .or_insert_with(|| self.subagents.register(provider).expect("the name is free"));
    }

    /// Unloads a part; the control service and the store only after what they must finish.
    pub async fn unload(&self, part: Part) {
        match part {
            Part::Spawn => self.unload_provider(Provider::Spawn),
            Part::Fork => self.unload_provider(Provider::Fork),
            Part::Surface => self.set_surface(false),
            Part::Control => {
                self.control().dispose().await;
                self.control_unloaded.store(true, Ordering::Relaxed);
            }
            // What could not be confirmed was recorded by the store as facts.
            Part::Store => drop(self.store.close().await),
        }
    }

    fn unload_provider(&self, name: Provider) {
        let before = {
            let mut providers = self.providers.lock().unwrap_or_else(PoisonError::into_inner);
            providers.remove(&name)
        };
        drop(before);
    }

    /// The process died: breaks the cycles between what lived in it, which an orderly end breaks by
    /// itself. Call it once nothing of it runs any more.
    pub fn bury(&self) {
        let agents: Vec<_> = {
            let mut registry = self.agents.registry().lock();
            let instances: Vec<_> = registry.close_all().iter().map(Agent::instance).collect();
            instances.into_iter().filter_map(|instance| registry.remove(instance)).collect()
        };
        let tasks = self.tasks.table().lock().clear();
        drop((agents, tasks));
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
        self.ground.scripts.push(session, steps.chain([always]));
    }
}

fn control(
    agents: &Arc<AgentHost>,
    tasks: &Arc<TaskService>,
    subagents: &Arc<SubagentService>,
    store: &Arc<SessionStore>,
) -> Arc<SubagentControlService> {
    SubagentControlService::new(
        Arc::clone(agents),
        Arc::clone(tasks),
        Arc::clone(subagents),
        Some(Arc::clone(store)),
    )
}

/// The store on the ground's disk, with the plan's faults armed.
fn store(runtime: &Arc<SimRuntime>, plan: &Plan, ground: &Ground) -> Arc<SessionStore> {
    let shared: Arc<dyn Runtime> = Arc::<SimRuntime>::clone(runtime);
    let disk = ground.disk.clone().with_runtime(Arc::clone(&shared));
    let injector = Injector::new(runtime, disk.freezer(), &plan.faults, ground.crashes);
    disk.set_faults(Arc::<Injector>::clone(&injector));
    disk.set_capacity(plan.capacity);
    runtime.set_faults(Some(injector));
    let below: Arc<dyn Disk> = match ground.lie {
        Some(Lie::Flush) => Arc::new(LyingDisk(disk)),
        _ => Arc::new(disk),
    };
    if plan.lease {
        SessionStore::open_leased(shared, below)
    } else {
        SessionStore::open(shared, below)
    }
}

/// The model. Children that a model started by itself have a short script of their own.
pub fn model(runtime: &Arc<dyn Runtime>) -> ScriptedModel {
    let model = ScriptedModel::new(Arc::clone(runtime));
    model.set_recording(false);
    model.set_factory(Arc::new(|_, _| {
        let mut steps = scripted(ModelStep::Slow(15));
        steps.push(Step::Always(Box::new(say())));
        Some(steps)
    }));
    model
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
        ModelStep::Structured => vec![Step::Structured(json!({ "answer": "done" }))],
        ModelStep::RateLimit => vec![Step::RateLimited],
        ModelStep::Break => {
            vec![Step::Break { text: "half".to_owned(), error: "it broke".to_owned() }]
        }
        ModelStep::Cut => vec![Step::Cut("half".to_owned())],
        ModelStep::Endless(pause) => vec![Step::Endless(Duration::from_millis(pause))],
        ModelStep::PanicMidStream => vec![Step::PanicMidStream("planned: model".to_owned())],
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
