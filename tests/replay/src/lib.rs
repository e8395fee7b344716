//! Replay of recorded provider traffic through the provider layers.
//!
//! A [`Recording`] is one response of a service, with the result of another library's parser as the
//! expectation. `Server` serves recordings over a loopback socket, [`direct`] without one and in
//! any chunks; [`observe`] calls a model and collects all events; [`compare`] compares them with
//! the expectation. `cargo run --release -p concentric-replay` does all of it for a
//! directory. Without the feature `socket`, there is no server and no HTTP client.
//!
//! The recordings come from third parties and are not part of this repository: see [`default_dir`]
//! for their location.

mod compare;
mod deviation;
mod direct;
mod observe;
mod recording;
mod rng;
mod run;
#[cfg(feature = "socket")]
mod server;
#[cfg(test)]
mod shortened;
#[cfg(feature = "socket")]
mod socket;
#[cfg(test)]
mod tests;
mod truncate;

pub use self::{
    compare::compare,
    deviation::{DEVIATIONS, Deviation},
    direct::{Pieces, direct},
    observe::{Observed, observe},
    recording::{Recording, default_dir, load},
    rng::Rng,
    run::{APIS, Report, model, split, truncate},
    truncate::{Cut, cuts},
};
#[cfg(feature = "socket")]
pub use self::{
    server::Server,
    socket::{dump, replay},
};
