//! Approval tokens: stateless proofs that this service requested an approval for a call.
//!
//! A run that requires an approval ends, and the reply arrives with another request, from a client
//! that stored the transcript with the call and its arguments. The interrupt contains the token,
//! and the reply returns it. The token is a MAC (HMAC-SHA-256) of the [`TokenSubject`], so the reply is
//! valid only for that subject.
//!
//! ```
//! use concentric_core::{CallId, InterruptId, MessageId, RunId, store::Tenant};
//! use concentric_tools::{Digest, token::{Claims, TokenError, TokenKeys, TokenSubject}};
//! use std::time::{Duration, SystemTime};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let (secret, definition) = (vec![7; 32], Digest::of_fields("doc", &[]));
//! // Both sides use the same function, with values that each determines itself.
//! let subject = |arguments: &str| -> Result<TokenSubject, serde_json::Error> {
//!     Ok(TokenSubject {
//!         tenant: Tenant("acme".into()),
//!         audience: "billing-agent".into(),
//!         message_id: Some(MessageId::new("msg-1")),
//!         call_id: CallId::new("call-1"),
//!         position: 0,
//!         interrupt_id: InterruptId::new("int-1"),
//!         tool: "refund".into(),
//!         definition, // Digest::of_spec(&spec)
//!         policy: Digest::of_fields("acme/policy/v1", &[b"refunds require approval"]),
//!         arguments: Digest::of_json(arguments)?,
//!     })
//! };
//! let keys = TokenKeys::new("2026-10", secret)?;
//! let now = SystemTime::now();
//!
//! // When the run raises the interrupt:
//! let asked = subject(r#"{"order": 7, "amount": 5}"#)?;
//! let (run, step, hour) = (RunId::new("run-1"), 0, Duration::from_secs(3600));
//! let token = keys.sign(&Claims::new(asked, run, step, "nonce-1", now, now + hour))?;
//!
//! // When the reply arrives:
//! let expected = subject(r#"{"amount":5,"order":7}"#)?;
//! let claims = keys.verify(token.as_str(), &expected, now)?;
//! assert_eq!(claims.run_id.as_str(), "run-1"); // Then use up `claims.nonce`.
//!
//! let other = subject(r#"{"amount":500,"order":7}"#)?;
//! assert_eq!(keys.verify(token.as_str(), &other, now), Err(TokenError::Arguments));
//! # Ok(())
//! # }
//! ```
//!
//! # Protection
//!
//! | an attacker | is rejected with |
//! |---|---|
//! | creates or changes a token | [`Forged`](TokenError::Forged), or [`Malformed`](TokenError::Malformed) |
//! | changes the call's arguments, tool or position | [`Arguments`](TokenError::Arguments), [`Tool`](TokenError::Tool), [`Call`](TokenError::Call) and others |
//! | uses a token for another tenant, or another service with the same keys | [`Tenant`](TokenError::Tenant), [`Audience`](TokenError::Audience) |
//! | redefines the tool, or changes the policy, after the interrupt | [`Definition`](TokenError::Definition), [`Policy`](TokenError::Policy) |
//! | keeps a token for later | [`Expired`](TokenError::Expired) |
//! | encodes a token differently, to evade a list of used ones | [`Malformed`](TokenError::Malformed) |
//!
//! # Limits
//!
//! - **A token may be used more than once.** Single use requires a store: the verifier records
//!   [`Claims::nonce`] in one operation that fails if it was recorded before, and may delete it
//!   after [`Claims::expires_at`]. Without a store, a token is valid until it expires.
//! - A token does not identify the approver: any bearer may reply. Authorizing approvers is the
//!   task of the service's authentication.
//! - A token is not encrypted: a bearer can read the claims, and can guess digests of predictable
//!   values.
//! - A token does not cover arguments that the reply changes. The gates decide about them again,
//!   and an interrupt about them has its own token, which contains them ([`Claims::edited`]).
//! - A token covers only the [`TokenSubject`]. A verifier that copies a field from the request, instead
//!   of determining it itself, has not checked that field.
//!
//! # Keys
//!
//! A key has at least 32 random bytes. To rotate it, make the new key current and
//! [accept](TokenKeys::accept) the old one until the last of its tokens has expired; with several
//! verifying processes, first accept the new key in all of them.
//!
//! # Format
//!
//! The token is unpadded base64url, in the only encoding without unused bits, of:
//!
//! | field | encoding |
//! |---|---|
//! | version | one byte, `1` |
//! | key id | text |
//! | tenant, audience | text, text |
//! | message id | one byte: `0` for none, or `1` followed by text |
//! | call id, position, interrupt id, tool | text, 8 bytes, text, text |
//! | definition, policy, arguments | 32 bytes each |
//! | run id, step, nonce | text, 4 bytes, text |
//! | issued, expires | 8 bytes each, in milliseconds since 1970 |
//! | edited arguments | text; absent unless the interrupt is about edited arguments |
//! | tag | 32 bytes: HMAC-SHA-256 of `concentric/approval/v1`, a zero byte, and all of the above |
//!
//! Numbers are big-endian. A text is its length in bytes (4 bytes), followed by UTF-8.

mod claims;
mod error;
mod keys;
mod tokens;
mod wire;

pub use self::{
    claims::{Claims, TokenSubject},
    error::TokenError,
    keys::{MAX_TOKEN_LEN, TokenKeys},
    tokens::ApprovalTokens,
};
