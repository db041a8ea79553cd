//! What closes a log whose last turn was interrupted (fact-sheet 2.7).
//!
//! The closers follow from the stored events alone, down to their message ids and times, so a
//! repair that is itself interrupted and repeated writes the same bytes.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::event::tool_result_message;
use super::event::{Draft, Event, EventBody, SurfaceOp, ToolErrorInfo, TurnEndReason};
use super::rules::answered_call;
use crate::error::ErrorCode;
use crate::ids::MessageId;
use crate::message::{ContentBlock, Message};

const NOT_STARTED: &str = "This tool call was never started: the session was interrupted first. \
                           It is safe to call the tool again.";
const OUTCOME_UNKNOWN: &str = "This tool call was started, and the session was interrupted before \
                               its result was recorded. Check what it did before you call the \
                               tool again.";

/// The tail of a log whose turn is open.
#[derive(Default)]
struct OpenTurn<'a> {
    turn: u64,
    step: Option<u64>,
    /// Calls that the model asked for in the open step, in transcript order.
    asked: Vec<&'a str>,
    /// Where the calls of an id were logged.
    called: BTreeMap<&'a str, Vec<u64>>,
    /// How many results an id has.
    answered: BTreeMap<&'a str, usize>,
}

/// The events that close the open turn of `events`: an error result for each unanswered call of
/// the open step in transcript order, `step/end`, `turn/end` with `interrupted`; all stamped with
/// the last event's time. Nothing for a balanced or an empty log.
pub fn closers(events: &[Arc<Event>]) -> Vec<Arc<Event>> {
    let (Some(last), Some(open)) = (events.last(), open_turn(events)) else { return Vec::new() };
    let mut closers = Vec::new();
    let first = last.seq + 1;
    let mut push = |draft: Draft| {
        let seq = first + closers.len() as u64;
        closers.push(Arc::new(Event::new(seq, last.time, draft)));
    };
    if let Some(step) = open.step {
        for (seq, (call_id, call)) in (first..).zip(open.unanswered()) {
            push(missing_result(open.turn, step, seq, call_id, call));
        }
        push(Draft::step_end(open.turn, step));
    }
    push(Draft::turn_end(open.turn, TurnEndReason::Interrupted));
    closers
}

/// What stands between the last `turn/start` and the end, if that turn is open.
fn open_turn(events: &[Arc<Event>]) -> Option<OpenTurn<'_>> {
    let start = events.iter().rposition(|event| {
        matches!(event.body, EventBody::TurnStart { .. } | EventBody::TurnEnd { .. })
    })?;
    let EventBody::TurnStart { turn, .. } = events[start].body else { return None };
    let mut open = OpenTurn { turn, ..OpenTurn::default() };
    for event in &events[start + 1..] {
        match &event.body {
            EventBody::StepStart { step, .. } => {
                open = OpenTurn { turn, step: Some(*step), ..OpenTurn::default() };
            }
            EventBody::StepEnd { .. } => open = OpenTurn { turn, ..OpenTurn::default() },
            EventBody::AssistantMessage { message, .. } => {
                open.asked.extend(message.content.iter().filter_map(|block| match block {
                    ContentBlock::ToolCall { id, .. } => Some(id.as_str()),
                    _ => None,
                }));
            }
            EventBody::ToolCall { call_id, .. } => {
                open.called.entry(call_id).or_default().push(event.seq);
            }
            EventBody::ToolResult { message, .. } if event.surface == Some(SurfaceOp::Append) => {
                if let Some(call_id) = answered_call(message) {
                    *open.answered.entry(call_id).or_default() += 1;
                }
            }
            _ => {}
        }
    }
    Some(open)
}

impl<'a> OpenTurn<'a> {
    /// The calls without a result, in transcript order, each with the seq of its `tool/call` if
    /// one was logged. Calls of the same id are answered in order.
    fn unanswered(&self) -> Vec<(&'a str, Option<u64>)> {
        let mut seen: BTreeMap<&str, usize> = BTreeMap::new();
        let mut missing = Vec::new();
        let mut look = |call_id: &'a str, call: Option<u64>, nth: usize| {
            if nth >= self.answered.get(call_id).copied().unwrap_or(0) {
                missing.push((call_id, call));
            }
        };
        for &call_id in &self.asked {
            let nth = seen.entry(call_id).or_default();
            let call = self.called.get(call_id).and_then(|calls| calls.get(*nth).copied());
            look(call_id, call, *nth);
            *nth += 1;
        }
        // Calls that no message of the step asked for: only a foreign log has them.
        let mut unasked: Vec<_> = self
            .called
            .iter()
            .flat_map(|(&call_id, calls)| {
                let asked = seen.get(call_id).copied().unwrap_or(0);
                calls.iter().enumerate().skip(asked).map(move |(nth, &seq)| (seq, call_id, nth))
            })
            .collect();
        unasked.sort_unstable();
        for (seq, call_id, nth) in unasked {
            look(call_id, Some(seq), nth);
        }
        missing
    }
}

