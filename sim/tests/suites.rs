//! The property suites as tests: proptest draws the plans, every invariant judges them, and what
//! fails is cut down and kept in the top-level `proptest-regressions`.

use continuable_sim::explore::RunOptions;
use continuable_sim::plan::Suite;
use continuable_sim::plan::strategy::Plans;
use continuable_sim::replay::Verdict;
use continuable_sim::run::run;
use proptest::test_runner::{Config, FileFailurePersistence, TestCaseError, TestRunner};

/// Plans a suite; a sweep of the command line runs thousands.
const CASES: u32 = 150;

const REGRESSIONS: &str =
    concat!(env!("CARGO_MANIFEST_DIR"), "/../proptest-regressions/suites.txt");

fn holds(suite: Suite) {
    let config = Config {
        cases: CASES,
        max_shrink_iters: 3_000,
        failure_persistence: Some(Box::new(FileFailurePersistence::Direct(REGRESSIONS))),
        ..Config::default()
    };
    let checked = TestRunner::new(config).run(&Plans(suite), |plan| {
        let report = run(&plan, None, RunOptions::default());
        match Verdict::first(&report) {
            Some(verdict) => Err(TestCaseError::fail(format!(
                "{}: {}\nseen: {}\n{}",
                verdict.invariant,
                verdict.sentence,
                verdict.violation.text,
                report.trace.story(verdict.violation.at, 40)
            ))),
            None if report.leaked => Err(TestCaseError::fail("something outlived its run")),
            None => Ok(()),
        }
    });
    if let Err(error) = checked {
        panic!("{suite}: {error}");
    }
}

macro_rules! suites {
    ($($name:ident => $suite:ident,)+) => {
        $(
            #[test]
            fn $name() {
                holds(Suite::$suite);
            }
        )+

        #[test]
        fn every_suite_is_a_test() {
            assert_eq!([$(Suite::$suite),+], Suite::ALL);
        }
    };
}

suites! {
    activation => Activation,
    steering => Steering,
    cancellation => Cancellation,
    durability => Durability,
    recovery => Recovery,
    ownership => Ownership,
    authority => Authority,
    notices => Notices,
    network => Network,
    everything => Everything,
}
