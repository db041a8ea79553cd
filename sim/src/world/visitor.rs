//! A second runtime on the same disk (contract P15, race L25): another process of the runtime's
//! machine, with a store and agents of its own.
//!
//! Each [`Visit`] is a process of its own: it opens a child, talks to it, saves, and exits. With the lease it is refused
//! before it wrote anything, for as long as the first runtime has it. Without, both may write: what
//! either was told is durable is a claim from then on ([`Confirmed::contest`]), and the end of the
//! run looks for it. When the machine crashes this process dies with it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use continuable::agent::create::ResumeAgent;
use continuable::agent::tools::ToolRegistry;
use continuable::agent::{AgentHost, AgentHostConfig, AgentOptions};
use continuable::ids::SessionId;
use continuable::message::{Message, MessageSource};
use continuable::model::http::{HttpModel, HttpModelConfig};
use continuable::runtime::{Runtime, fresh_message_id};
use continuable::store::disk::{DiskOperation, DiskPath};
use continuable::store::path::SessionPlace;
use continuable::store::{Disk, SessionStore};

use super::network::ModelConnect;
use super::{Shared, VISITOR_LIFE, guard};
use crate::disk::{DiskFault, DiskFaults};
use crate::explore::SimRuntime;
use crate::faults::SECOND_RUNTIME;
use crate::plan::Visit;
use crate::probe::{Confirmed, Judge};
use crate::trace::{Answer, Event, Note, Stamp};

/// Its name in the simulated network.
pub(super) const VISITOR: &str = "visitor";

impl Shared {
    /// The host of the second runtime.
    pub(super) fn visitor_host(self: &Arc<Self>) -> impl Future<Output = turmoil::Result> + use<> {
        let executor = self.executor(VISITOR_LIFE + self.visitors.load(Ordering::Relaxed));
        let runtime = Arc::clone(executor.runtime());
        let (shared, here) = (Arc::clone(self), Arc::clone(&runtime));
        let next = Box::pin(async move { shared.next_visit(&here).await });
        runtime.spawn("visitor".to_owned(), next);
        self.host(executor)
    }

    /// Whether visits are under way or to come.
    pub(super) fn has_visits(&self) -> bool {
        guard(&self.visits).front().is_some()
    }

    /// The process of the last visit exited, and the next one starts.
    pub(super) fn relieve_visitor(&self, sim: &mut turmoil::Sim<'_>) {
        if self.visited.swap(false, Ordering::Relaxed) {
            self.visitors.fetch_add(1, Ordering::Relaxed);
            sim.bounce(VISITOR);
        }
    }

    /// The machine died, and the second runtime with it.
    pub(super) fn bury_visitor(&self, ms: u64) {
        let number = self.visitors.fetch_add(1, Ordering::Relaxed);
        let stamp = Stamp { ms, life: VISITOR_LIFE + number, actor: "harness".into() };
        let by = "the machine".to_owned();
        self.record.push(stamp, Event::Note(Note::Crashed { by }));
    }

    /// Waits for the next visit, and makes it.
    async fn next_visit(&self, runtime: &Arc<SimRuntime>) {
        let Some(visit) = guard(&self.visits).front().copied() else { return };
        let now_ms = self.now_ms.load(Ordering::Relaxed);
        runtime.sleep(Duration::from_millis(visit.at_ms.saturating_sub(now_ms))).await;
        let (child, healed) = {
            let saga = guard(&self.saga);
            let place = visit.child.checked_rem(saga.children.len() as u64);
            let place = place.and_then(|place| usize::try_from(place).ok());
            (place.and_then(|place| saga.children.get(place)).cloned(), saga.healed)
        };
        // It is one of the faults, and those are over once the run heals.
        if let Some(child) = child.filter(|_| !healed) {
            self.visit(runtime, visit, child).await;
        }
        guard(&self.visits).pop_front();
        self.visited.store(true, Ordering::Relaxed);
    }

