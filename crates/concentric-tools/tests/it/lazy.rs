//! Tools that are hidden until they are found, and which tools a step offers.

use crate::common::{Script, pace, paced, results, tool};
use concentric_core::{
    AgentLayer, Answer, CallId, ChatRequest, ChatResponse, Error, Event, EventStream, Message,
    Outcome, Part, PartKind, Repair, ResponseHead, Role, ToolCallPart, ToolChoice, ToolOutcome,
    ToolResult, ToolStatus, Transcript,
};
use concentric_tools::{
    LazyTools, Matcher, NoArguments, Skill, Skills, Tool, Toolset, offer_tools,
};
use serde_json::json;
use std::sync::{Arc, Mutex};
use tower::{Layer, Service, ServiceBuilder, ServiceExt, service_fn};

/// What a model was asked.
#[derive(Clone, Default)]
struct Seen(Arc<Mutex<Vec<ChatRequest>>>);

impl Seen {
    /// The model of `common`, watched. It says in its head what it was offered, as a provider does,
    /// or leaves that to the layers around it.
    fn model(
        &self,
        script: Script,
        says: bool,
    ) -> impl Service<ChatRequest, Response = ChatResponse<EventStream>, Error = Error, Future: Send>
    + Clone
    + Send
    + 'static {
        let (seen, model) = (self.clone(), crate::common::model(script));
        service_fn(move |request: ChatRequest| {
            seen.0.lock().unwrap().push(request.clone());
            let model = model.clone();
            async move {
                let mut response = model.oneshot(request.clone()).await?;
                if says {
                    response.head.tools = Some(names(&request).map(Into::into).collect());
                }
                Ok(response.map_body(EventStream::new))
            }
        })
    }

    /// The names of the tools of each step.
    fn tools(&self) -> Vec<Vec<String>> {
        let seen = self.0.lock().unwrap();
        seen.iter()
            .map(|request| names(request).map(str::to_owned).collect())
            .collect()
    }
}

fn names(request: &ChatRequest) -> impl Iterator<Item = &str> {
    request.tools.iter().map(|tool| tool.name.as_str())
}

fn named(name: &'static str, description: &'static str) -> Tool {
    tool(name, description, move |NoArguments {}| async move {
        format!("{name} ran")
    })
}

fn toolset() -> Toolset {
    Toolset::new()
        .tool(named("crm_find", "Finds a customer by mail."))
        .tool(named("now", "Tells the time."))
        .tool(named("crm_update", "Changes a customer's address.").group("billing"))
        .tool(named("jira_open", "Opens a ticket."))
}

async fn run(
    seen: &Seen,
    lazy: LazyTools,
    request: ChatRequest,
    script: Script,
    limit: u32,
) -> Answer {
    let (tools, lazy) = lazy.wrap(toolset());
    let agent = ServiceBuilder::new()
        .layer(AgentLayer::new(tools).step_limit(limit))
        .layer(lazy)
        .service(seen.model(script, false));
    agent
        .oneshot(request)
        .await
        .unwrap()
        .collect()
        .await
        .unwrap()
}

fn lazy() -> LazyTools {
    LazyTools::new(["crm_*", "jira_*"])
}

