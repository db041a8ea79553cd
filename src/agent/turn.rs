//! The loop: from one waking message to idle (fact-sheet 3.3, 3.4).
//!
//! An activity is one task of the runtime's. It claims prompts one after the other, runs their
//! turns, and ends when nothing waking is left; an idle agent has no task.

use std::sync::Arc;

use super::hooks::{AgentEvent, AgentStatus, HookContext, PromptDecision, Recovery};
use super::inbox::Claim;
use super::step::{StepEnd, TurnFailure};
use super::{Agent, ReceiptOutcome, settle_one};
use crate::cancel::CancelSignal;
use crate::error::ErrorCode;
use crate::facts::{CancelScope, Fact};
use crate::message::{ContentBlock, Message};
use crate::points::Point;
use crate::runtime::{Runtime, contain};
use crate::sections::steering::{Interrupted, Receipts};
use crate::session::{AppendError, Draft, TurnEndReason, TurnTrigger};
use crate::vocabulary::CancelCause;

use super::receipt::ReceiptSender;

pub(super) type Interruption = Interrupted<ReceiptSender, CancelSignal>;

/// What an admission came to.
enum Admission {
    Allowed { content: Option<Vec<ContentBlock>>, contexts: Vec<Arc<Message>> },
    Blocked(String),
}

/// How the claimed prompt's turn opens.
enum Opening {
    /// Opened with its prompt in the log.
    Early(u64),
    /// Opens with its first step: something that stands in it carries a receipt.
    WithStep(u64),
    /// Withdrawn or cancelled.
    Gone,
    /// The log refused it.
    Refused(AppendError),
}

/// One turn under way.
#[derive(Clone)]
pub(super) struct Turn {
    pub(super) agent: Agent,
    pub(super) runtime: Arc<dyn Runtime>,
    pub(super) number: u64,
    /// The last step that was tried; 0 before the first.
    pub(super) step: u64,
    /// Set while `turn/start` is still to be written.
    pub(super) opens: Option<TurnTrigger>,
    pub(super) signal: CancelSignal,
    /// A response hit its token limit: sticky (scenario 268).
    pub(super) limited: bool,
}

/// Ends an activity whatever happens to it.
struct ActivityGuard {
    agent: Agent,
    ended: bool,
}

impl Drop for ActivityGuard {
    fn drop(&mut self) {
        if !self.ended {
            // A panic of ours: whoever waits for the agent or for a receipt must not hang.
            let cancelled = self.agent.inner.queue.lock().crash();
            self.agent.after_cancel(CancelCause::Disposed, cancelled);
        }
        self.agent.inner.rest.ring();
    }
}

/// Runs the agent until nothing waking is left.
pub(super) async fn activity(agent: Agent) {
    let mut guard = ActivityGuard { agent: agent.clone(), ended: false };
    let runtime = Arc::clone(&agent.inner.runtime);
    loop {
        runtime.point(Point::TurnClaim).await;
        if let Some((claim, signal)) = agent.claim() {
            agent.run_prompt(claim, signal).await;
        } else if agent.rest().await {
            break;
        }
    }
    guard.ended = true;
}

impl Agent {
    fn turn_signal(&self, admission: u64) -> CancelSignal {
        let scope = CancelScope::Turn { agent: self.inner.instance, admission };
        CancelSignal::new(Arc::clone(&self.inner.runtime), scope)
    }

    fn claim(&self) -> Option<(Claim, CancelSignal)> {
        let mut made = None;
        let claimed = self.inbox().claim(|admission| {
            let signal = self.turn_signal(admission);
            made = Some(signal.clone());
            signal
        });
        match claimed {
            Ok(claim) => claim.zip(made),
            Err(interruption) => {
                self.after_interruption(interruption);
                None
            }
        }
    }

