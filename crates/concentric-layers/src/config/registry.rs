use super::{
    error::{ConfigError, syntax},
    stack::{AgentOptions, Part, Place, agent},
};
use concentric_core::{
    AgentLayer, BoxError, BoxModel, Error, ToolSource,
    agent::{Installer, Plugins},
    service::SharedModel,
};
use jsonschema::Validator;
use schemars::{JsonSchema, generate::SchemaSettings};
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};
use std::{collections::BTreeMap, fmt, sync::Arc};
use tower_layer::Layer;

/// The maximum number of layers in a configuration.
pub const MAX_LAYERS: usize = 64;

/// The name of the loop.
const AGENT: &str = "agent";

/// Layers by name, with the types of their options.
///
/// See the [module docs](super) for an example.
#[derive(Clone, Default)]
pub struct Registry {
    entries: BTreeMap<&'static str, Entry>,
}

#[derive(Clone)]
struct Entry {
    schema: Value,
    make: Arc<dyn Fn(Value) -> Result<Part, ConfigError> + Send + Sync>,
}

impl Registry {
    /// Creates a registry that only has the loop, `agent`.
    pub fn new() -> Self {
        Self::default()
    }

    /// Creates a registry with the [layers of this crate](super#layers-of-registrybuiltin).
    pub fn builtin() -> Self {
        super::builtin::register(Self::new())
    }

