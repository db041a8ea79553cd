//! Starts, foreground runs and sends.

use std::sync::Arc;

use continuable::agent::Agent;
use continuable::cancel::CancelSignal;
use continuable::control::{ContinuableStartSpec, ControlError, Delivery};
use continuable::ids::{SESSION_ID_MAX_UNITS, SessionId};
use continuable::message::{ContentBlock, MessageSource};
use continuable::provider::StartRequest;
use continuable::runtime::fresh_session_id;
use continuable::vocabulary::RouteCode;
use serde_json::json;

use super::{Target, Workload};
use crate::plan::{BadId, BadStart, By, GiveUp, Odd, Provider};
use crate::trace::Answer;

impl Workload {
    pub(super) fn start(&self, parent: u64, provider: Provider, structured: bool) -> Answer {
        let Some((_, agent)) = self.parent(parent) else { return Answer::NoTarget };
        let mut spec = spec(self.deployment.provider(provider));
        spec.output_schema = structured.then(schema);
        self.started(&agent, spec)
    }

    /// A child of a child: only one that is live can be an owner.
    pub(super) fn start_under(&self, child: u64, provider: Provider) -> Answer {
        let owner = self.child(child).and_then(|child| self.deployment.agents.get(&child));
        let Some(owner) = owner else { return Answer::NoTarget };
        let mut spec = spec(self.deployment.provider(provider));
        spec.max_depth = Some(3);
        self.started(&owner, spec)
    }

    pub(super) fn start_badly(&self, parent: u64, wrong: BadStart) -> Answer {
        let Some((_, agent)) = self.parent(parent) else { return Answer::NoTarget };
        let mut spec = spec(self.deployment.provider(Provider::Spawn));
        match wrong {
            BadStart::Label => spec.label = String::new(),
            BadStart::NoProvider => spec.provider = "nobody".to_owned(),
            BadStart::Depth => spec.max_depth = Some(0),
        }
        self.started(&agent, spec)
    }

    fn started(&self, owner: &Agent, spec: ContinuableStartSpec) -> Answer {
        match self.deployment.control().start_continuable(owner, spec) {
            Ok(started) => {
                let ordinal = {
                    let mut saga = self.saga();
                    saga.children.push(started.child.clone());
                    saga.children.len() - 1
                };
                self.known().tasks.push((started.task.clone(), owner.id().clone()));
                self.script_child(ordinal, &started.child);
                Answer::Started { child: started.child, task: started.task }
            }
            Err(error) => Answer::Refused { code: error.code() },
        }
    }

    /// Lays out the script of the `ordinal`-th child.
    fn script_child(&self, ordinal: usize, child: &SessionId) {
        let script = self.plan.scripts.get(ordinal % self.plan.scripts.len().max(1));
        self.deployment.script(child, script.map_or(&[], Vec::as_slice));
    }

    /// In a later life the model is told again what to answer.
    pub(super) fn script_children(&self) {
        let children = self.saga().children.clone();
        for (ordinal, child) in children.iter().enumerate() {
            self.script_child(ordinal, child);
        }
    }

    /// A run that its caller holds: started, awaited, and disposed before the answer (P14).
    pub(super) async fn foreground(
        self: &Arc<Self>,
        op: u64,
        parent: u64,
        provider: Provider,
        give_up: Option<GiveUp>,
    ) -> Answer {
        let Some((_, agent)) = self.parent(parent) else { return Answer::NoTarget };
        let signal = self.call_signal(op);
        let request = StartRequest::text(agent, signal.clone(), "begin");
        let subagents = Arc::clone(&self.deployment.subagents);
        let name = self.deployment.provider(provider);
        let run = async move {
            match subagents.start(name, request).await {
                Ok(run) => {
                    let stop = run.result().await.map(|result| result.stop);
                    // Best effort, but done before the call returns.
                    drop(run.dispose().await);
                    match stop {
                        Ok(stop) => Answer::Ran { stop },
                        Err(error) => Answer::Refused { code: error.code() },
                    }
                }
                Err(error) => Answer::Refused { code: error.code() },
            }
        };
        self.patiently(run, &signal, give_up).await.unwrap_or(Answer::GaveUp)
    }

