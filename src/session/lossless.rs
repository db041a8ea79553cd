//! Whether a draft's data reads back as it was written (fact-sheet 2.1).
//!
//! Rust's types already exclude most of what the reference rejects. Left are negative zero, which
//! JSON text keeps and a reader may not, nesting deeper than a reader follows, and a tool result
//! of the wrong shape.

use serde_json::Value;

use super::event::{EventBody, TurnEndReason, TurnTrigger};
use super::log::AppendError;
use crate::message::{ContentBlock, Message, MessageSource};

/// How deep a draft's data may nest; readers give up at 128, and the envelope takes some.
const MAX_DEPTH: usize = 100;

type Check = Result<(), &'static str>;

pub(super) fn check(body: &EventBody) -> Result<(), AppendError> {
    check_body(body).map_err(|what| AppendError::Lossy { kind: body.kind().to_owned(), what })
}

fn check_body(body: &EventBody) -> Check {
    match body {
        EventBody::TurnStart {
            trigger: TurnTrigger::Message { source } | TurnTrigger::Injection { source },
            ..
        } => check_source(source),
        EventBody::TurnEnd {
            reason: TurnEndReason::Error { failure: Some(failure), .. }, ..
        } => check_value(failure, 0),
        EventBody::ToolResult { message, .. } => {
            check_answer(message)?;
            check_message(message)
        }
        EventBody::UserMessage(message)
        | EventBody::SteeringMessage { message, .. }
        | EventBody::AssistantMessage { message, .. } => check_message(message),
        _ => Ok(()),
    }
}

/// A tool result's message holds exactly one block, which answers the call of its source.
fn check_answer(message: &Message) -> Check {
    match (&message.source, message.content.as_slice()) {
        (MessageSource::Tool { call_id }, [ContentBlock::ToolResult { tool_call_id, .. }])
            if call_id == tool_call_id =>
        {
            Ok(())
        }
        _ => Err("a tool result holds one block that answers its source's call"),
    }
}

fn check_message(message: &Message) -> Check {
    check_source(&message.source)?;
    check_blocks(&message.content, 0)?;
    message.extra.values().try_for_each(|value| check_value(value, 0))
}

fn check_source(source: &MessageSource) -> Check {
    match source {
        MessageSource::Model { replay_state: Some(value), .. } | MessageSource::Other(value) => {
            check_value(value, 0)
        }
        _ => Ok(()),
    }
}

fn check_blocks(blocks: &[ContentBlock], depth: usize) -> Check {
    if depth > MAX_DEPTH {
        return Err("nested too deep");
    }
    blocks.iter().try_for_each(|block| match block {
        ContentBlock::ToolResult { content, .. } => check_blocks(content, depth + 2),
        ContentBlock::Other(value) => check_value(value, depth),
        _ => Ok(()),
    })
}

fn check_value(value: &Value, depth: usize) -> Check {
    if depth > MAX_DEPTH {
        return Err("nested too deep");
    }
    match value {
        Value::Number(number) => match number.as_f64() {
            Some(float) if float == 0.0 && float.is_sign_negative() => Err("negative zero"),
            _ => Ok(()),
        },
        Value::Array(items) => items.iter().try_for_each(|item| check_value(item, depth + 1)),
        Value::Object(map) => map.values().try_for_each(|item| check_value(item, depth + 1)),
        _ => Ok(()),
    }
}
