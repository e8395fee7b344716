use super::*;

#[tokio::test]
async fn the_future_resolves_at_the_first_content() {
    let begin = stream(&hello()[..2]);
    let script = Script::new([begin.clone()], End::Silent);
    assert!(
        call(&layer(), http::Response::new(script))
            .now_or_never()
            .is_none()
    );
    let script = Script::new([begin, event(&text_delta(0, "a"))], End::Silent);
    let response = call(&layer(), http::Response::new(script))
        .now_or_never()
        .unwrap();
    let mut body = response.unwrap().body;
    assert_eq!(body.next().await.unwrap().unwrap(), Event::text("a"));
    assert!(body.next().now_or_never().is_none());
}

#[tokio::test]
async fn dropping_the_future_or_body_drops_the_http_body() {
    for pieces in [vec![], vec![event(&text_delta(0, "a"))]] {
        let script = Script::new(&pieces, End::Silent);
        let dropped = Arc::clone(&script.dropped);
        let layer = layer();
        let mut future = Box::pin(call(&layer, http::Response::new(script)));
        let mut response = (&mut future).now_or_never();
        if let Some(Ok(response)) = &mut response {
            response.body.next().await.unwrap().unwrap();
            assert!(response.body.next().now_or_never().is_none());
        }
        assert!(!dropped.load(Ordering::SeqCst));
        drop((future, response));
        assert!(dropped.load(Ordering::SeqCst));
    }
}

/// An event of a stream, possibly invalid.
fn any_event() -> impl Strategy<Value = Value> {
    let item = (0_u64..3, 0_usize..5).prop_map(|(id, kind)| match kind {
        0 => json!({"type": "message", "id": format!("m{id}"), "content": [{"type": "output_text", "text": "x"}]}),
        1 => json!({"type": "reasoning", "id": format!("r{id}"), "summary": [{"text": "x"}]}),
        2 => function(&format!("c{id}"), "f", "{}"),
        3 => json!({"type": "web_search_call", "id": format!("w{id}"), "action": {}}),
        _ => json!({"type": "compaction", "id": format!("x{id}")}),
    });
    let index = prop_oneof![Just(Value::Null), (0_u64..3).prop_map(Value::from)];
    (0_usize..12, index, item).prop_map(|(kind, index, item)| {
        let deltas = [
            "response.output_text.delta",
            "response.refusal.delta",
            "response.reasoning_summary_text.delta",
            "response.reasoning_text.delta",
            "response.function_call_arguments.delta",
            "response.custom_tool_call_input.delta",
        ];
        match kind {
            0 => created(),
            1 | 2 => json!({"type": "response.output_item.added", "output_index": index, "item": item}),
            3 | 4 => json!({"type": "response.output_item.done", "output_index": index, "item": item}),
            5 => json!({"type": "response.output_text.annotation.added", "output_index": index, "annotation": {}}),
            kind => json!({"type": deltas[kind - 6], "output_index": index, "item_id": item["id"], "delta": "y"}),
        }
    })
}

proptest! {
    /// Any events in any order have a single end, and an incomplete response emits no call.
    /// (`read_script` asserts the single end.)
    // Case F014.
    #[test]
    fn any_events_end_once(events in prop::collection::vec(any_event(), 0..12), whole: bool) {
        let mut events = events;
        if whole {
            let output: Vec<Value> = events.iter().filter_map(|event| event.get("item").cloned()).collect();
            events.push(ended(json!(output)));
        }
        let (events, error) = read(stream(&events)).now_or_never().unwrap();
        if let Some(error) = error {
            prop_assert!(calls(&events).is_empty());
            let kind = error.kind();
            prop_assert!(matches!(kind, ErrorKind::Truncated | ErrorKind::Protocol), "{error}");
            prop_assert!(!whole || kind == ErrorKind::Protocol);
        } else {
            prop_assert!(whole);
            // Provider data belong to a part with content.
            let message = built(&events);
            let empty = message.parts.iter().filter(|part| part.kind == PartKind::Text("".into()));
            prop_assert_eq!(empty.count(), 0);
        }
    }
}
