//! The rules of the house, as a test: layers, banned calls, sizes, the scenario table.
//!
//! Goal: a rule that a reviewer would have to remember is checked here instead. Method: read every
//! source file as text. Each rule is a function from a file to its violations, and each is shown to
//! fire on a bad snippet beside its definition.

#[path = "tidy/fences.rs"]
mod fences;
#[path = "tidy/rules.rs"]
mod rules;
#[path = "tidy/scenarios.rs"]
mod scenarios;
#[path = "tidy/source.rs"]
mod source;

use rules::Rule;
use source::{root, workspace};

fn none(violations: &[String]) {
    assert!(violations.is_empty(), "{} violations:\n{}", violations.len(), violations.join("\n"));
}

fn every_file(rule: Rule) {
    none(&workspace().iter().flat_map(rule).collect::<Vec<_>>());
}

#[test]
fn nothing_nondeterministic_is_called() {
    every_file(rules::banned);
}

#[test]
fn every_select_is_biased() {
    every_file(rules::unbiased_selects);
}

#[test]
fn nothing_is_left_unfinished() {
    every_file(rules::unfinished);
}

#[test]
fn files_and_functions_are_short() {
    every_file(rules::sizes);
}

#[test]
fn every_file_says_what_it_is_about() {
    every_file(rules::introductions);
}

#[test]
fn no_file_names_a_path_of_one_machine() {
    every_file(rules::machine_paths);
}

#[test]
fn layers_name_only_what_lies_below_them() {
    every_file(fences::fences);
}

#[test]
fn the_judges_of_the_simulator_see_no_engine() {
    every_file(fences::sim_fences);
}

#[test]
fn the_cores_are_a_closed_set() {
    every_file(fences::closed_cores);
    every_file(fences::loom_includes);
}

#[test]
fn the_library_ships_no_test_tool() {
    every_file(fences::test_tools);
    let manifest = std::fs::read_to_string(root().join("Cargo.toml")).expect("it is there");
    none(&fences::shipped_test_tools(&manifest));
}

#[test]
fn every_covered_scenario_names_a_test_that_claims_it() {
    every_file(scenarios::claimed_and_listed);
}

#[test]
fn every_scenario_has_a_test_or_a_reason() {
    let files = workspace();
    none(&scenarios::complete(&files));
    none(&scenarios::unlisted_modules(&files));
}
