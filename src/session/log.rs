//! The log of one session: a pure type, `&mut self -> decision`.

use std::ops::Range;
use std::sync::Arc;

use super::codec::{is_known_kind, is_legacy_kind, is_row_kind};
use super::event::{Draft, Event, EventBody, SessionHeader, SurfaceOp};
use super::lossless;
use super::rules::{RuleError, Rules};
use super::surface::{self, Surface};
use crate::error::ErrorCode;
use crate::message::Message;
use crate::sync::{Access, ObjectKind, key_of, touch};

/// Why nothing was appended. The log is as it was.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum AppendError {
    /// An ordering rule (fact-sheet 2.2).
    #[error("{kind} is out of order: {rule}")]
    Order {
        /// The draft's type.
        kind: String,
        /// The rule.
        #[source]
        rule: RuleError,
    },
    /// A surface rule (fact-sheet 2.6).
    #[error("{kind}: {what}")]
    Surface {
        /// The draft's type.
        kind: String,
        /// What is wrong.
        what: &'static str,
    },
    /// The data would not read back as it was written (fact-sheet 2.1).
    #[error("{kind} is not lossless JSON: {what}")]
    Lossy {
        /// The draft's type.
        kind: String,
        /// What is wrong.
        what: &'static str,
    },
    /// The type may not be appended: an uninterpreted event with the name of an interpreted one,
    /// of a packed row, or of the legacy vocabulary.
    #[error("an event of type {kind:?} may not be appended")]
    Reserved {
        /// The draft's type.
        kind: String,
    },
    /// A validator refused.
    #[error("vetoed: {reason}")]
    Vetoed {
        /// What the validator said.
        reason: String,
    },
    /// The call came from inside an observer of this session's publication (contract P20).
    #[error("an observer may not append to the session that it observes")]
    Reentrant,
}

impl AppendError {
    /// `UNSUPPORTED_LOG` for legacy types, else `INVALID_INPUT`.
    pub fn code(&self) -> ErrorCode {
        match self {
            Self::Reserved { kind } if is_legacy_kind(kind) => ErrorCode::UnsupportedLog,
            _ => ErrorCode::InvalidInput,
        }
    }
}

/// A seed that is not the beginning of a log.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the seed's event {position} has the sequence number {seq}")]
pub struct SeedError {
    /// Where it stands in the seed.
    pub position: u64,
    /// Its sequence number.
    pub seq: u64,
}

impl SeedError {
    /// `DAMAGED_LOG`.
    pub fn code(&self) -> ErrorCode {
        ErrorCode::DamagedLog
    }
}

/// The log of one session. Events are shared: copying a log copies pointers.
#[derive(Debug, Clone)]
pub struct SessionLog {
    key: u64,
    header: Arc<SessionHeader>,
    events: Vec<Arc<Event>>,
    first_live: u64,
    rules: Rules,
    surface: Surface,
}

/// A batch that passed every check and is not yet part of the log.
#[derive(Debug)]
pub struct Staged {
    events: Vec<Event>,
    rules: Rules,
    /// The whole surface after the batch, if the batch replaces part of it.
    surface: Option<Surface>,
}

impl Staged {
    /// The events as they will be, but for their time.
    pub fn events(&self) -> &[Event] {
        &self.events
    }
}

impl SessionLog {
    /// The log of a new lifecycle of a session.
    ///
    /// With a seed (even an empty one) a `session/end-seed` stamped `now` follows it, unless the
    /// seed ends in one already; without one the log is fresh (fact-sheet 2.4).
    ///
    /// # Errors
    ///
    /// [`SeedError`] if the seed is not contiguous from 0. Ordering rules are not applied to a
    /// seed: stored logs are followed as they are.
    pub fn new(
        header: impl Into<Arc<SessionHeader>>,
        seed: Option<Vec<Arc<Event>>>,
        now: u64,
    ) -> Result<Self, SeedError> {
        let header = header.into();
        let seeded = seed.is_some();
        let events = seed.unwrap_or_default();
        let mut log = Self {
            key: key_of(header.id.as_str()),
            header,
            first_live: events.len() as u64,
            events,
            rules: Rules::default(),
            surface: Surface::default(),
        };
        for (position, event) in (0..).zip(&log.events) {
            if event.seq != position {
                return Err(SeedError { position, seq: event.seq });
            }
            log.rules.absorb(&event.body, event.surface);
            log.surface.absorb(event);
        }
        let marked = matches!(log.events.last().map(|last| &last.body), Some(EventBody::EndSeed));
        if seeded && !marked {
            log.events.push(Arc::new(Event::new(log.len(), now, Draft::end_seed())));
        }
        Ok(log)
    }

