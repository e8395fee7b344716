//! Schemas from an untrusted source: small ones that expand to large ones, and large ones.

use crate::common::*;
use bytes::Bytes;
use concentric_core::{ChatRequest, Error, ErrorKind, OutputSchema, ToolSpec};
use concentric_providers::{
    AnthropicLayer, ApiKey, GeminiLayer, OllamaLayer, OpenAiLayer, OpenAiResponsesLayer,
};
use http_body::Body;
use http_body_util::Full;
use serde_json::{Map, Value, json};
use std::{
    convert::Infallible,
    process::Command,
    sync::{Arc, Mutex, mpsc},
    thread,
    time::Duration,
};
use tower::{Layer, ServiceExt, service_fn};

const MIB: usize = 1024 * 1024;

const PROVIDERS: [&str; 7] = [
    "anthropic",
    "gemini",
    "gemini-2.0",
    "ollama",
    "openai",
    "mistral",
    "responses",
];

/// The number of bytes that a call sends, or its error.
fn send(provider: &str, request: ChatRequest) -> Result<usize, Error> {
    let sent = Arc::new(Mutex::new(0));
    let key = || ApiKey::new(CANARY);
    let http = {
        let sent = Arc::clone(&sent);
        service_fn(move |request: http::Request<Full<Bytes>>| {
            let length = request.body().size_hint().exact().unwrap();
            *sent.lock().unwrap() = usize::try_from(length).unwrap();
            async { Ok::<_, Infallible>(http::Response::new(Script::new([""], End::Clean))) }
        })
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()
        .unwrap();
    let error = runtime.block_on(async {
        match provider {
            "anthropic" => {
                let layer = AnthropicLayer::new("claude-opus-4-8", key());
                layer.layer(http).oneshot(request).await.err()
            }
            "gemini" => {
                let layer = GeminiLayer::new("gemini-3.5-flash", key());
                layer.layer(http).oneshot(request).await.err()
            }
            "gemini-2.0" => {
                let layer = GeminiLayer::new("gemini-2.0-flash", key());
                layer.layer(http).oneshot(request).await.err()
            }
            "ollama" => {
                let layer = OllamaLayer::new("qwen3");
                layer.layer(http).oneshot(request).await.err()
            }
            "openai" => {
                let layer = OpenAiLayer::new("gpt-5.5", key());
                layer.layer(http).oneshot(request).await.err()
            }
            "mistral" => {
                let layer = OpenAiLayer::compatible("https://api.mistral.ai/v1", "m", Some(key()));
                layer.layer(http).oneshot(request).await.err()
            }
            "responses" => {
                let layer = OpenAiResponsesLayer::new("gpt-5.5", key());
                layer.layer(http).oneshot(request).await.err()
            }
            other => panic!("{other}"),
        }
    });
    match (*sent.lock().unwrap(), error) {
        // The service never responds.
        (sent, _) if sent > 0 => Ok(sent),
        (_, error) => Err(error.unwrap()),
    }
}

fn request(schemas: impl IntoIterator<Item = Value>) -> ChatRequest {
    let mut request = ChatRequest::user("hi");
    for (at, schema) in schemas.into_iter().enumerate() {
        let tool = ToolSpec::new(format!("tool_{at}"), "", schema);
        request.tools.push(Arc::new(tool));
    }
    request
}

/// `count` properties that refer to a definition of `size` bytes.
fn references(count: usize, size: usize) -> Value {
    let properties = (0..count).map(|at| (at.to_string(), json!({"$ref": "#/$defs/d"})));
    json!({
        "type": "object",
        "properties": properties.collect::<Map<_, _>>(),
        "$defs": {"d": {"description": "x".repeat(size)}},
    })
}

/// The text of a schema of about `size` bytes, in one of several shapes.
fn shape(name: &str, size: usize) -> String {
    let many = |piece: &dyn Fn(usize) -> String, length: usize| {
        let pieces: Vec<String> = (0..size / length).map(piece).collect();
        pieces.join(",")
    };
    match name {
        "references" => references(500, size).to_string(),
        "references to references" => {
            let levels = (0..7).map(|at| {
                let next = format!("{{\"$ref\":\"#/$defs/{}\"}}", at + 1);
                let all: Vec<String> = (0..40).map(|one| format!("\"{one}\":{next}")).collect();
                format!("\"{at}\":{{\"properties\":{{{}}}}}", all.join(","))
            });
            let levels: Vec<String> = levels.collect();
            format!(
                "{{\"type\":\"object\",\"properties\":{{\"a\":{{\"$ref\":\"#/$defs/0\"}}}},\"$defs\":{{{},\"7\":{{\"description\":\"{}\"}}}}}}",
                levels.join(","),
                "x".repeat(size)
            )
        }
        "values" => format!(
            "{{\"type\":\"object\",\"properties\":{{\"a\":{{\"$ref\":\"#/$defs/a\"}}}},\"$defs\":{{\"a\":{{\"enum\":[{}]}}}}}}",
            many(&|_| "0".to_owned(), 2)
        ),
        "alternatives" => format!(
            "{{\"type\":\"object\",\"properties\":{{\"a\":{{\"oneOf\":[{}]}}}}}}",
            many(&|_| "{}".to_owned(), 3)
        ),
        "types" => format!(
            "{{\"type\":\"object\",\"properties\":{{\"a\":{{\"const\":1,\"type\":[{}]}}}}}}",
            many(&|_| "\"null\"".to_owned(), 7)
        ),
        "fields" => format!(
            "{{\"type\":\"object\",\"properties\":{{\"a\":{{\"const\":1,{}}}}}}}",
            many(&|at| format!("\"x{at:05x}\":0"), 11)
        ),
        "top" => format!("{{{}}}", many(&|at| format!("\"x{at:05x}\":0"), 11)),
        "properties" => format!(
            "{{\"type\":\"object\",\"$defs\":{{}},\"properties\":{{{}}}}}",
            many(&|at| format!("\"x{at:05x}\":{{}}"), 12)
        ),
        "required" => format!(
            "{{\"type\":\"object\",\"$defs\":{{}},\"properties\":{{\"a\":{{\"type\":\"string\"}}}},\"required\":[{}]}}",
            many(&|_| "\"a\"".to_owned(), 4)
        ),
        // Each definition refers to the next.
        "chain" => format!(
            "{{\"type\":\"object\",\"properties\":{{\"a\":{{\"$ref\":\"#/$defs/0\"}}}},\"$defs\":{{{}}}}}",
            many(
                &|at| format!("\"{at}\":{{\"items\":{{\"$ref\":\"#/$defs/{}\"}}}}", at + 1),
                45
            )
        ),
        // A few long references, in a definition that is referenced often.
        "long references" => format!(
            "{{\"type\":\"object\",\"properties\":{{{}}},\"$defs\":{{\"d\":{{\"$ref\":\"#/{}\"}}}}}}",
            (0..4000)
                .map(|at| format!("\"{at}\":{{\"$ref\":\"#/$defs/d\"}}"))
                .collect::<Vec<_>>()
                .join(","),
            "~0".repeat(size / 2)
        ),
        // One location under many spellings.
        "spellings" => {
            let name = "~".repeat(16);
            let spelling = |at: usize| -> String {
                let both = (0..16).map(|bit| if at >> bit & 1 == 1 { "~0" } else { "~" });
                both.collect()
            };
            let size = size / 2;
            let references: Vec<String> = (0..size / 60)
                .map(|at| format!("{{\"$ref\":\"#/$defs/{}\"}}", spelling(at)))
                .collect();
            format!(
                "{{\"type\":\"object\",\"properties\":{{\"a\":{{\"anyOf\":[{}]}}}},\"$defs\":{{\"{name}\":{{\"enum\":[{}]}}}}}}",
                references.join(","),
                vec!["[0]"; size / 4].join(",")
            )
        }
        "nested" => {
            let mut schema = format!("{{\"const\":\"{}\"}}", "x".repeat(size));
            for _ in 0..60 {
                schema = format!("{{\"type\":\"array\",\"items\":{schema}}}");
            }
            format!("{{\"type\":\"object\",\"properties\":{{\"a\":{schema}}}}}")
        }
        other => panic!("{other}"),
    }
}

const SHAPES: [&str; 13] = [
    "references",
    "references to references",
    "values",
    "alternatives",
    "types",
    "fields",
    "top",
    "properties",
    "required",
    "chain",
    "long references",
    "spellings",
    "nested",
];

#[test]
fn a_schema_over_the_size_limit_is_rejected() {
    for provider in ["ollama", "gemini-2.0"] {
        for (count, size) in [(500, MIB), (20, MIB), (2000, 1000), (20_000, 10)] {
            let error = send(provider, request([references(count, size)])).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidRequest);
            assert_eq!(error.code(), Some("unsupported"));
            let text = error.to_string();
            assert!(text.contains("`tool_0`"), "{text}");
            assert!(text.contains("the limit of 1 MiB"), "{text}");
        }
        let sent = send(provider, request([references(20, 10_000)])).unwrap();
        assert!(sent > 200_000);
    }
}

