//! The person on the `human` host: carries out errands over the network, through the adapter's
//! client, and looks at what became of them.
//!
//! An errand reaches the person outside of the network, as a thought does. What they do crosses it:
//! a connection that cannot be opened is tried again, but what was asked once is never asked again,
//! so a reply that does not come is indefinite.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use continuable::adapter::client::{CallError, HumanClient};
use continuable::adapter::protocol::Call;
use continuable::adapter::view;
use continuable::channel::{Notify, Sender, oneshot};
use continuable::error::ErrorCode;
use continuable::ids::{SessionId, TaskId};
use continuable::runtime::{BoxFuture, Runtime, spawn};
use continuable::vocabulary::RouteCode;
use turmoil::net::TcpStream;

use super::guard;
use crate::faults::Host;
use crate::plan::GiveUp;
use crate::trace::Answer;
use crate::workload::{Person, Target};

/// Where the adapter is served.
pub(super) const HUMAN_PORT: u16 = 81;

/// How long a person waits for a reply, in virtual milliseconds: shorter than the plan's own
/// patience, so that a dead connection is noticed.
const PATIENCE_MS: u64 = 300;
/// How long a person waits before they try to connect again.
const RECONNECT_MS: u64 = 20;
/// How long a person watches a Task that they started.
const WATCH_MS: f64 = 40.0;

/// What a person is to do.
struct Errand {
    target: Target,
    answer: Sender<Answer>,
}

/// The errands that no person has begun yet; outlives every life of the person's host.
#[derive(Default)]
pub(super) struct Errands {
    waiting: Mutex<VecDeque<Errand>>,
    arrived: Notify,
}

impl Errands {
    /// Forgets what was not begun: whoever asked is gone.
    pub(super) fn clear(&self) {
        let forgotten = std::mem::take(&mut *guard(&self.waiting));
        drop(forgotten);
    }
}

impl Person for Errands {
    fn act(&self, target: Target) -> BoxFuture<'static, Answer> {
        let (answer, answered) = oneshot();
        guard(&self.waiting).push_back(Errand { target, answer });
        self.arrived.notify_one();
        // A person whose host dies says nothing more.
        Box::pin(async move { answered.await.unwrap_or(Answer::Lost) })
    }
}

/// One life of the person's host.
pub(super) struct Human {
    runtime: Arc<dyn Runtime>,
    /// The connection that errands share, while it works.
    client: Mutex<Option<HumanClient>>,
}

impl Human {
    pub(super) fn new(runtime: Arc<dyn Runtime>) -> Arc<Self> {
        Arc::new(Self { runtime, client: Mutex::default() })
    }

    /// Carries out errands, each as a task of its own.
    pub(super) async fn live(self: Arc<Self>, errands: Arc<Errands>) {
        loop {
            let errand = guard(&errands.waiting).pop_front();
            let Some(Errand { target, answer }) = errand else {
                errands.arrived.notified().await;
                continue;
            };
            let this = Arc::clone(&self);
            let work = async move {
                let outcome = this.carry_out(target.clone()).await;
                // Whoever asked may have died meanwhile.
                drop(answer.send(outcome.clone()));
                this.look(target, outcome).await;
            };
            spawn(&self.runtime, "errand", work).detach();
        }
    }

    async fn sleep(&self, ms: u64) {
        self.runtime.sleep(Duration::from_millis(ms)).await;
    }

    async fn carry_out(&self, target: Target) -> Answer {
        tokio::select! {
            biased;
            answer = self.act(target) => {
                if let Answer::Refused { code: ErrorCode::Closing } = answer {
                    // The service behind this connection is gone; the next one may have another.
                    guard(&self.client).take();
                }
                answer
            }
            () = self.sleep(PATIENCE_MS) => {
                // The connection may be dead without a word; the next errand opens another one.
                guard(&self.client).take();
                Answer::Lost
            }
        }
    }

    async fn client(&self) -> HumanClient {
        loop {
            let open = guard(&self.client).clone().filter(|client| !client.is_closed());
            if let Some(client) = open {
                return client;
            }
            if let Ok(stream) = TcpStream::connect((Host::Runtime.name(), HUMAN_PORT)).await {
                let client = HumanClient::new(&self.runtime, stream);
                *guard(&self.client) = Some(client.clone());
                return client;
            }
            self.sleep(RECONNECT_MS).await;
        }
    }

    async fn act(&self, target: Target) -> Answer {
        let client = self.client().await;
        match target {
            Target::Send { parent, child, text, give_up } => {
                let (parent, child) = (parent.as_str().to_owned(), child.as_str().to_owned());
                let call = Call::Send { parent, child, text };
                let sent: Result<view::Sent, _> = match give_up {
                    None => client.call(call).await,
                    Some(GiveUp { after_ms, dropped: false }) => {
                        client.call_until(call, self.sleep(after_ms)).await
                    }
                    Some(GiveUp { after_ms, dropped: true }) => tokio::select! {
                        biased;
                        sent = client.call(call) => sent,
                        () = self.sleep(after_ms) => return Answer::GaveUp,
                    },
                };
                told(sent, |sent| Answer::Sent { route: sent.route, task: sent.task })
            }
            Target::Kill { parent, task } => {
                let killed = client.kill(&parent, &task, Some("by a person")).await;
                told(killed, |killed| Answer::Killed { answer: killed.answer })
            }
        }
    }

    /// What a person does after a message: sees the child in the list, reads its transcript, and
    /// watches the Task they started for a while. Any refusal will do, nonsense will not.
    async fn look(&self, target: Target, outcome: Answer) {
        let (Target::Send { parent, child, .. }, Answer::Sent { route, task }) = (target, outcome)
        else {
            return;
        };
        let looking = async {
            let client = self.client().await;
            sensible(client.children(&parent).await);
            let read = sensible(client.transcript(&parent, &child, 0).await);
            assert!(read.is_none_or(|read| read.header.id == child), "another child's transcript");
            if route == RouteCode::Started {
                self.watch(&client, &parent, &task).await;
            }
        };
        tokio::select! {
            biased;
            () = looking => {}
            () = self.sleep(PATIENCE_MS) => {}
        }
    }

    async fn watch(&self, client: &HumanClient, parent: &SessionId, task: &TaskId) {
        let Some(waited) = sensible(client.wait(parent, task, Some(WATCH_MS)).await) else {
            return;
        };
        assert_eq!(waited.task.id, *task, "another Task than the one waited for");
        if waited.task.status.is_terminal()
            && let Some(read) = sensible(client.output(parent, task).await)
        {
            assert_eq!(read.task.status, waited.task.status, "a terminal status is final");
        }
    }
}

/// The answer of a call.
fn told<T>(outcome: Result<T, CallError>, answer: impl FnOnce(T) -> Answer) -> Answer {
    match outcome {
        Ok(result) => answer(result),
        Err(CallError::ConnectionLost) => Answer::Lost,
        Err(error) => match error.code() {
            Some(code) => Answer::Refused { code },
            None => panic!("the adapter answered nonsense: {error}"),
        },
    }
}

/// The result of a look, if there is one.
fn sensible<T>(outcome: Result<T, CallError>) -> Option<T> {
    match outcome {
        Ok(result) => Some(result),
        Err(error) => {
            let code = error.code();
            let lost = matches!(error, CallError::ConnectionLost);
            assert!(code.is_some() || lost, "the adapter answered nonsense: {error}");
            None
        }
    }
}
