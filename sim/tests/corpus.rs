//! The committed corpus: every file of it is loaded, counted, run and judged.
//!
//! Goal: what the fuzzing fleet starts from is worth starting from, and old failures stay visible.
//! Method: the counts are written down here, so that a directory that lost its files cannot pass; the
//! reach has a floor a little below today's, since another generator draws other plans of the same
//! bytes. `cargo run --release -p continuable-sim --example corpus` makes it anew.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use continuable::points::Point;
use continuable_sim::fuzz::{Input, reached};
use continuable_sim::invariants;
use continuable_sim::plan::Suite;
use continuable_sim::replay::Bundle;
use continuable_sim::run::Engine;

/// How many inputs are committed.
const INPUTS: usize = 54;
/// The longest of them; libFuzzer takes the longest seed as the most that it makes itself.
const INPUT_BYTES_MAX: usize = 4_096;
/// How many points and dangers they must reach together; today it is all but a few.
const REACHED_MIN: usize = 130;
/// How many bundles are committed.
const BUNDLES: usize = 4;

/// The files of one directory of the corpus, in the order of their names.
fn files(directory: &str) -> Vec<PathBuf> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(directory);
    let entries = fs::read_dir(&path).expect("the corpus is committed");
    let mut files: Vec<_> = entries.map(|entry| entry.expect("it is readable").path()).collect();
    files.sort();
    files
}

#[test]
fn every_input_holds_and_together_they_reach_most_of_what_there_is() {
    let files = files("choices");
    let mut union = BTreeSet::new();
    let mut batches = BTreeSet::new();
    let mut digests = BTreeSet::new();
    for file in &files {
        let bytes = fs::read(file).expect("it is readable");
        assert!(bytes.len() <= INPUT_BYTES_MAX, "{}: {} bytes", file.display(), bytes.len());
        let input = Input::decode(&bytes);
        assert_eq!(input.encode(), bytes, "{}: it is not what it decodes to", file.display());
        let report = input.judge().unwrap_or_else(|broken| panic!("{}: {broken}", file.display()));
        union.extend(reached(&report));
        batches.insert((input.engine, input.suite));
        digests.insert(report.trace.digest());
    }
    let dangers = invariants::ALL.iter().flat_map(|invariant| invariant.dangers);
    let all = Point::ALL.iter().map(|point| point.name()).chain(dangers.copied());
    let missed: BTreeSet<_> = all.clone().filter(|name| !union.contains(name)).collect();
    println!(
        "corpus: {} inputs reach {} of {} points and dangers; not {missed:?}",
        files.len(),
        union.len(),
        all.count()
    );
    assert_eq!(files.len(), INPUTS);
    assert_eq!(digests.len(), INPUTS, "no two are the same run");
    assert_eq!(batches.len(), Engine::ALL.len() * Suite::ALL.len(), "{batches:?}");
    assert!(union.len() >= REACHED_MIN, "they reach only {}, not {missed:?}", union.len());
}

#[test]
fn every_bundle_still_shows_its_failure() {
    let files = files("bundles");
    for file in &files {
        let bundle = Bundle::load(file).unwrap_or_else(|error| panic!("{error}"));
        let verdict = bundle.shows(&bundle.run());
        let verdict = verdict.unwrap_or_else(|| panic!("{}: it holds now", file.display()));
        assert_eq!(verdict.violation.text, bundle.violation, "{}", file.display());
        // The lie alone breaks it: the code itself does not.
        let honest = Bundle { lie: None, ..bundle };
        assert!(honest.shows(&honest.run()).is_none(), "{}", file.display());
    }
    println!("corpus: {} bundles show their failures", files.len());
    assert_eq!(files.len(), BUNDLES);
}
