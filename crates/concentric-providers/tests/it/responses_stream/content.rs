use super::*;

// Case F014.
#[tokio::test]
async fn unexpected_events_and_fields_are_ignored() {
    let odd = [
        r#"{"type":"response.new_thing.delta","delta":"x","output_index":9}"#,
        r#"{"type":"codex.rate_limits","message":{"plan":"x"}}"#,
        r#"{"type":"response.shell_call_output_content.done","output_index":7,"item_id":"sho_1","command_index":0,"output":[{"stdout":"hi","stderr":"","outcome":{"type":"exit","exit_code":0}}]}"#,
        r#"{"type":"response.in_progress","error":{},"message":"","code":false}"#,
        r#"{"type":"response.output_text.delta","output_index":"0","content_index":null,"delta":"a","logprobs":-0}"#,
        r#"{"type":"response.output_text.delta","output_index":0,"delta":null}"#,
        r#"{"type":"response.output_text.delta","output_index":0,"delta":["x"],"item_id":7}"#,
        r#"{"type":"response.output_text.delta","output_index":0,"delta":"b","extra":NaN}"#,
        r#"{"type":"response.output_text.annotation.added","output_index":0,"annotation":7}"#,
        r#"{"type":"response.output_item.added","output_index":5,"item":null}"#,
        r#"{"type":"response.output_item.added","output_index":6,"item":7}"#,
        r#"{"type":"response.output_item.done","output_index":6,"item":[]}"#,
        r#"{"type":"response.in_progress","response":7}"#,
        r#"{"type":7}"#,
        "7",
        "null",
    ];
    let body: String = odd
        .iter()
        .map(|chunk| format!("data: {chunk}\n\n"))
        .collect();
    let end = json!({"type": "response.completed", "response": {"status": "FAKE_STATUS", "usage": {"input_tokens": "9", "output_tokens": null},
        "output": [7, null, {"type": "message", "content": 7}, {"type": "reasoning", "summary": "x", "content": [null]}]}});
    let (events, error) = read(body + &event(&end)).await;
    assert!(error.is_none(), "{error:?}");
    assert_eq!(text(&events), "ab");
    let finish = finish_of(&events);
    assert_eq!(finish.provider_reason.as_deref(), Some("FAKE_STATUS"));
    assert_eq!(finish.usage.input_tokens(), Some(9));
    let (_, error) = read("data: {\"type\":\"response.completed\"}\n\n").await;
    assert!(error.is_none());
}

