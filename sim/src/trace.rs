//! What happened in one run: every fact in its order, with its virtual time and its actor.
//!
//! A trace is what invariants judge, what `sim replay` prints and what the determinism check
//! compares. It has two forms, one line an entry: JSONL, which loads again, and fixed columns for
//! people. Neither holds a wall clock or an address.

use std::borrow::Cow;
use std::fmt::Write as _;
use std::sync::Arc;

use continuable::error::ErrorCode;
use continuable::facts::Fact;
use continuable::ids::{OwnerId, SessionId, TaskId};
use continuable::vocabulary::{KillAnswer, RouteCode, StopReason, TaskStatus};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::plan::Operation;

/// The legend of the column form.
pub const LEGEND: &str = "ordinal  virtual ms  actor (spawner path: task)  event  its fields";

/// One thing that happened.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Entry {
    /// Counts entries from 0.
    pub n: u64,
    /// Milliseconds of virtual time since the run began.
    pub ms: u64,
    /// Which life of a process it belongs to: 0 for the first, a new number after each restart and
    /// for each further host. Instance numbers and Task ids are unique within one life only.
    #[serde(default, skip_serializing_if = "is_first")]
    pub life: u64,
    /// The task that did it, named by its spawner and ordinal.
    pub actor: Arc<str>,
    /// What it did.
    pub event: Event,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_false(flag: &bool) -> bool {
    !flag
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_first(life: &u64) -> bool {
    *life == 0
}

/// What an entry says.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Event {
    /// A transition of the code under test.
    Fact(Fact),
    /// Something the simulator did or saw.
    Note(Note),
}

/// What the simulator itself puts into a trace.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "note", rename_all = "snake_case")]
pub enum Note {
    /// A client asked for an operation.
    Asked {
        /// Counts the plan's operations.
        op: u64,
        /// The operation.
        operation: Operation,
    },
    /// The operation was answered.
    Answered {
        /// Which one.
        op: u64,
        /// The answer.
        answer: Answer,
    },
    /// A live log was read right after a step that ended a turn in it, or loaded it.
    LogJudged {
        /// The session.
        session: SessionId,
        /// How many events it has.
        events: u64,
        /// What is wrong with it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        fault: Option<String>,
        /// A digest of the events that a fork inherited.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        seed: Option<u64>,
    },
    /// The disk was read right after a step that confirmed something.
    DiskJudged {
        /// The session.
        session: SessionId,
        /// How many events would survive a crash now.
        durable: u64,
        /// Whether bytes that were confirmed before are no longer what they were.
        changed: bool,
    },
    /// The process of this life died here: what it held in memory is gone, and of the disk what was
    /// not durable may be.
    Crashed {
        /// What struck: a client's operation, or the point or disk operation of a planned fault.
        by: String,
    },
    /// This life began on the disk that an earlier one left. Judged before anything is asked of it.
    Restarted {
        /// The life it follows.
        after: u64,
        /// Every session that the earlier lives wrote.
        recovered: Vec<Recovered>,
        /// Tasks that the fresh process lists.
        tasks: u64,
        /// Associations that it has.
        associations: u64,
        /// Agents that are live in it.
        agents: u64,
    },
    /// A planned fault struck.
    Struck {
        /// Its place in the plan's list; none for what a client did.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        fault: Option<u64>,
        /// Its kind.
        kind: String,
        /// What it struck.
        at: String,
    },
    /// A second runtime on the same disk came, worked, and exited (contract P15).
    Visited {
        /// The session that it opened as an agent of its own.
        session: SessionId,
        /// Whether its store takes the lease.
        leased: bool,
        /// How many operations of it wrote files of that session.
        writes: u64,
        /// What it was told, when it opened the session or else when it saved its turn.
        answer: Answer,
    },
    /// Faults end here; from now on everything must come to rest.
    Healed {
        /// What was not at rest yet.
        pending: u64,
    },
    /// The run is over.
    Ended(EndState),
}