paced!(c129_what_is_found_is_offered_from_the_next_step_on_and_costs_no_step);
async fn c129_what_is_found_is_offered_from_the_next_step_on_and_costs_no_step() {
    let seen = Seen::default();
    let script = vec![
        // The call beside the search comes too early.
        vec![
            ("find_tools", r#"{"query":"customer mail"}"#),
            ("crm_find", "{}"),
        ],
        vec![("find_tools", r#"{"query":"ticket"}"#)],
        vec![("jira_open", "{}"), ("crm_find", "{}")],
        vec![("find_tools", r#"{"query":"ticket"}"#)],
    ];
    let answer = run(&seen, lazy(), ChatRequest::user("hi"), script, 4).await;
    assert_eq!(
        seen.tools(),
        [
            vec!["now", "find_tools"],
            vec!["now", "find_tools", "crm_find", "crm_update"],
            vec!["now", "find_tools", "crm_find", "crm_update", "jira_open"],
            vec!["now", "find_tools", "crm_find", "crm_update", "jira_open"],
            vec!["now", "find_tools", "crm_find", "crm_update", "jira_open"],
        ]
    );
    // Five model calls: the second search was free; the first was not, beside another call, nor the
    // last, which found nothing new.
    assert_eq!(answer.finish.outcome, Outcome::Completed);
    let results = results(&answer);
    assert_eq!(
        results[1..2],
        [
            "call-0-1: The call was not run: `crm_find` is not available yet. Call \
         `find_tools` with `{\"query\":\"crm_find\"}` first, then call `crm_find` with the \
         parameters of its definition."
        ]
    );
    assert_eq!(
        results[3..5],
        ["call-2-0: jira_open ran", "call-2-1: crm_find ran"]
    );
    let turn = answer.transcript().unwrap().iter().nth(1).unwrap();
    let data = turn.results()[0].outcome.data.clone().unwrap();
    assert_eq!(*data, json!({ "tools": ["crm_find", "crm_update"] }));
}

paced!(searching_for_the_same_for_ever_ends_at_the_step_limit);
async fn searching_for_the_same_for_ever_ends_at_the_step_limit() {
    let seen = Seen::default();
    let again = || vec![("find_tools", r#"{"query":"ticket"}"#)];
    let script = (0..9).map(|_| again()).collect();
    let answer = run(&seen, lazy(), ChatRequest::user("hi"), script, 3).await;
    assert_eq!(answer.finish.outcome, Outcome::StepLimit);
    assert_eq!(seen.tools().len(), 4);
}

paced!(c130_a_call_of_a_hidden_tool_says_how_to_find_it);
async fn c130_a_call_of_a_hidden_tool_says_how_to_find_it() {
    // Whoever stands innermost may say what was offered, or leave it to the layer.
    for says in [false, true] {
        let seen = Seen::default();
        let (tools, layer) = lazy().tool_name("search_tools").wrap(toolset());
        let script = vec![vec![("jira_open", "{}"), ("nothing", "{}"), ("now", "{}")]];
        let agent = ServiceBuilder::new()
            .layer(AgentLayer::new(tools))
            .layer(layer)
            .service(seen.model(script, says));
        let answer = agent.oneshot(ChatRequest::user("hi")).await.unwrap();
        let answer = answer.collect().await.unwrap();
        let turn = answer.transcript().unwrap().iter().nth(1).unwrap();
        assert_eq!(turn.results()[0].outcome.status, ToolStatus::Failed);
        let results = results(&answer);
        assert!(results[0].contains("Call `search_tools` with `{\"query\":\"jira_open\"}` first"));
        assert_eq!(
            results[1..],
            [
                "call-0-1: There is no tool `nothing`. Available tools: now, search_tools.",
                "call-0-2: now ran"
            ]
        );
    }
}

paced!(exact_names_and_groups_are_found_and_the_rest_is_said);
async fn exact_names_and_groups_are_found_and_the_rest_is_said() {
    let seen = Seen::default();
    let script = vec![
        vec![("find_tools", r#"{"query":"CRM_UPDATE, jira_open"}"#)],
        vec![("find_tools", r#"{"query":"billing"}"#)],
        vec![("find_tools", r#"{"query":"weather"}"#)],
        vec![("find_tools", r#"{"query":7}"#)],
    ];
    let answer = run(
        &seen,
        lazy().max_results(1),
        ChatRequest::user("hi"),
        script,
        9,
    )
    .await;
    let results = results(&answer);
    assert_eq!(
        results[0],
        "call-0-0: Found these tools, available from the next step:\n- crm_update: Changes a customer's \
         address.\nMore tools match. Use more specific keywords."
    );
    assert!(results[1].contains("- crm_update"));
    assert_eq!(
        results[2],
        "call-2-0: None of 3 tools matches. Try other keywords."
    );
    let schema = &seen.0.lock().unwrap()[0].tools;
    let about = &schema.get("find_tools").unwrap().description;
    assert!(about.contains("3 tools") && about.ends_with("Tool groups: billing."));
}

/// A history as a client brings it: without data.
fn brought(text: &str, outcome: fn(&str) -> ToolOutcome) -> ChatRequest {
    let id = || CallId::new("old");
    let call = ToolCallPart::new(id(), "find_tools", r#"{"query":"x"}"#);
    let result = ToolResult::new(id(), "find_tools", outcome(text));
    let part = |kind| vec![Part::new(kind)];
    let history = [
        Message::user("hi"),
        Message::new(Role::Assistant, part(PartKind::ToolCall(call))),
        Message::new(Role::Tool, part(PartKind::ToolResult(result))),
        Message::user("go on"),
    ];
    let (history, _) = Transcript::from_history(history, Repair::Refuse).unwrap();
    ChatRequest::new(history)
}

paced!(a_history_without_data_says_what_was_found);
async fn a_history_without_data_says_what_was_found() {
    let text = "Found:\n- jira_open: Opens: a ticket.\n- crm_find\n- no_such_tool: x\nand now: y";
    for (outcome, found) in [
        (
            (|text| ToolOutcome::done(text)) as fn(&str) -> ToolOutcome,
            vec!["now", "find_tools", "jira_open", "crm_find"],
        ),
        (|text| ToolOutcome::failed(text), vec!["now", "find_tools"]),
    ] {
        let seen = Seen::default();
        run(&seen, lazy(), brought(text, outcome), vec![], 9).await;
        assert_eq!(seen.tools(), [found]);
    }
}

paced!(a_result_of_any_length_is_read_to_its_limit);
async fn a_result_of_any_length_is_read_to_its_limit() {
    let text = |before: usize| format!("Found:\n{}- crm_find", "- x\n".repeat(before));
    let names = |tools: &[&str]| {
        [tools
            .iter()
            .map(|&name| name.to_owned())
            .collect::<Vec<_>>()]
    };
    let (found, hidden) = (
        names(&["now", "find_tools", "crm_find"]),
        names(&["now", "find_tools"]),
    );
    for (max_results, before, expected) in [
        (8, 998, &found),
        (8, 999, &hidden),
        (2_000, 1_999, &found),
        (2_000, 2_000, &hidden),
    ] {
        let seen = Seen::default();
        let lazy = lazy().max_results(max_results);
        let request = brought(&text(before), |text| ToolOutcome::done(text));
        run(&seen, lazy, request, vec![], 9).await;
        assert_eq!(seen.tools(), *expected, "{max_results} {before}");
    }
}

paced!(a_tool_that_must_be_called_is_offered);
async fn a_tool_that_must_be_called_is_offered() {
    let seen = Seen::default();
    let mut request = ChatRequest::user("hi");
    request.options_mut().tool_choice = Some(ToolChoice::Tool("jira_open".into()));
    run(&seen, lazy(), request, vec![], 9).await;
    assert_eq!(seen.tools(), [["now", "jira_open", "find_tools"]]);
}

paced!(half_of_it_hides_nothing);
async fn half_of_it_hides_nothing() {
    // The layer without the discovery tool.
    let seen = Seen::default();
    let (_, layer) = lazy().wrap(toolset());
    let agent = ServiceBuilder::new()
        .layer(AgentLayer::new(toolset()))
        .layer(layer)
        .service(seen.model(vec![], false));
    agent.oneshot(ChatRequest::user("hi")).await.unwrap();
    assert_eq!(seen.tools()[0].len(), 4);

    // Nothing to hide: nothing to find.
    let nobody = Matcher::when_async(|_| async { Ok(true) }).and(Matcher::all());
    let (tools, _) = LazyTools::new(nobody).wrap(toolset());
    assert_eq!(tools.iter().count(), 4);
    let (tools, _) = LazyTools::new("no_such_*").wrap(toolset());
    assert_eq!(tools.iter().count(), 4);
}

paced!(c012_a_filter_for_one_step_is_gone_in_the_next);
async fn c012_a_filter_for_one_step_is_gone_in_the_next() {
    let seen = Seen::default();
    let agent = ServiceBuilder::new()
        .layer(AgentLayer::new(toolset()))
        .layer(offer_tools(|request, tool| {
            request.context.step() > 0 || tool.name == "now"
        }))
        .service(seen.model(vec![vec![("jira_open", "{}"), ("now", "{}")]], false));
    let answer = agent.oneshot(ChatRequest::user("hi")).await.unwrap();
    let answer = answer.collect().await.unwrap();
    assert_eq!(
        seen.tools(),
        [
            vec!["now"],
            vec!["crm_find", "now", "crm_update", "jira_open"]
        ]
    );
    assert_eq!(
        results(&answer),
        [
            "call-0-0: There is no tool `jira_open`. Available tools: now.",
            "call-0-1: now ran"
        ]
    );
}

paced!(the_head_says_what_was_offered_and_the_innermost_knows_best);
async fn the_head_says_what_was_offered_and_the_innermost_knows_best() {
    async fn head(keep: &'static str, inner: Option<&'static str>) -> Option<Vec<String>> {
        let model = service_fn(move |request: ChatRequest| async move {
            pace().pass(&request.context).await;
            let mut head = ResponseHead::default();
            head.tools = inner.map(|name| vec![name.into()].into());
            let body = futures_util::stream::iter([Ok::<Event, Error>(Event::text("hi"))]);
            Ok::<_, Error>(ChatResponse::new(body).with_head(head))
        });
        let mut request = ChatRequest::user("hi");
        request.tools = toolset()
            .iter()
            .map(|tool| Arc::clone(tool.spec()))
            .collect();
        let layer = offer_tools(move |_, tool| keep == "*" || tool.name == keep);
        let response = layer.layer(model).oneshot(request).await.unwrap();
        let tools = response.head.tools?;
        Some(tools.iter().map(ToString::to_string).collect())
    }
    assert_eq!(head("now", None).await.unwrap(), ["now"]);
    assert_eq!(head("now", Some("other")).await.unwrap(), ["other"]);
    assert_eq!(head("*", None).await, None);
    assert!(head("none", None).await.unwrap().is_empty());
}

paced!(the_layers_are_ready_when_what_they_wrap_is);
async fn the_layers_are_ready_when_what_they_wrap_is() {
    let (_, lazy) = lazy().wrap(toolset());
    let (_, skills) = Skills::new()
        .skill(Skill::new("a", "b", "c"))
        .wrap(toolset())
        .unwrap();
    let (inner, mut handle) = tower_test::mock::pair::<ChatRequest, ChatResponse<()>>();
    let stack = ServiceBuilder::new()
        .layer(lazy)
        .layer(skills)
        .layer(offer_tools(|_, _| true))
        .service(inner);
    let mut first = tokio_test::task::spawn(stack);
    handle.allow(0);
    assert!(
        first
            .enter(|cx, mut stack| stack.poll_ready(cx))
            .is_pending()
    );
    handle.allow(1);
    assert!(first.is_woken());
    assert!(first.enter(|cx, mut stack| stack.poll_ready(cx)).is_ready());
    let mut answer = tokio_test::task::spawn(first.call(ChatRequest::user("hi")));
    assert!(answer.poll().is_pending());
    let (_, send) = handle.next_request().await.unwrap();
    send.send_error("broken");
    let error = answer.await.unwrap_err();
    assert_eq!(error.to_string(), "broken");
}

#[test]
fn the_layers_ask_little_of_what_they_wrap() {
    struct NotClone;
    fn is_send_and_sync<T: Send + Sync>(_: &T) {}
    let (_, lazy) = lazy().wrap(toolset());
    is_send_and_sync(&lazy.layer(NotClone));
    is_send_and_sync(&offer_tools(|_, _| true).layer(NotClone));
}

#[test]
fn a_history_of_half_a_million_names_takes_linear_time() {
    // What takes quadratic time does not end here.
    let (done, wait) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let names: Vec<_> = (0..500_000).map(|n| format!("t{n}")).collect();
        let outcome = ToolOutcome::done("x").with_data(json!({ "tools": names }));
        let call = ToolCallPart::new(CallId::new("old"), "find_tools", r#"{"query":"x"}"#);
        let result = ToolResult::new(CallId::new("old"), "find_tools", outcome);
        let history = [
            Message::user("hi"),
            Message::new(Role::Assistant, vec![Part::new(PartKind::ToolCall(call))]),
            Message::new(Role::Tool, vec![Part::new(PartKind::ToolResult(result))]),
            Message::user("go on"),
        ];
        let (history, _) = Transcript::from_history(history, Repair::Refuse).unwrap();
        // Many calls of one round that are not offered: the history is read once for all of them.
        let round = vec![("crm_find", "{}"); 200];
        let seen = Seen::default();
        let (tools, layer) = LazyTools::new("crm_*").wrap(toolset());
        let agent = ServiceBuilder::new()
            .layer(AgentLayer::new(tools))
            .layer(layer)
            .service(seen.model(vec![round], false));
        let runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = { runtime }.build().unwrap();
        let answer = runtime.block_on(async {
            let request = ChatRequest::new(history);
            agent
                .oneshot(request)
                .await
                .unwrap()
                .collect()
                .await
                .unwrap()
        });
        let hinted = results(&answer);
        let hinted = hinted
            .iter()
            .filter(|text| text.contains("is not available yet"));
        done.send(hinted.count()).unwrap();
    });
    let hinted = wait
        .recv_timeout(std::time::Duration::from_secs(120))
        .unwrap();
    assert_eq!(hinted, 200);
}
