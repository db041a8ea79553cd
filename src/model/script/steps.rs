//! What a script may say, one step per request.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};

use super::parts::{Part, chunks_of_call, chunks_of_text, finish};
use crate::message::ContentBlock;
use crate::model::{FinishReason, ModelChunk, ModelError, ModelRequest};

/// One tool call of a scripted response.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ScriptedCall {
    /// Its id; by default one that is unique in the session.
    pub id: Option<String>,
    /// The tool.
    pub name: String,
    /// The raw argument text.
    pub arguments: String,
}

impl ScriptedCall {
    /// A call with an id of its own.
    pub fn new(name: impl Into<String>, arguments: &Value) -> Self {
        Self { id: None, name: name.into(), arguments: arguments.to_string() }
    }

    /// The same call under the id `id`.
    #[must_use]
    pub fn with_id(self, id: impl Into<String>) -> Self {
        Self { id: Some(id.into()), ..self }
    }
}

/// A function from the request to its answer. Foreign code: it may panic.
pub type StepFn = Arc<dyn Fn(&ModelRequest) -> Step + Send + Sync>;

/// One step of a script. [`Step::Gate`], [`Step::Pause`] and [`Step::Func`] lead to another step of
/// the same request; every other step is a whole answer.
#[derive(Clone)]
pub enum Step {
    /// A text; the model is done.
    Say(String),
    /// A text in pieces, one chunk each, with a pause before every chunk but the first.
    SayPieces {
        /// The pieces.
        pieces: Vec<String>,
        /// The pause.
        pause: Duration,
    },
    /// Reasoning, then a text; the model is done.
    Think {
        /// The reasoning.
        reasoning: String,
        /// The text.
        text: String,
    },
    /// A short closing text; the model is done.
    Final,
    /// One tool call.
    Tool {
        /// The tool.
        name: String,
        /// Its arguments.
        arguments: Value,
    },
    /// Tool calls in one response.
    Tools(Vec<(String, Value)>),
    /// A text if not empty, and tool calls with full control over ids and argument text.
    Calls {
        /// The text.
        text: String,
        /// The calls.
        calls: Vec<ScriptedCall>,
    },
    /// A tool call whose arguments are not JSON.
    MalformedArgs {
        /// The tool.
        name: String,
    },
    /// Reports the run's structured result.
    Structured(Value),
    /// Done without a word.
    Empty,
    /// A text that hit the token limit.
    MaxTokens(String),
    /// The model declines.
    Refuse,
    /// The request fails before its first chunk.
    Err(String),
    /// The request is refused for its rate, before its first chunk.
    RateLimited,
    /// The response fails after this text's chunks.
    Break {
        /// The text that arrived.
        text: String,
        /// The failure.
        error: String,
    },
    /// The response ends after this text's chunks, without a finish.
    Cut(String),
    /// One chunk of text, then nothing until the request is cancelled.
    Hang,
    /// Text without end, one chunk per pause, until the request is cancelled.
    Endless(Duration),
    /// The client panics before its first chunk.
    Panic(String),
    /// The client panics after one chunk.
    PanicMidStream(String),
    /// Exactly these parts.
    Parts(Vec<Part>),
    /// Waits for the gate; then the script's next step answers.
    Gate(String),
    /// Waits; then the script's next step answers.
    Pause(Duration),
    /// Asks the function; what it returns answers.
    Func(StepFn),
    /// This step, for every request from now on.
    Always(Box<Step>),
}

impl Step {
    /// A text; the model is done.
    pub fn say(text: impl Into<String>) -> Self {
        Self::Say(text.into())
    }

    /// One tool call.
    pub fn tool(name: impl Into<String>, arguments: Value) -> Self {
        Self::Tool { name: name.into(), arguments }
    }

    /// Waits for the gate of that name.
    pub fn gate(name: impl Into<String>) -> Self {
        Self::Gate(name.into())
    }

    /// Asks `function`.
    pub fn func(function: impl Fn(&ModelRequest) -> Step + Send + Sync + 'static) -> Self {
        Self::Func(Arc::new(function))
    }

    /// A text whose response is held at `gate` after the first of its two chunks.
    pub fn held(before: &str, gate: impl Into<String>, after: &str) -> Self {
        let mut parts = chunks_of_text(0, &[before, after]);
        parts.insert(2, Part::Gate(gate.into()));
        parts.extend(finish(FinishReason::Stop));
        Self::Parts(parts)
    }

    /// The chunks of a step that answers at once, at that turn and step; waits and failures are left
    /// out.
    pub fn chunks(self, turn: u64, step: u64) -> Vec<ModelChunk> {
        let parts = self.parts(turn, step).into_iter();
        parts
            .filter_map(|part| match part {
                Part::Chunk(chunk) => Some(chunk),
                _ => None,
            })
            .collect()
    }

