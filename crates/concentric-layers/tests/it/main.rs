//! Tests of the built-in layers.
#![allow(
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used,
    reason = "tests"
)]

#[cfg(feature = "budget")]
mod budget;
#[cfg(feature = "full")]
mod cache_random;
#[cfg(feature = "tool-cache")]
mod cache_stores;
#[cfg(feature = "full")]
mod canary;
#[cfg(feature = "full")]
mod circuit_breaker;
#[cfg(feature = "circuit-breaker")]
mod circuit_breaker_random;
#[cfg(feature = "full")]
mod clear_results;
#[cfg(feature = "full")]
mod compaction;
#[cfg(feature = "full")]
mod config;
#[cfg(feature = "full")]
mod conversation;
#[cfg(feature = "detach")]
mod detach;
#[cfg(feature = "full")]
mod durable;
#[cfg(feature = "envelope")]
mod envelope;
#[cfg(feature = "full")]
mod fallback;
#[cfg(feature = "full")]
mod guard;
#[cfg(feature = "guardrail")]
mod guardrail;
#[cfg(feature = "full")]
mod histories;
#[cfg(feature = "in-flight")]
mod in_flight;

mod lasting_edits;
mod limits_of_runs;
#[cfg(feature = "full")]
mod log;
#[cfg(feature = "full")]
mod memory;
mod observe;
#[cfg(feature = "full")]
mod order;
#[cfg(feature = "full")]
mod otel;
#[cfg(feature = "full")]
mod placement;
#[cfg(feature = "rate-limit")]
mod rate_limit;
#[cfg(feature = "full")]
mod response_cache;
#[cfg(feature = "retry")]
mod retry;
#[cfg(feature = "full")]
mod retry_random;
#[cfg(feature = "session")]
mod session;
#[cfg(feature = "session")]
mod session_store;
#[cfg(feature = "full")]
mod settings;
#[cfg(feature = "full")]
mod settled;
#[cfg(feature = "static-memory")]
mod static_memory;
#[cfg(feature = "steering")]
mod steering;
#[cfg(feature = "stop")]
mod stop;
#[cfg(feature = "suspend")]
mod suspend;
#[cfg(feature = "session")]
mod thread_store;
#[cfg(all(feature = "full", feature = "tokens-openai"))]
mod tokens;
#[cfg(feature = "tool-cache")]
mod tool_cache;
#[cfg(feature = "full")]
mod tool_layers;
mod transform;
#[cfg(feature = "full")]
mod trim;
#[cfg(feature = "full")]
mod user_functions;

/// The tests of hooks that declare all points, also those that they do not use.
#[path = "."]
mod hooks_of_all_points {
    use concentric_core::hooks::Interest;

    const fn used(_: Interest) -> Interest {
        Interest::ALL
    }

    mod hooks;
    mod hooks_random;
    mod hooks_trace;
    #[cfg(feature = "session")]
    mod hooks_whole;
}

/// The same tests with hooks that declare only the points that they use.
#[allow(clippy::duplicate_mod, reason = "the parameter is the function `used`")]
#[path = "."]
mod hooks_of_used_points {
    use concentric_core::hooks::Interest;

    const fn used(points: Interest) -> Interest {
        points
    }

    mod hooks;
    mod hooks_random;
    mod hooks_trace;
    #[cfg(feature = "session")]
    mod hooks_whole;
}
