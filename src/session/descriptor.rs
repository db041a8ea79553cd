//! What a later activation needs to rebuild a child: descriptor version 1 (fact-sheet 1.5).
//!
//! Strict on both ways. A broken tool filter that was read leniently would silently widen the
//! child's authority, so an unknown field, a missing one or one of the wrong type makes the child
//! not resumable, and so does any other version.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::event::{Draft, EventBody};
use super::raw::RawJson;
use crate::error::ErrorCode;

/// The only descriptor version that is written and read.
pub const SUBAGENT_DESCRIPTOR_VERSION: u64 = 1;

/// Which tools a child may see: at least one of the lists is given.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ToolFilter {
    /// Only these.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allow: Option<Vec<String>>,
    /// Not these.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deny: Option<Vec<String>>,
}

/// How a child was composed. Deliberately without depth, token limit, output schema and working
/// directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Descriptor {
    /// The subagent provider that made the child.
    pub provider: String,
    /// The model provider.
    pub agent_provider: Option<String>,
    /// The model.
    pub agent_model: Option<String>,
    /// The persona, in the child's system prompt.
    pub persona: Option<String>,
    /// The tools that the child may see.
    pub tool_filter: Option<ToolFilter>,
}

/// Why a child has no usable descriptor: it is not resumable.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DescriptorError {
    /// Another version's.
    #[error("subagent descriptor version {version} is not supported")]
    Unsupported {
        /// The version as written.
        version: String,
    },
    /// Not a version 1 descriptor.
    #[error("malformed subagent descriptor: {detail}")]
    Malformed {
        /// What is wrong.
        detail: String,
    },
    /// A child's own events hold more than one.
    #[error("the log holds more than one subagent descriptor, again at {seq}")]
    Repeated {
        /// Where the second one stands.
        seq: u64,
    },
}

impl DescriptorError {
    /// `NOT_RESUMABLE`.
    pub fn code(&self) -> ErrorCode {
        ErrorCode::NotResumable
    }
}

fn malformed(detail: impl Into<String>) -> DescriptorError {
    DescriptorError::Malformed { detail: detail.into() }
}

impl Descriptor {
    /// A descriptor that names only its provider.
    pub fn new(provider: impl Into<String>) -> Self {
        Self {
            provider: provider.into(),
            agent_provider: None,
            agent_model: None,
            persona: None,
            tool_filter: None,
        }
    }

    /// The stored form; absent fields are left out.
    ///
    /// # Errors
    ///
    /// [`DescriptorError::Malformed`] for a descriptor that [`read`](Self::read) would refuse.
    pub fn snapshot(&self) -> Result<RawJson, DescriptorError> {
        #[derive(Serialize)]
        #[serde(rename_all = "camelCase")]
        struct Stored<'a> {
            version: u64,
            provider: &'a str,
            #[serde(skip_serializing_if = "Option::is_none")]
            agent_provider: Option<&'a str>,
            #[serde(skip_serializing_if = "Option::is_none")]
            agent_model: Option<&'a str>,
            #[serde(skip_serializing_if = "Option::is_none")]
            persona: Option<&'a str>,
            #[serde(skip_serializing_if = "Option::is_none")]
            tool_filter: Option<&'a ToolFilter>,
        }
        let data = RawJson::of(&Stored {
            version: SUBAGENT_DESCRIPTOR_VERSION,
            provider: &self.provider,
            agent_provider: self.agent_provider.as_deref(),
            agent_model: self.agent_model.as_deref(),
            persona: self.persona.as_deref(),
            tool_filter: self.tool_filter.as_ref(),
        })
        .map_err(|error| malformed(error.to_string()))?;
        Self::read(&data)?;
        Ok(data)
    }

    /// Reads the data of a `subagent/descriptor` event.
    ///
    /// # Errors
    ///
    /// [`DescriptorError`]: another version, or not exactly version 1's shape.
    pub fn read(data: &RawJson) -> Result<Self, DescriptorError> {
        let value = data.value().map_err(|error| malformed(error.to_string()))?;
        let Value::Object(mut fields) = value else {
            return Err(malformed("it is not an object"));
        };
        match fields.remove("version") {
            Some(Value::Number(version))
                if version.as_u64() == Some(SUBAGENT_DESCRIPTOR_VERSION) => {}
            Some(Value::Number(version)) => {
                return Err(DescriptorError::Unsupported { version: version.to_string() });
            }
            Some(_) => return Err(malformed("version is not a number")),
            None => return Err(malformed("version is missing")),
        }
        let provider =
            take_text(&mut fields, "provider")?.ok_or_else(|| malformed("provider is missing"))?;
        if provider.is_empty() {
            return Err(malformed("provider is empty"));
        }
        let descriptor = Self {
            provider,
            agent_provider: take_text(&mut fields, "agentProvider")?,
            agent_model: take_text(&mut fields, "agentModel")?,
            persona: take_text(&mut fields, "persona")?,
            tool_filter: fields.remove("toolFilter").map(read_filter).transpose()?,
        };
        no_more(&fields, "")?;
        Ok(descriptor)
    }
}

