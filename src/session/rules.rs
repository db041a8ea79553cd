//! The ordering rules of a log (fact-sheet 2.2), checked one event at a time.
//!
//! The state is small (the open turn, the open step and its calls), so a batch is checked on a
//! copy and the log's own state advances only when the whole batch is accepted.

use std::collections::BTreeMap;

use super::event::{EventBody, SurfaceOp};
use crate::error::ErrorCode;
use crate::message::{Message, MessageSource};

/// An ordering rule that an event breaks.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RuleError {
    /// A turn is open already.
    #[error("turn {open} is open")]
    TurnOpen {
        /// The open turn.
        open: u64,
    },
    /// The event needs an open turn, or names another one.
    #[error("the open turn is {open:?}, not {named:?}")]
    NotTheTurn {
        /// The open turn.
        open: Option<u64>,
        /// The turn that the event names.
        named: Option<u64>,
    },
    /// A step is open already.
    #[error("step {open} is open")]
    StepOpen {
        /// The open step.
        open: u64,
    },
    /// The event needs an open step, or names another one.
    #[error("the open step is {open:?}, not {named}")]
    NotTheStep {
        /// The open step.
        open: Option<u64>,
        /// The step that the event names.
        named: u64,
    },
    /// Turns and steps are numbered by one.
    #[error("number {named} does not follow {last}")]
    Number {
        /// The last number used.
        last: u64,
        /// The number that the event names.
        named: u64,
    },
    /// A tool result without an unanswered call of its id in the step.
    #[error("no unanswered call {call_id:?} in this step")]
    NoCall {
        /// The call's id.
        call_id: String,
    },
}

/// Where a log stands.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Rules {
    last_turn: u64,
    open_turn: Option<u64>,
    last_step: u64,
    open_step: Option<u64>,
    /// Calls of the open step without a result yet, by id, and how many.
    unanswered: BTreeMap<String, u64>,
}

/// The call id that a tool result answers.
pub(super) fn answered_call(message: &Message) -> Option<&str> {
    match &message.source {
        MessageSource::Tool { call_id } => Some(call_id),
        _ => None,
    }
}

impl Rules {
    /// The open turn.
    pub fn open_turn(&self) -> Option<u64> {
        self.open_turn
    }

    /// The open step.
    pub fn open_step(&self) -> Option<u64> {
        self.open_step
    }

    /// The number of the last turn ever opened; 0 if none was.
    pub fn last_turn(&self) -> u64 {
        self.last_turn
    }

    /// The number of the last step of the last turn; 0 if none was opened.
    pub fn last_step(&self) -> u64 {
        self.last_step
    }

    /// The ids of the open step's calls that have no result yet.
    pub fn unanswered(&self) -> impl Iterator<Item = &str> {
        self.unanswered.keys().map(String::as_str)
    }

    /// Checks `body` and takes it in; on an error nothing has changed.
    pub fn advance(
        &mut self,
        body: &EventBody,
        surface: Option<SurfaceOp>,
    ) -> Result<(), RuleError> {
        self.check(body, surface)?;
        self.absorb(body, surface);
        Ok(())
    }

    /// Whether `body` may come next.
    pub fn check(&self, body: &EventBody, surface: Option<SurfaceOp>) -> Result<(), RuleError> {
        match body {
            EventBody::TurnStart { turn, .. } => match self.open_turn {
                Some(open) => Err(RuleError::TurnOpen { open }),
                None => follows(self.last_turn, *turn),
            },
            EventBody::TurnEnd { turn, .. } => {
                self.in_turn(Some(*turn))?;
                self.no_step()
            }
            EventBody::StepStart { turn, step } => {
                self.in_turn(Some(*turn))?;
                self.no_step()?;
                follows(self.last_step, *step)
            }
            EventBody::StepEnd { turn, step }
            | EventBody::AssistantChunk { turn, step, .. }
            | EventBody::AssistantMessage { turn, step, .. }
            | EventBody::ToolCall { turn, step, .. } => self.in_step(*turn, *step),
            EventBody::ToolResult { .. } if matches!(surface, Some(SurfaceOp::Replace { .. })) => {
                self.in_turn(None)
            }
            EventBody::ToolResult { turn, step, message, error, .. } => {
                self.in_step(*turn, *step)?;
                let never_started = error
                    .as_ref()
                    .is_some_and(|error| error.code == ErrorCode::ToolNotStarted.word());
                let call_id = answered_call(message).unwrap_or_default();
                if never_started || self.unanswered.contains_key(call_id) {
                    return Ok(());
                }
                Err(RuleError::NoCall { call_id: call_id.to_owned() })
            }
            EventBody::SteeringMessage { turn, .. } => self.in_turn(Some(*turn)),
            EventBody::RequestHeader { .. } | EventBody::RequestContext { .. } => {
                self.in_turn(None)
            }
            EventBody::Other { kind, .. } if &**kind == "todo/write" => self.in_turn(None),
            EventBody::UserMessage(_)
            | EventBody::EndSeed
            | EventBody::Descriptor(_)
            | EventBody::Other { .. } => Ok(()),
        }
    }

