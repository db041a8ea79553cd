//! The two forms whose run the tool itself holds: the foreground call and the one-shot Task.

use std::pin::pin;
use std::sync::Arc;

use serde_json::json;

use super::{Arguments, DelegateError, DelegateServices, DelegateTool};
use crate::agent::Agent;
use crate::agent::tools::ToolOutput;
use crate::cancel::CancelSignal;
use crate::control::{AgentOwner, SUBAGENT_KIND, settle_run, subagent_detail};
use crate::facts::CancelScope;
use crate::ids::RunId;
use crate::message::ContentBlock;
use crate::points::Point;
use crate::provider::{StartRequest, SubagentError, SubagentResult};
use crate::runtime::spawn;
use crate::task::{TaskCancel, TaskHooks, TaskStart};
use crate::vocabulary::{CancelCause, StopReason, TaskOutcome};

/// What a one-shot Task's kill is called, unless it says more.
const KILL_WORDS: &str = "background subagent task killed";

/// Cancels the foreground run of a call that is dropped before it is over (contract P17).
struct Abandoned(Option<CancelSignal>);

impl Drop for Abandoned {
    fn drop(&mut self) {
        if let Some(signal) = &self.0 {
            signal.cancel(CancelCause::CallerGone);
        }
    }
}

impl DelegateTool {
    /// Runs a child to its end. The work is a task of its own with a signal of its own, to which
    /// the caller's is passed on, so that a dropped call, too, ends in a disposed run.
    pub(super) async fn foreground(
        &self,
        caller: &Agent,
        arguments: Arguments,
        signal: &CancelSignal,
    ) -> Result<ToolOutput, DelegateError> {
        let runtime = &self.services.runtime;
        let own = self.call_signal(CancelCause::Kill.reason());
        let mut abandoned = Abandoned(Some(own.clone()));
        let request = self.request(caller, own.clone(), arguments.prompt);
        let (services, provider) = (self.services.clone(), self.config.provider.clone());
        let work = async move { drive(&services, &provider, request).await };
        let mut view = pin!(spawn(runtime, format!("foreground run of {}", caller.id()), work));
        let outcome = tokio::select! {
            biased;
            outcome = view.as_mut() => outcome,
            _cause = signal.cancelled() => {
                own.cancel(CancelCause::Parent);
                view.await
            }
        };
        abandoned.0 = None;
        let (run, result) = outcome??;
        let text = result.text();
        let value = json!({ "kind": "foreground", "runId": run, "output": result.output });
        let content = vec![ContentBlock::text(text)];
        Ok(ToolOutput { content, value: Some(value), ..ToolOutput::default() })
    }

    fn call_signal(&self, kill_words: &'static str) -> CancelSignal {
        let scope = CancelScope::Call { call: self.config.tool_name.clone() };
        CancelSignal::killed_as(Arc::clone(&self.services.runtime), scope, kill_words)
    }

    /// A Task around one run of a provider without continuation.
    pub(super) fn one_shot(
        &self,
        caller: &Agent,
        arguments: Arguments,
    ) -> Result<ToolOutput, DelegateError> {
        let tasks = self.services.tasks.as_ref().ok_or(DelegateError::NoTasks)?;
        let signal = self.call_signal(KILL_WORDS);
        let request = self.request(caller, signal.clone(), arguments.prompt);
        let done = settle_one_shot(self.services.clone(), self.config.provider.clone(), request);
        let start = TaskStart::new(SUBAGENT_KIND, arguments.description)
            .owned_by(AgentOwner::shared(caller));
        let task = tasks.start_prepared(start, TaskHooks::new(TaskCancel::Signal(signal), done))?;
        let value = json!({ "kind": "background", "taskId": task });
        let text = format!("started background subagent task {task}");
        Ok(ToolOutput { value: Some(value), ..ToolOutput::text(text) })
    }
}

/// The whole life of a foreground run: it is disposed, once, before there is an answer.
async fn drive(
    services: &DelegateServices,
    provider: &str,
    request: StartRequest,
) -> Result<(RunId, SubagentResult), DelegateError> {
    let runtime = &services.runtime;
    runtime.point(Point::ForegroundStart).await;
    if request.signal.is_cancelled() {
        return Err(DelegateError::Aborted);
    }

    runtime.point(Point::ProviderStart).await;
    let run = services.subagents.start(provider, request).await?;

    runtime.point(Point::ForegroundResult).await;
    let result = judged(run.result().await);

    runtime.point(Point::RunDispose).await;
    match (run.dispose().await, result) {
        (Ok(()), Ok(result)) => Ok((run.id(), result)),
        (Ok(()), Err(error)) => Err(error),
        (Err(cause), result) => {
            Err(DelegateError::Undisposed { run: result.err().map(Box::new), cause })
        }
    }
}

/// Only a completed run is a success.
fn judged(result: Result<SubagentResult, SubagentError>) -> Result<SubagentResult, DelegateError> {
    let result = result?;
    match result.stop {
        StopReason::Completed => Ok(result),
        stop => Err(DelegateError::Stopped { stop, detail: result.detail }),
    }
}

/// The whole life of a one-shot Task's run (fact-sheet 7.2).
async fn settle_one_shot(
    services: DelegateServices,
    provider: String,
    request: StartRequest,
) -> TaskOutcome {
    let DelegateServices { runtime, subagents, .. } = services;
    let signal = request.signal.clone();
    runtime.point(Point::ForegroundStart).await;
    if signal.is_cancelled() {
        return TaskOutcome::killed();
    }

    runtime.point(Point::ProviderStart).await;
    match subagents.start(&provider, request).await {
        Ok(run) => settle_run(&runtime, &signal, &run).await,
        Err(error) => {
            runtime.point(Point::ResultPublish).await;
            let cancelled = signal.lock().publish();
            runtime.point(Point::TaskSettle).await;
            match cancelled {
                Some(_) => TaskOutcome::killed(),
                None => TaskOutcome::failed(Some(error.code()), subagent_detail(&error)),
            }
        }
    }
}
