//! Whether a log is well formed (contract I25). A load follows a stored log as it is; this says
//! what is wrong with one, for tests, oracles and tools.

use std::sync::Arc;

use super::event::{Event, EventBody};
use super::log::AppendError;
use super::rules::{RuleError, Rules};
use super::surface::{self, Surface};

/// What is wrong, and where.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error("event {position}: {what}")]
pub struct AuditError {
    /// The event's place in the log.
    pub position: u64,
    /// What is wrong.
    pub what: AuditProblem,
}

/// How a log can be ill formed.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum AuditProblem {
    /// Sequence numbers do not count from 0 by one.
    #[error("it has the sequence number {seq}")]
    Sequence {
        /// The number it has.
        seq: u64,
    },
    /// An ordering rule is broken.
    #[error("it is out of order: {0}")]
    Order(RuleError),
    /// A surface rule is broken.
    #[error("{0}")]
    Surface(AppendError),
    /// A step ends with calls that have no result.
    #[error("the step ends without a result of {calls:?}")]
    Unanswered {
        /// The calls' ids.
        calls: Vec<String>,
    },
}

/// Whether `events` is well formed: contiguous sequence, turns and steps that nest and number by
/// one, calls that pair with results, a sound surface. An open turn at the end is no fault.
///
/// # Errors
///
/// The first [`AuditError`].
pub fn audit(events: &[Arc<Event>]) -> Result<(), AuditError> {
    let mut rules = Rules::default();
    let mut surface = Surface::default();
    for (position, event) in (0..).zip(events) {
        let fail = |what| AuditError { position, what };
        if event.seq != position {
            return Err(fail(AuditProblem::Sequence { seq: event.seq }));
        }
        surface::check(&surface, event, |seq| {
            events.get(usize::try_from(seq).ok()?).map(Arc::as_ref)
        })
        .map_err(|error| fail(AuditProblem::Surface(error)))?;
        if matches!(event.body, EventBody::StepEnd { .. }) {
            let calls: Vec<_> = rules.unanswered().map(ToOwned::to_owned).collect();
            if !calls.is_empty() {
                return Err(fail(AuditProblem::Unanswered { calls }));
            }
        }
        rules
            .advance(&event.body, event.surface)
            .map_err(|rule| fail(AuditProblem::Order(rule)))?;
        surface.absorb(event);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::event::Draft;
    use super::super::kit::{events_of, prompt};
    use super::*;
    use crate::ids::SessionId;

    fn problem(drafts: Vec<Draft>) -> Option<AuditProblem> {
        let events = (0..).zip(drafts).map(|(seq, draft)| Arc::new(Event::new(seq, 0, draft)));
        audit(&events.collect::<Vec<_>>()).err().map(|error| error.what)
    }

    #[test]
    fn whole_logs_of_the_reference_shape_are_well_formed() {
        for log in [
            include_str!("../../tests/fixtures/fork_child.jsonl"),
            include_str!("../../tests/fixtures/parent_tools.jsonl"),
            include_str!("../../tests/fixtures/interrupted.jsonl"),
            include_str!("../../tests/fixtures/foreign_events.jsonl"),
        ] {
            let events: Vec<_> = log
                .lines()
                .skip(1)
                .map(|line| Event::parse_line(line, &SessionId::new("s")).expect("an event").into())
                .collect();
            assert_eq!(audit(&events), Ok(()));
        }
    }

    #[test]
    fn gaps_disorder_and_calls_without_results_are_found() {
        let start = || vec![Draft::turn_start(1, prompt()), Draft::step_start(1, 1)];
        let events = events_of(start());
        let error = audit(&events[1..]).expect_err("a gap");
        assert_eq!(error.what, AuditProblem::Sequence { seq: 1 });

        let nested = [start(), vec![Draft::turn_start(2, prompt())]].concat();
        assert!(matches!(problem(nested), Some(AuditProblem::Order(_))));

        let call = Draft::tool_call(1, 1, "c", "tool", "{}");
        let dangling = [start(), vec![call, Draft::step_end(1, 1)]].concat();
        let calls = vec!["c".to_owned()];
        assert_eq!(problem(dangling), Some(AuditProblem::Unanswered { calls }));

        let sourced = [start(), vec![Draft::step_end(1, 1).from_sources(vec![0])]].concat();
        assert!(matches!(problem(sourced), Some(AuditProblem::Surface(_))));
    }
}
