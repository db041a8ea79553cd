//! Server-sent events, from bytes split anywhere. Pure.

/// The longest event, in bytes.
pub const EVENT_MAX: usize = 8 * 1024 * 1024;

/// Why the bytes are no event stream.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EventError {
    /// An event does not end.
    #[error("event {event} is longer than {EVENT_MAX} bytes")]
    TooLong {
        /// Which, counted from 1.
        event: u64,
    },
    /// An event is not UTF-8.
    #[error("event {event} is not UTF-8")]
    NotText {
        /// Which, counted from 1.
        event: u64,
    },
}

/// Cuts bytes into events; only their data is kept.
#[derive(Debug, Default)]
pub struct EventParser {
    line: Vec<u8>,
    /// The data lines of the event under way.
    data: Option<Vec<u8>>,
    /// A carriage return ended the last line: a line feed right after it belongs to it.
    returned: bool,
    events: u64,
}

impl EventParser {
    /// Takes more bytes; the data of every event that is complete with them.
    ///
    /// # Errors
    ///
    /// [`EventError`], naming the event.
    pub fn push(&mut self, bytes: &[u8]) -> Result<Vec<String>, EventError> {
        let mut events = Vec::new();
        for byte in bytes {
            let after_return = std::mem::replace(&mut self.returned, *byte == b'\r');
            match byte {
                b'\n' if after_return => {}
                b'\n' | b'\r' => events.extend(self.end_line()?),
                byte => self.line.push(*byte),
            }
            if self.line.len() + self.data.as_ref().map_or(0, Vec::len) > EVENT_MAX {
                return Err(EventError::TooLong { event: self.events + 1 });
            }
        }
        Ok(events)
    }

    fn end_line(&mut self) -> Result<Option<String>, EventError> {
        let line = std::mem::take(&mut self.line);
        if line.is_empty() {
            let Some(data) = self.data.take() else { return Ok(None) };
            self.events += 1;
            let text = String::from_utf8(data);
            return text.map(Some).map_err(|_| EventError::NotText { event: self.events });
        }
        let Some(value) = line.strip_prefix(b"data:") else { return Ok(None) };
        let value = value.strip_prefix(b" ").unwrap_or(value);
        match &mut self.data {
            Some(data) => {
                data.push(b'\n');
                data.extend_from_slice(value);
            }
            None => self.data = Some(value.to_vec()),
        }
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn whole(text: &[u8]) -> Result<Vec<String>, EventError> {
        EventParser::default().push(text)
    }

    #[test]
    fn events_end_with_an_empty_line_of_any_kind() {
        for end in ["\n", "\r\n", "\r"] {
            let text = [": hello", "data: a", "data:b", "event: x", "", "data: [DONE]", "", ""];
            let events = whole(text.join(end).as_bytes());
            assert_eq!(events, Ok(vec!["a\nb".to_owned(), "[DONE]".to_owned()]), "{end:?}");
        }
        assert_eq!(whole(b"data: half"), Ok(Vec::new()));
        assert_eq!(whole(b"data: \xff\n\n"), Err(EventError::NotText { event: 1 }));
    }

    #[test]
    fn an_event_without_end_is_refused() {
        let mut parser = EventParser::default();
        let page = vec![b'x'; EVENT_MAX / 4];
        let pushed: Vec<_> = (0..5).map(|_| parser.push(&page)).collect();
        assert_eq!(pushed[4], Err(EventError::TooLong { event: 1 }));
        assert!(pushed[..4].iter().all(Result::is_ok));
    }

    proptest! {
        #[test]
        fn any_split_gives_the_same_events(
            text in "(data: [a-c\r\n]{0,6}(\n|\r\n|\r){1,2}){0,8}",
            cuts in prop::collection::vec(0_usize..80, 0..6),
        ) {
            let bytes = text.as_bytes();
            let mut parser = EventParser::default();
            let mut events = Vec::new();
            let mut cuts: Vec<_> = cuts.into_iter().map(|cut| cut.min(bytes.len())).collect();
            cuts.sort_unstable();
            let mut from = 0;
            for cut in cuts.into_iter().chain([bytes.len()]) {
                events.extend(parser.push(&bytes[from..cut]).expect("text"));
                from = cut;
            }
            prop_assert_eq!(Ok(events), whole(bytes));
        }
    }
}
