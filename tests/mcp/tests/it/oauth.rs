//! Servers that require the authorization of a user, with an authorization server that we control.

use axum::{
    Router,
    body::Bytes,
    extract::{RawQuery, Request, State},
    http::{HeaderMap, StatusCode, header},
    middleware::Next,
    response::{IntoResponse, Redirect, Response},
    routing::{any, get, post},
};
use concentric_core::{
    Error, ErrorKind, Reply, ToolOutcome, ToolStatus, machine::RunState, store::Tenant,
};
use concentric_mcp::{
    McpConnection, McpServer, McpService,
    oauth::{AUTHORIZATION, AuthorizationRequired, MemoryTokens, OAuth},
};
use concentric_mcp_tests::{call, message, served, visit};
use concentric_tools::{RoundEnd, ToolLifecycle, Toolset};
use serde_json::{Value, json};
use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
    time::Duration,
};

/// The address that nothing of ours opens.
const CALLBACK: &str = "http://127.0.0.1:9/callback";

/// An MCP server with its authorization server.
#[derive(Clone, Default)]
struct Fake(Arc<Mutex<Inner>>);

#[derive(Default)]
struct Inner {
    origin: String,
    /// The ways in which it misbehaves.
    how: &'static str,
    /// The scopes of the valid tokens.
    tokens: HashMap<String, String>,
    /// Those that are valid, each once.
    refresh: Vec<String>,
    codes: HashMap<String, HashMap<String, String>>,
    /// The scope that calls require beyond `tools`.
    required: &'static str,
    expires_in: u64,
    issued: usize,
    requests: Vec<String>,
}

type Form = HashMap<String, String>;

fn form_of(text: &[u8]) -> Form {
    url::form_urlencoded::parse(text).into_owned().collect()
}

fn json_of(value: &Value) -> Response {
    let json = [(header::CONTENT_TYPE, "application/json")];
    (json, value.to_string()).into_response()
}

impl Fake {
    async fn start(how: &'static str) -> Self {
        let fake = Self::default();
        let prm = "/.well-known/oauth-protected-resource/mcp";
        let (guarded, service) = (fake.clone(), McpService::new("concentric", served()));
        let app = Router::new()
            .route_service("/mcp", service)
            .route_layer(axum::middleware::from_fn(move |request, next| {
                guard(guarded.clone(), request, next)
            }))
            .route(prm, get(resource))
            .route("/.well-known/oauth-authorization-server", get(metadata))
            .route("/register", post(register))
            .route("/authorize", get(authorize))
            .route("/token", post(token))
            .route("/stolen", any(stolen))
            .with_state(fake.clone());
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        {
            let mut inner = fake.0.lock().unwrap();
            inner.origin = format!("http://{}", listener.local_addr().unwrap());
            inner.how = how;
            inner.expires_in = 3600;
        }
        tokio::spawn(async move { axum::serve(listener, app).await });
        fake
    }

    fn set(&self, change: impl FnOnce(&mut Inner)) {
        change(&mut self.0.lock().unwrap());
    }

    fn server(&self, oauth: OAuth) -> McpServer {
        let url = format!("{}/mcp", self.0.lock().unwrap().origin);
        let server = McpServer::http("web", url).allow_private_addresses();
        server.connect_timeout(Duration::from_secs(5)).oauth(oauth)
    }

    /// The number of requests to a path.
    fn requests(&self, path: &str) -> usize {
        let inner = self.0.lock().unwrap();
        inner.requests.iter().filter(|it| *it == path).count()
    }
}

async fn guard(fake: Fake, request: Request, next: Next) -> Response {
    let token = request.headers().get(header::AUTHORIZATION);
    let token = token.and_then(|it| it.to_str().ok()?.strip_prefix("Bearer "));
    let scopes = {
        let inner = fake.0.lock().unwrap();
        token.and_then(|it| inner.tokens.get(it).cloned())
    };
    let (origin, required) = {
        let inner = fake.0.lock().unwrap();
        (inner.origin.clone(), inner.required)
    };
    let refuse = |status: StatusCode, fields: &str| {
        let metadata = format!("{origin}/.well-known/oauth-protected-resource/mcp");
        let challenge = format!("Bearer resource_metadata=\"{metadata}\", {fields}");
        (status, [(header::WWW_AUTHENTICATE, challenge)]).into_response()
    };
    let Some(scopes) = scopes else {
        return refuse(StatusCode::UNAUTHORIZED, "scope=\"tools\"");
    };
    let (parts, body) = request.into_parts();
    let body = axum::body::to_bytes(body, 1 << 20).await.unwrap();
    let is_call = String::from_utf8_lossy(&body).contains("\"tools/call\"");
    if is_call && !required.is_empty() && !scopes.split(' ').any(|it| it == required) {
        let fields = format!("error=\"insufficient_scope\", scope=\"{required}\"");
        return refuse(StatusCode::FORBIDDEN, &fields);
    }
    next.run(Request::from_parts(parts, body.into())).await
}

