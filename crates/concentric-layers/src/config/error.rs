use concentric_core::{BoxError, Error, ErrorKind, Str};
use std::{error::Error as StdError, fmt, sync::Arc};

/// The error of a configuration: the key, and what is wrong there.
#[derive(Clone, Debug)]
pub struct ConfigError {
    key: Option<String>,
    why: String,
    source: Option<Arc<dyn StdError + Send + Sync>>,
}

impl ConfigError {
    pub(super) fn new(key: impl Into<String>, why: impl Into<String>) -> Self {
        let key = Some(key.into());
        Self {
            key,
            why: why.into(),
            source: None,
        }
    }

    /// The error of a document that can't be parsed.
    pub(super) fn syntax(error: impl Into<BoxError>) -> Self {
        let error = error.into();
        Self {
            key: None,
            why: error.to_string(),
            source: Some(Arc::from(error)),
        }
    }

    pub(super) fn with_source(mut self, error: BoxError) -> Self {
        self.source = Some(Arc::from(error));
        self
    }

    /// Prefixes the key.
    pub(super) fn at(mut self, prefix: &str) -> Self {
        let key = self.key.unwrap_or_default();
        let dot = if key.is_empty() || key.starts_with('[') {
            ""
        } else {
            "."
        };
        self.key = Some(format!("{prefix}{dot}{key}"));
        self
    }

    /// Returns the key, such as `layers[1].options.max`; `None` if the document can't be parsed.
    pub fn key(&self) -> Option<&str> {
        self.key.as_deref()
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.key {
            Some(key) => write!(f, "`{key}`: {}", self.why),
            None => write!(f, "the configuration can't be parsed: {}", self.why),
        }
    }
}

impl StdError for ConfigError {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.source.as_deref().map(|source| source as _)
    }
}

impl From<ConfigError> for Error {
    fn from(error: ConfigError) -> Self {
        Self::new(ErrorKind::Configuration, Str::from(error.to_string()))
            .with_code("config")
            .with_source(error)
    }
}
