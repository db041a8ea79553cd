//! Agents: their registry, their queues, the loop that runs their turns, their life and death.
//!
//! Reading order: [`inbox`], [`steering`] and [`registry`] (the pure cores), [`Agent`] here,
//! [`host`] and [`create`] (birth), `turn`, `step`, `calls` (the loop), [`dispose`] (death).

pub mod inbox;
pub mod registry;
pub mod schema;
pub mod steering;
pub mod hooks;
pub mod receipt;
pub mod structured;
pub mod tools;
pub mod host;
pub mod create;
pub mod dispose;
mod assemble;
mod turn;
mod step;
mod calls;

use std::fmt;
use std::sync::Arc;

use crate::cancel::CancelSignal;
use crate::channel::{Bell, Latch, oneshot};
use crate::error::ErrorCode;
use crate::facts::Fact;
use crate::ids::{OwnerId, SessionId};
use crate::message::Message;
use crate::points::Point;
use crate::runtime::{BoxFuture, Runtime, contain_call, spawn};
use crate::sections::steering::{Inbox, SteerRefusal, Woken};
use crate::session::{AppendError, Draft, Session, SessionLog};
use crate::store::StoreError;
use crate::sync::Mutex;
use crate::vocabulary::CancelCause;

use hooks::{AgentEvent, AgentHooks, AgentStatus};
use inbox::{Accepted, Cancelled, InboxEdit, Ticket};
use steering::SteeringQueue;
use tools::ToolSet;

pub use crate::store::Loaded as LoadedSession;
pub use create::{CreateAgent, CreateError, Creation, ResumeAgent, Setup, SetupError};
pub use dispose::AgentHandle;
pub use hooks::{HookError, PromptDecision};
pub use host::{AgentHost, AgentHostConfig};
use receipt::ReceiptSender;
pub use receipt::{Receipt, ReceiptOutcome};

/// Which model an agent uses, and how (fact-sheet 1.3). What is absent is the host's default.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AgentOptions {
    /// The model provider's name.
    pub provider: Option<String>,
    /// The model's name.
    pub model: Option<String>,
    /// The limit of one answer, in tokens.
    pub max_tokens: Option<u64>,
    /// The delegation depth as the runtime knows it; the header may only deepen it.
    pub subagent_depth: Option<u64>,
}

/// How to cancel.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CancelOptions {
    /// Keeps what is queued and staged.
    pub keep_inbox: bool,
}

/// Cleanup that an agent's disposal runs and awaits (contract P16).
pub type Effect = Box<dyn FnOnce() -> BoxFuture<'static, ()> + Send>;

/// The agent is closing: nothing can be added to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the agent is closing")]
pub struct Closing;

/// Why an injected context was not taken. It is in no log and will not be.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum InjectError {
    /// The inbox is closed, or its activation was cancelled.
    #[error("the agent's inbox is closed")]
    Closed,
    /// The log refused it.
    #[error("the session refused the message: {0}")]
    Append(#[from] AppendError),
}

