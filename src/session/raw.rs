//! JSON text that we keep as it was written.
//!
//! A value round trip would reorder keys, turn long integers into floats and reject lone
//! surrogates (contract §1), so data that we do not interpret stays text. A [`RawJson`] is a slice
//! of its stored line where it has one: a loaded event owns one allocation of text.

use std::borrow::Cow;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use serde_json::value::RawValue;

/// A piece of valid JSON text, kept byte for byte. Two are equal when their texts are.
#[derive(Clone)]
pub struct RawJson {
    text: Arc<str>,
    range: Range<usize>,
}

impl RawJson {
    /// Wraps `text` if it is one JSON value without a surrounding blank; lone surrogate escapes
    /// are allowed.
    pub fn checked(text: impl Into<Arc<str>>) -> Result<Self, serde_json::Error> {
        let text = text.into();
        let value: &RawValue = serde_json::from_str(&text)?;
        let start = value.get().as_ptr() as usize - text.as_ptr() as usize;
        let range = start..start + value.get().len();
        Ok(Self { text, range })
    }

    /// The JSON of `value`, in the order in which it serialises.
    pub fn of<T: Serialize + ?Sized>(value: &T) -> Result<Self, serde_json::Error> {
        let text: Arc<str> = serde_json::to_string(value)?.into();
        let range = 0..text.len();
        Ok(Self { text, range })
    }

    /// The slice `range` of `line`; the caller has parsed it as one JSON value.
    pub(super) fn slice(line: &Arc<str>, range: Range<usize>) -> Self {
        Self { text: Arc::clone(line), range }
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        &self.text[self.range.clone()]
    }

    /// Reads the text as a `T`; lone surrogates read as U+FFFD.
    pub fn parse<T: DeserializeOwned>(&self) -> Result<T, serde_json::Error> {
        serde_json::from_str(&readable(self.as_str()))
    }

    /// The text as a value; lone surrogates read as U+FFFD.
    pub fn value(&self) -> Result<Value, serde_json::Error> {
        self.parse()
    }
}

impl PartialEq for RawJson {
    fn eq(&self, other: &Self) -> bool {
        self.as_str() == other.as_str()
    }
}

impl Eq for RawJson {}

impl fmt::Debug for RawJson {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl Serialize for RawJson {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let raw: &RawValue =
            serde_json::from_str(self.as_str()).map_err(serde::ser::Error::custom)?;
        raw.serialize(serializer)
    }
}

/// `text` with every lone surrogate escape replaced by `\ufffd`, which is as long: offsets into
/// the one are offsets into the other. Borrowed when there is none.
pub fn readable(text: &str) -> Cow<'_, str> {
    let bytes = text.as_bytes();
    let mut changed: Option<Vec<u8>> = None;
    let mut at = 0;
    while let Some(found) = bytes[at..].iter().position(|&byte| byte == b'\\') {
        let escape = at + found;
        match unit(bytes, escape) {
            Some(0xd800..=0xdbff) if matches!(unit(bytes, escape + 6), Some(0xdc00..=0xdfff)) => {
                at = escape + 12;
            }
            Some(0xd800..=0xdfff) => {
                let copy = changed.get_or_insert_with(|| bytes.to_vec());
                copy[escape..escape + 6].copy_from_slice(br"\ufffd");
                at = escape + 6;
            }
            _ => at = escape + 2,
        }
        if at >= bytes.len() {
            break;
        }
    }
    match changed {
        None => Cow::Borrowed(text),
        Some(copy) => Cow::Owned(
            String::from_utf8(copy).expect("an ASCII escape was replaced by an ASCII escape"),
        ),
    }
}

/// The UTF-16 unit that the `\uXXXX` escape at `at` names, if one stands there.
fn unit(bytes: &[u8], at: usize) -> Option<u32> {
    let digits = bytes.get(at..at + 6)?.strip_prefix(br"\u")?;
    digits.iter().try_fold(0, |unit, &digit| Some(unit * 16 + char::from(digit).to_digit(16)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lone_surrogates_read_as_the_replacement_character_and_keep_their_text() {
        let text = r#"{"a":"\ud834\udd1e \ud800x \udc00","b":"\\ud800"}"#;
        let raw = RawJson::checked(text).expect("valid");
        assert_eq!(raw.as_str(), text);
        let value = raw.value().expect("readable");
        assert_eq!(value["a"], "\u{1d11e} \u{fffd}x \u{fffd}");
        assert_eq!(value["b"], "\\ud800");
    }

    #[test]
    fn text_without_lone_surrogates_is_not_copied() {
        assert!(matches!(readable(r#""\ud834\udd1e""#), Cow::Borrowed(_)));
        assert!(matches!(readable(r#"\"#), Cow::Borrowed(_)));
    }

    #[test]
    fn long_integers_and_key_order_survive() {
        let text = r#"{"z":123456789012345678901234567890,"a":1e400}"#;
        let raw = RawJson::checked(text).expect("valid");
        assert_eq!(serde_json::to_string(&raw).expect("serialises"), text);
    }

    #[test]
    fn text_that_is_not_json_is_refused() {
        assert!(RawJson::checked("{").is_err());
        assert!(RawJson::checked("1 2").is_err());
    }
}
