//! `serve`.

use super::*;

async fn serve(folder: &Path) -> (Child, String) {
    let (child, address, _) = start("serve", folder).await;
    (child, address)
}

/// Starts an example that is a server, and returns its address and, once it has ended, its log.
pub(super) async fn start(example: &str, folder: &Path) -> (Child, String, JoinHandle<String>) {
    let mut command = command(example, folder);
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
    let log = tokio::spawn(async move {
        let mut log = String::new();
        while let Ok(Some(line)) = lines.next_line().await {
            log += &line;
            log.push('\n');
        }
        log
    });
    (child, address, log)
}

pub(super) async fn send(address: &str, request: String) -> TcpStream {
    let mut connection = TcpStream::connect(address).await.unwrap();
    connection.write_all(request.as_bytes()).await.unwrap();
    connection
}

pub(super) async fn rest(mut connection: TcpStream) -> String {
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
pub(super) fn events(response: &str) -> (Vec<String>, String) {
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
