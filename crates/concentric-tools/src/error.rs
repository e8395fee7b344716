use crate::panic;
use concentric_core::{
    BoxError, CallId, Error, ErrorKind, RunId, Str, ToolOutcome,
    fatal::{fatal, is_fatal},
    opaque_debug,
    panic::catch,
};
use std::{error::Error as StdError, fmt, sync::Arc};

/// The error of a tool: a short text for the model, and the source error for the log.
///
/// [`ToolError::new`] sets the text for the model. Other errors convert by `?` or `into`; their
/// text, which may contain hosts, paths or personal data, is not sent to the model: the error and
/// its sources are logged (`tracing`, at warn level) with the ids of the run and of the call, which the result in
/// the conversation has as well. The model reads a fixed text, such as `The tool failed.`, or the text of an
/// [`ErrorFormat`]; [`Tool::max_result_bytes`](crate::Tool::max_result_bytes) limits it, as any result, so that a
/// tool may explain an error at length. A text that is written for the model is not searched for credentials: that is
/// the work of a layer with rules, such as `GuardLayer`, which sees all results. Like `anyhow::Error`, this type does not implement [`std::error::Error`],
/// which makes the conversion possible.
///
/// ```
/// use concentric_tools::ToolError;
///
/// fn read(path: &str) -> Result<String, ToolError> {
///     std::fs::read_to_string(path)
///         .map_err(|e| ToolError::new("The file does not exist.").with_source(e))
/// }
/// assert_eq!(read("/no/such/file").unwrap_err().message(), "The file does not exist.");
///
/// fn count(text: &str) -> Result<u32, ToolError> {
///     Ok(text.parse()?)
/// }
/// assert_eq!(count("many").unwrap_err().message(), "The tool failed.");
/// ```
pub struct ToolError {
    message: Str,
    source: Option<BoxError>,
    fatal: bool,
    /// Converted from a timeout of one of the tool's operations.
    timed_out: bool,
    /// Converted, so its text is only logged.
    foreign: bool,
}

/// The call that failed, for the log.
#[derive(Clone, Copy)]
pub(crate) struct FailedCall<'a> {
    pub(crate) tool: &'a str,
    pub(crate) id: &'a CallId,
    pub(crate) run: &'a RunId,
}

impl ToolError {
    /// Creates an error with `message` as the text for the model.
    pub fn new(message: impl Into<Str>) -> Self {
        Self {
            message: message.into(),
            source: None,
            fatal: false,
            timed_out: false,
            foreign: false,
        }
    }

    /// Sets the source of the error, which is not sent to the model.
    #[must_use]
    pub fn with_source(mut self, source: impl Into<BoxError>) -> Self {
        self.source = Some(source.into());
        self
    }

    /// Makes the error end the run, with [`ErrorKind::Tool`]. By default the model reads it.
    #[must_use]
    pub fn fatal(mut self) -> Self {
        self.fatal = true;
        self
    }

    /// The text for the model.
    pub fn message(&self) -> &str {
        &self.message
    }

    /// The source of the error, for logs.
    pub fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.source.as_deref().map(|source| source as _)
    }

    /// Whether an operation of the tool was dropped before it ended, so that it may have taken
    /// effect.
    pub(crate) const fn is_given_up(&self) -> bool {
        self.timed_out
    }

    /// Creates the error of a tool whose result does not match its output schema.
    pub(crate) fn invalid_output(why: String) -> Self {
        let error = Error::new(ErrorKind::Tool, why).with_code("invalid_output");
        Self {
            message: Str::from_static("The tool was executed, but its result is invalid."),
            ..Self::from(error)
        }
    }

    /// The text for the model, formatted unless it was written for the model.
    pub(crate) fn text(&self, format: Option<&ErrorFormat>) -> Str {
        let format = format.filter(|_| self.foreign);
        let text = format.and_then(|format| format.text(self));
        text.unwrap_or_else(|| self.message.clone())
    }

    /// Logs the error, and converts it into the outcome of the call.
    pub(crate) fn failed(&self, call: FailedCall<'_>, format: Option<&ErrorFormat>) -> ToolOutcome {
        let FailedCall { tool, id, run } = call;
        let source = self.source().map(|source| panic::text(&Chain(source)));
        // Not within the current span, into which its exporter would copy the text.
        if self.foreign {
            tracing::warn!(parent: None, %run, call = %id, tool, error = source, "a tool failed");
        } else {
            let error = self.message.as_str();
            tracing::debug!(parent: None, %run, call = %id, tool, error, source, "a tool failed");
        }
        ToolOutcome::failed(self.text(format))
    }

    /// Converts the error into the outcome of the call. Returns an error if `self` is fatal, or
    /// suspends the call.
    pub(crate) fn settle(
        self,
        call: FailedCall<'_>,
        format: Option<&ErrorFormat>,
    ) -> Result<ToolOutcome, Error> {
        let source = self.source.as_deref();
        if let Some(error) = source.and_then(|source| source.downcast_ref::<Error>()) {
            if error.suspension().is_some() {
                return Err(error.clone());
            }
            if error.kind() == ErrorKind::Halted {
                return Ok(ToolOutcome::failed(self.message).and_halt(error.message()));
            }
        }
        if !self.fatal {
            return Ok(self.failed(call, format));
        }
        let source = match self.source.map(|source| source.downcast::<Error>()) {
            // Already an `Error`, with all its fields.
            Some(Ok(error)) if is_fatal(&error) => return Err(*error),
            Some(Ok(error)) => Some(error as BoxError),
            Some(Err(other)) => Some(other),
            None => None,
        };
        let error = Error::new(ErrorKind::Tool, self.message);
        Err(fatal(match source {
            Some(source) => error.with_source(source),
            None => error,
        }))
    }
}

