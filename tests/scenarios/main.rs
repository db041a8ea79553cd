//! The fact-sheet's numbered scenarios (§10), each as a test named as a claim.
//!
//! Every module lists the numbers it covers; [`OUT`] says why a number has no test. `tests/tidy.rs`
//! checks that the two lists together are the whole section and that each named test exists.

mod control;
mod control_send;
mod send_message;
mod in_process;
mod in_process_steer;
mod structured;
mod spawn;
mod fork;
mod seam;
mod descriptor;
mod delegation;
mod task_service;
mod task_tools;
mod task_agents;
mod agent_loop;
mod agent_cancel;
mod agent_contract;
mod lifecycle;
mod persistence;
mod recorded;
mod kit;
mod world;
mod fake_provider;
mod fake_child;
mod task_kit;
#[path = "../support/store.rs"]
#[allow(dead_code, reason = "each test binary uses a part of it")]
mod support;

type Covered = &'static [(u16, &'static str)];

/// Module, and the numbers it covers.
const TABLE: &[(&str, Covered)] = &[
    ("control", control::COVERED),
    ("control_send", control_send::COVERED),
    ("send_message", send_message::COVERED),
    ("in_process", in_process::COVERED),
    ("in_process_steer", in_process_steer::COVERED),
    ("structured", structured::COVERED),
    ("spawn", spawn::COVERED),
    ("fork", fork::COVERED),
    ("seam", seam::COVERED),
    ("descriptor", descriptor::COVERED),
    ("delegation", delegation::COVERED),
    ("task_service", task_service::COVERED),
    ("task_tools", task_tools::COVERED),
    ("agent_loop", agent_loop::COVERED),
    ("agent_cancel", agent_cancel::COVERED),
    ("lifecycle", lifecycle::COVERED),
    ("persistence", persistence::COVERED),
    ("recorded", recorded::COVERED),
];

/// First and last number of a range that is out of scope, and the reason.
const OUT: &[(u16, u16, &str)] = &[
    (64, 67, "sandbox and approval policy are out of scope (contract §1): opaque events only"),
    (83, 85, "Code Mode is out of scope (contract §1)"),
    (129, 129, "helpers of out-of-process providers come with the ACP provider (issue 2, item 10)"),
    (297, 297, "the checkpoint policy is out of scope (contract §1)"),
    (210, 224, "the ACP provider comes later (issue 2, item 10)"),
];

#[test]
fn no_number_is_listed_twice() {
    let mut seen = std::collections::BTreeMap::new();
    for (module, covered) in TABLE {
        for (number, test) in *covered {
            assert!((1..=301).contains(number), "{module}::{test} covers no scenario {number}");
            if let Some(other) = seen.insert(*number, format!("{module}::{test}")) {
                assert_eq!(other, format!("{module}::{test}"), "scenario {number}");
            }
            assert!(
                !OUT.iter().any(|(first, last, _)| (first..=last).contains(&number)),
                "scenario {number} is out of scope, yet {module}::{test} covers it"
            );
        }
    }
}