/// What a crash left of one session, read from the disk before anything else touched it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Recovered {
    /// The session.
    pub session: SessionId,
    /// How many events the file held, as a reader saw it right before the crash.
    pub written: u64,
    /// How many of them were confirmed durable.
    pub confirmed: u64,
    /// How many load now, before closers; `None` if it does not load.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kept: Option<u64>,
    /// Whether the events that load and those written are the same bytes, as far as both reach.
    pub prefix: bool,
    /// The bytes that the load reports as a torn tail.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cut: Option<u64>,
    /// What is wrong with it, if it does not load.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<ErrorCode>,
    /// Whether somebody else changed confirmed bytes of it (contract I17's excuse).
    pub struck: bool,
}

/// The answer of an operation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "is", rename_all = "snake_case")]
pub enum Answer {
    /// A child was started.
    Started {
        /// Its id.
        child: SessionId,
        /// Its first Task.
        task: TaskId,
    },
    /// A message was delivered.
    Sent {
        /// By which route.
        route: RouteCode,
        /// To which Task.
        task: TaskId,
    },
    /// A kill was answered.
    Killed {
        /// How.
        answer: KillAnswer,
    },
    /// A Task was waited for or read.
    Seen {
        /// The Task.
        task: TaskId,
        /// Its status then.
        status: TaskStatus,
        /// Its output, where it has one.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        output: Option<String>,
    },
    /// Done; there is nothing to say.
    Done,
    /// It failed with a code, and took no effect.
    Refused {
        /// The code.
        code: ErrorCode,
    },
    /// There is no such target yet.
    NoTarget,
    /// The caller gave up first.
    GaveUp,
    /// The reply was lost with its connection or its process: the effect is indefinite.
    Lost,
    /// A foreground run ended, and is disposed.
    Ran {
        /// Why it stopped.
        stop: StopReason,
    },
    /// A list was answered.
    Listed {
        /// How many things it holds.
        count: u64,
    },
}

impl Answer {
    /// Its word in summaries.
    pub fn word(&self) -> &'static str {
        match self {
            Self::Started { .. } => "started",
            Self::Sent { .. } => "sent",
            Self::Killed { .. } => "killed",
            Self::Seen { .. } => "seen",
            Self::Done => "done",
            Self::Refused { .. } => "refused",
            Self::NoTarget => "no target",
            Self::GaveUp => "gave up",
            Self::Lost => "lost",
            Self::Ran { .. } => "ran",
            Self::Listed { .. } => "listed",
        }
    }
}

/// What is left when nothing moves any more.
#[derive(Debug, Default, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EndState {
    /// Tasks of the executor that wait for what will never come, by name.
    pub stuck: Vec<Arc<str>>,
    /// The task that was polled without end, if one was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub livelock: Option<Arc<str>>,
    /// Live agents.
    pub agents: Vec<(OwnerId, SessionId)>,
    /// Children with an association.
    pub associations: Vec<SessionId>,
    /// Tasks still in the table that are not terminal.
    pub open_tasks: Vec<TaskId>,
    /// Every stored log: its session, how many events load, and what is wrong with it.
    pub logs: Vec<(SessionId, u64, Option<String>)>,
    /// Every session that two runtimes wrote.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub contested: Vec<Contested>,
}

/// What became of a session that two runtimes wrote (contract P15).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Contested {
    /// The session.
    pub session: SessionId,
    /// Whether their stores take the lease.
    pub leased: bool,
    /// How many events either was told are durable.
    pub claimed: u64,
    /// How many of them a load does not keep.
    pub lost: u64,
    /// Whether bytes of it were ever cut, or dropped by a failed sync.
    #[serde(default, skip_serializing_if = "is_false")]
    pub cut: bool,
    /// What a load of it reports: why it fails, or which tail it cut.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub report: Option<String>,
}

