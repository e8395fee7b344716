use super::plain::Plain;
use crate::truncation::short;
#[cfg(feature = "schema-validation")]
use jsonschema::PatternOptions;
use serde_json::Value;
use std::{
    fmt::{Display, Write},
    sync::Arc,
};

#[derive(Clone, Debug)]
pub(crate) struct Validator(Arc<Schema>);

#[derive(Debug)]
enum Schema {
    Plain(Plain),
    #[cfg(feature = "schema-validation")]
    Any(jsonschema::Validator),
}

impl Validator {
    /// Compiles `schema`, which may be untrusted: it cannot access files or the network, and its
    /// patterns take linear time. Returns an error if `schema` is invalid, refers to another
    /// document, or has a pattern with look-around or back-references.
    pub(crate) fn new(schema: &Value) -> Result<Self, String> {
        match Plain::new(schema) {
            Ok(plain) => Ok(Self(Arc::new(Schema::Plain(plain)))),
            Err(keyword) => Self::any(schema, &keyword),
        }
    }

    #[cfg(feature = "schema-validation")]
    fn any(schema: &Value, _: &str) -> Result<Self, String> {
        jsonschema::options()
            .offline()
            .with_pattern_options(PatternOptions::regex())
            .build(schema)
            .map(|validator| Self(Arc::new(Schema::Any(validator))))
            .map_err(|error| {
                let text = at(error.instance_path().as_str(), &error);
                short(&text, 512).into_owned()
            })
    }

    #[cfg(not(feature = "schema-validation"))]
    fn any(_: &Value, keyword: &str) -> Result<Self, String> {
        Err(format!(
            "`{}` cannot be enforced without the feature `schema-validation` of `concentric-tools`",
            short(keyword, 256)
        ))
    }

    /// Compiles the schema of arguments, which are an object; `None` if it accepts every object.
    /// Returns the errors of [`new`](Self::new).
    pub(crate) fn for_arguments(schema: &Value) -> Result<Option<Self>, String> {
        match accepts_every_object(schema) {
            true => Ok(None),
            false => Self::new(schema).map(Some),
        }
    }

    /// The schema, if it can be enforced while the text is read.
    pub(super) fn plain(&self) -> Option<&Plain> {
        match &*self.0 {
            Schema::Plain(plain) => Some(plain),
            #[cfg(feature = "schema-validation")]
            Schema::Any(_) => None,
        }
    }

    /// Validates `text`, which must be JSON. Returns the positions and reasons of the first few
    /// violations.
    pub(crate) fn check(&self, text: &str) -> Result<(), String> {
        // Enough for a correction, and short enough to read.
        const SHOWN: usize = 5;
        let value: Value = serde_json::from_str(text).map_err(|error| error.to_string())?;
        let (mut all, mut shown) = (String::new(), 0);
        let mut report = |error: String| {
            let separator = if all.is_empty() { "" } else { "; " };
            let _ = write!(all, "{separator}{}", short(&error, 256));
            shown += 1;
            shown < SHOWN
        };
        match &*self.0 {
            Schema::Plain(plain) if plain.is_valid(&value) => return Ok(()),
            Schema::Plain(plain) => {
                plain.errors(&value, "", &mut |path, violation| {
                    report(at(path, violation))
                });
            }
            #[cfg(feature = "schema-validation")]
            Schema::Any(validator) if validator.is_valid(&value) => return Ok(()),
            #[cfg(feature = "schema-validation")]
            Schema::Any(validator) => {
                let mut errors = validator.iter_errors(&value);
                errors.all(|error| report(at(error.instance_path().as_str(), &error)));
            }
        }
        Err(all)
    }
}

/// Whether a schema has only annotations and the type `object`, which is checked for every tool.
fn accepts_every_object(schema: &Value) -> bool {
    schema.as_object().is_some_and(|keywords| {
        keywords
            .iter()
            .all(|(keyword, value)| match keyword.as_str() {
                "type" => value == "object",
                "properties" => value.as_object().is_some_and(serde_json::Map::is_empty),
                "title" | "description" | "$schema" => value.is_string(),
                _ => false,
            })
    })
}

/// An error with its place, if that is not the whole value.
fn at(path: &str, error: impl Display) -> String {
    match path {
        "" => error.to_string(),
        path => format!("at `{path}`: {error}"),
    }
}

