//! The fencing number in a lease file, as text. Pure: both disks use it.
//!
//! The file has two slots of one line each, a number with twenty digits. An acquisition overwrites
//! the slot that does not hold the highest number, so a crash that tears the write leaves the last
//! granted number alone. Torn digits over older ones read as a number that is at least the older
//! one, and anything else in one slot is ignored: the next number is above every number granted.

/// The length of one slot, in bytes: the digits of any number of 64 bits and a newline.
const SLOT_BYTES: usize = 21;

/// How many bytes of a lease file decide: two slots, and one byte that tells a longer file.
pub const LEASE_READ_BYTES: usize = 2 * SLOT_BYTES + 1;

/// Why a lease file has no next fencing number. The lease is refused then: a number that started
/// over could be lower than one that somebody granted earlier, which is what fencing must rule out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum FenceError {
    /// The bytes are no lease file, and no torn one either.
    #[error("it holds no fencing number; remove it only if nobody relies on earlier numbers")]
    Unreadable,
    /// The highest number is granted.
    #[error("its fencing numbers are used up")]
    UsedUp,
}

/// The number of the next holder, and how to write it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NextFence {
    /// The number: one more than the highest in the file, 1 in a file that never had one.
    pub number: u64,
    /// Where in the file its line goes.
    pub offset: u64,
    /// Its line.
    pub line: Vec<u8>,
}

impl NextFence {
    /// What follows `contents`, the first [`LEASE_READ_BYTES`] bytes of a lease file.
    ///
    /// An empty file, and what a crash can leave of the very first write, count as never granted.
    ///
    /// # Errors
    ///
    /// [`FenceError`]: nothing may be written.
    pub fn after(contents: &[u8]) -> Result<Self, FenceError> {
        if contents.len() >= LEASE_READ_BYTES {
            return Err(FenceError::Unreadable);
        }
        let slots = contents.chunks(SLOT_BYTES).map(number_of).enumerate();
        let highest = slots.filter_map(|(slot, number)| Some((number?, slot))).max();
        let (number, slot) = match highest {
            Some((number, slot)) => (number.checked_add(1).ok_or(FenceError::UsedUp)?, 1 - slot),
            None if is_torn_first(contents) => (1, 0),
            None => return Err(FenceError::Unreadable),
        };
        Ok(Self { number, offset: (slot * SLOT_BYTES) as u64, line: line_of(number) })
    }

    /// Whether nobody held the lease before, so that the file's own name may not be durable.
    pub fn is_first(&self) -> bool {
        self.number == 1
    }
}

fn line_of(number: u64) -> Vec<u8> {
    format!("{number:020}\n").into_bytes()
}

/// The number in a slot; `None` if its bytes are not exactly one line with one.
fn number_of(slot: &[u8]) -> Option<u64> {
    let number = std::str::from_utf8(slot).ok()?.strip_suffix('\n')?.parse().ok()?;
    (line_of(number) == slot).then_some(number)
}

/// Whether the first write, torn, can have left `contents`: some of its bytes, then NUL bytes.
fn is_torn_first(contents: &[u8]) -> bool {
    let first = line_of(1);
    let whole = contents.iter().zip(&first).take_while(|(found, wanted)| found == wanted).count();
    contents.len() <= SLOT_BYTES && contents[whole..].iter().all(|byte| *byte == 0)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn apply(contents: &mut Vec<u8>, offset: u64, bytes: &[u8]) {
        let start = usize::try_from(offset).expect("small");
        contents.resize(contents.len().max(start + bytes.len()), 0);
        contents[start..start + bytes.len()].copy_from_slice(bytes);
    }

    #[test]
    fn numbers_begin_at_one_and_alternate_between_two_lines_of_text() {
        let mut contents = Vec::new();
        for number in 1..=25 {
            let next = NextFence::after(&contents).expect("its own file");
            assert_eq!((next.number, next.is_first()), (number, number == 1));
            apply(&mut contents, next.offset, &next.line);
        }
        assert_eq!(contents, b"00000000000000000025\n00000000000000000024\n");
    }

    #[test]
    fn a_write_torn_anywhere_never_brings_a_number_back() {
        for granted in [0_u64, 1, 2, 8, 9, 10, 18, 19, 20, 98, 99, 100, 999] {
            let mut before = Vec::new();
            for number in granted.saturating_sub(1).max(1)..=granted {
                let offset = ((number - 1) % 2) * SLOT_BYTES as u64;
                apply(&mut before, offset, &line_of(number));
            }
            let next = NextFence::after(&before).expect("its own file");
            assert_eq!(next.number, granted + 1);
            for keep in 0..=next.line.len() {
                for with_length in [false, true] {
                    let mut torn = next.line[..keep].to_vec();
                    if with_length {
                        torn.resize(next.line.len(), 0);
                    }
                    let mut contents = before.clone();
                    apply(&mut contents, next.offset, &torn);
                    let after = NextFence::after(&contents).expect("torn, not foreign").number;
                    assert!(after > granted, "{granted}, {keep} bytes: {after}");
                }
            }
        }
    }

    #[test]
    fn what_is_no_lease_file_is_refused() {
        let long = "00000000000000000001\n".repeat(3);
        for garbage in ["hello", "1\n", "0x", "-0000000000000000001\n", "+0000000000000000001\n"] {
            let refused = NextFence::after(garbage.as_bytes());
            assert_eq!(refused, Err(FenceError::Unreadable), "{garbage:?}");
        }
        let longest = &long.as_bytes()[..LEASE_READ_BYTES];
        assert_eq!(NextFence::after(longest), Err(FenceError::Unreadable));
        assert_eq!(NextFence::after(&line_of(u64::MAX)), Err(FenceError::UsedUp));
    }

    proptest! {
        #[test]
        fn no_bytes_panic_and_a_number_is_above_every_line(
            contents in proptest::collection::vec(any::<u8>(), 0..60),
            number in 1..u64::MAX,
        ) {
            drop(NextFence::after(&contents));
            let mut with_line = line_of(number);
            with_line.extend(&contents[..contents.len().min(SLOT_BYTES)]);
            let next = NextFence::after(&with_line).expect("one slot is good");
            prop_assert!(next.number > number);
        }
    }
}
