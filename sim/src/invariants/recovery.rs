//! I15 to I18 and I28: what a session keeps over its activations, and over the lives of processes.

use std::collections::{BTreeMap, BTreeSet};

use continuable::error::ErrorCode;
use continuable::facts::Fact;
use continuable::ids::{OwnerId, SessionId, TaskId};

use super::history::History;
use super::{Check, Finding, Invariant, Kind};
use crate::trace::{Note, Recovered};

/// A fork resumes from its own log.
pub const I15: Invariant = Invariant {
    id: "I15",
    kind: Kind::Always,
    sentence: "a fork resumes from its own log; only its own suffix decides its descriptor; the \
               parent's newer history is never re-forked",
    dangers: &["the parent moved on between two activations of a fork"],
    check: Check::Whole(a_fork_keeps_its_seed),
};

/// What is known of one session's seed.
struct Seed {
    length: u64,
    digest: Option<u64>,
    /// The parent's session.
    parent: Option<SessionId>,
    /// Whether a turn of the parent ended since the fork was last published.
    moved: bool,
}

fn a_fork_keeps_its_seed(lives: &[History<'_>], finding: &mut Finding) {
    let mut seeds: BTreeMap<&SessionId, Seed> = BTreeMap::new();
    for life in lives {
        let session_of =
            |agent: &OwnerId| life.agents.get(agent).and_then(|story| story.session.as_ref());
        for (at, entry) in life.events() {
            match entry {
                Ok(Fact::AgentPublished { session, seed_length: Some(length), parent, .. }) => {
                    let parent = parent.as_ref().and_then(session_of).cloned();
                    let known = seeds.entry(session).or_insert_with(|| Seed {
                        length: *length,
                        digest: None,
                        parent,
                        moved: false,
                    });
                    finding.meet_if(
                        std::mem::take(&mut known.moved),
                        "the parent moved on between two activations of a fork",
                    );
                    finding.demand(known.length == *length, life.n(at), || {
                        format!(
                            "{session} had a seed of {} events and has one of {length}",
                            known.length
                        )
                    });
                }
                Ok(Fact::TurnEnded { agent, .. }) => {
                    let session = session_of(agent);
                    let forks = seeds.values_mut().filter(|seed| seed.parent.as_ref() == session);
                    forks.for_each(|seed| seed.moved = true);
                }
                Err(Note::LogJudged { session, seed: Some(digest), .. }) => {
                    let Some(known) = seeds.get_mut(session) else { continue };
                    let first = *known.digest.get_or_insert(*digest);
                    finding.demand(first == *digest, life.n(at), || {
                        format!("the seed of {session} is no longer what it was")
                    });
                }
                _ => {}
            }
        }
    }
}

/// Depth only grows.
pub const I16: Invariant = Invariant {
    id: "I16",
    kind: Kind::Always,
    sentence: "delegation depth never falls below the persisted header",
    dangers: &["a start was refused for depth after a resume"],
    check: Check::Whole(depth_is_kept),
};

fn depth_is_kept(lives: &[History<'_>], finding: &mut Finding) {
    let mut depths: BTreeMap<&SessionId, u64> = BTreeMap::new();
    for life in lives {
        let mut resumed: BTreeSet<OwnerId> = BTreeSet::new();
        for (at, fact) in life.facts() {
            match fact {
                Fact::AgentPublished { agent, session, depth, resumed: again, .. } => {
                    let first = *depths.entry(session).or_insert(*depth);
                    finding.demand(*depth >= first, life.n(at), || {
                        format!("{session} was at depth {first} and came back at {depth}")
                    });
                    if *again {
                        resumed.insert(*agent);
                    }
                }
                Fact::TaskSettled { owner, code: Some(ErrorCode::DepthExceeded), .. } => {
                    finding.meet_if(
                        owner.is_some_and(|owner| resumed.contains(&owner)),
                        "a start was refused for depth after a resume",
                    );
                }
                _ => {}
            }
        }
    }
}

/// A crash loses nothing that was confirmed.
pub const I17: Invariant = Invariant {
    id: "I17",
    kind: Kind::Always,
    sentence: "after a crash at any point the log loads to a prefix of what was appended, plus \
               closers, containing everything confirmed; only a fault that hit confirmed bytes \
               excuses this, and then load answers an error or a TailCut; the next append never \
               fuses with a torn tail",
    dangers: &["a crash tore an append", "a crash came between data and directory sync"],
    check: Check::Whole(a_crash_keeps_a_prefix),
};

fn a_crash_keeps_a_prefix(lives: &[History<'_>], finding: &mut Finding) {
    let mut appended: BTreeMap<&SessionId, u64> = BTreeMap::new();
    for life in lives {
        for (at, event) in life.events() {
            let recovered = match event {
                Ok(Fact::EventsAppended { session, seq, count, .. }) => {
                    let end = appended.entry(session).or_default();
                    *end = (*end).max(seq + count);
                    continue;
                }
                Err(Note::Restarted { recovered, .. }) => recovered,
                _ => continue,
            };
            for session in recovered {
                let Recovered { session: id, written, confirmed, kept, prefix, cut, error, .. } =
                    session;
                finding.meet_if(cut.is_some() && !session.struck, "a crash tore an append");
                finding.meet_if(
                    *written > 0 && *confirmed == 0 && kept.is_none() && error.is_none(),
                    "a crash came between data and directory sync",
                );
                if session.struck {
                    continue;
                }
                finding.demand(error.is_none(), life.n(at), || {
                    format!("{id} does not load after the crash: {error:?}")
                });
                let kept = kept.unwrap_or(0);
                let most = appended.get(id).copied().unwrap_or(0).max(*written);
                finding.demand(*prefix && kept <= most, life.n(at), || {
                    format!("{id} loads to {kept} events that are no prefix of its {most}")
                });
                finding.demand(kept >= *confirmed, life.n(at), || {
                    format!("{id} lost what was confirmed: {kept} of {confirmed} events are left")
                });
            }
        }
    }
}

/// Nothing but sessions survives a restart.
pub const I18: Invariant = Invariant {
    id: "I18",
    kind: Kind::Always,
    sentence: "after restart sessions exist; Tasks, associations and pending notices do not, and \
               nothing claims to be running",
    dangers: &[
        "a restart followed a running Task",
        "a restart followed a stopping Task",
        "a restart followed a flushing Task",
    ],
    check: Check::Whole(nothing_else_survives),
};

fn nothing_else_survives(lives: &[History<'_>], finding: &mut Finding) {
    for life in lives {
        let Some((at, tasks, associations, agents)) =
            life.notes().find_map(|(at, note)| match note {
                Note::Restarted { tasks, associations, agents, .. } => {
                    Some((at, *tasks, *associations, *agents))
                }
                _ => None,
            })
        else {
            continue;
        };
        finding.demand(tasks + associations + agents == 0, life.n(at), || {
            format!("{tasks} Tasks, {associations} associations and {agents} agents came back")
        });
        let mut started: BTreeSet<&TaskId> = BTreeSet::new();
        for (at, fact) in life.facts() {
            match fact {
                Fact::TaskStarted { task, .. } => drop(started.insert(task)),
                Fact::TaskSettled { task, .. }
                | Fact::NoticeClaimed { task, .. }
                | Fact::TaskWaitJoined { task, .. }
                | Fact::TaskReadTerminal { task, .. } => {
                    finding.demand(started.contains(task), life.n(at), || {
                        format!("{task} is of an earlier life")
                    });
                }
                _ => {}
            }
        }
    }
    for life in lives {
        let Some(crashed) = life.crashed else { continue };
        for activation in life.activations.values() {
            let Some(task) = life.tasks.get(&activation.task) else { continue };
            if !task.open_at(crashed) {
                continue;
            }
            finding.meet("a restart followed a running Task");
            finding.meet_if(!task.stopping.is_empty(), "a restart followed a stopping Task");
            let flushing = life
                .agent_of(activation)
                .is_some_and(|agent| agent.flush_started.is_some() && agent.flushed.is_none());
            finding.meet_if(flushing, "a restart followed a flushing Task");
        }
    }
}

/// Two runs of one plan are one run.
pub const I28: Invariant = Invariant {
    id: "I28",
    kind: Kind::Always,
    sentence: "in the simulated engines two runs of one plan give byte-identical traces (checked by \
               `sim determinism`, not by the trace checks)",
    dangers: &[],
    check: Check::Elsewhere,
};

#[cfg(test)]
mod tests {
    use super::super::kit::*;
    use super::*;
    use crate::trace::{Event, Trace};

    fn fork(length: u64) -> Event {
        Event::Fact(Fact::AgentPublished {
            agent: CHILD,
            session: child(),
            parent: Some(PARENT),
            depth: 1,
            seed_length: Some(length),
            resumed: true,
        })
    }

    fn judged(seed: u64) -> Event {
        let (session, seed) = (child(), Some(seed));
        Event::Note(Note::LogJudged { session, events: 9, fault: None, seed })
    }

    #[test]
    fn i15_meets_a_fork_with_another_seed() {
        let good = lives(&[vec![fork(4), judged(7)], vec![fork(4), judged(7)]]);
        assert_eq!(violations(&I15, &good), []);
        assert_ne!(violations(&I15, &lives(&[vec![fork(4)], vec![fork(6)]])), []);
        let other = lives(&[vec![fork(4), judged(7)], vec![fork(4), judged(8)]]);
        assert_ne!(violations(&I15, &other), []);
    }

    #[test]
    fn i16_meets_a_depth_that_fell() {
        let at = |depth| vec![Event::Fact(published(CHILD, "c", Some(PARENT), depth))];
        assert_eq!(violations(&I16, &lives(&[at(2), at(2)])), []);
        assert_ne!(violations(&I16, &lives(&[at(2), at(1)])), []);
        assert_ne!(violations(&I16, &lives(&[[at(1), at(0)].concat()])), []);
    }

    fn whole() -> Recovered {
        Recovered {
            session: child(),
            written: 9,
            confirmed: 4,
            kept: Some(6),
            prefix: true,
            cut: None,
            error: None,
            struck: false,
        }
    }

    fn restarted(recovered: Recovered, tasks: u64) -> Trace {
        let crashed = Event::Note(Note::Crashed { by: "a test".to_owned() });
        let note = Note::Restarted {
            after: 0,
            recovered: vec![recovered],
            tasks,
            associations: 0,
            agents: 0,
        };
        lives(&[vec![crashed], vec![Event::Note(note)]])
    }

    #[test]
    fn i17_meets_lost_confirmed_events_foreign_bytes_and_a_log_that_does_not_load() {
        assert_eq!(violations(&I17, &restarted(whole(), 0)), []);
        for bad in [
            Recovered { kept: Some(3), ..whole() },
            Recovered { kept: None, ..whole() },
            Recovered { prefix: false, ..whole() },
            Recovered { kept: Some(10), ..whole() },
            Recovered { error: Some(ErrorCode::DamagedLog), kept: None, ..whole() },
        ] {
            let excused = Recovered { struck: true, ..bad.clone() };
            assert_eq!(violations(&I17, &restarted(excused, 0)), []);
            assert_ne!(violations(&I17, &restarted(bad, 0)), []);
        }
    }

    #[test]
    fn i18_meets_a_task_that_came_back() {
        assert_eq!(violations(&I18, &restarted(whole(), 0)), []);
        assert_ne!(violations(&I18, &restarted(whole(), 1)), []);
        let mut claimed = restarted(whole(), 0);
        let stamp = crate::trace::Stamp { life: 1, ..stamp("0: test") };
        let notice = Fact::NoticeClaimed { task: task(), owner: PARENT };
        claimed.push(stamp, Event::Fact(notice));
        assert_ne!(violations(&I18, &claimed), []);
    }

    #[test]
    fn a_crash_leaves_eventualities_and_open_spans_unjudged() {
        let facts = good_life().into_iter().take(20).map(Event::Fact);
        let crashed = Event::Note(Note::Crashed { by: "a test".to_owned() });
        let life: Vec<_> = facts.chain([crashed]).collect();
        for (invariant, finding) in super::super::judge(&lives(&[life])) {
            assert_eq!(finding.violations, [], "{invariant:?}");
        }
    }
}