fn take_text(
    fields: &mut Map<String, Value>,
    name: &str,
) -> Result<Option<String>, DescriptorError> {
    match fields.remove(name) {
        None => Ok(None),
        Some(Value::String(text)) => Ok(Some(text)),
        Some(_) => Err(malformed(format!("{name} is not a string"))),
    }
}

fn no_more(fields: &Map<String, Value>, inside: &str) -> Result<(), DescriptorError> {
    match fields.keys().next() {
        None => Ok(()),
        Some(name) => Err(malformed(format!("unknown field {inside}{name}"))),
    }
}

fn read_filter(value: Value) -> Result<ToolFilter, DescriptorError> {
    let Value::Object(mut fields) = value else {
        return Err(malformed("toolFilter is not an object"));
    };
    let allow = take_names(&mut fields, "allow")?;
    let deny = take_names(&mut fields, "deny")?;
    no_more(&fields, "toolFilter.")?;
    if allow.is_none() && deny.is_none() {
        return Err(malformed("toolFilter is empty"));
    }
    Ok(ToolFilter { allow, deny })
}

fn take_names(
    fields: &mut Map<String, Value>,
    name: &str,
) -> Result<Option<Vec<String>>, DescriptorError> {
    let Some(value) = fields.remove(name) else { return Ok(None) };
    let Value::Array(items) = value else {
        return Err(malformed(format!("toolFilter.{name} is not an array")));
    };
    items
        .into_iter()
        .map(|item| match item {
            Value::String(text) => Ok(text),
            _ => Err(malformed(format!("toolFilter.{name} holds something else than strings"))),
        })
        .collect::<Result<_, _>>()
        .map(Some)
}

impl Draft {
    /// `subagent/descriptor`.
    ///
    /// # Errors
    ///
    /// [`DescriptorError::Malformed`], as [`Descriptor::snapshot`].
    pub fn descriptor(descriptor: &Descriptor) -> Result<Self, DescriptorError> {
        Ok(Self::new(EventBody::Descriptor(descriptor.snapshot()?)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(json: &str) -> Result<Descriptor, DescriptorError> {
        Descriptor::read(&RawJson::checked(json).expect("valid JSON"))
    }

    #[test]
    fn the_stored_form_has_the_reference_field_order() {
        let descriptor = Descriptor {
            agent_provider: Some("mock".into()),
            agent_model: Some("m".into()),
            persona: Some("p".into()),
            tool_filter: Some(ToolFilter { allow: Some(vec!["a".into()]), deny: Some(vec![]) }),
            ..Descriptor::new("spawn")
        };
        let data = descriptor.snapshot().expect("valid");
        assert_eq!(
            data.as_str(),
            r#"{"version":1,"provider":"spawn","agentProvider":"mock","agentModel":"m","persona":"p","toolFilter":{"allow":["a"],"deny":[]}}"#
        );
        assert_eq!(Descriptor::read(&data), Ok(descriptor));
    }

    #[test]
    fn what_could_not_be_read_back_is_not_written() {
        assert!(Descriptor::new("").snapshot().is_err());
        let empty =
            Descriptor { tool_filter: Some(ToolFilter::default()), ..Descriptor::new("spawn") };
        assert!(Draft::descriptor(&empty).is_err());
    }

    #[test]
    fn another_version_is_unsupported_whatever_else_it_says() {
        for version in ["2", "0", "1.5", "-1"] {
            let json = format!(r#"{{"version":{version},"agents":[]}}"#);
            assert_eq!(
                read(&json),
                Err(DescriptorError::Unsupported { version: version.to_owned() })
            );
        }
    }

    #[test]
    fn a_lone_surrogate_in_a_persona_is_shown_as_the_replacement_character() {
        let read = read(r#"{"version":1,"provider":"spawn","persona":"\ud800"}"#);
        assert_eq!(read.map(|read| read.persona), Ok(Some("\u{fffd}".to_owned())));
    }
}
