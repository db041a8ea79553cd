//! §10.9: descriptor snapshots and folds.

use continuable::error::ErrorCode;
use continuable::ids::SessionId;
use continuable::message::{ContentBlock, Message, MessageSource};
use continuable::session::{
    AppendError, Descriptor, DescriptorError, Draft, EventBody, RawJson, SessionHeader, SessionLog,
    ToolFilter, fold_descriptor, own_events,
};
use serde_json::json;

/// The scenario numbers this module covers, and the test that covers each.
pub const COVERED: &[(u16, &str)] = &[
    (126, "a_descriptor_is_stored_without_absent_fields_and_read_back_whole"),
    (127, "each_malformed_descriptor_is_refused_with_its_own_detail"),
];

/// Folds the log of a child that holds `data` as its descriptor.
fn fold(data: &str) -> Result<Option<Descriptor>, DescriptorError> {
    let header = SessionHeader::new(SessionId::new("child"), 0);
    let mut log = SessionLog::new(header, None, 0).expect("no seed");
    let data = RawJson::checked(data).expect("JSON");
    log.append(vec![Draft::new(EventBody::Descriptor(data))], 0).expect("descriptors are free");
    fold_descriptor(own_events(log.header(), log.events()))
}

fn round_trips(descriptor: &Descriptor) {
    let data = descriptor.snapshot().expect("a valid descriptor");
    assert_eq!(fold(data.as_str()), Ok(Some(descriptor.clone())));
}

/// Scenario 126. A symbol cannot be written in Rust; the value that JSON text can hold and a
/// reader can lose is negative zero.
#[test]
fn a_descriptor_is_stored_without_absent_fields_and_read_back_whole() {
    let bare = Descriptor::new("spawn");
    let stored = bare.snapshot().expect("a valid descriptor");
    assert_eq!(stored.as_str(), r#"{"version":1,"provider":"spawn"}"#);

    let names = |names: &[&str]| Some(names.iter().map(ToString::to_string).collect());
    let complete = Descriptor {
        provider: "fork".to_owned(),
        agent_provider: Some("stub".to_owned()),
        agent_model: Some("stub-1".to_owned()),
        persona: Some("You \u{1f41a} \"sort\" shells.\n".to_owned()),
        tool_filter: Some(ToolFilter { allow: names(&["read", "write"]), deny: names(&["write"]) }),
    };
    let allow_only = ToolFilter { allow: names(&["read"]), deny: None };
    let deny_only = ToolFilter { allow: None, deny: names(&[]) };
    round_trips(&bare);
    round_trips(&complete);
    round_trips(&Descriptor { tool_filter: Some(allow_only), ..bare.clone() });
    round_trips(&Descriptor { tool_filter: Some(deny_only), ..bare });

    let next = fold(r#"{"version":2,"provider":"spawn","mode":"quick"}"#).expect_err("unsupported");
    assert_eq!(next, DescriptorError::Unsupported { version: "2".to_owned() });
    assert_eq!(next.code(), ErrorCode::NotResumable);

    let mut message = Message::user("m".into(), "x", MessageSource::User);
    message.content.push(ContentBlock::Other(json!({"type": "reading", "celsius": -0.0})));
    let header = SessionHeader::new(SessionId::new("child"), 0);
    let mut log = SessionLog::new(header, None, 0).expect("no seed");
    let refused = log.append(vec![Draft::user_message(message)], 0);
    assert!(matches!(refused, Err(AppendError::Lossy { .. })));
    assert!(log.is_empty());
}

/// Scenario 127.
#[test]
fn each_malformed_descriptor_is_refused_with_its_own_detail() {
    let malformed = [
        (r#""spawn""#, "not an object"),
        ("null", "not an object"),
        ("[]", "not an object"),
        (r#"{"provider":"spawn"}"#, "version is missing"),
        (r#"{"version":"1","provider":"spawn"}"#, "version is not a number"),
        (r#"{"version":1,"provider":"spawn","depth":3}"#, "unknown field depth"),
        (r#"{"version":1}"#, "provider is missing"),
        (r#"{"version":1,"provider":7}"#, "provider is not a string"),
        (r#"{"version":1,"provider":"spawn","agentProvider":null}"#, "agentProvider is not"),
        (r#"{"version":1,"provider":"spawn","agentModel":1}"#, "agentModel is not"),
        (r#"{"version":1,"provider":"spawn","persona":[]}"#, "persona is not"),
        (r#"{"version":1,"provider":"spawn","toolFilter":"read"}"#, "toolFilter is not an object"),
        (
            r#"{"version":1,"provider":"spawn","toolFilter":{"allow":[],"only":[]}}"#,
            "unknown field toolFilter.only",
        ),
        (r#"{"version":1,"provider":"spawn","toolFilter":{}}"#, "toolFilter is empty"),
        (
            r#"{"version":1,"provider":"spawn","toolFilter":{"allow":"read"}}"#,
            "toolFilter.allow is not an array",
        ),
        (
            r#"{"version":1,"provider":"spawn","toolFilter":{"deny":["read",1]}}"#,
            "toolFilter.deny holds",
        ),
    ];
    assert_eq!(malformed.len(), 16);
    for (data, expected) in malformed {
        let error = fold(data).expect_err(data);
        assert_eq!(error.code(), ErrorCode::NotResumable);
        let DescriptorError::Malformed { detail } = error else { unreachable!("{data}: {error}") };
        assert!(detail.contains(expected), "{data}: {detail}");
    }
}
