use schemars::{JsonSchema, generate::SchemaSettings};
use serde_json::{Map, Value};

/// The schema of a Rust type.
#[derive(Debug)]
pub(crate) struct Generated {
    pub(crate) schema: Value,
    /// Why it is not a schema of arguments.
    pub(crate) fault: Option<&'static str>,
}

/// The schema of `T`: draft 2020-12, with its parts in place, which all providers understand.
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
    // `serde_json::Value` and its like take anything; arguments are an object by themselves.
    if schema == Value::Bool(true) {
        schema = Value::Object(Map::new());
    }
    if let Value::Object(root) = &mut schema {
        // The type's name says nothing to a model.
        root.remove("title");
        if !root.contains_key("type") && (root.is_empty() || has_objects_only(root)) {
            root.insert("type".to_owned(), "object".into());
        }
    }
    let is_object = schema.get("type").is_some_and(|kind| kind == "object");
    Generated {
        fault: (!is_object).then_some("the arguments must be an object, as of a struct"),
        schema,
    }
}

/// Whether this is a choice between objects, as of an enum.
fn has_objects_only(root: &Map<String, Value>) -> bool {
    ["oneOf", "anyOf"].iter().any(|keyword| {
        let choices = root.get(*keyword).and_then(Value::as_array);
        choices.is_some_and(|choices| {
            let mut kinds = choices.iter().map(|choice| choice.get("type"));
            kinds.all(|kind| kind.is_some_and(|kind| kind == "object"))
        })
    })
}
