//! Creating and resuming agents: one transaction that publishes session and agent together, or
//! rolls back to quiescence before it fails (fact-sheet 3.8).

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use super::dispose::AgentHandle;
use super::hooks::{AgentEvent, AgentHooks};
use super::host::{AgentHost, AgentHostConfig};
use super::registry::{BeginRefusal, PublishRefusal};
use super::steering::SteeringQueue;
use super::structured::StructuredCapture;
use super::tools::ToolSet;
use super::{Agent, AgentInner, AgentOptions, Scope};
use crate::cancel::CancelSignal;
use crate::channel::{Bell, Latch};
use crate::error::ErrorCode;
use crate::ids::{OwnerId, SessionId};
use crate::points::Point;
use crate::runtime::{BoxFuture, Panicked, Spawned, contain, contain_call, spawn};
use crate::sections::publication::{self, Publication, Unpublished};
use crate::session::{Descriptor, Draft, Event, SeedError, Session, SessionHeader, ToolFilter};
use crate::store::{Loaded, Reservation, StoreError};
use crate::sync::{LockClass, Mutex};
use crate::vocabulary::CancelCause;

/// An agent's setup failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("agent setup failed: {message}")]
pub struct SetupError {
    /// What went wrong.
    pub message: String,
    /// Its code.
    pub code: ErrorCode,
}

impl SetupError {
    pub(super) fn of(error: &impl std::fmt::Display, code: ErrorCode) -> Self {
        Self { message: error.to_string(), code }
    }
}

