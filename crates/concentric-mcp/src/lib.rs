//! The Model Context Protocol (MCP): servers as tools, and toolsets as servers.
//!
//! [`McpServer`] connects to a server over stdio or streamable HTTP; the tools of the
//! [`McpConnection`] are those of a [`Toolset`](concentric_tools::Toolset), with its gates, layers,
//! hooks and ledger.
//!
//! ```no_run
//! use concentric_core::{AgentLayer, BoxModel, Error};
//! use concentric_mcp::McpServer;
//! use concentric_tools::{Approval, Matcher, Toolset};
//! use tower::ServiceBuilder;
//!
//! # async fn agent(model: BoxModel) -> Result<BoxModel, Error> {
//! let docs = McpServer::http("docs", "https://example.com/mcp").connect().await?;
//! let tools = Toolset::new()
//!     .tools(docs.tools())
//!     .gate(Approval::for_tools(Matcher::effects()));
//! let agent = ServiceBuilder::new().layer(AgentLayer::new(tools)).service(model);
//! # Ok(BoxModel::new(agent))
//! # }
//! ```
//!
//! # When
//!
//! | event | effect |
//! |---|---|
//! | the server claims that a tool is read-only | none; the application [sets the annotations](McpServer::annotations), and until then a tool counts as destructive |
//! | a name has characters that providers reject, or is too long | it is changed, and a digest keeps it unique |
//! | a schema is too large or too deep, refers to another document, has references that multiply or form a cycle, or has a pattern that takes more than linear time | the tool is [refused](McpConnection::refused); the others are offered |
//! | two tools have one name | both are refused |
//! | a description is too long, or has hidden characters | it is cut, and they are removed |
//! | a listing is too long, or repeats a page | connecting fails; a later listing is ignored |
//! | the server changes its tools | new and changed tools are held until they are [accepted](McpConnection::accept); a call of a changed one is not sent |
//! | a call is dropped | the server is notified, and not awaited |
//! | the server reports progress | an event `mcp.progress` of the call, at most 10 per second |
//! | it sends a log record | a record of `tracing` with the target `concentric::mcp`, at most 64 per second |
//! | it requests input during a call | an interrupt of the run that waits for the call; without a consumer that answers, the server reads that the request was cancelled, as it does for more than 4 at once |
//! | it requires input to continue (revision 2026-07-28) | the call is suspended until all its interrupts are answered, in this process or another |
//! | it requests an answer of a model, or the list of directories | an error, unless the application offers [a model](McpServer::sampling) or [roots](McpServer::roots) |
//! | it reports an error | the call fails; the model reads the text as the server's |
//! | the structured result does not match the schema | the call fails |
//! | a result is too long | the middle is cut |
//! | a message is too long, the process ends, or the connection breaks | all pending calls fail; the outcome of a call that may not be repeated is unknown |
//! | the last handle is dropped | the process and its children receive SIGTERM, and SIGKILL once it has ended or after 3 seconds |
//!
//! With the feature `oauth`, users authorize the application for servers behind HTTP: see `oauth`.
//!
//! With the feature `server`, `serve` does the reverse: it serves a toolset to MCP clients.
//!
//! Texts of a server reach the model as definitions and results of its tools, and never as
//! instructions of the application. They may still try to instruct the model: use gates for tools
//! with effects.

#![cfg_attr(docsrs, feature(doc_cfg))]

#[cfg(feature = "oauth")]
mod authorization;
mod call;
mod config;
mod connection;
mod definition;
mod drift;
mod elicit;
mod handler;
mod http_client;
mod input;
mod limits;
mod link;
mod listing;
#[cfg(feature = "oauth")]
pub mod oauth;
mod offers;
mod pending;
mod pool;
mod references;
mod request;
mod result;
#[cfg(feature = "server")]
pub mod serve;
mod server;
mod spacing;
mod stdio;
mod supervisor;
mod text;
mod throttle;

#[cfg(feature = "server")]
pub use self::serve::{McpService, serve_stdio};
pub use self::{
    connection::McpConnection, definition::RefusedTool, drift::Drift, elicit::ELICITATION,
    limits::McpLimits, pool::McpPool, server::McpServer,
};
