use super::*;

// Case F015.
#[tokio::test]
async fn other_events_only_fill_gaps_between_deltas() {
    let begin = || {
        vec![
            created(),
            added(0, json!({"type": "message", "id": "msg_1"})),
        ]
    };
    let text_done = json!({"type": "response.output_text.done", "output_index": 0, "content_index": 0, "text": "Hello"});
    let said: [Vec<Value>; 7] = [
        // The last event omits the text, or contains a different one.
        vec![text_delta(0, "Hello"), ended(json!([]))],
        vec![text_delta(0, "Hello"), ended(json!([message("Bye")]))],
        vec![
            text_delta(0, "Hello"),
            done(0, message("Bye")),
            ended(json!(null)),
        ],
        // Without deltas.
        vec![text_done, ended(json!([]))],
        vec![done(0, message("Hello")), ended(json!([]))],
        vec![ended(json!([message("Hello")]))],
        // A different id at the same index.
        vec![
            done(0, message("Hello")),
            ended(json!([{"type": "message", "id": "other",
            "content": [{"type": "output_text", "text": "Hello"}]}])),
        ],
    ];
    for rest in said {
        let body = stream(&[begin(), rest].concat());
        let (events, error) = read(&body).await;
        assert!(error.is_none(), "{error:?}");
        assert_eq!(text(&events), "Hello", "{body}");
    }

    let call = function("a", "t", "{\"x\":1}");
    let begin = || vec![created(), added(0, function("a", "t", ""))];
    let all_done = json!({"type": "response.function_call_arguments.done", "output_index": 0, "arguments": "{\"x\":1}"});
    let whole: [Vec<Value>; 6] = [
        vec![
            arguments(0, "{\"x\""),
            arguments(0, ":1}"),
            ended(json!([])),
        ],
        vec![
            arguments(0, "{\"x\":1}"),
            done(0, function("a", "t", "{}")),
            ended(json!([])),
        ],
        vec![all_done, ended(json!([]))],
        vec![done(0, call.clone()), ended(json!([call.clone()]))],
        vec![ended(json!([call.clone()]))],
        // The list omits an item that was streamed.
        vec![
            arguments(0, "{\"x\":1}"),
            done(0, call.clone()),
            text_delta(1, "Hi"),
            ended(json!([message("Hi")])),
        ],
    ];
    for rest in whole {
        let body = stream(&[begin(), rest].concat());
        let (events, error) = read(&body).await;
        assert!(error.is_none(), "{error:?}");
        let expected = (Some("a".to_owned()), "t".to_owned(), "{\"x\":1}".to_owned());
        assert_eq!(calls(&events), [expected], "{body}");
    }
}

// Case F016.
#[tokio::test]
async fn parallel_calls_are_matched_by_index() {
    let pieces = |index| {
        [
            arguments(index, "{\"n\":"),
            arguments(index, &format!("{index}}}")),
        ]
    };
    let (one, two) = (pieces(0), pieces(1));
    // Every interleaving of the two.
    for mask in 0_u32..16 {
        if mask.count_ones() != 2 {
            continue;
        }
        let (mut one, mut two) = (one.iter(), two.iter());
        let mut all = vec![
            added(0, function("a", "f", "")),
            added(1, function("b", "g", "")),
        ];
        for bit in 0..4 {
            let next = if mask >> bit & 1 == 0 {
                one.next()
            } else {
                two.next()
            };
            all.push(next.unwrap().clone());
        }
        all.push(ended(json!([])));
        let (events, error) = read(stream(&all)).await;
        assert!(error.is_none());
        let made = calls(&events);
        assert_eq!(
            (made[0].1.as_str(), made[0].2.as_str()),
            ("f", "{\"n\":0}"),
            "{mask:b}"
        );
        assert_eq!(
            (made[1].1.as_str(), made[1].2.as_str()),
            ("g", "{\"n\":1}"),
            "{mask:b}"
        );
        assert_eq!(finish_of(&events).reason, FinishReason::ToolCalls);
    }
    // Without indexes, the ids identify the items.
    let by_id = |id: &str, delta: &str| json!({"type": "response.function_call_arguments.delta", "item_id": id, "delta": delta});
    let begin = |id: &str, name: &str| json!({"type": "response.output_item.added", "item": function(id, name, "")});
    let body = stream(&[
        begin("a", "f"),
        begin("b", "g"),
        by_id("fc_a", "{\"n\":"),
        by_id("fc_b", "{}"),
        by_id("fc_a", "0}"),
        ended(json!([])),
    ]);
    let made = calls(&read(body).await.0);
    assert_eq!(
        (made[0].2.as_str(), made[1].2.as_str()),
        ("{\"n\":0}", "{}")
    );

    // The id of an item may change, the id of a call may not.
    let mut renamed = function("a", "f", "{}");
    renamed["id"] = json!("another");
    let (events, error) = read(stream(&[
        added(0, function("a", "f", "")),
        done(0, renamed),
        ended(json!([])),
    ]))
    .await;
    assert!(error.is_none());
    assert_eq!(calls(&events).len(), 1);
    for twice in [
        done(0, function("b", "f", "{}")),
        done(0, function("a", "g", "{}")),
        added(0, function("b", "f", "")),
    ] {
        let (events, error) = read(stream(&[
            added(0, function("a", "f", "")),
            twice,
            ended(json!([])),
        ]))
        .await;
        assert!(calls(&events).is_empty());
        assert_eq!(error.unwrap().kind(), ErrorKind::Protocol);
    }
}

