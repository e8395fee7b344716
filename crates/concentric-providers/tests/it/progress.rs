//! Progress of a response, for every decoder: chunks that add content count, and chunks that only
//! show that the service is alive do not.

use crate::common::CANARY;
use bytes::Bytes;
use concentric_core::{ChatRequest, ChatResponse, Error, Event};
use concentric_providers::{
    AnthropicLayer, ApiKey, GeminiLayer, OllamaLayer, OpenAiLayer, OpenAiResponsesLayer, Timeouts,
};
use futures_util::{Stream, StreamExt, stream};
use http_body::Frame;
use http_body_util::{Full, StreamBody};
use std::{convert::Infallible, time::Duration};
use tower::{Layer, Service, ServiceExt, service_fn};

/// The pause between chunks.
const PAUSE: Duration = Duration::from_secs(10);
const PROGRESS: Duration = Duration::from_secs(60);
/// Far more chunks than fit in that time.
const PIECES: usize = 100;

type Pieces = std::pin::Pin<Box<dyn Stream<Item = Result<Frame<Bytes>, Infallible>> + Send>>;

/// `first` immediately, and then `again` after each pause.
fn body(first: &str, again: impl Fn(usize) -> String + Send + 'static) -> StreamBody<Pieces> {
    let first = Bytes::copy_from_slice(first.as_bytes());
    let more = stream::iter(0..PIECES).then(move |at| {
        let piece = again(at);
        async move {
            tokio::time::sleep(PAUSE).await;
            Bytes::from(piece)
        }
    });
    let all = stream::iter([first]).chain(more);
    StreamBody::new(Box::pin(all.map(|piece| Ok(Frame::data(piece)))))
}

/// The code of the error that ends the response.
async fn ends<L, S, B>(layer: L, body: StreamBody<Pieces>) -> Option<String>
where
    L: Layer<Answers, Service = S>,
    S: Service<ChatRequest, Response = ChatResponse<B>, Error = Error>,
    B: Stream<Item = Result<Event, Error>>,
{
    let body = std::sync::Mutex::new(Some(body));
    let http: Answers = tower::util::BoxCloneSyncService::new(service_fn({
        let body = std::sync::Arc::new(body);
        move |_: http::Request<Full<Bytes>>| {
            let body = body.lock().unwrap().take().unwrap();
            async { Ok::<_, Infallible>(http::Response::new(body)) }
        }
    }));
    let error = match layer.layer(http).oneshot(ChatRequest::user("hi")).await {
        Ok(response) => {
            let mut error = None;
            let mut body = std::pin::pin!(response.body);
            while let Some(item) = body.next().await {
                error = item.err();
            }
            error
        }
        Err(error) => Some(error),
    };
    error.unwrap().code().map(str::to_owned)
}

type Answers = tower::util::BoxCloneSyncService<
    http::Request<Full<Bytes>>,
    http::Response<StreamBody<Pieces>>,
    Infallible,
>;

fn timeouts() -> Timeouts {
    Timeouts::off().progress(PROGRESS)
}

fn sse(data: &str) -> String {
    format!("data: {data}\n\n")
}

fn line(data: &str) -> String {
    format!("{data}\n")
}

const OPENAI_TEXT: &str =
    r#"{"id":"1","model":"m","choices":[{"index":0,"delta":{"content":"a"}}]}"#;
const OPENAI_CALL: &str = r#"{"choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"id":"c","function":{"name":"f","arguments":"{"},"extra_content":{"a":1}}]}}]}"#;
const ANTHROPIC_START: &str = r#"{"type":"message_start","message":{"id":"1","model":"m","usage":{"input_tokens":1,"output_tokens":1}}}"#;
const ANTHROPIC_CALL: &str = r#"{"type":"content_block_start","index":0,"content_block":{"type":"tool_use","id":"c","name":"f","input":{}}}"#;
const ANTHROPIC_THINKING: &str = r#"{"type":"content_block_start","index":0,"content_block":{"type":"thinking","thinking":"a"}}"#;
const ANTHROPIC_SIGNATURE: &str = r#"{"type":"content_block_delta","index":0,"delta":{"type":"signature_delta","signature":"s"}}"#;
const GEMINI_TEXT: &str = r#"{"responseId":"1","modelVersion":"m","candidates":[{"content":{"parts":[{"text":"a"}]},"groundingMetadata":{"webSearchQueries":["q"]}}],"usageMetadata":{"promptTokenCount":1}}"#;
const GEMINI_CALL: &str =
    r#"{"candidates":[{"content":{"parts":[{"functionCall":{"name":"f","willContinue":true}}]}}]}"#;
const RESPONSES_CREATED: &str = r#"{"type":"response.created","response":{"id":"1","model":"m"}}"#;
const RESPONSES_CALL: &str = r#"{"type":"response.output_item.added","output_index":0,"item":{"type":"function_call","id":"i","call_id":"c","name":"f","arguments":""}}"#;
const OLLAMA_TEXT: &str = r#"{"model":"m","message":{"role":"assistant","content":"a"}}"#;

