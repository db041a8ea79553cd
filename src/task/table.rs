//! The table of all Tasks of one service: ids, surfaces, owners, who may reach what (fact-sheet
//! 4.1, 4.4, 4.6; contract P13, P16). Pure, like the records it holds.

use std::collections::BTreeMap;

use super::record::{
    KillState, Left, Notice, OUTPUT_LIMIT_MAX, OwnerRef, Settlement, TaskLinks, TaskParts,
    TaskRecord, TaskSnapshot, TaskSpec, WaitStep, WaitWake,
};
use crate::error::ErrorCode;
use crate::facts::{Fact, FactSink};
use crate::ids::{OwnerId, SessionId, TaskId};
use crate::sync::{Access, ObjectKind, key_of, touch};
use crate::vocabulary::{KillAnswer, TaskOutcome, WaitEnd};

/// Why the owner cannot take a Task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OwnerGone {
    /// It is not the instance registered under its id.
    NotRegistered,
    /// It is closing, or closed.
    Closing,
}

/// Why a Task operation was refused. A refusal changed nothing.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TaskRefusal {
    /// Nobody could read or stop the Task (contract I21).
    #[error(
        "background tasks unavailable: no control surface is attached; load the Task tools \
         (`tools::tasks`) or attach a surface of your own"
    )]
    NoControlSurface,
    /// The kind is empty.
    #[error("invalid task kind: it is empty")]
    InvalidKind,
    /// The label is empty.
    #[error("invalid task label: it is empty")]
    InvalidLabel,
    /// The output limit is zero or above [`OUTPUT_LIMIT_MAX`].
    #[error("invalid outputLimitBytes: {0} is not a positive safe integer")]
    InvalidOutputLimit(u64),
    /// The owner instance cannot own it.
    #[error("{}", owner_text(session, *why))]
    OwnerUnavailable {
        /// Its session id.
        session: SessionId,
        /// Why.
        why: OwnerGone,
    },
    /// The service is closing, or closed.
    #[error("the Task service is closing")]
    Closing,
    /// No Task of that id.
    #[error("unknown task {0}")]
    Unknown(TaskId),
    /// Another session owns it.
    #[error("task {0} belongs to another session")]
    Foreign(TaskId),
}

fn owner_text(session: &SessionId, why: OwnerGone) -> String {
    match why {
        OwnerGone::NotRegistered => {
            format!("background task owner {session} is not the registered agent instance")
        }
        OwnerGone::Closing => format!("background task owner {session} is closing"),
    }
}

impl TaskRefusal {
    /// The stable code.
    pub fn code(&self) -> ErrorCode {
        match self {
            Self::NoControlSurface => ErrorCode::NoControlSurface,
            Self::InvalidKind | Self::InvalidLabel | Self::InvalidOutputLimit(_) => {
                ErrorCode::InvalidInput
            }
            Self::OwnerUnavailable { .. } => ErrorCode::OwnerUnavailable,
            Self::Closing => ErrorCode::Closing,
            Self::Unknown(_) => ErrorCode::UnknownTask,
            Self::Foreign(_) => ErrorCode::ForeignTask,
        }
    }
}

/// What a passed preflight leaves to do before [`TaskTable::register`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Preflight {
    /// The owner instance has no cleanup attached yet: attach one first, in the same section
    /// (once per instance, fact-sheet scenario 180).
    pub needs_cleanup: bool,
}

/// A Task that a closing must cancel, or at least wait for.
pub struct Open<T: TaskParts> {
    /// Its id.
    pub id: TaskId,
    /// Set when it is settled and its waiters are released.
    pub latch: T::Latch,
}

/// An owner instance that a cleanup effect was attached to.
#[derive(Debug, Default)]
struct OwnerEntry {
    closing: bool,
}

/// All Tasks of one service.
pub struct TaskTable<T: TaskParts> {
    surfaces: u64,
    closing: bool,
    counters: BTreeMap<String, u64>,
    owners: BTreeMap<OwnerId, OwnerEntry>,
    /// In registration order.
    records: BTreeMap<u64, TaskRecord<T>>,
    ids: BTreeMap<TaskId, u64>,
    registered: u64,
    waiters: u64,
}

impl<T: TaskParts> Default for TaskTable<T> {
    fn default() -> Self {
        Self {
            surfaces: 0,
            closing: false,
            counters: BTreeMap::new(),
            owners: BTreeMap::new(),
            records: BTreeMap::new(),
            ids: BTreeMap::new(),
            registered: 0,
            waiters: 0,
        }
    }
}

fn surfaces(access: Access) {
    touch(ObjectKind::Name, key_of("task control surfaces"), access);
}

