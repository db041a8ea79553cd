//! The tool calls of one response: groups that may run together, results in the model's order
//! (fact-sheet 3.4).

use std::sync::Arc;

use super::hooks::ToolCall;
use super::step::{Flow, StepEnd};
use super::tools::{CallSite, ToolMode, ToolOutput};
use super::turn::Turn;
use crate::error::ErrorCode;
use crate::facts::Fact;
use crate::ids::MessageId;
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
    /// Cancelled first; its turn in line has not come.
    Unrun,
    /// Alone: run by the loop itself.
    Here,
    /// Beside others: in a task of its own.
    Beside(Spawned<ToolOutput>),
}

/// What the section that recorded a call found.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Dispatch {
    /// Its body may run.
    Runs,
    /// The turn was cancelled; the call is answered.
    Answered,
    /// The turn was cancelled; the call is to be answered behind those that still run.
    Unrun,
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
        let mut broken = None;
        for call in group {
            self.runtime.point(Point::ToolDispatch).await;
            let (seq, dispatched) = match self.dispatch(call, running.is_empty()) {
                Ok(dispatched) => dispatched,
                Err(end) => {
                    broken = Some(end);
                    break;
                }
            };
            let body = match dispatched {
                Dispatch::Answered => continue,
                Dispatch::Unrun => Body::Unrun,
                Dispatch::Runs if group.len() == 1 => Body::Here,
                Dispatch::Runs => {
                    let (turn, call) = (self.clone(), call.clone());
                    let name = format!("tool {} of {}", call.name, self.agent.instance());
                    let body = async move { turn.run_body(&call).await };
                    Body::Beside(spawn(&self.runtime, name, body))
                }
            };
            running.push(Dispatched { call: call.clone(), seq, body });
        }
        // Whatever was started is waited for, also when something else broke.
        for Dispatched { call, seq, body } in running {
            let output = match body {
                Body::Unrun => aborted(),
                Body::Here => self.run_body(&call).await,
                Body::Beside(view) => view
                    .await
                    .unwrap_or_else(|panicked| failed(ErrorCode::Panicked, panicked.to_string())),
            };
            self.runtime.point(Point::ToolResult).await;
            if let Err(end) = self.commit(&call, seq, output, calls) {
                broken.get_or_insert(end);
            }
        }
        broken.map_or(Ok(()), Err)
    }

    /// One section: records the call. A call of a cancelled turn is answered unrun, so that the
    /// transcript stays valid for the model's service: at once if it is `first` in line.
    fn dispatch(&self, call: &ToolCall, first: bool) -> Flow<(u64, Dispatch)> {
        let session = &self.agent.inner.session;
        let id = fresh_message_id(&*self.runtime);
        let (outcome, interruption) = self.agent.inbox().finalise(|_, cause| {
            let dispatch = match cause {
                None => Dispatch::Runs,
                Some(_) if first => Dispatch::Answered,
                Some(_) => Dispatch::Unrun,
            };
            let mut log = session.lock();
            let seq = log.len();
            let (turn, step) = (self.number, self.step);
            let mut drafts =
                vec![Draft::tool_call(turn, step, &*call.id, &*call.name, &*call.arguments)];
            if dispatch == Dispatch::Answered {
                let output = aborted();
                let message = tool_result_message(id, &call.id, output.content, true);
                drafts.push(Draft::tool_result(turn, step, message, output.error, Some(seq)));
            }
            log.append(drafts)?;
            Ok::<_, AppendError>((seq, dispatch))
        });
        if let Some(interruption) = interruption {
            self.agent.after_interruption(interruption);
        }
        let dispatched = outcome.map_err(StepEnd::failed)?;
        self.agent.appended();
        Ok(dispatched)
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
        let id = fresh_message_id(&*self.runtime);
        let (draft, output) = match self.result_of(id.clone(), call, seq, output) {
            Ok(recorded) => recorded,
            // A result that no log takes is answered by one that every log takes.
            Err(error) => {
                let refused = failed(ErrorCode::InvalidInput, error.to_string());
                self.result_of(id, call, seq, refused).map_err(StepEnd::failed)?
            }
        };
        let ToolOutput { error, concludes, contexts, .. } = output;
        let is_error = error.is_some();
        let contexts = self.contexts_of(contexts);
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

impl Turn {
    fn result_of(
        &self,
        id: MessageId,
        call: &ToolCall,
        seq: u64,
        mut output: ToolOutput,
    ) -> Result<(Draft, ToolOutput), AppendError> {
        let content = std::mem::take(&mut output.content);
        let message = tool_result_message(id, &call.id, content, output.error.is_some());
        let error = output.error.clone();
        let draft = Draft::tool_result(self.number, self.step, message, error, Some(seq));
        draft.check()?;
        Ok((draft, output))
    }

    /// The contexts of a result that a log takes; the others are told and dropped, so that they
    /// spoil no batch.
    fn contexts_of(&self, contexts: Vec<Message>) -> Vec<Arc<Message>> {
        let taken = |message: &Arc<Message>| match self.agent.check(message) {
            Ok(()) => true,
            Err(error) => {
                self.agent.tell_error(self.number, self.step, error.code(), error.to_string());
                false
            }
        };
        contexts.into_iter().map(Arc::new).filter(taken).collect()
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
