//! An agent's queues, pure: prompts that open turns, and what enters the log at a step boundary.
//!
//! Two lists and one claimed prompt (fact-sheet 3.1). A message with a receipt stays in here until
//! the section that commits its `step/start` drains it, so drained = admitted (contract P11).
//! Receipts (`R`) are only moved: whoever calls settles them after unlocking.

use std::collections::VecDeque;
use std::sync::Arc;

use super::inbox::{
    Accepted, Batch, Cancelled, Claim, InboxEdit, Injected, Placement, Prompt, Stage, Staged,
    Ticket, receipt_of,
};
use crate::ids::MessageId;
use crate::message::{ContentBlock, Message};
use crate::sync::{Access, ObjectKind, touch};
use crate::vocabulary::CancelCause;

#[derive(Debug)]
struct Claimed<R> {
    prompt: Prompt<R>,
    contexts: Vec<Arc<Message>>,
}

/// The queues of one agent. `R` settles a receipt; `S` is fired by a cancellation.
#[derive(Debug)]
pub struct SteeringQueue<R, S> {
    key: u64,
    queued: VecDeque<Prompt<R>>,
    outbox: VecDeque<Staged<R>>,
    claimed: Option<Claimed<R>>,
    stage: Stage,
    busy: bool,
    closed: bool,
    cancel: Option<CancelCause>,
    signal: Option<S>,
    retry: bool,
    reservation: Option<u64>,
    reservations: u64,
    admissions: u64,
    tickets: u64,
}

impl<R, S> SteeringQueue<R, S> {
    /// Empty queues; `key` is the agent's instance number.
    pub fn new(key: u64) -> Self {
        Self {
            key,
            queued: VecDeque::new(),
            outbox: VecDeque::new(),
            claimed: None,
            stage: Stage::Idle,
            busy: false,
            closed: false,
            cancel: None,
            signal: None,
            retry: false,
            reservation: None,
            reservations: 0,
            admissions: 0,
            tickets: 0,
        }
    }

    fn touch(&self, access: Access) {
        touch(ObjectKind::Queue, self.key, access);
    }

    // --- looking ------------------------------------------------------------------------------

    /// How far the activity is.
    pub fn stage(&self) -> Stage {
        self.touch(Access::Read);
        self.stage
    }

    /// Whether the agent's status is `running`.
    pub fn is_busy(&self) -> bool {
        self.touch(Access::Read);
        self.busy
    }

    /// Whether the queues are closed for good.
    pub fn is_closed(&self) -> bool {
        self.touch(Access::Read);
        self.closed
    }

    /// The first cause that cancelled the current admission or turn.
    pub fn cancel_cause(&self) -> Option<CancelCause> {
        self.touch(Access::Read);
        self.cancel
    }

    /// Whether a steer would join the open turn (fact-sheet 1.3, `acceptsNextStep`).
    pub fn accepts_next_step(&self) -> bool {
        self.touch(Access::Read);
        self.in_turn() && self.cancel.is_none() && !self.closed
    }

    /// Whether steering waits for the next step.
    pub fn has_steering(&self) -> bool {
        self.touch(Access::Read);
        self.outbox.iter().any(|item| item.steering)
    }

    /// Whether nothing runs, nothing is scheduled, and no reservation holds prompts back.
    pub fn is_settled(&self) -> bool {
        self.touch(Access::Read);
        self.stage == Stage::Idle && self.reservation.is_none()
    }

    /// Whether a cancellation would change anything.
    pub fn cancel_would_act(&self, keep_inbox: bool) -> bool {
        self.touch(Access::Read);
        let active = self.in_turn() && self.cancel.is_none();
        active || (!keep_inbox && (self.holds_anything() || self.retry))
    }

    /// The queued and staged inbox items: prompts in order, then steering in order.
    pub fn inbox(&self) -> Vec<(Arc<Message>, Placement)> {
        self.touch(Access::Read);
        let queued = self.queued.iter().map(|p| (Arc::clone(&p.message), Placement::Queued));
        let steering = self.outbox.iter().filter(|item| item.steering);
        queued.chain(steering.map(|s| (Arc::clone(&s.message), Placement::Steering))).collect()
    }

    fn in_turn(&self) -> bool {
        matches!(self.stage, Stage::Admitting | Stage::Turn)
    }