    /// Goes idle and ends the activity, unless work arrived meanwhile.
    async fn rest(&self) -> bool {
        let runtime = &self.inner.runtime;
        runtime.point(Point::LoopNext).await;
        let was_running = {
            let mut queue = self.inner.queue.lock();
            let rested = queue.rest();
            if rested == Some(true) {
                runtime.fact(Fact::AgentIdle { agent: self.inner.instance });
            }
            rested
        };
        let Some(was_running) = was_running else { return false };
        if was_running {
            self.tell(&AgentEvent::Status(AgentStatus::Idle));
        }
        runtime.point(Point::LoopNext).await;
        self.inner.queue.lock().end_activity()
    }

    /// What meeting a cancellation leaves to do after unlocking.
    pub(super) fn after_interruption(&self, interruption: Interruption) {
        if let Some(cancelled) = interruption.observed {
            self.after_cancel(interruption.cause, cancelled);
        }
    }

    pub(super) fn settle(&self, receipts: Receipts<ReceiptSender>, outcome: ReceiptOutcome) {
        for (_, sender) in receipts {
            settle_one(sender, outcome);
        }
    }

    /// Publishes what was appended and has it written.
    pub(super) fn appended(&self) {
        let session = &self.inner.session;
        session.publish();
        if let Some(store) = &self.inner.host.config().store {
            store.poke(session);
        }
    }

    async fn run_prompt(&self, claim: Claim, signal: CancelSignal) {
        if claim.first {
            self.tell(&AgentEvent::Status(AgentStatus::Running));
        }
        let Claim { message, injection, .. } = claim;
        self.tell(&AgentEvent::Dequeued { message: message.id.clone() });
        let runtime = Arc::clone(&self.inner.runtime);
        let source = message.source.clone();
        let trigger = match injection {
            true => TurnTrigger::Injection { source },
            false => TurnTrigger::Message { source },
        };
        let admission = self.admission(&message, &signal).await;
        runtime.point(Point::TurnOpen).await;
        let opening = match admission {
            Admission::Blocked(reason) => return self.refuse(&message, reason),
            Admission::Allowed { content, contexts } => self.open(&trigger, content, contexts),
        };
        let (number, opens) = match opening {
            Opening::Early(number) => {
                self.appended();
                (number, None)
            }
            Opening::WithStep(number) => (number, Some(trigger)),
            Opening::Gone => {
                runtime.point(Point::TurnOpen).await;
                return self.refuse(&message, "cancelled or withdrawn".to_owned());
            }
            Opening::Refused(error) => {
                self.tell_error(0, 0, error.code(), error.to_string());
                runtime.point(Point::TurnOpen).await;
                return self.refuse(&message, error.to_string());
            }
        };
        let turn =
            Turn { agent: self.clone(), runtime, number, step: 0, opens, signal, limited: false };
        turn.run(&message).await;
    }

    /// Asks the hooks. A failing hook counts as a block (fact-sheet 3.3).
    async fn admission(&self, message: &Arc<Message>, signal: &CancelSignal) -> Admission {
        let hooks = self.hooks();
        let mut current = Arc::clone(message);
        let mut changed = None;
        let mut added = Vec::new();
        if hooks.is_empty() {
            return Admission::Allowed { content: None, contexts: Vec::new() };
        }
        let runtime = &self.inner.runtime;
        runtime.point(Point::PromptSubmit).await;
        let turn = self.inner.session.lock().last_turn() + 1;
        let context = HookContext { agent: self.clone(), turn, step: 0, signal: signal.clone() };
        for hook in hooks {
            runtime.point(Point::PromptSubmit).await;
            let asked = async { hook.prompt_submit(&context, &current).await };
            match contain(runtime, "prompt-submit hook", asked).await {
                Ok(Ok(PromptDecision::Allow { content, contexts })) => {
                    added.extend(contexts.into_iter().map(Arc::new));
                    if let Some(content) = content {
                        let content_now = content.clone();
                        current = Arc::new(Message { content: content_now, ..(*current).clone() });
                        changed = Some(content);
                    }
                }
                Ok(Ok(PromptDecision::Block { reason })) => return Admission::Blocked(reason),
                Ok(Err(error)) => return Admission::Blocked(error.to_string()),
                Err(panicked) => return Admission::Blocked(panicked.to_string()),
            }
        }
        Admission::Allowed { content: changed, contexts: added }
    }

