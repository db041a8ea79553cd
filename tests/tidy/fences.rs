//! The layers: which module may name which (architecture §3), and the closed set of cores.

use std::collections::BTreeSet;

use crate::source::File;

/// Words that everybody may use.
const WORDS: &[&str] = &["ids", "error", "vocabulary", "message", "points", "facts"];

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
    "wire",
];

/// For each module of `src/`, the modules it may name. `base` stands for [`BASE`], `cores` for
/// [`CORES`].
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
    ("wire", &["runtime"]),
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
    ("adapter", &["base", "session", "store", "agent", "task", "provider", "control", "sections"]),
    (
        "assembly",
        &[
            "base", "session", "store", "model", "agent", "task", "provider", "control", "tools",
            "adapter",
        ],
    ),
];

/// For a module of `sim/src/`: what it may name of its own crate and of the library. Modules
/// without a row are engines and tools; these must not see them, so that one check judges every
/// engine, saved traces, and logs from elsewhere.
const SIM_FENCES: &[(&str, &[&str])] = &[
    ("trace", &["plan"]),
    ("invariants", &["trace", "plan", "oracle"]),
    ("oracle", &["trace", "plan"]),
];

/// What those modules may name of the library, beside its words.
const SIM_LIBRARY: &[&str] = &["session", "sync"];

/// The pure cores: included by `tests/loom.rs` with another `sync`, so a closed set.
pub const CORES: &[&str] = &[
    "src/cancel/slot.rs",
    "src/agent/inbox.rs",
    "src/agent/registry.rs",
    "src/agent/steering.rs",
    "src/task/record.rs",
    "src/task/table.rs",
    "src/control/association.rs",
    "src/control/route.rs",
];

/// What a core may use of `sync`: nothing that locks.
const CORE_SYNC: &[&str] = &["sync::Access", "sync::ObjectKind", "sync::touch", "sync::key_of"];

/// Test tools that `src/` never names.
const TEST_TOOLS: &[&str] = &["turmoil", "loom", "proptest", "shuttle"];

fn module_of_core(path: &str) -> String {
    path["src/".len()..path.len() - ".rs".len()].replace('/', "::")
}

/// The module path of a file in its crate: `src/model/script/steps.rs` is `model, script, steps`.
fn module_path(path: &str) -> Option<Vec<&str>> {
    let inside = path.strip_prefix("src/").or_else(|| path.strip_prefix("sim/src/"))?;
    let mut parts: Vec<_> = inside.strip_suffix(".rs")?.split('/').collect();
    if matches!(parts.last(), Some(&"mod" | &"lib" | &"main")) {
        parts.pop();
    }
    Some(parts)
}

/// A path that a file names, resolved from the root of its crate, and the line of it.
#[derive(Debug, PartialEq, Eq)]
struct Named {
    line: usize,
    path: Vec<String>,
}

/// Every path below `root::` that the production code names, brace groups expanded. `super` is
/// resolved when `root` is `crate`.
fn named(file: &File, root: &str) -> Vec<Named> {
    let mut text = String::new();
    let mut starts = Vec::new();
    for (number, line) in file.production() {
        starts.push((text.len(), number));
        text.push_str(line);
        text.push('\n');
    }
    let own = module_path(&file.path).unwrap_or_default();
    let mut found = Vec::new();
    let mut at = 0;
    while at < text.len() {
        let rest = &text[at..];
        let boundary = text[..at].chars().next_back().is_none_or(|c| !is_word(c) && c != ':');
        let supers = if root == "crate" && boundary { count_supers(rest) } else { 0 };
        let (prefix, skipped) = match rest.strip_prefix(root).and_then(|r| r.strip_prefix("::")) {
            Some(_) if boundary => (Vec::new(), root.len() + 2),
            // Inside the file's own top module `super` names nothing new, but still a path.
            _ if supers > 0 => {
                let kept = own.len().saturating_sub(supers);
                (own[..kept].iter().map(ToString::to_string).collect(), supers * "super::".len())
            }
            _ => {
                at += rest.chars().next().map_or(1, char::len_utf8);
                continue;
            }
        };
        let line = starts.iter().rev().find(|(start, _)| *start <= at).map_or(0, |(_, n)| *n);
        let (paths, used) = expand(&rest[skipped..], prefix);
        found.extend(paths.into_iter().map(|path| Named { line, path }));
        at += skipped + used.max(1);
    }
    found
}

