//! Which requests are accepted, and the tokens of forms.

use std::{
    future::Future,
    net::{IpAddr, SocketAddr},
    pin::Pin,
    sync::Arc,
    time::{Duration, SystemTime},
};

use concentric_core::{Str, digest::Digest};
use http::{HeaderMap, HeaderValue, StatusCode, Uri, header, request::Parts, uri::Authority};

use super::operator::Operator;
use crate::refused::Refused;

/// The headers that proxies add.
const FORWARDED: [&str; 6] = [
    "forwarded",
    "via",
    "x-forwarded-for",
    "x-forwarded-host",
    "x-forwarded-proto",
    "x-real-ip",
];

/// Finds the operator of a request.
#[derive(Clone)]
pub(super) struct Access(Arc<dyn Fn(Parts) -> Finding + Send + Sync>);

type Finding = Pin<Box<dyn Future<Output = Option<Operator>> + Send>>;

impl Access {
    pub(super) fn new<F, Fut>(find: F) -> Self
    where
        F: Fn(Parts) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Option<Operator>> + Send + 'static,
    {
        Self(Arc::new(move |parts| Box::pin(find(parts))))
    }

    pub(super) fn loopback(
        peer: impl Fn(&Parts) -> Option<SocketAddr> + Send + Sync + 'static,
        operator: Operator,
    ) -> Self {
        Self(Arc::new(move |parts| {
            let is_local = peer(&parts).is_some_and(|peer| is_loopback(peer.ip()));
            // A proxy on this machine sends requests of others.
            let is_forwarded = FORWARDED
                .iter()
                .any(|name| parts.headers.contains_key(*name));
            let operator = (is_local && !is_forwarded).then(|| operator.clone());
            Box::pin(async move { operator })
        }))
    }

    pub(super) async fn operator(&self, parts: &Parts) -> Result<Operator, Refused> {
        let found = (self.0)(parts.clone()).await;
        found.ok_or_else(|| {
            let why = "You are not signed in as an operator.";
            Refused::new(StatusCode::FORBIDDEN, "forbidden", why, None)
        })
    }
}

fn is_loopback(address: IpAddr) -> bool {
    address.to_canonical().is_loopback()
}

/// Checks the name by which the server was called, which a page of another name that resolves to this server has not.
pub(super) fn check_host(parts: &Parts, hosts: &[Str]) -> Result<(), Refused> {
    let is_known = host(parts).is_some_and(|host| {
        let name = host.host().trim_end_matches('.');
        let is_local = matches!(name, "localhost" | "127.0.0.1" | "[::1]");
        is_local || hosts.iter().any(|known| known.eq_ignore_ascii_case(name))
    });
    if is_known {
        return Ok(());
    }
    let why = "This host name is not in the console's list; add it with `Console::host`.";
    let status = StatusCode::MISDIRECTED_REQUEST;
    Err(Refused::new(status, "unknown_host", why, None))
}

/// The host of a request, which HTTP/2 has in the URI.
fn host(parts: &Parts) -> Option<Authority> {
    match parts.headers.get(header::HOST) {
        Some(host) => host.to_str().ok()?.parse().ok(),
        None => parts.uri.authority().cloned(),
    }
}

/// Checks that a page of this console has sent a form.
pub(super) fn check_origin(parts: &Parts) -> Result<(), Refused> {
    let site = one(&parts.headers, "sec-fetch-site");
    let origin = one(&parts.headers, "origin");
    let is_own = match (site, origin) {
        (Some(site), origin) => {
            // The browser's own statement. The origin is `null`, since no page of the console sends a referrer.
            let is_null = origin.is_none_or(|origin| origin == "null");
            site == "same-origin" && (is_null || is_same(origin, parts))
        }
        (None, origin) => is_same(origin, parts),
    };
    if is_own {
        return Ok(());
    }
    let why = "This form was not sent by a page of the console. Browsers prove that over HTTPS, and on this machine.";
    Err(Refused::new(StatusCode::FORBIDDEN, "cross_site", why, None))
}

fn is_same(origin: Option<&HeaderValue>, parts: &Parts) -> bool {
    let origin = origin.and_then(|origin| origin.to_str().ok()?.parse::<Uri>().ok());
    let origin = origin.and_then(|origin| origin.into_parts().authority);
    origin.is_some() && origin == host(parts)
}

/// The only value of a header. A repeated header is as good as none of the accepted values.
fn one<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a HeaderValue> {
    let mut values = headers.get_all(name).iter();
    let value = values.next()?;
    match values.next() {
        None => Some(value),
        Some(_) => {
            static INVALID: HeaderValue = HeaderValue::from_static("repeated");
            Some(&INVALID)
        }
    }
}

/// How long the forms of a page are valid.
const VALID: Duration = Duration::from_secs(12 * 60 * 60);

/// Makes and checks the tokens of forms.
#[derive(Clone)]
pub(super) struct Forms {
    // `None` if the system had no randomness: then no form is valid.
    key: Option<[u8; 32]>,
}

impl Forms {
    pub(super) fn random() -> Self {
        let mut key = [0; 32];
        let filled = getrandom::fill(&mut key);
        if let Err(error) = &filled {
            tracing::error!(%error, "no randomness for the forms of the console, which are refused");
        }
        Self {
            key: filled.is_ok().then_some(key),
        }
    }

    pub(super) fn with_secret(secret: &[u8]) -> Self {
        let key = Digest::of_fields("concentric/console/secret/v1", &[secret]);
        Self {
            key: Some(*key.as_bytes()),
        }
    }

    /// The token of a form of `operator` that does what `purpose` describes.
    pub(super) fn token(&self, operator: &Operator, purpose: &str, now: SystemTime) -> String {
        let until = seconds(now.checked_add(VALID).unwrap_or(now));
        match self.mac(operator, purpose, until) {
            Some(mac) => format!("{until}.{mac}"),
            None => String::new(),
        }
    }

    /// Checks the token of a form.
    pub(super) fn check(
        &self,
        token: Option<&str>,
        operator: &Operator,
        purpose: &str,
        now: SystemTime,
    ) -> Result<(), Refused> {
        let is_valid = || {
            let (until, mac) = token?.split_once('.')?;
            let until: u64 = until.parse().ok()?;
            let mac: Digest = serde_json::from_value(mac.into()).ok()?;
            let expected = self.mac(operator, purpose, until)?;
            // Compared in constant time.
            (mac == expected && until >= seconds(now)).then_some(())
        };
        is_valid().ok_or_else(|| {
            let why = "This form is not valid any more: it was opened too long ago, in another login, or before the server was started. Open the page again.";
            Refused::new(StatusCode::FORBIDDEN, "invalid_form", why, None)
        })
    }

    fn mac(&self, operator: &Operator, purpose: &str, until: u64) -> Option<Digest> {
        let key = self.key.as_ref()?;
        // The number and the lengths of the fields are hashed before them, so a digest can't be extended.
        let fields: [&[u8]; 5] = [
            key,
            operator.name.as_bytes(),
            operator.session.as_bytes(),
            purpose.as_bytes(),
            &until.to_be_bytes(),
        ];
        Some(Digest::of_fields("concentric/console/form/v1", &fields))
    }
}

fn seconds(time: SystemTime) -> u64 {
    let since = time.duration_since(SystemTime::UNIX_EPOCH);
    since.map_or(0, |since| since.as_secs())
}
