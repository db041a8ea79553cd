//! From the events of a streamed chat completion to the chunks of the model seam. Pure.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::message::ContentBlock;
use crate::model::{FinishReason, ModelChunk, ModelError};

/// Why an event, or the end, does not fit.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ResponseError {
    /// An event is no JSON object.
    #[error("event {event} is not JSON: {why}")]
    NotJson {
        /// Which, counted from 1.
        event: u64,
        /// Line and column, and what is wrong there.
        why: String,
    },
    /// The service failed in the middle of its response.
    #[error("the service failed: {}", .0.message)]
    Service(ModelError),
    /// The response ended before it was complete.
    #[error("it ended after {events} events, without a finish")]
    Truncated {
        /// How many there were.
        events: u64,
    },
}

impl ResponseError {
    /// The service's own failure, if it is one.
    pub fn service(&self) -> Option<&ModelError> {
        match self {
            Self::Service(error) => Some(error),
            _ => None,
        }
    }
}

/// A block that is not complete.
#[derive(Debug)]
enum Open {
    Text { index: u64, text: String },
    Reasoning { index: u64, text: String },
}

/// A tool call that is not complete.
#[derive(Debug)]
struct OpenCall {
    index: u64,
    id: String,
    name: String,
    arguments: String,
}

/// Puts a response together.
#[derive(Debug)]
pub struct Assembler {
    turn: u64,
    step: u64,
    events: u64,
    blocks: u64,
    open: Option<Open>,
    /// By the service's own index.
    calls: BTreeMap<u64, OpenCall>,
    usage: Option<Value>,
    finish: Option<FinishReason>,
    done: bool,
}

impl Assembler {
    /// For the response to the request of that turn and step: calls without an id are named by it.
    pub fn new(turn: u64, step: u64) -> Self {
        Self {
            turn,
            step,
            events: 0,
            blocks: 0,
            open: None,
            calls: BTreeMap::new(),
            usage: None,
            finish: None,
            done: false,
        }
    }

    /// Takes the data of one event.
    ///
    /// # Errors
    ///
    /// [`ResponseError`], naming the event.
    pub fn event(&mut self, data: &str) -> Result<Vec<ModelChunk>, ResponseError> {
        self.events += 1;
        if data == "[DONE]" {
            return self.end();
        }
        let event: Value = serde_json::from_str(data)
            .map_err(|why| ResponseError::NotJson { event: self.events, why: why.to_string() })?;
        if let Some(error) = event.get("error").filter(|error| !error.is_null()) {
            let message = error["message"].as_str().unwrap_or("no reason given").to_owned();
            return Err(ResponseError::Service(ModelError {
                message,
                service_code: error["code"].as_str().map(str::to_owned),
                failure: None,
            }));
        }
        if let Some(usage) = event.get("usage").filter(|usage| usage.is_object()) {
            self.usage = Some(json!({
                "inputTokens": usage["prompt_tokens"].as_u64().unwrap_or(0),
                "outputTokens": usage["completion_tokens"].as_u64().unwrap_or(0),
            }));
        }
        let mut chunks = Vec::new();
        let choice = &event["choices"][0];
        self.delta(&choice["delta"], &mut chunks);
        if let Some(reason) = choice["finish_reason"].as_str() {
            self.finish = Some(match reason {
                "stop" => FinishReason::Stop,
                "tool_calls" => FinishReason::ToolCalls,
                "length" => FinishReason::MaxTokens,
                "content_filter" => FinishReason::Refusal,
                _ => FinishReason::Other,
            });
            self.close_all(&mut chunks);
        }
        Ok(chunks)
    }

    /// The end of the response.
    ///
    /// # Errors
    ///
    /// [`ResponseError::Truncated`]: nothing said that it is complete.
    pub fn end(&mut self) -> Result<Vec<ModelChunk>, ResponseError> {
        if std::mem::replace(&mut self.done, true) {
            return Ok(Vec::new());
        }
        let Some(reason) = self.finish.clone() else {
            return Err(ResponseError::Truncated { events: self.events });
        };
        let usage = self.usage.take().map(|usage| ModelChunk::Usage { usage });
        Ok(usage.into_iter().chain([ModelChunk::Finish { reason }]).collect())
    }