fn count(fake: &Fake, path: &str) -> (String, &'static str) {
    let mut inner = fake.0.lock().unwrap();
    inner.requests.push(path.to_owned());
    (inner.origin.clone(), inner.how)
}

async fn resource(State(fake): State<Fake>) -> Response {
    let (origin, how) = count(&fake, "resource");
    match how {
        "resource of another" => json_of(&json!({
            "resource": "https://evil.example/mcp", "authorization_servers": [origin],
        })),
        "redirect away" => Redirect::temporary("http://localhost:9/elsewhere").into_response(),
        "endless" => {
            let chunks = futures_util::stream::repeat_with(|| {
                Ok::<_, std::io::Error>(Bytes::from_static(&[b' '; 4096]))
            });
            let json = [(header::CONTENT_TYPE, "application/json")];
            (json, axum::body::Body::from_stream(chunks)).into_response()
        }
        _ => json_of(&json!({
            "resource": format!("{origin}/mcp"), "authorization_servers": [origin],
            "scopes_supported": ["tools", "everything"],
        })),
    }
}

async fn metadata(State(fake): State<Fake>) -> Response {
    let (origin, how) = count(&fake, "metadata");
    let mut metadata = json!({
        "issuer": origin,
        "authorization_endpoint": format!("{origin}/authorize"),
        "token_endpoint": format!("{origin}/token"),
        "registration_endpoint": format!("{origin}/register"),
        "code_challenge_methods_supported": ["S256"],
        "token_endpoint_auth_methods_supported": ["client_secret_post"],
        "authorization_response_iss_parameter_supported": true,
    });
    match how {
        "script" => metadata["authorization_endpoint"] = "javascript:alert(1)".into(),
        "no PKCE" => metadata["code_challenge_methods_supported"] = json!(["plain"]),
        "issuer of another" => metadata["issuer"] = "https://evil.example".into(),
        _ => {}
    }
    json_of(&metadata)
}

async fn register(State(fake): State<Fake>, client: Bytes) -> Response {
    count(&fake, "register");
    let client: Value = serde_json::from_slice(&client).unwrap();
    assert_eq!(client["redirect_uris"], json!([CALLBACK]));
    json_of(&json!({"client_id": "registered", "client_secret": "registered-secret"}))
}

async fn authorize(State(fake): State<Fake>, RawQuery(query): RawQuery) -> Response {
    let query = form_of(query.unwrap_or_default().as_bytes());
    let (origin, _) = count(&fake, "authorize");
    assert_eq!(query["resource"], format!("{origin}/mcp"));
    let mut inner = fake.0.lock().unwrap();
    inner.issued += 1;
    let code = format!("code-{}", inner.issued);
    let to = format!(
        "{CALLBACK}?code={code}&state={}&iss={origin}",
        query["state"]
    );
    inner.codes.insert(code, query);
    Redirect::to(&to).into_response()
}

async fn token(State(fake): State<Fake>, form: Bytes) -> Response {
    let form = form_of(&form);
    let (origin, how) = count(&fake, "token");
    assert_eq!(form["client_secret"], "registered-secret");
    assert_eq!(form["resource"], format!("{origin}/mcp"));
    let mut inner = fake.0.lock().unwrap();
    if how == "redirect the secret" {
        return Redirect::temporary("/stolen").into_response();
    }
    if how == "broken" {
        return StatusCode::BAD_GATEWAY.into_response();
    }
    let scope = match form["grant_type"].as_str() {
        "refresh_token" => {
            let known = inner
                .refresh
                .iter()
                .position(|it| *it == form["refresh_token"]);
            known.map(|at| {
                inner.refresh.remove(at);
                assert!(!form.contains_key("scope"));
                "tools".to_owned()
            })
        }
        _ => {
            let code = inner.codes.remove(&form["code"]);
            assert_eq!(form["redirect_uri"], CALLBACK);
            assert!(form["code_verifier"].len() >= 43);
            code.map(|query| query.get("scope").cloned().unwrap_or_default())
        }
    };
    let Some(scope) = scope else {
        let error = json!({"error": "invalid_grant"});
        return (StatusCode::BAD_REQUEST, json_of(&error)).into_response();
    };
    inner.issued += 1;
    let (access, refresh) = (
        format!("access-{}", inner.issued),
        format!("refresh-{}", inner.issued),
    );
    inner.tokens.insert(access.clone(), scope);
    inner.refresh.push(refresh.clone());
    let expires_in = inner.expires_in;
    json_of(&json!({
        "access_token": access, "token_type": "bearer", "refresh_token": refresh, "expires_in": expires_in,
    }))
}

