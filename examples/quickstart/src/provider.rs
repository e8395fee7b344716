//! The model providers that the environment has settings for.

use bytes::Bytes;
use concentric::{
    BoxError, BoxModel, Error, ErrorKind,
    providers::{AnthropicLayer, ApiKey, GeminiLayer, OllamaLayer, OpenAiLayer, openai::Profile},
};
use http::{Request, Response};
use http_body_util::Full;
use std::env;
use tower::{Layer, Service};

/// The default models. For other providers, the model's variable is required.
const MODELS: [(&str, &str); 8] = [
    ("openai", "gpt-5.5"),
    ("anthropic", "claude-opus-4-8"),
    ("gemini", "gemini-3.5-flash"),
    ("ollama", "qwen3"),
    ("groq", "openai/gpt-oss-120b"),
    ("mistral", "mistral-large-latest"),
    ("deepseek", "deepseek-v4-pro"),
    ("xai", "grok-4.3"),
];

/// Returns the known providers in order of preference: the name, the variables for its key, and its
/// URL.
fn known() -> impl Iterator<Item = (&'static str, &'static [&'static str], &'static str)> {
    const GOOGLE: &str = "https://generativelanguage.googleapis.com/v1beta";
    let own: [(_, &[_], _); 4] = [
        ("openai", Profile::OPENAI.key_env, Profile::OPENAI.base_url),
        (
            "anthropic",
            &["ANTHROPIC_API_KEY"],
            "https://api.anthropic.com",
        ),
        ("gemini", Profile::GEMINI.key_env, GOOGLE),
        ("ollama", Profile::OLLAMA.key_env, ""),
    ];
    let others = Profile::ALL
        .iter()
        .filter(move |profile| own.iter().all(|(name, ..)| *name != profile.name))
        .map(|profile| (profile.name, profile.key_env, profile.base_url));
    own.into_iter().chain(others)
}

/// A provider with the settings of the environment.
#[derive(Clone, Debug)]
pub struct Provider {
    /// The name, as in `CONCENTRIC_PROVIDER`.
    pub name: &'static str,
    /// The variable for its key.
    pub key_variable: &'static str,
    /// The variable for its URL: `OLLAMA_HOST`, or for example `OPENAI_BASE_URL`.
    pub address_variable: String,
    /// The variable for the model, for example `OPENAI_MODEL`.
    pub model_variable: String,
    key: Option<ApiKey>,
    base_url: String,
    model: String,
}

impl Provider {
    /// Returns the provider that `CONCENTRIC_PROVIDER` names, or else the first available one;
    /// `None` if there is none, or if the variable is `offline`.
    ///
    /// # Errors
    ///
    /// Returns an error if the named provider lacks a key or a model, or a key is not Unicode.
    pub fn chosen() -> Result<Option<Self>, Error> {
        let Some(wanted) = read("CONCENTRIC_PROVIDER") else {
            return Self::all().next().transpose();
        };
        if wanted == "offline" {
            return Ok(None);
        }
        let found = known()
            .filter(|(name, ..)| *name == wanted)
            .find_map(|(name, keys, at)| Self::from_env(name, keys, at).transpose());
        let missing = || {
            let what = format!(
                "CONCENTRIC_PROVIDER is `{wanted}`, but its key, model or address is not set"
            );
            Error::new(ErrorKind::Configuration, what)
        };
        found.ok_or_else(missing)?.map(Some)
    }

    /// Returns all available providers.
    pub fn all() -> impl Iterator<Item = Result<Self, Error>> {
        known().filter_map(|(name, keys, at)| Self::from_env(name, keys, at).transpose())
    }

    /// Returns the provider `name` with a placeholder key, for use with a stand-in HTTP service.
    pub fn stand_in(name: &str) -> Option<Self> {
        let (name, keys, at) = known().find(|known| known.0 == name)?;
        let mut provider = Self::named(name, keys, at);
        provider.key = Some(ApiKey::new("none"));
        Some(provider)
    }

    fn named(name: &'static str, keys: &[&'static str], base_url: &str) -> Self {
        let prefix = name.to_uppercase().replace(['-', '.'], "_");
        let default = MODELS.iter().find(|(of, _)| *of == name);
        Self {
            name,
            key_variable: keys.first().copied().unwrap_or_default(),
            address_variable: match name {
                "ollama" => "OLLAMA_HOST".to_owned(),
                _ => format!("{prefix}_BASE_URL"),
            },
            model_variable: format!("{prefix}_MODEL"),
            key: None,
            base_url: base_url.to_owned(),
            model: default.map_or_else(String::new, |(_, model)| (*model).to_owned()),
        }
    }

    /// Returns `None` if a setting is missing.
    fn from_env(
        name: &'static str,
        keys: &[&'static str],
        base_url: &str,
    ) -> Result<Option<Self>, Error> {
        let mut provider = Self::named(name, keys, base_url);
        let is_set = |key: &&&str| env::var_os(key).is_some_and(|value| !value.is_empty());
        if let Some(&variable) = keys.iter().find(is_set) {
            provider.key_variable = variable;
            provider.key = Some(ApiKey::from_env(variable)?);
        }
        let address = read(&provider.address_variable);
        let is_there = match name {
            // A self-hosted server may not need a key.
            "openai" => provider.key.is_some() || address.is_some(),
            "ollama" => address.is_some(),
            _ => provider.key.is_some(),
        };
        if let Some(address) = address {
            provider.base_url = address;
        }
        if let Some(model) = read(&provider.model_variable) {
            provider.model = model;
        }
        let is_whole = !provider.model.is_empty() && !provider.base_url.is_empty();
        Ok((is_there && is_whole).then_some(provider))
    }

    /// Creates the provider's model over an HTTP service.
    pub fn over<S, B>(self, http: S) -> BoxModel
    where
        S: Service<Request<Full<Bytes>>, Response = Response<B>> + Clone + Send + Sync + 'static,
        S::Error: Into<BoxError>,
        S::Future: Send + 'static,
        B: http_body::Body<Data = Bytes> + Send + 'static,
        B::Error: Into<BoxError>,
    {
        let (model, base_url) = (self.model, self.base_url);
        match (self.name, self.key) {
            ("anthropic", key) => {
                BoxModel::new(AnthropicLayer::compatible(base_url, model, key).layer(http))
            }
            ("gemini", Some(key)) => {
                BoxModel::new(GeminiLayer::new(model, key).base_url(base_url).layer(http))
            }
            ("ollama", _) => BoxModel::new(OllamaLayer::from_env(model).layer(http)),
            (name, key) => {
                // The profile follows from the address for `openai`, and from the name otherwise.
                let profile = match name {
                    "openai" => None,
                    name => Profile::by_name(name),
                };
                let layer = match profile {
                    Some(profile) => OpenAiLayer::profile(profile, model, key).base_url(base_url),
                    None => OpenAiLayer::compatible(base_url, model, key),
                };
                BoxModel::new(layer.layer(http))
            }
        }
    }
}

fn read(variable: &str) -> Option<String> {
    let value = env::var(variable).ok()?;
    let value = value.trim();
    (!value.is_empty()).then(|| value.to_owned())
}

#[cfg(test)]
mod tests {
    use super::{MODELS, known};
    use concentric::providers::{Catalogue, openai::Profile};

    #[test]
    fn the_default_models_are_in_the_catalogue() {
        // The models of Ollama depend on the machine.
        for (name, model) in MODELS.iter().filter(|(name, _)| *name != "ollama") {
            let provider = Profile::by_name(name).map_or(*name, |profile| profile.provider);
            let known = Catalogue::builtin();
            assert!(known.get(provider, model).is_some(), "{name}: {model}");
        }
    }

    #[test]
    fn each_provider_is_known_once() {
        let names: Vec<&str> = known().map(|(name, ..)| name).collect();
        for (at, name) in names.iter().enumerate() {
            assert!(!names.iter().skip(at + 1).any(|other| other == name));
        }
        assert!(MODELS.iter().all(|(name, _)| names.contains(name)));
        assert!(Profile::ALL.iter().all(|p| names.contains(&p.name)));
    }
}
