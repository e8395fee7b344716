use super::{
    decoder::Decoder,
    profile::{Profile, Turns},
    request::Wire,
    schema,
};
use crate::{
    ApiKey, Capabilities, ProviderLayer, Timeouts, Unsupported,
    api::{self, Api, Call},
    capabilities::{self, NO_CONTENT},
    sound,
};
use concentric_core::{Error, Role, Str};
use serde::Serialize;
use std::borrow::Cow;

/// OpenAI's chat completions API.
#[derive(Clone, Debug)]
pub struct Chat {
    pub(super) provider: Str,
    pub(super) profile: Profile,
}

/// [`Layer`](https://docs.rs/tower-layer/0.3/tower_layer/trait.Layer.html) that turns an HTTP
/// service into a model with OpenAI's chat completions.
///
/// | constructor | service |
/// |---|---|
/// | `OpenAiLayer::new(model, key)` | OpenAI's own service |
/// | `OpenAiLayer::profile(profile, model, key)` | a known service with a compatible API |
/// | `OpenAiLayer::from_env(profile, model)` | the same, with the key from the environment |
/// | `OpenAiLayer::compatible(..)` | any other compatible server, by base URL |
///
/// [`ProviderLayer`] has the settings that all providers share.
pub type OpenAiLayer = ProviderLayer<Chat>;

impl Chat {
    #[cfg(feature = "activities")]
    pub(crate) const fn profile(&self) -> &Profile {
        &self.profile
    }

    /// Adds the features that a call needs and the service does not support.
    fn check(&self, wire: &Wire<'_>, unsupported: &mut Vec<Unsupported>) {
        let call = &wire.call;
        if !wire.has_messages() {
            unsupported.push(Unsupported::new(NO_CONTENT));
        }
        let mut roles = call.request.transcript.iter().map(|t| t.as_message().role);
        if self.profile.turns == Turns::Strict && roles.next() == Some(Role::Assistant) {
            unsupported.push(
                Unsupported::new("a conversation that starts with an assistant message").at(0),
            );
        }
        capabilities::check_results(call.request, unsupported);
        if self.profile.strict_subset {
            schema::check(call.request, 64, unsupported);
        }
    }
}

impl OpenAiLayer {
    /// Creates a layer for OpenAI's own service. `model` is used unless a request names another.
    pub fn new(model: impl Into<Str>, key: ApiKey) -> Self {
        Self::profile(Profile::OPENAI, model, Some(key))
    }

    /// Creates a layer for the service of `profile`, with its base URL.
    ///
    /// For a profile without a base URL (Azure), set one with
    /// [`base_url`](ProviderLayer::base_url); otherwise `poll_ready` of the model fails.
    pub fn profile(profile: Profile, model: impl Into<Str>, key: Option<ApiKey>) -> Self {
        let provider = Str::from_static(profile.provider);
        Self::at(profile.base_url, Chat { provider, profile }, model, key)
    }

    /// Creates a layer for the service of `profile`, with the key from the environment
    /// ([`Profile::key_env`]).
    ///
    /// # Errors
    ///
    /// Returns [`ErrorKind::Configuration`](concentric_core::ErrorKind::Configuration) if the
    /// service requires a key and none is set.
    pub fn from_env(profile: Profile, model: impl Into<Str>) -> Result<Self, Error> {
        let mut missing = None;
        let key = profile.key_env.iter().find_map(|variable| {
            let key = ApiKey::from_env(variable);
            key.map_err(|error| missing.get_or_insert(error).clone())
                .ok()
        });
        match (key, missing) {
            (None, Some(missing)) if !profile.key_optional => Err(missing),
            (key, _) => Ok(Self::profile(profile, model, key)),
        }
    }

    /// Creates a layer for a service with a compatible API at `base_url`, the URL without
    /// `/chat/completions`.
    ///
    /// If the service at this URL is known, its profile is used ([`Profile::by_url`]); to configure
    /// another one, use [`profile`](Self::profile). An invalid URL fails `poll_ready` of the model.
    pub fn compatible(
        base_url: impl Into<Str>,
        model: impl Into<Str>,
        key: Option<ApiKey>,
    ) -> Self {
        let base_url = base_url.into();
        let profile = Profile::by_url(&base_url).unwrap_or(Profile::generic(""));
        let provider = match profile.provider {
            "" => api::host(&base_url),
            known => Str::from_static(known),
        };
        Self::at(base_url, Chat { provider, profile }, model, key)
    }
}

impl Api for Chat {
    type Decoder = Decoder;

    fn provider(&self) -> &Str {
        &self.provider
    }

    fn key_header(&self) -> &str {
        self.profile.key_header
    }

    fn timeouts(&self) -> Timeouts {
        self.profile.timeouts
    }

    fn capabilities(&self, _: &str) -> Capabilities {
        self.profile.capabilities
    }

    fn path(&self, _: &Call<'_>) -> Cow<'static, str> {
        "/chat/completions".into()
    }

    fn body<'a>(
        &'a self,
        call: Call<'a>,
        unsupported: &mut Vec<Unsupported>,
    ) -> impl Serialize + use<'a> {
        let wire = Wire { call, api: self };
        self.check(&wire, unsupported);
        wire
    }

    fn decoder(&self, call: &Call<'_>) -> Decoder {
        Decoder::new(self.profile.reasoning_apart, sound::media_type(call))
    }
}
