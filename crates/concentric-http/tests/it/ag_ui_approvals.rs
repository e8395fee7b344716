//! Interrupts and replies, between a client that stores the history and an agent with approvals.

use crate::support::{
    client::{Client, answer, approved, end},
    send, types,
};
use concentric_core::{
    AgentLayer, BoxModel, CallId, ChatRequest, ChatResponse, Error, Event, FinishReason, ReplyKind,
    ThreadId, ToolCallPart, Turn, Usage,
    store::{Resumable, RunStore, Tenant},
};
use concentric_http::ag_ui::AgUiLayer;
use concentric_layers::{
    SuspendLayer,
    session::{SessionTarget, Sessions},
    suspend::abandoned,
};
use concentric_store::{MemoryStore, SqliteStore};
use concentric_tools::{
    Approval, Tokens, Tool, ToolError, Toolset, agent_tool,
    token::{Key, Keys},
    tool,
};
use futures_util::stream;
use serde_json::{Map, Value, json};
use std::{
    sync::{Arc, Mutex},
    time::{Duration, SystemTime},
};
use tower::{Layer, Service, ServiceExt, service_fn};

// ---- the agent ----

/// The executed tools, with their arguments.
#[derive(Clone, Default)]
struct Ran(Arc<Mutex<Vec<String>>>);

impl Ran {
    fn tool(&self, name: &'static str) -> Tool {
        let ran = self.clone();
        tool(name, "A tool.", move |arguments: Map<String, Value>| {
            let line = format!("{name} {}", Value::Object(arguments));
            ran.0.lock().unwrap().push(line);
            async move { Ok::<_, ToolError>(format!("{name} is done")) }
        })
    }

    fn lines(&self) -> Vec<String> {
        self.0.lock().unwrap().clone()
    }
}

/// `refund` and `mail` require approval, `note` and `look` do not; `look` is read-only.
fn tools(ran: &Ran) -> Toolset {
    Toolset::new()
        .tool(ran.tool("refund"))
        .tool(ran.tool("mail"))
        .tool(ran.tool("note"))
        .tool(ran.tool("look").read_only())
        .gate(Approval::for_tools(["refund", "mail"]).replies([
            ReplyKind::Approve,
            ReplyKind::Deny,
            ReplyKind::Edit,
            ReplyKind::Answer,
        ]))
}

fn with_tokens(ran: &Ran) -> Toolset {
    let keys = Keys::new(Key::new("k", vec![7; 32]).unwrap());
    tools(ran).tokens(Tokens::new(keys, "test", MemoryStore::new()))
}

type Calls = Vec<(&'static str, &'static str, Value)>;

/// A model that makes `calls`, and then writes their outcomes as text.
fn model(
    calls: Calls,
) -> impl Service<
    ChatRequest,
    Response = ChatResponse<crate::support::Script>,
    Error = Error,
    Future: Send,
