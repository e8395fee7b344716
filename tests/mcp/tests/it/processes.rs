use crate::common::{SERVER, call, connect, server, until};
use concentric_core::ToolStatus;
use serde_json::json;
use std::{fs, time::Duration};

/// The processes below this one whose command contains `pattern`, without those that wait to be reaped.
pub(crate) fn processes(pattern: &str) -> usize {
    let this = std::process::id();
    let all = fs::read_dir("/proc").unwrap().flatten();
    let ids = all.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    ids.filter(|id| {
        let command = fs::read(format!("/proc/{id}/cmdline")).unwrap_or_default();
        let command = String::from_utf8_lossy(&command);
        command.contains(pattern) && environment_has(*id, this)
    })
    .count()
}

/// Whether a process was started by the test of this process: each marks its servers.
fn environment_has(id: u32, test: u32) -> bool {
    let environment = fs::read(format!("/proc/{id}/environ")).unwrap_or_default();
    String::from_utf8_lossy(&environment).contains(&format!("TEST={test}"))
}

/// The children of this process that have ended and were not reaped.
fn unreaped() -> usize {
    let this = std::process::id();
    let all = fs::read_dir("/proc").unwrap().flatten();
    let stats = all.filter_map(|entry| fs::read_to_string(entry.path().join("stat")).ok());
    let is_ours = |stat: &String| {
        let rest = stat.rsplit_once(") ").map_or("", |(_, rest)| rest);
        let mut fields = rest.split(' ');
        fields.next() == Some("Z") && fields.next() == Some(&this.to_string())
    };
    stats.filter(is_ours).count()
}

fn marked(how: &str, mark: &str) -> concentric_mcp::McpServer {
    let mut command = std::process::Command::new(SERVER);
    command.args([how, mark]);
    command.env("TEST", std::process::id().to_string());
    concentric_mcp::McpServer::stdio("hostile", &command)
}

#[tokio::test]
async fn processes_end_with_their_handles() {
    let mark = "mark-drop";
    let server = marked("child", mark).connect().await.unwrap();
    let tools = server.tools();
    assert_eq!(processes(mark), 1);
    drop(server);
    // The tools still need the server.
    let tools = concentric_tools::Toolset::new().tools(tools);
    let (outcome, _) = crate::common::call_with(tools, "hostile__call", json!({})).await;
    assert_eq!(outcome.status, ToolStatus::Done);
    until(async || processes(mark) == 0 && processes("3600") == 0).await;
    until(async || unreaped() == 0).await;
}

#[tokio::test]
async fn closing_waits_for_the_end_of_the_process() {
    let mark = "mark-close";
    let server = marked("well", mark).connect().await.unwrap();
    let other = server.clone();
    server.close().await;
    assert_eq!(processes(mark), 0);
    let outcome = call(&other, "hostile__call", json!({})).await;
    assert_eq!(outcome.status, ToolStatus::Failed);
    assert!(outcome.content.text().contains("not available"));
}

#[tokio::test]
async fn a_child_that_ignores_the_request_to_end_is_killed() {
    let server = marked("stubborn-child", "mark-stubborn")
        .connect()
        .await
        .unwrap();
    assert_ne!(processes("3601"), 0);
    server.close().await;
    until(async || processes("3601") == 0).await;
}

#[tokio::test]
async fn no_process_outlives_a_connection_that_is_not_established() {
    let mark = "mark-connect";
    for wait in [0, 1, 5, 20, 60] {
        let connecting = marked("no-answer", mark).connect();
        let limit = Duration::from_millis(wait);
        let _ = tokio::time::timeout(limit, connecting).await;
    }
    let short = marked("no-answer", mark).connect_timeout(Duration::from_millis(50));
    assert!(short.connect().await.is_err());
    until(async || processes(mark) == 0).await;
}

#[test]
fn no_process_outlives_its_runtime() {
    let mark = "mark-runtime";
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let server = runtime.block_on(marked("silent", mark).connect()).unwrap();
    assert_eq!(processes(mark), 1);
    runtime.shutdown_timeout(Duration::from_secs(5));
    for _ in 0..500 {
        if processes(mark) == 0 {
            break;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    assert_eq!(processes(mark), 0);
    drop(server);
}

#[tokio::test]
async fn dropped_calls_leave_nothing_behind() {
    let server = server("slow").connect().await.unwrap();
    for wait in (0..40).step_by(2) {
        let calling = call(&server, "hostile__call", json!({}));
        let _ = tokio::time::timeout(Duration::from_millis(wait), calling).await;
    }
    // The late answers of dropped calls disturb no other.
    let outcome = call(&server, "hostile__call", json!({})).await;
    assert_eq!(outcome.content.text(), "late");
    drop(connect("well").await);
}
