//! Calls the tools of servers of others: `everything` or `python`, then a URL, or a command with its
//! arguments.

use concentric_core::{
    BoxModel, ChatRequest, ChatResponse, Event, FinishReason, ToolStatus, Usage,
};
use concentric_mcp::{McpConnection, McpServer};
use concentric_mcp_tests::{Called, call};
use concentric_tools::Toolset;
use futures_util::stream;
use serde_json::{Value, json};
use std::{error::Error, process::Command};
use tower::service_fn;

type Checked = Result<(), Box<dyn Error>>;

fn check(condition: bool, what: &str, called: &Called) -> Checked {
    match condition {
        true => Ok(()),
        false => Err(format!("{what}: {called:?}").into()),
    }
}

/// Calls a tool, which succeeds, and checks its text.
async fn done(
    server: &McpConnection,
    tool: &str,
    arguments: Value,
    answer: Value,
    text: &str,
) -> Result<Called, Box<dyn Error>> {
    let tools = Toolset::new().tools(server.tools());
    let name = format!("{}__{tool}", server.name());
    let called = call(&tools, &name, &arguments, &answer).await?;
    check(called.outcome.status == ToolStatus::Done, tool, &called)?;
    check(called.text().contains(text), tool, &called)?;
    println!("{tool}: done");
    Ok(called)
}

async fn everything(server: &McpConnection) -> Checked {
    let none = || json!({});
    for (tool, arguments, text) in [
        ("echo", json!({"message": "héllo"}), "Echo: héllo"),
        ("get-sum", json!({"a": 2, "b": 3}), "5"),
        (
            "get-annotated-message",
            json!({"messageType": "success", "includeImage": true}),
            "success",
        ),
        ("get-resource-links", json!({"count": 2}), "demo://"),
        (
            "get-resource-reference",
            json!({"resourceType": "Text", "resourceId": 1}),
            "resource",
        ),
        (
            "get-resource-reference",
            json!({"resourceType": "Blob", "resourceId": 1}),
            "resource",
        ),
        ("get-tiny-image", none(), "image"),
        (
            "gzip-file-as-resource",
            json!({"data": "data:text/plain,hello", "outputType": "resource"}),
            "",
        ),
        ("toggle-simulated-logging", none(), "logging"),
        ("toggle-subscriber-updates", none(), ""),
    ] {
        done(server, tool, arguments, Value::Null, text).await?;
    }
    let weather = json!({"location": "Chicago"});
    let called = done(server, "get-structured-content", weather, Value::Null, "").await?;
    let data = called.outcome.data.as_deref();
    check(
        data.is_some_and(|it| it["temperature"].is_number()),
        "data",
        &called,
    )?;

    // None of the variables of this process.
    let called = done(server, "get-env", none(), Value::Null, "").await?;
    let secret = std::env::var("CONCENTRIC_CANARY").unwrap_or_default();
    check(
        secret.is_empty() || !called.text().contains(&secret),
        "environment",
        &called,
    )?;

    let long = json!({"duration": 1, "steps": 4});
    let called = done(
        server,
        "trigger-long-running-operation",
        long,
        Value::Null,
        "completed",
    )
    .await?;
    let is_progress =
        |event: &&Event| matches!(event, Event::Custom(it) if it.name == "mcp.progress");
    let progress = called.events.iter().filter(is_progress).count();
    check(progress >= 2, "progress", &called)?;

    let answer = json!({"name": "Ada", "check": true, "email": "ada@example.com", "integer": 7});
    done(server, "trigger-elicitation-request", none(), answer, "Ada").await?;

    let prompt = json!({"prompt": "What is it?", "maxTokens": 10});
    done(
        server,
        "trigger-sampling-request",
        prompt,
        Value::Null,
        "a model's answer",
    )
    .await?;
    done(
        server,
        "get-roots-list",
        none(),
        Value::Null,
        "file:///work",
    )
    .await?;

    // Invalid arguments are refused before the server receives them.
    let tools = Toolset::new().tools(server.tools());
    let name = format!("{}__get-sum", server.name());
    let called = call(&tools, &name, &json!({"a": "two"}), &Value::Null).await?;
    check(
        called.outcome.status == ToolStatus::Failed,
        "invalid arguments",
        &called,
    )?;
    check(
        called.text().starts_with("The call was not run"),
        "invalid arguments",
        &called,
    )
}

