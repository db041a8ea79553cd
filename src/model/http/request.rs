//! What is asked of a chat-completions service: a pure fold of the history.

use serde_json::{Map, Value, json};

use crate::message::{ContentBlock, Message, Role};
use crate::model::ModelRequest;

/// The body of a request.
pub fn body(request: &ModelRequest) -> Value {
    let mut messages = Vec::new();
    if !request.system.is_empty() {
        messages.push(json!({ "role": "system", "content": request.system }));
    }
    for message in &request.messages {
        said(message, &mut messages);
    }
    let mut body = Map::new();
    body.insert("model".to_owned(), request.model.clone().into());
    body.insert("messages".to_owned(), messages.into());
    if let Some(limit) = request.max_tokens {
        body.insert("max_tokens".to_owned(), limit.into());
    }
    if !request.tools.is_empty() {
        let tools = request.tools.iter().map(|tool| {
            json!({
                "type": "function",
                "function": {
                    "name": tool.name,
                    "description": tool.description,
                    "parameters": tool.parameters,
                },
            })
        });
        body.insert("tools".to_owned(), tools.collect());
    }
    body.insert("stream".to_owned(), true.into());
    body.insert("stream_options".to_owned(), json!({ "include_usage": true }));
    Value::Object(body)
}

/// One message of the history: tool results are messages of their own, before what else is said.
/// Reasoning stays here, and what we do not interpret cannot be sent.
fn said(message: &Message, messages: &mut Vec<Value>) {
    let mut text = String::new();
    let mut calls = Vec::new();
    for block in &message.content {
        match block {
            ContentBlock::Text { text: more } => {
                if !text.is_empty() {
                    text.push('\n');
                }
                text.push_str(more);
            }
            ContentBlock::ToolCall { id, name, arguments } => calls.push(json!({
                "id": id,
                "type": "function",
                "function": { "name": name, "arguments": arguments },
            })),
            ContentBlock::ToolResult { tool_call_id, content, .. } => {
                let result: Vec<_> = content.iter().filter_map(ContentBlock::as_text).collect();
                messages.push(json!({
                    "role": "tool",
                    "tool_call_id": tool_call_id,
                    "content": result.join("\n"),
                }));
            }
            ContentBlock::Reasoning { .. } | ContentBlock::Other(_) => {}
        }
    }
    let role = match message.role {
        Role::System => "system",
        Role::User => "user",
        Role::Assistant => "assistant",
    };
    match (calls.is_empty(), text.is_empty()) {
        (true, true) => {}
        (true, false) => messages.push(json!({ "role": role, "content": text })),
        (false, _) => {
            let content = if text.is_empty() { Value::Null } else { text.into() };
            messages.push(json!({ "role": role, "content": content, "tool_calls": calls }));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::MessageId;
    use crate::message::MessageSource;

    fn folded(role: Role, content: Vec<ContentBlock>) -> Value {
        let message = Message::new(MessageId::new("m"), role, content, MessageSource::User);
        let mut messages = Vec::new();
        said(&message, &mut messages);
        messages.into()
    }

    #[test]
    fn a_history_becomes_the_messages_of_the_wire() {
        let call = ContentBlock::ToolCall {
            id: "k".to_owned(),
            name: "work".to_owned(),
            arguments: "{\"unfinished\": ".to_owned(),
        };
        let thought = ContentBlock::Reasoning { text: "hm".to_owned() };
        assert_eq!(
            folded(Role::Assistant, vec![thought, ContentBlock::text("so"), call]),
            json!([{
                "role": "assistant",
                "content": "so",
                "tool_calls": [{
                    "id": "k",
                    "type": "function",
                    "function": { "name": "work", "arguments": "{\"unfinished\": " },
                }],
            }])
        );
        let result = ContentBlock::ToolResult {
            tool_call_id: "k".to_owned(),
            content: vec![ContentBlock::text("a"), ContentBlock::text("b")],
            is_error: false,
        };
        assert_eq!(
            folded(Role::User, vec![result, ContentBlock::text("and")]),
            json!([
                { "role": "tool", "tool_call_id": "k", "content": "a\nb" },
                { "role": "user", "content": "and" },
            ])
        );
        assert_eq!(folded(Role::User, Vec::new()), json!([]));
    }
}
