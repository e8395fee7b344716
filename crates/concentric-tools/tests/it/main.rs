//! Tests of the tools.
#![allow(
    unreachable_pub,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::type_complexity,
    clippy::unwrap_used,
    reason = "tests"
)]
// Some helpers serve only tests that need features.
#![cfg_attr(not(feature = "full"), allow(dead_code, unused_imports))]

#[cfg(feature = "full")]
mod agents;
mod approvals;
mod approvals_asked;
mod approvals_live;
mod approvals_remembered;
mod arguments;
mod client_tools;
mod common;
#[cfg(feature = "full")]
mod decided_elsewhere;
#[cfg(feature = "full")]
mod decided_once;
mod doubt;
#[cfg(feature = "full")]
mod edits;
mod gate_contract;
mod gates;
#[cfg(feature = "full")]
mod given_up;
mod kit;
mod layers;
#[cfg(feature = "full")]
mod lazy;
#[cfg(feature = "full")]
mod lifecycle;
mod limits;
mod modified_states;
#[cfg(feature = "full")]
mod panics;
#[cfg(feature = "full")]
mod partials;
#[cfg(feature = "full")]
mod placement;
#[cfg(feature = "full")]
mod plugins;
#[cfg(feature = "full")]
mod results;
mod rounds;
mod rounds_property;
#[cfg(feature = "full")]
mod rules;
#[cfg(feature = "full")]
mod schemas;
#[cfg(feature = "full")]
mod settings;
mod settled_calls;
#[cfg(feature = "full")]
mod skills;
#[cfg(feature = "full")]
mod token;
#[cfg(feature = "full")]
mod tokens_flow;
mod tools;
#[cfg(feature = "full")]
mod trace;

/// The tests of hooks that declare all points, also those that they do not use.
#[path = "."]
mod hooks_of_all_points {
    use concentric_core::hooks::Interest;

    const fn used(_: Interest) -> Interest {
        Interest::ALL
    }

    mod hooks;
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
}
