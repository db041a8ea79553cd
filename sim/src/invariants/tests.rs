//! Each invariant accepts a good life and refuses at least one hand-made bug.

use continuable::error::ErrorCode;
use continuable::facts::{Fact, PanicKind};
use continuable::ids::{ActivationId, MessageId, OwnerId, RunId, TaskId};
use continuable::vocabulary::{RouteCode, StopReason, TaskStatus};

use super::kit::*;
use super::*;
use crate::plan::Operation;
use crate::trace::{Answer, Contested, EndState, Entry, Event, Note};

#[test]
fn ids_are_unique_and_every_invariant_says_what_it_is_and_which_dangers_prove_it() {
    let mut ids: Vec<_> = ALL.iter().map(|invariant| invariant.id).collect();
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), ALL.len());
    for invariant in ALL {
        assert!(invariant.sentence.len() > 20);
        // I28 is judged by another command.
        assert!(!invariant.dangers.is_empty() || invariant.id == "I28");
    }
}

#[test]
fn an_empty_trace_breaks_nothing() {
    for (invariant, finding) in judge(&Trace::default()) {
        assert_eq!(finding.violations, [], "{invariant:?}");
    }
}

fn bad(id: &str, facts: &[Fact]) {
    let invariant = named(id).expect("a listed invariant");
    tells_apart(invariant, &good_life(), facts);
}

#[test]
fn a_good_life_breaks_nothing_and_tests_much() {
    let trace = noted(&good_life(), Note::Ended(EndState::default()));
    let mut tested = 0;
    for (invariant, finding) in judge(&trace) {
        assert_eq!(finding.violations, [], "{invariant:?}");
        tested += u64::from(finding.tested > 0);
    }
    assert!(tested >= 9, "{tested} invariants were put to the test");
}

#[test]
fn i1_misses_a_task_and_a_run_before_its_task() {
    bad("I1", &without(good_life(), |fact| matches!(fact, Fact::TaskStarted { .. })));
    let second = Fact::TaskStarted {
        task: TaskId::of("subagent", 2),
        kind: "subagent".to_owned(),
        owner: Some(PARENT),
        owner_session: None,
        activation: Some(ActivationId(1)),
        child: Some(child()),
    };
    bad("I1", &after(good_life(), |fact| matches!(fact, Fact::SendAnswered { .. }), second));
    let early = Fact::SendRouted {
        message: MessageId::new("other"),
        child: child(),
        sender: PARENT,
        source: source(),
        route: RouteCode::Steered,
        task: TaskId::of("subagent", 9),
    };
    bad("I1", &after(good_life(), |fact| matches!(fact, Fact::RunStarted { .. }), early));
}

#[test]
fn i2_misses_a_disposal_and_meets_a_live_child() {
    bad("I2", &postponed(good_life(), |fact| matches!(fact, Fact::RunDisposed { .. })));
    bad("I2", &postponed(good_life(), |fact| matches!(fact, Fact::AgentRemoved { .. })));
}

#[test]
fn i3_meets_a_second_outcome_a_reopened_task_and_a_changed_story() {
    let is_settled = |fact: &Fact| matches!(fact, Fact::TaskSettled { .. });
    bad("I3", &after(good_life(), is_settled, settled(TaskStatus::Killed)));
    let stopping = Fact::TaskStopping { task: task(), owner: Some(PARENT) };
    bad("I3", &after(good_life(), is_settled, stopping));
    let seen = |status| {
        let answer = Answer::Seen { task: task(), status, output: None };
        violations(&tasks::I3, &noted(&good_life(), Note::Answered { op: 0, answer }))
    };
    assert_eq!(seen(TaskStatus::Completed), []);
    assert_ne!(seen(TaskStatus::Killed), []);
}

#[test]
fn i4_misses_the_flush_its_mark_and_the_bytes_on_the_disk() {
    let is_flush = |fact: &Fact| matches!(fact, Fact::FinalFlushEnded { .. });
    bad("I4", &without(good_life(), is_flush));
    let mark = |mark| {
        let mut facts = without(good_life(), is_flush);
        let place = place(&facts, |fact| matches!(fact, Fact::ResultPublished { .. }));
        facts
            .insert(place, Fact::FinalFlushEnded { child: child(), agent: CHILD, length: 8, mark });
        facts
    };
    bad("I4", &mark(Some(7)));
    bad("I4", &mark(None));
    let disk = |durable| {
        let note = Note::DiskJudged { session: child(), durable, changed: false };
        violations(&durability::I4, &noted(&good_life(), note))
    };
    assert_eq!(disk(8), []);
    assert_ne!(disk(7), [], "a lying flush");
}

