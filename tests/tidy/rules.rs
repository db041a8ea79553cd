//! Rules of one file: banned calls, unfinished work, sizes, paths.

use crate::source::{File, code_of};

/// The longest file, in lines, tests included.
pub const FILE_LINES_MAX: usize = 800;
/// The longest function, in lines from its `fn` line to its closing brace.
pub const FUNCTION_LINES_MAX: usize = 70;

/// Files that may touch the real clock, the real disk and real threads.
const PRODUCTION_ADAPTERS: &[&str] = &["src/runtime/tokio_runtime.rs", "src/store/std_disk.rs"];

/// The command line driver of the simulator: one executor per thread, wall clock for rates only.
const DRIVERS: &[&str] = &[
    "sim/src/cli.rs",
    "sim/src/cli/check.rs",
    "sim/src/cli/failure.rs",
    "sim/src/cli/seeds.rs",
    "sim/src/cli/single.rs",
    "sim/src/determinism.rs",
    "sim/src/main.rs",
    "sim/src/sweep.rs",
];

/// What only a driver may do.
const DRIVERS_MAY: &[&str] = &["thread::", "Instant::now", "println!("];

/// Tokens that bring nondeterminism or leave work behind, and what to do instead.
const BANNED: &[(&str, &str)] = &[
    ("HashMap", "hash order differs between processes: use BTreeMap"),
    ("HashSet", "hash order differs between processes: use BTreeSet"),
    ("Instant::now", "ask the runtime"),
    ("SystemTime", "ask the runtime"),
    ("tokio::spawn", "use runtime::spawn"),
    ("tokio::time", "use Runtime::sleep"),
    ("watch::", "tokio's watch wakes its waiters in a random order: use Latch or Bell"),
    ("thread::", "one executor owns all concurrency"),
    ("spawn_blocking", "only the real disk blocks"),
    ("block_on", "nothing waits inside a poll"),
    ("rand::", "ask the runtime"),
    ("getrandom", "ask the runtime"),
    ("Uuid::new_v4", "use ids::uuid_text with the runtime's numbers"),
    ("TokioExecutor", "spawn through Runtime::spawn"),
    ("TokioTimer", "time is the runtime's"),
    ("client-legacy", "no pools, no hidden timers"),
    (".abort()", "cancellation is a signal followed by quiescence"),
    (".unwrap()", "a typed error, or an `expect` that names the invariant"),
    ("println!(", "facts and typed answers, no prints"),
    ("std::sync::Mutex", "sync::Mutex knows its place in the lock order"),
    ("RwLock", "sync::Mutex is the one lock"),
];

