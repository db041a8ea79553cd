//! The tool calls of one response: groups that may run together, results in the model's order
//! (fact-sheet 3.4).

use std::sync::Arc;

use super::hooks::ToolCall;
use super::step::{Flow, StepEnd};
use super::tools::{CallSite, ToolMode, ToolOutput};
use super::turn::Turn;
use crate::error::ErrorCode;
use crate::facts::Fact;
use crate::message::{ContentBlock, Message};
use crate::points::Point;
use crate::runtime::{Spawned, contain, fresh_message_id, spawn};
use crate::session::{AppendError, Draft, tool_result_message};

/// How many calls of one response may run at the same time.
const PARALLEL_CALLS_MAX: usize = 8;

/// What became of a response's calls.
#[derive(Debug, Default)]
pub(super) struct Calls {
    /// Whether there were any.
    pub(super) ran: bool,
    /// Whether one ended the turn.
    pub(super) concluded: bool,
    /// Contexts of results that were finalised after a cancellation: still logged (scenario 267).
    pub(super) late_contexts: Vec<Arc<Message>>,
}

/// A dispatched call: its `tool/call` is in the log.
struct Dispatched {
    call: ToolCall,
    seq: u64,
    body: Body,
}

enum Body {
    /// Alone: run by the loop itself.
    Here,
    /// Beside others: in a task of its own.
    Beside(Spawned<ToolOutput>),
}

impl Turn {
    pub(super) async fn run_calls(&mut self, message: &Message, calls: &mut Calls) -> Flow<()> {
        calls.ran = true;
        let asked: Vec<ToolCall> = message.content.iter().filter_map(call_of).collect();
        let mut rest = &asked[..];
        while !rest.is_empty() {
            let parallel =
                |call: &&ToolCall| self.agent.tools().mode(&call.name) == ToolMode::Parallel;
            let together = rest.iter().take_while(parallel).take(PARALLEL_CALLS_MAX).count().max(1);
            let (group, later) = rest.split_at(together);
            self.run_group(group, calls).await?;
            rest = later;
        }
        Ok(())
    }

    async fn run_group(&mut self, group: &[ToolCall], calls: &mut Calls) -> Flow<()> {
        let mut running = Vec::new();
        for call in group {
            self.runtime.point(Point::ToolDispatch).await;
            let Some(seq) = self.dispatch(call)? else { continue };
            let body = if group.len() == 1 {
                Body::Here
            } else {
                let turn = self.clone();
                let call = call.clone();
                let name = format!("tool {} of {}", call.name, self.agent.instance());
                Body::Beside(spawn(&self.runtime, name, async move { turn.run_body(&call).await }))
            };
            running.push(Dispatched { call: call.clone(), seq, body });
        }
        for Dispatched { call, seq, body } in running {
            let output = match body {
                Body::Here => self.run_body(&call).await,
                Body::Beside(view) => view
                    .await
                    .unwrap_or_else(|panicked| failed(ErrorCode::Panicked, panicked.to_string())),
            };
            self.runtime.point(Point::ToolResult).await;
            self.commit(&call, seq, output, calls)?;
        }
        Ok(())
    }

    /// One section: records the call. A call of a cancelled turn gets its result at once, so that
    /// the transcript stays valid for the model's service; `None` says so.
    fn dispatch(&self, call: &ToolCall) -> Flow<Option<u64>> {
        let session = &self.agent.inner.session;
        let id = fresh_message_id(&*self.runtime);
        let (outcome, interruption) = self.agent.inbox().finalise(|_, cause| {
            let mut log = session.lock();
            let seq = log.len();
            let (turn, step) = (self.number, self.step);
            let mut drafts =
                vec![Draft::tool_call(turn, step, &*call.id, &*call.name, &*call.arguments)];
            if cause.is_some() {
                let output = aborted();
                let message = tool_result_message(id, &call.id, output.content, true);
                drafts.push(Draft::tool_result(turn, step, message, output.error, Some(seq)));
            }
            log.append(drafts)?;
            Ok::<_, AppendError>(cause.is_none().then_some(seq))
        });
        if let Some(interruption) = interruption {
            self.agent.after_interruption(interruption);
        }
        let seq = outcome.map_err(StepEnd::failed)?;
        self.agent.appended();
        Ok(seq)
    }

