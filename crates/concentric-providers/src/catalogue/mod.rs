//! What is known of models: how much they take and write, what they can do, what they cost.
//!
//! ```
//! use concentric_core::Usage;
//! use concentric_providers::Catalogue;
//!
//! let catalogue = Catalogue::builtin();
//! // A model's name may have a date behind it.
//! let model = catalogue.get("anthropic", "claude-haiku-4-5-20251001").expect("it is known");
//! assert_eq!(model.context_window, Some(200_000));
//!
//! // 1 dollar for a million tokens of input, 5 for one of output.
//! let cost = model.cost(&Usage::new(10_000, 2_000)).expect("its price is known");
//! assert_eq!(cost.to_string(), "$0.02");
//! assert_eq!(cost.micros(), 20_000);
//! ```
//!
//! # The data
//!
//! They are of the day that [`date`](Catalogue::date) says, from the places that
//! [`sources`](Catalogue::sources) lists: facts that others collect from the providers' own pages. A
//! price is here if two of them agree on it; of models that only the younger one knows, it is that
//! one's, and little else is known. List prices: no batches, priority tiers, regions or tools of the
//! provider's. They get old: what must be right is to be [said](Catalogue::with) or
//! [loaded](Catalogue::from_json) by whoever pays.
//!
//! ```
//! use concentric_providers::{Catalogue, catalogue::{ModelInfo, Price}};
//!
//! // In millionths of a dollar for a million tokens.
//! let ours = ModelInfo::new("openai", "gpt-5.5").price(Price::new(4_000_000, 25_000_000));
//! let catalogue = Catalogue::builtin().with(ours);
//! # assert_eq!(catalogue.get("openai", "gpt-5.5").and_then(|m| m.price).map(|p| p.input), Some(4_000_000));
//! ```
//!
//! # Where a price goes
//!
//! A budget (`concentric_layers::budget`) asks for the cost of a call in millionths of a dollar:
//! this is what `BudgetLayer::price` takes, for the one model that the layer stands around.
//!
//! ```
//! use concentric_core::Usage;
//! use concentric_providers::Catalogue;
//!
//! # fn main() -> Result<(), &'static str> {
//! let model = Catalogue::builtin().get("openai", "gpt-5.5").cloned().ok_or("unknown")?;
//! // What is not known counts as the dearest thing there is, so that a budget refuses it.
//! let price = move |usage: &Usage| model.cost(usage).map_or(u64::MAX, |cost| cost.micros());
//! // BudgetLayer::new(Limits::new().money(2_000_000)).price(price)
//! # assert_eq!(price(&Usage::new(1_000_000, 0)), 10_000_000);
//! # Ok(())
//! # }
//! ```
//!
//! It is the cost of one call, since the price of a token may depend on how long its request is. The
//! cost of a run is the [sum](Cost) of its calls' costs, and not the cost of its summed usage.

mod model;
mod price;

pub use self::{
    model::{ModelInfo, Reasoning},
    price::{Above, Cost, Price},
};

use concentric_core::{Error, ErrorKind, Head, Str};
use serde::Deserialize;
use std::sync::{Arc, LazyLock};

/// Models, by provider and name.
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

/// The version of the format.
const VERSION: u32 = 1;

impl Catalogue {
    /// The models that this crate knows.
    pub fn builtin() -> Self {
        // That it can be read is for a test to see.
        static BUILTIN: LazyLock<Catalogue> =
            LazyLock::new(|| Catalogue::from_json(include_str!("models.json")).unwrap_or_default());
        BUILTIN.clone()
    }

    /// Reads a catalogue, of this form; all fields of a model but the first two may be left out:
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
    /// It is not of this form, or of another version of it.
    pub fn from_json(json: &str) -> Result<Self, Error> {
        let wrong = |what| Error::new(ErrorKind::Configuration, what);
        let mut data: Data = serde_json::from_str(json)
            .map_err(|error| wrong("the JSON is no catalogue of models").with_source(error))?;
        if data.version != VERSION {
            return Err(wrong("the catalogue of models is of another version"));
        }
        let named = |model: &ModelInfo| model.names().all(|name| !name.is_empty());
        if !data.models.iter().all(named) {
            return Err(wrong("a model of the catalogue has no name"));
        }
        for model in &mut data.models {
            model.provider = known_as(&model.provider);
        }
        Ok(Self(Arc::new(data)))
    }

    /// Adds a model, in place of the one of this name. Its provider is called as
    /// [`get`](Self::get) says.
    #[must_use]
    pub fn with(mut self, mut model: ModelInfo) -> Self {
        model.provider = known_as(&model.provider);
        let models = &mut Arc::make_mut(&mut self.0).models;
        models.retain(|other| !other.is(&model));
        // Also where it was an alias of another one.
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

    /// Adds all models of another catalogue, in place of those of the same names.
    #[must_use]
    pub fn merge(self, other: &Self) -> Self {
        let merged = other.0.models.iter().cloned().fold(self, Self::with);
        let mut data = Arc::unwrap_or_clone(merged.0);
        data.date = data.date.max(other.0.date.clone());
        data.sources.extend(other.0.sources.iter().cloned());
        Self(Arc::new(data))
    }

    /// The day that the data are of, as `2026-08-21`.
    pub fn date(&self) -> &str {
        &self.0.date
    }

    /// Where the data are from.
    pub fn sources(&self) -> impl Iterator<Item = &str> {
        self.0.sources.iter().map(|source| &**source)
    }

    /// All models.
    pub fn models(&self) -> impl Iterator<Item = &ModelInfo> {
        self.0.models.iter()
    }

    /// The model that `provider` calls `model`, in upper or lower case.
    ///
    /// Providers have the names that their layers report (`gen_ai.provider.name`: `openai`,
    /// `gcp.gemini`, `x_ai`); a few others are understood (`google`, `xai`). A model that is not
    /// known by its full name is the one with the longest name that it begins with, if nothing but a
    /// version follows: a date, `latest`, `preview`. So `gpt-5.5-2026-04-23` is `gpt-5.5`, and
    /// `gpt-5.5-turbo` is not known.
    pub fn get(&self, provider: &str, model: &str) -> Option<&ModelInfo> {
        let provider = known_as(provider);
        let model = model.to_ascii_lowercase();
        // As Google writes it.
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

    /// The model that a response is from.
    pub fn of(&self, head: &Head) -> Option<&ModelInfo> {
        self.get(head.provider.as_deref()?, head.model.as_deref()?)
    }
}

/// What a provider is called here.
fn known_as(provider: &str) -> Str {
    let provider = provider.to_ascii_lowercase();
    Str::from_static(match &*provider {
        "gcp.gen_ai" | "gcp.vertex_ai" | "gemini" | "google" => "gcp.gemini",
        "mistral" | "mistralai" => "mistral_ai",
        "grok" | "x-ai" | "xai" => "x_ai",
        _ => return provider.into(),
    })
}

/// Whether `rest`, which stands behind a model's name, says no more than which version of it.
fn is_version(rest: &str) -> bool {
    let mut parts = rest.split(['-', '@']);
    if parts.next() != Some("") {
        return false;
    }
    // A short number is another model: `claude-opus-4-9` is not `claude-opus-4`.
    let mut least = 3;
    parts.all(|part| {
        let digits = part.len() >= least && part.bytes().all(|byte| byte.is_ascii_digit());
        least = 2;
        digits || matches!(part, "latest" | "preview" | "exp")
    })
}