/// Where a banned token is the implementation of what everybody else uses instead.
const EXEMPT: &[(&str, &str)] = &[
    ("src/sync.rs", "std::sync::Mutex"),
    // turmoil's clock is tokio's.
    ("sim/src/explore/nested.rs", "tokio::time"),
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

/// From a file to the violations in it.
pub type Rule = fn(&File) -> Vec<String>;

/// Nothing nondeterministic is called in production code.
pub fn banned(file: &File) -> Vec<String> {
    let path = file.path.as_str();
    if !file.is_production() || PRODUCTION_ADAPTERS.contains(&path) {
        return Vec::new();
    }
    let mut violations = Vec::new();
    for (number, line) in file.production() {
        for (token, instead) in BANNED {
            let driver = DRIVERS.contains(&path) && DRIVERS_MAY.contains(token);
            let exempt = EXEMPT.contains(&(path, *token));
            if line.contains(token) && !driver && !exempt {
                violations.push(format!("{path}:{number}: `{token}`: {instead}"));
            }
        }
    }
    violations
}

/// A select polls its branches in their order, so that a schedule alone decides.
pub fn unbiased_selects(file: &File) -> Vec<String> {
    let lines: Vec<_> = file.text.lines().map(code_of).collect();
    let select = concat!("select", "!");
    let starts =
        |line: &str| line.contains(&format!("{select} {{")) || line.contains(&format!("{select}("));
    lines
        .iter()
        .enumerate()
        .filter(|(index, line)| {
            starts(line) && lines.get(index + 1).is_none_or(|next| next.trim() != "biased;")
        })
        .map(|(index, _)| format!("{}:{}: a select needs `biased;` first", file.path, index + 1))
        .collect()
}

/// Nothing is left unfinished, and no test is switched off.
pub fn unfinished(file: &File) -> Vec<String> {
    let path = &file.path;
    file.text
        .lines()
        .enumerate()
        .flat_map(|(index, line)| {
            UNFINISHED
                .iter()
                .filter(move |word| line.contains(*word))
                .map(move |word| format!("{path}:{}: `{word}` is unfinished work", index + 1))
        })
        .collect()
}

/// Whether a function starts on this line.
fn starts_function(code: &str) -> bool {
    let mut words = code.split_whitespace();
    loop {
        match words.next() {
            Some("fn") => return true,
            Some("async" | "const" | "unsafe" | "extern" | "default") => {}
            Some(word) if word.starts_with("pub") => {}
            // Inside `pub(in crate::x)` and after `extern "C"`.
            Some(word) if word.ends_with(')') || word.starts_with('"') => {}
            _ => return false,
        }
    }
}

/// How many lines the function takes that starts on the first of `lines`.
fn function_length(lines: &[&str]) -> usize {
    let first = lines[0];
    let indent = &first[..first.len() - first.trim_start().len()];
    if first.ends_with('}') || first.ends_with(';') {
        return 1;
    }
    let closing = format!("{indent}}}");
    let declared = |line: &str| {
        line.ends_with(';') && line.starts_with(indent) && !line[indent.len()..].starts_with(' ')
    };
    lines
        .iter()
        .position(|line| *line == closing || declared(line))
        .map_or(lines.len(), |end| end + 1)
}

/// Files and functions are short.
pub fn sizes(file: &File) -> Vec<String> {
    let path = &file.path;
    let mut violations = Vec::new();
    let lines: Vec<_> = file.text.lines().collect();
    if lines.len() > FILE_LINES_MAX {
        violations.push(format!("{path}: {} lines; at most {FILE_LINES_MAX}", lines.len()));
    }
    for (start, line) in lines.iter().enumerate() {
        if !starts_function(code_of(line)) {
            continue;
        }
        let length = function_length(&lines[start..]);
        if length > FUNCTION_LINES_MAX {
            violations.push(format!(
                "{path}:{}: a function of {length} lines; at most {FUNCTION_LINES_MAX}",
                start + 1
            ));
        }
    }
    violations
}

/// No file names a path of one machine.
pub fn machine_paths(file: &File) -> Vec<String> {
    let marks = [concat!("/wo", "rk/"), concat!("/ro", "ot/"), concat!("../sha", "red")];
    let lines = file.text.lines().enumerate();
    lines
        .filter(|(_, line)| marks.iter().any(|mark| line.contains(mark)))
        .map(|(index, _)| format!("{}:{}: names a path of one machine", file.path, index + 1))
        .collect()
}

/// Every file says first what it is about.
pub fn introductions(file: &File) -> Vec<String> {
    if file.text.starts_with("//!") || file.path.ends_with("/tests.rs") {
        return Vec::new();
    }
    vec![format!("{}:1: a file starts with `//!` and says what it is about", file.path)]
}

fn in_src(text: &str) -> File {
    File::new("src/task/mod.rs", text)
}

#[test]
fn the_rules_fire_on_bad_code() {
    let fires: &[(Rule, &str)] = &[
        (banned, "fn f() { let m = std::collections::HashMap::new(); }"),
        (banned, "fn f() { std::thread::spawn(|| ()); }"),
        (banned, "fn f() { x.unwrap(); }"),
        (banned, "#[cfg(test)]\nmod kit;\nfn f() { tokio::spawn(x); }"),
        (machine_paths, concat!("const P: &str = \"/wo", "rk/x\";")),
        (unfinished, concat!("fn f() { todo", "!() }")),
        (unfinished, concat!("#[ign", "ore]\nfn f() {}")),
        (unbiased_selects, concat!("    tokio::select", "! {\n        a = b => {}")),
        (unbiased_selects, concat!("    tokio::select", "!(a = b => {})")),
        (introductions, "use std::fmt;"),
    ];
    for (rule, snippet) in fires {
        assert_eq!(rule(&in_src(snippet)).len(), 1, "{snippet}");
    }
}

#[test]
fn the_rules_let_good_code_pass() {
    let passes: &[(Rule, &str)] = &[
        (banned, "// HashMap is banned\nuse std::collections::BTreeMap;"),
        (banned, "fn f() {}\n#[cfg(test)]\nmod tests {\n    use std::collections::HashMap;\n}"),
        (
            unbiased_selects,
            concat!("    tokio::select", "! {\n        biased;\n        a = b => {}"),
        ),
        (introductions, "//! About.\n"),
    ];
    for (rule, snippet) in passes {
        assert_eq!(rule(&in_src(snippet)), Vec::<String>::new(), "{snippet}");
    }
    assert!(banned(&File::new("tests/x.rs", "use std::collections::HashMap;")).is_empty());
    assert!(banned(&File::new(DRIVERS[0], "fn f() { Instant::now(); }")).is_empty());
    assert!(!banned(&File::new(DRIVERS[0], "fn f() { SystemTime::now(); }")).is_empty());
    assert!(banned(&File::new(PRODUCTION_ADAPTERS[0], "fn f() { SystemTime::now(); }")).is_empty());
}

#[test]
fn sizes_count_whole_functions_and_files() {
    let body = |lines: usize| "        let x = 1;\n".repeat(lines);
    for start in ["fn f() {", "pub(crate) async fn f(\n    a: u8,\n) -> u8 {", "    fn f() {"] {
        let indent = &start[..start.len() - start.trim_start().len()];
        let head = start.lines().count();
        let fits = format!("{start}\n{}{indent}}}\n", body(FUNCTION_LINES_MAX - head - 1));
        assert!(sizes(&in_src(&fits)).is_empty(), "{start}");
        let long = format!("{start}\n{}{indent}}}\n", body(FUNCTION_LINES_MAX - head));
        assert_eq!(sizes(&in_src(&long)).len(), 1, "{start}");
    }
    let short = format!("fn f() {{}}\nfn g();\n{}", body(FUNCTION_LINES_MAX));
    assert!(sizes(&in_src(&short)).is_empty());
    assert_eq!(sizes(&in_src(&"\n".repeat(FILE_LINES_MAX + 1))).len(), 1);
}
