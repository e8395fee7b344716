//! Tests of the HTTP servers.
#![allow(
    unreachable_pub,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used,
    reason = "tests"
)]

mod admission;
mod ag_ui_approvals;
mod ag_ui_encode;
mod ag_ui_events;
mod ag_ui_http;
mod ag_ui_input;
mod ag_ui_panics;
mod ag_ui_policy;
mod ag_ui_service;
mod ag_ui_state;
mod ag_ui_stream;
mod ag_ui_subagents;
mod ag_ui_threads;
mod ag_ui_verify;
#[cfg(feature = "console")]
mod console;
#[cfg(feature = "openai")]
mod openai;
mod settings;
mod support;
#[cfg(feature = "ui_messages")]
mod ui_messages;
