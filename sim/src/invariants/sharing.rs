//! Two runtimes on one disk (contract P15, race L25).

use std::collections::BTreeSet;

use continuable::error::ErrorCode;
use continuable::facts::Fact;
use continuable::ids::SessionId;

use super::history::History;
use super::{Check, Finding, Invariant, Kind};
use crate::trace::{Answer, Contested, Event, Note};

/// A second runtime on the same disk never damages a session in silence.
pub const P15: Invariant = Invariant {
    id: "P15",
    kind: Kind::Always,
    sentence: "of two runtimes on one disk, the one without the lease is refused before it wrote \
               anything; without leases, what either was told is durable is in the log, or its \
               load reports damage, unless bytes were cut in the gap of contract P15",
    dangers: &[
        "the lease was refused",
        "the second runtime had the lease",
        "two runtimes wrote one session",
        "one runtime met the other's bytes",
        "damage was reported on load",
    ],
    check: Check::Whole(sharing_is_never_silent),
};

fn sharing_is_never_silent(lives: &[History<'_>], finding: &mut Finding) {
    let shared = lives.iter().flat_map(visited).collect();
    for life in lives {
        for (at, entry) in life.entries.iter().enumerate() {
            match &entry.event {
                Event::Note(Note::Visited { leased, writes, answer, .. }) => {
                    judge_visit(*leased, *writes, answer, life.n(at), finding);
                }
                Event::Note(Note::Ended(end)) => {
                    for contested in &end.contested {
                        judge_log(contested, life.n(at), finding);
                    }
                }
                Event::Fact(fact) => meet(fact, &shared, finding),
                Event::Note(_) => {}
            }
        }
    }
}

/// The sessions that the second runtime opened without a lease.
fn visited<'a>(life: &History<'a>) -> BTreeSet<&'a SessionId> {
    let visits = life.entries.iter().filter_map(|entry| match &entry.event {
        Event::Note(Note::Visited { session, leased: false, .. }) => Some(session),
        _ => None,
    });
    visits.collect()
}

fn meet(fact: &Fact, shared: &BTreeSet<&SessionId>, finding: &mut Finding) {
    match fact {
        Fact::FlushFailed { session, code: ErrorCode::StoreConflict } => {
            finding.meet_if(shared.contains(session), "one runtime met the other's bytes");
        }
        Fact::SessionLoaded { session, cut: 1.., .. }
        | Fact::LoadRefused { session, code: ErrorCode::DamagedLog } => {
            finding.meet_if(shared.contains(session), "damage was reported on load");
        }
        _ => {}
    }
}

fn judge_visit(leased: bool, writes: u64, answer: &Answer, at: usize, finding: &mut Finding) {
    let code = match answer {
        Answer::Refused { code } => Some(*code),
        _ => None,
    };
    let without_lease = code == Some(ErrorCode::LeaseHeld);
    finding.demand(!without_lease || (leased && writes == 0), at, || {
        format!("refused the lease after {writes} writes; leased: {leased}")
    });
    finding.meet_if(without_lease, "the lease was refused");
    finding.meet_if(leased && writes > 0, "the second runtime had the lease");
    let conflict = code == Some(ErrorCode::StoreConflict);
    finding.demand(!(leased && conflict), at, || "a conflict in spite of the lease".to_owned());
    finding.meet_if(conflict, "one runtime met the other's bytes");
}

fn judge_log(contested: &Contested, at: usize, finding: &mut Finding) {
    let Contested { session, leased, claimed, lost, cut, report } = contested;
    let aloud = report.is_some() || (*cut && !leased);
    finding.demand(*lost == 0 || aloud, at, || {
        format!("{lost} of {claimed} confirmed events of {session} are gone in silence")
    });
    finding.demand(!leased || report.is_none(), at, || {
        format!("{session} is damaged in spite of the lease: {report:?}")
    });
    finding.meet("two runtimes wrote one session");
    finding.meet_if(report.is_some(), "damage was reported on load");
}
