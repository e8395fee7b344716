use super::{
    Claims, Expected, KeyError, SignError, TokenError,
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

/// The longest token, in bytes. Longer ones are not even decoded.
pub const MAX_TOKEN_LEN: usize = 4096;

const DOMAIN: &[u8] = b"concentric/approval/v1\0";
const TAG_LEN: usize = 32;
const MIN_SECRET_LEN: usize = 32;
const MAX_ID_LEN: usize = 64;

/// One key, and the id that tokens name it by.
///
/// `Debug` does not show the secret, and it is wiped when dropped.
#[derive(Clone)]
pub struct Key {
    id: Str,
    mac: Hmac<Sha256>,
    until: Option<SystemTime>,
}

impl Key {
    /// Takes a secret of 32 bytes or more, which must be random ones. Everybody can read the id.
    ///
    /// # Errors
    ///
    /// The secret is shorter, or the id is empty or has more than 64 bytes.
    pub fn new(id: impl Into<Str>, secret: impl Into<SecretSlice<u8>>) -> Result<Self, KeyError> {
        let (id, secret) = (id.into(), secret.into());
        if id.is_empty() || id.len() > MAX_ID_LEN {
            return Err(KeyError::Id);
        }
        let secret = secret.expose_secret();
        if secret.len() < MIN_SECRET_LEN {
            return Err(KeyError::ShortSecret);
        }
        // HMAC takes a key of any length.
        let mac = Hmac::new_from_slice(secret).map_err(|_| KeyError::ShortSecret)?;
        let until = None;
        Ok(Self { id, mac, until })
    }

    /// What names it.
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

// A key is kept as the state of its MAC, two states of this hash, which wipe themselves only with a
// feature of sha2.
const _: fn() = || {
    fn is_wiped<T: sha2::digest::zeroize::ZeroizeOnDrop>() {}
    is_wiped::<Sha256>();
};

/// The key that signs tokens, and others whose tokens still count.
///
/// ```
/// use concentric_tools::token::{Key, KeyError, Keys};
/// use std::time::{Duration, SystemTime};
///
/// # let (new, old) = (vec![1; 32], vec![2; 32]);
/// let keys = Keys::new(Key::new("2026-11", new)?)
///     .accept_until(Key::new("2026-10", old)?, SystemTime::now() + Duration::from_secs(3600))?
///     .max_lifetime(Duration::from_secs(3600));
/// # Ok::<(), KeyError>(())
/// ```
#[derive(Clone, Debug)]
pub struct Keys {
    current: Key,
    accepted: Vec<Key>,
    max_skew: Duration,
    max_lifetime: Duration,
}

impl Keys {
    /// Signs with `current`, and accepts its tokens.
    pub const fn new(current: Key) -> Self {
        Self {
            current,
            accepted: Vec::new(),
            max_skew: Duration::from_secs(30),
            max_lifetime: Duration::from_secs(7 * 24 * 60 * 60),
        }
    }

    /// Accepts the tokens of another key, too.
    ///
    /// # Errors
    ///
    /// A key of that id is there already.
    pub fn accept(mut self, key: Key) -> Result<Self, KeyError> {
        if self.get(&key.id).is_some() {
            return Err(KeyError::DuplicateId(key.id));
        }
        self.accepted.push(key);
        Ok(self)
    }

    /// Accepts the tokens of another key, too, but from `until` on none of them.
    ///
    /// # Errors
    ///
    /// A key of that id is there already.
    pub fn accept_until(self, mut key: Key, until: SystemTime) -> Result<Self, KeyError> {
        key.until = Some(until);
        self.accept(key)
    }

    /// How far the clock of another process may be ahead (default: 30 s).
    ///
    /// It lets a token begin earlier, and never end later. With zero, a token from the future does not
    /// count.
    #[must_use]
    pub const fn max_skew(mut self, skew: Duration) -> Self {
        self.max_skew = skew;
        self
    }

    /// How long a token may count (default: 7 days), whatever its claims say. With zero, none
    /// counts. That a question was answered is stored for at least as long.
    #[must_use]
    pub const fn max_lifetime(mut self, lifetime: Duration) -> Self {
        self.max_lifetime = lifetime;
        self
    }

    pub(crate) const fn longest(&self) -> Duration {
        self.max_lifetime
    }

    /// Makes the token that says `claims`.
    ///
    /// # Errors
    ///
    /// It would be too long, or its times are such that it would never count.
    pub fn sign(&self, claims: &Claims) -> Result<Token, SignError> {
        if !self.is_lifetime(claims) {
            return Err(SignError::Times);
        }
        let bytes = wire::encode(&self.current.id, claims);
        let mut bytes = bytes.ok_or(SignError::TooLong)?;
        let tag = self.current.mac(&bytes).finalize().into_bytes();
        bytes.extend(tag);
        let token = URL_SAFE_NO_PAD.encode(bytes);
        if token.len() > MAX_TOKEN_LEN {
            return Err(SignError::TooLong);
        }
        Ok(Token(token.into()))
    }

    /// What `token` says, if it counts at `now` for what is `expected`.
    ///
    /// The tag is looked at before anything else that the token says, in constant time; then what
    /// it is for; then its times. The nonce is the caller's to spend.
    ///
    /// # Errors
    ///
    /// It does not count, for the first of these reasons that applies.
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

    /// What `token` says, if one of the keys has signed it; whether it counts is not checked.
    pub(crate) fn open(&self, token: &str, now: SystemTime) -> Result<Claims, TokenError> {
        if token.len() > MAX_TOKEN_LEN {
            return Err(TokenError::Malformed);
        }
        // Strict: it refuses padding, and bits that would mean nothing.
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

/// A signed token: whoever has it may answer the question.
///
/// [`Display`](fmt::Display) and [`as_str`](Self::as_str) show it; `Debug` does not.
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
