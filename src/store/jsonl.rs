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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const HEADER: &str =
        r#"{"type":"session","version":0,"id":"s","createdAt":5,"delegationDepth":0}"#;
    const START: &str =
        r#"{"type":"turn/start","seq":0,"time":1,"data":{"turn":1,"trigger":{"kind":"retry"}}}"#;
    const END: &str =
        r#"{"type":"turn/end","seq":1,"time":2,"data":{"turn":1,"reason":{"kind":"completed"}}}"#;
    const NOTE: &str = r#"{"type":"session/title","seq":2,"time":3,"data":{"title":"t"}}"#;

    fn log(lines: &[&str]) -> Vec<u8> {
        let mut text = String::new();
        for line in lines {
            text.push_str(line);
            text.push('\n');
        }
        text.into_bytes()
    }

    fn offset_of(lines: &[&str]) -> u64 {
        log(lines).len() as u64
    }

    #[test]
    fn a_header_is_written_in_the_reference_order_and_reads_back() {
        let mut header = SessionHeader::new(SessionId::new("child"), 7);
        header.cwd = Some("/project".to_owned());
        header.parent_session = Some(SessionId::new("parent"));
        header.seed_length = Some(13);
        header.delegation_depth = 1;
        let line = encode_header(&header);
        assert_eq!(
            String::from_utf8_lossy(&line),
            "{\"type\":\"session\",\"version\":0,\"id\":\"child\",\"createdAt\":7,\"cwd\":\"/project\",\
             \"parentSession\":\"parent\",\"seedLength\":13,\"delegationDepth\":1}\n"
        );
        assert_eq!(decode_header(&line), Ok(header));
    }

    #[test]
    fn bad_headers_are_refused_at_byte_zero() {
        for (line, what) in [
            ("", "the file is empty"),
            (HEADER, "the header line is torn"),
            ("x\n", "the header is not JSON: expected value at line 1 column 1"),
            ("{\"type\":\"turn/start\"}\n", "the first line is not a session header"),
        ] {
            let want = LogError::Damaged { offset: 0, what: what.to_owned() };
            assert_eq!(decode_header(line.as_bytes()), Err(want), "{line}");
        }
        for (from, to) in [
            ("\"createdAt\":5", "\"createdAt\":-0"),
            ("\"createdAt\":5", "\"createdAt\":1.5"),
            ("\"createdAt\":5", "\"createdAt\":-3"),
            ("\"createdAt\":5", "\"createdAt\":9007199254740992"),
            ("\"createdAt\":5", "\"createdAt\":\"5\""),
            ("\"createdAt\":5", "\"created\":5"),
            ("\"delegationDepth\":0", "\"delegationDepth\":-0"),
            ("\"delegationDepth\":0", "\"depth\":0"),
            ("\"id\":\"s\"", "\"id\":7"),
        ] {
            let line = format!("{}\n", HEADER.replace(from, to));
            let error = decode_header(line.as_bytes()).expect_err(to);
            assert!(matches!(error, LogError::Damaged { offset: 0, .. }), "{to}: {error}");
        }
        for (from, to) in [
            ("\"version\":0", "\"version\":1"),
            ("\"version\":0,", ""),
            ("\"version\":0", "\"version\":0,\"sandboxMode\":\"x\""),
            ("\"version\":0", "\"version\":0,\"approvalPolicy\":\"x\""),
        ] {
            let line = format!("{}\n", HEADER.replace(from, to));
            let error = decode_header(line.as_bytes()).expect_err(to);
            assert!(matches!(error, LogError::Unsupported { offset: 0, .. }), "{to}: {error}");
        }
    }

    #[test]
    fn integers_are_read_as_javascript_reads_them() {
        let line = format!("{}\n", HEADER.replace("\"createdAt\":5", "\"createdAt\":1.5e3"));
        assert_eq!(decode_header(line.as_bytes()).map(|header| header.created_at), Ok(1_500));
    }

    #[test]
    fn a_header_alone_is_an_empty_log() {
        let read = decode(&log(&[HEADER])).expect("a log");
        assert!(read.events.is_empty() && read.tail_cut.is_none());
    }

    #[test]
    fn packed_rows_unpack_to_the_chunks_they_stand_for() {
        let text = r#"{"type":"text-chunks","seq0":0,"time0":10,"data":{"turn":1,"step":2,"index":3,"dt":[0,4],"texts":["a","\ud83d","\ude00"]}}"#;
        let call = r#"{"type":"tool-call-chunks","seq0":3,"time0":20,"data":{"turn":1,"step":2,"index":4,"dt":[1],"id":"k","name":"n","args":["{","}"]}}"#;
        let reasoning = r#"{"type":"reasoning-chunks","seq0":5,"time0":30,"data":{"turn":1,"step":2,"index":5,"dt":[],"texts":["r"]}}"#;
        let read = decode(&log(&[HEADER, text, call, reasoning])).expect("a log");
        let lines = String::from_utf8(encode_events(&read.events)).expect("UTF-8");
        let want = [
            r#"{"type":"assistant/chunk","seq":0,"time":10,"data":{"turn":1,"step":2,"chunk":{"type":"text-delta","index":3,"text":"a"}}}"#,
            r#"{"type":"assistant/chunk","seq":1,"time":10,"data":{"turn":1,"step":2,"chunk":{"type":"text-delta","index":3,"text":"\ud83d"}}}"#,
            r#"{"type":"assistant/chunk","seq":2,"time":14,"data":{"turn":1,"step":2,"chunk":{"type":"text-delta","index":3,"text":"\ude00"}}}"#,
            r#"{"type":"assistant/chunk","seq":3,"time":20,"data":{"turn":1,"step":2,"chunk":{"type":"tool-call-delta","index":4,"id":"k","name":"n","argumentsDelta":"{"}}}"#,
            r#"{"type":"assistant/chunk","seq":4,"time":21,"data":{"turn":1,"step":2,"chunk":{"type":"tool-call-delta","index":4,"id":"k","name":"n","argumentsDelta":"}"}}}"#,
            r#"{"type":"assistant/chunk","seq":5,"time":30,"data":{"turn":1,"step":2,"chunk":{"type":"reasoning-delta","index":5,"text":"r"}}}"#,
        ];
        assert_eq!(lines.lines().collect::<Vec<_>>(), want);
    }

    #[test]
    fn a_malformed_row_is_dropped_whole_from_the_tail() {
        for row in [
            r#"{"type":"text-chunks","seq0":2,"time0":1,"data":{"turn":1,"step":1,"index":0,"dt":[],"texts":[]}}"#,
            r#"{"type":"text-chunks","seq0":2,"time0":1,"data":{"turn":1,"step":1,"index":0,"dt":[1],"texts":["a"]}}"#,
            r#"{"type":"text-chunks","seq0":2,"time0":1,"data":{"turn":1,"step":1,"index":0,"dt":[1],"texts":["a",7]}}"#,
            r#"{"type":"text-chunks","seq0":3,"time0":1,"data":{"turn":1,"step":1,"index":0,"dt":[],"texts":["a"]}}"#,
            r#"{"type":"text-chunks","seq0":2,"time0":1,"data":{"turn":1,"step":1,"index":0,"dt":[],"args":["a"]}}"#,
            r#"{"type":"tool-call-chunks","seq0":2,"time0":1,"data":{"turn":1,"step":1,"index":0,"dt":[],"args":["a"]}}"#,
        ] {
            let read = decode(&log(&[HEADER, START, END, row])).expect("a torn tail");
            assert_eq!(read.events.len(), 2, "{row}");
            assert_eq!(read.tail_cut.map(|cut| cut.offset), Some(offset_of(&[HEADER, START, END])));
        }
    }

    #[test]
    fn damage_after_the_last_turn_end_is_a_torn_tail() {
        let whole = log(&[HEADER, START, END]);
        for tail in ["{\"type\":\"sess", "\0\0\0\0", "garbage\n", "\n", "\0\0\n", END] {
            let mut bytes = whole.clone();
            bytes.extend_from_slice(tail.as_bytes());
            let read = decode(&bytes).expect("a torn tail");
            let cut = TailCut { offset: whole.len() as u64, bytes: tail.len() as u64 };
            assert_eq!(read.tail_cut, Some(cut), "{tail:?}");
            assert_eq!((read.events.len(), read.kept), (2, cut.offset));
        }
        let gap = NOTE.replace("\"seq\":2", "\"seq\":3");
        let read = decode(&log(&[HEADER, START, END, &gap, NOTE])).expect("a torn tail");
        assert_eq!(read.events.len(), 2);
    }

    #[test]
    fn damage_at_or_before_the_last_turn_end_is_an_error_with_its_offset() {
        let gap = END.replace("\"seq\":1", "\"seq\":2");
        let torn = format!("\0\0\0{END}");
        for lines in [
            vec![HEADER, "garbage", START, END],
            vec![HEADER, "\0\0\0", END],
            vec![HEADER, &gap],
            vec![HEADER, &torn],
            vec![HEADER, "{\"type\":\"text-chunks\"}", NOTE, END],
        ] {
            let error = decode(&log(&lines)).expect_err("committed damage");
            assert!(
                matches!(error, LogError::Damaged { offset, .. } if offset == offset_of(&[HEADER])),
                "{error}"
            );
        }
    }

    #[test]
    fn legacy_shapes_are_unsupported() {
        for line in [
            r#"{"type":"mode/set","seq":0,"time":1,"data":{}}"#,
            r#"{"type":"request/header-delta","seq":0,"time":1,"data":{}}"#,
            r#"{"type":"request/header","seq":0,"time":1,"data":{"header":{},"reason":"fallback"}}"#,
        ] {
            let error = decode(&log(&[HEADER, line])).expect_err("legacy");
            let at = offset_of(&[HEADER]);
            assert!(matches!(error, LogError::Unsupported { offset, .. } if offset == at));
        }
    }

    #[test]
    fn events_keep_their_bytes() {
        let odd = r#"{ "type":"x/y", "seq":2,"time":3.5,"data":{"z":1e400,"a":"\ud800"}}"#;
        let lines = [START, END, odd];
        let read = decode(&log(&[HEADER, START, END, odd])).expect("a log");
        assert_eq!(encode_events(&read.events), log(&lines));
    }

    proptest! {
        #[test]
        fn any_prefix_of_a_log_loads_to_whole_events_or_names_the_header(cut in 0_usize..1_000) {
            let whole = log(&[HEADER, START, END, NOTE]);
            let cut = cut.min(whole.len());
            match decode(&whole[..cut]) {
                Ok(read) => {
                    let left = read.tail_cut.map_or(0, |cut| cut.bytes);
                    prop_assert_eq!(read.kept + left, cut as u64);
                    prop_assert_eq!(&log(&[HEADER, START, END, NOTE])[..read.kept as usize],
                        [encode_header(&read.header), encode_events(&read.events)].concat());
                }
                Err(LogError::Damaged { offset, .. }) => {
                    prop_assert_eq!(offset, 0);
                    prop_assert!(cut <= HEADER.len());
                }
                Err(other) => prop_assert!(false, "{}", other),
            }
        }

        #[test]
        fn any_bytes_are_read_without_a_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            drop(decode(&[log(&[HEADER, START]), bytes].concat()));
        }
    }
}
