//! The content of a record.

use super::store::TokenRecord;
use concentric_core::{Error, ErrorKind};
use serde::{Deserialize, Serialize};
use std::time::{SystemTime, UNIX_EPOCH};

/// The longest text of a record (bytes).
const MAX_RECORD: usize = 64 << 10;
/// The open authorizations of a server; the oldest one is dropped.
const MAX_PENDING: usize = 4;
/// The time to authorize (seconds).
const PENDING_LIFETIME: u64 = 600;

#[derive(Default, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Record {
    /// The URL of the MCP server. A record of another one is not used.
    pub(super) url: String,
    /// The authorization server for which a client was registered in advance.
    pub(super) issuer: Option<String>,
    pub(super) registration: Option<Registration>,
    pub(super) tokens: Option<Tokens>,
    /// The scopes that were granted, also by tokens that are no longer valid, and their issuer.
    pub(super) granted: Vec<String>,
    pub(super) granted_by: String,
    pub(super) pending: Vec<Pending>,
}

/// A client at an authorization server, registered dynamically.
#[derive(Clone, Serialize, Deserialize)]
pub(super) struct Registration {
    pub(super) issuer: String,
    pub(super) redirect_uri: String,
    pub(super) client: ClientAuth,
    /// Seconds since 1970.
    pub(super) expires_at: Option<u64>,
}

/// The identification of a client at a token endpoint.
#[derive(Clone, Serialize, Deserialize)]
pub(super) struct ClientAuth {
    pub(super) id: String,
    pub(super) secret: Option<String>,
    pub(super) method: AuthMethod,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum AuthMethod {
    #[serde(rename = "none")]
    None,
    #[serde(rename = "client_secret_basic")]
    Basic,
    #[serde(rename = "client_secret_post")]
    Post,
}

#[derive(Clone, Serialize, Deserialize)]
pub(super) struct Tokens {
    pub(super) issuer: String,
    pub(super) token_endpoint: String,
    pub(super) resource: String,
    pub(super) client: ClientAuth,
    pub(super) access: String,
    pub(super) refresh: Option<String>,
    /// The time to use the refresh token (seconds since 1970).
    pub(super) renew_at: Option<u64>,
}

/// An authorization that has begun.
#[derive(Clone, Serialize, Deserialize)]
pub(super) struct Pending {
    pub(super) state: String,
    pub(super) verifier: String,
    pub(super) url: String,
    pub(super) redirect_uri: String,
    pub(super) issuer: String,
    /// Whether the callback must have an issuer.
    pub(super) has_issuer: bool,
    pub(super) token_endpoint: String,
    pub(super) resource: String,
    pub(super) client: ClientAuth,
    pub(super) scopes: Vec<String>,
    /// Seconds since 1970.
    pub(super) began: u64,
}

impl Record {
    /// Reads the record of the server at `url`; an empty one if it is another server's, or invalid.
    pub(super) fn read(stored: Option<&TokenRecord>, url: &str) -> Self {
        let stored = stored.and_then(|it| serde_json::from_str::<Self>(it.expose()).ok());
        let mut record = stored.filter(|it| it.url == url).unwrap_or_default();
        url.clone_into(&mut record.url);
        record
    }

    pub(super) fn write(&self) -> Result<TokenRecord, Error> {
        let text = serde_json::to_string(self).unwrap_or_default();
        if text.is_empty() || text.len() > MAX_RECORD {
            let what = "the tokens of an MCP server are too large to be stored";
            return Err(Error::new(ErrorKind::TooLarge, what));
        }
        Ok(TokenRecord::new(text))
    }

    /// Adds an authorization, and drops those that are too old or too many.
    pub(super) fn begin(&mut self, pending: Pending) {
        self.expire();
        if self.pending.len() >= MAX_PENDING {
            self.pending.remove(0);
        }
        self.pending.push(pending);
    }

    /// Removes the authorizations that are too old.
    pub(super) fn expire(&mut self) {
        let now = now();
        self.pending
            .retain(|it| now.saturating_sub(it.began) < PENDING_LIFETIME);
    }
}

/// Seconds since 1970.
pub(super) fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| since.as_secs())
}
