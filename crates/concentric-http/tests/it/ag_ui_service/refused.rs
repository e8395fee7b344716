//! Error responses.

use super::*;

async fn refused(request: http::Request<Full<Bytes>>) -> (u16, Value, http::HeaderMap) {
    let asked = Asked::default();
    let service = AgUiLayer::new().body_limit(1000).layer(asked.agent());
    let answer = send(service, request).await;
    assert!(!asked.is_called());
    assert_eq!(answer.headers["content-type"], "application/json");
    (
        answer.status,
        answer.json()["error"].clone(),
        answer.headers,
    )
}

#[tokio::test]
async fn only_a_post_starts_a_run() {
    for method in ["GET", "HEAD", "PUT", "OPTIONS", "DELETE"] {
        let mut request = post(input().to_string());
        *request.method_mut() = method.parse().unwrap();
        let (status, error, headers) = refused(request).await;
        assert_eq!(
            (status, &error["code"]),
            (405, &json!("method_not_allowed"))
        );
        assert_eq!(headers["allow"], "POST");
    }
}

#[tokio::test]
async fn only_json_starts_a_run() {
    for value in [
        "text/plain",
        "application/jsonp",
        "json",
        "",
        "application/x-www-form-urlencoded",
    ] {
        let mut request = post(input().to_string());
        request
            .headers_mut()
            .insert("content-type", value.parse().unwrap());
        assert_eq!(refused(request).await.0, 415, "{value}");
    }
    let mut request = post(input().to_string());
    request.headers_mut().remove("content-type");
    assert_eq!(refused(request).await.0, 415);

    for value in [
        "application/json; charset=utf-8",
        "Application/JSON",
        "application/vnd.x+json",
    ] {
        let mut request = post(input().to_string());
        request
            .headers_mut()
            .insert("content-type", value.parse().unwrap());
        let service = AgUiLayer::new().layer(agent(vec![Ok(finish())]));
        send(service, request).await.events();
    }
}

#[tokio::test]
async fn a_body_over_the_limit_is_not_read_whole() {
    let (status, error, _) = refused(post(vec![b' '; 1001])).await;
    assert_eq!((status, &error["code"]), (413, &json!("too_large")));

    // A body of unknown length.
    let pieces = stream::repeat_with(|| {
        Ok::<_, std::io::Error>(http_body::Frame::data(Bytes::from_static(&[b' '; 100])))
    });
    let request = post("").map(|_| StreamBody::new(pieces));
    let service = AgUiLayer::new().body_limit(1000).layer(agent(vec![]));
    let response = service.oneshot(request).await.unwrap();
    assert_eq!(response.status(), 413);

    // A limit of tower-http around the service.
    let request = post(vec![b' '; 2000]).map(|body| http_body_util::Limited::new(body, 1000));
    let service = AgUiLayer::new().layer(agent(vec![]));
    let response = service.oneshot(request).await.unwrap();
    assert_eq!(response.status(), 413);
}

#[tokio::test]
async fn an_invalid_body_names_its_field() {
    let mut messages = input();
    messages["messages"][0]["content"] = json!(7);
    let mut tools = input();
    tools["tools"] = json!([{"name": "a", "description": ""}, {"name": "a", "description": ""}]);
    let mut schema = input();
    schema["tools"] = json!([{"name": "a", "description": "", "parameters": "x"}]);
    for (body, field) in [
        (json!({}), json!("threadId")),
        (messages, json!("messages[0].content")),
        (tools, json!("tools[1].name")),
        (schema, json!("tools[0].parameters")),
        (json!(7), json!(null)),
    ] {
        let (status, error, _) = refused(post(body.to_string())).await;
        assert_eq!(status, 400);
        assert_eq!(error["code"], "invalid_request");
        assert_eq!(error["field"], field);
    }
    let (status, error, _) = refused(post("{")).await;
    assert_eq!((status, &error["code"]), (400, &json!("invalid_request")));
}

