//! Tests of the tools.
#![allow(
    unreachable_pub,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::type_complexity,
    clippy::unwrap_used,
    reason = "tests"
)]

mod agents;
mod approvals;
mod approvals_asked;
mod approvals_live;
mod approvals_remembered;
mod arguments;
mod client_tools;
mod common;
mod decided_elsewhere;
mod decided_once;
mod doubt;
mod edits;
mod gates;
mod given_up;
mod hooks;
mod kit;
mod layers;
mod lazy;
mod lifecycle;
mod limits;
mod panics;
mod partials;
mod placement;
mod rounds;
mod rounds_property;
mod rules;
mod schemas;
mod settings;
mod settled_calls;
mod skills;
mod token;
mod tokens_flow;
mod tools;
