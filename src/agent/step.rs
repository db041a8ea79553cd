//! One step: hooks, the drain that opens it, the request, its stream, its tools, its end.

use std::sync::Arc;

use serde::Serialize;
use serde_json::Value;

use super::assemble::Response;
use super::calls::Calls;
use super::inbox::{Batch, Staged};
use super::receipt::ReceiptSender;
use super::turn::Turn;
use super::{ReceiptOutcome, Scope};
use crate::error::ErrorCode;
use crate::facts::Fact;
use crate::ids::MessageId;
use crate::message::{ContentBlock, Message, MessageSource, Role};
use crate::model::{FinishReason, ModelError, ModelRequest, ModelStream, ToolDefinition};
use crate::points::Point;
use crate::runtime::{contain, contain_call, fresh_message_id};
use crate::sections::steering::StepOpening;
use crate::session::{
    AppendError, Draft, EventBody, HeaderReason, RawJson, SessionGuard, SessionLog,
};

/// Why a turn failed.
#[derive(Debug, Clone)]
pub(super) struct TurnFailure {
    pub(super) message: String,
    pub(super) code: ErrorCode,
    /// The code as `turn/end` carries it.
    pub(super) wire_code: Option<String>,
    /// The model failure's own facts.
    pub(super) facts: Option<Value>,
    /// Whether a request to the model failed, so that a recovery may ask for a retry.
    pub(super) of_request: bool,
}

impl Default for TurnFailure {
    fn default() -> Self {
        Self {
            message: String::new(),
            code: ErrorCode::InvalidInput,
            wire_code: None,
            facts: None,
            of_request: false,
        }
    }
}

impl From<AppendError> for TurnFailure {
    fn from(error: AppendError) -> Self {
        Self {
            message: error.to_string(),
            code: error.code(),
            wire_code: Some(error.code().word().to_owned()),
            ..Self::default()
        }
    }
}

impl From<ModelError> for TurnFailure {
    fn from(error: ModelError) -> Self {
        Self {
            code: error.code(),
            message: error.message,
            wire_code: error.service_code,
            facts: error.failure,
            of_request: true,
        }
    }
}

/// What a step came to.
#[derive(Debug)]
pub(super) enum StepEnd {
    /// Tools ran, or steering waits: one more.
    Again,
    /// The model is done.
    Stop,
    /// A tool ended the turn.
    Concluded,
    /// Cancelled, or the prompt of an unopened turn was withdrawn.
    Interrupted,
    /// Something failed.
    Failed(Box<TurnFailure>),
}

impl StepEnd {
    pub(super) fn failed(failure: impl Into<TurnFailure>) -> Self {
        Self::Failed(Box::new(failure.into()))
    }
}

/// `Err` ends the step before its own end.
pub(super) type Flow<T> = Result<T, StepEnd>;

/// A request as it will be sent, built before the step opens.
struct Prepared {
    system: String,
    tools: Vec<ToolDefinition>,
    provider: String,
    model: String,
}

#[derive(Serialize)]
struct HeaderConfig<'a> {
    provider: &'a str,
    model: &'a str,
    #[serde(rename = "maxTokens", skip_serializing_if = "Option::is_none")]
    max_tokens: Option<u64>,
}

#[derive(Serialize)]
struct Header<'a> {
    config: HeaderConfig<'a>,
    system: &'a str,
    tools: &'a [ToolDefinition],
}

impl Turn {
    pub(super) async fn step(&mut self) -> StepEnd {
        self.step += 1;
        let prepared = match self.pre_step().await {
            Ok(prepared) => prepared,
            Err(end) => return end,
        };
        self.runtime.point(Point::StepOpen).await;
        let messages = match self.open_step() {
            Ok(messages) => messages,
            Err(end) => return end,
        };
        let mut calls = Calls::default();
        let flow = self.respond(prepared, messages, &mut calls).await;
        self.runtime.point(Point::StepClose).await;
        self.close_step(flow, calls)
    }

