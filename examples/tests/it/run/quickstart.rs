//! `quickstart`.

use super::*;

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
