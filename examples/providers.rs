//! One conversation over three providers: each turn is another's, and each knows what was said before.
//!
//! ```console
//! $ cargo run --example providers
//! ```
//!
//! It asks the providers that the environment has keys for, if there are two or more; in the place of
//! those that lack, and without keys of all three, small stand-ins answer in each service's own wire
//! form. For the keys see the quickstart.
//!
//! On stderr it says what each provider is sent: how many messages, and which parts that only their
//! own provider understands go along, or are left out.

use bytes::Bytes;
use concentric::{
    AgentLayer, BoxModel, ChatRequest, Error, Outcome, ProviderData, Transcript,
    layers::DefaultsLayer, providers::HttpClient,
};
use concentric_examples::{files, provider::Provider, services, terminal};
use futures_util::FutureExt;
use http::Request;
use http_body_util::{BodyExt, Full};
use serde_json::Value;
use std::{
    process::ExitCode,
    sync::{Arc, Mutex, PoisonError},
};
use tower::{Layer, ServiceBuilder, ServiceExt, util::MapRequestLayer};

const QUESTIONS: [&str; 3] = [
    "What is in this folder?",
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
            terminal::complain(&error);
            ExitCode::FAILURE
        }
    }
}

async fn converse() -> Result<Outcome, Error> {
    let mut transcript = Transcript::new();
    for (asked, question) in asked()?.into_iter().zip(QUESTIONS) {
        terminal::say(format_args!("\n{}: {question}", asked.provider.name));
        transcript.push_user(question);
        let agent = ServiceBuilder::new()
            .layer(DefaultsLayer::new().system(
                "You answer questions about the files of the current folder. Look before you \
                 answer, and be brief.",
            ))
            .layer(AgentLayer::new(files::tools(".")?).step_limit(8))
            .service(asked.model()?);
        let response = agent.oneshot(ChatRequest::new(transcript)).await?;
        let finish = terminal::show(response.body).await?;
        terminal::summary(&finish);
        match (finish.outcome, finish.transcript) {
            (Outcome::Completed, Some(said)) => transcript = said,
            (outcome, _) => return Ok(outcome),
        }
    }
    Ok(Outcome::Completed)
}

/// Who is asked.
struct Asked {
    provider: Provider,
    /// Whether it is the real one.
    real: bool,
}

/// Those of the environment, if there are two at least, and then stand-ins.
fn asked() -> Result<Vec<Asked>, Error> {
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
    let ask = |real| move |provider| Asked { provider, real };
    let all = real.into_iter().map(ask(true));
    let all = all.chain(others.into_iter().map(ask(false)));
    Ok(all.take(QUESTIONS.len()).collect())
}

impl Asked {
    /// The model, which says what it is sent.
    fn model(self) -> Result<BoxModel, Error> {
        let name = self.provider.name;
        let opaque = Arc::<Mutex<Vec<ProviderData>>>::default();
        let known = Arc::clone(&opaque);
        let http = MapRequestLayer::new(move |request: Request<Full<Bytes>>| {
            let known = known.lock().unwrap_or_else(PoisonError::into_inner);
            terminal::say(format_args!(
                "{name} is sent {}",
                sent(&request, &known, name)
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

/// What providers have said that only they understand.
fn data(transcript: &Transcript) -> Vec<ProviderData> {
    let parts = transcript.iter().flat_map(|turn| &turn.as_message().parts);
    parts
        .filter_map(|part| part.provider_data.as_deref().cloned())
        .collect()
}

/// What of a conversation is in a request.
fn sent(request: &Request<Full<Bytes>>, known: &[ProviderData], name: &str) -> String {
    const OPAQUE: [&str; 4] = ["signature", "thoughtSignature", "data", "encrypted_content"];
    // The whole body is there, so nothing is waited for.
    let body = request.body().clone().collect().now_or_never();
    let body = body.and_then(Result::ok).map(|body| body.to_bytes());
    let body: Value = serde_json::from_slice(&body.unwrap_or_default()).unwrap_or_default();
    let messages = ["messages", "contents", "input"].iter();
    let messages = messages.filter_map(|field| body.get(field)?.as_array());
    let mut said = match messages.map(Vec::len).sum::<usize>() {
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
            // Once, of however many parts.
            if !said.contains(&what) {
                said += &what;
            }
        }
    }
    said
}

/// The text of that field, wherever it is.
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