/// Everything that happened in one run, unbounded.
#[derive(Debug, Default, Clone, PartialEq)]
pub struct Trace {
    /// In the order of their critical sections.
    pub entries: Vec<Entry>,
}

/// Who recorded an entry, and when.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stamp {
    /// Milliseconds of virtual time since the run began.
    pub ms: u64,
    /// Which life of which process.
    pub life: u64,
    /// The task.
    pub actor: Arc<str>,
}

impl Trace {
    /// Adds an entry.
    pub fn push(&mut self, stamp: Stamp, event: Event) {
        let n = self.entries.len() as u64;
        let Stamp { ms, life, actor } = stamp;
        self.entries.push(Entry { n, ms, life, actor, event });
    }

    /// The entries life by life, in the order of their first entries; copied only when there are
    /// several lives.
    pub fn lives(&self) -> Vec<Cow<'_, [Entry]>> {
        let first = self.entries.first().map_or(0, |entry| entry.life);
        if self.entries.iter().all(|entry| entry.life == first) {
            return vec![Cow::Borrowed(&self.entries)];
        }
        let mut lives: Vec<(u64, Vec<Entry>)> = Vec::new();
        for entry in &self.entries {
            let life = match lives.iter().position(|(life, _)| *life == entry.life) {
                Some(known) => known,
                None => {
                    lives.push((entry.life, Vec::new()));
                    lives.len() - 1
                }
            };
            lives[life].1.push(entry.clone());
        }
        lives.into_iter().map(|(_, entries)| Cow::Owned(entries)).collect()
    }

    /// The facts in their order.
    pub fn facts(&self) -> impl Iterator<Item = &Fact> {
        self.entries.iter().filter_map(|entry| match &entry.event {
            Event::Fact(fact) => Some(fact),
            Event::Note(_) => None,
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

    /// The last `count` entries up to `at` that touch what the entry at `at` is about (its sessions
    /// and Tasks), as columns; all of them if it names none.
    pub fn story(&self, at: u64, count: usize) -> String {
        let end = usize::try_from(at).unwrap_or(usize::MAX).saturating_add(1);
        let entries = &self.entries[..end.min(self.entries.len())];
        let about = entries.last().map(|entry| names(&entry.event)).unwrap_or_default();
        let last = entries.last().map(|entry| entry.n);
        let touches = |entry: &&Entry| {
            Some(entry.n) == last
                || about.is_empty()
                || names(&entry.event).iter().any(|name| about.contains(name))
        };
        let mut shown: Vec<_> = entries.iter().rev().filter(touches).take(count).collect();
        shown.reverse();
        shown.into_iter().map(Entry::columns).collect()
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
        let actor = match self.life {
            0 => self.actor.to_string(),
            life => format!("life {life}, {}", self.actor),
        };
        let mut line = format!("{:>6} {:>7}  {actor:<28}  {name:<24}", self.n, self.ms);
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

/// The sessions and Tasks that an event names, for a reader.
fn names(event: &Event) -> Vec<String> {
    let (name, fields) = parts(event);
    if name == "restarted" || name == "ended" {
        // They name everything.
        return Vec::new();
    }
    let named = ["session", "child", "task"].iter().filter_map(|key| fields.get(*key));
    let mut names: Vec<_> = named.filter_map(Value::as_str).map(str::to_owned).collect();
    if let Some(agent) = fields.get("agent").or_else(|| fields.get("owner")).and_then(Value::as_u64)
    {
        names.push(format!("agent {agent}"));
    }
    names
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
        let stamp = |ms, actor: &str| Stamp { ms, life: 0, actor: actor.into() };
        let point = Fact::PointReached { point: Point::TurnOpen };
        trace.push(stamp(0, "0: main"), Event::Fact(point));
        trace.push(
            stamp(12, "0.1: driver"),
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
        let expected = "     0       0  0: main                       point_reached            point=TurnOpen\n     1      12  0.1: driver                   association_removed      activation=1 child=c\n";
        assert_eq!(text, expected.to_owned());
    }
}
