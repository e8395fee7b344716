//! HTTP servers for Concentric agents.
//!
//! [`ag_ui`] implements the AG-UI protocol, version 1.0: a run is one `POST` with a JSON body, and
//! the response is a stream of server-sent events. [`AgUiLayer`](ag_ui::AgUiLayer) turns an agent
//! into a service for any tower-based HTTP server, such as axum. Existing clients (`@ag-ui/client`,
//! `@tanstack/ai-client`) work with it unchanged.
//! `ui_messages` (feature `ui_messages`) serves an agent to `useChat` of the Vercel AI SDK.
//! `openai` (feature `openai`) serves models and agents to the clients of OpenAI's API.
//! `console` (feature `console`) shows runs and pending approvals to operators.
//! [`AdmissionLayer`](admission::AdmissionLayer) limits the number of concurrent runs.

pub mod admission;
pub mod ag_ui;
#[cfg(feature = "console")]
pub mod console;
mod describe;
mod json;
mod keep_alive;
#[cfg(any(feature = "openai", feature = "ui_messages"))]
mod media_url;
mod merge;
#[cfg(feature = "openai")]
pub mod openai;
mod percent;
mod policy;
mod refused;
#[cfg_attr(
    not(feature = "ui_messages"),
    allow(dead_code, unused_imports, reason = "parts for `ui_messages` only")
)]
mod run;
mod settings;
mod shutdown;
mod sse;
mod store_call;
#[cfg(feature = "ui_messages")]
pub mod ui_messages;
mod upload;

pub use self::{policy::ClientPolicy, shutdown::Shutdown};
