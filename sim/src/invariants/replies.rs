//! What the clients were told: every answer is one that the [`oracle`](crate::oracle) allows.

use super::history::History;
use super::{Check, Finding, Invariant, Kind};
use crate::oracle;
use crate::trace::{Answer, Entry};

/// Every answer is allowed by the reference model.
pub const ORACLE: Invariant = Invariant {
    id: "ORACLE",
    kind: Kind::Always,
    sentence: "every answer is one that the sequential reference model allows; a lost reply is \
               indefinite, never a failure",
    dangers: &[
        "an answer was forced",
        "several answers were allowed",
        "a caller gave up",
        "a reply was lost",
    ],
    check: Check::Whole(every_answer_is_allowed),
};

fn every_answer_is_allowed(lives: &[History<'_>], finding: &mut Finding) {
    let entries: Vec<&[Entry]> = lives.iter().map(|life| life.entries).collect();
    for (life, verdicts) in lives.iter().zip(oracle::judge(&entries)) {
        for verdict in verdicts {
            finding.demand(verdict.holds(), life.n(verdict.at), || verdict.to_string());
            finding.meet_if(verdict.was_forced(), "an answer was forced");
            finding.meet_if(verdict.allowed.len() > 1, "several answers were allowed");
            finding.meet_if(verdict.answer == Answer::GaveUp, "a caller gave up");
            finding.meet_if(verdict.answer == Answer::Lost, "a reply was lost");
        }
    }
}
