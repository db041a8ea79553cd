//! Parents, their Tasks, the parts that can be unloaded, and what others do behind their backs.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use continuable::agent::hooks::AgentStatus;
use continuable::agent::{AgentHandle, CreateAgent, ResumeAgent};
use continuable::channel::Latch;
use continuable::control::AgentOwner;
use continuable::error::ErrorCode;
use continuable::ids::SessionId;
use continuable::message::{Message, MessageSource};
use continuable::runtime::{fresh_message_id, spawn};
use continuable::session::{Draft, compaction, highest_task_ordinals};
use continuable::store::path::SessionPlace;
use continuable::task::{TaskCancel, TaskError, TaskHooks, TaskSnapshot, TaskStart};
use continuable::vocabulary::TaskOutcome;

use super::{Parent, Target, Workload, place};
use crate::plan::{By, Damage, GiveUp, Part};
use crate::trace::Answer;

impl Workload {
    // --- parents ------------------------------------------------------------------------------

    /// The parent of that number: made, or in a later life loaded if anything of it was stored.
    pub(super) async fn open_parent(&self, number: u64, later: bool) {
        let id = SessionId::new(format!("parent-{number}"));
        self.deployment.script(&id, &self.plan.parent_script);
        let agents = &self.deployment.agents;
        let loaded = match later {
            true => agents.resume(ResumeAgent::new(id.clone())).await.ok(),
            false => None,
        };
        let handle = match loaded {
            Some(handle) => {
                self.raise_counters(&handle);
                Some(handle)
            }
            None => agents.create(CreateAgent::new(id.clone())).await.ok(),
        };
        if let Some(handle) = handle {
            let agent = handle.agent().clone();
            self.known().parents.push(Parent { id, agent, handle: Some(handle) });
        }
    }

    /// An old notice never names a new Task (contract P13).
    fn raise_counters(&self, handle: &AgentHandle) {
        let events = handle.agent().session().snapshot_from(0);
        self.tasks().raise_counters(&highest_task_ordinals(&events));
    }

    pub(super) async fn prompt(&self, parent: u64) -> Answer {
        let Some((_, agent)) = self.parent(parent) else { return Answer::NoTarget };
        let runtime = self.runtime();
        let message = Message::user(fresh_message_id(&*runtime), "go on", MessageSource::User);
        if !agent.followup(message) {
            return Answer::Refused { code: ErrorCode::OwnerUnavailable };
        }
        agent.when_idle().await;
        Answer::Done
    }

    pub(super) async fn dispose_owner(&self, parent: u64) -> Answer {
        let handle = {
            let mut known = self.known();
            let Some(place) = place(parent, known.parents.len()) else { return Answer::NoTarget };
            known.parents[place].handle.take()
        };
        let Some(handle) = handle else { return Answer::NoTarget };
        handle.dispose().await;
        Answer::Done
    }

    pub(super) async fn reopen_owner(&self, parent: u64) -> Answer {
        let (place, id) = {
            let known = self.known();
            let Some(place) = place(parent, known.parents.len()) else { return Answer::NoTarget };
            if known.parents[place].handle.is_some() {
                return Answer::NoTarget;
            }
            (place, known.parents[place].id.clone())
        };
        match self.deployment.agents.resume(ResumeAgent::new(id)).await {
            Ok(handle) => {
                self.adopt(place, handle);
                Answer::Done
            }
            Err(error) => Answer::Refused { code: error.code() },
        }
    }

    fn adopt(&self, place: usize, handle: AgentHandle) {
        self.raise_counters(&handle);
        let mut known = self.known();
        known.parents[place].agent = handle.agent().clone();
        // Two clients may have reopened it: the registry let only one through.
        let before = known.parents[place].handle.replace(handle);
        drop(known);
        drop(before);
    }

