//! Approvals as items of responses.

use super::{
    stored::{echo, id, to},
    *,
};
use concentric_core::store::{RunStore, Tenant};
use concentric_layers::SuspendLayer;
use concentric_store::MemoryStore;
use concentric_tools::Approval;
use tokio::sync::Notify;

/// An agent that pays after an approval, once for each call of `calls`, and then ends.
pub(super) fn paying(calls: Vec<Event>, is_stored: bool) -> (OpenAi, Arc<AtomicUsize>) {
    let (agent, paid) = paying_agent(calls, is_stored.then(MemoryStore::new));
    let api = OpenAi::new().model("m", agent);
    (api.threads(MemoryStore::new()), paid)
}

/// The agent of [`paying`], whose runs `store` has.
fn paying_agent(calls: Vec<Event>, store: Option<MemoryStore>) -> (BoxModel, Arc<AtomicUsize>) {
    let finish = finish_by(FinishReason::ToolCalls);
    paying_in(vec![calls.into_iter().chain([finish]).collect()], store)
}

/// The agent of [`paying`], with the answers before its end.
fn paying_in(scripts: Vec<Vec<Event>>, store: Option<MemoryStore>) -> (BoxModel, Arc<AtomicUsize>) {
    let paid = Arc::new(AtomicUsize::new(0));
    let count = paid.clone();
    let pay = tool("pay", "Pays.", move |_: Value| {
        count.fetch_add(1, Ordering::SeqCst);
        async { Ok::<_, ToolError>("paid".to_owned()) }
    });
    let model = service_fn(move |request: ChatRequest| {
        let rounds = request
            .transcript
            .iter()
            .filter(|turn| turn.as_round().is_some());
        let script = match scripts.get(rounds.count()) {
            Some(script) => ok(script.clone()),
            None => {
                let results = request
                    .transcript
                    .iter()
                    .flat_map(|turn| turn.results().to_vec());
                let results = results.map(|result| result.outcome.content.text().into_owned());
                let results = results.collect::<Vec<_>>().join(";");
                let last = request.user_message().map(|message| message.text());
                ok([
                    Event::text(format!("{results} {}", last.unwrap_or_default())),
                    finish(),
                ])
            }
        };
        async { Ok::<_, Error>(ChatResponse::new(stream::iter(script))) }
    });
    let tools = Toolset::new().tool(pay).gate(Approval::for_tools(["pay"]));
    let agent = AgentLayer::new(tools).layer(model);
    let agent = match store {
        Some(store) => {
            let store: Arc<dyn RunStore> = Arc::new(store);
            BoxModel::new(SuspendLayer::new(store).layer(agent))
        }
        None => BoxModel::new(agent),
    };
    (agent, paid)
}

