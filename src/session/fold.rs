//! Pure folds: what a log says, read from its events alone.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::descriptor::{Descriptor, DescriptorError};
use super::event::{Event, EventBody, SessionHeader, TurnEndReason, TurnTrigger};
use crate::message::{ContentBlock, Message, MessageSource};

/// The events from `seq` on.
fn from_seq(events: &[Arc<Event>], seq: u64) -> &[Arc<Event>] {
    let from = usize::try_from(seq).unwrap_or(usize::MAX).min(events.len());
    &events[from..]
}

/// The events from the last message-triggered turn after `boundary` on; none if there is no such
/// turn.
fn last_message_turn(events: &[Arc<Event>], boundary: u64) -> &[Arc<Event>] {
    let own = from_seq(events, boundary);
    let start = own.iter().rposition(|event| {
        matches!(event.body, EventBody::TurnStart { trigger: TurnTrigger::Message { .. }, .. })
    });
    &own[start.unwrap_or(own.len())..]
}

/// What an activation that began at `boundary` (a log length) has to show (contract P9): the end
/// of the last message-triggered turn since, a retry of it included, and its output's text. No
/// reason if no such turn ended, and never text from before that turn.
pub fn result_since(events: &[Arc<Event>], boundary: u64) -> (Option<TurnEndReason>, String) {
    let mut reason = None;
    // Whether the turn being read is the message's own or a retry of it.
    let mut ours = false;
    let mut retryable = true;
    for event in last_message_turn(events, boundary) {
        match &event.body {
            EventBody::TurnStart { trigger, .. } => {
                retryable &= !matches!(trigger, TurnTrigger::Injection { .. });
                ours = retryable;
                if ours {
                    reason = None;
                }
            }
            EventBody::TurnEnd { reason: end, .. } if ours => reason = Some(end.clone()),
            _ => {}
        }
    }
    let output = result_message_since(events, boundary);
    (reason, output.map(|message| message.text()).unwrap_or_default())
}

/// The last assistant message since the last message-triggered turn after `boundary` opened that
/// has a text block which is not all whitespace (contract P9).
pub fn result_message_since(events: &[Arc<Event>], boundary: u64) -> Option<Arc<Message>> {
    last_message_turn(events, boundary).iter().rev().find_map(|event| match &event.body {
        EventBody::AssistantMessage { message, .. } if says_something(message) => {
            Some(Arc::clone(message))
        }
        _ => None,
    })
}

fn says_something(message: &Message) -> bool {
    let blank = |c: char| c.is_whitespace() || c == '\u{feff}';
    message.content.iter().filter_map(ContentBlock::as_text).any(|text| !text.chars().all(blank))
}

/// The events that are a session's own: those after the prefix it inherited at its fork.
pub fn own_events<'a>(header: &SessionHeader, events: &'a [Arc<Event>]) -> &'a [Arc<Event>] {
    from_seq(events, header.seed_length.unwrap_or(0))
}

/// The descriptor in a child's own events ([`own_events`]): an ancestor's, inherited through a
/// fork's seed, is not the child's (contract I15).
///
/// # Errors
///
/// [`DescriptorError`]: unsupported, malformed, or more than one.
pub fn fold_descriptor(own: &[Arc<Event>]) -> Result<Option<Descriptor>, DescriptorError> {
    let mut found = None;
    for event in own {
        let EventBody::Descriptor(data) = &event.body else { continue };
        if found.is_some() {
            return Err(DescriptorError::Repeated { seq: event.seq });
        }
        found = Some(Descriptor::read(data)?);
    }
    Ok(found)
}

/// The default seed of a fork: everything through the last `turn/end` (fact-sheet 2.4). Empty if
/// no turn was ever completed; the child is then simply fresh.
pub fn fork_seed(events: &[Arc<Event>]) -> Vec<Arc<Event>> {
    let end = events.iter().rposition(|event| event.is_turn_end());
    events[..end.map_or(0, |end| end + 1)].to_vec()
}

