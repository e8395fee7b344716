use super::*;
use concentric_core::{MessageId, StepStart};

fn step(n: u32) -> Event {
    Event::StepStart(Box::new(StepStart::new(n, MessageId::new("m"))))
}

/// Rebuilds the output of a stream from its deltas, and checks the order of the events.
#[track_caller]
pub(super) fn rebuild(events: &[Value]) -> Value {
    let mut output: Vec<Value> = Vec::new();
    let mut open: Vec<bool> = Vec::new();
    for (at, event) in events.iter().enumerate() {
        assert_eq!(event["sequence_number"], at, "{event}");
        let item = || usize::try_from(event["output_index"].as_u64().unwrap()).unwrap();
        let part = || usize::try_from(event["content_index"].as_u64().unwrap()).unwrap();
        let append = |text: &mut Value| {
            let more = event["delta"].as_str().unwrap();
            *text = json!(format!("{}{more}", text.as_str().unwrap()));
        };
        if event.get("item_id").is_some() {
            assert_eq!(event["item_id"], output[item()]["id"]);
            assert!(open[item()], "{event}");
        }
        match event["type"].as_str().unwrap() {
            "response.created" => assert_eq!(at, 0),
            "response.in_progress" => assert_eq!(at, 1),
            "response.output_item.added" => {
                assert_eq!(item(), output.len());
                assert_eq!(event["item"]["status"], "in_progress");
                output.push(event["item"].clone());
                open.push(true);
            }
            "response.content_part.added" => {
                let content = output[item()]["content"].as_array_mut().unwrap();
                assert_eq!(part(), content.len());
                content.push(event["part"].clone());
            }
            "response.output_text.delta" | "response.reasoning_text.delta" => {
                append(&mut output[item()]["content"][part()]["text"]);
            }
            "response.refusal.delta" => {
                append(&mut output[item()]["content"][part()]["refusal"]);
            }
            "response.output_text.done" | "response.reasoning_text.done" => {
                assert_eq!(event["text"], output[item()]["content"][part()]["text"]);
            }
            "response.refusal.done" => {
                assert_eq!(
                    event["refusal"],
                    output[item()]["content"][part()]["refusal"]
                );
            }
            "response.content_part.done" => {
                assert_eq!(event["part"], output[item()]["content"][part()]);
            }
            "response.function_call_arguments.delta" => append(&mut output[item()]["arguments"]),
            "response.function_call_arguments.done" => {
                assert_eq!(event["arguments"], output[item()]["arguments"]);
            }
            "response.output_item.done" => {
                let status = &event["item"]["status"];
                assert!(status == "completed" || status == "incomplete", "{event}");
                output[item()]["status"] = status.clone();
                assert_eq!(event["item"], output[item()]);
                open[item()] = false;
            }
            "response.completed" | "response.incomplete" | "response.failed" => {
                assert_eq!(at + 1, events.len());
                let has_failed = event["type"] == "response.failed";
                assert!(has_failed || open.iter().all(|is_open| !is_open));
            }
            other => panic!("{other}"),
        }
    }
    Value::Array(output)
}

#[tokio::test]
async fn a_whole_response_has_output_usage_and_the_parameters() {
    let api = api(ok([Event::text("Hel"), Event::text("lo"), finish()]));
    let fields = json!({
        "instructions": "Be brief.", "max_output_tokens": 7, "metadata": {"k": "v"},
        "temperature": 0.5, "store": true, "tools": response_tools(&["look"]),
        "tool_choice": {"type": "function", "name": "look"}, "parallel_tool_calls": false,
        "reasoning": {"effort": "low"},
    });
    let answer = send(&api, response(fields)).await.json();
    assert!(answer["id"].as_str().unwrap().starts_with("resp_"));
    assert_eq!(answer["object"], "response");
    assert_eq!(answer["status"], "completed");
    assert_eq!(answer["model"], "m");
    assert_eq!(answer["store"], false);
    assert_eq!(answer["error"], Value::Null);
    assert_eq!(answer["instructions"], "Be brief.");
    assert_eq!(answer["max_output_tokens"], 7);
    assert_eq!(answer["metadata"], json!({"k": "v"}));
    assert_eq!(answer["temperature"], 0.5);
    assert_eq!(answer["parallel_tool_calls"], false);
    assert_eq!(answer["tools"][0]["name"], "look");
    assert_eq!(answer["tools"][0]["description"], Value::Null);
    assert_eq!(answer["tool_choice"]["name"], "look");
    assert_eq!(answer["reasoning"]["effort"], "low");
    assert_eq!(answer["output"][0]["content"][0]["text"], "Hello");
    assert_eq!(answer["usage"]["input_tokens"], 10);
    assert_eq!(answer["usage"]["total_tokens"], 15);
}

