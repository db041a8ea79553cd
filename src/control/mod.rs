//! The control service: continuable children, their Task-backed activations, and the routes of
//! messages to them (design note; fact-sheet 7; contract P1 to P5, P16, P17).
//!
//! Reading order: [`association`] and [`route`] decide, `activation` drives one activation,
//! [`SubagentControlService`] here puts them together.

use std::fmt;
use std::pin::pin;
use std::sync::Arc;

use crate::agent::{Agent, AgentHost, AgentOptions};
use crate::cancel::CancelSignal;
use crate::channel::Latch;
use crate::facts::{CancelScope, Fact};
use crate::ids::{ActivationId, SessionId, TaskId};
use crate::message::{ContentBlock, Message, MessageSource, Role};
use crate::points::Point;
use crate::provider::{
    BoxAdmission, ContinuableRequest, Run, StartRequest, SteerError, SubagentService,
};
use crate::runtime::{Runtime, fresh_message_id, fresh_session_id, spawn};
use crate::sections::admission::{self, Admitted, Locks, Wish};
use crate::sections::settlement::{self, Teardown};
use crate::session::descriptor::{Descriptor, ToolFilter};
use crate::store::SessionStore;
use crate::sync::{LockClass, Mutex};
use crate::task::{Live, OwnerRef, TaskCancel, TaskService, TaskSpec};
use crate::vocabulary::{CancelCause, RouteCode};

mod activation;
pub mod association;
mod error;
mod owner;
pub mod route;
mod settle;

pub use error::{ControlError, subagent_detail};
pub use owner::AgentOwner;
pub use settle::settle_run;

use activation::{Beginning, Driver};
use association::AssociationTable;
use route::{Conflict, Route};

/// The kind of every activation's Task.
pub const SUBAGENT_KIND: &str = "subagent";

/// The longest label of a follow-up's Task, in UTF-16 units (fact-sheet 7.5).
const LABEL_UNITS_MAX: usize = 80;

/// What to start. It carries no identity and no signal: the service mints both.
#[derive(Debug, Clone)]
pub struct ContinuableStartSpec {
    /// The provider's name.
    pub provider: String,
    /// The Task's label.
    pub label: String,
    /// The child's first message.
    pub prompt: Vec<ContentBlock>,
    /// Where it came from.
    pub source: MessageSource,
    /// Overrides of the parent's options.
    pub agent_options: AgentOptions,
    /// The deepest delegation depth the child may have.
    pub max_depth: Option<u64>,
    /// The child's persona; part of its durable composition.
    pub persona: Option<String>,
    /// Restricts the child's tools; part of its durable composition.
    pub tool_filter: Option<ToolFilter>,
    /// The shape of this activation's structured result.
    pub output_schema: Option<serde_json::Value>,
}

impl ContinuableStartSpec {
    /// A plain text prompt from a person.
    pub fn text(
        provider: impl Into<String>,
        label: impl Into<String>,
        prompt: impl Into<String>,
    ) -> Self {
        Self {
            provider: provider.into(),
            label: label.into(),
            prompt: vec![ContentBlock::text(prompt)],
            source: MessageSource::User,
            agent_options: AgentOptions::default(),
            max_depth: None,
            persona: None,
            tool_filter: None,
            output_schema: None,
        }
    }
}

/// The two identities of a started child: the durable one, and the current activation's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ContinuableStart {
    /// Names the child for ever.
    pub child: SessionId,
    /// Names this activation only.
    pub task: TaskId,
}

/// A delivered message: the route it took and the Task whose result it is part of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Delivery {
    /// The route.
    pub route: RouteCode,
    /// The Task.
    pub task: TaskId,
}

/// The table, shared with the activations, which do not keep the service alive.
type Associations = Arc<Mutex<AssociationTable<Run, CancelSignal>>>;

/// Owns the ids, associations and routes of continuable children. Dropping it requests its disposal
/// (contract P17).
pub struct SubagentControlService {
    runtime: Arc<dyn Runtime>,
    agents: Arc<AgentHost>,
    tasks: Arc<TaskService>,
    subagents: Arc<SubagentService>,
    store: Option<Arc<SessionStore>>,
    associations: Associations,
    disposed: Latch<()>,
}

impl fmt::Debug for SubagentControlService {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SubagentControlService")
    }
}

impl SubagentControlService {
    /// A service over the given layers. Without a store nothing can be started or continued.
    pub fn new(
        agents: Arc<AgentHost>,
        tasks: Arc<TaskService>,
        subagents: Arc<SubagentService>,
        store: Option<Arc<SessionStore>>,
    ) -> Arc<Self> {
        let runtime = Arc::clone(&agents.config().runtime);
        let table = AssociationTable::default();
        Arc::new(Self {
            runtime,
            agents,
            tasks,
            subagents,
            store,
            associations: Arc::new(Mutex::new(LockClass::Association, table)),
            disposed: Latch::new(),
        })
    }

