//! OAuth 2.1 for servers behind HTTP.
//!
//! [`OAuth`] has the settings of an application, [`McpServer::oauth`](crate::McpServer::oauth) uses them
//! for a server. A user authorizes the application in a browser, which the application opens: this
//! crate opens none.
//!
//! ```no_run
//! use concentric_core::{Error, store::Tenant};
//! use concentric_mcp::{
//!     McpConnection, McpServer,
//!     oauth::{AuthorizationRequired, MemoryTokens, OAuth},
//! };
//!
//! # async fn connect(tenant: Tenant, show: impl AsyncFn(&str) -> String) -> Result<McpConnection, Error> {
//! let oauth = OAuth::new("https://app.example.com/callback", MemoryTokens::new()).tenant(tenant);
//! let server = McpServer::http("docs", "https://docs.example.com/mcp").oauth(oauth);
//! let error = match server.clone().connect().await {
//!     Ok(connection) => return Ok(connection),
//!     Err(error) => error,
//! };
//! let Some(required) = AuthorizationRequired::of(&error) else {
//!     return Err(error);
//! };
//! // The user's browser ends at the redirect URI of the application, with a query.
//! let callback = show(required.url()).await;
//! server.finish_authorization(&callback).await?;
//! server.connect().await
//! # }
//! ```
//!
//! # When
//!
//! | event | effect |
//! |---|---|
//! | the server requires a token while connecting | connecting fails with [`AuthorizationRequired`], which has the URL for the user |
//! | it requires one, or more scopes, for a call | the call is suspended by an interrupt with the reason [`AUTHORIZATION`] and the URL in its metadata; the call has not run |
//! | the interrupt is resolved | the call is sent again. The payload may be `{"callback": URL}` with the URL that the browser was redirected to; without it, the application has called [`finish_authorization`](crate::McpServer::finish_authorization) before |
//! | an access token expires | it is renewed with the refresh token, without the user |
//! | the server requires scopes that the token already has | the request fails with [`ErrorKind::Permission`](concentric_core::ErrorKind::Permission) |
//! | the server names another authorization server | tokens and registration of the previous one are not used; a client with a secret is refused there |
//!
//! The metadata of the resource and of the authorization server are looked up where RFC 9728, RFC 8414
//! and OpenID Connect Discovery place them, and at the places of the revision 2025-03-26 for servers
//! without metadata. The application is identified by its [client id](OAuth::client), by its [metadata
//! document](OAuth::client_metadata), or by dynamic registration, in this order. Requests carry the
//! resource (RFC 8707) and a PKCE challenge (`S256`). The issuer in the metadata and in the callback
//! (RFC 9207) is compared exactly.
//!
//! All of these requests obey the rules of the server itself: no private address unless
//! [allowed](crate::McpServer::allow_private_addresses), no URL without TLS unless private addresses are
//! allowed, redirects within the origin only, and none of a request that carries a secret.

mod authorizer;
mod challenge;
mod discovery;
mod fetch;
mod grant;
mod record;
mod registration;
mod required;
mod settings;
mod store;

pub(crate) use self::authorizer::{Authorizer, UNKNOWN_STATE};
pub use self::{
    required::{AUTHORIZATION, AuthorizationRequired},
    settings::OAuth,
    store::{MemoryTokens, TokenRecord, TokenStore},
};
