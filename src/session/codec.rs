//! One event and its line.
//!
//! A line is one JSON object with the keys type, seq, time, data, and, on message-producing types,
//! sourceEventSeqs and surfaceOp, written in that order (fact-sheet 2.8). Header lines, packed
//! rows and damage belong to the store.

use std::borrow::Cow;
use std::sync::Arc;

use serde::{Deserialize, Deserializer, Serialize};
use serde_json::value::RawValue;
use serde_json::{Number, Value};

use super::event::{
    Event, EventBody, HeaderReason, SurfaceOp, ToolErrorInfo, TurnEndReason, TurnTrigger,
};
use super::raw::{RawJson, readable};
use crate::error::ErrorCode;
use crate::ids::SessionId;
use crate::message::Message;

/// Why a line is not an event.
#[derive(Debug, thiserror::Error)]
pub enum LineError {
    /// It is not the JSON of an event.
    #[error("not an event")]
    Json(#[from] serde_json::Error),
    /// The event's parts contradict its type.
    #[error("{kind} at {seq}: {what}")]
    Shape {
        /// The event's type.
        kind: String,
        /// Its sequence number.
        seq: u64,
        /// What is wrong.
        what: &'static str,
    },
    /// A legacy shape that this format version does not support (fact-sheet 2.9). The whole log
    /// is unsupported, whatever the line's position.
    #[error("unsupported legacy event {what} at {seq}")]
    Legacy {
        /// The event's sequence number.
        seq: u64,
        /// The legacy word.
        what: String,
    },
}

impl LineError {
    /// Whether the log is of an unsupported legacy shape, rather than damaged.
    pub fn is_legacy(&self) -> bool {
        matches!(self, Self::Legacy { .. })
    }

    /// `UNSUPPORTED_LOG` for a legacy shape, else `DAMAGED_LOG`.
    pub fn code(&self) -> ErrorCode {
        if self.is_legacy() { ErrorCode::UnsupportedLog } else { ErrorCode::DamagedLog }
    }
}

/// Whether `kind` is an event type of an older format that is refused on load and on append.
pub fn is_legacy_kind(kind: &str) -> bool {
    matches!(kind, "request/header-delta" | "mode/set")
}

/// Whether `kind` names a line that is not an event: the header, or a packed row.
pub fn is_row_kind(kind: &str) -> bool {
    matches!(kind, "session" | "text-chunks" | "reasoning-chunks" | "tool-call-chunks")
}

/// Whether `kind` is a type that this layer interprets.
pub fn is_known_kind(kind: &str) -> bool {
    matches!(
        kind,
        "turn/start"
            | "turn/end"
            | "step/start"
            | "step/end"
            | "user/message"
            | "steering/message"
            | "assistant/chunk"
            | "assistant/message"
            | "tool/call"
            | "tool/result"
            | "request/header"
            | "request/context"
            | "session/end-seed"
            | "subagent/descriptor"
    )
}

/// A field that must hold a value if it is there at all.
fn present<'de, D: Deserializer<'de>, T: Deserialize<'de>>(from: D) -> Result<Option<T>, D::Error> {
    T::deserialize(from).map(Some)
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Envelope<'a> {
    #[serde(rename = "type", borrow)]
    kind: Cow<'a, str>,
    seq: u64,
    time: Number,
    #[serde(borrow)]
    data: &'a RawValue,
    #[serde(rename = "sourceEventSeqs", default, deserialize_with = "present")]
    sources: Option<Vec<u64>>,
    #[serde(rename = "surfaceOp", default, deserialize_with = "present")]
    surface: Option<SurfaceOp>,
}

#[derive(Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "lowercase", deny_unknown_fields)]
enum SurfaceRecord {
    Replace { start: u64, end: u64 },
}

#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum SurfaceShape<'a> {
    Word(Cow<'a, str>),
    Record(SurfaceRecord),
}