#[test]
fn i4_wants_a_failed_final_flush_to_be_told() {
    let flush = Fact::FinalFlushEnded { child: child(), agent: CHILD, length: 8, mark: None };
    let told = |code| {
        let mut facts: Vec<_> = good_life()
            .into_iter()
            .filter(|fact| !matches!(fact, Fact::FinalFlushEnded { .. }))
            .filter(|fact| !matches!(fact, Fact::TaskSettled { .. }))
            .collect();
        let place = place(&facts, |fact| matches!(fact, Fact::ResultPublished { .. }));
        facts.insert(place, flush.clone());
        let removed = facts.iter().position(|fact| matches!(fact, Fact::AssociationRemoved { .. }));
        let settled = Fact::TaskSettled {
            task: task(),
            owner: Some(PARENT),
            status: TaskStatus::Failed,
            code,
            output: false,
            waiters: 0,
            reported: false,
        };
        facts.insert(removed.expect("it is there"), settled);
        violations(&durability::I4, &trace(&facts))
    };
    assert_eq!(told(Some(ErrorCode::DurabilityFailed)), []);
    assert_ne!(told(None), []);
}

#[test]
fn i5_meets_a_lost_message_in_a_log_and_a_cold_resume() {
    let failed = |message: MessageId| Fact::SendFailed {
        message,
        child: child(),
        code: ErrorCode::NotDelivered,
    };
    let ended = |fact: &Fact| matches!(fact, Fact::TurnEnded { .. });
    let innocent = after(good_life(), ended, failed(MessageId::new("other")));
    assert_eq!(violations(&delivery::I5, &trace(&innocent)), []);
    bad("I5", &after(good_life(), ended, failed(prompt())));
}

#[test]
fn i6_meets_a_message_twice_late_unrequested_and_with_a_foreign_source() {
    let is_logged = |fact: &Fact| matches!(fact, Fact::MessageLogged { .. });
    let logged = |source| Fact::MessageLogged { agent: CHILD, message: prompt(), seq: 2, source };
    bad("I6", &after(good_life(), is_logged, logged(source())));
    let stranger = without(good_life(), is_logged);
    let started = |fact: &Fact| matches!(fact, Fact::TurnStarted { .. });
    let human = continuable::message::MessageSource::User;
    bad("I6", &after(stranger.clone(), started, logged(human)));
    let admitted = Fact::ReceiptSettled { agent: CHILD, message: prompt(), admitted: Some((1, 1)) };
    let opened = |fact: &Fact| matches!(fact, Fact::StepStarted { .. });
    let good = after(good_life(), opened, admitted.clone());
    assert_eq!(violations(&delivery::I6, &trace(&good)), []);
    let late = after(stranger, opened, logged(source()));
    bad("I6", &after(late, opened, admitted.clone()));
    let mut unrequested = good;
    for fact in &mut unrequested {
        if let Fact::RequestSent { messages, .. } = fact {
            messages.clear();
        }
    }
    bad("I6", &unrequested);
    let rejected = Fact::ReceiptSettled { agent: CHILD, message: prompt(), admitted: None };
    bad("I6", &after(good_life(), opened, rejected));
}

#[test]
fn i7_meets_two_owners_of_one_child_and_an_association_that_leaves_early() {
    let rival = [
        Fact::AssociationInstalled {
            activation: ActivationId(2),
            child: child(),
            task: TaskId::of("subagent", 2),
            owner: PARENT,
            resumed: true,
        },
        Fact::AssociationAuthorised { activation: ActivationId(2), child: child() },
    ];
    let mut facts = good_life();
    let middle = place(&facts, |fact| matches!(fact, Fact::TurnEnded { .. }));
    facts.splice(middle..middle, rival);
    bad("I7", &facts);
    bad("I7", &postponed(good_life(), |fact| matches!(fact, Fact::TaskSettled { .. })));
    bad("I7", &postponed(good_life(), |fact| matches!(fact, Fact::AssociationRemoved { .. })));
}

