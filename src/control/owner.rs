//! An agent as the owner of Tasks.

use std::sync::Arc;

use crate::agent::registry::Registry;
use crate::agent::{Agent, AgentHost};
use crate::ids::{OwnerId, SessionId};
use crate::message::{Message, MessageSource};
use crate::session::{Event, EventBody, TurnTrigger};
use crate::task::{BoxedEffect, OwnerGone, TaskOwner, WakePolicy};

/// One exact agent instance, as its Tasks know it.
#[derive(Debug, Clone)]
pub struct AgentOwner(Agent);

impl AgentOwner {
    /// The owner that `agent` is.
    pub fn new(agent: Agent) -> Self {
        Self(agent)
    }

    /// The same, shared.
    pub fn shared(agent: &Agent) -> Arc<dyn TaskOwner> {
        Arc::new(Self::new(agent.clone()))
    }

    /// [`TaskOwner::admit`] for a section that holds the registry already.
    pub fn admit_in(
        &self,
        registry: &Registry<Agent>,
        cleanup: Option<BoxedEffect>,
    ) -> Result<(), OwnerGone> {
        let instance = self.0.instance();
        if !registry.is_current(instance) {
            let published = registry.instance_of(self.0.id()) == Some(instance);
            return Err(if published { OwnerGone::Closing } else { OwnerGone::NotRegistered });
        }
        match cleanup {
            Some(cleanup) => {
                self.0.add_effect("tasks", cleanup).map_err(|_closing| OwnerGone::Closing)
            }
            None => Ok(()),
        }
    }

    fn host(&self) -> &Arc<AgentHost> {
        self.0.host()
    }
}

impl TaskOwner for AgentOwner {
    fn instance(&self) -> OwnerId {
        self.0.instance()
    }

    fn session(&self) -> SessionId {
        self.0.id().clone()
    }

    fn admit(&self, cleanup: Option<BoxedEffect>) -> Result<(), OwnerGone> {
        self.admit_in(&self.host().registry().lock(), cleanup)
    }

    fn notify(&self, notice: Message, policy: WakePolicy) -> bool {
        let taken = match policy {
            WakePolicy::Quiet => self.0.inject(notice),
            WakePolicy::Wake(limit) => {
                let source = notice.source.clone();
                self.0.inject_waking(notice, |log| woken_in_a_row(log.events(), &source) < limit)
            }
        };
        taken.is_ok()
    }
}

/// How many of the last turns a notice of this source opened, since a person or a coordinator last
/// said something (contract P7).
fn woken_in_a_row(events: &[Arc<Event>], notice: &MessageSource) -> u32 {
    let mut woken = 0;
    for event in events.iter().rev() {
        match &event.body {
            EventBody::TurnStart { trigger: TurnTrigger::Injection { source }, .. }
                if source == notice =>
            {
                woken += 1;
            }
            EventBody::UserMessage(message) | EventBody::SteeringMessage { message, .. } => {
                let source = &message.source;
                if matches!(source, MessageSource::User | MessageSource::Coordinator { .. }) {
                    break;
                }
            }
            _ => {}
        }
    }
    woken
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::MessageId;
    use crate::session::Draft;

    fn log(drafts: Vec<Draft>) -> Vec<Arc<Event>> {
        let events = drafts.into_iter().zip(0..);
        events
            .map(|(draft, seq)| {
                Arc::new(Event {
                    seq,
                    time: 0,
                    body: draft.body,
                    surface: draft.surface,
                    sources: draft.sources,
                    raw: None,
                })
            })
            .collect()
    }

    fn turn(number: u64, source: &MessageSource) -> [Draft; 2] {
        let id = MessageId::new(format!("m{number}"));
        let message = Message::user(id, "x", source.clone());
        let trigger = match source {
            MessageSource::Plugin { .. } => TurnTrigger::Injection { source: source.clone() },
            _ => TurnTrigger::Message { source: source.clone() },
        };
        [Draft::turn_start(number, trigger), Draft::user_message(Arc::new(message))]
    }

    #[test]
    fn a_persons_message_starts_the_count_of_woken_turns_anew() {
        let notice = MessageSource::Plugin { plugin: "tool-tasks".to_owned() };
        let mut drafts = Vec::new();
        let sources = [&notice, &MessageSource::User, &notice, &notice];
        for (number, source) in (1..).zip(sources) {
            drafts.extend(turn(number, source));
        }
        assert_eq!(woken_in_a_row(&log(drafts.clone()), &notice), 2);
        let sender = MessageSource::Coordinator { sender_session_id: SessionId::new("p") };
        drafts.extend(turn(5, &sender));
        assert_eq!(woken_in_a_row(&log(drafts), &notice), 0);
    }
}