    fn holds_anything(&self) -> bool {
        !self.queued.is_empty() || !self.outbox.is_empty()
    }

    fn has_waking(&self) -> bool {
        self.queued.iter().any(|prompt| prompt.wake)
    }

    // --- accepting ----------------------------------------------------------------------------

    fn ticket(&mut self) -> Ticket {
        self.tickets += 1;
        Ticket(self.tickets)
    }

    /// Schedules an activity if one is wanted and none exists.
    fn wake(&mut self) -> bool {
        let wanted = self.stage == Stage::Idle && self.reservation.is_none() && self.has_waking();
        if wanted {
            self.stage = Stage::Woken;
        }
        wanted
    }

    /// Queues a prompt; without `wake` it alone never starts anything. Gives the receipt back when
    /// the queues are closed.
    pub fn prompt(
        &mut self,
        message: Arc<Message>,
        wake: bool,
        receipt: Option<R>,
    ) -> Result<Accepted, Option<R>> {
        if self.closed {
            self.touch(Access::Read);
            return Err(receipt);
        }
        self.touch(Access::Write);
        let ticket = self.ticket();
        self.queued.push_back(Prompt { ticket, message, wake, injection: false, receipt });
        Ok(Accepted { ticket, placement: Placement::Queued, wake: self.wake() })
    }

    /// Joins the open turn, or queues a prompt that carries the receipt (fact-sheet 3.2).
    pub fn steer(&mut self, message: Arc<Message>, receipt: R) -> Result<Accepted, R> {
        if self.closed {
            self.touch(Access::Read);
            return Err(receipt);
        }
        if !self.accepts_next_step() {
            return self
                .prompt(message, true, Some(receipt))
                .map_err(|receipt| receipt.expect("the receipt that was given in"));
        }
        self.touch(Access::Write);
        let ticket = self.ticket();
        let receipt = Some(receipt);
        self.outbox.push_back(Staged {
            ticket,
            message,
            steering: true,
            receipt,
            inherited: false,
        });
        Ok(Accepted { ticket, placement: Placement::Steering, wake: false })
    }

    /// Takes a context: staged while a turn is open or being admitted, otherwise for the log now.
    pub fn inject(&mut self, message: &Arc<Message>) -> Injected {
        if self.closed {
            self.touch(Access::Read);
            return Injected::Refused;
        }
        self.touch(Access::Write);
        if !self.in_turn() {
            return Injected::Append;
        }
        self.stage_context(Arc::clone(message));
        Injected::Staged
    }

    /// Whether a context could start a turn: idle, and nothing queued or staged (contract P7).
    pub fn could_wake(&self) -> bool {
        !self.closed && self.is_settled() && !self.holds_anything()
    }

    /// Lets a context start a turn of an agent that [could be woken](Self::could_wake).
    pub fn inject_waking(&mut self, message: &Arc<Message>) -> Accepted {
        self.touch(Access::Write);
        let (ticket, message) = (self.ticket(), Arc::clone(message));
        let prompt = Prompt { ticket, message, wake: true, injection: true, receipt: None };
        self.queued.push_back(prompt);
        Accepted { ticket, placement: Placement::Queued, wake: self.wake() }
    }

    fn stage_context(&mut self, message: Arc<Message>) {
        let ticket = self.ticket();
        self.outbox.push_back(Staged {
            ticket,
            message,
            steering: false,
            receipt: None,
            inherited: false,
        });
    }

    /// Stages contexts that a tool result finalised. False if the turn was cancelled: the caller
    /// appends them itself (scenario 267).
    pub fn stage_result_contexts(&mut self, contexts: &[Arc<Message>]) -> bool {
        self.touch(Access::Write);
        if self.cancel.is_some() || self.closed {
            return false;
        }
        for context in contexts {
            self.stage_context(Arc::clone(context));
        }
        true
    }

    /// Withdraws an undrained message, a claimed prompt included (contract P4). `None` after the
    /// drain.
    pub fn withdraw(&mut self, ticket: Ticket) -> Option<(MessageId, Option<R>)> {
        self.touch(Access::Write);
        if let Some(at) = self.queued.iter().position(|item| item.ticket == ticket) {
            return self.queued.remove(at).map(|item| (item.message.id.clone(), item.receipt));
        }
        if let Some(at) = self.outbox.iter().position(|item| item.ticket == ticket) {
            return self.outbox.remove(at).map(|item| (item.message.id.clone(), item.receipt));
        }
        let claimed = self.claimed.take_if(|claimed| claimed.prompt.ticket == ticket)?;
        Some((claimed.prompt.message.id.clone(), claimed.prompt.receipt))
    }