    /// Registers a layer, which works outside and inside the loop; a layer of the same name is
    /// replaced.
    ///
    /// `make` creates the layer from its options, once for each configured agent layer.
    #[must_use]
    pub fn layer<O, L>(
        self,
        name: &'static str,
        make: impl Fn(O) -> Result<L, BoxError> + Send + Sync + 'static,
    ) -> Self
    where
        O: DeserializeOwned + JsonSchema,
        L: Layer<BoxModel, Service: SharedModel> + Send + Sync + 'static,
    {
        self.insert(name, move |options: O| {
            let layer = make(options)?;
            Ok(Box::new(move |at: &mut Installer<'_>, place| match place {
                Place::Outside => at.run_layer(layer),
                Place::Inside => at.model_layer(layer),
            }))
        })
    }

    /// Registers a plugin, a gate or a tool layer, whose place does not depend on that of the loop;
    /// an entry of the same name is replaced.
    ///
    /// ```
    /// use concentric_core::{agent::Installer, gate::{Verdict, gate_fn}};
    /// use concentric_layers::config::Registry;
    /// use schemars::JsonSchema;
    /// use serde::Deserialize;
    ///
    /// #[derive(Deserialize, JsonSchema)]
    /// struct Forbid {
    ///     tool: String,
    /// }
    ///
    /// let registry = Registry::builtin().plugin("forbid", |Forbid { tool }| {
    ///     Ok(|at: &mut Installer<'_>| {
    ///         at.gate(gate_fn("forbid", move |call| match call.name().as_str() == tool {
    ///             true => Verdict::deny("The tool is disabled."),
    ///             false => Verdict::Pass,
    ///         }));
    ///     })
    /// });
    /// # let _ = registry;
    /// ```
    #[must_use]
    pub fn plugin<O, I>(
        self,
        name: &'static str,
        make: impl Fn(O) -> Result<I, BoxError> + Send + Sync + 'static,
    ) -> Self
    where
        O: DeserializeOwned + JsonSchema,
        I: FnOnce(&mut Installer<'_>) + Send + Sync + 'static,
    {
        self.insert(name, move |options: O| {
            let install = make(options)?;
            Ok(Box::new(move |at: &mut Installer<'_>, _| install(at)))
        })
    }

    pub(super) fn insert<O>(
        mut self,
        name: &'static str,
        make: impl Fn(O) -> Result<Part, BoxError> + Send + Sync + 'static,
    ) -> Self
    where
        O: DeserializeOwned + JsonSchema,
    {
        let schema = schema_of::<O>();
        let validator = jsonschema::validator_for(&schema);
        let make = move |options: Value| {
            let part = make(read(&validator, options)?);
            part.map_err(|error| ConfigError::new("", error.to_string()).with_source(error))
        };
        let make = Arc::new(make);
        self.entries.insert(name, Entry { schema, make });
        self
    }

    /// Returns the JSON Schema of a configuration with the registered layers.
    pub fn schema(&self) -> Value {
        let one = |name: &str, options: &Value| {
            json!({
                "type": "object",
                "properties": {"use": {"const": name}, "options": options},
                "required": ["use"],
                "additionalProperties": false,
            })
        };
        let entries = self.entries.iter();
        let entries = entries.map(|(name, entry)| one(name, &entry.schema));
        let items: Vec<_> = [one(AGENT, &schema_of::<AgentOptions>())]
            .into_iter()
            .chain(entries)
            .collect();
        json!({
            "type": "object",
            "properties": {
                "layers": {"type": "array", "items": {"oneOf": items}, "maxItems": MAX_LAYERS},
            },
            "required": ["layers"],
            "additionalProperties": false,
        })
    }

    /// Creates the agents of a JSON document, with `tools`.
    ///
    /// The agents are boxed, and have the description of the same stack built by hand.
    ///
    /// # Errors
    ///
    /// The document can't be parsed, or one of its keys is wrong
    /// ([`Configuration`](concentric_core::ErrorKind::Configuration), with the code `config`).
    pub fn json<R>(&self, text: &str, tools: R) -> Result<AgentLayer<R, Plugins>, Error>
    where
        R: ToolSource + 'static,
    {
        self.build(serde_json::from_str(text).map_err(syntax)?, tools)
    }

    /// Creates the agents of a TOML document, with `tools`.
    ///
    /// # Errors
    ///
    /// Those of [`json`](Self::json).
    pub fn toml<R>(&self, text: &str, tools: R) -> Result<AgentLayer<R, Plugins>, Error>
    where
        R: ToolSource + 'static,
    {
        let document: toml::Value = toml::from_str(text).map_err(syntax)?;
        // They would be options that are not set.
        if !is_finite(&document) {
            return Err(syntax("`inf` and `nan` are not values of options"));
        }
        self.build(toml::from_str(text).map_err(syntax)?, tools)
    }

    /// Creates the agents of a parsed document, such as a part of a larger configuration.
    ///
    /// # Errors
    ///
    /// Those of [`json`](Self::json).
    pub fn build<R>(&self, document: Value, tools: R) -> Result<AgentLayer<R, Plugins>, Error>
    where
        R: ToolSource + 'static,
    {
        let (options, parts) = self.parts(document)?;
        Ok(agent(&options, parts, tools))
    }

    fn parts(&self, document: Value) -> Result<(AgentOptions, Vec<(Place, Part)>), ConfigError> {
        let mut keys = object(document)?;
        let layers = keys.remove("layers");
        no_more(&keys)?;
        let Some(Value::Array(layers)) = layers else {
            return Err(ConfigError::new("layers", "a list of layers is required"));
        };
        if layers.len() > MAX_LAYERS {
            let why = format!("{} layers are more than {MAX_LAYERS}", layers.len());
            return Err(ConfigError::new("layers", why));
        }
        let (mut agent, mut parts) = (None, Vec::new());
        for (at, layer) in layers.into_iter().enumerate() {
            let key = format!("layers[{at}]");
            self.add(layer, &mut agent, &mut parts)
                .map_err(|error| error.at(&key))?;
        }
        let agent = agent.ok_or_else(|| ConfigError::new("layers", "no layer is the `agent`"))?;
        Ok((agent, parts))
    }

    /// Adds one item of the list.
    fn add(
        &self,
        layer: Value,
        agent: &mut Option<AgentOptions>,
        parts: &mut Vec<(Place, Part)>,
    ) -> Result<(), ConfigError> {
        let mut keys = object(layer)?;
        let (name, options) = (keys.remove("use"), keys.remove("options"));
        no_more(&keys)?;
        let Some(Value::String(name)) = name else {
            return Err(ConfigError::new("use", "the name of a layer is required"));
        };
        let options = options.unwrap_or_else(|| Map::new().into());
        let in_options = |error: ConfigError| error.at("options");
        if let Some(entry) = self.entries.get(name.as_str()) {
            let place = match agent {
                Some(_) => Place::Inside,
                None => Place::Outside,
            };
            parts.push((place, (entry.make)(options).map_err(in_options)?));
        } else if name != AGENT {
            let names: Vec<_> = self.entries.keys().copied().collect();
            let names = names.join("`, `");
            let why = format!("no layer is named `{name}`; there are `{AGENT}`, `{names}`");
            return Err(ConfigError::new("use", why));
        } else if agent.is_some() {
            return Err(ConfigError::new("use", "there is more than one `agent`"));
        } else {
            let validator = jsonschema::validator_for(&schema_of::<AgentOptions>());
            *agent = Some(read(&validator, options).map_err(in_options)?);
        }
        Ok(())
    }
}

fn object(value: Value) -> Result<Map<String, Value>, ConfigError> {
    match value {
        Value::Object(keys) => Ok(keys),
        _ => Err(ConfigError::new("", "an object is required")),
    }
}

fn no_more(keys: &Map<String, Value>) -> Result<(), ConfigError> {
    match keys.keys().next() {
        Some(key) => Err(ConfigError::new(key, "the key is unknown")),
        None => Ok(()),
    }
}

fn schema_of<O>() -> Value
where
    O: JsonSchema,
{
    let settings = SchemaSettings::draft2020_12().with(|settings| {
        settings.inline_subschemas = true;
        settings.meta_schema = None;
    });
    let schema = settings.into_generator().into_root_schema_for::<O>();
    schema.to_value()
}

/// Checks and reads the options of a layer; an error has the key in the options.
fn read<O>(
    validator: &Result<Validator, jsonschema::ValidationError<'static>>,
    options: Value,
) -> Result<O, ConfigError>
where
    O: DeserializeOwned,
{
    let validator = validator.as_ref();
    let validator = validator.map_err(|error| {
        ConfigError::new("", format!("the schema of the options is invalid: {error}"))
    })?;
    if let Some(error) = validator.iter_errors(&options).next() {
        let key = error.instance_path().as_str();
        return Err(ConfigError::new(dotted(key), error.to_string()));
    }
    serde_path_to_error::deserialize(options).map_err(|error| {
        let key = match error.path().to_string() {
            root if root == "." => String::new(),
            key => key,
        };
        let error = error.into_inner();
        ConfigError::new(key, error.to_string()).with_source(error.into())
    })
}

/// Converts a JSON pointer to a key, `/a/0/b` to `a[0].b`.
fn dotted(pointer: &str) -> String {
    let mut key = String::new();
    for part in pointer.split('/').skip(1) {
        let part = part.replace("~1", "/").replace("~0", "~");
        match part.parse::<usize>() {
            Ok(index) => key += &format!("[{index}]"),
            Err(_) if key.is_empty() => key = part,
            Err(_) => key += &format!(".{part}"),
        }
    }
    key
}

impl fmt::Debug for Registry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.entries.keys()).finish()
    }
}

/// Whether a document has finite numbers only.
fn is_finite(document: &toml::Value) -> bool {
    match document {
        toml::Value::Float(number) => number.is_finite(),
        toml::Value::Array(items) => items.iter().all(is_finite),
        toml::Value::Table(fields) => fields.values().all(is_finite),
        _ => true,
    }
}
