use crate::{
    history::{IdRules, NameRules},
    openai::Profile,
};
use concentric_core::Str;
use http::Uri;

/// Where a server that speaks OpenAI's Responses differs from OpenAI's.
///
/// [`OpenAiResponsesLayer::compatible`](super::OpenAiResponsesLayer::compatible) knows the larger
/// services by their host; for others, say it with
/// [`OpenAiResponsesLayer::compat`](super::OpenAiResponsesLayer::compat).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Compat {
    /// The provider's name (`gen_ai.provider.name`).
    pub provider: Str,
    /// Whether metadata is sent.
    pub metadata: bool,
    /// The header that the key goes into: `authorization`, with `Bearer` before it, or another,
    /// without.
    pub key_header: Str,
    /// Whether tools are sent with `strict` where their schema allows it; else with `strict: false`.
    pub strict_tools: bool,
    /// Whether calls of custom tools are of the service's own tools, which it runs itself.
    pub hosts_custom_tools: bool,
}

/// Which ids of calls are taken: of all services alike, since no shorter limit is known of any.
pub(super) const IDS: IdRules = IdRules {
    length: 64,
    exact: false,
    punctuation: "_-.:",
};

/// Which names of tools are taken in a call that was made (*Create a model response*).
pub(super) const NAMES: NameRules = NameRules {
    length: 128,
    ..NameRules::COMMON
};

impl Compat {
    /// OpenAI's own service.
    pub const fn openai() -> Self {
        Self {
            provider: Str::from_static("openai"),
            metadata: true,
            key_header: Str::from_static("authorization"),
            strict_tools: true,
            hosts_custom_tools: false,
        }
    }

    /// A server of which nothing else is known.
    pub fn generic(provider: impl Into<Str>) -> Self {
        Self {
            provider: provider.into(),
            metadata: false,
            strict_tools: false,
            ..Self::openai()
        }
    }

    /// What is known of the server at `url`.
    pub(super) fn of_url(url: &str) -> Self {
        let Some(known) = Profile::by_url(url) else {
            let uri: Option<Uri> = url.parse().ok();
            return Self::generic(uri.as_ref().and_then(Uri::host).unwrap_or_default());
        };
        let mut compat = Self::generic(Str::from_static(known.provider));
        compat.metadata = known.metadata;
        compat.key_header = Str::from_static(known.key_header);
        compat.strict_tools = known.strict_subset;
        compat.hosts_custom_tools = compat.provider == *"x_ai";
        compat
    }
}