    /// How many activations there are; for tests and diagnostics.
    pub fn activations(&self) -> usize {
        self.associations.lock().len()
    }

    /// The running children of the session `parent`, each with the Task of its activation; in the
    /// order of the children's ids. It tells nobody and consumes nothing.
    pub fn activations_of(&self, parent: &SessionId) -> Vec<(SessionId, TaskId)> {
        self.associations.lock().of_owner(parent)
    }

    // --- starting -----------------------------------------------------------------------------

    /// Starts a continuable child and answers both its ids at once; nothing about publication or
    /// durability is awaited. Whatever the provider refuses is the Task's failure.
    ///
    /// # Errors
    ///
    /// Before anything was created: `PERSISTENCE_UNAVAILABLE`; a composition that is not lossless
    /// JSON; a refusal of the Task service; a closing service.
    pub fn start_continuable(
        &self,
        parent: &Agent,
        spec: ContinuableStartSpec,
    ) -> Result<ContinuableStart, ControlError> {
        if self.store.is_none() {
            return Err(ControlError::PersistenceUnavailable);
        }
        let descriptor = self.descriptor(parent, &spec)?;
        let child = fresh_session_id(&*self.runtime);
        let message_id = fresh_message_id(&*self.runtime);
        let message =
            Message::new(message_id, Role::User, spec.prompt.clone(), spec.source.clone());
        let wish = self.wish(parent, child.clone(), spec.label.clone(), None);
        let (activation, signal) = (wish.activation, wish.signal.clone());
        let task = match self.admit(parent, wish) {
            Admitted::Installed(task) => task,
            Admitted::Refused(refusal, _links) => return Err(refusal.into()),
            Admitted::Closing(_links) => return Err(ControlError::Closing),
            Admitted::Routed(route, _links) => return Err(self.undelivered(&child, &route)),
        };
        let request = StartRequest {
            prompt: spec.prompt,
            source: spec.source,
            parent: parent.clone(),
            signal: signal.clone(),
            agent_options: spec.agent_options,
            output_schema: spec.output_schema,
            max_depth: spec.max_depth,
            tool_filter: spec.tool_filter,
            persona: spec.persona,
        };
        let request = ContinuableRequest { request, message, child: child.clone(), descriptor };
        let request = Box::new(request);
        let beginning = Beginning::Start { provider: spec.provider, request };
        self.drive(parent, &task, activation, child.clone(), signal, beginning);
        Ok(ContinuableStart { child, task })
    }

    /// The child's durable composition, checked before any Task exists.
    fn descriptor(
        &self,
        parent: &Agent,
        spec: &ContinuableStartSpec,
    ) -> Result<Descriptor, ControlError> {
        let (own, inherited) = (&spec.agent_options, parent.options());
        let descriptor = Descriptor {
            provider: spec.provider.clone(),
            agent_provider: own.provider.clone().or_else(|| inherited.provider.clone()),
            agent_model: own.model.clone().or_else(|| inherited.model.clone()),
            persona: spec.persona.clone(),
            tool_filter: spec.tool_filter.clone(),
        };
        descriptor.snapshot()?;
        Ok(descriptor)
    }

    fn wish(
        &self,
        owner: &Agent,
        child: SessionId,
        label: String,
        message: Option<&Message>,
    ) -> Wish<CancelSignal> {
        let activation = self.tasks.next_activation();
        let scope = CancelScope::Activation { activation, child: child.clone() };
        let owner = OwnerRef { instance: owner.instance(), session: owner.id().clone() };
        Wish {
            signal: CancelSignal::new(Arc::clone(&self.runtime), scope),
            spec: TaskSpec {
                kind: SUBAGENT_KIND.to_owned(),
                label,
                output_limit_bytes: None,
                owner: Some(owner.clone()),
                activation: Some(activation),
                child: Some(child.clone()),
            },
            child,
            owner,
            activation,
            message: message.map(|message| (message.id.clone(), message.source.clone())),
            persistent: self.store.is_some(),
            now: self.runtime.now(),
        }
    }

    /// Section (a).
    fn admit(&self, owner: &Agent, wish: Wish<CancelSignal>) -> Admitted<Live, Run> {
        let cancel = TaskCancel::Signal(wish.signal.clone());
        let links = TaskService::links(cancel, Some(AgentOwner::shared(owner)));
        let cleanup = self.tasks.owner_cleanup(owner.instance());
        admission::admit(&self.runtime, &self.locks(), wish, links, |registry, needs_cleanup| {
            AgentOwner::new(owner.clone()).admit_in(registry, needs_cleanup.then_some(cleanup))
        })
    }

