//! Stored responses.

use super::*;
use concentric_core::{
    ThreadId, Turn,
    store::{
        StoreError, StoreFuture, StoredThread, Tenant, ThreadChange, ThreadStore, ThreadSummary,
    },
};
use concentric_http::ClientPolicy;
use concentric_store::MemoryStore;
use futures_util::StreamExt;
use std::time::Duration;
use tokio::sync::Notify;

/// A model that answers with the messages it receives, the system text first. It calls `look` for the
/// message `look`.
pub(super) fn echo() -> BoxModel {
    BoxModel::new(service_fn(|request: ChatRequest| {
        let system = request
            .system
            .iter()
            .map(|it| format!("system:{}", it.text));
        let turns = request.transcript.iter().map(|turn| {
            let results = turn.results().iter();
            let results = results.map(|it| format!("={}", it.outcome.content.text()));
            let results: String = results.collect();
            let message = turn.as_message();
            format!("{:?}:{}{results}", message.role, message.text())
        });
        let text = system.chain(turns).collect::<Vec<_>>().join("|");
        let last = request.transcript.last().map(Turn::as_message);
        let events = match last.map(|message| message.text()).as_deref() {
            Some("look") => vec![
                Event::text("Looking."),
                call("call_0", "look", "{}"),
                finish_by(FinishReason::ToolCalls),
            ],
            _ => vec![Event::text(text), finish()],
        };
        async { Ok::<_, Error>(ChatResponse::new(stream::iter(ok(events)))) }
    }))
}

fn stored() -> OpenAi {
    OpenAi::new().model("m", echo()).threads(MemoryStore::new())
}

pub(super) fn of(
    tenant: &str,
    mut request: http::Request<Full<Bytes>>,
) -> http::Request<Full<Bytes>> {
    request.extensions_mut().insert(Tenant(tenant.into()));
    request
}

pub(super) fn to(method: &str, path: &str) -> http::Request<Full<Bytes>> {
    let request = http::Request::builder().method(method);
    request.uri(path).body(Full::default()).unwrap()
}

pub(super) fn get(id: &str) -> http::Request<Full<Bytes>> {
    to("GET", &format!("/responses/{id}"))
}

#[track_caller]
pub(super) fn text(response: &Value) -> &str {
    let content = &response["output"][0]["content"][0]["text"];
    content.as_str().unwrap_or_else(|| panic!("{response}"))
}

