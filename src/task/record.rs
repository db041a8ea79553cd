//! One Task's record: its status, its one outcome, who was told, who waits (fact-sheet 1.4, 4.2 to
//! 4.5; contract P3, P7, P8). Pure: it names no lock, no clock and no I/O.
//!
//! Who was told is a small machine of its own. A Task is *unreported* until its terminal state
//! reaches somebody: a reader, a waiter, a killer. A waiter that is present at settlement is a
//! *promise*: it suppresses the notice, and gives it back if it goes away empty-handed.

use std::collections::BTreeMap;

use crate::facts::{Fact, FactSink};
use crate::ids::{ActivationId, OwnerId, SessionId, TaskId};
use crate::vocabulary::{KillAnswer, TaskOutcome, TaskStatus, WaitEnd};

/// The largest output limit, in bytes: the largest integer JSON keeps exact.
pub const OUTPUT_LIMIT_MAX: u64 = (1 << 53) - 1;

/// What a table of Tasks holds for its world; the cores only move these values about.
pub trait TaskParts {
    /// How a live producer is cancelled. Given back at settlement, so a terminal record keeps
    /// nothing of its dead producer alive.
    type Cancel: Clone;
    /// Reads a stream kind's next delta; kept after settlement, so it may hold a buffer only.
    type Reader: Clone;
    /// The exact owner instance, for its one notice.
    type Owner: Clone;
    /// Set with the terminal snapshot when waiters are released.
    type Latch: Clone;
    /// One waiter.
    type Waiter: Waiter;
}

/// What settlement must know of a waiter.
pub trait Waiter {
    /// Whether its caller has given up already, though the waiter has not left yet: it must not
    /// count, or the result would reach nobody (fact-sheet scenario 172). Takes no lock of ours.
    fn gave_up(&self) -> bool;
}

/// An owner as a record knows it: the exact instance, and the session id that grants access.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OwnerRef {
    /// Lifecycle and notices follow the instance (contract I12).
    pub instance: OwnerId,
    /// Access follows the session id (fact-sheet 4.4).
    pub session: SessionId,
}

/// What a Task is, before it has an id.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TaskSpec {
    /// The kind, such as `subagent`; part of the id.
    pub kind: String,
    /// What people and models read.
    pub label: String,
    /// Bounds every rendered result, in bytes (fact-sheet 8.3).
    pub output_limit_bytes: Option<u64>,
    /// The owner; `None` opens the Task to every caller.
    pub owner: Option<OwnerRef>,
    /// The activation it carries, for facts.
    pub activation: Option<ActivationId>,
    /// The child of that activation, for facts.
    pub child: Option<SessionId>,
}

/// A Task at one moment; always a fresh copy (fact-sheet 1.4).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TaskSnapshot {
    /// The id.
    pub id: TaskId,
    /// The kind.
    pub kind: String,
    /// The label.
    pub label: String,
    /// Bounds every rendered result, in bytes.
    pub output_limit_bytes: Option<u64>,
    /// The session id that grants access.
    pub owner_session: Option<SessionId>,
    /// The exact owner instance.
    pub owner: Option<OwnerId>,
    /// Where it stands.
    pub status: TaskStatus,
    /// The failure's stable code, where it has one.
    pub code: Option<crate::error::ErrorCode>,
    /// What a reader is told beside the status.
    pub detail: Option<String>,
    /// When it was registered, in milliseconds since the Unix epoch.
    pub started_at: u64,
    /// When its outcome was recorded; present exactly when terminal.
    pub finished_at: Option<u64>,
    /// Whether the terminal state reached somebody, or is promised to a waiter.
    pub reported: bool,
}

impl TaskSnapshot {
    /// What is wrong with it, if anything: the invariants of fact-sheet 4.6. A record never makes
    /// an incoherent one; checks of saved or foreign snapshots ask.
    pub fn incoherence(&self) -> Option<&'static str> {
        let ordinal = self.id.parts().filter(|(kind, _)| *kind == self.kind);
        let limit = self.output_limit_bytes.unwrap_or(1);
        let wrong = [
            (self.kind.is_empty(), "the kind is empty"),
            (ordinal.is_none_or(|(_, n)| n == 0), "the id is not its kind and a positive ordinal"),
            (self.label.is_empty(), "the label is empty"),
            (!(1..=OUTPUT_LIMIT_MAX).contains(&limit), "the output limit is out of its range"),
            (self.owner.is_some() != self.owner_session.is_some(), "half an owner"),
            (
                self.finished_at.is_some() != self.status.is_terminal(),
                "a finish without a terminal status, or the reverse",
            ),
            (self.finished_at.is_some_and(|at| at < self.started_at), "finished before it started"),
            (
                !self.status.is_terminal() && (self.detail.is_some() || self.code.is_some()),
                "a detail or code without an outcome",
            ),
            (self.status == TaskStatus::Running && self.reported, "running, yet reported"),
        ];
        wrong.into_iter().find_map(|(wrong, what)| wrong.then_some(what))
    }
}