    /// One section: admits the prompt and, if nothing in it carries a receipt, opens its turn with
    /// the prompt and the descriptor (contract P2).
    fn open(
        &self,
        trigger: &TurnTrigger,
        content: Option<Vec<ContentBlock>>,
        contexts: Vec<Arc<Message>>,
    ) -> Opening {
        let opened = self.inbox().uncancelled(|queue| {
            if !queue.admit(content, contexts) {
                return Opening::Gone;
            }
            let mut log = self.inner.session.lock();
            let number = log.last_turn() + 1;
            if !queue.opens_early() {
                return Opening::WithStep(number);
            }
            let batch = queue.drain_opening();
            let mut drafts = vec![Draft::turn_start(number, trigger.clone())];
            let inherited = batch.inherited.into_iter().map(|staged| staged.message);
            drafts.extend(inherited.map(Draft::user_message));
            drafts.extend(batch.prompt.map(|prompt| Draft::user_message(prompt.message)));
            drafts.extend(batch.contexts.into_iter().map(Draft::user_message));
            let descriptor = self.inner.scope.lock().descriptor.take();
            drafts.extend(descriptor.clone());
            match log.append(drafts) {
                Ok(_) => Opening::Early(number),
                Err(error) => {
                    self.inner.scope.lock().descriptor = descriptor;
                    Opening::Refused(error)
                }
            }
        });
        opened.unwrap_or_else(|interruption| {
            self.after_interruption(interruption);
            Opening::Gone
        })
    }

    /// The claimed prompt opens no turn (fact-sheet 3.3): its receipt is rejected, and contexts
    /// staged alone go to the log now.
    pub(super) fn refuse(&self, message: &Message, reason: String) {
        let inbox = self.inbox();
        let (outcome, interruption) = inbox.finalise(|queue, _| {
            let (rejected, contexts) = queue.refuse_admission();
            let rejected = inbox.reject(rejected.into_iter().collect());
            if contexts.is_empty() {
                return (rejected, Ok(false));
            }
            let drafts = contexts.iter().cloned().map(Draft::user_message).collect();
            let appended = self.inner.session.lock().append(drafts);
            if appended.is_err() {
                queue.restage_contexts(contexts);
            }
            (rejected, appended.map(|_| true))
        });
        if let Some(interruption) = interruption {
            self.after_interruption(interruption);
        }
        let (rejected, appended) = outcome;
        self.settle(rejected, ReceiptOutcome::Rejected);
        match appended {
            Ok(true) => self.appended(),
            Ok(false) => {}
            Err(error) => self.tell_error(0, 0, error.code(), error.to_string()),
        }
        self.tell(&AgentEvent::PromptBlocked { message: message.id.clone(), reason });
    }
}

/// How a turn was closed.
enum Closed {
    /// Steering arrived: one more step.
    Continue,
    /// With this reason; `retry` says that a recovery asked for another turn and got it.
    Ended(TurnEndReason),
}

impl Turn {
    pub(super) fn context(&self) -> HookContext {
        HookContext {
            agent: self.agent.clone(),
            turn: self.number,
            step: self.step,
            signal: self.signal.clone(),
        }
    }

    /// Runs the turn to its end, and the retries that recoveries ask for.
    async fn run(mut self, prompt: &Message) {
        loop {
            let end = self.steps().await;
            if self.opens.is_some() && !self.open_to_fail(&end).await {
                let reason = match end {
                    StepEnd::Failed(failure) => failure.message,
                    _ => "cancelled or withdrawn".to_owned(),
                };
                return self.agent.refuse(prompt, reason);
            }
            let Some(reason) = self.end(end).await else { continue };
            self.flush().await;
            self.runtime.point(Point::LoopNext).await;
            if self.retry().await {
                continue;
            }
            self.runtime.point(Point::LoopNext).await;
            self.agent.inner.queue.lock().settle_turn();
            self.agent.tell(&AgentEvent::Settled { turn: self.number, reason: reason.kind() });
            return;
        }
    }