    /// The parts of a step that answers; a gate, pause or function has none.
    pub(super) fn parts(self, turn: u64, step: u64) -> Vec<Part> {
        let said = |text: &str, reason| ended(text_parts(text), reason);
        match self {
            Self::Say(text) => said(&text, FinishReason::Stop),
            Self::Final => said("Done.", FinishReason::Stop),
            Self::MaxTokens(text) => said(&text, FinishReason::MaxTokens),
            Self::Refuse => said("I cannot help with that.", FinishReason::Refusal),
            Self::Empty => finish(FinishReason::Stop),
            Self::SayPieces { pieces, pause } => ended(paced(&pieces, pause), FinishReason::Stop),
            Self::Think { reasoning, text } => ended(thought(reasoning, &text), FinishReason::Stop),
            Self::Tool { name, arguments } => {
                calls("", vec![ScriptedCall::new(name, &arguments)], turn, step)
            }
            Self::Tools(tools) => {
                let listed = tools.into_iter();
                let listed = listed.map(|(name, arguments)| ScriptedCall::new(name, &arguments));
                calls("", listed.collect(), turn, step)
            }
            Self::Calls { text, calls: listed } => calls(&text, listed, turn, step),
            Self::MalformedArgs { name } => {
                let arguments = "{\"unfinished\": ".to_owned();
                calls("", vec![ScriptedCall { id: None, name, arguments }], turn, step)
            }
            Self::Structured(value) => {
                calls("", vec![ScriptedCall::new("structured_output", &value)], turn, step)
            }
            Self::Err(text) => vec![Part::Fail(ModelError::new(text))],
            Self::RateLimited => vec![Part::Fail(rate_limited())],
            Self::Break { text, error } => {
                let mut parts = text_parts(&text);
                parts.push(Part::Fail(ModelError::new(error)));
                parts
            }
            Self::Cut(text) => text_parts(&text),
            Self::Hang => {
                let mut parts = opened_text("...");
                parts.push(Part::Hang);
                parts
            }
            Self::Endless(pause) => {
                let mut parts = opened_text("...");
                parts.push(Part::Endless(pause));
                parts
            }
            Self::Panic(text) => vec![Part::Panic(text)],
            Self::PanicMidStream(text) => {
                let mut parts = opened_text("...");
                parts.push(Part::Panic(text));
                parts
            }
            Self::Parts(parts) => parts,
            Self::Gate(_) | Self::Pause(_) | Self::Func(_) | Self::Always(_) => Vec::new(),
        }
    }
}

impl fmt::Debug for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Func(_) => f.write_str("Func"),
            Self::Gate(name) => write!(f, "Gate({name:?})"),
            Self::Pause(pause) => write!(f, "Pause({pause:?})"),
            Self::Always(step) => write!(f, "Always({step:?})"),
            answer => f.debug_list().entries(answer.clone().parts(0, 0)).finish(),
        }
    }
}

fn rate_limited() -> ModelError {
    ModelError {
        message: "rate limit reached".to_owned(),
        service_code: Some("rate_limit".to_owned()),
        failure: Some(json!({"kind": "rate-limit", "message": "rate limit reached"})),
    }
}

fn ended(mut parts: Vec<Part>, reason: FinishReason) -> Vec<Part> {
    parts.extend(finish(reason));
    parts
}

fn text_parts(text: &str) -> Vec<Part> {
    chunks_of_text(0, &[text])
}

/// A text block's begin and one delta, without its end.
fn opened_text(text: &str) -> Vec<Part> {
    let mut parts = text_parts(text);
    parts.truncate(2);
    parts
}

fn paced(pieces: &[String], pause: Duration) -> Vec<Part> {
    let pieces: Vec<_> = pieces.iter().map(String::as_str).collect();
    let mut parts = Vec::new();
    let mut deltas = 0;
    for part in chunks_of_text(0, &pieces) {
        if matches!(part, Part::Chunk(ModelChunk::TextDelta { .. })) {
            if deltas > 0 && !pause.is_zero() {
                parts.push(Part::Pause(pause));
            }
            deltas += 1;
        }
        parts.push(part);
    }
    parts
}

fn thought(reasoning: String, text: &str) -> Vec<Part> {
    let mut parts = vec![
        Part::Chunk(ModelChunk::BlockStart { index: 0, block_type: "reasoning".to_owned() }),
        Part::Chunk(ModelChunk::ReasoningDelta { index: 0, text: reasoning.clone() }),
        Part::Chunk(ModelChunk::BlockEnd {
            index: 0,
            block: ContentBlock::Reasoning { text: reasoning },
        }),
    ];
    parts.extend(chunks_of_text(1, &[text]));
    parts
}

fn calls(text: &str, listed: Vec<ScriptedCall>, turn: u64, step: u64) -> Vec<Part> {
    let mut parts = if text.is_empty() { Vec::new() } else { text_parts(text) };
    let first = u64::from(!text.is_empty());
    for (place, call) in (0..).zip(listed) {
        let id = call.id.unwrap_or_else(|| format!("call-{turn}-{step}-{place}"));
        parts.extend(chunks_of_call(first + place, id, call.name, call.arguments));
    }
    ended(parts, FinishReason::ToolCalls)
}