    fn delta(&mut self, delta: &Value, chunks: &mut Vec<ModelChunk>) {
        if let Some(text) = delta["reasoning_content"].as_str().filter(|text| !text.is_empty()) {
            self.reasoning(text, chunks);
        }
        if let Some(text) = delta["content"].as_str().filter(|text| !text.is_empty()) {
            self.text(text, chunks);
        }
        for call in delta["tool_calls"].as_array().into_iter().flatten() {
            self.call(call, chunks);
        }
    }

    fn next_block(&mut self, block_type: &str, chunks: &mut Vec<ModelChunk>) -> u64 {
        let index = self.blocks;
        self.blocks += 1;
        chunks.push(ModelChunk::BlockStart { index, block_type: block_type.to_owned() });
        index
    }

    fn reasoning(&mut self, more: &str, chunks: &mut Vec<ModelChunk>) {
        if !matches!(self.open, Some(Open::Reasoning { .. })) {
            self.close(chunks);
            let index = self.next_block("reasoning", chunks);
            self.open = Some(Open::Reasoning { index, text: String::new() });
        }
        if let Some(Open::Reasoning { index, text }) = &mut self.open {
            text.push_str(more);
            chunks.push(ModelChunk::ReasoningDelta { index: *index, text: more.to_owned() });
        }
    }

    fn text(&mut self, more: &str, chunks: &mut Vec<ModelChunk>) {
        if !matches!(self.open, Some(Open::Text { .. })) {
            self.close(chunks);
            let index = self.next_block("text", chunks);
            self.open = Some(Open::Text { index, text: String::new() });
        }
        if let Some(Open::Text { index, text }) = &mut self.open {
            text.push_str(more);
            chunks.push(ModelChunk::TextDelta { index: *index, text: more.to_owned() });
        }
    }

    fn call(&mut self, delta: &Value, chunks: &mut Vec<ModelChunk>) {
        let wire = delta["index"].as_u64().unwrap_or(0);
        if !self.calls.contains_key(&wire) {
            self.close(chunks);
            let index = self.next_block("tool-call", chunks);
            let id = format!("call-{}-{}-{wire}", self.turn, self.step);
            let call = OpenCall { index, id, name: String::new(), arguments: String::new() };
            self.calls.insert(wire, call);
        }
        let Some(call) = self.calls.get_mut(&wire) else { return };
        let id = delta["id"].as_str().filter(|id| !id.is_empty()).map(str::to_owned);
        let name = delta["function"]["name"].as_str().filter(|name| !name.is_empty());
        let more = delta["function"]["arguments"].as_str().unwrap_or_default();
        if let Some(id) = &id {
            call.id.clone_from(id);
        }
        call.name.push_str(name.unwrap_or_default());
        call.arguments.push_str(more);
        chunks.push(ModelChunk::ToolCallDelta {
            index: call.index,
            id,
            name: name.map(str::to_owned),
            arguments_delta: more.to_owned(),
        });
    }

    fn close(&mut self, chunks: &mut Vec<ModelChunk>) {
        let (index, block) = match self.open.take() {
            Some(Open::Text { index, text }) => (index, ContentBlock::Text { text }),
            Some(Open::Reasoning { index, text }) => (index, ContentBlock::Reasoning { text }),
            None => return,
        };
        chunks.push(ModelChunk::BlockEnd { index, block });
    }