impl Serialize for SurfaceOp {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match *self {
            Self::Append => SurfaceShape::Word(Cow::Borrowed("append")),
            Self::Replace { start, end } => {
                SurfaceShape::Record(SurfaceRecord::Replace { start, end })
            }
        }
        .serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for SurfaceOp {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match SurfaceShape::deserialize(deserializer)? {
            SurfaceShape::Word(word) if word == "append" => Ok(Self::Append),
            SurfaceShape::Word(_) => Err(serde::de::Error::custom("unknown surface operation")),
            SurfaceShape::Record(SurfaceRecord::Replace { start, end }) => {
                Ok(Self::Replace { start, end })
            }
        }
    }
}

#[derive(Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
enum ReasonShape {
    Completed,
    Aborted,
    Error {
        step: u64,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        message: Option<String>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        code: Option<String>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        failure: Option<Value>,
    },
    Disposed,
    MaxTokens,
    Interrupted,
}

impl Serialize for TurnEndReason {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Completed => ReasonShape::Completed,
            Self::Aborted => ReasonShape::Aborted,
            Self::Error { step, failure: Some(failure), .. } => ReasonShape::Error {
                step: *step,
                message: None,
                code: None,
                failure: Some(failure.clone()),
            },
            Self::Error { step, message, code, failure: None } => ReasonShape::Error {
                step: *step,
                message: Some(message.clone()),
                code: code.clone(),
                failure: None,
            },
            Self::Disposed => ReasonShape::Disposed,
            Self::MaxTokens => ReasonShape::MaxTokens,
            Self::Interrupted => ReasonShape::Interrupted,
        }
        .serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for TurnEndReason {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(match ReasonShape::deserialize(deserializer)? {
            ReasonShape::Completed => Self::Completed,
            ReasonShape::Aborted => Self::Aborted,
            ReasonShape::Error { step, message, code, failure } => {
                let message = message
                    .or_else(|| failure.as_ref()?.get("message")?.as_str().map(ToOwned::to_owned));
                Self::Error { step, message: message.unwrap_or_default(), code, failure }
            }
            ReasonShape::Disposed => Self::Disposed,
            ReasonShape::MaxTokens => Self::MaxTokens,
            ReasonShape::Interrupted => Self::Interrupted,
        })
    }
}

/// The data objects of the types that we interpret. Fields we do not know are ignored here: the
/// event keeps its line.
mod shapes {
    use super::{Deserialize, HeaderReason, Message, RawValue, ToolErrorInfo, present};
    use super::{TurnEndReason, TurnTrigger};

    #[derive(Deserialize)]
    pub struct TurnStart {
        pub turn: u64,
        pub trigger: TurnTrigger,
    }

    #[derive(Deserialize)]
    pub struct TurnEnd {
        pub turn: u64,
        pub reason: TurnEndReason,
    }

    #[derive(Deserialize)]
    pub struct Step {
        pub turn: u64,
        pub step: u64,
    }

    #[derive(Deserialize)]
    pub struct Steering {
        pub turn: u64,
        pub message: Message,
    }

    #[derive(Deserialize)]
    pub struct Chunk<'a> {
        pub turn: u64,
        pub step: u64,
        #[serde(borrow)]
        pub chunk: &'a RawValue,
    }

    #[derive(Deserialize)]
    pub struct Assistant<'a> {
        pub turn: u64,
        pub step: u64,
        pub message: Message,
        #[serde(borrow, default, deserialize_with = "present")]
        pub usage: Option<&'a RawValue>,
    }

    #[derive(Deserialize)]
    pub struct Call {
        pub turn: u64,
        pub step: u64,
        #[serde(rename = "callId")]
        pub call_id: String,
        pub name: String,
        pub arguments: String,
    }

    #[derive(Deserialize)]
    pub struct Outcome<'a> {
        pub turn: u64,
        pub step: u64,
        pub message: Message,
        #[serde(default)]
        pub error: Option<ToolErrorInfo>,
        #[serde(borrow, default, deserialize_with = "present")]
        pub meta: Option<&'a RawValue>,
    }

    #[derive(Deserialize)]
    pub struct Header<'a> {
        #[serde(borrow)]
        pub header: &'a RawValue,
        pub reason: HeaderReason,
    }

    #[derive(Deserialize)]
    pub struct Context {
        pub provider: String,
        pub model: String,
        #[serde(rename = "contextWindow", default)]
        pub context_window: Option<u64>,
    }
}