impl<E> From<E> for ToolError
where
    E: Into<BoxError>,
{
    fn from(error: E) -> Self {
        let source = error.into();
        let fatal = source.downcast_ref::<Error>().is_some_and(is_fatal);
        let known = Error::of(&*source);
        Self {
            message: for_model(&known),
            fatal,
            timed_out: known.kind() == ErrorKind::Timeout,
            foreign: true,
            source: Some(source),
        }
    }
}

/// The text that a model reads for errors that were not written for it: errors converted by `?`,
/// errors of layers and of nested agents, and results that do not match the output schema.
///
/// By default the model reads a fixed text. The format of the [tool](crate::Tool::error_format)
/// applies before that of the [toolset](crate::Toolset::error_format), and that before the format
/// that is a plugin of the [agent](concentric_core::AgentLayer::with). An outer format applies if the
/// inner one returns `None`, and the fixed text if all do. The errors are logged in any case.
///
/// The text may reach the user of the agent. Format only errors that contain no secrets.
///
/// ```
/// use concentric_core::{AgentLayer, ErrorKind};
/// use concentric_tools::{ErrorFormat, NoArguments, Toolset, tool};
///
/// let weather = tool("weather", "Returns the weather.", async |NoArguments {}| {
///     std::fs::read_to_string("/srv/weather.txt")
/// })
/// .error_format(ErrorFormat::new(|error| {
///     let error = error.source()?.downcast_ref::<std::io::Error>()?;
///     Some(format!("No weather today: {}.", error.kind()))
/// }));
/// let agent = AgentLayer::new(Toolset::new().tool(weather))
///     .with(ErrorFormat::new(|_| Some("The tool failed. Tell the user.")));
/// # let _ = agent;
/// ```
#[derive(Clone)]
pub struct ErrorFormat(Arc<Format>);

type Format = dyn Fn(&ToolError) -> Option<Str> + Send + Sync;

impl ErrorFormat {
    /// Creates a format. `format` must not block. If it panics, the fixed text applies.
    pub fn new<T>(format: impl Fn(&ToolError) -> Option<T> + Send + Sync + 'static) -> Self
    where
        T: Into<Str>,
    {
        Self(Arc::new(move |error| format(error).map(Into::into)))
    }

    fn text(&self, error: &ToolError) -> Option<Str> {
        catch(|| (self.0)(error)).unwrap_or_else(|panic| {
            tracing::error!(parent: None, panic = panic.text(), "the format of an error panicked");
            None
        })
    }

    /// Adds `outer`, which applies where this format returns `None`.
    pub(crate) fn within(self, outer: Option<&Self>) -> Self {
        let Some(outer) = outer.cloned() else {
            return self;
        };
        Self::new(move |error| self.text(error).or_else(|| outer.text(error)))
    }
}

opaque_debug!(ErrorFormat);

/// The code of the error of a nested agent.
pub(crate) const AGENT_FAILED: &str = "agent_failed";

/// The error of an agent whose tools a plugin cannot change.
pub(crate) fn no_toolset(plugin: &str) -> Error {
    let message =
        format!("the plugin `{plugin}` requires that the tools of the agent are a `Toolset`");
    Error::new(ErrorKind::Configuration, message).with_code("plugin")
}

/// The text for the model of an error that was not written for it.
fn for_model(error: &Error) -> Str {
    Str::from_static(match error.kind() {
        // The run ends with the host's own reason.
        ErrorKind::Halted => return error.message().into(),
        ErrorKind::Timeout => "The tool timed out.",
        ErrorKind::Overloaded | ErrorKind::RateLimited => {
            "The tool is overloaded. Try again later."
        }
        _ if error.code() == Some(AGENT_FAILED) => "The agent failed.",
        _ => "The tool failed.",
    })
}

impl fmt::Display for ToolError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl fmt::Debug for ToolError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ToolError")
            .field("message", &self.message)
            .field("source", &self.source)
            .field("fatal", &self.fatal)
            .finish()
    }
}