    fn close_all(&mut self, chunks: &mut Vec<ModelChunk>) {
        self.close(chunks);
        for call in std::mem::take(&mut self.calls).into_values() {
            let OpenCall { index, id, name, arguments } = call;
            let block = ContentBlock::ToolCall { id, name, arguments };
            chunks.push(ModelChunk::BlockEnd { index, block });
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn fed(events: &[&str]) -> Result<Vec<ModelChunk>, ResponseError> {
        let mut assembler = Assembler::new(1, 2);
        let mut chunks = Vec::new();
        for event in events {
            chunks.extend(assembler.event(event)?);
        }
        Ok(chunks)
    }

    #[test]
    fn text_and_a_call_become_blocks_and_the_usage_comes_before_the_finish() {
        let chunks = fed(&[
            r#"{"choices":[{"delta":{"role":"assistant","content":"so"}}]}"#,
            r#"{"choices":[{"delta":{"content":" far"}}]}"#,
            r#"{"choices":[{"delta":{"tool_calls":[{"index":0,"id":"k","function":{"name":"work","arguments":"{"}}]}}]}"#,
            r#"{"choices":[{"delta":{"tool_calls":[{"index":0,"function":{"arguments":"}"}}]}}]}"#,
            r#"{"choices":[{"delta":{},"finish_reason":"tool_calls"}]}"#,
            r#"{"choices":[],"usage":{"prompt_tokens":10,"completion_tokens":5}}"#,
            "[DONE]",
        ])
        .expect("it is whole");
        let shown: Vec<_> =
            chunks.iter().map(|chunk| serde_json::to_string(chunk).expect("plain")).collect();
        assert_eq!(
            shown,
            [
                r#"{"type":"block-start","index":0,"blockType":"text"}"#,
                r#"{"type":"text-delta","index":0,"text":"so"}"#,
                r#"{"type":"text-delta","index":0,"text":" far"}"#,
                r#"{"type":"block-end","index":0,"block":{"type":"text","text":"so far"}}"#,
                r#"{"type":"block-start","index":1,"blockType":"tool-call"}"#,
                r#"{"type":"tool-call-delta","index":1,"id":"k","name":"work","argumentsDelta":"{"}"#,
                r#"{"type":"tool-call-delta","index":1,"argumentsDelta":"}"}"#,
                r#"{"type":"block-end","index":1,"block":{"type":"tool-call","id":"k","name":"work","arguments":"{}"}}"#,
                r#"{"type":"usage","usage":{"inputTokens":10,"outputTokens":5}}"#,
                r#"{"type":"finish","reason":{"kind":"tool-calls"}}"#,
            ]
        );
    }

    #[test]
    fn what_is_cut_short_garbled_or_failed_is_an_error() {
        let begun = r#"{"choices":[{"delta":{"content":"so"}}]}"#;
        assert_eq!(fed(&[begun, "[DONE]"]), Err(ResponseError::Truncated { events: 2 }));
        assert!(matches!(fed(&[begun, "{half"]), Err(ResponseError::NotJson { event: 2, .. })));
        let failed = fed(&[r#"{"error":{"message":"no","code":"overloaded"}}"#]);
        let error = failed.expect_err("it failed");
        let service = error.service().expect("the service's own");
        assert_eq!(service.service_code.as_deref(), Some("overloaded"));
    }

    proptest! {
        #[test]
        fn no_event_panics(events in prop::collection::vec("\\PC{0,40}", 0..6)) {
            let events: Vec<_> = events.iter().map(String::as_str).collect();
            // Whatever it is, it is an answer or an error.
            prop_assert!(fed(&events).is_ok() || fed(&events).is_err());
        }

        #[test]
        fn no_json_panics(number in any::<i64>(), text in ".{0,8}") {
            for shape in [
                json!(number),
                json!([text]),
                json!({ "choices": text }),
                json!({ "choices": [number] }),
                json!({ "choices": [{ "delta": { "tool_calls": [{ "index": text }, number] } }] }),
                json!({ "choices": [{ "delta": text, "finish_reason": number }] }),
                json!({ "error": number, "usage": [] }),
            ] {
                let fed = fed(&[&shape.to_string()]);
                prop_assert!(fed.is_ok() || fed.is_err_and(|error| error.service().is_some()));
            }
        }
    }
}
