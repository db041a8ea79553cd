//! The rules of the house, as a test: layers, banned calls, sizes, the scenario table.
//!
//! Goal: a rule that a reviewer would have to remember is checked here instead. Method: read every
//! source file as text. Each rule is a function from a file to its violations, and each is shown to
//! fire on a bad snippet at the end of this file.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// The longest file, in lines, tests included.
const FILE_LINES_MAX: usize = 800;
/// The longest function, in lines from its `fn` line to its closing brace.
const FUNCTION_LINES_MAX: usize = 70;

/// Files that may touch the real clock, the real disk and real threads.
const PRODUCTION_ADAPTERS: &[&str] = &["src/runtime/tokio_runtime.rs", "src/store/std_disk.rs"];

/// The command line driver of the simulator: one executor per thread, wall clock for rates only.
const DRIVERS: &[&str] = &["sim/src/cli.rs", "sim/src/main.rs", "sim/src/sweep.rs"];

/// Tokens that bring nondeterminism or leave work behind, and what to do instead.
const BANNED: &[(&str, &str)] = &[
    ("HashMap", "hash order differs between processes: use BTreeMap"),
    ("HashSet", "hash order differs between processes: use BTreeSet"),
    ("Instant::now", "ask the runtime"),
    ("SystemTime", "ask the runtime"),
    ("tokio::spawn", "use runtime::spawn"),
    ("tokio::time", "use Runtime::sleep"),
    ("thread::", "one executor owns all concurrency"),
    ("spawn_blocking", "only the real disk blocks"),
    ("rand::", "ask the runtime"),
    ("getrandom", "ask the runtime"),
    ("Uuid::new_v4", "use ids::uuid_text with the runtime's numbers"),
    ("TokioExecutor", "spawn through Runtime::spawn"),
    ("TokioTimer", "time is the runtime's"),
    ("client-legacy", "no pools, no hidden timers"),
    (".abort()", "cancellation is a signal followed by quiescence"),
];

/// Words that are unfinished work, in any file. Split so that this list does not name itself.
const UNFINISHED: &[&str] = &[
    concat!("dbg", "!("),
    concat!("todo", "!("),
    concat!("unimplemented", "!("),
    concat!("FIX", "ME"),
    concat!("#[ign", "ore"),
    concat!("should_", "panic"),
];

/// For each module of `src/`, the modules it may name. Base modules are free to all.
const FENCES: &[(&str, &[&str])] = &[
    ("ids", &[]),
    ("error", &[]),
    ("vocabulary", &["error"]),
    ("message", &["ids"]),
    ("points", &[]),
    ("facts", &["error", "ids", "message", "points", "vocabulary"]),
    ("sync", &[]),
    ("channel", &["sync"]),
    ("cancel", &["channel", "facts", "runtime", "sync", "vocabulary"]),
    ("runtime", &["channel", "facts", "ids", "points", "sync"]),
    ("sections", &["base", "cores"]),
    ("session", &["base"]),
    ("store", &["base", "session"]),
    ("model", &["base"]),
    ("task", &["base", "sections"]),
    ("agent", &["base", "session", "store", "model", "sections"]),
    ("provider", &["base", "session", "model", "agent", "sections"]),
    ("control", &["base", "session", "store", "model", "agent", "task", "provider", "sections"]),
    (
        "tools",
        &["base", "session", "store", "model", "agent", "task", "provider", "control", "sections"],
    ),
];

/// What every layer above the base may name.
const BASE: &[&str] = &[
    "ids",
    "error",
    "vocabulary",
    "message",
    "points",
    "facts",
    "sync",
    "channel",
    "cancel",
    "runtime",
];

/// The pure cores: included by `tests/loom.rs` with another `sync`, so a closed set.
const CORES: &[&str] = &[
    "src/cancel/slot.rs",
    "src/agent/inbox.rs",
    "src/agent/registry.rs",
    "src/agent/steering.rs",
    "src/task/record.rs",
    "src/task/table.rs",
    "src/control/association.rs",
    "src/control/route.rs",
];

/// What a core may name: words, messages, facts, `touch`, and other cores.
const CORE_MAY_NAME: &[&str] = &[
    "ids",
    "error",
    "vocabulary",
    "message",
    "points",
    "facts",
    "sync::{",
    "sync::Access",
    "sync::ObjectKind",
    "sync::touch",
    "sync::key_of",
    "cancel::slot",
    "agent::inbox",
    "agent::registry",
    "agent::steering",
    "task::record",
    "task::table",
    "control::association",
    "control::route",
];

