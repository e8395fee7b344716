//! Sub-agents with interrupts.

use super::*;

/// An agent that makes one round of calls, with the same ids in every agent, and writes their
/// outcomes.
fn agent(tools: Toolset, calls: Vec<&'static str>) -> BoxModel {
    let model = service_fn(move |request: ChatRequest| {
        let results = request.transcript.last().map_or(&[][..], Turn::results);
        let mut events: Vec<Event> = match results {
            [] => calls
                .iter()
                .enumerate()
                .map(|(at, name)| {
                    let id = CallId::new(format!("call_{at}"));
                    Event::tool_call(ToolCallPart::new(id, *name, r#"{"task":"it"}"#))
                })
                .collect(),
            results => {
                let outcomes = results.iter().map(|result| {
                    let outcome = &result.outcome;
                    format!("[{:?}: {}]", outcome.status, outcome.content.text())
                });
                vec![Event::text(outcomes.collect::<String>())]
            }
        };
        events.push(Event::finish(FinishReason::Stop, Usage::new(1, 1)));
        let body: Vec<Item> = events.into_iter().map(Ok).collect();
        async move { Ok::<_, Error>(ChatResponse::new(stream::iter(body))) }
    });
    BoxModel::new(AgentLayer::new(tools).layer(model))
}

#[derive(Clone, Default)]
struct Paid(Arc<Mutex<usize>>);

/// An agent that pays after an approval.
fn payer(paid: &Paid) -> BoxModel {
    let paid = paid.clone();
    let pay = tool("pay", "", move |_: Map<String, Value>| {
        *paid.0.lock().unwrap() += 1;
        async { Ok::<_, ToolError>("paid") }
    });
    let tools = Toolset::new().tool(pay).gate(Approval::for_tools("pay"));
    agent(tools, vec!["pay"])
}

/// An agent with nested sub-agents that pay.
fn accountant(paid: &Paid) -> BoxModel {
    let clerk = Toolset::new().tool(agent_tool("cashier", "", payer(paid)).max_depth(4));
    let clerk = agent(clerk, vec!["cashier"]);
    let tools = Toolset::new()
        .tool(agent_tool("clerk", "", clerk).max_depth(4))
        .tool(agent_tool("cashier", "", payer(paid)).max_depth(4));
    let agent = agent(tools, vec!["clerk", "cashier"]);
    let store = Arc::new(MemoryStore::new());
    BoxModel::new(SuspendLayer::new(store).layer(agent))
}

/// The run and the wire id of each call that a sub-agent has made.
fn calls_of(events: &[Value]) -> Vec<(String, String)> {
    let of = |event: &&Value| {
        let run = event["subagentRunId"].as_str()?.to_owned();
        Some((run, event["toolCallId"].as_str().unwrap().to_owned()))
    };
    let all = all(events, "TOOL_CALL_START");
    all.iter().filter_map(of).collect()
}

#[tokio::test]
async fn sub_agents_with_interrupts_are_suspended_and_resumed() {
    let paid = Paid::default();
    let agent = accountant(&paid);
    let mut client = Client::new();
    let events = client.run(&agent, json!([])).await;
    assert_eq!(end(&events)["outcome"]["type"], "interrupt", "{events:#?}");
    assert_eq!(client.pending.len(), 2);

    // All sub-agents are reported as suspended, with their interrupts, before the run ends.
    let waiting = all(&events, "SUBAGENT_FINISHED");
    assert_eq!(waiting.len(), 3);
    let started = all(&events, "SUBAGENT_STARTED");
    for asked in &client.pending {
        let run = &asked["subagentRunId"];
        let mut one = *started
            .iter()
            .find(|e| e["subagentRunId"] == *run)
            .expect("it was started");
        let made = (run.as_str().unwrap(), asked["toolCallId"].as_str().unwrap());
        assert!(calls_of(&events).contains(&(made.0.to_owned(), made.1.to_owned())));
        loop {
            let is_it = |e: &&&Value| e["subagentRunId"] == one["subagentRunId"];
            let outcome = &waiting.iter().find(is_it).unwrap()["outcome"];
            assert_eq!(outcome["type"], "suspended");
            assert_eq!(outcome["interruptIds"], json!([asked["id"]]));
            let parent = &one["parentSubagentRunId"];
            match started.iter().find(|e| e["subagentRunId"] == *parent) {
                Some(parent) => one = *parent,
                None => break,
            }
        }
    }
    assert!(all(&events, "TOOL_CALL_RESULT").is_empty());

    // Only one interrupt is answered; the other still waits, and the run does not mention it.
    let first = client.pending[0].clone();
    let other = client.pending[1].clone();
    let resume = json!([crate::support::client::answer(&first, &approved())]);
    let again = client.run(&agent, resume).await;
    assert_eq!(*paid.0.lock().unwrap(), 1);
    assert_eq!(client.pending.len(), 1);
    for key in ["id", "subagentRunId", "toolCallId"] {
        assert_eq!(client.pending[0][key], other[key], "{key}");
    }
    let result = all(&again, "TOOL_CALL_RESULT")[0];
    assert_eq!(result["toolCallId"], first["toolCallId"]);
    assert_eq!(result["subagentRunId"], first["subagentRunId"]);

    let resume = client.answers(&approved());
    let last = client.run(&agent, resume).await;
    assert_eq!(
        end(&last)["outcome"],
        json!({"type": "success"}),
        "{last:#?}"
    );
    assert_eq!(*paid.0.lock().unwrap(), 2);
    assert_eq!(
        client.last_text(),
        "[Done: [Done: [Done: paid]]][Done: [Done: paid]]"
    );
    assert!(all(&last, "SUBAGENT_ERROR").is_empty());
    // Each call has exactly one result.
    for call in ["call_0", "call_1", "call_0~2", "call_0~3", "call_0~4"] {
        assert_eq!(
            client.results(call).len(),
            1,
            "{call}: {:#?}",
            client.messages
        );
    }

    // The conversation continues without the messages of the sub-agents.
    client.add_message("again");
    let events = client.run(&agent, json!([])).await;
    assert_eq!(end(&events)["outcome"]["type"], "interrupt");
    let ids: Vec<_> = all(&events, "SUBAGENT_STARTED");
    assert_eq!(ids.len(), 3);
}

#[tokio::test]
async fn a_sub_agents_interrupt_may_be_denied() {
    let paid = Paid::default();
    let agent = accountant(&paid);
    let mut client = Client::new();
    client.run(&agent, json!([])).await;
    let resume = client.answers(&json!({"approved": false}));
    let events = client.run(&agent, resume).await;
    assert_eq!(end(&events)["outcome"], json!({"type": "success"}));
    assert_eq!(*paid.0.lock().unwrap(), 0);
    assert_eq!(all(&events, "SUBAGENT_FINISHED").len(), 3);
}

#[tokio::test]
async fn the_unmodified_client_reads_sub_agents() {
    let Some(dir) = real::clients() else { return };
    let paid = Paid::default();
    let layer = AgUiLayer::new();
    let breaks = crate::support::agent(vec![
        Ok(step(0, "m")),
        Ok(call("c")),
        Ok(sub("s", "c", step(0, "n"))),
        Ok(sub("s", "c", Event::text("half an"))),
        Ok(sub("s", "c", sub("t", "d", call("e")))),
        Err(Error::new(ErrorKind::Server, "x")),
    ]);
    let app = Router::new()
        .route_service("/agent", layer.layer(accountant(&paid)))
        .route_service("/fails", layer.layer(breaks));
    let address = real::serve(app).await;
    let url = format!("http://{address}/agent");
    real::node(&dir, &["subagents.mjs", &url]).await;
    assert_eq!(*paid.0.lock().unwrap(), 2);
    let url = format!("http://{address}/fails");
    real::node(&dir, &["subagents.mjs", "--expect-error", &url]).await;
}

#[test]
fn many_sub_agents_run_concurrently() {
    const MANY: usize = 30_000;
    let mut script: Vec<Item> = vec![Ok(step(0, "m"))];
    let name = |at: usize| (format!("run{at}"), format!("c{at}"));
    for _ in 0..2 {
        for at in 0..MANY {
            let (run, call) = name(at);
            script.push(Ok(sub(&run, &call, Event::text("x"))));
        }
    }
    script.push(Ok(finish()));
    let (sender, wait) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().build();
        sender.send(runtime.unwrap().block_on(events(script)))
    });
    let got = wait.recv_timeout(std::time::Duration::from_secs(60));
    let got = got.expect("it takes too long");
    assert_eq!(all(&got, "SUBAGENT_STARTED").len(), MANY);
    assert_eq!(all(&got, "SUBAGENT_FINISHED").len(), MANY);
}
