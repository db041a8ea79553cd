//! A parent and its children on the whole runtime, for the tests that kill or record it: what they
//! may believe is durable, and what a log says about it afterwards.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use continuable::agent::AgentHandle;
use continuable::assembly::{Assembly, AssemblyConfig};
use continuable::control::{ContinuableStart, ContinuableStartSpec};
use continuable::error::ErrorCode;
use continuable::ids::{SessionId, TaskId};
use continuable::message::{ContentBlock, MessageSource};
use continuable::model::script::{ScriptedModel, Step};
use continuable::runtime::{Runtime, TokioRuntime};
use continuable::session::{Event, EventBody};
use continuable::store::{Disk, SessionStore};
use continuable::vocabulary::TaskStatus;

/// Long enough for a piece to reach the disk before the next one, so that a stop finds open turns.
const PAUSE: Duration = Duration::from_millis(1);

/// The parent's session id; every other session below the same root is a child of it.
pub fn parent_id() -> SessionId {
    SessionId::new("parent")
}

/// One process's life: the assembly and the one parent.
pub struct Household {
    pub assembly: Assembly,
    parent: AgentHandle,
}

impl Household {
    /// Puts the runtime together on `disk` and brings the parent back, or makes it.
    pub async fn open(disk: Arc<dyn Disk>) -> Self {
        let runtime: Arc<dyn Runtime> = Arc::new(TokioRuntime::current());
        let model = ScriptedModel::new(Arc::clone(&runtime));
        model.set_recording(false);
        model.set_factory(Arc::new(|_request, _n| {
            let pieces = ["to ", "be ", "continued"].map(str::to_owned).to_vec();
            Some(vec![Step::Always(Box::new(Step::SayPieces { pieces, pause: PAUSE }))])
        }));
        let config = AssemblyConfig::new(runtime, disk, Arc::new(model));
        let assembly = Assembly::new(config).expect("a sound configuration");
        let parent = match assembly.resume_parent(parent_id()).await {
            Ok(parent) => parent,
            Err(error) => {
                // A parent that never said anything has no log.
                assert_eq!(error.code(), ErrorCode::SessionNotFound, "{error}");
                assembly.create_parent(parent_id()).await.expect("a fresh id")
            }
        };
        Self { assembly, parent }
    }

    /// Starts a child with `text`; its id once the runtime says that its turn is durable.
    pub async fn start(&self, text: &str) -> SessionId {
        let spec = ContinuableStartSpec::text("spawn", "a child", text);
        let started = self.assembly.control.start_continuable(self.parent.agent(), spec);
        let ContinuableStart { child, task } = started.expect("a registered parent may start");
        self.finished(&task).await;
        child
    }

    /// Continues `child` by its id with `text`; true once the runtime says that the turn is durable,
    /// false if the message was not delivered because another activation is beginning or ending.
    pub async fn continue_child(&self, child: &SessionId, text: &str) -> bool {
        let content = vec![ContentBlock::text(text)];
        let control = &self.assembly.control;
        let user = MessageSource::User;
        let sent = control.send_message(self.parent.agent(), child.as_str(), content, user, None);
        match sent.await {
            Ok(delivery) => {
                self.finished(&delivery.task).await;
                true
            }
            Err(error) => {
                assert_eq!(error.code(), ErrorCode::NotDelivered, "{child}: {error}");
                false
            }
        }
    }

    async fn finished(&self, task: &TaskId) {
        let waited = self.assembly.tasks.wait(task, Some(&parent_id()), None, None).await;
        let ended = waited.expect("a Task of its own");
        let what = (ended.status, ended.code, &ended.detail);
        assert_eq!(what, (TaskStatus::Completed, None, &ended.detail), "{task} of a working disk");
    }

    /// Ends the life in order.
    pub async fn close(self) {
        self.parent.dispose().await;
        self.assembly.shutdown().await.expect("everything is confirmed durable");
    }
}

/// The store alone on `disk`.
pub fn store_on(disk: Arc<dyn Disk>) -> Arc<SessionStore> {
    SessionStore::open(Arc::new(TokioRuntime::current()), disk)
}

/// The messages in the log that a turn's end follows.
pub fn finished_texts(events: &[Arc<Event>]) -> BTreeSet<String> {
    let (mut open, mut finished) = (BTreeSet::new(), BTreeSet::new());
    for event in events {
        match &event.body {
            EventBody::UserMessage(message) | EventBody::SteeringMessage { message, .. } => {
                open.insert(message.text());
            }
            EventBody::TurnEnd { .. } => finished.append(&mut open),
            _ => {}
        }
    }
    finished
}