async fn stolen(State(fake): State<Fake>, _: HeaderMap) {
    count(&fake, "stolen");
}

fn oauth(store: &MemoryTokens) -> OAuth {
    OAuth::new(CALLBACK, store.clone())
}

fn required(error: &Error) -> AuthorizationRequired {
    let required = AuthorizationRequired::of(error);
    required.unwrap_or_else(|| panic!("{error:#}")).clone()
}

/// Connects with the authorization of a user.
async fn authorized(server: &McpServer) -> McpConnection {
    let error = server.clone().connect().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Authentication);
    let callback = visit(required(&error).url()).await.unwrap();
    server.finish_authorization(&callback).await.unwrap();
    server.clone().connect().await.unwrap()
}

async fn add(server: &McpConnection) -> ToolOutcome {
    let tools = Toolset::new().tools(server.tools());
    let called = call(&tools, "web__add", &json!({"a": 2, "b": 3}), &Value::Null).await;
    called.unwrap().outcome
}

/// Starts a call that is suspended, and returns its serialized state.
async fn suspended(server: &McpConnection) -> Vec<u8> {
    let mut lifecycle = ToolLifecycle::new(Toolset::new().tools(server.tools()));
    let message = message("web__add", &json!({"a": 2, "b": 3}));
    let end = lifecycle.execute_round(message).await.unwrap();
    let RoundEnd::Suspended(state) = end else {
        panic!("{end:?}");
    };
    state.to_json().unwrap().into()
}

async fn resumed(
    server: &McpConnection,
    state: &[u8],
    reply: impl Fn(&str) -> Reply,
) -> ToolOutcome {
    let state = RunState::from_json(state, 1 << 20).unwrap();
    let reply = reply(state.interrupts()[0].id.as_str());
    let mut lifecycle = ToolLifecycle::new(Toolset::new().tools(server.tools()));
    let mut lifecycle_end = lifecycle.resume(state, vec![reply]).await.unwrap();
    if let RoundEnd::Closed(round) = &mut lifecycle_end {
        return round.results()[0].outcome.clone();
    }
    panic!("{lifecycle_end:?}");
}

fn url_of(state: &[u8]) -> String {
    let state = RunState::from_json(state, 1 << 20).unwrap();
    let interrupt = &state.interrupts()[0];
    assert_eq!(interrupt.reason, AUTHORIZATION);
    interrupt.metadata["url"].as_str().unwrap().to_owned()
}

fn id(text: &str) -> concentric_core::InterruptId {
    concentric_core::InterruptId::new(text.to_owned())
}

#[tokio::test]
async fn a_user_authorizes_once() {
    let fake = Fake::start("").await;
    let store = MemoryTokens::new();
    let server = fake.server(oauth(&store));
    let connection = authorized(&server).await;
    assert_eq!(add(&connection).await.status, ToolStatus::Done);
    // Another connection, as of another process, has the tokens of the store.
    let again = fake.server(oauth(&store)).connect().await.unwrap();
    assert_eq!(add(&again).await.status, ToolStatus::Done);
    assert_eq!(
        (fake.requests("authorize"), fake.requests("register")),
        (1, 1)
    );
}

#[tokio::test]
async fn an_open_authorization_is_continued() {
    let fake = Fake::start("").await;
    let server = fake.server(oauth(&MemoryTokens::new()));
    let first = required(&server.clone().connect().await.unwrap_err());
    let second = required(&server.clone().connect().await.unwrap_err());
    assert_eq!(first.url(), second.url());
    assert_eq!(first.scopes(), ["tools"]);
    assert!(first.url().contains(&format!("state={}", first.state())));
    assert_eq!(fake.requests("register"), 1);
}

