//! The settings of an MCP server.

#[cfg(feature = "oauth")]
use crate::oauth::OAuth;
use crate::{
    config::{Config, Place},
    connection::McpConnection,
    limits::McpLimits,
    stdio::StdioCommand,
};
use concentric_core::{Annotations, BoxModel, Error, ErrorKind, Str, ToolSpec};
use concentric_tools::ToolPins;
use secrecy::SecretString;
use std::{ffi::OsString, fmt, process::Command, sync::Arc, time::Duration};

/// An MCP server whose tools an agent may call.
///
/// A server, its definitions and its results are not trusted; see the [crate docs](crate). A server
/// is connected once for each clone that is [connected](Self::connect); an
/// [`McpPool`](crate::McpPool) keeps tenants apart.
///
/// ```no_run
/// use concentric_core::{Annotations, Error};
/// use concentric_mcp::McpServer;
/// use concentric_tools::{Approval, Matcher, Toolset};
/// use std::process::Command;
///
/// # async fn connect(token: String) -> Result<Toolset, Error> {
/// let mut command = Command::new("/usr/bin/github-mcp-server");
/// command.arg("stdio").env("TOKEN", token);
/// let github = McpServer::stdio("github", &command)
///     .annotations(|tool| {
///         let is_read = tool.name.starts_with("github__list_");
///         is_read.then(Annotations::read_only)
///     })
///     .connect()
///     .await?;
/// let tools = Toolset::new()
///     .tools(github.tools())
///     .gate(Approval::for_tools(Matcher::effects()));
/// # Ok(tools)
/// # }
/// ```
#[derive(Clone)]
#[must_use = "a server is not used unless it is connected"]
pub struct McpServer(Config);

/// The longest name of a server, which leaves room for those of its tools.
const MAX_NAME: usize = 32;

impl McpServer {
    /// Creates a server that is a child process.
    ///
    /// Only the program, the arguments, the directory and the variables that are set on `command` are
    /// used. The process does not inherit the environment of this process, which may contain
    /// secrets; see [`inherit_env`](Self::inherit_env). Its standard error is logged.
    ///
    /// `name` has 1 to 32 ASCII letters, digits, `-` or `_`. The tools are named `{name}__{tool}`, and
    /// are in the [group](concentric_tools::Matcher::group) `name`.
    pub fn stdio(name: impl Into<Str>, command: &Command) -> Self {
        Self::new(name.into(), Place::Stdio(StdioCommand::new(command)))
    }

    /// Creates a server behind streamable HTTP. For `name`, see [`stdio`](Self::stdio).
    ///
    /// Redirects are followed only within the origin of `url`. Proxies of the environment are used
    /// only with [`allow_private_addresses`](Self::allow_private_addresses).
    pub fn http(name: impl Into<Str>, url: impl Into<Str>) -> Self {
        let place = Place::Http {
            url: url.into(),
            bearer: None,
            allow_private: false,
            #[cfg(feature = "oauth")]
            oauth: None,
        };
        Self::new(name.into(), place)
    }

    fn new(name: Str, place: Place) -> Self {
        Self(Config {
            name,
            place,
            annotate: None,
            pins: None,
            accept_changes: false,
            roots: None,
            sampling: None,
            limits: McpLimits::default(),
            connect_timeout: Duration::from_secs(20),
            call_timeout: Duration::from_secs(120),
            idle_timeout: Duration::from_secs(120),
            answer_timeout: Duration::from_secs(60),
        })
    }

    /// Passes variables of this process to the process of the server, unless its command sets them.
    /// No effect over HTTP.
    pub fn inherit_env<N>(mut self, names: impl IntoIterator<Item = N>) -> Self
    where
        N: Into<OsString>,
    {
        if let Place::Stdio(command) = &mut self.0.place {
            command.inherit(names.into_iter().map(Into::into));
        }
        self
    }

    /// Sets the bearer token of each HTTP request. It requires an `https` URL, unless [private
    /// addresses](Self::allow_private_addresses) are allowed. No effect over stdio.
    pub fn bearer(mut self, token: impl Into<String>) -> Self {
        if let Place::Http { bearer, .. } = &mut self.0.place {
            *bearer = Some(SecretString::from(token.into()));
        }
        self
    }