    /// One call, with the tool's own last word on its result.
    async fn run_body(&self, call: &ToolCall) -> ToolOutput {
        let output = self.run_hooked(call).await;
        self.agent.tools().shape(&self.agent, &call.name, &call.arguments, output).await
    }

    /// The hooks before, the body, the hooks after.
    async fn run_hooked(&self, call: &ToolCall) -> ToolOutput {
        if let Some(refusal) = self.agent.tools().guard() {
            return refusal;
        }
        let hooks = self.agent.hooks();
        let context = self.context();
        for hook in &hooks {
            self.runtime.point(Point::ToolBody).await;
            let asked = async { hook.pre_tool(&context, call).await };
            match contain(&self.runtime, "pre-tool hook", asked).await {
                Ok(Ok(None)) => {}
                Ok(Ok(Some(output))) => return output,
                Ok(Err(error)) => return failed(ErrorCode::ToolNotStarted, error.to_string()),
                Err(panicked) => return failed(ErrorCode::Panicked, panicked.to_string()),
            }
        }
        let prepared = match self.agent.tools().prepare(&call.name, &call.arguments) {
            Ok(prepared) => prepared,
            Err(output) => return *output,
        };
        self.runtime.point(Point::ToolBody).await;
        let started = self.agent.inbox().uncancelled(|_| {
            let (agent, tool) = (self.agent.instance(), call.name.clone());
            self.runtime.fact(Fact::ToolStarted { agent, call: call.id.clone(), tool });
        });
        if let Err(interruption) = started {
            self.agent.after_interruption(interruption);
            return aborted();
        }
        let site = CallSite {
            call_id: call.id.clone(),
            agent: self.agent.clone(),
            signal: self.signal.clone(),
            turn: self.number,
            step: self.step,
        };
        let body = prepared.run(&self.runtime, site).await;
        let mut replaced = None;
        for hook in &hooks {
            self.runtime.point(Point::ToolBody).await;
            let output = replaced.as_ref().unwrap_or(&body);
            let asked = async { hook.post_tool(&context, call, output).await };
            match contain(&self.runtime, "post-tool hook", asked).await {
                Ok(Ok(None)) => {}
                Ok(Ok(Some(output))) => replaced = Some(output),
                Ok(Err(error)) => {
                    replaced = Some(failed(ErrorCode::ToolOutcomeUnknown, error.to_string()));
                }
                Err(panicked) => {
                    replaced = Some(failed(ErrorCode::Panicked, panicked.to_string()));
                }
            }
        }
        prepared.finish(body, replaced)
    }

    /// One section: the result, cancelled or not; its contexts are held for the end of the batch.
    fn commit(&self, call: &ToolCall, seq: u64, output: ToolOutput, calls: &mut Calls) -> Flow<()> {
        let inner = &self.agent.inner;
        let ToolOutput { content, error, concludes, contexts, .. } = output;
        let is_error = error.is_some();
        let contexts: Vec<_> = contexts.into_iter().map(Arc::new).collect();
        let message =
            tool_result_message(fresh_message_id(&*self.runtime), &call.id, content, is_error);
        let draft = Draft::tool_result(self.number, self.step, message, error, Some(seq));
        let (outcome, interruption) = self.agent.inbox().finalise(|queue, _| {
            inner.session.lock().append(vec![draft])?;
            let (agent, call) = (inner.instance, call.id.clone());
            self.runtime.fact(Fact::ToolFinished { agent, call, error: is_error });
            Ok::<_, AppendError>(queue.stage_result_contexts(&contexts))
        });
        if let Some(interruption) = interruption {
            self.agent.after_interruption(interruption);
        }
        let staged = outcome.map_err(StepEnd::failed)?;
        if !staged {
            calls.late_contexts.extend(contexts);
        }
        calls.concluded |= concludes && !is_error;
        self.agent.appended();
        Ok(())
    }
}

fn call_of(block: &ContentBlock) -> Option<ToolCall> {
    match block {
        ContentBlock::ToolCall { id, name, arguments } => {
            Some(ToolCall { id: id.clone(), name: name.clone(), arguments: arguments.clone() })
        }
        _ => None,
    }
}

fn failed(code: ErrorCode, text: String) -> ToolOutput {
    ToolOutput::failed("ToolError", code.word(), text)
}

fn aborted() -> ToolOutput {
    ToolOutput::failed(
        "AbortedBeforeDispatchError",
        ErrorCode::AbortedBeforeDispatch.word(),
        "The turn was cancelled before this call was started; it had no effect.",
    )
}
