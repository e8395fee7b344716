use crate::{
    api,
    history::{IdRules, NameRules},
    openai::Profile,
};
use concentric_core::Str;

/// The differences of a server with the Responses API from OpenAI's.
///
/// [`OpenAiResponsesLayer::compatible`](super::OpenAiResponsesLayer::compatible) recognizes the
/// larger services by their host; for others, set this with
/// [`OpenAiResponsesLayer::compat`](super::OpenAiResponsesLayer::compat).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Compat {
    /// The provider's name (`gen_ai.provider.name`).
    pub provider: Str,
    /// Whether metadata is sent.
    pub metadata: bool,
    /// The header for the key: `authorization`, with the prefix `Bearer`, or another header without
    /// a prefix.
    pub key_header: Str,
    /// Whether tools are sent with `strict` if their schemas allow it; otherwise with `strict:
    /// false`.
    pub strict_tools: bool,
    /// Whether calls of custom tools are calls of the service's own tools, which it executes
    /// itself.
    pub hosts_custom_tools: bool,
}

/// The accepted ids of calls, for all services, since no lower limit is known.
pub(super) const IDS: IdRules = IdRules {
    length: 64,
    exact: false,
    punctuation: "_-.:",
};

/// The accepted tool names in calls of the history (*Create a model response*).
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

    /// Creates default settings for a server.
    pub fn generic(provider: impl Into<Str>) -> Self {
        Self {
            provider: provider.into(),
            metadata: false,
            strict_tools: false,
            ..Self::openai()
        }
    }

    /// The known settings for the server at `url`.
    pub(super) fn of_url(url: &str) -> Self {
        let Some(known) = Profile::by_url(url) else {
            return Self::generic(api::host(url));
        };
        let mut compat = Self::generic(Str::from_static(known.provider));
        compat.metadata = known.metadata;
        compat.key_header = Str::from_static(known.key_header);
        compat.strict_tools = known.strict_subset;
        compat.hosts_custom_tools = compat.provider == *"x_ai";
        compat
    }
}
