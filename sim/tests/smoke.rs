//! The binary as a person uses it.
//!
//! Goal: what the README promises holds for the built program. Method: run it, look at its output and
//! its exit code. Two processes share no memory, so equal bytes here mean that nothing leaks into a
//! run: no hash order, no address, no clock, no random number of the process.

use std::process::{Command, Output};

fn sim(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_sim")).args(arguments).output().expect("the binary runs")
}

fn text(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).expect("the output is text")
}

#[test]
fn a_replay_prints_the_same_bytes_in_every_process() {
    for seed in ["0", "7", "1076"] {
        let first = sim(&["replay", "--seed", seed, "--points"]);
        let second = sim(&["replay", "--seed", seed, "--points"]);
        assert!(first.status.success(), "{}", text(&first));
        assert_eq!(text(&first), text(&second));
        let jsonl = sim(&["replay", "--seed", seed, "--jsonl"]);
        let trace = continuable_sim::trace::Trace::parse(&text(&jsonl)).expect("it parses back");
        let columns = text(&sim(&["replay", "--seed", seed]));
        assert!(columns.ends_with(&format!("digest {:016x}\n", trace.digest())));
    }
}

#[test]
fn a_sweep_passes_catches_its_canaries_and_says_what_it_tested() {
    let output = sim(&["run", "--seeds", "0..200", "--jobs", "2"]);
    let text = text(&output);
    assert!(output.status.success(), "{text}");
    for line in
        ["plans             220", "canary caught: Flush", "canary caught: Dispose", "PASSED"]
    {
        assert!(text.contains(line), "{line:?} is missing in:\n{text}");
    }
    let json = sim(&["run", "--seeds", "0..50", "--json"]);
    let json: serde_json::Value = serde_json::from_slice(&json.stdout).expect("it is JSON");
    assert_eq!(json["tally"]["plans"], 55);
    assert_eq!(json["canaryCaught"], true);
}

#[test]
fn bad_arguments_are_refused_with_their_own_exit_code() {
    for arguments in [&["run", "--seeds", "9..3"][..], &["replay"], &["fly"], &[]] {
        let output = sim(arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        assert!(output.stdout.is_empty() && !output.stderr.is_empty());
    }
}

#[test]
fn shards_of_two_processes_merge_to_the_whole() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let mut files = Vec::new();
    for shard in ["0/2", "1/2"] {
        let part = sim(&["run", "steering", "--seeds", "0..80", "--shard", shard, "--json-lines"]);
        assert!(part.status.success());
        let file = directory.path().join(format!("part-{}.jsonl", files.len()));
        std::fs::write(&file, &part.stdout).expect("it writes");
        files.push(file.display().to_string());
    }
    let merged = sim(&["merge", &files[0], &files[1]]);
    assert!(merged.status.success());
    let text = text(&merged);
    for line in ["steering          40 plans of seeds 40..80", "PASSED (88 plans)"] {
        assert!(text.contains(line), "{line:?} is missing in:\n{text}");
    }
    std::fs::write(&files[0], "{\"engine\":1}").expect("it writes");
    let broken = sim(&["merge", &files[0]]);
    assert_eq!(broken.status.code(), Some(2));
    let said = String::from_utf8_lossy(&broken.stderr).into_owned();
    assert!(said.contains("part-0.jsonl:1: it is no line of"), "{said}");
}

#[test]
fn a_sweep_of_one_scenario_counts_its_single_faults() {
    let swept = sim(&["sweep", "a kill at once"]);
    let text = text(&swept);
    assert!(swept.status.success(), "{text}");
    assert!(text.contains("scenarios         1\n") && text.contains("PASSED (0 of "), "{text}");
    assert_eq!(sim(&["sweep", "nothing of the kind"]).status.code(), Some(2));
}
