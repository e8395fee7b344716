//! The server and the client that `@modelcontextprotocol/conformance` tests: `server`, which prints its
//! URL, or the URL of a server with the name of the scenario in the environment.
#![expect(
    clippy::indexing_slicing,
    reason = "reading a member of a JSON value does not panic"
)]

use concentric_core::Event;
use concentric_mcp::{
    McpConnection, McpServer, McpService,
    oauth::{AuthorizationRequired, MemoryTokens, OAuth},
};
use concentric_mcp_tests::{call, conformance, visit};
use concentric_tools::Toolset;
use serde_json::{Map, Value, json};
use std::error::Error;

type Checked = Result<(), Box<dyn Error>>;

#[tokio::main]
async fn main() -> Checked {
    match std::env::args().nth(1).as_deref() {
        Some("server") => serve().await,
        Some(url) => connect(url).await,
        None => Err("the URL is missing".into()),
    }
}

async fn serve() -> Checked {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    let origin = format!("http://{}", listener.local_addr()?);
    println!("{origin}/mcp");
    // The suite sends requests as a page of the server itself does, too.
    let service = McpService::new("conformance", conformance::toolset()).allow_origins([origin]);
    let app = axum::Router::new().route_service("/mcp", service);
    Ok(axum::serve(listener, app).await?)
}

/// Does what the scenario expects of each client: usually, to call the tools.
async fn connect(url: &str) -> Checked {
    let scenario = std::env::var("MCP_CONFORMANCE_SCENARIO")?;
    let mut server = McpServer::http("suite", url).allow_private_addresses();
    if scenario.starts_with("auth/") {
        server = server.oauth(oauth(&scenario)?);
    }
    let server = authorized(server).await?;
    for refused in server.refused() {
        eprintln!("refused: {refused:?}");
    }
    let tools = Toolset::new().tools(server.tools());
    match scenario.as_str() {
        "http-custom-headers" => context_calls(&tools).await?,
        "json-schema-2020-12-preservation" => {
            let schema = schema(&server, "suite__json_schema_2020_12_tool")?;
            called(
                &tools,
                "suite__json_schema_echo",
                &json!({"schema": schema}),
            )
            .await?;
        }
        "json-schema-ref-no-deref" => {}
        _ => {
            for tool in server.tools() {
                let spec = tool.spec();
                called(&tools, &spec.name, &arguments(&spec.input_schema)).await?;
            }
        }
    }
    server.close().await;
    Ok(())
}

/// The settings for a scenario, whose context has the client that was registered in advance.
fn oauth(scenario: &str) -> Result<OAuth, Box<dyn Error>> {
    let context = std::env::var("MCP_CONFORMANCE_CONTEXT").unwrap_or_default();
    let context: Value = serde_json::from_str(&context).unwrap_or_default();
    let text = |name: &str| context[name].as_str().map(str::to_owned);
    let (id, secret) = (text("client_id"), text("client_secret"));
    if scenario.starts_with("auth/client-credentials") {
        let (id, secret) = (id.ok_or("no id")?, secret.ok_or("no secret")?);
        return Ok(OAuth::client_credentials(id, secret, MemoryTokens::new()));
    }
    let mut oauth = OAuth::new("http://127.0.0.1:9/callback", MemoryTokens::new());
    if scenario == "auth/basic-cimd" {
        // The suite knows this one.
        oauth = oauth.client_metadata("https://conformance-test.local/client-metadata.json");
    }
    if let Some(id) = id {
        oauth = oauth.client(id, secret);
    }
    if let Some(issuer) = text("issuer") {
        oauth = oauth.issuer(issuer);
    }
    Ok(oauth)
}

/// Connects, with the authorization of a user who agrees.
async fn authorized(server: McpServer) -> Result<McpConnection, Box<dyn Error>> {
    for _ in 0..3 {
        let error = match server.clone().connect().await {
            Ok(connection) => return Ok(connection),
            Err(error) => error,
        };
        let Some(required) = AuthorizationRequired::of(&error) else {
            return Err(format!("{error:#}").into());
        };
        eprintln!("authorization for {:?}", required.scopes());
        let callback = visit(required.url()).await?;
        server.finish_authorization(&callback).await?;
    }
    Err("the server is never satisfied".into())
}

/// Arguments of the required types.
fn arguments(schema: &Value) -> Value {
    let mut arguments = Map::new();
    for name in schema["required"].as_array().into_iter().flatten() {
        let name = name.as_str().unwrap_or_default();
        let value = match schema["properties"][name]["type"].as_str() {
            Some("string") => json!("a text"),
            _ => json!(2),
        };
        arguments.insert(name.to_owned(), value);
    }
    arguments.into()
}

/// Makes the calls that the suite names.
async fn context_calls(tools: &Toolset) -> Checked {
    let context = std::env::var("MCP_CONFORMANCE_CONTEXT")?;
    let context: Value = serde_json::from_str(&context)?;
    for call in context["toolCalls"].as_array().into_iter().flatten() {
        let name = call["name"].as_str().unwrap_or_default();
        called(tools, &format!("suite__{name}"), &call["arguments"]).await?;
    }
    Ok(())
}

async fn called(tools: &Toolset, tool: &str, arguments: &Value) -> Checked {
    // Forms have their defaults.
    let called = call(tools, tool, arguments, &json!({})).await?;
    let questions = called
        .events
        .iter()
        .filter(|it| matches!(it, Event::Custom(_)));
    eprintln!("{tool}: {:?}, {} events", called.outcome, questions.count());
    Ok(())
}

fn schema(server: &McpConnection, tool: &str) -> Result<Value, Box<dyn Error>> {
    let tools = server.tools();
    let tool = tools.iter().find(|it| it.spec().name == *tool);
    let tool = tool.ok_or("the tool is not offered")?;
    Ok((*tool.spec().input_schema).clone())
}