async fn python(server: &McpConnection) -> Checked {
    let called = done(server, "add", json!({"a": 2, "b": 3}), Value::Null, "5").await?;
    check(
        called.outcome.data.as_deref() == Some(&json!({"result": 5})),
        "data",
        &called,
    )?;

    // The server requires input: the call is suspended, and repeated with the answer.
    let called = done(server, "seat", json!({}), json!({"row": 7}), "row 7").await?;
    check(called.suspensions == 1, "suspensions", &called)?;

    // It requires what the application itself answers, alone and together with a question.
    let text = "a model's answer, file:///work, row none";
    let called = done(server, "summary", json!({}), Value::Null, text).await?;
    check(called.suspensions == 0, "suspensions", &called)?;
    let text = "a model's answer, file:///work, row 7";
    let answer = json!({"row": 7});
    let called = done(server, "summary", json!({"seat": true}), answer, text).await?;
    check(called.suspensions == 1, "suspensions", &called)?;

    let tools = Toolset::new().tools(server.tools());
    let name = format!("{}__broken", server.name());
    let called = call(&tools, &name, &json!({}), &Value::Null).await?;
    check(
        called.outcome.status == ToolStatus::Failed,
        "broken",
        &called,
    )?;
    check(
        called.text().contains("reports an error"),
        "broken",
        &called,
    )?;

    // 500 calls at once.
    let name = format!("{}__add", server.name());
    let calls = (0..500).map(|at| {
        let (tools, name) = (tools.clone(), name.clone());
        tokio::spawn(async move {
            let called = call(&tools, &name, &json!({"a": at, "b": 1}), &Value::Null).await;
            called.map(|it| it.text() == (at + 1).to_string())
        })
    });
    for called in calls.collect::<Vec<_>>() {
        if !called.await?? {
            return Err("a concurrent call has a wrong result".into());
        }
    }
    println!("500 calls at once: done");
    Ok(())
}

#[tokio::main]
async fn main() -> Checked {
    let mut arguments = std::env::args().skip(1);
    let (which, place) = (arguments.next(), arguments.next().unwrap_or_default());
    let server = match place.starts_with("http://") {
        true => McpServer::http("other", place).allow_private_addresses(),
        false => {
            let mut command = Command::new(place);
            command.args(arguments);
            McpServer::stdio("other", &command).inherit_env(["PATH"])
        }
    };
    let model = BoxModel::new(service_fn(async |_: ChatRequest| {
        let end = Event::finish(FinishReason::Stop, Usage::new(1, 1));
        let events = [Event::text("a model's answer"), end].map(Ok);
        Ok::<_, concentric_core::Error>(ChatResponse::new(stream::iter(events)))
    }));
    // Without the offers, a server does not have the tools that need them.
    let plain = server.clone().connect().await?;
    let offering = server.sampling(model).roots(["file:///work"]);
    let server = offering.connect().await?;
    if which.as_deref() == Some("everything") && plain.tools().len() + 2 != server.tools().len() {
        let (plain, all) = (plain.tools().len(), server.tools().len());
        return Err(format!("{plain} tools without offers, and {all} with them").into());
    }
    plain.close().await;
    println!(
        "{} tools, refused: {:?}",
        server.tools().len(),
        server.refused()
    );
    match which.as_deref() {
        Some("everything") => everything(&server).await?,
        _ => python(&server).await?,
    }
    server.close().await;
    Ok(())
}