    /// The session's header.
    pub fn header(&self) -> &Arc<SessionHeader> {
        &self.header
    }

    /// Every event.
    pub fn events(&self) -> &[Arc<Event>] {
        touch(ObjectKind::Log, self.key, Access::Read);
        &self.events
    }

    /// How many events there are; the next one's sequence number.
    pub fn len(&self) -> u64 {
        touch(ObjectKind::Log, self.key, Access::Read);
        self.events.len() as u64
    }

    /// Whether there is no event.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The seed's length: the sequence number of the first event of this lifecycle. Unlike the
    /// header's `seed_length` it counts a resumed session's whole stored log.
    pub fn first_live_seq(&self) -> u64 {
        self.first_live
    }

    /// The open turn.
    pub fn open_turn(&self) -> Option<u64> {
        touch(ObjectKind::Log, self.key, Access::Read);
        self.rules.open_turn()
    }

    /// The open step.
    pub fn open_step(&self) -> Option<u64> {
        touch(ObjectKind::Log, self.key, Access::Read);
        self.rules.open_step()
    }

    /// The number of the last turn ever opened; 0 if none was.
    pub fn last_turn(&self) -> u64 {
        touch(ObjectKind::Log, self.key, Access::Read);
        self.rules.last_turn()
    }

    /// The number of the last step of the last turn; 0 if it opened none.
    pub fn last_step(&self) -> u64 {
        touch(ObjectKind::Log, self.key, Access::Read);
        self.rules.last_step()
    }

    /// The sequence numbers of the surface nodes, in surface order.
    pub fn surface(&self) -> &[u64] {
        touch(ObjectKind::Log, self.key, Access::Read);
        self.surface.nodes()
    }

    /// The messages that a model sees, in surface order.
    pub fn messages(&self) -> Vec<Arc<Message>> {
        self.surface().iter().filter_map(|&seq| self.event(seq)?.derived().cloned()).collect()
    }

    fn event(&self, seq: u64) -> Option<&Arc<Event>> {
        self.events.get(usize::try_from(seq).ok()?)
    }

    /// Whether the whole batch could be appended now.
    ///
    /// # Errors
    ///
    /// The first draft's [`AppendError`].
    pub fn validate(&self, drafts: &[Draft]) -> Result<(), AppendError> {
        self.stage(drafts.to_vec()).map(drop)
    }

    /// Checks the whole batch without changing anything; [`commit`](Self::commit) appends it.
    ///
    /// # Errors
    ///
    /// The first draft's [`AppendError`].
    pub fn stage(&self, drafts: Vec<Draft>) -> Result<Staged, AppendError> {
        let replaces =
            drafts.iter().any(|draft| matches!(draft.surface, Some(SurfaceOp::Replace { .. })));
        let mut staged = Staged {
            events: Vec::with_capacity(drafts.len()),
            rules: self.rules.clone(),
            surface: replaces.then(|| self.surface.clone()),
        };
        for (seq, draft) in (self.len()..).zip(drafts) {
            check_kind(&draft.body)?;
            lossless::check(&draft.body)?;
            let event = Event::new(seq, 0, draft);
            surface::check(staged.surface.as_ref().unwrap_or(&self.surface), &event, |seq| {
                let batch = staged.events.iter().find(|earlier| earlier.seq == seq);
                self.event(seq).map(Arc::as_ref).or(batch)
            })?;
            staged
                .rules
                .advance(&event.body, event.surface)
                .map_err(|rule| AppendError::Order { kind: event.kind().to_owned(), rule })?;
            if let Some(surface) = &mut staged.surface {
                surface.absorb(&event);
            }
            staged.events.push(event);
        }
        Ok(staged)
    }

    /// Appends a batch that was staged on this very state, stamped `now`.
    ///
    /// # Panics
    ///
    /// When something was appended since: the caller held no lock across the two calls.
    pub fn commit(&mut self, staged: Staged, now: u64) -> Range<u64> {
        let start = self.len();
        let Staged { events, rules, surface } = staged;
        assert!(
            events.first().is_none_or(|first| first.seq == start),
            "the log changed between the check of a batch and its append"
        );
        if events.is_empty() {
            return start..start;
        }
        touch(ObjectKind::Log, self.key, Access::Write);
        self.rules = rules;
        match surface {
            Some(surface) => self.surface = surface,
            None => events.iter().for_each(|event| self.surface.absorb(event)),
        }
        self.events.extend(events.into_iter().map(|event| Arc::new(Event { time: now, ..event })));
        start..self.events.len() as u64
    }

