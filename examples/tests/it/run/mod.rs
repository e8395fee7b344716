//! Runs each example as a process.

mod approval;
mod production;
mod quickstart;
mod serve;

use axum::{
    Router,
    body::Bytes,
    extract::State,
    http::{HeaderMap, StatusCode, header},
    response::{IntoResponse, Response},
    routing::post,
};
use concentric_examples::services;
use serde_json::{Value, json};
use std::{
    env::consts::EXE_EXTENSION,
    path::{Path, PathBuf},
    process::{Output, Stdio},
    sync::{Arc, Mutex, OnceLock},
    time::Duration,
};
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader},
    net::{TcpListener, TcpStream},
    process::{Child, Command},
    task::JoinHandle,
    time::timeout,
};

/// The time limit of each run.
const LIMIT: Duration = Duration::from_secs(60);

const LIST: &str = "which files are here?";
const ABOUT: &str = "what is this project about?";

/// Returns the path of an example, or of the quickstart, which are built if necessary.
fn example(name: &str) -> PathBuf {
    static PROFILE: OnceLock<PathBuf> = OnceLock::new();
    let executable = |profile: &Path, name: &str| {
        let folder = match name {
            "quickstart" => profile.to_path_buf(),
            _ => profile.join("examples"),
        };
        folder.join(name).with_extension(EXE_EXTENSION)
    };
    let profile = PROFILE.get_or_init(|| {
        let test = std::env::current_exe().unwrap();
        let profile = test.ancestors().nth(2).unwrap();
        let there = [
            "quickstart",
            "approval",
            "production",
            "serve",
            "session",
            "hooks",
            "state",
            "structured",
            "providers",
            "custom_layer",
        ]
        .iter()
        .all(|name| executable(profile, name).exists());
        if !there {
            let mut build = std::process::Command::new(env!("CARGO"));
            build.args([
                "build",
                "--quiet",
                "--examples",
                "--bins",
                "--package",
                env!("CARGO_PKG_NAME"),
                "--package",
                "quickstart",
            ]);
            build.arg("--target-dir").arg(profile.parent().unwrap());
            if profile.ends_with("release") {
                build.arg("--release");
            }
            assert!(build.status().unwrap().success());
        }
        profile.to_path_buf()
    });
    executable(profile, name)
}

fn command(name: &str, folder: &Path) -> Command {
    let mut command = Command::new(example(name));
    command
        .current_dir(folder)
        .kill_on_drop(true)
        .stdin(Stdio::null());
    let ends = ["_KEY", "_TOKEN", "_HOST", "_BASE_URL", "_MODEL"];
    for (variable, _) in std::env::vars_os() {
        let name = variable.to_string_lossy();
        let is_of_a_provider = ends.iter().any(|end| name.ends_with(end));
        let is_ours = name.starts_with("CONCENTRIC_");
        if is_of_a_provider || is_ours || ["RUST_LOG", "ADDR", "PORT"].contains(&&*name) {
            command.env_remove(&variable);
        }
    }
    command
}

async fn output(command: &mut Command) -> (Option<i32>, String, String) {
    let run = command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .output();
    let Output {
        status,
        stdout,
        stderr,
    } = timeout(LIMIT, run).await.unwrap().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (status.code(), text(stdout), text(stderr))
}

