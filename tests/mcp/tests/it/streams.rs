use crate::common::{call, call_with, connect};
use concentric_core::{Event, ToolStatus};
use concentric_tools::Toolset;
use serde_json::json;

/// The most memory that this process has had (KiB).
fn peak() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status
        .lines()
        .find(|line| line.starts_with("VmHWM:"))
        .unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

#[tokio::test]
async fn progress_is_reported_at_a_limited_rate() {
    let server = connect("progress").await;
    let before = peak();
    let tools = Toolset::new().tools(server.tools());
    let began = std::time::Instant::now();
    let (outcome, events) = call_with(tools, "hostile__call", json!({"count": 10_000})).await;
    let took = began.elapsed();
    assert_eq!(outcome.content.text(), "finished");
    let events: Vec<_> = events
        .iter()
        .filter_map(|event| match event {
            Event::Custom(event) if event.name == "mcp.progress" => Some(event),
            _ => None,
        })
        .collect();
    assert!(!events.is_empty());
    let most = took.as_millis() / 100 + 1;
    assert!(
        events.len() as u128 <= most,
        "{} events, at most {most}",
        events.len()
    );
    for event in &events {
        assert_eq!(event.call_id.as_ref().map(|id| id.as_str()), Some("call_1"));
        assert_eq!(event.value["total"], 10_000.0);
        assert_eq!(event.value["message"], "working");
    }
    assert!(peak() - before < 64 << 10, "{} KiB", peak() - before);
}

#[tokio::test]
async fn a_line_without_end_ends_the_connection() {
    let server = connect("long-line").await;
    let before = peak();
    let outcome = call(&server, "hostile__call", json!({})).await;
    assert_eq!(outcome.status, ToolStatus::Unknown, "{outcome:?}");
    assert!(peak() - before < 128 << 10, "{} KiB", peak() - before);
}

#[tokio::test]
async fn a_flood_of_log_records_delays_no_answer() {
    let server = connect("logs").await;
    let outcome = call(&server, "hostile__call", json!({})).await;
    assert_eq!(outcome.content.text(), "logged");
}
