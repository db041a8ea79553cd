//! What happened in one run: every fact in its order, with its virtual time and its actor.
//!
//! A trace is what invariants judge, what `sim replay` prints and what the determinism check
//! compares. It has two forms, one line an entry: JSONL, which loads again, and fixed columns for
//! people. Neither holds a wall clock or an address.

use std::fmt::Write as _;
use std::sync::Arc;

use continuable::facts::Fact;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The legend of the column form.
pub const LEGEND: &str = "ordinal  virtual ms  actor (spawner path: task)  event  its fields";

/// One thing that happened.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Entry {
    /// Counts entries from 0.
    pub n: u64,
    /// Milliseconds of virtual time since the run began.
    pub ms: u64,
    /// The task that did it, named by its spawner and ordinal.
    pub actor: Arc<str>,
    /// What it did.
    pub event: Event,
}

/// What an entry says.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Event {
    /// A transition of the code under test.
    Fact(Fact),
}

/// Everything that happened in one run, unbounded.
#[derive(Debug, Default, Clone, PartialEq)]
pub struct Trace {
    /// In the order of their critical sections.
    pub entries: Vec<Entry>,
}

impl Trace {
    /// Adds an entry.
    pub fn push(&mut self, ms: u64, actor: Arc<str>, event: Event) {
        let n = self.entries.len() as u64;
        self.entries.push(Entry { n, ms, actor, event });
    }

    /// The facts in their order.
    pub fn facts(&self) -> impl Iterator<Item = &Fact> {
        self.entries.iter().map(|entry| match &entry.event {
            Event::Fact(fact) => fact,
        })
    }

    /// One JSON object a line.
    pub fn jsonl(&self) -> String {
        let mut text = String::new();
        for entry in &self.entries {
            text.push_str(&serde_json::to_string(entry).expect("an entry is plain data"));
            text.push('\n');
        }
        text
    }

    /// Reads [`Trace::jsonl`] back.
    pub fn parse(text: &str) -> Result<Self, serde_json::Error> {
        let entries = text.lines().map(serde_json::from_str).collect::<Result<_, _>>()?;
        Ok(Self { entries })
    }

    /// Fixed columns, one entry a line; see [`LEGEND`].
    pub fn columns(&self) -> String {
        self.entries.iter().map(Entry::columns).collect()
    }

    /// The last `count` entries as columns.
    pub fn tail(&self, count: usize) -> String {
        let start = self.entries.len().saturating_sub(count);
        self.entries[start..].iter().map(Entry::columns).collect()
    }

    /// A stable hash (FNV-1a) of the JSONL form: equal digests mean equal bytes.
    pub fn digest(&self) -> u64 {
        continuable::sync::key_of(&self.jsonl())
    }
}

impl Entry {
    /// The entry as one line of fixed columns.
    pub fn columns(&self) -> String {
        let (name, fields) = parts(&self.event);
        let mut line = format!("{:>6} {:>7}  {:<28}  {:<24}", self.n, self.ms, self.actor, name);
        for (key, value) in fields {
            let shown = match value {
                Value::Null => continue,
                Value::String(text) => text,
                other => other.to_string(),
            };
            let _ = write!(line, " {key}={shown}");
        }
        let kept = line.trim_end().len();
        line.truncate(kept);
        line.push('\n');
        line
    }
}

/// The event's name and its fields.
fn parts(event: &Event) -> (String, serde_json::Map<String, Value>) {
    let Ok(Value::Object(mut fields)) = serde_json::to_value(event) else {
        return (String::new(), serde_json::Map::new());
    };
    let name = fields.shift_remove("fact").or_else(|| fields.shift_remove("note"));
    (name.and_then(|name| Some(name.as_str()?.to_owned())).unwrap_or_default(), fields)
}

#[cfg(test)]
mod tests {
    use continuable::ids::{ActivationId, SessionId};
    use continuable::points::Point;

    use super::*;

    fn sample() -> Trace {
        let mut trace = Trace::default();
        let child = SessionId::new("c");
        trace.push(
            0,
            "0: main".into(),
            Event::Fact(Fact::PointReached { point: Point::TaskBegin }),
        );
        trace.push(
            12,
            "0.1: driver".into(),
            Event::Fact(Fact::AssociationRemoved { activation: ActivationId(1), child }),
        );
        trace
    }

    #[test]
    fn a_trace_survives_its_json_form() {
        let trace = sample();
        assert_eq!(Trace::parse(&trace.jsonl()).expect("it parses"), trace);
    }

    #[test]
    fn the_digest_follows_the_bytes() {
        let mut other = sample();
        assert_eq!(other.digest(), sample().digest());
        other.entries[1].ms = 13;
        assert_ne!(other.digest(), sample().digest());
    }

    #[test]
    fn columns_are_fixed_and_without_trailing_blanks() {
        let text = sample().columns();
        let expected = "     0       0  0: main                       point_reached            point=TaskBegin\n     1      12  0.1: driver                   association_removed      activation=1 child=c\n";
        assert_eq!(text, expected.to_owned());
    }
}
