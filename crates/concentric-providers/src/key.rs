use concentric_core::{Error, ErrorKind};
use http::HeaderValue;
use secrecy::{ExposeSecret, SecretString};
use std::fmt;

/// A provider's key. `Debug` does not show it, and it is wiped when dropped.
#[derive(Clone)]
pub struct ApiKey(SecretString);

impl ApiKey {
    /// Takes `key` as it is.
    pub fn new(key: impl Into<String>) -> Self {
        Self(SecretString::from(key.into()))
    }

    /// Reads the key from an environment variable. White space around it does not count.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Configuration`] if the variable is not set, empty, or not Unicode.
    pub fn from_env(variable: &str) -> Result<Self, Error> {
        let said = match std::env::var(variable) {
            Ok(key) if !key.trim().is_empty() => return Ok(Self::new(key.trim())),
            Ok(_) => "is empty",
            Err(std::env::VarError::NotPresent) => "is not set",
            Err(std::env::VarError::NotUnicode(_)) => "is not Unicode",
        };
        Err(Error::new(
            ErrorKind::Configuration,
            format!("the environment variable {variable} {said}; it must hold the provider's key"),
        ))
    }

    /// The value of a header, `prefix` before the key. It is marked sensitive, so that `Debug` of
    /// a request does not show it.
    pub(crate) fn header(&self, prefix: &str) -> Result<HeaderValue, Error> {
        let value = format!("{prefix}{}", self.0.expose_secret());
        // The error does not say what the value was.
        let mut value = HeaderValue::try_from(value).map_err(|_| {
            Error::new(
                ErrorKind::Configuration,
                "the provider's key has a character that no HTTP header may have",
            )
        })?;
        value.set_sensitive(true);
        Ok(value)
    }

    pub(crate) fn expose(&self) -> &str {
        self.0.expose_secret()
    }
}

impl fmt::Debug for ApiKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ApiKey([REDACTED])")
    }
}

impl From<SecretString> for ApiKey {
    fn from(key: SecretString) -> Self {
        Self(key)
    }
}