#[tokio::test]
async fn the_output_of_a_stream_is_the_sum_of_its_deltas() {
    let scripts = [
        (vec![finish()], "completed"),
        (
            vec![Event::text("a"), Event::text("b"), finish()],
            "completed",
        ),
        (
            vec![Event::text("a"), refusal("no"), Event::text("b"), finish()],
            "completed",
        ),
        (
            vec![
                step(0),
                Event::text("One."),
                step(1),
                Event::text("Two."),
                finish_by(FinishReason::Length),
            ],
            "incomplete",
        ),
        (
            vec![
                Event::text("Looking."),
                call("none", "look", ""),
                call_start(0, "c0", "look"),
                call_delta(0, "{\"a\""),
                call_start(1, "c1", "find"),
                call_delta(1, "{}"),
                call_delta(0, ":1}"),
                call("c1", "find", "{}"),
                call("c0", "look", "{\"a\":1}"),
                Event::text("Wait."),
                finish_by(FinishReason::ToolCalls),
            ],
            "completed",
        ),
        (
            vec![
                call_start(0, "c0", "look"),
                call_delta(0, "{\"a"),
                finish_by(FinishReason::Length),
            ],
            "incomplete",
        ),
        (
            vec![
                reasoning("Why?"),
                part_end(),
                reasoning("So."),
                Event::text("a"),
                reasoning("But"),
                part_end(),
                finish_by(FinishReason::Length),
            ],
            "incomplete",
        ),
    ];
    for (script, status) in scripts {
        let tools = response_tools(&["look", "find"]);
        for api in [api(ok(script.clone())), slow_api(ok(script.clone()))] {
            let api = api.reasoning(true);
            let whole = send(&api, response(json!({"tools": tools}))).await.json();
            let request = response(json!({"tools": tools, "stream": true}));
            let reply = send(&api, request).await;
            assert!(reply.cut.is_none() && !reply.body.contains("[DONE]"));
            let events = reply.events();
            let last = events.last().unwrap();
            assert_eq!(last["type"], format!("response.{status}"));
            assert_eq!(last["response"]["status"], status);
            let output = rebuild(&events);
            assert_eq!(last["response"]["output"], output, "{script:?}");
            // The ids of the items have the id of the run.
            let run = |response: &Value| response["id"].as_str().unwrap()[5..].to_owned();
            let text = whole["output"]
                .to_string()
                .replace(&run(&whole), &run(&last["response"]));
            assert_eq!(text, output.to_string());
            assert_eq!(whole["usage"], last["response"]["usage"]);
        }
    }
}

#[tokio::test]
async fn a_failed_stream_ends_with_the_failure_and_is_cut() {
    let failed = Error::new(concentric_core::ErrorKind::Server, "no");
    let api = slow_api(vec![Ok(Event::text("a")), Err(failed)]);
    let reply = send(&api, response(json!({"stream": true}))).await;
    assert!(reply.cut.is_some());
    let events = reply.events();
    let last = events.last().unwrap();
    assert_eq!(last["type"], "response.failed");
    assert_eq!(last["response"]["status"], "failed");
    assert_eq!(last["response"]["error"]["code"], "upstream_server");
    assert_eq!(last["response"]["output"][0]["content"][0]["text"], "a");
    rebuild(&events);
}

