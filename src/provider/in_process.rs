//! The in-process providers: spawn (a fresh child) and fork (a child that starts from its parent's
//! completed turns). Fact-sheet 6; contract P6, P9, P10.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};

use super::service::SAFE_INTEGER_MAX;
use super::{
    Admission, BoxAdmission, Capabilities, ContinuableProvider, ContinuableRequest, DisposeError,
    ResumeRequest, StartFuture, StartRequest, Steer, SteerError, SubagentError, SubagentProvider,
    SubagentResult, SubagentRun,
};
use crate::agent::structured::StructuredCapture;
use crate::agent::{
    Agent, AgentHandle, AgentOptions, CancelOptions, CreateAgent, CreateError, Receipt,
    ReceiptOutcome, ResumeAgent, Setup,
};
use crate::cancel::CancelSignal;
use crate::channel::Latch;
use crate::facts::Fact;
use crate::ids::{OwnerId, SessionId};
use crate::message::{Message, Role};
use crate::points::Point;
use crate::runtime::{BoxFuture, Runtime, fresh_message_id, fresh_session_id, spawn};
use crate::sections::steering::SteerRefusal;
use crate::session::descriptor::Descriptor;
use crate::session::{Event, TurnEndReason, fold};
use crate::vocabulary::{CancelCause, StopReason};

use super::run::publish_result;

/// What a child starts from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Seed {
    /// Nothing.
    Fresh,
    /// Its parent's events up to the last completed turn.
    Parent,
}

/// Whether a run's result needs its state confirmed durable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Durability {
    /// An activation's: success needs the final flush (contract P6).
    Required,
    /// A foreground run's (contract P14).
    BestEffort,
}

/// Runs children as agents of the parent's own host.
#[derive(Debug, Clone)]
pub struct InProcess {
    name: &'static str,
    seed: Seed,
}

impl InProcess {
    /// Fresh children, under the name `spawn`.
    pub fn spawn() -> Arc<Self> {
        Arc::new(Self { name: "spawn", seed: Seed::Fresh })
    }

    /// Children that inherit their parent's completed turns, under the name `fork`.
    pub fn fork() -> Arc<Self> {
        Arc::new(Self { name: "fork", seed: Seed::Parent })
    }

    /// The inherited events, captured at the call; none if the parent never completed a turn.
    fn inherited(&self, parent: &Agent) -> Option<Vec<Arc<Event>>> {
        if self.seed == Seed::Fresh {
            return None;
        }
        let seed = fold::fork_seed(parent.session().lock().events());
        (!seed.is_empty()).then_some(seed)
    }

    fn started(&self, request: StartRequest, continuation: Option<Continuation>) -> StartFuture {
        let inherited = self.inherited(&request.parent);
        Box::pin(start(request, continuation, inherited))
    }
}

/// What the control service decided of a child that can be continued.
struct Continuation {
    child: SessionId,
    message: Message,
    descriptor: Descriptor,
}

impl SubagentProvider for InProcess {
    fn name(&self) -> &str {
        self.name
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::ALL
    }

    fn inherits_parent_context(&self) -> bool {
        self.seed == Seed::Parent
    }

    fn start(&self, request: StartRequest) -> StartFuture {
        self.started(request, None)
    }

    fn resume(&self) -> Option<&dyn ContinuableProvider> {
        Some(self)
    }
}

impl ContinuableProvider for InProcess {
    fn start(&self, request: ContinuableRequest) -> StartFuture {
        let ContinuableRequest { request, message, child, descriptor } = request;
        self.started(request, Some(Continuation { child, message, descriptor }))
    }

    fn resume(&self, request: ResumeRequest) -> StartFuture {
        Box::pin(resume(request))
    }
}

/// The depth of a child of `parent`, under an absolute cap on it (invariant I16).
///
/// # Errors
///
/// [`SubagentError::Depth`] above the cap, [`SubagentError::DepthRange`] beyond exact integers.
pub fn child_depth(parent: &Agent, max: Option<u64>) -> Result<u64, SubagentError> {
    let attempted = parent.depth().saturating_add(1);
    if attempted > SAFE_INTEGER_MAX {
        return Err(SubagentError::DepthRange(attempted));
    }
    match max {
        Some(max) if attempted > max => Err(SubagentError::Depth { attempted, max }),
        _ => Ok(attempted),
    }
}

