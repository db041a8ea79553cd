//! The person's side: calls over a byte stream, many at once.

use std::collections::BTreeMap;
use std::fmt;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use serde::de::DeserializeOwned;
use serde_json::value::RawValue;

use super::CALLS_MAX;
use super::lines::{LineError, LineStream};
use super::protocol::{Call, RequestId, Response, RpcError, cancel_line};
use super::view::{Children, Killed, Output, Sent, Transcript, Waited};
use crate::channel::{QueueReceiver, QueueSender, Sender, bounded, oneshot};
use crate::error::ErrorCode;
use crate::ids::{SessionId, TaskId};
use crate::runtime::{Runtime, spawn};
use crate::wire::ByteStream;

/// Why a call has no result.
#[derive(Debug, Clone, thiserror::Error)]
pub enum CallError {
    /// The other side refused, and nothing more will come of the call.
    #[error("{}", .0.message)]
    Refused(RpcError),
    /// The connection ended first. Whether the call took effect is not known: ask again, do not
    /// assume.
    #[error("the connection ended before the answer; the call may have taken effect")]
    ConnectionLost,
    /// The other side answered something else than this method's result.
    #[error("the answer is not what the method gives: {0}")]
    Malformed(String),
}

impl CallError {
    /// The stable code, where the runtime refused.
    pub fn code(&self) -> Option<ErrorCode> {
        match self {
            Self::Refused(RpcError { data, .. }) => data.map(|data| data.code),
            Self::ConnectionLost | Self::Malformed(_) => None,
        }
    }
}

type Outcome = Result<Box<RawValue>, CallError>;

enum Request {
    Call { id: RequestId, call: Call, answer: Sender<Outcome> },
    Cancel { id: RequestId },
}

/// A connection to a [`super::HumanAdapter`]. Clones share it; it ends when the last one is dropped.
#[derive(Clone)]
pub struct HumanClient {
    requests: QueueSender<Request>,
    next: Arc<AtomicI64>,
}

impl fmt::Debug for HumanClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("HumanClient")
    }
}

/// Gives a call up when it is dropped unanswered.
struct GivesUp {
    requests: QueueSender<Request>,
    id: RequestId,
    answered: bool,
}

impl GivesUp {
    /// Fires the call's signal on the other side.
    fn cancel(&self) {
        // A full queue stands before a connection that takes nothing; its end fires every signal.
        drop(self.requests.try_send(Request::Cancel { id: self.id.clone() }));
    }
}

impl Drop for GivesUp {
    fn drop(&mut self) {
        if !self.answered {
            self.cancel();
        }
    }
}

impl HumanClient {
    /// A client on `stream`, which is driven by a task of `runtime` named `human client`.
    pub fn new(runtime: &Arc<dyn Runtime>, stream: impl ByteStream + 'static) -> Self {
        let (requests, asked) = bounded(2 * CALLS_MAX);
        let drive = async move { drop(drive(LineStream::new(stream), asked).await) };
        spawn(runtime, "human client", drive).detach();
        Self { requests, next: Arc::default() }
    }

    /// Whether the connection has ended.
    pub fn is_closed(&self) -> bool {
        self.requests.is_closed()
    }

    /// The children of `parent`.
    ///
    /// # Errors
    ///
    /// As every call: [`CallError`].
    pub async fn children(&self, parent: &SessionId) -> Result<Children, CallError> {
        self.call(Call::Children { parent: parent.as_str().to_owned() }).await
    }

    /// The page of a child's transcript that begins at event `from`.
    ///
    /// # Errors
    ///
    /// As every call; `UNAUTHORIZED` for another parent's child.
    pub async fn transcript(
        &self,
        parent: &SessionId,
        child: &SessionId,
        from: u64,
    ) -> Result<Transcript, CallError> {
        let (parent, child) = (parent.as_str().to_owned(), child.as_str().to_owned());
        self.call(Call::Transcript { parent, child, from }).await
    }

    /// Sends `text` to a child.
    ///
    /// # Errors
    ///
    /// As every call. A refused message was not delivered; of a lost connection's nothing is known.
    pub async fn send(
        &self,
        parent: &SessionId,
        child: &str,
        text: impl Into<String>,
    ) -> Result<Sent, CallError> {
        let (parent, child) = (parent.as_str().to_owned(), child.to_owned());
        self.call(Call::Send { parent, child, text: text.into() }).await
    }

