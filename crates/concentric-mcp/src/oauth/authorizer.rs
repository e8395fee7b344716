//! Obtains, renews and sends the tokens for a server.

use super::{
    challenge::Challenge,
    discovery::{Discovered, discover},
    fetch::{Fetch, protocol},
    grant::{self, Grant, Place},
    record::{Pending, Record, now},
    registration::client,
    required::AuthorizationRequired,
    settings::OAuth,
};
use crate::request::{Failed, MAX_REDIRECTS, bearer_header, send_within_origin};
use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use bytes::Bytes;
use concentric_core::{Error, ErrorKind, Str};
use concentric_providers::client::{Body, HttpClient};
use http::{HeaderMap, HeaderValue, Method, Response, header};
use secrecy::SecretString;
use sha2::{Digest, Sha256};
use std::collections::HashMap;
use tokio::sync::Mutex;
use url::{Url, form_urlencoded};

/// The code of the error of a callback that belongs to no authorization.
pub(crate) const UNKNOWN_STATE: &str = "unknown_state";

/// The code of the error of a request that was not sent, or not executed, without a token.
const NO_TOKEN: &str = "no_token";

/// The tokens of a tenant for a server.
pub(crate) struct Authorizer {
    oauth: OAuth,
    server: Str,
    url: Str,
    fetch: Fetch,
    /// The record as it was last read or written. The lock is held during requests for tokens, so that
    /// each is made once.
    record: Mutex<Record>,
}

impl Authorizer {
    /// Creates the authorizer of a server. `client` makes the requests for metadata and tokens.
    pub(crate) fn new(
        oauth: OAuth,
        server: Str,
        url: Str,
        client: HttpClient,
        allow_private: bool,
    ) -> Self {
        let record = Mutex::new(Record::read(None, &url));
        let fetch = Fetch {
            client,
            allow_private,
        };
        Self {
            oauth,
            server,
            url,
            fetch,
            record,
        }
    }

    /// Sends a request with the token, if there is one. The request is repeated once with another token,
    /// since a server that refuses a token has not executed it.
    pub(crate) async fn send(
        &self,
        client: &HttpClient,
        method: Method,
        uri: &str,
        mut headers: HeaderMap,
        body: Bytes,
    ) -> Result<Response<Body>, Failed> {
        for is_repeated in [false, true] {
            let token = self.token().await.map_err(not_sent)?;
            if let Some(token) = &token {
                headers.insert(header::AUTHORIZATION, token.clone());
            }
            let (method, body) = (method.clone(), body.clone());
            // The stream of a session and its end follow other requests.
            let is_message = method == Method::POST;
            let sent =
                send_within_origin(client, method, uri, headers.clone(), body, MAX_REDIRECTS);
            let response = sent.await?;
            let challenge = Challenge::of(response.status(), response.headers());
            let Some(challenge) = challenge.filter(|_| is_message) else {
                return Ok(response);
            };
            drop(response);
            let answered = self.answer(&challenge, token.as_ref(), is_repeated).await;
            answered.map_err(not_sent)?;
        }
        Err(Failed::Client(refused()))
    }

    /// The header with the token, which is renewed if it is due.
    async fn token(&self) -> Result<Option<HeaderValue>, Error> {
        let mut record = self.record.lock().await;
        if record.tokens.is_none() {
            *record = self.load().await?;
        }
        let renew_at = record.tokens.as_ref().and_then(|it| it.renew_at);
        if renew_at.is_some_and(|at| at <= now()) {
            self.renew(&mut record).await?;
        }
        current(&record)
    }

    /// Obtains the token that a server requires.
    ///
    /// # Errors
    ///
    /// [`AuthorizationRequired`]: a user must authorize the application.
    async fn answer(
        &self,
        challenge: &Challenge,
        used: Option<&HeaderValue>,
        is_repeated: bool,
    ) -> Result<(), Error> {
        let mut record = self.record.lock().await;
        *record = self.load().await?;
        let token = current(&record)?;
        if token.is_some() && token.as_ref() != used {
            // Another request or process has obtained it.
            return Ok(());
        }
        if challenge.lacks_scope {
            let is_granted = |scope| record.granted.contains(scope);
            if self.oauth.is_machine || challenge.scopes.iter().all(is_granted) {
                let what = "the server refuses the request, though the token has the required scopes or cannot have them";
                return Err(Error::new(ErrorKind::Permission, what));
            }
        } else if !is_repeated {
            self.renew_now(&mut record).await?;
            if record.tokens.is_some() {
                return Ok(());
            }
        }
        let preferred = record.tokens.as_ref().map(|it| it.issuer.clone());
        let preferred = preferred.or_else(|| record.issuer.clone());
        let found = discover(&self.fetch, &self.url, challenge, preferred.as_deref()).await?;
        if record.granted_by != found.server.issuer {
            record.granted.clear();
        }
        let scopes = self.scopes(&record, challenge, &found);
        if !self.oauth.is_machine {
            let required = self.begin(&mut record, found, scopes).await?;
            return Err(required.into_error());
        }
        if is_repeated {
            return Err(refused());
        }
        let client = client(&self.oauth, &self.fetch, &mut record, &found.server, &[]).await?;
        let place = Place {
            issuer: &found.server.issuer,
            token_endpoint: &found.server.token_endpoint,
            resource: &found.resource,
            client: &client,
        };
        let grant = grant::client_credentials(&self.fetch, &place, &scopes).await?;
        self.keep(&mut record, grant, scopes).await
    }