fn service(access: Access) {
    touch(ObjectKind::Name, key_of("task service"), access);
}

fn owner_flag(owner: OwnerId, access: Access) {
    touch(ObjectKind::Owner, owner.0, access);
}

fn record_of(id: &TaskId, access: Access) {
    touch(ObjectKind::Task, key_of(id.as_str()), access);
}

impl<T: TaskParts> TaskTable<T> {
    // --- surfaces and starts -----------------------------------------------------------------

    /// Counts one more control surface.
    pub fn attach_surface(&mut self, facts: &impl FactSink) {
        surfaces(Access::Write);
        self.surfaces += 1;
        facts.record(Fact::SurfaceAttached { count: self.surfaces });
    }

    /// Counts one control surface less.
    pub fn detach_surface(&mut self, facts: &impl FactSink) {
        surfaces(Access::Write);
        self.surfaces = self.surfaces.saturating_sub(1);
        facts.record(Fact::SurfaceDetached { count: self.surfaces });
    }

    /// Whether a Task could be started now; changes nothing. The owner's registration is the
    /// caller's question: it needs another lock.
    pub fn preflight(
        &self,
        spec: &TaskSpec,
        facts: &impl FactSink,
    ) -> Result<Preflight, TaskRefusal> {
        self.check(spec).inspect_err(|refusal| self.refused(spec, refusal, facts))
    }

    /// The owner instance has its cleanup attached; call it in the section that attached it.
    pub fn cleanup_attached(&mut self, owner: OwnerId) {
        owner_flag(owner, Access::Write);
        self.owners.entry(owner).or_default();
    }

    /// Records that a start was refused by a check of the caller's own, inside its section.
    pub fn refused(&self, spec: &TaskSpec, refusal: &TaskRefusal, facts: &impl FactSink) {
        let owner = spec.owner.as_ref().map(|owner| owner.instance);
        facts.record(Fact::TaskStartRefused { code: refusal.code(), owner });
    }

    fn check(&self, spec: &TaskSpec) -> Result<Preflight, TaskRefusal> {
        service(Access::Read);
        if self.closing {
            return Err(TaskRefusal::Closing);
        }
        surfaces(Access::Read);
        if self.surfaces == 0 {
            return Err(TaskRefusal::NoControlSurface);
        }
        if spec.kind.is_empty() {
            return Err(TaskRefusal::InvalidKind);
        }
        if spec.label.is_empty() {
            return Err(TaskRefusal::InvalidLabel);
        }
        if let Some(limit) = spec.output_limit_bytes
            && !(1..=OUTPUT_LIMIT_MAX).contains(&limit)
        {
            return Err(TaskRefusal::InvalidOutputLimit(limit));
        }
        let Some(OwnerRef { instance, session }) = &spec.owner else {
            return Ok(Preflight { needs_cleanup: false });
        };
        owner_flag(*instance, Access::Read);
        match self.owners.get(instance) {
            None => Ok(Preflight { needs_cleanup: true }),
            Some(OwnerEntry { closing: false }) => Ok(Preflight { needs_cleanup: false }),
            Some(OwnerEntry { closing: true }) => Err(TaskRefusal::OwnerUnavailable {
                session: session.clone(),
                why: OwnerGone::Closing,
            }),
        }
    }

    /// Issues the id and stores the Task as running. Call it in the section of a passed
    /// [`TaskTable::preflight`], with the owner's cleanup attached.
    pub fn register(
        &mut self,
        spec: TaskSpec,
        links: TaskLinks<T>,
        now: u64,
        facts: &impl FactSink,
    ) -> TaskId {
        let counter = self.counters.entry(spec.kind.clone()).or_default();
        touch(ObjectKind::Owner, key_of(&spec.kind), Access::Write);
        *counter += 1;
        let id = TaskId::of(&spec.kind, *counter);
        record_of(&id, Access::Write);
        if let Some(owner) = &spec.owner {
            self.owners.entry(owner.instance).or_default();
        }
        facts.record(Fact::TaskStarted {
            task: id.clone(),
            kind: spec.kind.clone(),
            owner: spec.owner.as_ref().map(|owner| owner.instance),
            owner_session: spec.owner.as_ref().map(|owner| owner.session.clone()),
            activation: spec.activation,
            child: spec.child.clone(),
        });
        let place = self.registered;
        self.registered += 1;
        self.ids.insert(id.clone(), place);
        self.records.insert(place, TaskRecord::new(id.clone(), spec, links, now));
        id
    }

    /// Raises the counter of `kind` so that its next Task is numbered above `highest` (contract
    /// P13: at an owner's resume, above everything its log names).
    pub fn raise_counter(&mut self, kind: &str, highest: u64) {
        touch(ObjectKind::Owner, key_of(kind), Access::Write);
        let counter = self.counters.entry(kind.to_owned()).or_default();
        *counter = (*counter).max(highest);
    }