    /// Waits for a Task, no longer than `timeout_ms` milliseconds.
    ///
    /// # Errors
    ///
    /// As every call.
    pub async fn wait(
        &self,
        parent: &SessionId,
        task: &TaskId,
        timeout_ms: Option<f64>,
    ) -> Result<Waited, CallError> {
        let (parent, task) = (parent.as_str().to_owned(), task.clone());
        self.call(Call::Wait { parent, task, timeout_ms }).await
    }

    /// Reads a Task's output.
    ///
    /// # Errors
    ///
    /// As every call.
    pub async fn output(&self, parent: &SessionId, task: &TaskId) -> Result<Output, CallError> {
        self.call(Call::Output { parent: parent.as_str().to_owned(), task: task.clone() }).await
    }

    /// Kills a Task.
    ///
    /// # Errors
    ///
    /// As every call.
    pub async fn kill(
        &self,
        parent: &SessionId,
        task: &TaskId,
        reason: Option<&str>,
    ) -> Result<Killed, CallError> {
        let (parent, task) = (parent.as_str().to_owned(), task.clone());
        self.call(Call::Kill { parent, task, reason: reason.map(ToOwned::to_owned) }).await
    }

    /// Carries out `call`. Dropping the future gives it up: the call's signal fires on the other
    /// side.
    ///
    /// # Errors
    ///
    /// [`CallError`].
    pub async fn call<T: DeserializeOwned>(&self, call: Call) -> Result<T, CallError> {
        self.call_until(call, std::future::pending()).await
    }

    /// [`HumanClient::call`], whose signal fires once `impatience` is ready; what the other side
    /// then says is the result.
    ///
    /// # Errors
    ///
    /// [`CallError`].
    pub async fn call_until<T: DeserializeOwned>(
        &self,
        call: Call,
        impatience: impl Future<Output = ()> + Send,
    ) -> Result<T, CallError> {
        let id = RequestId::Number(self.next.fetch_add(1, Ordering::Relaxed));
        let (answer, mut outcome) = oneshot();
        let request = Request::Call { id: id.clone(), call, answer };
        self.requests.send(request).await.map_err(|_| CallError::ConnectionLost)?;
        let requests = self.requests.clone();
        let mut gives_up = GivesUp { requests, id, answered: false };
        let mut impatience = pin!(impatience);
        let answered = tokio::select! {
            biased;
            answered = &mut outcome => answered,
            () = impatience.as_mut() => {
                gives_up.cancel();
                outcome.await
            }
        };
        gives_up.answered = true;
        let result = answered.unwrap_or(Err(CallError::ConnectionLost))?;
        serde_json::from_str(result.get()).map_err(|error| CallError::Malformed(error.to_string()))
    }
}

/// Moves calls out and answers in, until either side closes. Whoever waits then is told that the
/// connection is lost, by the drop of their sender.
async fn drive<S: ByteStream>(
    mut stream: LineStream<S>,
    mut asked: QueueReceiver<Request>,
) -> Result<(), LineError> {
    let mut waiting = BTreeMap::new();
    loop {
        tokio::select! {
            biased;
            line = stream.next() => {
                let Some(line) = line? else { return Ok(()) };
                // Whoever answers nonsense, or names no call, cannot be talked to any longer.
                let Ok(response) = serde_json::from_slice::<Response>(&line) else { return Ok(()) };
                let Some(id) = &response.id else { return Ok(()) };
                if let Some(answer) = waiting.remove(id) {
                    answered(answer, response);
                }
            }
            request = asked.recv(), if stream.has_room() => match request {
                None => return Ok(stream.finish().await?),
                Some(Request::Call { id, call, answer }) => {
                    stream.queue(&call.to_line(&id));
                    waiting.insert(id, answer);
                }
                Some(Request::Cancel { id }) if waiting.contains_key(&id) => {
                    stream.queue(&cancel_line(&id));
                }
                Some(Request::Cancel { .. }) => {}
            },
        }
    }
}

fn answered(answer: Sender<Outcome>, response: Response) {
    let outcome = response.into_outcome().map_err(|error| match error {
        Some(error) => CallError::Refused(error),
        None => CallError::Malformed("neither a result nor an error".to_owned()),
    });
    // Its caller may have given up.
    drop(answer.send(outcome));
}
