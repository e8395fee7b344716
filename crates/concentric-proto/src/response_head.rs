use crate::text::Str;
use std::sync::Arc;

/// The part of a response that is known before its body.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct ResponseHead {
    /// The provider (`gen_ai.provider.name`).
    pub provider: Option<Str>,
    /// The model, which may be more specific than the requested one (`gen_ai.response.model`).
    pub model: Option<Str>,
    /// The provider's id of the response (`gen_ai.response.id`).
    pub id: Option<Str>,
    /// The provider's id of the request, for support requests.
    pub request_id: Option<Str>,
    /// The tools that were offered to the model, if a layer changed those of the request.
    pub tools: Option<Arc<[Str]>>,
}

impl ResponseHead {
    /// Creates the head of a response from `model` of `provider`.
    pub fn new(provider: impl Into<Str>, model: impl Into<Str>) -> Self {
        Self {
            provider: Some(provider.into()),
            model: Some(model.into()),
            ..Self::default()
        }
    }
}