    pub(super) async fn send(
        &self,
        op: u64,
        parent: u64,
        child: u64,
        by: By,
        give_up: Option<GiveUp>,
    ) -> Answer {
        let Some((_, agent)) = self.parent(parent) else { return Answer::NoTarget };
        let Some(child) = self.child(child) else { return Answer::NoTarget };
        let text = format!("message {op}");
        if let Some(person) = self.person(by) {
            let (parent, owner) = (agent.id().clone(), agent.id().clone());
            let answer = person.act(Target::Send { parent, child, text, give_up }).await;
            if let Answer::Sent { route: RouteCode::Started, task } = &answer {
                self.known().tasks.push((task.clone(), owner));
            }
            return answer;
        }
        let signal = self.call_signal(op);
        let content = vec![ContentBlock::text(text)];
        let send = self.deliver(&agent, child.as_str(), content, by, &signal);
        let sent = self.patiently(send, &signal, give_up).await;
        self.sent(&agent, sent)
    }

    fn sent(&self, agent: &Agent, sent: Option<Result<Delivery, ControlError>>) -> Answer {
        match sent {
            None => Answer::GaveUp,
            Some(Err(error)) => Answer::Refused { code: error.code() },
            Some(Ok(Delivery { route, task })) => {
                if route == RouteCode::Started {
                    self.known().tasks.push((task.clone(), agent.id().clone()));
                }
                Answer::Sent { route, task }
            }
        }
    }

    async fn deliver(
        &self,
        agent: &Agent,
        child: &str,
        content: Vec<ContentBlock>,
        by: By,
        signal: &CancelSignal,
    ) -> Result<Delivery, ControlError> {
        let source = match by {
            By::Human => MessageSource::User,
            By::Parent => MessageSource::Coordinator { sender_session_id: agent.id().clone() },
        };
        let control = self.deployment.control();
        control.send_message(agent, child, content, source, Some(signal)).await
    }

    pub(super) async fn send_odd(&self, op: u64, parent: u64, child: u64, what: Odd) -> Answer {
        let Some((_, agent)) = self.parent(parent) else { return Answer::NoTarget };
        let Some(child) = self.child(child) else { return Answer::NoTarget };
        let signal = self.call_signal(op);
        let sent = self.deliver(&agent, child.as_str(), odd(what), By::Parent, &signal).await;
        self.sent(&agent, Some(sent))
    }

    pub(super) async fn send_badly(&self, op: u64, parent: u64, id: BadId) -> Answer {
        let Some((_, agent)) = self.parent(parent) else { return Answer::NoTarget };
        let child = match id {
            BadId::Empty => String::new(),
            BadId::Long => "x".repeat(SESSION_ID_MAX_UNITS + 1),
            BadId::Unknown => fresh_session_id(&*self.runtime()).as_str().to_owned(),
            BadId::Escape => "../../etc/passwd".to_owned(),
        };
        let signal = self.call_signal(op);
        let content = vec![ContentBlock::text(format!("message {op}"))];
        let sent = self.deliver(&agent, &child, content, By::Parent, &signal).await;
        self.sent(&agent, Some(sent))
    }

    /// After a restart every child is continued by its id, one after the other (L19); a message to
    /// one that hangs is withdrawn.
    pub(super) async fn continue_all(&self) {
        let patience = Some(GiveUp { after_ms: 200, dropped: false });
        let children = self.saga().children.clone();
        let Some((_, agent)) = self.parent(0) else { return };
        for child in children {
            let signal = self.call_signal(u64::MAX);
            let content = vec![ContentBlock::text("go on")];
            let send = self.deliver(&agent, child.as_str(), content, By::Parent, &signal);
            let sent = self.patiently(send, &signal, patience).await;
            self.sent(&agent, sent);
        }
    }
}

fn spec(provider: &str) -> ContinuableStartSpec {
    ContinuableStartSpec::text(provider, "work", "begin")
}

/// The shape of a structured result.
fn schema() -> serde_json::Value {
    json!({
        "type": "object",
        "properties": { "answer": { "type": "string" } },
        "required": ["answer"],
    })
}

fn odd(what: Odd) -> Vec<ContentBlock> {
    match what {
        Odd::Empty => Vec::new(),
        Odd::Huge => vec![ContentBlock::text("x".repeat(70_000))],
        Odd::Control => vec![ContentBlock::text("a\0b\u{1b}[31m\u{2028}\r\nc")],
        Odd::Exotic => vec![ContentBlock::text("\u{fffd}\u{feff}\u{10ffff}\u{202e}e\u{301}")],
    }
}
