//! The services with the chat completions API, and their differences from OpenAI's.

mod table;

use crate::{Capabilities, Timeouts, api, history::IdRules};
use http::Uri;

/// A service with the chat completions API: its base URL and its differences from OpenAI's.
///
/// [`ALL`](Self::ALL) contains the known services, each of which is also a constant. For another
/// service, modify [`generic`](Self::generic):
///
/// ```
/// use concentric_providers::{OpenAiLayer, openai::Profile};
///
/// let mut profile = Profile::generic("mine");
/// profile.max_tokens = "max_completion_tokens";
/// let layer = OpenAiLayer::profile(profile, "a-model", None).base_url("http://gpu.test:9000/v1");
/// # let _ = layer;
/// assert_eq!(Profile::by_name("groq"), Some(Profile::GROQ));
/// ```
///
/// A profile describes a service as a whole; restrictions of a single model are configured with
/// [`capabilities`](crate::ProviderLayer::capabilities).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[allow(
    clippy::struct_excessive_bools,
    reason = "each flag is an independent difference"
)]
pub struct Profile {
    /// The name of the profile.
    pub name: &'static str,
    /// The provider's name (`gen_ai.provider.name`); empty for the name of the host.
    pub provider: &'static str,
    /// The base URL, without `/chat/completions`; empty if each customer has a different one.
    pub base_url: &'static str,
    /// The hosts of the service, including their subdomains; an entry with a port matches only that
    /// port.
    pub hosts: &'static [&'static str],
    /// The environment variables for the key; the first that is set is used.
    pub key_env: &'static [&'static str],
    /// Whether the service can be used without a key.
    pub key_optional: bool,
    /// The header for the key: `authorization`, with the prefix `Bearer`, or another header without
    /// a prefix.
    pub key_header: &'static str,
    /// The role of instructions: `system` or `developer`.
    pub instructions: &'static str,
    /// The field for the maximum number of output tokens: `max_completion_tokens` or `max_tokens`.
    pub max_tokens: &'static str,
    /// The field for the seed.
    pub seed: &'static str,
    /// The value for a required tool call: `required` or `any`.
    pub required: &'static str,
    /// Whether usage in a stream must be requested (`stream_options`).
    pub stream_options: bool,
    /// Whether metadata is sent.
    pub metadata: bool,
    /// How reasoning is sent back to the server.
    pub reasoning: Reasoning,
    /// Whether a refusal is sent back as `refusal` instead of as content.
    pub refusals: bool,
    /// Whether an assistant message that only calls tools has empty content instead of `null`.
    pub empty_content: bool,
    /// Whether roles must alternate.
    pub turns: Turns,
    /// Whether a user message may directly follow a tool message.
    pub user_after_tool: bool,
    /// Whether a system message may directly follow an assistant or tool message; otherwise it is
    /// sent as a user message there.
    pub system_after_answer: bool,
    /// How a final assistant message is marked as a prefill.
    pub prefill: Prefill,
    /// Whether documents are sent as Mistral's `document_url` and `file_id` instead of OpenAI's `file`.
    pub document_url: bool,
    /// Whether schemas follow OpenAI's rules: with `strict`, an output schema is converted to a
    /// subset of JSON Schema, or sent without `strict` if this is not possible. Schemas of tools
    /// must have the type `object` with `properties`, and names consist of ASCII characters.
    ///
    /// Otherwise schemas are sent unchanged, except that with `strict`, the objects of an output
    /// schema are closed and all their properties required; a schema for which this is not possible
    /// is sent without `strict`.
    pub strict_subset: bool,
    /// Whether `completion_tokens` does not include `reasoning_tokens`, even if the total does not
    /// show it.
    pub reasoning_apart: bool,
    /// The activities besides chat that the service may have: `embeddings`, `images`, `moderation`,
    /// `speech` and `transcription`.
    pub activities: &'static [&'static str],
    /// The default timeouts, which [`timeouts`](crate::ProviderLayer::timeouts) replaces.
    pub timeouts: Timeouts,
    /// The capabilities of the service.
    pub capabilities: Capabilities,
    pub(super) ids: IdRules,
}

/// How reasoning is sent back to a server. Only reasoning by the same provider is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Reasoning {
    /// Not sent.
    No,
    /// In this field of the assistant message.
    Field(&'static str),
    /// In this field of the assistant message, which the server requires if there are tools: a
    /// message without reasoning contains a space there.
    Demanded(&'static str),
    /// In the content, as Mistral's `thinking`.
    Content,
}

/// Whether roles must alternate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Turns {
    /// No restriction.
    Any,
    /// Consecutive messages with the same role are merged, and a system message within the
    /// conversation is sent as a user message.
    Merged,
    /// As [`Merged`](Self::Merged), and the first message must be from the user.
    Strict,
}

/// How a final assistant message is marked as a prefill.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Prefill {
    /// Not marked: the service always or never continues it.
    Plain,
    /// With this field of the message.
    Field(&'static str),
    /// With `continue_final_message` in the request.
    Continue,
}

impl Profile {
    /// Creates a profile with default settings.
    pub const fn generic(provider: &'static str) -> Self {
        Self {
            name: provider,
            provider,
            ..Self::GENERIC
        }
    }

    /// The service with this name in [`ALL`](Self::ALL).
    pub fn by_name(name: &str) -> Option<Self> {
        Self::ALL.iter().find(|known| known.name == name).copied()
    }

    /// The known service at `url`, matched by base URL or else by host.
    pub fn by_url(url: &str) -> Option<Self> {
        let uri: Uri = url.parse().ok()?;
        let host = uri.host()?;
        let port = format!("{host}:{}", uri.port_u16().unwrap_or_default());
        let is_here = |known: &&Self| {
            let mut names = known.hosts.iter();
            names.any(|name| api::is_at(host, name) || api::is_at(&port, name))
        };
        let at: Vec<&Self> = Self::ALL.iter().filter(is_here).collect();
        // DeepSeek's base URL is a prefix of that of its beta.
        let exact = at
            .iter()
            .filter(|known| !known.base_url.is_empty() && url.starts_with(known.base_url))
            .max_by_key(|known| known.base_url.len());
        exact.or(at.first()).map(|known| **known)
    }
}
