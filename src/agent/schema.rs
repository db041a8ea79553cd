//! Argument schemas: the subset of JSON Schema that tools and structured output use.
//!
//! A schema is compiled once. A keyword outside the subset is a typed refusal, never ignored: a
//! constraint that nobody checks would let wrong arguments pass for right ones. Annotations
//! (`title`, `description`, `default`, `examples`, `$comment`, `deprecated`) constrain nothing and
//! are allowed everywhere.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde_json::{Map, Value};

use crate::error::ErrorCode;

/// How deep a schema may nest: compiling and checking recurse.
const DEPTH_MAX: usize = 64;

/// Keywords that constrain nothing.
const ANNOTATIONS: &[&str] =
    &["title", "description", "default", "examples", "$comment", "deprecated"];

/// Why a schema was refused. `at` is a JSON pointer into the schema.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SchemaError {
    /// A keyword, or a value of one, that is not in the subset.
    #[error("unsupported schema keyword at {at:?}: {keyword}")]
    Unsupported {
        /// Where.
        at: String,
        /// Which.
        keyword: String,
    },
    /// A keyword's value has the wrong shape.
    #[error("malformed schema at {at:?}: {detail}")]
    Malformed {
        /// Where.
        at: String,
        /// What is wrong.
        detail: String,
    },
    /// Arguments are objects, so the root must be of type `object`.
    #[error("the schema's root must be of type \"object\"")]
    NotAnObject,
}

impl SchemaError {
    /// `INVALID_INPUT`.
    pub fn code(&self) -> ErrorCode {
        ErrorCode::InvalidInput
    }
}

/// Where a value breaks its schema, and how.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub struct Mismatch {
    /// A JSON pointer into the value; empty for the value itself.
    pub at: String,
    /// What is wrong.
    pub detail: String,
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.at.is_empty() {
            f.write_str(&self.detail)
        } else {
            write!(f, "{}: {}", self.at, self.detail)
        }
    }
}

impl Mismatch {
    /// `INVALID_ARGS`.
    pub fn code(&self) -> ErrorCode {
        ErrorCode::InvalidArgs
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Object,
    Array,
    String,
    Number,
    Integer,
    Boolean,
}

impl Kind {
    fn of(word: &str) -> Option<Self> {
        Some(match word {
            "object" => Self::Object,
            "array" => Self::Array,
            "string" => Self::String,
            "number" => Self::Number,
            "integer" => Self::Integer,
            "boolean" => Self::Boolean,
            _ => return None,
        })
    }

    fn word(self) -> &'static str {
        match self {
            Self::Object => "an object",
            Self::Array => "an array",
            Self::String => "a string",
            Self::Number => "a number",
            Self::Integer => "an integer",
            Self::Boolean => "a boolean",
        }
    }

    fn fits(self, value: &Value) -> bool {
        match self {
            Self::Object => value.is_object(),
            Self::Array => value.is_array(),
            Self::String => value.is_string(),
            Self::Number => value.is_number(),
            // JSON has one kind of number: 3.0 is an integer.
            Self::Integer => {
                value.is_i64()
                    || value.is_u64()
                    || value.as_f64().is_some_and(|number| number.fract() == 0.0)
            }
            Self::Boolean => value.is_boolean(),
        }
    }
}

/// What happens to a property that is not named.
#[derive(Debug, Clone)]
enum Additional {
    Allowed,
    Refused,
    Checked(Box<Node>),
}

/// A compiled schema node.
#[derive(Debug, Clone)]
struct Node {
    kind: Option<Kind>,
    values: Option<Vec<Value>>,
    properties: BTreeMap<String, Node>,
    required: BTreeSet<String>,
    additional: Additional,
    items: Option<Box<Node>>,
}

/// A compiled schema. Cheap to check against; the text it came from is kept by its owner.
#[derive(Debug, Clone)]
pub struct Schema {
    root: Node,
}

impl Schema {
    /// Compiles a schema of any root.
    ///
    /// # Errors
    ///
    /// [`SchemaError`], for anything outside the subset.
    pub fn compile(schema: &Value) -> Result<Self, SchemaError> {
        Ok(Self { root: node(schema, "", 0)? })
    }