#[tokio::test]
async fn requests_that_need_stored_responses_name_the_parameter() {
    let api = api(ok([finish()]));
    for (field, value) in [
        ("background", json!(true)),
        ("previous_response_id", json!("resp_1")),
        ("conversation", json!("conv_1")),
        ("prompt", json!({"id": "p"})),
    ] {
        let reply = send(&api, response(json!({field: value}))).await;
        assert_eq!(
            (reply.status, &reply.error()["param"]),
            (400, &json!(field))
        );
        let reply = send(&api, response(json!({field: null}))).await;
        assert_eq!(reply.status, 200, "{}", reply.body);
    }
    let reply = send(&api, response(json!({"background": false, "store": false}))).await;
    assert_eq!(reply.status, 200);
}

#[tokio::test]
async fn all_counts_of_a_usage_are_passed_on() {
    let mut usage = Usage::new(10, 5);
    usage.set_cached_input_tokens(Some(1));
    usage.set_cache_write_tokens(Some(2));
    usage.set_input_audio_tokens(Some(3));
    usage.set_reasoning_tokens(Some(4));
    usage.set_output_audio_tokens(Some(5));
    let api = api(ok([Event::finish(FinishReason::Stop, usage)]));
    let answer = send(&api, response(json!({}))).await.json();
    let expected = json!({
        "input_tokens": 10,
        "input_tokens_details": {"cache_write_tokens": 2, "cached_tokens": 1},
        "output_tokens": 5,
        "output_tokens_details": {"reasoning_tokens": 4},
        "total_tokens": 15,
    });
    assert_eq!(answer["usage"], expected);
    let answer = send(&api, chat(json!({}))).await.json();
    let expected = json!({
        "prompt_tokens": 10,
        "prompt_tokens_details": {"audio_tokens": 3, "cache_write_tokens": 2, "cached_tokens": 1},
        "completion_tokens": 5,
        "completion_tokens_details": {"audio_tokens": 5, "reasoning_tokens": 4},
        "total_tokens": 15,
    });
    assert_eq!(answer["usage"], expected);
}

#[tokio::test]
async fn what_a_limit_has_cut_off_is_incomplete() {
    let cut = finish_by(FinishReason::Length);
    let text = vec![Event::text("a"), cut.clone()];
    let half = vec![
        Event::text("a"),
        call_start(0, "c0", "look"),
        call_delta(0, "{\"a"),
        cut.clone(),
    ];
    // A provider layer may emit a call whose arguments are cut off.
    let ended = vec![
        Event::text("a"),
        call_start(0, "c0", "look"),
        call("c0", "look", "{\"a"),
        cut.clone(),
    ];
    let whole = vec![
        Event::text("a"),
        call_start(0, "c0", "look"),
        call("c0", "look", "{}"),
        cut,
    ];
    for (script, expected) in [
        (text, vec!["incomplete"]),
        (half, vec!["completed", "incomplete"]),
        (ended, vec!["completed", "incomplete"]),
        (whole, vec!["completed", "completed"]),
    ] {
        let request = response(json!({"tools": response_tools(&["look"])}));
        let answer = send(&api(ok(script)), request).await.json();
        let items = answer["output"].as_array().unwrap().iter();
        let statuses: Vec<&Value> = items.map(|item| &item["status"]).collect();
        assert_eq!(statuses, expected);
    }
}

#[tokio::test]
async fn reasoning_is_an_item_for_each_piece_if_it_is_shown() {
    let script = ok([
        reasoning("Wh"),
        reasoning("y?"),
        part_end(),
        reasoning("So."),
        Event::text("a"),
        finish(),
    ]);
    let answer = send(&api(script.clone()), response(json!({}))).await.json();
    assert_eq!(answer["output"].as_array().unwrap().len(), 1);
    let answer = send(&api(script).reasoning(true), response(json!({})))
        .await
        .json();
    let output = answer["output"].as_array().unwrap();
    let kinds: Vec<&Value> = output.iter().map(|item| &item["type"]).collect();
    assert_eq!(kinds, ["reasoning", "reasoning", "message"]);
    assert!(output[0]["id"].as_str().unwrap().starts_with("rs_"));
    assert_eq!(output[0]["summary"], json!([]));
    let content = json!([{"type": "reasoning_text", "text": "Why?"}]);
    assert_eq!(output[0]["content"], content);
}
