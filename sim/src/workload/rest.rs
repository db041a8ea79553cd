//! The end of a run: faults heal, what is still under way ends or is stopped, everything closes.

use std::time::Duration;

use continuable::ids::{SessionId, TaskId};

use super::Workload;
use crate::plan::{Ending, Part};
use crate::trace::Note;

impl Workload {
    /// Heals the disk, lets everything end, stops what does not, and closes every service.
    pub(super) async fn rest(&self) {
        self.known().resting = true;
        let open = self.open_tasks();
        self.note(Note::Healed { pending: open.len() as u64 });
        self.saga().healed = true;
        let deployment = &self.deployment;
        if deployment.ground.disk.was_filled() {
            self.struck("full disk", "the disk");
        }
        deployment.ground.disk.heal();
        deployment.ground.disk.set_capacity(None);
        deployment.runtime.set_faults(None);
        match self.plan.ending {
            Ending::Patience | Ending::Restart => self.wait_or_kill(open).await,
            Ending::Owners => {}
            Ending::Control => deployment.control().dispose().await,
            Ending::Tasks => self.tasks().dispose().await,
        }
        let handles: Vec<_> =
            self.known().parents.iter_mut().filter_map(|parent| parent.handle.take()).collect();
        for handle in &handles {
            handle.dispose().await;
        }
        drop(handles);
        deployment.control().dispose().await;
        self.tasks().dispose().await;
        deployment.agents.dispose().await;
        // What could not be confirmed was recorded by the store as facts.
        drop(deployment.store.close().await);
        deployment.unload(Part::Surface).await;
    }

    async fn wait_or_kill(&self, open: Vec<(TaskId, SessionId)>) {
        for (id, caller) in open {
            let patience = Some(Duration::from_millis(self.rest_ms));
            let waited = self.tasks().wait(&id, Some(&caller), patience, None).await;
            if waited.is_ok_and(|task| !task.status.is_terminal()) {
                // It hangs by its script.
                drop(self.tasks().kill(&id, Some(&caller), None).await);
                drop(self.tasks().wait(&id, Some(&caller), None, None).await);
            }
        }
    }

    fn open_tasks(&self) -> Vec<(TaskId, SessionId)> {
        let known = self.known();
        let open = known.tasks.iter().filter(|(id, caller)| {
            self.tasks().get(id, Some(caller)).is_ok_and(|task| !task.status.is_terminal())
        });
        open.cloned().collect()
    }
}