fn is_word(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_'
}

fn count_supers(text: &str) -> usize {
    let mut rest = text;
    let mut count = 0;
    while let Some(more) = rest.strip_prefix("super::") {
        rest = more;
        count += 1;
    }
    count
}

/// Reads `a::b::{c, d::e}` after `prefix`: the full paths, and how many bytes were read.
fn expand(text: &str, prefix: Vec<String>) -> (Vec<Vec<String>>, usize) {
    let mut path = prefix;
    let mut at = 0;
    loop {
        let rest = &text[at..];
        if rest.starts_with('{') {
            return expand_group(text, at, &path);
        }
        let word: String = rest.chars().take_while(|c| is_word(*c) || *c == '*').collect();
        if word.is_empty() {
            return (vec![path], at);
        }
        at += word.len();
        if word != "self" {
            path.push(word);
        }
        match text[at..].strip_prefix("::") {
            Some(next) if !next.starts_with('<') => at += 2,
            _ => return (vec![path], at),
        }
    }
}

fn expand_group(text: &str, open: usize, path: &[String]) -> (Vec<Vec<String>>, usize) {
    let mut at = open + 1;
    let mut paths = Vec::new();
    while at < text.len() {
        let rest = &text[at..];
        match rest.chars().next() {
            Some('}') => return (paths, at + 1),
            Some(c) if is_word(c) || c == '*' || c == '{' => {
                let (more, used) = expand(rest, path.to_vec());
                paths.extend(more);
                at += used.max(1);
            }
            Some(c) => at += c.len_utf8(),
            None => break,
        }
    }
    (paths, at)
}

/// Layers name only what lies below them.
pub fn fences(file: &File) -> Vec<String> {
    if !file.path.starts_with("src/") || file.test_only {
        return Vec::new();
    }
    let Some(module) = module_path(&file.path).and_then(|path| path.first().copied()) else {
        return Vec::new();
    };
    let path = &file.path;
    let Some((_, allowed)) = FENCES.iter().find(|(name, _)| *name == module) else {
        return vec![format!("{path}: the module `{module}` has no row in the fence table")];
    };
    let mut free: BTreeSet<&str> = allowed.iter().copied().collect();
    free.insert(module);
    if free.contains("base") {
        free.extend(BASE);
    }
    let cores: Vec<_> = CORES.iter().map(|core| module_of_core(core)).collect();
    named(file, "crate")
        .into_iter()
        .filter(|named| {
            let joined = named.path.join("::");
            let core = free.contains("cores") && cores.iter().any(|core| below(&joined, core));
            !core && named.path.first().is_none_or(|first| !free.contains(first.as_str()))
        })
        .map(|named| {
            let joined = named.path.join("::");
            format!("{path}:{}: `{module}` may not name `crate::{joined}`", named.line)
        })
        .collect()
}

/// Whether `path` is `module` or lies in it.
fn below(path: &str, module: &str) -> bool {
    path.strip_prefix(module).is_some_and(|rest| rest.is_empty() || rest.starts_with("::"))
}

/// The judges of the simulator see traces, not the engines that made them.
pub fn sim_fences(file: &File) -> Vec<String> {
    if !file.path.starts_with("sim/src/") || file.test_only {
        return Vec::new();
    }
    let module = module_path(&file.path).and_then(|path| path.first().copied());
    let Some((module, allowed)) = SIM_FENCES.iter().find(|(name, _)| Some(*name) == module) else {
        return Vec::new();
    };
    let own = named(file, "crate").into_iter().map(|named| ("crate", named));
    let library = named(file, "continuable").into_iter().map(|named| ("continuable", named));
    own.chain(library)
        .filter(|(root, named)| {
            let first = named.path.first().map_or("", String::as_str);
            match *root {
                "crate" => first != *module && !allowed.contains(&first),
                _ => !WORDS.contains(&first) && !SIM_LIBRARY.contains(&first),
            }
        })
        .map(|(root, named)| {
            let joined = named.path.join("::");
            format!("{}:{}: `{module}` may not name `{root}::{joined}`", file.path, named.line)
        })
        .collect()
}