#[test]
fn the_schemas_of_a_request_share_the_limit() {
    for provider in ["ollama", "gemini-2.0"] {
        let tools = |count: usize| request((0..count).map(|_| references(100, 1000)));
        assert!(send(provider, tools(5)).unwrap() > 500_000);
        let error = send(provider, tools(50)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidRequest);
        assert!(error.to_string().contains("the limit of 1 MiB"), "{error}");
    }
}

#[test]
fn unchanged_schemas_are_not_limited() {
    let plain = || {
        let words = vec!["x".repeat(1000); 2000];
        request([json!({"type": "object", "properties": {"a": {"type": "string", "enum": words}}})])
    };
    for provider in PROVIDERS.into_iter().filter(|name| *name != "gemini-2.0") {
        assert!(send(provider, plain()).unwrap() > 2_000_000, "{provider}");
    }
}

/// Runs with the stack size of a worker thread and a time limit.
fn watched<T: Send + 'static>(what: &str, run: impl FnOnce() -> T + Send + 'static) -> T {
    let (done, wait) = mpsc::channel();
    let thread = thread::Builder::new().stack_size(2 * MIB);
    thread.spawn(move || done.send(run())).unwrap();
    wait.recv_timeout(Duration::from_secs(120))
        .unwrap_or_else(|_| panic!("{what}"))
}