fn missing_result(turn: u64, step: u64, seq: u64, call_id: &str, call: Option<u64>) -> Draft {
    let (name, code, text) = match call {
        None => ("ToolNotStartedError", ErrorCode::ToolNotStarted, NOT_STARTED),
        Some(_) => ("ToolOutcomeUnknownError", ErrorCode::ToolOutcomeUnknown, OUTCOME_UNKNOWN),
    };
    let error = ToolErrorInfo { name: name.to_owned(), code: code.word().to_owned() };
    Draft::tool_result(turn, step, closer_message(call_id, seq, text), Some(error), call)
}

fn closer_message(call_id: &str, seq: u64, text: &str) -> Message {
    let id = MessageId::new(format!("tool-result-closer:{call_id}:{seq}"));
    tool_result_message(id, call_id, vec![ContentBlock::text(text)], true)
}

#[cfg(test)]
mod tests {
    use super::super::kit::{answer, asks, events_of, log_of, prompt, turn};
    use super::*;

    fn codes(closers: &[Arc<Event>]) -> Vec<String> {
        closers
            .iter()
            .map(|closer| match &closer.body {
                EventBody::ToolResult { error: Some(error), message, .. } => {
                    format!("{} {:?} {:?}", error.code, answered_call(message), closer.sources)
                }
                body => body.kind().to_owned(),
            })
            .collect()
    }

    fn open_step(calls: &[&str]) -> Vec<Draft> {
        vec![
            Draft::turn_start(1, prompt()),
            Draft::step_start(1, 1),
            Draft::assistant_message(1, 1, asks(calls), None, vec![]),
        ]
    }

    #[test]
    fn a_balanced_or_empty_log_gets_nothing() {
        assert!(closers(&[]).is_empty());
        let balanced = events_of(turn(1, prompt(), "a", TurnEndReason::Completed));
        assert!(closers(&balanced).is_empty());
    }

    #[test]
    fn unanswered_calls_are_closed_in_transcript_order() {
        let mut drafts = open_step(&["late", "started", "done"]);
        drafts.extend([
            Draft::tool_call(1, 1, "done", "tool", "{}"),
            Draft::tool_call(1, 1, "started", "tool", "{}"),
            Draft::tool_result(1, 1, answer("done", "x"), None, Some(3)),
        ]);
        let events = events_of(drafts);
        let closers = closers(&events);
        assert_eq!(
            codes(&closers),
            [
                r#"TOOL_NOT_STARTED Some("late") None"#,
                r#"TOOL_OUTCOME_UNKNOWN Some("started") Some([4])"#,
                "step/end",
                "turn/end",
            ]
        );
        assert!(closers.iter().all(|closer| closer.time == 15));
        assert_eq!(closers.iter().map(|closer| closer.seq).collect::<Vec<_>>(), [6, 7, 8, 9]);
    }

    #[test]
    fn calls_of_one_id_are_paired_in_order() {
        let mut drafts = open_step(&["c", "c", "c"]);
        drafts.extend([
            Draft::tool_call(1, 1, "c", "tool", "{}"),
            Draft::tool_call(1, 1, "c", "tool", "{}"),
            Draft::tool_result(1, 1, answer("c", "x"), None, Some(3)),
        ]);
        assert_eq!(
            codes(&closers(&events_of(drafts)))[..2],
            [r#"TOOL_OUTCOME_UNKNOWN Some("c") Some([4])"#, r#"TOOL_NOT_STARTED Some("c") None"#,]
        );
    }

    #[test]
    fn calls_of_a_closed_step_get_nothing() {
        let mut drafts = open_step(&["c"]);
        drafts.push(Draft::step_end(1, 1));
        assert_eq!(codes(&closers(&events_of(drafts))), ["turn/end"]);
    }

    #[test]
    fn a_repair_follows_the_rules_and_repeats_identically() {
        let mut drafts = open_step(&["a", "b"]);
        drafts.push(Draft::tool_call(1, 1, "b", "tool", "{}"));
        let mut log = log_of(drafts);
        let first = closers(log.events());
        assert_eq!(first, closers(log.events()));
        let drafts = first.iter().map(|closer| Draft {
            body: closer.body.clone(),
            surface: closer.surface,
            sources: closer.sources.clone(),
        });
        log.append(drafts.collect(), 13).expect("closers are well formed");
        assert_eq!(log.events()[4..], first);
        assert!(closers(log.events()).is_empty());
    }
}
