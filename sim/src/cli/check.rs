//! The model checker on the command line.

use std::fmt::Write as _;
use std::process::ExitCode;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use clap::{Args, ValueEnum};

use super::{EXIT_ARGUMENTS, cores};
use crate::check::{Fault, Race, Reduction, SearchOptions, Searched, Searcher, Variant, races};

/// The exit code of a race whose outcomes are not those that it allows.
const EXIT_RACE: u8 = 129;

/// Which schedules are left out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Leave {
    /// None.
    Off,
    /// What sleep sets know.
    Sleep,
    /// What source sets know.
    Source,
}

/// What `sim check` is told.
#[derive(Debug, Args)]
pub(super) struct CheckArguments {
    /// The races, by id.
    #[arg(required_unless_present_any = ["all", "list"])]
    races: Vec<String>,
    /// Every race.
    #[arg(long, conflicts_with = "races")]
    all: bool,
    /// Name the races and do nothing.
    #[arg(long)]
    list: bool,
    /// One shortest trace for each outcome of the races.
    #[arg(long)]
    explain: bool,
    /// At most so many preemptions in a schedule, instead of leaving out what is known.
    #[arg(long)]
    bound: Option<u64>,
    /// Which schedules are left out.
    #[arg(long, value_enum, default_value = "source", conflicts_with = "bound")]
    reduction: Leave,
    /// Points let nobody go first: several sections may be one step.
    #[arg(long)]
    coarse: bool,
    /// The most schedules of each form of a race.
    #[arg(long, default_value_t = u64::MAX, hide_default_value = true)]
    max: u64,
    /// Threads; by default as many as there are cores.
    #[arg(long)]
    jobs: Option<usize>,
}

impl CheckArguments {
    fn options(&self) -> SearchOptions {
        let reduction = match (self.bound, self.reduction) {
            (Some(bound), _) => Reduction::Preemptions(bound),
            (None, Leave::Off) => Reduction::Off,
            (None, Leave::Sleep) => Reduction::Sleep,
            (None, Leave::Source) => Reduction::Source,
        };
        SearchOptions {
            reduction,
            points_yield: !self.coarse,
            traces: false,
            schedules_max: self.max,
        }
    }
}

/// Checks.
pub(super) fn check(arguments: &CheckArguments) -> ExitCode {
    if arguments.list {
        for race in races::ALL {
            println!("{:<4} {}", race.id, race.sentence);
        }
        return ExitCode::SUCCESS;
    }
    let unknown = arguments.races.iter().find(|id| races::named(id).is_none());
    if let Some(unknown) = unknown {
        eprintln!("error: no race is called {unknown:?}; `cargo sim check --list` names all");
        return ExitCode::from(EXIT_ARGUMENTS);
    }
    let wanted = |race: &&Race| arguments.all || arguments.races.iter().any(|id| id == race.id);
    let chosen: Vec<_> = races::ALL.iter().filter(wanted).collect();
    let began = Instant::now();
    let results = searched(&chosen, arguments);
    let mut failed = 0;
    for (race, variant, result) in &results {
        let faults = variant.faults(result);
        failed += usize::from(!faults.is_empty());
        print!("{}", shown(race, variant, result, &faults, arguments));
    }
    println!("wall time {:.1} s", began.elapsed().as_secs_f64());
    let verdict = if failed == 0 { "PASSED" } else { "FAILED" };
    println!("{verdict} ({failed} of {} forms failed)", results.len());
    ExitCode::from(if failed == 0 { 0 } else { EXIT_RACE })
}

type Result<'a> = (&'a Race, &'a Variant, Searched);

/// Searches every form of `chosen`, each on one thread.
fn searched<'a>(chosen: &[&'a Race], arguments: &CheckArguments) -> Vec<Result<'a>> {
    let forms: Vec<_> =
        chosen.iter().flat_map(|race| race.variants.iter().map(|form| (*race, form))).collect();
    let next = Mutex::new(forms.iter().enumerate());
    let done = Mutex::new(Vec::new());
    let work = || {
        loop {
            let job = next.lock().unwrap_or_else(PoisonError::into_inner).next();
            let Some((place, (race, variant))) = job else { return };
            let began = Instant::now();
            let result = Searcher::new(variant, arguments.options()).exhaust();
            println!(
                "{} {}: {} schedules, {} cut short, {:.1} s",
                race.id,
                variant.name,
                result.schedules,
                result.pruned,
                began.elapsed().as_secs_f64()
            );
            let result = (*race, *variant, result);
            done.lock().unwrap_or_else(PoisonError::into_inner).push((place, result));
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..arguments.jobs.unwrap_or_else(cores).max(1) {
            scope.spawn(work);
        }
    });
    let mut done = done.into_inner().unwrap_or_else(PoisonError::into_inner);
    done.sort_by_key(|(place, _)| *place);
    done.into_iter().map(|(_, result)| result).collect()
}

fn shown(
    race: &Race,
    variant: &Variant,
    result: &Searched,
    faults: &[Fault],
    arguments: &CheckArguments,
) -> String {
    let mut text = String::new();
    let how = match (result.exhausted, arguments.bound) {
        (true, None) => "exhausted".to_owned(),
        (true, Some(bound)) => format!("preemption bound {bound}"),
        (false, _) => "cut off".to_owned(),
    };
    let _ = writeln!(
        text,
        "\n{} {} {}\n  {} schedules, {} cut short, {how}, {} steps at most, depth {}",
        race.id,
        race.sentence,
        if variant.name.is_empty() { String::new() } else { format!("({})", variant.name) },
        result.schedules,
        result.pruned,
        result.longest,
        result.depth,
    );
    for (outcome, reached) in &result.outcomes {
        let _ = writeln!(
            text,
            "  {:>8} x {outcome}  [shortest: {} choices]",
            reached.schedules,
            reached.shortest.len()
        );
        if arguments.explain {
            let options = arguments.options();
            let (_, trace) = Searcher::replay(variant, &reached.shortest, options);
            text.push_str(&trace.columns());
        }
    }
    for fault in faults {
        let _ = writeln!(text, "  FAULT {fault}");
    }
    text
}
