//! Properties of the session layer, over generated logs.
//!
//! Goal: what holds for the hand-written cases holds for every log. Method: a list of small
//! operations is turned into a well-formed log (an operation that does not fit where it stands is
//! left out), or taken as it is where ill-formed batches are wanted.

use std::sync::Arc;

use continuable::ids::{MessageId, SessionId};
use continuable::message::{ContentBlock, Message, MessageSource, Role};
use continuable::session::raw::readable;
use continuable::session::{
    Descriptor, Draft, Event, EventBody, HeaderReason, RawJson, SessionHeader, SessionLog,
    ToolErrorInfo, ToolFilter, TurnEndReason, TurnTrigger, audit, closers, tool_result_message,
};
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use proptest::test_runner::FileFailurePersistence;
use serde_json::{Map, Value};

fn config() -> ProptestConfig {
    ProptestConfig {
        failure_persistence: Some(Box::new(FileFailurePersistence::Direct(concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/proptest-regressions/session.txt"
        )))),
        max_shrink_iters: 4_000,
        ..ProptestConfig::default()
    }
}

/// One step of a generated log; `turn` and `step` offsets are 0 where the log is well formed.
#[derive(Debug, Clone)]
enum Op {
    Note(String, MessageSource),
    Turn(TurnTrigger),
    Step,
    Chunk(Value),
    Say(Vec<ContentBlock>),
    Call(u8),
    Answer(u8, String, bool),
    Steer(String),
    Header(Value),
    Other(Value),
    EndStep,
    EndTurn(TurnEndReason),
    Fold,
}

fn text() -> impl Strategy<Value = String> {
    prop_oneof![Just(String::new()), "[ -~\\n\\u{0}\\u{1f}\\u{e9}\\u{1f41a}\\u{feff}]{0,12}"]
}

fn json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        (-1.0e9..1.0e9_f64)
            .prop_filter("negative zero is refused", |x| *x != 0.0)
            .prop_map(Value::from),
        text().prop_map(Value::from),
    ];
    leaf.prop_recursive(3, 12, 4, |inner| {
        prop_oneof![
            vec(inner.clone(), 0..4).prop_map(Value::from),
            vec((text(), inner), 0..4)
                .prop_map(|fields| Value::from(fields.into_iter().collect::<Map<_, _>>())),
        ]
    })
}

fn source() -> impl Strategy<Value = MessageSource> {
    prop_oneof![
        Just(MessageSource::User),
        text().prop_map(|plugin| MessageSource::Plugin { plugin }),
        text().prop_map(|id| MessageSource::Coordinator { sender_session_id: SessionId::new(id) }),
        json()
            .prop_map(|job| MessageSource::Other(serde_json::json!({"kind": "cron", "job": job}))),
    ]
}

fn block() -> impl Strategy<Value = ContentBlock> {
    prop_oneof![
        text().prop_map(ContentBlock::text),
        text().prop_map(|text| ContentBlock::Reasoning { text }),
        (0..4_u8, text()).prop_map(|(call, arguments)| ContentBlock::ToolCall {
            id: call_id(call),
            name: "tool".to_owned(),
            arguments
        }),
        json()
            .prop_map(|url| ContentBlock::Other(serde_json::json!({"type": "image", "url": url}))),
    ]
}

fn reason() -> impl Strategy<Value = TurnEndReason> {
    prop_oneof![
        Just(TurnEndReason::Completed),
        Just(TurnEndReason::Aborted),
        Just(TurnEndReason::MaxTokens),
        (text(), option::of(text())).prop_map(|(message, code)| TurnEndReason::Error {
            step: 1,
            message,
            code,
            failure: None
        }),
    ]
}

fn op() -> impl Strategy<Value = Op> {
    let trigger = prop_oneof![
        source().prop_map(|source| TurnTrigger::Message { source }),
        Just(TurnTrigger::Retry),
        source().prop_map(|source| TurnTrigger::Injection { source }),
    ];
    prop_oneof![
        2 => (text(), source()).prop_map(|(text, source)| Op::Note(text, source)),
        3 => trigger.prop_map(Op::Turn),
        4 => Just(Op::Step),
        1 => json().prop_map(Op::Chunk),
        3 => vec(block(), 0..4).prop_map(Op::Say),
        3 => (0..4_u8).prop_map(Op::Call),
        2 => (0..4_u8, text(), any::<bool>()).prop_map(|(id, text, lost)| Op::Answer(id, text, lost)),
        1 => text().prop_map(Op::Steer),
        1 => json().prop_map(Op::Header),
        1 => json().prop_map(Op::Other),
        3 => Just(Op::EndStep),
        2 => reason().prop_map(Op::EndTurn),
        1 => Just(Op::Fold),
    ]
}

fn call_id(number: u8) -> String {
    format!("call-{number}")
}

fn message(role: Role, content: Vec<ContentBlock>, source: MessageSource, seq: u64) -> Message {
    Message::new(MessageId::new(format!("m{seq}")), role, content, source)
}