/// One line being read: `shown` is what serde sees, `stored` is what is kept; offsets agree.
struct Line<'a> {
    stored: &'a Arc<str>,
    shown: &'a str,
}

impl Line<'_> {
    /// The stored text of `part`, a piece of the shown text.
    fn keep(&self, part: &RawValue) -> RawJson {
        let text = part.get();
        let start = text.as_ptr() as usize - self.shown.as_ptr() as usize;
        RawJson::slice(self.stored, start..start + text.len())
    }
}

impl Event {
    /// Reads one line (without its newline) of `session`'s log.
    ///
    /// Lone surrogates read as U+FFFD while the event keeps its line, and messages from before
    /// messages had ids get the stable id `legacy-message:<session>:<seq>` (fact-sheet 2.9).
    ///
    /// # Errors
    ///
    /// [`LineError`]: not an event, or a legacy shape.
    pub fn parse_line(line: &str, session: &SessionId) -> Result<Self, LineError> {
        Self::parse(Arc::from(line)).or_else(|error| match with_message_id(line, session) {
            Some(migrated) => Self::parse(migrated.into()),
            None => Err(error),
        })
    }

    fn parse(stored: Arc<str>) -> Result<Self, LineError> {
        let shown = readable(&stored);
        let line = Line { stored: &stored, shown: &shown };
        let envelope: Envelope<'_> = serde_json::from_str(line.shown)?;
        let Envelope { kind, seq, time, data, sources, surface } = envelope;
        let body = parse_body(&line, &kind, seq, data)?;
        let shape = |what| LineError::Shape { kind: kind.to_string(), seq, what };
        match (body.is_surface(), surface) {
            (true, None) => return Err(shape("a message needs a surfaceOp")),
            (false, Some(_)) => return Err(shape("only messages may carry a surfaceOp")),
            _ => {}
        }
        if sources.is_some() && !body.is_surface() {
            return Err(shape("only messages may carry sourceEventSeqs"));
        }
        let time = time.as_u64().unwrap_or_else(|| {
            // A fractional or negative time is legal in the reference; its text is kept.
            time.as_f64().map_or(0, |time| time as u64)
        });
        drop(kind);
        let raw = Some(Arc::clone(&stored));
        Ok(Self { seq, time, body, surface, sources, raw })
    }

    /// The event's line, without a newline: the one it was read from, else its own.
    pub fn to_line(&self) -> String {
        match &self.raw {
            Some(raw) => raw.to_string(),
            None => self.fresh_line(),
        }
    }

    /// The line as this crate writes it, whatever the event was read from.
    pub fn fresh_line(&self) -> String {
        let mut out = Vec::with_capacity(160);
        let mut line = Object::open(&mut out);
        line.field("type", self.kind());
        line.field("seq", &self.seq);
        line.field("time", &self.time);
        line.key("data");
        write_data(line.out, &self.body);
        line.optional("sourceEventSeqs", self.sources.as_ref());
        line.optional("surfaceOp", self.surface.as_ref());
        line.close();
        String::from_utf8(out).expect("serde_json writes UTF-8")
    }
}

fn parse_data<'a, T: Deserialize<'a>>(data: &'a RawValue) -> Result<T, serde_json::Error> {
    serde_json::from_str(data.get())
}