#[tokio::test(start_paused = true)]
async fn chunks_without_content_are_no_progress() {
    let openai = [
        (
            OPENAI_CALL,
            r#"{"choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"function":{"arguments":""}}]}}]}"#,
        ),
        (
            OPENAI_CALL,
            r#"{"choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"id":"c","function":{"name":"f"}}]}}]}"#,
        ),
        (
            OPENAI_CALL,
            r#"{"choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"extra_content":{"a":1}}]}}]}"#,
        ),
        (
            OPENAI_CALL,
            r#"{"choices":[{"index":0,"delta":{"tool_calls":[{"index":0}]}}]}"#,
        ),
        (
            OPENAI_TEXT,
            r#"{"choices":[{"index":0,"delta":{"tool_calls":[]}}]}"#,
        ),
        (
            OPENAI_TEXT,
            r#"{"choices":[{"index":0,"delta":{"function_call":{}}}]}"#,
        ),
        (
            OPENAI_TEXT,
            r#"{"choices":[{"index":0,"delta":{"function_call":{"arguments":""}}}]}"#,
        ),
        (
            OPENAI_TEXT,
            r#"{"choices":[{"index":0,"delta":{"content":""}}]}"#,
        ),
        (
            OPENAI_TEXT,
            r#"{"id":"1","model":"m","choices":[{"index":0,"delta":{"role":"assistant"}}]}"#,
        ),
        (
            OPENAI_TEXT,
            r#"{"choices":[{"index":0,"delta":{"reasoning_content":"","refusal":"","audio":{}}}]}"#,
        ),
        (
            OPENAI_TEXT,
            r#"{"choices":[{"index":0,"delta":{"audio":{"id":"x"}}}]}"#,
        ),
        (
            OPENAI_TEXT,
            r#"{"choices":[{"index":0,"delta":{"reasoning_details":[{}],"tool_calls":[]}}]}"#,
        ),
        (
            OPENAI_TEXT,
            r#"{"choices":[{"index":0,"delta":{"annotations":[]}}]}"#,
        ),
        (
            OPENAI_TEXT,
            r#"{"choices":[],"usage":{"prompt_tokens":1,"completion_tokens":1,"total_tokens":2}}"#,
        ),
        (
            OPENAI_TEXT,
            r#"{"choices":[{"index":1,"delta":{"content":"b"}}]}"#,
        ),
    ];
    for (first, again) in openai {
        let again = sse(again);
        let layer = OpenAiLayer::new("m", ApiKey::new(CANARY)).timeouts(timeouts());
        let code = ends(layer, body(&sse(first), move |_| again.clone())).await;
        assert_eq!(code.as_deref(), Some("no_progress"), "{first} {openai:?}");
    }
    let anthropic = [
        (
            ANTHROPIC_CALL,
            r#"{"type":"content_block_delta","index":0,"delta":{"type":"input_json_delta","partial_json":""}}"#,
        ),
        (ANTHROPIC_CALL, r#"{"type":"content_block_stop","index":7}"#),
        (ANTHROPIC_CALL, r#"{"type":"ping"}"#),
        (
            ANTHROPIC_CALL,
            r#"{"type":"message_delta","delta":{},"usage":{"input_tokens":1,"output_tokens":1}}"#,
        ),
        (
            ANTHROPIC_THINKING,
            r#"{"type":"content_block_delta","index":0,"delta":{"type":"thinking_delta","thinking":""}}"#,
        ),
        (
            ANTHROPIC_THINKING,
            r#"{"type":"content_block_delta","index":0,"delta":{"type":"signature_delta","signature":""}}"#,
        ),
        (ANTHROPIC_THINKING, ANTHROPIC_SIGNATURE),
        (
            ANTHROPIC_THINKING,
            r#"{"type":"content_block_start","index":1,"content_block":{"type":"text","text":""}}"#,
        ),
        (
            ANTHROPIC_THINKING,
            r#"{"type":"message_delta","delta":{"stop_reason":"end_turn"}}"#,
        ),
    ];
    for (first, again) in anthropic {
        let again = sse(again);
        let layer = AnthropicLayer::new("m", ApiKey::new(CANARY)).timeouts(timeouts());
        let first = sse(ANTHROPIC_START) + &sse(first);
        let code = ends(layer, body(&first, move |_| again.clone())).await;
        // The limit also applies after the response has ended.
        assert_eq!(
            code.as_deref(),
            Some("no_progress"),
            "{first} {anthropic:?}"
        );
    }
    let gemini = [
        (
            GEMINI_TEXT,
            GEMINI_TEXT.replace(r#"{"text":"a"}"#, r#"{"text":""}"#),
        ),
        (
            GEMINI_TEXT,
            r#"{"candidates":[{"content":{"parts":[]}}]}"#.to_owned(),
        ),
        (
            GEMINI_TEXT,
            r#"{"candidates":[{"groundingMetadata":{}}]}"#.to_owned(),
        ),
        (
            GEMINI_CALL,
            r#"{"candidates":[{"content":{"parts":[{"functionCall":{"willContinue":true}}]}}]}"#
                .to_owned(),
        ),
    ];
    for (first, again) in gemini {
        let again = sse(&again);
        let layer = GeminiLayer::new("gemini-3.5-flash", ApiKey::new(CANARY)).timeouts(timeouts());
        let code = ends(layer, body(&sse(first), move |_| again.clone())).await;
        assert_eq!(code.as_deref(), Some("no_progress"), "{first}");
    }
    let responses = [
        (
            RESPONSES_CALL,
            r#"{"type":"response.function_call_arguments.delta","output_index":0,"delta":""}"#,
        ),
        (RESPONSES_CALL, RESPONSES_CALL),
        (RESPONSES_CALL, RESPONSES_CREATED.trim()),
        (
            RESPONSES_CALL,
            r#"{"type":"response.in_progress","response":{"id":"1","model":"m"}}"#,
        ),
        (
            RESPONSES_CALL,
            r#"{"type":"response.image_generation_call.partial_image","output_index":0}"#,
        ),
        (
            RESPONSES_CALL,
            r#"{"type":"response.image_generation_call.in_progress","output_index":0}"#,
        ),
        (
            RESPONSES_CALL,
            r#"{"type":"response.code_interpreter_call_code.delta","output_index":0,"delta":""}"#,
        ),
        (
            RESPONSES_CALL,
            r#"{"type":"response.audio.delta","delta":""}"#,
        ),
        (
            RESPONSES_CALL,
            r#"{"type":"response.output_text.delta","output_index":1,"delta":""}"#,
        ),
    ];
    for (first, again) in responses {
        if again == RESPONSES_CREATED {
            continue;
        }
        let again = sse(again);
        let layer = OpenAiResponsesLayer::new("m", ApiKey::new(CANARY)).timeouts(timeouts());
        let first = sse(RESPONSES_CREATED) + &sse(first);
        let code = ends(layer, body(&first, move |_| again.clone())).await;
        assert_eq!(
            code.as_deref(),
            Some("no_progress"),
            "{first} {responses:?}"
        );
    }
    let ollama = [
        r#"{"model":"m","message":{"role":"assistant","content":""}}"#,
        r#"{"model":"m","message":{"content":"","thinking":"","tool_calls":[]}}"#,
        r#"{"model":"m","done":false}"#,
        "{}",
    ];
    for again in ollama {
        let again = line(again);
        let layer = OllamaLayer::new("m").timeouts(timeouts());
        let code = ends(layer, body(&line(OLLAMA_TEXT), move |_| again.clone())).await;
        assert_eq!(code.as_deref(), Some("no_progress"), "{ollama:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn chunks_with_content_are_progress() {
    // The body ends before the terminal event.
    let openai = [
        (
            OPENAI_CALL,
            r#"{"choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"function":{"arguments":" "}}]}}]}"#,
        ),
        // Arguments before the name are buffered.
        (
            OPENAI_TEXT,
            r#"{"choices":[{"index":0,"delta":{"tool_calls":[{"index":5,"function":{"arguments":" "}}]}}]}"#,
        ),
        (
            OPENAI_TEXT,
            r#"{"choices":[{"index":0,"delta":{"audio":{"data":"QUJD"}}}]}"#,
        ),
    ];
    for (first, again) in openai {
        let again = sse(again);
        let layer = OpenAiLayer::new("m", ApiKey::new(CANARY)).timeouts(timeouts());
        let code = ends(layer, body(&sse(first), move |_| again.clone())).await;
        assert_eq!(code, None, "{first} {openai:?}");
    }
    let layer = OpenAiLayer::new("m", ApiKey::new(CANARY)).timeouts(timeouts());
    let again = |at: usize| {
        let extra = r#"{"choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"extra_content":{"a":AT}}]}}]}"#;
        sse(&extra.replace("AT", &(at + 2).to_string()))
    };
    assert_eq!(ends(layer, body(&sse(OPENAI_CALL), again)).await, None);

    let layer = AnthropicLayer::new("m", ApiKey::new(CANARY)).timeouts(timeouts());
    let first = sse(ANTHROPIC_START) + &sse(ANTHROPIC_THINKING);
    let again = |at: usize| sse(&ANTHROPIC_SIGNATURE.replace("\"s\"", &format!("\"s{at}\"")));
    assert_eq!(ends(layer, body(&first, again)).await, None);

    let layer = OpenAiResponsesLayer::new("m", ApiKey::new(CANARY)).timeouts(timeouts());
    let first = sse(RESPONSES_CREATED) + &sse(RESPONSES_CALL);
    let again = |_| {
        sse(r#"{"type":"response.function_call_arguments.delta","output_index":0,"delta":" "}"#)
    };
    assert_eq!(ends(layer, body(&first, again)).await, None);
}