    /// Edits or removes a queued prompt. `None` if `id` is not queued: claimed prompts and steering
    /// are not addressable. The inner option is the receipt of a removed prompt.
    pub fn update(&mut self, id: &MessageId, edit: InboxEdit) -> Option<Option<R>> {
        self.touch(Access::Write);
        let at = self.queued.iter().position(|item| item.message.id == *id)?;
        match edit {
            InboxEdit::Remove => self.queued.remove(at).map(|item| item.receipt),
            InboxEdit::Replace(content) => {
                let item = &mut self.queued[at];
                let message = Message { content, ..(*item.message).clone() };
                item.message = Arc::new(message);
                Some(None)
            }
        }
    }

    // --- the activity -------------------------------------------------------------------------

    /// Claims the head of the queue if a waking prompt waits, be the head itself quiet or not
    /// (fact-sheet 3.3). `signal` makes what a cancellation of the admission will fire, from the
    /// count of admissions.
    pub fn claim(&mut self, signal: impl FnOnce(u64) -> S) -> Option<Claim> {
        self.touch(Access::Write);
        if self.stage == Stage::Woken {
            self.stage = Stage::Between;
        }
        if self.closed || !self.has_waking() {
            return None;
        }
        let prompt = self.queued.pop_front()?;
        let first = self.start_admission(signal);
        let claim = Claim {
            message: Arc::clone(&prompt.message),
            ticket: prompt.ticket,
            injection: prompt.injection,
            first,
            admission: self.admissions,
        };
        self.claimed = Some(Claimed { prompt, contexts: Vec::new() });
        Some(claim)
    }

    /// Starts the turn of a granted retry: it has no prompt. `None` if a cancellation won.
    pub fn claim_retry(&mut self, signal: impl FnOnce(u64) -> S) -> Option<u64> {
        self.touch(Access::Write);
        if !std::mem::take(&mut self.retry) || self.closed {
            return None;
        }
        self.start_admission(signal);
        self.stage = Stage::Turn;
        Some(self.admissions)
    }

    fn start_admission(&mut self, signal: impl FnOnce(u64) -> S) -> bool {
        self.stage = Stage::Admitting;
        self.admissions += 1;
        self.cancel = None;
        self.signal = Some(signal(self.admissions));
        self.retry = false;
        for item in &mut self.outbox {
            item.inherited = true;
        }
        !std::mem::replace(&mut self.busy, true)
    }

    /// Admits the claimed prompt, with new content if the hook replaced it. False if it was
    /// cancelled or withdrawn meanwhile.
    pub fn admit(
        &mut self,
        content: Option<Vec<ContentBlock>>,
        contexts: Vec<Arc<Message>>,
    ) -> bool {
        self.touch(Access::Write);
        if self.cancel.is_some() {
            return false;
        }
        let Some(claimed) = &mut self.claimed else { return false };
        if let Some(content) = content {
            let message = Message { content, ..(*claimed.prompt.message).clone() };
            claimed.prompt.message = Arc::new(message);
        }
        claimed.contexts = contexts;
        self.stage = Stage::Turn;
        true
    }

    /// The claimed prompt, while it is undrained.
    pub fn claimed(&self) -> Option<&Arc<Message>> {
        self.touch(Access::Read);
        self.claimed.as_ref().map(|claimed| &claimed.prompt.message)
    }

    /// Whether the turn may be opened before its first step: neither the prompt nor anything that
    /// stands before it carries a receipt (contract P2, P11).
    pub fn opens_early(&self) -> bool {
        self.touch(Access::Read);
        let plain = self.claimed.as_ref().is_some_and(|claimed| claimed.prompt.receipt.is_none());
        plain && !self.outbox.iter().any(|item| item.inherited && item.receipt.is_some())
    }

    /// Takes the claimed prompt and its contexts if it carries no receipt, and leaves the rest: a
    /// turn that fails before its first step still shows its prompt.
    pub fn take_plain_prompt(&mut self) -> Option<(Arc<Message>, Vec<Arc<Message>>)> {
        self.touch(Access::Write);
        let plain = self.claimed.take_if(|claimed| claimed.prompt.receipt.is_none())?;
        Some((plain.prompt.message, plain.contexts))
    }