fn before_publication(error: CreateError) -> SubagentError {
    match error {
        CreateError::Cancelled(_) => SubagentError::AbortedBeforePublication,
        error => SubagentError::Creation { code: error.code(), text: error.to_string() },
    }
}

async fn start(
    request: StartRequest,
    continuation: Option<Continuation>,
    inherited: Option<Vec<Arc<Event>>>,
) -> Result<Arc<dyn SubagentRun>, SubagentError> {
    let StartRequest { prompt, source, parent, signal, agent_options, .. } = request;
    parent.runtime().point(Point::ChildCreate).await;
    if signal.is_cancelled() {
        return Err(SubagentError::AbortedBeforePublication);
    }
    let depth = child_depth(&parent, request.max_depth)?;
    let runtime = Arc::clone(parent.runtime());
    let capture = match request.output_schema {
        None => None,
        Some(schema) => Some(
            StructuredCapture::new(Arc::clone(&runtime), schema)
                .map_err(|error| SubagentError::InvalidSchema(error.to_string()))?,
        ),
    };
    let durability =
        if continuation.is_some() { Durability::Required } else { Durability::BestEffort };
    let (child, message, descriptor) = match continuation {
        Some(Continuation { child, message, descriptor }) => (child, message, Some(descriptor)),
        None => {
            let id = fresh_message_id(&*runtime);
            let message = Message::new(id, Role::User, prompt, source);
            (fresh_session_id(&*runtime), message, None)
        }
    };
    let inherited_options = parent.options().clone();
    let create = CreateAgent {
        cwd: parent.session().header().cwd.clone(),
        parent_session: Some(parent.id().clone()),
        seed_length: inherited.as_ref().map(|seed| seed.len() as u64),
        seed: inherited,
        delegation_depth: depth,
        options: AgentOptions {
            provider: agent_options.provider.or(inherited_options.provider),
            model: agent_options.model.or(inherited_options.model),
            max_tokens: agent_options.max_tokens.or(inherited_options.max_tokens),
            subagent_depth: Some(depth),
        },
        signal: Some(signal.clone()),
        activation: (durability == Durability::Required).then(|| signal.clone()),
        setup: Setup {
            persona: request.persona,
            tool_filter: request.tool_filter,
            structured: capture.clone(),
            descriptor,
            ..Setup::default()
        },
        parent: Some(parent.clone()),
        ..CreateAgent::new(child)
    };
    let handle = parent.host().create(create).await.map_err(before_publication)?;
    hand_over(handle, signal, durability, capture, message).await
}

async fn resume(request: ResumeRequest) -> Result<Arc<dyn SubagentRun>, SubagentError> {
    let ResumeRequest { child, message, parent, signal, descriptor, loaded } = request;
    parent.runtime().point(Point::ChildCreate).await;
    if signal.is_cancelled() {
        return Err(SubagentError::AbortedBeforePublication);
    }
    let resume = ResumeAgent {
        loaded: Some(loaded),
        options: AgentOptions {
            provider: descriptor.agent_provider,
            model: descriptor.agent_model,
            ..AgentOptions::default()
        },
        signal: Some(signal.clone()),
        activation: Some(signal.clone()),
        setup: Setup {
            persona: descriptor.persona,
            tool_filter: descriptor.tool_filter,
            ..Setup::default()
        },
        parent: Some(parent.clone()),
        ..ResumeAgent::new(child)
    };
    let handle = parent.host().resume(resume).await.map_err(before_publication)?;
    hand_over(handle, signal, Durability::Required, None, message).await
}

/// The child is published, its creation no longer listens to the signal, and its run does not yet:
/// a cancellation in between is met here.
async fn hand_over(
    handle: AgentHandle,
    signal: CancelSignal,
    durability: Durability,
    capture: Option<StructuredCapture>,
    message: Message,
) -> Result<Arc<dyn SubagentRun>, SubagentError> {
    let agent = handle.agent().clone();
    let runtime = Arc::clone(agent.runtime());
    runtime.point(Point::HandOver).await;
    if signal.is_cancelled() {
        runtime.point(Point::RunDispose).await;
        handle.dispose().await;
        return Err(SubagentError::AbortedBeforePublication);
    }
    runtime.point(Point::RunBoundary).await;
    let boundary = agent.session().len();
    runtime.point(Point::RunBegin).await;
    let run = Arc::new(InProcessRun {
        runtime,
        boundary,
        result: Latch::new(),
        disposing: Arc::new(AtomicBool::new(false)),
        handle: Arc::new(handle),
        agent,
        signal,
        durability,
        capture,
    });
    run.begin(message);
    Ok(run)
}

