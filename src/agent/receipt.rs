//! A steering receipt: the view of one message's way into a request (contract P11).

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll};

use super::AgentInner;
use super::inbox::Ticket;
use crate::channel::{Receiver, Sender};
use crate::ids::MessageId;

/// What became of a message with a receipt. Settled exactly once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReceiptOutcome {
    /// It is in the log before that step's `step/start`, and in its request snapshot.
    Admitted {
        /// The turn.
        turn: u64,
        /// The step.
        step: u64,
    },
    /// It is in no log and in no request, and will not be.
    Rejected,
}

/// The settling half, held by the queues.
pub(super) type ReceiptSender = Sender<ReceiptOutcome>;

/// The future of a message's admission; it never fails. Dropping it withdraws the message if it has
/// not been drained into the log (contract P4); [`Receipt::detach`] leaves it alone.
#[must_use = "dropping the receipt withdraws the message; say `detach` if that is not meant"]
pub struct Receipt {
    message: MessageId,
    agent: Weak<AgentInner>,
    ticket: Option<Ticket>,
    receiver: Receiver<ReceiptOutcome>,
}

impl std::fmt::Debug for Receipt {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Receipt({})", self.message)
    }
}

impl Receipt {
    pub(super) fn new(
        message: MessageId,
        agent: &Arc<AgentInner>,
        ticket: Option<Ticket>,
        receiver: Receiver<ReceiptOutcome>,
    ) -> Self {
        Self { message, agent: Arc::downgrade(agent), ticket, receiver }
    }

    /// The message it is about.
    pub fn message(&self) -> &MessageId {
        &self.message
    }

    /// The outcome, if it is settled.
    pub fn try_outcome(&mut self) -> Option<ReceiptOutcome> {
        let outcome = self.receiver.try_recv();
        if outcome.is_some() {
            self.ticket = None;
        }
        outcome
    }

    /// Withdraws the message if it has not been drained; the receipt is then rejected. After the
    /// drain nothing changes and the answer is false: await the outcome.
    pub fn withdraw(&mut self) -> bool {
        let (Some(ticket), Some(agent)) = (self.ticket, self.agent.upgrade()) else { return false };
        let withdrawn = super::Agent::of(agent).withdraw(ticket);
        if withdrawn {
            self.ticket = None;
        }
        withdrawn
    }

    /// Lets go of the receipt; the message goes its way.
    pub fn detach(mut self) {
        self.ticket = None;
    }
}

impl Future for Receipt {
    type Output = ReceiptOutcome;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<ReceiptOutcome> {
        let this = &mut *self;
        Pin::new(&mut this.receiver).poll(cx).map(|outcome| {
            this.ticket = None;
            // The queues went away with the agent: nothing drains any more.
            outcome.unwrap_or(ReceiptOutcome::Rejected)
        })
    }
}

impl Drop for Receipt {
    fn drop(&mut self) {
        self.withdraw();
    }
}
