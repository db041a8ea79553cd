//! What only some races need: where the disk stops, racers that began before the race, Tasks
//! without a child, and more of what came of it.

use std::sync::atomic::{AtomicU64, Ordering};

use continuable::agent::Agent;
use continuable::cancel::CancelSignal;
use continuable::channel::Latch;
use continuable::control::{AgentOwner, ContinuableStart, ContinuableStartSpec};
use continuable::facts::Fact;
use continuable::ids::{OwnerId, SessionId, TaskId};
use continuable::message::MessageSource;
use continuable::model::script::Step;
use continuable::runtime::BoxFuture;
use continuable::store::disk::DiskOperation;
use continuable::task::{TaskCancel, TaskHooks, TaskStart};
use continuable::vocabulary::{CancelCause, TaskOutcome};

use super::{Racer, Stage};
use crate::disk::{DiskError, DiskFault};

impl Racer {
    /// The same, dropped once the latch is set.
    #[must_use]
    pub fn until(self, dropped: &Latch<()>) -> Self {
        let (dropped, body) = (dropped.clone(), self.body);
        Self::new(self.name, async move {
            tokio::select! {
                biased;
                // First: a caller may let go of an answer that is there already.
                () = dropped.wait() => "dropped".to_owned(),
                word = body => word,
            }
        })
    }
}

/// Where an activation waits on its way from the end of a turn to its result.
#[derive(Debug, Clone, Default)]
pub struct Flushes {
    /// The loop's flush goes on, and fails at its very end.
    pub turn: Latch<()>,
    /// The final flush goes on, and works.
    pub last: Latch<()>,
    /// Every later operation of the disk goes on.
    pub rest: Latch<()>,
}

impl Flushes {
    /// Opens all of them.
    pub fn open(&self) {
        for latch in [&self.turn, &self.last, &self.rest] {
            latch.set(());
        }
    }
}

impl Stage {
    // --- before the race ----------------------------------------------------------------------

    /// Starts a child of `parent` whose result must fit `schema`.
    ///
    /// # Panics
    ///
    /// If it is refused: an error of the script.
    pub fn start_structured(
        &self,
        parent: &Agent,
        schema: serde_json::Value,
        script: Vec<Step>,
    ) -> ContinuableStart {
        let mut spec = ContinuableStartSpec::text("spawn", "work", "begin");
        spec.output_schema = Some(schema);
        let started = self.deployment().control().start_continuable(parent, spec);
        let started = started.expect("nothing is in its way");
        self.script(&started.child, script);
        started
    }

    /// A Task of `owner` without a child: it completes once the latch is set, unless it is
    /// cancelled first.
    ///
    /// # Panics
    ///
    /// If it is refused: an error of the script.
    pub fn task(&self, owner: &Agent) -> (TaskId, Latch<()>) {
        let (signal, end) = (self.signal(), Latch::new());
        let (cancelled, ended) = (signal.clone(), end.clone());
        let hooks = TaskHooks::new(TaskCancel::Signal(signal), async move {
            tokio::select! {
                biased;
                _cause = cancelled.cancelled() => {}
                () = ended.wait() => {}
            }
            match cancelled.lock().publish() {
                Some(_cause) => TaskOutcome::killed(),
                None => TaskOutcome::completed("the job's text"),
            }
        });
        let start = TaskStart::new("job", "job").owned_by(AgentOwner::shared(owner));
        let started = self.deployment().tasks.start_prepared(start, hooks);
        (started.expect("nothing is in its way"), end)
    }

    /// The disposal of `agent`, once it stands still, waits for the latch before its effects.
    ///
    /// # Panics
    ///
    /// If the disposal is past that: an error of the script.
    pub fn hold_disposal(&self, agent: &Agent) -> Latch<()> {
        let gate = Latch::new();
        let held = gate.clone();
        let effect =
            move || -> BoxFuture<'static, ()> { Box::pin(async move { held.wait().await }) };
        agent.add_effect("gate", Box::new(effect)).expect("it lives");
        gate
    }

    /// Every operation of the disk waits for the latch from now on.
    pub fn hold_disk(&self) -> Latch<()> {
        let gate = Latch::new();
        let held = gate.clone();
        self.set_disk(move |_| Some(DiskFault::Hold(held.clone())));
        gate
    }