type Outcome = Result<SubagentResult, SubagentError>;

/// One activation of a child agent in this process.
struct InProcessRun {
    runtime: Arc<dyn Runtime>,
    handle: Arc<AgentHandle>,
    agent: Agent,
    signal: CancelSignal,
    durability: Durability,
    capture: Option<StructuredCapture>,
    /// The log's length when the run began: only what follows is this activation's own.
    boundary: u64,
    disposing: Arc<AtomicBool>,
    result: Latch<Outcome>,
}

impl InProcessRun {
    /// Delivers the prompt, watches the signal, and drives the child to its result.
    fn begin(&self, message: Message) {
        let (agent, signal) = (self.agent.clone(), self.signal.clone());
        let over = self.result.clone();
        let watch = async move {
            tokio::select! {
                biased;
                _cause = signal.cancelled() => {
                    agent.cancel(CancelCause::Parent, CancelOptions::default());
                }
                _outcome = over.wait() => {}
            }
        };
        let name = self.agent.instance();
        spawn(&self.runtime, format!("cancellation of {name}"), watch).detach();
        self.agent.followup(message);
        let driver = Driver {
            runtime: Arc::clone(&self.runtime),
            agent: self.agent.clone(),
            signal: self.signal.clone(),
            durability: self.durability,
            capture: self.capture.clone(),
            boundary: self.boundary,
            disposing: Arc::clone(&self.disposing),
        };
        let result = self.result.clone();
        let drive = async move {
            let outcome = driver.run().await;
            result.set(outcome);
        };
        spawn(&self.runtime, format!("run of {name}"), drive).detach();
    }
}

impl SubagentRun for InProcessRun {
    fn child(&self) -> &SessionId {
        self.agent.id()
    }

    fn local_agent(&self) -> Option<OwnerId> {
        Some(self.agent.instance())
    }

    fn result(&self) -> BoxFuture<'static, Outcome> {
        let result = self.result.clone();
        Box::pin(async move { result.wait().await })
    }

    fn dispose(&self) -> BoxFuture<'static, Result<(), DisposeError>> {
        self.disposing.store(true, Ordering::Release);
        self.handle.request_dispose();
        let (agent, result) = (self.agent.clone(), self.result.clone());
        Box::pin(async move {
            agent.disposed().await;
            // The driver is part of the run: quiescence includes it.
            drop(result.wait().await);
            Ok(())
        })
    }

    fn steer(&self) -> Option<&dyn Steer> {
        Some(self)
    }
}

impl Steer for InProcessRun {
    fn steer(&self, message: Message) -> Result<BoxAdmission, SteerError> {
        let captured = || self.capture.as_ref().is_some_and(StructuredCapture::is_captured);
        match self.agent.steer_running(message, captured) {
            Ok(receipt) => Ok(Box::pin(Steered { receipt })),
            Err(SteerRefusal::Captured) => Err(SteerError::Captured),
            Err(SteerRefusal::Cancelled) => Err(SteerError::Stopped),
            Err(SteerRefusal::NotRunning | SteerRefusal::Closed) => Err(SteerError::NotRunning),
            Err(SteerRefusal::Invalid) => {
                Err(SteerError::Other("the message is not lossless JSON".to_owned()))
            }
        }
    }
}

/// A steered message on its way into a request.
struct Steered {
    receipt: Receipt,
}

impl Future for Steered {
    type Output = Result<(), SteerError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.receipt).poll(cx).map(|outcome| match outcome {
            ReceiptOutcome::Admitted { .. } => Ok(()),
            ReceiptOutcome::Rejected => Err(SteerError::Stopped),
        })
    }
}

impl Admission for Steered {
    fn withdraw(mut self: Pin<&mut Self>) -> bool {
        self.receipt.withdraw()
    }
}

/// Drives one activation: idle, closed, confirmed, published.
struct Driver {
    runtime: Arc<dyn Runtime>,
    agent: Agent,
    signal: CancelSignal,
    durability: Durability,
    capture: Option<StructuredCapture>,
    boundary: u64,
    disposing: Arc<AtomicBool>,
}