    /// Steps until one does not ask for another.
    async fn steps(&mut self) -> StepEnd {
        loop {
            match self.step().await {
                StepEnd::Again => {}
                StepEnd::Stop => {
                    if let Some(end) = self.stopping().await {
                        return end;
                    }
                }
                end => return end,
            }
        }
    }

    /// The hooks' last word. `None` if steering was staged: the turn goes on.
    async fn stopping(&mut self) -> Option<StepEnd> {
        for hook in self.agent.hooks() {
            self.runtime.point(Point::TurnStopping).await;
            let context = self.context();
            let asked = async { hook.turn_stopping(&context).await };
            let failure = match contain(&self.runtime, "turn-stopping hook", asked).await {
                Ok(Ok(())) => continue,
                Ok(Err(error)) => error.to_string(),
                Err(panicked) => panicked.to_string(),
            };
            return Some(StepEnd::failed(TurnFailure::of(failure)));
        }
        self.runtime.point(Point::TurnStopping).await;
        let steering = self.agent.inbox().uncancelled(|queue| queue.has_steering());
        match steering {
            Ok(true) => None,
            Ok(false) => Some(StepEnd::Stop),
            Err(interruption) => {
                self.agent.after_interruption(interruption);
                Some(StepEnd::Interrupted)
            }
        }
    }

    /// A turn that failed before its first step still shows its prompt, if that carries no receipt.
    async fn open_to_fail(&mut self, end: &StepEnd) -> bool {
        let (StepEnd::Failed(_), Some(trigger)) = (end, self.opens.clone()) else { return false };
        self.runtime.point(Point::TurnOpen).await;
        let opened = self.agent.inbox().uncancelled(|queue| {
            let Some((prompt, contexts)) = queue.take_plain_prompt() else { return false };
            let mut drafts = vec![Draft::turn_start(self.number, trigger)];
            drafts.push(Draft::user_message(prompt));
            drafts.extend(contexts.into_iter().map(Draft::user_message));
            drafts.extend(self.agent.inner.scope.lock().descriptor.take());
            self.agent.inner.session.lock().append(drafts).is_ok()
        });
        match opened {
            Ok(opened) => {
                if opened {
                    self.opens = None;
                    self.agent.appended();
                }
                opened
            }
            Err(interruption) => {
                self.agent.after_interruption(interruption);
                false
            }
        }
    }

    /// Closes the turn. `None` if steering arrived in time for one more step.
    async fn end(&mut self, end: StepEnd) -> Option<TurnEndReason> {
        let retry = match &end {
            StepEnd::Failed(failure) => {
                self.agent.tell_error(
                    self.number,
                    self.step,
                    failure.code,
                    failure.message.clone(),
                );
                failure.of_request && self.recovery(&failure.message).await
            }
            _ => false,
        };
        self.runtime.point(Point::TurnClose).await;
        match self.close(&end, retry) {
            Closed::Continue => None,
            Closed::Ended(reason) => Some(reason),
        }
    }

    /// Asks the hooks whether the failed request is worth another turn.
    async fn recovery(&self, failure: &str) -> bool {
        for hook in self.agent.hooks() {
            self.runtime.point(Point::TurnClose).await;
            let context = self.context();
            let asked = async { hook.recover(&context, failure).await };
            if let Ok(Ok(Recovery::Retry)) = contain(&self.runtime, "recovery hook", asked).await {
                return true;
            }
        }
        false
    }

