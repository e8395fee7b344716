use super::*;
use crate::support::Asked;
use concentric_core::{
    Executor, MediaSource, PartKind, Role, ToolChoice, Turn, message::Media, store::Tenant,
};
use concentric_http::ClientPolicy;
use std::time::Duration;

fn open_policy() -> ClientPolicy {
    ClientPolicy::new()
        .system_messages(true)
        .file_ids(true)
        .media_host("*")
}

/// The request to the model for a request of the client.
async fn asked(request: http::Request<Full<Bytes>>) -> ChatRequest {
    let asked = Asked::default();
    let api = OpenAi::new()
        .model("m", asked.agent())
        .client_policy(open_policy());
    let reply = send(&api, request).await;
    assert_eq!(reply.status, 200, "{}", reply.body);
    asked.take()
}

/// The status and the `param` of a rejected request, which is not passed to the model.
async fn rejected(api: &OpenAi, request: http::Request<Full<Bytes>>) -> (u16, Option<String>) {
    let reply = send(api, request).await;
    let error = reply.error();
    assert_eq!(error["type"], "invalid_request_error");
    (reply.status, error["param"].as_str().map(str::to_owned))
}

#[tokio::test]
async fn parameters_become_options() {
    let format = json!({"name": "out", "schema": {"type": "object"}, "strict": true});
    let request = asked(chat(json!({
        "tools": chat_tools(&["look"]), "tool_choice": "required", "parallel_tool_calls": false,
        "response_format": {"type": "json_schema", "json_schema": format},
        "temperature": 0, "top_p": 1, "frequency_penalty": -2.0, "presence_penalty": 2,
        "max_completion_tokens": u32::MAX, "max_tokens": 1, "stop": "END", "seed": i64::MIN,
        "reasoning_effort": "low", "metadata": {"k": "v"}, "user": "u", "n": 1, "store": true,
        "logprobs": false, "modalities": ["text"], "unknown": {"deep": [1, 2]},
        "service_tier": "flex", "stream": null, "functions": null,
    })))
    .await;
    let options = &request.options;
    assert_eq!(options.model, None, "the stack selects the model");
    assert_eq!(options.tool_choice, Some(ToolChoice::Required));
    assert_eq!(options.parallel_tool_calls, Some(false));
    let output = options.output_schema.as_ref().unwrap();
    assert_eq!((output.name.as_str(), output.strict), ("out", true));
    assert_eq!((options.temperature, options.top_p), (Some(0.0), Some(1.0)));
    assert_eq!(options.frequency_penalty, Some(-2.0));
    assert_eq!(options.presence_penalty, Some(2.0));
    assert_eq!(options.max_output_tokens, Some(u32::MAX));
    assert_eq!(options.stop, ["END"]);
    assert_eq!(options.seed, Some(i64::MIN));
    assert_eq!(options.reasoning_effort.as_deref(), Some("low"));
    assert_eq!(options.metadata["k"], "v");
    assert_eq!(
        request.tools.get("look").unwrap().input_schema["type"],
        "object"
    );

    let choice = json!({"type": "function", "function": {"name": "look"}});
    let request = asked(chat(
        json!({"stop": ["a", "b"], "max_tokens": 9, "tool_choice": choice,
        "tools": chat_tools(&["look"]), "response_format": {"type": "json_object"}}),
    ))
    .await;
    assert_eq!(request.options.stop, ["a", "b"]);
    assert_eq!(request.options.max_output_tokens, Some(9));
    assert_eq!(
        request.options.tool_choice,
        Some(ToolChoice::Tool("look".into()))
    );
    assert!(!request.options.output_schema.as_ref().unwrap().strict);

    let request = asked(response(json!({
        "text": {"format": {"type": "json_schema", "name": "out", "schema": {"type": "object"}}},
        "max_output_tokens": 9, "reasoning": {"effort": "high"}, "tool_choice": "none",
        "include": ["x"], "truncation": "auto", "top_logprobs": 0, "instructions": "Be brief.",
    })))
    .await;
    assert_eq!(request.options.output_schema.as_ref().unwrap().name, "out");
    assert_eq!(request.options.max_output_tokens, Some(9));
    assert_eq!(request.options.reasoning_effort.as_deref(), Some("high"));
    assert_eq!(request.options.tool_choice, Some(ToolChoice::None));
    assert_eq!(request.system.text(), "Be brief.");
}

