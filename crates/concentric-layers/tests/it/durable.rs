//! Steps of a journal.

use concentric_core::{
    AgentLayer, Answer, BoxModel, ChatRequest, Context, Error, ErrorKind, Event, Outcome, Reply,
    ResponseHead, Usage,
    durable::{Journal, JournalHandle, Recorded, StepAttempt, StepName, StepWork},
    interrupt::UNKNOWN_EFFECT,
    service::BoxFuture,
};
use concentric_layers::{DurableLayer, DurableTools};
use concentric_test::{MemoryStore, ScriptedModel, ScriptedTools};
use concentric_tools::{NoArguments, Tool, Toolset, tool};
use futures_util::StreamExt;
use serde_json::json;
use std::{
    collections::VecDeque,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
};
use tower::{ServiceBuilder, ServiceExt};

/// A journal that has some records, and loses what follows.
#[derive(Clone, Default)]
struct Notes {
    known: Arc<Mutex<VecDeque<Recorded>>>,
    made: Arc<Mutex<Vec<(String, Recorded)>>>,
    is_repeated: bool,
}

impl Journal for Notes {
    fn step(&self, name: StepName, work: StepWork) -> BoxFuture<Recorded> {
        let it = self.clone();
        Box::pin(async move {
            let known = it.known.lock().unwrap().pop_front();
            let attempt = match it.is_repeated {
                true => StepAttempt::repeated(),
                false => StepAttempt::first(),
            };
            let recorded = match known {
                Some(known) => known,
                None => work(attempt).await,
            };
            it.made
                .lock()
                .unwrap()
                .push((name.to_string(), recorded.clone()));
            Ok(recorded)
        })
    }
}

impl Notes {
    /// The journal of another attempt, which has the first `count` records.
    fn after(&self, count: usize) -> Self {
        let made = self.made.lock().unwrap();
        let known = made
            .iter()
            .take(count)
            .map(|(_, recorded)| recorded.clone());
        Self {
            known: Arc::new(Mutex::new(known.collect())),
            made: Arc::default(),
            is_repeated: true,
        }
    }

    fn request(&self, text: &str) -> ChatRequest {
        let mut request = ChatRequest::user(text.to_owned());
        request.context.provide(JournalHandle::new(self.clone()));
        request
    }

    fn names(&self) -> Vec<String> {
        let made = self.made.lock().unwrap();
        made.iter().map(|(name, _)| name.to_string()).collect()
    }

    fn json(&self) -> String {
        let made = self.made.lock().unwrap();
        let records: Vec<&Recorded> = made.iter().map(|(_, recorded)| recorded).collect();
        serde_json::to_string(&records).unwrap()
    }
}

fn agent(model: &ScriptedModel, tools: &ScriptedTools) -> BoxModel {
    BoxModel::new(
        ServiceBuilder::new()
            .layer(AgentLayer::new(DurableTools::new(tools.clone())))
            .layer(DurableLayer::new())
            .service(model.clone()),
    )
}

async fn run(agent: &BoxModel, request: ChatRequest) -> Answer {
    let response = agent.clone().oneshot(request).await.unwrap();
    response.collect().await.unwrap()
}

#[tokio::test]
async fn a_replay_has_the_recorded_answers_and_outcomes() {
    let model = ScriptedModel::new()
        .head(ResponseHead::new("test", "m"))
        .deltas(["Let ", "me ", "look."])
        .tool_call("search", json!({}))
        .usage(Usage::new(7, 3))
        .then()
        .head(ResponseHead::new("test", "m"))
        .text("42")
        .usage(Usage::new(9, 1));
    let tools = ScriptedTools::new().answers("search", "found");
    let agent = agent(&model, &tools);
    let notes = Notes::default();
    let first = run(&agent, notes.request("?")).await;
    assert_eq!(notes.names(), ["model-0", "round-0", "model-1"]);
    let (calls, ran) = (model.calls(), tools.calls().len());
    // Twice, since a replay records what it has read.
    let mut earlier = notes.clone();
    for _ in 0..2 {
        let again = earlier.after(3);
        earlier = again.clone();
        let answer = run(&agent, again.request("?")).await;
        assert_eq!((model.calls(), tools.calls().len()), (calls, ran));
        assert_eq!(answer.text(), first.text());
        assert_eq!(answer.finish.usage, first.finish.usage);
        assert_eq!(answer.finish.run_usage(), first.finish.run_usage());
        let texts = |answer: &Answer| {
            let transcript = answer.transcript().unwrap();
            transcript
                .iter()
                .map(|turn| turn.as_message().text())
                .collect::<Vec<_>>()
        };
        assert_eq!(texts(&answer), texts(&first));
    }
}

#[tokio::test]
async fn without_a_journal_nothing_is_recorded() {
    let model = ScriptedModel::new().text("hello");
    let agent = agent(&model, &ScriptedTools::new());
    let answer = run(&agent, ChatRequest::user("?")).await;
    assert_eq!(answer.text(), "hello");
}