    /// The activity is gone without an end: a broken invariant of ours. Closes the queues.
    pub fn crash(&mut self) -> Cancelled<R, S> {
        self.touch(Access::Write);
        let outcome = self.close(CancelCause::Disposed).unwrap_or_else(Cancelled::nothing);
        self.busy = false;
        self.stage = Stage::Idle;
        outcome
    }

    /// Gives up the claimed prompt; its turn is not opened. Returns its receipt, and the staged
    /// contexts if no steering is staged with them: they go to the log now (fact-sheet 3.3).
    pub fn refuse_admission(&mut self) -> (Option<(MessageId, R)>, Vec<Arc<Message>>) {
        self.touch(Access::Write);
        let rejected = self.claimed.take().and_then(|claimed| {
            receipt_of(claimed.prompt.message.id.clone(), claimed.prompt.receipt)
        });
        self.stage = Stage::Between;
        (rejected, self.take_lone_contexts())
    }

    fn take_lone_contexts(&mut self) -> Vec<Arc<Message>> {
        if self.outbox.iter().any(|item| item.steering) {
            return Vec::new();
        }
        self.outbox.drain(..).map(|item| item.message).collect()
    }

    /// Puts contexts back in front after their append failed.
    pub fn restage_contexts(&mut self, contexts: Vec<Arc<Message>>) {
        self.touch(Access::Write);
        for message in contexts.into_iter().rev() {
            let ticket = self.ticket();
            self.outbox.push_front(Staged {
                ticket,
                message,
                steering: false,
                receipt: None,
                inherited: false,
            });
        }
    }

    /// Takes what opens the turn early: the inherited contexts, the prompt and its contexts.
    pub fn drain_opening(&mut self) -> Batch<R> {
        self.touch(Access::Write);
        let keep = self.outbox.iter().position(|i| !i.inherited).unwrap_or(self.outbox.len());
        let rest = self.outbox.split_off(keep);
        let inherited = std::mem::replace(&mut self.outbox, rest).into();
        let (prompt, contexts) = self.take_claimed();
        Batch { inherited, prompt, contexts, rest: Vec::new() }
    }

    /// Takes everything that enters the log with the next step.
    pub fn drain_step(&mut self) -> Batch<R> {
        let mut batch = self.drain_opening();
        batch.rest = self.outbox.drain(..).collect();
        batch
    }

    fn take_claimed(&mut self) -> (Option<Prompt<R>>, Vec<Arc<Message>>) {
        match self.claimed.take() {
            Some(Claimed { prompt, contexts }) => (Some(prompt), contexts),
            None => (None, Vec::new()),
        }
    }

    /// Takes the staged contexts and leaves the steering.
    pub fn take_contexts(&mut self) -> Vec<Arc<Message>> {
        self.touch(Access::Write);
        let (steering, contexts): (Vec<_>, Vec<_>) =
            self.outbox.drain(..).partition(|item| item.steering);
        self.outbox = steering.into();
        contexts.into_iter().map(|item| item.message).collect()
    }

    /// Rejects all staged steering: a concluding tool or a terminal policy (contract P10).
    pub fn reject_steering(&mut self) -> (Vec<(MessageId, R)>, Vec<Arc<Message>>) {
        self.touch(Access::Write);
        let (steering, contexts): (Vec<_>, Vec<_>) =
            self.outbox.drain(..).partition(|item| item.steering);
        self.outbox = contexts.into();
        let discarded = steering.iter().map(|item| Arc::clone(&item.message)).collect();
        let receipts =
            steering.into_iter().filter_map(|i| receipt_of(i.message.id.clone(), i.receipt));
        (receipts.collect(), discarded)
    }

    /// The turn is over: from here a steer is a queued prompt. After a cancellation, contexts
    /// staged since then go to the log now, behind the turn.
    pub fn end_turn(&mut self) -> Vec<Arc<Message>> {
        self.touch(Access::Write);
        self.stage = Stage::Settling;
        self.signal = None;
        if self.cancel.is_some() { self.take_lone_contexts() } else { Vec::new() }
    }

    /// A recovery asked for a retry turn; a cancellation wins over it (scenario 270).
    pub fn request_retry(&mut self) {
        self.touch(Access::Write);
        self.retry = self.cancel.is_none() && !self.closed;
    }