fn parse_body(
    line: &Line<'_>,
    kind: &str,
    seq: u64,
    data: &RawValue,
) -> Result<EventBody, LineError> {
    if is_legacy_kind(kind) {
        return Err(LineError::Legacy { seq, what: kind.to_owned() });
    }
    Ok(match kind {
        "turn/start" => {
            let shapes::TurnStart { turn, trigger } = parse_data(data)?;
            EventBody::TurnStart { turn, trigger }
        }
        "turn/end" => {
            refuse_legacy_abort(data, seq)?;
            let shapes::TurnEnd { turn, reason } = parse_data(data)?;
            EventBody::TurnEnd { turn, reason }
        }
        "step/start" => {
            let shapes::Step { turn, step } = parse_data(data)?;
            EventBody::StepStart { turn, step }
        }
        "step/end" => {
            let shapes::Step { turn, step } = parse_data(data)?;
            EventBody::StepEnd { turn, step }
        }
        "user/message" => EventBody::UserMessage(Arc::new(parse_data(data)?)),
        "steering/message" => {
            let shapes::Steering { turn, message } = parse_data(data)?;
            EventBody::SteeringMessage { turn, message: Arc::new(message) }
        }
        "assistant/chunk" => {
            let shapes::Chunk { turn, step, chunk } = parse_data(data)?;
            EventBody::AssistantChunk { turn, step, chunk: line.keep(chunk) }
        }
        "assistant/message" => {
            let shapes::Assistant { turn, step, message, usage } = parse_data(data)?;
            let usage = usage.map(|usage| line.keep(usage));
            EventBody::AssistantMessage { turn, step, message: Arc::new(message), usage }
        }
        "tool/call" => {
            let shapes::Call { turn, step, call_id, name, arguments } = parse_data(data)?;
            EventBody::ToolCall { turn, step, call_id, name, arguments }
        }
        "tool/result" => {
            let shapes::Outcome { turn, step, message, error, meta } = parse_data(data)?;
            let meta = meta.map(|meta| line.keep(meta));
            EventBody::ToolResult { turn, step, message: Arc::new(message), error, meta }
        }
        "request/header" => parse_request_header(line, data, seq)?,
        "request/context" => {
            let shapes::Context { provider, model, context_window } = parse_data(data)?;
            EventBody::RequestContext { provider, model, context_window }
        }
        "session/end-seed" => EventBody::EndSeed,
        "subagent/descriptor" => EventBody::Descriptor(line.keep(data)),
        _ => EventBody::Other { kind: kind.into(), data: line.keep(data) },
    })
}

fn parse_request_header(
    line: &Line<'_>,
    data: &RawValue,
    seq: u64,
) -> Result<EventBody, LineError> {
    #[derive(Deserialize)]
    struct Reason<'a> {
        #[serde(borrow)]
        reason: Cow<'a, str>,
    }
    if parse_data::<Reason<'_>>(data).is_ok_and(|read| read.reason == "fallback") {
        return Err(LineError::Legacy { seq, what: "request/header fallback".to_owned() });
    }
    let shapes::Header { header, reason } = parse_data(data)?;
    Ok(EventBody::RequestHeader { header: line.keep(header), reason })
}

/// `aborted` once carried more fields; that form is refused (fact-sheet 1.1).
fn refuse_legacy_abort(data: &RawValue, seq: u64) -> Result<(), LineError> {
    #[derive(Deserialize)]
    struct Ending {
        reason: serde_json::Map<String, Value>,
    }
    let Ok(Ending { reason }) = parse_data(data) else { return Ok(()) };
    if reason.get("kind").is_some_and(|kind| kind == "aborted") && reason.len() > 1 {
        return Err(LineError::Legacy { seq, what: "turn/end aborted with a cause".to_owned() });
    }
    Ok(())
}

