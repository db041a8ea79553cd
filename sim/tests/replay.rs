//! A failure becomes a file, the file replays to the same failure, and shrinks to what matters.
//!
//! Method: the canaries are failures that every tree has.

use std::path::Path;
use std::process::Command;

use continuable_sim::canary::Lie;
use continuable_sim::explore::RunOptions;
use continuable_sim::plan::{PLAN_VERSION, Plan};
use continuable_sim::replay::{BUNDLE_VERSION, Bundle, BundleError, Verdict};
use continuable_sim::run::run;
use continuable_sim::shrink::shrink;

/// The first failure of a lying deployment, as a bundle.
fn failure(lie: Lie) -> (Bundle, u64) {
    (0..50)
        .find_map(|seed| {
            let plan = Plan::of_seed(seed);
            let report = run(&plan, Some(lie), RunOptions::default());
            let invariant = continuable_sim::invariants::named(lie.caught_by())?;
            let verdict = Verdict::on(invariant, &report)?;
            Some((Bundle::with(&plan, Some(lie), &report, &verdict), report.trace.digest()))
        })
        .expect("a canary is caught")
}

fn error_of(directory: &Path, text: &str) -> BundleError {
    let path = directory.join("bundle.json");
    std::fs::write(&path, text).expect("it writes");
    Bundle::load(&path).expect_err("it is no bundle")
}

#[test]
fn a_bundle_replays_to_the_same_trace_after_a_round_trip_through_a_file() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    for lie in Lie::ALL {
        let (bundle, digest) = failure(*lie);
        let path = directory.path().join("deep/down/bundle.json");
        bundle.save(&path).expect("it writes");
        let loaded = Bundle::load(&path).expect("it loads");
        assert_eq!(loaded, bundle);
        let report = loaded.run();
        assert_eq!(report.trace.digest(), digest, "the same bytes");
        assert_eq!(
            loaded.shows(&report).expect("the same failure").violation.text,
            bundle.violation
        );
    }
}

#[test]
fn a_canary_shrinks_to_a_handful_of_operations_and_still_breaks_the_same() {
    for lie in Lie::ALL {
        let (bundle, _) = failure(*lie);
        let mut told = 0;
        let small = shrink(&bundle, 4_000, &mut |_| told += 1).expect("it shows its failure");
        assert!(small.progress.operations <= 6, "{lie:?}: {:?}", small.progress);
        assert!(small.progress.operations <= bundle.plan.size());
        assert_eq!(small.bundle.invariant, bundle.invariant);
        assert_eq!(small.bundle.class, bundle.class);
        assert!(small.bundle.shows(&small.bundle.run()).is_some());
        assert!(told > 0, "progress is told");
    }
}

#[test]
fn a_file_that_is_no_bundle_is_refused_with_its_name_and_what_is_wrong() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let missing = directory.path().join("missing.json");
    assert!(matches!(Bundle::load(&missing), Err(BundleError::Read { .. })));
    for garbage in ["", "{", "[]", "{\"version\":1}", "\u{0}\u{0}"] {
        let error = error_of(directory.path(), garbage);
        assert!(matches!(error, BundleError::Malformed { .. }), "{garbage:?}: {error}");
        assert!(error.to_string().contains("bundle.json"), "{error}");
    }
    let newer = format!("{{\"version\":{}}}", BUNDLE_VERSION + 1);
    let error = error_of(directory.path(), &newer);
    assert!(matches!(error, BundleError::Version { what: "bundle", .. }), "{error}");
    let plan = format!("{{\"version\":1,\"plan\":{{\"version\":{}}}}}", PLAN_VERSION + 1);
    let error = error_of(directory.path(), &plan);
    assert!(matches!(error, BundleError::Version { what: "plan", .. }), "{error}");
}

#[test]
fn the_command_line_shrinks_and_replays_a_bundle_and_compares_processes() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let path = directory.path().join("failure.json");
    failure(Lie::Dispose).0.save(&path).expect("it writes");
    let sim = |arguments: &[&str]| {
        let output = Command::new(env!("CARGO_BIN_EXE_sim")).args(arguments).output();
        let output = output.expect("the simulator runs");
        (output.status.code(), String::from_utf8(output.stdout).expect("text"))
    };
    let name = path.to_str().expect("a plain path");
    let (code, told) = sim(&["shrink", name, "--max-runs", "600"]);
    assert_eq!(code, Some(0), "{told}");
    let last = told.lines().last().expect("it says something");
    let small = last.strip_prefix("replay it: cargo sim replay ").expect("a command to paste");
    let (code, replayed) = sim(&["replay", small]);
    assert_eq!(code, Some(129), "{replayed}");
    assert!(replayed.contains("broke I2 at entry"), "{replayed}");
    let (code, told) = sim(&["determinism", "--seeds", "0..20"]);
    assert_eq!(code, Some(0), "{told}");
    for engine in ["explore", "world"] {
        let identical = format!("identical on {engine}: 20 plans, each alone");
        assert!(told.contains(&identical), "{identical:?} is missing in:\n{told}");
    }
    let (code, _) = sim(&["replay", "nowhere.json"]);
    assert_eq!(code, Some(2));
}
