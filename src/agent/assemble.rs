//! From a response's chunks to its message.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::message::ContentBlock;
use crate::model::{FinishReason, ModelChunk};

/// A block that is still arriving.
#[derive(Debug)]
enum Partial {
    Text(String),
    Reasoning(String),
    Call { id: String, name: String, arguments: String },
    Done(ContentBlock),
}

/// A response as far as it has arrived.
#[derive(Debug, Default)]
pub(super) struct Response {
    blocks: BTreeMap<u64, Partial>,
    pub(super) usage: Option<Value>,
    pub(super) finish: Option<FinishReason>,
}

impl Response {
    pub(super) fn absorb(&mut self, chunk: ModelChunk) {
        match chunk {
            ModelChunk::BlockStart { .. } => {}
            ModelChunk::TextDelta { index, text } => {
                let block = self.blocks.entry(index).or_insert(Partial::Text(String::new()));
                if let Partial::Text(whole) = block {
                    whole.push_str(&text);
                }
            }
            ModelChunk::ReasoningDelta { index, text } => {
                let block = self.blocks.entry(index).or_insert(Partial::Reasoning(String::new()));
                if let Partial::Reasoning(whole) = block {
                    whole.push_str(&text);
                }
            }
            ModelChunk::ToolCallDelta { index, id, name, arguments_delta } => {
                self.absorb_call(index, id, name, &arguments_delta);
            }
            ModelChunk::BlockEnd { index, block } => {
                self.blocks.insert(index, Partial::Done(block));
            }
            ModelChunk::Usage { usage } => self.usage = Some(usage),
            ModelChunk::Finish { reason } => self.finish = Some(reason),
        }
    }

    fn absorb_call(&mut self, index: u64, id: Option<String>, name: Option<String>, more: &str) {
        let empty =
            || Partial::Call { id: String::new(), name: String::new(), arguments: String::new() };
        if let Partial::Call { id: whole_id, name: whole_name, arguments } =
            self.blocks.entry(index).or_insert_with(empty)
        {
            if let Some(id) = id {
                *whole_id = id;
            }
            if let Some(name) = name {
                *whole_name = name;
            }
            arguments.push_str(more);
        }
    }

    /// The content of the message. A response that hit its token limit loses its tool calls: they
    /// may be cut short and are never run (scenario 268).
    pub(super) fn content(self) -> Vec<ContentBlock> {
        let limited = self.finish == Some(FinishReason::MaxTokens);
        let block = |partial| match partial {
            Partial::Text(text) => ContentBlock::Text { text },
            Partial::Reasoning(text) => ContentBlock::Reasoning { text },
            Partial::Call { id, name, arguments } => ContentBlock::ToolCall { id, name, arguments },
            Partial::Done(block) => block,
        };
        self.blocks
            .into_values()
            .map(block)
            .filter(|block| !(limited && matches!(block, ContentBlock::ToolCall { .. })))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(index: u64, text: &str) -> ModelChunk {
        ModelChunk::TextDelta { index, text: text.to_owned() }
    }

    #[test]
    fn blocks_are_put_together_by_index() {
        let mut response = Response::default();
        response.absorb(text(1, "b"));
        response.absorb(text(0, "a"));
        response.absorb(text(1, "c"));
        let call = ModelChunk::ToolCallDelta {
            index: 2,
            id: Some("k".to_owned()),
            name: Some("n".to_owned()),
            arguments_delta: "{}".to_owned(),
        };
        response.absorb(call);
        let content = response.content();
        assert_eq!(content[..2], [ContentBlock::text("a"), ContentBlock::text("bc")]);
        assert!(matches!(&content[2], ContentBlock::ToolCall { id, .. } if id == "k"));
    }

    #[test]
    fn a_complete_block_wins_over_its_deltas() {
        let mut response = Response::default();
        response.absorb(text(0, "partial"));
        response.absorb(ModelChunk::BlockEnd { index: 0, block: ContentBlock::text("whole") });
        assert_eq!(response.content(), [ContentBlock::text("whole")]);
    }

    #[test]
    fn a_response_at_its_limit_loses_its_calls() {
        let mut response = Response::default();
        response.absorb(text(0, "a"));
        response.absorb(ModelChunk::ToolCallDelta {
            index: 1,
            id: Some("k".to_owned()),
            name: None,
            arguments_delta: "{".to_owned(),
        });
        response.absorb(ModelChunk::Finish { reason: FinishReason::MaxTokens });
        assert_eq!(response.content(), [ContentBlock::text("a")]);
    }
}
