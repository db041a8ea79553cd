//! Messages, content blocks and their sources (fact-sheet 1.2).
//!
//! Serde shapes keep the reference's field names; [`Message`] writes its fields in the order the
//! reference writes them for that role. Block and source kinds that we do not know are kept whole.

use std::collections::BTreeMap;

use serde::de::Error as _;
use serde::ser::SerializeMap;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;

use crate::ids::{MessageId, SessionId};

/// Who speaks, as the model sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Instructions.
    System,
    /// A person, a parent agent, a tool result or injected context.
    User,
    /// The model.
    Assistant,
}

/// Where a message came from. Never changes the role the model sees; survives every route
/// (contract I6).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MessageSource {
    /// A person.
    User,
    /// A plugin, by name.
    Plugin {
        /// Its name.
        plugin: String,
    },
    /// A model's answer.
    Model {
        /// The model provider's name.
        provider: String,
        /// The model's name.
        model: String,
        /// Opaque state the provider wants back.
        replay_state: Option<Value>,
    },
    /// The result of a tool call.
    Tool {
        /// The call's id.
        call_id: String,
    },
    /// Another agent, through `send_message`.
    Coordinator {
        /// The sender's session.
        sender_session_id: SessionId,
    },
    /// A kind we do not interpret, kept whole.
    Other(Value),
}

impl MessageSource {
    /// The kind's word.
    pub fn kind(&self) -> &str {
        match self {
            Self::User => "user",
            Self::Plugin { .. } => "plugin",
            Self::Model { .. } => "model",
            Self::Tool { .. } => "tool",
            Self::Coordinator { .. } => "coordinator",
            Self::Other(value) => value.get("kind").and_then(Value::as_str).unwrap_or("other"),
        }
    }
}

#[derive(Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
enum KnownSource {
    User {},
    Plugin {
        plugin: String,
    },
    Model {
        provider: String,
        model: String,
        #[serde(rename = "replayState", default, skip_serializing_if = "Option::is_none")]
        replay_state: Option<Value>,
    },
    Tool {
        #[serde(rename = "callId")]
        call_id: String,
    },
    Coordinator {
        #[serde(rename = "senderSessionId")]
        sender_session_id: SessionId,
    },
}

/// Whether `value` has exactly the keys in `known`; anything more must be kept whole.
fn only_keys(value: &Value, known: &[&str]) -> bool {
    value.as_object().is_some_and(|map| map.keys().all(|key| known.contains(&key.as_str())))
}

impl Serialize for MessageSource {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let known = match self.clone() {
            Self::User => KnownSource::User {},
            Self::Plugin { plugin } => KnownSource::Plugin { plugin },
            Self::Model { provider, model, replay_state } => {
                KnownSource::Model { provider, model, replay_state }
            }
            Self::Tool { call_id } => KnownSource::Tool { call_id },
            Self::Coordinator { sender_session_id } => {
                KnownSource::Coordinator { sender_session_id }
            }
            Self::Other(value) => return value.serialize(serializer),
        };
        known.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for MessageSource {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let value = Value::deserialize(deserializer)?;
        let Some(kind) = value.get("kind").and_then(Value::as_str) else {
            return Err(D::Error::custom("a message source needs a string `kind`"));
        };
        let keys: &[&str] = match kind {
            "user" => &["kind"],
            "plugin" => &["kind", "plugin"],
            "model" => &["kind", "provider", "model", "replayState"],
            "tool" => &["kind", "callId"],
            "coordinator" => &["kind", "senderSessionId"],
            _ => return Ok(Self::Other(value)),
        };
        if !only_keys(&value, keys) {
            return Ok(Self::Other(value));
        }
        // A known kind of another shape is kept whole, too: it must not make a log unreadable.
        let Ok(known) = KnownSource::deserialize(&value) else { return Ok(Self::Other(value)) };
        Ok(match known {
            KnownSource::User {} => Self::User,
            KnownSource::Plugin { plugin } => Self::Plugin { plugin },
            KnownSource::Model { provider, model, replay_state } => {
                Self::Model { provider, model, replay_state }
            }
            KnownSource::Tool { call_id } => Self::Tool { call_id },
            KnownSource::Coordinator { sender_session_id } => {
                Self::Coordinator { sender_session_id }
            }
        })
    }
}

/// One block of a message's content.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ContentBlock {
    /// Visible text.
    Text {
        /// The text.
        text: String,
    },
    /// The model's reasoning.
    Reasoning {
        /// The text.
        text: String,
    },
    /// A tool call the model asks for.
    ToolCall {
        /// The call's id.
        id: String,
        /// The tool's name.
        name: String,
        /// The raw argument text from the model.
        arguments: String,
    },
    /// The result of a tool call.
    ToolResult {
        /// The call's id.
        tool_call_id: String,
        /// The result's blocks.
        content: Vec<ContentBlock>,
        /// Whether the tool failed.
        is_error: bool,
    },
    /// A kind we do not interpret, kept whole.
    Other(Value),
}

impl ContentBlock {
    /// A text block.
    pub fn text(text: impl Into<String>) -> Self {
        Self::Text { text: text.into() }
    }

    /// The block's visible text, if it is a text block.
    pub fn as_text(&self) -> Option<&str> {
        match self {
            Self::Text { text } => Some(text),
            _ => None,
        }
    }
}

