//! One activation from its start to its outcome: the design note's "Task and cancellation
//! ownership" as straight-line code. Every paragraph is *point, await, recheck*.
//!
//! The Task's driver awaits [`Driver::run`]; the Task is terminal only after it, so only after the
//! run's disposal.

use std::sync::{Arc, Weak};

use super::Associations;
use super::association::Filled;
use super::error::ControlError;
use super::settle::settle_run;
use crate::agent::Agent;
use crate::cancel::CancelSignal;
use crate::ids::{ActivationId, SessionId};
use crate::message::Message;
use crate::points::Point;
use crate::provider::{ContinuableRequest, ResumeRequest, Run, SubagentService, publish_result};
use crate::runtime::Runtime;
use crate::sections::admission::{self, Unclaimed};
use crate::session::descriptor::{Descriptor, DescriptorError};
use crate::session::{SessionHeader, fold};
use crate::store::{Loaded, SessionStore, StoreError, StoredSession};
use crate::task::TaskService;
use crate::vocabulary::{StopReason, TaskOutcome};

/// How an activation begins.
pub(super) enum Beginning {
    /// A fresh child.
    Start {
        /// The provider's name.
        provider: String,
        /// What to start.
        request: Box<ContinuableRequest>,
    },
    /// A persisted child.
    Resume {
        /// The message that continues it.
        message: Message,
        /// Where it is persisted.
        store: Arc<SessionStore>,
    },
}

/// What lives across the awaits of one activation.
pub(super) struct Driver {
    pub(super) runtime: Arc<dyn Runtime>,
    pub(super) associations: Associations,
    pub(super) subagents: Arc<SubagentService>,
    /// An activation keeps no service alive that it was started through.
    pub(super) tasks: Weak<TaskService>,
    pub(super) activation: ActivationId,
    pub(super) child: SessionId,
    pub(super) parent: Agent,
    pub(super) signal: CancelSignal,
}

impl Driver {
    /// The activation's whole life. Its outcome is final: the run, if there was one, is disposed.
    pub(super) async fn run(self, beginning: Beginning) -> TaskOutcome {
        let begun = match beginning {
            Beginning::Start { provider, request } => self.start(&provider, *request).await,
            Beginning::Resume { message, store } => self.resume(message, &store).await,
        };
        match begun {
            Ok(run) => self.finish(run).await,
            Err(error) => self.refused(&error).await,
        }
    }

    fn runtime(&self) -> &Arc<dyn Runtime> {
        &self.runtime
    }

    fn recheck(&self) -> Result<(), ControlError> {
        match self.signal.cause() {
            Some(_) => Err(ControlError::Cancelled { child: self.child.clone() }),
            None => Ok(()),
        }
    }

    async fn start(
        &self,
        provider: &str,
        request: ContinuableRequest,
    ) -> Result<Run, ControlError> {
        self.runtime().point(Point::ProviderStart).await;
        self.recheck()?;
        self.runtime().point(Point::ProviderCall).await;
        Ok(self.subagents.start_continuable(provider, request).await?)
    }

    /// A cold resume (contract P5): the header is read without writing and authorises; the
    /// activation claims the child; the descriptor is folded; only then is the log repaired.
    async fn resume(
        &self,
        message: Message,
        store: &Arc<SessionStore>,
    ) -> Result<Run, ControlError> {
        self.runtime().point(Point::ResumeHeader).await;
        self.recheck()?;
        let header = store.read_header(&self.child).await.map_err(|e| self.unavailable(e))?;

        self.runtime().point(Point::ResumeAuthorise).await;
        self.authorise(&header)?;

        self.runtime().point(Point::ResumeLoad).await;
        self.recheck()?;
        let (loaded, descriptor) = self.load(store).await?;

        self.runtime().point(Point::ProviderResume).await;
        self.recheck()?;
        self.runtime().point(Point::ResumeCounters).await;
        self.raise_counters(&loaded);
        self.runtime().point(Point::ProviderCall).await;
        let provider = descriptor.provider.clone();
        let request = ResumeRequest {
            child: self.child.clone(),
            message,
            parent: self.parent.clone(),
            signal: self.signal.clone(),
            descriptor,
            loaded,
        };
        Ok(self.subagents.resume(&provider, request).await?)
    }

    fn unavailable(&self, cause: StoreError) -> ControlError {
        ControlError::Unavailable { child: self.child.clone(), cause: Arc::new(cause) }
    }