/// The line with a message id (and a role, where that is missing too) added, if it is a message
/// from before messages had ids. Done on the text, so that nothing else of it changes.
fn with_message_id(line: &str, session: &SessionId) -> Option<String> {
    #[derive(Deserialize)]
    struct Wrapped<'a> {
        #[serde(borrow)]
        message: &'a RawValue,
    }
    let shown = readable(line);
    let envelope: Envelope<'_> = serde_json::from_str(&shown).ok()?;
    let message = match &*envelope.kind {
        "user/message" => envelope.data,
        "steering/message" | "assistant/message" | "tool/result" => {
            parse_data::<Wrapped<'_>>(envelope.data).ok()?.message
        }
        _ => return None,
    };
    let fields: serde_json::Map<String, Value> = parse_data(message).ok()?;
    if fields.contains_key("id") {
        return None;
    }
    let mut added = String::new();
    if !fields.contains_key("role") {
        let role = if envelope.kind == "assistant/message" { "assistant" } else { "user" };
        added.push_str(&format!(r#""role":"{role}","#));
    }
    let id = format!("legacy-message:{session}:{}", envelope.seq);
    added.push_str(&format!(r#""id":{}"#, Value::from(id)));
    let end = message.get().as_ptr() as usize - shown.as_ptr() as usize + message.get().len() - 1;
    let comma = if fields.is_empty() { "" } else { "," };
    Some(format!("{}{comma}{added}{}", &line[..end], &line[end..]))
}

/// Writes one JSON object field by field.
struct Object<'a> {
    out: &'a mut Vec<u8>,
    first: bool,
}

impl<'a> Object<'a> {
    fn open(out: &'a mut Vec<u8>) -> Self {
        out.push(b'{');
        Self { out, first: true }
    }

    fn key(&mut self, key: &str) {
        if !self.first {
            self.out.push(b',');
        }
        self.first = false;
        self.out.push(b'"');
        self.out.extend_from_slice(key.as_bytes());
        self.out.extend_from_slice(b"\":");
    }

    fn field<T: Serialize + ?Sized>(&mut self, key: &str, value: &T) {
        self.key(key);
        serde_json::to_writer(&mut *self.out, value)
            .expect("our types serialise, and a vector takes every byte");
    }

    fn optional<T: Serialize>(&mut self, key: &str, value: Option<&T>) {
        if let Some(value) = value {
            self.field(key, value);
        }
    }

    fn raw(&mut self, key: &str, value: &RawJson) {
        self.key(key);
        self.out.extend_from_slice(value.as_str().as_bytes());
    }

    fn optional_raw(&mut self, key: &str, value: Option<&RawJson>) {
        if let Some(value) = value {
            self.raw(key, value);
        }
    }

    fn close(self) {
        self.out.push(b'}');
    }
}

fn write_data(out: &mut Vec<u8>, body: &EventBody) {
    let mut data = match body {
        EventBody::UserMessage(message) => {
            serde_json::to_writer(out, message).expect("a message serialises");
            return;
        }
        EventBody::Descriptor(data) | EventBody::Other { data, .. } => {
            out.extend_from_slice(data.as_str().as_bytes());
            return;
        }
        _ => Object::open(out),
    };
    let (turn, step) = body.place();
    data.optional("turn", turn.as_ref());
    data.optional("step", step.as_ref());
    match body {
        EventBody::TurnStart { trigger, .. } => data.field("trigger", trigger),
        EventBody::TurnEnd { reason, .. } => data.field("reason", reason),
        EventBody::SteeringMessage { message, .. } => data.field("message", message),
        EventBody::AssistantChunk { chunk, .. } => data.raw("chunk", chunk),
        EventBody::AssistantMessage { message, usage, .. } => {
            data.field("message", message);
            data.optional_raw("usage", usage.as_ref());
        }
        EventBody::ToolCall { call_id, name, arguments, .. } => {
            data.field("callId", call_id);
            data.field("name", name);
            data.field("arguments", arguments);
        }
        EventBody::ToolResult { message, error, meta, .. } => {
            data.field("message", message);
            data.optional("error", error.as_ref());
            data.optional_raw("meta", meta.as_ref());
        }
        EventBody::RequestHeader { header, reason } => {
            data.raw("header", header);
            data.field("reason", reason);
        }
        EventBody::RequestContext { provider, model, context_window } => {
            data.field("provider", provider);
            data.field("model", model);
            data.optional("contextWindow", context_window.as_ref());
        }
        EventBody::StepStart { .. }
        | EventBody::StepEnd { .. }
        | EventBody::EndSeed
        | EventBody::UserMessage(_)
        | EventBody::Descriptor(_)
        | EventBody::Other { .. } => {}
    }
    data.close();
}

#[cfg(test)]
mod tests {
    use super::super::event::Draft;
    use super::super::kit::user;
    use super::*;
    use crate::message::{MessageSource, Role};

    const FIXTURES: &[&str] = &[
        include_str!("../../tests/fixtures/fork_child.jsonl"),
        include_str!("../../tests/fixtures/parent_tools.jsonl"),
        include_str!("../../tests/fixtures/packed_steering.jsonl"),
        include_str!("../../tests/fixtures/interrupted.jsonl"),
    ];
    const FOREIGN: &str = include_str!("../../tests/fixtures/foreign_events.jsonl");
    const LEGACY_MESSAGES: &str = include_str!("../../tests/fixtures/legacy_messages.jsonl");

    fn parse(line: &str) -> Result<Event, LineError> {
        Event::parse_line(line, &SessionId::new("s"))
    }

    /// The event lines of a log: neither its header nor packed rows.
    fn event_lines(log: &str) -> impl Iterator<Item = &str> {
        log.lines().filter(|line| line.contains(r#","seq":"#))
    }

    #[test]
    fn our_own_line_of_a_reference_event_is_the_reference_line() {
        for line in FIXTURES.iter().flat_map(|log| event_lines(log)) {
            let event = parse(line).expect("an event");
            assert_eq!(event.to_line(), line);
            assert_eq!(event.fresh_line(), line);
        }
    }

    #[test]
    fn what_is_not_interpreted_is_kept_byte_for_byte() {
        for line in event_lines(FOREIGN) {
            let event = parse(line).expect("an event");
            assert_eq!(event.to_line(), line);
            if let EventBody::Other { data, .. } = &event.body {
                assert!(line.contains(data.as_str()));
                assert_eq!(event.fresh_line(), line);
            }
        }
    }

    #[test]
    fn a_lone_surrogate_is_shown_as_the_replacement_character() {
        let events: Vec<_> =
            event_lines(FOREIGN).map(|line| parse(line).expect("an event")).collect();
        let shown = events[3].message().expect("a message").text();
        assert_eq!(shown, "half a note: \u{fffd} and a whole one: \u{1d11e}");
        let EventBody::AssistantChunk { chunk, .. } = &events[7].body else {
            unreachable!("the fixture's eighth event is a chunk")
        };
        assert!(chunk.as_str().contains(r"\ud83c"));
        assert_eq!(chunk.value().expect("readable")["text"], "\u{fffd}");
    }

    #[test]
    fn messages_from_before_ids_get_stable_ones() {
        let session = SessionId::new("old \"one\"");
        let mut seen = 0;
        for line in event_lines(LEGACY_MESSAGES) {
            let event = Event::parse_line(line, &session).expect("an event");
            let Some(message) = event.message() else { continue };
            seen += 1;
            assert_eq!(message.id.as_str(), format!("legacy-message:old \"one\":{}", event.seq));
            let again = Event::parse_line(&event.to_line(), &SessionId::new("fork"));
            assert_eq!(again.expect("an event"), event, "the id travels with the line");
        }
        assert_eq!(seen, 4);
        let bare = r#"{"type":"assistant/message","seq":1,"time":0,"data":{"turn":1,"step":1,"message":{"content":[],"source":{"kind":"user"}}},"surfaceOp":"append"}"#;
        let event = parse(bare).expect("an event");
        assert_eq!(event.message().map(|message| message.role), Some(Role::Assistant));
    }

    #[test]
    fn the_legacy_vocabulary_is_known_as_such() {
        let lines = [
            r#"{"type":"request/header-delta","seq":1,"time":0,"data":{}}"#,
            r#"{"type":"mode/set","seq":1,"time":0,"data":{"mode":"plan"}}"#,
            r#"{"type":"request/header","seq":1,"time":0,"data":{"header":{},"reason":"fallback"}}"#,
            r#"{"type":"turn/end","seq":1,"time":0,"data":{"turn":1,"reason":{"kind":"aborted","cause":"user"}}}"#,
        ];
        for line in lines {
            let error = parse(line).expect_err("legacy");
            assert!(error.is_legacy(), "{line}");
            assert_eq!(error.code(), ErrorCode::UnsupportedLog);
        }
    }

    #[test]
    fn an_envelope_holds_what_its_type_may_hold_and_nothing_else() {
        let refused = [
            r#"{"type":"x","seq":1,"time":0,"data":{},"extra":1}"#,
            r#"{"type":"x","seq":1,"time":0}"#,
            r#"{"type":"x","seq":-1,"time":0,"data":{}}"#,
            r#"{"type":"x","seq":1.5,"time":0,"data":{}}"#,
            r#"{"type":"x","seq":1,"time":0,"data":{},"surfaceOp":"append"}"#,
            r#"{"type":"x","seq":1,"time":0,"data":{},"sourceEventSeqs":[0]}"#,
            r#"{"type":"step/start","seq":1,"time":0,"data":{"turn":1}}"#,
            r#"{"type":"turn/end","seq":1,"time":0,"data":{"turn":1,"reason":{"kind":"bored"}}}"#,
            r#"{"type":"user/message","seq":1,"time":0,"data":{"content":[],"source":{"kind":"user"},"role":"user","id":"m"}}"#,
            r#"{"type":"user/message","seq":1,"time":0,"data":{"content":[],"source":{"kind":"user"},"role":"user","id":"m"},"surfaceOp":null}"#,
            r#"{"type":"user/message","seq":1,"time":0,"data":{"content":[],"source":{"kind":"user"},"role":"user","id":"m"},"surfaceOp":{"op":"replace","start":1}}"#,
            "",
            "{",
            "\0\0\0",
            "[]",
        ];
        for line in refused {
            let error = parse(line).expect_err(line);
            assert_eq!(error.code(), ErrorCode::DamagedLog, "{line}");
        }
    }

    #[test]
    fn a_time_that_is_no_whole_number_is_legal_and_kept() {
        for (time, read) in [("12.75", 12), ("-3", 0), ("1e3", 1000)] {
            let line = format!(r#"{{"type":"x","seq":1,"time":{time},"data":null}}"#);
            let event = parse(&line).expect("an event");
            assert_eq!((event.time, event.to_line()), (read, line));
        }
    }

    #[test]
    fn unknown_fields_of_a_known_type_do_not_hide_it_and_are_kept() {
        let line = r#"{"type":"step/start","seq":1,"time":0,"data":{"turn":1,"step":2,"why":"x"}}"#;
        let event = parse(line).expect("an event");
        assert_eq!(event.body, EventBody::StepStart { turn: 1, step: 2 });
        assert_eq!(event.to_line(), line);
    }

    #[test]
    fn both_surface_operations_have_the_reference_form() {
        let message = user("m");
        assert_eq!(message.source, MessageSource::User);
        let draft = Draft::user_message(message).replacing(2, 4).from_sources(vec![2, 3, 4]);
        let line = Event::new(9, 1, draft.clone()).to_line();
        let end = r#","sourceEventSeqs":[2,3,4],"surfaceOp":{"op":"replace","start":2,"end":4}}"#;
        assert!(line.ends_with(end), "{line}");
        assert_eq!(parse(&line).expect("an event"), Event::new(9, 1, draft));
    }
}
