//! The other side of the model client: serves any model over HTTP on any byte stream, and breaks
//! its streams as told.
//!
//! Chunks become server-sent events one by one, as they come. When the client goes away the
//! response is given up. There is no timer and no date.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use continuable::cancel::CancelSignal;
use continuable::facts::CancelScope;
use continuable::ids::{OwnerId, SessionId};
use continuable::model::http::{AGENT_HEADER, SESSION_HEADER, STEP_HEADER, TURN_HEADER};
use continuable::model::{
    FinishReason, ModelChunk, ModelClient, ModelError, ModelRequest, ModelStream,
};
use continuable::runtime::{BoxFuture, Runtime, contain};
use continuable::vocabulary::CancelCause;
use continuable::wire::ByteStream;
use http_body_util::{BodyExt, Either, Full};
use hyper::body::{Body, Frame, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};

use crate::faults::StreamFault;

/// What breaks the next response: after how many chunks, and how. Asked when a response begins.
pub type Breaks = Arc<dyn Fn() -> Option<(u64, StreamFault)> + Send + Sync>;

type Answer = Response<Either<Full<Bytes>, Events>>;

/// Serves `model` on one connection, until the client closes it.
///
/// # Errors
///
/// The connection broke.
pub async fn serve(
    runtime: Arc<dyn Runtime>,
    model: Arc<dyn ModelClient>,
    breaks: Breaks,
    stream: impl ByteStream + 'static,
) -> Result<(), hyper::Error> {
    let service = service_fn(move |request| {
        let (runtime, model, breaks) = (Arc::clone(&runtime), Arc::clone(&model), breaks.clone());
        async move { Ok::<_, Infallible>(answer(runtime, model, breaks(), request).await) }
    });
    http1::Builder::new()
        .auto_date_header(false)
        .header_read_timeout(None)
        .keep_alive(false)
        .serve_connection(TokioIo::new(stream), service)
        .await
}

async fn answer(
    runtime: Arc<dyn Runtime>,
    model: Arc<dyn ModelClient>,
    breaks: Option<(u64, StreamFault)>,
    request: Request<Incoming>,
) -> Answer {
    let (head, body) = request.into_parts();
    let Ok(body) = body.collect().await else {
        return failed(StatusCode::BAD_REQUEST, &ModelError::new("the request broke off"));
    };
    let Ok(body) = serde_json::from_slice::<Value>(&body.to_bytes()) else {
        return failed(StatusCode::BAD_REQUEST, &ModelError::new("the request is not JSON"));
    };
    let text = |name: &str| head.headers.get(name).and_then(|value| value.to_str().ok());
    let number = |name: &str| text(name).and_then(|text| text.parse().ok()).unwrap_or(0);
    let session = SessionId::new(text(SESSION_HEADER).unwrap_or_default());
    let scope = CancelScope::Call { call: format!("response to {session}") };
    let signal = CancelSignal::new(Arc::clone(&runtime), scope);
    let request = ModelRequest {
        provider: "http".to_owned(),
        model: body["model"].as_str().unwrap_or_default().to_owned(),
        max_tokens: body["max_tokens"].as_u64(),
        system: String::new(),
        tools: Vec::new(),
        messages: Vec::new(),
        agent: OwnerId(number(AGENT_HEADER)),
        session,
        turn: number(TURN_HEADER),
        step: number(STEP_HEADER),
        signal: signal.clone(),
    };
    // Given up before it began, too.
    let given_up = GivenUp(signal);
    // The model is foreign: its panic costs its client this response.
    let start = async move { model.start(request).await };
    let started = contain(&runtime, "served model", start).await;
    match started.unwrap_or_else(|panicked| Err(ModelError::new(panicked.to_string()))) {
        Ok(stream) => {
            let events = Events {
                runtime,
                encoder: Encoder::default(),
                breaks,
                under_way: None,
                stream: Some(stream),
                chunks: 0,
                _given_up: given_up,
            };
            let response = Response::builder().header("content-type", "text/event-stream");
            response.body(Either::Right(events)).expect("the head is constant")
        }
        Err(error) => {
            let limited = error.service_code.as_deref() == Some("rate_limit");
            let status = if limited {
                StatusCode::TOO_MANY_REQUESTS
            } else {
                StatusCode::INTERNAL_SERVER_ERROR
            };
            failed(status, &error)
        }
    }
}

fn failed(status: StatusCode, error: &ModelError) -> Answer {
    let body = json!({ "error": { "message": error.message, "code": error.service_code } });
    let body = Either::Left(Full::new(Bytes::from(body.to_string())));
    Response::builder().status(status).body(body).expect("the head is constant")
}

/// Fires the request's signal when its response is dropped.
struct GivenUp(CancelSignal);

impl Drop for GivenUp {
    fn drop(&mut self) {
        self.0.cancel(CancelCause::CallerGone);
    }
}

/// The stream, unless it panicked, and what came of it.
type Next = (Option<Box<dyn ModelStream>>, Option<Result<ModelChunk, ModelError>>);

/// The body of a response.
struct Events {
    runtime: Arc<dyn Runtime>,
    encoder: Encoder,
    breaks: Option<(u64, StreamFault)>,
    under_way: Option<BoxFuture<'static, Next>>,
    /// `None` while its next chunk is awaited, and once it is over.
    stream: Option<Box<dyn ModelStream>>,
    chunks: u64,
    _given_up: GivenUp,
}

