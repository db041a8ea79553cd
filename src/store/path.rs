//! Where a session lives below the store's root (fact-sheet 2.8).
//!
//! `root / project directory / session directory / session.jsonl`. The names are the reference's;
//! every character that could lead out of the root is escaped, so no id can (contract P13).

use crate::ids::{SESSION_ID_MAX_UNITS, SessionId};
use crate::store::disk::DiskPath;

/// The longest project slug, in UTF-16 units (fact-sheet §12).
const PROJECT_SLUG_MAX_UNITS: usize = 251;

/// The longest name that file systems take for one path component, in bytes.
const COMPONENT_MAX_BYTES: usize = 255;

/// The project directory of sessions without a working directory.
const NO_CWD: &str = "_no-cwd";

/// The file of a session log in plain text.
pub const LOG_FILE: &str = "session.jsonl";

/// The file of a compressed session log, which is not read (contract §1).
pub const COMPRESSED_LOG_FILE: &str = "session.jsonl.zstd";

/// The file that a store's lease stands for, in its root.
pub const LEASE_FILE: &str = ".lease";

/// Why an id cannot name a directory.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PathError {
    /// The id is the empty string.
    #[error("the session id is empty")]
    Empty,
    /// The id is longer than any caller may use (contract P5).
    #[error("the session id has {units} UTF-16 units; at most {SESSION_ID_MAX_UNITS} are allowed")]
    TooLong {
        /// Its length, in UTF-16 units.
        units: usize,
    },
    /// The escaped id is longer than a file name can be.
    #[error(
        "the session id needs a directory name of {bytes} bytes; file systems allow \
         {COMPONENT_MAX_BYTES}"
    )]
    NameTooLong {
        /// The length of the escaped name, in bytes.
        bytes: usize,
    },
}

fn is_plain(unit: u16) -> bool {
    u8::try_from(unit)
        .is_ok_and(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-'))
}

fn push_escaped(out: &mut String, unit: u16) {
    if is_plain(unit) {
        out.push(char::from(unit as u8));
    } else {
        out.push_str(&format!("~{unit:04X}"));
    }
}

/// The directory of sessions that work in `cwd`. Lossy by design: it groups for people, and the
/// header says the truth.
pub fn project_directory(cwd: Option<&str>) -> String {
    let Some(cwd) = cwd else { return NO_CWD.to_owned() };
    let mut slug = String::new();
    let mut in_separators = false;
    for unit in cwd.encode_utf16() {
        let separator = [b'/', b'\\', b':'].iter().any(|byte| u16::from(*byte) == unit);
        if !separator {
            push_escaped(&mut slug, unit);
        } else if !in_separators {
            slug.push('-');
        }
        in_separators = separator;
    }
    let slug = slug.trim_start_matches('-');
    // Escapes are ASCII, so a byte is a UTF-16 unit and a cut splits no pair.
    let slug = &slug[..slug.len().min(PROJECT_SLUG_MAX_UNITS)];
    format!("--{}--", if slug.is_empty() { "root" } else { slug })
}

/// The directory of session `id`: an injective escape, one UTF-16 unit at a time.
pub fn session_directory(id: &SessionId) -> Result<String, PathError> {
    let text = id.as_str();
    let units = text.encode_utf16().count();
    if units == 0 {
        return Err(PathError::Empty);
    }
    if units > SESSION_ID_MAX_UNITS {
        return Err(PathError::TooLong { units });
    }
    let mut name = String::new();
    if matches!(text, "." | "..") {
        // The only names made of plain characters that mean another directory.
        name = "~002E".repeat(units);
    } else {
        text.encode_utf16().for_each(|unit| push_escaped(&mut name, unit));
    }
    if name.len() > COMPONENT_MAX_BYTES {
        return Err(PathError::NameTooLong { bytes: name.len() });
    }
    Ok(name)
}

/// The id whose session directory is `name`; `None` for a name that no id escapes to.
pub fn session_of_directory(name: &str) -> Option<SessionId> {
    let mut units = Vec::new();
    let mut rest = name;
    while let Some(first) = rest.chars().next() {
        if first == '~' {
            let digits = rest.get(1..5)?;
            units.push(u16::from_str_radix(digits, 16).ok()?);
            rest = &rest[5..];
        } else {
            units.push(u16::try_from(u32::from(first)).ok()?);
            rest = &rest[first.len_utf8()..];
        }
    }
    let id = SessionId::new(String::from_utf16(&units).ok()?);
    (session_directory(&id).as_deref() == Ok(name)).then_some(id)
}

/// The places of one session's log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SessionPlace {
    /// The project directory.
    pub project: DiskPath,
    /// The session's own directory.
    pub directory: DiskPath,
    /// The log itself.
    pub log: DiskPath,
}