    /// Sends the tokens that users grant to the application; see [`oauth`](crate::oauth). It requires an
    /// `https` URL, as a [bearer token](Self::bearer) does, and replaces that. No effect over stdio.
    #[cfg(feature = "oauth")]
    pub fn oauth(mut self, settings: OAuth) -> Self {
        if let Place::Http { oauth, .. } = &mut self.0.place {
            *oauth = Some(Box::new(settings));
        }
        self
    }

    /// Allows loopback, private and otherwise reserved addresses over HTTP. By default they are
    /// refused, so that a URL from a configuration or a user cannot reach the local network.
    pub fn allow_private_addresses(mut self) -> Self {
        if let Place::Http { allow_private, .. } = &mut self.0.place {
            *allow_private = true;
        }
        self
    }

    /// Sets the annotations of tools, which decide about approvals and about calls that are repeated
    /// after a failure.
    ///
    /// `annotate` receives the definition of a tool, whose annotations are the claims of the server.
    /// For `None`, the tool has the [most restrictive](Annotations::default) annotations. To trust a
    /// server, return its claims: `|tool| Some(tool.annotations.clone())`.
    pub fn annotations<F>(mut self, annotate: F) -> Self
    where
        F: Fn(&ToolSpec) -> Option<Annotations> + Send + Sync + 'static,
    {
        self.0.annotate = Some(Arc::new(annotate));
        self
    }

    /// Accepts only definitions with these pins. By default, the definitions of the first listing are
    /// accepted. Others are held until they are [accepted](McpConnection::accept).
    pub fn pins(mut self, pins: ToolPins) -> Self {
        self.0.pins = Some(pins);
        self
    }

    /// Accepts every new and changed definition at once, also without a pin. Only for servers that
    /// are as trusted as the application itself.
    pub fn accept_changes(mut self) -> Self {
        self.0.accept_changes = true;
        self
    }

    /// Offers a list of directories, as `file:` URIs; by default, the server cannot request one. The list
    /// restricts nothing: a server reads whatever its process may read.
    pub fn roots<R>(mut self, uris: impl IntoIterator<Item = R>) -> Self
    where
        R: Into<String>,
    {
        self.0.roots = Some(uris.into_iter().map(Into::into).collect());
        self
    }

    /// Offers a model to the server; by default, it has none.
    ///
    /// The server writes the messages and the system text, and reads the answer. It sees nothing of the
    /// run, and the model has no tools. A request belongs to a call: the model's run is a child of the
    /// run of that call, and ends with it. [`McpLimits`] limits the number, the messages and the
    /// tokens; layers around the model may do more, such as a budget or an approval by a user.
    pub fn sampling(mut self, model: BoxModel) -> Self {
        self.0.sampling = Some(model);
        self
    }

    /// Sets the limits on the data of the server.
    pub fn limits(mut self, limits: McpLimits) -> Self {
        self.0.limits = limits;
        self
    }