impl Body for Events {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        let this = &mut *self;
        loop {
            if let Some((after, how)) = this.breaks
                && this.chunks >= after
            {
                match how {
                    StreamFault::Stall => return Poll::Pending,
                    StreamFault::Truncate => {
                        this.over();
                        return Poll::Ready(None);
                    }
                    StreamFault::Reset => {
                        this.over();
                        return Poll::Ready(Some(Err(io::ErrorKind::ConnectionReset.into())));
                    }
                    StreamFault::Garbage => {
                        this.breaks = None;
                        let garbage = Bytes::from_static(b"data: {\"choices\":[{\xff\xfe\n\n");
                        return Poll::Ready(Some(Ok(Frame::data(garbage))));
                    }
                }
            }
            if let Some(mut stream) = this.stream.take() {
                let runtime = Arc::clone(&this.runtime);
                this.under_way = Some(Box::pin(async move {
                    let next = contain(&runtime, "served model", stream.next()).await;
                    match next {
                        Ok(next) => (Some(stream), next),
                        Err(panicked) => (None, Some(Err(ModelError::new(panicked.to_string())))),
                    }
                }));
            }
            let Some(under_way) = &mut this.under_way else { return Poll::Ready(None) };
            let Poll::Ready((stream, next)) = under_way.as_mut().poll(cx) else {
                return Poll::Pending;
            };
            this.under_way = None;
            this.chunks += 1;
            let text = match next {
                Some(Ok(chunk)) => {
                    this.stream = stream;
                    this.encoder.chunk(chunk)
                }
                Some(Err(error)) => {
                    let said = json!({ "message": error.message, "code": error.service_code });
                    event(&json!({ "error": said }))
                }
                None => return Poll::Ready(None),
            };
            if !text.is_empty() {
                return Poll::Ready(Some(Ok(Frame::data(Bytes::from(text)))));
            }
        }
    }
}

impl Events {
    fn over(&mut self) {
        self.breaks = None;
        self.stream = None;
        self.under_way = None;
    }
}

fn event(data: &Value) -> String {
    format!("data: {data}\n\n")
}

/// From chunks to events: the inverse of the client's.
#[derive(Debug, Default)]
struct Encoder {
    /// Of each call's block its place among the calls.
    calls: BTreeMap<u64, u64>,
    usage: Option<Value>,
}

impl Encoder {
    fn chunk(&mut self, chunk: ModelChunk) -> String {
        let delta = match chunk {
            ModelChunk::TextDelta { text, .. } => json!({ "content": text }),
            ModelChunk::ReasoningDelta { text, .. } => json!({ "reasoning_content": text }),
            ModelChunk::ToolCallDelta { index, id, name, arguments_delta } => {
                let next = self.calls.len() as u64;
                let place = *self.calls.entry(index).or_insert(next);
                json!({ "tool_calls": [{
                    "index": place,
                    "id": id,
                    "type": "function",
                    "function": { "name": name, "arguments": arguments_delta },
                }] })
            }
            ModelChunk::Usage { usage } => {
                self.usage = Some(usage);
                return String::new();
            }
            ModelChunk::Finish { reason } => return self.finish(&reason),
            ModelChunk::BlockStart { .. } | ModelChunk::BlockEnd { .. } => return String::new(),
        };
        event(&json!({ "choices": [{ "index": 0, "delta": delta }] }))
    }

    fn finish(&mut self, reason: &FinishReason) -> String {
        let reason = match reason {
            FinishReason::Stop => "stop",
            FinishReason::ToolCalls => "tool_calls",
            FinishReason::MaxTokens => "length",
            FinishReason::Refusal => "content_filter",
            FinishReason::Other => "other",
        };
        let mut text =
            event(&json!({ "choices": [{ "index": 0, "delta": {}, "finish_reason": reason }] }));
        if let Some(usage) = self.usage.take() {
            text += &event(&json!({ "choices": [], "usage": {
                "prompt_tokens": usage["inputTokens"],
                "completion_tokens": usage["outputTokens"],
            } }));
        }
        text + "data: [DONE]\n\n"
    }
}

#[cfg(test)]
mod tests {
    use continuable::message::ContentBlock;
    use continuable::model::http::events::EventParser;
    use continuable::model::http::response::Assembler;
    use continuable::model::script::{ScriptedCall, Step};
    use proptest::prelude::*;

    use super::*;

    /// What a scripted step says, through the encoder and the client's parser and assembler.
    fn crossed(chunks: Vec<ModelChunk>) -> Vec<ModelChunk> {
        let mut encoder = Encoder::default();
        let wire: String = chunks.into_iter().map(|chunk| encoder.chunk(chunk)).collect();
        let (mut parser, mut assembler) = (EventParser::default(), Assembler::new(1, 1));
        let events = parser.push(wire.as_bytes()).expect("events");
        let chunks = events.iter().map(|event| assembler.event(event).expect("it fits"));
        chunks.flatten().collect()
    }

    /// The blocks and the finish: what the log keeps of a response.
    fn kept(chunks: &[ModelChunk]) -> Vec<ModelChunk> {
        let parts = [ModelChunk::BlockEnd { index: 0, block: ContentBlock::text("") }];
        let of = |chunk: &ModelChunk| std::mem::discriminant(chunk);
        let ends = |chunk: &&ModelChunk| {
            of(chunk) == of(&parts[0])
                || matches!(chunk, ModelChunk::Finish { .. } | ModelChunk::Usage { .. })
        };
        chunks.iter().filter(ends).cloned().collect()
    }

    proptest! {
        #[test]
        fn a_response_crosses_the_wire_unchanged(
            text in "\\PC{1,30}",
            arguments in prop::collection::vec(("[a-z]{1,8}", "\\PC{0,20}"), 0..3),
        ) {
            let calls = arguments.into_iter().map(|(name, arguments)| ScriptedCall {
                id: None,
                name,
                arguments,
            });
            let step = Step::Calls { text, calls: calls.collect() };
            let chunks = step.chunks(1, 1);
            prop_assert_eq!(kept(&crossed(chunks.clone())), kept(&chunks));
        }
    }
}