/// Whether the terminal state reached somebody.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Report {
    /// Nobody has it.
    Unreported,
    /// A waiter present at settlement will take it.
    Promised,
    /// A reader, waiter or killer has it, or it was killed. Final.
    Told,
}

/// How far a terminal record has come (contract P8).
#[derive(Debug)]
struct Terminal {
    outcome: TaskOutcome,
    finished_at: u64,
    released: bool,
}

/// One Task.
pub struct TaskRecord<T: TaskParts> {
    id: TaskId,
    spec: TaskSpec,
    started_at: u64,
    stopping: bool,
    terminal: Option<Terminal>,
    report: Report,
    noticed: bool,
    owner: Option<T::Owner>,
    cancel: Option<T::Cancel>,
    reader: Option<T::Reader>,
    latch: Option<T::Latch>,
    waiters: BTreeMap<u64, T::Waiter>,
}

/// The parts of a record that its world supplies.
pub struct TaskLinks<T: TaskParts> {
    /// How to cancel the producer.
    pub cancel: T::Cancel,
    /// How to read a stream kind.
    pub reader: Option<T::Reader>,
    /// The exact owner instance.
    pub owner: Option<T::Owner>,
    /// What to set when waiters are released.
    pub latch: T::Latch,
}

/// What settling did.
pub enum Settlement<T: TaskParts> {
    /// The outcome was recorded.
    Recorded {
        /// The terminal snapshot that listeners see.
        snapshot: TaskSnapshot,
        /// The exact owner instance.
        owner: Option<T::Owner>,
        /// The producer's cancel; drop it after unlock.
        cancel: Option<T::Cancel>,
        /// Waiters that had given up: uncounted, to be dropped after unlock.
        gone: Vec<T::Waiter>,
    },
    /// An earlier outcome stands; nothing changed.
    Ignored,
}

/// What a kill found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KillState {
    /// Live: its producer may be cancelled.
    Live,
    /// Terminal.
    Finished,
}

/// How a wait went on after it woke.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WaitStep {
    /// Recorded but not yet released: wait for the release, whatever else happened.
    KeepWaiting,
    /// The terminal snapshot; the waiter has left.
    Terminal(TaskSnapshot),
    /// The live snapshot after a timeout; the waiter has left.
    TimedOut(TaskSnapshot),
    /// The wait was given up; the waiter has left.
    Aborted,
}

/// Why a waiter looks again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WaitWake {
    /// The release.
    Released,
    /// The timeout.
    TimedOut,
    /// The caller's signal.
    Aborted,
}

/// A claimed notice: to be injected into that owner, and nobody else ever will.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Notice<O> {
    /// The Task as it is now.
    pub snapshot: TaskSnapshot,
    /// The exact owner instance.
    pub owner: O,
}

impl<T: TaskParts> TaskRecord<T> {
    /// A running Task.
    pub fn new(id: TaskId, spec: TaskSpec, links: TaskLinks<T>, now: u64) -> Self {
        Self {
            id,
            spec,
            started_at: now,
            stopping: false,
            terminal: None,
            report: Report::Unreported,
            noticed: false,
            owner: links.owner,
            cancel: Some(links.cancel),
            reader: links.reader,
            latch: Some(links.latch),
            waiters: BTreeMap::new(),
        }
    }

    /// Its id.
    pub fn id(&self) -> &TaskId {
        &self.id
    }

    /// The exact owner instance, if owned.
    pub fn owner_instance(&self) -> Option<OwnerId> {
        self.spec.owner.as_ref().map(|owner| owner.instance)
    }

