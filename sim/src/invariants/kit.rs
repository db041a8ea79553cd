//! Hand-made traces for the tests of the invariants.

use continuable::facts::{CancelScope, Fact};
use continuable::ids::{ActivationId, MessageId, OwnerId, RunId, SessionId, TaskId};
use continuable::message::MessageSource;
use continuable::vocabulary::{CancelCause, RouteCode, StopReason, TaskStatus};

use super::{Invariant, Violation};
use crate::trace::{Event, Note, Stamp, Trace};

/// The parent instance.
pub const PARENT: OwnerId = OwnerId(1);
/// The child instance of [`good_life`].
pub const CHILD: OwnerId = OwnerId(2);

/// The child's id.
pub fn child() -> SessionId {
    SessionId::new("child")
}

/// Its Task.
pub fn task() -> TaskId {
    TaskId::of("subagent", 1)
}

/// The message that started it.
pub fn prompt() -> MessageId {
    MessageId::new("prompt")
}

/// The sender's source.
pub fn source() -> MessageSource {
    MessageSource::Coordinator { sender_session_id: SessionId::new("parent") }
}

fn installed() -> Vec<Fact> {
    vec![
        Fact::SurfaceAttached { count: 1 },
        Fact::NoticesAttached { count: 1 },
        Fact::TaskStarted {
            task: task(),
            kind: "subagent".to_owned(),
            owner: Some(PARENT),
            owner_session: Some(SessionId::new("parent")),
            activation: Some(ActivationId(1)),
            child: Some(child()),
        },
        Fact::AssociationInstalled {
            activation: ActivationId(1),
            child: child(),
            task: task(),
            owner: PARENT,
            resumed: true,
        },
        Fact::SendRouted {
            message: prompt(),
            child: child(),
            sender: PARENT,
            source: source(),
            route: RouteCode::Started,
            task: task(),
        },
        Fact::SendAnswered {
            message: prompt(),
            child: child(),
            route: RouteCode::Started,
            task: task(),
        },
        Fact::AssociationAuthorised { activation: ActivationId(1), child: child() },
    ]
}

fn worked() -> Vec<Fact> {
    vec![
        Fact::AgentPublished {
            agent: CHILD,
            session: child(),
            parent: Some(PARENT),
            depth: 1,
            seed_length: None,
            resumed: true,
        },
        Fact::RunStarted {
            run: RunId(1),
            provider: "spawn".to_owned(),
            child: child(),
            agent: Some(CHILD),
        },
        Fact::AssociationFilled {
            activation: ActivationId(1),
            child: child(),
            run: RunId(1),
            agent: Some(CHILD),
        },
        Fact::TurnStarted { agent: CHILD, turn: 1, trigger: "message".to_owned() },
        Fact::MessageLogged { agent: CHILD, message: prompt(), seq: 1, source: source() },
        Fact::StepStarted { agent: CHILD, turn: 1, step: 1 },
        Fact::RequestSent { agent: CHILD, turn: 1, step: 1, messages: vec![prompt()] },
        Fact::StepEnded { agent: CHILD, turn: 1, step: 1 },
        Fact::TurnEnded {
            agent: CHILD,
            turn: 1,
            reason: continuable::vocabulary::TurnEndKind::Completed,
        },
    ]
}

fn finished() -> Vec<Fact> {
    vec![
        Fact::SettlementClosed { child: child(), agent: CHILD, length: 8 },
        Fact::FinalFlushStarted { child: child(), agent: CHILD, length: 8 },
        Fact::FinalFlushEnded { child: child(), agent: CHILD, length: 8, mark: Some(8) },
        Fact::ResultPublished {
            child: child(),
            agent: Some(CHILD),
            stop: StopReason::Completed,
            code: None,
            cancelled: None,
        },
        Fact::RunEnded {
            run: RunId(1),
            provider: "spawn".to_owned(),
            child: child(),
            stop: StopReason::Completed,
        },
        Fact::RunDisposeStarted { run: RunId(1), child: child() },
        Fact::AgentRemoved { agent: CHILD, session: child() },
        Fact::RunDisposed { run: RunId(1), child: child(), failed: false },
        settled(TaskStatus::Completed),
        Fact::NoticeClaimed { task: task(), owner: PARENT },
        Fact::NoticeInjected { task: task(), owner: PARENT, message: MessageId::new("notice") },
        Fact::AssociationRemoved { activation: ActivationId(1), child: child() },
        Fact::TaskReleased { task: task(), owner: Some(PARENT) },
    ]
}

