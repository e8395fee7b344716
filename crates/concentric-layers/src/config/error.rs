use concentric_core::{BoxError, Error, ErrorKind, Str};

/// The error of a configuration: the key, and what is wrong there.
#[derive(Debug)]
pub(super) struct ConfigError {
    key: String,
    why: String,
    source: Option<BoxError>,
}

impl ConfigError {
    pub(super) fn new(key: impl Into<String>, why: impl Into<String>) -> Self {
        Self {
            key: key.into(),
            why: why.into(),
            source: None,
        }
    }

    pub(super) fn with_source(mut self, error: BoxError) -> Self {
        self.source = Some(error);
        self
    }

    /// Prefixes the key.
    pub(super) fn at(mut self, prefix: &str) -> Self {
        let is_first = self.key.is_empty() || self.key.starts_with('[');
        let dot = if is_first { "" } else { "." };
        self.key = format!("{prefix}{dot}{}", self.key);
        self
    }
}

impl From<ConfigError> for Error {
    fn from(error: ConfigError) -> Self {
        let ConfigError { key, why, source } = error;
        let what = match key.as_str() {
            "" => why,
            key => format!("`{key}`: {why}"),
        };
        let error = Self::new(ErrorKind::Configuration, Str::from(what)).with_code("config");
        match source {
            Some(source) => error.with_source(source),
            None => error,
        }
    }
}

/// The error of a document that can't be parsed.
pub(super) fn syntax(error: impl Into<BoxError>) -> Error {
    let error = error.into();
    let what = format!("the configuration can't be parsed: {error}");
    Error::new(ErrorKind::Configuration, what)
        .with_code("config")
        .with_source(error)
}