    /// Whether `caller` may reach the Task: anybody if unowned, else the same session id.
    pub fn admits(&self, caller: Option<&SessionId>) -> bool {
        self.spec.owner.as_ref().is_none_or(|owner| Some(&owner.session) == caller)
    }

    /// Whether the outcome is recorded.
    pub fn is_terminal(&self) -> bool {
        self.terminal.is_some()
    }

    /// Where it stands.
    pub fn status(&self) -> TaskStatus {
        match &self.terminal {
            Some(terminal) => terminal.outcome.status,
            None if self.stopping => TaskStatus::Stopping,
            None => TaskStatus::Running,
        }
    }

    /// A fresh copy.
    pub fn snapshot(&self) -> TaskSnapshot {
        let terminal = self.terminal.as_ref();
        TaskSnapshot {
            id: self.id.clone(),
            kind: self.spec.kind.clone(),
            label: self.spec.label.clone(),
            output_limit_bytes: self.spec.output_limit_bytes,
            owner_session: self.spec.owner.as_ref().map(|owner| owner.session.clone()),
            owner: self.owner_instance(),
            status: self.status(),
            code: terminal.and_then(|terminal| terminal.outcome.code),
            detail: terminal.and_then(|terminal| terminal.outcome.detail.clone()),
            started_at: self.started_at,
            finished_at: terminal.map(|terminal| terminal.finished_at),
            reported: self.report != Report::Unreported,
        }
    }

    /// The producer's cancel, while live.
    pub fn cancel(&self) -> Option<&T::Cancel> {
        self.cancel.as_ref()
    }

    /// The stream reader, if it is a stream kind.
    pub fn reader(&self) -> Option<&T::Reader> {
        self.reader.as_ref()
    }

    /// The latch, until waiters are released.
    pub fn latch(&self) -> Option<&T::Latch> {
        self.latch.as_ref()
    }

    /// How many wait.
    pub fn waiting(&self) -> usize {
        self.waiters.len()
    }

    /// The answer to a kill whose cancellation was accepted, or that came too late. Either way
    /// the killer knows, so no notice follows. Returns the owner handle to drop after unlock.
    pub fn kill(&mut self, facts: &impl FactSink) -> (KillAnswer, Option<T::Owner>) {
        let answer = if self.is_terminal() {
            KillAnswer::AlreadyFinished
        } else {
            self.stop(facts);
            KillAnswer::Requested
        };
        let dropped = self.tell();
        let (task, owner) = (self.id.clone(), self.owner_instance());
        facts.record(Fact::TaskKillAnswered { task, owner, answer });
        (answer, dropped)
    }

    /// Cancellation was accepted: running becomes stopping, for good.
    pub fn stop(&mut self, facts: &impl FactSink) {
        if self.is_terminal() || self.stopping {
            return;
        }
        self.stopping = true;
        let (task, owner) = (self.id.clone(), self.owner_instance());
        facts.record(Fact::TaskStopping { task, owner });
    }

    /// Records the one outcome and counts the waiters present as told (contract P8, first part).
    pub fn settle(
        &mut self,
        outcome: TaskOutcome,
        now: u64,
        facts: &impl FactSink,
    ) -> Settlement<T> {
        let (task, owner) = (self.id.clone(), self.owner_instance());
        let status = outcome.status;
        if self.is_terminal() {
            facts.record(Fact::TaskSettlementIgnored { task, owner, status });
            return Settlement::Ignored;
        }
        let gone: Vec<u64> =
            self.waiters.iter().filter(|(_, w)| w.gave_up()).map(|(key, _)| *key).collect();
        let gone: Vec<_> = gone.into_iter().filter_map(|key| self.take_waiter(key)).collect();
        if !self.waiters.is_empty() && self.report == Report::Unreported {
            self.report = Report::Promised;
        }
        facts.record(Fact::TaskSettled {
            task,
            owner,
            status,
            code: outcome.code,
            output: outcome.output.as_ref().is_some_and(|output| !output.is_empty()),
            waiters: self.waiters.len() as u64,
            reported: self.report != Report::Unreported,
        });
        let outcome = self.bounded(outcome);
        // The clock may jump back between a start and its end.
        let finished_at = now.max(self.started_at);
        self.terminal = Some(Terminal { outcome, finished_at, released: false });
        Settlement::Recorded {
            snapshot: self.snapshot(),
            owner: match self.report {
                Report::Told => self.owner.take(),
                Report::Unreported | Report::Promised => self.owner.clone(),
            },
            cancel: self.cancel.take(),
            gone,
        }
    }

