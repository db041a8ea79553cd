//! The human-facing adapter: JSON-RPC 2.0, one message a line, over any byte stream (contract P19;
//! design note, "Human input").
//!
//! A person sees the children of a parent, reads a child's transcript without loading its agent,
//! and acts on it through the same control operation as the parent's model: their messages have the
//! source `user`, their Tasks are the parent's, their kill is the parent's kill.
//!
//! | method | parameters | result |
//! |---|---|---|
//! | `children` | `parent` | `children`: stored and running ones, each with its Task, if one is open |
//! | `transcript` | `parent`, `child`, `from`? | `header`, `events`, `next`: where to read on, or null |
//! | `send` | `parent`, `child`, `text` | `route`, `task` |
//! | `wait` | `parent`, `task`, `timeoutMs`? | `task`: terminal, or live after the timeout |
//! | `output` | `parent`, `task` | `text`, `task` |
//! | `kill` | `parent`, `task`, `reason`? | `answer` |
//!
//! The notification `$/cancelRequest` with the `id` of a call fires that call's own signal: a
//! message that was not drained is withdrawn, a wait ends. The end of the connection does the same
//! to all its calls: whoever is gone waits for nothing, and a Task's notice goes to its parent.
//!
//! Reading order: [`protocol`] (what a line means, pure), `lines` (a stream of lines), this file,
//! [`client`].

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use serde_json::value::RawValue;

use crate::agent::{Agent, AgentHost};
use crate::cancel::CancelSignal;
use crate::channel::{QueueSender, bounded};
use crate::control::SubagentControlService;
use crate::error::ErrorCode;
use crate::facts::CancelScope;
use crate::ids::{SessionId, TaskId};
use crate::message::{ContentBlock, MessageSource};
use crate::runtime::{Runtime, contain, spawn};
use crate::store::{SessionStore, StoreError};
use crate::task::{Attachment, TaskService};
use crate::vocabulary::CancelCause;
use crate::wire::ByteStream;

pub mod client;
mod lines;
pub mod protocol;
pub mod view;

pub use lines::{LINE_BYTES_MAX, LineError};

use lines::LineStream;
use protocol::{Call, Incoming, RequestId, Response, RpcError};

/// How many calls of one connection may be under way at once; further ones are refused.
pub const CALLS_MAX: usize = 64;

/// What the adapter stands on.
#[derive(Clone)]
pub struct AdapterServices {
    /// The world.
    pub runtime: Arc<dyn Runtime>,
    /// Where loaded parents are found.
    pub agents: Arc<AgentHost>,
    /// The Tasks.
    pub tasks: Arc<TaskService>,
    /// The continuable children.
    pub control: Arc<SubagentControlService>,
    /// Where transcripts are read.
    pub store: Arc<SessionStore>,
}

/// Serves people. While it exists a control surface is attached (contract I21, P19).
pub struct HumanAdapter {
    services: AdapterServices,
    _surface: Attachment,
}

impl fmt::Debug for HumanAdapter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("HumanAdapter")
    }
}

/// The calls of one connection that are under way. Dropping them fires their signals.
#[derive(Default)]
struct Calls(BTreeMap<RequestId, CancelSignal>);

impl Calls {
    fn cancel(&self, id: &RequestId) {
        if let Some(signal) = self.0.get(id) {
            signal.cancel(CancelCause::CallerGone);
        }
    }

    fn cancel_all(&self) {
        for signal in self.0.values() {
            signal.cancel(CancelCause::CallerGone);
        }
    }
}

impl Drop for Calls {
    fn drop(&mut self) {
        self.cancel_all();
    }
}

type Answered = (RequestId, Result<Box<RawValue>, RpcError>);

impl HumanAdapter {
    /// An adapter over the given layers; attaches its control surface.
    pub fn new(services: AdapterServices) -> Arc<Self> {
        let surface = services.tasks.attach_surface("human adapter");
        Arc::new(Self { services, _surface: surface })
    }