#[test]
fn i8_meets_a_child_without_a_task() {
    bad("I8", &postponed(good_life(), |fact| matches!(fact, Fact::AgentRemoved { .. })));
}

#[test]
fn i10_meets_a_completed_kill_and_work_after_it_was_observed() {
    let ended = |fact: &Fact| matches!(fact, Fact::TurnEnded { .. });
    bad("I10", &after(good_life(), ended, kill()));
    let opened = |fact: &Fact| matches!(fact, Fact::StepStarted { .. });
    let mut facts = after(good_life(), opened, kill());
    for fact in &mut facts {
        if matches!(fact, Fact::TaskSettled { .. }) {
            *fact = settled(TaskStatus::Killed);
        }
    }
    assert_eq!(violations(&lifecycle::I10, &trace(&facts)), [], "not observed before the request");
    let observed = Fact::CancelObserved { child: child(), agent: CHILD };
    let facts = after(facts, |fact| matches!(fact, Fact::CancelAccepted { .. }), observed);
    bad("I10", &facts);
}

#[test]
fn i20_meets_a_turn_after_a_kill() {
    let mut facts = after(good_life(), |fact| matches!(fact, Fact::TurnEnded { .. }), kill());
    let turn = Fact::TurnStarted { agent: CHILD, turn: 2, trigger: "message".to_owned() };
    assert_eq!(violations(&tasks::I20, &trace(&facts)), []);
    facts = after(facts, |fact| matches!(fact, Fact::CancelAccepted { .. }), turn);
    bad("I20", &facts);
}

#[test]
fn i21_meets_a_start_without_a_surface() {
    bad("I21", &without(good_life(), |fact| matches!(fact, Fact::SurfaceAttached { .. })));
}

#[test]
fn i22_meets_a_refused_call_that_created_something() {
    let operation = Operation::Prompt { parent: 0 };
    let story = |inside: bool| {
        let mut whole = Trace::default();
        let actor = || stamp("0: client");
        whole.push(
            actor(),
            crate::trace::Event::Note(Note::Asked { op: 1, operation: operation.clone() }),
        );
        if inside {
            let mut facts = good_life().into_iter();
            let started = facts.find(|fact| matches!(fact, Fact::TaskStarted { .. }));
            let started = started.expect("a good life starts a Task");
            whole.push(actor(), crate::trace::Event::Fact(started));
        }
        let answer = Answer::Refused { code: ErrorCode::InvalidInput };
        whole.push(actor(), crate::trace::Event::Note(Note::Answered { op: 1, answer }));
        violations(&tasks::I22, &whole)
    };
    assert_eq!(story(false), []);
    assert_ne!(story(true), []);
}

#[test]
fn i23_meets_a_foreign_result() {
    let seen = |agent: OwnerId| {
        let output = Some(durability::signed(agent, 1, 1));
        let answer = Answer::Seen { task: task(), status: TaskStatus::Completed, output };
        violations(&durability::I23, &noted(&good_life(), Note::Answered { op: 0, answer }))
    };
    assert_eq!(seen(CHILD), []);
    assert_ne!(seen(OwnerId(20)), []);
    assert_ne!(seen(PARENT), []);
}

#[test]
fn i24_meets_everything_that_is_left() {
    let ended = |end| violations(&lifecycle::I24, &noted(&good_life(), Note::Ended(end)));
    assert_eq!(ended(EndState::default()), []);
    let bugs = [
        EndState { stuck: vec!["0.1: driver".into()], ..EndState::default() },
        EndState { livelock: Some("0.1: loop".into()), ..EndState::default() },
        EndState { agents: vec![(CHILD, child())], ..EndState::default() },
        EndState { associations: vec![child()], ..EndState::default() },
        EndState { open_tasks: vec![task()], ..EndState::default() },
    ];
    for bug in bugs {
        assert_ne!(ended(bug), []);
    }
    let unreleased = without(good_life(), |fact| matches!(fact, Fact::TaskReleased { .. }));
    let trace = noted(&unreleased, Note::Ended(EndState::default()));
    assert_ne!(violations(&lifecycle::I24, &trace), []);
    let joined = Fact::TaskWaitJoined { task: task(), owner: Some(PARENT), waiter: 1 };
    let waiting = after(good_life(), |fact| matches!(fact, Fact::TurnEnded { .. }), joined);
    let trace = noted(&waiting, Note::Ended(EndState::default()));
    assert_ne!(violations(&lifecycle::I24, &trace), []);
}

