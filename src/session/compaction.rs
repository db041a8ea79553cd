//! The events of a compaction (fact-sheet 2.6). Running one is out of scope (contract §1); logs
//! that hold one are followed, and their lock is known.

use std::sync::Arc;

use serde::Serialize;

use super::event::{Draft, Event};
use super::raw::RawJson;

const START: &str = "compact/start";
const END: &str = "compact/end";

/// `compact/start`: takes the log's compaction lock, inside `turn` or between turns.
pub fn start(turn: Option<u64>) -> Draft {
    #[derive(Serialize)]
    struct Data {
        turn: Option<u64>,
    }
    draft(START, &Data { turn })
}

/// `compact/end`: releases the lock; `error` says why nothing was replaced.
pub fn end(turn: Option<u64>, error: Option<&str>) -> Draft {
    #[derive(Serialize)]
    struct Data<'a> {
        turn: Option<u64>,
        #[serde(skip_serializing_if = "Option::is_none")]
        error: Option<&'a str>,
    }
    draft(END, &Data { turn, error })
}

fn draft(kind: &str, data: &impl Serialize) -> Draft {
    Draft::other(kind, RawJson::of(data).expect("numbers and text serialise"))
}

/// Where the compaction lock was taken: the last `compact/start` without a `compact/end` after it,
/// unless a later `session/end-seed` made it stale.
pub fn open(events: &[Arc<Event>]) -> Option<u64> {
    let last = events
        .iter()
        .rev()
        .find(|event| matches!(event.kind(), START | END | "session/end-seed"))?;
    (last.kind() == START).then_some(last.seq)
}

#[cfg(test)]
mod tests {
    use super::super::event::EventBody;
    use super::super::kit::{fresh, prompt, turn, user};
    use super::super::log::SessionLog;
    use super::*;
    use crate::session::TurnEndReason;

    #[test]
    fn a_lock_is_released_by_its_end_and_stale_after_a_new_lifecycle() {
        let mut log = fresh();
        assert_eq!(open(log.events()), None);
        log.append(vec![start(None)], 0).expect("unconstrained");
        assert_eq!(open(log.events()), Some(0));
        let seed = log.events().to_vec();
        let resumed = SessionLog::new(Arc::clone(log.header()), Some(seed), 1).expect("contiguous");
        assert_eq!(open(resumed.events()), None);
        log.append(vec![end(None, Some("no model"))], 0).expect("unconstrained");
        assert_eq!(open(log.events()), None);
        assert_eq!(
            log.events()[1].fresh_line(),
            r#"{"type":"compact/end","seq":1,"time":0,"data":{"turn":null,"error":"no model"}}"#
        );
    }

    #[test]
    fn a_compaction_replaces_the_surface_and_keeps_every_event() {
        let mut log = fresh();
        log.append(vec![Draft::user_message(user("one"))], 0).expect("between turns");
        log.append(turn(1, prompt(), "two", TurnEndReason::Completed), 0).expect("a turn");
        log.append(vec![Draft::user_message(user("three"))], 0).expect("between turns");
        assert_eq!(log.surface(), [0, 3, 6]);
        let summary = Draft::other("compact/summary", RawJson::checked("{}").expect("JSON"));
        let replacement =
            Draft::user_message(user("summary")).replacing(0, 3).from_sources(vec![7, 8, 0, 3]);
        log.append(vec![start(None), summary, replacement, end(None, None)], 1)
            .expect("a compaction");
        assert_eq!(log.surface(), [9, 6]);
        let texts: Vec<_> = log.messages().iter().map(|message| message.text()).collect();
        assert_eq!(texts, ["summary", "three"]);
        assert!(matches!(log.events()[0].body, EventBody::UserMessage(_)));
        let seed = log.events().to_vec();
        let resumed = SessionLog::new(Arc::clone(log.header()), Some(seed), 1).expect("contiguous");
        assert_eq!(resumed.surface(), log.surface());
    }
}
