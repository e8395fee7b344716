//! The cost of our client beside that of rmcp alone. Printed, since a machine with other work has no
//! stable times; see docs/verification.md.

use crate::common::message;
use concentric_mcp::McpServer;
use concentric_tools::{ToolLifecycle, Toolset};
use rmcp::{
    RoleClient, model::CallToolRequestParams, serve_client, service::RunningService,
    transport::async_rw::AsyncRwTransport,
};
use serde_json::json;
use std::{
    process::Stdio,
    time::{Duration, Instant},
};

const ROUNDS: usize = 5;
const CALLS: u32 = 2_000;

/// A process and rmcp's own client of it.
async fn alone(
    program: &str,
    argument: &str,
) -> (tokio::process::Child, RunningService<RoleClient, ()>) {
    let mut command = tokio::process::Command::new(program);
    command
        .arg(argument)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped());
    let mut child = command
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let (output, input) = (child.stdout.take().unwrap(), child.stdin.take().unwrap());
    let transport = AsyncRwTransport::new_client(output, input);
    (child, serve_client((), transport).await.unwrap())
}

fn ours(program: &str, argument: &str) -> McpServer {
    let mut command = std::process::Command::new(program);
    command.arg(argument);
    McpServer::stdio("figures", &command).inherit_env(["PATH"])
}

/// The time of the round that other work has disturbed least.
fn fastest(times: &[Duration]) -> Duration {
    times.iter().min().copied().unwrap_or_default()
}

#[tokio::test]
#[ignore = "prints times"]
async fn the_cost_of_a_call() {
    let program = env!("CARGO_BIN_EXE_mcp_tools_server");
    let (_child, client) = alone(program, "stdio").await;
    let server = ours(program, "stdio").connect().await.unwrap();
    let tools = Toolset::new().tools(server.tools());
    let arguments = json!({"a": 2, "b": 3});
    let (mut theirs, mut ours) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        let began = Instant::now();
        for _ in 0..CALLS {
            let params = CallToolRequestParams::new("add");
            let params = params.with_arguments(arguments.as_object().unwrap().clone());
            let result = client.call_tool(params).await.unwrap();
            assert_ne!(result.is_error, Some(true));
        }
        theirs.push(began.elapsed() / CALLS);
        let began = Instant::now();
        for _ in 0..CALLS {
            let mut lifecycle = ToolLifecycle::new(tools.clone());
            let round = lifecycle.execute_round(message("figures__add", &arguments));
            round.await.unwrap();
        }
        ours.push(began.elapsed() / CALLS);
    }
    let (theirs, ours) = (fastest(&theirs), fastest(&ours));
    println!(
        "a call: {ours:?}, of rmcp alone {theirs:?}; added {:?}, goal 60 µs",
        ours.saturating_sub(theirs)
    );
}

#[tokio::test]
#[ignore = "prints times, and needs the packages of .ci/mcp"]
async fn the_time_to_connect() {
    let program = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/node_modules/.bin/mcp-server-everything"
    );
    let (mut theirs, mut ours) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        let began = Instant::now();
        let (_child, client) = alone(program, "stdio").await;
        assert!(!client.list_all_tools().await.unwrap().is_empty());
        theirs.push(began.elapsed());
        drop(client);
        let began = Instant::now();
        let server = self::ours(program, "stdio").connect().await.unwrap();
        ours.push(began.elapsed());
        server.close().await;
    }
    let (theirs, ours) = (fastest(&theirs), fastest(&ours));
    let ratio = ours.as_secs_f64() / theirs.as_secs_f64();
    println!("to connect and list: {ours:?}, of rmcp alone {theirs:?}; {ratio:.2} times, goal 1.5");
}