    /// The predecessor is still going when its successor knocks: the id is free when it is free.
    pub(super) async fn replace_owner(&self, parent: u64) -> Answer {
        let (place, id, handle) = {
            let mut known = self.known();
            let Some(place) = place(parent, known.parents.len()) else { return Answer::NoTarget };
            let parent = &mut known.parents[place];
            (place, parent.id.clone(), parent.handle.take())
        };
        let Some(handle) = handle else { return Answer::NoTarget };
        let disposal = async move { handle.dispose().await };
        let disposal = spawn(&self.runtime(), "replacement", disposal);
        let mut last = ErrorCode::SessionAlreadyExists;
        for pause in [0, 1, 5, 20, 80] {
            self.runtime().sleep(Duration::from_millis(pause)).await;
            match self.deployment.agents.resume(ResumeAgent::new(id.clone())).await {
                Ok(handle) => {
                    self.adopt(place, handle);
                    drop(disposal.await);
                    return Answer::Done;
                }
                Err(error) => last = error.code(),
            }
        }
        drop(disposal.await);
        Answer::Refused { code: last }
    }

    /// A compaction of an idle parent: its whole surface is replaced by one message.
    pub(super) fn compact(&self, parent: u64) -> Answer {
        let Some((_, agent)) = self.parent(parent) else { return Answer::NoTarget };
        if agent.status() != AgentStatus::Idle || agent.is_closing() {
            return Answer::NoTarget;
        }
        let runtime = self.runtime();
        let summary = Message::user(
            fresh_message_id(&*runtime),
            "what came before",
            MessageSource::Plugin { plugin: "compactor".to_owned() },
        );
        let surface = agent.session().lock().surface().to_vec();
        let replaced = match (surface.first(), surface.last()) {
            (Some(first), Some(last)) => {
                vec![
                    Draft::user_message(summary)
                        .replacing(*first, *last)
                        .from_sources(surface.clone()),
                ]
            }
            _ => Vec::new(),
        };
        let begin = vec![compaction::start(None)];
        let drafts = [begin, replaced, vec![compaction::end(None, None)]].concat();
        match agent.session().append(drafts) {
            Ok(_) => Answer::Done,
            // A turn opened meanwhile: the log refuses the batch whole.
            Err(_) => Answer::NoTarget,
        }
    }

    // --- Tasks --------------------------------------------------------------------------------

    pub(super) async fn kill(&self, task: u64, by: By) -> Answer {
        let Some((task, parent)) = self.task(task) else { return Answer::NoTarget };
        if let Some(person) = self.person(by) {
            return person.act(Target::Kill { parent, task }).await;
        }
        match self.tasks().kill(&task, Some(&parent), None).await {
            Ok(answer) => Answer::Killed { answer },
            Err(error) => Answer::Refused { code: error.code() },
        }
    }

    pub(super) async fn wait(
        &self,
        op: u64,
        task: u64,
        timeout_ms: u64,
        give_up: Option<GiveUp>,
    ) -> Answer {
        let Some((id, caller)) = self.task(task) else { return Answer::NoTarget };
        let timeout = Some(Duration::from_millis(timeout_ms));
        let signal = self.call_signal(op);
        let wait = self.tasks().wait(&id, Some(&caller), timeout, Some(signal.clone()));
        self.patiently(wait, &signal, give_up).await.map_or(Answer::GaveUp, seen)
    }

    pub(super) async fn read(&self, task: u64) -> Answer {
        let Some((id, caller)) = self.task(task) else { return Answer::NoTarget };
        match self.tasks().read(&id, Some(&caller)).await {
            Ok(read) => {
                Answer::Seen { task: id, status: read.snapshot.status, output: Some(read.text) }
            }
            Err(error) => Answer::Refused { code: error.code() },
        }
    }