/// An error and its sources, on one line.
struct Chain<'a>(&'a (dyn StdError + 'static));

impl fmt::Display for Chain<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)?;
        let mut link = self.0.source();
        while let Some(source) = link {
            write!(f, ": {source}")?;
            link = source.source();
        }
        Ok(())
    }
}

/// The reason why a [`Toolset`](crate::Toolset) is invalid.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ToolsetError {
    /// Two tools have the same name.
    DuplicateName(Str),
    /// Arguments cannot be checked against the schema of a tool.
    InvalidSchema {
        /// The tool.
        tool: Str,
        /// The reason.
        reason: Str,
    },
    /// A rule of a gate, or the scope of hooks, has an empty list of tools; the value is the gate's
    /// policy, or the scope.
    EmptyRule(Str),
    /// A rule of a gate, or the scope of hooks, has a name or a pattern that no tool matches.
    UnknownTool(Str),
    /// A regular expression of a matcher is invalid.
    InvalidPattern {
        /// The expression.
        pattern: Str,
        /// The reason.
        reason: Str,
    },
    /// A gate cannot decide about the tools, or hooks cannot be called for them.
    Gate {
        /// The gate's policy.
        policy: Str,
        /// The reason.
        reason: Str,
    },
    /// A gate panicked in [`check`](crate::Gate::check); the value is its policy.
    GatePanicked(Str),
    /// A layer panicked while it was applied.
    LayerPanicked,
    /// A run's context lacks what a tool [requires](crate::Tool::requires).
    MissingContext {
        /// The tool.
        tool: Str,
        /// The required type.
        type_name: &'static str,
    },
}

impl fmt::Display for ToolsetError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::DuplicateName(name) => write!(f, "two tools are named `{name}`"),
            Self::InvalidSchema { tool, reason } => {
                write!(f, "the schema of the tool `{tool}` is invalid: {reason}")
            }
            Self::EmptyRule(policy) => write!(
                f,
                "a rule of `{policy}` has an empty list of tools; name the tools, or remove the rule"
            ),
            Self::UnknownTool(name) => write!(
                f,
                "a gate or hooks name the unknown tool `{name}`; correct the name, or add the tool"
            ),
            Self::InvalidPattern { pattern, reason } => {
                write!(f, "the regular expression `{pattern}` is invalid: {reason}")
            }
            Self::Gate { policy, reason } => {
                write!(f, "the gate `{policy}` rejects the tools: {reason}")
            }
            Self::GatePanicked(policy) => {
                write!(f, "the gate `{policy}` panicked in `check`")
            }
            Self::LayerPanicked => f.write_str("a tool layer panicked in `Layer::layer`"),
            Self::MissingContext { tool, type_name } => write!(
                f,
                "the tool `{tool}` requires a `{type_name}` in the extensions of the run's context"
            ),
        }
    }
}

impl StdError for ToolsetError {}

impl ToolsetError {
    /// Converts the error of a check by the gate, or the hooks, named `policy`.
    pub(crate) fn of_check(policy: impl FnOnce() -> Str, error: BoxError) -> Self {
        match error.downcast() {
            Ok(error) => *error,
            Err(error) => Self::Gate {
                policy: catch(policy).unwrap_or_default(),
                reason: panic::text(&error).into(),
            },
        }
    }
}

impl From<ToolsetError> for Error {
    fn from(error: ToolsetError) -> Self {
        Self::new(ErrorKind::Configuration, error.to_string()).with_source(error)
    }
}
