//! The metadata of the resource and of its authorization server.

use super::{
    challenge::{Challenge, valid_scopes},
    fetch::{Fetch, protocol},
};
use concentric_core::{Error, ErrorKind};
use serde::Deserialize;
use url::Url;

/// The metadata of a protected resource (RFC 9728).
#[derive(Deserialize)]
struct Resource {
    resource: String,
    #[serde(default)]
    authorization_servers: Vec<String>,
    #[serde(default)]
    scopes_supported: Vec<String>,
}

/// The metadata of an authorization server (RFC 8414).
#[derive(Clone, Deserialize)]
pub(super) struct AuthorizationServer {
    pub(super) issuer: String,
    pub(super) authorization_endpoint: Option<String>,
    pub(super) token_endpoint: String,
    pub(super) registration_endpoint: Option<String>,
    #[serde(default)]
    pub(super) token_endpoint_auth_methods_supported: Option<Vec<String>>,
    #[serde(default)]
    code_challenge_methods_supported: Option<Vec<String>>,
    #[serde(default)]
    pub(super) client_id_metadata_document_supported: bool,
    #[serde(default)]
    pub(super) authorization_response_iss_parameter_supported: bool,
}

/// The metadata that belongs to an MCP server.
pub(super) struct Discovered {
    /// The identifier of the resource, as it was published.
    pub(super) resource: String,
    /// The scopes that the resource supports.
    pub(super) scopes: Vec<String>,
    pub(super) server: AuthorizationServer,
}

/// Finds the metadata of the server at `url`. Of several authorization servers, `preferred` is selected
/// if it is among them, otherwise the first one.
pub(super) async fn discover(
    fetch: &Fetch,
    url: &str,
    challenge: &Challenge,
    preferred: Option<&str>,
) -> Result<Discovered, Error> {
    let here = Url::parse(url).map_err(|_| protocol("the URL of the server is invalid"))?;
    let Some(resource) = resource(fetch, &here, challenge).await? else {
        // As in the revision 2025-03-26.
        let origin = here.origin().ascii_serialization();
        let server = match authorization_server(fetch, &origin).await? {
            Some(server) => server,
            None => by_convention(&origin),
        };
        return Ok(Discovered {
            resource: without_fragment(here),
            scopes: Vec::new(),
            server,
        });
    };
    if !covers(&resource.resource, &here) {
        return Err(protocol(
            "the metadata of the resource is that of another resource than the MCP server",
        ));
    }
    let named = &resource.authorization_servers;
    let issuer = named.iter().find(|it| preferred == Some(it.as_str()));
    let Some(issuer) = issuer.or_else(|| named.first()) else {
        return Err(protocol(
            "the metadata of the MCP server names no authorization server",
        ));
    };
    let server = authorization_server(fetch, issuer).await?;
    let server = server.ok_or_else(|| {
        let what = "the authorization server of the MCP server has no metadata";
        Error::new(ErrorKind::Protocol, what)
    })?;
    Ok(Discovered {
        resource: resource.resource,
        scopes: valid_scopes(resource.scopes_supported),
        server,
    })
}

async fn resource(
    fetch: &Fetch,
    here: &Url,
    challenge: &Challenge,
) -> Result<Option<Resource>, Error> {
    if let Some(url) = &challenge.resource_metadata
        && let Some(found) = fetch.get(url).await?
    {
        return Ok(Some(found));
    }
    const WELL_KNOWN: &str = "/.well-known/oauth-protected-resource";
    let origin = here.origin().ascii_serialization();
    let path = here.path().trim_end_matches('/');
    if !path.is_empty()
        && let Some(found) = fetch.get(&format!("{origin}{WELL_KNOWN}{path}")).await?
    {
        return Ok(Some(found));
    }
    fetch.get(&format!("{origin}{WELL_KNOWN}")).await
}

async fn authorization_server(
    fetch: &Fetch,
    issuer: &str,
) -> Result<Option<AuthorizationServer>, Error> {
    let url = fetch.check(issuer)?;
    let origin = url.origin().ascii_serialization();
    let path = url.path().trim_end_matches('/');
    let mut places = vec![
        format!("{origin}/.well-known/oauth-authorization-server{path}"),
        format!("{origin}/.well-known/openid-configuration{path}"),
    ];
    if !path.is_empty() {
        places.push(format!("{origin}{path}/.well-known/openid-configuration"));
    }
    for place in places {
        let Some(found) = fetch.get::<AuthorizationServer>(&place).await? else {
            continue;
        };
        if found.issuer != issuer {
            return Err(protocol(
                "the metadata of the authorization server is that of another issuer",
            ));
        }
        check(fetch, &found)?;
        return Ok(Some(found));
    }
    Ok(None)
}

fn check(fetch: &Fetch, server: &AuthorizationServer) -> Result<(), Error> {
    let endpoints = [
        Some(&server.token_endpoint),
        server.authorization_endpoint.as_ref(),
        server.registration_endpoint.as_ref(),
    ];
    for endpoint in endpoints.into_iter().flatten() {
        fetch.check(endpoint)?;
    }
    let methods = server.code_challenge_methods_supported.as_ref();
    let has_pkce = methods.is_some_and(|methods| methods.iter().any(|it| it == "S256"));
    match server.authorization_endpoint.is_none() || has_pkce {
        true => Ok(()),
        false => Err(protocol(
            "the authorization server does not support PKCE with S256, which is required",
        )),
    }
}

/// The endpoints of a server without metadata.
fn by_convention(origin: &str) -> AuthorizationServer {
    AuthorizationServer {
        issuer: origin.to_owned(),
        authorization_endpoint: Some(format!("{origin}/authorize")),
        token_endpoint: format!("{origin}/token"),
        registration_endpoint: Some(format!("{origin}/register")),
        token_endpoint_auth_methods_supported: None,
        code_challenge_methods_supported: None,
        client_id_metadata_document_supported: false,
        authorization_response_iss_parameter_supported: false,
    }
}

/// Returns whether a resource identifier is that of the server, or of a part of its origin that contains
/// the server.
fn covers(resource: &str, here: &Url) -> bool {
    let Ok(resource) = Url::parse(resource) else {
        return false;
    };
    let part = resource.path().trim_end_matches('/');
    let below = here.path().strip_prefix(part);
    resource.origin() == here.origin()
        && resource.fragment().is_none()
        && resource.query().is_none_or(|it| here.query() == Some(it))
        && below.is_some_and(|it| it.is_empty() || it.starts_with('/'))
}

fn without_fragment(mut url: Url) -> String {
    url.set_fragment(None);
    url.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_resource_covers_the_paths_below_it() {
        let here = Url::parse("https://example.com/api/mcp").expect("a URL");
        for resource in [
            "https://example.com",
            "https://example.com/",
            "https://EXAMPLE.com:443/api",
            "https://example.com/api/mcp",
        ] {
            assert!(covers(resource, &here), "{resource}");
        }
        for resource in [
            "",
            "mcp",
            "http://example.com",
            "https://example.com:8443",
            "https://example.com.evil.example",
            "https://example.com/ap",
            "https://example.com/api/mcp/more",
            "https://example.com/#fragment",
            "https://example.com/api/mcp?tenant=1",
        ] {
            assert!(!covers(resource, &here), "{resource}");
        }
    }
}