    // --- reaching a Task ---------------------------------------------------------------------

    fn find(&self, id: &TaskId, caller: Option<&SessionId>) -> Result<u64, TaskRefusal> {
        record_of(id, Access::Read);
        let place = *self.ids.get(id).ok_or_else(|| TaskRefusal::Unknown(id.clone()))?;
        let record = self.records.get(&place).ok_or_else(|| TaskRefusal::Unknown(id.clone()))?;
        if record.admits(caller) { Ok(place) } else { Err(TaskRefusal::Foreign(id.clone())) }
    }

    fn reach(
        &mut self,
        id: &TaskId,
        caller: Option<&SessionId>,
    ) -> Result<&mut TaskRecord<T>, TaskRefusal> {
        let place = self.find(id, caller)?;
        record_of(id, Access::Write);
        self.records.get_mut(&place).ok_or_else(|| TaskRefusal::Unknown(id.clone()))
    }

    /// The record, for those who need no authorisation: its own driver, and closing.
    pub fn record_mut(&mut self, id: &TaskId) -> Option<&mut TaskRecord<T>> {
        record_of(id, Access::Write);
        let place = self.ids.get(id)?;
        self.records.get_mut(place)
    }

    /// A record to look at.
    pub fn record(&self, id: &TaskId) -> Option<&TaskRecord<T>> {
        record_of(id, Access::Read);
        self.records.get(self.ids.get(id)?)
    }

    /// A fresh snapshot; tells nobody and consumes nothing.
    pub fn get(
        &self,
        id: &TaskId,
        caller: Option<&SessionId>,
    ) -> Result<TaskSnapshot, TaskRefusal> {
        let place = self.find(id, caller)?;
        Ok(self.records[&place].snapshot())
    }

    /// The caller's own Tasks and the unowned ones, in registration order; without a caller only
    /// the unowned ones.
    pub fn list(&self, caller: Option<&SessionId>) -> Vec<TaskSnapshot> {
        service(Access::Read);
        let listed = self.records.values().filter(|record| record.admits(caller));
        let snapshots: Vec<_> = listed.map(TaskRecord::snapshot).collect();
        for snapshot in &snapshots {
            record_of(&snapshot.id, Access::Read);
        }
        snapshots
    }

    /// The record that `caller` may read.
    pub fn reachable(
        &mut self,
        id: &TaskId,
        caller: Option<&SessionId>,
    ) -> Result<&mut TaskRecord<T>, TaskRefusal> {
        self.reach(id, caller)
    }

    /// Whether `caller` may kill the Task, and whether there is anything to cancel; changes
    /// nothing.
    pub fn kill_state(
        &self,
        id: &TaskId,
        caller: Option<&SessionId>,
    ) -> Result<KillState, TaskRefusal> {
        let place = self.find(id, caller)?;
        let finished = self.records[&place].is_terminal();
        Ok(if finished { KillState::Finished } else { KillState::Live })
    }

    /// [`TaskRecord::kill`] for `caller`.
    pub fn kill(
        &mut self,
        id: &TaskId,
        caller: Option<&SessionId>,
        facts: &impl FactSink,
    ) -> Result<(KillAnswer, Option<T::Owner>), TaskRefusal> {
        Ok(self.reach(id, caller)?.kill(facts))
    }

    /// [`TaskRecord::settle`]; a Task that was removed ignores it.
    pub fn settle(
        &mut self,
        id: &TaskId,
        outcome: TaskOutcome,
        now: u64,
        facts: &impl FactSink,
    ) -> Settlement<T> {
        match self.record_mut(id) {
            Some(record) => record.settle(outcome, now, facts),
            None => {
                let (task, status) = (id.clone(), outcome.status);
                facts.record(Fact::TaskSettlementIgnored { task, owner: None, status });
                Settlement::Ignored
            }
        }
    }

    /// [`TaskRecord::release`].
    pub fn release(
        &mut self,
        id: &TaskId,
        facts: &impl FactSink,
    ) -> Option<(T::Latch, TaskSnapshot)> {
        self.record_mut(id)?.release(facts)
    }

    // --- waiters and notices -----------------------------------------------------------------

    /// [`TaskRecord::join`] for `caller`; returns the waiter's number and the latch to wait for.
    #[allow(clippy::type_complexity, reason = "read once, by the wait")]
    pub fn join(
        &mut self,
        id: &TaskId,
        caller: Option<&SessionId>,
        waiter: T::Waiter,
        facts: &impl FactSink,
    ) -> Result<(u64, WaitStep, Option<T::Latch>, Left<T>), TaskRefusal> {
        let key = self.waiters;
        let record = self.reach(id, caller)?;
        let latch = record.latch().cloned();
        let (step, left) = record.join(key, waiter, facts);
        self.waiters += 1;
        Ok((key, step, latch, left))
    }