#[derive(Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "kebab-case")]
enum KnownBlock {
    Text {
        text: String,
    },
    Reasoning {
        text: String,
    },
    ToolCall {
        id: String,
        name: String,
        arguments: String,
    },
    ToolResult {
        #[serde(rename = "toolCallId")]
        tool_call_id: String,
        content: Vec<ContentBlock>,
        #[serde(rename = "isError")]
        is_error: bool,
    },
}

impl Serialize for ContentBlock {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let known = match self.clone() {
            Self::Text { text } => KnownBlock::Text { text },
            Self::Reasoning { text } => KnownBlock::Reasoning { text },
            Self::ToolCall { id, name, arguments } => KnownBlock::ToolCall { id, name, arguments },
            Self::ToolResult { tool_call_id, content, is_error } => {
                KnownBlock::ToolResult { tool_call_id, content, is_error }
            }
            Self::Other(value) => return value.serialize(serializer),
        };
        known.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for ContentBlock {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let value = Value::deserialize(deserializer)?;
        let Some(kind) = value.get("type").and_then(Value::as_str) else {
            return Err(D::Error::custom("a content block needs a string `type`"));
        };
        let keys: &[&str] = match kind {
            "text" | "reasoning" => &["type", "text"],
            "tool-call" => &["type", "id", "name", "arguments"],
            "tool-result" => &["type", "toolCallId", "content", "isError"],
            _ => return Ok(Self::Other(value)),
        };
        if !only_keys(&value, keys) {
            return Ok(Self::Other(value));
        }
        let Ok(known) = KnownBlock::deserialize(&value) else { return Ok(Self::Other(value)) };
        Ok(match known {
            KnownBlock::Text { text } => Self::Text { text },
            KnownBlock::Reasoning { text } => Self::Reasoning { text },
            KnownBlock::ToolCall { id, name, arguments } => Self::ToolCall { id, name, arguments },
            KnownBlock::ToolResult { tool_call_id, content, is_error } => {
                Self::ToolResult { tool_call_id, content, is_error }
            }
        })
    }
}

/// One message. Frozen once it is published.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message {
    /// Its id, minted when the message is created.
    pub id: MessageId,
    /// Who speaks.
    pub role: Role,
    /// What is said.
    pub content: Vec<ContentBlock>,
    /// Where it came from.
    pub source: MessageSource,
    /// Fields we do not interpret, kept in key order.
    pub extra: BTreeMap<String, Value>,
}

impl Message {
    /// A user-role message of one text block.
    pub fn user(id: MessageId, text: impl Into<String>, source: MessageSource) -> Self {
        Self::new(id, Role::User, vec![ContentBlock::text(text)], source)
    }

    /// A message with no uninterpreted fields.
    pub fn new(
        id: MessageId,
        role: Role,
        content: Vec<ContentBlock>,
        source: MessageSource,
    ) -> Self {
        Self { id, role, content, source, extra: BTreeMap::new() }
    }

    /// The visible text, blocks joined without a separator.
    pub fn text(&self) -> String {
        self.content.iter().filter_map(ContentBlock::as_text).collect()
    }
}

impl Serialize for Message {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        match (self.role, &self.source) {
            (_, MessageSource::Tool { .. }) => {
                map.serialize_entry("source", &self.source)?;
                map.serialize_entry("content", &self.content)?;
                map.serialize_entry("role", &self.role)?;
            }
            (Role::Assistant, _) => {
                map.serialize_entry("role", &self.role)?;
                map.serialize_entry("content", &self.content)?;
                map.serialize_entry("source", &self.source)?;
            }
            _ => {
                map.serialize_entry("content", &self.content)?;
                map.serialize_entry("source", &self.source)?;
                map.serialize_entry("role", &self.role)?;
            }
        }
        map.serialize_entry("id", &self.id)?;
        for (key, value) in &self.extra {
            map.serialize_entry(key, value)?;
        }
        map.end()
    }
}

impl<'de> Deserialize<'de> for Message {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        struct Shape {
            id: MessageId,
            role: Role,
            content: Vec<ContentBlock>,
            source: MessageSource,
            #[serde(flatten)]
            extra: BTreeMap<String, Value>,
        }
        let Shape { id, role, content, source, extra } = Shape::deserialize(deserializer)?;
        Ok(Self { id, role, content, source, extra })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn round_trips(json: &str) {
        let message: Message = serde_json::from_str(json).expect("a message");
        assert_eq!(serde_json::to_string(&message).expect("serialises"), json);
    }

    #[test]
    fn field_order_is_the_reference_order_of_the_role() {
        round_trips(
            r#"{"content":[{"type":"text","text":"q"}],"source":{"kind":"user"},"role":"user","id":"a"}"#,
        );
        round_trips(
            r#"{"role":"assistant","content":[],"source":{"kind":"model","provider":"p","model":"m"},"id":"b"}"#,
        );
        round_trips(
            r#"{"source":{"kind":"tool","callId":"k"},"content":[{"type":"tool-result","toolCallId":"k","content":[],"isError":false}],"role":"user","id":"c"}"#,
        );
    }

    #[test]
    fn kinds_we_do_not_know_are_kept_whole() {
        round_trips(
            r#"{"content":[{"type":"image","url":"u"},{"type":"text","text":"t","cache":true}],"source":{"kind":"cron","job":7},"role":"user","id":"a"}"#,
        );
        round_trips(
            r#"{"content":[{"type":"text","text":7},{"type":"tool-result","toolCallId":"k","content":[]}],"source":{"kind":"plugin"},"role":"user","id":"a"}"#,
        );
    }
}