    /// The scopes of an authorization: those that were granted, and those that are required.
    fn scopes(&self, record: &Record, challenge: &Challenge, found: &Discovered) -> Vec<String> {
        let required = match &self.oauth.scopes {
            _ if challenge.lacks_scope => &challenge.scopes,
            Some(scopes) => scopes,
            None if !challenge.scopes.is_empty() => &challenge.scopes,
            None => &found.scopes,
        };
        let mut scopes = record.granted.clone();
        for scope in required {
            if !scopes.contains(scope) {
                scopes.push(scope.clone());
            }
        }
        scopes
    }

    /// Begins the authorization by a user, or continues an open one with the same scopes.
    async fn begin(
        &self,
        record: &mut Record,
        found: Discovered,
        scopes: Vec<String>,
    ) -> Result<AuthorizationRequired, Error> {
        let Discovered {
            resource, server, ..
        } = found;
        let Some(endpoint) = &server.authorization_endpoint else {
            return Err(protocol(
                "the authorization server has no page for the authorization by users",
            ));
        };
        let client = client(&self.oauth, &self.fetch, record, &server, &scopes).await?;
        record.expire();
        let redirect_uri = self.oauth.redirect_uri.as_str();
        let open = record.pending.iter().find(|it| {
            it.issuer == server.issuer
                && it.resource == resource
                && it.client.id == client.id
                && it.redirect_uri == redirect_uri
                && it.scopes == scopes
        });
        if let Some(open) = open {
            let (url, state) = (open.url.clone(), open.state.clone());
            return Ok(self.required(url, state, scopes));
        }
        let (state, verifier) = (random::<16>()?, random::<32>()?);
        let challenge = URL_SAFE_NO_PAD.encode(Sha256::digest(verifier.as_bytes()));
        let mut url = self.fetch.check(endpoint)?;
        {
            let mut query = url.query_pairs_mut();
            query
                .append_pair("response_type", "code")
                .append_pair("client_id", &client.id)
                .append_pair("redirect_uri", redirect_uri)
                .append_pair("state", &state)
                .append_pair("code_challenge", &challenge)
                .append_pair("code_challenge_method", "S256")
                .append_pair("resource", &resource);
            if !scopes.is_empty() {
                query.append_pair("scope", &scopes.join(" "));
            }
        }
        record.begin(Pending {
            state: state.clone(),
            verifier,
            url: url.as_str().to_owned(),
            redirect_uri: redirect_uri.to_owned(),
            issuer: server.issuer,
            has_issuer: server.authorization_response_iss_parameter_supported,
            token_endpoint: server.token_endpoint,
            resource,
            client,
            scopes: scopes.clone(),
            began: now(),
        });
        self.save(record).await?;
        Ok(self.required(url.into(), state, scopes))
    }

    fn required(&self, url: String, state: String, scopes: Vec<String>) -> AuthorizationRequired {
        AuthorizationRequired::new(self.server.clone(), url, state, scopes)
    }

