use super::{
    Claims, TokenError, TokenSubject,
    wire::{self, Reader},
};
use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use concentric_core::Str;
use hmac::{Hmac, KeyInit, Mac};
use secrecy::{ExposeSecret, SecretSlice};
use sha2::Sha256;
use std::{
    fmt,
    time::{Duration, SystemTime},
};

/// The maximum length of a token (bytes). Longer ones are not decoded.
pub const MAX_TOKEN_LEN: usize = 4096;

const DOMAIN: &[u8] = b"concentric/approval/v1\0";
const TAG_LEN: usize = 32;
const MIN_SECRET_LEN: usize = 32;
const MAX_ID_LEN: usize = 64;

#[derive(Clone)]
struct Key {
    id: Str,
    mac: Hmac<Sha256>,
    until: Option<SystemTime>,
}

impl Key {
    fn new(id: Str, secret: Vec<u8>, until: Option<SystemTime>) -> Result<Self, TokenError> {
        let secret = SecretSlice::from(secret);
        if id.is_empty() || id.len() > MAX_ID_LEN {
            return Err(TokenError::KeyId);
        }
        let secret = secret.expose_secret();
        if secret.len() < MIN_SECRET_LEN {
            return Err(TokenError::ShortSecret);
        }
        // HMAC accepts keys of any length.
        let mac = Hmac::new_from_slice(secret).map_err(|_| TokenError::ShortSecret)?;
        Ok(Self { id, mac, until })
    }

    fn mac(&self, signed: &[u8]) -> Hmac<Sha256> {
        self.mac.clone().chain_update(DOMAIN).chain_update(signed)
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Key")
            .field("id", &self.id)
            .field("until", &self.until)
            .finish_non_exhaustive()
    }
}

// The key is stored as the state of its MAC, two hash states, which are wiped on drop only with a
// feature of sha2.
const _: fn() = || {
    fn is_wiped<T: sha2::digest::zeroize::ZeroizeOnDrop>() {}
    is_wiped::<Sha256>();
};

/// The key that signs tokens, and further keys whose tokens are accepted.
///
/// `Debug` does not contain the secrets, and they are wiped on drop.
///
/// ```
/// use concentric_tools::token::{TokenError, TokenKeys};
/// use std::time::{Duration, SystemTime};
///
/// # let (new, old) = (vec![1; 32], vec![2; 32]);
/// let keys = TokenKeys::new("2026-11", new)?
///     .accept_until("2026-10", old, SystemTime::now() + Duration::from_secs(3600))?
///     .max_lifetime(Duration::from_secs(3600));
/// # Ok::<(), TokenError>(())
/// ```
#[derive(Clone, Debug)]
pub struct TokenKeys {
    current: Key,
    accepted: Vec<Key>,
    max_skew: Duration,
    max_lifetime: Duration,
}

impl TokenKeys {
    /// Signs with the key `id`, and accepts its tokens. The id is part of each token and public.
    ///
    /// # Errors
    ///
    /// Returns an error if the secret has fewer than 32 bytes, or the id is empty or longer than 64
    /// bytes.
    pub fn new(id: impl Into<Str>, secret: impl Into<Vec<u8>>) -> Result<Self, TokenError> {
        Ok(Self {
            current: Key::new(id.into(), secret.into(), None)?,
            accepted: Vec::new(),
            max_skew: Duration::from_secs(30),
            max_lifetime: Duration::from_secs(7 * 24 * 60 * 60),
        })
    }

    /// Also accepts the tokens of another key.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`new`](Self::new), or one if there is a key with the same id.
    pub fn accept(
        self,
        id: impl Into<Str>,
        secret: impl Into<Vec<u8>>,
    ) -> Result<Self, TokenError> {
        self.accept_key(Key::new(id.into(), secret.into(), None)?)
    }

    fn accept_key(mut self, key: Key) -> Result<Self, TokenError> {
        if self.get(&key.id).is_some() {
            return Err(TokenError::DuplicateKey);
        }
        self.accepted.push(key);
        Ok(self)
    }

    /// Also accepts the tokens of another key, until the time `until`.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`accept`](Self::accept).
    pub fn accept_until(
        self,
        id: impl Into<Str>,
        secret: impl Into<Vec<u8>>,
        until: SystemTime,
    ) -> Result<Self, TokenError> {
        self.accept_key(Key::new(id.into(), secret.into(), Some(until))?)
    }