#[tokio::test]
async fn reasoning_is_emitted_and_stored_unchanged() {
    let item = |id: &str| {
        json!({"type": "reasoning", "id": id, "encrypted_content": "gAAA", "status": null,
            "summary": [{"type": "summary_text", "text": "one"}, {"type": "summary_text", "text": "two"}]})
    };
    let summary = |at: u64, delta: &str| json!({"type": "response.reasoning_summary_text.delta", "output_index": 0, "summary_index": at, "delta": delta});
    let raw = |delta: &str| json!({"type": "response.reasoning_text.delta", "output_index": 0, "content_index": 0, "delta": delta});
    let end = || {
        vec![
            text_delta(1, "Hi"),
            ended(json!([item("rs_1"), message("Hi")])),
        ]
    };
    let ways: [(Vec<Value>, &[&str]); 4] = [
        (
            vec![
                summary(0, "o"),
                summary(0, "ne"),
                summary(1, "two"),
                done(0, item("rs_1")),
            ],
            &["one", "two"],
        ),
        (vec![done(0, item("rs_1"))], &["one", "two"]),
        (
            vec![
                raw("one"),
                done(
                    0,
                    json!({"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "gAAA", "content": [{"type": "reasoning_text", "text": "one"}]}),
                ),
            ],
            &["one"],
        ),
        // Hidden reasoning is sent back as well.
        (
            vec![
                added(
                    0,
                    json!({"type": "reasoning", "id": "rs_1", "encrypted_content": "half"}),
                ),
                done(
                    0,
                    json!({"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "gAAA"}),
                ),
            ],
            &[""],
        ),
    ];
    for (events, shown) in ways {
        let (events, error) = read(stream(&[events, end()].concat())).await;
        assert!(error.is_none());
        let message = built(&events);
        let reasoning: Vec<&str> = message
            .parts
            .iter()
            .filter_map(|part| match &part.kind {
                PartKind::Reasoning(text) => Some(text.as_str()),
                _ => None,
            })
            .collect();
        assert_eq!(reasoning, shown);
        let kept: Vec<&Value> = message
            .parts
            .iter()
            .filter(|p| matches!(p.kind, PartKind::Reasoning(_)))
            .filter_map(|part| {
                part.provider_data
                    .as_deref()?
                    .data
                    .pointer("/item/encrypted_content")
            })
            .collect();
        assert_eq!(kept, ["gAAA"]);
    }
}

#[tokio::test]
async fn refusals_citations_and_phases_are_stored() {
    let refusal = json!({"type": "response.refusal.delta", "output_index": 0, "content_index": 0, "delta": "No."});
    let (events, _) = read(stream(&[refusal, ended(json!([]))])).await;
    assert_eq!(
        built(&events).parts[0].kind,
        PartKind::Refusal("No.".into())
    );

    let cited = json!({"type": "url_citation", "url": "https://a.test", "title": "A", "start_index": 0, "end_index": 2});
    let annotation = json!({"type": "response.output_text.annotation.added", "output_index": 0, "content_index": 0, "annotation_index": 0, "annotation": cited});
    let whole = json!({"type": "message", "id": "msg_1", "role": "assistant", "phase": "final_answer", "content": [
        {"type": "output_text", "text": "Hi", "annotations": [cited]},
        {"type": "output_text", "text": "there"},
        {"type": "refusal", "refusal": "No."},
    ]});
    let begun = json!({"type": "message", "id": "msg_1", "phase": "final_answer", "content": []});
    let ways = [
        vec![
            added(0, begun.clone()),
            text_delta(0, "Hi"),
            annotation.clone(),
            done(0, whole.clone()),
        ],
        vec![done(0, whole.clone())],
        vec![added(0, begun), text_delta(0, "Hi"), annotation],
    ];
    for (way, mut events) in ways.into_iter().enumerate() {
        events.push(ended(json!([whole])));
        let (events, error) = read(stream(&events)).await;
        assert!(error.is_none());
        let parts = built(&events).parts;
        let kinds: Vec<&PartKind> = parts.iter().map(|part| &part.kind).collect();
        assert_eq!(
            kinds,
            [
                &PartKind::Text("Hi".into()),
                &PartKind::Text("there".into()),
                &PartKind::Refusal("No.".into())
            ],
            "{way}"
        );
        let data = |at: usize| &parts[at].provider_data.as_deref().unwrap().data;
        assert_eq!(
            data(0)["item"],
            json!({"type": "message", "id": "msg_1", "phase": "final_answer"})
        );
        assert_eq!(data(0)["annotations"], json!([cited]));
        assert!(data(1).get("annotations").is_none());
    }
}

#[tokio::test]
async fn a_citation_is_emitted_once() {
    let text = |delta: &str| text_delta(0, delta);
    let other = json!({"type": "response.output_text.delta", "output_index": 0, "content_index": 1, "delta": "-"});
    let annotation = |of: &str| json!({"type": "response.output_text.annotation.added", "output_index": 0, "content_index": 0, "annotation": of});
    let whole = json!({"type": "message", "id": "msg_1", "content": [
        {"type": "output_text", "text": "abc", "annotations": ["x", "y", "z"]},
        {"type": "output_text", "text": "--"},
    ]});
    let (events, error) = read(stream(&[
        text("a"),
        annotation("x"),
        other.clone(),
        text("b"),
        annotation("y"),
        other,
        text("c"),
        done(0, whole.clone()),
        ended(json!([whole])),
    ]))
    .await;
    assert!(error.is_none());
    let parts = built(&events).parts;
    let cited: Vec<Value> = parts
        .iter()
        .map(|part| part.provider_data.as_deref().unwrap().data["annotations"].clone())
        .collect();
    let none = Value::Null;
    assert_eq!(
        cited,
        [json!(["x"]), none.clone(), json!(["y"]), none, json!(["z"])]
    );
}

#[tokio::test]
async fn every_item_is_converted() {
    let items = [
        json!({"type": "web_search_call", "id": "ws_1", "status": "completed", "action": {"type": "search", "query": "x"}}),
        json!({"type": "file_search_call", "id": "fs_1", "queries": ["x"], "results": null}),
        json!({"type": "code_interpreter_call", "id": "ci_1", "code": "1+1", "container_id": "c", "outputs": []}),
        json!({"type": "mcp_call", "id": "mcp_1", "server_label": "s", "name": "roll", "arguments": "{\"d\":6}", "output": "4"}),
        json!({"type": "shell_call", "id": "sh_1", "call_id": "c1", "action": {"commands": ["ls"]}, "environment": {"type": "container_reference", "container_id": "c"}}),
        json!({"type": "shell_call", "id": "sh_2", "call_id": "c2", "action": {"commands": ["ls"]}, "environment": {"type": "local"}}),
        json!({"type": "local_shell_call", "id": "lsh_1", "call_id": "c3", "action": {"type": "exec", "command": ["ls"], "env": {}}}),
        json!({"type": "apply_patch_call", "id": "apc_1", "call_id": "c4", "operation": {"type": "delete_file", "path": "a"}}),
        json!({"type": "custom_tool_call", "id": "ctc_1", "call_id": "c5", "name": "math", "input": "4 + 4"}),
    ];
    let opaque = [
        "shell_call_output",
        "mcp_list_tools",
        "mcp_approval_request",
        "tool_search_call",
        "tool_search_output",
        "compaction",
        "program",
        "program_output",
        "computer_call",
        "brand_new_item",
    ];
    let mut events = vec![created()];
    for (index, item) in (0..).zip(&items) {
        let mut begun = item.clone();
        begun["status"] = json!("in_progress");
        events.extend([added(index, begun), done(index, item.clone())]);
    }
    for (index, type_) in (20..).zip(opaque) {
        events.push(done(
            index,
            json!({"type": type_, "id": "x", "field": {"a": 1}}),
        ));
    }
    let image = json!({"type": "image_generation_call", "id": "ig_1", "status": "completed", "result": "QUJD", "output_format": "webp"});
    events.extend([done(40, image), ended(json!([]))]);
    let (events, error) = read(stream(&events)).await;
    assert!(error.is_none());
    let parts = built(&events).parts;
    // The result must not depend on the order of fields in maps.
    let json_of = |text: &str| text.parse().unwrap_or_else(|_| Value::from(text));
    let made: Vec<(&str, Value, Executor)> = parts
        .iter()
        .filter_map(|part| match &part.kind {
            PartKind::ToolCall(call) => Some((
                call.name.as_str(),
                json_of(call.arguments.as_str()),
                call.executor,
            )),
            _ => None,
        })
        .collect();
    let shell = json!({"commands": ["ls"]});
    assert_eq!(
        made,
        [
            (
                "web_search",
                json!({"type": "search", "query": "x"}),
                Executor::Provider
            ),
            ("file_search", json!({"queries": ["x"]}), Executor::Provider),
            (
                "code_interpreter",
                json!({"code": "1+1"}),
                Executor::Provider
            ),
            ("roll", json!({"d": 6}), Executor::Provider),
            ("shell", shell.clone(), Executor::Provider),
            ("shell", shell, Executor::Loop),
            (
                "local_shell",
                json!({"type": "exec", "command": ["ls"], "env": {}}),
                Executor::Loop
            ),
            (
                "apply_patch",
                json!({"type": "delete_file", "path": "a"}),
                Executor::Loop
            ),
            ("math", json!("4 + 4"), Executor::Loop),
        ]
    );
    let kept: Vec<&str> = parts
        .iter()
        .filter_map(|part| match &part.kind {
            PartKind::Provider(data) => data.data["item"]["type"].as_str(),
            _ => None,
        })
        .collect();
    assert_eq!(kept, opaque);
    let image = parts.iter().find_map(|part| match &part.kind {
        PartKind::Image(image) => Some((image, part.provider_data.as_deref().unwrap())),
        _ => None,
    });
    let (image, data) = image.unwrap();
    assert_eq!(image.source, MediaSource::Base64("QUJD".into()));
    assert_eq!(image.media_type.as_deref(), Some("image/webp"));
    assert!(data.data["item"].get("result").is_none());
    // The loop does not wait for the provider's own calls.
    let (events, _) = read(stream(&[done(0, items[0].clone()), ended(json!([]))])).await;
    assert_eq!(finish_of(&events).reason, FinishReason::Stop);
    let grok = OpenAiResponsesLayer::compatible("https://api.x.ai/v1", "grok", None);
    let body = stream(&[done(0, items[8].clone()), ended(json!([]))]);
    let (events, _) = read_script(&grok, Script::new([body], End::Clean)).await;
    assert_eq!(finish_of(&events).reason, FinishReason::Stop);
}

#[tokio::test]
async fn calls_are_emitted_incrementally() {
    let (events, _) = read(stream(&[
        added(0, function("a", "t", "")),
        arguments(0, "{\"x\""),
        arguments(0, ":1}"),
        ended(json!([])),
    ]))
    .await;
    let shown: Vec<&str> = events
        .iter()
        .map(|event| match event {
            Event::ToolCallStart(start) => start.name.as_str(),
            Event::ToolCallDelta(delta) => delta.arguments.as_str(),
            Event::ToolCall(_) => "call",
            Event::Finish(_) => "finish",
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(shown, ["t", "{\"x\"", ":1}", "call", "finish"]);
}

#[tokio::test]
async fn audio_is_one_part() {
    let sound = |type_: &str, delta: &str| json!({"type": type_, "delta": delta});
    let (events, _) = read(stream(&[
        sound("response.audio.delta", "QU"),
        sound("response.audio.transcript.delta", "Hi"),
        sound("response.audio.delta", "JD"),
        ended(json!([])),
    ]))
    .await;
    let parts = built(&events).parts;
    let PartKind::Audio(sound) = &parts[0].kind else {
        panic!()
    };
    assert_eq!(sound.source, MediaSource::Base64("QUJD".into()));
    assert_eq!(
        parts[0].provider_data.as_deref().unwrap().data["transcript"],
        "Hi"
    );
}

#[tokio::test]
async fn audio_chunks_are_joined_as_bytes() {
    let sound = |delta: &str| json!({"type": "response.audio.delta", "delta": delta});
    let body = stream(&[sound("QUI="), sound("Qw=="), ended(json!([]))]);
    let (events, _) = read(body).await;
    let PartKind::Audio(sound) = &built(&events).parts[0].kind else {
        panic!()
    };
    assert_eq!(sound.source, MediaSource::Base64("QUJD".into()));
    assert_eq!(sound.media_type, None);
}