    /// Obtains the tokens for the URL that a browser was redirected to, or for its query.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidRequest`] with the code [`UNKNOWN_STATE`]: it belongs to no open
    /// authorization.
    pub(crate) async fn finish(&self, callback: &str) -> Result<(), Error> {
        let query = match Url::parse(callback) {
            Ok(url) => url.query().unwrap_or_default().to_owned(),
            Err(_) => callback.trim_start_matches('?').to_owned(),
        };
        let fields: HashMap<String, String> = form_urlencoded::parse(query.as_bytes())
            .into_owned()
            .collect();
        let mut record = self.record.lock().await;
        *record = self.load().await?;
        record.expire();
        let state = fields.get("state");
        let mut pending = record.pending.iter();
        let Some(at) = pending.position(|it| state == Some(&it.state)) else {
            let what = "the callback belongs to no open authorization";
            return Err(Error::new(ErrorKind::InvalidRequest, what).with_code(UNKNOWN_STATE));
        };
        // Used once, whatever its end.
        let pending = record.pending.remove(at);
        self.save(&record).await?;
        match fields.get("iss") {
            Some(issuer) if *issuer != pending.issuer => {
                return Err(protocol("the callback is that of another issuer"));
            }
            None if pending.has_issuer => return Err(protocol("the callback has no issuer")),
            _ => {}
        }
        if let Some(error) = fields.get("error") {
            let error = crate::text::cut(crate::text::visible(error), 64);
            let what = format!("the authorization was refused: {error}");
            return Err(Error::new(ErrorKind::Permission, what).with_code(error));
        }
        let Some(code) = fields.get("code") else {
            return Err(protocol("the callback has no code"));
        };
        let grant = grant::code(&self.fetch, &pending, code).await?;
        self.keep(&mut record, grant, pending.scopes).await
    }

    /// Stores new tokens. A server that does not name the granted scopes has granted the requested ones.
    async fn keep(
        &self,
        record: &mut Record,
        (tokens, granted): Grant,
        requested: Vec<String>,
    ) -> Result<(), Error> {
        record.granted = granted.unwrap_or(requested);
        record.granted_by.clone_from(&tokens.issuer);
        record.tokens = Some(tokens);
        self.save(record).await
    }

    /// Renews the tokens if they have a refresh token.
    async fn renew(&self, record: &mut Record) -> Result<(), Error> {
        let tokens = record.tokens.as_ref();
        match tokens.is_some_and(|it| it.refresh.is_some()) {
            true => self.renew_now(record).await,
            false => Ok(()),
        }
    }

    /// Renews the tokens, or removes them if that is not possible.
    async fn renew_now(&self, record: &mut Record) -> Result<(), Error> {
        let Some(tokens) = record.tokens.take() else {
            return Ok(());
        };
        if tokens.refresh.is_some() {
            match grant::refresh(&self.fetch, &tokens).await {
                Ok(grant) => {
                    let granted = record.granted.clone();
                    return self.keep(record, grant, granted).await;
                }
                Err(error) if error.kind() == ErrorKind::Authentication => {
                    let server = self.server.as_str();
                    tracing::debug!(target: "concentric::mcp", parent: None, server, %error, "a token was not renewed");
                    // Another process may have used the refresh token first.
                    *record = self.load().await?;
                    let newer = record.tokens.as_ref();
                    if newer.is_some_and(|it| it.access != tokens.access) {
                        return Ok(());
                    }
                }
                Err(error) => {
                    record.tokens = Some(tokens);
                    return Err(error);
                }
            }
        }
        record.tokens = None;
        self.save(record).await
    }

    async fn load(&self) -> Result<Record, Error> {
        let (store, tenant) = (&self.oauth.store, self.oauth.tenant.clone());
        let stored = store.load_tokens(tenant, self.server.clone()).await?;
        Ok(Record::read(stored.as_ref(), &self.url))
    }

    async fn save(&self, record: &Record) -> Result<(), Error> {
        let (store, tenant) = (&self.oauth.store, self.oauth.tenant.clone());
        let saved = store.save_tokens(tenant, self.server.clone(), record.write()?);
        Ok(saved.await?)
    }
}

/// The header with the current token.
fn current(record: &Record) -> Result<Option<HeaderValue>, Error> {
    let tokens = record.tokens.as_ref();
    let secret = tokens.map(|it| SecretString::from(it.access.clone()));
    secret.as_ref().map(bearer_header).transpose()
}

/// The error of a request that the server has not executed, since there is no token for it.
fn not_sent(error: Error) -> Failed {
    if AuthorizationRequired::of(&error).is_some() {
        return Failed::Client(error);
    }
    let what = "there is no token for the server";
    let error = Error::new(error.kind(), what).with_source(error);
    Failed::Client(error.with_code(NO_TOKEN))
}

fn refused() -> Error {
    let what = "the server refuses the tokens of its authorization server";
    Error::new(ErrorKind::Authentication, what)
}

fn random<const N: usize>() -> Result<String, Error> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes)
        .map_err(|_| Error::new(ErrorKind::Other, "the system has no random numbers"))?;
    Ok(URL_SAFE_NO_PAD.encode(bytes))
}
