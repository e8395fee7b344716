//! The settings of an application as an OAuth client.

use super::store::TokenStore;
use concentric_core::{Error, ErrorKind, Str, store::Tenant};
use secrecy::SecretString;
use std::{fmt, sync::Arc};
use url::{Host, Url};

/// The settings of an application as an OAuth client of MCP servers.
///
/// See the [module docs](crate::oauth).
#[derive(Clone)]
#[must_use = "the settings are not used unless they are passed to a server"]
pub struct OAuth {
    pub(super) redirect_uri: Str,
    pub(super) store: Arc<dyn TokenStore>,
    pub(super) tenant: Tenant,
    pub(super) name: Str,
    pub(super) client: Option<Client>,
    pub(super) client_metadata: Option<Str>,
    pub(super) issuer: Option<Str>,
    pub(super) scopes: Option<Vec<String>>,
    pub(super) is_machine: bool,
}

/// A client that was registered in advance.
#[derive(Clone)]
pub(super) struct Client {
    pub(super) id: Str,
    pub(super) secret: Option<SecretString>,
}

impl OAuth {
    /// Creates the settings of an application to which browsers are redirected at `redirect_uri`.
    pub fn new(redirect_uri: impl Into<Str>, store: impl TokenStore) -> Self {
        Self {
            redirect_uri: redirect_uri.into(),
            store: Arc::new(store),
            tenant: Tenant::default(),
            name: Str::from_static("Concentric"),
            client: None,
            client_metadata: None,
            issuer: None,
            scopes: None,
            is_machine: false,
        }
    }

    /// Creates the settings of an application that has its own access, without a user: the grant
    /// `client_credentials` with a client id and a secret.
    pub fn client_credentials(
        id: impl Into<Str>,
        secret: impl Into<String>,
        store: impl TokenStore,
    ) -> Self {
        let mut settings = Self::new("", store).client(id, Some(secret.into()));
        settings.is_machine = true;
        settings
    }

    /// Sets the tenant whose tokens are used; by default the empty one.
    pub fn tenant(mut self, tenant: Tenant) -> Self {
        self.tenant = tenant;
        self
    }

    /// Sets the name that users read; `Concentric` by default. Only for dynamic registration.
    pub fn client_name(mut self, name: impl Into<Str>) -> Self {
        self.name = name.into();
        self
    }

    /// Sets a client id that was registered in advance, and its secret, if it has one. It takes
    /// precedence over the other ways.
    ///
    /// The client belongs to one authorization server: that of [`issuer`](Self::issuer), or the first
    /// one that the server names. It is not used at others.
    pub fn client(mut self, id: impl Into<Str>, secret: Option<String>) -> Self {
        self.client = Some(Client {
            id: id.into(),
            secret: secret.map(SecretString::from),
        });
        self
    }

    /// Sets the `https` URL of the client's metadata document, which is its client id at the
    /// authorization servers that support this.
    pub fn client_metadata(mut self, url: impl Into<Str>) -> Self {
        self.client_metadata = Some(url.into());
        self
    }

    /// Sets the only authorization server that is used, by its issuer. By default, the server selects
    /// it.
    pub fn issuer(mut self, issuer: impl Into<Str>) -> Self {
        self.issuer = Some(issuer.into());
        self
    }

    /// Sets the scopes of the first authorization. By default those that the server requires, or all
    /// that it supports if it does not name any.
    ///
    /// If a server requires more later, the user is shown the new scopes together with those that were
    /// granted. `offline_access`, with which some servers issue refresh tokens, is requested only here.
    pub fn scopes<S>(mut self, scopes: impl IntoIterator<Item = S>) -> Self
    where
        S: Into<String>,
    {
        self.scopes = Some(scopes.into_iter().map(Into::into).collect());
        self
    }

    /// Checks the URLs.
    pub(crate) fn check(&self) -> Result<(), Error> {
        let invalid = |what: &'static str| Err(Error::new(ErrorKind::Configuration, what));
        if let Some(document) = &self.client_metadata {
            let url = Url::parse(document).ok();
            if !url.is_some_and(|url| url.scheme() == "https" && url.path() != "/") {
                return invalid(
                    "the metadata document of a client must have an `https` URL with a path",
                );
            }
        }
        let redirect = Url::parse(&self.redirect_uri).ok();
        // Without TLS, the code must not leave the machine.
        let is_valid = redirect.is_some_and(|url| {
            url.fragment().is_none() && (url.scheme() != "http" || is_local(&url))
        });
        match is_valid || self.is_machine {
            true => Ok(()),
            false => invalid(
                "the redirect URI must be an absolute URL without a fragment, with TLS unless it is a loopback address",
            ),
        }
    }
}

/// Returns whether a URL is one of this machine.
pub(super) fn is_local(url: &Url) -> bool {
    match url.host() {
        Some(Host::Domain(name)) => name == "localhost" || name.ends_with(".localhost"),
        Some(Host::Ipv4(address)) => address.is_loopback(),
        Some(Host::Ipv6(address)) => address.is_loopback(),
        None => false,
    }
}

impl fmt::Debug for OAuth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OAuth")
            .field("redirect_uri", &self.redirect_uri)
            .field("tenant", &self.tenant)
            .finish_non_exhaustive()
    }
}
