//! The single-fault sweep on the command line.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

use clap::Args;

use super::{EXIT_ARGUMENTS, FAILURES, cores};
use crate::explore::RunOptions;
use crate::replay::Bundle;
use crate::run::run;
use crate::sweep::{Failure, Scenario, Swept, scenarios};

/// What `sim sweep` is told.
#[derive(Debug, Args)]
pub(super) struct SweepArguments {
    /// The scenarios, by name.
    #[arg(required_unless_present_any = ["all", "list"])]
    names: Vec<String>,
    /// Every scenario.
    #[arg(long, conflicts_with = "names")]
    all: bool,
    /// Name the scenarios and do nothing.
    #[arg(long)]
    list: bool,
    /// Threads; by default as many as there are cores.
    #[arg(long)]
    jobs: Option<usize>,
    /// Print one JSON object instead of text.
    #[arg(long)]
    json: bool,
    /// Where the bundles of failures go.
    #[arg(long, default_value = FAILURES)]
    bundle_dir: PathBuf,
}

/// Sweeps.
pub(super) fn sweep(arguments: &SweepArguments) -> ExitCode {
    let mut all = scenarios();
    if arguments.list {
        all.iter().for_each(|scenario| println!("{}", scenario.name));
        return ExitCode::SUCCESS;
    }
    if !arguments.all {
        let known = |name: &String| all.iter().any(|scenario| scenario.name == name);
        if let Some(unknown) = arguments.names.iter().find(|name| !known(name)) {
            eprintln!(
                "error: no scenario is called {unknown:?}; `cargo sim sweep --list` names all"
            );
            return ExitCode::from(EXIT_ARGUMENTS);
        }
        all.retain(|scenario| arguments.names.iter().any(|name| name == scenario.name));
    }
    let began = Instant::now();
    let swept = swept(&all, arguments);
    for failure in &swept.failures {
        print!("{}", shown(failure, arguments));
    }
    if arguments.json {
        println!("{:#}", serde_json::to_value(&swept).expect("plain data"));
    } else {
        let Swept { scenarios, runs, struck, changed, failed, .. } = swept;
        println!("scenarios         {scenarios}");
        println!(
            "single faults     {runs} runs: {changed} changed something, {} changed nothing, \
                  {} never struck",
            struck - changed,
            runs - struck
        );
        println!("wall time         {:.1} s", began.elapsed().as_secs_f64());
        let verdict = if failed == 0 { "PASSED" } else { "FAILED" };
        println!("{verdict} ({failed} of {} runs failed)", runs + scenarios);
    }
    let worst = swept.failures.iter().map(|failure| failure.verdict.class).min();
    match worst {
        Some(class) => ExitCode::from(class.exit_code()),
        None => ExitCode::from(if swept.failed > 0 { 128 } else { 0 }),
    }
}

fn swept(all: &[Scenario], arguments: &SweepArguments) -> Swept {
    let jobs = arguments.jobs.unwrap_or_else(cores).max(1);
    let quiet = arguments.json;
    crate::sweep::sweep(all, jobs, &|name, faults| {
        if !quiet {
            println!("{name}: {faults} single faults");
        }
    })
}

fn shown(failure: &Failure, arguments: &SweepArguments) -> String {
    let Failure { scenario, plan, verdict } = failure;
    let report = run(plan, None, RunOptions::default());
    let bundle = Bundle::with(plan, None, &report, verdict);
    let fault = serde_json::to_string(&plan.faults).expect("plain data");
    let file = format!("sweep-{}-{}.json", scenario.replace(' ', "-"), verdict.invariant);
    let path = arguments.bundle_dir.join(file);
    let kept = match bundle.save(&path) {
        Ok(()) => format!("replay it: cargo sim replay {}", path.display()),
        Err(error) => error.to_string(),
    };
    format!(
        "{}: {}\nwhere: \"{scenario}\" with {fault}, at entry {}: {}\n{}{kept}\n\n",
        verdict.invariant,
        verdict.sentence,
        verdict.violation.at,
        verdict.violation.text,
        report.trace.story(verdict.violation.at, 25),
    )
}