    async fn pre_step(&mut self) -> Flow<Prepared> {
        for hook in self.agent.hooks() {
            self.runtime.point(Point::PreStep).await;
            let context = self.context();
            let asked = async { hook.pre_step(&context).await };
            let failure = match contain(&self.runtime, "pre-step hook", asked).await {
                Ok(Ok(())) => continue,
                Ok(Err(error)) => error.to_string(),
                Err(panicked) => panicked.to_string(),
            };
            return Err(StepEnd::failed(TurnFailure::of(failure)));
        }
        self.runtime.point(Point::Assemble).await;
        let options = self.agent.options();
        Ok(Prepared {
            system: self.agent.system_text(),
            tools: self.agent.tools().definitions(),
            provider: options.provider.clone().unwrap_or_default(),
            model: options.model.clone().unwrap_or_default(),
        })
    }

    /// Section (g) of contract P1.
    fn open_step(&mut self) -> Flow<Vec<Arc<Message>>> {
        let (number, step) = (self.number, self.step);
        let opens = self.opens.clone();
        let inner = &self.agent.inner;
        let opening = self.agent.inbox().open_step((number, step), opens.is_some(), |batch| {
            let mut log = inner.session.lock();
            let mut drafts = Vec::new();
            let mut descriptor = None;
            if let Some(trigger) = opens {
                descriptor = inner.scope.lock().descriptor.take();
                drafts.push(Draft::turn_start(number, trigger));
            }
            drafts.extend(batch_drafts(batch, number, descriptor.as_ref()));
            drafts.push(Draft::step_start(number, step));
            match log.append(drafts) {
                Ok(_) => Ok(log.messages()),
                Err(error) => {
                    if descriptor.is_some() {
                        inner.scope.lock().descriptor = descriptor;
                    }
                    Err(error)
                }
            }
        });
        match opening {
            StepOpening::Opened(messages, receipts) => {
                self.opens = None;
                let outcome = ReceiptOutcome::Admitted { turn: number, step };
                self.agent.settle(receipts, outcome);
                self.agent.appended();
                Ok(messages)
            }
            StepOpening::Interrupted(interruption) => {
                self.agent.after_interruption(interruption);
                Err(StepEnd::Interrupted)
            }
            StepOpening::Withdrawn => Err(StepEnd::Interrupted),
            StepOpening::Refused(error, receipts) => {
                self.agent.settle(receipts, ReceiptOutcome::Rejected);
                Err(StepEnd::failed(error))
            }
        }
    }

    /// Sends the request, takes the response, and runs the calls it asks for.
    async fn respond(
        &mut self,
        prepared: Prepared,
        messages: Vec<Arc<Message>>,
        calls: &mut Calls,
    ) -> Flow<()> {
        self.runtime.point(Point::ModelRequest).await;
        let request = self.begin_request(prepared, messages)?;
        let (provider, model) = (request.provider.clone(), request.model.clone());
        let (response, chunks) = self.stream(request).await?;
        let finish = response.finish.clone();
        self.limited |= finish == Some(FinishReason::MaxTokens);
        let usage = response.usage.clone();
        let source = MessageSource::Model { provider, model, replay_state: None };
        let id = fresh_message_id(&*self.runtime);
        let message = Message::new(id, Role::Assistant, response.content(), source);
        let message = Arc::new(message);
        let usage = usage.and_then(|usage| RawJson::of(&usage).ok());
        self.runtime.point(Point::AssistantAppend).await;
        let draft =
            Draft::assistant_message(self.number, self.step, Arc::clone(&message), usage, chunks);
        self.append(vec![draft])?;
        if finish == Some(FinishReason::Refusal) {
            return Err(StepEnd::failed(TurnFailure {
                message: "the model declined to answer".to_owned(),
                code: ErrorCode::ModelFailed,
                wire_code: Some("REFUSAL".to_owned()),
                ..TurnFailure::default()
            }));
        }
        let asked = message.content.iter().filter(|b| matches!(b, ContentBlock::ToolCall { .. }));
        if asked.count() > 0 {
            self.run_calls(&message, calls).await?;
        }
        Ok(())
    }