impl Driver {
    async fn run(self) -> Outcome {
        let length = self.close_when_idle().await;
        let unconfirmed = match self.durability {
            Durability::Required => self.confirm(length).await.err(),
            Durability::BestEffort => None,
        };
        self.runtime.point(Point::ResultRead).await;
        let events = self.agent.session().snapshot_from(0);
        self.runtime.point(Point::ResultPublish).await;
        self.publish(&events, unconfirmed)
    }

    /// Waits until the child is idle and closes it for settlement in the section that finds it so;
    /// answers the log's length in that section (contract P6).
    async fn close_when_idle(&self) -> u64 {
        loop {
            self.agent.when_idle().await;
            self.runtime.point(Point::SettlementClose).await;
            if let Ok(length) = self.agent.close_for_settlement() {
                return length;
            }
        }
    }

    /// The final flush: success needs a mark that covers `length`.
    async fn confirm(&self, length: u64) -> Result<(), SubagentError> {
        let (child, agent) = (self.agent.id().clone(), self.agent.instance());
        self.runtime.point(Point::FinalFlush).await;
        self.runtime.fact(Fact::FinalFlushStarted { child: child.clone(), agent, length });
        let flushed = self.agent.flush().await;
        let mark = flushed.as_ref().ok().copied();
        self.runtime.fact(Fact::FinalFlushEnded { child: child.clone(), agent, length, mark });
        match flushed {
            Ok(mark) if mark >= length => Ok(()),
            Ok(mark) => {
                let cause = Arc::new(ShortMark { mark, length });
                Err(SubagentError::Durability { child, cause })
            }
            Err(error) => Err(SubagentError::Durability { child, cause: Arc::new(error) }),
        }
    }

    /// Section (d): the result meets the cancellation in the slot, and whoever is first stands.
    fn publish(&self, events: &[Arc<Event>], unconfirmed: Option<SubagentError>) -> Outcome {
        let (reason, _) = fold::result_since(events, self.boundary);
        let output = fold::result_message_since(events, self.boundary);
        let structured = self.capture.as_ref().and_then(StructuredCapture::captured);
        let (mut stop, detail) = self.stop(reason.as_ref(), structured.is_some());
        let code = unconfirmed.as_ref().map(SubagentError::code);
        let cancelled = match self.durability {
            Durability::Required => {
                let published = if code.is_some() { &StopReason::Error } else { &stop };
                let agent = Some(self.agent.instance());
                publish_result(&self.runtime, &self.signal, self.agent.id(), agent, published, code)
                    .is_some()
            }
            // A foreground turn that completed stays completed, even if the cancel came later.
            Durability::BestEffort => {
                stop != StopReason::Completed
                    && (self.signal.is_cancelled() || reason == Some(TurnEndReason::Aborted))
            }
        };
        let disposed = self.disposing.load(Ordering::Acquire);
        if cancelled || (disposed && stop != StopReason::Completed) {
            stop = StopReason::Aborted;
        } else if let Some(error) = unconfirmed {
            return Err(error);
        }
        let detail = detail.filter(|_| stop == StopReason::Error);
        let output = output.map(|message| message.content.clone()).unwrap_or_default();
        Ok(SubagentResult { output, structured, stop, detail })
    }

    /// What the log says of the activation's end (fact-sheet 6.4).
    fn stop(
        &self,
        reason: Option<&TurnEndReason>,
        structured: bool,
    ) -> (StopReason, Option<String>) {
        let missing = self.capture.is_some() && !structured;
        match reason {
            Some(TurnEndReason::Completed) if missing => {
                let detail = "the subagent finished without reporting its structured result";
                (StopReason::Error, Some(detail.to_owned()))
            }
            Some(TurnEndReason::Completed) => (StopReason::Completed, None),
            Some(TurnEndReason::MaxTokens) => (StopReason::MaxTokens, None),
            Some(TurnEndReason::Aborted) => (StopReason::Aborted, None),
            Some(_) => (StopReason::Error, None),
            None => {
                let detail = "no turn opened: the prompt was blocked";
                (StopReason::Error, Some(detail.to_owned()))
            }
        }
    }
}

/// The store confirmed less than the log held at closing.
#[derive(Debug, thiserror::Error)]
#[error("only {mark} of {length} events are confirmed")]
struct ShortMark {
    mark: u64,
    length: u64,
}
