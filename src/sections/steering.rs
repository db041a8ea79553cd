//! The sections around one agent's queues, (b) and (g) of contract P1 among them.
//!
//! An agent that runs an activation has its cancel slot locked before the queues in every section
//! here, and refuses once it is cancelled: the first accepted cancellation closes the inbox in the
//! section that accepts it (contract P10). The first section of the agent itself that meets the
//! cancellation *observes* it: from then on no request and no tool body starts (invariant I10).

use std::sync::Arc;

use crate::agent::inbox::{
    Accepted, Batch, Cancelled, Claim, InboxEdit, Injected, Placement, Stage, Ticket,
};
use crate::agent::registry::Registry;
use crate::agent::steering::SteeringQueue;
use crate::facts::{Fact, FactSink};
use crate::ids::{MessageId, OwnerId, SessionId};
use crate::message::Message;
use crate::sections::slot::{Slot, SlotLock};
use crate::sync::{Mutex, MutexGuard};
use crate::vocabulary::CancelCause;

/// Why a steer into a running agent was refused (fact-sheet 6.5).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SteerRefusal {
    /// The activation was cancelled.
    Cancelled,
    /// The agent is not running.
    NotRunning,
    /// It reported its structured result already.
    Captured,
    /// Its inbox is closed.
    Closed,
    /// The message is not lossless JSON.
    Invalid,
}

/// What became of a context that may wake.
#[derive(Debug)]
pub enum Woken<T> {
    /// The inbox is closed.
    Refused,
    /// It is staged, or appended with this outcome.
    Quietly(Option<T>),
    /// It opens a turn.
    Turn(Accepted),
}

/// Receipts to settle after unlocking, with the messages they belong to.
pub type Receipts<R> = Vec<(MessageId, R)>;

/// A section found its turn cancelled. `observed` is what a cancellation met for the first time
/// did: its receipts are to be rejected and its signal fired after unlocking.
#[derive(Debug)]
pub struct Interrupted<R, S> {
    /// The first cause.
    pub cause: CancelCause,
    /// What closing the queues for it did.
    pub observed: Option<Cancelled<R, S>>,
}

/// How a step opened, or did not.
#[derive(Debug)]
pub enum StepOpening<T, E, R, S> {
    /// It is open, and the receipts are admitted.
    Opened(T, Receipts<R>),
    /// The turn was cancelled first; nothing was drained.
    Interrupted(Interrupted<R, S>),
    /// The turn was to open with this step and its prompt was withdrawn.
    Withdrawn,
    /// The log refused the batch and is unchanged; the receipts are rejected.
    Refused(E, Receipts<R>),
}

/// One agent's queues with what their sections need.
#[derive(Debug)]
pub struct Inbox<'a, F, L, R, S> {
    /// Where facts go.
    pub facts: &'a F,
    /// The agent instance.
    pub agent: OwnerId,
    /// Its session's id.
    pub session: &'a SessionId,
    /// The slot of the activation it runs, if it runs one.
    pub slot: Option<&'a L>,
    /// The queues.
    pub queue: &'a Mutex<SteeringQueue<R, S>>,
}

type Locked<'a, L, R, S> =
    (Option<<L as SlotLock>::Guard<'a>>, MutexGuard<'a, SteeringQueue<R, S>>);

