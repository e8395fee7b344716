use concentric_core::{Error, ErrorKind, Str};
use std::{error::Error as StdError, fmt};

/// Why a token does not count.
///
/// Neither it nor its text has anything of the token or of a key in it. All but
/// [`Malformed`](Self::Malformed), [`UnknownKey`](Self::UnknownKey) and [`Forged`](Self::Forged)
/// are of tokens that this service did sign.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum TokenError {
    /// It is no token, or one of another version.
    Malformed,
    /// It names a key that is not there.
    UnknownKey,
    /// Its tag is not what its key makes of it.
    Forged,
    /// Its key is no longer accepted.
    RetiredKey,
    /// It is for another tenant.
    Tenant,
    /// It is for another service.
    Audience,
    /// Another run asked.
    Run,
    /// Another step asked.
    Step,
    /// It is for a call of another message.
    Message,
    /// It is for another call.
    Call,
    /// It is for a call at another place of its message.
    Position,
    /// It answers another question.
    Interrupt,
    /// It is for another tool.
    Tool,
    /// The tool is not what it was.
    Definition,
    /// The policy is not what it was.
    Policy,
    /// It is for other arguments.
    Arguments,
    /// It is for longer than tokens may be.
    Lifetime,
    /// It was issued in the future.
    NotYet,
    /// Its time is over.
    Expired,
}

impl TokenError {
    /// The reason as a word for logs and answers.
    pub const fn code(self) -> &'static str {
        match self {
            Self::Malformed => "malformed",
            Self::UnknownKey => "unknown_key",
            Self::Forged => "forged",
            Self::RetiredKey => "retired_key",
            Self::Tenant => "tenant",
            Self::Audience => "audience",
            Self::Run => "run",
            Self::Step => "step",
            Self::Message => "message",
            Self::Call => "call",
            Self::Position => "position",
            Self::Interrupt => "interrupt",
            Self::Tool => "tool",
            Self::Definition => "definition",
            Self::Policy => "policy",
            Self::Arguments => "arguments",
            Self::Lifetime => "lifetime",
            Self::NotYet => "not_yet",
            Self::Expired => "expired",
        }
    }
}

impl fmt::Display for TokenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Malformed => "the approval token is malformed",
            Self::UnknownKey => "the approval token is signed with an unknown key",
            Self::Forged => "the approval token is not authentic",
            Self::RetiredKey => "the approval token is signed with a retired key",
            Self::Tenant => "the approval is for another tenant",
            Self::Audience => "the approval is for another service",
            Self::Run => "the approval is for another run",
            Self::Step => "the approval is for another step",
            Self::Message => "the approval is for another message",
            Self::Call => "the approval is for another tool call",
            Self::Position => "the approval is for a tool call at another place",
            Self::Interrupt => "the approval answers another question",
            Self::Tool => "the approval is for another tool",
            Self::Definition => "the tool has changed since the approval was asked for",
            Self::Policy => "the policy has changed since the approval was asked for",
            Self::Arguments => "the approval is for other arguments",
            Self::Lifetime => "the approval is for too long a time",
            Self::NotYet => "the approval was issued in the future",
            Self::Expired => "the approval has expired",
        })
    }
}

impl StdError for TokenError {}

/// Why claims can't be signed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SignError {
    /// The token would be longer than [`MAX_TOKEN_LEN`](super::MAX_TOKEN_LEN). Ids that clients
    /// choose may be of any length.
    TooLong,
    /// It expires before it is issued, or after more than the
    /// [longest lifetime](super::Keys::max_lifetime), or is from before 1970.
    Times,
}

impl fmt::Display for SignError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::TooLong => "the claims are too long for an approval token",
            Self::Times => "the times of the claims are not those of an approval token",
        })
    }
}

impl StdError for SignError {}

/// Why a key can't be used.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum KeyError {
    /// Its id is empty, or has more than 64 bytes.
    Id,
    /// Its secret has less than 32 bytes.
    ShortSecret,
    /// Another key has its id.
    DuplicateId(Str),
}

impl fmt::Display for KeyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Id => f.write_str("a key's id has between 1 and 64 bytes"),
            Self::ShortSecret => f.write_str("a key's secret has at least 32 bytes"),
            Self::DuplicateId(id) => write!(f, "two keys have the id `{id}`"),
        }
    }
}

impl StdError for KeyError {}

impl From<KeyError> for Error {
    fn from(error: KeyError) -> Self {
        Self::new(ErrorKind::Configuration, error.to_string()).with_source(error)
    }
}
