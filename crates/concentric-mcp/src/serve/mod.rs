//! Toolsets as MCP servers.
//!
//! [`serve_stdio`] serves a [`Toolset`] to the process that started this
//! one, [`McpService`] over streamable HTTP. A call runs like a call of an agent: with the gates, the
//! layers, the hooks, the ledger and the limits of the toolset.
//!
//! ```no_run
//! use concentric_mcp::McpService;
//! use concentric_tools::{NoArguments, Toolset, tool};
//!
//! let tools = Toolset::new().tool(tool("now", "Returns the time.", async |NoArguments {}| "noon").read_only());
//! let service = McpService::new("clock", tools).allow_hosts(["mcp.example.com"]);
//! // axum::Router::new().route_service("/mcp", service)
//! # let _ = service;
//! ```
//!
//! # Agents
//!
//! An agent is one tool of the server: a call is a run, whose interrupts are questions to the user of the
//! client as those of a gate are. A cancelled call cancels the run. For [structured
//! content](concentric_tools::Tool::output_schema), the agent needs a typed answer.
//!
//! ```
//! use concentric_core::{BoxModel, ChatRequest};
//! use concentric_mcp::McpService;
//! use concentric_tools::{Toolset, agent_tool_with};
//! use schemars::JsonSchema;
//! use serde::Deserialize;
//!
//! #[derive(Deserialize, JsonSchema)]
//! struct Question {
//!     /// The question, with all that is needed to answer it.
//!     prompt: String,
//! }
//!
//! fn assistant(agent: BoxModel) -> McpService {
//!     let ask = |Question { prompt }| ChatRequest::user(prompt);
//!     let tool = agent_tool_with("ask", "Answers questions about our orders.", agent, ask);
//!     McpService::new("orders", Toolset::new().tool(tool.max_result_bytes(1 << 20)))
//! }
//! # let _ = assistant;
//! ```
//!
//! # When
//!
//! | event | the client receives |
//! |---|---|
//! | the tool succeeds | its parts, and its data as structured content if it has an output schema |
//! | it fails, or its outcome is unknown | a result with `isError` and the text |
//! | a tool or a layer emits a progress event (`mcp.progress`) | a progress notification, if it requested them |
//! | the tool is an agent that writes text | the text as messages of progress notifications, at most 4 per second, if it requested them; more than 16 KiB that were not sent yet are dropped |
//! | one of them emits an event `mcp.log`, with the fields `level`, `data` and optionally `logger` | a log message, if it requested this level |
//! | a gate requires an approval | a form to approve or deny |
//! | a tool raises an [`ELICITATION`](crate::ELICITATION) interrupt, or is suspended by one | the form of the interrupt |
//! | the client cannot show forms | a result with `isError` that names the tool and the approval, or in the revision 2026-07-28 the error that this revision requires |
//! | a call is cancelled | nothing; the call is dropped |
//! | the client disconnects without a session, or closes the input | nothing; its calls are dropped |
//! | it disconnects in a session | nothing; its calls continue until they are cancelled or the session ends |
//! | more than 256 calls would run at once, or 1,000 wait for answers | a result with `isError`, at once |
//! | a request names a foreign host or origin | status 403 |
//! | a message is larger than 4 MiB, or has more than 49,152 JSON values, of which an object counts as three, and each of its fields as one more | status 413 |
//! | it does not arrive within 30 seconds | status 408. Both are checked before the headers |
//!
//! A client of the revision 2026-07-28 repeats a call with the answers: the call is suspended for at most
//! 15 minutes in this process, and resumed once. Such a client cannot be asked while a call runs, so that
//! [`Context::ask`](concentric_core::Context::ask) is cancelled. Clients of earlier revisions answer
//! within 5 minutes, while the call runs.

mod body;
mod convert;
mod events;
mod handler;
mod http;
mod question;
mod waiting;

pub use self::http::McpService;

use self::handler::ToolHandler;
use concentric_core::{Error, ErrorKind, Str};
use concentric_tools::Toolset;
use rmcp::{service::serve_server, transport::async_rw::AsyncRwTransport};

/// Serves a toolset over the standard input and output of this process, until the input ends.
///
/// Nothing else may write to the standard output.
///
/// ```no_run
/// use concentric_mcp::serve_stdio;
/// use concentric_tools::{NoArguments, Toolset, tool};
///
/// #[tokio::main(flavor = "current_thread")]
/// async fn main() -> Result<(), concentric_core::Error> {
///     let now = tool("now", "Returns the time.", async |NoArguments {}| "noon").read_only();
///     serve_stdio("clock", Toolset::new().tool(now)).await
/// }
/// ```
///
/// # Errors
///
/// [`ErrorKind::Configuration`]: the toolset [is invalid](Toolset::check).
/// [`ErrorKind::Protocol`]: the client does not speak MCP.
///
/// # Cancel safety
///
/// Dropping the future ends the connection and its calls.
pub async fn serve_stdio(name: impl Into<Str>, tools: Toolset) -> Result<(), Error> {
    tools.check()?;
    let transport = AsyncRwTransport::new_server(tokio::io::stdin(), tokio::io::stdout());
    let protocol = |error| {
        let what = "the connection to the MCP client failed";
        Error::new(ErrorKind::Protocol, what).with_source(error)
    };
    let handler = ToolHandler::new(name.into(), tools);
    let running = serve_server(handler, transport).await;
    let running = running.map_err(|error| protocol(concentric_core::BoxError::from(error)))?;
    let ended = running.waiting().await;
    ended.map(drop).map_err(|error| protocol(error.into()))
}