    /// One section: not cancelled, header and context recorded where needed, request on its way.
    fn begin_request(&self, prepared: Prepared, messages: Vec<Arc<Message>>) -> Flow<ModelRequest> {
        let inner = &self.agent.inner;
        let Prepared { system, tools, provider, model } = prepared;
        let max_tokens = inner.options.max_tokens;
        let config = HeaderConfig { provider: &provider, model: &model, max_tokens };
        let header = Header { config, system: &system, tools: &tools };
        let header = RawJson::of(&header).map_err(|error| {
            StepEnd::failed(TurnFailure::of(format!("the request header is no JSON: {error}")))
        })?;
        let ids: Vec<MessageId> = messages.iter().map(|message| message.id.clone()).collect();
        let begun = self.agent.inbox().uncancelled(|_| {
            let mut log = inner.session.lock();
            let drafts = request_drafts(&log, &mut inner.scope.lock(), header, &provider, &model);
            let written = !drafts.is_empty();
            if written {
                log.append(drafts)?;
            }
            let (agent, turn, step) = (inner.instance, self.number, self.step);
            self.runtime.fact(Fact::RequestSent { agent, turn, step, messages: ids });
            Ok::<_, AppendError>(written)
        });
        if self.proceed(begun)? {
            self.agent.appended();
        }
        Ok(ModelRequest {
            provider,
            model,
            max_tokens,
            system,
            tools,
            messages,
            agent: inner.instance,
            session: inner.session.id().clone(),
            turn: self.number,
            step: self.step,
            signal: self.signal.clone(),
        })
    }

    /// Takes the response chunk by chunk; the answer also names the chunks' events. A cancelled
    /// turn drops the stream, which gives the response up, and waits for what that leaves behind.
    async fn stream(&self, request: ModelRequest) -> Flow<(Response, Vec<u64>)> {
        let taken = match self.start_stream(request).await {
            Ok(mut stream) => {
                let taken = self.take_chunks(&mut *stream).await;
                // The stream is foreign, its destructor too; a panic is recorded and changes
                // nothing.
                drop(contain_call(&self.runtime, "model stream", move || drop(stream)));
                taken
            }
            Err(end) => Err(end),
        };
        let inner = &self.agent.inner;
        let model = Arc::clone(&inner.host.config().model);
        let agent = inner.instance;
        self.runtime.point(Point::ModelQuiesce).await;
        let quiesced = async move { model.quiesced(agent).await };
        drop(contain(&self.runtime, "model client", quiesced).await);
        taken
    }

    async fn take_chunks(&self, stream: &mut dyn ModelStream) -> Flow<(Response, Vec<u64>)> {
        let mut response = Response::default();
        let mut chunks = Vec::new();
        while response.finish.is_none() {
            self.runtime.point(Point::ModelChunk).await;
            let next = contain(&self.runtime, "model stream", async { stream.next().await });
            let next = tokio::select! {
                biased;
                _cause = self.signal.cancelled() => return Err(StepEnd::Interrupted),
                next = next => next,
            };
            let chunk = match next {
                Ok(Some(Ok(chunk))) => chunk,
                Ok(Some(Err(error))) => return Err(StepEnd::failed(error)),
                Ok(None) => {
                    let text = "the response ended without a finish";
                    return Err(StepEnd::failed(ModelError::new(text)));
                }
                Err(panicked) => return Err(panicked_model(panicked.to_string())),
            };
            let raw = RawJson::of(&chunk).map_err(|error| {
                StepEnd::failed(ModelError::new(format!("a chunk is no JSON: {error}")))
            })?;
            let draft = Draft::assistant_chunk(self.number, self.step, raw);
            chunks.extend(self.append(vec![draft])?);
            response.absorb(chunk);
        }
        Ok((response, chunks))
    }

    async fn start_stream(&self, request: ModelRequest) -> Flow<Box<dyn ModelStream>> {
        let model = Arc::clone(&self.agent.inner.host.config().model);
        let start = async move { model.start(request).await };
        let started = tokio::select! {
            biased;
            _cause = self.signal.cancelled() => return Err(StepEnd::Interrupted),
            started = contain(&self.runtime, "model client", start) => started,
        };
        match started {
            Ok(Ok(stream)) => Ok(stream),
            Ok(Err(error)) => Err(StepEnd::failed(error)),
            Err(panicked) => Err(panicked_model(panicked.to_string())),
        }
    }

    /// Appends to the live turn, unless it was cancelled; answers the events' places.
    pub(super) fn append(&self, drafts: Vec<Draft>) -> Flow<std::ops::Range<u64>> {
        let session = &self.agent.inner.session;
        let range = self.agent.inbox().uncancelled(|_| session.lock().append(drafts));
        let range = self.proceed(range)?;
        self.agent.appended();
        Ok(range)
    }

