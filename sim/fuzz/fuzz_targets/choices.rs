//! The fuzz target: libFuzzer's bytes are a run, and every invariant judges it.
//!
//! What breaks is told in full and kept as a bundle beside libFuzzer's own artifact, for
//! `sim replay` and `sim shrink`: the artifact is for today's code, the bundle for any.

#![no_main]

use std::path::PathBuf;

use continuable_sim::fuzz::{Broken, Input};
use libfuzzer_sys::fuzz_target;

/// libFuzzer's own option that says where its artifacts go.
const ARTIFACT_PREFIX: &str = "-artifact_prefix=";

/// Keeps the bundle of `broken`, if it has one, and says how to go on.
fn keep(broken: &Broken) -> String {
    let Broken::Invariant { bundle, .. } = broken else {
        return "it has no bundle; libFuzzer keeps its input".to_owned();
    };
    let prefix =
        std::env::args().find_map(|word| Some(word.strip_prefix(ARTIFACT_PREFIX)?.to_owned()));
    let name = format!(
        "bundle-{}-{}-{}-{}.json",
        bundle.engine, bundle.plan.suite, bundle.plan.seed, bundle.invariant
    );
    let path = PathBuf::from(prefix.unwrap_or_default() + &name);
    match bundle.save(&path) {
        Ok(()) => format!(
            "cut it down: cargo sim shrink {0}\nreplay it: cargo sim replay {0}",
            path.display()
        ),
        Err(error) => error.to_string(),
    }
}

fuzz_target!(
    init: {
        // libFuzzer's binding aborts inside the first panic. A panic of the code under test is
        // judged like anything else (I29), with its trace; ours below aborts, since it cannot unwind
        // into libFuzzer.
        drop(std::panic::take_hook());
    },
    |bytes: &[u8]| {
        if let Err(broken) = Input::decode(bytes).judge() {
            panic!("{broken}\n{}", keep(&broken));
        }
    }
);