#[tokio::test]
async fn tokens_are_renewed_once_without_the_user() {
    let fake = Fake::start("").await;
    let server = fake.server(oauth(&MemoryTokens::new()));
    let connection = authorized(&server).await;
    // The server forgets them before their time.
    fake.set(|inner| inner.tokens.clear());
    let calls = (0..20).map(|_| {
        let connection = connection.clone();
        tokio::spawn(async move { add(&connection).await.status })
    });
    for call in calls.collect::<Vec<_>>() {
        assert_eq!(call.await.unwrap(), ToolStatus::Done);
    }
    assert_eq!((fake.requests("authorize"), fake.requests("token")), (1, 2));
    // Without a refresh token, the user is needed again.
    fake.set(|inner| {
        inner.tokens.clear();
        inner.refresh.clear();
    });
    let state = suspended(&connection).await;
    assert!(url_of(&state).contains("/authorize?"));
}

#[tokio::test]
async fn a_token_is_renewed_before_it_expires() {
    let fake = Fake::start("").await;
    fake.set(|inner| inner.expires_in = 0);
    let server = fake.server(oauth(&MemoryTokens::new()));
    let connection = authorized(&server).await;
    let before = fake.requests("token");
    fake.set(|inner| inner.expires_in = u64::MAX);
    assert_eq!(add(&connection).await.status, ToolStatus::Done);
    assert_eq!(add(&connection).await.status, ToolStatus::Done);
    assert_eq!(fake.requests("token"), before + 1);
}

#[tokio::test]
async fn a_call_that_needs_more_scopes_asks_again() {
    let fake = Fake::start("").await;
    let store = MemoryTokens::new();
    let server = fake.server(oauth(&store));
    let connection = authorized(&server).await;
    fake.set(|inner| inner.required = "write");
    let state = suspended(&connection).await;
    let url = url_of(&state);
    assert!(url.contains("scope=tools+write"), "{url}");
    // A refusal leaves the call without an effect.
    let refused = resumed(&connection, &state, |it| Reply::cancel(id(it))).await;
    assert_eq!(refused.status, ToolStatus::Failed);
    assert!(refused.content.text().starts_with("The call was not run"));

    // The call resumes in another process, with the callback in the reply.
    connection.close().await;
    let connection = fake.server(oauth(&store)).connect().await.unwrap();
    let callback = visit(&url).await.unwrap();
    let payload = json!({"callback": callback});
    let outcome = resumed(&connection, &state, |it| {
        Reply::resolve(id(it), payload.clone())
    })
    .await;
    assert_eq!(outcome.status, ToolStatus::Done, "{outcome:?}");
    // A scope that does not suffice although it was granted needs no user.
    fake.set(|inner| {
        for scopes in inner.tokens.values_mut() {
            "tools".clone_into(scopes);
        }
    });
    let outcome = add(&connection).await;
    assert_eq!(outcome.status, ToolStatus::Failed, "{outcome:?}");
    assert_eq!(fake.requests("authorize"), 2);
}

#[tokio::test]
async fn a_callback_is_used_once_and_checked() {
    let fake = Fake::start("").await;
    let server = fake.server(oauth(&MemoryTokens::new()));
    let open = async || {
        let error = server.clone().connect().await.unwrap_err();
        visit(required(&error).url()).await.unwrap()
    };
    for garbage in ["", "?", "state", "http://[", "code=1&state=unknown"] {
        let error = server.finish_authorization(garbage).await.unwrap_err();
        assert_eq!(error.code(), Some("unknown_state"), "{garbage}");
    }
    let callback = open().await;
    let (good, issuer) = callback.split_once("&iss=").unwrap();
    let denied = good.replace("code=", "error=access_denied&old=");
    for (callback, kind) in [
        (format!("{good}&iss={issuer}/"), ErrorKind::Protocol),
        (good.to_owned(), ErrorKind::Protocol),
        (format!("{denied}&iss={issuer}"), ErrorKind::Permission),
        (callback.replace("code=", "none="), ErrorKind::Protocol),
        (
            callback.replace("code=", "code=x"),
            ErrorKind::Authentication,
        ),
    ] {
        // Each state is used once, whatever its end.
        let state = |text: &str| {
            text.split("state=")
                .nth(1)
                .unwrap()
                .split('&')
                .next()
                .unwrap()
                .to_owned()
        };
        let fresh = open().await;
        let callback = callback.replace(&state(&callback), &state(&fresh));
        let error = server.finish_authorization(&callback).await.unwrap_err();
        assert_eq!(error.kind(), kind, "{callback}: {error:#}");
        let error = server.finish_authorization(&fresh).await.unwrap_err();
        assert_eq!(error.code(), Some("unknown_state"));
    }
    assert!(server.clone().connect().await.is_err());
    let query = open().await;
    let query = query.split_once('?').unwrap().1.to_owned();
    server.finish_authorization(&query).await.unwrap();
    assert!(server.connect().await.is_ok());
}