    /// [`TaskRecord::resume`]; `None` if the Task was removed, so its latch holds the snapshot.
    pub fn resume(
        &mut self,
        id: &TaskId,
        waiter: u64,
        wake: WaitWake,
        facts: &impl FactSink,
    ) -> Option<(WaitStep, Left<T>)> {
        if let Some(record) = self.record_mut(id) {
            return Some(record.resume(waiter, wake, facts));
        }
        let end = WaitEnd::Terminal;
        facts.record(Fact::TaskWaitEnded { task: id.clone(), owner: None, waiter, end });
        None
    }

    /// [`TaskRecord::leave`]; `true` when the notice is due again.
    pub fn leave(
        &mut self,
        id: &TaskId,
        waiter: u64,
        facts: &impl FactSink,
    ) -> (bool, Option<T::Waiter>) {
        let void = self.record_mut(id).map(|record| record.leave(waiter, facts));
        void.unwrap_or((false, None))
    }

    /// [`TaskRecord::claim_notice`], unless its owner or the service is closing: then the notice
    /// is dropped for good.
    pub fn claim_notice(&mut self, id: &TaskId, facts: &impl FactSink) -> Option<Notice<T::Owner>> {
        service(Access::Read);
        let record = self.record(id)?;
        if !record.notice_is_due() {
            return None;
        }
        let owner = record.owner_instance()?;
        owner_flag(owner, Access::Read);
        if self.closing || self.owners.get(&owner).is_none_or(|entry| entry.closing) {
            facts.record(Fact::NoticeDropped { task: id.clone(), owner });
            return None;
        }
        self.record_mut(id)?.claim_notice(facts)
    }

    // --- closing -----------------------------------------------------------------------------

    /// Refuses new Tasks of `owner` from here on; returns its unreleased Tasks, in registration order. A
    /// second call returns none: the first one is at it.
    pub fn close_owner(&mut self, owner: OwnerId, facts: &impl FactSink) -> Vec<Open<T>> {
        owner_flag(owner, Access::Write);
        let Some(entry) = self.owners.get_mut(&owner) else { return Vec::new() };
        if entry.closing {
            return Vec::new();
        }
        entry.closing = true;
        facts.record(Fact::OwnerClosing { owner });
        self.open_where(|record| record.owner_instance() == Some(owner))
    }

    fn open_where(&self, mine: impl Fn(&TaskRecord<T>) -> bool) -> Vec<Open<T>> {
        let open = self.records.values().filter(|record| mine(record)).filter_map(|record| {
            Some(Open { id: record.id().clone(), latch: record.latch()?.clone() })
        });
        let open: Vec<_> = open.collect();
        for task in &open {
            record_of(&task.id, Access::Read);
        }
        open
    }

    /// Removes the settled Tasks of a closed owner, and the owner; returns the records to drop
    /// after unlock.
    pub fn remove_owner(&mut self, owner: OwnerId, facts: &impl FactSink) -> Vec<TaskRecord<T>> {
        owner_flag(owner, Access::Write);
        let records = self.records.values();
        let owned = records.filter(|record| record.owner_instance() == Some(owner));
        let owned: Vec<_> = owned.map(|record| record.id().clone()).collect();
        let removed: Vec<_> = owned.iter().filter_map(|id| self.remove(id)).collect();
        self.owners.remove(&owner);
        facts.record(Fact::OwnerTasksRemoved { owner, count: removed.len() as u64 });
        removed
    }

    fn remove(&mut self, id: &TaskId) -> Option<TaskRecord<T>> {
        record_of(id, Access::Write);
        let place = self.ids.remove(id)?;
        self.records.remove(&place)
    }

    /// Refuses everything new from here on; returns all unreleased Tasks, in registration order.
    pub fn close(&mut self, facts: &impl FactSink) -> Vec<Open<T>> {
        service(Access::Write);
        self.closing = true;
        facts.record(Fact::TasksClosing);
        self.open_where(|_| true)
    }

    /// Whether the service is closing: its listeners are silent.
    pub fn is_closing(&self) -> bool {
        service(Access::Read);
        self.closing
    }

    /// Removes everything; returns the records to drop after unlock.
    pub fn clear(&mut self) -> Vec<TaskRecord<T>> {
        service(Access::Write);
        self.owners.clear();
        self.ids.clear();
        std::mem::take(&mut self.records).into_values().collect()
    }
}