/// The settlement of the Task.
pub fn settled(status: TaskStatus) -> Fact {
    Fact::TaskSettled {
        task: task(),
        owner: Some(PARENT),
        status,
        code: None,
        output: status == TaskStatus::Completed,
        waiters: 0,
        reported: false,
    }
}

/// An accepted kill of the activation.
pub fn kill() -> Fact {
    Fact::CancelAccepted {
        scope: CancelScope::Activation { activation: ActivationId(1), child: child() },
        cause: CancelCause::Kill,
    }
}

/// One activation of a stored child from its start to its end, without a fault.
pub fn good_life() -> Vec<Fact> {
    [installed(), worked(), finished()].concat()
}

/// The stamp of an entry by `actor`, in the first life.
pub fn stamp(actor: &str) -> Stamp {
    Stamp { ms: 0, life: 0, actor: actor.into() }
}

/// The trace of facts, all by one actor.
pub fn trace(facts: &[Fact]) -> Trace {
    let mut trace = Trace::default();
    for fact in facts {
        trace.push(stamp("0: test"), Event::Fact(fact.clone()));
    }
    trace
}

/// The same with a note at its end.
pub fn noted(facts: &[Fact], note: Note) -> Trace {
    let mut trace = trace(facts);
    trace.push(stamp("0: test"), Event::Note(note));
    trace
}

/// The place of the first fact that `which` accepts.
pub fn place(facts: &[Fact], which: impl Fn(&Fact) -> bool) -> usize {
    facts.iter().position(which).expect("the fact is in the trace")
}

/// Moves the fact that `which` accepts to the end of the trace.
pub fn postponed(mut facts: Vec<Fact>, which: impl Fn(&Fact) -> bool) -> Vec<Fact> {
    let fact = facts.remove(place(&facts, which));
    facts.push(fact);
    facts
}

/// Leaves out the fact that `which` accepts.
pub fn without(mut facts: Vec<Fact>, which: impl Fn(&Fact) -> bool) -> Vec<Fact> {
    facts.remove(place(&facts, which));
    facts
}

/// Puts a fact behind the first one that `which` accepts.
pub fn after(mut facts: Vec<Fact>, which: impl Fn(&Fact) -> bool, more: Fact) -> Vec<Fact> {
    let place = place(&facts, which);
    facts.insert(place + 1, more);
    facts
}

/// What the invariant says of the trace.
pub fn violations(invariant: &Invariant, trace: &Trace) -> Vec<Violation> {
    invariant.check(trace).violations
}

/// The invariant accepts the first and refuses the second.
pub fn tells_apart(invariant: &Invariant, good: &[Fact], bad: &[Fact]) {
    assert_eq!(violations(invariant, &trace(good)), [], "{invariant:?}");
    assert_ne!(violations(invariant, &trace(bad)), [], "{invariant:?}");
}

/// A trace of several lives, each with its facts and notes.
pub fn lives(lives: &[Vec<Event>]) -> Trace {
    let mut trace = Trace::default();
    for (life, events) in (0..).zip(lives) {
        for event in events {
            trace.push(Stamp { life, ..stamp("0: test") }, event.clone());
        }
    }
    trace
}

/// An agent that enters the registry.
pub fn published(agent: OwnerId, session: &str, parent: Option<OwnerId>, depth: u64) -> Fact {
    Fact::AgentPublished {
        agent,
        session: SessionId::new(session),
        parent,
        depth,
        seed_length: None,
        resumed: true,
    }
}
