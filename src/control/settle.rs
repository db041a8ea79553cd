//! From a run to its Task's outcome (fact-sheet 7.2): result, publication, disposal, in that order.
//! Activations of continuable children and one-shot background runs settle the same way.

use std::sync::Arc;

use super::error::subagent_detail;
use crate::cancel::CancelSignal;
use crate::error::ErrorCode;
use crate::points::Point;
use crate::provider::{Run, SubagentError, SubagentResult, publish_result};
use crate::runtime::Runtime;
use crate::vocabulary::{StopReason, TaskOutcome};

/// Awaits the result of `run`, publishes it under the cancel slot of `signal`, and disposes the run
/// whatever the result is. Only then is there an outcome (contract I2).
pub async fn settle_run(
    runtime: &Arc<dyn Runtime>,
    signal: &CancelSignal,
    run: &Run,
) -> TaskOutcome {
    runtime.point(Point::RunResult).await;
    let result = run.result().await;

    runtime.point(Point::ResultPublish).await;
    let outcome = outcome(runtime, signal, run, result);

    runtime.point(Point::RunDispose).await;
    let disposed = run.dispose().await;

    runtime.point(Point::TaskSettle).await;
    match disposed {
        Ok(()) => outcome,
        Err(error) => undisposed(outcome, &error.to_string()),
    }
}

/// A cancellation accepted before the publication owns the outcome (contract P3). Providers that
/// publish themselves were first; for the others this is the publication.
fn outcome(
    runtime: &Arc<dyn Runtime>,
    signal: &CancelSignal,
    run: &Run,
    result: Result<SubagentResult, SubagentError>,
) -> TaskOutcome {
    let (stop, code) = match &result {
        Ok(result) => (result.stop.clone(), None),
        Err(error) => (StopReason::Error, Some(error.code())),
    };
    let agent = run.local_agent();
    let cancelled = publish_result(runtime, signal, run.child(), agent, &stop, code);
    if cancelled.is_some() {
        return TaskOutcome::killed();
    }
    match result {
        Ok(result) => settled(result),
        Err(error) => TaskOutcome::failed(Some(error.code()), subagent_detail(&error)),
    }
}

/// The outcome of a result that no cancellation preceded.
fn settled(result: SubagentResult) -> TaskOutcome {
    match &result.stop {
        StopReason::Completed => TaskOutcome::completed(result.text()),
        StopReason::Aborted => TaskOutcome::killed(),
        stop => {
            let detail = match result.detail {
                Some(detail) => format!("{}: {detail}", stop.word()),
                None => stop.word().to_owned(),
            };
            TaskOutcome::failed(None, detail)
        }
    }
}

/// A failed disposal is never hidden, and hides nothing (contract I2).
fn undisposed(outcome: TaskOutcome, error: &str) -> TaskOutcome {
    let failed = format!("dispose failed: Error: {error}");
    let detail = match outcome.detail {
        Some(detail) => format!("{detail}; {failed}"),
        None => failed,
    };
    TaskOutcome::failed(Some(ErrorCode::DisposeFailed), detail)
}
