//! Section (a): ownership check, route, Task registration and association install in one piece
//! (contract P1). The control service is the only caller; the driver is spawned after.

use crate::agent::registry::Registry;
use crate::control::association::{Activation, AssociationTable, Filled};
use crate::control::route::{self, Route};
use crate::error::ErrorCode;
use crate::facts::{Fact, FactSink};
use crate::ids::{ActivationId, MessageId, OwnerId, RunId, SessionId, TaskId};
use crate::message::MessageSource;
use crate::sections::slot::{Slot, SlotLock};
use crate::sync::Mutex;
use crate::task::record::{OwnerRef, TaskLinks, TaskParts, TaskSpec};
use crate::task::table::{OwnerGone, TaskRefusal, TaskTable};
use crate::vocabulary::RouteCode;

/// The locks of the section, in their order.
pub struct Locks<'a, T: TaskParts, A, R, S> {
    /// Associations.
    pub associations: &'a Mutex<AssociationTable<R, S>>,
    /// Task records.
    pub tasks: &'a Mutex<TaskTable<T>>,
    /// The agent registry.
    pub registry: &'a Mutex<Registry<A>>,
}

/// A wish for an activation.
pub struct Wish<S> {
    /// The child.
    pub child: SessionId,
    /// The exact instance that asks, and its session.
    pub owner: OwnerRef,
    /// The id of the activation, should it be installed.
    pub activation: ActivationId,
    /// Its cancellation authority.
    pub signal: S,
    /// What the Task is.
    pub spec: TaskSpec,
    /// The message to route; `None` for the first activation of a fresh child, which it holds at
    /// once.
    pub message: Option<(MessageId, MessageSource)>,
    /// Whether there is a session store: without one nothing is started.
    pub persistent: bool,
    /// Now, in milliseconds since the Unix epoch.
    pub now: u64,
}

/// What the section decided. Everything given in and not used is returned to be dropped unlocked.
pub enum Admitted<T: TaskParts, R> {
    /// A Task was registered and its association installed.
    Installed(TaskId),
    /// The message takes another route, or would need a store to start; nothing was changed.
    Routed(Route<R>, TaskLinks<T>),
    /// Refused; nothing was changed.
    Refused(TaskRefusal, TaskLinks<T>),
    /// The control service is closing; nothing was changed.
    Closing(TaskLinks<T>),
}

/// Decides the route and, if that is a fresh activation, registers its Task and installs it.
/// `admits` asks the owner, by the registry that the section holds, and attaches the Task service's
/// cleanup to its scope if it is told to (once per instance); nothing else can refuse any more then.
pub fn admit<T, A, R, S>(
    facts: &impl FactSink,
    locks: &Locks<'_, T, A, R, S>,
    wish: Wish<S>,
    links: TaskLinks<T>,
    admits: impl FnOnce(&Registry<A>, bool) -> Result<(), OwnerGone>,
) -> Admitted<T, R>
where
    T: TaskParts,
    A: Clone,
    R: Clone,
    S: Clone,
{
    let Wish { child, owner, activation, signal, spec, message, persistent, now } = wish;
    let mut associations = locks.associations.lock();
    let mut tasks = locks.tasks.lock();
    let registry = locks.registry.lock();
    let refuse = |refusal: TaskRefusal, tasks: &TaskTable<T>, links| {
        tasks.refused(&spec, &refusal, facts);
        Admitted::Refused(refusal, links)
    };
    if associations.is_closing() {
        tasks.refused(&spec, &TaskRefusal::Closing, facts);
        return Admitted::Closing(links);
    }
    let live = registry.instance_of(&child);
    let status = |task: &TaskId| tasks.record(task).map(|record| record.status());
    let association = associations.find(&child, &owner.session);
    let route = route::decide(association, &owner.session, live, status);
    let routed = |route, task: &TaskId| {
        if let Some((message, source)) = message.clone() {
            let (child, sender, task) = (child.clone(), owner.instance, task.clone());
            facts.record(Fact::SendRouted { message, child, sender, source, route, task });
        }
    };
    match &route {
        Route::Start if persistent => {}
        Route::Steer { task, .. } => {
            // A closing owner neither starts nor sends (contract P16); of a start `admits` asks.
            if let Some(why) = gone(&registry, &owner) {
                let refusal = TaskRefusal::OwnerUnavailable { session: owner.session.clone(), why };
                return refuse(refusal, &tasks, links);
            }
            routed(RouteCode::Steered, task);
            return Admitted::Routed(route, links);
        }
        _ => return Admitted::Routed(route, links),
    }
    let preflight = match tasks.preflight(&spec, facts) {
        Ok(preflight) => preflight,
        Err(refusal) => return Admitted::Refused(refusal, links),
    };
    if let Err(why) = admits(&registry, preflight.needs_cleanup) {
        let refusal = TaskRefusal::OwnerUnavailable { session: owner.session.clone(), why };
        return refuse(refusal, &tasks, links);
    }
    if preflight.needs_cleanup {
        tasks.cleanup_attached(owner.instance);
    }
    let task = tasks.register(spec, links, now, facts);
    let initial = message.is_none();
    let carried = (owner.instance, owner.session);
    let installed = installed(facts, activation, &child, &task, carried, !initial);
    routed(RouteCode::Started, &task);
    associations.install(child, installed, signal, initial);
    Admitted::Installed(task)
}