#[test]
fn i25_meets_a_hole_a_malformed_log_and_changed_bytes() {
    let appended =
        |seq| Fact::EventsAppended { session: child(), agent: Some(CHILD), seq, count: 2 };
    let mut facts = good_life();
    facts.extend([appended(4), appended(6)]);
    assert_eq!(violations(&durability::I25, &trace(&facts)), []);
    facts.push(appended(9));
    assert_ne!(violations(&durability::I25, &trace(&facts)), []);
    let judged =
        Note::LogJudged { session: child(), events: 3, fault: Some("bad".to_owned()), seed: None };
    assert_ne!(violations(&durability::I25, &noted(&good_life(), judged)), []);
    let changed = Note::DiskJudged { session: child(), durable: 9, changed: true };
    assert_ne!(violations(&durability::I25, &noted(&good_life(), changed)), []);
}

#[test]
fn i29_meets_a_panic_of_ours() {
    let caught = |kind| Fact::PanicCaught {
        kind,
        task: "tool".to_owned(),
        text: "planned: tool".to_owned(),
    };
    let foreign = after(
        good_life(),
        |fact| matches!(fact, Fact::StepStarted { .. }),
        caught(PanicKind::Foreign),
    );
    assert_eq!(violations(&lifecycle::I29, &trace(&foreign)), []);
    bad(
        "I29",
        &after(
            good_life(),
            |fact| matches!(fact, Fact::StepStarted { .. }),
            caught(PanicKind::Ours),
        ),
    );
}

#[test]
fn an_unpublished_run_is_no_reason_to_panic() {
    let facts = [Fact::RunEnded {
        run: RunId(7),
        provider: "spawn".to_owned(),
        child: child(),
        stop: StopReason::Error,
    }];
    for (invariant, finding) in judge(&trace(&facts)) {
        assert_eq!(finding.violations.is_empty(), invariant.id != "I26", "{invariant:?}");
    }
}

fn is_settled(fact: &Fact) -> bool {
    matches!(fact, Fact::TaskSettled { .. })
}

#[test]
fn i9a_meets_a_second_notice_a_stranger_and_a_notice_of_old_news() {
    let claimed = |owner| Fact::NoticeClaimed { task: task(), owner };
    let injected =
        |owner| Fact::NoticeInjected { task: task(), owner, message: MessageId::new("notice") };
    let is_claimed = |fact: &Fact| matches!(fact, Fact::NoticeClaimed { .. });
    let is_injected = |fact: &Fact| matches!(fact, Fact::NoticeInjected { .. });
    let good = good_life();
    let once = without(good_life(), is_injected);
    let never = without(once.clone(), is_claimed);
    let breaks = |facts: &[Fact]| tells_apart(&ownership::I9A, &good, facts);
    breaks(&after(good.clone(), is_claimed, claimed(PARENT)));
    breaks(&after(good.clone(), is_claimed, injected(PARENT)));
    breaks(&after(once.clone(), is_claimed, injected(CHILD)));
    breaks(&after(never, is_settled, injected(PARENT)));
    let read = Fact::TaskReadTerminal { task: task(), owner: Some(PARENT) };
    breaks(&after(good.clone(), is_settled, read));
}

#[test]
fn i13_meets_an_owner_that_leaves_a_task_and_a_start_after_its_end_began() {
    let disposing =
        Fact::AgentDisposing { agent: PARENT, session: continuable::ids::SessionId::new("parent") };
    let removed = Fact::OwnerTasksRemoved { owner: PARENT, count: 1 };
    let gone =
        Fact::AgentRemoved { agent: PARENT, session: continuable::ids::SessionId::new("parent") };
    let good = [good_life(), vec![disposing.clone(), removed.clone(), gone.clone()]].concat();
    let breaks = |facts: &[Fact]| tells_apart(&ownership::I13, &good, facts);
    breaks(&[good_life(), vec![disposing.clone(), gone.clone()]].concat());
    breaks(&[vec![disposing], good_life(), vec![removed.clone(), gone]].concat());
    let is_started = |fact: &Fact| matches!(fact, Fact::TaskStarted { .. });
    breaks(&after(good.clone(), is_started, removed));
}

