//! Approval tokens: proof, without a store, that this service asked about a very call.
//!
//! A run that asks before it calls a tool ends, and the answer comes with another request, from a
//! client that has held everything in between: the transcript, the call, its arguments. The token
//! goes out with the question and comes back with the answer. It is a MAC (HMAC-SHA-256) over
//! what was asked ([`Subject`]), so that the answer counts for that and nothing else.
//!
//! ```
//! use concentric_core::{CallId, InterruptId, MessageId, RunId, store::Tenant};
//! use concentric_tools::{Digest, token::{Claims, Expected, Key, Keys, Subject, TokenError}};
//! use std::time::{Duration, SystemTime};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let (secret, definition) = (vec![7; 32], Digest::of_fields("doc", &[]));
//! // The same function for both sides, out of what each of them sees for itself.
//! let subject = |arguments: &str| -> Result<Subject, serde_json::Error> {
//!     Ok(Subject {
//!         tenant: Tenant("acme".into()),
//!         audience: "billing-agent".into(),
//!         message_id: Some(MessageId::new("msg-1")),
//!         call_id: CallId::new("call-1"),
//!         position: 0,
//!         interrupt_id: InterruptId::new("int-1"),
//!         tool: "refund".into(),
//!         definition, // Digest::of_spec(&spec)
//!         policy: Digest::of_fields("acme/policy/v1", &[b"refunds are asked about"]),
//!         arguments: Digest::of_json(arguments)?,
//!     })
//! };
//! let keys = Keys::new(Key::new("2026-10", secret)?);
//! let now = SystemTime::now();
//!
//! // When the run asks:
//! let asked = subject(r#"{"order": 7, "amount": 5}"#)?;
//! let (run, step, hour) = (RunId::new("run-1"), 0, Duration::from_secs(3600));
//! let token = keys.sign(&Claims::new(asked, run, step, "nonce-1", now, now + hour))?;
//!
//! // When the answer comes:
//! let expected = Expected::new(subject(r#"{"amount":5,"order":7}"#)?);
//! let claims = keys.verify(token.as_str(), &expected, now)?;
//! assert_eq!(claims.run_id.as_str(), "run-1"); // Now spend `claims.nonce`.
//!
//! let other = Expected::new(subject(r#"{"amount":500,"order":7}"#)?);
//! assert_eq!(keys.verify(token.as_str(), &other, now), Err(TokenError::Arguments));
//! # Ok(())
//! # }
//! ```
//!
//! # What it protects against
//!
//! | somebody | gets |
//! |---|---|
//! | makes up a token, or changes one | [`Forged`](TokenError::Forged), or [`Malformed`](TokenError::Malformed) |
//! | gives the call other arguments, another tool or another place | [`Arguments`](TokenError::Arguments), [`Tool`](TokenError::Tool), [`Call`](TokenError::Call) and the like |
//! | takes a token to another tenant, or another service with the same keys | [`Tenant`](TokenError::Tenant), [`Audience`](TokenError::Audience) |
//! | redefines the tool, or changes the policy, after the question | [`Definition`](TokenError::Definition), [`Policy`](TokenError::Policy) |
//! | keeps a token for later | [`Expired`](TokenError::Expired) |
//! | spells a token in another way, to get round a list of spent ones | [`Malformed`](TokenError::Malformed) |
//!
//! # What it does not
//!
//! - **It may be used more than once.** Single use comes from a store: whoever verifies a token
//!   spends [`Claims::nonce`] there, in one step that fails if it was spent before, and may forget
//!   it after [`Claims::expires_at`]. Without one, a token counts until it expires.
//! - It does not say who approved: whoever holds it may answer. It says what was asked; that the
//!   one who answers may do so is for the service's authentication.
//! - It hides nothing: its claims can be read by whoever holds it, and digests of what is easily
//!   guessed can be guessed.
//! - It says nothing of arguments that the answer changes. Those are decided about anew, and a
//!   question about them has a token of its own, in which they are ([`Claims::edited`]).
//! - It knows only what [`Subject`] says. A verifier that copies a field from the request instead
//!   of finding it out for itself has not checked that field.
//!
//! # Keys
//!
//! A key is 32 bytes or more of randomness. To change it, make the new one current and
//! [accept](Keys::accept) the old one until the last of its tokens has expired; where several
//! processes verify, first accept the new one everywhere.
//!
//! # The format
//!
//! The token is base64url without padding, in the one spelling that has no spare bits, of:
//!
//! | | |
//! |---|---|
//! | version | one byte, `1` |
//! | key id | text |
//! | tenant, audience | text, text |
//! | message id | one byte, `0` if there is none, else `1` and text |
//! | call id, position, interrupt id, tool | text, 8 bytes, text, text |
//! | definition, policy, arguments | 32 bytes each |
//! | run id, step, nonce | text, 4 bytes, text |
//! | issued, expires | 8 bytes each, in milliseconds since 1970 |
//! | edited arguments | text; not there, unless the question is about such |
//! | tag | 32 bytes: HMAC-SHA-256 of `concentric/approval/v1`, a zero byte, and all of the above |
//!
//! Numbers are big-endian. A text is its length in bytes, in 4 bytes, and then itself in UTF-8.

mod claims;
mod error;
mod keys;
mod wire;

pub use self::{
    claims::{Claims, Expected, Subject},
    error::{KeyError, SignError, TokenError},
    keys::{Key, Keys, MAX_TOKEN_LEN, Token},
};
