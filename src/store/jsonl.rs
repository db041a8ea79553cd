//! The bytes of a session log (fact-sheet 2.8, 2.9). Pure: bytes in, header and events out.
//!
//! One header line, then one event a line. Reading also takes packed chunk rows; writing never
//! packs. A damaged line decides by its position: at or before the last `turn/end` of the whole
//! file it is an error, after it the rest of the file is a torn tail (contract P12).

use std::borrow::Cow;
use std::sync::Arc;

use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use crate::ids::SessionId;
use crate::session::codec::LineError;
use crate::session::event::{Draft, Event, SESSION_FORMAT_VERSION, SessionHeader};
use crate::session::raw::{RawJson, readable};

/// The largest integer that the reference reads exactly.
const SAFE_INTEGER: u64 = (1 << 53) - 1;

/// A torn tail: where it begins, and how much is not kept (contract P12).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TailCut {
    /// The first byte that is not kept; also how many bytes are.
    pub offset: u64,
    /// How many bytes are not kept.
    pub bytes: u64,
}

/// A log as it was read.
#[derive(Debug, Clone)]
pub struct DecodedLog {
    /// The first line.
    pub header: SessionHeader,
    /// The valid events, contiguous from 0.
    pub events: Vec<Arc<Event>>,
    /// How many bytes the header and the valid events take.
    pub kept: u64,
    /// What follows them.
    pub tail_cut: Option<TailCut>,
}

/// Why bytes are not a log.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LogError {
    /// Damage at or before the last `turn/end`.
    #[error("damaged at byte {offset}: {what}")]
    Damaged {
        /// Where the damaged line begins.
        offset: u64,
        /// What is wrong with it.
        what: String,
    },
    /// A version or shape that is not read.
    #[error("unsupported at byte {offset}: {what}")]
    Unsupported {
        /// Where the line begins.
        offset: u64,
        /// What is not supported.
        what: String,
    },
}

impl LogError {
    fn damaged(offset: u64, what: impl ToString) -> Self {
        Self::Damaged { offset, what: what.to_string() }
    }

    fn unsupported(offset: u64, what: impl ToString) -> Self {
        Self::Unsupported { offset, what: what.to_string() }
    }
}

/// The header's line, with its newline.
pub fn encode_header(header: &SessionHeader) -> Vec<u8> {
    let mut line = Map::new();
    line.insert("type".to_owned(), "session".into());
    line.insert("version".to_owned(), header.version.into());
    line.insert("id".to_owned(), header.id.as_str().into());
    line.insert("createdAt".to_owned(), header.created_at.into());
    if let Some(cwd) = &header.cwd {
        line.insert("cwd".to_owned(), cwd.as_str().into());
    }
    if let Some(parent) = &header.parent_session {
        line.insert("parentSession".to_owned(), parent.as_str().into());
    }
    if let Some(seed_length) = header.seed_length {
        line.insert("seedLength".to_owned(), seed_length.into());
    }
    line.insert("delegationDepth".to_owned(), header.delegation_depth.into());
    let mut bytes = Value::Object(line).to_string().into_bytes();
    bytes.push(b'\n');
    bytes
}

/// The lines of `events`, each with its newline.
pub fn encode_events<'a>(events: impl IntoIterator<Item = &'a Arc<Event>>) -> Vec<u8> {
    let mut bytes = Vec::new();
    for event in events {
        match &event.raw {
            Some(raw) => bytes.extend_from_slice(raw.as_bytes()),
            None => bytes.extend_from_slice(event.fresh_line().as_bytes()),
        }
        bytes.push(b'\n');
    }
    bytes
}

/// A non-negative safe integer as JavaScript reads one: `1.0` and `1e3` are, `-0` is not.
fn safe_integer(value: &Value) -> Option<u64> {
    let number = match value.as_u64() {
        Some(number) => number,
        None => {
            let number = value.as_f64()?;
            if number.is_sign_negative() || number.fract() != 0.0 || number > SAFE_INTEGER as f64 {
                return None;
            }
            number as u64
        }
    };
    (number <= SAFE_INTEGER).then_some(number)
}

