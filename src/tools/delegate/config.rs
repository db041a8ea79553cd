//! What a deployment says of one delegation tool, and what of it is refused before anything runs
//! (fact-sheet 8.1).

use serde_json::{Map, Value};

use crate::agent::AgentOptions;
use crate::error::ErrorCode;
use crate::session::descriptor::ToolFilter;

/// The tool's name, unless the configuration says otherwise.
pub const TOOL_NAME_DEFAULT: &str = "subagent";

/// The cap on a child's depth, unless the configuration says otherwise.
pub const MAX_DEPTH_DEFAULT: u64 = 3;

/// The word for a depth that the provider bounds by its own means.
pub const PROVIDER_MANAGED: &str = "provider-managed";

/// The largest integer that JSON keeps exact.
const SAFE_INTEGER_MAX: u64 = (1 << 53) - 1;

/// One delegation tool. What is absent is not sent to the provider at all: an empty allow list
/// would deny every tool.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DelegateConfig {
    /// The provider's name.
    pub provider: String,
    /// The tool's name.
    pub tool_name: String,
    /// Whether the model may ask for the background.
    pub enable_run_in_background: bool,
    /// Overrides of the caller's model options.
    pub agent_options: Option<AgentOptions>,
    /// The children's persona.
    pub persona: Option<String>,
    /// Restricts the children's tools.
    pub tool_filter: Option<ToolFilter>,
    /// The deepest delegation depth a child may have; `None` sends no cap.
    pub max_depth: Option<u64>,
}

/// Why a configuration was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("invalid delegation tool configuration: {field} {problem}")]
pub struct ConfigError {
    /// The field, as written in the configuration.
    pub field: String,
    /// What is wrong with it.
    pub problem: String,
}

impl ConfigError {
    /// `INVALID_INPUT`.
    pub fn code(&self) -> ErrorCode {
        ErrorCode::InvalidInput
    }
}

fn refused(field: &str, problem: impl Into<String>) -> ConfigError {
    ConfigError { field: field.to_owned(), problem: problem.into() }
}

impl DelegateConfig {
    /// A tool for `provider` that is mounted by a program: everything default, and no depth cap.
    pub fn new(provider: impl Into<String>) -> Self {
        Self {
            provider: provider.into(),
            tool_name: TOOL_NAME_DEFAULT.to_owned(),
            enable_run_in_background: true,
            agent_options: None,
            persona: None,
            tool_filter: None,
            max_depth: None,
        }
    }

    /// Reads a deployment's configuration; there the depth cap defaults to [`MAX_DEPTH_DEFAULT`].
    ///
    /// # Errors
    ///
    /// A field that is missing, unknown or of the wrong shape: a slip must not widen what children
    /// may do.
    pub fn from_value(value: &Value) -> Result<Self, ConfigError> {
        const KNOWN: &[&str] = &[
            "provider",
            "toolName",
            "enableRunInBackground",
            "agentOptions",
            "persona",
            "toolFilter",
            "maxDepth",
        ];
        let fields = object("configuration", value, KNOWN)?;
        let provider = name(fields, "provider")?;
        let config = Self {
            tool_name: match fields.get("toolName") {
                None => TOOL_NAME_DEFAULT.to_owned(),
                Some(_) => name(fields, "toolName")?,
            },
            enable_run_in_background: match fields.get("enableRunInBackground") {
                None => true,
                Some(Value::Bool(enabled)) => *enabled,
                Some(_) => return Err(refused("enableRunInBackground", "must be a boolean")),
            },
            agent_options: fields.get("agentOptions").map(agent_options).transpose()?,
            persona: text(fields, "persona")?,
            tool_filter: fields.get("toolFilter").map(tool_filter).transpose()?,
            max_depth: match fields.get("maxDepth") {
                None => Some(MAX_DEPTH_DEFAULT),
                Some(depth) => max_depth(depth)?,
            },
            ..Self::new(provider)
        };
        config.check()?;
        Ok(config)
    }

    /// Checks what a program may have put together; a configuration that was read is checked.
    ///
    /// # Errors
    ///
    /// An empty name, a filter without a list, a cap or token limit beyond exact integers.
    pub fn check(&self) -> Result<(), ConfigError> {
        for (field, name) in [("provider", &self.provider), ("toolName", &self.tool_name)] {
            if name.is_empty() {
                return Err(refused(field, "must not be empty"));
            }
        }
        if self.tool_filter.as_ref().is_some_and(|f| f.allow.is_none() && f.deny.is_none()) {
            return Err(refused("toolFilter", "needs an allow or a deny list"));
        }
        if self.max_depth.is_some_and(|depth| depth > SAFE_INTEGER_MAX) {
            return Err(bad_depth());
        }
        let tokens = self.agent_options.as_ref().and_then(|options| options.max_tokens);
        if tokens.is_some_and(|tokens| tokens == 0 || tokens > SAFE_INTEGER_MAX) {
            return Err(bad_tokens());
        }
        Ok(())
    }
}

fn object<'a>(
    field: &str,
    value: &'a Value,
    known: &[&str],
) -> Result<&'a Map<String, Value>, ConfigError> {
    let fields = value.as_object().ok_or_else(|| refused(field, "must be an object"))?;
    match fields.keys().find(|key| !known.contains(&key.as_str())) {
        Some(key) => Err(refused(field, format!("has the unknown field {key:?}"))),
        None => Ok(fields),
    }
}

fn text(fields: &Map<String, Value>, field: &str) -> Result<Option<String>, ConfigError> {
    match fields.get(field) {
        None => Ok(None),
        Some(Value::String(text)) => Ok(Some(text.clone())),
        Some(_) => Err(refused(field, "must be a string")),
    }
}