/// A folder with known files, which is removed when it is dropped.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path =
            std::env::temp_dir().join(format!("concentric-run-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(path.join("src")).unwrap();
        let write = |name, text| std::fs::write(path.join(name), text).unwrap();
        write("README.md", "# Lighthouse\n\nKeeps the lamp lit.\n");
        write("keeper.txt", "The keeper sleeps.\nThe lamp burns.\n");
        write("src/lamp.rs", "pub fn burn() {}\n");
        write(".env", "OPENAI_API_KEY=hidden\n");
        Self(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Returns the current content of a file.
fn there(folder: &Folder, name: &str) -> Option<String> {
    std::fs::read_to_string(folder.0.join(name)).ok()
}

#[cfg(unix)]
async fn interrupt(child: &Child, signal: &str) {
    let id = child.id().unwrap().to_string();
    assert!(
        Command::new("kill")
            .args([signal, &id])
            .status()
            .await
            .unwrap()
            .success()
    );
}

/// A server with OpenAI's protocol, which calls `read_file` and then answers.
struct OpenAi {
    port: u16,
    requests: Arc<Mutex<Vec<Value>>>,
}

impl OpenAi {
    async fn start() -> Self {
        let requests = Arc::new(Mutex::new(Vec::new()));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let app = Router::new()
            .route("/v1/chat/completions", post(complete))
            .with_state(Arc::clone(&requests));
        tokio::spawn(async move { axum::serve(listener, app).await });
        Self { port, requests }
    }

    fn quickstart(&self, folder: &Path, key: &str) -> Command {
        self.example("quickstart", folder, key)
    }

    fn example(&self, name: &str, folder: &Path, key: &str) -> Command {
        let mut command = command(name, folder);
        command
            .env("OPENAI_API_KEY", key)
            .env("OPENAI_MODEL", "a-model")
            .env(
                "OPENAI_BASE_URL",
                format!("http://127.0.0.1:{}/v1", self.port),
            );
        command
    }
}

async fn complete(
    State(requests): State<Arc<Mutex<Vec<Value>>>>,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    if headers
        .get(header::AUTHORIZATION)
        .is_none_or(|key| key != "Bearer key-1")
    {
        let error = json!({"error": {"message": "There is no such key.", "type": "invalid_request_error", "code": "invalid_api_key"}});
        return (
            StatusCode::UNAUTHORIZED,
            [(header::CONTENT_TYPE, "application/json")],
            error.to_string(),
        )
            .into_response();
    }
    let request: Value = serde_json::from_slice(&body).unwrap();
    let last = request["messages"]
        .as_array()
        .unwrap()
        .last()
        .unwrap()
        .clone();
    let typed = request["response_format"]["type"] == "json_schema";
    requests.lock().unwrap().push(request);
    let chunk = |delta: Value, finish: Value| {
        let choice = json!({"index": 0, "delta": delta, "finish_reason": finish});
        format!(
            "data: {}\n\n",
            json!({"id": "c1", "object": "chat.completion.chunk", "model": "a-model-1", "choices": [choice]})
        )
    };
    let usage = |input: u64, output: u64| {
        let usage = json!({"prompt_tokens": input, "completion_tokens": output, "total_tokens": input + output});
        format!(
            "data: {}\n\ndata: [DONE]\n\n",
            json!({"id": "c1", "object": "chat.completion.chunk", "choices": [], "usage": usage})
        )
    };
    let call = |part: Value| json!({"tool_calls": [part]});
    let mut hangs = false;
    let chunks = if last["content"] == "hang" {
        hangs = true;
        vec![chunk(
            json!({"role": "assistant", "content": "Let me"}),
            Value::Null,
        )]
    } else if last["role"] == "tool" && typed {
        let pieces = [
            r#"{"purpose": "To ke"#,
            r#"ep watch.", "files": [{"path": "kee"#,
            r#"per.txt", "bytes": 3"#,
            "5}]}",
        ];
        let deltas = pieces.map(|piece| chunk(json!({"content": piece}), Value::Null));
        let end = [chunk(json!({}), json!("stop")), usage(12, 4)];
        deltas.into_iter().chain(end).collect()
    } else if last["role"] == "tool" {
        vec![
            chunk(
                json!({"role": "assistant", "content": "It is "}),
                Value::Null,
            ),
            chunk(json!({"content": "the keeper."}), Value::Null),
            chunk(json!({}), json!("stop")),
            usage(12, 4),
        ]
    } else {
        vec![
            chunk(
                call(
                    json!({"index": 0, "id": "call_abc", "type": "function", "function": {"name": "read_file", "arguments": ""}}),
                ),
                Value::Null,
            ),
            chunk(
                call(json!({"index": 0, "function": {"arguments": "{\"path\":"}})),
                Value::Null,
            ),
            chunk(
                call(json!({"index": 0, "function": {"arguments": "\"keeper.txt\"}"}})),
                Value::Null,
            ),
            chunk(json!({}), json!("tool_calls")),
            usage(10, 5),
        ]
    };
    let chunks =
        futures_util::stream::iter(chunks.into_iter().map(Ok::<_, std::convert::Infallible>));
    let body = futures_util::StreamExt::chain(
        chunks,
        futures_util::stream::poll_fn(move |_| match hangs {
            true => std::task::Poll::Pending,
            false => std::task::Poll::Ready(None),
        }),
    );
    (
        [(header::CONTENT_TYPE, "text/event-stream")],
        axum::body::Body::from_stream(body),
    )
        .into_response()
}

// ---- session ----

/// Returns the output and the notes of the example for `lines`.
async fn session(folder: &Folder, lines: &str) -> (String, String) {
    let mut child = command("session", &folder.0)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut input = child.stdin.take().unwrap();
    input.write_all(lines.as_bytes()).await.unwrap();
    drop(input);
    let done = timeout(LIMIT, child.wait_with_output()).await.unwrap();
    let Output {
        status,
        stdout,
        stderr,
    } = done.unwrap();
    let notes = String::from_utf8(stderr).unwrap();
    assert!(status.success(), "{notes}");
    (String::from_utf8(stdout).unwrap(), notes)
}

#[tokio::test]
async fn session_runs_one_turn_per_line() {
    let folder = Folder::new("session");
    let lines = format!("{LIST}\n{LIST}\n");
    let (answers, notes) = session(&folder, &lines).await;
    assert_eq!(answers.matches("keeper.txt").count(), 2, "{answers}");
    // Each line adds the question, a round of tool calls, and the final answer.
    assert!(notes.contains("(6 turns)"), "{notes}");
}

#[tokio::test]
async fn session_reports_a_stop_without_a_running_turn() {
    let folder = Folder::new("session-stop");
    let (answers, notes) = session(&folder, "/stop\n").await;
    assert_eq!(answers, "");
    assert!(notes.contains("No turn is running."), "{notes}");
}

// ---- hooks ----

#[tokio::test]
async fn hooks_log_each_run_without_secrets() {
    let folder = Folder::new("hooks");
    let audit = folder.0.join("kept.jsonl");
    let mut shown = Vec::new();
    for question in [LIST, "where is the lamp mentioned?"] {
        let mut command = command("hooks", &folder.0);
        command.env("CONCENTRIC_AUDIT", &audit).arg(question);
        let (code, answer, notes) = output(&mut command).await;
        assert_eq!(code, Some(0), "{notes}");
        assert!(answer.contains("keeper.txt"), "{answer}");
        shown.extend(
            notes
                .lines()
                .filter_map(|line| serde_json::from_str::<Value>(line).ok()),
        );
    }

    // Each process has printed its own run, and the file has both.
    let kept = std::fs::read_to_string(&audit).unwrap();
    let kept: Vec<Value> = kept
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(shown, kept);
    let runs = kept.chunk_by(|a, b| a["run"] == b["run"]);
    let runs: Vec<Vec<&str>> = runs
        .map(|run| run.iter().map(|e| e["what"].as_str().unwrap()).collect())
        .collect();
    let whole = ["run", "step", "call", "step", "end"];
    assert_eq!(runs, [whole, whole], "{kept:?}");

    let called = &kept[7]["details"];
    assert_eq!(called["tool"], "search_files");
    assert_eq!(called["arguments"], json!({"text": "(4 bytes)"}));
    assert_eq!(called["status"], "done");
    let end = &kept[9]["details"];
    assert_eq!(end["outcome"], "completed");
    let tokens = |of: &Value| of["usage"]["output_tokens"].as_u64().unwrap();
    let of_steps = tokens(&kept[6]["details"]) + tokens(&kept[8]["details"]);
    assert_eq!(tokens(end), of_steps);
}

#[tokio::test]
async fn a_failed_audit_write_does_not_change_the_response() {
    let folder = Folder::new("hooks-disk");
    let mut command = command("hooks", &folder.0);
    // A folder cannot be opened as a file.
    command.env("CONCENTRIC_AUDIT", folder.0.join("src"));
    let (code, answer, notes) = output(command.arg(LIST)).await;
    assert!(answer.contains("keeper.txt"), "{answer}");
    assert!(notes.contains("Failed to write the audit log"), "{notes}");
    assert_eq!(code, Some(1), "{notes}");
}

// ---- structured ----

#[tokio::test]
async fn structured_shows_partial_values_and_the_final_one() {
    let folder = Folder::new("structured");
    let mut command = command("structured", &folder.0);
    let (code, answer, notes) = output(command.arg(LIST)).await;
    assert_eq!(code, Some(0), "{notes}");
    let lines: Vec<&str> = answer.lines().collect();
    assert_eq!(lines[0], "This folder has 3 files and 1 folder");
    assert_eq!(
        lines[1..],
        [
            "      34  README.md",
            "      35  keeper.txt",
            "      17  src/lamp.rs"
        ]
    );

    let values = notes
        .lines()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let paths: Vec<Vec<String>> = values
        .map(|value| {
            let files = value["files"].as_array().into_iter().flatten();
            files
                .filter_map(|file| Some(file["path"].as_str()?.to_owned()))
                .collect()
        })
        .collect();
    assert_eq!(paths.first().map(Vec::len), Some(0), "{notes}");
    assert_eq!(
        paths.last().unwrap(),
        &["README.md", "keeper.txt", "src/lamp.rs"]
    );
    assert!(
        paths.windows(2).all(|two| two[1].starts_with(&two[0])),
        "{notes}"
    );

    let (code, answer, notes) = output(&mut self::command("structured", &folder.0)).await;
    assert_eq!((code, answer.as_str()), (Some(2), ""));
    assert!(notes.starts_with("Usage:"), "{notes}");
}

#[tokio::test]
async fn structured_sends_the_schema_with_the_tools() {
    let folder = Folder::new("typed");
    let openai = OpenAi::start().await;
    let mut command = openai.example("structured", &folder.0, "key-1");
    let (code, answer, notes) = output(command.arg("who sleeps?")).await;
    assert_eq!(code, Some(0), "{notes}");
    assert_eq!(answer, "To keep watch.\n      35  keeper.txt\n");
    let values: Vec<&str> = notes.lines().filter(|line| line.starts_with('{')).collect();
    let expected = [
        r#"{}"#,
        r#"{"purpose":"To keep watch.","files":[{}]}"#,
        r#"{"purpose":"To keep watch.","files":[{"path":"keeper.txt"}]}"#,
        r#"{"purpose":"To keep watch.","files":[{"path":"keeper.txt","bytes":35}]}"#,
    ];
    assert_eq!(values, expected, "{notes}");
    for request in openai.requests.lock().unwrap().iter() {
        let schema = &request["response_format"]["json_schema"];
        assert_eq!(schema["name"], "folder");
        assert!(
            schema["schema"]["properties"]["purpose"].is_object(),
            "{schema}"
        );
        assert!(!request["tools"].as_array().unwrap().is_empty());
    }
}

// ---- state ----

#[tokio::test]
async fn state_limits_tokens_across_processes() {
    let folder = Folder::new("state");
    let state = folder.0.join("kept.json");
    let mut used = 0;
    for _ in 0..50 {
        let mut command = command("state", &folder.0);
        command.env("CONCENTRIC_STATE", &state).arg(LIST);
        let (code, _, notes) = output(&mut command).await;
        let kept: Value = serde_json::from_slice(&std::fs::read(&state).unwrap()).unwrap();
        let now = kept[0]["value"].as_u64().unwrap();
        if code == Some(3) {
            assert!(notes.contains("The token limit is exceeded"), "{notes}");
            assert!(now > 500 && now == used, "{now}, {used} before");
            return;
        }
        assert_eq!(code, Some(0), "{notes}");
        assert!(now > used, "{notes}");
        used = now;
    }
    panic!("{used} tokens used, and the limit has no effect");
}

// ---- providers ----

#[tokio::test]
async fn providers_continue_each_others_conversation() {
    let folder = Folder::new("providers");
    let (code, answer, notes) = output(&mut command("providers", &folder.0)).await;
    assert_eq!(code, Some(0), "{notes}");
    let lines: Vec<&str> = answer.lines().collect();
    assert_eq!(lines.len(), 3, "{answer}");
    assert!(lines[0].contains("keeper.txt"), "{answer}");
    for line in &lines[1..] {
        assert!(line.contains("list_files"), "{answer}");
    }
    assert!(notes.contains("→ list_files"), "{notes}");
    let sent: Vec<&str> = notes
        .lines()
        .filter(|line| line.contains(" receives "))
        .collect();
    let expected = [
        "anthropic receives 1 message",
        "anthropic receives 3 messages, with its own signature",
        "gemini receives 5 messages, without the signature of anthropic",
        // The count includes the system message.
        "ollama receives 8 messages, without the signature of anthropic, without the thoughtSignature of gcp.gemini",
    ];
    assert_eq!(sent, expected, "{notes}");
}

#[tokio::test]
async fn the_environment_selects_the_provider() {
    let folder = Folder::new("environment");
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = &*format!("http://{}", listener.local_addr().unwrap());
    let app = Router::new().fallback(async |uri: axum::http::Uri, body: Bytes| {
        let (media_type, answer) = services::answer(uri.path(), &body).unwrap();
        ([(header::CONTENT_TYPE, media_type)], answer)
    });
    tokio::spawn(async move { axum::serve(listener, app).await });
    let set: [&[(&str, &str)]; 4] = [
        &[("ANTHROPIC_API_KEY", "k"), ("ANTHROPIC_BASE_URL", address)],
        &[("GOOGLE_API_KEY", "k"), ("GEMINI_BASE_URL", address)],
        &[("OLLAMA_HOST", address)],
        &[
            ("OPENAI_API_KEY", "k"),
            ("OLLAMA_HOST", address),
            ("CONCENTRIC_PROVIDER", "ollama"),
        ],
    ];
    for variables in set {
        let mut command = command("quickstart", &folder.0);
        command.envs(variables.iter().copied());
        let (code, answer, notes) = output(command.arg(LIST)).await;
        assert_eq!(code, Some(0), "{variables:?}: {notes}");
        assert!(answer.contains("keeper.txt"), "{variables:?}: {answer}");
        assert!(!notes.contains("offline"), "{variables:?}: {notes}");
    }
}

#[tokio::test]
async fn a_selected_provider_without_a_key_is_an_error() {
    let folder = Folder::new("named");
    let mut quickstart = command("quickstart", &folder.0);
    quickstart
        .env("CONCENTRIC_PROVIDER", "anthropic")
        .arg("hello");
    let (code, _, notes) = output(&mut quickstart).await;
    assert_eq!(code, Some(1), "{notes}");
    assert!(
        notes.contains("CONCENTRIC_PROVIDER is `anthropic`"),
        "{notes}"
    );

    // A key without a model is not enough.
    let mut quickstart = command("quickstart", &folder.0);
    quickstart.env("HF_TOKEN", "k").arg("hello");
    let (code, _, notes) = output(&mut quickstart).await;
    assert_eq!(code, Some(0), "{notes}");
    assert!(notes.contains("offline stand-in"), "{notes}");
}

// ---- custom_layer ----

#[tokio::test]
async fn custom_layer_runs_all_three_layers() {
    let (code, out, notes) = output(&mut command("custom_layer", &std::env::temp_dir())).await;
    assert_eq!(code, Some(0), "{notes}");
    let lines: Vec<&str> = out.lines().collect();
    let count = |start: &str| lines.iter().filter(|line| line.starts_with(start)).count();
    assert_eq!(
        (count("retry: "), count("redact: "), count("timing: ")),
        (2, 1, 2),
        "{out}"
    );
    let pieces = lines
        .iter()
        .filter_map(|line| line.strip_prefix("answer: "));
    let answer: String = pieces
        .map(|piece| serde_json::from_str::<String>(piece).unwrap())
        .collect();
    assert_eq!(answer, "The password is █████. Keep it secret.");
    assert!(
        lines
            .last()
            .is_some_and(|line| line.starts_with("timing: finished")),
        "{out}"
    );
}
