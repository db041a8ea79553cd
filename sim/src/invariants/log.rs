//! Whether a session log is well formed (I25): an implementation of the ordering rules of its own,
//! so that the one under test is not judged by itself.

use std::sync::Arc;

use continuable::error::ErrorCode;
use continuable::message::MessageSource;
use continuable::session::event::{Event, EventBody};

/// Where the log stands while it is read.
#[derive(Debug, Default)]
struct Reader {
    turn: Option<u64>,
    last_turn: u64,
    step: Option<u64>,
    last_step: u64,
    /// Unanswered calls of the open step; a model may use an id twice.
    calls: Vec<String>,
}

/// The first thing that is wrong with a log, if any. `closed` says that no turn may be open at its
/// end.
pub fn fault(events: &[Arc<Event>], closed: bool) -> Option<String> {
    let mut reader = Reader::default();
    for (index, event) in events.iter().enumerate() {
        if event.seq != index as u64 {
            return Some(format!("event {index} has sequence number {}", event.seq));
        }
        if let Err(what) = reader.read(&event.body) {
            return Some(format!("event {index}, {}: {what}", event.kind()));
        }
    }
    match reader.turn {
        Some(turn) if closed => Some(format!("turn {turn} is open at the end")),
        _ => None,
    }
}

impl Reader {
    fn read(&mut self, body: &EventBody) -> Result<(), String> {
        let (turn, step) = body.place();
        match body {
            EventBody::TurnStart { turn, .. } => {
                if self.turn.is_some() || *turn != self.last_turn + 1 {
                    return Err(format!(
                        "turn {turn} after {}, open {:?}",
                        self.last_turn, self.turn
                    ));
                }
                self.turn = Some(*turn);
                self.last_turn = *turn;
                self.last_step = 0;
                return Ok(());
            }
            EventBody::StepStart { turn, step } => {
                if self.turn != Some(*turn) || self.step.is_some() || *step != self.last_step + 1 {
                    return Err(format!("step {turn}.{step} after step {}", self.last_step));
                }
                self.step = Some(*step);
                self.last_step = *step;
                return Ok(());
            }
            _ => {}
        }
        if turn.is_some() && turn != self.turn {
            return Err(format!("turn {turn:?} while {:?} is open", self.turn));
        }
        if step.is_some() && step != self.step {
            return Err(format!("step {step:?} while {:?} is open", self.step));
        }
        match body {
            EventBody::TurnEnd { .. } => {
                if let Some(step) = self.step {
                    return Err(format!("step {step} is open"));
                }
                self.turn = None;
            }
            EventBody::StepEnd { .. } => {
                if let Some(call) = self.calls.first() {
                    return Err(format!("call {call} has no result"));
                }
                self.step = None;
            }
            EventBody::ToolCall { call_id, .. } => self.calls.push(call_id.clone()),
            EventBody::ToolResult { message, error, .. } => {
                let MessageSource::Tool { call_id } = &message.source else {
                    return Err("a result without a call".to_owned());
                };
                // A repair answers calls that were never logged as started.
                let never_started = error
                    .as_ref()
                    .is_some_and(|error| error.code == ErrorCode::ToolNotStarted.word());
                match self.calls.iter().position(|open| open == call_id) {
                    Some(place) => drop(self.calls.remove(place)),
                    None if never_started => {}
                    None => return Err(format!("no open call {call_id}")),
                }
            }
            _ => {}
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use continuable::session::event::{Draft, TurnEndReason, TurnTrigger};

    use super::*;

    fn log(drafts: Vec<Draft>) -> Vec<Arc<Event>> {
        let numbered = drafts.into_iter().enumerate();
        numbered.map(|(seq, draft)| Arc::new(Event::new(seq as u64, 0, draft))).collect()
    }

    fn good() -> Vec<Draft> {
        vec![
            Draft::turn_start(1, TurnTrigger::Retry),
            Draft::step_start(1, 1),
            Draft::tool_call(1, 1, "a", "tool", "{}"),
            Draft::step_end(1, 1),
            Draft::turn_end(1, TurnEndReason::Completed),
        ]
    }

    #[test]
    fn each_rule_is_judged() {
        let mut paired = good();
        paired.remove(2);
        assert_eq!(fault(&log(paired.clone()), true), None);
        assert!(fault(&log(good()), true).is_some_and(|text| text.contains("call a")));
        let mut open = paired.clone();
        open.pop();
        assert!(fault(&log(open.clone()), true).is_some_and(|text| text.contains("open")));
        assert_eq!(fault(&log(open), false), None);
        let mut skipped = paired.clone();
        skipped[1] = Draft::step_start(1, 2);
        assert!(fault(&log(skipped), true).is_some());
        let mut holed = log(paired.clone());
        holed.remove(1);
        assert!(fault(&holed, true).is_some_and(|text| text.contains("sequence")));
        let mut twice = paired;
        twice.push(Draft::turn_start(1, TurnTrigger::Retry));
        assert!(fault(&log(twice), true).is_some());
    }
}
