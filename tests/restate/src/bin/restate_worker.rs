//! A worker: `restate_worker WORLD PORT VERSION INACTIVITY ABORT DEADLINE WAITS`, with times in milliseconds.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test program, which fails by panics"
)]

use concentric_restate::{RestateAgents, Waits};
use concentric_restate_tests::{agent::agent, world::World};
use concentric_store::SqliteStore;
use std::{future::pending, path::Path, time::Duration};
use tokio::net::TcpListener;

#[tokio::main]
async fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let world = World::new(Path::new(&arguments[1]));
    let [inactivity, abort, deadline] =
        [4, 5, 6].map(|at| Duration::from_millis(arguments[at].parse().unwrap()));
    let ledger = SqliteStore::open(world.file("ledger.db")).unwrap();
    let traced = Default::default();
    let mut agents = RestateAgents::new("Clerk", agent(&world, ledger, &traced))
        .inactivity_timeout(inactivity)
        .abort_timeout(abort)
        .deadline(deadline)
        .waits(match arguments[7].as_str() {
            "await" => Waits::Await,
            _ => Waits::Return,
        });
    if !arguments[3].is_empty() {
        agents = agents.version(arguments[3].as_str());
    }
    let endpoint = agents.endpoint().unwrap();
    let listener = TcpListener::bind(("127.0.0.1", arguments[2].parse().unwrap()))
        .await
        .unwrap();
    println!("ready");
    endpoint.serve(listener, pending()).await.unwrap();
}