/// Reads the header from the first line of a log, newline included.
///
/// # Errors
///
/// [`LogError`] at byte 0: not a header, or a version or a retired field that is not read.
pub fn decode_header(line: &[u8]) -> Result<SessionHeader, LogError> {
    let damaged = |what: &str| LogError::damaged(0, what);
    if line.is_empty() {
        return Err(damaged("the file is empty"));
    }
    let text = line.strip_suffix(b"\n").ok_or_else(|| damaged("the header line is torn"))?;
    let text = std::str::from_utf8(text).map_err(|_| damaged("the header is not UTF-8"))?;
    let value: Value = serde_json::from_str(&readable(text))
        .map_err(|error| LogError::damaged(0, format_args!("the header is not JSON: {error}")))?;
    if value.get("type").and_then(Value::as_str) != Some("session") {
        return Err(damaged("the first line is not a session header"));
    }
    let version = value.get("version").and_then(safe_integer);
    if version != Some(SESSION_FORMAT_VERSION) {
        let what = format_args!("format version {}", value.get("version").unwrap_or(&Value::Null));
        return Err(LogError::unsupported(0, what));
    }
    for retired in ["sandboxMode", "approvalPolicy"] {
        if value.get(retired).is_some() {
            return Err(LogError::unsupported(0, format_args!("the retired field {retired}")));
        }
    }
    let text = |key: &str| match value.get(key) {
        None => Ok(None),
        Some(Value::String(text)) => Ok(Some(text.clone())),
        Some(_) => Err(LogError::damaged(0, format_args!("the header's {key} is not a string"))),
    };
    let integer = |key: &str| match value.get(key) {
        None => Ok(None),
        Some(found) => safe_integer(found).map(Some).ok_or_else(|| {
            let what = format_args!("the header's {key} is not a non-negative safe integer");
            LogError::damaged(0, what)
        }),
    };
    let missing = |key: &str| LogError::damaged(0, format_args!("the header has no {key}"));
    Ok(SessionHeader {
        version: SESSION_FORMAT_VERSION,
        id: SessionId::new(text("id")?.ok_or_else(|| missing("id"))?),
        created_at: integer("createdAt")?.ok_or_else(|| missing("createdAt"))?,
        cwd: text("cwd")?,
        parent_session: text("parentSession")?.map(SessionId::new),
        seed_length: integer("seedLength")?,
        delegation_depth: integer("delegationDepth")?.ok_or_else(|| missing("delegationDepth"))?,
    })
}

/// Reads a whole log.
///
/// # Errors
///
/// [`LogError`]: the header, damage at or before the last `turn/end`, or a legacy shape.
pub fn decode(bytes: &[u8]) -> Result<DecodedLog, LogError> {
    let mut lines = Lines { bytes, offset: 0 };
    let header = decode_header(lines.next().unwrap_or_default().1)?;
    let mut events = Vec::new();
    let mut tail = None;
    while let Some((offset, line)) = lines.next() {
        match read_line(line, events.len() as u64, &header.id) {
            Ok(read) => read.add_to(&mut events),
            Err(LineFault::Legacy(what)) => {
                return Err(LogError::unsupported(offset as u64, what));
            }
            Err(LineFault::Damaged(what)) => {
                if ends_a_turn(line) || lines.any(|(_, line)| ends_a_turn(line)) {
                    return Err(LogError::damaged(offset as u64, what));
                }
                tail = Some(offset);
                break;
            }
        }
    }
    let kept = tail.unwrap_or(bytes.len()) as u64;
    let tail_cut = tail.map(|_| TailCut { offset: kept, bytes: bytes.len() as u64 - kept });
    Ok(DecodedLog { header, events, kept, tail_cut })
}

/// Lines with their offsets; each but perhaps the last ends in a newline.
struct Lines<'a> {
    bytes: &'a [u8],
    offset: usize,
}

impl<'a> Iterator for Lines<'a> {
    type Item = (usize, &'a [u8]);

    fn next(&mut self) -> Option<Self::Item> {
        let rest = &self.bytes[self.offset..];
        let length = match rest.iter().position(|byte| *byte == b'\n') {
            Some(newline) => newline + 1,
            None if rest.is_empty() => return None,
            None => rest.len(),
        };
        let line = (self.offset, &rest[..length]);
        self.offset += length;
        Some(line)
    }
}

enum LineFault {
    Damaged(String),
    Legacy(String),
}

impl From<LineError> for LineFault {
    fn from(error: LineError) -> Self {
        if error.is_legacy() {
            return Self::Legacy(error.to_string());
        }
        Self::Damaged(match &error {
            LineError::Json(source) => format!("{error}: {source}"),
            _ => error.to_string(),
        })
    }
}

enum Read {
    One(Event),
    Row(Vec<Event>),
}

impl Read {
    fn add_to(self, events: &mut Vec<Arc<Event>>) {
        match self {
            Self::One(event) => events.push(Arc::new(event)),
            Self::Row(row) => events.extend(row.into_iter().map(Arc::new)),
        }
    }
}

/// Reads one line, which must go on at sequence number `next`.
fn read_line(line: &[u8], next: u64, session: &SessionId) -> Result<Read, LineFault> {
    let damaged = |what: String| LineFault::Damaged(what);
    let line = line.strip_suffix(b"\n").ok_or_else(|| damaged("the line is torn".to_owned()))?;
    let text = std::str::from_utf8(line).map_err(|error| damaged(error.to_string()))?;
    let (first, read) = match row_kind(text) {
        Some(delta) => {
            let row = read_row(text, delta)
                .map_err(|what| damaged(format!("a malformed packed row: {what}")))?;
            (row[0].seq, Read::Row(row))
        }
        None => {
            let event = Event::parse_line(text, session)?;
            (event.seq, Read::One(event))
        }
    };
    if first != next {
        return Err(damaged(format!("event {first} stands where event {next} should")));
    }
    Ok(read)
}

#[derive(Deserialize)]
struct Kind<'a> {
    #[serde(rename = "type", borrow)]
    kind: Cow<'a, str>,
}

