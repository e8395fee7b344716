use concentric_core::{BoxError, Error, ErrorKind};
use http::HeaderValue;
use secrecy::{ExposeSecret, SecretString};
use std::{fmt, sync::Arc};

/// A provider's key. `Debug` does not show it, and it is wiped when dropped.
#[derive(Clone)]
pub struct ApiKey(Source);

#[derive(Clone)]
enum Source {
    Fixed(SecretString),
    Fn(Arc<dyn Fn() -> Result<SecretString, BoxError> + Send + Sync>),
}

impl ApiKey {
    /// Takes `key`, without the white space around it.
    ///
    /// A key that is empty is an error of the services' `poll_ready`, of the kind
    /// [`ErrorKind::Configuration`].
    pub fn new(key: impl Into<String>) -> Self {
        Self(Source::Fixed(trimmed(key.into().into())))
    }

    /// Reads the key from an environment variable. White space around it does not count.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Configuration`] if the variable is not set, empty, or not Unicode.
    pub fn from_env(variable: &str) -> Result<Self, Error> {
        let said = match std::env::var(variable) {
            Ok(key) if !key.trim().is_empty() => return Ok(Self::new(key)),
            Ok(_) => "is empty",
            Err(std::env::VarError::NotPresent) => "is not set",
            Err(std::env::VarError::NotUnicode(_)) => "is not Unicode",
        };
        Err(Error::new(
            ErrorKind::Configuration,
            format!("the environment variable {variable} {said}; it must hold the provider's key"),
        ))
    }

    /// Asks `key` before each call, for keys that are rotated. It must not block: what waits for a
    /// key is a layer under the provider's.
    ///
    /// White space around a key does not count. An error of `key` is that of the call, of the kind
    /// [`ErrorKind::Authentication`], and so is an empty key.
    pub fn from_fn<F, K>(key: F) -> Self
    where
        F: Fn() -> Result<K, BoxError> + Send + Sync + 'static,
        K: Into<String>,
    {
        let key = move || key().map(|key| trimmed(key.into().into()));
        Self(Source::Fn(Arc::new(key)))
    }

    /// The key of one call.
    pub(crate) fn resolve(&self) -> Result<Self, Error> {
        match &self.0 {
            Source::Fixed(_) => Ok(self.clone()),
            Source::Fn(key) => match key() {
                Ok(key) if key.expose_secret().is_empty() => Err(Error::new(
                    ErrorKind::Authentication,
                    "the key for the provider is empty",
                )),
                Ok(key) => Ok(Self(Source::Fixed(key))),
                Err(error) => Err(Error::new(
                    ErrorKind::Authentication,
                    "there is no key for the provider",
                )
                .with_source(error)),
            },
        }
    }

    /// The value of a header, `prefix` before the key. It is marked sensitive, so that `Debug` of
    /// a request does not show it.
    pub(crate) fn header(&self, prefix: &str) -> Result<HeaderValue, Error> {
        let value = format!("{prefix}{}", self.expose());
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

    /// Whether there is nothing in it, as far as that is known before a call.
    pub(crate) fn is_empty(&self) -> bool {
        matches!(&self.0, Source::Fixed(key) if key.expose_secret().is_empty())
    }

    /// The key, if it is known.
    pub(crate) fn expose(&self) -> &str {
        match &self.0 {
            Source::Fixed(key) => key.expose_secret(),
            Source::Fn(_) => "",
        }
    }
}

impl fmt::Debug for ApiKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ApiKey([REDACTED])")
    }
}

impl From<SecretString> for ApiKey {
    fn from(key: SecretString) -> Self {
        Self(Source::Fixed(trimmed(key)))
    }
}

/// `key` without the white space around it. A copy is made only if there is some.
fn trimmed(key: SecretString) -> SecretString {
    let text = key.expose_secret();
    match text.trim() {
        short if short.len() < text.len() => short.into(),
        _ => key,
    }
}