    /// Serves one connection until its person closes it. When this is done, so are its calls.
    ///
    /// # Errors
    ///
    /// The stream failed, or a line was longer than [`LINE_BYTES_MAX`], or cut off by the end. A
    /// line that is not a request is answered as JSON-RPC says, and the connection goes on.
    pub async fn serve(
        self: Arc<Self>,
        stream: impl ByteStream + 'static,
    ) -> Result<(), LineError> {
        let mut stream = LineStream::new(stream);
        let (answers, mut answered) = bounded::<Answered>(CALLS_MAX);
        let mut calls = Calls::default();
        let end = loop {
            tokio::select! {
                biased;
                Some((id, outcome)) = answered.recv(), if stream.has_room() => {
                    calls.0.remove(&id);
                    stream.queue(&Response::new(Some(id), outcome).to_line());
                }
                line = stream.next() => match line {
                    Ok(Some(line)) => {
                        if let Some(refusal) = self.take(&line, &mut calls, &answers) {
                            stream.queue(&refusal.to_line());
                        }
                    }
                    Ok(None) => break Ok(()),
                    Err(error) => {
                        if let LineError::TooLong = error {
                            let refusal = RpcError::parse(&error.to_string());
                            stream.queue(&Response::new(None, Err(refusal)).to_line());
                        }
                        break Err(error);
                    }
                },
            }
        };
        calls.cancel_all();
        while !calls.0.is_empty() {
            let Some((id, outcome)) = answered.recv().await else { break };
            calls.0.remove(&id);
            stream.queue(&Response::new(Some(id), outcome).to_line());
        }
        // Whoever is still reading gets what there is to say; whoever is not has gone.
        drop(stream.finish().await);
        end
    }

    /// Begins what a line asks for; the refusal, if it is not a call that can begin.
    fn take(
        self: &Arc<Self>,
        line: &[u8],
        calls: &mut Calls,
        answers: &QueueSender<Answered>,
    ) -> Option<Response> {
        let (id, call) = match protocol::parse(line) {
            Ok(Incoming::Call { id, call }) => (id, call),
            Ok(Incoming::Cancel { id }) => {
                calls.cancel(&id);
                return None;
            }
            Ok(Incoming::Ignored) => return None,
            Err((id, error)) => return Some(Response::new(id, Err(error))),
        };
        if calls.0.contains_key(&id) {
            let error = RpcError::invalid("a call of that id is under way");
            return Some(Response::new(None, Err(error)));
        }
        if calls.0.len() >= CALLS_MAX {
            let error = RpcError::refused(
                ErrorCode::ServiceUnavailable,
                format!("{CALLS_MAX} calls are under way on this connection"),
            );
            return Some(Response::new(Some(id), Err(error)));
        }
        let runtime = &self.services.runtime;
        let scope = CancelScope::Call { call: format!("human {id}") };
        let signal = CancelSignal::new(Arc::clone(runtime), scope);
        calls.0.insert(id.clone(), signal.clone());
        let (this, answers) = (Arc::clone(self), answers.clone());
        let name = format!("human {} {id}", call.method());
        let work = async move {
            let runtime = &this.services.runtime;
            let outcome = contain(runtime, "human call", this.perform(call, &signal)).await;
            let outcome = outcome.unwrap_or_else(|panicked| Err(RpcError::internal(&panicked)));
            // The queue holds every call that may be under way; it is closed when the serving
            // future was dropped.
            drop(answers.send((id, outcome)).await);
        };
        spawn(runtime, name, work).detach();
        None
    }