/// From a path and its text to the violations in it.
type Rule = fn(&str, &str) -> Vec<String>;

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

fn rust_files(directory: &Path, found: &mut Vec<PathBuf>) {
    let Ok(entries) = fs::read_dir(directory) else { return };
    let mut paths: Vec<_> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
    paths.sort();
    for path in paths {
        if path.is_dir() && path.file_name().is_some_and(|name| name != "target") {
            rust_files(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
}

/// Every Rust file of the workspace as (path from the root, text).
fn workspace() -> Vec<(String, String)> {
    let root = root();
    let mut found = Vec::new();
    for part in ["src", "tests", "sim"] {
        rust_files(&root.join(part), &mut found);
    }
    assert!(found.len() > 20, "the workspace has sources");
    found
        .into_iter()
        .map(|path| {
            let text = fs::read_to_string(&path).expect("a source file is readable text");
            let name = path.strip_prefix(&root).expect("below the root");
            (name.to_string_lossy().replace('\\', "/"), text)
        })
        .collect()
}

/// The part of a line before a `//` comment; good enough for code that rustfmt wrote.
fn code_of(line: &str) -> &str {
    let trimmed = line.trim_start();
    if trimmed.starts_with("//") {
        return "";
    }
    line.split(" // ").next().unwrap_or(line)
}

/// A test module in a file of its own; by custom it is declared `#[cfg(test)] mod tests;`.
fn is_test_file(path: &str) -> bool {
    path.ends_with("/tests.rs")
}

/// The lines before the file's test module, numbered from 1.
fn production_lines(text: &str) -> impl Iterator<Item = (usize, &str)> {
    text.lines()
        .take_while(|line| line.trim() != "#[cfg(test)]")
        .enumerate()
        .map(|(index, line)| (index + 1, code_of(line)))
}

fn banned(path: &str, text: &str) -> Vec<String> {
    let production = path.starts_with("src/") || path.starts_with("sim/src/");
    if !production || is_test_file(path) || PRODUCTION_ADAPTERS.contains(&path) {
        return Vec::new();
    }
    let mut violations = Vec::new();
    for (number, line) in production_lines(text) {
        for (token, instead) in BANNED {
            let driver = DRIVERS.contains(&path) && matches!(*token, "thread::" | "Instant::now");
            if line.contains(token) && !driver {
                violations.push(format!("{path}:{number}: `{token}`: {instead}"));
            }
        }
    }
    violations
}

fn unbiased_selects(path: &str, text: &str) -> Vec<String> {
    let lines: Vec<_> = text.lines().map(code_of).collect();
    let select = concat!("select", "! {");
    lines
        .iter()
        .enumerate()
        .filter(|(index, line)| {
            line.contains(select)
                && lines.get(index + 1).is_none_or(|next| next.trim() != "biased;")
        })
        .map(|(index, _)| format!("{path}:{}: a select needs `biased;` first", index + 1))
        .collect()
}

fn unfinished(path: &str, text: &str) -> Vec<String> {
    text.lines()
        .enumerate()
        .flat_map(|(index, line)| {
            UNFINISHED
                .iter()
                .filter(move |word| line.contains(*word))
                .map(move |word| format!("{path}:{}: `{word}` is unfinished work", index + 1))
        })
        .collect()
}

fn sizes(path: &str, text: &str) -> Vec<String> {
    let mut violations = Vec::new();
    let lines: Vec<_> = text.lines().collect();
    if lines.len() > FILE_LINES_MAX {
        violations.push(format!("{path}: {} lines; at most {FILE_LINES_MAX}", lines.len()));
    }
    for (start, line) in lines.iter().enumerate() {
        let code = code_of(line);
        let starts = code.trim_start();
        let is_function = starts.starts_with("fn ")
            || (starts.contains(" fn ")
                && (starts.starts_with("pub")
                    || starts.starts_with("async")
                    || starts.starts_with("const fn")));
        if !is_function {
            continue;
        }
        let indent = &code[..code.len() - starts.len()];
        let closing = format!("{indent}}}");
        let end = lines[start..].iter().position(|line| {
            *line == closing
                || line.ends_with(';')
                    && line.starts_with(indent)
                    && !line[indent.len()..].starts_with(' ')
        });
        if let Some(length) = end.map(|length| length + 1)
            && length > FUNCTION_LINES_MAX
        {
            violations.push(format!(
                "{path}:{}: a function of {length} lines; at most {FUNCTION_LINES_MAX}",
                start + 1
            ));
        }
    }
    violations
}

/// The module of `src/` a file belongs to: its folder, or its name at the top.
fn module_of(path: &str) -> Option<&str> {
    let inside = path.strip_prefix("src/")?;
    let first = inside.split('/').next()?;
    Some(first.strip_suffix(".rs").unwrap_or(first))
}

/// The modules named through `crate::` on one line, brace groups at the top included.
fn named_modules(line: &str) -> Vec<String> {
    let mut names = Vec::new();
    for part in line.split("crate::").skip(1) {
        let name: String =
            part.chars().take_while(|c| c.is_ascii_alphanumeric() || *c == '_').collect();
        names.push(name);
    }
    names
}

fn fences(path: &str, text: &str) -> Vec<String> {
    let Some(module) = module_of(path) else { return Vec::new() };
    let Some((_, allowed)) = FENCES.iter().find(|(name, _)| *name == module) else {
        return Vec::new();
    };
    let mut free: BTreeSet<&str> = allowed.iter().copied().collect();
    free.insert(module);
    if free.contains("base") {
        free.extend(BASE);
    }
    let mut violations = Vec::new();
    for (number, line) in production_lines(text) {
        for name in named_modules(line) {
            let core = CORES
                .iter()
                .any(|core| line.contains(&core["src/".len()..core.len() - 3].replace('/', "::")));
            let lower = name.chars().next().is_some_and(|c| c.is_ascii_lowercase());
            if lower && !free.contains(name.as_str()) && !(core && free.contains("cores")) {
                violations.push(format!("{path}:{number}: `{module}` may not name `{name}`"));
            }
        }
    }
    violations
}

fn closed_cores(path: &str, text: &str) -> Vec<String> {
    if !CORES.contains(&path) {
        return Vec::new();
    }
    production_lines(text)
        .filter(|(_, line)| {
            line.contains("crate::")
                && !CORE_MAY_NAME.iter().any(|name| line.contains(&format!("crate::{name}")))
        })
        .chain(production_lines(text).filter(|(_, line)| {
            line.contains("Mutex") || line.contains("tokio") || line.contains("async ")
        }))
        .map(|(number, line)| format!("{path}:{number}: a core may not name: {}", line.trim()))
        .collect()
}

fn machine_paths(path: &str, text: &str) -> Vec<String> {
    let marks = [concat!("/wo", "rk/"), concat!("/ro", "ot/"), concat!("../sha", "red")];
    text.lines()
        .enumerate()
        .filter(|(_, line)| marks.iter().any(|mark| line.contains(mark)))
        .map(|(index, _)| format!("{path}:{}: names a path of one machine", index + 1))
        .collect()
}

fn every_file(rule: Rule) {
    let violations: Vec<_> = workspace().iter().flat_map(|(path, text)| rule(path, text)).collect();
    assert!(violations.is_empty(), "{} violations:\n{}", violations.len(), violations.join("\n"));
}

#[test]
fn nothing_nondeterministic_is_called() {
    every_file(banned);
}

#[test]
fn every_select_is_biased() {
    every_file(unbiased_selects);
}

#[test]
fn nothing_is_left_unfinished() {
    every_file(unfinished);
}

#[test]
fn files_and_functions_are_short() {
    every_file(sizes);
}

#[test]
fn layers_name_only_what_lies_below_them() {
    every_file(fences);
}

#[test]
fn the_cores_are_a_closed_set() {
    every_file(closed_cores);
}

#[test]
fn no_file_names_a_path_of_one_machine() {
    every_file(machine_paths);
}

/// Reads `(number, "test")` pairs of a module's COVERED list.
fn covered(text: &str) -> Vec<(u16, String)> {
    let Some(start) = text.find("COVERED: &[(u16, &str)] = &[") else { return Vec::new() };
    let list = &text[start + "COVERED: &[(u16, &str)] = &[".len()..];
    let list = &list[..list.find("];").unwrap_or(list.len())];
    list.split('(')
        .skip(1)
        .filter_map(|pair| {
            let (number, rest) = pair.split_once(',')?;
            let test = rest.split('"').nth(1)?;
            Some((number.trim().parse().ok()?, test.to_owned()))
        })
        .collect()
}

/// Reads the `(first, last, reason)` rows of `OUT`.
fn out_of_scope(text: &str) -> Vec<(u16, u16, String)> {
    let Some(start) = text.find("OUT: &[(u16, u16, &str)] = &[") else { return Vec::new() };
    let list = &text[start + "OUT: &[(u16, u16, &str)] = &[".len()..];
    let list = &list[..list.find("\n];").unwrap_or(list.len())];
    list.split("\n    (")
        .skip(1)
        .filter_map(|row| {
            let mut parts = row.splitn(3, ',');
            let first = parts.next()?.trim().parse().ok()?;
            let last = parts.next()?.trim().parse().ok()?;
            Some((first, last, parts.next()?.split('"').nth(1)?.to_owned()))
        })
        .collect()
}

/// The numbers a test's doc lines claim, by test name.
fn claimed(text: &str) -> BTreeMap<String, BTreeSet<u16>> {
    let mut claims: BTreeMap<String, BTreeSet<u16>> = BTreeMap::new();
    let mut pending = BTreeSet::new();
    for line in text.lines() {
        let line = line.trim();
        if let Some(rest) =
            line.strip_prefix("/// Scenario ").or_else(|| line.strip_prefix("/// Scenarios "))
        {
            let numbers = rest.split('.').next().unwrap_or(rest);
            pending.extend(numbers.split([',', ' ']).filter_map(|n| n.parse::<u16>().ok()));
        } else if line.contains("fn ") && !pending.is_empty() {
            let name = line.split("fn ").nth(1).unwrap_or_default();
            let name = name.split(['(', '<']).next().unwrap_or_default().to_owned();
            claims.entry(name).or_default().append(&mut pending);
        }
    }
    claims
}

#[test]
fn every_covered_scenario_names_a_test_that_claims_it() {
    let mut violations = Vec::new();
    for (path, text) in workspace() {
        if !path.starts_with("tests/scenarios/") {
            continue;
        }
        let claims = claimed(&text);
        let listed: BTreeSet<(u16, String)> = covered(&text).into_iter().collect();
        for (number, test) in &listed {
            if !claims.get(test).is_some_and(|numbers| numbers.contains(number)) {
                violations.push(format!("{path}: {number} -> {test}: no test with that doc line"));
            }
        }
        for (test, numbers) in claims {
            for number in numbers {
                if !listed.contains(&(number, test.clone())) {
                    violations.push(format!("{path}: {test} claims {number}, COVERED does not"));
                }
            }
        }
    }
    assert!(violations.is_empty(), "{}", violations.join("\n"));
}

#[test]
fn the_rules_fire_on_bad_code() {
    let path = "src/task/mod.rs";
    let fires: &[(Rule, &str)] = &[
        (banned, "fn f() { let m = std::collections::HashMap::new(); }"),
        (banned, "fn f() { std::thread::spawn(|| ()); }"),
        (fences, "use crate::control::route::Route;"),
        (machine_paths, concat!("const P: &str = \"/wo", "rk/x\";")),
        (unfinished, concat!("fn f() { todo", "!() }")),
        (unbiased_selects, concat!("    tokio::select", "! {\n        a = b => {}")),
    ];
    for (rule, snippet) in fires {
        assert_eq!(rule(path, snippet).len(), 1, "{snippet}");
    }
    let long = format!("fn f() {{\n{}}}\n", "    let x = 1;\n".repeat(FUNCTION_LINES_MAX));
    assert_eq!(sizes(path, &long).len(), 1);
    assert_eq!(sizes(path, &"\n".repeat(FILE_LINES_MAX + 1)).len(), 1);
    let core = "src/task/record.rs";
    assert_eq!(closed_cores(core, "use crate::runtime::Runtime;").len(), 1);
    assert_eq!(closed_cores(core, "use crate::sync::{Access, touch};").len(), 0);
    assert_eq!(banned("tests/x.rs", "use std::collections::HashMap;").len(), 0);
    assert_eq!(fences(path, "use crate::ids::TaskId;").len(), 0);
}

#[test]
fn the_table_reader_reads_the_table() {
    let text = "/// Scenarios 1, 2.\n#[test]\nfn a_claim() {}\n\
        pub const COVERED: &[(u16, &str)] = &[(1, \"a_claim\"), (2, \"a_claim\")];";
    assert_eq!(covered(text), [(1, "a_claim".to_owned()), (2, "a_claim".to_owned())]);
    assert_eq!(claimed(text)["a_claim"], BTreeSet::from([1, 2]));
    let out = "const OUT: &[(u16, u16, &str)] = &[\n    (3, 4, \"because\"),\n];";
    assert_eq!(out_of_scope(out), [(3, 4, "because".to_owned())]);
}
