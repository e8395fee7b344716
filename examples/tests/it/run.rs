//! Runs each example as a process.

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

// ---- quickstart ----

#[tokio::test]
async fn quickstart_answers_from_the_files() {
    let folder = Folder::new("quickstart");
    let ask = async |question: &str| output(command("quickstart", &folder.0).arg(question)).await;

    let (code, answer, notes) = ask(LIST).await;
    assert_eq!(code, Some(0), "{notes}");
    for name in ["README.md", "keeper.txt", "src/lamp.rs"] {
        assert!(answer.contains(name), "{answer}");
    }
    assert!(!answer.contains(".env") && !notes.contains(".env"));
    assert!(notes.contains("offline stand-in"));
    assert!(
        notes.contains("→ list_files") && notes.contains("← list_files: README.md"),
        "{notes}"
    );
    assert!(notes.contains("tokens in"));

    let (_, answer, _) = ask("where is the lamp mentioned?").await;
    assert!(
        answer.contains("keeper.txt:2: `The lamp burns.`"),
        "{answer}"
    );
    let (_, answer, notes) = ask(ABOUT).await;
    assert!(
        notes.contains(r#"→ read_file {"path":"README.md"}"#),
        "{notes}"
    );
    assert!(answer.contains("Keeps the lamp lit."), "{answer}");
    let (code, answer, _) = ask("read ../../etc/passwd").await;
    assert_eq!(code, Some(0));
    assert!(
        answer.contains("relative to the current folder") && !answer.contains("root:"),
        "{answer}"
    );
}

#[tokio::test]
async fn quickstart_without_a_question_prints_its_usage() {
    let folder = Folder::new("usage");
    let (code, answer, notes) = output(&mut command("quickstart", &folder.0)).await;
    assert_eq!((code, answer.as_str()), (Some(2), ""));
    assert!(notes.starts_with("Usage:"), "{notes}");
}

#[tokio::test]
async fn quickstart_runs_a_tool_round_over_http() {
    let folder = Folder::new("openai");
    let openai = OpenAi::start().await;
    let mut command = openai.quickstart(&folder.0, "key-1");
    let (code, answer, notes) = output(command.arg("who sleeps?")).await;
    assert_eq!(code, Some(0), "{notes}");
    assert_eq!(answer, "It is the keeper.\n");
    assert!(
        notes.contains(r#"→ read_file {"path":"keeper.txt"}"#),
        "{notes}"
    );
    assert!(notes.contains("22 tokens in, 9 out"), "{notes}");
    assert!(
        !notes.contains("key-1") && !notes.contains("stand-in"),
        "{notes}"
    );

    let requests = openai.requests.lock().unwrap();
    let [first, second] = requests.as_slice() else {
        panic!("{requests:?}")
    };
    assert_eq!(first["model"], "a-model");
    assert_eq!(first["messages"][0]["role"], "system");
    assert_eq!(first["messages"][1]["content"], "who sleeps?");
    let tools = first["tools"].as_array().unwrap();
    let read = tools
        .iter()
        .find(|tool| tool["function"]["name"] == "read_file")
        .unwrap();
    assert_eq!(
        read["function"]["parameters"]["properties"]["path"]["type"],
        "string"
    );
    let messages = second["messages"].as_array().unwrap();
    let result = messages.last().unwrap();
    assert_eq!(
        (&result["role"], &result["tool_call_id"]),
        (&json!("tool"), &json!("call_abc"))
    );
    assert!(
        result["content"]
            .as_str()
            .unwrap()
            .contains("The keeper sleeps.")
    );
}

#[tokio::test]
async fn quickstart_reports_an_invalid_key() {
    let folder = Folder::new("key");
    let openai = OpenAi::start().await;
    let (code, answer, notes) = output(openai.quickstart(&folder.0, "key-2").arg("hello")).await;
    assert_eq!((code, answer.as_str()), (Some(1), ""), "{notes}");
    assert!(
        notes.contains("HTTP 401") && notes.contains("no such key"),
        "{notes}"
    );
    assert!(
        notes.contains("Check that OPENAI_API_KEY is correct"),
        "{notes}"
    );
    assert!(!notes.contains("key-2"), "{notes}");
    assert_eq!(notes.lines().count(), 2, "{notes}");
}

#[tokio::test]
async fn quickstart_reports_a_refused_connection() {
    let folder = Folder::new("refused");
    // A port that was free before.
    let port = TcpListener::bind("127.0.0.1:0")
        .await
        .unwrap()
        .local_addr()
        .unwrap()
        .port();
    let mut command = command("quickstart", &folder.0);
    command
        .env("OPENAI_API_KEY", "k")
        .env("OPENAI_BASE_URL", format!("http://127.0.0.1:{port}/v1"));
    let (code, answer, notes) = output(command.arg("hello")).await;
    assert_eq!((code, answer.as_str()), (Some(1), ""), "{notes}");
    assert!(
        notes.contains("refused") && notes.contains("OPENAI_BASE_URL"),
        "{notes}"
    );
    assert_eq!(notes.lines().count(), 2, "{notes}");
}

#[cfg(unix)]
#[tokio::test]
async fn ctrl_c_cancels_quickstart() {
    let folder = Folder::new("ctrl-c");
    let openai = OpenAi::start().await;
    let mut command = openai.quickstart(&folder.0, "key-1");
    let mut child = command
        .arg("hang")
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut first = [0; 6];
    timeout(LIMIT, child.stdout.as_mut().unwrap().read_exact(&mut first))
        .await
        .unwrap()
        .unwrap();
    assert_eq!(&first, b"Let me");
    interrupt(&child, "-INT").await;
    let output = timeout(LIMIT, child.wait_with_output())
        .await
        .unwrap()
        .unwrap();
    let notes = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(130), "{notes}");
    assert!(notes.contains("cancelled (User)"), "{notes}");
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

// ---- approval ----

async fn approval(folder: &Folder, args: &[&str]) -> (Option<i32>, String, String) {
    output(command("approval", &folder.0).args(args)).await
}

/// Runs the example until it is interrupted, and returns the interrupt's id.
async fn interrupted(folder: &Folder, wish: &str) -> String {
    let (code, answer, notes) = approval(folder, &[wish]).await;
    assert_eq!((code, answer.as_str()), (Some(3), ""), "{notes}");
    let mut lines = notes.lines();
    let line = lines.rfind(|line| line.contains(" --approve "));
    line.unwrap().split_whitespace().last().unwrap().to_owned()
}

/// Returns the current content of a file.
fn there(folder: &Folder, name: &str) -> Option<String> {
    std::fs::read_to_string(folder.0.join(name)).ok()
}

#[tokio::test]
async fn approval_is_given_in_another_process() {
    let folder = Folder::new("approve");
    let (code, _, notes) = approval(&folder, &["write hello to note.txt"]).await;
    assert_eq!(code, Some(3), "{notes}");
    assert!(notes.contains("Allow the call of `write_file`?"), "{notes}");
    assert!(
        notes.contains(r#"  write_file {"path":"note.txt","text":"hello"}"#),
        "{notes}"
    );
    assert_eq!(there(&folder, "note.txt"), None);

    // The interrupt stays open until there is a reply.
    let (code, _, again) = approval(&folder, &[]).await;
    assert_eq!(code, Some(3));
    assert!(notes.ends_with(&again), "{again}");

    let (code, answer, notes) = approval(&folder, &["--approve"]).await;
    let expected = (Some(0), "Wrote 5 bytes to note.txt.\n");
    assert_eq!((code, answer.as_str()), expected, "{notes}");
    assert!(!notes.contains("→"), "unexpected tool call: {notes}");
    assert_eq!(there(&folder, "note.txt").as_deref(), Some("hello"));
    let (code, _, notes) = approval(&folder, &[]).await;
    let expected = (Some(0), "No open interrupts.\n");
    assert_eq!((code, notes.as_str()), expected);
}

#[tokio::test]
async fn a_denial_or_edit_is_followed() {
    let folder = Folder::new("deny");
    interrupted(&folder, "write hello to note.txt").await;
    let (code, answer, notes) = approval(&folder, &["--deny", "Not on Sundays."]).await;
    assert_eq!(code, Some(0), "{notes}");
    assert!(answer.contains("Not on Sundays."), "{answer}");
    assert_eq!(there(&folder, "note.txt"), None);

    interrupted(&folder, "write hello to note.txt").await;
    let edited = r#"{"path": "src/other.txt", "text": "bye"}"#;
    let (code, answer, notes) = approval(&folder, &["--edit", edited]).await;
    assert_eq!(code, Some(0), "{notes}");
    assert_eq!(answer, "Wrote 3 bytes to src/other.txt.\n");
    assert_eq!(there(&folder, "note.txt"), None);
    assert_eq!(there(&folder, "src/other.txt").as_deref(), Some("bye"));
}

#[tokio::test]
async fn approval_accepts_one_reply() {
    let folder = Folder::new("twice");
    let id = interrupted(&folder, "write hello to note.txt").await;
    let (code, ..) = approval(&folder, &["--approve", &id]).await;
    assert_eq!(code, Some(0));
    std::fs::remove_file(folder.0.join("note.txt")).unwrap();
    for args in [vec!["--approve", &id], vec!["--deny", "no", &id]] {
        let (code, answer, notes) = approval(&folder, &args).await;
        assert_eq!((code, answer.as_str()), (Some(1), ""), "{notes}");
        assert!(notes.contains("the run is over"), "{notes}");
    }
    assert_eq!(there(&folder, "note.txt"), None);
    let (code, _, notes) = approval(&folder, &["--approve", "another"]).await;
    assert_eq!(code, Some(1));
    assert!(
        notes.contains("the run to resume does not exist"),
        "{notes}"
    );
}

#[tokio::test]
async fn approval_of_several_interrupts_requires_an_id() {
    let folder = Folder::new("several");
    let first = interrupted(&folder, "write one to one.txt").await;
    interrupted(&folder, "write two to two.txt").await;
    let (code, _, notes) = approval(&folder, &["--approve"]).await;
    assert_eq!(code, Some(1));
    assert!(notes.contains("pass an id"), "{notes}");
    let (code, ..) = approval(&folder, &["--approve", &first]).await;
    assert_eq!(code, Some(0));
    assert_eq!(there(&folder, "one.txt").as_deref(), Some("one"));
    assert_eq!(there(&folder, "two.txt"), None);
    let (code, ..) = approval(&folder, &["--deny", "no"]).await;
    assert_eq!(code, Some(0));
}

#[tokio::test]
async fn concurrent_approvals_count_once() {
    let folder = Folder::new("race");
    for round in 0..4 {
        let id = interrupted(&folder, &format!("write {round} to note.txt")).await;
        let answer = async || approval(&folder, &["--approve", &id]).await;
        let (one, other) = tokio::join!(answer(), answer());
        let (won, lost) = match one.0 {
            Some(0) => (one, other),
            _ => (other, one),
        };
        assert_eq!(won.0, Some(0), "{}\n{}", won.2, lost.2);
        assert_eq!((lost.0, lost.1.as_str()), (Some(1), ""), "{}", lost.2);
        assert!(lost.2.contains("Error: conflict: "), "{}", lost.2);
        assert_eq!(there(&folder, "note.txt"), Some(round.to_string()));
    }
}

/// Runs the example until it prints a line that begins with `line`, and kills it.
#[cfg(unix)]
async fn killed_after(folder: &Folder, args: &[&str], line: &str) {
    let mut command = command("approval", &folder.0);
    command.args(args).stdout(Stdio::null());
    let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
    let printed = async {
        loop {
            let next = lines.next_line().await.unwrap().expect("a further line");
            if next.starts_with(line) {
                return;
            }
        }
    };
    timeout(LIMIT, printed).await.unwrap();
    child.kill().await.unwrap();
}

/// Resumes the run once the lease of the killed process has expired.
#[cfg(unix)]
async fn continued(folder: &Folder) -> (Option<i32>, String, String) {
    let again = async {
        loop {
            let found = approval(folder, &["--continue"]).await;
            if !found.2.contains("No abandoned runs.") {
                return found;
            }
            tokio::time::sleep(Duration::from_millis(250)).await;
        }
    };
    timeout(LIMIT, again).await.unwrap()
}

#[cfg(unix)]
#[tokio::test]
async fn a_run_killed_after_the_write_does_not_repeat_it() {
    let folder = Folder::new("killed");
    let id = interrupted(&folder, "write hello to note.txt").await;
    killed_after(&folder, &["--approve", &id], "← write_file").await;
    // A second write would replace this text.
    std::fs::write(folder.0.join("note.txt"), "changed since").unwrap();
    let (code, answer, notes) = continued(&folder).await;
    let expected = (Some(0), "Wrote 5 bytes to note.txt.\n");
    assert_eq!((code, answer.as_str()), expected, "{notes}");
    let now = there(&folder, "note.txt");
    assert_eq!(now.as_deref(), Some("changed since"));
    let (code, _, notes) = approval(&folder, &["--approve", &id]).await;
    assert_eq!(code, Some(1));
    assert!(notes.contains("the run is over"), "{notes}");
}

#[cfg(unix)]
#[tokio::test]
async fn a_run_killed_while_reading_continues() {
    let folder = Folder::new("continue");
    killed_after(&folder, &[ABOUT], "← read_file").await;
    let (code, answer, notes) = continued(&folder).await;
    assert_eq!(code, Some(0), "{notes}");
    assert!(answer.contains("Keeps the lamp lit."), "{answer}");
}

#[tokio::test]
async fn approval_with_an_unknown_flag_prints_its_usage() {
    let folder = Folder::new("approval-usage");
    let (code, answer, notes) = approval(&folder, &["--aprove"]).await;
    assert_eq!((code, answer.as_str()), (Some(2), ""));
    assert!(notes.starts_with("Usage:"), "{notes}");
}

// ---- serve ----

/// Starts the example, and returns its address.
async fn serve(folder: &Path) -> (Child, String) {
    let mut command = command("serve", folder);
    let mut child = command
        .env("PORT", "0")
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
    let address = timeout(LIMIT, async {
        loop {
            let line = lines.next_line().await.unwrap().expect("a further line");
            if let Some(url) = line.strip_prefix("Listening on http://") {
                return url.strip_suffix("/agent").unwrap().to_owned();
            }
        }
    });
    let address = address.await.unwrap();
    // Drain the log, so that the pipe does not fill up.
    tokio::spawn(async move { while let Ok(Some(_)) = lines.next_line().await {} });
    (child, address)
}

async fn send(address: &str, request: String) -> TcpStream {
    let mut connection = TcpStream::connect(address).await.unwrap();
    connection.write_all(request.as_bytes()).await.unwrap();
    connection
}

async fn rest(mut connection: TcpStream) -> String {
    let mut response = String::new();
    timeout(LIMIT, connection.read_to_string(&mut response))
        .await
        .unwrap()
        .unwrap();
    response
}

fn run(host: &str, question: &str) -> String {
    let message = json!({"id": "m1", "role": "user", "content": question});
    request(
        host,
        &json!({
            "threadId": "t1", "runId": "r1", "messages": [message],
            "tools": [], "context": [], "state": {}, "forwardedProps": {},
        }),
    )
}

fn request(host: &str, body: &Value) -> String {
    let body = body.to_string();
    let length = body.len();
    format!(
        "POST /agent HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\ncontent-type: application/json\r\n\
         content-length: {length}\r\n\r\n{body}"
    )
}

/// Returns the events of a response.
fn values(response: &str) -> Vec<Value> {
    let events = response
        .lines()
        .filter_map(|line| line.strip_prefix("data: "));
    events
        .map(|event| serde_json::from_str(event).unwrap())
        .collect()
}

/// Returns the types of the events of a response, and their text.
fn events(response: &str) -> (Vec<String>, String) {
    let events = values(response);
    let deltas = events
        .iter()
        .filter(|event| event["type"] == "TEXT_MESSAGE_CONTENT");
    let text = deltas.filter_map(|event| event["delta"].as_str()).collect();
    (
        events
            .iter()
            .map(|event| event["type"].as_str().unwrap().to_owned())
            .collect(),
        text,
    )
}

#[tokio::test]
async fn serve_answers_over_ag_ui() {
    let folder = Folder::new("serve");
    let (_child, address) = serve(&folder.0).await;
    let health = format!("GET /health HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n\r\n");
    assert!(rest(send(&address, health).await).await.ends_with("ok"));

    let response = rest(send(&address, run(&address, LIST)).await).await;
    assert!(response.starts_with("HTTP/1.1 200 OK"), "{response}");
    assert!(
        response.contains("x-request-id: ") && response.contains("text/event-stream"),
        "{response}"
    );
    let (types, text) = events(&response);
    assert_eq!(types.first().map(String::as_str), Some("RUN_STARTED"));
    assert_eq!(types.last().map(String::as_str), Some("RUN_FINISHED"));
    for wanted in [
        "TOOL_CALL_START",
        "TOOL_CALL_END",
        "TOOL_CALL_RESULT",
        "TEXT_MESSAGE_START",
        "TEXT_MESSAGE_END",
    ] {
        assert!(types.iter().any(|t| t == wanted), "{wanted}: {types:?}");
    }
    assert!(
        text.contains("keeper.txt") && text.contains("src/lamp.rs"),
        "{text}"
    );
}

#[tokio::test]
async fn serve_resumes_an_interrupted_run_in_another_process() {
    let folder = Folder::new("serve-asks");
    let user = json!({"id": "m1", "role": "user", "content": "write hello to note.txt"});
    let asking = json!({"threadId": "t1", "runId": "r1", "messages": [user],
        "tools": [], "context": [], "state": {}, "forwardedProps": {}});
    let (mut first, address) = serve(&folder.0).await;
    let asked = values(&rest(send(&address, request(&address, &asking)).await).await);
    let outcome = &asked.last().unwrap()["outcome"];
    assert_eq!(outcome["type"], "interrupt", "{asked:?}");
    let interrupt = &outcome["interrupts"][0];
    assert_eq!(interrupt["reason"], "tool_call");
    first.kill().await.unwrap();
    assert_eq!(there(&folder, "note.txt"), None);

    // The request of a client that has kept the conversation.
    let call = json!({"id": interrupt["toolCallId"], "type": "function", "function": {
        "name": "write_file", "arguments": r#"{"path":"note.txt","text":"hello"}"#}});
    let message = asked
        .iter()
        .find_map(|event| event["parentMessageId"].as_str())
        .unwrap();
    let assistant = json!({"id": message, "role": "assistant", "toolCalls": [call]});
    let reply = json!({"interruptId": interrupt["id"], "status": "resolved",
        "payload": {"approved": true}});
    let mut answer = asking.clone();
    answer["runId"] = json!("r2");
    answer["messages"] = json!([user, assistant]);
    answer["resume"] = json!([reply]);
    let (_child, address) = serve(&folder.0).await;
    let done = rest(send(&address, request(&address, &answer)).await).await;
    let (types, text) = events(&done);
    assert_eq!(
        types.last().map(String::as_str),
        Some("RUN_FINISHED"),
        "{done}"
    );
    assert_eq!(text, "Wrote 5 bytes to note.txt.");
    assert_eq!(there(&folder, "note.txt").as_deref(), Some("hello"));

    answer["runId"] = json!("r3");
    let again = values(&rest(send(&address, request(&address, &answer)).await).await);
    assert_eq!(again.last().unwrap()["code"], "run_ended", "{again:?}");
}

#[tokio::test]
async fn serve_accepts_only_local_requests() {
    let folder = Folder::new("host");
    let (_child, address) = serve(&folder.0).await;
    let response = rest(send(&address, run("pages.example", "hello")).await).await;
    assert!(response.starts_with("HTTP/1.1 403"), "{response}");
    let ask = |origin: &str| {
        let head = format!(
            "OPTIONS /agent HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\norigin: {origin}\r\n"
        );
        format!(
            "{head}access-control-request-method: POST\r\naccess-control-request-headers: content-type\r\n\r\n"
        )
    };
    let local = rest(send(&address, ask("http://localhost:5173")).await).await;
    assert!(
        local.contains("access-control-allow-origin: http://localhost:5173"),
        "{local}"
    );
    let foreign = rest(send(&address, ask("https://pages.example")).await).await;
    assert!(
        !foreign.contains("access-control-allow-origin"),
        "{foreign}"
    );
}

#[cfg(unix)]
#[tokio::test]
async fn serve_completes_running_responses_on_shutdown() {
    let folder = Folder::new("stop");
    let (mut child, address) = serve(&folder.0).await;
    let mut connection = send(&address, run(&address, ABOUT)).await;
    let mut first = vec![0; 16];
    connection.read_exact(&mut first).await.unwrap();
    interrupt(&child, "-TERM").await;
    let (types, _) = events(&rest(connection).await);
    assert_eq!(types.last().map(String::as_str), Some("RUN_FINISHED"));
    assert!(
        timeout(LIMIT, child.wait())
            .await
            .unwrap()
            .unwrap()
            .success()
    );
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