pub(super) fn one() -> Vec<Event> {
    vec![Event::text("I pay."), call("call_0", "pay", r#"{"sum":7}"#)]
}

fn decision(request: &Value, approve: bool) -> Value {
    json!({"type": "mcp_approval_response", "approval_request_id": request["id"], "approve": approve})
}

/// The approval requests of a response.
#[track_caller]
fn requests(response: &Value) -> Vec<Value> {
    let output = response["output"].as_array().unwrap().iter();
    let is_request = |item: &&Value| item["type"] == "mcp_approval_request";
    let found: Vec<Value> = output.filter(is_request).cloned().collect();
    assert!(!found.is_empty(), "{response}");
    found
}

#[track_caller]
fn text(response: &Value) -> &str {
    let text = response["output"][0]["content"][0]["text"].as_str();
    text.unwrap_or_else(|| panic!("{response}"))
}

#[tokio::test]
async fn an_approved_call_runs_once() {
    for is_streamed in [false, true] {
        let (api, paid) = paying(one(), true);
        let fields = json!({"stream": is_streamed});
        let asked = match is_streamed {
            false => send(&api, response(fields)).await.json(),
            true => {
                let events = send(&api, response(fields)).await.events();
                let last = events.last().unwrap();
                assert_eq!(last["type"], "response.completed");
                let at = last["response"]["output"].as_array().unwrap().len() - 1;
                for name in ["response.output_item.added", "response.output_item.done"] {
                    let is_it =
                        |event: &&Value| event["type"] == name && event["output_index"] == at;
                    let event = events.iter().find(is_it).unwrap();
                    assert_eq!(event["item"], last["response"]["output"][at]);
                }
                last["response"].clone()
            }
        };
        assert_eq!(asked["status"], "completed");
        let request = requests(&asked).remove(0);
        assert_eq!(request["name"], "pay");
        assert_eq!(request["arguments"], r#"{"sum":7}"#);
        assert_eq!(request["server_label"], "m");
        assert_eq!(paid.load(Ordering::SeqCst), 0);

        let fields =
            json!({"previous_response_id": asked["id"], "input": [decision(&request, true)]});
        let answered = send(&api, response(fields.clone())).await.json();
        assert_eq!(text(&answered), "paid hi");
        assert_eq!(paid.load(Ordering::SeqCst), 1);

        let reply = send(&api, response(fields)).await;
        assert_eq!(
            (reply.status, &reply.error()["code"]),
            (409, &json!("run_ended"))
        );
        assert_eq!(paid.load(Ordering::SeqCst), 1);

        // The conversation goes on with what the run has done.
        let fields = json!({"previous_response_id": answered["id"], "input": "more"});
        let more = send(&api, response(fields)).await.json();
        assert_eq!(text(&more), "paid more");
    }
}

#[tokio::test]
async fn an_approval_needs_no_stored_response() {
    let (api, paid) = paying(one(), true);
    let asked = send(&api, response(json!({"store": false}))).await.json();
    let request = requests(&asked).remove(0);
    let history = json!([
        {"role": "user", "content": "hi"}, asked["output"][0], request, decision(&request, true),
        {"role": "user", "content": "Quickly!"},
    ]);
    let answered = send(&api, response(json!({"store": false, "input": history})))
        .await
        .json();
    assert_eq!(text(&answered), "paid Quickly!");
    assert_eq!(paid.load(Ordering::SeqCst), 1);
    // A later request has the decision in its history.
    let mut history = history;
    let more = [
        answered["output"][0].clone(),
        json!({"role": "user", "content": "And?"}),
    ];
    history.as_array_mut().unwrap().extend(more);
    let more = send(&api, response(json!({"store": false, "input": history})))
        .await
        .json();
    assert_eq!(requests(&more).len(), 1, "a new run begins");
}

#[tokio::test]
async fn a_denied_call_does_not_run() {
    let (api, paid) = paying(one(), true);
    let asked = send(&api, response(json!({}))).await.json();
    let mut no = decision(&requests(&asked)[0], false);
    no["reason"] = "too dear".into();
    let fields = json!({"previous_response_id": asked["id"], "input": [no]});
    let answered = send(&api, response(fields)).await.json();
    assert!(text(&answered).contains("too dear"), "{answered}");
    assert_eq!(paid.load(Ordering::SeqCst), 0);
}

#[tokio::test]
async fn a_message_instead_of_an_approval_leaves_the_call_open() {
    let (api, paid) = paying(one(), true);
    let asked = send(&api, response(json!({}))).await.json();
    let fields = json!({"previous_response_id": asked["id"], "input": "Never mind."});
    let answered = send(&api, response(fields)).await.json();
    assert!(text(&answered).ends_with("Never mind."), "{answered}");
    assert_eq!(paid.load(Ordering::SeqCst), 0);
}

#[tokio::test]
async fn the_approvals_of_a_round_may_come_one_by_one() {
    let calls = vec![
        call("a", "pay", r#"{"sum":1}"#),
        call("b", "pay", r#"{"sum":2}"#),
    ];
    let (api, paid) = paying(calls, true);
    let asked = send(&api, response(json!({}))).await.json();
    let requests = requests(&asked);
    assert_eq!(requests.len(), 2);
    let answer = |decisions: Vec<Value>| {
        response(json!({"previous_response_id": asked["id"], "input": decisions}))
    };
    let reply = send(&api, answer(vec![decision(&requests[0], true)]))
        .await
        .json();
    // The other one is still open.
    assert_eq!(self::requests(&reply), requests[1..]);
    assert_eq!(paid.load(Ordering::SeqCst), 1);
    let other = decision(&requests[1], false);
    let fields = json!({"previous_response_id": reply["id"], "input": [other]});
    let reply = send(&api, response(fields)).await.json();
    assert!(text(&reply).starts_with("paid;"), "{reply}");
    assert_eq!(paid.load(Ordering::SeqCst), 1);
}

/// The provider of the Vercel AI SDK sends each request before its decision, and all of them with each turn.
#[tokio::test]
async fn each_request_of_a_round_may_stand_before_its_decision() {
    let calls = vec![
        call("a", "pay", r#"{"sum":1}"#),
        call("b", "pay", r#"{"sum":2}"#),
    ];
    let reference = |request: &Value| json!({"type": "item_reference", "id": request["id"]});
    for is_whole in [false, true] {
        let (api, paid) = paying(calls.clone(), true);
        let asked = send(&api, response(json!({}))).await.json();
        let mut input = vec![json!({"role": "user", "content": "hi"})];
        for request in requests(&asked) {
            input.push(match is_whole {
                true => request.clone(),
                false => reference(&request),
            });
            input.push(decision(&request, true));
        }
        let reply = send(&api, response(json!({"input": input}))).await.json();
        assert!(text(&reply).starts_with("paid;paid"), "{reply}");
        assert_eq!(paid.load(Ordering::SeqCst), 2);
    }
    // Those of an earlier round have no effect.
    let round = |at: usize| {
        let id = format!("c{at}");
        vec![
            call(&id, "pay", r#"{"sum":1}"#),
            finish_by(FinishReason::ToolCalls),
        ]
    };
    let (agent, paid) = paying_in(vec![round(0), round(1)], Some(MemoryStore::new()));
    let api = OpenAi::new().model("m", agent).threads(MemoryStore::new());
    let mut input = vec![json!({"role": "user", "content": "hi"})];
    for paid_before in 0..2 {
        let asked = send(&api, response(json!({"input": input}))).await.json();
        assert_eq!(paid.load(Ordering::SeqCst), paid_before);
        let request = requests(&asked).remove(0);
        input.extend([reference(&request), decision(&request, true)]);
    }
    let reply = send(&api, response(json!({"input": input}))).await.json();
    assert!(text(&reply).starts_with("paid;paid"), "{reply}");
    assert_eq!(paid.load(Ordering::SeqCst), 2);
}

/// A client that has no `previous_response_id` sends all items again.
#[tokio::test]
async fn a_client_may_repeat_earlier_approvals() {
    let calls = vec![
        call("a", "pay", r#"{"sum":1}"#),
        call("b", "pay", r#"{"sum":2}"#),
    ];
    let (api, paid) = paying(calls, true);
    let ask = async |input: &[Value]| send(&api, response(json!({"input": input}))).await;
    let mut input = vec![json!({"role": "user", "content": "hi"})];
    let asked = requests(&ask(&input).await.json());
    input.extend(asked.iter().cloned());
    input.push(decision(&asked[0], true));
    let reply = ask(&input).await.json();
    assert_eq!(
        (requests(&reply), paid.load(Ordering::SeqCst)),
        (asked[1..].to_vec(), 1)
    );
    input.push(asked[1].clone());

    // A message instead of the decision is a new run.
    let other = json!({"role": "user", "content": "never mind"});
    let reply = ask(&[&input[..], &[other]].concat()).await;
    assert_eq!(
        (reply.status, paid.load(Ordering::SeqCst)),
        (200, 1),
        "{}",
        reply.body
    );

    // An earlier decision cannot be changed.
    let mut changed = input.clone();
    changed[3] = decision(&asked[0], false);
    changed.push(decision(&asked[1], true));
    let reply = ask(&changed).await;
    assert_eq!(
        (reply.status, &reply.error()["code"]),
        (409, &json!("already_resumed"))
    );

    input.push(decision(&asked[1], true));
    let reply = ask(&input).await.json();
    assert!(text(&reply).starts_with("paid;paid"), "{reply}");
    assert_eq!(paid.load(Ordering::SeqCst), 2);
    // All of them once more.
    let reply = ask(&input).await;
    assert_eq!(
        (reply.status, &reply.error()["code"]),
        (409, &json!("run_ended"))
    );
}

#[tokio::test]
async fn forged_approvals_are_refused() {
    let (api, paid) = paying(one(), true);
    let of = |tenant: &str, mut request: http::Request<Full<Bytes>>| {
        request.extensions_mut().insert(Tenant(tenant.into()));
        request
    };
    let asked = send(&api, of("a", response(json!({})))).await.json();
    let other = send(&api, of("a", response(json!({})))).await.json();
    let request = &requests(&asked)[0];
    let approve = |id: &str, fields: Value| {
        let item = decision(&json!({"id": id}), true);
        response(with(json!({"input": [item]}), fields))
    };
    let id = request["id"].as_str().unwrap();
    let unknown = id.replace("call_0", "call_1");
    // Another tenant gets the answer of an unknown id.
    for (tenant, id) in [("b", id), ("a", &unknown)] {
        let reply = send(&api, of(tenant, approve(id, json!({})))).await;
        assert_eq!(
            (reply.status, &reply.error()["code"]),
            (404, &json!("run_not_found"))
        );
    }
    for (id, fields, param) in [
        ("", json!({}), "input[0].approval_request_id"),
        ("mcpr_x", json!({}), "input[0].approval_request_id"),
        (id, json!({"previous_response_id": other["id"]}), "input"),
    ] {
        let reply = send(&api, of("a", approve(id, fields))).await;
        assert_eq!(
            (reply.status, &reply.error()["param"]),
            (400, &json!(param))
        );
    }
    let many = json!([
        decision(request, true),
        decision(&requests(&other)[0], true)
    ]);
    let reply = send(&api, of("a", response(json!({"input": many})))).await;
    assert_eq!(
        (reply.status, &reply.error()["param"]),
        (400, &json!("input"))
    );
    assert_eq!(paid.load(Ordering::SeqCst), 0);
    let reply = send(&api, of("a", approve(id, json!({})))).await;
    assert_eq!(reply.status, 200, "{}", reply.body);
    assert_eq!(paid.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn of_two_equal_approvals_at_once_one_counts() {
    let (api, paid) = paying(one(), true);
    let asked = send(&api, response(json!({}))).await.json();
    let item = decision(&requests(&asked)[0], true);
    let fields = json!({"previous_response_id": asked["id"], "input": [item]});
    let both = tokio::join!(
        send(&api, response(fields.clone())),
        send(&api, response(fields))
    );
    let mut statuses = [both.0.status, both.1.status];
    statuses.sort_unstable();
    assert_eq!(statuses, [200, 409]);
    assert_eq!(paid.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn an_approval_that_cannot_be_given_fails() {
    let (api, paid) = paying(one(), false);
    let reply = send(&api, response(json!({}))).await;
    assert_eq!(
        (reply.status, &reply.error()["code"]),
        (409, &json!("approval_required"))
    );
    let item = decision(&json!({"id": "mcpr_run_1/m/0/call_0"}), true);
    let reply = send(&api, response(json!({"input": [item]}))).await;
    assert_eq!(
        (reply.status, &reply.error()["code"]),
        (409, &json!("conflict"))
    );
    // Chats have no items for approvals.
    let (stored, _) = paying(one(), true);
    let reply = send(&stored, chat(json!({}))).await;
    assert_eq!(
        (reply.status, &reply.error()["code"]),
        (409, &json!("approval_required"))
    );
    assert_eq!(paid.load(Ordering::SeqCst), 0);
}

#[tokio::test]
async fn a_plain_model_accepts_no_approvals() {
    let (agent, paid) = paying_agent(one(), Some(MemoryStore::new()));
    let api = OpenAi::new().model("m", agent).model("echo", echo());
    let api = api.threads(MemoryStore::new());
    let asked = send(&api, response(json!({}))).await.json();
    let item = decision(&requests(&asked)[0], true);
    for is_streamed in [false, true] {
        let input = json!([item, {"role": "user", "content": "Quickly!"}]);
        let fields = json!({"model": "echo", "input": input, "stream": is_streamed});
        let reply = send(&api, response(fields)).await;
        assert_eq!(
            (reply.status, &reply.error()["code"]),
            (409, &json!("conflict"))
        );
    }
    let fields = json!({"model": "echo", "input": [item], "background": true});
    let live = send(&api, response(fields)).await.json();
    let path = format!("/responses/{}", id(&live));
    let mut failed = live;
    while failed["status"] == "in_progress" {
        tokio::task::yield_now().await;
        failed = send(&api, to("GET", &path)).await.json();
    }
    assert_eq!(failed["status"], "failed");
    // The agent still accepts it.
    let answered = send(&api, response(json!({"input": [item]}))).await.json();
    assert_eq!(text(&answered), "paid hi");
    assert_eq!(paid.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn results_and_approvals_of_one_round_come_together() {
    let calls = vec![call("a", "pay", "{}"), call("b", "look", "{}")];
    let (api, paid) = paying(calls, true);
    let tools = response_tools(&["look"]);
    let asked = send(&api, response(json!({"tools": tools}))).await.json();
    let request = &requests(&asked)[0];
    let output = json!({"type": "function_call_output", "call_id": "b", "output": "42"});
    let fields = json!({"tools": tools, "previous_response_id": asked["id"],
        "input": [decision(request, true), output]});
    let answered = send(&api, response(fields)).await.json();
    assert_eq!(text(&answered), "paid;42 hi");
    assert_eq!(paid.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn a_deleted_first_response_leaves_later_runs() {
    // One store has the responses and the runs.
    let store = MemoryStore::new();
    let (agent, paid) = paying_agent(one(), Some(store.clone()));
    let api = OpenAi::new().model("m", agent).model("echo", echo());
    let api = api.threads(store);
    let first = send(&api, response(json!({"model": "echo"}))).await.json();
    let fields = json!({"previous_response_id": first["id"], "input": "pay"});
    let asked = send(&api, response(fields)).await.json();
    let path = format!("/responses/{}", id(&first));
    assert_eq!(send(&api, to("DELETE", &path)).await.status, 200);
    let request = requests(&asked).remove(0);
    let fields = json!({"previous_response_id": asked["id"], "input": [decision(&request, true)]});
    let reply = send(&api, response(fields)).await;
    assert_eq!(reply.status, 200, "{}", reply.body);
    assert_eq!(text(&reply.json()), "paid pay");
    assert_eq!(paid.load(Ordering::SeqCst), 1);
    // Nor does the deletion of a response remove its own run.
    let asked = send(&api, response(json!({}))).await.json();
    let path = format!("/responses/{}", id(&asked));
    assert_eq!(send(&api, to("DELETE", &path)).await.status, 200);
    let item = decision(&requests(&asked)[0], true);
    let reply = send(&api, response(json!({"input": [item]}))).await;
    assert_eq!(reply.status, 200, "{}", reply.body);
    assert_eq!(paid.load(Ordering::SeqCst), 2);
}

#[tokio::test]
async fn a_run_continues_while_an_earlier_response_is_deleted() {
    let store = MemoryStore::new();
    let (begun, end) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let (begins, ends) = (begun.clone(), end.clone());
    let pay = tool("pay", "Pays.", move |_: Value| {
        begins.notify_one();
        let ends = ends.clone();
        async move {
            ends.notified().await;
            Ok::<_, ToolError>("paid".to_owned())
        }
    });
    let model = service_fn(|request: ChatRequest| {
        let script = match request.context.step() {
            0 => ok(one()
                .into_iter()
                .chain([finish_by(FinishReason::ToolCalls)])),
            _ => ok([Event::text("Paid."), finish()]),
        };
        async { Ok::<_, Error>(ChatResponse::new(stream::iter(script))) }
    });
    let runs: Arc<dyn RunStore> = Arc::new(store.clone());
    let agent = AgentLayer::new(Toolset::new().tool(pay)).layer(model);
    let agent = BoxModel::new(SuspendLayer::new(runs).layer(agent));
    let api = OpenAi::new().model("m", agent).model("echo", echo());
    let api = api.threads(store);
    let first = send(&api, response(json!({"model": "echo"}))).await.json();
    let fields = json!({"previous_response_id": first["id"], "input": "pay"});
    let request = response(fields);
    let paying = tokio::spawn({
        let api = api.clone();
        async move { send(&api, request).await }
    });
    begun.notified().await;
    let path = format!("/responses/{}", id(&first));
    assert_eq!(send(&api, to("DELETE", &path)).await.status, 200);
    end.notify_one();
    let reply = paying.await.unwrap();
    assert_eq!(reply.status, 200, "{}", reply.body);
    let output = reply.json()["output"].to_string();
    assert!(output.contains("Paid."), "{output}");
    let fields = json!({"model": "echo", "previous_response_id": reply.json()["id"]});
    let next = send(&api, response(fields)).await.json();
    assert!(text(&next).contains("User:pay|"), "{next}");
}
