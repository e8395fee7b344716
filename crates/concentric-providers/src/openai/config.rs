use super::compat::Compat;
use crate::{ApiKey, Limits, failure::Origin};
use concentric_core::{Error, ErrorKind, Str};
use http::{HeaderMap, HeaderName, HeaderValue, Uri, header};
use std::fmt;

/// What a layer was told.
#[derive(Clone)]
pub(super) struct Settings {
    pub(super) base_url: Str,
    pub(super) model: Str,
    pub(super) key: Option<ApiKey>,
    pub(super) headers: Vec<(Str, Str)>,
    pub(super) compat: Compat,
    pub(super) streaming: bool,
    pub(super) limits: Limits,
}

/// What its services go by.
pub(super) struct Config {
    pub(super) model: Str,
    pub(super) key: Option<ApiKey>,
    pub(super) compat: Compat,
    pub(super) streaming: bool,
    pub(super) limits: Limits,
    /// Where requests go and with which headers, or what is wrong with the settings.
    pub(super) target: Result<Target, Error>,
}

pub(super) struct Target {
    pub(super) uri: Uri,
    pub(super) headers: HeaderMap,
}

impl Settings {
    pub(super) fn config(&self) -> Config {
        Config {
            model: self.model.clone(),
            key: self.key.clone(),
            compat: self.compat.clone(),
            streaming: self.streaming,
            limits: self.limits,
            target: self.target(),
        }
    }

    fn target(&self) -> Result<Target, Error> {
        let mut headers = HeaderMap::new();
        headers.insert(
            header::CONTENT_TYPE,
            HeaderValue::from_static("application/json"),
        );
        // Both, since servers answer as they like.
        headers.insert(
            header::ACCEPT,
            HeaderValue::from_static(if self.streaming {
                "text/event-stream, application/json"
            } else {
                "application/json"
            }),
        );
        if let Some(key) = &self.key {
            let name: HeaderName = self
                .compat
                .key_header
                .parse()
                .map_err(|_| wrong("the name of the key's header is not one"))?;
            let prefix = if name == header::AUTHORIZATION {
                "Bearer "
            } else {
                ""
            };
            headers.insert(name, key.header(prefix)?);
        }
        for (name, value) in &self.headers {
            let name: HeaderName = name
                .parse()
                .map_err(|_| wrong(format!("`{name}` is not the name of a header")))?;
            // Not said: it may be a secret.
            let mut value = HeaderValue::from_str(value)
                .map_err(|_| wrong(format!("the value of the header `{name}` is not one")))?;
            value.set_sensitive(true);
            headers.insert(name, value);
        }
        let uri = endpoint(&self.base_url)
            .ok_or_else(|| wrong("the base URL is not an absolute HTTP URL"))?;
        Ok(Target { uri, headers })
    }
}

fn wrong(what: impl Into<Str>) -> Error {
    Error::new(ErrorKind::Configuration, what)
}

/// `base` with the path of the endpoint added to its own; its query stays (Azure's `api-version`).
fn endpoint(base: &str) -> Option<Uri> {
    let base = base.split_once('#').map_or(base, |(base, _)| base);
    let (path, query) = match base.split_once('?') {
        Some((path, query)) => (path, Some(query)),
        None => (base, None),
    };
    let mut uri = format!("{}/chat/completions", path.trim_end_matches('/'));
    if let Some(query) = query {
        uri.push('?');
        uri.push_str(query);
    }
    let uri: Uri = uri.parse().ok()?;
    (matches!(uri.scheme_str(), Some("http" | "https")) && uri.host().is_some()).then_some(uri)
}

impl Config {
    pub(super) fn origin<'a>(&'a self, request_id: Option<&'a Str>) -> Origin<'a> {
        Origin {
            provider: &self.compat.provider,
            key: self.key.as_ref(),
            request_id,
        }
    }
}

// Neither shows an address or a header: both may hold secrets.

impl fmt::Debug for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Settings")
            .field("model", &self.model)
            .field("key", &self.key)
            .field("compat", &self.compat)
            .field("streaming", &self.streaming)
            .field("limits", &self.limits)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Config")
            .field("model", &self.model)
            .field("key", &self.key)
            .field("compat", &self.compat)
            .field("streaming", &self.streaming)
            .field("limits", &self.limits)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::endpoint;

    #[test]
    fn the_endpoint_follows_the_base_url() {
        let cases = [
            (
                "https://a.test/v1",
                Some("https://a.test/v1/chat/completions"),
            ),
            (
                "https://a.test/v1/",
                Some("https://a.test/v1/chat/completions"),
            ),
            (
                "http://a.test:8080",
                Some("http://a.test:8080/chat/completions"),
            ),
            (
                "https://a.test/d?v=1#x",
                Some("https://a.test/d/chat/completions?v=1"),
            ),
            ("a.test/v1", None),
            ("file:///v1", None),
            ("", None),
        ];
        for (base, expected) in cases {
            let uri = endpoint(base).map(|uri| uri.to_string());
            assert_eq!(uri.as_deref(), expected, "{base}");
        }
    }
}
