use crate::common::{call, connect, server};
use concentric_core::ToolStatus;
use concentric_mcp::Drift;
use concentric_tools::{ToolPins, Toolset};
use serde_json::json;

fn names(tools: &[concentric_tools::Tool]) -> Vec<&str> {
    tools.iter().map(|tool| tool.spec().name.as_str()).collect()
}

/// Connects to a server that changes its tools after the first call, and waits for the change.
async fn changed() -> concentric_mcp::McpConnection {
    let server = connect("changes").await;
    let before = server.tools();
    assert_eq!(names(&before), ["hostile__changed", "hostile__removed"]);
    let (outcome, ()) = tokio::join!(
        call(&server, "hostile__changed", json!({})),
        server.listed_again()
    );
    assert_eq!(outcome.status, ToolStatus::Done);
    server
}

#[tokio::test]
async fn changed_definitions_are_held() {
    let server = changed().await;
    let drift = server.drift();
    let [
        Drift::Changed { accepted, current },
        Drift::Added(new),
        Drift::Removed(old),
    ] = &drift[..]
    else {
        panic!("{drift:?}");
    };
    assert_eq!(
        (&*accepted.description, &*current.description),
        ("Does.", "Does something else.")
    );
    assert_eq!(
        (&*new.name, &*old.name),
        ("hostile__new", "hostile__removed")
    );

    // What was accepted is still offered, and no longer called.
    let held = server.tools();
    assert_eq!(names(&held), ["hostile__changed", "hostile__removed"]);
    for tool in ["hostile__changed", "hostile__removed"] {
        let outcome = call(&server, tool, json!({})).await;
        assert_eq!(outcome.status, ToolStatus::Failed);
        assert!(outcome.content.text().starts_with("The call was not run"));
    }
}

#[tokio::test]
async fn accepted_definitions_can_be_called() {
    let server = changed().await;
    let before = Toolset::new().tools(server.tools());
    assert!(server.accept(&server.drift()));
    assert!(server.drift().is_empty());
    let after = server.tools();
    assert_eq!(names(&after), ["hostile__changed", "hostile__new"]);
    let outcome = call(&server, "hostile__new", json!({})).await;
    assert_eq!(outcome.status, ToolStatus::Done);
    // A toolset with the earlier definition must be rebuilt.
    let (outcome, _) = crate::common::call_with(before, "hostile__changed", json!({})).await;
    assert_eq!(outcome.status, ToolStatus::Failed);
}

#[tokio::test]
async fn only_what_was_reviewed_and_is_current_is_accepted() {
    let server = changed().await;
    let drift = server.drift();
    let [Drift::Changed { accepted, .. }, Drift::Added(new), removed] = &drift[..] else {
        panic!("{drift:?}");
    };
    // Reviews of other states of the server.
    let mut other = (**new).clone();
    other.description = "Does what was reviewed.".into();
    for outdated in [
        Drift::Added(other.into()),
        Drift::Removed(std::sync::Arc::clone(new)),
        Drift::Added(std::sync::Arc::clone(accepted)),
    ] {
        assert!(!server.accept(&[outdated]));
        assert_eq!(server.drift(), drift);
    }
    assert!(server.accept(std::slice::from_ref(removed)));
    assert_eq!(names(&server.tools()), ["hostile__changed"]);
    assert_eq!(server.drift(), drift[..2]);
}

#[tokio::test]
async fn only_pinned_definitions_are_accepted() {
    let pins = connect("changes").await.pins();
    let same = server("changes")
        .pins(pins.clone())
        .connect()
        .await
        .unwrap();
    assert!(same.drift().is_empty());
    assert_eq!(same.pins(), pins);

    // Another server of the same name: none of its tools has a pin.
    let other = server("well").pins(pins).connect().await.unwrap();
    assert!(other.tools().is_empty());
    assert!(matches!(&other.drift()[..], [Drift::Added(_)]));
    let none = server("well")
        .pins(ToolPins::default())
        .connect()
        .await
        .unwrap();
    assert!(none.tools().is_empty());
}

#[tokio::test]
async fn a_trusted_server_may_change_its_tools() {
    let server = server("changes").accept_changes().connect().await.unwrap();
    tokio::join!(
        call(&server, "hostile__changed", json!({})),
        server.listed_again()
    );
    assert!(server.drift().is_empty());
    assert_eq!(names(&server.tools()), ["hostile__changed", "hostile__new"]);
}
