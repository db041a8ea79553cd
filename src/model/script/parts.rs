//! A response in parts: chunks, and what happens between them.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use serde_json::json;

use super::Inner;
use crate::cancel::CancelSignal;
use crate::message::ContentBlock;
use crate::model::{FinishReason, ModelChunk, ModelError, ModelStream};
use crate::runtime::BoxFuture;

/// One part of a response. The response ends after its last part.
#[derive(Debug, Clone, PartialEq)]
pub enum Part {
    /// A chunk.
    Chunk(ModelChunk),
    /// Waits until the gate is open.
    Gate(String),
    /// Waits.
    Pause(Duration),
    /// Waits until the request is cancelled.
    Hang,
    /// Text without end, one chunk per pause, until the request is cancelled.
    Endless(Duration),
    /// The response fails.
    Fail(ModelError),
    /// The client panics.
    Panic(String),
}

/// A text block with one delta per piece.
pub fn chunks_of_text(index: u64, pieces: &[&str]) -> Vec<Part> {
    let mut chunks = vec![ModelChunk::BlockStart { index, block_type: "text".to_owned() }];
    chunks.extend(
        pieces.iter().map(|piece| ModelChunk::TextDelta { index, text: (*piece).to_owned() }),
    );
    chunks.push(ModelChunk::BlockEnd { index, block: ContentBlock::text(pieces.concat()) });
    chunks.into_iter().map(Part::Chunk).collect()
}

/// A tool-call block with one delta.
pub fn chunks_of_call(index: u64, id: String, name: String, arguments: String) -> Vec<Part> {
    let chunks = [
        ModelChunk::BlockStart { index, block_type: "tool-call".to_owned() },
        ModelChunk::ToolCallDelta {
            index,
            id: Some(id.clone()),
            name: Some(name.clone()),
            arguments_delta: arguments.clone(),
        },
        ModelChunk::BlockEnd { index, block: ContentBlock::ToolCall { id, name, arguments } },
    ];
    chunks.into_iter().map(Part::Chunk).collect()
}

/// Token counts and the finish.
pub fn finish(reason: FinishReason) -> Vec<Part> {
    let usage = json!({"inputTokens": 10, "outputTokens": 5});
    let chunks = [ModelChunk::Usage { usage }, ModelChunk::Finish { reason }];
    chunks.into_iter().map(Part::Chunk).collect()
}

/// What stands at the front of a stream after its waits.
pub(super) enum Flow {
    /// A chunk, not taken yet.
    Chunk,
    /// The end.
    End,
    /// A failure.
    Failed(ModelError),
}

/// A response in flight. Every wait is given up when the request is cancelled; a dropped wait loses
/// no part.
pub(super) struct PartStream {
    inner: Arc<Inner>,
    signal: CancelSignal,
    parts: VecDeque<Part>,
}

impl PartStream {
    pub(super) fn new(inner: Arc<Inner>, signal: CancelSignal, parts: Vec<Part>) -> Self {
        inner.active.fetch_add(1, Ordering::Relaxed);
        Self { inner, signal, parts: parts.into() }
    }

    /// Works off everything before the next chunk.
    pub(super) async fn open(&mut self) -> Flow {
        loop {
            let Some(front) = self.parts.front().cloned() else { return Flow::End };
            let passed = match front {
                Part::Chunk(_) => return Flow::Chunk,
                Part::Fail(error) => {
                    self.parts.clear();
                    return Flow::Failed(error);
                }
                // Without the hook's message on standard error: it is planned.
                Part::Panic(text) => std::panic::resume_unwind(Box::new(text)),
                Part::Gate(name) => {
                    let gate = self.inner.gate(&name);
                    gate.reached.set(());
                    self.unless_cancelled(Box::pin(async move { gate.open.wait().await })).await
                }
                Part::Pause(pause) | Part::Endless(pause) => {
                    let sleep = self.inner.runtime.sleep(pause);
                    self.unless_cancelled(sleep).await
                }
                Part::Hang => self.unless_cancelled(Box::pin(std::future::pending())).await,
            };
            if !passed {
                self.parts.clear();
                return Flow::Failed(ModelError::new("the request was cancelled"));
            }
            match self.parts.pop_front() {
                Some(endless @ Part::Endless(_)) => {
                    let chunk = ModelChunk::TextDelta { index: 0, text: "more ".to_owned() };
                    self.parts.extend([Part::Chunk(chunk), endless]);
                }
                _passed => {}
            }
        }
    }

    /// Waits for `wait`; false if the request is cancelled first.
    async fn unless_cancelled(&self, wait: BoxFuture<'_, ()>) -> bool {
        tokio::select! {
            biased;
            _cause = self.signal.cancelled() => false,
            () = wait => true,
        }
    }
}

impl ModelStream for PartStream {
    fn next(&mut self) -> BoxFuture<'_, Option<Result<ModelChunk, ModelError>>> {
        Box::pin(async move {
            match self.open().await {
                Flow::End => None,
                Flow::Failed(error) => Some(Err(error)),
                Flow::Chunk => match self.parts.pop_front() {
                    Some(Part::Chunk(chunk)) => Some(Ok(chunk)),
                    _ => None,
                },
            }
        })
    }
}

impl Drop for PartStream {
    fn drop(&mut self) {
        self.inner.active.fetch_sub(1, Ordering::Relaxed);
    }
}
