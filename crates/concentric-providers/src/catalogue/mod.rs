//! Information about models: context windows, capabilities and prices.
//!
//! ```
//! use concentric_core::Usage;
//! use concentric_providers::Catalogue;
//!
//! let catalogue = Catalogue::builtin();
//! // A model name may end with a date.
//! let model = catalogue.get("anthropic", "claude-haiku-4-5-20251001").expect("it is known");
//! assert_eq!(model.context_window, Some(200_000));
//!
//! // 1 dollar per million input tokens, 5 dollars per million output tokens.
//! let cost = model.cost(&Usage::new(10_000, 2_000)).expect("its price is known");
//! assert_eq!(cost.to_string(), "$0.02");
//! assert_eq!(cost.micros(), 20_000);
//! ```
//!
//! # The data
//!
//! The data are as of [`date`](Catalogue::date), from the collections in
//! [`sources`](Catalogue::sources), which gather them from the providers' own pages. A price is
//! included if two sources agree on it; for models that only the more recent source contains, its
//! price is used, and few other fields are known. Prices are list prices: without batches, priority
//! tiers, regions or provider tools. The data become outdated: if costs must be exact, set prices
//! with [`with`](Catalogue::with) or [`from_json`](Catalogue::from_json).
//!
//! ```
//! use concentric_providers::{Catalogue, catalogue::{ModelInfo, Price}};
//!
//! // In millionths of a dollar per million tokens.
//! let ours = ModelInfo::new("openai", "gpt-5.5").price(Price::new(4_000_000, 25_000_000));
//! let catalogue = Catalogue::builtin().with(ours);
//! # assert_eq!(catalogue.get("openai", "gpt-5.5").and_then(|m| m.price).map(|p| p.input), Some(4_000_000));
//! ```
//!
//! # Prices for a budget
//!
//! A budget (`concentric_layers::budget`) needs the cost of a call in millionths of a dollar.
//! `BudgetPlugin::price` takes a function for the single model that the layer wraps:
//! `move |usage: &Usage| model.cost(usage).map_or(u64::MAX, |cost| cost.micros())`. It counts an
//! unknown cost as the maximum, so that a budget rejects the call.
//!
//! The cost applies to one call, since the price of a token may depend on the input length. The
//! cost of a run is the [sum](Cost) of the costs of its calls, not the cost of its total usage.

mod model;
mod price;

pub use self::{
    model::{ModelInfo, Reasoning},
    price::{Cost, Price},
};

use concentric_core::{Error, ErrorKind, ModelUsage, ResponseHead, RunUsage, Str};
use serde::Deserialize;
use std::sync::{Arc, LazyLock};

/// A catalogue of models, by provider and name.
///
/// See the [module docs](self). Cloning is cheap.
#[derive(Clone, Debug, Default)]
pub struct Catalogue(Arc<Data>);

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Data {
    version: u32,
    date: Str,
    #[serde(default)]
    sources: Vec<Str>,
    models: Vec<ModelInfo>,
}

/// The format version.
const VERSION: u32 = 1;

impl Catalogue {
    /// The models that are built into this crate.
    pub fn builtin() -> Self {
        // A test ensures that the file is valid.
        static BUILTIN: LazyLock<Catalogue> =
            LazyLock::new(|| Catalogue::from_json(include_str!("models.json")).unwrap_or_default());
        BUILTIN.clone()
    }

    /// Reads a catalogue in the following format. All fields of a model except the first two are
    /// optional.
    ///
    /// ```
    /// use concentric_providers::Catalogue;
    ///
    /// let catalogue = Catalogue::from_json(r#"{
    ///     "version": 1,
    ///     "date": "2026-11-22",
    ///     "sources": ["our contract"],
    ///     "models": [{
    ///         "provider": "openai",
    ///         "model": "gpt-5.5",
    ///         "aliases": ["our-best"],
    ///         "context_window": 1050000,
    ///         "max_output": 128000,
    ///         "knowledge": "2025-12",
    ///         "input": ["text", "image", "pdf"],
    ///         "tools": true,
    ///         "structured_output": true,
    ///         "temperature": false,
    ///         "reasoning": {"supported": true, "efforts": ["low", "high"], "optional": true},
    ///         "price": {
    ///             "input": 4000000, "output": 25000000, "cached_input": 400000, "cache_write": 4000000,
    ///             "above": {"input_tokens": 272000, "input": 8000000, "output": 37500000}
    ///         }
    ///     }]
    /// }"#)?;
    /// assert!(catalogue.get("openai", "our-best").is_some());
    /// # Ok::<(), concentric_core::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Returns [`ErrorKind::Configuration`] if the JSON does not follow this format, has another
    /// format version, or contains a model without a name.
    pub fn from_json(json: &str) -> Result<Self, Error> {
        let wrong = |what| Error::new(ErrorKind::Configuration, what);
        let mut data: Data = serde_json::from_str(json)
            .map_err(|error| wrong("the JSON is not a catalogue of models").with_source(error))?;
        if data.version != VERSION {
            return Err(wrong(
                "the catalogue of models has an unsupported format version",
            ));
        }
        let named = |model: &ModelInfo| model.names().all(|name| !name.is_empty());
        if !data.models.iter().all(named) {
            return Err(wrong("a model in the catalogue has no name"));
        }
        for model in &mut data.models {
            model.provider = known_as(&model.provider);
        }
        Ok(Self(Arc::new(data)))
    }

