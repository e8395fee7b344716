use schemars::{JsonSchema, generate::SchemaSettings};
use serde_json::{Map, Value};

/// The schema of a Rust type.
#[derive(Debug)]
pub(crate) struct Generated {
    pub(crate) schema: Value,
    /// Whether it asks for something that serde does not enforce when it decodes the type.
    pub(crate) needs_validator: bool,
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
        needs_validator: is_stricter_than_serde(&schema),
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

/// Whether `schema`, which was made from a type, has a keyword that decoding the type leaves out.
///
/// serde enforces a derived schema's types, required and unknown fields, choices and constants;
/// what `#[schemars(..)]` and `#[validate(..)]` attributes add to it, it does not know. In one thing
/// it is laxer: it takes an array for a struct inside the arguments, field by field.
fn is_stricter_than_serde(schema: &Value) -> bool {
    match schema {
        Value::Object(schema) => schema
            .iter()
            .any(|(keyword, value)| match keyword.as_str() {
                "minimum" | "maximum" => !is_bound_of_type(schema, keyword, value),
                "exclusiveMinimum" | "exclusiveMaximum" | "multipleOf" | "minLength"
                | "maxLength" | "pattern" | "minItems" | "maxItems" | "uniqueItems"
                | "contains" | "minContains" | "maxContains" | "minProperties"
                | "maxProperties" | "propertyNames" | "patternProperties" | "dependentRequired"
                | "dependentSchemas" | "not" | "if" => true,
                // Data, or names for people.
                "const" | "enum" | "default" | "examples" | "description" | "title"
                | "required" => false,
                "properties" | "$defs" => value
                    .as_object()
                    .is_some_and(|named| named.values().any(is_stricter_than_serde)),
                _ => is_stricter_than_serde(value),
            }),
        Value::Array(schemas) => schemas.iter().any(is_stricter_than_serde),
        _ => false,
    }
}

/// Whether a bound is the one that the integer type has anyway.
fn is_bound_of_type(schema: &Map<String, Value>, keyword: &str, value: &Value) -> bool {
    let format = schema.get("format").and_then(Value::as_str);
    let bound = match (format, keyword) {
        (Some("uint8" | "uint16" | "uint32" | "uint64" | "uint128" | "uint"), "minimum") => 0,
        (Some("uint8"), _) => i64::from(u8::MAX),
        (Some("uint16"), _) => i64::from(u16::MAX),
        (Some("int8"), "minimum") => i64::from(i8::MIN),
        (Some("int8"), _) => i64::from(i8::MAX),
        (Some("int16"), "minimum") => i64::from(i16::MIN),
        (Some("int16"), _) => i64::from(i16::MAX),
        _ => return false,
    };
    value.as_i64() == Some(bound)
}