fn raw(value: &Value) -> RawJson {
    RawJson::of(value).expect("a value serialises")
}

/// The draft of `op` where `log` stands. It need not fit there.
fn draft(op: &Op, log: &SessionLog) -> Draft {
    let seq = log.len();
    let turn = log.open_turn().unwrap_or(0);
    let step = log.open_step().unwrap_or(0);
    match op {
        Op::Note(text, source) => Draft::user_message(Message::user(
            MessageId::new(format!("m{seq}")),
            text.clone(),
            source.clone(),
        )),
        Op::Turn(trigger) => Draft::turn_start(log.last_turn() + 1, trigger.clone()),
        Op::Step => Draft::step_start(turn, log.last_step() + 1),
        Op::Chunk(value) => Draft::assistant_chunk(turn, step, raw(value)),
        Op::Say(content) => {
            let source = MessageSource::Model {
                provider: "p".to_owned(),
                model: "m".to_owned(),
                replay_state: None,
            };
            let message = message(Role::Assistant, content.clone(), source, seq);
            Draft::assistant_message(turn, step, message, None, vec![])
        }
        Op::Call(id) => Draft::tool_call(turn, step, call_id(*id), "tool", "{}"),
        Op::Answer(id, text, lost) => {
            let id = call_id(*id);
            let content = vec![ContentBlock::text(text.clone())];
            let message =
                tool_result_message(MessageId::new(format!("m{seq}")), &id, content, *lost);
            let error = lost.then(|| ToolErrorInfo { name: "E".to_owned(), code: "X".to_owned() });
            Draft::tool_result(turn, step, message, error, None)
        }
        Op::Steer(text) => {
            let id = MessageId::new(format!("m{seq}"));
            Draft::steering_message(turn, Message::user(id, text.clone(), MessageSource::User))
        }
        Op::Header(value) => Draft::request_header(raw(value), HeaderReason::Initial),
        Op::Other(value) => Draft::other("plugin/event", raw(value)),
        Op::EndStep => Draft::step_end(turn, step),
        Op::EndTurn(reason) => Draft::turn_end(turn, reason.clone()),
        Op::Fold => {
            let source = MessageSource::Plugin { plugin: "compact".to_owned() };
            let text = vec![ContentBlock::text("summary")];
            let draft = Draft::user_message(message(Role::User, text, source, seq));
            match log.surface() {
                [first, .., last] => {
                    draft.replacing(*first, *last).from_sources(log.surface().to_vec())
                }
                _ => draft,
            }
        }
    }
}

fn fresh() -> SessionLog {
    SessionLog::new(SessionHeader::new(SessionId::new("s"), 0), None, 0).expect("no seed")
}

/// The log of those operations that fit where they stand.
fn well_formed(ops: &[Op]) -> SessionLog {
    let mut log = fresh();
    for (now, op) in (100..).zip(ops) {
        let draft = draft(op, &log);
        drop(log.append(vec![draft], now));
    }
    log
}

/// Everything that an append may change.
#[derive(Debug, PartialEq)]
struct Standing {
    events: Vec<Arc<Event>>,
    /// Open turn and step, last turn and step.
    places: [u64; 4],
    surface: Vec<u64>,
}

fn state(log: &SessionLog) -> Standing {
    let (turn, step) = (log.open_turn().unwrap_or(0), log.open_step().unwrap_or(0));
    Standing {
        events: log.events().to_vec(),
        places: [turn, step, log.last_turn(), log.last_step()],
        surface: log.surface().to_vec(),
    }
}