    /// A Task that is no child: its producer works for a while, or until its hook is called.
    pub(super) fn job(&self, parent: u64, ms: u64, stubborn: bool) -> Answer {
        let Some((_, agent)) = self.parent(parent) else { return Answer::NoTarget };
        let stop = Latch::new();
        let refusals = AtomicU64::new(u64::from(stubborn));
        let stopped = stop.clone();
        let hook = move |_: &str| {
            let refuses = |left: u64| left.checked_sub(1);
            if refusals.fetch_update(Ordering::Relaxed, Ordering::Relaxed, refuses).is_ok() {
                return Err("planned: not now".to_owned());
            }
            stopped.set(());
            Ok(())
        };
        let asleep = self.runtime().sleep(Duration::from_millis(ms));
        let done = async move {
            tokio::select! {
                biased;
                () = stop.wait() => TaskOutcome::killed(),
                () = asleep => TaskOutcome::completed("worked"),
            }
        };
        let start = TaskStart::new("job", "work").owned_by(AgentOwner::shared(&agent));
        let hooks = TaskHooks::new(TaskCancel::Hook(Arc::new(hook)), done);
        match self.tasks().start_prepared(start, hooks) {
            Ok(task) => {
                self.known().tasks.push((task, agent.id().clone()));
                Answer::Done
            }
            Err(error) => Answer::Refused { code: error.code() },
        }
    }

    pub(super) fn list(&self, parent: u64) -> Answer {
        let Some((_, agent)) = self.parent(parent) else { return Answer::NoTarget };
        Answer::Listed { count: self.tasks().list(Some(agent.id())).len() as u64 }
    }

    // --- behind their backs -------------------------------------------------------------------

    /// Somebody loads a child as an ordinary agent, holds it for a while, and disposes it.
    pub(super) async fn bypass(&self, child: u64, hold_ms: u64) -> Answer {
        let Some(child) = self.child(child) else { return Answer::NoTarget };
        match self.deployment.agents.resume(ResumeAgent::new(child)).await {
            Ok(handle) => {
                self.runtime().sleep(Duration::from_millis(hold_ms)).await;
                handle.dispose().await;
                Answer::Done
            }
            Err(error) => Answer::Refused { code: error.code() },
        }
    }

    pub(super) fn damage(&self, child: u64, how: Damage) -> Answer {
        let Some(child) = self.child(child) else { return Answer::NoTarget };
        let live = self.deployment.agents.get(&child).is_some();
        // Only an append from outside is what a live writer must notice (P15); the rest would be
        // damage that its own confirmed bytes cannot survive.
        if live && how != Damage::Foreign {
            return Answer::NoTarget;
        }
        let Some(log) = SessionPlace::of(&child, None).ok().map(|place| place.log) else {
            return Answer::NoTarget;
        };
        let disk = &self.deployment.ground.disk;
        let damaged = match how {
            Damage::Tear => disk.damage(&log, |bytes| bytes.extend_from_slice(b"{\"seq\":")),
            Damage::Foreign => disk
                .damage(&log, |bytes| bytes.extend_from_slice(b"{\"type\":\"somebody/else\"}\n")),
            Damage::Flip => disk.damage(&log, |bytes| {
                let middle = bytes.len() / 2;
                if let Some(byte) = bytes.get_mut(middle) {
                    *byte ^= 0x10;
                }
            }),
            Damage::Zero => disk.damage(&log, |bytes| {
                let start = bytes.len().saturating_sub(40);
                bytes[start..].fill(0);
            }),
            Damage::Unlink => disk.unlink(&log),
        };
        if !damaged {
            return Answer::NoTarget;
        }
        let kind = match how {
            Damage::Tear => "damage: tear",
            Damage::Foreign => "damage: foreign",
            Damage::Flip => "damage: flip",
            Damage::Zero => "damage: zero",
            Damage::Unlink => "damage: unlink",
        };
        self.struck(kind, child.as_str());
        self.deployment.ground.confirmed.strike(&child);
        Answer::Done
    }

    pub(super) async fn unload(self: &Arc<Self>, part: Part) -> Answer {
        if part == Part::Store {
            self.struck("store detached", "the store");
        }
        self.deployment.unload(part).await;
        Answer::Done
    }
}

fn seen(waited: Result<TaskSnapshot, TaskError>) -> Answer {
    match waited {
        Ok(task) => Answer::Seen { task: task.id, status: task.status, output: None },
        Err(error) => Answer::Refused { code: error.code() },
    }
}