#[test]
fn i26_misses_a_start_and_an_end_and_meets_a_second_end() {
    let is_end = |fact: &Fact| matches!(fact, Fact::RunEnded { .. });
    bad("I26", &without(good_life(), |fact| matches!(fact, Fact::RunStarted { .. })));
    let end = good_life()[place(&good_life(), is_end)].clone();
    bad("I26", &after(good_life(), is_end, end));
    let unended = noted(&without(good_life(), is_end), Note::Ended(EndState::default()));
    assert_ne!(violations(&ownership::I26, &unended), []);
}

#[test]
fn i11_meets_a_foreign_activation_that_was_authorised() {
    let parent = |agent, session: &str| Fact::AgentPublished {
        agent,
        session: continuable::ids::SessionId::new(session),
        parent: None,
        depth: 0,
        seed_length: None,
        resumed: false,
    };
    let stranger = OwnerId(9);
    let born = Fact::AssociationInstalled {
        activation: ActivationId(0),
        child: child(),
        task: TaskId::of("subagent", 7),
        owner: stranger,
        resumed: false,
    };
    let first = |owner: OwnerId| {
        let mut fact = born.clone();
        if let Fact::AssociationInstalled { owner: held, .. } = &mut fact {
            *held = owner;
        }
        [vec![parent(PARENT, "parent"), parent(stranger, "stranger"), fact], good_life()].concat()
    };
    tells_apart(&authority::I11, &first(PARENT), &first(stranger));
}

#[test]
fn i27_meets_a_write_that_nobody_owns() {
    let write = Fact::BatchWritten { session: child(), seq: 0, count: 1, repair: false };
    let is_published = |fact: &Fact| matches!(fact, Fact::AgentPublished { .. });
    let good = after(good_life(), is_published, write.clone());
    let is_authorised = |fact: &Fact| matches!(fact, Fact::AssociationAuthorised { .. });
    let early = after(good_life(), is_authorised, write.clone());
    tells_apart(&authority::I27, &good, &early);
    let retired = Fact::SessionRetired { session: child(), failed: false };
    let late = [good_life(), vec![retired, write]].concat();
    tells_apart(&authority::I27, &good, &late);
}

#[test]
fn i30_meets_a_leaf_that_outlives_its_middle() {
    let session = continuable::ids::SessionId::new("leaf");
    let leaf = Fact::AgentPublished {
        agent: OwnerId(5),
        session: session.clone(),
        parent: Some(CHILD),
        depth: 2,
        seed_length: None,
        resumed: false,
    };
    let gone = Fact::AgentRemoved { agent: OwnerId(5), session };
    let grown = after(good_life(), |fact| matches!(fact, Fact::StepStarted { .. }), leaf);
    let good = after(grown.clone(), |fact| matches!(fact, Fact::RunDisposeStarted { .. }), gone);
    tells_apart(&authority::I30, &good, &grown);
}

#[test]
fn p15_meets_a_write_without_the_lease_a_conflict_with_it_and_a_silent_loss() {
    let judged = |note| violations(&sharing::P15, &noted(&good_life(), note));
    let visited = |leased, writes, code| {
        let answer = Answer::Refused { code };
        judged(Note::Visited { session: child(), leased, writes, answer })
    };
    assert_eq!(visited(true, 0, ErrorCode::LeaseHeld), []);
    assert_ne!(visited(true, 1, ErrorCode::LeaseHeld), []);
    assert_ne!(visited(false, 0, ErrorCode::LeaseHeld), [], "there is no lease to be held");
    assert_eq!(visited(false, 1, ErrorCode::StoreConflict), []);
    assert_ne!(visited(true, 1, ErrorCode::StoreConflict), []);
    let damaged = || Some("its sequence has a hole".to_owned());
    let ended = |leased, lost, cut, report| {
        let contested = Contested { session: child(), leased, claimed: 9, lost, cut, report };
        judged(Note::Ended(EndState { contested: vec![contested], ..EndState::default() }))
    };
    assert_eq!(ended(false, 0, false, None), []);
    assert_ne!(ended(false, 1, false, None), [], "nobody said so");
    assert_eq!(ended(false, 1, false, damaged()), []);
    assert_eq!(ended(false, 1, true, None), [], "the gap");
    assert_ne!(ended(true, 1, true, None), [], "a lease leaves no gap");
    assert_ne!(ended(true, 0, false, damaged()), []);
}