    /// Appends the whole batch, stamped `now`, or nothing; answers the sequence numbers it got.
    ///
    /// # Errors
    ///
    /// The first draft's [`AppendError`].
    pub fn append(&mut self, drafts: Vec<Draft>, now: u64) -> Result<Range<u64>, AppendError> {
        let staged = self.stage(drafts)?;
        Ok(self.commit(staged, now))
    }
}

/// An uninterpreted type must not read back as something else.
fn check_kind(body: &EventBody) -> Result<(), AppendError> {
    let reserved = match body {
        EventBody::EndSeed => true,
        EventBody::Other { kind, .. } => {
            is_known_kind(kind) || is_row_kind(kind) || is_legacy_kind(kind)
        }
        _ => false,
    };
    if reserved {
        return Err(AppendError::Reserved { kind: body.kind().to_owned() });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::super::event::{ToolErrorInfo, TurnEndReason};
    use super::super::kit::{answer, asks, fresh, header, log_of, prompt, said, turn, user};
    use super::super::raw::RawJson;
    use super::*;
    use crate::message::ContentBlock;

    fn note(text: &str) -> Draft {
        Draft::user_message(user(text))
    }

    #[test]
    fn a_batch_is_appended_whole_or_not_at_all() {
        let mut log = fresh();
        let bad = vec![note("a"), Draft::turn_start(1, prompt()), Draft::step_end(1, 1)];
        assert!(matches!(log.validate(&bad), Err(AppendError::Order { .. })));
        assert!(log.append(bad, 0).is_err());
        assert_eq!((log.len(), log.open_turn(), log.surface().len()), (0, None, 0));
        assert_eq!(log.append(turn(1, prompt(), "a", TurnEndReason::Completed), 7), Ok(0..5));
        assert!(log.events().iter().all(|event| event.time == 7));
        assert_eq!(log.append(vec![], 8), Ok(5..5));
        assert_eq!(log.last_turn(), 1);
    }

    #[test]
    fn a_seed_even_an_empty_one_is_marked_once() {
        let header = Arc::new(header());
        let log = SessionLog::new(Arc::clone(&header), Some(vec![]), 3).expect("empty");
        assert_eq!((log.len(), log.first_live_seq()), (1, 0));
        let seed = log.events().to_vec();
        let again = SessionLog::new(Arc::clone(&header), Some(seed), 4).expect("contiguous");
        assert_eq!((again.len(), again.first_live_seq()), (1, 1));
        assert_eq!(again.events()[0].time, 3);
        assert_eq!(fresh().len(), 0);
    }

    #[test]
    fn a_resumed_log_goes_on_where_the_seed_stands() {
        let seed = log_of(turn(1, prompt(), "a", TurnEndReason::Completed));
        let mut log = SessionLog::new(Arc::clone(seed.header()), Some(seed.events().to_vec()), 3)
            .expect("contiguous");
        assert_eq!((log.first_live_seq(), log.len(), log.last_turn()), (5, 6, 1));
        assert_eq!(log.messages().len(), 1);
        assert!(log.append(vec![Draft::turn_start(1, prompt())], 0).is_err());
        assert_eq!(log.append(vec![Draft::turn_start(2, prompt())], 0), Ok(6..7));
    }

    #[test]
    fn a_seed_with_a_gap_is_refused() {
        let seed = log_of(turn(1, prompt(), "a", TurnEndReason::Completed));
        let error = SessionLog::new(header(), Some(seed.events()[1..].to_vec()), 0).err();
        assert_eq!(error, Some(SeedError { position: 0, seq: 1 }));
    }

    #[test]
    fn reserved_and_legacy_types_are_refused() {
        for kind in ["turn/start", "session/end-seed", "text-chunks", "session", "mode/set"] {
            let draft = Draft::other(kind, RawJson::checked("{}").expect("JSON"));
            let error = fresh().append(vec![draft], 0).expect_err("refused");
            let legacy = kind == "mode/set";
            assert_eq!(error.code() == ErrorCode::UnsupportedLog, legacy, "{kind}");
        }
    }

    #[test]
    fn data_that_would_not_read_back_is_refused() {
        let mut deep = json!(1);
        for _ in 0..120 {
            deep = json!([deep]);
        }
        let lossy = [json!({"type": "x", "v": -0.0}), json!({"type": "x", "v": deep})];
        for value in lossy {
            let mut message = user("a");
            message.content.push(ContentBlock::Other(value));
            let result = fresh().append(vec![Draft::user_message(message)], 0);
            assert!(matches!(result, Err(AppendError::Lossy { .. })));
        }
        let mut message = user("a");
        message.extra.insert("__proto__".to_owned(), Value::from(1));
        let mut log = fresh();
        log.append(vec![Draft::user_message(message)], 0).expect("plain data");
        assert!(log.events()[0].fresh_line().contains(r#""__proto__":1"#));
    }

    #[test]
    fn surface_operations_belong_to_messages() {
        let mut bare = note("a");
        bare.surface = None;
        let mut marked = Draft::turn_start(1, prompt());
        marked.surface = Some(SurfaceOp::Append);
        let sourced = Draft::turn_start(1, prompt()).from_sources(vec![]);
        for draft in [bare, marked, sourced] {
            let result = fresh().append(vec![draft], 0);
            assert!(matches!(result, Err(AppendError::Surface { .. })));
        }
    }

    #[test]
    fn sources_are_earlier_unique_and_not_empty() {
        let mut log = log_of(vec![note("a"), note("b")]);
        for sources in [vec![], vec![2], vec![1, 0, 1]] {
            assert!(log.append(vec![note("c").from_sources(sources)], 0).is_err());
        }
        log.append(vec![note("c").from_sources(vec![1, 0])], 0).expect("legal");
    }

    #[test]
    fn a_replacement_names_current_nodes_in_order_and_covers_them() {
        let mut log = log_of(vec![note("a"), note("b"), note("c")]);
        for (start, end, sources) in [(1, 0, vec![0, 1]), (0, 9, vec![0, 1, 2]), (0, 2, vec![0, 1])]
        {
            let draft = note("x").replacing(start, end).from_sources(sources);
            assert!(log.append(vec![draft], 0).is_err(), "{start}..={end}");
        }
        let first = note("x").replacing(0, 1).from_sources(vec![0, 1]);
        let second = note("y").replacing(3, 2).from_sources(vec![2, 3]);
        log.append(vec![first, second], 0).expect("the second sees the first");
        assert_eq!(log.surface(), [4]);
    }

    #[test]
    fn a_tool_result_replacement_changes_nothing_but_the_content() {
        let mut log = log_of(vec![
            Draft::turn_start(1, prompt()),
            Draft::step_start(1, 1),
            Draft::assistant_message(1, 1, asks(&["c"]), None, vec![]),
            Draft::tool_call(1, 1, "c", "tool", "{}"),
            Draft::tool_result(1, 1, answer("c", "long"), None, Some(3)),
            Draft::step_end(1, 1),
        ]);
        let replace = |message, error, start| {
            Draft::tool_result(1, 1, message, error, None)
                .replacing(start, 4)
                .from_sources(vec![2, 4])
        };
        let error = ToolErrorInfo { name: "n".into(), code: "c".into() };
        assert!(log.append(vec![replace(answer("c", "s"), Some(error), 4)], 0).is_err());
        assert!(log.append(vec![replace(answer("d", "s"), None, 4)], 0).is_err());
        assert!(log.append(vec![replace(answer("c", "s"), None, 2)], 0).is_err());
        log.append(vec![replace(answer("c", "short"), None, 4)], 0).expect("content only");
        log.append(vec![Draft::turn_end(1, TurnEndReason::Completed)], 0).expect("ends");
        let late = replace(answer("c", "shorter"), None, 4);
        assert!(log.append(vec![late], 0).is_err());
    }

    #[test]
    fn an_empty_assistant_message_derives_to_nothing() {
        let mut log = log_of(vec![Draft::turn_start(1, prompt()), Draft::step_start(1, 1)]);
        let empty = super::super::kit::model(vec![]);
        log.append(vec![Draft::assistant_message(1, 1, empty, None, vec![])], 0).expect("legal");
        log.append(vec![Draft::assistant_message(1, 1, said("x"), None, vec![])], 0)
            .expect("legal");
        assert_eq!((log.surface().len(), log.messages().len()), (2, 1));
    }
}
