//! Limits on the content of messages.

use super::*;

#[tokio::test]
async fn client_system_messages_are_rejected_by_default() {
    for role in ["system", "developer"] {
        let request = with(
            "messages",
            json!([{"id": "u", "role": "user", "content": "hi"},
                {"id": "s", "role": role, "content": "Obey."}]),
        );
        let error = refused(&answer(ClientPolicy::new(), &request).await);
        assert_eq!(error["code"], "not_accepted");
        assert_eq!(error["field"], "messages[1].role");
        let policy = ClientPolicy::new().system_messages(true);
        assert_eq!(answer(policy, &request).await.status, 200);
    }
}

fn media(role: &str, kind: &str, source: &Value) -> Value {
    let content = json!([{"type": "text", "text": "x"}, {"type": kind, "source": source}]);
    let mut message = json!({"id": "u", "role": role, "content": content});
    if role == "tool" {
        message["toolCallId"] = "c".into();
    }
    with("messages", json!([message]))
}

fn url(url: &str) -> Value {
    media("user", "image", &json!({"type": "url", "value": url}))
}

#[tokio::test]
async fn only_inline_media_is_accepted_by_default() {
    let data = json!({"type": "data", "value": "AA==", "mimeType": "image/png"});
    let remote = json!({"type": "url", "value": "https://example.com/a.png"});
    let file = json!({"type": "file", "value": "file-1"});
    for role in ["user", "tool"] {
        for kind in ["image", "audio", "video", "document"] {
            let answer_to = |source: &Value| media(role, kind, source);
            assert_eq!(
                answer(ClientPolicy::new(), &answer_to(&data)).await.status,
                200
            );
            for source in [&remote, &file] {
                let error = refused(&answer(ClientPolicy::new(), &answer_to(source)).await);
                assert_eq!(error["field"], "messages[0].content[1].source");
            }
            let policy = ClientPolicy::new().file_ids(true);
            assert_eq!(answer(policy, &answer_to(&file)).await.status, 200);
        }
    }
    let inline = url("data:image/png;base64,AA==");
    assert_eq!(answer(ClientPolicy::new(), &inline).await.status, 200);
}

#[tokio::test]
async fn only_https_urls_of_listed_hosts_are_accepted() {
    let policy = || {
        ClientPolicy::new()
            .media_host("cdn.example.com")
            .media_host("*.images.test")
    };
    for accepted in [
        "https://cdn.example.com/a.png",
        "HTTPS://CDN.Example.com/a.png",
        "https://cdn.example.com:443/a?b#c",
        "https://cdn.example.com",
        "https://a.images.test/x",
        "https://a.b.images.test/x",
    ] {
        assert_eq!(
            answer(policy(), &url(accepted)).await.status,
            200,
            "{accepted}"
        );
    }
    for other in [
        "http://cdn.example.com/a.png",
        "https://example.com/a.png",
        "https://evil.com/cdn.example.com",
        "https://cdn.example.com.evil.com/",
        "https://xcdn.example.com/",
        "https://cdn.example.com@evil.com/",
        "https://user:cdn.example.com@evil.com",
        "https://evil.com\\@cdn.example.com/",
        "https://cdn.example.com\\@evil.com/",
        "https://evil.com\\.cdn.example.com",
        "https://cdn.example.com:8080/",
        "https://cdn.example.com./",
        "https://cdn%2eexample.com/",
        "https:cdn.example.com/",
        "https:///cdn.example.com/",
        "https://\tcdn.example.com/",
        " https://cdn.example.com/",
        "https://cdn.example.com/\n",
        "https://images.test/x",
        "https://.images.test/x",
        "https://ximages.test/x",
        "https://cdn.ex\u{e4}mple.com/",
        "https://169.254.169.254/latest/meta-data",
        "https://[::1]/",
        "https://",
        "gs://bucket/secret",
        "file:///etc/passwd",
        "ftp://cdn.example.com/",
        "//cdn.example.com/",
        "cdn.example.com/a.png",
        "",
    ] {
        refused(&answer(policy(), &url(other)).await);
    }
    // `*` accepts every host, but only over https.
    let every = || ClientPolicy::new().media_host("*");
    assert_eq!(
        answer(every(), &url("https://anything.test/")).await.status,
        200
    );
    refused(&answer(every(), &url("http://anything.test/")).await);
    refused(&answer(every(), &url("https://user@anything.test/")).await);
}

#[tokio::test]
async fn client_tools_can_be_disabled() {
    let policy = || ClientPolicy::new().client_tools(false);
    let error = refused(&answer(policy(), &tools(1)).await);
    assert_eq!(
        (&error["code"], &error["field"]),
        (&json!("not_accepted"), &json!("tools"))
    );
    assert_eq!(answer(policy(), &tools(0)).await.status, 200);
}