#[tokio::test]
async fn an_error_is_recorded_without_its_text() {
    let error = Error::new(ErrorKind::InvalidRequest, "canary").with_code("bad");
    let model = ScriptedModel::new().error(error);
    let agent = agent(&model, &ScriptedTools::new());
    let notes = Notes::default();
    let live = agent
        .clone()
        .oneshot(notes.request("?"))
        .await
        .err()
        .unwrap();
    let replayed = agent
        .oneshot(notes.after(1).request("?"))
        .await
        .err()
        .unwrap();
    for error in [live, replayed] {
        assert_eq!(
            (error.kind(), error.code()),
            (ErrorKind::InvalidRequest, Some("bad"))
        );
        assert!(!error.to_string().contains("canary"));
    }
    assert!(!notes.json().contains("canary"), "{}", notes.json());
    assert_eq!(model.calls(), 1);
}

#[tokio::test]
async fn an_error_after_content_is_the_last_item_in_a_replay_too() {
    let error = Error::new(ErrorKind::Server, "cut");
    let model = ScriptedModel::new().text("half").error(error);
    let stack = ServiceBuilder::new()
        .layer(DurableLayer::new())
        .service(model);
    let notes = Notes::default();
    let body = stack
        .clone()
        .oneshot(notes.request("?"))
        .await
        .unwrap()
        .body;
    let live: Vec<_> = body.collect().await;
    let body = stack
        .oneshot(notes.after(1).request("?"))
        .await
        .unwrap()
        .body;
    let replayed: Vec<_> = body.collect().await;
    for items in [live, replayed] {
        assert!(
            matches!(&items[0], Ok(Event::TextDelta(text)) if text == "half"),
            "{items:?}"
        );
        assert_eq!(
            items.last().unwrap().as_ref().err().map(Error::kind),
            Some(ErrorKind::Server)
        );
    }
}

fn pay(count: &Arc<AtomicUsize>) -> Tool {
    let count = Arc::clone(count);
    tool("pay", "Pays.", move |NoArguments {}| {
        let count = Arc::clone(&count);
        async move {
            count.fetch_add(1, Ordering::SeqCst);
            "paid"
        }
    })
}

fn paying(model: ScriptedModel, tools: Toolset) -> BoxModel {
    let agent = ServiceBuilder::new()
        .layer(AgentLayer::new(DurableTools::new(tools)))
        .layer(DurableLayer::new())
        .service(model);
    BoxModel::new(agent)
}

/// A process that dies in a round may have executed its calls; the ledger knows.
#[tokio::test]
async fn a_repeated_round_asks_about_effects_without_an_outcome() {
    let paid = Arc::new(AtomicUsize::new(0));
    // With a ledger that has no entry, the call is executed; without a ledger, it may have been.
    let first = Notes::default();
    let asks = ScriptedModel::new().tool_call("pay", json!({}));
    let model = asks.then().text("Done.");
    let agent = paying(model, Toolset::new().tool(pay(&paid)));
    run(&agent, first.request("?")).await;
    assert_eq!(paid.load(Ordering::SeqCst), 1);
    // The journal has the first answer.
    let model = ScriptedModel::new().text("Done.");
    let with = Toolset::new().tool(pay(&paid)).ledger(MemoryStore::new());
    let agent = paying(model, with);
    let answer = run(&agent, first.after(1).request("?")).await;
    assert_eq!(
        (answer.finish.outcome, paid.load(Ordering::SeqCst)),
        (Outcome::Completed, 2)
    );
    let model = ScriptedModel::new().text("Done.");
    let agent = paying(model, Toolset::new().tool(pay(&paid)));
    let answer = run(&agent, first.after(1).request("?")).await;
    let finish = answer.finish;
    assert_eq!(
        (&finish.outcome, paid.load(Ordering::SeqCst)),
        (&Outcome::Interrupted, 2)
    );
    assert_eq!(finish.interrupts()[0].reason, UNKNOWN_EFFECT);

    // The reply settles the call, which is not executed.
    let reply = Reply::answer(finish.interrupts()[0].id.clone(), "paid");
    let state = *finish.state.clone().unwrap();
    let mut request = ChatRequest::resume(state, vec![reply]);
    request
        .context
        .provide(JournalHandle::new(Notes::default()));
    let answer = run(&agent, request).await;
    assert_eq!(
        (answer.finish.outcome, paid.load(Ordering::SeqCst)),
        (Outcome::Completed, 2)
    );
}

#[tokio::test]
async fn a_step_has_no_steps_within() {
    let notes = Notes::default();
    let seen = Arc::new(Mutex::new(None));
    let sees = Arc::clone(&seen);
    let inner = tower::service_fn(move |request: ChatRequest| {
        *sees.lock().unwrap() = Some(request.context.capability::<JournalHandle>().is_some());
        ScriptedModel::new().text("x").oneshot(request)
    });
    let stack = ServiceBuilder::new()
        .layer(DurableLayer::new())
        .service(inner);
    stack
        .oneshot(notes.request("?"))
        .await
        .unwrap()
        .collect()
        .await
        .unwrap();
    assert_eq!(*seen.lock().unwrap(), Some(false));
    assert!(Context::new().capability::<JournalHandle>().is_none());
}