#[tokio::test]
async fn resume_entries_become_replies() {
    let mut body = input();
    body["resume"] = json!([{"interruptId": "i", "status": "cancelled"}]);
    let request = asked(&body).await;
    let resume = request.resume.unwrap();
    let Some((ResumePoint::InStore, replies)) = resume.take() else {
        panic!("the run is not resumed")
    };
    assert_eq!(replies, [Reply::cancel(InterruptId::new("i"))]);
    // All user messages are passed on; the layer that stores the run skips those it has.
    assert_eq!(resume.messages()[0].text(), "hi");
    assert!(request.transcript.is_empty());

    let user = json!({"id": "u", "role": "user", "content": "hi"});
    let mut body = with_messages(json!([user, calls(&["x"])]));
    body["resume"] = json!([{"interruptId": "a/0/x", "status": "resolved",
        "payload": {"approved": true, "token": "t"}}]);
    let request = asked(&body).await;
    let Some((ResumePoint::UnverifiedHistory(open), replies)) = request.resume.unwrap().take()
    else {
        panic!("the run is not resumed")
    };
    assert_eq!(open.waiting().count(), 1);
    let approved = Reply::approve(InterruptId::new("a/0/x")).with_token("t");
    assert_eq!(replies, [approved]);

    body["resume"] = json!([]);
    assert!(asked(&body).await.resume.is_none());
    let many = vec![json!({"interruptId": "i", "status": "cancelled"}); 257];
    body["resume"] = many.into();
    let service = AgUiLayer::new().layer(Asked::default().agent());
    let answer = send(service, post(body.to_string())).await;
    assert_eq!(answer.status, 422);
    assert_eq!(answer.json()["error"]["field"], "resume");
}

#[tokio::test]
async fn a_truncated_body_is_a_bad_request() {
    let body = stream::iter([
        Ok(http_body::Frame::data(Bytes::from_static(b"{"))),
        Err(std::io::Error::other("reset")),
    ]);
    let request = post("").map(|_| StreamBody::new(body));
    let service = AgUiLayer::new().layer(agent(vec![]));
    let response = service.oneshot(request).await.unwrap();
    assert_eq!(response.status(), 400);
}

proptest! {
    #[test]
    fn random_bytes_never_panic(body in prop::collection::vec(any::<u8>(), 0..200)) {
        let answer = block_on(send(AgUiLayer::new().layer(agent(vec![Ok(finish())])), post(body)));
        prop_assert_eq!(answer.status, 400);
        prop_assert!(answer.json()["error"]["message"].is_string());
    }

    #[test]
    fn a_mutated_body_is_a_run_or_a_bad_request(
        at in any::<prop::sample::Index>(),
        to in prop_oneof![
            Just(json!(null)), Just(json!(1)), Just(json!("x")), Just(json!([])), Just(json!({})),
            Just(json!([null])), Just(json!(-1e300)), Just(json!("\u{0}")),
        ],
        byte in any::<prop::sample::Index>(),
        flip in prop::option::of(any::<u8>()),
    ) {
        let mut body = full_input();
        let mut paths = Vec::new();
        pointers(&body, String::new(), &mut paths);
        *body.pointer_mut(&paths[at.index(paths.len())]).unwrap() = to;
        let mut bytes = body.to_string().into_bytes();
        if let Some(flip) = flip {
            let at = byte.index(bytes.len());
            bytes[at] = flip;
        }
        let layer = AgUiLayer::new().client_policy(open_policy());
        let service = layer.layer(agent(vec![Ok(finish())]));
        let answer = block_on(send(service, post(bytes)));
        match answer.status {
            200 => drop(legal(&answer.body)),
            400 | 422 => prop_assert!(answer.json()["error"]["code"].is_string()),
            status => prop_assert!(false, "{}", status),
        }
    }
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap()
        .block_on(future)
}

fn full_input() -> Value {
    let mut input = with_messages(json!([
        {"id": "s", "role": "system", "content": "s"},
        {"id": "u", "role": "user", "content": [{"type": "text", "text": "x"},
            {"type": "image", "source": {"type": "url", "value": "u"}, "metadata": {"filename": "f"}}]},
        calls(&["x", "x", "y"]),
        {"id": "1", "role": "tool", "toolCallId": "x", "content": "r", "metadata": {"status": "failed"}},
        {"id": "2", "role": "tool", "toolCallId": "z", "content": "r", "error": "e"},
        calls(&["y", "w~2"]),
        {"id": "a~2", "role": "assistant", "content": "more"},
    ]));
    input["tools"] = json!([{"name": "y", "description": "d", "parameters": {}}]);
    input["context"] = json!([{"description": "d", "value": "v"}]);
    input["state"] = json!({"a": [1]});
    input["forwardedProps"] = json!({});
    input["resume"] = json!([
        {"interruptId": "a/0/y", "status": "resolved", "payload": {"approved": true, "token": "t"}},
        {"interruptId": "b/0/w#changed", "status": "cancelled", "metadata": {"token": "t"}},
    ]);
    input["parentRunId"] = json!("p");
    input
}

fn pointers(value: &Value, path: String, out: &mut Vec<String>) {
    match value {
        Value::Object(map) => {
            for (key, value) in map {
                pointers(value, format!("{path}/{key}"), out);
            }
        }
        Value::Array(list) => {
            for (at, value) in list.iter().enumerate() {
                pointers(value, format!("{path}/{at}"), out);
            }
        }
        _ => {}
    }
    out.push(path);
}