    /// One process of the second runtime, from its start to its exit.
    async fn visit(&self, runtime: &Arc<SimRuntime>, visit: Visit, session: SessionId) {
        let here: Arc<dyn Runtime> = Arc::<SimRuntime>::clone(runtime);
        let (kind, at) = (SECOND_RUNTIME.to_owned(), session.as_str().to_owned());
        runtime.record(Event::Note(Note::Struck { fault: None, kind, at }));
        let disk = self.disk.for_process(Arc::clone(&here));
        let directory = SessionPlace::of(&session, None).ok().map(|place| place.log.parent());
        let watch = Arc::new(Watch {
            session: session.clone(),
            directory,
            confirmed: self.confirmed.clone(),
            disk_ms: visit.disk_ms,
            writes: AtomicU64::new(0),
        });
        disk.set_faults(Arc::<Watch>::clone(&watch));
        let open = if self.plan.lease { SessionStore::open_leased } else { SessionStore::open };
        let store = open(Arc::clone(&here), Arc::new(disk) as Arc<dyn Disk>);
        let config = HttpModelConfig { identify: true, ..HttpModelConfig::new("model") };
        let agents = AgentHost::new(AgentHostConfig {
            runtime: Arc::clone(&here),
            store: Some(Arc::clone(&store)),
            model: Arc::new(HttpModel::new(Arc::clone(&here), Arc::new(ModelConnect), config)),
            tools: Arc::new(ToolRegistry::default()),
            system_prompt: "simulated, twice".to_owned(),
            defaults: AgentOptions::default(),
            hooks: Vec::new(),
        });
        runtime.set_probe(Judge::new(self.disk.clone(), &agents, self.confirmed.clone()));
        let answer = self.work(&here, &agents, visit, &session).await;
        // What it could not save it was told before.
        drop(store.close().await);
        let writes = watch.writes.load(Ordering::Relaxed);
        let leased = self.plan.lease;
        runtime.record(Event::Note(Note::Visited { session, leased, writes, answer }));
    }

    async fn work(
        &self,
        runtime: &Arc<dyn Runtime>,
        agents: &Arc<AgentHost>,
        visit: Visit,
        session: &SessionId,
    ) -> Answer {
        let handle = match agents.resume(ResumeAgent::new(session.clone())).await {
            Ok(handle) => handle,
            Err(error) => return Answer::Refused { code: error.code() },
        };
        let agent = handle.agent();
        let id = fresh_message_id(&**runtime);
        let message = Message::user(id, "from another process", MessageSource::User);
        agent.followup(message);
        tokio::select! {
            biased;
            () = agent.when_idle() => {}
            () = runtime.sleep(Duration::from_millis(visit.hold_ms)) => {}
        }
        let saved = agent.flush().await;
        handle.dispose().await;
        match saved {
            Ok(_) => Answer::Done,
            Err(error) => Answer::Refused { code: error.code() },
        }
    }
}

/// Watches the disk operations of one visit.
struct Watch {
    session: SessionId,
    /// Where its files are.
    directory: Option<DiskPath>,
    confirmed: Confirmed,
    disk_ms: u64,
    writes: AtomicU64,
}

impl DiskFaults for Watch {
    fn decide(&self, operation: DiskOperation, at: &DiskPath, _: u64) -> Option<DiskFault> {
        use DiskOperation as D;
        let inside = |directory: &DiskPath| at == directory || at.parent() == *directory;
        match operation {
            D::List | D::Length | D::Read | D::Lease => {}
            // Making sure that the root is there is nothing to a session.
            _ if !self.directory.as_ref().is_some_and(inside) => {}
            D::CreateDirectory
            | D::WriteNew
            | D::Append
            | D::Overwrite
            | D::Truncate
            | D::Link
            | D::Remove
            | D::Sync
            | D::SyncDirectory => {
                self.writes.fetch_add(1, Ordering::Relaxed);
                self.confirmed.contest(&self.session);
            }
        }
        (self.disk_ms > 0).then_some(DiskFault::Slow { milliseconds: self.disk_ms })
    }
}
