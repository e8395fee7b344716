use schemars::{JsonSchema, generate::SchemaSettings};
use serde_json::{Map, Value};

/// The JSON Schema of a Rust type.
#[derive(Debug)]
pub(crate) struct Generated {
    pub(crate) schema: Value,
    /// The reason why the schema cannot describe arguments.
    pub(crate) fault: Option<&'static str>,
}

/// Generates the schema of `T` (draft 2020-12) with inlined definitions, which all providers
/// support.
pub(crate) fn generate<T>() -> Generated
where
    T: JsonSchema + ?Sized,
{
    let settings = SchemaSettings::draft2020_12().with(|settings| {
        settings.inline_subschemas = true;
        settings.meta_schema = None;
    });
    let schema = settings.into_generator().into_root_schema_for::<T>();
    let mut schema = schema.to_value();
    // `serde_json::Value` and similar types accept anything; arguments are always an object.
    if schema == Value::Bool(true) {
        schema = Value::Object(Map::new());
    }
    if let Value::Object(root) = &mut schema {
        // The name of the Rust type is no information for a model.
        root.remove("title");
        if !root.contains_key("type") && (root.is_empty() || has_objects_only(root)) {
            root.insert("type".to_owned(), "object".into());
        }
    }
    let is_object = schema.get("type").is_some_and(|kind| kind == "object");
    Generated {
        fault: (!is_object).then_some("the arguments must be a JSON object; use a struct"),
        schema,
    }
}

/// Whether the schema is a choice between objects, as for an enum.
fn has_objects_only(root: &Map<String, Value>) -> bool {
    ["oneOf", "anyOf"].iter().any(|keyword| {
        let choices = root.get(*keyword).and_then(Value::as_array);
        choices.is_some_and(|choices| {
            let mut kinds = choices.iter().map(|choice| choice.get("type"));
            kinds.all(|kind| kind.is_some_and(|kind| kind == "object"))
        })
    })
}
