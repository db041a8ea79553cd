//! Sections (c), kill, and (e), settle, of contract P1. Section (d), publishing a result, is one
//! lock: [`CancelSignal::lock`](crate::cancel::CancelSignal::lock) and `publish`.
//!
//! Each function takes its locks in order, calls the cores, and returns what to do after unlock.

use crate::cancel::CancelDecision;
use crate::facts::FactSink;
use crate::ids::{SessionId, TaskId};
use crate::sync::Mutex;
use crate::task::record::{Settlement, TaskParts};
use crate::task::table::{TaskRefusal, TaskTable};
use crate::vocabulary::{CancelCause, KillAnswer, TaskOutcome};

/// How a producer takes a cancellation under the Task lock.
pub trait Authority {
    /// Accepts `cause` in the producer's cancel slot; `None` if it has none and is cancelled by
    /// a fallible hook instead, which must not run under a lock.
    fn accept(&self, cause: CancelCause) -> Option<CancelDecision>;
}

/// What a kill leaves to do after unlock.
pub enum Kill<T: TaskParts> {
    /// Answered.
    Answered {
        /// The answer.
        answer: KillAnswer,
        /// The signal to wake, with what its slot decided.
        wake: Option<(T::Cancel, CancelDecision)>,
        /// To be dropped.
        owner: Option<T::Owner>,
    },
    /// Nothing changed yet: run the hook, and if it succeeds call [`kill_hooked`].
    Hook(T::Cancel),
}

/// Section (c): accept the cancellation, mark the Task stopping and reported (contract P3).
pub fn kill<T>(
    table: &Mutex<TaskTable<T>>,
    id: &TaskId,
    caller: Option<&SessionId>,
    cause: CancelCause,
    facts: &impl FactSink,
) -> Result<Kill<T>, TaskRefusal>
where
    T: TaskParts<Cancel: Authority>,
{
    let mut table = table.lock();
    let record = table.reachable(id, caller)?;
    let mut wake = None;
    if let Some(cancel) = record.cancel().cloned() {
        match cancel.accept(cause) {
            None => return Ok(Kill::Hook(cancel)),
            Some(decision) => wake = Some((cancel, decision)),
        }
    }
    let (answer, owner) = record.kill(facts);
    Ok(Kill::Answered { answer, wake, owner })
}

/// Section (c) of a hook producer, after its hook accepted: a Task that settled meanwhile answers
/// as finished.
pub fn kill_hooked<T: TaskParts>(
    table: &Mutex<TaskTable<T>>,
    id: &TaskId,
    caller: Option<&SessionId>,
    facts: &impl FactSink,
) -> Result<(KillAnswer, Option<T::Owner>), TaskRefusal> {
    table.lock().kill(id, caller, facts)
}

/// What cancelling a Task for a closing owner or service leaves to do after unlock.
pub enum Teardown<T: TaskParts> {
    /// It is terminal, or gone.
    Nothing,
    /// Accepted: wake the signal.
    Wake(T::Cancel, CancelDecision),
    /// Nothing changed yet: run the hook, then mark the Task stopping, or force it to fail.
    Hook(T::Cancel),
}

/// Section (c) of a closing owner or service (contract P16): nobody asked for this Task's result,
/// so its report is left alone; a closing owner takes no notice anyway.
pub fn tear_down<T>(
    table: &Mutex<TaskTable<T>>,
    id: &TaskId,
    cause: CancelCause,
    facts: &impl FactSink,
) -> Teardown<T>
where
    T: TaskParts<Cancel: Authority>,
{
    let mut table = table.lock();
    let Some(record) = table.record_mut(id) else { return Teardown::Nothing };
    let Some(cancel) = record.cancel().cloned() else { return Teardown::Nothing };
    match cancel.accept(cause) {
        None => Teardown::Hook(cancel),
        Some(decision) => {
            record.stop(facts);
            Teardown::Wake(cancel, decision)
        }
    }
}

/// The hook of a Task that is being torn down accepted.
pub fn torn_down<T: TaskParts>(table: &Mutex<TaskTable<T>>, id: &TaskId, facts: &impl FactSink) {
    if let Some(record) = table.lock().record_mut(id) {
        record.stop(facts);
    }
}

/// Section (e): record the outcome, count the waiters present as told (contract P8).
pub fn settle<T: TaskParts>(
    table: &Mutex<TaskTable<T>>,
    id: &TaskId,
    outcome: TaskOutcome,
    now: u64,
    facts: &impl FactSink,
) -> Settlement<T> {
    table.lock().settle(id, outcome, now, facts)
}
