//! Where the services that speak chat completions are, and how they differ from OpenAI's.

mod table;

use crate::{Capabilities, Timeouts, history::IdRules};
use http::Uri;

/// A service that speaks chat completions: where it is, and where it differs from OpenAI's.
///
/// [`ALL`](Self::ALL) are the services that are known, each a constant of its own as well. For
/// another, change [`generic`](Self::generic):
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
/// What a profile says is so of the service as a whole; what one model of it can't do besides is
/// for [`capabilities`](crate::ProviderLayer::capabilities).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[allow(
    clippy::struct_excessive_bools,
    reason = "each is a difference of its own"
)]
pub struct Profile {
    /// Names it here.
    pub name: &'static str,
    /// The provider's name (`gen_ai.provider.name`); empty for that of the host.
    pub provider: &'static str,
    /// The address, without `/chat/completions`; empty if everybody has their own.
    pub base_url: &'static str,
    /// The hosts it is known by, each with those below it; one with a port is known by both.
    pub hosts: &'static [&'static str],
    /// The environment variables for the key: the first that is set counts.
    pub key_env: &'static [&'static str],
    /// Whether it may be asked without a key.
    pub key_optional: bool,
    /// The header that the key goes into: `authorization`, with `Bearer` before it, or another,
    /// without.
    pub key_header: &'static str,
    /// The role of instructions: `system`, or `developer`.
    pub instructions: &'static str,
    /// The field for the most tokens to write: `max_completion_tokens`, or `max_tokens`.
    pub max_tokens: &'static str,
    /// The field for the seed.
    pub seed: &'static str,
    /// The word for that a tool must be called: `required`, or `any`.
    pub required: &'static str,
    /// Whether a stream must be asked for its usage (`stream_options`).
    pub stream_options: bool,
    /// Whether metadata is sent.
    pub metadata: bool,
    /// How the server wants its reasoning back.
    pub reasoning: Reasoning,
    /// Whether a refusal goes back as `refusal`; else as content.
    pub refusals: bool,
    /// Whether an assistant's message that only calls tools has empty content, and not `null`.
    pub empty_content: bool,
    /// Whether the roles must take turns.
    pub turns: Turns,
    /// Whether a user's message may come right behind a tool's.
    pub user_after_tool: bool,
    /// Whether a system message may come right behind an assistant's or a tool's; else it is said as
    /// the user's there.
    pub system_after_answer: bool,
    /// How a message of the assistant's at the end is made one to go on with.
    pub prefill: Prefill,
    /// How documents are sent.
    pub files: Files,
    /// Whether schemas go by OpenAI's rules: `strict` takes a subset of JSON Schema, in which an output
    /// schema is rewritten, or else is sent without it; a tool's is of an object whose properties are
    /// named, and names have letters of ASCII.
    ///
    /// Else all are sent as they are, but that with `strict`, the objects of an output schema take no
    /// properties but their own, all of which are required; one of which this can't be said is sent
    /// without it.
    pub strict_subset: bool,
    /// Whether `reasoning_tokens` are not among `completion_tokens`, though the total does not tell.
    pub reasoning_apart: bool,
    /// How long it may take, unless the layer is told
    /// ([`timeouts`](crate::ProviderLayer::timeouts)).
    pub timeouts: Timeouts,
    /// What it can do.
    pub capabilities: Capabilities,
    pub(super) ids: IdRules,
}

/// How a server wants its reasoning back: what it thought itself, since what others thought is nobody
/// else's to read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Reasoning {
    /// Not at all.
    No,
    /// In this field of the assistant's message.
    Field(&'static str),
    /// In this field of the assistant's message, which it refuses to miss where there are tools: a
    /// message without reasoning has a space in it.
    Demanded(&'static str),
    /// As Mistral's `thinking` within the content.
    Content,
}

/// Whether the roles must take turns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Turns {
    /// They come as they come.
    Any,
    /// Messages of one role in a row are one, and a system message within the conversation is said
    /// as the user's.
    Merged,
    /// That, and the user must begin.
    Strict,
}

/// How a message of the assistant's at the end is made one to go on with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Prefill {
    /// It is so as it stands, or is never.
    Plain,
    /// By this field of the message.
    Field(&'static str),
    /// By the request's `continue_final_message`.
    Continue,
}

/// How documents are sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Files {
    /// As OpenAI's `file`.
    File,
    /// As Mistral's `document_url` and `file_id`.
    DocumentUrl,
}

impl Profile {
    /// A server of which nothing else is known.
    pub const fn generic(provider: &'static str) -> Self {
        Self {
            name: provider,
            provider,
            ..Self::GENERIC
        }
    }

    /// The service of that name in [`ALL`](Self::ALL).
    pub fn by_name(name: &str) -> Option<Self> {
        Self::ALL.iter().find(|known| known.name == name).copied()
    }

    /// What is known of the server at `url`: by its address, else by its host.
    pub fn by_url(url: &str) -> Option<Self> {
        let uri: Uri = url.parse().ok()?;
        let host = uri.host()?;
        let port = format!("{host}:{}", uri.port_u16().unwrap_or_default());
        let is = |host: &str, name: &str| {
            host.strip_suffix(name)
                .is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
        };
        let is_at = |known: &&Self| {
            let mut names = known.hosts.iter();
            names.any(|name| is(host, name) || is(&port, name))
        };
        let at: Vec<&Self> = Self::ALL.iter().filter(is_at).collect();
        // DeepSeek's address begins that of its beta.
        let exact = at
            .iter()
            .filter(|known| !known.base_url.is_empty() && url.starts_with(known.base_url))
            .max_by_key(|known| known.base_url.len());
        exact.or(at.first()).map(|known| **known)
    }
}