impl<'a, F: FactSink, L: SlotLock, R, S> Inbox<'a, F, L, R, S> {
    fn lock(&self) -> Locked<'a, L, R, S> {
        let slot = self.slot.map(SlotLock::lock);
        (slot, self.queue.lock())
    }

    fn queued(&self, id: &MessageId, placement: Placement, receipt: bool) {
        self.facts.record(Fact::MessageQueued {
            agent: self.agent,
            message: id.clone(),
            steering: placement == Placement::Steering,
            receipt,
        });
    }

    fn refused(&self, id: &MessageId) {
        self.facts.record(Fact::MessageRefused { agent: self.agent, message: id.clone() });
    }

    fn rejected(&self, receipts: &Receipts<R>) {
        for (message, _) in receipts {
            let message = message.clone();
            self.facts.record(Fact::ReceiptSettled { agent: self.agent, message, admitted: None });
        }
    }

    fn closed(&self) {
        self.facts.record(Fact::InboxClosed { agent: self.agent });
    }

    /// Meets a cancellation of the activation or of the turn.
    fn interrupted(
        &self,
        slot: Option<&L::Guard<'_>>,
        queue: &mut SteeringQueue<R, S>,
    ) -> Option<Interrupted<R, S>> {
        let observed = slot.and_then(Slot::cause).and_then(|cause| self.observe(cause, queue));
        let cause = queue.cancel_cause().or(observed.as_ref().map(|(cause, _)| *cause))?;
        Some(Interrupted { cause, observed: observed.map(|(_, cancelled)| cancelled) })
    }

    /// Closes the queues for an accepted cancellation of the activation, once.
    fn observe(
        &self,
        cause: CancelCause,
        queue: &mut SteeringQueue<R, S>,
    ) -> Option<(CancelCause, Cancelled<R, S>)> {
        let cancelled = queue.close(cause)?;
        let child = self.session.clone();
        self.facts.record(Fact::CancelObserved { child, agent: self.agent });
        self.closed();
        self.rejected(&cancelled.rejected);
        Some((cause, cancelled))
    }

    // --- messages in --------------------------------------------------------------------------

    /// Queues a prompt; `wake` starts an activity. `None` when the inbox is closed.
    pub fn prompt(&self, message: Arc<Message>, wake: bool) -> Option<Accepted> {
        let (slot, mut queue) = self.lock();
        let id = message.id.clone();
        let cancelled = slot.as_ref().and_then(Slot::cause).is_some();
        let accepted = if cancelled { None } else { queue.prompt(message, wake, None).ok() };
        match accepted {
            Some(accepted) => self.queued(&id, accepted.placement, false),
            None => self.refused(&id),
        }
        accepted
    }

    /// Steers: joins the open turn or queues a prompt. Gives the receipt back when refused.
    pub fn steer(&self, message: Arc<Message>, receipt: R) -> Result<Accepted, (SteerRefusal, R)> {
        let (slot, mut queue) = self.lock();
        self.steer_locked(slot.as_ref(), &mut queue, message, receipt)
    }

    /// Section (b): cancelled? running? captured? and push. Used by runs, whose steer must not
    /// start a turn outside the run (fact-sheet 6.5). `captured` may take a leaf lock.
    pub fn steer_running(
        &self,
        captured: impl FnOnce() -> bool,
        message: Arc<Message>,
        receipt: R,
    ) -> Result<Accepted, (SteerRefusal, R)> {
        let (slot, mut queue) = self.lock();
        let cancelled = slot.as_ref().and_then(Slot::cause).is_some();
        let refusal = match () {
            () if cancelled => None,
            () if !queue.is_busy() => Some(SteerRefusal::NotRunning),
            () if captured() => Some(SteerRefusal::Captured),
            () => None,
        };
        if let Some(refusal) = refusal {
            self.refused(&message.id);
            return Err((refusal, receipt));
        }
        self.steer_locked(slot.as_ref(), &mut queue, message, receipt)
    }

    fn steer_locked(
        &self,
        slot: Option<&L::Guard<'_>>,
        queue: &mut SteeringQueue<R, S>,
        message: Arc<Message>,
        receipt: R,
    ) -> Result<Accepted, (SteerRefusal, R)> {
        let id = message.id.clone();
        if slot.and_then(Slot::cause).is_some() {
            self.refused(&id);
            return Err((SteerRefusal::Cancelled, receipt));
        }
        match queue.steer(message, receipt) {
            Ok(accepted) => {
                self.queued(&id, accepted.placement, true);
                Ok(accepted)
            }
            Err(receipt) => {
                self.refused(&id);
                Err((SteerRefusal::Closed, receipt))
            }
        }
    }

    /// Injects a context. `append` puts it into the log at once, in this section, when no turn
    /// would pick it up. `None` when the inbox is closed.
    pub fn inject<T>(
        &self,
        message: &Arc<Message>,
        append: impl FnOnce() -> T,
    ) -> Option<Option<T>> {
        let (slot, mut queue) = self.lock();
        self.inject_locked(slot.as_ref(), &mut queue, message, append)
    }

    fn inject_locked<T>(
        &self,
        slot: Option<&L::Guard<'_>>,
        queue: &mut SteeringQueue<R, S>,
        message: &Arc<Message>,
        append: impl FnOnce() -> T,
    ) -> Option<Option<T>> {
        if slot.and_then(Slot::cause).is_some() {
            self.refused(&message.id);
            return None;
        }
        match queue.inject(message) {
            Injected::Refused => {
                self.refused(&message.id);
                None
            }
            Injected::Staged => {
                self.queued(&message.id, Placement::Steering, false);
                Some(None)
            }
            Injected::Append => Some(Some(append())),
        }
    }

    /// Injects a context that may wake the agent. `append` runs under the session's lock: with true
    /// if the agent is idle and has nothing queued, and then answers `None` to open a turn; else
    /// it appends.
    pub fn inject_waking<T>(
        &self,
        message: &Arc<Message>,
        append: impl FnOnce(bool) -> Option<T>,
    ) -> Woken<T> {
        let (slot, mut queue) = self.lock();
        let cancelled = slot.as_ref().and_then(Slot::cause).is_some();
        if cancelled || !queue.could_wake() {
            let appended = self.inject_locked(slot.as_ref(), &mut queue, message, || append(false));
            return match appended {
                None => Woken::Refused,
                Some(appended) => Woken::Quietly(appended.flatten()),
            };
        }
        if let Some(appended) = append(true) {
            return Woken::Quietly(Some(appended));
        }
        let accepted = queue.inject_waking(message);
        self.queued(&message.id, accepted.placement, false);
        Woken::Turn(accepted)
    }

    /// Withdraws an undrained message (contract P4). `None` after the drain.
    pub fn withdraw(&self, ticket: Ticket) -> Option<Receipts<R>> {
        let mut queue = self.queue.lock();
        let (id, receipt) = queue.withdraw(ticket)?;
        let receipts: Receipts<R> = receipt.map(|receipt| (id, receipt)).into_iter().collect();
        self.rejected(&receipts);
        Some(receipts)
    }

    /// Edits or removes a queued prompt; `None` if it is not queued (any more).
    pub fn update(&self, id: &MessageId, edit: InboxEdit) -> Option<Receipts<R>> {
        let mut queue = self.queue.lock();
        let receipt = queue.update(id, edit)?;
        let receipts: Receipts<R> =
            receipt.map(|receipt| (id.clone(), receipt)).into_iter().collect();
        self.rejected(&receipts);
        Some(receipts)
    }

    // --- the activity -------------------------------------------------------------------------

    /// Claims the next prompt. After a cancellation of the activation there is none.
    pub fn claim(&self, signal: impl FnOnce(u64) -> S) -> Result<Option<Claim>, Interrupted<R, S>> {
        let (slot, mut queue) = self.lock();
        match self.observed_only(slot.as_ref(), &mut queue) {
            Some(interrupted) => Err(interrupted),
            None => Ok(queue.claim(signal)),
        }
    }

    /// Claims the retry that a recovery asked for, if no cancellation won.
    pub fn claim_retry(
        &self,
        signal: impl FnOnce(u64) -> S,
    ) -> Result<Option<u64>, Interrupted<R, S>> {
        let (slot, mut queue) = self.lock();
        match self.observed_only(slot.as_ref(), &mut queue) {
            Some(interrupted) => Err(interrupted),
            None => Ok(queue.claim_retry(signal)),
        }
    }

    /// Between turns only the activation's cancellation counts; the last turn's is over.
    fn observed_only(
        &self,
        slot: Option<&L::Guard<'_>>,
        queue: &mut SteeringQueue<R, S>,
    ) -> Option<Interrupted<R, S>> {
        let (cause, cancelled) = slot.and_then(Slot::cause).and_then(|c| self.observe(c, queue))?;
        Some(Interrupted { cause, observed: Some(cancelled) })
    }

    /// Runs `then` in one section with the check that nothing was cancelled.
    pub fn uncancelled<T>(
        &self,
        then: impl FnOnce(&mut SteeringQueue<R, S>) -> T,
    ) -> Result<T, Interrupted<R, S>> {
        let (slot, mut queue) = self.lock();
        match self.interrupted(slot.as_ref(), &mut queue) {
            Some(interrupted) => Err(interrupted),
            None => Ok(then(&mut queue)),
        }
    }

    /// Runs `then` in one section, cancelled or not, and tells it the cause.
    pub fn finalise<T>(
        &self,
        then: impl FnOnce(&mut SteeringQueue<R, S>, Option<CancelCause>) -> T,
    ) -> (T, Option<Interrupted<R, S>>) {
        let (slot, mut queue) = self.lock();
        let interrupted = self.interrupted(slot.as_ref(), &mut queue);
        let cause = interrupted.as_ref().map(|interrupted| interrupted.cause);
        (then(&mut queue, cause), interrupted)
    }

    /// Rejects receipts in the current section; the caller settles them after unlocking.
    pub fn reject(&self, receipts: Receipts<R>) -> Receipts<R> {
        self.rejected(&receipts);
        receipts
    }

    /// Section (g): drain, append, request snapshot and `step/start`. `append` validates the whole
    /// batch, appends it and takes the snapshot, under the session's lock. `opens` says that the
    /// turn itself opens with this batch and needs its prompt.
    pub fn open_step<T, E>(
        &self,
        (turn, step): (u64, u64),
        opens: bool,
        append: impl FnOnce(&Batch<R>) -> Result<T, E>,
    ) -> StepOpening<T, E, R, S> {
        let (slot, mut queue) = self.lock();
        if let Some(interrupted) = self.interrupted(slot.as_ref(), &mut queue) {
            return StepOpening::Interrupted(interrupted);
        }
        if opens && queue.claimed().is_none() {
            return StepOpening::Withdrawn;
        }
        let batch = queue.drain_step();
        match append(&batch) {
            Ok(value) => {
                let receipts = batch.into_receipts();
                for (message, _) in &receipts {
                    let (agent, message) = (self.agent, message.clone());
                    let admitted = Some((turn, step));
                    self.facts.record(Fact::ReceiptSettled { agent, message, admitted });
                }
                StepOpening::Opened(value, receipts)
            }
            Err(error) => StepOpening::Refused(error, self.reject(batch.into_receipts())),
        }
    }

    // --- cancelling and closing ---------------------------------------------------------------

    /// Cancels the current admission or turn. Meets an accepted cancellation of the activation
    /// first, which closes the inbox for good.
    pub fn cancel(&self, cause: CancelCause, keep_inbox: bool) -> Cancelled<R, S> {
        let (slot, mut queue) = self.lock();
        if let Some(first) = slot.as_ref().and_then(Slot::cause)
            && let Some((_, cancelled)) = self.observe(first, &mut queue)
        {
            return cancelled;
        }
        let cancelled = queue.cancel(cause, keep_inbox);
        self.rejected(&cancelled.rejected);
        cancelled
    }

    /// Contract P6: if the agent is idle, closes its inbox for good and takes the log's length.
    pub fn close_for_settlement(
        &self,
        length: impl FnOnce() -> u64,
    ) -> Option<(u64, Cancelled<R, S>)> {
        let (_slot, mut queue) = self.lock();
        let was_closed = queue.is_closed();
        let cancelled = queue.close_if_idle()?;
        if !was_closed {
            self.closed();
        }
        self.rejected(&cancelled.rejected);
        let length = length();
        let child = self.session.clone();
        self.facts.record(Fact::SettlementClosed { child, agent: self.agent, length });
        Some((length, cancelled))
    }

    /// How far the activity is.
    pub fn stage(&self) -> Stage {
        self.queue.lock().stage()
    }
}