    fn locks(&self) -> Locks<'_, Live, Agent, Run, CancelSignal> {
        Locks {
            associations: &self.associations,
            tasks: self.tasks.table(),
            registry: self.agents.registry(),
        }
    }

    /// Spawns the driver of an installed activation. The Task drops the association when the driver
    /// is done and listeners were told (contract P8).
    fn drive(
        &self,
        parent: &Agent,
        task: &TaskId,
        activation: ActivationId,
        child: SessionId,
        signal: CancelSignal,
        beginning: Beginning,
    ) {
        let remove = {
            let (facts, table) = (Arc::clone(&self.runtime), Arc::clone(&self.associations));
            let child = child.clone();
            move || drop(admission::remove(&facts, &table, &child, activation))
        };
        let driver = Driver {
            runtime: Arc::clone(&self.runtime),
            associations: Arc::clone(&self.associations),
            subagents: Arc::clone(&self.subagents),
            tasks: Arc::downgrade(&self.tasks),
            activation,
            child,
            parent: parent.clone(),
            signal,
        };
        self.tasks.drive(task, Box::pin(driver.run(beginning)), Some(Box::new(remove)));
    }

    // --- sending ------------------------------------------------------------------------------

    /// Sends a message to a child: into its running activation, or else into a fresh one that
    /// resumes it. `signal` is the caller's own: when it fires, an undrained message is withdrawn,
    /// and so it is when the future is dropped (contract P4).
    ///
    /// # Errors
    ///
    /// The message was not delivered, and this call will not deliver it any more. Whatever a cold
    /// resume meets is the started Task's failure instead.
    pub async fn send_message(
        &self,
        sender: &Agent,
        child: &str,
        content: Vec<ContentBlock>,
        source: MessageSource,
        signal: Option<&CancelSignal>,
    ) -> Result<Delivery, ControlError> {
        let child = SessionId::checked(child)?;
        let id = fresh_message_id(&*self.runtime);
        let message = Message::new(id.clone(), Role::User, content, source);
        let outcome = self.route(sender, &child, message, signal).await;
        self.runtime.fact(match &outcome {
            Ok(Delivery { route, task }) => {
                let task = task.clone();
                Fact::SendAnswered { message: id, child, route: *route, task }
            }
            Err(error) => Fact::SendFailed { message: id, child, code: error.code() },
        });
        outcome
    }

    async fn route(
        &self,
        sender: &Agent,
        child: &SessionId,
        message: Message,
        signal: Option<&CancelSignal>,
    ) -> Result<Delivery, ControlError> {
        if signal.is_some_and(CancelSignal::is_cancelled) {
            return Err(ControlError::Cancelled { child: child.clone() });
        }
        let wish = self.wish(sender, child.clone(), label_of(&message), Some(&message));
        let (activation, own) = (wish.activation, wish.signal.clone());
        match self.admit(sender, wish) {
            Admitted::Installed(task) => {
                let store = self.store.clone().expect("the section starts nothing without a store");
                let beginning = Beginning::Resume { message, store };
                self.drive(sender, &task, activation, child.clone(), own, beginning);
                Ok(Delivery { route: RouteCode::Started, task })
            }
            Admitted::Refused(refusal, _links) => Err(refusal.into()),
            Admitted::Closing(_links) => Err(ControlError::Closing),
            Admitted::Routed(Route::Steer { task, run }, _links) => {
                self.steer(child, &run, message, signal).await?;
                Ok(Delivery { route: RouteCode::Steered, task })
            }
            Admitted::Routed(route, _links) => Err(self.undelivered(child, &route)),
        }
    }

    /// Steers, and waits for the admission. A lost race is the answer; there is no second route.
    async fn steer(
        &self,
        child: &SessionId,
        run: &Run,
        message: Message,
        signal: Option<&CancelSignal>,
    ) -> Result<(), ControlError> {
        self.runtime.point(Point::Steer).await;
        let child = child.clone();
        let admission = match run.steer(message) {
            None => return Err(ControlError::NoLiveDelivery { child }),
            Some(Err(cause)) => return Err(ControlError::Stopped { child, cause }),
            Some(Ok(admission)) => admission,
        };
        match self.admitted(admission, signal).await {
            Some(Ok(())) => Ok(()),
            Some(Err(cause)) => Err(ControlError::Stopped { child, cause }),
            None => Err(ControlError::Cancelled { child }),
        }
    }

    /// Waits for an admission; `None` if the caller's signal fired and the message was withdrawn.
    async fn admitted(
        &self,
        mut admission: BoxAdmission,
        signal: Option<&CancelSignal>,
    ) -> Option<Result<(), SteerError>> {
        self.runtime.point(Point::SteerAdmission).await;
        if let Some(signal) = signal {
            let mut fired = pin!(signal.cancelled());
            tokio::select! {
                biased;
                outcome = admission.as_mut() => return Some(outcome),
                _cause = fired.as_mut() => {}
            }
            self.runtime.point(Point::SteerAdmission).await;
            if admission.as_mut().withdraw() {
                return None;
            }
        }
        Some(admission.await)
    }

    fn undelivered(&self, child: &SessionId, route: &Route<Run>) -> ControlError {
        let child = child.clone();
        match route {
            Route::Conflict(Conflict::Outside) => ControlError::OutsideOwnership { child },
            Route::Conflict(Conflict::NotAssociated) => ControlError::NotAssociated { child },
            Route::Foreign { task } => crate::task::TaskRefusal::Foreign(task.clone()).into(),
            Route::NotRunning { task, status } => {
                ControlError::NotRunning { child, task: task.clone(), status: *status }
            }
            Route::Starting { task } | Route::Steer { task, .. } => {
                ControlError::Starting { child, task: task.clone() }
            }
            Route::Start => ControlError::PersistenceUnavailable,
        }
    }

    // --- closing ------------------------------------------------------------------------------

    /// Closes the service (contract P16): refuses new starts and sends, cancels every activation,
    /// and is done when their Tasks are terminal. Every caller awaits the same completion.
    pub fn dispose(&self) -> impl Future<Output = ()> + Send + 'static + use<> {
        let disposed = self.disposed.clone();
        if let Some(open) = self.refuse_everything() {
            let (runtime, tasks) = (Arc::clone(&self.runtime), Arc::clone(&self.tasks));
            let disposed = disposed.clone();
            let closing = async move {
                for task in &open {
                    runtime.point(Point::TaskCancel).await;
                    cancel(&runtime, &tasks, task);
                }
                for task in &open {
                    runtime.point(Point::TasksDrain).await;
                    tasks.released(task).await;
                }
                disposed.set(());
            };
            spawn(&self.runtime, "control service disposal", closing).detach();
        }
        async move { disposed.wait().await }
    }

    /// The first section of closing; the Tasks of the activations that are left, once.
    fn refuse_everything(&self) -> Option<Vec<TaskId>> {
        let mut associations = self.associations.lock();
        let open = associations.close()?;
        self.runtime.fact(Fact::ControlClosing);
        Some(open.into_iter().map(|(task, _)| task).collect())
    }
}