    /// Keeps of the output what a rendering within the limit can still show, and enough more to
    /// see that it was cut.
    fn bounded(&self, mut outcome: TaskOutcome) -> TaskOutcome {
        let Some(limit) = self.spec.output_limit_bytes else { return outcome };
        let keep = usize::try_from(limit).unwrap_or(usize::MAX).saturating_add(4);
        if let Some(output) = &mut outcome.output
            && output.len() > keep
        {
            let least = output.len() - keep;
            let cut = (least..output.len()).find(|cut| output.is_char_boundary(*cut));
            *output = output.split_off(cut.unwrap_or(output.len()));
        }
        outcome
    }

    /// Releases the waiters: everything before is done (contract P8, last part). Returns the latch
    /// to set, after unlock, with the snapshot.
    pub fn release(&mut self, facts: &impl FactSink) -> Option<(T::Latch, TaskSnapshot)> {
        let terminal = self.terminal.as_mut()?;
        terminal.released = true;
        let latch = self.latch.take()?;
        let (task, owner) = (self.id.clone(), self.owner_instance());
        facts.record(Fact::TaskReleased { task, owner });
        Some((latch, self.snapshot()))
    }

    /// Joins the waiters, or answers at once if they were released already.
    pub fn join(
        &mut self,
        key: u64,
        waiter: T::Waiter,
        facts: &impl FactSink,
    ) -> (WaitStep, Left<T>) {
        let (task, owner) = (self.id.clone(), self.owner_instance());
        facts.record(Fact::TaskWaitJoined { task, owner, waiter: key });
        if waiter.gave_up() && !self.is_terminal() {
            self.ended(key, WaitEnd::Aborted, facts);
            return (WaitStep::Aborted, Left { waiter: Some(waiter), owner: None });
        }
        self.waiters.insert(key, waiter);
        if self.terminal.as_ref().is_some_and(|terminal| terminal.released) {
            return self.resume(key, WaitWake::Released, facts);
        }
        (WaitStep::KeepWaiting, Left::nothing())
    }

    /// Decides how a woken waiter goes on. A waiter that is no longer there gave up before the
    /// outcome was recorded. Returns what to drop after unlock.
    pub fn resume(
        &mut self,
        key: u64,
        wake: WaitWake,
        facts: &impl FactSink,
    ) -> (WaitStep, Left<T>) {
        if !self.waiters.contains_key(&key) {
            self.ended(key, WaitEnd::Aborted, facts);
            return (WaitStep::Aborted, Left::nothing());
        }
        match (&self.terminal, wake) {
            (Some(Terminal { released: false, .. }), _) | (None, WaitWake::Released) => {
                (WaitStep::KeepWaiting, Left::nothing())
            }
            (Some(_), _) => {
                let left = Left { waiter: self.take_waiter(key), owner: self.tell() };
                self.ended(key, WaitEnd::Terminal, facts);
                (WaitStep::Terminal(self.snapshot()), left)
            }
            (None, WaitWake::TimedOut) => {
                let left = Left { waiter: self.take_waiter(key), owner: None };
                self.ended(key, WaitEnd::TimedOut, facts);
                (WaitStep::TimedOut(self.snapshot()), left)
            }
            (None, WaitWake::Aborted) => {
                let left = Left { waiter: self.take_waiter(key), owner: None };
                self.ended(key, WaitEnd::Aborted, facts);
                (WaitStep::Aborted, left)
            }
        }
    }

    /// A waiter was dropped: it is uncounted at once. If it was the last one the result was
    /// promised to, the promise is void and the notice is due again (contract P7): `true`.
    pub fn leave(&mut self, key: u64, facts: &impl FactSink) -> (bool, Option<T::Waiter>) {
        let Some(waiter) = self.take_waiter(key) else { return (false, None) };
        self.ended(key, WaitEnd::Aborted, facts);
        let void = self.report == Report::Promised && self.waiters.is_empty();
        if void {
            self.report = Report::Unreported;
        }
        (void, Some(waiter))
    }

    /// Takes a waiter out; the last one leaves no memory behind.
    fn take_waiter(&mut self, key: u64) -> Option<T::Waiter> {
        let waiter = self.waiters.remove(&key);
        if self.waiters.is_empty() {
            self.waiters = BTreeMap::new();
        }
        waiter
    }

