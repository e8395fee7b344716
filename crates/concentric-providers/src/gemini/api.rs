use super::{
    decoder::Decoder,
    family::Family,
    request::{self, Wire},
};
use crate::{
    ApiKey, Capabilities, ProviderLayer, Unsupported,
    api::{Api, Call},
};
use concentric_core::Str;
use serde::Serialize;
use std::borrow::Cow;

/// Google's `generateContent` API.
#[derive(Clone, Debug)]
pub struct GenerateContent {
    service: Service,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Service {
    Gemini,
    Vertex,
}

/// [`Layer`](https://docs.rs/tower-layer/0.3/tower_layer/trait.Layer.html) that turns an HTTP
/// service into a model with Google's `generateContent`.
///
/// | constructor | service |
/// |---|---|
/// | `GeminiLayer::new(model, key)` | the Gemini API |
/// | `GeminiLayer::vertex(project, region, model, token)` | Vertex AI |
///
/// [`ProviderLayer`] has the settings that all providers share.
pub type GeminiLayer = ProviderLayer<GenerateContent>;

impl GeminiLayer {
    /// Creates a layer for the Gemini API. `model` is used unless a request names another.
    pub fn new(model: impl Into<Str>, key: ApiKey) -> Self {
        let api = GenerateContent {
            service: Service::Gemini,
        };
        let base_url = "https://generativelanguage.googleapis.com/v1beta";
        Self::at(base_url, api, model, Some(key))
    }

    /// Creates a layer for Vertex AI, in a project and a region: `us-central1`, `global`, or one of
    /// the multi-regions `us` and `eu`.
    ///
    /// `token` is an OAuth access token, which is valid for an hour. Use [`ApiKey::from_fn`] to
    /// return a token that is refreshed elsewhere.
    pub fn vertex(project: &str, region: &str, model: impl Into<Str>, token: ApiKey) -> Self {
        let api = GenerateContent {
            service: Service::Vertex,
        };
        let host = match region {
            "global" => "aiplatform.googleapis.com".to_owned(),
            "us" | "eu" => format!("aiplatform.{region}.rep.googleapis.com"),
            region => format!("{region}-aiplatform.googleapis.com"),
        };
        let base_url =
            format!("https://{host}/v1/projects/{project}/locations/{region}/publishers/google");
        Self::at(base_url, api, model, Some(token))
    }
}

impl Api for GenerateContent {
    type Decoder = Decoder;

    fn provider(&self) -> &Str {
        static GEMINI: Str = Str::from_static("gcp.gemini");
        static VERTEX: Str = Str::from_static("gcp.vertex_ai");
        match self.service {
            Service::Gemini => &GEMINI,
            Service::Vertex => &VERTEX,
        }
    }

    fn key_header(&self) -> &str {
        match self.service {
            Service::Gemini => "x-goog-api-key",
            Service::Vertex => "authorization",
        }
    }

    fn capabilities(&self, model: &str) -> Capabilities {
        let family = Family::of(model);
        Capabilities {
            parallel_tool_calls: false,
            output_schema_with_tools: family.joins_schema_and_tools(),
            reasoning_effort: family.thinks(),
            prefill: family.takes_prefill(),
            stop: 5,
            ..Capabilities::all()
        }
    }

    fn path(&self, call: &Call<'_>) -> Cow<'static, str> {
        // `check` has rejected names that do not form a valid URL.
        let model = call.model;
        // `models/…` and `tunedModels/…` are complete names.
        let place = if model.contains('/') { "" } else { "models/" };
        let method = match call.streaming {
            true => "streamGenerateContent?alt=sse",
            false => "generateContent",
        };
        format!("/{place}{model}:{method}").into()
    }

    fn body<'a>(
        &'a self,
        call: Call<'a>,
        unsupported: &mut Vec<Unsupported>,
    ) -> impl Serialize + use<'a> {
        let wire = Wire::new(call, self.provider());
        request::check(&wire, unsupported);
        wire
    }

    fn decoder(&self, call: &Call<'_>) -> Decoder {
        Decoder::new(call.streaming)
    }
}