/// Section (c) of a closing service: accepts the cancellation and marks the Task stopping.
fn cancel(runtime: &Arc<dyn Runtime>, tasks: &TaskService, task: &TaskId) {
    let cause = CancelCause::ControlDisposed;
    if let Teardown::Wake(signal, decision) =
        settlement::tear_down(tasks.table(), task, cause, runtime)
    {
        signal.wake(decision, cause);
    }
}

impl Drop for SubagentControlService {
    fn drop(&mut self) {
        for task in self.refuse_everything().unwrap_or_default() {
            cancel(&self.runtime, &self.tasks, &task);
        }
    }
}

/// The label of a follow-up's Task: the message's text, whitespace collapsed, cut to
/// [`LABEL_UNITS_MAX`] UTF-16 units without splitting a pair (fact-sheet 7.5).
fn label_of(message: &Message) -> String {
    let text = message.text();
    let collapsed = text.split_whitespace().collect::<Vec<_>>().join(" ");
    if collapsed.is_empty() {
        return "subagent follow-up".to_owned();
    }
    if collapsed.encode_utf16().count() <= LABEL_UNITS_MAX {
        return collapsed;
    }
    let mut units = 0;
    let kept = collapsed.chars().take_while(|c| {
        units += c.len_utf16();
        units < LABEL_UNITS_MAX
    });
    format!("{}…", kept.collect::<String>())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::MessageId;

    fn label(text: &str) -> String {
        label_of(&Message::user(MessageId::new("m"), text, MessageSource::User))
    }

    #[test]
    fn a_label_is_collapsed_and_cut_without_splitting_a_pair() {
        assert_eq!(label(" \n\t "), "subagent follow-up");
        assert_eq!(label("  two \n words "), "two words");
        assert_eq!(label(&"x".repeat(80)), "x".repeat(80));
        assert_eq!(label(&"x".repeat(100)), format!("{}…", "x".repeat(79)));
        let pairs = label(&"𝄞".repeat(60));
        assert_eq!(pairs, format!("{}…", "𝄞".repeat(39)));
    }
}
