use crate::text::Str;
use std::sync::Arc;

/// What is known of an answer before it arrives.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Head {
    /// The provider that answers (`gen_ai.provider.name`).
    pub provider: Option<Str>,
    /// The model that answers, which may be more exact than the one asked for
    /// (`gen_ai.response.model`).
    pub model: Option<Str>,
    /// The provider's id of the answer (`gen_ai.response.id`).
    pub id: Option<Str>,
    /// The provider's id of the request, for its support.
    pub request_id: Option<Str>,
    /// The tools that the model was really offered, if a layer knows better than the request.
    pub tools: Option<Arc<[Str]>>,
}

impl Head {
    /// Creates the head of an answer by `model` of `provider`.
    pub fn new(provider: impl Into<Str>, model: impl Into<Str>) -> Self {
        Self {
            provider: Some(provider.into()),
            model: Some(model.into()),
            ..Self::default()
        }
    }
}
