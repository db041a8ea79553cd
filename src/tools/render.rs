//! Texts of the Task tools, and how they fit into a Task's byte limit (fact-sheet 8.3). The limit
//! counts bytes of the whole rendered result; no character is ever split.

use crate::task::TaskSnapshot;

/// Marks a shortened output.
pub const OUTPUT_TRUNCATED: &str = "[output truncated]";
/// Marks any other shortened result.
pub const RESULT_TRUNCATED: &str = "[result truncated]";
/// Marks a shortened notice.
pub const NOTICE_TRUNCATED: &str = "[notice truncated]";
/// What a shortened notice still asks for.
const NOTICE_ACTION: &str = "Done; task_output.";
/// The body of a read that found nothing.
const NO_OUTPUT: &str = "(no new output)";

/// `[status: S]` or `[status: S, detail]`.
pub fn status_line(task: &TaskSnapshot) -> String {
    match &task.detail {
        Some(detail) => format!("[status: {}, {detail}]", task.status),
        None => format!("[status: {}]", task.status),
    }
}

/// The longest prefix of at most `bytes`.
fn head(text: &str, bytes: usize) -> &str {
    if text.len() <= bytes {
        return text;
    }
    let cut = (0..=bytes).rev().find(|cut| text.is_char_boundary(*cut)).unwrap_or(0);
    &text[..cut]
}

/// The longest suffix of at most `bytes`.
fn tail(text: &str, bytes: usize) -> &str {
    let least = text.len().saturating_sub(bytes);
    let cut = (least..=text.len()).find(|cut| text.is_char_boundary(*cut)).unwrap_or(text.len());
    &text[cut..]
}

fn limit_of(task: &TaskSnapshot) -> usize {
    let limit = task.output_limit_bytes.unwrap_or(u64::MAX);
    usize::try_from(limit).unwrap_or(usize::MAX)
}

/// A read's text: the body, or a word for none, then the status line. Too long, it keeps the
/// body's tail and the status line.
pub fn output(text: &str, task: &TaskSnapshot) -> String {
    let limit = limit_of(task);
    let status = status_line(task);
    let body = if text.is_empty() { NO_OUTPUT } else { text };
    let body = body.strip_suffix('\n').unwrap_or(body);
    let whole = format!("{body}\n{status}");
    if whole.len() <= limit {
        return whole;
    }
    let fixed = OUTPUT_TRUNCATED.len() + 1 + status.len();
    match limit.checked_sub(fixed + 1) {
        Some(room) if room > 0 => {
            format!("{OUTPUT_TRUNCATED}\n{}\n{status}", tail(body, room))
        }
        _ if fixed <= limit => format!("{OUTPUT_TRUNCATED}\n{status}"),
        _ => tail(&status, limit).to_owned(),
    }
}

/// Any other result within `limit` bytes: the head, and a mark that it was cut.
pub fn bounded(text: &str, limit: u64) -> String {
    let limit = usize::try_from(limit).unwrap_or(usize::MAX);
    if text.len() <= limit {
        return text.to_owned();
    }
    match limit.checked_sub(RESULT_TRUNCATED.len() + 1) {
        Some(room) if room > 0 => format!("{}\n{RESULT_TRUNCATED}", head(text, room)),
        _ => head(RESULT_TRUNCATED, limit).to_owned(),
    }
}

/// The one notice of a Task (fact-sheet 4.5). Too long, it keeps the id and a short action for as
/// long as they fit, then the tail of the action.
pub fn notice(task: &TaskSnapshot) -> String {
    let limit = limit_of(task);
    let (id, kind, label) = (&task.id, &task.kind, &task.label);
    let status = status_line(task);
    let whole = format!(
        "background task {id} ({kind}: {label}) finished {status}. Read its output with \
         task_output."
    );
    if whole.len() <= limit {
        return whole;
    }
    let short = format!(" {NOTICE_TRUNCATED} {NOTICE_ACTION}");
    let named = format!("background task {id}");
    let candidates = [
        limit
            .checked_sub(short.len())
            .filter(|room| *room >= named.len())
            .map(|room| format!("{}{short}", head(&whole, room).trim_end())),
        Some(format!("{id}{short}")),
        Some(format!("{id} {NOTICE_ACTION}")),
    ];
    let fits = candidates.into_iter().flatten().find(|text| text.len() <= limit);
    fits.unwrap_or_else(|| tail(NOTICE_ACTION, limit).to_owned())
}

/// `<id> [<kind>] <status> — <label>`, one line a Task.
pub fn list(tasks: &[TaskSnapshot]) -> String {
    if tasks.is_empty() {
        return "(no background tasks)".to_owned();
    }
    let line = |task: &TaskSnapshot| {
        format!("{} [{}] {} — {}", task.id, task.kind, task.status, task.label)
    };
    tasks.iter().map(line).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::ids::TaskId;
    use crate::vocabulary::TaskStatus;

    fn task(limit: Option<u64>, label: &str, detail: Option<&str>) -> TaskSnapshot {
        TaskSnapshot {
            id: TaskId::new("bash-1"),
            kind: "bash".to_owned(),
            label: label.to_owned(),
            output_limit_bytes: limit,
            owner_session: None,
            owner: None,
            status: TaskStatus::Completed,
            code: None,
            detail: detail.map(ToOwned::to_owned),
            started_at: 0,
            finished_at: Some(0),
            reported: false,
        }
    }

    #[test]
    fn a_body_that_ends_in_a_newline_gets_no_second_one() {
        let task = task(None, "x", None);
        assert_eq!(output("a\n", &task), "a\n[status: completed]");
        assert_eq!(output("a\n\n", &task), "a\n\n[status: completed]");
        assert_eq!(output("", &task), "(no new output)\n[status: completed]");
    }

    proptest! {
        #[test]
        fn nothing_exceeds_its_limit(text in ".{0,80}", label in ".{1,40}", limit in 1_u64..120) {
            let task = task(Some(limit), &label, Some("detail"));
            let fits = |text: String| text.len() as u64 <= limit;
            prop_assert!(fits(output(&text, &task)));
            prop_assert!(fits(bounded(&text, limit)));
            prop_assert!(fits(notice(&task)));
        }

        #[test]
        fn a_limit_that_suffices_changes_nothing(text in ".{0,80}", label in ".{1,40}") {
            let (free, wide) = (task(None, &label, None), task(Some(4_096), &label, None));
            prop_assert_eq!(output(&text, &free), output(&text, &wide));
            prop_assert_eq!(notice(&free), notice(&wide));
            prop_assert_eq!(bounded(&text, 4_096), text);
        }
    }
}