#[tokio::test]
async fn items_with_missing_or_equal_indexes_are_distinct() {
    let whole = [
        json!({"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "g",
            "content": [{"type": "reasoning_text", "text": "hm"}]}),
        message("Hello"),
        json!({"type": "function_call", "call_id": "a", "name": "f", "arguments": "{\"n\":0}"}),
        json!({"type": "function_call", "call_id": "b", "name": "g", "arguments": "{\"n\":1}"}),
    ];
    let events = |of: &Value| {
        let (mut begun, mut events) = (of.clone(), Vec::new());
        let (type_, delta) = match of["type"].as_str().unwrap() {
            "reasoning" => ("response.reasoning_text.delta", "hm"),
            "message" => ("response.output_text.delta", "Hello"),
            _ => {
                begun["arguments"] = json!("");
                let delta = of["arguments"].as_str().unwrap();
                ("response.function_call_arguments.delta", delta)
            }
        };
        if of["type"] != "function_call" {
            begun["content"] = json!([]);
        }
        events.push(json!({"type": "response.output_item.added", "item": begun}));
        events.push(json!({"type": type_, "item_id": "unknown", "delta": delta}));
        events
    };
    let done = |of: &Value| json!({"type": "response.output_item.done", "item": of});
    // Each completed before the next starts, all at the end, or never.
    let apart: Vec<Value> = whole
        .iter()
        .flat_map(|of| [events(of), vec![done(of)]].concat())
        .collect();
    let begun: Vec<Value> = whole.iter().flat_map(events).collect();
    let together = [begun.clone(), whole.iter().map(done).collect()].concat();
    for (way, events) in [apart, together, begun].into_iter().enumerate() {
        for place in [None, Some(0)] {
            // Two incomplete calls with the same index cannot be distinguished.
            if place.is_some() && way > 0 {
                continue;
            }
            let mut events = events.clone();
            if let Some(place) = place {
                events
                    .iter_mut()
                    .for_each(|event| event["output_index"] = json!(place));
            }
            for output in [json!(null), json!(whole)] {
                let body = stream(&[events.clone(), vec![ended(output)]].concat());
                let (events, error) = read(&body).await;
                assert!(error.is_none(), "{way} {error:?}");
                assert_eq!(text(&events), "Hello", "{body}");
                let made: Vec<_> = calls(&events)
                    .into_iter()
                    .map(|call| (call.0.unwrap(), call.1, call.2))
                    .collect();
                let expected = [("a", "f", "{\"n\":0}"), ("b", "g", "{\"n\":1}")];
                assert_eq!(
                    made,
                    expected.map(|(id, name, text)| (
                        id.to_owned(),
                        name.to_owned(),
                        text.to_owned()
                    )),
                    "{body}"
                );
                let thought = events
                    .iter()
                    .filter(|event| matches!(event, Event::ReasoningDelta(_)));
                assert_eq!(thought.count(), 1);
            }
        }
    }
}
