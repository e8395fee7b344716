//! Requests to token endpoints.

use super::{
    challenge::scopes,
    fetch::Fetch,
    record::{AuthMethod, ClientAuth, Pending, Tokens, now},
};
use base64::{Engine, engine::general_purpose::STANDARD};
use concentric_core::{Error, ErrorKind};
use http::HeaderValue;
use serde::Deserialize;
use serde_json::Value;
use url::form_urlencoded::{Serializer, byte_serialize};

#[derive(Deserialize)]
struct Granted {
    access_token: String,
    token_type: String,
    expires_in: Option<u64>,
    refresh_token: Option<String>,
    scope: Option<String>,
}

/// The place where a token is requested, and the client that requests it.
pub(super) struct Place<'a> {
    pub(super) issuer: &'a str,
    pub(super) token_endpoint: &'a str,
    pub(super) resource: &'a str,
    pub(super) client: &'a ClientAuth,
}

/// Tokens, and the scopes that the server has granted if it names them.
pub(super) type Grant = (Tokens, Option<Vec<String>>);

/// Exchanges the code of a callback.
pub(super) async fn code(fetch: &Fetch, pending: &Pending, code: &str) -> Result<Grant, Error> {
    let place = Place {
        issuer: &pending.issuer,
        token_endpoint: &pending.token_endpoint,
        resource: &pending.resource,
        client: &pending.client,
    };
    let form = [
        ("grant_type", "authorization_code"),
        ("code", code),
        ("redirect_uri", &pending.redirect_uri),
        ("code_verifier", &pending.verifier),
    ];
    request(fetch, &place, &form).await
}

/// Renews tokens. The scopes stay the same.
///
/// # Errors
///
/// [`ErrorKind::Authentication`] with the code `invalid_grant`: the refresh token is not valid.
pub(super) async fn refresh(fetch: &Fetch, tokens: &Tokens) -> Result<Grant, Error> {
    let place = Place {
        issuer: &tokens.issuer,
        token_endpoint: &tokens.token_endpoint,
        resource: &tokens.resource,
        client: &tokens.client,
    };
    let token = tokens.refresh.as_deref().unwrap_or_default();
    let form = [("grant_type", "refresh_token"), ("refresh_token", token)];
    let (mut renewed, scopes) = request(fetch, &place, &form).await?;
    // A server may keep the refresh token.
    renewed.refresh = renewed.refresh.or_else(|| tokens.refresh.clone());
    Ok((renewed, scopes))
}

/// Requests a token for the client itself.
pub(super) async fn client_credentials(
    fetch: &Fetch,
    place: &Place<'_>,
    scopes: &[String],
) -> Result<Grant, Error> {
    let scopes = scopes.join(" ");
    let mut form = vec![("grant_type", "client_credentials")];
    if !scopes.is_empty() {
        form.push(("scope", scopes.as_str()));
    }
    request(fetch, place, &form).await
}

async fn request(fetch: &Fetch, place: &Place<'_>, form: &[(&str, &str)]) -> Result<Grant, Error> {
    let client = place.client;
    let (authorization, form) = authenticated(place, form)?;
    let posted = fetch.post_form(place.token_endpoint, authorization, form);
    let (status, answer) = posted.await?;
    if !status.is_success() {
        return Err(refused(status.as_u16(), &answer));
    }
    let granted: Granted = serde_json::from_value(answer).map_err(|_| {
        // The source is dropped, since it may expose a token.
        let what = "the response of the token endpoint is invalid";
        Error::new(ErrorKind::Protocol, what)
    })?;
    if !granted.token_type.eq_ignore_ascii_case("bearer") {
        let what = "the authorization server issued a token of an unknown type";
        return Err(Error::new(ErrorKind::Protocol, what));
    }
    let tokens = Tokens {
        issuer: place.issuer.to_owned(),
        token_endpoint: place.token_endpoint.to_owned(),
        resource: place.resource.to_owned(),
        client: client.clone(),
        access: granted.access_token,
        refresh: granted.refresh_token,
        renew_at: granted.expires_in.map(renew_at),
    };
    Ok((tokens, granted.scope.as_deref().map(scopes)))
}

/// The form with the resource and the client, and the header of the client.
fn authenticated(
    place: &Place<'_>,
    form: &[(&str, &str)],
) -> Result<(Option<HeaderValue>, String), Error> {
    let client = place.client;
    let mut body = Serializer::new(String::new());
    body.extend_pairs(form);
    body.append_pair("resource", place.resource);
    let secret = client.secret.as_deref().unwrap_or_default();
    let mut authorization = None;
    match client.method {
        AuthMethod::Basic => authorization = Some(basic(&client.id, secret)?),
        AuthMethod::Post => {
            body.append_pair("client_id", &client.id);
            body.append_pair("client_secret", secret);
        }
        AuthMethod::None => {
            body.append_pair("client_id", &client.id);
        }
    }
    Ok((authorization, body.finish()))
}

/// The time to renew a token that lives for `seconds`: half a minute before its end.
fn renew_at(seconds: u64) -> u64 {
    let margin = (seconds / 2).min(30);
    now().saturating_add(seconds.saturating_sub(margin))
}

/// The header of a client with a secret (RFC 6749, 2.3.1).
fn basic(id: &str, secret: &str) -> Result<HeaderValue, Error> {
    let encoded = |text: &str| byte_serialize(text.as_bytes()).collect::<String>();
    let text = STANDARD.encode(format!("{}:{}", encoded(id), encoded(secret)));
    let mut value = HeaderValue::try_from(format!("Basic {text}")).map_err(|_| {
        let what = "the secret of the client cannot be sent in a header";
        Error::new(ErrorKind::Configuration, what)
    })?;
    value.set_sensitive(true);
    Ok(value)
}

fn refused(status: u16, answer: &Value) -> Error {
    let code = answer.get("error").and_then(Value::as_str);
    let code = code.map(|code| crate::text::cut(crate::text::visible(code), 64));
    let kind = match status {
        500.. => ErrorKind::Server,
        429 => ErrorKind::RateLimited,
        _ => ErrorKind::Authentication,
    };
    let shown = code.as_deref().unwrap_or("no error code");
    let what = format!("the authorization server issued no token: {shown} (status {status})");
    let error = Error::new(kind, what).with_status(status);
    match code {
        Some(code) => error.with_code(code),
        None => error,
    }
}
