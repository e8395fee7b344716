//! The client at an authorization server.

use super::{
    discovery::AuthorizationServer,
    fetch::Fetch,
    record::{AuthMethod, ClientAuth, Record, Registration, now},
    settings::{OAuth, is_local},
};
use concentric_core::{Error, ErrorKind};
use secrecy::ExposeSecret;
use serde::Deserialize;
use serde_json::json;
use url::Url;

/// The response to a registration (RFC 7591).
#[derive(Deserialize)]
struct Registered {
    client_id: String,
    client_secret: Option<String>,
    /// Zero if the secret does not expire.
    #[serde(default)]
    client_secret_expires_at: u64,
    token_endpoint_auth_method: Option<AuthMethod>,
}

/// Returns the client at `server`. Registers it if there is none in the record.
///
/// # Errors
///
/// [`ErrorKind::Permission`]: the settings have a client of another authorization server.
/// [`ErrorKind::Configuration`]: the server requires a client that was registered in advance.
pub(super) async fn client(
    oauth: &OAuth,
    fetch: &Fetch,
    record: &mut Record,
    server: &AuthorizationServer,
    scopes: &[String],
) -> Result<ClientAuth, Error> {
    let pinned = oauth.issuer.as_ref().map(|it| it.as_str());
    if pinned.is_some_and(|issuer| issuer != server.issuer) {
        return Err(other_issuer());
    }
    if let Some(client) = &oauth.client {
        let first = record.issuer.get_or_insert_with(|| server.issuer.clone());
        if pinned.is_none() && *first != server.issuer {
            return Err(other_issuer());
        }
        let secret = client.secret.as_ref();
        return Ok(ClientAuth {
            id: client.id.as_str().to_owned(),
            secret: secret.map(|secret| secret.expose_secret().to_owned()),
            method: method(server, None, secret.is_some()),
        });
    }
    if let Some(url) = &oauth.client_metadata
        && server.client_id_metadata_document_supported
    {
        return Ok(ClientAuth {
            id: url.as_str().to_owned(),
            secret: None,
            method: AuthMethod::None,
        });
    }
    if let Some(known) = &record.registration
        && known.issuer == server.issuer
        && oauth.redirect_uri == *known.redirect_uri
        && known.expires_at.is_none_or(|at| now() < at)
    {
        return Ok(known.client.clone());
    }
    let registration = register(oauth, fetch, server, scopes).await?;
    let client = registration.client.clone();
    record.registration = Some(registration);
    Ok(client)
}

fn other_issuer() -> Error {
    let what = "the MCP server names another authorization server than that of the client";
    Error::new(ErrorKind::Permission, what)
}

async fn register(
    oauth: &OAuth,
    fetch: &Fetch,
    server: &AuthorizationServer,
    scopes: &[String],
) -> Result<Registration, Error> {
    let Some(endpoint) = &server.registration_endpoint else {
        let what = "the authorization server requires a client that was registered in advance";
        return Err(Error::new(ErrorKind::Configuration, what));
    };
    let mut document = json!({
        "client_name": oauth.name.as_str(),
        "redirect_uris": [oauth.redirect_uri.as_str()],
        "grant_types": ["authorization_code", "refresh_token"],
        "response_types": ["code"],
        "token_endpoint_auth_method": requested(server),
        "application_type": application_type(&oauth.redirect_uri),
    });
    if !scopes.is_empty()
        && let Some(fields) = document.as_object_mut()
    {
        fields.insert("scope".to_owned(), scopes.join(" ").into());
    }
    let (status, answer) = fetch.post_json(endpoint, &document).await?;
    let registered = serde_json::from_value::<Registered>(answer).ok();
    let Some(registered) = registered.filter(|_| status.is_success()) else {
        let status = status.as_u16();
        let what = format!("the registration of the client failed with status {status}");
        return Err(Error::new(ErrorKind::Authentication, what).with_status(status));
    };
    let has_secret = registered.client_secret.is_some();
    let method = method(server, registered.token_endpoint_auth_method, has_secret);
    let expires_at = registered.client_secret_expires_at;
    Ok(Registration {
        issuer: server.issuer.clone(),
        redirect_uri: oauth.redirect_uri.as_str().to_owned(),
        client: ClientAuth {
            id: registered.client_id,
            secret: registered.client_secret,
            method,
        },
        expires_at: (has_secret && expires_at > 0).then_some(expires_at),
    })
}

/// The method that is requested at registration.
fn requested(server: &AuthorizationServer) -> AuthMethod {
    match &server.token_endpoint_auth_methods_supported {
        Some(supported) if supported.iter().any(|it| it == "none") => AuthMethod::None,
        _ => method(server, None, true),
    }
}

/// The method for a client with or without a secret; `registered` is the one that the server has set.
fn method(
    server: &AuthorizationServer,
    registered: Option<AuthMethod>,
    has_secret: bool,
) -> AuthMethod {
    let supported = server.token_endpoint_auth_methods_supported.as_ref();
    let supports = |name| supported.is_some_and(|it| it.iter().any(|it| it == name));
    match registered {
        _ if !has_secret => AuthMethod::None,
        Some(method) => method,
        // The default of RFC 8414.
        None if supported.is_none() || supports("client_secret_basic") => AuthMethod::Basic,
        None if supports("client_secret_post") => AuthMethod::Post,
        None if supports("none") => AuthMethod::None,
        None => AuthMethod::Basic,
    }
}

/// The kind of the application by the rules of OpenID Connect: `web` for a redirect to a host with TLS.
fn application_type(redirect_uri: &str) -> &'static str {
    let url = Url::parse(redirect_uri).ok();
    let is_web = url.is_some_and(|url| url.scheme() == "https" && !is_local(&url));
    match is_web {
        true => "web",
        false => "native",
    }
}