#[test]
fn no_schema_exhausts_time_or_stack() {
    for name in SHAPES {
        let schema: Value = serde_json::from_str(&shape(name, MIB)).unwrap();
        for provider in PROVIDERS {
            let schema = schema.clone();
            watched(&format!("{provider}: {name}"), move || {
                let mut output = ChatRequest::user("hi");
                output.options_mut().output_schema = Some(OutputSchema::new("out", schema.clone()));
                for request in [request([schema]), output] {
                    if let Err(error) = send(provider, request) {
                        assert_eq!(error.kind(), ErrorKind::InvalidRequest, "{error}");
                    }
                }
            });
        }
    }
}

/// The variable for a child process that makes one call and reports its memory.
const CASE: &str = "CONCENTRIC_SCHEMA_CASE";

fn memory(field: &str) -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with(field)).unwrap();
    line.split_whitespace()
        .nth(1)
        .unwrap()
        .parse::<usize>()
        .unwrap()
        * 1024
}

/// The case from the environment; only runs in a child process.
#[test]
fn one_memory_case() {
    let Ok(case) = std::env::var(CASE) else {
        return;
    };
    let (provider, rest) = case.split_once('/').unwrap();
    let (place, name) = rest.split_once('/').unwrap();
    let request = |size| {
        let schema: Value = serde_json::from_str(&shape(name, size)).unwrap();
        match place {
            "tool" => request([schema]),
            _ => {
                let mut request = ChatRequest::user("hi");
                request.options_mut().output_schema = Some(OutputSchema::new("out", schema));
                request
            }
        }
    };
    // The pages of the program's code are resident before the measurement.
    let _ = send(provider, request(1024));
    let request = request(MIB);
    // Resets the peak.
    std::fs::write("/proc/self/clear_refs", "5").unwrap();
    let before = memory("VmRSS");
    let outcome = send(provider, request);
    let peak = memory("VmHWM").saturating_sub(before);
    println!("{case}: {:.1} MiB, {outcome:?}", peak as f64 / MIB as f64);
    assert!(
        peak <= 12 * MIB,
        "{case}: {peak} bytes for a schema of {MIB}"
    );
}

#[test]
#[cfg(target_os = "linux")]
fn a_large_schema_takes_at_most_twelve_times_its_size() {
    for provider in PROVIDERS {
        // Other services receive the schema unchanged.
        let rewrites = ["anthropic", "gemini-2.0", "openai", "mistral"].contains(&provider);
        for place in ["tool", "output"]
            .into_iter()
            .take(1 + usize::from(rewrites))
        {
            for name in SHAPES {
                let case = format!("{provider}/{place}/{name}");
                let output = Command::new(std::env::current_exe().unwrap())
                    .args(["--exact", "hostile_schemas::one_memory_case", "--nocapture"])
                    .env(CASE, &case)
                    .output()
                    .unwrap();
                let text = String::from_utf8_lossy(&output.stdout);
                let line = text.lines().find(|line| line.contains(&case));
                println!("{}", line.unwrap_or_default());
                assert!(
                    output.status.success(),
                    "{case}: {text}{}",
                    String::from_utf8_lossy(&output.stderr)
                );
            }
        }
    }
}