/// The highest `<kind>-<n>` per kind that the log has told its model of, in notices and tool
/// results (contract P13): a new Task's number must be higher.
///
/// A text such as `utf-8` counts as a kind, too, and raises a counter nobody uses. Of `a-b-3` each
/// tail is counted, since the kind could be any of them.
pub fn highest_task_ordinals(events: &[Arc<Event>]) -> BTreeMap<String, u64> {
    let mut highest = BTreeMap::new();
    for message in events.iter().filter_map(|event| event.message()) {
        let ours =
            matches!(message.source, MessageSource::Plugin { .. } | MessageSource::Tool { .. });
        if ours {
            scan_blocks(&message.content, &mut highest);
        }
    }
    highest
}

fn scan_blocks(blocks: &[ContentBlock], highest: &mut BTreeMap<String, u64>) {
    for block in blocks {
        match block {
            ContentBlock::Text { text } => scan_text(text, highest),
            ContentBlock::ToolResult { content, .. } => scan_blocks(content, highest),
            _ => {}
        }
    }
}

/// The longest kind that counts; no real one comes near.
const KIND_LENGTH_MAX: usize = 32;

fn scan_text(text: &str, highest: &mut BTreeMap<String, u64>) {
    let tokens = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '-' && c != '_');
    for token in tokens {
        let Some((kind, ordinal)) = token.trim_matches('-').rsplit_once('-') else { continue };
        let canonical = ordinal.bytes().all(|byte| byte.is_ascii_digit());
        let (true, Ok(ordinal)) = (canonical, ordinal.parse::<u64>()) else { continue };
        // Beyond what JSON numbers hold exactly there is no Task of ours.
        if ordinal == 0 || ordinal >= 1 << 53 {
            continue;
        }
        let starts = std::iter::once(0).chain(kind.match_indices('-').map(|(at, _)| at + 1));
        for kind in starts.map(|start| &kind[start..]) {
            if !is_kind(kind) {
                continue;
            }
            match highest.get_mut(kind) {
                Some(known) => *known = ordinal.max(*known),
                None => {
                    highest.insert(kind.to_owned(), ordinal);
                }
            }
        }
    }
}

fn is_kind(kind: &str) -> bool {
    kind.len() <= KIND_LENGTH_MAX
        && kind.split('-').all(|part| part.starts_with(|c: char| c.is_ascii_alphabetic()))
}

#[cfg(test)]
mod tests {
    use super::super::event::Draft;
    use super::super::kit::{answer, asks, events_of, model, prompt, said, turn, user};
    use super::*;
    use crate::ids::MessageId;

    fn error() -> TurnEndReason {
        TurnEndReason::Error { step: 1, message: "m".into(), code: None, failure: None }
    }

    fn injection() -> TurnTrigger {
        TurnTrigger::Injection { source: MessageSource::User }
    }

    #[test]
    fn a_retry_of_the_message_turn_decides_its_reason() {
        let mut drafts = turn(1, prompt(), "half", error());
        drafts.extend(turn(2, TurnTrigger::Retry, "whole", TurnEndReason::Completed));
        let events = events_of(drafts);
        assert_eq!(result_since(&events, 0), (Some(TurnEndReason::Completed), "whole".to_owned()));
    }

    #[test]
    fn an_injection_turn_and_its_retry_do_not_decide_the_reason() {
        let mut drafts = turn(1, prompt(), "answer", TurnEndReason::Completed);
        drafts.extend(turn(2, injection(), " ", error()));
        drafts.extend(turn(3, TurnTrigger::Retry, "\u{feff}", TurnEndReason::Aborted));
        let events = events_of(drafts);
        assert_eq!(result_since(&events, 0), (Some(TurnEndReason::Completed), "answer".to_owned()));
    }