    /// Only the persisted direct parent may continue the child (contract I11); a cancellation is
    /// met in the same section.
    fn authorise(&self, header: &SessionHeader) -> Result<(), ControlError> {
        let child = self.child.clone();
        if header.parent_session.as_ref() != Some(self.parent.id()) {
            return Err(ControlError::Unauthorized { child });
        }
        let place = (&self.child, self.activation);
        admission::authorise(self.runtime(), &self.associations, &self.signal, place).map_err(
            |refusal| match refusal {
                Unclaimed::Cancelled => ControlError::Cancelled { child },
                Unclaimed::Held(task) => ControlError::Held { child, task },
            },
        )
    }

    /// Loads the log once; nothing is repaired before the descriptor is known to be usable and the
    /// activation not cancelled.
    async fn load(&self, store: &Arc<SessionStore>) -> Result<(Loaded, Descriptor), ControlError> {
        let signal = self.signal.clone();
        let parent = self.parent.id().clone();
        let (verdict, verdict_of) = crate::channel::oneshot();
        let check = move |stored: &StoredSession| {
            let decided = usable(stored, &parent, &signal);
            let go_on = decided.is_ok();
            // The loading task may outlive its caller; then nobody needs the verdict.
            let _unheard = verdict.send(decided);
            go_on
        };
        let loaded = store.load_checked(&self.child, check).await;
        let decided = verdict_of.await.ok();
        let child = self.child.clone();
        match (loaded, decided) {
            (_, Some(Err(Unusable::Cancelled))) => Err(ControlError::Cancelled { child }),
            (_, Some(Err(Unusable::Foreign))) => Err(ControlError::Unauthorized { child }),
            (_, Some(Err(Unusable::Descriptor(cause)))) => {
                Err(ControlError::NoContinuation { child, cause })
            }
            (Ok(loaded), Some(Ok(descriptor))) => Ok((loaded, descriptor)),
            (Ok(_), None) => Err(ControlError::NoContinuation { child, cause: None }),
            (Err(error), _) => Err(self.unavailable(error)),
        }
    }

    /// The child may own Tasks of its own again: their ids must not repeat those of its log
    /// (contract P13).
    fn raise_counters(&self, loaded: &Loaded) {
        let Some(tasks) = self.tasks.upgrade() else { return };
        tasks.raise_counters(&fold::highest_task_ordinals(&loaded.events));
    }

    /// The run is published. It is filled in, its result awaited, and it is disposed whatever the
    /// result is.
    async fn finish(&self, run: Run) -> TaskOutcome {
        self.runtime().point(Point::AssociationFill).await;
        let filled = Filled { run: run.clone(), agent: run.local_agent() };
        let place = (&self.child, self.activation);
        admission::fill(self.runtime(), &self.associations, place, run.id(), filled);

        settle_run(self.runtime(), &self.signal, &run).await
    }

    /// Nothing was published; whatever had begun is rolled back.
    async fn refused(&self, error: &ControlError) -> TaskOutcome {
        self.runtime().point(Point::ResultPublish).await;
        let code = error.code();
        let stop = StopReason::Error;
        let cancelled =
            publish_result(self.runtime(), &self.signal, &self.child, None, &stop, Some(code));
        self.runtime().point(Point::TaskSettle).await;
        match cancelled {
            Some(_) => TaskOutcome::killed(),
            None => TaskOutcome::failed(Some(code), error.detail()),
        }
    }
}

/// Why a stored child is not resumed, found before anything is written.
enum Unusable {
    Cancelled,
    Foreign,
    Descriptor(Option<DescriptorError>),
}

/// Judges the log as it was read. The header is judged again: what is authorised is what is used.
fn usable(
    stored: &StoredSession,
    parent: &SessionId,
    signal: &CancelSignal,
) -> Result<Descriptor, Unusable> {
    if signal.is_cancelled() {
        return Err(Unusable::Cancelled);
    }
    if stored.header.parent_session.as_ref() != Some(parent) {
        return Err(Unusable::Foreign);
    }
    let own = fold::own_events(&stored.header, &stored.events);
    match fold::fold_descriptor(own) {
        Ok(Some(descriptor)) => Ok(descriptor),
        Ok(None) => Err(Unusable::Descriptor(None)),
        Err(error) => Err(Unusable::Descriptor(Some(error))),
    }
}