/// A flush confirmed nothing.
#[derive(Debug, Clone, thiserror::Error)]
pub enum FlushError {
    /// No session store is configured.
    #[error("no session store is configured")]
    Unavailable,
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl FlushError {
    /// `PERSISTENCE_UNAVAILABLE`, or the store's code.
    pub fn code(&self) -> ErrorCode {
        match self {
            Self::Unavailable => ErrorCode::PersistenceUnavailable,
            Self::Store(error) => error.code(),
        }
    }
}

/// The agent is not idle, so it cannot be closed for settlement.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the agent is not idle")]
pub struct NotIdle;

type Queue = SteeringQueue<ReceiptSender, CancelSignal>;
type AgentInbox<'a> = Inbox<'a, Arc<dyn Runtime>, CancelSignal, ReceiptSender, CancelSignal>;

/// What only the agent itself uses; a leaf.
#[derive(Default)]
struct Scope {
    /// Run at disposal, first in, first out; `None` once disposal took them.
    effects: Option<Vec<(String, Effect)>>,
    /// Written with the first turn (contract P2).
    descriptor: Option<Draft>,
    /// The last `request/header` of this lifecycle.
    header: Option<String>,
    hooks: Vec<Arc<dyn AgentHooks>>,
}

struct AgentInner {
    host: Arc<AgentHost>,
    runtime: Arc<dyn Runtime>,
    instance: OwnerId,
    session: Arc<Session>,
    options: AgentOptions,
    parent: Option<Agent>,
    activation: Option<CancelSignal>,
    resumed: bool,
    persona: Option<String>,
    tools: ToolSet,
    queue: Mutex<Queue>,
    scope: Mutex<Scope>,
    /// Rings when an activity ends and when a reservation does.
    rest: Bell,
    closing: Latch<()>,
    disposed: Latch<()>,
}

/// One live agent: a cheap handle to one exact instance. It does not own it; see
/// [`AgentHandle`](host::AgentHandle).
#[derive(Clone)]
pub struct Agent {
    inner: Arc<AgentInner>,
}

impl fmt::Debug for Agent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Agent({} {:?})", self.inner.instance, self.inner.session.id())
    }
}

impl Agent {
    fn of(inner: Arc<AgentInner>) -> Self {
        Self { inner }
    }

    /// The id of the agent and of its session.
    pub fn id(&self) -> &SessionId {
        self.inner.session.id()
    }

    /// The exact instance.
    pub fn instance(&self) -> OwnerId {
        self.inner.instance
    }

