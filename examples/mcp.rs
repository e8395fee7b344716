//! A toolset as an MCP server, and the tools of that server.
//!
//! ```sh
//! cargo run --example mcp
//! ```
//!
//! The process starts itself with the argument `serve`, as the server.

use concentric::{
    call::Annotations,
    mcp::{McpServer, serve_stdio},
    prelude::*,
};
use std::process::Command;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    if std::env::args().nth(1).as_deref() == Some("serve") {
        return Ok(serve().await?);
    }
    let mut command = Command::new(std::env::current_exe()?);
    command.arg("serve");
    let clock = McpServer::stdio("clock", &command)
        // The server's claims count only if the application accepts them.
        .annotations(|tool| (tool.name == "clock__now").then(Annotations::read_only))
        .connect()
        .await?;
    for tool in clock.tools() {
        let spec = tool.spec();
        println!("{}: {}", spec.name, spec.description);
    }
    clock.close().await;
    Ok(())
}

/// Serves until the client closes the connection. Standard output belongs to the protocol.
async fn serve() -> Result<(), Error> {
    let now = tool("now", "Returns the time.", async |_: NoArguments| {
        format!("{:?}", std::time::SystemTime::now())
    });
    serve_stdio("clock", Toolset::new().tool(now.read_only())).await
}
