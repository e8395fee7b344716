use concentric_core::{BoxError, Error, ErrorKind};
use http::HeaderValue;
use secrecy::{ExposeSecret, SecretString};
use std::{fmt, sync::Arc};

/// An API key of a provider. It is not shown by `Debug`, and its memory is wiped on drop.
#[derive(Clone)]
pub struct ApiKey(Source);

#[derive(Clone)]
enum Source {
    Fixed(SecretString),
    Fn(Arc<dyn Fn() -> Result<SecretString, BoxError> + Send + Sync>),
}

impl ApiKey {
    /// Creates a key, without surrounding white space.
    ///
    /// An empty key fails `poll_ready` of the model with [`ErrorKind::Configuration`].
    pub fn new(key: impl Into<String>) -> Self {
        Self(Source::Fixed(trimmed(key.into().into())))
    }

    /// Reads the key from an environment variable, without surrounding white space.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Configuration`] if the variable is not set, empty, or not Unicode.
    pub fn from_env(variable: &str) -> Result<Self, Error> {
        let problem = match std::env::var(variable) {
            Ok(key) if !key.trim().is_empty() => return Ok(Self::new(key)),
            Ok(_) => "is empty",
            Err(std::env::VarError::NotPresent) => "is not set",
            Err(std::env::VarError::NotUnicode(_)) => "is not Unicode",
        };
        Err(Error::new(
            ErrorKind::Configuration,
            format!("the environment variable {variable} {problem}; set it to the provider's key"),
        ))
    }

    /// Creates a key that is obtained from `key` before each call, for keys that are rotated. `key`
    /// must not block; to wait for a key, use a layer below the provider layer.
    ///
    /// Surrounding white space is removed. An error of `key` and an empty key fail the call with
    /// [`ErrorKind::Authentication`].
    pub fn from_fn<F, K>(key: F) -> Self
    where
        F: Fn() -> Result<K, BoxError> + Send + Sync + 'static,
        K: Into<String>,
    {
        let key = move || key().map(|key| trimmed(key.into().into()));
        Self(Source::Fn(Arc::new(key)))
    }

    /// Obtains the key for one call.
    pub(crate) fn resolve(&self) -> Result<Self, Error> {
        let Source::Fn(key) = &self.0 else {
            return Ok(self.clone());
        };
        let failed = |what| Error::new(ErrorKind::Authentication, what);
        match key() {
            Ok(key) if key.expose_secret().is_empty() => {
                Err(failed("the key for the provider is empty"))
            }
            Ok(key) => Ok(Self(Source::Fixed(key))),
            Err(error) => {
                Err(failed("the key for the provider could not be obtained").with_source(error))
            }
        }
    }

    /// Creates a header value of `prefix` and the key. It is marked as sensitive, so that `Debug`
    /// of a request does not show it.
    pub(crate) fn header(&self, prefix: &str) -> Result<HeaderValue, Error> {
        let value = format!("{prefix}{}", self.expose());
        // The source error is dropped, since it must not expose the value.
        let mut value = HeaderValue::try_from(value).map_err(|_| {
            Error::new(
                ErrorKind::Configuration,
                "the provider's key contains a character that is not allowed in an HTTP header",
            )
        })?;
        value.set_sensitive(true);
        Ok(value)
    }

    /// Whether the key is known to be empty before a call.
    pub(crate) fn is_empty(&self) -> bool {
        matches!(&self.0, Source::Fixed(key) if key.expose_secret().is_empty())
    }

    /// The key; empty if it has not been obtained yet.
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

/// `key` without surrounding white space, which is copied only if there is any.
fn trimmed(key: SecretString) -> SecretString {
    let text = key.expose_secret();
    match text.trim() {
        short if short.len() < text.len() => short.into(),
        _ => key,
    }
}