/// Why no agent was created. Everything is rolled back and the id is free again.
#[derive(Debug, Clone, thiserror::Error)]
pub enum CreateError {
    /// The creation was cancelled before publication.
    #[error("aborted before publication: {}", .0.reason())]
    Cancelled(CancelCause),
    /// The host or the parent is closing.
    #[error(transparent)]
    Refused(#[from] BeginRefusal),
    /// An agent of that id is registered.
    #[error("an agent of session {session} is already registered")]
    AlreadyRegistered {
        /// The id.
        session: SessionId,
        /// Who has it.
        live: OwnerId,
    },
    /// It was disposed while it was being created.
    #[error("the agent was disposed during its creation")]
    Disposed,
    /// An option is out of its range.
    #[error("invalid agent option: {0}")]
    InvalidOptions(&'static str),
    /// The setup failed.
    #[error(transparent)]
    Setup(#[from] SetupError),
    /// The seed is not the beginning of a log.
    #[error(transparent)]
    Seed(#[from] SeedError),
    /// No session store is configured, so nothing can be resumed.
    #[error("no session store is configured")]
    PersistenceUnavailable,
    /// The store refused the session, or could not load it.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A listener vetoed the publication.
    #[error("vetoed: {0}")]
    Vetoed(String),
    /// Foreign code panicked, or ours did.
    #[error(transparent)]
    Panicked(#[from] Panicked),
}

impl CreateError {
    /// The stable code.
    pub fn code(&self) -> ErrorCode {
        match self {
            Self::Cancelled(_) => ErrorCode::Cancelled,
            Self::Refused(BeginRefusal::HostClosing) | Self::Disposed => ErrorCode::Closing,
            Self::Refused(BeginRefusal::ParentUnavailable) => ErrorCode::OwnerUnavailable,
            Self::AlreadyRegistered { .. } => ErrorCode::SessionAlreadyExists,
            Self::InvalidOptions(_) | Self::Vetoed(_) => ErrorCode::InvalidInput,
            Self::Setup(error) => error.code,
            Self::PersistenceUnavailable => ErrorCode::PersistenceUnavailable,
            Self::Store(error) => error.code(),
            Self::Seed(error) => error.code(),
            Self::Panicked(_) => ErrorCode::Panicked,
        }
    }
}

/// Runs before publication, with the unpublished agent.
pub type BeforePublish =
    Box<dyn FnOnce(Agent) -> BoxFuture<'static, Result<(), SetupError>> + Send>;

/// How an agent is composed.
#[derive(Default)]
pub struct Setup {
    /// Shadows the deployment's persona in the system text.
    pub persona: Option<String>,
    /// Restricts the tools that the agent inherits; a name it cannot inherit fails the setup.
    pub tool_filter: Option<ToolFilter>,
    /// The structured result that the agent is to report.
    pub structured: Option<StructuredCapture>,
    /// Written with the first turn, in one section with its prompt (contract P2).
    pub descriptor: Option<Descriptor>,
    /// The agent's own hooks, after the host's.
    pub hooks: Vec<Arc<dyn AgentHooks>>,
    /// More setup. Its future is dropped if the creation is cancelled meanwhile.
    pub before_publish: Option<BeforePublish>,
}

/// A new agent with a new session.
pub struct CreateAgent {
    /// The id of both.
    pub session_id: SessionId,
    /// The agent it is created through: closing that one closes this one.
    pub parent: Option<Agent>,
    /// The absolute working directory.
    pub cwd: Option<String>,
    /// The durable lineage.
    pub parent_session: Option<SessionId>,
    /// A fork's inherited events.
    pub seed: Option<Vec<Arc<Event>>>,
    /// How many of them there are, as the header says it.
    pub seed_length: Option<u64>,
    /// How deep in a tree of delegations.
    pub delegation_depth: u64,
    /// Which model, and how.
    pub options: AgentOptions,
    /// Cancels the creation only.
    pub signal: Option<CancelSignal>,
    /// The slot of the activation the agent runs; it gates the inbox for the agent's life
    /// (contract P10).
    pub activation: Option<CancelSignal>,
    /// How it is composed.
    pub setup: Setup,
}

impl CreateAgent {
    /// A root agent with the host's defaults.
    pub fn new(session_id: SessionId) -> Self {
        Self {
            session_id,
            parent: None,
            cwd: None,
            parent_session: None,
            seed: None,
            seed_length: None,
            delegation_depth: 0,
            options: AgentOptions::default(),
            signal: None,
            activation: None,
            setup: Setup::default(),
        }
    }
}

/// What a creation and a resumption have in common.
pub(super) struct Blueprint {
    pub(super) header: SessionHeader,
    pub(super) seed: Option<Vec<Arc<Event>>>,
    pub(super) parent: Option<Agent>,
    pub(super) options: AgentOptions,
    pub(super) signal: Option<CancelSignal>,
    pub(super) activation: Option<CancelSignal>,
    pub(super) setup: Setup,
    pub(super) reservation: Option<Reservation>,
    pub(super) resumed: bool,
}

/// A stored session, brought back to life.
pub struct ResumeAgent {
    /// The id of session and agent.
    pub session_id: SessionId,
    /// The session, if the caller has loaded it: then it is not read again.
    pub loaded: Option<Loaded>,
    /// The agent it is resumed through: closing that one closes this one.
    pub parent: Option<Agent>,
    /// Which model, and how.
    pub options: AgentOptions,
    /// Cancels the resumption only.
    pub signal: Option<CancelSignal>,
    /// The slot of the activation the agent runs (contract P10).
    pub activation: Option<CancelSignal>,
    /// How it is composed.
    pub setup: Setup,
}

impl ResumeAgent {
    /// Resumes with the host's defaults.
    pub fn new(session_id: SessionId) -> Self {
        Self {
            session_id,
            loaded: None,
            parent: None,
            options: AgentOptions::default(),
            signal: None,
            activation: None,
            setup: Setup::default(),
        }
    }
}

/// A creation under way, in a task of the runtime's. Dropping it requests the creation's
/// cancellation; a rollback or disposal then finishes detached (contract P17).
#[must_use = "dropping the creation cancels it"]
pub struct Creation {
    view: Spawned<Result<AgentHandle, CreateError>>,
    abandoned: Latch<()>,
}

impl Future for Creation {
    type Output = Result<AgentHandle, CreateError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.view).poll(cx).map(|result| result.unwrap_or_else(|e| Err(e.into())))
    }
}

impl Drop for Creation {
    fn drop(&mut self) {
        self.abandoned.set(());
    }
}

impl AgentHost {
    /// Creates an agent and its session. Nothing of it is visible before the publication.
    pub fn create(self: &Arc<Self>, request: CreateAgent) -> Creation {
        let header = SessionHeader {
            cwd: request.cwd,
            parent_session: request.parent_session,
            seed_length: request.seed_length,
            delegation_depth: request.delegation_depth,
            ..SessionHeader::new(request.session_id, self.config().runtime.now())
        };
        let blueprint = Blueprint {
            header,
            seed: request.seed,
            parent: request.parent,
            options: request.options,
            signal: request.signal,
            activation: request.activation,
            setup: request.setup,
            reservation: None,
            resumed: false,
        };
        let host = Arc::clone(self);
        self.transaction(move |abandoned| async move { host.build(blueprint, abandoned).await })
    }

    /// Brings a stored session back to life: loads it, unless the caller has, and publishes an agent
    /// for it. The header keeps lineage, depth and seed length; the whole stored log is the seed.
    pub fn resume(self: &Arc<Self>, request: ResumeAgent) -> Creation {
        let host = Arc::clone(self);
        self.transaction(move |abandoned| async move {
            let signal = request.signal.clone();
            let loaded = match request.loaded {
                Some(loaded) => loaded,
                None => {
                    let parent = request.parent.as_ref();
                    host.load(&request.session_id, parent, signal.as_ref(), &abandoned).await?
                }
            };
            let Loaded { header, events, reservation, .. } = loaded;
            let blueprint = Blueprint {
                header,
                seed: Some(events),
                parent: request.parent,
                options: request.options,
                signal,
                activation: request.activation,
                setup: request.setup,
                reservation,
                resumed: true,
            };
            host.build(blueprint, abandoned).await
        })
    }

    /// Loads, given up when the resumption is cancelled: a late result then only gives its
    /// reservation back.
    async fn load(
        &self,
        id: &SessionId,
        parent: Option<&Agent>,
        signal: Option<&CancelSignal>,
        abandoned: &Latch<()>,
    ) -> Result<Loaded, CreateError> {
        let store = self.config().store.clone().ok_or(CreateError::PersistenceUnavailable)?;
        if let Some(cause) = signal.and_then(CancelSignal::cause) {
            return Err(CreateError::Cancelled(cause));
        }
        self.config().runtime.point(Point::ResumeLoad).await;
        let view = store.load(id);
        let parent_closes = async {
            match parent {
                Some(parent) => parent.inner.closing.wait().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            cause = fired(signal) => Err(CreateError::Cancelled(cause)),
            () = parent_closes => Err(BeginRefusal::ParentUnavailable.into()),
            () = self.closing().wait() => Err(BeginRefusal::HostClosing.into()),
            () = abandoned.wait() => Err(CreateError::Cancelled(CancelCause::CallerGone)),
            loaded = view => Ok(loaded?),
        }
    }

    fn transaction<F>(self: &Arc<Self>, body: impl FnOnce(Latch<()>) -> F) -> Creation
    where
        F: Future<Output = Result<AgentHandle, CreateError>> + Send + 'static,
    {
        let abandoned = Latch::new();
        let view = spawn(&self.config().runtime, "agent creation", body(abandoned.clone()));
        Creation { view, abandoned }
    }

    pub(super) async fn build(
        self: Arc<Self>,
        mut blueprint: Blueprint,
        abandoned: Latch<()>,
    ) -> Result<AgentHandle, CreateError> {
        let runtime = Arc::clone(&self.config().runtime);
        let before_publish = blueprint.setup.before_publish.take();
        let reservation = blueprint.reservation.take();
        let signal = blueprint.signal.take();
        if let Some(cause) = signal.as_ref().and_then(CancelSignal::cause) {
            return Err(CreateError::Cancelled(cause));
        }
        runtime.point(Point::AgentSetup).await;
        let agent = self.prepare(blueprint)?;
        // From here on the handle's drop would dispose the agent; failures await that.
        let handle = AgentHandle::new(agent.clone());
        runtime.point(Point::AgentSetup).await;
        let ready = self.run_setup(&agent, before_publish, signal.as_ref(), &abandoned).await;
        if let Err(error) = ready {
            handle.dispose().await;
            return Err(error);
        }
        runtime.point(Point::AgentPublish).await;
        if abandoned.get().is_some() {
            handle.dispose().await;
            return Err(CreateError::Cancelled(CancelCause::CallerGone));
        }
        if let Err(error) = self.publish(&agent, signal.as_ref(), reservation) {
            handle.dispose().await;
            return Err(error);
        }
        if let Err(error) = self.announce(&agent) {
            handle.dispose().await;
            return Err(error);
        }
        Ok(handle)
    }

    fn prepare(self: &Arc<Self>, blueprint: Blueprint) -> Result<Agent, CreateError> {
        let config = self.config();
        check_options(&blueprint.options)?;
        let setup = blueprint.setup;
        let tools = tool_set(config, blueprint.parent.as_ref(), &setup)?;
        let descriptor = setup.descriptor.as_ref().map(Draft::descriptor).transpose();
        let descriptor = descriptor.map_err(|error| SetupError::of(&error, error.code()))?;
        let instance = self.next_instance();
        let runtime = Arc::clone(&config.runtime);
        let session =
            Session::new(Arc::clone(&runtime), blueprint.header, blueprint.seed, Some(instance))?;
        let mut hooks = config.hooks.clone();
        hooks.extend(setup.hooks);
        let scope = Scope { effects: Some(Vec::new()), descriptor, header: None, hooks };
        let inner = AgentInner {
            host: Arc::clone(self),
            runtime,
            instance,
            persona: setup.persona,
            tools,
            session,
            options: blueprint.options.or(&config.defaults),
            parent: blueprint.parent,
            activation: blueprint.activation,
            resumed: blueprint.resumed,
            queue: Mutex::new(LockClass::Queue, SteeringQueue::new(instance.0)),
            scope: Mutex::new(LockClass::Leaf, scope),
            rest: Bell::new(),
            closing: Latch::new(),
            disposed: Latch::new(),
        };
        let agent = Agent::of(Arc::new(inner));
        let parent = agent.parent().map(Agent::instance);
        self.registry().lock().begin(instance, agent.id().clone(), parent, agent.clone())?;
        Ok(agent)
    }

    /// Runs the setup, given up when the creation is cancelled, abandoned or closed.
    async fn run_setup(
        &self,
        agent: &Agent,
        before_publish: Option<BeforePublish>,
        signal: Option<&CancelSignal>,
        abandoned: &Latch<()>,
    ) -> Result<(), CreateError> {
        let Some(before_publish) = before_publish else { return Ok(()) };
        let runtime = &self.config().runtime;
        let setup = contain_call(runtime, "agent setup", || before_publish(agent.clone()))?;
        tokio::select! {
            biased;
            cause = fired(signal) => Err(CreateError::Cancelled(cause)),
            () = agent.inner.closing.wait() => Err(CreateError::Disposed),
            () = abandoned.wait() => Err(CreateError::Cancelled(CancelCause::CallerGone)),
            ready = contain(runtime, "agent setup", setup) => Ok(ready??),
        }
    }

    /// Section (f).
    fn publish(
        &self,
        agent: &Agent,
        signal: Option<&CancelSignal>,
        reservation: Option<Reservation>,
    ) -> Result<(), CreateError> {
        let what = Publication {
            agent: agent.instance(),
            session: agent.id().clone(),
            parent: agent.parent().map(Agent::instance),
            depth: agent.depth(),
            seed_length: agent.session().header().seed_length,
            resumed: agent.inner.resumed,
        };
        let runtime = &self.config().runtime;
        let attach = || match &self.config().store {
            Some(store) => store.attach(agent.session(), reservation),
            None => Ok(()),
        };
        publication::publish(runtime, signal, self.registry(), &what, attach).map_err(|error| {
            match error {
                Unpublished::Cancelled(cause) => CreateError::Cancelled(cause),
                Unpublished::Attach(error) => error.into(),
                Unpublished::Refused(refusal) => match refusal {
                    PublishRefusal::Collision(live) => {
                        CreateError::AlreadyRegistered { session: what.session.clone(), live }
                    }
                    PublishRefusal::HostClosing => BeginRefusal::HostClosing.into(),
                    PublishRefusal::ParentUnavailable => BeginRefusal::ParentUnavailable.into(),
                    PublishRefusal::Closed => CreateError::Disposed,
                },
            }
        })
    }

    /// Tells the world. A listener of the host may veto; the agent may be disposed from within.
    fn announce(&self, agent: &Agent) -> Result<(), CreateError> {
        let alive = || match agent.inner.closing.get() {
            Some(()) => Err(CreateError::Disposed),
            None => Ok(()),
        };
        self.tell_created(agent)?;
        alive()?;
        agent.tell(&AgentEvent::SessionStart { resumed: agent.inner.resumed });
        alive()
    }
}

impl AgentOptions {
    /// These options, and `defaults` where they are absent. The depth has no default.
    fn or(self, defaults: &Self) -> Self {
        Self {
            provider: self.provider.or_else(|| defaults.provider.clone()),
            model: self.model.or_else(|| defaults.model.clone()),
            max_tokens: self.max_tokens.or(defaults.max_tokens),
            subagent_depth: self.subagent_depth,
        }
    }
}

/// What the agent may call: its parent's tools, or the deployment's, under its own restriction.
fn tool_set(
    config: &AgentHostConfig,
    parent: Option<&Agent>,
    setup: &Setup,
) -> Result<ToolSet, SetupError> {
    let inherited = match parent {
        Some(parent) => parent.tools().clone(),
        None => ToolSet::of(Arc::clone(&config.tools)),
    };
    let mut tools = inherited
        .child(setup.tool_filter.as_ref())
        .map_err(|error| SetupError::of(&error, error.code()))?;
    if let Some(capture) = &setup.structured {
        let added = tools.add_structured(capture.clone());
        added.map_err(|error| SetupError::of(&error, ErrorCode::InvalidInput))?;
    }
    Ok(tools)
}

/// Waits for a signal that may not exist.
async fn fired(signal: Option<&CancelSignal>) -> CancelCause {
    match signal {
        Some(signal) => signal.cancelled().await,
        None => std::future::pending().await,
    }
}

fn check_options(options: &AgentOptions) -> Result<(), CreateError> {
    const SAFE_INTEGER_MAX: u64 = (1 << 53) - 1;
    if options.max_tokens.is_some_and(|n| n == 0 || n > SAFE_INTEGER_MAX) {
        return Err(CreateError::InvalidOptions("maxTokens must be a positive safe integer"));
    }
    if options.subagent_depth.is_some_and(|n| n > SAFE_INTEGER_MAX) {
        return Err(CreateError::InvalidOptions("subagentDepth must be a safe integer"));
    }
    Ok(())
}
