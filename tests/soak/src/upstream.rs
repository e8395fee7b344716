//! A provider with OpenAI's chat completions API that responds slowly and fails in every way.

use crate::{Fault, dice::Dice};
use axum::{
    Router,
    body::Body,
    extract::State,
    http::StatusCode,
    response::{IntoResponse, Response},
    routing::post,
};
use bytes::Bytes;
use futures_util::{StreamExt, stream};
use serde_json::{Value, json};
use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};
use tokio::{net::TcpListener, time::sleep};

/// The time between two chunks of a response.
const PACE: Duration = Duration::from_millis(250);

/// The number of chunks in a text response.
const PIECES: u64 = 40;

#[derive(Clone)]
struct Provider {
    seed: u64,
    answers: Arc<AtomicU64>,
}

/// Starts the provider, and returns its address.
pub(crate) async fn start(seed: u64) -> Result<String, Fault> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let url = format!("http://{}", listener.local_addr()?);
    let provider = Provider {
        seed,
        answers: Arc::default(),
    };
    let app = Router::new()
        .route("/chat/completions", post(answer))
        .with_state(provider);
    tokio::spawn(axum::serve(listener, app).into_future());
    Ok(url)
}

async fn answer(State(provider): State<Provider>, body: Bytes) -> Response {
    let number = provider.answers.fetch_add(1, Ordering::Relaxed);
    let mut dice = Dice::new(provider.seed ^ 0x0123_4567, number);
    let Ok(request) = serde_json::from_slice::<Value>(&body) else {
        return StatusCode::BAD_REQUEST.into_response();
    };
    let frames = frames(&request, number, &mut dice);
    // The clients' warm-up requests must succeed.
    let fails = !text_of_user(&request).contains("calm");
    match dice.below(40) {
        0 if fails => (StatusCode::TOO_MANY_REQUESTS, [("retry-after", "1")]).into_response(),
        1 if fails => (StatusCode::SERVICE_UNAVAILABLE, "no").into_response(),
        2 if fails => "<html>not a stream</html>".into_response(),
        // Cut off within a frame.
        3 if fails => stream_of(frames, Some(dice.below(PIECES)), dice),
        // Ends properly, but before the response is complete.
        4 if fails => {
            let kept = usize::try_from(dice.below(PIECES)).unwrap_or_default();
            stream_of(frames.into_iter().take(kept).collect(), None, dice)
        }
        // Invalid data after a valid beginning.
        5 if fails => {
            let mut frames = frames;
            frames.insert(1.min(frames.len()), "data: {\"choices\": 7}\n\n".to_owned());
            stream_of(frames, None, dice)
        }
        _ => stream_of(frames, None, dice),
    }
}

fn stream_of(frames: Vec<String>, cut: Option<u64>, mut dice: Dice) -> Response {
    let pace = PACE / 2 + PACE.mul_f64(dice.below(1000) as f64 / 1000.0);
    let pieces = stream::iter((0_u64..).zip(frames)).then(move |(at, frame)| async move {
        sleep(pace).await;
        match cut {
            Some(cut) if at >= cut => Err(io::Error::other("the provider closed the connection")),
            _ => Ok(Bytes::from(frame)),
        }
    });
    (
        [("content-type", "text/event-stream")],
        Body::from_stream(pieces),
    )
        .into_response()
}

fn frames(request: &Value, number: u64, dice: &mut Dice) -> Vec<String> {
    let messages = request["messages"]
        .as_array()
        .map_or(&[][..], Vec::as_slice);
    let is_first = messages.iter().all(|message| message["role"] != "tool");
    let chunk = |delta: Value, reason: Option<&str>| {
        let choice = json!({"index": 0, "delta": delta, "finish_reason": reason});
        format!("data: {}\n\n", json!({"choices": [choice]}))
    };
    let call = |index: u64, name: &str| {
        let function = json!({"name": name, "arguments": "{}"});
        let id = format!("call_{number}_{index}");
        json!({"tool_calls": [{"index": index, "id": id, "type": "function", "function": function}]})
    };
    let mut frames = Vec::new();
    let reason = match text_of_user(request) {
        text if is_first && text.contains("look") => {
            frames.push(chunk(call(0, "look"), None));
            frames.push(chunk(call(1, "look"), None));
            "tool_calls"
        }
        text if is_first && text.contains("pay") => {
            frames.push(chunk(call(0, "pay"), None));
            "tool_calls"
        }
        _ => {
            for piece in 0..PIECES / 2 + dice.below(PIECES) {
                frames.push(chunk(json!({"content": format!("piece {piece} ")}), None));
            }
            "stop"
        }
    };
    frames.push(chunk(json!({}), Some(reason)));
    frames.push("data: [DONE]\n\n".to_owned());
    frames
}

/// Returns the text of the last user message.
fn text_of_user(request: &Value) -> String {
    let messages = request["messages"].as_array().into_iter().flatten();
    let last = messages.rev().find(|message| message["role"] == "user");
    last.map_or_else(String::new, |message| message["content"].to_string())
}
