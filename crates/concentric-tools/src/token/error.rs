use std::{error::Error as StdError, fmt};

/// The reason why a token is invalid or cannot be signed, or why a key is rejected.
///
/// Its text contains no part of the token or of a key. Except for [`Malformed`](Self::Malformed),
/// [`UnknownKey`](Self::UnknownKey) and [`Forged`](Self::Forged), a rejected token was signed by
/// this service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum TokenError {
    /// Not a token, or one of another version.
    Malformed,
    /// Signed with an unknown key.
    UnknownKey,
    /// The tag does not match.
    Forged,
    /// The key is no longer accepted.
    RetiredKey,
    /// Issued for another tenant.
    Tenant,
    /// Issued for another service.
    Audience,
    /// Issued for a call of another message.
    Message,
    /// Issued for another call.
    Call,
    /// Issued for a call at another position in its message.
    Position,
    /// Issued for another interrupt.
    Interrupt,
    /// Issued for another tool.
    Tool,
    /// The definition of the tool has changed.
    Definition,
    /// The policy has changed.
    Policy,
    /// Issued for other arguments.
    Arguments,
    /// The token expires before its issue, or was issued before 1970, or its lifetime exceeds the
    /// [maximum](super::TokenKeys::max_lifetime).
    Lifetime,
    /// The token would be longer than [`MAX_TOKEN_LEN`](super::MAX_TOKEN_LEN). Ids from clients may
    /// have any length.
    TooLong,
    /// Issued in the future.
    NotYet,
    /// Expired.
    Expired,
    /// The id of a key is empty, or has more than 64 bytes.
    KeyId,
    /// The secret of a key has fewer than 32 bytes.
    ShortSecret,
    /// Two keys have the same id.
    DuplicateKey,
}

impl TokenError {
    /// Returns the reason as an identifier for logs and replies.
    pub const fn code(self) -> &'static str {
        match self {
            Self::Malformed => "malformed",
            Self::UnknownKey => "unknown_key",
            Self::Forged => "forged",
            Self::RetiredKey => "retired_key",
            Self::Tenant => "tenant",
            Self::Audience => "audience",
            Self::Message => "message",
            Self::Call => "call",
            Self::Position => "position",
            Self::Interrupt => "interrupt",
            Self::Tool => "tool",
            Self::Definition => "definition",
            Self::Policy => "policy",
            Self::Arguments => "arguments",
            Self::Lifetime => "lifetime",
            Self::TooLong => "too_long",
            Self::NotYet => "not_yet",
            Self::Expired => "expired",
            Self::KeyId => "key_id",
            Self::ShortSecret => "short_secret",
            Self::DuplicateKey => "duplicate_key",
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
            Self::Message => "the approval is for another message",
            Self::Call => "the approval is for another tool call",
            Self::Position => "the approval is for a tool call at another position",
            Self::Interrupt => "the approval is for another interrupt",
            Self::Tool => "the approval is for another tool",
            Self::Definition => "the tool has changed since the approval was requested",
            Self::Policy => "the policy has changed since the approval was requested",
            Self::Arguments => "the approval is for other arguments",
            Self::Lifetime => {
                "the lifetime of the approval is negative, exceeds the maximum or starts before 1970"
            }
            Self::TooLong => "the claims are too long for an approval token",
            Self::NotYet => "the approval was issued in the future",
            Self::Expired => "the approval has expired",
            Self::KeyId => "the id of a key must have 1 to 64 bytes",
            Self::ShortSecret => "the secret of a key must have at least 32 bytes",
            Self::DuplicateKey => "two keys have the same id",
        })
    }
}

impl StdError for TokenError {}
