//! The scenario table: every number of the fact-sheet's §10 has a test that claims it, or a reason.

use std::collections::{BTreeMap, BTreeSet};

use crate::source::File;

/// The last number of the fact-sheet's §10.
pub const LAST: u16 = 301;

/// One scenario test as its source tells it.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Claim {
    /// The numbers in its doc line.
    pub numbers: BTreeSet<u16>,
    /// Whether it is a test.
    pub test: bool,
}

fn is_table(file: &File) -> bool {
    file.path.starts_with("tests/scenarios/")
}

/// Reads the `(number, "test")` pairs of a module's `COVERED` list.
fn covered(text: &str) -> Vec<(u16, String)> {
    const HEAD: &str = "COVERED: &[(u16, &str)] = &[";
    let Some(start) = text.find(HEAD) else { return Vec::new() };
    let list = &text[start + HEAD.len()..];
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
    const HEAD: &str = "OUT: &[(u16, u16, &str)] = &[";
    let Some(start) = text.find(HEAD) else { return Vec::new() };
    let list = &text[start + HEAD.len()..];
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

/// Reads a doc line `Scenario N.` or `Scenarios N, M.`; `None` if it is not of that form.
fn numbers_of(doc: &str) -> Option<BTreeSet<u16>> {
    let (one, rest) = match doc.strip_prefix("Scenario ") {
        Some(rest) => (true, rest),
        None => (false, doc.strip_prefix("Scenarios ")?),
    };
    let (list, _) = rest.split_once('.')?;
    let numbers = list.split(", ").map(|number| number.parse().ok());
    let numbers: BTreeSet<u16> = numbers.collect::<Option<_>>()?;
    (one == (numbers.len() == 1)).then_some(numbers)
}

/// Every function with a scenario line in its docs, by name, and the lines of another form.
fn claims(file: &File) -> (BTreeMap<String, Claim>, Vec<String>) {
    let mut claims: BTreeMap<String, Claim> = BTreeMap::new();
    let mut malformed = Vec::new();
    let mut pending = Claim::default();
    for (index, line) in file.text.lines().enumerate() {
        let line = line.trim();
        if let Some(doc) = line.strip_prefix("/// ").filter(|doc| doc.starts_with("Scenario")) {
            match numbers_of(doc) {
                Some(mut numbers) => pending.numbers.append(&mut numbers),
                None => malformed.push(format!(
                    "{}:{}: write `Scenario 1.` or `Scenarios 1, 2.`: {doc}",
                    file.path,
                    index + 1
                )),
            }
        } else if line.starts_with("#[") {
            pending.test |= line == "#[test]" || line.starts_with("#[tokio::test");
        } else if line.contains("fn ") {
            let name = line.split("fn ").nth(1).unwrap_or_default();
            let name = name.split(['(', '<']).next().unwrap_or_default().to_owned();
            let claim = std::mem::take(&mut pending);
            if !claim.numbers.is_empty() {
                claims.insert(name, claim);
            }
        } else if !line.starts_with("///") {
            pending = Claim::default();
        }
    }
    (claims, malformed)
}

/// A module's list and its tests' doc lines say the same.
pub fn claimed_and_listed(file: &File) -> Vec<String> {
    if !is_table(file) {
        return Vec::new();
    }
    let path = &file.path;
    let (claims, mut violations) = claims(file);
    let listed: BTreeSet<(u16, String)> = covered(&file.text).into_iter().collect();
    for (number, test) in &listed {
        match claims.get(test) {
            Some(claim) if claim.numbers.contains(number) && claim.test => {}
            _ => violations.push(format!("{path}: {number} -> {test}: no test with that doc line")),
        }
    }
    for (test, claim) in claims {
        for number in claim.numbers {
            if !listed.contains(&(number, test.clone())) {
                violations.push(format!("{path}: {test} claims {number}, COVERED does not"));
            }
        }
    }
    violations
}

/// Every number is covered, or out for a reason; none is both.
pub fn complete(files: &[File]) -> Vec<String> {
    let mut homes: BTreeMap<u16, BTreeSet<String>> = BTreeMap::new();
    let mut out: BTreeMap<u16, usize> = BTreeMap::new();
    let mut violations = Vec::new();
    for file in files.iter().filter(|file| is_table(file)) {
        for (number, _) in covered(&file.text) {
            homes.entry(number).or_default().insert(file.path.clone());
        }
        for (first, last, reason) in out_of_scope(&file.text) {
            if reason.len() < 10 || first > last {
                violations.push(format!("{}: ({first}, {last}) needs a reason", file.path));
            }
            for number in first..=last {
                *out.entry(number).or_default() += 1;
            }
        }
    }
    for number in homes.keys().chain(out.keys()) {
        if !(1..=LAST).contains(number) {
            violations.push(format!("there is no scenario {number}"));
        }
    }
    for number in 1..=LAST {
        let home = homes.get(&number);
        match (home, out.get(&number)) {
            (None, None) => violations.push(format!("scenario {number} has no test")),
            (Some(_), Some(_)) => violations.push(format!("scenario {number} is covered and out")),
            (None, Some(2..)) => violations.push(format!("scenario {number} is out twice")),
            _ => {}
        }
        if home.is_some_and(|home| home.len() > 1) {
            violations.push(format!("scenario {number} is covered in {:?}", home));
        }
    }
    violations
}

/// Scenario modules that the binary's table leaves out.
pub fn unlisted_modules(files: &[File]) -> Vec<String> {
    let table = files.iter().find(|file| file.path == "tests/scenarios/main.rs");
    let text = table.map_or("", |file| file.text.as_str());
    let modules = files.iter().filter(|file| is_table(file) && !covered(&file.text).is_empty());
    modules
        .filter_map(|file| {
            let name = file.path.strip_prefix("tests/scenarios/")?.strip_suffix(".rs")?;
            let row = format!("(\"{name}\", {name}::COVERED)");
            (!text.contains(&row)).then(|| format!("tests/scenarios/main.rs lacks {row}"))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = "tests/scenarios/x.rs";

    fn table(text: &str) -> File {
        File::new(TABLE, text)
    }

    const GOOD: &str = "pub const COVERED: &[(u16, &str)] = &[\n    (1, \"a_claim\"),\n    (2, \"a_claim\"),\n];\n\n\
        /// Scenarios 1, 2. More words. And more.\n/// And a line.\n#[tokio::test]\nasync fn a_claim() {}\n";

    #[test]
    fn a_list_and_its_claims_agree() {
        assert_eq!(claimed_and_listed(&table(GOOD)), Vec::<String>::new());
        for (from, to) in [
            ("(2, \"a_claim\")", "(3, \"a_claim\")"),
            ("async fn a_claim", "async fn another"),
            ("Scenarios 1, 2.", "Scenario 1, 2."),
            ("Scenarios 1, 2.", "Scenarios 1 and 2."),
            ("#[tokio::test]\n", ""),
            ("    (2, \"a_claim\"),\n", ""),
            ("#[tokio::test]", "fn helper() {}\n#[tokio::test]"),
        ] {
            let bad = GOOD.replacen(from, to, 1);
            assert_ne!(bad, GOOD);
            assert!(!claimed_and_listed(&table(&bad)).is_empty(), "{from} -> {to}");
        }
        assert!(claimed_and_listed(&File::new("tests/other.rs", "/// Scenarios x\n")).is_empty());
    }

    #[test]
    fn every_number_has_one_home() {
        let out =
            "const OUT: &[(u16, u16, &str)] = &[\n    (3, 301, \"because of reasons\"),\n];\n";
        let main = File::new("tests/scenarios/main.rs", out);
        let good = [main.clone(), table(GOOD)];
        assert_eq!(complete(&good), Vec::<String>::new());
        assert_eq!(complete(&good[1..]).len(), 299);
        let elsewhere = File::new("tests/scenarios/y.rs", GOOD);
        assert_eq!(complete(&[good[0].clone(), good[1].clone(), elsewhere]).len(), 2);
        let both = File::new("tests/scenarios/main.rs", &out.replace("(3,", "(2,"));
        assert_eq!(complete(&[both, table(GOOD)]), ["scenario 2 is covered and out"]);
        let reasonless = File::new("tests/scenarios/main.rs", &out.replace("because of ", ""));
        assert_eq!(complete(&[reasonless, table(GOOD)]).len(), 1);
        let unknown = table(&GOOD.replace("(2,", "(302,"));
        assert!(complete(&[main, unknown]).contains(&"there is no scenario 302".to_owned()));
    }

    #[test]
    fn every_module_is_in_the_table() {
        let main = |text: &str| File::new("tests/scenarios/main.rs", text);
        assert_eq!(unlisted_modules(&[main(""), table(GOOD)]).len(), 1);
        assert!(unlisted_modules(&[main("(\"x\", x::COVERED),"), table(GOOD)]).is_empty());
    }
}