    /// The turn is flushed and reported.
    pub fn settle_turn(&mut self) {
        self.touch(Access::Write);
        self.stage = Stage::Between;
    }

    /// Goes idle if nothing waking waits. The activity itself ends with [`Self::end_activity`],
    /// after the status was announced. True if the status was `running`.
    pub fn rest(&mut self) -> Option<bool> {
        self.touch(Access::Write);
        if !self.closed && self.has_waking() {
            return None;
        }
        Some(std::mem::replace(&mut self.busy, false))
    }

    /// Ends the activity, unless work arrived since [`Self::rest`].
    pub fn end_activity(&mut self) -> bool {
        self.touch(Access::Write);
        if !self.closed && self.has_waking() {
            return false;
        }
        self.stage = Stage::Idle;
        true
    }

    // --- cancelling and closing ---------------------------------------------------------------

    /// Cancels the current admission or turn; the first cause wins. Without `keep_inbox` both lists
    /// are cleared and their receipts are to be rejected (fact-sheet 3.6).
    pub fn cancel(&mut self, cause: CancelCause, keep_inbox: bool) -> Cancelled<R, S> {
        if !self.cancel_would_act(keep_inbox) {
            return Cancelled::nothing();
        }
        self.touch(Access::Write);
        let mut outcome = Cancelled { acted: true, ..Cancelled::nothing() };
        if self.in_turn() && self.cancel.is_none() {
            self.cancel = Some(cause);
            outcome.abort = self.signal.take();
        }
        self.retry = false;
        if !keep_inbox {
            self.discard_all(&mut outcome);
        }
        // The claimed prompt's admission is cancelled with or without the inbox (fact-sheet 3.6).
        if let Some(claimed) = self.claimed.take() {
            outcome
                .rejected
                .extend(receipt_of(claimed.prompt.message.id.clone(), claimed.prompt.receipt));
        }
        outcome
    }

    fn discard_all(&mut self, outcome: &mut Cancelled<R, S>) {
        for Prompt { message, receipt, .. } in self.queued.drain(..) {
            outcome.rejected.extend(receipt_of(message.id.clone(), receipt));
            outcome.discarded.push(message);
        }
        for Staged { message, receipt, steering, .. } in self.outbox.drain(..) {
            outcome.rejected.extend(receipt_of(message.id.clone(), receipt));
            if steering {
                outcome.discarded.push(message);
            }
        }
    }

    /// Closes the queues for good and cancels what runs. `None` if they were closed before.
    pub fn close(&mut self, cause: CancelCause) -> Option<Cancelled<R, S>> {
        if self.closed {
            self.touch(Access::Read);
            return None;
        }
        let outcome = self.cancel(cause, false);
        self.touch(Access::Write);
        self.closed = true;
        self.reservation = None;
        Some(outcome)
    }

    /// Closes the queues for good if the agent is idle (contract P6). `None` if it is not.
    pub fn close_if_idle(&mut self) -> Option<Cancelled<R, S>> {
        self.touch(Access::Read);
        if self.stage != Stage::Idle || self.has_waking() {
            return None;
        }
        Some(self.close(CancelCause::Disposed).unwrap_or_else(Cancelled::nothing))
    }

    // --- reservation --------------------------------------------------------------------------

    /// Holds back turns until released; only of an idle agent with nothing waking queued and no
    /// other reservation (fact-sheet 3.7).
    pub fn reserve(&mut self) -> Option<u64> {
        self.touch(Access::Write);
        let free = self.is_settled() && !self.has_waking() && !self.closed;
        free.then(|| {
            self.reservations += 1;
            self.reservation = Some(self.reservations);
            self.reservations
        })
    }