    fn ended(&self, waiter: u64, end: WaitEnd, facts: &impl FactSink) {
        let (task, owner) = (self.id.clone(), self.owner_instance());
        facts.record(Fact::TaskWaitEnded { task, owner, waiter, end });
    }

    /// Claims the one unsolicited notice: only of a terminal, owned Task that nobody was told of
    /// and that was never noticed before. Whether the owner still takes notices is the caller's
    /// question.
    pub fn claim_notice(&mut self, facts: &impl FactSink) -> Option<Notice<T::Owner>> {
        if !self.notice_is_due() {
            return None;
        }
        self.noticed = true;
        let instance = self.owner_instance()?;
        let owner = self.owner.take()?;
        facts.record(Fact::NoticeClaimed { task: self.id.clone(), owner: instance });
        Some(Notice { snapshot: self.snapshot(), owner })
    }

    /// Whether the notice may still be claimed.
    pub fn notice_is_due(&self) -> bool {
        self.is_terminal()
            && self.report == Report::Unreported
            && !self.noticed
            && self.owner.is_some()
    }

    /// A final-output kind's text: empty while live, then the outcome's output every time. A
    /// terminal read tells. Returns the owner handle to drop after unlock.
    pub fn read_final(&mut self, facts: &impl FactSink) -> (String, Option<T::Owner>) {
        let Some(terminal) = &self.terminal else { return (String::new(), None) };
        let text = terminal.outcome.output.clone().unwrap_or_default();
        (text, self.read_terminal(facts))
    }

    /// A terminal Task was read: somebody knows.
    pub fn read_terminal(&mut self, facts: &impl FactSink) -> Option<T::Owner> {
        if !self.is_terminal() {
            return None;
        }
        let (task, owner) = (self.id.clone(), self.owner_instance());
        facts.record(Fact::TaskReadTerminal { task, owner });
        self.tell()
    }

    /// Marks as told; the owner is not needed any more once the Task is terminal, as no notice
    /// can follow.
    fn tell(&mut self) -> Option<T::Owner> {
        self.report = Report::Told;
        if self.is_terminal() { self.owner.take() } else { None }
    }
}

/// What a leaving waiter leaves behind, to be dropped after unlock.
pub struct Left<T: TaskParts> {
    /// The waiter itself.
    pub waiter: Option<T::Waiter>,
    /// The owner handle, when no notice can follow any more.
    pub owner: Option<T::Owner>,
}

impl<T: TaskParts> Left<T> {
    fn nothing() -> Self {
        Self { waiter: None, owner: None }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    struct Plain;

    /// A waiter that says whether it gave up.
    struct Gone(bool);

    impl Waiter for Gone {
        fn gave_up(&self) -> bool {
            self.0
        }
    }

    impl TaskParts for Plain {
        type Cancel = ();
        type Reader = ();
        type Owner = &'static str;
        type Latch = ();
        type Waiter = Gone;
    }

    #[derive(Default)]
    struct Facts(RefCell<Vec<Fact>>);

    impl FactSink for Facts {
        fn record(&self, fact: Fact) {
            self.0.borrow_mut().push(fact);
        }
    }

    fn task() -> TaskRecord<Plain> {
        let owner = OwnerRef { instance: OwnerId(1), session: SessionId::new("s") };
        let spec = TaskSpec {
            kind: "bash".to_owned(),
            label: "x".to_owned(),
            output_limit_bytes: None,
            owner: Some(owner),
            activation: None,
            child: None,
        };
        let links = TaskLinks { cancel: (), reader: None, owner: Some("owner"), latch: () };
        TaskRecord::new(TaskId::new("bash-1"), spec, links, 10)
    }

    /// What can happen to a Task; `Leave` and `Wake` are of waiter 0.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    enum Step {
        Join,
        Leave,
        Wake,
        Settle,
        SettleAgain,
        Release,
        Read,
        Kill,
        Claim,
    }

    const STEPS: [Step; 9] = [
        Step::Join,
        Step::Leave,
        Step::Wake,
        Step::Settle,
        Step::SettleAgain,
        Step::Release,
        Step::Read,
        Step::Kill,
        Step::Claim,
    ];

