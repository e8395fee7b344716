use super::layer::Options;
use crate::caching::{Owner, SharedStore};
use concentric_core::{Str, ToolCall, digest::Digest, interrupt::SuspendedBy, store::CacheKey};
use serde_json::{Value, value::RawValue};
use std::{collections::BTreeMap, sync::Arc};

/// What equal calls have in common.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(super) struct Key {
    owner: Owner,
    tool: Str,
    // A change of the schema may change the meaning of the arguments.
    schema: Arc<Value>,
    // The digest of the arguments. Objects are equal whatever the order of their keys, numbers if their text is.
    arguments: [u8; 32],
}

impl Key {
    /// Returns the key of a call; `None` if the call is not cached.
    pub(super) fn of(options: &Options, call: &ToolCall) -> Option<Self> {
        let spec = call.spec()?;
        let is_named = options.tools.iter().any(|name| name == call.name());
        let is_cached = is_named || options.tools.is_empty() && spec.annotations.read_only;
        if !is_cached || call.settled().is_some() || call.refusal().is_some() || has_replies(call) {
            return None;
        }
        let cache = &options.cache;
        let own = || {
            let arguments = call.arguments().as_str();
            // Rejects what the tool may read in several ways, such as duplicate keys.
            let digest = Digest::of_json(arguments).ok()?;
            match filled(arguments, &spec.input_schema) {
                Some(filled) => Digest::of_json(&filled).ok(),
                None => Some(digest),
            }
        };
        let arguments = cache.key(call, own)?;
        Some(Self {
            owner: cache.scope.owner(&call.context)?,
            tool: call.name().clone(),
            schema: Arc::clone(&spec.input_schema),
            arguments: *arguments.as_bytes(),
        })
    }

    /// The key of the result in a store.
    pub(super) fn in_store(&self, store: &SharedStore) -> CacheKey {
        let schema = Digest::of_value(&self.schema);
        let parts = [self.tool.as_bytes(), schema.as_bytes(), &self.arguments];
        let digest = Digest::of_fields("concentric/tool-cache/1", &parts);
        store.key(&self.owner, &digest)
    }
}

/// Whether the tool itself waited for replies that the call now has.
fn has_replies(call: &ToolCall) -> bool {
    match call.resumed() {
        Some(resumed) => resumed.by != SuspendedBy::Gate,
        None => !call.replies().is_empty(),
    }
}

/// The JSON `text` with the defaults of absent properties, at all depths of nested objects; `None` if the schema
/// names none. Its other parts keep their text, since a parsed number may be rounded.
fn filled(text: &str, schema: &Value) -> Option<String> {
    let properties = schema.get("properties")?.as_object()?;
    let present: BTreeMap<String, &RawValue> = serde_json::from_str(text).ok()?;
    let mut is_changed = false;
    let mut fields: BTreeMap<&str, String> = present
        .iter()
        .map(|(name, value)| (name.as_str(), value.get().to_owned()))
        .collect();
    for (name, schema) in properties {
        let value = match fields.get(name.as_str()) {
            Some(value) => filled(value, schema),
            None => schema.get("default").map(Value::to_string),
        };
        if let Some(value) = value {
            fields.insert(name, value);
            is_changed = true;
        }
    }
    let write = || {
        let fields = fields.iter().map(|(name, value)| {
            let name = Value::from(*name);
            format!("{name}:{value}")
        });
        let fields: Vec<_> = fields.collect();
        format!("{{{}}}", fields.join(","))
    };
    is_changed.then(write)
}
