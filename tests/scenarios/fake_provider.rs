//! A provider that does as told, without an agent behind it.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use continuable::cancel::CancelSignal;
use continuable::channel::Latch;
use continuable::ids::{OwnerId, SessionId};
use continuable::message::ContentBlock;
use continuable::provider::{
    Capabilities, DisposeError, StartFuture, StartRequest, SubagentError, SubagentProvider,
    SubagentResult, SubagentRun,
};
use continuable::runtime::BoxFuture;
use continuable::vocabulary::StopReason;

/// What its starts do.
#[derive(Clone)]
pub enum Play {
    /// A run that stops for this reason, with the output `partial answer`.
    Stop(StopReason),
    /// A run whose result is lost with these words.
    Lose(&'static str),
    /// A run that goes on until it is cancelled.
    Hang,
    /// The start fails with these words.
    Fail(&'static str),
    /// The start is pending until it is cancelled.
    Pend,
}

/// The provider.
pub struct FakeProvider {
    pub name: &'static str,
    pub capabilities: Capabilities,
    pub inherits: bool,
    pub play: Mutex<Play>,
    /// Why disposals fail, if they do.
    pub dispose_error: Option<&'static str>,
    pub requests: Mutex<Vec<StartRequest>>,
    pub disposals: Arc<AtomicUsize>,
    /// Set once a start or a run is there to be cancelled.
    pub busy: Latch<()>,
}

impl FakeProvider {
    pub fn new(name: &'static str, play: Play) -> Self {
        Self {
            name,
            capabilities: Capabilities::ALL,
            inherits: false,
            play: Mutex::new(play),
            dispose_error: None,
            requests: Mutex::default(),
            disposals: Arc::default(),
            busy: Latch::new(),
        }
    }

    /// The same without capabilities.
    pub fn incapable(name: &'static str, play: Play) -> Self {
        Self { capabilities: Capabilities::default(), ..Self::new(name, play) }
    }

    pub fn set(&self, play: Play) {
        *self.play.lock().expect("no panic inside") = play;
    }

    pub fn starts(&self) -> usize {
        self.requests.lock().expect("no panic inside").len()
    }

    /// The last request.
    pub fn request(&self) -> StartRequest {
        let requests = self.requests.lock().expect("no panic inside");
        requests.last().expect("a start").clone()
    }

    pub fn disposals(&self) -> usize {
        self.disposals.load(Ordering::SeqCst)
    }
}

impl SubagentProvider for FakeProvider {
    fn name(&self) -> &str {
        self.name
    }

    fn capabilities(&self) -> Capabilities {
        self.capabilities
    }

    fn inherits_parent_context(&self) -> bool {
        self.inherits
    }

    fn start(&self, request: StartRequest) -> StartFuture {
        let play = self.play.lock().expect("no panic inside").clone();
        let mut requests = self.requests.lock().expect("no panic inside");
        requests.push(request.clone());
        let run = FakeRun {
            child: SessionId::new(format!("{}-{}", self.name, requests.len())),
            play: play.clone(),
            signal: request.signal.clone(),
            dispose_error: self.dispose_error,
            disposals: Arc::clone(&self.disposals),
        };
        let busy = self.busy.clone();
        Box::pin(async move {
            match play {
                Play::Fail(words) => Err(SubagentError::Infrastructure(words.to_owned())),
                Play::Pend => {
                    busy.set(());
                    request.signal.cancelled().await;
                    Err(SubagentError::AbortedBeforePublication)
                }
                Play::Hang => {
                    busy.set(());
                    Ok(Arc::new(run) as Arc<dyn SubagentRun>)
                }
                Play::Stop(_) | Play::Lose(_) => Ok(Arc::new(run) as Arc<dyn SubagentRun>),
            }
        })
    }
}

struct FakeRun {
    child: SessionId,
    play: Play,
    signal: CancelSignal,
    dispose_error: Option<&'static str>,
    disposals: Arc<AtomicUsize>,
}

impl SubagentRun for FakeRun {
    fn child(&self) -> &SessionId {
        &self.child
    }

    fn local_agent(&self) -> Option<OwnerId> {
        None
    }

    fn result(&self) -> BoxFuture<'static, Result<SubagentResult, SubagentError>> {
        let (play, signal) = (self.play.clone(), self.signal.clone());
        Box::pin(async move {
            let stop = match play {
                Play::Lose(words) => {
                    return Err(SubagentError::Infrastructure(words.to_owned()));
                }
                Play::Stop(stop) => stop,
                _ => {
                    signal.cancelled().await;
                    StopReason::Aborted
                }
            };
            let output = vec![ContentBlock::text("partial answer")];
            Ok(SubagentResult { output, structured: None, stop, detail: None })
        })
    }

    fn dispose(&self) -> BoxFuture<'static, Result<(), DisposeError>> {
        self.disposals.fetch_add(1, Ordering::SeqCst);
        let error = self.dispose_error.map(|words| DisposeError(words.to_owned()));
        Box::pin(async move { error.map_or(Ok(()), Err) })
    }
}
