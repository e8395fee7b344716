//! Sends conversations with each provider layer, and prints the requests: one line of JSON for each
//! conversation, API and mode. Usage: `concentric-sdk CONVERSATIONS`.

mod api;
mod conversation;

use conversation::Conversation;
use serde_json::{Value, json};
use std::{
    collections::BTreeMap,
    error::Error,
    io::{self, Write},
    path::Path,
};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let dir = std::env::args_os().nth(1);
    let dir = dir.ok_or("usage: concentric-sdk CONVERSATIONS")?;
    let mut out = io::stdout().lock();
    for (name, conversation) in conversations(Path::new(&dir))? {
        for (api, model) in api::APIS {
            if !conversation.is_for(api) {
                continue;
            }
            for stream in [false, true] {
                let sent = sent(api, &conversation, stream).await;
                let sent = sent.map_err(|error| format!("{api}: {name}: {error}"))?;
                let line = json!({
                    "api": api,
                    "model": model,
                    "conversation": name,
                    "stream": stream,
                    "sent": sent,
                });
                writeln!(out, "{line}")?;
            }
        }
    }
    Ok(())
}

fn conversations(dir: &Path) -> Result<BTreeMap<String, Conversation>, Box<dyn Error>> {
    let mut all = BTreeMap::new();
    for entry in std::fs::read_dir(dir)? {
        let path = entry?.path();
        let file: BTreeMap<String, Conversation> =
            serde_json::from_slice(&std::fs::read(&path)?)
                .map_err(|error| format!("{}: {error}", path.display()))?;
        for (name, conversation) in file {
            if all.insert(name.clone(), conversation).is_some() {
                return Err(format!("duplicate conversation `{name}`").into());
            }
        }
    }
    Ok(all)
}

/// Returns the request to `api` for a conversation, or the reason why none is sent.
async fn sent(api: &str, of: &Conversation, stream: bool) -> Result<Value, Box<dyn Error>> {
    let request = of.request(api).await?;
    let (result, sent) = api::call(api, stream, None, request).await;
    Ok(match (sent, result) {
        (Some(sent), _) => sent,
        (None, Err(error)) => json!({"refused": error.to_string()}),
        (None, Ok(_)) => return Err("a response without a request".into()),
    })
}