    /// Compiles a schema of arguments, whose root is an object.
    ///
    /// # Errors
    ///
    /// [`SchemaError`], for anything outside the subset and for any other root.
    pub fn arguments(schema: &Value) -> Result<Self, SchemaError> {
        let compiled = Self::compile(schema)?;
        match compiled.root.kind {
            Some(Kind::Object) => Ok(compiled),
            _ => Err(SchemaError::NotAnObject),
        }
    }

    /// Checks `value`; the first mismatch in document order is the answer.
    ///
    /// # Errors
    ///
    /// [`Mismatch`], `INVALID_ARGS`.
    pub fn check(&self, value: &Value) -> Result<(), Mismatch> {
        check(&self.root, value, "")
    }
}

fn malformed(at: &str, detail: impl Into<String>) -> SchemaError {
    SchemaError::Malformed { at: at.to_owned(), detail: detail.into() }
}

fn unsupported(at: &str, keyword: impl Into<String>) -> SchemaError {
    SchemaError::Unsupported { at: at.to_owned(), keyword: keyword.into() }
}

/// `at` extended by one reference token, escaped as RFC 6901 asks.
fn below(at: &str, token: &str) -> String {
    format!("{at}/{}", token.replace('~', "~0").replace('/', "~1"))
}

fn node(schema: &Value, at: &str, depth: usize) -> Result<Node, SchemaError> {
    if depth > DEPTH_MAX {
        return Err(unsupported(at, format!("nesting deeper than {DEPTH_MAX}")));
    }
    let Value::Object(map) = schema else {
        return Err(malformed(at, "a schema is an object"));
    };
    let mut node = Node {
        kind: kind(map, at)?,
        values: None,
        properties: BTreeMap::new(),
        required: BTreeSet::new(),
        additional: Additional::Allowed,
        items: None,
    };
    for (keyword, value) in map {
        let here = below(at, keyword);
        match keyword.as_str() {
            "type" => {}
            "enum" => node.values = Some(values(value, &here)?),
            "properties" => node.properties = properties(value, &here, depth)?,
            "required" => node.required = required(value, &here)?,
            "additionalProperties" => node.additional = additional(value, &here, depth)?,
            "items" => node.items = Some(Box::new(self::node(value, &here, depth + 1)?)),
            word if ANNOTATIONS.contains(&word) => {}
            word => return Err(unsupported(at, word)),
        }
    }
    applies(&node, map, at)?;
    Ok(node)
}

fn kind(map: &Map<String, Value>, at: &str) -> Result<Option<Kind>, SchemaError> {
    match map.get("type") {
        None => Ok(None),
        Some(Value::String(word)) => {
            Kind::of(word).map(Some).ok_or_else(|| unsupported(at, format!("type {word:?}")))
        }
        Some(Value::Array(_)) => Err(unsupported(at, "type as a list")),
        Some(_) => Err(malformed(at, "type is a word")),
    }
}

/// A keyword on a type it does not constrain would be dead weight that reads like a check.
fn applies(node: &Node, map: &Map<String, Value>, at: &str) -> Result<(), SchemaError> {
    let object = ["properties", "required", "additionalProperties"];
    let stray = map.keys().find(|keyword| match node.kind {
        Some(Kind::Object) => keyword.as_str() == "items",
        Some(Kind::Array) => object.contains(&keyword.as_str()),
        _ => keyword.as_str() == "items" || object.contains(&keyword.as_str()),
    });
    match stray {
        Some(keyword) => Err(malformed(at, format!("{keyword} does not apply to the type"))),
        None => Ok(()),
    }
}

fn values(value: &Value, at: &str) -> Result<Vec<Value>, SchemaError> {
    match value {
        Value::Array(values) if !values.is_empty() => Ok(values.clone()),
        _ => Err(malformed(at, "enum is a list with at least one value")),
    }
}

fn properties(
    value: &Value,
    at: &str,
    depth: usize,
) -> Result<BTreeMap<String, Node>, SchemaError> {
    let Value::Object(map) = value else {
        return Err(malformed(at, "properties is an object of schemas"));
    };
    map.iter()
        .map(|(name, schema)| Ok((name.clone(), node(schema, &below(at, name), depth + 1)?)))
        .collect()
}

