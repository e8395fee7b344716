//! The step that a user takes in a browser.

use concentric_core::{Error, ErrorKind, Interrupt, InterruptId, Str};
use serde_json::json;
use std::{error::Error as StdError, fmt};

/// The [reason](Interrupt::reason) of an interrupt that waits until a user has authorized the application
/// at the URL in its metadata (`url`).
pub const AUTHORIZATION: Str = Str::from_static("authorization");

/// The source of an error: a user must authorize the application.
///
/// See the [module docs](crate::oauth).
#[derive(Clone, Debug)]
pub struct AuthorizationRequired {
    server: Str,
    url: String,
    state: String,
    scopes: Vec<String>,
}

impl AuthorizationRequired {
    pub(super) fn new(server: Str, url: String, state: String, scopes: Vec<String>) -> Self {
        Self {
            server,
            url,
            state,
            scopes,
        }
    }

    /// Finds it among the sources of an error.
    pub fn of<'a>(error: &'a (dyn StdError + 'static)) -> Option<&'a Self> {
        let mut sources = std::iter::successors(Some(error), |&error| error.source());
        sources.find_map(|it| it.downcast_ref())
    }

    /// The URL for the user's browser, valid for 10 minutes. Its scheme is `https`, or `http` if private
    /// addresses are allowed. The user sees the page of the authorization server of the MCP server.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// The parameter `state` of the callback, by which the application finds the server that it
    /// belongs to.
    pub fn state(&self) -> &str {
        &self.state
    }

    /// The scopes that the application requests; empty for those that the authorization server selects.
    pub fn scopes(&self) -> &[String] {
        &self.scopes
    }

    pub(super) fn into_error(self) -> Error {
        let what = format!(
            "the MCP server `{}` requires the authorization of a user",
            self.server
        );
        Error::new(ErrorKind::Authentication, what)
            .with_code("authorization_required")
            .with_source(self)
    }

    pub(crate) fn interrupt(&self, id: InterruptId) -> Interrupt {
        let server = self.server.as_str();
        let message = match self.scopes.is_empty() {
            true => format!("The MCP server `{server}` requires your authorization."),
            false => {
                let scopes = self.scopes.join(", ");
                format!("The MCP server `{server}` requires your authorization for: {scopes}.")
            }
        };
        Interrupt::new(id, AUTHORIZATION)
            .with_message(message)
            .with_response_schema(json!({
                "type": "object",
                "properties": {"callback": {"type": "string"}},
            }))
            .with_metadata("server", server)
            .with_metadata("url", self.url.as_str())
            .with_metadata("scopes", self.scopes.clone())
    }
}

impl fmt::Display for AuthorizationRequired {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a user must authorize the application at the URL")
    }
}

impl StdError for AuthorizationRequired {}
