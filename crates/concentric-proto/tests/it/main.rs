//! Tests of the machine, its states and its rounds.
#![allow(
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used,
    reason = "tests"
)]

mod calls;
mod lasting_edits;
mod machine;
mod rounds;
mod states;
mod v1;