/// The first section of a disposal (contract P16): the instance is marked closing in the registry,
/// so that nothing starts for it or through it, its inbox closes for good, and what runs is
/// cancelled. `None` if it was closing already; else the cause that cancelled the turn.
pub fn begin_disposal<A: Clone, F: FactSink, L: SlotLock, R, S>(
    inbox: &Inbox<'_, F, L, R, S>,
    registry: &Mutex<Registry<A>>,
    cause: CancelCause,
) -> Option<(CancelCause, Cancelled<R, S>)> {
    let slot = inbox.slot.map(SlotLock::lock);
    let mut registry = registry.lock();
    let mut queue = inbox.queue.lock();
    if !registry.close(inbox.agent) {
        return None;
    }
    let (agent, session) = (inbox.agent, inbox.session.clone());
    inbox.facts.record(Fact::AgentDisposing { agent, session });
    // An accepted cancellation of the activation came first and names the cause.
    if let Some(first) = slot.as_ref().and_then(Slot::cause)
        && let Some(observed) = inbox.observe(first, &mut queue)
    {
        return Some(observed);
    }
    let cancelled = match queue.close(cause) {
        Some(cancelled) => {
            inbox.closed();
            cancelled
        }
        // Closed for settlement or by a cancellation: what it left running is cancelled.
        None => queue.cancel(cause, false),
    };
    inbox.rejected(&cancelled.rejected);
    Some((cause, cancelled))
}