/// The cores name words, `touch` and each other: no lock, no clock, nothing asynchronous.
pub fn closed_cores(file: &File) -> Vec<String> {
    let path = &file.path;
    if !CORES.contains(&path.as_str()) {
        return Vec::new();
    }
    let cores: Vec<_> = CORES.iter().map(|core| module_of_core(core)).collect();
    let allowed = |joined: &str| {
        WORDS.iter().chain(CORE_SYNC).any(|word| below(joined, word))
            || cores.iter().any(|core| below(joined, core))
    };
    let foreign = named(file, "crate").into_iter().filter_map(|named| {
        let joined = named.path.join("::");
        (!allowed(&joined))
            .then(|| format!("{path}:{}: a core may not name `crate::{joined}`", named.line))
    });
    let tokens = ["Mutex", "tokio", "async ", "std::sync", "std::time"];
    let lines = file.production().into_iter().filter(|(_, line)| {
        let arc = line.trim() == "use std::sync::Arc;";
        !arc && tokens.iter().any(|token| line.contains(token))
    });
    let impure = lines
        .map(|(number, line)| format!("{path}:{number}: a core may not name: {}", line.trim()));
    foreign.chain(impure).collect()
}

/// `tests/loom.rs` includes every core, and beside them only words and sections.
pub fn loom_includes(file: &File) -> Vec<String> {
    if file.path != "tests/loom.rs" {
        return Vec::new();
    }
    let included: BTreeSet<&str> = file
        .text
        .lines()
        .filter_map(|line| line.trim().strip_prefix("#[path = \"../")?.strip_suffix("\"]"))
        .collect();
    let words: Vec<_> = WORDS.iter().map(|word| format!("src/{word}.rs")).collect();
    let missing = CORES.iter().filter(|core| !included.contains(*core));
    let extra = included.iter().filter(|path| {
        path.starts_with("src/")
            && !path.starts_with("src/sections/")
            && !CORES.contains(path)
            && !words.iter().any(|word| word == *path)
    });
    missing
        .map(|core| format!("tests/loom.rs does not include the core {core}"))
        .chain(extra.map(|path| format!("tests/loom.rs includes {path}, which is no core")))
        .collect()
}

/// The library never names a tool of its tests.
pub fn test_tools(file: &File) -> Vec<String> {
    if !file.path.starts_with("src/") {
        return Vec::new();
    }
    let mut violations = Vec::new();
    for (number, line) in file.production() {
        for tool in TEST_TOOLS.iter().filter(|tool| line.contains(&format!("{tool}::"))) {
            violations.push(format!("{}:{number}: `src/` may not name `{tool}`", file.path));
        }
    }
    violations
}

