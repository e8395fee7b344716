use crate::{
    common::{SERVER, call, until},
    processes::processes,
};
use concentric_core::{ErrorKind, ToolStatus, store::Tenant};
use concentric_mcp::{McpPool, McpServer};
use serde_json::json;
use std::{
    process::Command,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

/// A pool of processes with a mark and their tenant in the command.
fn pool(mark: &'static str) -> McpPool {
    McpPool::new(move |tenant| {
        let mut command = Command::new(SERVER);
        command.args(["well", mark, tenant.0.as_str()]);
        command.env("TEST", std::process::id().to_string());
        McpServer::stdio("hostile", &command)
    })
}

fn tenant(name: impl Into<String>) -> Tenant {
    Tenant(name.into().into())
}

#[tokio::test]
async fn each_tenant_has_one_process() {
    let mark = "mark-pool-tenants";
    let pool = pool(mark);
    // The first requests arrive at once.
    let gets = (0..40).map(|at| {
        let pool = pool.clone();
        tokio::spawn(async move { pool.get(&tenant((at % 4).to_string())).await })
    });
    let mut connections = Vec::new();
    for get in gets.collect::<Vec<_>>() {
        connections.push(get.await.unwrap().unwrap());
    }
    assert_eq!(processes(mark), 4);
    let outcome = call(&connections[0], "hostile__call", json!({})).await;
    assert_eq!(outcome.status, ToolStatus::Done);
    pool.close(&tenant("1")).await;
    assert_eq!(processes(mark), 3);
    // The handles keep the others.
    drop(pool);
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert_eq!(processes(mark), 3);
    drop(connections);
    until(async || processes(mark) == 0).await;
}

#[tokio::test]
async fn a_full_pool_closes_the_connection_that_was_used_longest_ago() {
    let mark = "mark-pool-full";
    let pool = pool(mark).max_connections(2);
    let first = pool.get(&tenant("a")).await.unwrap();
    drop(pool.get(&tenant("b")).await.unwrap());
    // The older one is in use.
    drop(pool.get(&tenant("c")).await.unwrap());
    assert_eq!((processes(mark), processes("mark-pool-full\0b")), (2, 0));
    let third = pool.get(&tenant("c")).await.unwrap();
    let error = pool.get(&tenant("d")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Overloaded);
    // A tool is a use, too.
    let tools = third.tools();
    drop(third);
    assert!(pool.get(&tenant("d")).await.is_err());
    drop(tools);
    pool.get(&tenant("d")).await.unwrap();
    assert_eq!((processes(mark), processes("mark-pool-full\0c")), (2, 0));
    drop((pool, first));
    until(async || processes(mark) == 0).await;
}

#[tokio::test]
async fn connections_that_are_not_used_are_closed() {
    let mark = "mark-pool-idle";
    let pool = pool(mark).idle_timeout(Duration::from_millis(200));
    let used = pool.get(&tenant("used")).await.unwrap();
    pool.get(&tenant("idle")).await.unwrap();
    assert_eq!(processes(mark), 2);
    until(async || processes(mark) == 1).await;
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert_eq!(processes("mark-pool-idle\0used"), 1);
    let outcome = call(&used, "hostile__call", json!({})).await;
    assert_eq!(outcome.status, ToolStatus::Done);
    drop(used);
    until(async || processes(mark) == 0).await;
    pool.get(&tenant("used")).await.unwrap();
}

#[tokio::test]
async fn a_failure_is_shared_and_tried_again() {
    let starts = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&starts);
    let pool = McpPool::new(move |_| {
        counted.fetch_add(1, Ordering::SeqCst);
        let mut command = Command::new("sh");
        command.args(["-c", "read line"]);
        McpServer::stdio("ends", &command)
    });
    let a = tenant("a");
    let gets = (0..10).map(|_| pool.get(&a));
    let results = futures_util::future::join_all(gets).await;
    assert!(results.iter().all(Result::is_err));
    assert_eq!(starts.load(Ordering::SeqCst), 1);
    assert!(pool.get(&tenant("a")).await.is_err());
    assert_eq!(starts.load(Ordering::SeqCst), 2);
    assert!(format!("{pool:?}").contains("connections: 0"));
}

#[tokio::test]
async fn connecting_ends_with_its_last_request() {
    let mark = "mark-pool-dropped";
    // It never answers.
    let pool = McpPool::new(move |tenant| {
        let mut command = Command::new("sh");
        command.args(["-c", "while read line; do :; done", mark, tenant.0.as_str()]);
        command.env("TEST", std::process::id().to_string());
        McpServer::stdio("silent", &command)
    });
    let pool = pool.max_connections(1);
    let get = |name: &'static str| {
        let pool = pool.clone();
        tokio::spawn(async move { pool.get(&tenant(name)).await.map(drop) })
    };
    let (first, second) = (get("a"), get("a"));
    until(async || processes(mark) == 1).await;
    first.abort();
    // One still waits, so that the connection is in use.
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert_eq!(processes(mark), 1);
    assert_eq!(
        pool.get(&tenant("b")).await.unwrap_err().kind(),
        ErrorKind::Overloaded
    );
    second.abort();
    until(async || processes(mark) == 0).await;
    let third = get("b");
    until(async || processes("mark-pool-dropped\0b") == 1).await;
    third.abort();
    until(async || processes(mark) == 0).await;
}