    /// Ends a reservation; a stale one is inert. Returns whether it was held and whether an
    /// activity must be started.
    pub fn release(&mut self, reservation: u64) -> (bool, bool) {
        self.touch(Access::Write);
        if self.reservation != Some(reservation) {
            return (false, false);
        }
        self.reservation = None;
        (true, self.wake())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::MessageSource;

    type Queue = SteeringQueue<&'static str, u64>;

    fn message(id: &str) -> Arc<Message> {
        Arc::new(Message::user(MessageId::new(id), id, MessageSource::User))
    }

    fn ids(messages: &[Arc<Message>]) -> Vec<&str> {
        messages.iter().map(|message| message.id.as_str()).collect()
    }

    /// A queue whose turn is open, its prompt in the log.
    fn in_turn() -> Queue {
        let mut queue = Queue::new(1);
        assert!(queue.prompt(message("p"), true, None).expect("open").wake);
        assert!(queue.claim(|n| n).expect("a waking prompt").first);
        assert!(queue.admit(None, Vec::new()));
        assert!(queue.opens_early());
        assert!(queue.drain_opening().prompt.is_some());
        queue
    }

    #[test]
    fn two_idle_steers_are_two_prompts_and_one_wake() {
        let mut queue = Queue::new(1);
        let first = queue.steer(message("a"), "ra").expect("open");
        let second = queue.steer(message("b"), "rb").expect("open");
        assert_eq!((first.placement, first.wake), (Placement::Queued, true));
        assert_eq!((second.placement, second.wake), (Placement::Queued, false));
    }

    #[test]
    fn a_prompt_with_a_receipt_stays_until_its_step_opens() {
        let mut queue = Queue::new(1);
        queue.steer(message("a"), "ra").expect("open");
        queue.claim(|n| n).expect("claimed");
        assert!(queue.admit(None, Vec::new()));
        assert!(!queue.opens_early());
        let batch = queue.drain_step();
        assert_eq!(batch.into_receipts(), [(MessageId::new("a"), "ra")]);
    }

    #[test]
    fn a_withdrawn_claim_opens_no_turn() {
        let mut queue = Queue::new(1);
        let accepted = queue.steer(message("a"), "ra").expect("open");
        queue.claim(|n| n).expect("claimed");
        assert_eq!(queue.withdraw(accepted.ticket), Some((MessageId::new("a"), Some("ra"))));
        assert!(!queue.admit(None, Vec::new()));
        assert!(queue.claimed().is_none());
    }

    #[test]
    fn a_context_wakes_only_an_agent_with_nothing_to_do() {
        let mut queue = Queue::new(1);
        assert!(queue.could_wake());
        assert!(queue.inject_waking(&message("n")).wake);
        assert!(!queue.could_wake(), "one at a time");
        assert!(queue.claim(|n| n).expect("claimed").injection);
    }

    #[test]
    fn a_drained_message_cannot_be_withdrawn() {
        let mut queue = in_turn();
        let accepted = queue.steer(message("s"), "rs").expect("open");
        assert_eq!(accepted.placement, Placement::Steering);
        let batch = queue.drain_step();
        assert_eq!(batch.rest.len(), 1);
        assert_eq!(queue.withdraw(accepted.ticket), None);
    }

    #[test]
    fn inherited_entries_stand_before_the_prompt() {
        let mut queue = in_turn();
        queue.inject(&message("c"));
        queue.steer(message("s"), "rs").expect("open");
        queue.end_turn();
        queue.settle_turn();
        queue.prompt(message("q"), true, None).expect("open");
        queue.claim(|n| n).expect("claimed");
        queue.admit(None, vec![message("extra")]);
        queue.inject(&message("late"));
        assert!(!queue.opens_early(), "an inherited receipt enters only with the step");
        let batch = queue.drain_step();
        assert_eq!(batch.inherited.len(), 2);
        assert_eq!(batch.prompt.expect("the prompt").message.id.as_str(), "q");
        assert_eq!(ids(&batch.contexts), ["extra"]);
        assert_eq!(batch.rest[0].message.id.as_str(), "late");
    }

    #[test]
    fn a_plain_cancel_rejects_everything_and_later_work_survives() {
        let mut queue = in_turn();
        queue.prompt(message("q"), true, None).expect("open");
        queue.steer(message("s"), "rs").expect("open");
        queue.inject(&message("c"));
        let outcome = queue.cancel(CancelCause::User, false);
        assert_eq!(outcome.abort, Some(1));
        assert_eq!(outcome.rejected, [(MessageId::new("s"), "rs")]);
        assert_eq!(ids(&outcome.discarded), ["q", "s"], "contexts are no inbox items");
        let after = queue.steer(message("later"), "rl").expect("open");
        assert_eq!(after.placement, Placement::Queued, "the cancelled turn accepts nothing");
        assert!(!queue.cancel(CancelCause::Parent, true).acted);
        assert_eq!(queue.cancel_cause(), Some(CancelCause::User), "the first cause wins");
    }

    #[test]
    fn a_cancel_that_keeps_the_inbox_leaves_receipts_pending() {
        let mut queue = in_turn();
        queue.steer(message("s"), "rs").expect("open");
        let outcome = queue.cancel(CancelCause::User, true);
        assert!(outcome.abort.is_some() && outcome.rejected.is_empty());
        queue.end_turn();
        assert!(queue.has_steering());
    }

    #[test]
    fn an_idle_cancel_of_nothing_is_nothing() {
        let mut queue = Queue::new(1);
        assert!(!queue.cancel(CancelCause::User, false).acted);
        queue.prompt(message("quiet"), false, None).expect("open");
        assert!(!queue.cancel(CancelCause::User, true).acted);
        assert!(queue.cancel(CancelCause::User, false).acted);
    }

    #[test]
    fn a_quiet_prompt_starts_nothing_but_runs_first() {
        let mut queue = Queue::new(1);
        assert!(!queue.prompt(message("quiet"), false, None).expect("open").wake);
        assert!(queue.claim(|n| n).is_none());
        assert!(queue.end_activity());
        assert!(queue.prompt(message("loud"), true, None).expect("open").wake);
        assert_eq!(queue.claim(|n| n).expect("claimed").message.id.as_str(), "quiet");
    }

    #[test]
    fn closing_for_settlement_needs_an_idle_agent_and_refuses_for_good() {
        let mut queue = in_turn();
        assert!(queue.close_if_idle().is_none());
        queue.end_turn();
        assert!(queue.close_if_idle().is_none(), "the flush window is not idle");
        queue.settle_turn();
        assert_eq!(queue.rest(), Some(true));
        assert!(queue.end_activity());
        assert!(queue.close_if_idle().is_some());
        assert_eq!(queue.steer(message("s"), "rs"), Err("rs"));
        assert_eq!(queue.inject(&message("c")), Injected::Refused);
        assert!(queue.prompt(message("p"), true, None).is_err());
    }

    #[test]
    fn work_that_arrives_while_resting_keeps_the_activity() {
        let mut queue = in_turn();
        queue.end_turn();
        queue.settle_turn();
        assert_eq!(queue.rest(), Some(true));
        assert!(!queue.prompt(message("q"), true, None).expect("open").wake);
        assert!(!queue.end_activity());
        assert!(queue.claim(|n| n).expect("claimed").first, "idle was announced in between");
    }

    #[test]
    fn a_blocked_prompt_releases_lone_contexts_but_no_steering() {
        let mut queue = Queue::new(1);
        queue.prompt(message("p"), true, None).expect("open");
        queue.claim(|n| n).expect("claimed");
        queue.inject(&message("c"));
        assert_eq!(ids(&queue.refuse_admission().1), ["c"]);
        queue.prompt(message("p2"), true, None).expect("open");
        queue.claim(|n| n).expect("claimed");
        queue.inject(&message("c2"));
        queue.steer(message("s"), "rs").expect("open");
        assert!(queue.refuse_admission().1.is_empty());
        assert!(queue.has_steering());
    }

    #[test]
    fn concluding_rejects_steering_and_keeps_contexts() {
        let mut queue = in_turn();
        queue.inject(&message("c"));
        queue.steer(message("s"), "rs").expect("open");
        let (rejected, discarded) = queue.reject_steering();
        assert_eq!(rejected, [(MessageId::new("s"), "rs")]);
        assert_eq!(ids(&discarded), ["s"]);
        assert_eq!(ids(&queue.take_contexts()), ["c"]);
    }

    #[test]
    fn a_reservation_holds_prompts_back_and_a_stale_release_is_inert() {
        let mut queue = Queue::new(1);
        let held = queue.reserve().expect("free");
        assert_eq!(queue.reserve(), None);
        assert!(!queue.prompt(message("p"), true, None).expect("open").wake);
        assert!(!queue.is_settled());
        assert_eq!(queue.release(held), (true, true));
        assert_eq!(queue.release(held), (false, false));
        assert_eq!(queue.reserve(), None, "an activity is scheduled");
    }

    #[test]
    fn a_cancellation_wins_over_a_retry() {
        let mut queue = in_turn();
        queue.request_retry();
        queue.end_turn();
        assert!(queue.cancel(CancelCause::User, false).acted);
        queue.settle_turn();
        assert_eq!(queue.claim_retry(|n| n), None);
    }
}
