//! The model as the agent loop sees it: a request, and a stream of chunks.
//!
//! Chunk shapes are the reference's, so that `assistant/chunk` events read and write unchanged.

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::cancel::CancelSignal;
use crate::error::ErrorCode;
use crate::ids::{OwnerId, SessionId};
use crate::message::{ContentBlock, Message};
use crate::runtime::BoxFuture;

pub mod http;
pub mod script;

pub use script::{ScriptedModel, Step};

/// A tool as the model is told about it. Fields serialise in the reference's order.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ToolDefinition {
    /// The name the model calls it by.
    pub name: String,
    /// What it does.
    pub description: String,
    /// A JSON schema of its arguments, rooted in an object.
    pub parameters: Value,
}

/// One call of a model.
#[derive(Debug, Clone)]
pub struct ModelRequest {
    /// The model provider's name.
    pub provider: String,
    /// The model's name.
    pub model: String,
    /// The limit of the answer, in tokens.
    pub max_tokens: Option<u64>,
    /// The system text.
    pub system: String,
    /// The tools the model may call.
    pub tools: Vec<ToolDefinition>,
    /// The history, in surface order.
    pub messages: Vec<Arc<Message>>,
    /// The asking agent instance.
    pub agent: OwnerId,
    /// Its session.
    pub session: SessionId,
    /// Its open turn.
    pub turn: u64,
    /// Its open step.
    pub step: u64,
    /// Fires when the turn is cancelled; the stream should then end.
    pub signal: CancelSignal,
}

/// Why a response finished.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum FinishReason {
    /// The model is done.
    Stop,
    /// It waits for tool results.
    ToolCalls,
    /// It hit the token limit.
    MaxTokens,
    /// It declined.
    Refusal,
    /// A reason we do not know.
    #[serde(other)]
    Other,
}

/// One chunk of a response.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "kebab-case", rename_all_fields = "camelCase")]
#[allow(missing_docs, reason = "the fields are the reference's")]
pub enum ModelChunk {
    /// A block begins.
    BlockStart { index: u64, block_type: String },
    /// More visible text.
    TextDelta { index: u64, text: String },
    /// More reasoning.
    ReasoningDelta { index: u64, text: String },
    /// More of a tool call.
    ToolCallDelta {
        index: u64,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        id: Option<String>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        name: Option<String>,
        arguments_delta: String,
    },
    /// A block is complete.
    BlockEnd { index: u64, block: ContentBlock },
    /// Token counts.
    Usage { usage: Value },
    /// The response is complete.
    Finish { reason: FinishReason },
}

/// A model call failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct ModelError {
    /// What went wrong.
    pub message: String,
    /// The model service's own code, such as `rate_limit`.
    pub service_code: Option<String>,
    /// The failure's facts as the adapter knows them, for `turn/end`.
    pub failure: Option<Value>,
}

impl ModelError {
    /// A failure with only a message.
    pub fn new(message: impl Into<String>) -> Self {
        Self { message: message.into(), service_code: None, failure: None }
    }

    /// `MODEL_FAILED`.
    pub fn code(&self) -> ErrorCode {
        ErrorCode::ModelFailed
    }
}

/// A response as it arrives. Dropping it gives the response up.
pub trait ModelStream: Send {
    /// The next chunk; `None` at the end. A well-formed response ends with a `finish` chunk.
    fn next(&mut self) -> BoxFuture<'_, Option<Result<ModelChunk, ModelError>>>;
}

/// A model service.
pub trait ModelClient: Send + Sync + fmt::Debug {
    /// Starts a response. Dropping the future gives the request up.
    fn start(
        &self,
        request: ModelRequest,
    ) -> BoxFuture<'static, Result<Box<dyn ModelStream>, ModelError>>;

    /// Ready once nothing runs any more on behalf of responses of `agent` that ended or were given
    /// up. The loop awaits it before it goes on, so a run's disposal leaves no connection behind.
    fn quiesced(&self, _agent: OwnerId) -> BoxFuture<'static, ()> {
        Box::pin(std::future::ready(()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn round_trips(json: &str) {
        let chunk: ModelChunk = serde_json::from_str(json).expect("a chunk");
        assert_eq!(serde_json::to_string(&chunk).expect("serialises"), json);
    }

    #[test]
    fn chunks_have_the_reference_shapes() {
        round_trips(r#"{"type":"block-start","index":0,"blockType":"text"}"#);
        round_trips(
            r#"{"type":"tool-call-delta","index":0,"id":"k","name":"n","argumentsDelta":"{}"}"#,
        );
        round_trips(r#"{"type":"block-end","index":0,"block":{"type":"text","text":"t"}}"#);
        round_trips(r#"{"type":"usage","usage":{"inputTokens":10,"outputTokens":5}}"#);
        round_trips(r#"{"type":"finish","reason":{"kind":"tool-calls"}}"#);
    }
}