    /// Takes an event in without checking it: stored logs are followed as they are.
    pub fn absorb(&mut self, body: &EventBody, surface: Option<SurfaceOp>) {
        match body {
            EventBody::TurnStart { turn, .. } => {
                self.last_turn = *turn;
                self.open_turn = Some(*turn);
                self.last_step = 0;
                self.close_step();
            }
            EventBody::TurnEnd { .. } => {
                self.open_turn = None;
                self.close_step();
            }
            EventBody::StepStart { step, .. } => {
                self.close_step();
                self.last_step = *step;
                self.open_step = Some(*step);
            }
            EventBody::StepEnd { .. } => self.close_step(),
            EventBody::ToolCall { call_id, .. } => {
                *self.unanswered.entry(call_id.clone()).or_default() += 1;
            }
            EventBody::ToolResult { message, .. } if surface == Some(SurfaceOp::Append) => {
                if let Some(call_id) = answered_call(message) {
                    self.answer(call_id);
                }
            }
            _ => {}
        }
    }

    fn answer(&mut self, call_id: &str) {
        if let Some(count) = self.unanswered.get_mut(call_id) {
            *count -= 1;
            if *count == 0 {
                self.unanswered.remove(call_id);
            }
        }
    }

    fn close_step(&mut self) {
        self.open_step = None;
        self.unanswered.clear();
    }

    fn in_turn(&self, named: Option<u64>) -> Result<(), RuleError> {
        let open = self.open_turn;
        if open.is_none() || (named.is_some() && named != open) {
            return Err(RuleError::NotTheTurn { open, named });
        }
        Ok(())
    }

    fn in_step(&self, turn: u64, step: u64) -> Result<(), RuleError> {
        self.in_turn(Some(turn))?;
        if self.open_step != Some(step) {
            return Err(RuleError::NotTheStep { open: self.open_step, named: step });
        }
        Ok(())
    }

    fn no_step(&self) -> Result<(), RuleError> {
        self.open_step.map_or(Ok(()), |open| Err(RuleError::StepOpen { open }))
    }
}

fn follows(last: u64, named: u64) -> Result<(), RuleError> {
    if last.checked_add(1) == Some(named) {
        return Ok(());
    }
    Err(RuleError::Number { last, named })
}

#[cfg(test)]
mod tests {
    use super::super::event::{Draft, HeaderReason, ToolErrorInfo, TurnEndReason};
    use super::super::kit::{answer, prompt, user};
    use super::super::raw::RawJson;
    use super::*;

    fn after(drafts: Vec<Draft>) -> Rules {
        let mut rules = Rules::default();
        for draft in drafts {
            rules.advance(&draft.body, draft.surface).expect("a well-formed start");
        }
        rules
    }

    fn refuses(rules: &Rules, drafts: Vec<Draft>) {
        for draft in drafts {
            let before = rules.clone();
            let mut rules = rules.clone();
            assert!(rules.advance(&draft.body, draft.surface).is_err(), "{:?}", draft.body);
            assert_eq!(rules, before, "a refusal changes nothing");
        }
    }

    fn json() -> RawJson {
        RawJson::checked("{}").expect("JSON")
    }

    fn chunk(turn: u64, step: u64) -> Draft {
        Draft::assistant_chunk(turn, step, json())
    }

