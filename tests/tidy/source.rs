//! The workspace's Rust files, and which of their lines are production code.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// One Rust file.
#[derive(Debug, Clone)]
pub struct File {
    /// Its path from the workspace's root, with forward slashes.
    pub path: String,
    /// Its text.
    pub text: String,
    /// Whether it is a module declared under `#[cfg(test)]`, or lies in one.
    pub test_only: bool,
}

impl File {
    /// A file that is no test module.
    pub fn new(path: &str, text: &str) -> Self {
        Self { path: path.to_owned(), text: text.to_owned(), test_only: false }
    }

    /// Whether its production lines are held to the rules of `src/` and `sim/src/`.
    pub fn is_production(&self) -> bool {
        let inside = self.path.starts_with("src/") || self.path.starts_with("sim/src/");
        inside && !self.test_only
    }

    /// The lines outside `#[cfg(test)]` items, without comments, numbered from 1.
    pub fn production(&self) -> Vec<(usize, &str)> {
        let mut kept = Vec::new();
        if self.test_only {
            return kept;
        }
        let mut lines = self.text.lines().enumerate();
        while let Some((index, line)) = lines.next() {
            if line.trim() == "#[cfg(test)]" {
                skip_item(&mut lines);
            } else {
                kept.push((index + 1, code_of(line)));
            }
        }
        kept
    }
}

/// Passes over the item that follows an attribute: to its semicolon, or to the closing brace at the
/// item's own indentation.
fn skip_item<'a>(lines: &mut impl Iterator<Item = (usize, &'a str)>) {
    let mut closing = None;
    for (_, line) in lines {
        match &closing {
            Some(brace) if line == brace => return,
            Some(_) => {}
            None if line.trim_start().starts_with("#[") => {}
            None if line.ends_with(';') || line.ends_with('}') => return,
            None => {
                let indent = &line[..line.len() - line.trim_start().len()];
                closing = Some(format!("{indent}}}"));
            }
        }
    }
}

/// The part of a line before a `//` comment; good enough for code that rustfmt wrote.
pub fn code_of(line: &str) -> &str {
    if line.trim_start().starts_with("//") {
        return "";
    }
    line.split(" // ").next().unwrap_or(line)
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

/// The workspace's root.
pub fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

/// Every Rust file of the workspace.
pub fn workspace() -> Vec<File> {
    let root = root();
    let mut found = Vec::new();
    for part in ["src", "tests", "sim", "benches", "examples"] {
        rust_files(&root.join(part), &mut found);
    }
    assert!(found.len() > 20, "the workspace has sources");
    let files = found.into_iter().map(|path| {
        let text = fs::read_to_string(&path).expect("a source file is readable text");
        let name = path.strip_prefix(&root).expect("below the root");
        File::new(&name.to_string_lossy().replace('\\', "/"), &text)
    });
    let mut files: Vec<_> = files.collect();
    mark_test_modules(&mut files);
    files
}

/// Marks the files of modules that are declared under `#[cfg(test)]`.
pub fn mark_test_modules(files: &mut [File]) {
    let declared: BTreeSet<String> = files.iter().flat_map(declared_test_modules).collect();
    for file in files {
        let stem = file.path.strip_suffix(".rs").unwrap_or(&file.path);
        file.test_only = declared.iter().any(|module| {
            stem == module || stem.strip_prefix(module).is_some_and(|rest| rest.starts_with('/'))
        });
    }
}

/// The test modules a file declares, as paths without `.rs`.
fn declared_test_modules(file: &File) -> Vec<String> {
    let stem = file.path.strip_suffix(".rs").unwrap_or(&file.path);
    let (parent, name) = stem.rsplit_once('/').unwrap_or(("", stem));
    let folder = if ["mod", "lib", "main"].contains(&name) { parent } else { stem };
    let lines: Vec<_> = file.text.lines().map(str::trim).collect();
    lines
        .windows(2)
        .filter(|pair| pair[0] == "#[cfg(test)]")
        .filter_map(|pair| {
            let (_, declared) = pair[1].split_once("mod ")?;
            Some(format!("{folder}/{}", declared.strip_suffix(';')?))
        })
        .collect()
}

#[test]
fn a_test_item_is_skipped_wherever_it_stands() {
    let text = "use a;\n#[cfg(test)]\nmod kit;\nuse b;\n#[cfg(test)]\n#[allow(x)]\nmod tests {\n    \
        fn f() {\n    }\n}\nuse c; // not code\n// nor this\n";
    let file = File::new("src/x/mod.rs", text);
    let lines: Vec<_> =
        file.production().into_iter().filter(|(_, code)| !code.is_empty()).collect();
    assert_eq!(lines, [(1, "use a;"), (4, "use b;"), (11, "use c;")]);
}

#[test]
fn a_module_declared_for_tests_is_no_production_code() {
    let mut files = [
        File::new("src/x/mod.rs", "#[cfg(test)]\nmod kit;\nmod real;\n"),
        File::new("src/x/kit.rs", ""),
        File::new("src/x/kit/more.rs", ""),
        File::new("src/x/real.rs", "#[cfg(test)]\nmod tests;\n"),
        File::new("src/x/real/tests.rs", ""),
        File::new("src/x/kitten.rs", ""),
    ];
    mark_test_modules(&mut files);
    let marked: Vec<_> = files.iter().map(|file| file.test_only).collect();
    assert_eq!(marked, [false, true, true, false, true, false]);
}
