//! A published run as its holder has it: the provider's run, watched.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::service::stop_of;
use super::{
    BoxAdmission, DisposeError, RunInfo, SteerError, SubagentError, SubagentResult, SubagentRun,
    SubagentService,
};
use crate::agent::Agent;
use crate::cancel::CancelSignal;
use crate::channel::Latch;
use crate::error::ErrorCode;
use crate::facts::Fact;
use crate::ids::{OwnerId, RunId, SessionId};
use crate::message::Message;
use crate::runtime::{BoxFuture, Runtime, contain, contain_call, spawn};
use crate::vocabulary::{CancelCause, StopReason};

type Outcome = Result<SubagentResult, SubagentError>;

struct RunInner {
    info: RunInfo,
    inner: Arc<dyn SubagentRun>,
    runtime: Arc<dyn Runtime>,
    result: Latch<Outcome>,
    disposing: AtomicBool,
    disposed: Latch<Result<(), DisposeError>>,
}

/// One watched run. Cloning shares it; when the last holder drops it undisposed, its disposal is
/// requested (contract P17).
#[derive(Clone)]
pub struct Run {
    inner: Arc<RunInner>,
}

impl fmt::Debug for Run {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Run({} {:?})", self.inner.info.run, self.inner.info.child)
    }
}

impl Run {
    /// Takes over a run that a provider published: records its start, and watches for its end.
    pub(super) fn watch(
        service: &SubagentService,
        provider: &str,
        parent: &Agent,
        inner: Arc<dyn SubagentRun>,
    ) -> Self {
        let runtime = Arc::clone(service.runtime());
        let info = RunInfo {
            run: service.next_run(),
            provider: provider.to_owned(),
            child: inner.child().clone(),
            local: inner.local_agent().is_some(),
            parent: parent.instance(),
        };
        runtime.fact(Fact::RunStarted {
            run: info.run,
            provider: info.provider.clone(),
            child: info.child.clone(),
            agent: inner.local_agent(),
        });
        service.tell(|listener| listener.run_started(&info));
        let run = Self {
            inner: Arc::new(RunInner {
                info,
                inner,
                runtime: Arc::clone(&runtime),
                result: Latch::new(),
                disposing: AtomicBool::new(false),
                disposed: Latch::new(),
            }),
        };
        run.observe_end(service);
        run
    }

    /// The end is reported once, whoever awaits the result, and before anybody gets it.
    fn observe_end(&self, service: &SubagentService) {
        let service = service.weak();
        let inner = &self.inner;
        let (runtime, info, latch) =
            (Arc::clone(&inner.runtime), inner.info.clone(), inner.result.clone());
        let result = contain_call(&runtime, "subagent run", || inner.inner.result());
        let watch = async move {
            let outcome = match result {
                Ok(result) => contain(&runtime, "subagent run", result).await,
                Err(panicked) => Err(panicked),
            };
            let outcome: Outcome = outcome.unwrap_or_else(|panicked| Err(panicked.into()));
            let stop = stop_of(&outcome);
            runtime.fact(Fact::RunEnded {
                run: info.run,
                provider: info.provider.clone(),
                child: info.child.clone(),
                stop: stop.clone(),
            });
            if let Some(service) = service.upgrade() {
                let output = outcome.as_ref().ok().map(|result| &*result.output);
                service.tell(|listener| listener.run_ended(&info, &stop, output));
            }
            latch.set(outcome);
        };
        spawn(&self.inner.runtime, format!("watch {}", self.inner.info.run), watch).detach();
    }

    /// What listeners learn of it.
    pub fn info(&self) -> &RunInfo {
        &self.inner.info
    }

    /// Its id.
    pub fn id(&self) -> RunId {
        self.inner.info.run
    }

    /// The child's id.
    pub fn child(&self) -> &SessionId {
        &self.inner.info.child
    }

    /// The exact agent it drives in this process, if it does.
    pub fn local_agent(&self) -> Option<OwnerId> {
        self.inner.inner.local_agent()
    }

    /// Whether both are one run.
    pub fn same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.inner, &other.inner)
    }

    /// The result.
    ///
    /// # Errors
    ///
    /// Infrastructure faults, and a failed durability checkpoint.
    pub async fn result(&self) -> Outcome {
        self.inner.result.wait().await
    }

    /// Live delivery: `None` if the provider has none, else the push and then its admission.
    pub fn steer(&self, message: Message) -> Option<Result<BoxAdmission, SteerError>> {
        let steer = self.inner.inner.steer()?;
        let pushed = contain_call(&self.inner.runtime, "subagent steer", || steer.steer(message));
        Some(pushed.unwrap_or_else(|panicked| Err(SteerError::Other(panicked.to_string()))))
    }

    /// Disposes it; every caller awaits the same completion.
    ///
    /// # Errors
    ///
    /// The provider could not release the run.
    pub fn dispose(&self) -> BoxFuture<'static, Result<(), DisposeError>> {
        self.inner.start_disposal();
        let disposed = self.inner.disposed.clone();
        Box::pin(async move { disposed.wait().await })
    }
}

impl RunInner {
    /// Runs the disposal in a task of its own, once.
    fn start_disposal(&self) {
        if self.disposing.swap(true, Ordering::AcqRel) {
            return;
        }
        let (runtime, info) = (Arc::clone(&self.runtime), self.info.clone());
        let (inner, disposed) = (Arc::clone(&self.inner), self.disposed.clone());
        runtime.fact(Fact::RunDisposeStarted { run: info.run, child: info.child.clone() });
        let disposal = async move {
            let outcome = match contain_call(&runtime, "run disposal", || inner.dispose()) {
                Ok(disposal) => contain(&runtime, "run disposal", disposal).await,
                Err(panicked) => Err(panicked),
            };
            let outcome =
                outcome.unwrap_or_else(|panicked| Err(DisposeError(panicked.to_string())));
            let failed = outcome.is_err();
            runtime.fact(Fact::RunDisposed { run: info.run, child: info.child, failed });
            disposed.set(outcome);
        };
        spawn(&self.runtime, format!("dispose {}", self.info.run), disposal).detach();
    }
}

impl Drop for RunInner {
    fn drop(&mut self) {
        self.start_disposal();
    }
}

/// Section (d) of contract P1: publishes an activation's result under its cancel slot and answers
/// the cancellation that was accepted before, which then owns the outcome (contract P3). The first
/// publication stands; a later one only reads.
pub fn publish_result(
    runtime: &Arc<dyn Runtime>,
    signal: &CancelSignal,
    child: &SessionId,
    agent: Option<OwnerId>,
    stop: &StopReason,
    code: Option<ErrorCode>,
) -> Option<CancelCause> {
    let mut slot = signal.lock();
    let first = !slot.is_published();
    let cancelled = slot.publish();
    if first {
        runtime.fact(Fact::ResultPublished {
            child: child.clone(),
            agent,
            stop: stop.clone(),
            code,
            cancelled,
        });
    }
    cancelled
}
