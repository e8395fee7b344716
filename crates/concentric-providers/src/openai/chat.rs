use super::{
    decoder::Decoder,
    profile::{Profile, Turns},
    request::Wire,
    schema,
};
use crate::{
    ApiKey, Capabilities, Model, ProviderLayer, Timeouts, Unsupported,
    api::{Api, Base, Call},
    capabilities::{self, NOTHING_SAID},
    sound,
};
use concentric_core::{Error, Role, Str};
use http::Uri;

/// OpenAI's chat completions.
#[derive(Clone, Debug)]
pub struct Chat {
    provider: Str,
    profile: Profile,
}

/// [`Layer`](https://docs.rs/tower-layer/0.3/tower_layer/trait.Layer.html) that makes a model of an HTTP service, by OpenAI's chat
/// completions.
///
/// | made by | for |
/// |---|---|
/// | `OpenAiLayer::new(model, key)` | OpenAI's own service |
/// | `OpenAiLayer::profile(profile, model, key)` | a known service that speaks as OpenAI does |
/// | `OpenAiLayer::from_env(profile, model)` | the same, with the key of the environment |
/// | `OpenAiLayer::compatible(..)` | any other such server, by its address |
///
/// The settings that all providers share (`base_url`, `header`, `timeouts`, `limits`,
/// `capabilities`, `streaming`) are methods of [`ProviderLayer`]; see the [module docs](super) for an
/// example.
pub type OpenAiLayer = ProviderLayer<Chat>;

/// A model, by OpenAI's chat completions over the HTTP service `S`.
pub type OpenAi<S> = Model<S, Chat>;

impl OpenAiLayer {
    /// Creates a layer for OpenAI's own service. `model` is asked unless a request names another.
    pub fn new(model: impl Into<Str>, key: ApiKey) -> Self {
        Self::profile(Profile::OPENAI, model, Some(key))
    }

    /// Creates a layer for the service of `profile`, at its address.
    ///
    /// Where it has none (Azure), say which with [`base_url`](ProviderLayer::base_url): until then,
    /// none is an error of the services' `poll_ready`.
    pub fn profile(profile: Profile, model: impl Into<Str>, key: Option<ApiKey>) -> Self {
        let provider = Str::from_static(profile.provider);
        Self::at(profile.base_url, Chat { provider, profile }, model, key)
    }

    /// Creates a layer for the service of `profile`, with the key that the environment has for it
    /// ([`Profile::key_env`]).
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Configuration`](concentric_core::ErrorKind::Configuration) if there is none, and
    /// the service wants one.
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

    /// Creates a layer for a service that speaks as OpenAI's does, at `base_url`: the address
    /// without `/chat/completions`.
    ///
    /// What is known of the service at that address goes for it ([`Profile::by_url`]); for what is
    /// not, see [`profile`](Self::profile). An address that is none is an error of the services'
    /// `poll_ready`.
    pub fn compatible(
        base_url: impl Into<Str>,
        model: impl Into<Str>,
        key: Option<ApiKey>,
    ) -> Self {
        let base_url = base_url.into();
        let profile = Profile::by_url(&base_url).unwrap_or(Profile::generic(""));
        let uri: Option<Uri> = base_url.parse().ok();
        let provider = match profile.provider {
            "" => uri.as_ref().and_then(Uri::host).unwrap_or_default().into(),
            known => Str::from_static(known),
        };
        Self::at(base_url, Chat { provider, profile }, model, key)
    }
}

impl Chat {
    const fn wire<'a>(&'a self, call: &Call<'a>) -> Wire<'a> {
        Wire {
            call: *call,
            profile: &self.profile,
            provider: &self.provider,
        }
    }
}

impl Api for Chat {
    type Decoder = Decoder;

    fn provider(&self) -> &Str {
        &self.provider
    }

    fn key_header(&self) -> (&str, &str) {
        let name = self.profile.key_header;
        let prefix = match name {
            "authorization" => "Bearer ",
            _ => "",
        };
        (name, prefix)
    }

    fn timeouts(&self) -> Timeouts {
        self.profile.timeouts
    }

    fn capabilities(&self, _: &str) -> Capabilities {
        self.profile.capabilities
    }

    fn check(&self, call: &Call<'_>, unsupported: &mut Vec<Unsupported>) {
        if !self.wire(call).says_something() {
            unsupported.push(Unsupported::new(NOTHING_SAID));
        }
        let mut roles = call.request.transcript.iter().map(|t| t.as_message().role);
        if self.profile.turns == Turns::Strict && roles.next() == Some(Role::Assistant) {
            unsupported.push(Unsupported::new("a conversation that the assistant begins").at(0));
        }
        capabilities::check_results(call.request, unsupported);
        if self.profile.strict_subset {
            schema::check(call.request, 64, unsupported);
        }
    }

    fn endpoint(&self, base: &Base, _: &Call<'_>) -> Result<Uri, Error> {
        base.join("/chat/completions")
    }

    fn encode(&self, call: &Call<'_>) -> Result<Vec<u8>, Error> {
        call.write(&self.wire(call))
    }

    fn decoder(&self, call: &Call<'_>) -> Decoder {
        Decoder::new(self.profile.reasoning_apart, sound::media_type(call))
    }
}
