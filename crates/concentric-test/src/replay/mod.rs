//! Recorded traffic of real providers, served again to our own provider layers.
//!
//! A [`Recording`] is one response of a service, with what another library's parser made of it.
//! [`Server`] serves recordings over a loopback socket, and [`direct`] without one, cut into pieces
//! at will; [`observe`] asks a model for its answer and keeps every event; [`compare`] holds it
//! against what is expected. `cargo run --release -p concentric-test --bin replay` does all of it
//! for a directory.
//!
//! The recordings are other people's, and not part of the project: [`default_dir`] says where they
//! are looked for.

mod compare;
mod deviation;
mod direct;
mod observe;
mod recording;
mod rng;
mod run;
mod server;
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
    run::{APIS, Report, dump, model, replay, split, truncate},
    server::Server,
    truncate::{Cut, cuts},
};