    /// Runs `steps`; answers how often the Task's end reached somebody unasked, and asked.
    fn run(steps: &[Step]) -> (TaskRecord<Plain>, u32, u32) {
        let (mut task, facts) = (task(), Facts::default());
        let (mut notices, mut told) = (0, 0);
        for step in steps {
            let before = (task.status(), task.snapshot().detail);
            match step {
                Step::Join => {
                    if let (WaitStep::Terminal(_), _) = task.join(0, Gone(false), &facts) {
                        told += 1;
                    }
                }
                Step::Leave => {
                    if task.leave(0, &facts).0 {
                        notices += u32::from(task.claim_notice(&facts).is_some());
                    }
                }
                Step::Wake => {
                    if let (WaitStep::Terminal(_), _) = task.resume(0, WaitWake::Released, &facts) {
                        told += 1;
                    }
                }
                Step::Settle | Step::SettleAgain => {
                    let detail = format!("{step:?}");
                    task.settle(TaskOutcome::failed(None, detail), 11, &facts);
                }
                Step::Release => drop(task.release(&facts)),
                Step::Read => {
                    told += u32::from(task.is_terminal());
                    task.read_final(&facts);
                }
                Step::Kill => {
                    told += 1;
                    task.kill(&facts);
                }
                Step::Claim => notices += u32::from(task.claim_notice(&facts).is_some()),
            }
            assert_eq!(task.snapshot().incoherence(), None, "{steps:?}");
            if before.0.is_terminal() {
                assert_eq!((task.status(), task.snapshot().detail), before, "{steps:?}: reopened");
            }
        }
        (task, notices, told)
    }

    /// Every sequence of up to five steps, then a full end: settled, claimed, released, the waiter
    /// gone. Somebody is told, at most one notice is claimed, the first outcome stands.
    #[test]
    fn every_order_tells_somebody_once_and_keeps_the_first_outcome() {
        let mut sequences = vec![Vec::new()];
        let mut checked = 0;
        while let Some(steps) = sequences.pop() {
            let ended = [Step::Settle, Step::Claim, Step::Release, Step::Leave];
            let full: Vec<_> = steps.iter().copied().chain(ended).collect();
            let (task, notices, told) = run(&full);
            assert!(notices <= 1, "{full:?}: {notices} notices");
            assert!(notices + told >= 1, "{full:?}: nobody was told");
            let first = full.iter().find(|s| matches!(s, Step::Settle | Step::SettleAgain));
            assert_eq!(task.snapshot().detail, first.map(|step| format!("{step:?}")));
            assert_eq!((task.waiting(), task.cancel()), (0, None), "{full:?}");
            checked += 1;
            if steps.len() < 5 {
                sequences.extend(STEPS.map(|step| [steps.as_slice(), &[step]].concat()));
            }
        }
        assert_eq!(checked, 66_430);
    }

    #[test]
    fn a_waiter_that_gave_up_is_not_counted() {
        let (mut task, facts) = (task(), Facts::default());
        task.join(0, Gone(false), &facts);
        task.waiters.insert(1, Gone(true));
        let Settlement::Recorded { gone, snapshot, .. } =
            task.settle(TaskOutcome::killed(), 11, &facts)
        else {
            panic!("the first settlement");
        };
        assert_eq!((gone.len(), snapshot.reported, task.waiting()), (1, true, 1));
        assert_eq!(task.resume(1, WaitWake::Aborted, &facts).0, WaitStep::Aborted);
    }

    #[test]
    fn a_wait_that_finds_the_outcome_recorded_waits_for_the_release() {
        let (mut task, facts) = (task(), Facts::default());
        task.settle(TaskOutcome::killed(), 11, &facts);
        assert_eq!(task.join(0, Gone(false), &facts).0, WaitStep::KeepWaiting);
        for wake in [WaitWake::Aborted, WaitWake::TimedOut, WaitWake::Released] {
            assert_eq!(task.resume(0, wake, &facts).0, WaitStep::KeepWaiting);
        }
        task.release(&facts);
        let (step, _) = task.resume(0, WaitWake::Aborted, &facts);
        assert!(matches!(step, WaitStep::Terminal(snapshot) if snapshot.reported));
    }

    #[test]
    fn the_clock_may_jump_back() {
        let mut task = task();
        task.settle(TaskOutcome::killed(), 3, &Facts::default());
        assert_eq!(task.snapshot().finished_at, Some(10));
    }
}
