//! What an embedder may add to an agent's life: hooks that decide, and events that tell.
//!
//! Hooks are foreign code: they run under no lock, and their panic counts as their failure
//! (contract P18).

use std::future::ready;
use std::sync::Arc;

use super::Agent;
use super::inbox::Placement;
use super::tools::ToolOutput;
use crate::cancel::CancelSignal;
use crate::error::ErrorCode;
use crate::ids::MessageId;
use crate::message::{ContentBlock, Message};
use crate::runtime::BoxFuture;
use crate::vocabulary::{CancelCause, TurnEndKind};

/// A hook failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct HookError(pub String);

/// A hook's answer, later.
pub type HookFuture<'a, T> = BoxFuture<'a, Result<T, HookError>>;

/// Where a hook runs.
#[derive(Debug, Clone)]
pub struct HookContext {
    /// The agent.
    pub agent: Agent,
    /// The turn; the next one's number while a prompt is admitted.
    pub turn: u64,
    /// The step; 0 before the first.
    pub step: u64,
    /// Fires when the admission or turn is cancelled. A hook that waits must watch it: hooks are
    /// waited for.
    pub signal: CancelSignal,
}

/// What becomes of a prompt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PromptDecision {
    /// It opens its turn.
    Allow {
        /// Replaces its content; the id and the source stay.
        content: Option<Vec<ContentBlock>>,
        /// Contexts that follow it, each its own `user/message`.
        contexts: Vec<Message>,
    },
    /// It opens no turn.
    Block {
        /// Why.
        reason: String,
    },
}

impl PromptDecision {
    /// Allowed as it is.
    pub fn allow() -> Self {
        Self::Allow { content: None, contexts: Vec::new() }
    }
}

/// A tool call that hooks are asked about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ToolCall {
    /// The call's id.
    pub id: String,
    /// The tool's name.
    pub name: String,
    /// The raw argument text from the model.
    pub arguments: String,
}

/// Whether a failed request is tried again in a turn of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Recovery {
    /// No.
    None,
    /// A turn with the trigger `retry` follows, after the flush.
    Retry,
}

/// Hooks of an agent; every default lets things pass. Hooks run in the order in which they were
/// given, one after the other.
pub trait AgentHooks: Send + Sync {
    /// A prompt was claimed. A failure counts as a block (fact-sheet 3.3).
    fn prompt_submit<'a>(
        &'a self,
        context: &'a HookContext,
        message: &'a Arc<Message>,
    ) -> HookFuture<'a, PromptDecision> {
        let _unused = (context, message);
        Box::pin(ready(Ok(PromptDecision::allow())))
    }

    /// A step is about to open. A failure ends the turn with an error (fact-sheet 3.4).
    fn pre_step<'a>(&'a self, context: &'a HookContext) -> HookFuture<'a, ()> {
        let _unused = context;
        Box::pin(ready(Ok(())))
    }

    /// The turn is about to end. Steering staged by now continues it; a failure ends it with an
    /// error.
    fn turn_stopping<'a>(&'a self, context: &'a HookContext) -> HookFuture<'a, ()> {
        let _unused = context;
        Box::pin(ready(Ok(())))
    }

    /// A tool's body is about to run; `Some` is the result instead.
    fn pre_tool<'a>(
        &'a self,
        context: &'a HookContext,
        call: &'a ToolCall,
    ) -> HookFuture<'a, Option<ToolOutput>> {
        let _unused = (context, call);
        Box::pin(ready(Ok(None)))
    }

    /// A tool's body ended; `Some` replaces its result.
    fn post_tool<'a>(
        &'a self,
        context: &'a HookContext,
        call: &'a ToolCall,
        output: &'a ToolOutput,
    ) -> HookFuture<'a, Option<ToolOutput>> {
        let _unused = (context, call, output);
        Box::pin(ready(Ok(None)))
    }

    /// A request to the model failed. A failure of the hook means no retry (scenario 270).
    fn recover<'a>(&'a self, context: &'a HookContext, error: &'a str) -> HookFuture<'a, Recovery> {
        let _unused = (context, error);
        Box::pin(ready(Ok(Recovery::None)))
    }

    /// Something happened.
    fn on_event(&self, agent: &Agent, event: &AgentEvent) {
        let _unused = (agent, event);
    }
}

/// An agent's status (fact-sheet 3.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AgentStatus {
    /// Nothing runs.
    Idle,
    /// From claiming a prompt until no waking work remains and the last turn is flushed.
    Running,
}

/// What an agent tells its hooks, under no lock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AgentEvent {
    /// It was published.
    SessionStart {
        /// Whether it was loaded from the store.
        resumed: bool,
    },
    /// Its status changed.
    Status(AgentStatus),
    /// An inbox item was accepted; contexts are none.
    Enqueued {
        /// The item.
        message: Arc<Message>,
        /// Where it is.
        placement: Placement,
    },
    /// A prompt was claimed.
    Dequeued {
        /// Its id.
        message: MessageId,
    },
    /// Inbox items were dropped.
    Discarded {
        /// The items, prompts first.
        messages: Vec<Arc<Message>>,
    },
    /// A prompt opened no turn: a hook blocked it, failed, or it was cancelled or withdrawn.
    PromptBlocked {
        /// Its id.
        message: MessageId,
        /// Why.
        reason: String,
    },
    /// A cancellation that will act; the lists are not cleared yet.
    CancelRequested {
        /// Its cause.
        cause: CancelCause,
    },
    /// A turn that opened is over and flushed, and no retry follows.
    Settled {
        /// The turn.
        turn: u64,
        /// How it ended.
        reason: TurnEndKind,
    },
    /// Something failed; the agent goes on.
    Error {
        /// The turn.
        turn: u64,
        /// The step; 0 before the first.
        step: u64,
        /// The failure's code.
        code: ErrorCode,
        /// The failure's text.
        text: String,
    },
    /// It is disposed and unregistered.
    Disposed,
}
