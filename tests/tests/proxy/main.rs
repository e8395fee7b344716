//! Connections that stall, drip, flood and break, under each provider's layer over the real client:
//! each ends with the one error that belongs to it, and is closed at once by whoever leaves it.
//!
//! The client decompresses nothing, so that what it counts is what came, and there is nothing for a
//! decompression bomb to go off in.
//!
//! | in the environment | | default |
//! |---|---|---|
//! | `CONCENTRIC_CONNECTIONS` | how many connections have a fault at random | 500 |
//! | `CONCENTRIC_SEED` | of what is random | random, and printed |
#![allow(
    unreachable_pub,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used,
    reason = "a test"
)]

mod check;
#[path = "../crash/durable/dice.rs"]
mod dice;
mod drops;
mod faults;
mod http;
mod memory;
mod named;
mod server;
mod wire;

use check::{Outcome, check};
use concentric_providers::HttpClient;
use dice::{Dice, setting};
use faults::{Fault, limits};
use memory::{MIB, Watch, alone};
use server::Server;
use std::{collections::BTreeMap, sync::Arc};
use tokio::{sync::Semaphore, task::JoinSet};
use wire::Api;

/// How many connections there are at a time.
const AT_ONCE: usize = 50;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f001_to_f022_each_fault_has_its_error_at_any_place() {
    let _alone = alone().await;
    let client = HttpClient::new().unwrap();
    let server = Server::start().await;
    let elsewhere = Server::start().await;
    let dice = Dice::cast();
    let count = setting("CONCENTRIC_CONNECTIONS", 500);
    let permits = Arc::new(Semaphore::new(AT_ONCE));
    let memory = Watch::start();
    let mut connections = JoinSet::new();
    let mut seen = BTreeMap::<_, u64>::new();
    for number in 0..count {
        let mut dice = dice.fork(number);
        let (fault, api) = loop {
            let fault = Fault::ALL[dice.below(Fault::ALL.len() as u64) as usize];
            let api = Api::ALL[dice.below(Api::ALL.len() as u64) as usize];
            if fault.is_of(api) {
                break (fault, api);
            }
        };
        *seen.entry(fault).or_default() += 1;
        let case = fault.case(api, &elsewhere.url(number), &mut dice);
        let permit = Arc::clone(&permits).acquire_owned().await.unwrap();
        let (client, server) = (client.clone(), server.clone());
        let checked = async move {
            let outcome = check(api, &client, &server, number, case).await;
            drop(permit);
            outcome
        };
        let name = format!("{number}: {fault:?}, {api:?}");
        connections.spawn(async move {
            // A panic is told with the connection's name.
            let checked = tokio::spawn(checked).await;
            checked.unwrap_or_else(|error| panic!("{name}: {error}"))
        });
    }
    let outcomes = connections.join_all().await;
    let cap = AT_ONCE as u64 * limits().response as u64;
    assert!(memory.grown() < cap + 16 * MIB);
    let (failed, whole): (Vec<_>, Vec<_>) =
        outcomes.iter().partition(|outcome| outcome.error.is_some());
    let calls = |outcomes: &[&Outcome]| outcomes.iter().map(|it| it.calls().len()).sum::<usize>();
    println!(
        "{count} connections, {} ended with the error of their fault and {} tool calls, {} with the \
         whole answer and {} tool calls, {} requests sent twice, {} sent elsewhere",
        failed.len(),
        calls(&failed),
        whole.len(),
        calls(&whole),
        server.accepted() - count,
        elsewhere.accepted(),
    );
    println!("faults: {seen:?}");
    // The key goes nowhere else.
    assert_eq!(elsewhere.accepted(), 0);
    assert_eq!(server.accepted(), count);
    drop(client);
    server.closed().await;
}