#[tokio::test]
async fn a_chat_becomes_a_conversation() {
    let request = asked(chat(json!({
        "tools": chat_tools(&["look"]),
        "messages": [
            {"role": "system", "content": "One."},
            {"role": "developer", "content": [{"type": "text", "text": "Two."}]},
            {"role": "user", "name": "ann", "content": [
                {"type": "text", "text": "look"},
                {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA", "detail": "low"}},
                {"type": "image_url", "image_url": {"url": "https://example.com/a.png"}},
                {"type": "input_audio", "input_audio": {"data": "BBBB", "format": "mp3"}},
                {"type": "file", "file": {"file_data": "data:application/pdf;base64,CCCC", "filename": "a.pdf"}},
                {"type": "file", "file": {"file_id": "file-1"}},
            ]},
            {"role": "assistant", "content": "Looking.", "tool_calls": [
                {"id": "a", "type": "function", "function": {"name": "look", "arguments": "{}"}},
                {"id": "b", "type": "function", "function": {"name": "gone", "arguments": "{\"x\""}},
            ]},
            {"role": "tool", "tool_call_id": "b", "content": "two"},
            {"role": "tool", "tool_call_id": "a", "content": "one"},
            {"role": "assistant", "content": null, "refusal": "No."},
            {"role": "system", "content": "Late."},
            {"role": "user", "content": "on"},
        ],
    })))
    .await;
    assert_eq!(request.system.text(), "One.\n\nTwo.");
    let turns: Vec<&Turn> = request.transcript.iter().collect();
    assert_eq!(turns.len(), 5);
    let parts: Vec<&PartKind> = turns[0]
        .as_message()
        .parts
        .iter()
        .map(|part| &part.kind)
        .collect();
    let base64 =
        |data: &str, kind: &str| Media::new(MediaSource::Base64(data.into())).with_media_type(kind);
    assert_eq!(*parts[0], PartKind::Text("look".into()));
    assert_eq!(*parts[1], PartKind::Image(base64("AAAA", "image/png")));
    let url = MediaSource::Url("https://example.com/a.png".into());
    assert_eq!(*parts[2], PartKind::Image(Media::new(url)));
    assert_eq!(*parts[3], PartKind::Audio(base64("BBBB", "audio/mpeg")));
    assert_eq!(
        *parts[4],
        PartKind::File(base64("CCCC", "application/pdf").with_name("a.pdf"))
    );
    assert_eq!(
        *parts[5],
        PartKind::File(Media::new(MediaSource::Id("file-1".into())))
    );
    let round = turns[1].as_round().unwrap();
    let calls: Vec<Executor> = round
        .message()
        .tool_calls()
        .map(|call| call.executor)
        .collect();
    assert_eq!(calls, [Executor::Client, Executor::Loop]);
    let results = round
        .results()
        .iter()
        .map(|it| it.outcome.content.text().into_owned());
    assert_eq!(results.collect::<Vec<_>>(), ["one", "two"]);
    assert_eq!(
        turns[2].as_message().parts[0].kind,
        PartKind::Refusal("No.".into())
    );
    assert_eq!(turns[3].as_message().role, Role::System);
    assert_eq!(turns[4].as_message().text(), "on");
}

#[tokio::test]
async fn the_items_of_a_response_become_a_conversation() {
    let request = asked(response(json!({
        "tools": response_tools(&["look"]),
        "input": [
            {"role": "developer", "content": "One."},
            {"role": "user", "content": [
                {"type": "input_text", "text": "look"},
                {"type": "input_image", "image_url": "data:image/png;base64,AAAA", "detail": "auto"},
                {"type": "input_file", "file_data": "data:application/pdf;base64,CCCC"},
            ]},
            {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "x",
                "content": [{"type": "reasoning_text", "text": "hm"}]},
            {"type": "message", "id": "msg_1", "status": "completed", "role": "assistant", "content": [
                {"type": "output_text", "text": "Looking.", "annotations": []}]},
            {"type": "function_call", "id": "fc_1", "call_id": "a", "name": "look", "arguments": "{}"},
            {"type": "function_call", "call_id": "b", "name": "look", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "b", "output": "two"},
            {"type": "function_call_output", "call_id": "a", "output": [{"type": "input_text", "text": "one"}]},
            {"type": "message", "role": "user", "content": "on"},
        ],
    })))
    .await;
    assert_eq!(request.system.text(), "One.");
    let turns: Vec<&Turn> = request.transcript.iter().collect();
    assert_eq!(turns.len(), 3);
    assert_eq!(turns[0].as_message().parts.len(), 3);
    let round = turns[1].as_round().unwrap();
    assert_eq!(round.message().text(), "Looking.");
    let results = round
        .results()
        .iter()
        .map(|it| it.outcome.content.text().into_owned());
    assert_eq!(results.collect::<Vec<_>>(), ["one", "two"]);
}

#[tokio::test]
async fn an_invalid_field_is_named() {
    let asked = Asked::default();
    let api = OpenAi::new().model("m", asked.agent());
    let user = json!({"role": "user", "content": "hi"});
    let calls =
        json!([{"id": "a", "type": "function", "function": {"name": "f", "arguments": ""}}]);
    let own = json!({"role": "assistant", "tool_calls": calls});
    let image = |url| json!({"type": "image_url", "image_url": {"url": url}});
    for (fields, param) in [
        (json!({"messages": []}), "messages"),
        (json!({"messages": "hi"}), "messages"),
        (
            json!({"messages": [{"role": "user"}]}),
            "messages[0].content",
        ),
        (
            json!({"messages": [user, {"role": "judge", "content": ""}]}),
            "messages[1].role",
        ),
        (
            json!({"messages": [{"role": "user", "content": 7}]}),
            "messages[0].content",
        ),
        (
            json!({"messages": [{"role": "user", "content": [{"type": "video"}]}]}),
            "messages[0].content[0].type",
        ),
        (
            json!({"messages": [{"role": "user", "content": [image("http://127.0.0.1/")]}]}),
            "messages[0].content[0]",
        ),
        (
            json!({"messages": [{"role": "user", "content": [
                {"type": "file", "file": {"file_id": "f"}}]}]}),
            "messages[0].content[0]",
        ),
        (
            json!({"messages": [{"role": "system", "content": [image("data:image/png;base64,A")]}]}),
            "messages[0].content",
        ),
        (json!({"messages": [user, own]}), "messages"),
        (
            json!({"messages": [user, {"role": "tool", "tool_call_id": "x", "content": ""}]}),
            "messages[1]",
        ),
        (json!({"tools": [{"type": "web_search"}]}), "tools[0].type"),
        (json!({"tools": [{"type": "function"}]}), "tools[0].name"),
        (
            json!({"tools": [{"type": "function", "function": {"name": "f", "parameters": []}}]}),
            "tools[0].function.parameters",
        ),
        (
            json!({"tools": chat_tools(&["f", "f"])}),
            "tools[1].function.name",
        ),
        (json!({"tool_choice": "some"}), "tool_choice"),
        (
            json!({"tool_choice": {"type": "allowed_tools"}}),
            "tool_choice",
        ),
        (
            json!({"response_format": {"type": "xml"}}),
            "response_format.type",
        ),
        (
            json!({"response_format": {"type": "json_schema"}}),
            "response_format.schema",
        ),
        (json!({"temperature": 1e300}), "temperature"),
        (json!({"temperature": "hot"}), "temperature"),
        (json!({"max_tokens": -1}), "max_tokens"),
        (json!({"max_tokens": 4_294_967_296_u64}), "max_tokens"),
        (json!({"n": 0}), "n"),
        (json!({"n": 2}), "n"),
        (json!({"logprobs": true}), "logprobs"),
        (json!({"modalities": ["text", "audio"]}), "modalities"),
        (json!({"functions": []}), "functions"),
        (json!({"model": 1}), "model"),
        (json!({"model": null}), "model"),
        (json!({"model": ""}), "model"),
    ] {
        let expected = (400, Some(param.to_owned()));
        assert_eq!(
            rejected(&api, chat(fields.clone())).await,
            expected,
            "{fields}"
        );
    }
    let output = json!({"type": "function_call_output", "call_id": "x", "output": ""});
    let call = json!({"type": "function_call", "call_id": "x", "name": "f", "arguments": "{}"});
    for (fields, param) in [
        (json!({"input": null}), "input"),
        (json!({"input": []}), "input"),
        (
            json!({"input": [{"type": "item_reference", "id": "i"}]}),
            "input",
        ),
        (
            json!({"input": [{"type": "item_reference"}]}),
            "input[0].id",
        ),
        (json!({"input": [{"role": "user"}]}), "input[0].content"),
        (
            json!({"input": [{"role": "user", "content": [{"type": "video"}]}]}),
            "input[0].content[0].type",
        ),
        (json!({"input": [output]}), "input[0]"),
        (json!({"input": [call]}), "input"),
        (json!({"tools": [{"type": "web_search"}]}), "tools[0].type"),
        (
            json!({"text": {"format": {"type": "json_schema", "name": "x"}}}),
            "text.format.schema",
        ),
        (json!({"top_logprobs": 3}), "top_logprobs"),
    ] {
        let expected = (400, Some(param.to_owned()));
        assert_eq!(
            rejected(&api, response(fields.clone())).await,
            expected,
            "{fields}"
        );
    }
    assert!(!asked.is_called());
}

#[tokio::test]
async fn bodies_that_are_not_json_are_rejected() {
    let asked = Asked::default();
    let api = OpenAi::new().model("m", asked.agent());
    let deep = format!("{}1{}", "[".repeat(1 << 20), "]".repeat(1 << 20));
    let (open, close) = ("[".repeat(200), "]".repeat(200));
    let metadata = format!(r#"{{"a":{open}1{close}}}"#);
    let nested = format!(r#"{{"model":"m","input":"a","messages":[],"metadata":{metadata}}}"#);
    let surrogate =
        r#"{"model":"m","messages":[{"role":"user","content":"\ud800"}],"input":"\ud800"}"#;
    for path in ["/chat/completions", "/responses"] {
        for body in [
            "", "{", "null", "[]", "7", "{} {}", "\0", surrogate, &deep, &nested,
        ] {
            let (status, _) = rejected(&api, post(path, body.to_owned())).await;
            assert_eq!(status, 400);
        }
        let (status, _) = rejected(&api, post(path, vec![b'"', 0xff, b'"'])).await;
        assert_eq!(status, 400);
        let text = http::Request::post(path)
            .body(Full::new(Bytes::from("{}")))
            .unwrap();
        assert_eq!(rejected(&api, text).await.0, 415);
    }
    assert!(!asked.is_called());
}

#[tokio::test]
async fn limits_apply_at_their_value() {
    let asked = Asked::default();
    let api = OpenAi::new().model("m", asked.agent());
    let request = || chat(json!({}));
    let len = json!({"model": "m", "messages": [{"role": "user", "content": "hi"}]})
        .to_string()
        .len();
    for (limit, status) in [(0, 413), (len - 1, 413), (len, 200), (usize::MAX, 200)] {
        let reply = send(&api.clone().body_limit(limit), request()).await;
        assert_eq!(reply.status, status);
    }
    let policy = open_policy();
    for (policy, fields, param) in [
        (policy.clone().max_messages(0), json!({}), Some("messages")),
        (policy.clone().max_values(1), json!({}), None),
        (
            policy.clone().max_tools(0),
            json!({"tools": chat_tools(&["f"])}),
            Some("tools"),
        ),
        (
            policy.clone().client_tools(false),
            json!({"tools": chat_tools(&["f"])}),
            Some("tools"),
        ),
        (
            policy.clone().max_id(1),
            json!({"tools": chat_tools(&["ff"])}),
            Some("tools[0].function.name"),
        ),
        (
            policy.clone().max_parts(0),
            json!({"messages": [{"role": "user", "content": [{"type": "text", "text": ""}]}]}),
            Some("messages[0].content"),
        ),
        (
            policy.clone().system_messages(false),
            json!({"messages": [{"role": "developer", "content": ""}]}),
            Some("messages[0].role"),
        ),
    ] {
        let api = api.clone().client_policy(policy);
        let expected = (400, param.map(str::to_owned));
        assert_eq!(rejected(&api, chat(fields)).await, expected);
    }
    let policy = policy.system_messages(false);
    let reply = send(
        &api.clone().client_policy(policy),
        response(json!({"instructions": "Obey."})),
    )
    .await;
    assert_eq!(
        (reply.status, &reply.error()["param"]),
        (400, &json!("instructions"))
    );
    // A body of the maximum number of messages.
    let messages: Value = (0..10_000)
        .map(|_| json!({"role": "user", "content": "x"}))
        .collect();
    assert_eq!(
        send(&api, chat(json!({"messages": messages}))).await.status,
        200
    );
    let messages: Value = (0..10_001)
        .map(|_| json!({"role": "user", "content": "x"}))
        .collect();
    assert_eq!(
        rejected(&api, chat(json!({"messages": messages}))).await.0,
        400
    );
}

#[tokio::test(start_paused = true)]
async fn an_upload_that_stops_is_rejected() {
    let api = OpenAi::new().upload_timeout(Duration::from_secs(3));
    let body = http_body_util::StreamBody::new(stream::pending::<
        Result<http_body::Frame<Bytes>, std::convert::Infallible>,
    >());
    let request = http::Request::post("/responses")
        .header("content-type", "application/json")
        .body(body)
        .unwrap();
    let response = api.oneshot(request).await.unwrap();
    assert_eq!(response.status(), 408);
}

#[tokio::test]
async fn routes_and_models_are_found() {
    let api = api(ok([Event::text("a"), finish()]))
        .alias("gpt-4o", "m")
        .alias("vendor/model x", "m")
        .alias("broken", "none")
        .alias("twice", "gpt-4o");
    let request = |method: &str, path: &str| {
        http::Request::builder()
            .method(method)
            .uri(path)
            .body(Full::<Bytes>::default())
            .unwrap()
    };
    let list = send(&api, request("GET", "/models")).await.json();
    let ids: Vec<&str> = list["data"]
        .as_array()
        .unwrap()
        .iter()
        .map(|m| m["id"].as_str().unwrap())
        .collect();
    assert_eq!(ids, ["gpt-4o", "m", "vendor/model x"]);
    for path in ["/models/vendor/model%20x", "/models/vendor%2Fmodel%20x"] {
        assert_eq!(
            send(&api, request("GET", path)).await.json()["id"],
            "vendor/model x"
        );
    }
    for (method, path, status, code) in [
        ("GET", "/models/none", 404, "model_not_found"),
        ("GET", "/models/%ff", 404, "model_not_found"),
        ("GET", "/models/broken", 404, "model_not_found"),
        ("DELETE", "/models/m", 405, "method_not_allowed"),
        ("POST", "/models", 405, "method_not_allowed"),
        ("GET", "/chat/completions", 405, "method_not_allowed"),
        ("GET", "/responses", 405, "method_not_allowed"),
        ("POST", "/embeddings", 404, "unknown_url"),
        ("GET", "/responses/resp_1", 404, "response_not_found"),
        ("GET", "/", 404, "unknown_url"),
    ] {
        let reply = send(&api, request(method, path)).await;
        assert_eq!(
            (reply.status, &reply.error()["code"]),
            (status, &json!(code)),
            "{path}"
        );
        assert_eq!(reply.headers.contains_key("allow"), status == 405);
    }
    let answer = send(&api, chat(json!({"model": "gpt-4o"}))).await.json();
    assert_eq!(answer["model"], "gpt-4o");
    for name in ["none", "broken", "twice"] {
        for request in [
            chat(json!({"model": name})),
            response(json!({"model": name})),
        ] {
            let reply = send(&api, request).await;
            assert_eq!(
                (reply.status, &reply.error()["code"]),
                (404, &json!("model_not_found"))
            );
        }
    }
    let api = api.default_model("m");
    assert_eq!(
        send(&api, chat(json!({"model": null}))).await.json()["model"],
        "m"
    );
    assert_eq!(send(&api, chat(json!({"model": "none"}))).await.status, 404);
}

#[tokio::test]
async fn extensions_of_the_request_reach_the_run_and_headers_do_not() {
    let asked = Asked::default();
    let api = OpenAi::new().model("m", asked.agent());
    let mut request = chat(json!({}));
    request.extensions_mut().insert(Tenant("acme".into()));
    request
        .headers_mut()
        .insert("authorization", "Bearer sk-secret".parse().unwrap());
    request
        .headers_mut()
        .insert("x-request-id", "req-7".parse().unwrap());
    let reply = send(&api, request).await;
    assert_eq!(reply.headers["x-request-id"], "req-7");
    let context = asked.take().context;
    assert_eq!(
        context.extensions().get::<Tenant>(),
        Some(&Tenant("acme".into()))
    );
    assert_eq!(context.extensions().get::<http::HeaderMap>(), None);
    assert_eq!(context.request_id().as_str(), "req-7");

    send(&api, chat(json!({}))).await;
    assert_eq!(asked.take().context.extensions().get::<Tenant>(), None);
}

#[tokio::test]
async fn a_client_cannot_force_calls_of_hidden_tools() {
    let steps = vec![vec![call("c", "pay", "{}")]];
    let (agent, paid) = agent(steps, ok([finish()]));
    let api = OpenAi::new().model("m", agent);
    for name in ["pay", "gone"] {
        let function = json!({"type": "function", "function": {"name": name}});
        let tool = json!({"type": "function", "name": name});
        for request in [
            chat(json!({"tool_choice": function})),
            chat(json!({"tool_choice": function, "tools": chat_tools(&["look"])})),
            response(json!({"tool_choice": tool})),
            response(json!({"tool_choice": tool, "tools": response_tools(&["look"])})),
        ] {
            let expected = (400, Some("tool_choice".to_owned()));
            assert_eq!(rejected(&api, request).await, expected);
        }
    }
    for request in [
        chat(json!({"tool_choice": "required"})),
        chat(json!({"tool_choice": "required", "tools": []})),
        response(json!({"tool_choice": "required"})),
    ] {
        let expected = (400, Some("tool_choice".to_owned()));
        assert_eq!(rejected(&api, request).await, expected);
    }
    assert_eq!(paid.load(Ordering::SeqCst), 0);
}

#[tokio::test]
async fn a_required_call_does_not_repeat_an_agents_tools() {
    let paid = Arc::new(AtomicUsize::new(0));
    let count = paid.clone();
    let pay = tool("pay", "Pays.", move |_: Value| {
        count.fetch_add(1, Ordering::SeqCst);
        async { Ok::<_, ToolError>("paid".to_owned()) }
    });
    // As a provider does, it calls a tool whenever it must.
    let model = service_fn(|request: ChatRequest| {
        let id = format!("c{}", request.context.step());
        let events = match request.options.tool_choice {
            Some(ToolChoice::Required) => {
                vec![call(&id, "pay", "{}"), finish_by(FinishReason::ToolCalls)]
            }
            _ => vec![Event::text("Paid."), finish()],
        };
        async { Ok::<_, Error>(ChatResponse::new(stream::iter(ok(events)))) }
    });
    let agent = AgentLayer::new(Toolset::new().tool(pay)).layer(model);
    let api = OpenAi::new().model("m", agent);
    let fields = json!({"tool_choice": "required", "tools": chat_tools(&["look"])});
    let answer = send(&api, chat(fields)).await.json();
    assert_eq!(answer["choices"][0]["message"]["content"], "Paid.");
    assert_eq!(answer["choices"][0]["finish_reason"], "stop");
    assert_eq!(paid.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn fields_that_would_change_the_answer_are_rejected() {
    let api = api(ok([finish()]));
    for (request, field) in [
        (chat(json!({"logit_bias": {"50256": -100}})), "logit_bias"),
        (response(json!({"max_tool_calls": 1})), "max_tool_calls"),
        (
            response(json!({"include": ["x", "message.output_text.logprobs"]})),
            "include",
        ),
    ] {
        let expected = (400, Some(field.to_owned()));
        assert_eq!(rejected(&api, request).await, expected);
    }
    for request in [
        chat(json!({"logit_bias": {}})),
        chat(json!({"logit_bias": null})),
        response(json!({"max_tool_calls": null, "include": null})),
        response(json!({"include": ["reasoning.encrypted_content"]})),
    ] {
        assert_eq!(send(&api, request).await.status, 200);
    }
}

#[tokio::test]
async fn a_response_repeats_its_format() {
    let api = api(ok([finish()]));
    let schema = json!({"type": "json_schema", "name": "object", "schema": {"type": "object"}, "strict": false});
    for format in [
        json!({"type": "text"}),
        json!({"type": "json_object"}),
        schema,
    ] {
        let answer = send(&api, response(json!({"text": {"format": format}}))).await;
        assert_eq!(answer.json()["text"]["format"], format);
    }
}