/// Whether the line, complete and on its own, is a `turn/end`, at whatever sequence number. NUL
/// bytes before it are a hole that a crash left.
fn ends_a_turn(line: &[u8]) -> bool {
    let Some(line) = line.strip_suffix(b"\n") else { return false };
    let start = line.iter().position(|byte| *byte != 0).unwrap_or(line.len());
    std::str::from_utf8(&line[start..]).is_ok_and(|text| {
        serde_json::from_str::<Kind<'_>>(&readable(text)).is_ok_and(|line| line.kind == "turn/end")
    })
}

/// The chunk type that a packed row holds, if the line is one.
fn row_kind(text: &str) -> Option<&'static str> {
    // Most lines are no rows and are spared the second parse.
    if !text.contains("-chunks\"") {
        return None;
    }
    let shown = readable(text);
    let line: Kind<'_> = serde_json::from_str(&shown).ok()?;
    match &*line.kind {
        "text-chunks" => Some("text-delta"),
        "reasoning-chunks" => Some("reasoning-delta"),
        "tool-call-chunks" => Some("tool-call-delta"),
        _ => None,
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Row<'a> {
    #[serde(rename = "type")]
    _kind: Cow<'a, str>,
    seq0: u64,
    time0: i64,
    #[serde(borrow)]
    data: RowData<'a>,
}

/// Pieces stay raw JSON strings: a piece may end inside a surrogate pair.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RowData<'a> {
    turn: u64,
    step: u64,
    index: u64,
    dt: Vec<i64>,
    #[serde(borrow, default)]
    texts: Option<Vec<&'a RawValue>>,
    #[serde(borrow, default)]
    id: Option<&'a RawValue>,
    #[serde(borrow, default)]
    name: Option<&'a RawValue>,
    #[serde(borrow, default)]
    args: Option<Vec<&'a RawValue>>,
}

fn is_string(raw: &RawValue) -> bool {
    raw.get().starts_with('"')
}

/// Unpacks a row into the events it stands for: never none.
fn read_row(text: &str, delta: &str) -> Result<Vec<Event>, String> {
    let row: Row<'_> = serde_json::from_str(text).map_err(|error| error.to_string())?;
    let RowData { turn, step, index, dt, texts, id, name, args } = row.data;
    let (pieces, key, labels) = match (delta, texts, args) {
        ("tool-call-delta", None, Some(args)) => {
            let id = id.filter(|id| is_string(id)).ok_or("no call id")?.get();
            let name = match name {
                Some(name) if !is_string(name) => return Err("the name is no string".to_owned()),
                Some(name) => format!(r#","name":{}"#, name.get()),
                None => String::new(),
            };
            (args, "argumentsDelta", format!(r#","id":{id}{name}"#))
        }
        ("text-delta" | "reasoning-delta", Some(texts), None) if id.is_none() && name.is_none() => {
            (texts, "text", String::new())
        }
        _ => return Err("its pieces do not fit its type".to_owned()),
    };
    if pieces.is_empty() || dt.len() + 1 != pieces.len() {
        return Err(format!("{} pieces and {} time steps", pieces.len(), dt.len()));
    }
    let mut time = row.time0;
    let mut events = Vec::with_capacity(pieces.len());
    let steps = std::iter::once(0).chain(dt);
    for ((seq, piece), step_time) in (row.seq0..).zip(pieces).zip(steps) {
        if !is_string(piece) {
            return Err("a piece is no string".to_owned());
        }
        time = time.checked_add(step_time).ok_or("a time step is out of range")?;
        let chunk =
            format!(r#"{{"type":"{delta}","index":{index}{labels},"{key}":{}}}"#, piece.get());
        let chunk = RawJson::checked(chunk).map_err(|error| error.to_string())?;
        let at = u64::try_from(time).map_err(|_| "a negative time")?;
        events.push(Event::new(seq, at, Draft::assistant_chunk(turn, step, chunk)));
    }
    Ok(events)
}
