//! The files of `sim/deploy` do what they say: the commands in them are carried out here.
//!
//! Method: play the scheduler. Each shard's command is taken from the file, run as a process with the
//! environment that Kubernetes or Slurm would give it, over a small range of seeds; then the merge's,
//! whose figures must be those of one run without shards. What only a cluster can show (volumes,
//! evictions, queues, the image) is not shown.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;

const SEEDS: &str = "0..40";
const SHARDS: usize = 3;

fn deploy() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy")
}

/// The `PATH` of a node: the simulator, the two commands, and the system's own.
fn path() -> String {
    let simulator = Path::new(env!("CARGO_BIN_EXE_sim")).parent().expect("it is in a directory");
    let system = std::env::var("PATH").expect("there is a system");
    format!("{}:{}:{system}", simulator.display(), deploy().display())
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// One way to run a sweep: how a shard's process is started, and how the merge's.
struct Fleet {
    shard: Box<dyn Fn(usize) -> Command>,
    merge: Box<dyn Fn() -> Command>,
}

impl Fleet {
    /// Runs `command` as a node would, with its results below `results`.
    fn run(mut command: Command, results: &Path) -> Output {
        command.env("PATH", path()).env("SEEDS", SEEDS).env("RESULTS", results);
        command.env("SHARDS", SHARDS.to_string());
        command.output().expect("a shell runs")
    }
}

/// The container of a Job, and the Job.
fn job(file: &str) -> (Value, Value) {
    let text = fs::read_to_string(deploy().join(file)).expect("it is committed");
    let json: Value = serde_json::from_str(&text).expect("JSON");
    let items = json["items"].as_array().cloned().unwrap_or_else(|| vec![json]);
    let job = items.into_iter().find(|item| item["kind"] == "Job").expect("there is a Job");
    (job["spec"]["template"]["spec"]["containers"][0].clone(), job)
}

/// What the environment of a container says.
fn environment(container: &Value) -> BTreeMap<String, String> {
    let word = |value: &Value| value.as_str().expect("a word").to_owned();
    let variables = container["env"].as_array().expect("it has an environment");
    variables.iter().map(|variable| (word(&variable["name"]), word(&variable["value"]))).collect()
}

/// The process that a container is.
fn contained(container: &Value) -> Command {
    let words = container["command"].as_array().expect("it has a command");
    let mut words = words.iter().map(|word| word.as_str().expect("a word"));
    let mut command = Command::new(words.next().expect("it has a program"));
    command.args(words).envs(environment(container));
    command
}

fn kubernetes() -> Fleet {
    let (shard, _) = job("kubernetes-shards.json");
    let (merge, _) = job("kubernetes-merge.json");
    Fleet {
        shard: Box::new(move |index| {
            let mut command = contained(&shard);
            command.env("JOB_COMPLETION_INDEX", index.to_string());
            command
        }),
        merge: Box::new(move || contained(&merge)),
    }
}

fn slurm() -> Fleet {
    let script = |name: &str| {
        let mut command = Command::new("bash");
        command.arg(deploy().join(name));
        command
    };
    Fleet {
        shard: Box::new(move |index| {
            let mut command = script("slurm-array.sbatch");
            command.env("SLURM_ARRAY_TASK_ID", index.to_string());
            command
        }),
        merge: Box::new(move || script("slurm-merge.sbatch")),
    }
}

/// What a summary says of the runs: all but who ran them, and how long it took.
fn figures(summary: &str) -> Vec<&str> {
    let own = ["everything ", "wall time", "plans per second", "canary caught"];
    summary.lines().filter(|line| !own.iter().any(|word| line.starts_with(word))).collect()
}

fn a_sweep_in_shards_is_the_whole_sweep(fleet: &Fleet) {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let results = directory.path().join("results");
    let file = |index: usize| results.join(format!("shard-{index}.jsonl"));
    for index in 0..SHARDS {
        let shard = Fleet::run((fleet.shard)(index), &results);
        assert_eq!(shard.status.code(), Some(0), "{}", text(&shard.stderr));
        assert!(file(index).exists(), "shard {index} leaves its file");
    }
    let merged = Fleet::run((fleet.merge)(), &results);
    assert_eq!(merged.status.code(), Some(0), "{}", text(&merged.stderr));
    let whole = Command::new(env!("CARGO_BIN_EXE_sim")).args(["run", "--seeds", SEEDS]).output();
    let whole = whole.expect("the simulator runs");
    assert_eq!(figures(&text(&merged.stdout)), figures(&text(&whole.stdout)));
    assert!(text(&merged.stdout).contains("PASSED (44 plans)"), "{}", text(&merged.stdout));

    // A shard that never ran, first in the middle, then the last as well, then all of them.
    for (lost, missing) in [(1, "seeds 13..26 of everything on explore"), (2, "seeds 13..40 of")] {
        fs::remove_file(file(lost)).expect("it was there");
        let merged = Fleet::run((fleet.merge)(), &results);
        assert_eq!(merged.status.code(), Some(3), "{}", text(&merged.stdout));
        let said = text(&merged.stdout);
        assert!(said.contains(&format!("INCOMPLETE: {missing}")), "{said}");
        assert!(!said.contains("PASSED"), "{said}");
    }
    fs::remove_file(file(0)).expect("it was there");
    assert_eq!(Fleet::run((fleet.merge)(), &results).status.code(), Some(2));
}

#[test]
fn the_pods_of_the_kubernetes_job_run_a_sweep() {
    a_sweep_in_shards_is_the_whole_sweep(&kubernetes());
}

#[test]
fn the_tasks_of_the_slurm_array_run_a_sweep() {
    a_sweep_in_shards_is_the_whole_sweep(&slurm());
}

#[test]
fn a_shard_that_fails_leaves_its_file_and_one_that_is_killed_leaves_none() {
    use std::os::unix::fs::PermissionsExt as _;

    let directory = tempfile::tempdir().expect("a temporary directory");
    let stand_in = directory.path().join("sim");
    for (end, code, left) in [("exit 129", 129, true), ("kill -KILL $$", 137, false)] {
        let results = directory.path().join(format!("results-{code}"));
        fs::write(&stand_in, format!("#!/bin/sh\necho a line\n{end}\n")).expect("it writes");
        fs::set_permissions(&stand_in, fs::Permissions::from_mode(0o755)).expect("it is ours");
        let mut command = Command::new(deploy().join("sim-shard"));
        let path = format!("{}:{}", directory.path().display(), path());
        command.args(["0", "2"]).env("PATH", path).env("SEEDS", SEEDS).env("RESULTS", &results);
        assert_eq!(command.status().expect("a shell runs").code(), Some(code));
        let names = fs::read_dir(&results).expect("the directory is made");
        let names: Vec<_> = names.map(|entry| entry.expect("readable").file_name()).collect();
        let files: Vec<_> = names.iter().filter(|name| *name != "bundles").collect();
        assert_eq!(files, if left { vec!["shard-0.jsonl"] } else { Vec::new() });
    }
}

#[test]
fn every_file_counts_the_same_shards() {
    let (shard, job_of_shards) = job("kubernetes-shards.json");
    let spec = &job_of_shards["spec"];
    let environment_of_shards = environment(&shard);
    assert_eq!(spec["completionMode"], "Indexed");
    assert_eq!(spec["completions"].to_string(), environment_of_shards["SHARDS"]);
    let (merge, _) = job("kubernetes-merge.json");
    assert_eq!(environment(&merge)["RESULTS"], environment_of_shards["RESULTS"]);
    assert_eq!(merge["volumeMounts"], shard["volumeMounts"]);
    let array = fs::read_to_string(deploy().join("slurm-array.sbatch")).expect("it is committed");
    let value = |before: &str, after: char| {
        let rest = array.split_once(before).expect("it says so").1;
        rest.split(after).next().expect("a value").parse::<u64>().expect("a number")
    };
    assert_eq!(value("--array=0-", '\n') + 1, value("${SHARDS:-", '}'));
    // The codes that fail a shard for good are the ones of `sim --help`.
    let codes = &spec["podFailurePolicy"]["rules"][1]["onExitCodes"]["values"];
    let codes: Vec<_> = codes.as_array().expect("a list").iter().map(Value::to_string).collect();
    let help = Command::new(env!("CARGO_BIN_EXE_sim")).arg("--help").output();
    let help = text(&help.expect("the simulator runs").stdout);
    for code in codes {
        assert!(help.contains(&format!(" {code} ")), "{code} is missing in:\n{help}");
    }
}
