//! What a crash leaves, and two runtimes on one disk.

use std::sync::{Arc, PoisonError};

use continuable::agent::{CreateAgent, ResumeAgent};
use continuable::error::ErrorCode;
use continuable::ids::{MessageId, SessionId};
use continuable::message::{Message, MessageSource};
use continuable::model::script::Step;
use continuable::runtime::Runtime;
use continuable::session::{Draft, Session, SessionHeader, TurnEndReason, TurnTrigger};
use continuable::store::{Disk, SessionStore, StoreError};

use crate::check::{Outcome, Race, Racer, Script, Stage, Variant};

/// The machine dies at every step.
pub const L19: Race = Race {
    id: "L19",
    sentence: "crash at every point, restart, send",
    dropped: &[(
        "schedules",
        "the crash is the race: one order of steps, every one of them the last, and four \
         ways in which a crash keeps what was not durable",
    )],
    variants: &[Variant {
        name: "",
        script: l19,
        allowed: &[
            "send: started; tasks: completed; log: a prefix with everything confirmed",
            "send: started; tasks: failed NOT_RESUMABLE; log: none, and nothing was confirmed",
        ],
    }],
};

/// More steps than a life of L19 has.
const L19_STEPS: u64 = 220;

fn l19(stage: Stage) -> Script {
    Box::pin(async move {
        stage.crash_after(stage.choose(L19_STEPS), l19_restarted);
        stage.assemble();
        let parent = stage.parent("parent").await;
        let child = stage.start(&parent.agent, vec![Step::say("one")]).child;
        stage.memory.known.lock().unwrap_or_else(PoisonError::into_inner).push(child.clone());
        stage.quiet().await;
        stage.script(&child, vec![Step::say("two")]);
        let send = stage.send("before", &parent.agent, &child, "before the crash");
        stage.alone(send).await;
        stage.quiet().await;
        // Nothing is left to be done: it dies at rest.
        stage.crash_after(0, l19_restarted);
        stage.quiet().await;
        unreachable!("a machine that died does nothing")
    })
}

fn l19_restarted(stage: Stage) -> Script {
    Box::pin(async move {
        let deployment = stage.assemble();
        let id = SessionId::new("parent");
        let handle = match deployment.agents.resume(ResumeAgent::new(id.clone())).await {
            Ok(handle) => handle,
            Err(_) => deployment.agents.create(CreateAgent::new(id)).await.expect("it is free"),
        };
        let known =
            stage.memory.known.lock().unwrap_or_else(PoisonError::into_inner).first().cloned();
        // It died before anybody knew of a child.
        let child = known.unwrap_or_else(|| SessionId::new("nobody"));
        stage.script(&child, vec![Step::say("three")]);
        let send = stage.send("send", handle.agent(), &child, "after the crash");
        stage.alone(send).await;
        stage.quiet().await;
        let recovered = stage.memory.recovered.lock().unwrap_or_else(PoisonError::into_inner);
        let left = recovered.iter().find(|left| left.session == child);
        let confirmed = stage.memory.confirmed.events(&child);
        let log = match left.and_then(|left| Some((left, left.kept?))) {
            Some((left, kept)) if left.prefix && kept >= left.confirmed => {
                "a prefix with everything confirmed"
            }
            Some(_) => "not what was confirmed",
            None if confirmed == 0 => "none, and nothing was confirmed",
            None => "none",
        };
        let log = log.to_owned();
        Outcome(vec![("send", stage.said("send")), ("tasks", stage.tasks()), ("log", log)])
    })
}

/// Two runtimes on one disk.
pub const L25: Race = Race {
    id: "L25",
    sentence: "two runtimes on one store, lease off / on",
    dropped: &[(
        "Tasks, agents, notices",
        "the race is between two stores; the world engine runs it with two whole runtimes",
    )],
    variants: &[
        Variant { name: "lease off", script: |stage| l25(stage, false), allowed: &[] },
        Variant { name: "lease on", script: |stage| l25(stage, true), allowed: &[] },
    ],
};

fn turn(number: u64, text: &str) -> Vec<Draft> {
    let prompt = Message::user(MessageId::new(text), text, MessageSource::User);
    vec![
        Draft::turn_start(number, TurnTrigger::Message { source: MessageSource::User }),
        Draft::user_message(prompt),
        Draft::turn_end(number, TurnEndReason::Completed),
    ]
}

/// A session with one turn is stored; two runtimes load it and add a turn each.
fn l25(stage: Stage, leased: bool) -> Script {
    Box::pin(async move {
        stage.unjudge();
        let runtime: Arc<dyn Runtime> = Arc::<crate::explore::SimRuntime>::clone(&stage.runtime);
        let disk =
            || -> Arc<dyn Disk> { Arc::new(stage.memory.disk.for_process(Arc::clone(&runtime))) };
        let id = SessionId::new("s");
        let first = SessionStore::open(Arc::clone(&runtime), disk());
        let header = SessionHeader::new(id.clone(), 0);
        let session = Session::new(Arc::clone(&runtime), header, None, None).expect("it is fresh");
        first.attach(&session, None).expect("the id is free");
        session.append(turn(1, "first")).expect("a turn");
        first.flush(&session).await.expect("the disk works");
        first.retire(&session).await.expect("the disk works");
        let open = if leased { SessionStore::open_leased } else { SessionStore::open };
        let racer = |name: &'static str| {
            let (runtime, id) = (Arc::clone(&runtime), id.clone());
            let store = open(Arc::clone(&runtime), disk());
            Racer::new(name, async move {
                match add_a_turn(&store, &runtime, &id, name).await {
                    Ok(_) => "confirmed".to_owned(),
                    Err(error) => error.code().word().to_owned(),
                }
            })
        };
        stage.race(vec![racer("turn of one"), racer("turn of two")]).await;
        let reader = SessionStore::open(Arc::clone(&runtime), disk());
        let log = match reader.load(&id).await {
            Ok(loaded) if loaded.tail_cut.is_some() => "a tail is cut",
            Ok(_) => "whole",
            Err(error) if error.code() == ErrorCode::DamagedLog => "damaged",
            Err(_) => "unreadable",
        };
        let said = |name| match (stage.said(name), stage.is_logged(name)) {
            (word, true) if word == "confirmed" => "confirmed".to_owned(),
            (word, false) if word == "confirmed" => "confirmed and lost".to_owned(),
            (word, _) => word,
        };
        Outcome(vec![
            ("one", said("turn of one")),
            ("two", said("turn of two")),
            ("load", log.to_owned()),
        ])
    })
}

async fn add_a_turn(
    store: &Arc<SessionStore>,
    runtime: &Arc<dyn Runtime>,
    id: &SessionId,
    text: &str,
) -> Result<u64, StoreError> {
    let mut loaded = store.load(id).await?;
    let seed = Some(loaded.events.clone());
    let session = Session::new(Arc::clone(runtime), loaded.header.clone(), seed, None);
    let session = session.expect("what loads is contiguous");
    store.attach(&session, loaded.reservation.take())?;
    let last = session.lock().last_turn();
    session.append(turn(last + 1, text)).expect("a turn");
    store.flush(&session).await
}