#[tokio::test]
async fn tokens_belong_to_a_tenant_and_a_url() {
    let (fake, other) = (Fake::start("").await, Fake::start("").await);
    let store = MemoryTokens::new();
    let of = |tenant: &'static str| oauth(&store).tenant(Tenant(tenant.into()));
    authorized(&fake.server(of("a"))).await;
    let error = fake.server(of("b")).connect().await.unwrap_err();
    required(&error);
    // The same name, at another address.
    let error = other.server(of("a")).connect().await.unwrap_err();
    required(&error);
}

#[tokio::test]
async fn hostile_metadata_is_refused() {
    for (how, kind) in [
        ("resource of another", ErrorKind::Protocol),
        ("redirect away", ErrorKind::Protocol),
        ("endless", ErrorKind::Protocol),
        ("script", ErrorKind::Protocol),
        ("no PKCE", ErrorKind::Protocol),
        ("issuer of another", ErrorKind::Protocol),
    ] {
        let fake = Fake::start(how).await;
        let server = fake.server(oauth(&MemoryTokens::new()));
        let error = server.connect().await.unwrap_err();
        assert_eq!(error.kind(), kind, "{how}: {error:#}");
        assert_eq!(fake.requests("register"), 0, "{how}");
    }
}

#[tokio::test]
async fn secrets_are_not_forwarded_nor_printed() {
    let fake = Fake::start("redirect the secret").await;
    let store = MemoryTokens::new();
    let server = fake.server(oauth(&store));
    let error = server.clone().connect().await.unwrap_err();
    let callback = visit(required(&error).url()).await.unwrap();
    let error = server.finish_authorization(&callback).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Protocol, "{error:#}");
    assert_eq!((fake.requests("token"), fake.requests("stolen")), (1, 0));
    fake.set(|inner| inner.how = "");
    let connection = authorized(&server).await;
    let settings = oauth(&store).client("id", Some("the-secret".to_owned()));
    let shown = format!("{store:?} {settings:?} {server:?} {connection:?} {error:?}");
    assert!(
        !shown.contains("secret") && !shown.contains("access-"),
        "{shown}"
    );
}

#[tokio::test]
async fn a_server_that_fails_keeps_the_tokens() {
    let fake = Fake::start("").await;
    let server = fake.server(oauth(&MemoryTokens::new()));
    let connection = authorized(&server).await;
    fake.set(|inner| {
        inner.tokens.clear();
        inner.how = "broken";
    });
    assert_eq!(add(&connection).await.status, ToolStatus::Failed);
    fake.set(|inner| inner.how = "");
    assert_eq!(add(&connection).await.status, ToolStatus::Done);
    assert_eq!(fake.requests("authorize"), 1);
}

#[tokio::test]
async fn a_client_with_a_secret_stays_at_its_issuer() {
    let (fake, other) = (Fake::start("").await, Fake::start("").await);
    let client =
        oauth(&MemoryTokens::new()).client("registered", Some("registered-secret".to_owned()));
    let issuer = fake.0.lock().unwrap().origin.clone();
    authorized(&fake.server(client.clone().issuer(issuer.clone()))).await;
    assert_eq!(fake.requests("register"), 0);
    let error = other
        .server(client.issuer(issuer))
        .connect()
        .await
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Permission, "{error:#}");
}

#[tokio::test]
async fn invalid_settings_are_refused() {
    let url = "https://example.com/mcp";
    let store = MemoryTokens::new();
    for redirect in [
        "",
        "callback",
        "http://example.com/callback",
        "https://example.com/#a",
    ] {
        let server = McpServer::http("web", url).oauth(OAuth::new(redirect, store.clone()));
        let error = server.connect().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Configuration, "{redirect}");
    }
    let server =
        McpServer::http("web", url).oauth(oauth(&store).client_metadata("https://example.com"));
    let error = server.connect().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Configuration);
    // Without TLS, a token is sent to private addresses only.
    let server = McpServer::http("web", "http://example.com/mcp").oauth(oauth(&store));
    let error = server.connect().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Configuration);
    let plain = McpServer::http("web", url)
        .finish_authorization("code=1")
        .await;
    assert_eq!(plain.unwrap_err().kind(), ErrorKind::Configuration);
}
