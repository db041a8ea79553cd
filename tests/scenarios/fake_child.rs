//! A provider with continuation and without agents: its runs end when they are told to.

use std::sync::{Arc, Mutex};

use continuable::channel::Latch;
use continuable::ids::{OwnerId, SessionId};
use continuable::message::{ContentBlock, Message};
use continuable::provider::{
    BoxAdmission, Capabilities, ContinuableProvider, ContinuableRequest, DisposeError,
    ResumeRequest, StartFuture, StartRequest, Steer, SteerError, SubagentError, SubagentProvider,
    SubagentResult, SubagentRun,
};
use continuable::runtime::BoxFuture;
use continuable::vocabulary::{CancelCause, StopReason};

/// The provider, under the name `remote`.
#[derive(Default)]
pub struct FakeChild {
    /// Whether starts stay pending until they are cancelled.
    pub pending: bool,
    /// What a start waits for before it is published.
    pub gate: Option<Latch<()>>,
    /// Whether starts panic.
    pub panics: bool,
    /// Whether runs take messages, and admit each at once.
    pub steers: bool,
    /// The agent that its runs claim to drive.
    pub local: Option<OwnerId>,
    /// Set when a start or run is there.
    pub busy: Arc<Mutex<Latch<()>>>,
    /// The cause that cancelled a pending start.
    pub cancelled: Latch<CancelCause>,
    /// Ends every run with success.
    pub finish: Latch<()>,
    pub steered: Arc<Mutex<Vec<Message>>>,
}

impl FakeChild {
    pub async fn busy(&self) {
        let busy = self.busy.lock().expect("no panic inside").clone();
        busy.wait().await;
    }

    fn begin(&self, child: SessionId, signal: continuable::cancel::CancelSignal) -> StartFuture {
        assert!(!self.panics, "this provider panics");
        let run = FakeRun {
            child,
            signal: signal.clone(),
            steers: self.steers,
            local: self.local,
            finish: self.finish.clone(),
            steered: Arc::clone(&self.steered),
        };
        let busy = self.busy.lock().expect("no panic inside").clone();
        let (pending, cancelled) = (self.pending, self.cancelled.clone());
        let gate = self.gate.clone();
        Box::pin(async move {
            busy.set(());
            if let Some(gate) = gate {
                gate.wait().await;
            }
            if pending {
                cancelled.set(signal.cancelled().await);
                return Err(SubagentError::AbortedBeforePublication);
            }
            Ok(Arc::new(run) as Arc<dyn SubagentRun>)
        })
    }
}

impl SubagentProvider for FakeChild {
    fn name(&self) -> &str {
        "remote"
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::ALL
    }

    fn inherits_parent_context(&self) -> bool {
        false
    }

    fn start(&self, request: StartRequest) -> StartFuture {
        self.begin(SessionId::new("one-shot"), request.signal)
    }

    fn resume(&self) -> Option<&dyn ContinuableProvider> {
        Some(self)
    }
}

impl ContinuableProvider for FakeChild {
    fn start(&self, request: ContinuableRequest) -> StartFuture {
        self.begin(request.child, request.request.signal)
    }

    fn resume(&self, request: ResumeRequest) -> StartFuture {
        self.begin(request.child, request.signal)
    }
}

struct FakeRun {
    child: SessionId,
    signal: continuable::cancel::CancelSignal,
    steers: bool,
    local: Option<OwnerId>,
    finish: Latch<()>,
    steered: Arc<Mutex<Vec<Message>>>,
}

impl SubagentRun for FakeRun {
    fn child(&self) -> &SessionId {
        &self.child
    }

    fn local_agent(&self) -> Option<OwnerId> {
        self.local
    }

    fn result(&self) -> BoxFuture<'static, Result<SubagentResult, SubagentError>> {
        let (signal, finish) = (self.signal.clone(), self.finish.clone());
        Box::pin(async move {
            let stop = tokio::select! {
                biased;
                _cause = signal.cancelled() => StopReason::Aborted,
                () = finish.wait() => StopReason::Completed,
            };
            let output = vec![ContentBlock::text("remote answer")];
            Ok(SubagentResult { output, structured: None, stop, detail: None })
        })
    }

    fn dispose(&self) -> BoxFuture<'static, Result<(), DisposeError>> {
        Box::pin(async { Ok(()) })
    }

    fn steer(&self) -> Option<&dyn Steer> {
        self.steers.then_some(self)
    }
}

impl Steer for FakeRun {
    fn steer(&self, message: Message) -> Result<BoxAdmission, SteerError> {
        self.steered.lock().expect("no panic inside").push(message);
        Ok(Box::pin(Admitted))
    }
}

struct Admitted;

impl Future for Admitted {
    type Output = Result<(), SteerError>;

    fn poll(
        self: std::pin::Pin<&mut Self>,
        _context: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Self::Output> {
        std::task::Poll::Ready(Ok(()))
    }
}

impl continuable::provider::Admission for Admitted {
    fn withdraw(self: std::pin::Pin<&mut Self>) -> bool {
        false
    }
}