    /// Limits the time to connect and to list the tools; 20 seconds by default. Also the time that a
    /// call waits for a connection.
    pub fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.0.connect_timeout = timeout;
        self
    }

    /// Limits the time of a call; 120 seconds by default. The server is notified, and the outcome is
    /// unknown unless the call [may be repeated](ToolSpec::may_run_again).
    pub fn call_timeout(mut self, timeout: Duration) -> Self {
        self.0.call_timeout = timeout;
        self
    }

    /// Limits the time of a call without progress; 120 seconds by default.
    pub fn idle_timeout(mut self, timeout: Duration) -> Self {
        self.0.idle_timeout = timeout;
        self
    }

    /// Limits the time until a question that the server asks during a call is answered, also by a
    /// model; 60 seconds by default.
    pub fn answer_timeout(mut self, timeout: Duration) -> Self {
        self.0.answer_timeout = timeout;
        self
    }

    /// Connects to the server and lists its tools.
    ///
    /// The connection is kept in the background. When it ends, it is established again after a random
    /// delay of at most half a second, which doubles with each attempt up to a minute. After 10
    /// attempts, the next one is made once a call needs the server.
    ///
    /// # Errors
    ///
    /// - [`ErrorKind::Configuration`]: a setting is invalid, or the program cannot be started.
    /// - [`ErrorKind::Permission`]: the address is not public.
    /// - [`ErrorKind::Authentication`]: the server refuses the bearer token, or requires the
    ///   authorization of a user.
    /// - [`ErrorKind::Timeout`], [`ErrorKind::Connection`], [`ErrorKind::Protocol`]: the server does not
    ///   answer as required.
    /// - [`ErrorKind::TooLarge`]: the listing exceeds the [limits](McpLimits).
    ///
    /// # Cancel safety
    ///
    /// Dropping the future ends the connection, and the process of the server.
    pub async fn connect(self) -> Result<McpConnection, Error> {
        self.check()?;
        McpConnection::open(self.0).await
    }

    /// Stores the tokens that a user has granted. `callback` is the URL that the browser was redirected
    /// to, or its query. The connection that required the authorization uses them at once.
    ///
    /// # Errors
    ///
    /// - [`ErrorKind::InvalidRequest`] with the code `unknown_state`: the callback belongs to no open
    ///   authorization of the tenant for this server. It may be older than 10 minutes, or used.
    /// - [`ErrorKind::Permission`]: the user, or the authorization server, has refused.
    /// - [`ErrorKind::Protocol`]: the callback is that of another authorization server.
    /// - [`ErrorKind::Configuration`]: the server has no [`oauth`](Self::oauth) settings, or they are
    ///   invalid.
    /// - Others: the authorization server cannot be reached or issues no token.
    ///
    /// # Cancel safety
    ///
    /// The callback can be used once: a future that is dropped may have used it.
    #[cfg(feature = "oauth")]
    pub async fn finish_authorization(&self, callback: &str) -> Result<(), Error> {
        self.check()?;
        let Some(authorizer) = self.0.authorizer()? else {
            let what = "the MCP server has no OAuth settings";
            return Err(Error::new(ErrorKind::Configuration, what));
        };
        authorizer.finish(callback).await
    }

    fn check(&self) -> Result<(), Error> {
        let invalid = |what: &'static str| Err(Error::new(ErrorKind::Configuration, what));
        let (name, place) = (&self.0.name, &self.0.place);
        let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-');
        if name.is_empty() || name.len() > MAX_NAME || !name.bytes().all(is_allowed) {
            return invalid(
                "the name of an MCP server must have 1 to 32 ASCII letters, digits, `-` or `_`",
            );
        }
        let mut roots = self.0.roots.iter().flat_map(|roots| roots.iter());
        if !roots.all(|uri| uri.starts_with("file://")) {
            return invalid("the roots of an MCP server must be `file:` URIs");
        }
        let Place::Http {
            url,
            bearer,
            allow_private,
            #[cfg(feature = "oauth")]
            oauth,
        } = place
        else {
            return Ok(());
        };
        let has_token = bearer.is_some();
        #[cfg(feature = "oauth")]
        let has_token = match oauth {
            Some(oauth) => {
                oauth.check()?;
                true
            }
            None => has_token,
        };
        let Ok(url) = url.parse::<http::Uri>() else {
            return invalid("the URL of an MCP server is invalid");
        };
        let has_user = url.authority().is_none_or(|it| it.as_str().contains('@'));
        match url.scheme_str() {
            Some("http") if has_token && !allow_private => {
                invalid("a token requires an `https` URL of the MCP server")
            }
            Some("http" | "https") if !has_user => Ok(()),
            _ => invalid(
                "the URL of an MCP server must be an absolute HTTP URL without user information",
            ),
        }
    }
}

impl fmt::Debug for McpServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The command and the URL may contain secrets.
        f.debug_struct("McpServer")
            .field("name", &self.0.name)
            .field("limits", &self.0.limits)
            .finish_non_exhaustive()
    }
}