fn required(value: &Value, at: &str) -> Result<BTreeSet<String>, SchemaError> {
    let names = value.as_array().and_then(|names| {
        names.iter().map(|name| name.as_str().map(str::to_owned)).collect::<Option<BTreeSet<_>>>()
    });
    names.ok_or_else(|| malformed(at, "required is a list of names"))
}

fn additional(value: &Value, at: &str, depth: usize) -> Result<Additional, SchemaError> {
    Ok(match value {
        Value::Bool(true) => Additional::Allowed,
        Value::Bool(false) => Additional::Refused,
        other => Additional::Checked(Box::new(node(other, at, depth + 1)?)),
    })
}

fn check(node: &Node, value: &Value, at: &str) -> Result<(), Mismatch> {
    let wrong = |detail: String| Err(Mismatch { at: at.to_owned(), detail });
    if let Some(kind) = node.kind
        && !kind.fits(value)
    {
        return wrong(format!("must be {}", kind.word()));
    }
    if let Some(values) = &node.values
        && !values.iter().any(|allowed| same(allowed, value))
    {
        let allowed: Vec<_> = values.iter().map(ToString::to_string).collect();
        return wrong(format!("must be one of {}", allowed.join(", ")));
    }
    match value {
        Value::Object(map) => check_object(node, map, at),
        Value::Array(list) => match &node.items {
            None => Ok(()),
            Some(items) => list
                .iter()
                .enumerate()
                .try_for_each(|(index, item)| check(items, item, &format!("{at}/{index}"))),
        },
        _ => Ok(()),
    }
}

fn check_object(node: &Node, map: &Map<String, Value>, at: &str) -> Result<(), Mismatch> {
    if let Some(name) = node.required.iter().find(|name| !map.contains_key(*name)) {
        return Err(Mismatch { at: at.to_owned(), detail: format!("{name:?} is required") });
    }
    for (name, value) in map {
        let here = below(at, name);
        match (node.properties.get(name), &node.additional) {
            (Some(known), _) => check(known, value, &here)?,
            (None, Additional::Allowed) => {}
            (None, Additional::Refused) => {
                let detail = "is not a known property".to_owned();
                return Err(Mismatch { at: here, detail });
            }
            (None, Additional::Checked(schema)) => check(schema, value, &here)?,
        }
    }
    Ok(())
}

