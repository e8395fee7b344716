//! Serves a toolset over stdio, or over HTTP with the argument `http`; then it prints its URL.

use concentric_mcp::{McpService, serve_stdio};
use concentric_mcp_tests::served;
use std::error::Error;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    if std::env::args().nth(1).as_deref() != Some("http") {
        return Ok(serve_stdio("concentric", served()).await?);
    }
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    println!("http://{}/mcp", listener.local_addr()?);
    let app = axum::Router::new().route_service("/mcp", McpService::new("concentric", served()));
    Ok(axum::serve(listener, app).await?)
}
