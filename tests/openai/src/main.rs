//! `concentric-openai`: serves a model whose answer depends on the first word of the user's last
//! message.
//!
//! `concentric-openai DIR`: serves the recordings of OpenAI's APIs in `DIR`, each as a model with its
//! id as the name.
//!
//! `concentric-openai keyed`: serves the scripted model to clients with a virtual key, which is printed first.
//!
//! Prints its address once it listens.

mod recorded;

use concentric_core::{
    AgentLayer, BoxModel, CallId, ChatRequest, ChatResponse, Error, ErrorKind, Event, EventStream,
    FinishReason, PartKind, ToolCallDelta, ToolCallPart, ToolCallStart, Turn, Usage,
    store::{RunStore, Tenant},
};
use concentric_http::openai::{OpenAi, VirtualKeys};
use concentric_layers::SuspendLayer;
use concentric_store::MemoryStore;
use concentric_tools::{Approval, Toolset, tool};
use futures_util::{StreamExt, stream};
use serde_json::Value;
use std::{
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};
use tower::{Layer, service_fn};

type Item = Result<Event, Error>;

/// Counts the answers that their client has dropped.
struct Unfinished(Arc<AtomicUsize>);

impl Drop for Unfinished {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let argument = std::env::args_os().nth(1);
    let is_keyed = argument.as_ref().is_some_and(|it| it == "keyed");
    let api = match argument {
        Some(dir) if !is_keyed => recorded::api(Path::new(&dir))?,
        _ => scripted(),
    };
    let mut app = axum::Router::new().nest_service("/v1", api);
    if is_keyed {
        let keys = VirtualKeys::new(MemoryStore::new());
        let key = keys.create(Tenant("ann".into()), "test").await?;
        println!("{}", key.expose());
        app = app.layer(keys);
    }
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    println!("http://{}/v1", listener.local_addr()?);
    axum::serve(listener, app).await?;
    Ok(())
}

fn scripted() -> OpenAi {
    let dropped = Arc::new(AtomicUsize::new(0));
    let model = service_fn(move |request: ChatRequest| {
        let dropped = dropped.clone();
        async move { answer(&request, &dropped) }
    });
    OpenAi::new()
        .model("scripted", model)
        .alias("gpt-4o", "scripted")
        .model("clerk", clerk())
        .threads(MemoryStore::new())
}

/// An agent that pays after an approval, and then answers with the result and the last message.
fn clerk() -> BoxModel {
    let pay = tool("pay", "Pays.", |input: Value| async move {
        format!("paid {}", input.get("sum").unwrap_or_default())
    });
    let model = service_fn(|request: ChatRequest| async move {
        let results = request.transcript.last().map_or(&[][..], Turn::results);
        let items = match results.last() {
            Some(result) => text(&result.outcome.content.text()),
            None => vec![
                Ok(Event::text("I pay.")),
                call(0, "pay", "{\"sum\":7}"),
                finish(FinishReason::ToolCalls),
            ],
        };
        Ok::<_, Error>(ChatResponse::new(EventStream::new(stream::iter(items))))
    });
    let tools = Toolset::new().tool(pay).gate(Approval::for_tools("pay"));
    let store: Arc<dyn RunStore> = Arc::new(MemoryStore::new());
    BoxModel::new(SuspendLayer::new(store).layer(AgentLayer::new(tools).layer(model)))
}