/// A start is asked for, and its facts: what is answered then is forced.
#[test]
fn the_oracle_tells_every_wrong_answer_to_a_start_from_the_right_one() {
    use crate::plan::Provider;
    let mut asked = Trace::default();
    let published = Fact::AgentPublished {
        agent: PARENT,
        session: continuable::ids::SessionId::new("parent-0"),
        parent: None,
        depth: 0,
        seed_length: None,
        resumed: false,
    };
    let is_first = |fact: &Fact| matches!(fact, Fact::SendAnswered { .. });
    let is_send = |fact: &Fact| matches!(fact, Fact::SendRouted { .. }) || is_first(fact);
    let mut facts: Vec<_> = good_life().into_iter().filter(|fact| !is_send(fact)).collect();
    let started = place(&facts, |fact| matches!(fact, Fact::AssociationInstalled { .. })) + 1;
    let operation = Operation::Start { parent: 0, provider: Provider::Spawn, structured: false };
    asked.push(stamp("0: main"), Event::Fact(published));
    for (at, fact) in facts.drain(..).enumerate() {
        if at == started - 2 {
            let operation = operation.clone();
            asked.push(stamp("0: main"), Event::Note(Note::Asked { op: 0, operation }));
        }
        asked.push(stamp("0: main"), Event::Fact(fact));
    }
    let judged = |answer| {
        let mut trace = asked.clone();
        trace.push(stamp("0: main"), Event::Note(Note::Answered { op: 0, answer }));
        violations(&replies::ORACLE, &trace)
    };
    let right = Answer::Started { child: child(), task: task() };
    assert_eq!(judged(right), []);
    let other = continuable::ids::SessionId::new("another child");
    for wrong in [
        Answer::Started { child: other, task: task() },
        Answer::Started { child: child(), task: TaskId::of("subagent", 9) },
        Answer::Refused { code: ErrorCode::OwnerUnavailable },
        Answer::NoTarget,
        Answer::Done,
        Answer::Lost,
    ] {
        assert_ne!(judged(wrong.clone()), [], "{wrong:?}");
    }
}

/// Each answer of real runs, replaced by others of its kind, is told apart wherever only one was
/// allowed.
#[test]
fn the_oracle_misses_no_forged_answer_where_only_one_was_allowed() {
    use crate::explore::RunOptions;
    use crate::plan::{Plan, Suite};
    let mut forged = std::collections::BTreeMap::<_, u64>::new();
    for seed in 0..60 {
        let plan = Plan::of(Suite::Steering, seed);
        let trace = crate::run::run(&plan, None, RunOptions::default()).trace;
        let lives = trace.lives();
        let lives: Vec<&[Entry]> = lives.iter().map(AsRef::as_ref).collect();
        for (life, verdicts) in lives.iter().zip(crate::oracle::judge(&lives)) {
            for verdict in verdicts.iter().filter(|verdict| verdict.was_forced()) {
                let n = life[verdict.at].n;
                let word = verdict.answer.word();
                let code = ErrorCode::Unauthorized;
                for lie in [Answer::Done, Answer::NoTarget, Answer::Refused { code }] {
                    // Some answers are free in what they say; none is free in its kind.
                    if lie.word() == word {
                        continue;
                    }
                    let mut trace = trace.clone();
                    let place = usize::try_from(n).expect("a place");
                    let Event::Note(Note::Answered { answer, .. }) =
                        &mut trace.entries[place].event
                    else {
                        panic!("entry {n} is no answer");
                    };
                    *answer = lie;
                    let found = violations(&replies::ORACLE, &trace);
                    assert!(found.iter().any(|violation| violation.at == n), "seed {seed} {n}");
                    *forged.entry(word).or_default() += 1;
                }
            }
        }
    }
    for word in ["started", "sent", "refused", "killed", "seen", "listed", "done"] {
        assert!(forged.get(word).is_some_and(|count| *count > 0), "{forged:?}");
    }
}