/// The activation of `task` for `child`, carried by an instance of a session; recorded as a fact.
fn installed(
    facts: &impl FactSink,
    id: ActivationId,
    child: &SessionId,
    task: &TaskId,
    (owner, owner_session): (OwnerId, SessionId),
    resumed: bool,
) -> Activation {
    let (child, named) = (child.clone(), task.clone());
    let fact = Fact::AssociationInstalled { activation: id, child, task: named, owner, resumed };
    facts.record(fact);
    Activation { id, task: task.clone(), owner, owner_session }
}

/// Why `owner` may not act: it is closing, or not the registered instance.
fn gone<A: Clone>(registry: &Registry<A>, owner: &OwnerRef) -> Option<OwnerGone> {
    if registry.is_current(owner.instance) {
        return None;
    }
    let published = registry.instance_of(&owner.session) == Some(owner.instance);
    Some(if published { OwnerGone::Closing } else { OwnerGone::NotRegistered })
}

/// Why an authorised activation does not hold its child.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Unclaimed {
    /// It was cancelled first.
    Cancelled,
    /// Another activation holds the child, in this Task.
    Held(TaskId),
}

/// The persisted header authorised the activation (contract P5): it claims the child, unless it was
/// cancelled or another one holds it.
pub fn authorise<R: Clone, S: Clone>(
    facts: &impl FactSink,
    associations: &Mutex<AssociationTable<R, S>>,
    signal: &impl SlotLock,
    (child, activation): (&SessionId, ActivationId),
) -> Result<(), Unclaimed> {
    let mut associations = associations.lock();
    if signal.lock().cause().is_some() {
        return Err(Unclaimed::Cancelled);
    }
    associations.authorise(child, activation).map_err(|held| Unclaimed::Held(held.task))?;
    facts.record(Fact::AssociationAuthorised { activation, child: child.clone() });
    Ok(())
}

/// The published run is filled in.
pub fn fill<R: Clone, S: Clone>(
    facts: &impl FactSink,
    associations: &Mutex<AssociationTable<R, S>>,
    (child, activation): (&SessionId, ActivationId),
    run: RunId,
    filled: Filled<R>,
) -> bool {
    let agent: Option<OwnerId> = filled.agent;
    let mut associations = associations.lock();
    let held = associations.fill(child, activation, filled);
    if held {
        let child = child.clone();
        facts.record(Fact::AssociationFilled { activation, child, run, agent });
    }
    held
}

/// The association leaves (contract P8). The caller drops what was removed, unlocked.
pub fn remove<R: Clone, S: Clone>(
    facts: &impl FactSink,
    associations: &Mutex<AssociationTable<R, S>>,
    child: &SessionId,
    activation: ActivationId,
) -> Option<crate::control::association::Association<R, S>> {
    let mut associations = associations.lock();
    let removed = associations.remove(child, activation)?;
    facts.record(Fact::AssociationRemoved { activation, child: child.clone() });
    Some(removed)
}

/// The code under which a route that delivers nothing is answered.
pub fn route_code<R>(route: &Route<R>) -> Option<ErrorCode> {
    match route {
        Route::Conflict(_) => Some(ErrorCode::OwnershipConflict),
        Route::Foreign { .. } => Some(ErrorCode::ForeignTask),
        Route::NotRunning { .. } | Route::Starting { .. } => Some(ErrorCode::NotDelivered),
        Route::Steer { .. } | Route::Start => None,
    }
}
