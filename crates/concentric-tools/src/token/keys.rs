use super::{
    Claims, Expected, KeyError, TokenError,
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

/// A signing key with a public id.
///
/// `Debug` does not contain the secret, and the secret is wiped on drop.
#[derive(Clone)]
pub struct Key {
    id: Str,
    mac: Hmac<Sha256>,
    until: Option<SystemTime>,
}

impl Key {
    /// Creates a key from a secret of at least 32 random bytes. The id is part of each token and
    /// public.
    ///
    /// # Errors
    ///
    /// Returns an error if the secret is shorter, or the id is empty or longer than 64 bytes.
    pub fn new(id: impl Into<Str>, secret: impl Into<Vec<u8>>) -> Result<Self, KeyError> {
        let (id, secret) = (id.into(), SecretSlice::from(secret.into()));
        if id.is_empty() || id.len() > MAX_ID_LEN {
            return Err(KeyError::Id);
        }
        let secret = secret.expose_secret();
        if secret.len() < MIN_SECRET_LEN {
            return Err(KeyError::ShortSecret);
        }
        // HMAC accepts keys of any length.
        let mac = Hmac::new_from_slice(secret).map_err(|_| KeyError::ShortSecret)?;
        let until = None;
        Ok(Self { id, mac, until })
    }

    /// The id.
    pub fn id(&self) -> &Str {
        &self.id
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
/// ```
/// use concentric_tools::token::{Key, KeyError, TokenKeys};
/// use std::time::{Duration, SystemTime};
///
/// # let (new, old) = (vec![1; 32], vec![2; 32]);
/// let keys = TokenKeys::new(Key::new("2026-11", new)?)
///     .accept_until(Key::new("2026-10", old)?, SystemTime::now() + Duration::from_secs(3600))?
///     .max_lifetime(Duration::from_secs(3600));
/// # Ok::<(), KeyError>(())
/// ```
#[derive(Clone, Debug)]
pub struct TokenKeys {
    current: Key,
    accepted: Vec<Key>,
    max_skew: Duration,
    max_lifetime: Duration,
}

impl TokenKeys {
    /// Signs with `current`, and accepts its tokens.
    pub const fn new(current: Key) -> Self {
        Self {
            current,
            accepted: Vec::new(),
            max_skew: Duration::from_secs(30),
            max_lifetime: Duration::from_secs(7 * 24 * 60 * 60),
        }
    }

    /// Also accepts the tokens of another key.
    ///
    /// # Errors
    ///
    /// Returns an error if there is a key with the same id.
    pub fn accept(mut self, key: Key) -> Result<Self, KeyError> {
        if self.get(&key.id).is_some() {
            return Err(KeyError::DuplicateId(key.id));
        }
        self.accepted.push(key);
        Ok(self)
    }

    /// Also accepts the tokens of another key, until the time `until`.
    ///
    /// # Errors
    ///
    /// Returns an error if there is a key with the same id.
    pub fn accept_until(self, mut key: Key, until: SystemTime) -> Result<Self, KeyError> {
        key.until = Some(until);
        self.accept(key)
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

    /// Signs `claims`.
    ///
    /// # Errors
    ///
    /// Returns an error if the token would be too long, or never valid.
    pub fn sign(&self, claims: &Claims) -> Result<Token, TokenError> {
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
        Ok(Token(token.into()))
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
        expected: &Expected,
        now: SystemTime,
    ) -> Result<Claims, TokenError> {
        let claims = self.open(token, now)?;
        expected.check(&claims)?;
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

/// A signed token: a bearer may answer the interrupt.
///
/// [`Display`](fmt::Display) and [`as_str`](Self::as_str) contain the token; `Debug` does not.
#[derive(Clone)]
pub struct Token(Str);

impl Token {
    /// The token as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(..)")
    }
}

impl From<Token> for Str {
    fn from(token: Token) -> Self {
        token.0
    }
}
