//! The text of keys.

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use concentric_core::{Error, ErrorKind, Str};
use secrecy::{ExposeSecret, SecretString};
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

const PREFIX: &str = "sk-cc-";

/// The length of an id, in hexadecimal digits.
const ID: usize = 24;

/// The length of a secret, 32 bytes in Base64.
const SECRET: usize = 43;

/// A new key of [`VirtualKeys`](super::VirtualKeys), which only the caller has. It is not shown by `Debug`, and its
/// memory is wiped on drop.
pub struct NewKey {
    id: Str,
    key: SecretString,
}

impl NewKey {
    /// The id, by which the key is rotated and revoked.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// The key, to show it to its owner.
    pub fn expose(&self) -> &str {
        self.key.expose_secret()
    }
}

concentric_core::opaque_debug!(NewKey);

/// A key that a caller has sent.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(super) struct Presented {
    pub(super) id: Str,
    sha256: [u8; 32],
}

fn random<const N: usize>() -> Result<[u8; N], Error> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).map_err(|error| {
        let message = format!("the system has no random bytes: {error}");
        Error::new(ErrorKind::Other, message)
    })?;
    Ok(bytes)
}

pub(super) fn new_id() -> Result<Str, Error> {
    let bytes: [u8; ID / 2] = random()?;
    Ok(bytes.map(|byte| format!("{byte:02x}")).concat().into())
}

pub(super) fn is_id(id: &str) -> bool {
    id.len() == ID
        && id
            .bytes()
            .all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

/// Makes a key of this id, and the digest of its secret.
pub(super) fn generate(id: &str) -> Result<(NewKey, [u8; 32]), Error> {
    let secret = URL_SAFE_NO_PAD.encode(random::<32>()?);
    let sha256 = Sha256::digest(secret.as_bytes()).into();
    let key = [PREFIX, id, "_", &secret].concat();
    let new = NewKey {
        id: id.into(),
        key: key.into(),
    };
    Ok((new, sha256))
}

impl Presented {
    /// The key in the value of the header `authorization`; `None` if it has none of this form.
    pub(super) fn parse(header: &[u8]) -> Option<Self> {
        let (scheme, key) = std::str::from_utf8(header).ok()?.split_once(' ')?;
        let key = key.trim_start().strip_prefix(PREFIX)?;
        let (id, secret) = key.split_once('_')?;
        let is_secret = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
        let is_key = is_id(id) && secret.len() == SECRET && secret.bytes().all(is_secret);
        (is_key && scheme.eq_ignore_ascii_case("bearer")).then(|| Self {
            id: id.into(),
            sha256: Sha256::digest(secret.as_bytes()).into(),
        })
    }

    /// Whether the secret has this digest, in constant time.
    pub(super) fn is(&self, sha256: &[u8; 32]) -> bool {
        self.sha256.ct_eq(sha256).into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_key_has_the_form_of_keys() {
        let (new, sha256) = generate(&new_id().unwrap()).unwrap();
        let key = new.expose();
        assert_eq!(key.len(), PREFIX.len() + ID + 1 + SECRET);
        for scheme in ["Bearer", "bearer"] {
            let presented = Presented::parse(format!("{scheme} {key}").as_bytes()).unwrap();
            assert_eq!(presented.id, new.id);
            assert!(presented.is(&sha256));
        }
        let (other, _) = generate(&new.id).unwrap();
        let presented = Presented::parse(format!("Bearer {}", other.expose()).as_bytes());
        assert!(!presented.unwrap().is(&sha256));
        for header in [
            key.to_owned(),
            format!("Basic {key}"),
            format!("Bearer {key}x"),
            format!("Bearer {}", key.replace("sk-cc", "sk")),
            format!("Bearer {}", &key[..key.len() - 1]),
            format!("Bearer {}", key.replace('_', "\0")),
            "Bearer ".to_owned(),
            "Bearer sk-cc-_".to_owned(),
        ] {
            let found = Presented::parse(header.as_bytes());
            assert!(found.is_none(), "{header}");
        }
        assert!(Presented::parse(b"Bearer \xff").is_none());
    }
}