    /// Everything that changes the disk waits for the latch from now on.
    pub fn hold_writes(&self) -> Latch<()> {
        let gate = Latch::new();
        let held = gate.clone();
        self.set_disk(move |operation| match operation {
            DiskOperation::List | DiskOperation::Length | DiskOperation::Read => None,
            _ => Some(DiskFault::Hold(held.clone())),
        });
        gate
    }

    /// Call it when a child's log exists and is not confirmed yet: its next two flushes wait where
    /// [`Flushes`] says. The first one fails, so that the final one has something to confirm.
    pub fn hold_flushes(&self) -> Flushes {
        let (gates, directories) = (Flushes::default(), AtomicU64::new(0));
        let held = gates.clone();
        self.set_disk(move |operation| {
            // A log and the three names on its way are synced, one flush after the other.
            let synced = match operation {
                DiskOperation::SyncDirectory => directories.fetch_add(1, Ordering::Relaxed) + 1,
                _ => directories.load(Ordering::Relaxed),
            };
            match (operation, synced) {
                (DiskOperation::SyncDirectory, 2) => Some(DiskFault::Hold(held.turn.clone())),
                (DiskOperation::SyncDirectory, 3) => Some(DiskFault::Fail(DiskError::Io)),
                (DiskOperation::SyncDirectory, 4) => Some(DiskFault::Hold(held.last.clone())),
                (_, 4..) => Some(DiskFault::Hold(held.rest.clone())),
                _ => None,
            }
        });
        gates
    }

    /// Lets a racer go before the race: outside of the window, until nothing can move any more.
    pub async fn begin(&self, racer: Racer) {
        self.go(vec![racer]);
        self.quiet().await;
    }

    // --- the race -----------------------------------------------------------------------------

    /// A caller that gives up.
    pub fn give_up(&self, name: &'static str, signal: &CancelSignal) -> Racer {
        let signal = signal.clone();
        Racer::new(name, async move {
            signal.cancel(CancelCause::User);
            "gave up".to_owned()
        })
    }

    /// Sets a latch.
    pub fn set(&self, name: &'static str, latch: &Latch<()>) -> Racer {
        let latch = latch.clone();
        Racer::new(name, async move {
            latch.set(());
            "set".to_owned()
        })
    }

    // --- after the race -----------------------------------------------------------------------

    /// What became of the receipts, in the order in which they were settled: the turn and step that
    /// admitted their message, or that it was rejected.
    pub fn receipts(&self) -> String {
        let settled = self.facts().into_iter().filter_map(|fact| match fact {
            Fact::ReceiptSettled { admitted: Some((turn, step)), .. } => {
                Some(format!("turn {turn} step {step}"))
            }
            Fact::ReceiptSettled { admitted: None, .. } => Some("rejected".to_owned()),
            _ => None,
        });
        listed(settled)
    }

    /// Whom notices were injected into, by the given names of instances.
    pub fn notified(&self, instances: &[(&str, OwnerId)]) -> String {
        let owners = self.facts().into_iter().filter_map(|fact| match fact {
            Fact::NoticeInjected { owner, .. } => Some(owner),
            _ => None,
        });
        let name = |owner| {
            let known = instances.iter().find(|(_, instance)| *instance == owner);
            known.map_or("another instance", |(name, _)| *name).to_owned()
        };
        listed(owners.map(name))
    }

    /// The messages of `child`'s last request that somebody sent after its first prompt, in their
    /// order, each with who sent it.
    pub fn heard(&self, child: &SessionId) -> String {
        let requests = self.deployment().ground.scripts.requests_of(child);
        let messages = requests.last().map(|request| request.messages.clone());
        let sent = messages.into_iter().flatten().filter_map(|message| {
            let by = match message.source {
                MessageSource::User => "a person",
                MessageSource::Coordinator { .. } => "the parent",
                _ => return None,
            };
            Some(format!("{} by {by}", message.text()))
        });
        listed(sent.skip(1))
    }
}

/// The words with commas between them, or that there are none.
fn listed(words: impl Iterator<Item = String>) -> String {
    let words: Vec<_> = words.collect();
    if words.is_empty() { "none".to_owned() } else { words.join(", ") }
}