fn answer(
    request: &ChatRequest,
    dropped: &Arc<AtomicUsize>,
) -> Result<ChatResponse<EventStream>, Error> {
    let prompt = request
        .user_message()
        .map(|message| message.text())
        .unwrap_or_default();
    let (word, rest) = prompt.split_once(' ').unwrap_or((&prompt, ""));
    let results = request.transcript.last().map_or(&[][..], Turn::results);
    let results: Vec<String> = results
        .iter()
        .map(|result| format!("{}={}", result.name, result.outcome.content.text()))
        .collect();
    let items: Vec<Item> = match word {
        "tools" | "parallel" | "ordered" if !results.is_empty() => text(&results.join(";")),
        "rounds" => {
            let turns = request.transcript.iter();
            match turns.filter(|turn| !turn.results().is_empty()).count() {
                0 => round("Paris"),
                1 => round("Oslo"),
                _ => text(&results.join(";")),
            }
        }
        "tools" => vec![
            start(0, "look"),
            delta(0, "{\"city\":"),
            delta(0, "\"Paris\"}"),
            call(0, "look", "{\"city\":\"Paris\"}"),
            finish(FinishReason::ToolCalls),
        ],
        "parallel" => vec![
            Ok(Event::text("Both.")),
            start(0, "look"),
            start(1, "look"),
            delta(1, "{\"city\":\"Oslo\"}"),
            delta(0, "{\"city\":\"Rome\"}"),
            call(0, "look", "{\"city\":\"Rome\"}"),
            call(1, "look", "{\"city\":\"Oslo\"}"),
            finish(FinishReason::ToolCalls),
        ],
        "ordered" => vec![
            Ok(Event::text("Both.")),
            start(0, "look"),
            delta(0, "{\"city\":\"Rome\"}"),
            start(1, "look"),
            delta(1, "{\"city\":\"Oslo\"}"),
            call(0, "look", "{\"city\":\"Rome\"}"),
            call(1, "look", "{\"city\":\"Oslo\"}"),
            finish(FinishReason::ToolCalls),
        ],
        "parse" => match &request.options.output_schema {
            Some(schema) if schema.strict => text("{\"city\":\"Paris\",\"people\":2}"),
            _ => text("no schema"),
        },
        "refuse" => vec![
            Ok(Event::RefusalDelta("I ".into())),
            Ok(Event::RefusalDelta("refuse.".into())),
            finish(FinishReason::Stop),
        ],
        "length" => vec![Ok(Event::text("cut")), finish(FinishReason::Length)],
        "long" => vec![
            Ok(Event::text("\u{e9}\n".repeat(1 << 18))),
            Ok(Event::text("x".repeat(1 << 18))),
            finish(FinishReason::Stop),
        ],
        "odd" => text("\r\n\0\u{2028}\u{85}\"\\\u{1f600}"),
        "error" => return Err(error(rest)),
        "late" => return Ok(slowly(vec![Ok(Event::text("a")), Err(error(rest))])),
        "effect" => {
            request.context.count_effect();
            return Err(error("server"));
        }
        "wait" => {
            let (unfinished, context) = (Unfinished(dropped.clone()), request.context.clone());
            let body = stream::iter([Ok(Event::text("a"))]).chain(stream::once(async move {
                let _unfinished = unfinished;
                context.cancelled().await;
                Err(Error::new(ErrorKind::Cancelled, "scripted"))
            }));
            return Ok(ChatResponse::new(EventStream::new(body)));
        }
        "recall" => text(&recalled(request)),
        "dropped" => text(&dropped.load(Ordering::SeqCst).to_string()),
        "parts" => {
            let message = request.user_message();
            let parts = message.map_or(&[][..], |message| &message.parts).iter();
            let kinds = parts.map(|part| match &part.kind {
                PartKind::Image(media) => format!("image {:?}", media.media_type),
                PartKind::File(media) => format!("file {:?}", media.name),
                PartKind::Audio(media) => format!("audio {:?}", media.media_type),
                _ => "text".to_owned(),
            });
            text(&kinds.collect::<Vec<_>>().join(";"))
        }
        _ => {
            let words = ["Hello", ", ", "world", "!"].map(|word| Ok(Event::text(word)));
            let items = words.into_iter().chain([finish(FinishReason::Stop)]);
            return Ok(slowly(items.collect()));
        }
    };
    Ok(ChatResponse::new(EventStream::new(stream::iter(items))))
}

/// The conversation, with the results of its calls.
fn recalled(request: &ChatRequest) -> String {
    let turns = request.transcript.iter().map(|turn| {
        let results = turn.results().iter();
        let results = results.map(|it| format!("={}", it.outcome.content.text()));
        let message = turn.as_message();
        let (role, text) = (message.role, message.text());
        format!("{role:?}:{text}{}", results.collect::<String>())
    });
    turns.collect::<Vec<_>>().join("|")
}

fn slowly(items: Vec<Item>) -> ChatResponse<EventStream> {
    let body = stream::iter(items).then(async |item| {
        tokio::time::sleep(Duration::from_millis(20)).await;
        item
    });
    ChatResponse::new(EventStream::new(body))
}

fn text(text: &str) -> Vec<Item> {
    vec![Ok(Event::text(text)), finish(FinishReason::Stop)]
}

/// An answer with one call.
fn round(city: &str) -> Vec<Item> {
    let arguments = format!("{{\"city\":\"{city}\"}}");
    vec![call(0, "look", &arguments), finish(FinishReason::ToolCalls)]
}

fn finish(reason: FinishReason) -> Item {
    Ok(Event::finish(reason, Usage::new(12, 7)))
}

fn start(index: u32, name: &str) -> Item {
    let id = CallId::new(format!("call_{index}"));
    Ok(Event::ToolCallStart(Box::new(ToolCallStart::new(
        index, id, name,
    ))))
}

fn delta(index: u32, arguments: &str) -> Item {
    Ok(Event::ToolCallDelta(ToolCallDelta::new(index, arguments)))
}

fn call(index: u32, name: &str, arguments: &str) -> Item {
    let id = CallId::new(format!("call_{index}"));
    Ok(Event::tool_call(ToolCallPart::new(id, name, arguments)))
}

fn error(kind: &str) -> Error {
    let kind = match kind {
        "authentication" => ErrorKind::Authentication,
        "invalid_request" => ErrorKind::InvalidRequest,
        "context_window" => ErrorKind::ContextWindow,
        "rate_limited" => ErrorKind::RateLimited,
        "overloaded" => ErrorKind::Overloaded,
        "timeout" => ErrorKind::Timeout,
        "conflict" => ErrorKind::Conflict,
        "server" => ErrorKind::Server,
        _ => ErrorKind::Other,
    };
    Error::new(kind, "scripted").with_retry_after(Duration::from_millis(10))
}
