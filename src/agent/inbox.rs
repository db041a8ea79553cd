//! The words of [`super::steering`]: what the queues hold and what they answer.

use std::sync::Arc;

use crate::ids::MessageId;
use crate::message::{ContentBlock, Message};

/// Names one message in the queues, for its withdrawal. Never reused by one queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Ticket(pub u64);

/// Where a message was put.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Placement {
    /// It opens a turn of its own.
    Queued,
    /// It joins the open turn at its next step.
    Steering,
}

/// How far the agent's activity is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// No activity.
    Idle,
    /// An activity was scheduled and has claimed nothing yet.
    Woken,
    /// The activity is between two admissions.
    Between,
    /// A prompt is claimed and goes through its admission.
    Admitting,
    /// A turn is open, or opens with its first step.
    Turn,
    /// The turn has ended and is being flushed.
    Settling,
}

/// A prompt that opens a turn.
#[derive(Debug)]
pub struct Prompt<R> {
    /// Its name in the queue.
    pub ticket: Ticket,
    /// The message.
    pub message: Arc<Message>,
    /// Whether it starts an activity by itself.
    pub wake: bool,
    /// Whether it is a context that woke an idle agent, rather than somebody's message.
    pub injection: bool,
    /// Settled when the step of its turn opens.
    pub receipt: Option<R>,
}

/// Something that enters the log at a step boundary.
#[derive(Debug)]
pub struct Staged<R> {
    /// Its name in the queue.
    pub ticket: Ticket,
    /// The message.
    pub message: Arc<Message>,
    /// Steering, or injected context.
    pub steering: bool,
    /// Settled when its step opens.
    pub receipt: Option<R>,
    /// Whether an earlier admission left it behind: then it stands before the prompt.
    pub inherited: bool,
}

/// What a step drains, in log order: inherited, then the prompt and its contexts, then the rest.
#[derive(Debug)]
pub struct Batch<R> {
    /// Left behind by earlier admissions.
    pub inherited: Vec<Staged<R>>,
    /// The prompt, if its turn opens with this batch.
    pub prompt: Option<Prompt<R>>,
    /// Contexts that the prompt's admission added.
    pub contexts: Vec<Arc<Message>>,
    /// Accepted since.
    pub rest: Vec<Staged<R>>,
}

impl<R> Batch<R> {
    /// The receipts of the batch with their messages, in log order.
    pub fn into_receipts(self) -> Vec<(MessageId, R)> {
        let staged = |item: Staged<R>| receipt_of(item.message.id.clone(), item.receipt);
        let mut receipts: Vec<_> = self.inherited.into_iter().filter_map(staged).collect();
        receipts.extend(self.prompt.and_then(|p| receipt_of(p.message.id.clone(), p.receipt)));
        receipts.extend(self.rest.into_iter().filter_map(staged));
        receipts
    }
}

pub(super) fn receipt_of<R>(id: MessageId, receipt: Option<R>) -> Option<(MessageId, R)> {
    receipt.map(|receipt| (id, receipt))
}

/// Where an accepted message went.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Accepted {
    /// Its name in the queue.
    pub ticket: Ticket,
    /// The list it is in.
    pub placement: Placement,
    /// Whether the caller must start an activity after unlocking.
    pub wake: bool,
}

/// What to do with an injected context.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Injected {
    /// It is staged for the next step boundary.
    Staged,
    /// It is to be appended in this section.
    Append,
    /// The queues are closed.
    Refused,
}

/// The prompt that an activity claimed.
#[derive(Debug, Clone)]
pub struct Claim {
    /// The message.
    pub message: Arc<Message>,
    /// Where it was queued.
    pub ticket: Ticket,
    /// Whether it is a context that woke the agent.
    pub injection: bool,
    /// Whether the agent was idle until now.
    pub first: bool,
    /// Counts the agent's admissions.
    pub admission: u64,
}

/// What a cancellation did.
#[derive(Debug)]
pub struct Cancelled<R, S> {
    /// To fire after unlocking: the admission or turn was running uncancelled.
    pub abort: Option<S>,
    /// Receipts to reject.
    pub rejected: Vec<(MessageId, R)>,
    /// Inbox items that were dropped: prompts and steering, not contexts.
    pub discarded: Vec<Arc<Message>>,
    /// Whether anything was changed at all.
    pub acted: bool,
}

impl<R, S> Cancelled<R, S> {
    /// Nothing was running and nothing was queued.
    pub fn nothing() -> Self {
        Self { abort: None, rejected: Vec::new(), discarded: Vec::new(), acted: false }
    }
}

/// A change to a queued prompt (fact-sheet 1.3, `updateInbox`).
#[derive(Debug, Clone)]
pub enum InboxEdit {
    /// Drop it; its receipt is rejected.
    Remove,
    /// Replace its content; id and source stay.
    Replace(Vec<ContentBlock>),
}
