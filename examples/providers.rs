//! One conversation over three providers, with one turn each.
//!
//! ```console
//! $ cargo run --example providers
//! ```
//!
//! The example uses the providers with a key in the environment if there are at least two, and
//! offline stand-ins in the providers' own wire formats for the others. For the keys see the
//! quickstart.
//!
//! For each request it prints to stderr the number of messages, and which of the parts that only
//! their own provider understands are included or left out.

use bytes::Bytes;
use concentric::{
    AgentLayer, BoxModel, ChatRequest, Error, Outcome, Transcript, layers::RequestDefaultsLayer,
    message::ProviderData, providers::HttpClient,
};
use concentric_examples::services;
use futures_util::FutureExt;
use http::Request;
use http_body_util::{BodyExt, Full};
use quickstart::{files, provider::Provider, terminal};
use serde_json::Value;
use std::{
    process::ExitCode,
    sync::{Arc, Mutex, PoisonError},
};
use tower::{Layer, ServiceBuilder, ServiceExt, util::MapRequestLayer};

const QUESTIONS: [&str; 3] = [
    "Which files are here?",
    "Which of these would you read first?",
    "Why that one?",
];

#[tokio::main]
async fn main() -> ExitCode {
    terminal::log("off");
    match converse().await {
        Ok(Outcome::Completed) => ExitCode::SUCCESS,
        Ok(_) => ExitCode::FAILURE,
        Err(error) => {
            terminal::error(&error);
            ExitCode::FAILURE
        }
    }
}

async fn converse() -> Result<Outcome, Error> {
    let mut transcript = Transcript::new();
    for (speaker, question) in speakers()?.into_iter().zip(QUESTIONS) {
        terminal::status(format_args!("\n{}: {question}", speaker.provider.name));
        transcript.push_user(question);
        let agent = ServiceBuilder::new()
            .layer(RequestDefaultsLayer::new().system(
                "Answer questions about the files in the current folder. Inspect the files before \
                 you answer. Be brief.",
            ))
            .layer(AgentLayer::new(files::tools(".")?).step_limit(8))
            .service(speaker.model()?);
        let response = agent.oneshot(ChatRequest::new(transcript)).await?;
        let finish = terminal::show(response.body).await?;
        terminal::summary(&finish);
        match (finish.outcome, finish.transcript) {
            (Outcome::Completed, Some(next)) => transcript = next,
            (outcome, _) => return Ok(outcome),
        }
    }
    Ok(Outcome::Completed)
}

/// A provider in the conversation.
struct Speaker {
    provider: Provider,
    /// `false` for a stand-in.
    real: bool,
}

/// Returns the providers of the environment if there are at least two, and then stand-ins.
fn speakers() -> Result<Vec<Speaker>, Error> {
    let real: Vec<Provider> = Provider::all().collect::<Result<_, _>>()?;
    let real = match real.len() {
        0 | 1 => Vec::new(),
        _ => real,
    };
    let others = ["anthropic", "gemini", "ollama"].into_iter();
    let others = others
        .filter(|name| real.iter().all(|real| real.name != *name))
        .filter_map(Provider::stand_in)
        .collect::<Vec<_>>();
    let speaker = |real| move |provider| Speaker { provider, real };
    let all = real.into_iter().map(speaker(true));
    let all = all.chain(others.into_iter().map(speaker(false)));
    Ok(all.take(QUESTIONS.len()).collect())
}

impl Speaker {
    /// Returns the model, which prints a summary of each request.
    fn model(self) -> Result<BoxModel, Error> {
        let name = self.provider.name;
        let opaque = Arc::<Mutex<Vec<ProviderData>>>::default();
        let known = Arc::clone(&opaque);
        let http = MapRequestLayer::new(move |request: Request<Full<Bytes>>| {
            let known = known.lock().unwrap_or_else(PoisonError::into_inner);
            terminal::status(format_args!(
                "{name} receives {}",
                summary(&request, &known, name)
            ));
            request
        });
        let model = match self.real {
            true => self.provider.over(http.layer(HttpClient::new()?)),
            false => self.provider.over(http.layer(services::stand_in())),
        };
        let chat = MapRequestLayer::new(move |request: ChatRequest| {
            *opaque.lock().unwrap_or_else(PoisonError::into_inner) = data(&request.transcript);
            request
        });
        Ok(BoxModel::new(chat.layer(model)))
    }
}

/// Returns the parts that only their own provider understands.
fn data(transcript: &Transcript) -> Vec<ProviderData> {
    let parts = transcript.iter().flat_map(|turn| &turn.as_message().parts);
    parts
        .filter_map(|part| part.provider_data.as_deref().cloned())
        .collect()
}

/// Summarizes the conversation in a request.
fn summary(request: &Request<Full<Bytes>>, known: &[ProviderData], name: &str) -> String {
    const OPAQUE: [&str; 4] = ["signature", "thoughtSignature", "data", "encrypted_content"];
    // The body is complete, so this does not wait.
    let body = request.body().clone().collect().now_or_never();
    let body = body.and_then(Result::ok).map(|body| body.to_bytes());
    let body: Value = serde_json::from_slice(&body.unwrap_or_default()).unwrap_or_default();
    let messages = ["messages", "contents", "input"].iter();
    let messages = messages.filter_map(|field| body.get(field)?.as_array());
    let mut summary = match messages.map(Vec::len).sum::<usize>() {
        1 => "1 message".to_owned(),
        many => format!("{many} messages"),
    };
    let text = body.to_string();
    for ProviderData { provider, data, .. } in known {
        for field in OPAQUE {
            let Some(value) = find(data, field) else {
                continue;
            };
            let what = match text.contains(&value.to_string()) {
                true if provider.contains(name) => format!(", with its own {field}"),
                true => format!(", with the {field} of {provider}"),
                false => format!(", without the {field} of {provider}"),
            };
            // Each field is listed once, even if several parts have it.
            if !summary.contains(&what) {
                summary += &what;
            }
        }
    }
    summary
}

/// Finds the string in that field, at any depth.
fn find<'a>(data: &'a Value, field: &str) -> Option<&'a Value> {
    match data {
        Value::Object(fields) => match fields.get(field) {
            Some(value) if value.is_string() => Some(value),
            _ => fields.values().find_map(|value| find(value, field)),
        },
        Value::Array(values) => values.iter().find_map(|value| find(value, field)),
        _ => None,
    }
}