    /// Adds a model, and replaces one of the same name. The provider's name is normalized as in
    /// [`get`](Self::get).
    #[must_use]
    pub fn with(mut self, mut model: ModelInfo) -> Self {
        model.provider = known_as(&model.provider);
        let models = &mut Arc::make_mut(&mut self.0).models;
        models.retain(|other| !other.is(&model));
        // Removes the name from the aliases of other models.
        for other in models
            .iter_mut()
            .filter(|other| other.provider == model.provider)
        {
            other
                .aliases
                .retain(|alias| model.names().all(|name| name != alias));
        }
        models.push(model);
        self
    }

    /// Adds all models of another catalogue, and replaces those of the same names.
    #[must_use]
    pub fn merge(self, other: &Self) -> Self {
        let merged = other.0.models.iter().cloned().fold(self, Self::with);
        let mut data = Arc::unwrap_or_clone(merged.0);
        data.date = data.date.max(other.0.date.clone());
        data.sources.extend(other.0.sources.iter().cloned());
        Self(Arc::new(data))
    }

    /// The date of the data, such as `2026-08-21`.
    pub fn date(&self) -> &str {
        &self.0.date
    }

    /// The sources of the data.
    pub fn sources(&self) -> impl Iterator<Item = &str> {
        self.0.sources.iter().map(|source| &**source)
    }

    /// All models.
    pub fn models(&self) -> impl Iterator<Item = &ModelInfo> {
        self.0.models.iter()
    }

    /// The model that `provider` calls `model`, in upper or lower case.
    ///
    /// Provider names are those that layers report (`gen_ai.provider.name`: `openai`, `gcp.gemini`,
    /// `x_ai`); a few others are recognized (`google`, `xai`). If the full name is unknown, the
    /// longest known name that `model` starts with is used, provided that only a version follows: a
    /// date, `latest` or `preview`. For example, `gpt-5.5-2026-04-23` resolves to `gpt-5.5`, but
    /// `gpt-5.5-turbo` is unknown.
    pub fn get(&self, provider: &str, model: &str) -> Option<&ModelInfo> {
        let provider = known_as(provider);
        let model = model.to_ascii_lowercase();
        // Google's names have this prefix.
        let model = model.strip_prefix("models/").unwrap_or(&model);
        let names = self
            .models()
            .filter(|info| info.provider == provider)
            .flat_map(|info| info.names().map(move |name| (name, info)));
        let fits = names.filter(|(name, _)| {
            let name = name.to_ascii_lowercase();
            model.strip_prefix(&*name).is_some_and(is_version)
        });
        fits.max_by_key(|(name, _)| name.len())
            .map(|(_, info)| info)
    }

    /// The cost of all model calls of a run; `None` if the price of one of the models is unknown.
    ///
    /// ```
    /// use concentric_core::{ResponseHead, RunUsage, Usage};
    /// use concentric_providers::catalogue::{Catalogue, ModelInfo, Price};
    ///
    /// let info = ModelInfo::new("openai", "gpt-x").price(Price::new(3_000_000, 15_000_000));
    /// let catalogue = Catalogue::builtin().with(info);
    /// let mut run = RunUsage::default();
    /// run.record(&ResponseHead::new("openai", "gpt-x"), Usage::new(1_000, 100));
    /// assert_eq!(catalogue.cost(&run).map(|cost| cost.to_string()), Some("$0.0045".to_owned()));
    /// ```
    pub fn cost(&self, run: &RunUsage) -> Option<Cost> {
        let cost = |of: &ModelUsage| {
            let info = self.get(of.provider.as_deref()?, of.model.as_deref()?)?;
            info.price?.cost_of_calls(&of.usage, of.calls)
        };
        run.models().iter().map(cost).sum()
    }

    /// The model that produced a response.
    pub fn for_response(&self, head: &ResponseHead) -> Option<&ModelInfo> {
        self.get(head.provider.as_deref()?, head.model.as_deref()?)
    }
}

/// The normalized name of a provider.
fn known_as(provider: &str) -> Str {
    let provider = provider.to_ascii_lowercase();
    Str::from_static(match &*provider {
        "gcp.gen_ai" | "gcp.vertex_ai" | "gemini" | "google" => "gcp.gemini",
        "mistral" | "mistralai" => "mistral_ai",
        "grok" | "x-ai" | "xai" => "x_ai",
        _ => return provider.into(),
    })
}

/// Whether `rest`, the text after a model's name, contains only a version.
fn is_version(rest: &str) -> bool {
    let mut parts = rest.split(['-', '@']);
    if parts.next() != Some("") {
        return false;
    }
    // A short number denotes another model: `claude-opus-4-9` is not `claude-opus-4`.
    let mut least = 3;
    parts.all(|part| {
        let digits = part.len() >= least && part.bytes().all(|byte| byte.is_ascii_digit());
        least = 2;
        digits || matches!(part, "latest" | "preview" | "exp")
    })
}