fn as_draft(event: &Event) -> Draft {
    Draft { body: event.body.clone(), surface: event.surface, sources: event.sources.clone() }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn a_line_reads_back_as_its_event_and_an_event_writes_its_line(ops in vec(op(), 0..40)) {
        for event in well_formed(&ops).events() {
            let line = event.fresh_line();
            prop_assert!(!line.contains('\n'));
            let read = Event::parse_line(&line, &SessionId::new("s")).expect("our own line");
            prop_assert_eq!(&read, &**event);
            prop_assert_eq!(read.to_line(), line.clone());
            prop_assert_eq!(read.fresh_line(), line);
        }
    }

    #[test]
    fn a_batch_is_appended_whole_or_not_at_all(
        start in vec(op(), 0..20),
        batch in vec(op(), 0..6),
    ) {
        let mut log = well_formed(&start);
        let before = state(&log);
        // Drafted where each would stand if the ones before it were appended; some are not.
        let mut guess = log.clone();
        let mut drafts = Vec::new();
        let mut one_by_one = Ok(());
        for op in &batch {
            let draft = draft(op, &guess);
            drafts.push(draft.clone());
            one_by_one = one_by_one.and(guess.append(vec![draft], 9).map(drop));
        }
        let valid = log.validate(&drafts);
        prop_assert_eq!(&state(&log), &before, "checking changes nothing");
        prop_assert_eq!(valid.is_ok(), one_by_one.is_ok());
        let appended = log.append(drafts, 9);
        prop_assert_eq!(appended.clone().map(drop), valid);
        if appended.is_err() {
            prop_assert_eq!(state(&log), before);
        } else {
            prop_assert_eq!(state(&log), state(&guess));
        }
    }

    #[test]
    fn a_log_built_by_appends_is_the_log_read_from_any_prefix(ops in vec(op(), 0..40)) {
        let whole = well_formed(&ops);
        let mut grown = fresh();
        for event in whole.events() {
            grown.append(vec![as_draft(event)], event.time).expect("it was appended before");
            let prefix = whole.events()[..grown.events().len()].to_vec();
            let read = SessionLog::new(Arc::clone(whole.header()), Some(prefix), 0)
                .expect("a prefix is contiguous");
            prop_assert_eq!(read.open_turn(), grown.open_turn());
            prop_assert_eq!(read.open_step(), grown.open_step());
            prop_assert_eq!(read.last_turn(), grown.last_turn());
            prop_assert_eq!(read.surface(), grown.surface());
            prop_assert_eq!(read.messages(), grown.messages());
        }
    }

    #[test]
    fn closers_make_every_prefix_well_formed_and_are_idempotent(ops in vec(op(), 0..40)) {
        let whole = well_formed(&ops);
        let mut log = fresh();
        for event in whole.events() {
            log.append(vec![as_draft(event)], event.time).expect("it was appended before");
            let closers_now = closers(log.events());
            prop_assert_eq!(closers_now.is_empty(), log.open_turn().is_none());
            let mut repaired = log.clone();
            for (done, closer) in closers_now.iter().enumerate() {
                // A repair that was cut short goes on with the very same events.
                prop_assert_eq!(&closers(repaired.events()), &closers_now[done..]);
                repaired.append(vec![as_draft(closer)], closer.time).expect("well formed");
                prop_assert_eq!(repaired.events().last(), Some(closer));
            }
            prop_assert_eq!(repaired.open_turn(), None);
            prop_assert!(closers(repaired.events()).is_empty());
            if !closers_now.is_empty() {
                // The repaired step pairs its calls; earlier steps of the generated log need not.
                let found = audit(repaired.events());
                let repaired_step = closers_now[0].seq;
                prop_assert!(found.is_ok() || found.is_err_and(|e| e.position < repaired_step));
            }
        }
    }

    #[test]
    fn a_descriptor_reads_back_whole(
        provider in "[a-z]{1,8}",
        texts in (option::of(text()), option::of(text()), option::of(text())),
        filter in option::of((option::of(vec(text(), 0..3)), vec(text(), 0..3))),
    ) {
        let (agent_provider, agent_model, persona) = texts;
        let tool_filter = filter.map(|(allow, deny)| ToolFilter { allow, deny: Some(deny) });
        let descriptor =
            Descriptor { provider, agent_provider, agent_model, persona, tool_filter };
        let data = descriptor.snapshot().expect("a valid descriptor");
        prop_assert_eq!(Descriptor::read(&data), Ok(descriptor));
    }

    #[test]
    fn an_accepted_descriptor_is_stored_as_it_was_read(value in json(), name in "[a-z]{0,3}") {
        let near = serde_json::json!({"version": 1, "provider": name, "persona": value});
        for value in [near, value] {
            if let Ok(read) = Descriptor::read(&raw(&value)) {
                let stored = read.snapshot().expect("it was read").value().expect("JSON");
                prop_assert_eq!(stored, value);
            }
        }
    }

    #[test]
    fn any_text_with_surrogate_escapes_is_readable_at_the_same_offsets(
        parts in vec(prop_oneof![
            Just(r"\ud834"), Just(r"\udd1e"), Just(r"\\"), Just("x"), Just(r"\n"), Just("\u{e9}"),
            Just(r"\uD800"), Just(r"\u0041"),
        ], 0..12),
    ) {
        let text = format!("\"{}\"", parts.concat());
        let shown = readable(&text);
        prop_assert_eq!(shown.len(), text.len());
        let read: Result<String, _> = serde_json::from_str(&shown);
        prop_assert!(read.is_ok(), "{}", shown);
        let kept = RawJson::checked(text.clone()).expect("JSON");
        prop_assert_eq!(kept.as_str(), text.as_str());
        let again = readable(&shown).into_owned();
        prop_assert_eq!(again, shown.into_owned());
    }

    #[test]
    fn no_line_makes_the_reader_panic(line in "[{}\\[\\]\":,a-z0-9\\\\ .-]{0,60}", cut in 0..200_usize) {
        drop(Event::parse_line(&line, &SessionId::new("s")));
        let whole = Event::new(1, 2, Draft::new(EventBody::StepStart { turn: 1, step: 1 }));
        let whole = whole.to_line();
        let torn = &whole[..cut.min(whole.len())];
        prop_assert_eq!(
            Event::parse_line(torn, &SessionId::new("s")).is_ok(),
            torn.len() == whole.len()
        );
    }
}