    /// Turns a section's refusals into the step's end.
    pub(super) fn proceed<T>(
        &self,
        outcome: Result<Result<T, AppendError>, super::turn::Interruption>,
    ) -> Flow<T> {
        match outcome {
            Ok(Ok(value)) => Ok(value),
            Ok(Err(error)) => Err(StepEnd::failed(error)),
            Err(interruption) => {
                self.agent.after_interruption(interruption);
                Err(StepEnd::Interrupted)
            }
        }
    }

    /// One section: contexts that the batch of tools held back, and `step/end`.
    fn close_step(&self, flow: Flow<()>, calls: Calls) -> StepEnd {
        let session = &self.agent.inner.session;
        let ran = calls.ran;
        let (outcome, interruption) = self.agent.inbox().finalise(|queue, cause| {
            let staged = if ran && cause.is_none() { queue.take_contexts() } else { Vec::new() };
            let mut drafts: Vec<_> = staged.iter().cloned().map(Draft::user_message).collect();
            drafts.extend(calls.late_contexts.into_iter().map(Draft::user_message));
            drafts.push(Draft::step_end(self.number, self.step));
            let mut log = session.lock();
            let appended = log.append(drafts).or_else(|error| {
                log.append(vec![Draft::step_end(self.number, self.step)])?;
                queue.restage_contexts(staged);
                Err(error)
            });
            (appended.err(), queue.has_steering(), cause.is_some())
        });
        if let Some(interruption) = interruption {
            self.agent.after_interruption(interruption);
        }
        self.agent.appended();
        let (error, steering, cancelled) = outcome;
        if let Some(error) = error {
            self.agent.tell_error(self.number, self.step, error.code(), error.to_string());
        }
        match flow {
            Err(end) => end,
            Ok(()) if cancelled => StepEnd::Interrupted,
            Ok(()) if calls.concluded => StepEnd::Concluded,
            Ok(()) if ran || steering => StepEnd::Again,
            Ok(()) => StepEnd::Stop,
        }
    }
}

fn panicked_model(text: String) -> StepEnd {
    StepEnd::failed(TurnFailure {
        code: ErrorCode::Panicked,
        wire_code: Some(ErrorCode::Panicked.word().to_owned()),
        ..ModelError::new(text).into()
    })
}

/// What a step's drain appends, in log order (fact-sheet 3.4).
fn batch_drafts(batch: &Batch<ReceiptSender>, turn: u64, descriptor: Option<&Draft>) -> Vec<Draft> {
    let staged = |item: &Staged<ReceiptSender>| {
        let message = Arc::clone(&item.message);
        if item.steering {
            Draft::steering_message(turn, message)
        } else {
            Draft::user_message(message)
        }
    };
    let mut drafts: Vec<_> = batch.inherited.iter().map(staged).collect();
    drafts.extend(batch.prompt.iter().map(|p| Draft::user_message(Arc::clone(&p.message))));
    drafts.extend(batch.contexts.iter().cloned().map(Draft::user_message));
    drafts.extend(descriptor.cloned());
    drafts.extend(batch.rest.iter().map(staged));
    drafts
}

/// `request/header` once per lifecycle and on change, `request/context` on change.
fn request_drafts(
    log: &SessionGuard<'_>,
    scope: &mut Scope,
    header: RawJson,
    provider: &str,
    model: &str,
) -> Vec<Draft> {
    let mut drafts = Vec::new();
    let reason = match &scope.header {
        Some(last) if last == header.as_str() => None,
        Some(_) => Some(HeaderReason::Change),
        None => Some(first_reason(log)),
    };
    if let Some(reason) = reason {
        scope.header = Some(header.as_str().to_owned());
        drafts.push(Draft::request_header(header, reason));
    }
    let last = log.events().iter().rev().find_map(|event| match &event.body {
        EventBody::RequestContext { provider, model, .. } => Some((provider, model)),
        _ => None,
    });
    if last.is_none_or(|(p, m)| p != provider || m != model) {
        drafts.push(Draft::request_context(provider, model, None));
    }
    drafts
}

/// A lifecycle whose seed has sent requests resumes; any other starts.
fn first_reason(log: &SessionLog) -> HeaderReason {
    let sent =
        |event: &Arc<crate::session::Event>| matches!(event.body, EventBody::RequestHeader { .. });
    if log.events().iter().any(sent) { HeaderReason::Resume } else { HeaderReason::Initial }
}