impl SessionPlace {
    /// Where the log of `id` belongs when its header says `cwd`.
    pub fn of(id: &SessionId, cwd: Option<&str>) -> Result<Self, PathError> {
        let session = session_directory(id)?;
        Ok(Self::at(&DiskPath::root().child(&project_directory(cwd)), &session))
    }

    /// The places below `project` in the directory named `session`.
    pub fn at(project: &DiskPath, session: &str) -> Self {
        let directory = project.child(session);
        let log = directory.child(LOG_FILE);
        Self { project: project.clone(), directory, log }
    }

    /// A name for a file that becomes the log once it is whole.
    pub fn temporary(&self, attempt: u64) -> DiskPath {
        self.directory.child(&format!(".{LOG_FILE}.{attempt}.tmp"))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn project_directories_are_the_reference_slugs() {
        for (cwd, want) in [
            ("/project", "--project--"),
            ("/home/me/my app", "--home-me-my~0020app--"),
            ("C:\\work\\x", "--C-work-x--"),
            ("///", "--root--"),
            ("", "--root--"),
            ("/a/~b/𝄞", "--a-~007Eb-~D834~DD1E--"),
            ("/-/x-y", "--x-y--"),
            ("/a/", "--a---"),
        ] {
            assert_eq!(project_directory(Some(cwd)), want, "{cwd}");
        }
        assert_eq!(project_directory(None), "_no-cwd");
        assert_eq!(project_directory(Some(&"é".repeat(400))).len(), 255);
    }

    #[test]
    fn hostile_ids_become_harmless_names_or_are_refused() {
        for (id, want) in [
            (".", "~002E"),
            ("..", "~002E~002E"),
            ("...", "..."),
            ("~", "~007E"),
            ("a/b", "a~002Fb"),
            ("\0", "~0000"),
            ("é", "~00E9"),
            ("..\\x", "..~005Cx"),
        ] {
            assert_eq!(session_directory(&SessionId::new(id)).as_deref(), Ok(want), "{id:?}");
        }
        assert_eq!(session_directory(&SessionId::new("")), Err(PathError::Empty));
        let long = SessionId::new("a".repeat(10_000));
        assert_eq!(session_directory(&long), Err(PathError::TooLong { units: 10_000 }));
        let wide = SessionId::new("é".repeat(100));
        assert_eq!(session_directory(&wide), Err(PathError::NameTooLong { bytes: 500 }));
    }

    proptest! {
        #[test]
        fn no_id_leaves_the_root_and_no_two_share_a_directory(
            a in any::<String>(), b in "[.~/\\\\A-F0-9\u{0}é]{0,8}"
        ) {
            for id in [&a, &b].map(|text| SessionId::new(text.as_str())) {
                let Ok(name) = session_directory(&id) else { continue };
                prop_assert!(name != "." && name != ".." && !name.is_empty());
                prop_assert!(name.bytes().all(|byte| is_plain(byte.into()) || byte == b'~'));
                prop_assert_eq!(session_of_directory(&name), Some(id));
            }
        }

        #[test]
        fn no_working_directory_leaves_the_root(cwd in any::<String>()) {
            let name = project_directory(Some(&cwd));
            prop_assert!(name.len() <= 255 && name.starts_with("--"));
            prop_assert!(name.bytes().all(|byte| is_plain(byte.into()) || byte == b'~'));
        }
    }
}