    /// Sets the tolerated clock difference of issuers (default: 30 s).
    ///
    /// A token may be valid earlier by this time, but never longer. With zero, tokens from the
    /// future are invalid.
    #[must_use]
    pub const fn max_skew(mut self, skew: Duration) -> Self {
        self.max_skew = skew;
        self
    }

    /// Limits the lifetime of tokens (default: 7 days), independent of their claims. With zero, no
    /// token is valid. Used tokens are remembered for at least as long.
    #[must_use]
    pub const fn max_lifetime(mut self, lifetime: Duration) -> Self {
        self.max_lifetime = lifetime;
        self
    }

    pub(crate) const fn longest(&self) -> Duration {
        self.max_lifetime
    }

    /// Signs `claims`. Any bearer of the token may answer the interrupt.
    ///
    /// # Errors
    ///
    /// Returns an error if the token would be too long, or never valid.
    pub fn sign(&self, claims: &Claims) -> Result<Str, TokenError> {
        if !self.is_lifetime(claims) {
            return Err(TokenError::Lifetime);
        }
        let bytes = wire::encode(&self.current.id, claims);
        let mut bytes = bytes.ok_or(TokenError::TooLong)?;
        let tag = self.current.mac(&bytes).finalize().into_bytes();
        bytes.extend(tag);
        let token = URL_SAFE_NO_PAD.encode(bytes);
        if token.len() > MAX_TOKEN_LEN {
            return Err(TokenError::TooLong);
        }
        Ok(token.into())
    }

    /// Verifies `token` at the time `now`, and returns its claims.
    ///
    /// The tag is checked first, in constant time; then the subject; then the times. The caller
    /// must use up the nonce.
    ///
    /// # Errors
    ///
    /// Returns the first reason that applies, in this order.
    pub fn verify(
        &self,
        token: &str,
        subject: &TokenSubject,
        now: SystemTime,
    ) -> Result<Claims, TokenError> {
        let claims = self.open(token, now)?;
        subject.check(&claims.subject)?;
        self.check_times(&claims, now)?;
        Ok(claims)
    }

    /// Returns the claims of `token` if one of the keys has signed it, without further checks.
    pub(crate) fn open(&self, token: &str, now: SystemTime) -> Result<Claims, TokenError> {
        if token.len() > MAX_TOKEN_LEN {
            return Err(TokenError::Malformed);
        }
        // Strict decoding: padding and unused bits are errors.
        let bytes = URL_SAFE_NO_PAD.decode(token);
        let bytes = bytes.map_err(|_| TokenError::Malformed)?;
        let (signed, tag) = bytes
            .split_last_chunk::<TAG_LEN>()
            .ok_or(TokenError::Malformed)?;
        let (key_id, claims) = Reader::new(signed).ok_or(TokenError::Malformed)?;
        let key = self.get(key_id).ok_or(TokenError::UnknownKey)?;
        key.mac(signed)
            .verify_slice(tag)
            .map_err(|_| TokenError::Forged)?;

        if key.until.is_some_and(|until| now >= until) {
            return Err(TokenError::RetiredKey);
        }
        claims.claims().ok_or(TokenError::Malformed)
    }

    fn get(&self, id: &str) -> Option<&Key> {
        let mut keys = std::iter::once(&self.current).chain(&self.accepted);
        keys.find(|key| key.id == *id)
    }

    fn check_times(&self, claims: &Claims, now: SystemTime) -> Result<(), TokenError> {
        if !self.is_lifetime(claims) {
            return Err(TokenError::Lifetime);
        }
        let ahead = claims.issued_at.duration_since(now).unwrap_or_default();
        if ahead > self.max_skew {
            return Err(TokenError::NotYet);
        }
        if now >= claims.expires_at {
            return Err(TokenError::Expired);
        }
        Ok(())
    }

    fn is_lifetime(&self, claims: &Claims) -> bool {
        let times = wire::millis(claims.expires_at).zip(wire::millis(claims.issued_at));
        let lifetime = times.and_then(|(expires, issued)| expires.checked_sub(issued));
        lifetime.is_some_and(|it| it > 0 && Duration::from_millis(it) <= self.max_lifetime)
    }
}
