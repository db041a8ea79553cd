//! What the unit tests of this layer build logs from.

use std::sync::Arc;
use std::time::Duration;

use super::event::{Draft, Event, SessionHeader, TurnEndReason, TurnTrigger, tool_result_message};
use super::log::SessionLog;
use crate::facts::Fact;
use crate::ids::{MessageId, SessionId};
use crate::message::{ContentBlock, Message, MessageSource, Role};
use crate::points::Point;
use crate::runtime::{BoxFuture, PointFuture, Runtime};

pub fn header() -> SessionHeader {
    SessionHeader::new(SessionId::new("s"), 5)
}

pub fn fresh() -> SessionLog {
    SessionLog::new(header(), None, 0).expect("no seed")
}

pub fn user(text: &str) -> Message {
    Message::user(MessageId::new(format!("u-{text}")), text, MessageSource::User)
}

pub fn prompt() -> TurnTrigger {
    TurnTrigger::Message { source: MessageSource::User }
}

pub fn said(text: &str) -> Message {
    model(vec![ContentBlock::text(text)])
}

pub fn model(content: Vec<ContentBlock>) -> Message {
    let source =
        MessageSource::Model { provider: "mock".into(), model: "mock".into(), replay_state: None };
    Message::new(MessageId::new("a"), Role::Assistant, content, source)
}

pub fn asks(ids: &[&str]) -> Message {
    let call = |id: &&str| ContentBlock::ToolCall {
        id: (*id).to_owned(),
        name: "tool".to_owned(),
        arguments: "{}".to_owned(),
    };
    model(ids.iter().map(call).collect())
}

pub fn answer(call_id: &str, text: &str) -> Message {
    tool_result_message(MessageId::new("r"), call_id, vec![ContentBlock::text(text)], false)
}

/// A whole turn with one step that says `text`.
pub fn turn(number: u64, trigger: TurnTrigger, text: &str, reason: TurnEndReason) -> Vec<Draft> {
    vec![
        Draft::turn_start(number, trigger),
        Draft::step_start(number, 1),
        Draft::assistant_message(number, 1, said(text), None, vec![]),
        Draft::step_end(number, 1),
        Draft::turn_end(number, reason),
    ]
}

/// A log with these events, appended one by one at times 10, 11, and so on.
pub fn log_of(drafts: Vec<Draft>) -> SessionLog {
    let mut log = fresh();
    for (now, draft) in (10..).zip(drafts) {
        log.append(vec![draft], now).expect("a well-formed log");
    }
    log
}

pub fn events_of(drafts: Vec<Draft>) -> Vec<Arc<Event>> {
    log_of(drafts).events().to_vec()
}

/// A runtime in which time stands still and facts are kept.
#[derive(Debug, Default)]
pub struct StillRuntime {
    pub facts: std::sync::Mutex<Vec<Fact>>,
}

impl Runtime for StillRuntime {
    fn spawn(&self, _name: String, _body: BoxFuture<'static, ()>) {}

    fn now(&self) -> u64 {
        7
    }

    fn sleep(&self, _duration: Duration) -> BoxFuture<'static, ()> {
        Box::pin(std::future::ready(()))
    }

    fn random(&self) -> u64 {
        0
    }

    fn point(&self, _point: Point) -> PointFuture {
        PointFuture::ready()
    }

    fn fact(&self, fact: Fact) {
        self.facts.lock().expect("not poisoned").push(fact);
    }
}