#[cfg(all(test, feature = "schema-validation"))]
mod tests {
    use super::{Plain, Value};
    use crate::arguments::strict;
    use proptest::prelude::*;
    use serde_json::json;

    /// Values that schemas below distinguish.
    fn value() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            (-3i64..4).prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            any::<u64>().prop_map(Value::from),
            prop_oneof![
                Just(1.0),
                Just(1.5),
                Just(-0.0),
                Just(1e300),
                any::<f32>().prop_map(f64::from)
            ]
            .prop_map(Value::from),
            "[ab\u{e9}/~]{0,3}".prop_map(Value::from),
        ];
        leaf.prop_recursive(3, 16, 3, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..3).prop_map(Value::from),
                prop::collection::btree_map("[ab/~]", inner, 0..3)
                    .prop_map(|object| object.into_iter().collect()),
            ]
        })
    }

    fn kind() -> impl Strategy<Value = &'static str> {
        prop::sample::select(vec![
            "array", "boolean", "integer", "null", "number", "object", "string",
        ])
    }

    fn keyword(
        inner: impl Strategy<Value = Value> + Clone + 'static,
    ) -> impl Strategy<Value = (&'static str, Value)> {
        let count = (0u64..3).prop_map(Value::from);
        let scalar = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            "[ab]".prop_map(Value::from),
            (-3i64..4).prop_map(Value::from),
            Just(json!(1.0)),
            Just(json!(1.5)),
        ];
        let bound = prop_oneof![
            (-3i64..4).prop_map(Value::from),
            Just(json!(1.5)),
            Just(json!(-0.0))
        ];
        let counted = prop::sample::select(vec!["minLength", "maxLength", "minItems", "maxItems"]);
        prop_oneof![
            kind().prop_map(|kind| ("type", kind.into())),
            prop::collection::hash_set(kind(), 1..3)
                .prop_map(|kinds| ("type", kinds.into_iter().collect())),
            (counted, count),
            (prop::sample::select(vec!["minimum", "maximum"]), bound),
            scalar.clone().prop_map(|value| ("const", value)),
            prop::collection::hash_set(scalar, 1..3)
                .prop_map(|values| ("enum", values.into_iter().collect())),
            prop::collection::hash_set("[ab]", 0..2)
                .prop_map(|keys| ("required", keys.into_iter().collect())),
            prop::collection::btree_map("[ab/~]", inner.clone(), 0..3)
                .prop_map(|known| ("properties", known.into_iter().collect())),
            inner
                .clone()
                .prop_map(|inner| ("additionalProperties", inner)),
            any::<bool>().prop_map(|rest| ("additionalProperties", rest.into())),
            inner.clone().prop_map(|inner| ("items", inner)),
            prop::collection::vec(inner.clone(), 1..3).prop_map(|all| ("anyOf", all.into())),
            prop::collection::vec(inner, 1..3).prop_map(|all| ("oneOf", all.into())),
            Just(("format", "uri".into())),
        ]
    }

    fn schema() -> impl Strategy<Value = Value> {
        let leaf = Just(json!({"type": "integer"})).boxed();
        leaf.prop_recursive(3, 24, 3, |inner| {
            prop::collection::vec(keyword(inner), 1..4)
                .prop_map(|keywords| keywords.into_iter().collect::<Value>())
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(4096))]

        #[test]
        fn a_plain_schema_accepts_what_the_validator_accepts(schema in schema(), value in value()) {
            let plain = Plain::new(&schema).expect("a plain schema");
            let any = jsonschema::validator_for(&schema).expect("a schema");
            prop_assert_eq!(plain.is_valid(&value), any.is_valid(&value));
            let known = strict::check(&value.to_string(), Some(&plain)).expect("JSON");
            prop_assert!(plain.is_valid(&value) || !known);
            // Only rules about whole values leave it open.
            let is_whole = |key: &str| schema.to_string().contains(key);
            let whole = ["anyOf", "oneOf", "enum", "const"].into_iter().any(is_whole);
            prop_assert!(known || whole || !plain.is_valid(&value));
            let mut paths = Vec::new();
            plain.errors(&value, "", &mut |path, violation| {
                paths.push((path.to_owned(), violation.to_string()));
                true
            });
            prop_assert_eq!(paths.is_empty(), plain.is_valid(&value));
            for (path, _) in &paths {
                prop_assert!(any.iter_errors(&value).any(|error| error.instance_path().as_str() == path));
            }
        }
    }
}