pub(super) fn id(response: &Value) -> String {
    response["id"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn a_response_continues_a_stored_one() {
    let api = stored();
    let fields = json!({"input": [
        {"role": "developer", "content": "Be brief."}, {"role": "user", "content": "one"},
    ], "instructions": "For once."});
    let first = send(&api, response(fields)).await.json();
    assert_eq!(first["store"], true);
    assert_eq!(text(&first), "system:For once.|system:Be brief.|User:one");
    let first = id(&first);
    // Two requests continue the same response.
    for more in ["two", "three"] {
        let fields = json!({"input": more, "previous_response_id": first});
        let second = send(&api, response(fields)).await.json();
        assert_eq!(second["previous_response_id"], first);
        let expected = format!(
            "system:Be brief.|User:one|Assistant:system:For once.|system:Be brief.|User:one|User:{more}"
        );
        assert_eq!(text(&second), expected);
        let fields = json!({"input": "end", "previous_response_id": second["id"]});
        let third = send(&api, response(fields)).await.json();
        assert!(text(&third).ends_with(&format!("Assistant:{expected}|User:end")));
    }
}

#[tokio::test]
async fn a_stored_response_is_read_and_deleted() {
    let api = stored();
    let first = send(&api, response(json!({}))).await.json();
    let fields = json!({"previous_response_id": first["id"], "stream": true});
    let events = send(&api, response(fields)).await.events();
    let second = events.last().unwrap()["response"].clone();
    for response in [&first, &second] {
        let reply = send(&api, get(&id(response))).await;
        assert_eq!((reply.status, &reply.json()), (200, response));
    }
    let path = format!("/responses/{}", id(&first));
    let reply = send(&api, to("DELETE", &path)).await.json();
    assert_eq!(
        reply,
        json!({"id": first["id"], "object": "response", "deleted": true})
    );
    for method in ["GET", "DELETE"] {
        assert_eq!(send(&api, to(method, &path)).await.status, 404);
    }
    // The one that continues it has its turns.
    let fields = json!({"previous_response_id": second["id"], "input": "more"});
    let third = send(&api, response(fields)).await.json();
    assert!(text(&third).starts_with("User:hi|Assistant:"), "{third}");

    let path = format!("/responses/{}", id(&second));
    for (method, path, status) in [
        ("POST", path.clone(), 405),
        ("POST", format!("{path}/cancel"), 400),
        ("GET", format!("{path}/cancel"), 405),
        ("GET", format!("{path}/input_items"), 404),
        ("GET", format!("{path}?stream=true"), 400),
        ("GET", format!("{path}?stream=false&include[]=x"), 200),
        ("GET", format!("{path}?starting_after=3"), 400),
    ] {
        let reply = send(&api, to(method, &path)).await;
        assert_eq!(reply.status, status, "{method} {path}: {}", reply.body);
    }
}

#[tokio::test]
async fn a_response_of_another_tenant_does_not_exist() {
    let api = stored();
    let first = send(&api, of("a", response(json!({})))).await.json();
    let id = id(&first);
    let unknown = id.replace("resp_", "resp_x");
    for (method, path) in [("GET", ""), ("DELETE", ""), ("POST", "/cancel")] {
        let other = to(method, &format!("/responses/{id}{path}"));
        let other = send(&api, of("b", other)).await;
        let unknown_reply = to(method, &format!("/responses/{unknown}{path}"));
        let unknown_reply = send(&api, of("a", unknown_reply)).await;
        assert_eq!((other.status, unknown_reply.status), (404, 404));
        assert_eq!(other.error()["code"], "response_not_found");
        assert_eq!(other.body.replace(&id, &unknown), unknown_reply.body);
    }
    let previous = |id: &str| response(json!({"previous_response_id": id}));
    let other = send(&api, of("b", previous(&id))).await;
    assert_eq!(other.status, 404);
    assert_eq!(other.error()["code"], "previous_response_not_found");
    assert_eq!(other.error()["param"], "previous_response_id");
    let unknown_reply = send(&api, of("a", previous(&unknown))).await;
    assert_eq!(other.body.replace(&id, &unknown), unknown_reply.body);
    assert_eq!(send(&api, of("a", get(&id))).await.status, 200);
}

#[tokio::test]
async fn ids_that_no_response_has_are_not_found() {
    let store = MemoryStore::new();
    // A conversation of another endpoint, whose client has chosen the id.
    let change = StoredThread::default().change_to(&Default::default(), &[]);
    let thread = ThreadId::new("resp_chat");
    let written = store.append(Tenant::default(), thread, 0, change).await;
    assert!(written.is_ok());
    let api = OpenAi::new().model("m", echo()).threads(store.clone());
    for id in [
        "resp_chat",
        "x",
        "",
        "resp_%00",
        "resp_%ff",
        &"resp_".repeat(1000),
    ] {
        for method in ["GET", "DELETE"] {
            let reply = send(&api, to(method, &format!("/responses/{id}"))).await;
            assert_eq!(reply.status, 404, "{id}");
        }
    }
    let left = store
        .load(Tenant::default(), ThreadId::new("resp_chat"))
        .await;
    assert!(left.unwrap().is_some());
}

#[tokio::test]
async fn only_requested_responses_are_stored() {
    let api = stored();
    let first = send(&api, response(json!({"store": false}))).await.json();
    assert_eq!(first["store"], false);
    assert_eq!(send(&api, get(&id(&first))).await.status, 404);
    let first = send(&api, response(json!({"store": true}))).await.json();
    let fields = json!({"store": false, "previous_response_id": first["id"], "input": "more"});
    let second = send(&api, response(fields)).await.json();
    assert!(text(&second).starts_with("User:hi|Assistant:User:hi|User:more"));
    assert_eq!(send(&api, get(&id(&second))).await.status, 404);
    // Chats are not stored.
    let chat = send(&api, chat(json!({"store": true}))).await.json();
    let id = id(&chat).replace("chatcmpl-", "resp_");
    assert_eq!(send(&api, get(&id)).await.status, 404);
}

#[tokio::test]
async fn a_failed_run_is_not_stored() {
    let error = Error::new(concentric_core::ErrorKind::Server, "down");
    let api = slow_api(vec![Ok(Event::text("a")), Err(error)]).threads(MemoryStore::new());
    let events = send(&api, response(json!({"stream": true}))).await;
    let id = id(&serde_json::from_str::<Value>(
        events
            .body
            .lines()
            .find_map(|line| line.strip_prefix("data: "))
            .unwrap(),
    )
    .unwrap()["response"]);
    assert_eq!(send(&api, get(&id)).await.status, 404);
}

#[tokio::test]
async fn the_results_of_stored_calls_continue_the_answer() {
    let api = stored();
    let tools = response_tools(&["look"]);
    let mut previous = Value::Null;
    for round in 0..3 {
        let fields = json!({"input": "look", "tools": tools, "previous_response_id": previous});
        let asked = send(&api, response(fields)).await.json();
        let call = asked["output"].as_array().unwrap().last().unwrap();
        assert_eq!(call["type"], "function_call", "{asked}");
        // The model repeats the id of its calls.
        let call_id = call["call_id"].as_str().unwrap();
        assert_eq!(call_id == "call_0", round == 0, "{call_id}");

        let without = json!({"input": "so?", "tools": tools, "previous_response_id": asked["id"]});
        let reply = send(&api, response(without)).await;
        assert_eq!(
            reply.status, 200,
            "a call without a result is closed: {}",
            reply.body
        );

        let output = json!([{"type": "function_call_output", "call_id": call_id, "output": "42"}]);
        let fields = json!({"input": output, "tools": tools, "previous_response_id": asked["id"]});
        let answered = send(&api, response(fields)).await.json();
        assert!(
            text(&answered).ends_with("User:look|Assistant:Looking.=42"),
            "{answered}"
        );
        previous = answered["id"].clone();
    }
    let output = json!([{"type": "function_call_output", "call_id": "call_9", "output": "42"}]);
    let reply = send(
        &api,
        response(json!({"input": output, "previous_response_id": previous})),
    )
    .await;
    assert_eq!(
        (reply.status, &reply.error()["param"]),
        (400, &json!("input[0]"))
    );
}

/// A reference to each item of a response.
fn references(response: &Value) -> Vec<Value> {
    let items = response["output"].as_array().unwrap().iter();
    let items = items.map(|item| json!({"type": "item_reference", "id": item["id"]}));
    items.collect()
}

#[tokio::test]
async fn a_reference_stands_for_a_stored_item() {
    let model = BoxModel::new(service_fn(|request: ChatRequest| async {
        echo().oneshot(request).await.map(|mut answer| {
            let thought = stream::iter(ok([reasoning("Hm.")]));
            answer.body = concentric_core::EventStream::new(thought.chain(answer.body));
            answer
        })
    }));
    let api = OpenAi::new().model("m", model).reasoning(true);
    let api = api.threads(MemoryStore::new());
    let tools = response_tools(&["look"]);
    let ask = async |input: Vec<Value>| {
        let fields = json!({"input": input, "tools": tools});
        let reply = send(&api, response(fields)).await;
        assert_eq!(reply.status, 200, "{}", reply.body);
        reply.json()
    };
    let (mut whole, mut short) = (Vec::new(), Vec::new());
    for round in 0..3 {
        let user = json!({"role": "user", "content": "look"});
        whole.push(user.clone());
        short.push(user);
        let asked = ask(short.clone()).await;
        let output = asked["output"].as_array().unwrap();
        let types: Vec<_> = output.iter().map(|item| item["type"].clone()).collect();
        assert_eq!(types, ["reasoning", "message", "function_call"]);
        whole.extend(output.iter().cloned());
        short.extend(references(&asked));
        let result = json!({
            "type": "function_call_output", "call_id": output[2]["call_id"], "output": format!("{round}"),
        });
        whole.push(result.clone());
        short.push(result);
        let answered = ask(short.clone()).await;
        let text = |response: &Value| response["output"][1]["content"][0]["text"].clone();
        assert_eq!(text(&answered), text(&ask(whole.clone()).await));
        whole.extend(answered["output"].as_array().unwrap().iter().cloned());
        short.extend(references(&answered));
    }
}

#[tokio::test]
async fn a_reference_to_an_unknown_item_is_rejected() {
    let api = stored();
    let first = send(&api, of("a", response(json!({})))).await.json();
    let item = references(&first).remove(0);
    let other = |id: &str| json!({"type": "item_reference", "id": id});
    let name = item["id"].as_str().unwrap();
    let unstored = send(&api, of("a", response(json!({"store": false})))).await;
    let unstored = references(&unstored.json()).remove(0);
    let ask = async |tenant: &str, input: Value| {
        let reply = send(&api, of(tenant, response(json!({"input": input})))).await;
        (reply.status, reply.json()["error"]["param"].clone())
    };
    assert_eq!(ask("a", json!([item])).await.0, 200);
    for (tenant, input, at) in [
        ("b", json!([item]), 0),
        ("a", json!([item, item]), 1),
        ("a", json!([unstored]), 0),
        ("a", json!([other(&name.replace("msg_", "fc_"))]), 0),
        ("a", json!([other(&name.replace("_0", "_1"))]), 0),
        ("a", json!([other("msg")]), 0),
        ("a", json!([other("")]), 0),
        ("a", json!([other("msg_\0_0")]), 0),
        ("a", json!([other(&"msg_".repeat(1000))]), 0),
    ] {
        let expected = (404, json!(format!("input[{at}].id")));
        assert_eq!(
            ask(tenant, input.clone()).await,
            expected,
            "{tenant} {input}"
        );
    }
    let path = format!("/responses/{}", id(&first));
    assert_eq!(send(&api, of("a", to("DELETE", &path))).await.status, 200);
    assert_eq!(ask("a", json!([item])).await.0, 404);
}

#[tokio::test]
async fn references_do_not_exceed_the_limits_of_a_request() {
    let api = stored().body_limit(1_000);
    let mut input = Vec::new();
    for accepted in [true, true, false] {
        let stored = send(&api, response(json!({"input": "x".repeat(150)})))
            .await
            .json();
        input.extend(references(&stored));
        let reply = send(&api, response(json!({"input": input}))).await;
        let expected = if accepted { 200 } else { 413 };
        assert_eq!(reply.status, expected, "{}", reply.body);
    }
    let policy = ClientPolicy::default().max_messages(1);
    let reply = send(
        &api.client_policy(policy),
        response(json!({"input": input[..2]})),
    )
    .await;
    assert_eq!(
        (reply.status, &reply.error()["param"]),
        (400, &json!("input"))
    );
}

#[tokio::test]
async fn a_conversation_of_references_is_read_at_once() {
    let api = api(ok([Event::text("a"), finish()])).model("echo", echo());
    let api = api.threads(MemoryStore::new());
    let ask = async |model: &str, input: &[Value]| {
        let fields = json!({"model": model, "input": input});
        send(&api, response(fields)).await
    };
    let mut apart = Vec::new();
    for _ in 0..33 {
        apart.extend(references(&send(&api, response(json!({}))).await.json()));
    }
    assert_eq!(ask("m", &apart[1..]).await.status, 200);
    let reply = ask("m", &apart).await;
    assert_eq!(
        (reply.status, &reply.error()["param"]),
        (400, &json!("input"))
    );

    // Each response has the items before it.
    let mut input = Vec::new();
    for at in 0..40 {
        input.push(json!({"role": "user", "content": format!("{at}")}));
        let reply = ask("m", &input).await;
        assert_eq!(reply.status, 200, "{at}: {}", reply.body);
        input.extend(references(&reply.json()));
    }
    let reply = ask("echo", &input).await.json();
    let expected = (0..40).map(|at| format!("User:{at}|Assistant:a"));
    assert_eq!(text(&reply), expected.collect::<Vec<_>>().join("|"));
}

#[tokio::test]
async fn items_may_have_odd_ids() {
    let api = stored();
    let first = send(&api, response(json!({}))).await.json();
    let id = &first["output"][0]["id"];
    for (input, status) in [
        (json!([{"id": id}]), 200),
        (json!([{"id": id, "type": null}]), 200),
        (json!([{"id": 5, "role": "user", "content": "hi"}]), 200),
        (
            json!([{"id": {}, "type": "message", "role": "user", "content": "hi"}]),
            200,
        ),
        (json!([{"id": 5}]), 400),
        (json!([{"id": 5, "type": "item_reference"}]), 400),
        (json!([{"id": id, "type": "message"}]), 400),
    ] {
        let reply = send(&api, response(json!({"input": input}))).await;
        assert_eq!(reply.status, status, "{input}: {}", reply.body);
    }
}

#[tokio::test]
async fn the_rounds_of_an_agent_are_stored() {
    let steps = vec![vec![call("c", "pay", "{}")]];
    let (agent, paid) = agent(steps, ok([Event::text("Paid."), finish()]));
    let api = OpenAi::new()
        .model("m", agent)
        .model("echo", echo())
        .threads(MemoryStore::new());
    let first = send(&api, response(json!({"input": "pay"}))).await.json();
    let fields = json!({"model": "echo", "input": "and?", "previous_response_id": first["id"]});
    let second = send(&api, response(fields)).await.json();
    assert_eq!(
        text(&second),
        "User:pay|Assistant:=paid|Assistant:Paid.|User:and?"
    );
    assert_eq!(paid.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn without_a_store_no_response_is_continued() {
    let api = api(ok([finish()]));
    let reply = send(&api, response(json!({"previous_response_id": "resp_1"}))).await;
    assert_eq!(
        (reply.status, &reply.error()["param"]),
        (400, &json!("previous_response_id"))
    );
    for method in ["GET", "DELETE"] {
        let reply = send(&api, to(method, "/responses/resp_1")).await;
        assert_eq!(
            (reply.status, &reply.error()["code"]),
            (404, &json!("response_not_found"))
        );
    }
}

#[tokio::test]
async fn an_answer_needs_at_least_one_token() {
    let api = api(ok([finish()]));
    for (request, field) in [
        (chat(json!({"max_tokens": 0})), "max_tokens"),
        (
            chat(json!({"max_completion_tokens": 0})),
            "max_completion_tokens",
        ),
        (
            response(json!({"max_output_tokens": 0})),
            "max_output_tokens",
        ),
    ] {
        let reply = send(&api, request).await;
        assert_eq!(
            (reply.status, &reply.error()["param"]),
            (400, &json!(field))
        );
    }
}

/// A store whose writes have faults: each write has the number of those before it.
#[derive(Clone)]
pub(super) struct Broken {
    pub(super) store: MemoryStore,
    pub(super) fault: Arc<dyn Fn(usize) -> Option<Fault> + Send + Sync>,
    pub(super) writes: Arc<AtomicUsize>,
    /// A conversation that was read is returned when the second one is notified; the first one is notified before.
    pub(super) reads: Option<Arc<(Notify, Notify)>>,
}

#[derive(Clone, Copy)]
pub(super) enum Fault {
    Fails,
    TooLarge,
    Hangs,
    Panics,
    /// The write is done at a later poll.
    Waits,
    /// The write is done, and its result is lost.
    Lost,
}

impl Broken {
    pub(super) fn new(fault: impl Fn(usize) -> Option<Fault> + Send + Sync + 'static) -> Self {
        Self {
            store: MemoryStore::new(),
            fault: Arc::new(fault),
            writes: Arc::default(),
            reads: None,
        }
    }

    fn write(&self, write: impl FnOnce() -> StoreFuture<u64> + Send + 'static) -> StoreFuture<u64> {
        match (self.fault)(self.writes.fetch_add(1, Ordering::SeqCst)) {
            None => write(),
            Some(Fault::Fails) => Box::pin(async { Err(StoreError::Stale) }),
            Some(Fault::TooLarge) => Box::pin(async { Err(StoreError::unwritable("too large")) }),
            Some(Fault::Hangs) => Box::pin(std::future::pending()),
            Some(Fault::Panics) => Box::pin(async { panic!("a store's panic") }),
            Some(Fault::Waits) => Box::pin(async {
                tokio::task::yield_now().await;
                let written = write().await;
                tokio::task::yield_now().await;
                written
            }),
            Some(Fault::Lost) => Box::pin(async {
                write().await?;
                Err(StoreError::failed("the connection is lost"))
            }),
        }
    }
}

impl ThreadStore for Broken {
    fn load(&self, tenant: Tenant, thread: ThreadId) -> StoreFuture<Option<StoredThread>> {
        let load = self.store.load(tenant, thread);
        let Some(reads) = self.reads.clone() else {
            return load;
        };
        Box::pin(async move {
            let loaded = load.await;
            reads.0.notify_one();
            reads.1.notified().await;
            loaded
        })
    }

    fn turns(
        &self,
        tenant: Tenant,
        thread: ThreadId,
        start: Option<usize>,
        limit: usize,
    ) -> StoreFuture<Option<(ThreadSummary, Vec<Turn>)>> {
        self.store.turns(tenant, thread, start, limit)
    }

    fn append(
        &self,
        tenant: Tenant,
        thread: ThreadId,
        version: u64,
        change: ThreadChange,
    ) -> StoreFuture<u64> {
        let store = self.store.clone();
        self.write(move || store.append(tenant, thread, version, change))
    }

    fn fork(
        &self,
        tenant: Tenant,
        thread: ThreadId,
        version: u64,
        to: ThreadId,
        change: ThreadChange,
    ) -> StoreFuture<u64> {
        self.store.fork(tenant, thread, version, to, change)
    }

    fn list_threads(
        &self,
        tenant: Tenant,
        before: Option<u64>,
        limit: usize,
    ) -> StoreFuture<Vec<ThreadSummary>> {
        self.store.list_threads(tenant, before, limit)
    }

    fn delete(&self, tenant: Tenant, thread: ThreadId) -> StoreFuture<bool> {
        self.store.delete(tenant, thread)
    }

    fn delete_tenant(&self, tenant: Tenant) -> StoreFuture<u64> {
        self.store.delete_tenant(tenant)
    }
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_is_not_stored_is_delivered() {
    for fault in [Fault::Fails, Fault::Hangs, Fault::Panics] {
        let api = OpenAi::new()
            .model("m", echo())
            .threads(Broken::new(move |_| Some(fault)));
        let whole = send(&api, response(json!({}))).await.json();
        assert_eq!((text(&whole), &whole["store"]), ("User:hi", &json!(false)));
        let events = send(&api, response(json!({"stream": true}))).await.events();
        assert_eq!(events[0]["response"]["store"], true);
        let last = events.last().unwrap();
        assert_eq!(last["type"], "response.completed");
        assert_eq!(last["response"]["store"], false);
        assert_eq!(send(&api, get(&id(&last["response"]))).await.status, 404);
    }
}

#[tokio::test(start_paused = true)]
async fn a_shutdown_does_not_wait_for_the_store() {
    let shutdown = concentric_http::Shutdown::new();
    let store = Broken::new(|_| Some(Fault::Hangs));
    let api = OpenAi::new()
        .model("m", echo())
        .threads(store)
        .shutdown(shutdown.clone());
    let request = response(json!({}));
    let reply = tokio::spawn(async move { send(&api, request).await });
    tokio::time::sleep(Duration::from_secs(1)).await;
    shutdown.begin(Duration::from_secs(2));
    let whole = reply.await.unwrap().json();
    assert_eq!((text(&whole), &whole["store"]), ("User:hi", &json!(false)));
}
