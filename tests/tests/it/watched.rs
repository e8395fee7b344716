//! An agent, as a whole stack, whose runs are watched from outside: what there is of each upstream
//! and among the tools, what its observer is told, and what permits it takes.

use bytes::Bytes;
use concentric_core::hooks::{self, Hooks, Summary};
use concentric_core::{AgentLayer, BoxError, BoxModel, ChatRequest, Context, Event};
use concentric_layers::InFlightLimitLayer;
use concentric_layers::{End, inspect_events};
use concentric_providers::{ApiKey, OpenAiLayer};
use concentric_tools::{NoArguments, Tool, Toolset, tool_with_context};
use http_body_util::Full;
use serde_json::{Value, json};
use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
    time::Duration,
};
use tokio::{sync::Semaphore, time::sleep};
use tokio_util::task::TaskTracker;
use tower::{Service, ServiceBuilder, limit::GlobalConcurrencyLimitLayer};

/// How many answers and tools there are at a time; of requests, half as many.
const PERMITS: usize = 40;

/// What there is of a run outside of it, and what was told of it.
#[derive(Default)]
pub struct Run {
    /// Requests that the model's service has not seen the end of.
    pub upstream: TaskTracker,
    pub tools: TaskTracker,
    /// Whether its observer takes its time.
    pub is_slow: bool,
    /// Whether the model's service falls silent in the midst of its first answer.
    pub is_silent: bool,
    pub seen: Mutex<Seen>,
}

#[derive(Default)]
pub struct Seen {
    pub ends: Vec<&'static str>,
    /// How many of them the observer has come to the end of.
    pub told: usize,
}

pub fn run_of(context: &Context) -> Arc<Run> {
    Arc::clone(context.extensions().get().unwrap())
}

struct Observer;

impl Hooks for Observer {
    fn id(&self) -> &str {
        "observer"
    }

    async fn after_run(&self, end: End<'_>, summary: &Summary) -> Result<(), BoxError> {
        let run = run_of(summary.context());
        run.seen.lock().unwrap().ends.push(match end {
            End::Finished(_) => "finished",
            End::Failed(_) => "failed",
            End::Truncated => "truncated",
            End::Dropped => "dropped",
        });
        if run.is_slow {
            sleep(Duration::from_millis(10)).await;
        }
        run.seen.lock().unwrap().told += 1;
        Ok(())
    }
}

/// All runs by their numbers, which their prompts name.
#[derive(Clone, Default)]
pub struct Runs(Arc<Mutex<HashMap<u64, Arc<Run>>>>);

impl Runs {
    pub fn begin(&self, number: u64, run: &Arc<Run>) -> ChatRequest {
        self.0.lock().unwrap().insert(number, Arc::clone(run));
        let mut request = ChatRequest::user(number.to_string());
        request.context.extensions_mut().insert(Arc::clone(run));
        request
    }

    pub fn end(&self, number: u64) -> Arc<Run> {
        self.0.lock().unwrap().remove(&number).unwrap()
    }

    /// The run of a request upstream, and how many steps it has made; `None` of one that is over.
    pub fn find(&self, body: &[u8]) -> Option<(Arc<Run>, usize)> {
        let body: Value = serde_json::from_slice(body).unwrap();
        let messages = body["messages"].as_array().unwrap();
        let said = |message: &&Value| message["role"] == "assistant";
        let number = messages[0]["content"].as_str().unwrap().parse().unwrap();
        let run = Arc::clone(self.0.lock().unwrap().get(&number)?);
        Some((run, messages.iter().filter(said).count()))
    }
}

// ---- the agent ----

/// What is lent to runs, and comes back.
pub struct Permits {
    answers: InFlightLimitLayer,
    requests: Arc<Semaphore>,
    calls: Arc<Semaphore>,
}

impl Permits {
    pub fn new() -> Self {
        Self {
            answers: InFlightLimitLayer::new(PERMITS),
            requests: Arc::new(Semaphore::new(PERMITS / 2)),
            calls: Arc::new(Semaphore::new(PERMITS)),
        }
    }

    pub fn assert_all_back(&self) {
        assert_eq!(self.answers.available(), PERMITS);
        assert_eq!(self.requests.available_permits(), PERMITS / 2);
        assert_eq!(self.calls.available_permits(), PERMITS);
    }
}

/// A tool that waits for so long.
fn waits(name: &'static str, time: Duration) -> Tool {
    tool_with_context(
        name,
        "",
        move |NoArguments {}, context: Context| async move {
            let _alive = run_of(&context).tools.token();
            sleep(time).await;
            "done"
        },
    )
}

pub fn agent<S, B>(url: String, http: S, permits: &Permits) -> BoxModel
where
    S: Service<http::Request<Full<Bytes>>, Response = http::Response<B>, Future: Send + 'static>
        + Clone
        + Send
        + Sync
        + 'static,
    S::Error: Into<BoxError>,
    B: http_body::Body<Data = Bytes, Error: Into<BoxError>> + Send + 'static,
{
    let calls = GlobalConcurrencyLimitLayer::with_semaphore(Arc::clone(&permits.calls));
    let requests = GlobalConcurrencyLimitLayer::with_semaphore(Arc::clone(&permits.requests));
    let tools = Toolset::new()
        .tool(waits("quick", Duration::from_millis(10)))
        .tool(waits("slow", Duration::from_millis(30)))
        .layer(calls);
    BoxModel::new(
        ServiceBuilder::new()
            .layer(hooks::run(Arc::new(Observer)))
            .layer(AgentLayer::new(tools))
            .layer(inspect_events(|_: &Event| {}))
            .layer(permits.answers.clone())
            .layer(OpenAiLayer::compatible(
                url,
                "model",
                Some(ApiKey::new("key")),
            ))
            .layer(requests)
            .service(http),
    )
}

/// What the model's service says in a step: text, and the calls of two tools; in the third, text.
pub fn frames(step: usize) -> Vec<String> {
    let frame = |delta: Value, reason: Option<&str>| {
        let choice = json!({ "index": 0, "delta": delta, "finish_reason": reason });
        format!("data: {}\n\n", json!({ "choices": [choice] }))
    };
    let call = |index: usize, name: &str| {
        let function = json!({ "name": name, "arguments": "{}" });
        let id = format!("{step}_{index}");
        let call = json!({ "index": index, "id": id, "type": "function", "function": function });
        frame(json!({ "tool_calls": [call] }), None)
    };
    let mut frames: Vec<_> = ["Let ", "me ", "think ", "of ", "it."]
        .map(|text| frame(json!({ "content": text }), None))
        .into();
    let reason = match step {
        0 | 1 => {
            frames.extend([call(0, "quick"), call(1, "slow")]);
            "tool_calls"
        }
        _ => "stop",
    };
    frames.push(frame(json!({}), Some(reason)));
    frames.push("data: [DONE]\n\n".to_owned());
    frames
}