> + Clone
+ Send
+ Sync
+ 'static {
    service_fn(move |request: ChatRequest| {
        let results = request.transcript.last().map_or(&[][..], Turn::results);
        let mut events: Vec<Event> = match results {
            [] => calls
                .iter()
                .map(|(id, name, arguments)| {
                    let arguments = arguments.to_string();
                    Event::tool_call(ToolCallPart::new(CallId::new(*id), *name, arguments))
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
        let body: Vec<_> = events.into_iter().map(Ok).collect();
        async move { Ok(ChatResponse::new(stream::iter(body))) }
    })
}

fn agent(tools: Toolset, calls: Calls) -> BoxModel {
    BoxModel::new(AgentLayer::new(tools).layer(model(calls)))
}

fn refund() -> Calls {
    vec![("call_0", "refund", json!({"order": 7}))]
}

/// The codes of the `approval-invalid` events.
fn invalid(events: &[Value]) -> Vec<&str> {
    let custom = events.iter().filter(|e| e["name"] == "approval-invalid");
    custom
        .map(|e| e["value"]["code"].as_str().unwrap())
        .collect()
}

async fn interrupted(agent: &BoxModel) -> Client {
    let mut client = Client::new();
    let events = client.run(agent, json!([])).await;
    assert_eq!(end(&events)["outcome"]["type"], "interrupt", "{events:?}");
    client
}

// ---- without a store ----

#[tokio::test]
async fn an_interrupt_has_all_fields_that_a_reply_needs() {
    let ran = Ran::default();
    let agent = agent(with_tokens(&ran), refund());
    let client = interrupted(&agent).await;
    let asked = &client.pending[0];
    let message = client.messages[1]["id"].as_str().unwrap();
    assert_eq!(asked["id"], format!("{message}/0/call_0"));
    assert_eq!(asked["reason"], "tool_call");
    assert_eq!(asked["toolCallId"], "call_0");
    assert_eq!(asked["message"], "Allow the call of `refund`?");
    assert_eq!(asked["responseSchema"]["type"], "object");
    assert_eq!(asked["metadata"]["tool"], "refund");
    assert_eq!(asked["metadata"]["arguments"], json!({"order": 7}));
    let expires = asked["expiresAt"].as_str().unwrap();
    assert!(expires.len() == 24 && expires.ends_with('Z'), "{expires}");
    assert_eq!(client.messages.len(), 2);
    assert!(ran.lines().is_empty());
}

#[tokio::test]
async fn an_approved_call_runs_once_and_the_run_continues() {
    for of_metadata in [false, true] {
        let ran = Ran::default();
        let agent = agent(with_tokens(&ran), refund());
        let mut client = interrupted(&agent).await;
        let resume = match of_metadata {
            false => client.answers(&approved()),
            true => json!([{"interruptId": client.pending[0]["id"], "status": "resolved",
                "payload": approved(), "metadata": {"token": client.pending[0]["metadata"]["token"]}}]),
        };
        let events = client.run(&agent, resume).await;
        assert_eq!(
            types(&events)[..3],
            ["RUN_STARTED", "TOOL_CALL_RESULT", "STEP_STARTED"]
        );
        assert_eq!(events[1]["toolCallId"], "call_0");
        assert_eq!(end(&events)["outcome"], json!({"type": "success"}));
        assert_eq!(client.last_text(), "[Done: refund is done]");
        assert_eq!(ran.lines(), [r#"refund {"order":7}"#]);
    }
}

#[tokio::test]
async fn a_call_may_be_denied_edited_answered_or_cancelled() {
    let cancel = |asked: &Value| {
        json!([{"interruptId": asked["id"], "status": "cancelled",
        "payload": {"token": asked["metadata"]["token"]}}])
    };
    for (payload, expected, lines) in [
        (
            Some(json!({"approved": false, "reason": "too much"})),
            "[Denied: The call was denied: too much]",
            vec![],
        ),
        (
            Some(json!({"approved": true, "editedArgs": {"order": 8}})),
            "[Done: refund is done]",
            vec![r#"refund {"order":8}"#],
        ),
        (
            Some(json!({"result": "paid by hand"})),
            "[Done: A person supplied this result, not the tool:\npaid by hand]",
            vec![],
        ),
        (None, "[Cancelled: The call was cancelled.]", vec![]),
    ] {
        let ran = Ran::default();
        let agent = agent(with_tokens(&ran), refund());
        let mut client = interrupted(&agent).await;
        let resume = match &payload {
            Some(payload) => client.answers(payload),
            None => cancel(&client.pending[0]),
        };
        let events = client.run(&agent, resume).await;
        assert_eq!(end(&events)["outcome"]["type"], "success");
        assert_eq!(client.last_text(), expected);
        assert_eq!(ran.lines(), lines);
    }
}

#[tokio::test]
async fn a_token_is_valid_only_for_its_own_interrupt() {
    let two = || {
        vec![
            ("call_0", "refund", json!({"order": 7})),
            ("call_1", "refund", json!({"order": 8})),
        ]
    };
    type Forge = fn(&mut Client, &mut Value);
    let forgeries: [(&str, Forge); 6] = [
        ("arguments", |client, _| {
            client.call("call_0")["function"]["arguments"] = r#"{"order":9}"#.into();
            client.call("call_1")["function"]["arguments"] = r#"{"order":9}"#.into();
        }),
        ("tool", |client, _| {
            client.call("call_0")["function"]["name"] = "mail".into();
            client.call("call_1")["function"]["name"] = "mail".into();
        }),
        ("call", |_, resume| {
            let first = resume[0]["payload"]["token"].clone();
            resume[0]["payload"]["token"] = resume[1]["payload"]["token"].clone();
            resume[1]["payload"]["token"] = first;
        }),
        ("missing", |_, resume| {
            for entry in resume.as_array_mut().unwrap() {
                entry["payload"].as_object_mut().unwrap().remove("token");
            }
        }),
        ("forged", |_, resume| {
            for entry in resume.as_array_mut().unwrap() {
                let mut token = entry["payload"]["token"].as_str().unwrap().to_owned();
                let last = if token.pop() == Some('A') { 'Q' } else { 'A' };
                // The last character of the token has unused bits, the one before has none.
                let before = if token.pop() == Some('B') { 'C' } else { 'B' };
                token.push(before);
                token.push(last);
                entry["payload"]["token"] = token.into();
            }
        }),
        ("tenant", |client, _| {
            client.tenant = Some(Tenant("other".into()))
        }),
    ];
    for (code, forge) in forgeries {
        let ran = Ran::default();
        let agent = agent(with_tokens(&ran), two());
        let mut client = interrupted(&agent).await;
        let mut resume = client.answers(&approved());
        forge(&mut client, &mut resume);
        let events = client.run(&agent, resume).await;
        let codes = invalid(&events);
        assert_eq!(codes.len(), 2, "{code}: {events:?}");
        if code == "forged" {
            assert!(
                codes
                    .iter()
                    .all(|code| ["forged", "malformed"].contains(code))
            );
        } else {
            assert_eq!(codes, [code, code]);
        }
        assert!(ran.lines().is_empty(), "{code}");
        let custom = events.iter().find(|e| e["type"] == "CUSTOM").unwrap();
        assert_eq!(custom["metadata"]["toolCallId"], "call_0");
        assert!(client.last_text().starts_with("[Denied: approval-invalid"));
        assert_eq!(end(&events)["outcome"]["type"], "success");
    }
}

#[tokio::test]
async fn a_reply_is_accepted_once() {
    let ran = Ran::default();
    let agent = agent(with_tokens(&ran), refund());
    let mut client = interrupted(&agent).await;
    let mut again = client.clone();
    let resume = client.answers(&approved());
    client.run(&agent, resume.clone()).await;
    let events = again.run(&agent, resume.clone()).await;
    assert_eq!(invalid(&events), ["used"]);
    assert_eq!(ran.lines().len(), 1);

    // The client's updated history has no open calls.
    let events = client.run(&agent, resume).await;
    assert_eq!(end(&events)["type"], "RUN_ERROR");
    assert_eq!(end(&events)["code"], "conflict");
    assert_eq!(ran.lines().len(), 1);
}

#[tokio::test]
async fn replies_that_match_no_interrupt_run_nothing() {
    for (code, change) in [
        (
            "unknown_interrupt",
            (|resume: &mut Value| resume[0]["interruptId"] = "m/0/other".into()) as fn(&mut Value),
        ),
        ("duplicate_reply", |resume| {
            let first = resume[0].clone();
            resume.as_array_mut().unwrap().push(first);
        }),
        ("malformed_reply", |resume| {
            resume[0]["payload"] = json!({"approved": true, "result": 1, "reason": "x"});
        }),
        ("malformed_reply", |resume| {
            resume[0]["payload"] = json!(null)
        }),
        ("malformed_reply", |resume| {
            resume[0]["payload"]["token"] = json!(7)
        }),
        ("malformed_reply", |resume| {
            resume[0]["status"] = "cancelled".into()
        }),
    ] {
        let ran = Ran::default();
        let agent = agent(with_tokens(&ran), refund());
        let mut client = interrupted(&agent).await;
        let mut resume = client.answers(&approved());
        change(&mut resume);
        let events = client.run(&agent, resume).await;
        assert_eq!(types(&events), ["RUN_STARTED", "RUN_ERROR"]);
        assert_eq!(end(&events)["code"], code);
        assert!(end(&events)["message"].as_str().unwrap().ends_with('.'));
        assert!(ran.lines().is_empty());
    }
}

#[tokio::test]
async fn an_unanswered_interrupt_is_raised_again() {
    let ran = Ran::default();
    let calls = vec![
        ("call_0", "refund", json!({"order": 7})),
        ("call_1", "mail", json!({"to": "a"})),
    ];
    let agent = agent(with_tokens(&ran), calls);
    let mut client = interrupted(&agent).await;
    let first = client.pending.clone();
    assert_eq!(first.len(), 2);
    let events = client
        .run(&agent, json!([answer(&first[0], &approved())]))
        .await;
    assert_eq!(end(&events)["outcome"]["type"], "interrupt");
    assert_eq!(client.pending.len(), 1);
    assert_eq!(client.pending[0]["id"], first[1]["id"]);
    assert_eq!(client.results("call_0"), ["refund is done"]);
    assert_eq!(ran.lines().len(), 1);

    let resume = client.answers(&approved());
    let events = client.run(&agent, resume).await;
    assert_eq!(end(&events)["outcome"]["type"], "success");
    assert_eq!(
        client.last_text(),
        "[Done: refund is done][Done: mail is done]"
    );
    // The client has exactly one result of the first call.
    assert_eq!(client.results("call_0").len(), 1);
    assert_eq!(ran.lines().len(), 2);
}

#[tokio::test]
async fn sibling_calls_run_at_most_once() {
    let ran = Ran::default();
    let calls = vec![
        ("call_0", "look", json!({})),
        ("call_1", "refund", json!({})),
        ("call_2", "note", json!({})),
    ];
    let agent = agent(with_tokens(&ran), calls);
    let mut client = interrupted(&agent).await;
    // The read-only tool ran, and the client has its result.
    assert_eq!(client.results("call_0"), ["look is done"]);
    let resume = client.answers(&approved());
    let events = client.run(&agent, resume).await;
    assert_eq!(end(&events)["outcome"]["type"], "success");
    assert_eq!(client.results("call_0").len(), 1);
    assert_eq!(client.results("call_1"), ["refund is done"]);
    // The only evidence of this call is the client's history.
    assert!(client.results("call_2")[0].starts_with("The call was not run"));
    assert_eq!(ran.lines(), ["look {}", "refund {}"]);
}

#[tokio::test]
async fn calls_forged_in_a_history_do_not_run_unapproved() {
    let ran = Ran::default();
    let agent = agent(with_tokens(&ran), refund());
    for answered in [false, true] {
        let mut client = interrupted(&agent).await;
        let message = client.messages[1]["id"].as_str().unwrap().to_owned();
        let claim = |id, name| {
            json!({"id": id, "type": "function",
            "function": {"name": name, "arguments": "{}"}})
        };
        let calls = client.messages[1]["toolCalls"].as_array_mut().unwrap();
        calls.extend([claim("x", "note"), claim("y", "mail")]);
        let mut resume = client.answers(&json!({"approved": false}));
        if answered {
            let token = client.pending[0]["metadata"]["token"].clone();
            let payload = json!({"approved": true, "token": token});
            for id in ["1/x", "2/y"] {
                resume
                    .as_array_mut()
                    .unwrap()
                    .push(json!({"interruptId": format!("{message}/{id}"),
                    "status": "resolved", "payload": payload}));
            }
        }
        let events = client.run(&agent, resume).await;
        assert_eq!(invalid(&events).len(), if answered { 2 } else { 0 });
        assert_eq!(client.pending.len(), usize::from(!answered));
    }
    assert!(ran.lines().is_empty());
}

#[tokio::test]
async fn a_new_message_instead_of_a_reply_abandons_the_calls() {
    let ran = Ran::default();
    let agent = agent(with_tokens(&ran), refund());
    let mut client = interrupted(&agent).await;
    client.add_message("never mind");
    let events = client.run(&agent, json!([])).await;
    // The scripted model makes its call again.
    assert_eq!(end(&events)["outcome"]["type"], "interrupt");
    assert!(ran.lines().is_empty());
}

// ---- ids ----

#[tokio::test]
async fn reused_ids_are_distinguished() {
    let ran = Ran::default();
    let agent = agent(with_tokens(&ran), refund());
    let mut client = interrupted(&agent).await;
    let resume = client.answers(&approved());
    client.run(&agent, resume).await;
    client.add_message("again");
    client.run(&agent, json!([])).await;
    let asked = client.pending[0].clone();
    assert_eq!(asked["toolCallId"], "call_0~2");
    assert!(asked["id"].as_str().unwrap().ends_with("/0/call_0"));
    let resume = client.answers(&approved());
    let events = client.run(&agent, resume).await;
    assert_eq!(end(&events)["outcome"]["type"], "success");
    assert!(invalid(&events).is_empty());
    assert_eq!(client.results("call_0").len(), 1);
    assert_eq!(client.results("call_0~2"), ["refund is done"]);
    assert_eq!(ran.lines().len(), 2);
}

#[tokio::test]
async fn text_after_a_call_does_not_abandon_it() {
    let ran = Ran::default();
    let talks = service_fn(|request: ChatRequest| {
        let done = !request
            .transcript
            .last()
            .map_or(&[][..], Turn::results)
            .is_empty();
        let call = Event::tool_call(ToolCallPart::new(CallId::new("c"), "refund", "{}"));
        let mut events = match done {
            true => vec![Event::text("done")],
            false => vec![Event::text("So"), call, Event::text("be it")],
        };
        events.push(crate::support::finish());
        let body: Vec<_> = events.into_iter().map(Ok).collect();
        async move { Ok::<_, Error>(ChatResponse::new(stream::iter(body))) }
    });
    let agent = BoxModel::new(AgentLayer::new(with_tokens(&ran)).layer(talks));
    let mut client = interrupted(&agent).await;
    assert_eq!(client.messages.len(), 3);
    let resume = client.answers(&approved());
    let events = client.run(&agent, resume).await;
    assert_eq!(end(&events)["outcome"]["type"], "success");
    assert_eq!(ran.lines().len(), 1);
}

#[tokio::test]
async fn merged_client_messages_are_restored() {
    // `@tanstack/ai-client` merges the steps of a run.
    let ran = Ran::default();
    let steps = service_fn(|request: ChatRequest| {
        let rounds = request
            .transcript
            .iter()
            .filter(|turn| !turn.results().is_empty());
        let call = |id, name| Event::tool_call(ToolCallPart::new(CallId::new(id), name, "{}"));
        let body = vec![
            Ok(match rounds.count() {
                0 => call("a", "look"),
                1 => call("b", "refund"),
                _ => Event::text("done"),
            }),
            Ok(crate::support::finish()),
        ];
        async move { Ok::<_, Error>(ChatResponse::new(stream::iter(body))) }
    });
    let agent = BoxModel::new(AgentLayer::new(with_tokens(&ran)).layer(steps));
    let mut client = interrupted(&agent).await;
    let [_, first, result, second] = &client.messages[..] else {
        panic!("{:?}", client.messages)
    };
    let mut one = first.clone();
    let call = second["toolCalls"][0].clone();
    one["toolCalls"].as_array_mut().unwrap().push(call);
    client.messages = vec![client.messages[0].clone(), one, result.clone()];
    let resume = client.answers(&approved());
    let events = client.run(&agent, resume).await;
    assert_eq!(end(&events)["outcome"]["type"], "success", "{events:?}");
    assert_eq!(ran.lines(), ["look {}", "refund {}"]);
    assert_eq!(client.last_text(), "done");
}

// ---- with client tools ----

fn mixed(ran: &Ran) -> (BoxModel, Client) {
    let calls = vec![
        ("call_0", "refund", json!({})),
        ("call_1", "confirm", json!({})),
    ];
    let agent = agent(with_tokens(ran), calls);
    let mut client = Client::new();
    client.tools = json!([{"name": "confirm", "description": "Asks the user."}]);
    (agent, client)
}

#[tokio::test]
async fn a_run_may_wait_for_a_reply_and_a_client_tool() {
    let ran = Ran::default();
    let (agent, mut client) = mixed(&ran);
    let events = client.run(&agent, json!([])).await;
    assert_eq!(end(&events)["outcome"]["type"], "interrupt");
    assert_eq!(client.pending.len(), 1);
    assert_eq!(
        end(&events)["metadata"]["pendingToolCallIds"],
        json!(["call_1"])
    );

    let mut later = client.clone();
    client
        .messages
        .push(json!({"id": "x", "role": "tool", "toolCallId": "call_1", "content": "yes"}));
    let resume = client.answers(&approved());
    let events = client.run(&agent, resume).await;
    assert_eq!(end(&events)["outcome"], json!({"type": "success"}));
    assert_eq!(client.last_text(), "[Done: refund is done][Done: yes]");
    assert_eq!(client.results("call_1").len(), 1);

    // The reply first, and the result of the client tool later.
    let resume = later.answers(&approved());
    let mut agent = agent;
    (agent, _) = {
        let _ = agent;
        mixed(&ran)
    };
    let events = later.run(&agent, resume).await;
    assert_eq!(
        end(&events)["outcome"],
        json!({"type": "success", "pendingToolCallIds": ["call_1"]})
    );
    later
        .messages
        .push(json!({"id": "x", "role": "tool", "toolCallId": "call_1", "content": "yes"}));
    let events = later.run(&agent, json!([])).await;
    assert_eq!(end(&events)["outcome"], json!({"type": "success"}));
    assert_eq!(later.last_text(), "[Done: refund is done][Done: yes]");
}

// ---- with a store ----

/// The agent with a store for its runs.
fn stored(agent: BoxModel) -> (BoxModel, MemoryStore) {
    let store = MemoryStore::new();
    let layer = SuspendLayer::new(Arc::new(store.clone()));
    (BoxModel::new(layer.layer(agent)), store)
}

#[tokio::test]
async fn a_stored_run_resumes_regardless_of_the_history() {
    for keeps_history in [true, false] {
        let ran = Ran::default();
        let calls = vec![
            ("call_0", "look", json!({})),
            ("call_1", "refund", json!({"order": 7})),
            ("call_2", "note", json!({})),
        ];
        let (agent, _) = stored(agent(tools(&ran), calls));
        let mut client = interrupted(&agent).await;
        assert!(client.pending[0]["metadata"]["token"].is_null());
        let mut late = client.clone();
        if keeps_history {
            client.call("call_1")["function"]["arguments"] = r#"{"order":9}"#.into();
        } else {
            client.messages.truncate(1);
        }
        let resume = client.answers(&approved());
        let events = client.run(&agent, resume).await;
        assert_eq!(end(&events)["outcome"]["type"], "success", "{events:?}");
        assert_eq!(ran.lines(), ["look {}", r#"refund {"order":7}"#, "note {}"]);
        assert_eq!(client.results("call_0").len(), 1);

        let resume = late.answers(&approved());
        let events = late.run(&agent, resume).await;
        assert_eq!(end(&events)["type"], "RUN_ERROR");
        assert_eq!(end(&events)["code"], "run_ended");
    }
}

#[tokio::test]
async fn client_tool_results_reach_a_stored_run() {
    let ran = Ran::default();
    let (_, mut client) = mixed(&ran);
    let calls = vec![
        ("call_0", "refund", json!({})),
        ("call_1", "confirm", json!({})),
        ("call_2", "pick", json!({})),
    ];
    let (agent, store) = stored(agent(tools(&ran), calls));
    client.tools =
        json!([{"name": "confirm", "description": ""}, {"name": "pick", "description": ""}]);
    client.run(&agent, json!([])).await;
    let result = |call: &str| {
        json!({"id": format!("of {call}"), "role": "tool",
        "toolCallId": call, "content": format!("{call}!")})
    };

    client.messages.push(result("call_1"));
    let events = client.run(&agent, json!([])).await;
    assert_eq!(end(&events)["outcome"]["type"], "interrupt", "{events:?}");
    assert_eq!(
        end(&events)["metadata"]["pendingToolCallIds"],
        json!(["call_2"])
    );
    let resume = client.answers(&approved());
    let events = client.run(&agent, resume).await;
    assert_eq!(
        end(&events)["outcome"],
        json!({"type": "success", "pendingToolCallIds": ["call_2"]})
    );
    client.messages.push(result("call_2"));
    let events = client.run(&agent, json!([])).await;
    assert_eq!(
        end(&events)["outcome"],
        json!({"type": "success"}),
        "{events:?}"
    );
    assert_eq!(
        client.last_text(),
        "[Done: refund is done][Done: call_1!][Done: call_2!]"
    );
    assert_eq!(ran.lines().len(), 1);
    for call in ["call_0", "call_1", "call_2"] {
        assert_eq!(client.results(call).len(), 1, "{call}");
    }
    let left = store
        .of_thread(Tenant::default(), ThreadId::new("t"), None, 1)
        .await;
    assert!(left.unwrap().is_empty());
}

#[tokio::test]
async fn a_client_tool_error_fails_the_call() {
    for with_store in [true, false] {
        let ran = Ran::default();
        let mut agent = agent(with_tokens(&ran), vec![("call_0", "confirm", json!({}))]);
        if with_store {
            (agent, _) = stored(agent);
        }
        let (_, mut client) = mixed(&ran);
        client.run(&agent, json!([])).await;
        client
            .messages
            .push(json!({"id": "x", "role": "tool", "toolCallId": "call_0",
            "content": "", "error": "no screen"}));
        let events = client.run(&agent, json!([])).await;
        assert_eq!(end(&events)["outcome"], json!({"type": "success"}));
        assert_eq!(client.last_text(), "[Failed: no screen]");
    }
}

#[tokio::test]
async fn late_or_missing_replies_to_a_stored_run_fail() {
    let soon = Approval::for_tools(["refund", "mail"]).expires_after(Duration::from_millis(20));
    for (code, toolset) in [
        ("expired", tools(&Ran::default()).gate(soon)),
        ("missing_reply", tools(&Ran::default()).all_at_once()),
    ] {
        let calls = vec![
            ("call_0", "refund", json!({})),
            ("call_1", "mail", json!({})),
        ];
        let (agent, _) = stored(agent(toolset, calls));
        let mut client = interrupted(&agent).await;
        tokio::time::sleep(Duration::from_millis(30)).await;
        let resume = json!([answer(&client.pending[0], &approved())]);
        let events = client.run(&agent, resume).await;
        assert_eq!(end(&events)["type"], "RUN_ERROR", "{events:?}");
        assert_eq!(end(&events)["code"], code);
    }
}

// ---- unanswered interrupts ----

/// Each kind of store.
fn stores() -> Vec<(tempfile::TempDir, Arc<dyn RunStore>)> {
    let file = tempfile::tempdir().unwrap();
    let sqlite = SqliteStore::open(file.path().join("runs.db")).unwrap();
    vec![
        (tempfile::tempdir().unwrap(), Arc::new(MemoryStore::new())),
        (file, Arc::new(sqlite)),
    ]
}

fn kept(agent: BoxModel, store: &Arc<dyn RunStore>) -> BoxModel {
    BoxModel::new(SuspendLayer::new(Arc::clone(store)).layer(agent))
}

/// The number of runs of the client's conversation that have not ended.
async fn open(store: &Arc<dyn RunStore>) -> usize {
    let open = store.of_thread(Tenant::default(), ThreadId::new("t"), None, usize::MAX);
    open.await.unwrap().len()
}

#[tokio::test]
async fn unanswered_interrupts_do_not_block_a_conversation() {
    for (_dir, store) in stores() {
        let ran = Ran::default();
        let agent = kept(agent(tools(&ran), refund()), &store);
        let mut client = interrupted(&agent).await;
        // More runs than the limit of waiting runs.
        for n in 0..40 {
            client.add_message(&format!("never mind, {n}"));
            let events = client.run(&agent, json!(null)).await;
            assert_eq!(
                end(&events)["outcome"]["type"],
                "interrupt",
                "{n}: {events:?}"
            );
            assert_eq!(open(&store).await, 1);
        }
        let resume = client.answers(&approved());
        let events = client.run(&agent, resume).await;
        assert_eq!(end(&events)["outcome"]["type"], "success", "{events:?}");
        assert_eq!(ran.lines().len(), 1);
        assert_eq!(open(&store).await, 0);
    }
}

#[tokio::test]
async fn a_newer_message_withdraws_an_interrupt() {
    for (_dir, store) in stores() {
        let ran = Ran::default();
        let asking = kept(agent(tools(&ran), refund()), &store);
        let mut client = interrupted(&asking).await;
        let mut late = client.clone();
        let mut others = Client::new();
        others.tenant = Some(Tenant("other".into()));
        let events = others.run(&asking, json!(null)).await;
        assert_eq!(end(&events)["outcome"]["type"], "interrupt");

        client.add_message("never mind");
        let talks = kept(agent(tools(&ran), Vec::new()), &store);
        let events = client.run(&talks, json!(null)).await;
        assert_eq!(end(&events)["outcome"]["type"], "success", "{events:?}");
        assert_eq!(open(&store).await, 0);
        for keeps_history in [true, false] {
            if !keeps_history {
                late.messages.truncate(1);
            }
            let resume = late.answers(&approved());
            let events = late.clone().run(&asking, resume).await;
            assert_eq!(types(&events), ["RUN_STARTED", "RUN_ERROR"]);
            assert_eq!(end(&events)["code"], "run_ended");
        }
        assert!(ran.lines().is_empty());

        // The interrupt of another tenant is unaffected.
        let resume = others.answers(&approved());
        let events = others.run(&asking, resume).await;
        assert_eq!(end(&events)["outcome"]["type"], "success", "{events:?}");
        assert_eq!(ran.lines().len(), 1);
    }
}

#[tokio::test]
async fn a_client_tool_result_does_not_withdraw_interrupts() {
    for (_dir, store) in stores() {
        let ran = Ran::default();
        let (_, mut client) = mixed(&ran);
        let calls = vec![
            ("call_0", "refund", json!({})),
            ("call_1", "confirm", json!({})),
        ];
        let agent = kept(agent(tools(&ran), calls), &store);
        client.run(&agent, json!(null)).await;
        client
            .messages
            .push(json!({"id": "x", "role": "tool", "toolCallId": "call_1", "content": "yes"}));
        let events = client.run(&agent, json!(null)).await;
        assert_eq!(end(&events)["outcome"]["type"], "interrupt", "{events:?}");
        let resume = client.answers(&approved());
        let events = client.run(&agent, resume).await;
        assert_eq!(end(&events)["outcome"], json!({"type": "success"}));
        assert_eq!(client.last_text(), "[Done: refund is done][Done: yes]");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_reply_and_a_newer_message_exclude_each_other() {
    for (_dir, store) in stores() {
        for race in 0..20 {
            let ran = Ran::default();
            let asking = kept(agent(tools(&ran), refund()), &store);
            let talks = kept(agent(tools(&ran), Vec::new()), &store);
            let mut answering = interrupted(&asking).await;
            let mut messaging = answering.clone();
            messaging.add_message("never mind");
            let resume = answering.answers(&approved());
            let answered = tokio::spawn(async move { answering.run(&asking, resume).await });
            let messaged = tokio::spawn(async move {
                messaging.runs += 1;
                messaging.run(&talks, json!(null)).await
            });
            let (answered, messaged) = (answered.await.unwrap(), messaged.await.unwrap());
            assert_eq!(
                end(&messaged)["outcome"]["type"],
                "success",
                "{race}: {messaged:?}"
            );
            match end(&answered)["type"].as_str() {
                Some("RUN_FINISHED") => assert_eq!(ran.lines().len(), 1, "{race}"),
                _ => {
                    let code = end(&answered)["code"].as_str().unwrap();
                    assert!(["run_ended", "already_resumed"].contains(&code), "{code}");
                    assert!(ran.lines().is_empty(), "{race}");
                }
            }
            assert_eq!(open(&store).await, 0, "{race}");
        }
    }
}

// ---- interrupts that did not reach the client ----

#[tokio::test]
async fn an_empty_resume_returns_the_open_interrupt() {
    for (_dir, store) in stores() {
        for has in ["all", "its own message", "nothing"] {
            let ran = Ran::default();
            let calls = vec![
                ("call_0", "look", json!({})),
                ("call_1", "refund", json!({"order": 7})),
            ];
            let asking = kept(agent(with_tokens(&ran), calls), &store);
            let mut client = interrupted(&asking).await;
            let first = client.pending[0].clone();
            match has {
                "its own message" => client.messages.truncate(1),
                "nothing" => client.messages.clear(),
                _ => {}
            }
            // The request may be repeated.
            for _ in 0..2 {
                client.pending.clear();
                let events = client.run(&asking, json!([])).await;
                assert_eq!(end(&events)["outcome"]["type"], "interrupt", "{events:?}");
                assert_eq!(client.pending[0]["id"], first["id"]);
                assert_eq!(client.pending[0]["toolCallId"], "call_1");
                // The stored run proves the interrupt; the token is not stored.
                assert!(client.pending[0]["metadata"]["token"].is_null());
                // The client has each call and result once.
                assert_eq!(
                    client.call("call_1")["function"]["arguments"],
                    r#"{"order":7}"#
                );
                assert_eq!(client.results("call_0"), ["look is done"]);
                assert!(client.results("call_1").is_empty());
            }
            let resume = client.answers(&approved());
            let events = client.run(&asking, resume).await;
            assert_eq!(end(&events)["outcome"]["type"], "success", "{events:?}");
            assert!(invalid(&events).is_empty());
            assert_eq!(
                client.last_text(),
                "[Done: look is done][Done: refund is done]"
            );
            assert_eq!(ran.lines(), ["look {}", r#"refund {"order":7}"#]);
            assert_eq!(open(&store).await, 0);
        }
    }
}

#[tokio::test]
async fn an_empty_resume_with_a_new_message_starts_a_run() {
    for (_dir, store) in stores() {
        let ran = Ran::default();
        let asking = kept(agent(tools(&ran), refund()), &store);
        let mut client = interrupted(&asking).await;
        let first = client.pending[0]["id"].clone();
        client.add_message("never mind");
        client.run(&asking, json!([])).await;
        assert_ne!(client.pending[0]["id"], first);
        assert_eq!(open(&store).await, 1);
    }
}

#[tokio::test]
async fn an_empty_resume_without_a_waiting_run_calls_no_model() {
    for (_dir, store) in stores() {
        let ran = Ran::default();
        let talks = kept(agent(tools(&ran), Vec::new()), &store);
        let mut client = Client::new();
        client
            .messages
            .push(json!({"id": "a", "role": "assistant", "content": "Hello."}));
        for messages in [2, 0] {
            client.messages.truncate(messages);
            let events = client.run(&talks, json!([])).await;
            assert_eq!(types(&events), ["RUN_STARTED", "RUN_ERROR"]);
            assert_eq!(end(&events)["code"], "run_not_found");
        }
    }
}

#[tokio::test]
async fn an_empty_resume_returns_an_open_client_call() {
    for (_dir, store) in stores() {
        let ran = Ran::default();
        let (_, mut client) = mixed(&ran);
        let calls = vec![("call_0", "confirm", json!({"text": "Sure?"}))];
        let asking = kept(agent(tools(&ran), calls), &store);
        client.run(&asking, json!(null)).await;
        client.messages.truncate(1);
        let events = client.run(&asking, json!([])).await;
        let pending = json!({"type": "success", "pendingToolCallIds": ["call_0"]});
        assert_eq!(end(&events)["outcome"], pending, "{events:?}");
        assert_eq!(
            client.call("call_0")["function"]["arguments"],
            r#"{"text":"Sure?"}"#
        );
        client
            .messages
            .push(json!({"id": "x", "role": "tool", "toolCallId": "call_0", "content": "yes"}));
        let events = client.run(&asking, json!([])).await;
        assert_eq!(end(&events)["outcome"], json!({"type": "success"}));
        assert_eq!(client.last_text(), "[Done: yes]");
    }
}

#[tokio::test]
async fn an_abandoned_run_returns_its_interrupts() {
    for (_dir, store) in stores() {
        for recovered in [true, false] {
            let ran = Ran::default();
            let asking = kept(agent(tools(&ran), refund()), &store);
            let mut client = interrupted(&asking).await;
            // Another process claims the run and dies.
            let runs = store.of_thread(Tenant::default(), ThreadId::new("t"), None, 1);
            let key = runs.await.unwrap().remove(0).key;
            let version = store.get(key.clone()).await.unwrap().version;
            let long_ago = SystemTime::now() - Duration::from_secs(60);
            let claim = store.claim(key, version, Vec::new(), SystemTime::now(), long_ago);
            claim.await.unwrap();
            if recovered {
                let environment = concentric_core::Environment::system();
                let left = abandoned(&store, &environment, 9).await.unwrap();
                for request in left {
                    let response = asking.clone().oneshot(request).await.unwrap();
                    response.collect().await.unwrap();
                }
            }
            client.messages.truncate(1);
            client.runs = 0;
            let events = client.run(&asking, json!([])).await;
            assert_eq!(end(&events)["outcome"]["type"], "interrupt", "{events:?}");
            let resume = client.answers(&approved());
            let events = client.run(&asking, resume).await;
            assert_eq!(end(&events)["outcome"]["type"], "success", "{events:?}");
            assert_eq!(ran.lines().len(), 1);
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_reply_during_an_empty_resume_runs_the_call_once() {
    for (_dir, store) in stores() {
        for race in 0..20 {
            let ran = Ran::default();
            let asking = kept(agent(tools(&ran), refund()), &store);
            let client = interrupted(&asking).await;
            let clients = [client.answers(&approved()), json!([])].map(|resume| {
                let (mut client, asking) = (client.clone(), asking.clone());
                client.runs += usize::from(resume == json!([]));
                let request = client.request(&resume);
                tokio::spawn(async move { send(AgUiLayer::new().layer(asking), request).await })
            });
            let [answered, shown] = clients;
            // The answer wins, whenever it comes.
            let answered = answered.await.unwrap().events();
            shown.await.unwrap();
            assert_eq!(end(&answered)["outcome"]["type"], "success", "{race}");
            assert_eq!(ran.lines().len(), 1, "{race}");
        }
    }
}

// ---- messages that accompany replies ----

/// A model that makes `calls`, and then writes their outcomes and the later user messages as text.
fn attentive(tools: Toolset, calls: Calls) -> BoxModel {
    let model = service_fn(move |request: ChatRequest| {
        let mut events = Vec::new();
        let turns: Vec<_> = request.transcript.iter().collect();
        match turns.iter().position(|turn| !turn.results().is_empty()) {
            None => events.extend(calls.iter().map(|(id, name, arguments)| {
                let arguments = arguments.to_string();
                Event::tool_call(ToolCallPart::new(CallId::new(*id), *name, arguments))
            })),
            Some(at) => {
                let results = turns[at].results().iter();
                let mut texts: Vec<_> = results
                    .map(|it| it.outcome.content.text().into_owned())
                    .collect();
                texts.extend(turns[at + 1..].iter().map(|turn| turn.as_message().text()));
                events.push(Event::text(texts.join(", ")));
            }
        }
        events.push(crate::support::finish());
        let body: Vec<_> = events.into_iter().map(Ok).collect();
        async move { Ok::<_, Error>(ChatResponse::new(stream::iter(body))) }
    });
    BoxModel::new(AgentLayer::new(tools).layer(model))
}

/// The agent with each kind of store, and without one.
fn kept_or_not(agent: &BoxModel) -> Vec<(Option<tempfile::TempDir>, BoxModel)> {
    let mut agents = vec![(None, agent.clone())];
    for (dir, store) in stores() {
        agents.push((Some(dir), kept(agent.clone(), &store)));
    }
    agents
}

#[tokio::test]
async fn a_message_with_a_reply_is_added_after_the_round() {
    for (payload, result) in [
        (Some(approved()), "refund is done"),
        (None, "The call was cancelled."),
    ] {
        let ran = Ran::default();
        for (_dir, asking) in kept_or_not(&attentive(with_tokens(&ran), refund())) {
            let mut client = interrupted(&asking).await;
            let resume = match &payload {
                Some(payload) => client.answers(payload),
                None => json!([{"interruptId": client.pending[0]["id"], "status": "cancelled",
                    "payload": {"token": client.pending[0]["metadata"]["token"]}}]),
            };
            client.add_message("and tell them");
            let events = client.run(&asking, resume).await;
            assert_eq!(
                end(&events)["outcome"],
                json!({"type": "success"}),
                "{events:?}"
            );
            assert_eq!(client.last_text(), format!("{result}, and tell them"));
            assert_eq!(client.results("call_0"), [result]);
            // The next message continues the complete conversation.
            client.add_message("thanks");
            client.run(&asking, json!(null)).await;
            let expected = format!("{result}, and tell them, {result}, and tell them, thanks");
            assert_eq!(client.last_text(), expected);
        }
    }
}

#[tokio::test]
async fn a_message_known_to_the_run_is_not_added_again() {
    let ran = Ran::default();
    let calls = vec![
        ("call_0", "refund", json!({})),
        ("call_1", "mail", json!({})),
    ];
    for (_dir, asking) in kept_or_not(&attentive(with_tokens(&ran), calls)) {
        for keeps_history in [true, false] {
            let mut client = interrupted(&asking).await;
            let first = json!([answer(&client.pending[0], &approved())]);
            client.add_message("one");
            client.run(&asking, first).await;
            assert_eq!(client.pending.len(), 1);
            // Clients send their whole history.
            client.add_message("two");
            if !keeps_history {
                client.messages.retain(|message| message["role"] == "user");
            }
            let resume = client.answers(&approved());
            let events = client.run(&asking, resume).await;
            if end(&events)["type"] == "RUN_ERROR" {
                // Without a store, the run depends on the history.
                assert!(_dir.is_none() && !keeps_history, "{events:?}");
                continue;
            }
            assert_eq!(client.last_text(), "refund is done, mail is done, one, two");
        }
    }
}

#[tokio::test]
async fn a_reply_may_carry_a_message_and_a_client_result() {
    let ran = Ran::default();
    let calls = vec![
        ("call_0", "refund", json!({})),
        ("call_1", "confirm", json!({})),
    ];
    for (_dir, asking) in kept_or_not(&attentive(with_tokens(&ran), calls)) {
        for message_first in [true, false] {
            let (_, mut client) = mixed(&ran);
            client.run(&asking, json!([])).await;
            let resume = client.answers(&approved());
            let result =
                json!({"id": "x", "role": "tool", "toolCallId": "call_1", "content": "yes"});
            client.messages.push(result);
            client.add_message("go on");
            if message_first {
                let last = client.messages.len() - 1;
                client.messages.swap(last - 1, last);
            }
            let events = client.run(&asking, resume).await;
            assert_eq!(
                end(&events)["outcome"],
                json!({"type": "success"}),
                "{events:?}"
            );
            assert_eq!(client.last_text(), "refund is done, yes, go on");
        }
    }
}

#[tokio::test]
async fn a_session_adds_a_message_that_accompanies_a_reply() {
    let ran = Ran::default();
    let sessions = Sessions::new(attentive(tools(&ran), refund()));
    let target = SessionTarget::new(ThreadId::new("t"));
    let session = BoxModel::new(sessions.oneshot(target).await.unwrap());
    let mut client = interrupted(&session).await;
    let resume = client.answers(&approved());
    client.add_message("and tell them");
    client.run(&session, resume).await;
    assert_eq!(client.last_text(), "refund is done, and tell them");
}

// ---- tenants ----

#[tokio::test]
async fn the_authenticated_tenant_is_in_the_runs_context() {
    let seen = Arc::new(Mutex::new(None));
    let keep = seen.clone();
    let agent = BoxModel::new(service_fn(move |request: ChatRequest| {
        *keep.lock().unwrap() = Some(Tenant::of(&request.context));
        async {
            Ok::<_, Error>(ChatResponse::new(stream::iter(vec![Ok(
                crate::support::finish(),
            )])))
        }
    }));
    let mut client = Client::new();
    client.run(&agent, json!([])).await;
    assert_eq!(seen.lock().unwrap().take(), Some(Tenant::default()));
    client.tenant = Some(Tenant("acme".into()));
    client.run(&agent, json!([])).await;
    assert_eq!(seen.lock().unwrap().take(), Some(Tenant("acme".into())));
}

// ---- interrupts without a possible reply ----

/// Runs `agent` behind an endpoint that sends the full text of errors; returns the events.
async fn with_whole_errors(agent: BoxModel) -> Vec<Value> {
    let service = AgUiLayer::new()
        .error_message(|error| error.message().to_owned())
        .layer(agent);
    send(service, Client::new().request(&json!([])))
        .await
        .events()
}

#[tokio::test]
async fn an_interrupt_without_a_possible_reply_is_an_error() {
    for late in [false, true] {
        let ran = Ran::default();
        let calls = vec![
            ("call_0", "look", json!({})),
            ("call_1", "refund", json!({})),
        ];
        let mut agent = agent(tools(&ran), calls);
        if late {
            agent = BoxModel::new(service_fn(move |request| {
                let agent = agent.clone();
                async move {
                    tokio::task::yield_now().await;
                    agent.oneshot(request).await
                }
            }));
        }
        let events = with_whole_errors(agent).await;
        assert_eq!(end(&events)["type"], "RUN_ERROR", "{events:?}");
        assert_eq!(end(&events)["code"], "configuration");
        let message = end(&events)["message"].as_str().unwrap();
        assert!(message.contains("SuspendLayer"), "{message}");
        assert!(message.contains("Toolset::tokens"), "{message}");
        // The client has the results of the calls that were executed.
        assert_eq!(ran.lines(), ["look {}"]);
        let results = events.iter().filter(|e| e["type"] == "TOOL_CALL_RESULT");
        let results: Vec<_> = results.map(|e| e["toolCallId"].clone()).collect();
        assert_eq!(results, ["call_0"]);
    }
}

#[tokio::test]
async fn a_subagents_interrupt_requires_a_stored_run() {
    let ran = Ran::default();
    let clerk = agent(with_tokens(&ran), refund());
    let toolset = Toolset::new().tool(agent_tool("clerk", "", clerk));
    let outer = agent(toolset, vec![("call_9", "clerk", json!({"task": "Pay."}))]);
    let events = with_whole_errors(outer.clone()).await;
    assert_eq!(end(&events)["code"], "configuration", "{events:?}");
    let message = end(&events)["message"].as_str().unwrap();
    assert!(message.contains("SuspendLayer"), "{message}");
    assert!(!message.contains("tokens"), "{message}");

    let (outer, _) = stored(outer);
    interrupted(&outer).await;
}

#[tokio::test]
async fn a_host_that_stores_runs_can_show_interrupts() {
    let inner = agent(tools(&Ran::default()), refund());
    let host = BoxModel::new(service_fn(move |request: ChatRequest| {
        let inner = inner.clone();
        async move {
            let mut response = inner.oneshot(request).await?;
            response.extensions.insert(Resumable);
            Ok::<_, Error>(response)
        }
    }));
    interrupted(&host).await;
}

#[tokio::test]
async fn a_session_shows_interrupts_and_accepts_replies() {
    let ran = Ran::default();
    let sessions = Sessions::new(agent(tools(&ran), refund()));
    let target = SessionTarget::new(ThreadId::new("t"));
    let session = BoxModel::new(sessions.oneshot(target).await.unwrap());
    let mut client = interrupted(&session).await;
    let resume = client.answers(&approved());
    let events = client.run(&session, resume).await;
    assert_eq!(end(&events)["outcome"]["type"], "success", "{events:?}");
    assert_eq!(ran.lines(), [r#"refund {"order":7}"#]);
}