    /// Whether both are one instance.
    pub fn same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.inner, &other.inner)
    }

    /// Its session.
    pub fn session(&self) -> &Arc<Session> {
        &self.inner.session
    }

    /// Its options.
    pub fn options(&self) -> &AgentOptions {
        &self.inner.options
    }

    /// The agent it was created through.
    pub fn parent(&self) -> Option<&Agent> {
        self.inner.parent.as_ref()
    }

    /// The host it lives in.
    pub fn host(&self) -> &Arc<AgentHost> {
        &self.inner.host
    }

    /// What its model may call.
    pub fn tools(&self) -> &ToolSet {
        &self.inner.tools
    }

    /// The structured result it is to report, if any.
    pub fn structured(&self) -> Option<&structured::StructuredCapture> {
        self.inner.tools.structured()
    }

    /// The runtime it runs on.
    pub fn runtime(&self) -> &Arc<dyn Runtime> {
        &self.inner.runtime
    }

    /// Its delegation depth: the greater of the header's and the runtime's, so a resumed child
    /// never regains a budget (invariant I16).
    pub fn depth(&self) -> u64 {
        let runtime = self.inner.options.subagent_depth.unwrap_or(0);
        runtime.max(self.inner.session.header().delegation_depth)
    }

    /// Whether it runs.
    pub fn status(&self) -> AgentStatus {
        let busy = self.inner.queue.lock().is_busy();
        if busy { AgentStatus::Running } else { AgentStatus::Idle }
    }

    /// Whether its inbox is closed for good.
    pub fn is_closing(&self) -> bool {
        self.inner.queue.lock().is_closed()
    }

    /// Whether exactly this instance is published and not closing.
    pub fn is_registered(&self) -> bool {
        self.inner.host.registry().lock().is_current(self.inner.instance)
    }

    fn inbox(&self) -> AgentInbox<'_> {
        Inbox {
            facts: &self.inner.runtime,
            agent: self.inner.instance,
            session: self.inner.session.id(),
            slot: self.inner.activation.as_ref(),
            queue: &self.inner.queue,
        }
    }

    // --- messages in --------------------------------------------------------------------------

    /// Sends a prompt: it opens a turn of its own. False if the inbox is closed or the message is
    /// not lossless JSON.
    pub fn followup(&self, message: Message) -> bool {
        self.prompt(message, true)
    }

    /// Queues a prompt that alone starts nothing. False as for [`followup`](Self::followup).
    pub fn queue_quietly(&self, message: Message) -> bool {
        self.prompt(message, false)
    }

    fn prompt(&self, message: Message, wake: bool) -> bool {
        let message = Arc::new(message);
        if self.check(&message).is_err() {
            return false;
        }
        let accepted = self.inbox().prompt(Arc::clone(&message), wake);
        if let Some(accepted) = &accepted {
            self.accepted(accepted, message);
        }
        accepted.is_some()
    }

    /// A message that no log takes is refused before it can spoil the batch it would be in.
    fn check(&self, message: &Arc<Message>) -> Result<(), AppendError> {
        let checked = Draft::user_message(Arc::clone(message)).check();
        if checked.is_err() {
            let (agent, message) = (self.inner.instance, message.id.clone());
            self.inner.runtime.fact(Fact::MessageRefused { agent, message });
        }
        checked
    }

    fn accepted(&self, accepted: &Accepted, message: Arc<Message>) {
        if accepted.wake {
            self.wake();
        }
        self.tell(&AgentEvent::Enqueued { message, placement: accepted.placement });
    }

    /// Steers: the message joins the open turn at its next step, or opens a turn of its own. The
    /// receipt is rejected at once if the inbox is closed or the message is not lossless JSON.
    pub fn steer(&self, message: Message) -> Receipt {
        let (sender, receiver) = oneshot();
        let message = Arc::new(message);
        let id = message.id.clone();
        if self.check(&message).is_err() {
            settle_one(sender, ReceiptOutcome::Rejected);
            return Receipt::new(id, &self.inner, None, receiver);
        }
        match self.inbox().steer(Arc::clone(&message), sender) {
            Ok(accepted) => {
                self.accepted(&accepted, message);
                Receipt::new(id, &self.inner, Some(accepted.ticket), receiver)
            }
            Err((_, sender)) => {
                settle_one(sender, ReceiptOutcome::Rejected);
                Receipt::new(id, &self.inner, None, receiver)
            }
        }
    }

    /// Steers only if the agent is running, not cancelled and has not `captured` its structured
    /// result: one section (contract P1 b). `captured` may take a leaf lock.
    ///
    /// # Errors
    ///
    /// The [`SteerRefusal`]; the message is nowhere.
    pub fn steer_running(
        &self,
        message: Message,
        captured: impl FnOnce() -> bool,
    ) -> Result<Receipt, SteerRefusal> {
        let (sender, receiver) = oneshot();
        let message = Arc::new(message);
        let id = message.id.clone();
        if self.check(&message).is_err() {
            return Err(SteerRefusal::Invalid);
        }
        match self.inbox().steer_running(captured, Arc::clone(&message), sender) {
            Ok(accepted) => {
                self.accepted(&accepted, message);
                Ok(Receipt::new(id, &self.inner, Some(accepted.ticket), receiver))
            }
            Err((refusal, sender)) => {
                settle_one(sender, ReceiptOutcome::Rejected);
                Err(refusal)
            }
        }
    }

    /// Injects a context without waking: staged for the next step of an open turn, otherwise
    /// appended at once.
    ///
    /// # Errors
    ///
    /// [`InjectError`]; the message is nowhere.
    pub fn inject(&self, message: Message) -> Result<(), InjectError> {
        let message = Arc::new(message);
        self.check(&message)?;
        let session = &self.inner.session;
        let appended = self.inbox().inject(&message, || {
            session.lock().append(vec![Draft::user_message(Arc::clone(&message))])
        });
        match appended {
            None => Err(InjectError::Closed),
            Some(None) => Ok(()),
            Some(Some(appended)) => {
                appended?;
                self.appended();
                Ok(())
            }
        }
    }

    /// Injects a context that opens a turn of its own, with the trigger `injection`, if the agent is
    /// idle with nothing queued and `may_wake` says so of its log; else as [`inject`](Self::inject).
    /// One section, so two notices cannot both be the last one allowed (contract P7).
    ///
    /// # Errors
    ///
    /// [`InjectError`]; the message is nowhere.
    pub fn inject_waking(
        &self,
        message: Message,
        may_wake: impl FnOnce(&SessionLog) -> bool,
    ) -> Result<(), InjectError> {
        let message = Arc::new(message);
        self.check(&message)?;
        let session = &self.inner.session;
        let injected = self.inbox().inject_waking(&message, |could_wake| {
            let mut log = session.lock();
            if could_wake && may_wake(&log) {
                return None;
            }
            Some(log.append(vec![Draft::user_message(Arc::clone(&message))]))
        });
        match injected {
            Woken::Refused => Err(InjectError::Closed),
            Woken::Turn(accepted) => {
                self.accepted(&accepted, message);
                Ok(())
            }
            Woken::Quietly(None) => Ok(()),
            Woken::Quietly(Some(appended)) => {
                appended?;
                self.appended();
                Ok(())
            }
        }
    }

    fn withdraw(&self, ticket: Ticket) -> bool {
        let Some(receipts) = self.inbox().withdraw(ticket) else { return false };
        for (_, sender) in receipts {
            settle_one(sender, ReceiptOutcome::Rejected);
        }
        true
    }

    /// Edits or removes a queued prompt; false if it is not queued (any more). Claimed prompts and
    /// steering are not addressable.
    pub fn update_inbox(&self, id: &crate::ids::MessageId, edit: InboxEdit) -> bool {
        let Some(receipts) = self.inbox().update(id, edit) else { return false };
        for (_, sender) in receipts {
            settle_one(sender, ReceiptOutcome::Rejected);
        }
        true
    }

    // --- control ------------------------------------------------------------------------------

    /// Cancels the current admission or turn, and without `keep_inbox` everything queued and
    /// staged. An idle agent with nothing queued is not changed. If an accepted cancellation of its
    /// activation is met, the inbox closes for good and `CancelObserved` is recorded.
    pub fn cancel(&self, cause: CancelCause, options: CancelOptions) {
        let announced =
            self.has_hooks() && self.inner.queue.lock().cancel_would_act(options.keep_inbox);
        if announced {
            self.tell(&AgentEvent::CancelRequested { cause });
        }
        let cancelled = self.inbox().cancel(cause, options.keep_inbox);
        self.after_cancel(cause, cancelled);
    }

    /// What a cancellation leaves to do after unlocking.
    fn after_cancel(&self, cause: CancelCause, cancelled: Cancelled<ReceiptSender, CancelSignal>) {
        for (_, sender) in cancelled.rejected {
            settle_one(sender, ReceiptOutcome::Rejected);
        }
        if !cancelled.discarded.is_empty() {
            self.tell(&AgentEvent::Discarded { messages: cancelled.discarded });
        }
        if let Some(signal) = cancelled.abort {
            signal.cancel(cause);
        }
    }

    /// Writes everything pending and confirms it: the durable mark (contract P6).
    ///
    /// # Errors
    ///
    /// [`FlushError::Unavailable`] without a store; else what the store says.
    pub async fn flush(&self) -> Result<u64, FlushError> {
        let Some(store) = self.inner.host.config().store.clone() else {
            return Err(FlushError::Unavailable);
        };
        self.inner.runtime.point(Point::FinalFlush).await;
        Ok(store.flush(&self.inner.session).await?)
    }

    /// Waits until no activity runs, the last turn's flush included, and no reservation is held.
    pub async fn when_idle(&self) {
        let runtime = Arc::clone(&self.inner.runtime);
        loop {
            let mut rest = self.inner.rest.listen();
            runtime.point(Point::WhenIdle).await;
            if self.inner.queue.lock().is_settled() {
                return;
            }
            rest.heard().await;
        }
    }

    /// Closes the inbox for good if the agent is idle, and answers the log's length: one section
    /// (contract P6).
    ///
    /// # Errors
    ///
    /// [`NotIdle`]; nothing changed.
    pub fn close_for_settlement(&self) -> Result<u64, NotIdle> {
        let session = &self.inner.session;
        let (length, cancelled) =
            self.inbox().close_for_settlement(|| session.lock().len()).ok_or(NotIdle)?;
        self.after_cancel(CancelCause::Disposed, cancelled);
        Ok(length)
    }

    /// Adds cleanup to the agent's disposal: it runs before the agent's children are disposed.
    ///
    /// # Errors
    ///
    /// [`Closing`] if the disposal is past that; the effect is dropped unrun.
    pub fn add_effect(&self, name: impl Into<String>, effect: Effect) -> Result<(), Closing> {
        let mut scope = self.inner.scope.lock();
        match &mut scope.effects {
            Some(effects) => {
                effects.push((name.into(), effect));
                Ok(())
            }
            None => {
                drop(scope);
                Err(Closing)
            }
        }
    }

    /// Adds hooks, until disposal.
    pub fn add_hooks(&self, hooks: Arc<dyn AgentHooks>) {
        self.inner.scope.lock().hooks.push(hooks);
    }

    /// Holds back turns until the reservation is dropped. Only of an idle agent with nothing
    /// waking queued and no other reservation (fact-sheet 3.7).
    pub fn reserve_turn_admission(&self) -> Option<TurnReservation> {
        let id = self.inner.queue.lock().reserve()?;
        Some(TurnReservation { agent: self.clone(), id })
    }

    // --- inside -------------------------------------------------------------------------------

    fn hooks(&self) -> Vec<Arc<dyn AgentHooks>> {
        self.inner.scope.lock().hooks.clone()
    }

    fn has_hooks(&self) -> bool {
        !self.inner.scope.lock().hooks.is_empty()
    }

    /// Tells every hook, under no lock; a panic is contained.
    fn tell(&self, event: &AgentEvent) {
        for hooks in self.hooks() {
            let told = contain_call(&self.inner.runtime, "agent event listener", || {
                hooks.on_event(self, event);
            });
            // The panic is recorded as a fact and fails nothing.
            drop(told);
        }
    }

    fn tell_error(&self, turn: u64, step: u64, code: ErrorCode, text: String) {
        self.tell(&AgentEvent::Error { turn, step, code, text });
    }

    /// The system text: the persona, then the sections in their order.
    fn system_text(&self) -> String {
        let deployment = &self.inner.host.config().system_prompt;
        let mut text = self.inner.persona.as_ref().unwrap_or(deployment).clone();
        for section in self.inner.tools.sections() {
            if !text.is_empty() {
                text.push_str("\n\n");
            }
            text.push_str(&section.text);
        }
        text
    }

    /// Starts an activity. It runs in a task of its own, so several sends in one tick keep their
    /// own routing decision (scenario 235).
    fn wake(&self) {
        let name = format!("loop of {}", self.inner.instance);
        spawn(&self.inner.runtime, name, turn::activity(self.clone())).detach();
    }
}

/// Settles one receipt; nobody may be waiting for it.
fn settle_one(sender: ReceiptSender, outcome: ReceiptOutcome) {
    // The receiver may be gone: a detached receipt.
    let _unheard = sender.send(outcome);
}

/// Holds back an agent's turns while it lives.
#[must_use = "dropping the reservation releases it"]
#[derive(Debug)]
pub struct TurnReservation {
    agent: Agent,
    id: u64,
}

impl TurnReservation {
    /// Releases it; again is inert.
    pub fn release(&self) {
        let (held, wake) = self.agent.inner.queue.lock().release(self.id);
        if wake {
            self.agent.wake();
        }
        if held {
            self.agent.inner.rest.ring();
        }
    }
}

impl Drop for TurnReservation {
    fn drop(&mut self) {
        self.release();
    }
}