/// The test tools that a manifest lists among its dependencies proper.
pub fn shipped_test_tools(manifest: &str) -> Vec<String> {
    let dependencies = manifest.split("\n[dependencies]\n").nth(1).unwrap_or_default();
    let dependencies = dependencies.split("\n[").next().unwrap_or_default();
    let names = dependencies.lines().filter_map(|line| line.split(['=', '.', ' ']).next());
    names.filter(|name| TEST_TOOLS.contains(name)).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(rule: fn(&File) -> Vec<String>, path: &str, text: &str) -> usize {
        rule(&File::new(path, text)).len()
    }

    fn paths(path: &str, text: &str) -> Vec<String> {
        let found = named(&File::new(path, text), "crate");
        found.into_iter().map(|named| named.path.join("::")).collect()
    }

    #[test]
    fn named_paths_are_expanded_and_resolved() {
        let text =
            "use crate::a::{b, c::{self, D}};\nfn f() { crate::x::y::<u8>(); my_crate::z(); }";
        assert_eq!(paths("src/m.rs", text), ["a::b", "a::c", "a::c::D", "x::y"]);
        let text = "use super::{a, b::C};\nuse super::super::d;\nuse super::super::super::e::F;";
        let found = paths("src/m/n/o.rs", text);
        assert_eq!(found, ["m::n::a", "m::n::b::C", "m::d", "e::F"]);
        assert_eq!(paths("src/m/mod.rs", "use super::x::Y;"), ["x::Y"]);
        assert_eq!(paths("src/m.rs", "use crate::{\n    a::B,\n    c,\n};"), ["a::B", "c"]);
    }

    #[test]
    fn a_layer_may_not_name_a_higher_one() {
        let path = "src/task/mod.rs";
        for bad in [
            "use crate::control::route::Route;",
            "use crate::{ids::TaskId, control::route};",
            "use super::agent::Agent;",
            "fn f() { crate::provider::x(); }",
            "use crate::Everything;",
        ] {
            assert_eq!(count(fences, path, bad), 1, "{bad}");
        }
        for good in [
            "use crate::ids::TaskId;",
            "use super::super::task::x;",
            "// crate::control is above\n",
            "#[cfg(test)]\nmod tests {\n    use crate::agent::Agent;\n}",
        ] {
            assert_eq!(count(fences, path, good), 0, "{good}");
        }
        assert_eq!(count(fences, "src/task/record.rs", "use super::super::control::x;"), 1);
        assert_eq!(count(fences, "src/nowhere/mod.rs", ""), 1, "a module without a row");
        assert_eq!(count(fences, "src/lib.rs", "pub mod nowhere;"), 0);
    }

    #[test]
    fn sections_see_the_cores_and_not_the_drivers() {
        let path = "src/sections/steering.rs";
        assert_eq!(count(fences, path, "use crate::agent::steering::SteeringQueue;"), 0);
        assert_eq!(count(fences, path, "use crate::agent::turn::Turn;"), 1);
        assert_eq!(count(fences, path, "use crate::agent::steering_helpers::X;"), 1);
    }

    #[test]
    fn a_core_names_no_lock_no_clock_and_no_driver() {
        let core = "src/task/record.rs";
        for bad in [
            "use crate::runtime::Runtime;",
            "use crate::sync::{Access, Mutex};",
            "use super::service::TaskService;",
            "use tokio::sync::watch;",
            "pub async fn f() {}",
            "use crate::facts::Fact; use crate::channel::Latch;",
        ] {
            assert_ne!(count(closed_cores, core, bad), 0, "{bad}");
        }
        for good in [
            "use crate::sync::{Access, ObjectKind, key_of, touch};",
            "use super::table::TaskTable;",
            "use std::sync::Arc;",
        ] {
            assert_eq!(count(closed_cores, core, good), 0, "{good}");
        }
        assert_eq!(count(closed_cores, "src/task/mod.rs", "use crate::runtime::Runtime;"), 0);
    }

    #[test]
    fn loom_includes_exactly_the_cores() {
        let all: String =
            CORES.iter().map(|core| format!("#[path = \"../{core}\"]\nmod m;\n")).collect();
        assert_eq!(count(loom_includes, "tests/loom.rs", &all), 0);
        let more = format!("{all}#[path = \"../src/facts.rs\"]\n#[path = \"../src/runtime.rs\"]\n");
        assert_eq!(count(loom_includes, "tests/loom.rs", &more), 1);
        let fewer = all.replacen("src/cancel/slot.rs", "src/points.rs", 1);
        assert_eq!(count(loom_includes, "tests/loom.rs", &fewer), 1);
    }

    #[test]
    fn judges_see_no_engine() {
        let path = "sim/src/invariants/log.rs";
        assert_eq!(count(sim_fences, path, "use crate::explore::Executor;"), 1);
        assert_eq!(count(sim_fences, path, "use continuable::agent::Agent;"), 1);
        assert_eq!(count(sim_fences, path, "use super::{Finding, history::Story};"), 0);
        assert_eq!(
            count(sim_fences, path, "use crate::trace::Trace;\nuse continuable::ids::X;"),
            0
        );
        assert_eq!(count(sim_fences, "sim/src/explore/mod.rs", "use crate::disk::SimDisk;"), 0);
    }

    #[test]
    fn test_tools_are_not_shipped() {
        assert_eq!(count(test_tools, "src/sync.rs", "use loom::sync::Mutex;"), 1);
        assert_eq!(count(test_tools, "tests/loom.rs", "use loom::sync::Mutex;"), 0);
        let manifest = "[package]\n\n[dependencies]\nserde = 1\nloom = 1\n\n[dev-dependencies]\nproptest = 1\n";
        assert_eq!(shipped_test_tools(manifest), ["loom"]);
    }
}
