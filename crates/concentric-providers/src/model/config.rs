use crate::{
    ApiKey, Capabilities, Limits, Timeouts,
    api::{Api, Base},
    failure::Origin,
    scrub::Secrets,
};
use bytes::Bytes;
use concentric_core::{Error, ErrorKind, Str};
use http::{HeaderMap, HeaderName, HeaderValue, Method, header};
use http_body_util::Full;
use std::{fmt, sync::Arc};

/// The settings of a layer.
#[derive(Clone)]
pub(super) struct Settings {
    pub(super) base_url: Str,
    pub(super) model: Str,
    pub(super) key: Option<ApiKey>,
    pub(super) headers: Vec<Header>,
    pub(super) capabilities: Option<Capabilities>,
    pub(super) streaming: bool,
    pub(super) limits: Limits,
    /// `None` uses the defaults of the API.
    pub(super) timeouts: Option<Timeouts>,
}

#[derive(Clone)]
pub(super) struct Header {
    pub(super) name: Str,
    pub(super) value: Str,
    pub(super) is_secret: bool,
}

/// The configuration of a model.
#[derive(Debug)]
pub(crate) struct Config<A> {
    pub(crate) api: A,
    pub(super) settings: Settings,
    /// The target of requests, or the error in the settings.
    pub(super) target: Result<Target, Error>,
}

pub(super) struct Target {
    pub(super) base: Base,
    pub(super) headers: HeaderMap,
    pub(super) key_header: HeaderName,
    /// The values of `headers` and of the query of `base` that are treated as secrets.
    pub(super) secrets: Arc<[HeaderValue]>,
}

impl Settings {
    pub(super) fn config<A: Api>(&self, api: &A) -> Config<A> {
        Config {
            api: api.clone(),
            settings: self.clone(),
            target: self.target(api),
        }
    }

    fn target<A: Api>(&self, api: &A) -> Result<Target, Error> {
        let mut headers = HeaderMap::new();
        headers.insert(
            header::CONTENT_TYPE,
            HeaderValue::from_static("application/json"),
        );
        headers.insert(
            header::ACCEPT,
            HeaderValue::from_static(api.accepts(self.streaming)),
        );
        for (name, value) in api.headers() {
            headers.insert(*name, HeaderValue::from_static(value));
        }
        let key_header: HeaderName = (api.key_header().parse())
            .map_err(|_| wrong("the name of the key header is not valid"))?;
        for Header {
            name,
            value,
            is_secret,
        } in &self.headers
        {
            let name: HeaderName = name
                .parse()
                .map_err(|_| wrong(format!("`{name}` is not a valid header name")))?;
            // The value may be a secret, so it is not part of the error.
            let mut value = HeaderValue::from_str(value)
                .map_err(|_| wrong(format!("the value of the header `{name}` is not valid")))?;
            value.set_sensitive(*is_secret);
            headers.insert(name, value);
        }
        if self.key.as_ref().is_some_and(ApiKey::is_empty) {
            return Err(wrong("the provider's key is empty"));
        }
        let base = Base::new(&self.base_url).map_err(wrong)?;
        let secrets = headers.values().filter(|value| value.is_sensitive());
        let in_query = base
            .secrets()
            .filter_map(|it| HeaderValue::from_str(it).ok());
        Ok(Target {
            secrets: secrets.cloned().chain(in_query).collect(),
            base,
            headers,
            key_header,
        })
    }
}

impl<A> Config<A> {
    /// Warns if the key is sent to another machine without TLS.
    pub(super) fn warn_without_tls(&self) {
        let Ok(target) = &self.target else { return };
        if (self.settings.key.is_some() || !target.secrets.is_empty())
            && let Some(host) = target.base.remote_without_tls()
        {
            tracing::warn!(
                %host,
                "the base URL has the scheme `http`; the provider's key and all messages are sent without TLS"
            );
        }
    }
}

fn wrong(what: impl Into<Str>) -> Error {
    Error::new(ErrorKind::Configuration, what)
}

impl<A: Api> Config<A> {
    /// The model of the layer.
    #[cfg(feature = "activities")]
    pub(crate) fn model(&self) -> &Str {
        &self.settings.model
    }

    #[cfg(feature = "activities")]
    pub(crate) fn limits(&self) -> Limits {
        self.settings.limits
    }

    pub(crate) fn timeouts(&self) -> Timeouts {
        let timeouts = self.settings.timeouts;
        timeouts.unwrap_or_else(|| self.api.timeouts())
    }

    /// Fails if the settings are invalid.
    pub(crate) fn check_target(&self) -> Result<(), Error> {
        self.target.as_ref().map(|_| ()).map_err(Error::clone)
    }

    /// The header values that are treated as secrets.
    pub(crate) fn secrets(&self) -> Arc<[HeaderValue]> {
        let target = self.target.as_ref();
        target.map_or_else(|_| Arc::default(), |target| Arc::clone(&target.secrets))
    }

    /// Builds a request to `path` with the headers of the layer. Also returns the key.
    pub(crate) fn upstream(
        &self,
        path: &str,
        body: Bytes,
    ) -> Result<(http::Request<Full<Bytes>>, Option<ApiKey>), Error> {
        let target = self.target.as_ref().map_err(Error::clone)?;
        let key = (self.settings.key.as_ref())
            .map(ApiKey::resolve)
            .transpose()?;
        let mut headers = target.headers.clone();
        if let Some(key) = &key
            // A header that was set explicitly replaces the key.
            && !headers.contains_key(&target.key_header)
        {
            let is_bearer = target.key_header == header::AUTHORIZATION;
            let value = key.header(if is_bearer { "Bearer " } else { "" })?;
            headers.insert(&target.key_header, value);
        }
        let mut upstream = http::Request::new(Full::new(body));
        *upstream.method_mut() = Method::POST;
        *upstream.uri_mut() = target.base.join(path)?;
        *upstream.headers_mut() = headers;
        Ok((upstream, key))
    }

    pub(crate) fn origin(&self) -> Origin<'_> {
        Origin {
            provider: self.api.provider(),
            secrets: Secrets {
                key: self.settings.key.as_ref(),
                headers: self.target.as_ref().map_or(&[], |target| &target.secrets),
            },
            request_id: None,
            retry_after: self.settings.limits.retry_after,
        }
    }
}

// `Debug` omits URLs and headers, since both may contain secrets.

impl fmt::Debug for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Settings")
            .field("model", &self.model)
            .field("key", &self.key)
            .field("streaming", &self.streaming)
            .field("limits", &self.limits)
            .field("timeouts", &self.timeouts)
            .finish_non_exhaustive()
    }
}

concentric_core::opaque_debug!(Target);
