//! Tests of the providers.
#![cfg(feature = "full")]
#![allow(
    unreachable_pub,
    clippy::indexing_slicing,
    clippy::needless_pass_by_value,
    clippy::panic,
    clippy::unwrap_used,
    reason = "tests"
)]

mod activities;
mod addresses;
mod anthropic;
mod anthropic_blocks;
mod anthropic_errors;
mod anthropic_history;
mod anthropic_request;
mod anthropic_stream;
mod catalogue;
mod client;
mod clocks;
mod common;
mod cross_provider;
mod error_status;
mod first_message;
mod gemini_errors;
mod gemini_request;
mod gemini_stream;
mod hostile_schemas;
mod invalid_requests;
mod large_requests;
mod moderation;
mod ollama_errors;
mod ollama_request;
mod ollama_stream;
mod openai;
mod openai_calls;
mod openai_errors;
mod openai_history;
mod openai_profiles;
mod openai_request;
mod openai_schemas;
mod openai_stream;
mod progress;
mod rate_limits;
mod readiness;
mod repeated_events;
mod responses_errors;
mod responses_request;
mod responses_stream;
mod schemas;
mod settings;
mod support;
mod supports;
mod tower_http;
mod usage;
mod warnings;
