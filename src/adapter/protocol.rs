//! JSON-RPC 2.0 as this adapter speaks it: what a line means, and how an answer is written. Pure.

use std::fmt;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};

use crate::error::ErrorCode;
use crate::ids::TaskId;
use crate::runtime::Panicked;

/// The line is not JSON.
pub const PARSE_ERROR: i64 = -32700;
/// The line is JSON, but no request.
pub const INVALID_REQUEST: i64 = -32600;
/// No method of that name.
pub const METHOD_NOT_FOUND: i64 = -32601;
/// The parameters do not fit the method.
pub const INVALID_PARAMS: i64 = -32602;
/// The adapter itself failed.
pub const INTERNAL_ERROR: i64 = -32603;
/// The runtime refused; `data.code` is the stable code.
pub const REFUSED: i64 = -32000;

/// The notification that fires a call's signal.
pub const CANCEL: &str = "$/cancelRequest";

/// Names a call within its connection.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(untagged)]
pub enum RequestId {
    /// A whole number.
    Number(i64),
    /// Any text.
    Text(String),
}

impl fmt::Display for RequestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Number(number) => write!(f, "{number}"),
            Self::Text(text) => write!(f, "{text:?}"),
        }
    }
}

/// A call, with its parameters. Session ids are checked where they are used, for they are input.
#[derive(Debug, Clone, PartialEq)]
pub enum Call {
    /// Lists the children of a session.
    Children {
        /// The session.
        parent: String,
    },
    /// Reads a child's log.
    Transcript {
        /// The child's parent session.
        parent: String,
        /// The child.
        child: String,
        /// The first event wanted.
        from: u64,
    },
    /// Sends a message to a child.
    Send {
        /// The loaded parent.
        parent: String,
        /// The child.
        child: String,
        /// What to say.
        text: String,
    },
    /// Waits for a Task.
    Wait {
        /// The loaded parent.
        parent: String,
        /// The Task.
        task: TaskId,
        /// How long, in milliseconds; for ever without.
        timeout_ms: Option<f64>,
    },
    /// Reads a Task's output.
    Output {
        /// The loaded parent.
        parent: String,
        /// The Task.
        task: TaskId,
    },
    /// Kills a Task.
    Kill {
        /// The loaded parent.
        parent: String,
        /// The Task.
        task: TaskId,
        /// What the child's log says of it.
        reason: Option<String>,
    },
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct OfParent {
    parent: String,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct OfTranscript {
    parent: String,
    child: String,
    #[serde(default)]
    from: u64,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct OfSend {
    parent: String,
    child: String,
    text: String,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct OfWait {
    parent: String,
    task: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    timeout_ms: Option<f64>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct OfTask {
    parent: String,
    task: String,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct OfKill {
    parent: String,
    task: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
}

impl Call {
    /// Its method.
    pub fn method(&self) -> &'static str {
        match self {
            Self::Children { .. } => "children",
            Self::Transcript { .. } => "transcript",
            Self::Send { .. } => "send",
            Self::Wait { .. } => "wait",
            Self::Output { .. } => "output",
            Self::Kill { .. } => "kill",
        }
    }

    fn read(method: &str, params: Value) -> Result<Self, RpcError> {
        Ok(match method {
            "children" => {
                let OfParent { parent } = fit(params)?;
                Self::Children { parent }
            }
            "transcript" => {
                let OfTranscript { parent, child, from } = fit(params)?;
                Self::Transcript { parent, child, from }
            }
            "send" => {
                let OfSend { parent, child, text } = fit(params)?;
                Self::Send { parent, child, text }
            }
            "wait" => {
                let OfWait { parent, task, timeout_ms } = fit(params)?;
                Self::Wait { parent, task: TaskId::new(task), timeout_ms }
            }
            "output" => {
                let OfTask { parent, task } = fit(params)?;
                Self::Output { parent, task: TaskId::new(task) }
            }
            "kill" => {
                let OfKill { parent, task, reason } = fit(params)?;
                Self::Kill { parent, task: TaskId::new(task), reason }
            }
            _ => {
                let message = format!("there is no method {method:?}");
                return Err(RpcError { code: METHOD_NOT_FOUND, message, data: None });
            }
        })
    }

    fn params(&self) -> Value {
        match self.clone() {
            Self::Children { parent } => json!(OfParent { parent }),
            Self::Transcript { parent, child, from } => json!(OfTranscript { parent, child, from }),
            Self::Send { parent, child, text } => json!(OfSend { parent, child, text }),
            Self::Wait { parent, task, timeout_ms } => {
                json!(OfWait { parent, task: task.as_str().to_owned(), timeout_ms })
            }
            Self::Output { parent, task } => {
                json!(OfTask { parent, task: task.as_str().to_owned() })
            }
            Self::Kill { parent, task, reason } => {
                json!(OfKill { parent, task: task.as_str().to_owned(), reason })
            }
        }
    }

    /// The line that asks for it.
    pub fn to_line(&self, id: &RequestId) -> String {
        json!({ "jsonrpc": "2.0", "id": id, "method": self.method(), "params": self.params() })
            .to_string()
    }
}

/// The line that fires the signal of the call `id`.
pub fn cancel_line(id: &RequestId) -> String {
    json!({ "jsonrpc": "2.0", "method": CANCEL, "params": { "id": id } }).to_string()
}

fn fit<T: DeserializeOwned>(params: Value) -> Result<T, RpcError> {
    serde_json::from_value(params).map_err(|error| RpcError {
        code: INVALID_PARAMS,
        message: format!("invalid parameters: {error}"),
        data: None,
    })
}

/// What a line from a person means.
#[derive(Debug, Clone, PartialEq)]
pub enum Incoming {
    /// A call that wants an answer.
    Call {
        /// Its id.
        id: RequestId,
        /// What it asks for.
        call: Call,
    },
    /// The signal of a call is to fire.
    Cancel {
        /// The call.
        id: RequestId,
    },
    /// A notification of another kind, or an empty line: no answer is due.
    Ignored,
}

/// Reads a line.
///
/// # Errors
///
/// What to answer, and to which id: not JSON, no request (also a batch, which this adapter does not
/// take), an unknown method, parameters that do not fit.
pub fn parse(line: &[u8]) -> Result<Incoming, (Option<RequestId>, RpcError)> {
    if line.trim_ascii().is_empty() {
        return Ok(Incoming::Ignored);
    }
    let value: Value = serde_json::from_slice(line)
        .map_err(|error| (None, RpcError::parse(&format!("not JSON: {error}"))))?;
    let Value::Object(mut request) = value else {
        return Err((None, RpcError::invalid("a request is one object")));
    };
    let id = match request.remove("id") {
        None => None,
        Some(id) => match serde_json::from_value(id) {
            Ok(id) => Some(id),
            Err(_) => {
                return Err((None, RpcError::invalid("an id is a whole number or a text")));
            }
        },
    };
    let refuse = |error| (id.clone(), error);
    if request.get("jsonrpc").and_then(Value::as_str) != Some("2.0") {
        return Err(refuse(RpcError::invalid("\"jsonrpc\" is not \"2.0\"")));
    }
    let Some(Value::String(method)) = request.remove("method") else {
        return Err(refuse(RpcError::invalid("\"method\" is missing or no text")));
    };
    let params = request.remove("params").unwrap_or_else(|| Value::Object(Map::new()));
    match id {
        Some(id) => match Call::read(&method, params) {
            Ok(call) => Ok(Incoming::Call { id, call }),
            Err(error) => Err((Some(id), error)),
        },
        None if method == CANCEL => {
            // A notification has no answer, not even to nonsense.
            let id = params.get("id").cloned().map(serde_json::from_value);
            Ok(id.and_then(Result::ok).map_or(Incoming::Ignored, |id| Incoming::Cancel { id }))
        }
        None => Ok(Incoming::Ignored),
    }
}

/// Why a call failed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RpcError {
    /// A number of JSON-RPC.
    pub code: i64,
    /// For people.
    pub message: String,
    /// The stable code, where the runtime refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data: Option<RefusalData>,
}

/// What a program may decide by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct RefusalData {
    /// The stable code.
    pub code: ErrorCode,
}

impl RpcError {
    /// The runtime refused.
    pub fn refused(code: ErrorCode, message: impl fmt::Display) -> Self {
        let data = Some(RefusalData { code });
        Self { code: REFUSED, message: message.to_string(), data }
    }

    pub(super) fn input(error: &dyn fmt::Display) -> Self {
        Self::refused(ErrorCode::InvalidInput, error)
    }

    pub(super) fn parse(message: &str) -> Self {
        Self { code: PARSE_ERROR, message: message.to_owned(), data: None }
    }

    pub(super) fn invalid(message: &str) -> Self {
        Self { code: INVALID_REQUEST, message: message.to_owned(), data: None }
    }

    pub(super) fn internal(panicked: &Panicked) -> Self {
        let data = Some(RefusalData { code: ErrorCode::Panicked });
        Self { code: INTERNAL_ERROR, message: panicked.to_string(), data }
    }
}

/// An answer.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Response {
    jsonrpc: Version,
    /// The call; null where the line named none.
    pub id: Option<RequestId>,
    /// What it gave.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result: Option<Box<RawValue>>,
    /// Why it failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<RpcError>,
}

/// The version that both sides name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
enum Version {
    #[serde(rename = "2.0")]
    Two,
}

impl Response {
    pub(super) fn new(id: Option<RequestId>, outcome: Result<Box<RawValue>, RpcError>) -> Self {
        let (result, error) = match outcome {
            Ok(result) => (Some(result), None),
            Err(error) => (None, Some(error)),
        };
        Self { jsonrpc: Version::Two, id, result, error }
    }

    pub(super) fn to_line(&self) -> String {
        serde_json::to_string(self).expect("an answer is JSON")
    }

    pub(super) fn into_outcome(self) -> Result<Box<RawValue>, Option<RpcError>> {
        self.error.map_or_else(|| self.result.ok_or(None), |error| Err(Some(error)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_is_read_as_it_was_written() {
        let task = TaskId::new("subagent-3");
        let parent = || "p".to_owned();
        let child = || "c\u{2028}\n".to_owned();
        let calls = [
            Call::Children { parent: parent() },
            Call::Transcript { parent: parent(), child: child(), from: 7 },
            Call::Send { parent: parent(), child: child(), text: "a\nb\"".to_owned() },
            Call::Wait { parent: parent(), task: task.clone(), timeout_ms: Some(0.5) },
            Call::Output { parent: parent(), task: task.clone() },
            Call::Kill { parent: parent(), task, reason: Some("enough".to_owned()) },
        ];
        for call in calls {
            for id in [RequestId::Number(-1), RequestId::Text("x".to_owned())] {
                let line = call.to_line(&id);
                assert!(!line.contains('\n'), "{line}");
                let read = parse(line.as_bytes());
                assert_eq!(read, Ok(Incoming::Call { id, call: call.clone() }));
            }
        }
        let id = RequestId::Number(4);
        assert_eq!(parse(cancel_line(&id).as_bytes()), Ok(Incoming::Cancel { id }));
    }

    #[test]
    fn every_wrong_line_has_its_code_and_its_id() {
        let cases = [
            ("{", None, PARSE_ERROR),
            ("\u{feff}{}", None, PARSE_ERROR),
            ("[]", None, INVALID_REQUEST),
            (r#"{"id":1.5,"jsonrpc":"2.0","method":"kill"}"#, None, INVALID_REQUEST),
            (r#"{"id":{},"jsonrpc":"2.0","method":"kill"}"#, None, INVALID_REQUEST),
            (r#"{"id":1,"method":"kill"}"#, Some(1), INVALID_REQUEST),
            (r#"{"id":1,"jsonrpc":"2.0"}"#, Some(1), INVALID_REQUEST),
            (r#"{"id":1,"jsonrpc":"2.0","method":"eat"}"#, Some(1), METHOD_NOT_FOUND),
            (r#"{"id":1,"jsonrpc":"2.0","method":"kill"}"#, Some(1), INVALID_PARAMS),
            (
                r#"{"id":1,"jsonrpc":"2.0","method":"children","params":{"parent":"p","x":1}}"#,
                Some(1),
                INVALID_PARAMS,
            ),
            (
                r#"{"id":1,"jsonrpc":"2.0","method":"transcript","params":{"parent":"p","child":"c","from":-1}}"#,
                Some(1),
                INVALID_PARAMS,
            ),
        ];
        for (line, id, code) in cases {
            let (named, error) = parse(line.as_bytes()).expect_err(line);
            assert_eq!((named, error.code), (id.map(RequestId::Number), code), "{line}");
        }
        let (named, error) = parse(b"\"\xff\"").expect_err("not UTF-8");
        assert_eq!((named, error.code), (None, PARSE_ERROR));
    }

    #[test]
    fn notifications_and_empty_lines_have_no_answer() {
        let lines = [
            "",
            " \r",
            r#"{"jsonrpc":"2.0","method":"kill"}"#,
            r#"{"jsonrpc":"2.0","method":"$/cancelRequest"}"#,
            r#"{"jsonrpc":"2.0","method":"$/cancelRequest","params":{"id":[]}}"#,
        ];
        for line in lines {
            assert_eq!(parse(line.as_bytes()), Ok(Incoming::Ignored), "{line}");
        }
    }
}