    /// One section: decides the reason, settles what is staged, appends `turn/end`.
    fn close(&mut self, end: &StepEnd, retry: bool) -> Closed {
        let inbox = self.agent.inbox();
        let session = &self.agent.inner.session;
        let (outcome, interruption) = inbox.finalise(|queue, cause| {
            if matches!(end, StepEnd::Stop) && cause.is_none() && queue.has_steering() {
                return None;
            }
            let reason = self.reason(end, cause);
            let mut staged = Vec::new();
            let mut rejected = (Vec::new(), Vec::new());
            if cause.is_none() && matches!(end, StepEnd::Stop | StepEnd::Concluded) {
                staged = queue.take_contexts();
                if matches!(end, StepEnd::Concluded) {
                    rejected = queue.reject_steering();
                }
            }
            if retry {
                queue.request_retry();
            }
            // From here a steer opens a turn of its own.
            let late = queue.end_turn();
            let mut drafts: Vec<_> = staged.iter().cloned().map(Draft::user_message).collect();
            drafts.push(Draft::turn_end(self.number, reason.clone()));
            drafts.extend(late.iter().cloned().map(Draft::user_message));
            let mut log = session.lock();
            let appended = log.append(drafts).or_else(|error| {
                // What does not belong to the turn itself must not keep it open.
                log.append(vec![Draft::turn_end(self.number, reason.clone())])?;
                staged.extend(late);
                queue.restage_contexts(staged);
                Err(error)
            });
            let receipts = inbox.reject(rejected.0);
            Some((reason, receipts, rejected.1, appended.err()))
        });
        if let Some(interruption) = interruption {
            self.agent.after_interruption(interruption);
        }
        let Some((reason, receipts, discarded, error)) = outcome else { return Closed::Continue };
        self.agent.settle(receipts, ReceiptOutcome::Rejected);
        if let Some(error) = error {
            self.agent.tell_error(self.number, self.step, error.code(), error.to_string());
        }
        if !discarded.is_empty() {
            self.agent.tell(&AgentEvent::Discarded { messages: discarded });
        }
        self.agent.appended();
        Closed::Ended(reason)
    }

    /// An interruption outranks an error (fact-sheet 3.4).
    fn reason(&self, end: &StepEnd, cause: Option<CancelCause>) -> TurnEndReason {
        match (cause, end) {
            (Some(CancelCause::Disposed), _) => TurnEndReason::Disposed,
            (Some(_), _) | (None, StepEnd::Interrupted) => TurnEndReason::Aborted,
            (None, StepEnd::Failed(failure)) => TurnEndReason::Error {
                step: self.step,
                message: failure.message.clone(),
                code: failure.wire_code.clone(),
                failure: failure.facts.clone(),
            },
            (None, _) if self.limited => TurnEndReason::MaxTokens,
            (None, _) => TurnEndReason::Completed,
        }
    }

    /// Best effort: a failure is told and changes nothing (scenario 233).
    async fn flush(&self) {
        let Some(store) = self.agent.inner.host.config().store.clone() else { return };
        self.runtime.point(Point::TurnFlush).await;
        if let Err(error) = store.flush(&self.agent.inner.session).await {
            self.agent.tell_error(self.number, self.step, error.code(), error.to_string());
        }
    }

    /// Starts the turn that a recovery asked for, unless a cancellation won.
    async fn retry(&mut self) -> bool {
        let mut made = None;
        let claimed = self.agent.inbox().claim_retry(|admission| {
            let signal = self.agent.turn_signal(admission);
            made = Some(signal.clone());
            signal
        });
        match (claimed, made) {
            (Ok(Some(_)), Some(signal)) => self.signal = signal,
            (Err(interruption), _) => {
                self.agent.after_interruption(interruption);
                return false;
            }
            _ => return false,
        }
        self.runtime.point(Point::TurnOpen).await;
        self.step = 0;
        self.limited = false;
        let opened = self.agent.inbox().uncancelled(|_| {
            let mut log = self.agent.inner.session.lock();
            let number = log.last_turn() + 1;
            log.append(vec![Draft::turn_start(number, TurnTrigger::Retry)]).map(|_| number)
        });
        match opened {
            Ok(Ok(number)) => {
                self.number = number;
                self.agent.appended();
                true
            }
            Ok(Err(error)) => {
                self.agent.tell_error(self.number, 0, error.code(), error.to_string());
                false
            }
            Err(interruption) => {
                self.agent.after_interruption(interruption);
                false
            }
        }
    }
}

impl TurnFailure {
    /// A hook's failure.
    pub(super) fn of(message: String) -> Self {
        Self { message, code: ErrorCode::InvalidInput, ..Self::default() }
    }
}