    fn call(id: &str) -> Draft {
        Draft::tool_call(1, 1, id, "tool", "{}")
    }

    fn result(id: &str, code: Option<ErrorCode>) -> Draft {
        let error = code.map(|code| ToolErrorInfo { name: "E".into(), code: code.word().into() });
        Draft::tool_result(1, 1, answer(id, "t"), error, None)
    }

    fn end(turn: u64) -> Draft {
        Draft::turn_end(turn, TurnEndReason::Completed)
    }

    #[test]
    fn turns_start_at_one_and_follow_by_one() {
        refuses(
            &Rules::default(),
            vec![Draft::turn_start(0, prompt()), Draft::turn_start(2, prompt())],
        );
        let open = after(vec![Draft::turn_start(1, prompt())]);
        refuses(&open, vec![Draft::turn_start(2, prompt()), end(2)]);
        let closed = after(vec![Draft::turn_start(1, prompt()), end(1)]);
        refuses(&closed, vec![Draft::turn_start(1, prompt()), end(1)]);
        after(vec![Draft::turn_start(1, prompt()), end(1), Draft::turn_start(2, prompt())]);
    }

    #[test]
    fn steps_start_at_one_in_each_turn_and_never_nest() {
        refuses(&Rules::default(), vec![Draft::step_start(1, 1)]);
        let turn = after(vec![Draft::turn_start(1, prompt())]);
        refuses(
            &turn,
            vec![Draft::step_start(1, 2), Draft::step_start(2, 1), Draft::step_end(1, 1)],
        );
        let step = after(vec![Draft::turn_start(1, prompt()), Draft::step_start(1, 1)]);
        refuses(&step, vec![Draft::step_start(1, 2), end(1), Draft::step_end(1, 2)]);
        let next = after(vec![
            Draft::turn_start(1, prompt()),
            Draft::step_start(1, 1),
            Draft::step_end(1, 1),
            Draft::step_start(1, 2),
            Draft::step_end(1, 2),
            end(1),
            Draft::turn_start(2, prompt()),
        ]);
        refuses(&next, vec![Draft::step_start(2, 3)]);
    }

    #[test]
    fn a_steps_events_name_exactly_the_open_turn_and_step() {
        let step = after(vec![Draft::turn_start(1, prompt()), Draft::step_start(1, 1)]);
        refuses(&step, vec![chunk(1, 2), chunk(2, 1)]);
        let turn = after(vec![Draft::turn_start(1, prompt())]);
        refuses(&turn, vec![chunk(1, 1), call("c"), result("c", Some(ErrorCode::ToolNotStarted))]);
    }

    #[test]
    fn a_result_needs_an_unanswered_call_unless_it_says_the_call_never_started() {
        let start = || vec![Draft::turn_start(1, prompt()), Draft::step_start(1, 1), call("c")];
        let step = after(start());
        refuses(&step, vec![result("d", None), result("d", Some(ErrorCode::ToolOutcomeUnknown))]);
        let mut drafts = start();
        drafts.extend([result("d", Some(ErrorCode::ToolNotStarted)), result("c", None)]);
        refuses(&after(drafts), vec![result("c", None)]);
        let mut drafts = start();
        drafts.extend([Draft::step_end(1, 1), Draft::step_start(1, 2)]);
        let late = Draft::tool_result(1, 2, answer("c", "t"), None, None);
        refuses(&after(drafts), vec![late]);
    }

    #[test]
    fn some_events_need_an_open_turn_and_others_nothing() {
        let in_turn = || {
            vec![
                Draft::steering_message(1, user("s")),
                Draft::request_header(json(), HeaderReason::Initial),
                Draft::request_context("p", "m", None),
                Draft::other("todo/write", json()),
            ]
        };
        refuses(&Rules::default(), in_turn());
        let mut drafts = vec![
            Draft::user_message(user("idle")),
            Draft::other("session/title", json()),
            Draft::new(EventBody::Descriptor(json())),
            Draft::turn_start(1, prompt()),
        ];
        drafts.extend(in_turn());
        let open = after(drafts);
        refuses(&open, vec![Draft::steering_message(2, user("s"))]);
    }
}
