//! Every named place where activations interleave. Under tokio a point is free; in the simulator it
//! is where schedules branch and where faults and crashes strike (architecture §4 rule 4).

use std::fmt;

use serde::{Deserialize, Serialize};

macro_rules! points {
    ($($(#[$meta:meta])+ $name:ident,)+) => {
        /// A named interleaving point. Each variant names the await that follows it.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        pub enum Point {
            $($(#[$meta])+ $name,)+
        }

        impl Point {
            /// Every point, in reading order.
            pub const ALL: &'static [Self] = &[$(Self::$name,)+];

            /// The point's name.
            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$name => stringify!($name),)+
                }
            }
        }
    };
}

points! {
    /// The activation's driver is about to call the provider's start.
    ProviderStart,
    /// A cold resume is about to read the child's header.
    ResumeHeader,
    /// A cold resume is about to be authorised by the header it read.
    ResumeAuthorise,
    /// A cold resume is about to load the child's log.
    ResumeLoad,
    /// A cold resume is about to look at its signal for the last time before the provider's.
    ProviderResume,
    /// A resumed child's Task ids are about to be kept from repeating.
    ResumeCounters,
    /// The provider is about to be called.
    ProviderCall,
    /// A child is about to be created or resumed, unless it was cancelled.
    ChildCreate,
    /// A published child is about to be handed over, unless it was cancelled.
    HandOver,
    /// A run is about to note where its own part of the log begins.
    RunBoundary,
    /// A run is about to deliver its prompt.
    RunBegin,
    /// The run was handed over; its association is about to be filled.
    AssociationFill,
    /// The driver is about to wait for the run's result.
    RunResult,
    /// The driver is about to dispose the run.
    RunDispose,
    /// The driver is about to settle its Task.
    TaskSettle,
    /// Outcome recorded, listeners are about to be told.
    TaskListeners,
    /// Listeners told, the Task's one notice is about to be claimed.
    NoticeClaim,
    /// A claimed notice is about to be injected into its owner.
    NoticeInject,
    /// Listeners told, the association is about to be dropped.
    AssociationDrop,
    /// Waiters are about to be released.
    TaskRelease,
    /// A routed message is about to be steered into its run.
    Steer,
    /// A sender is about to wait for its steering receipt.
    SteerAdmission,
    /// A waiter is about to wait for a Task.
    TaskWait,
    /// A producer's fallible cancel hook is about to run.
    TaskCancelHook,
    /// A kill or a closing is about to mark a Task whose hook accepted.
    TaskStop,
    /// A stream Task was read; its terminal state is about to be marked as told.
    TaskRead,
    /// A closing service or owner is about to cancel one of its Tasks.
    TaskCancel,
    /// A closing service or owner is about to remove its settled Tasks.
    TasksRemove,
    /// A closing service or owner is about to wait for its Tasks.
    TasksDrain,
    /// An agent's setup is about to run.
    AgentSetup,
    /// An agent is about to be published.
    AgentPublish,
    /// The loop is about to claim a prompt.
    TurnClaim,
    /// The prompt-submit hook is about to run.
    PromptSubmit,
    /// A turn is about to be opened.
    TurnOpen,
    /// The pre-step hook is about to run.
    PreStep,
    /// The prompt is about to be assembled.
    Assemble,
    /// The outbox is about to be drained and the step opened.
    StepOpen,
    /// The request is about to be sent to the model.
    ModelRequest,
    /// The next chunk of the stream is awaited.
    ModelChunk,
    /// A response ended or was given up; what it left behind is about to be waited for.
    ModelQuiesce,
    /// The assistant's message is about to be appended.
    AssistantAppend,
    /// A tool call is about to be recorded and dispatched.
    ToolDispatch,
    /// A tool's body is about to run.
    ToolBody,
    /// A tool's result is about to be appended.
    ToolResult,
    /// The step is about to be closed.
    StepClose,
    /// The turn-stopping hook is about to run.
    TurnStopping,
    /// The turn is about to be closed.
    TurnClose,
    /// The loop is about to flush after a turn.
    TurnFlush,
    /// The loop is about to go idle or claim the next prompt.
    LoopNext,
    /// Somebody is about to wait until the agent is idle.
    WhenIdle,
    /// A run is about to close its child for settlement.
    SettlementClose,
    /// A run is about to make its final flush.
    FinalFlush,
    /// A run is about to read its result from the log.
    ResultRead,
    /// A run is about to publish its result.
    ResultPublish,
    /// An agent is about to be disposed.
    AgentDispose,
    /// A disposing agent is about to wait for its loop.
    DisposeQuiesce,
    /// A disposing agent is about to run an effect of its scope.
    DisposeEffect,
    /// A disposing agent is about to dispose its children.
    DisposeChildren,
    /// A disposed agent is about to leave the registry.
    AgentUnregister,
    /// The store waits for its turn at the id's chain.
    StoreTurn,
    /// The store waits for its turn to take the lease, and is about to take it.
    StoreLease,
    /// The store is about to list a directory.
    StoreList,
    /// The store is about to read a file.
    StoreRead,
    /// The store is about to create a directory.
    StoreCreateDirectory,
    /// The store is about to write the temporary file of a new session.
    StoreWriteNew,
    /// The store is about to sync the temporary file of a new session.
    StoreSyncNew,
    /// The store is about to link a new session's file into place.
    StoreLink,
    /// The store is about to remove a temporary file.
    StoreRemove,
    /// The store is about to sync a directory.
    StoreSyncDirectory,
    /// The store is about to compare the file's length with its cursor.
    StoreLength,
    /// The store is about to append a batch.
    StoreAppend,
    /// The store is about to write bytes again that a failed sync may have lost.
    StoreOverwrite,
    /// The store is about to cut a file.
    StoreTruncate,
    /// The store is about to sync a file.
    StoreSync,
    /// A retired session is about to be forgotten.
    StoreRetire,
    /// The delegation tool is about to start a child in the background.
    BackgroundStart,
    /// The delegation tool is about to start a run that it holds itself.
    ForegroundStart,
    /// The delegation tool is about to wait for a foreground run.
    ForegroundResult,
}

impl fmt::Display for Point {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
