//! Client tools with the name of an agent's tool, and errors before the stream.

use super::*;

fn named_search() -> Value {
    with(
        "tools",
        json!([{"name": "other", "description": ""}, {"name": "search", "description": ""}]),
    )
}

fn searching() -> Toolset {
    let search = |_: serde_json::Map<String, Value>| async { Ok::<_, ToolError>("found") };
    Toolset::new().tool(tool("search", "Searches.", search))
}

#[tokio::test]
async fn a_client_tool_named_like_a_server_tool_is_rejected() {
    let agent = AgentLayer::new(searching()).layer(agent(vec![Ok(finish())]));
    let service = AgUiLayer::new().layer(agent);
    let answer = send(service, post(named_search().to_string())).await;
    let error = refused(&answer);
    assert_eq!(
        (&error["code"], &error["field"]),
        (&json!("tool_name_taken"), &json!("tools"))
    );
    let message = error["message"].as_str().unwrap();
    assert!(message.contains("`search`"), "{message}");
}

#[tokio::test]
async fn a_late_name_conflict_fails_the_run() {
    let agent = AgentLayer::new(searching()).layer(agent(vec![Ok(finish())]));
    let late = from_fn(async |request: ChatRequest, mut next: Next| {
        tokio::task::yield_now().await;
        next.run(request).await
    });
    let service = AgUiLayer::new().layer(late.layer(agent));
    let events = send(service, post(named_search().to_string()))
        .await
        .events();
    let end = events.last().unwrap();
    assert_eq!(
        (&end["type"], &end["code"]),
        (&json!("RUN_ERROR"), &json!("tool_name_taken"))
    );
    assert!(
        end["message"].as_str().unwrap().contains("`search`"),
        "{end}"
    );
}

#[tokio::test]
async fn a_name_conflict_under_a_held_head_is_rejected() {
    let agent = AgentLayer::new(searching()).layer(agent(vec![Ok(finish())]));
    let holding = from_fn(async |request: ChatRequest, mut next: Next| {
        let hold = request.context.hold_head();
        tokio::task::yield_now().await;
        drop(hold);
        next.run(request).await
    });
    let service = AgUiLayer::new().layer(holding.layer(agent));
    let error = refused(&send(service, post(named_search().to_string())).await);
    assert_eq!(error["code"], "tool_name_taken");
}

#[tokio::test]
async fn a_head_released_by_another_task_is_sent() {
    let agent = service_fn(async |request: ChatRequest| {
        let hold = request.context.hold_head();
        tokio::spawn(async move {
            tokio::task::yield_now().await;
            drop(hold);
        });
        std::future::pending::<Result<ChatResponse<crate::support::Script>, Error>>().await
    });
    let mut service = AgUiLayer::new().layer(agent);
    let response = service.call(post(input().to_string())).await.unwrap();
    assert_eq!(response.status(), 200);
}

#[tokio::test]
async fn a_conflicting_new_run_is_rejected() {
    let conflict = service_fn(async |request: ChatRequest| {
        let hold = request.context.hold_head();
        tokio::task::yield_now().await;
        drop(hold);
        let busy = Error::new(ErrorKind::Conflict, "busy").with_code("too_many_waiting");
        Err::<ChatResponse<crate::support::Script>, _>(busy)
    });
    let service = AgUiLayer::new().layer(conflict);
    let answer = send(service.clone(), post(input().to_string())).await;
    assert_eq!(
        (answer.status, &answer.json()["error"]["code"]),
        (409, &json!("too_many_waiting"))
    );
    // The error of a resume is sent in the stream.
    let reply = json!([{"interruptId": "i", "status": "resolved", "payload": {"approved": true}}]);
    let events = send(service, post(with("resume", reply).to_string()))
        .await
        .events();
    assert_eq!(events.last().unwrap()["code"], "too_many_waiting");
}

#[tokio::test]
async fn a_name_conflict_among_host_tools_is_no_client_error() {
    let add = from_fn(async |mut request: ChatRequest, mut next: Next| {
        let spec = ToolSpec::new("search", "Searches.", json!({"type": "object"}));
        request.tools.push(Arc::new(spec));
        next.run(request).await
    });
    let agent = AgentLayer::new(searching()).layer(agent(vec![Ok(finish())]));
    let service = AgUiLayer::new().layer(add.layer(agent));
    let events = send(service, post(input().to_string())).await.events();
    let end = events.last().unwrap();
    assert_eq!(end["type"], "RUN_ERROR");
    assert_ne!(end["code"], "tool_name_taken");
}

#[tokio::test]
async fn an_immediate_error_is_sent_in_the_stream() {
    let failing = service_fn(async |_: ChatRequest| {
        Err::<ChatResponse<crate::support::Script>, _>(Error::new(ErrorKind::Overloaded, "busy"))
    });
    let service = AgUiLayer::new().layer(failing);
    let events = send(service, post(input().to_string())).await.events();
    assert_eq!(events[0]["type"], "RUN_STARTED");
    assert_eq!(events[1]["code"], "overloaded");
}