/// JSON equality: numbers by value, objects without regard to order.
fn same(left: &Value, right: &Value) -> bool {
    match (left, right) {
        (Value::Number(a), Value::Number(b)) => a == b || a.as_f64() == b.as_f64(),
        (Value::Array(a), Value::Array(b)) => {
            a.len() == b.len() && a.iter().zip(b).all(|(a, b)| same(a, b))
        }
        (Value::Object(a), Value::Object(b)) => {
            a.len() == b.len() && a.iter().all(|(key, a)| b.get(key).is_some_and(|b| same(a, b)))
        }
        (a, b) => a == b,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn mismatch(schema: &Value, value: &Value) -> Option<(String, String)> {
        let schema = Schema::compile(schema).expect("a supported schema");
        schema.check(value).err().map(|error| (error.at, error.detail))
    }

    #[test]
    fn every_type_accepts_its_own_values_only() {
        let samples = [
            ("object", json!({})),
            ("array", json!([])),
            ("string", json!("")),
            ("boolean", json!(false)),
            ("number", json!(1.5)),
        ];
        for (word, _) in &samples {
            let schema = Schema::compile(&json!({"type": word})).expect("compiles");
            for (other, value) in &samples {
                assert_eq!(schema.check(value).is_ok(), word == other, "{word} against {value}");
            }
            assert!(schema.check(&Value::Null).is_err(), "null is no {word}");
        }
    }

    #[test]
    fn a_whole_number_is_an_integer_however_it_is_written() {
        let schema = json!({"type": "integer"});
        for whole in [json!(3), json!(-3), json!(3.0), json!(u64::MAX)] {
            assert_eq!(mismatch(&schema, &whole), None, "{whole}");
        }
        assert!(mismatch(&schema, &json!(3.5)).is_some());
        assert_eq!(mismatch(&json!({"type": "number"}), &json!(3)), None);
    }

    #[test]
    fn the_first_mismatch_names_its_place() {
        let schema = json!({
            "type": "object",
            "properties": {
                "a/b": {"type": "array", "items": {"type": "integer"}},
                "mode": {"type": "string", "enum": ["x", "y"]},
            },
            "required": ["mode"],
            "additionalProperties": false,
        });
        let at = |value| mismatch(&schema, &value);
        assert_eq!(at(json!({})), Some((String::new(), "\"mode\" is required".into())));
        assert_eq!(at(json!({"mode": "x", "a/b": [1, 2]})), None);
        assert_eq!(
            at(json!({"mode": "x", "a/b": [1, "2"]})),
            Some(("/a~1b/1".into(), "must be an integer".into()))
        );
        assert_eq!(
            at(json!({"mode": "z"})),
            Some(("/mode".into(), "must be one of \"x\", \"y\"".into()))
        );
        assert_eq!(
            at(json!({"mode": "x", "n": 1})),
            Some(("/n".into(), "is not a known property".into()))
        );
    }

    #[test]
    fn additional_properties_may_have_a_schema() {
        let schema = json!({"type": "object", "additionalProperties": {"type": "number"}});
        assert_eq!(mismatch(&schema, &json!({"a": 1})), None);
        assert!(mismatch(&schema, &json!({"a": "1"})).is_some());
    }

    #[test]
    fn an_enum_compares_as_json() {
        let schema = json!({"enum": [{"a": 1, "b": [2]}, null]});
        assert_eq!(mismatch(&schema, &json!({"b": [2.0], "a": 1})), None);
        assert_eq!(mismatch(&schema, &json!(null)), None);
        assert!(mismatch(&schema, &json!({"a": 1})).is_some());
    }

    #[test]
    fn keywords_outside_the_subset_are_refused_wherever_they_stand() {
        for bad in [
            json!({"type": "object", "minProperties": 1}),
            json!({"type": "object", "properties": {"a": {"type": "string", "pattern": "x"}}}),
            json!({"type": "array", "items": {"$ref": "#/x"}}),
            json!({"type": ["string", "null"]}),
            json!({"type": "null"}),
            json!({"anyOf": []}),
        ] {
            let refused = Schema::compile(&bad).expect_err("refused");
            assert!(matches!(refused, SchemaError::Unsupported { .. }), "{bad}: {refused}");
        }
        let nested = json!({"type": "object", "properties": {"a": {"format": "uri"}}});
        assert_eq!(
            Schema::compile(&nested).expect_err("refused"),
            SchemaError::Unsupported { at: "/properties/a".into(), keyword: "format".into() }
        );
    }

    #[test]
    fn malformed_schemas_are_refused() {
        for bad in [
            json!(true),
            json!({"type": 7}),
            json!({"type": "object", "properties": []}),
            json!({"type": "object", "required": [1]}),
            json!({"type": "array", "items": []}),
            json!({"enum": []}),
            json!({"type": "string", "properties": {}}),
        ] {
            let refused = Schema::compile(&bad).expect_err("refused");
            assert!(matches!(refused, SchemaError::Malformed { .. }), "{bad}: {refused}");
        }
    }

    #[test]
    fn annotations_constrain_nothing() {
        let schema = json!({"type": "string", "title": "t", "description": 1, "default": 2});
        assert_eq!(mismatch(&schema, &json!("x")), None);
    }

    #[test]
    fn arguments_are_rooted_in_an_object() {
        assert!(Schema::arguments(&json!({"type": "object"})).is_ok());
        for bad in [json!({"type": "string"}), json!({})] {
            let refused = Schema::arguments(&bad).expect_err("refused");
            assert_eq!(refused, SchemaError::NotAnObject);
        }
    }

    #[test]
    fn a_schema_nested_without_end_is_refused() {
        let mut schema = json!({"type": "string"});
        for _ in 0..=DEPTH_MAX {
            schema = json!({"type": "array", "items": schema});
        }
        assert!(Schema::compile(&schema).is_err());
    }
}