fn name(fields: &Map<String, Value>, field: &str) -> Result<String, ConfigError> {
    text(fields, field)?.ok_or_else(|| refused(field, "is required"))
}

fn agent_options(value: &Value) -> Result<AgentOptions, ConfigError> {
    let fields = object("agentOptions", value, &["provider", "model", "maxTokens"])?;
    Ok(AgentOptions {
        provider: text(fields, "provider")?,
        model: text(fields, "model")?,
        max_tokens: match fields.get("maxTokens") {
            None => None,
            Some(tokens) => Some(exact_integer(tokens).ok_or_else(bad_tokens)?),
        },
        subagent_depth: None,
    })
}

fn tool_filter(value: &Value) -> Result<ToolFilter, ConfigError> {
    let fields = object("toolFilter", value, &["allow", "deny"])?;
    Ok(ToolFilter { allow: names(fields, "allow")?, deny: names(fields, "deny")? })
}

fn names(fields: &Map<String, Value>, field: &str) -> Result<Option<Vec<String>>, ConfigError> {
    let Some(value) = fields.get(field) else { return Ok(None) };
    let names = value.as_array().and_then(|names| {
        names.iter().map(|name| name.as_str().map(ToOwned::to_owned)).collect::<Option<Vec<_>>>()
    });
    match names {
        Some(names) => Ok(Some(names)),
        None => Err(refused("toolFilter", format!("needs an array of strings as {field}"))),
    }
}

fn max_depth(value: &Value) -> Result<Option<u64>, ConfigError> {
    if value.as_str() == Some(PROVIDER_MANAGED) {
        return Ok(None);
    }
    exact_integer(value).map(Some).ok_or_else(bad_depth)
}

/// A non-negative safe integer. JSON has one kind of number, so `3.0` is three; `-0` is refused: it
/// can only be a slip.
fn exact_integer(value: &Value) -> Option<u64> {
    let number = match value.as_u64() {
        Some(number) => number,
        None => {
            let float = value.as_f64()?;
            let exact = float.is_sign_positive() && float.fract() == 0.0;
            // The largest exact integer is far below the largest `u64`.
            (exact && float <= SAFE_INTEGER_MAX as f64).then_some(float as u64)?
        }
    };
    (number <= SAFE_INTEGER_MAX).then_some(number)
}

fn bad_depth() -> ConfigError {
    refused("maxDepth", format!("must be a non-negative safe integer or {PROVIDER_MANAGED:?}"))
}

fn bad_tokens() -> ConfigError {
    refused("agentOptions.maxTokens", "must be a positive safe integer")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(text: &str) -> Result<DelegateConfig, ConfigError> {
        DelegateConfig::from_value(&serde_json::from_str(text).expect("JSON"))
    }

    #[test]
    fn what_is_absent_stays_absent() {
        let config = read(r#"{"provider":"spawn"}"#).expect("valid");
        let expected = DelegateConfig { max_depth: Some(3), ..DelegateConfig::new("spawn") };
        assert_eq!(config, expected);
        assert_eq!(DelegateConfig::new("spawn").max_depth, None, "a program's mount sends no cap");
    }

    #[test]
    fn what_is_given_is_kept() {
        let config = DelegateConfig::from_value(&json!({
            "provider": "fork", "toolName": "helper", "enableRunInBackground": false,
            "agentOptions": {"model": "m", "maxTokens": 10.0}, "persona": "p",
            "toolFilter": {"deny": []}, "maxDepth": "provider-managed",
        }));
        let options =
            AgentOptions { model: Some("m".into()), max_tokens: Some(10), ..Default::default() };
        let expected = DelegateConfig {
            tool_name: "helper".into(),
            enable_run_in_background: false,
            agent_options: Some(options),
            persona: Some("p".into()),
            tool_filter: Some(ToolFilter { allow: None, deny: Some(vec![]) }),
            ..DelegateConfig::new("fork")
        };
        assert_eq!(config.expect("valid"), expected);
    }

    #[test]
    fn a_slip_is_refused_and_named() {
        let bad = [
            ("[]", "configuration"),
            ("{}", "provider"),
            (r#"{"provider":""}"#, "provider"),
            (r#"{"provider":1}"#, "provider"),
            (r#"{"provider":"p","toolname":"x"}"#, "configuration"),
            (r#"{"provider":"p","toolName":""}"#, "toolName"),
            (r#"{"provider":"p","enableRunInBackground":"no"}"#, "enableRunInBackground"),
            (r#"{"provider":"p","persona":null}"#, "persona"),
            (r#"{"provider":"p","agentOptions":null}"#, "agentOptions"),
            (r#"{"provider":"p","agentOptions":{"depth":1}}"#, "agentOptions"),
            (r#"{"provider":"p","agentOptions":{"maxTokens":0}}"#, "agentOptions.maxTokens"),
            (r#"{"provider":"p","agentOptions":{"maxTokens":-1}}"#, "agentOptions.maxTokens"),
            (r#"{"provider":"p","toolFilter":null}"#, "toolFilter"),
            (r#"{"provider":"p","toolFilter":{"only":[]}}"#, "toolFilter"),
            (r#"{"provider":"p","toolFilter":{"allow":"x"}}"#, "toolFilter"),
            (r#"{"provider":"p","toolFilter":{"deny":[1]}}"#, "toolFilter"),
        ];
        for (text, field) in bad {
            let error = read(text).expect_err(text);
            assert_eq!(error.field, field, "{text}");
        }
    }
}