    #[test]
    fn text_from_before_the_boundary_or_the_turn_is_never_borrowed() {
        let mut drafts = turn(1, prompt(), "old", TurnEndReason::Completed);
        drafts.extend(turn(2, prompt(), " \n", TurnEndReason::Completed));
        let events = events_of(drafts);
        assert_eq!(result_since(&events, 5), (Some(TurnEndReason::Completed), String::new()));
        assert_eq!(result_since(&events, 0).1, "");
        assert_eq!(result_since(&events, 10), (None, String::new()));
        assert_eq!(result_since(&events, u64::MAX), (None, String::new()));
    }

    #[test]
    fn the_last_message_with_text_is_the_output_not_the_last_message() {
        let events = events_of(vec![
            Draft::turn_start(1, prompt()),
            Draft::step_start(1, 1),
            Draft::assistant_message(1, 1, said("found it"), None, vec![]),
            Draft::step_end(1, 1),
            Draft::step_start(1, 2),
            Draft::assistant_message(1, 2, asks(&["c"]), None, vec![]),
            Draft::tool_call(1, 2, "c", "tool", "{}"),
            Draft::tool_result(1, 2, answer("c", "tool text"), None, Some(6)),
            Draft::assistant_message(1, 2, model(vec![]), None, vec![]),
        ]);
        assert_eq!(result_since(&events, 0), (None, "found it".to_owned()));
    }

    #[test]
    fn only_a_childs_own_descriptor_counts() {
        let descriptor =
            |name: &str| Draft::descriptor(&Descriptor::new(name)).expect("a valid descriptor");
        let events = events_of(vec![descriptor("ancestor"), descriptor("own")]);
        let mut header = super::super::kit::header();
        header.seed_length = Some(1);
        let own = fold_descriptor(own_events(&header, &events));
        assert_eq!(own, Ok(Some(Descriptor::new("own"))));
        header.seed_length = Some(2);
        assert_eq!(fold_descriptor(own_events(&header, &events)), Ok(None));
        header.seed_length = None;
        assert_eq!(
            fold_descriptor(own_events(&header, &events)),
            Err(DescriptorError::Repeated { seq: 1 })
        );
    }

    #[test]
    fn a_fork_takes_everything_through_the_last_completed_turn() {
        let mut drafts = turn(1, prompt(), "one", TurnEndReason::Completed);
        drafts.push(Draft::user_message(user("late")));
        drafts.push(Draft::turn_start(2, prompt()));
        let events = events_of(drafts);
        assert_eq!(fork_seed(&events).len(), 5);
        assert!(fork_seed(&events[..4]).is_empty());
    }

    #[test]
    fn task_numbers_are_read_from_notices_and_tool_results_only() {
        let notice = Message::user(
            MessageId::new("n"),
            "background task pty-send-12 (pty-send: x) finished. Read bash-2, not bash-007x.",
            MessageSource::Plugin { plugin: "tool-tasks".into() },
        );
        let events = events_of(vec![
            Draft::user_message(notice),
            Draft::user_message(user("subagent-900")),
            Draft::turn_start(1, prompt()),
            Draft::step_start(1, 1),
            Draft::tool_call(1, 1, "c", "subagent", "{}"),
            Draft::tool_result(
                1,
                1,
                answer("c", "started x as task subagent-3, agent 453a91ea-9776-4721-bb55-1 -4"),
                None,
                Some(4),
            ),
        ]);
        let highest = highest_task_ordinals(&events);
        assert_eq!(highest.get("pty-send"), Some(&12));
        assert_eq!(highest.get("bash"), Some(&2));
        assert_eq!(highest.get("subagent"), Some(&3));
    }

    #[test]
    fn absurd_task_numbers_are_not_taken() {
        let mut highest = BTreeMap::new();
        scan_text(
            "a-18446744073709551615 a-99999999999999999999999 a-9007199254740992 a-0",
            &mut highest,
        );
        assert!(highest.is_empty());
    }
}