    async fn perform(&self, call: Call, signal: &CancelSignal) -> Result<Box<RawValue>, RpcError> {
        match call {
            Call::Children { parent } => self.children(&parent).await,
            Call::Transcript { parent, child, from } => {
                self.transcript(&parent, &child, from, signal).await
            }
            Call::Send { parent, child, text } => {
                let parent = self.loaded(&parent)?;
                let (content, source) = (vec![ContentBlock::text(text)], MessageSource::User);
                let control = &self.services.control;
                let sent = control.send_message(&parent, &child, content, source, Some(signal));
                let sent = sent.await.map_err(|error| RpcError::refused(error.code(), error))?;
                view::value(&view::Sent { route: sent.route, task: sent.task })
            }
            Call::Wait { parent, task, timeout_ms } => {
                let caller = self.caller(&parent)?;
                let timeout = timeout_ms.map(crate::task::wait_timeout).transpose()?;
                let tasks = &self.services.tasks;
                let signal = Some(signal.clone());
                let snapshot = tasks.wait(&task, Some(&caller), timeout, signal).await?;
                view::value(&view::Waited { task: snapshot.into() })
            }
            Call::Output { parent, task } => {
                let caller = self.caller(&parent)?;
                let read = self.services.tasks.read(&task, Some(&caller)).await?;
                view::value(&view::Output { text: read.text, task: read.snapshot.into() })
            }
            Call::Kill { parent, task, reason } => {
                let caller = self.caller(&parent)?;
                let kill = self.services.tasks.kill(&task, Some(&caller), reason.as_deref());
                view::value(&view::Killed { answer: kill.await? })
            }
        }
    }

    /// The loaded parent: the exact instance that is there now becomes the owner of what follows.
    fn loaded(&self, parent: &str) -> Result<Agent, RpcError> {
        let checked = SessionId::checked(parent).map_err(|error| RpcError::input(&error))?;
        self.services.agents.get(&checked).ok_or_else(|| {
            let text = format!("no agent of session \"{checked}\" is loaded; open it first");
            RpcError::refused(ErrorCode::OwnerUnavailable, text)
        })
    }

    fn caller(&self, parent: &str) -> Result<SessionId, RpcError> {
        Ok(self.loaded(parent)?.id().clone())
    }

    async fn children(&self, parent: &str) -> Result<Box<RawValue>, RpcError> {
        let parent = SessionId::checked(parent).map_err(|error| RpcError::input(&error))?;
        let stored = self.services.store.list().await?;
        // Looked up after the listing, so that a child which began meanwhile is not missed.
        let mut running: BTreeMap<SessionId, TaskId> =
            self.services.control.activations_of(&parent).into_iter().collect();
        let mut children: Vec<_> = stored
            .into_iter()
            .filter(|listed| {
                let header = listed.header.as_ref();
                header.is_some_and(|header| header.parent_session.as_ref() == Some(&parent))
            })
            .map(|listed| {
                let task = running.remove(&listed.id);
                view::Child::stored(listed, self.task(task, &parent))
            })
            .collect();
        for (child, task) in running {
            children.push(view::Child::starting(child, self.task(Some(task), &parent)));
        }
        view::value(&view::Children { children })
    }

    fn task(&self, task: Option<TaskId>, parent: &SessionId) -> Option<view::Task> {
        let snapshot = self.services.tasks.get(&task?, Some(parent)).ok()?;
        Some(snapshot.into())
    }

    /// The child's log from `from` on, as its live owner has it or as it is stored. No agent is
    /// loaded, nothing is written.
    async fn transcript(
        &self,
        parent: &str,
        child: &str,
        from: u64,
        signal: &CancelSignal,
    ) -> Result<Box<RawValue>, RpcError> {
        let parent = SessionId::checked(parent).map_err(|error| RpcError::input(&error))?;
        let child = SessionId::checked(child).map_err(|error| RpcError::input(&error))?;
        let stored = self.services.store.inspect_until(&child, signal).await?;
        if stored.header.parent_session.as_ref() != Some(&parent) {
            let text = format!("subagent \"{child}\" belongs to another parent session");
            return Err(RpcError::refused(ErrorCode::Unauthorized, text));
        }
        view::value(&view::Transcript::page(&stored, from)?)
    }
}

impl From<StoreError> for RpcError {
    fn from(error: StoreError) -> Self {
        Self::refused(error.code(), error)
    }
}

impl From<crate::task::TaskError> for RpcError {
    fn from(error: crate::task::TaskError) -> Self {
        Self::refused(error.code(), error)
    }
}
