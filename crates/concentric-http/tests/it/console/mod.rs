//! The console for operators.

mod content;
mod decisions;
mod pages;
mod replies;
mod security;
mod threads;

use crate::support::{Answer, Script, post, send};
use bytes::Bytes;
use concentric_core::{
    AgentLayer, BoxModel, CallId, ChatRequest, ChatResponse, Error, Event, FinishReason, ReplyKind,
    RunUsage, ToolCallPart, Turn, Usage, store::Tenant,
};
use concentric_http::{
    ag_ui::{AgUiLayer, EventLogLayer},
    console::{Console, Operator},
};
use concentric_layers::{DetachLayer, SuspendLayer};
use concentric_store::MemoryStore;
use concentric_tools::{Approval, ToolError, Toolset, tool};
use futures_util::{StreamExt, stream};
use http_body_util::Full;
use serde_json::{Map, Value, json};
use std::sync::{Arc, Mutex};
use tower::{ServiceBuilder, ServiceExt, service_fn};
use tower_layer::Layer;

type Request = http::Request<Full<Bytes>>;

/// The answers of a model: the first one, and another once a tool has answered.
#[derive(Clone)]
struct Model {
    first: Vec<Event>,
    /// Whether the first answer does not end.
    is_endless: bool,
}

impl Model {
    /// A model that calls `pay` with these arguments, and then repeats the result.
    fn pays(arguments: &Value) -> Self {
        Self::calls(&[arguments])
    }

    fn calls(arguments: &[&Value]) -> Self {
        let calls = arguments.iter().enumerate().map(|(n, arguments)| {
            let id = CallId::new(format!("call_{n}"));
            Event::tool_call(ToolCallPart::new(id, "pay", arguments.to_string()))
        });
        Self {
            first: calls.collect(),
            is_endless: false,
        }
    }

    fn writes(text: &str) -> Self {
        Self {
            first: vec![Event::text(text.to_owned())],
            is_endless: false,
        }
    }

    fn endless(self) -> Self {
        Self {
            is_endless: true,
            ..self
        }
    }

    async fn answer(
        self,
        request: ChatRequest,
    ) -> Result<ChatResponse<concentric_core::EventStream>, Error> {
        let results = request.transcript.last().map_or(&[][..], Turn::results);
        let mut events = match results {
            [] => self.first,
            results => {
                let outcomes = results.iter().map(|result| {
                    let outcome = &result.outcome;
                    format!("[{:?}: {}]", outcome.status, outcome.content.text())
                });
                vec![Event::text(outcomes.collect::<String>())]
            }
        };
        let is_endless = self.is_endless && results.is_empty();
        if !is_endless {
            events.push(Event::finish(FinishReason::Stop, Usage::new(3, 2)));
        }
        let events = stream::iter(events.into_iter().map(Ok));
        Ok(ChatResponse::new(match is_endless {
            true => concentric_core::EventStream::new(events.chain(stream::pending())),
            false => concentric_core::EventStream::new(events),
        }))
    }
}

/// A server with an agent, and its console.
struct Site {
    agent: BoxModel,
    console: Console,
    store: MemoryStore,
    log: EventLogLayer,
    paid: Arc<Mutex<Vec<String>>>,
}

impl Site {
    fn new(model: Model) -> Self {
        Self::with(model, |tools| tools)
    }

    fn with(model: Model, change: impl FnOnce(Toolset) -> Toolset) -> Self {
        let (store, log) = (MemoryStore::new(), EventLogLayer::new());
        let paid = Arc::new(Mutex::new(Vec::new()));
        let pay = {
            let paid = Arc::clone(&paid);
            tool("pay", "Pays.", move |arguments: Map<String, Value>| {
                let line = Value::Object(arguments).to_string();
                paid.lock().unwrap().push(line.clone());
                async move { Ok::<_, ToolError>(format!("paid {line}")) }
            })
        };
        let gate = Approval::for_tools(["pay"]).remember(store.clone());
        let gate = gate.replies([
            ReplyKind::Approve,
            ReplyKind::Deny,
            ReplyKind::Edit,
            ReplyKind::Answer,
        ]);
        let tools = change(Toolset::new().tool(pay).gate(gate));
        let agent = ServiceBuilder::new()
            .layer(DetachLayer::new())
            .layer(log.clone())
            .layer(SuspendLayer::new(Arc::new(store.clone())))
            .layer(AgentLayer::new(tools))
            .service(service_fn(move |request| model.clone().answer(request)));
        let description = concentric_core::describe::describe(&agent);
        let agent = BoxModel::new(agent);
        // The tests put the operator into the request.
        let console =
            Console::authorize(
                |request| async move { request.extensions.get::<Operator>().cloned() },
            )
            .runs(store.clone())
            .events(&log)
            .stack("clerk", description)
            .replies(agent.clone());
        Self {
            agent,
            console,
            store,
            log,
            paid,
        }
    }

    /// Starts the run `run` of the thread `t`, and reads its events to the end of the request.
    async fn start(&self, tenant: &str, run: &str) -> String {
        let input = json!({"threadId": "t", "runId": run,
            "messages": [{"id": run, "role": "user", "content": "pay"}]});
        self.start_with(tenant, &input).await
    }

    async fn start_with(&self, tenant: &str, input: &Value) -> String {
        let service = AgUiLayer::new().agent("clerk").layer(self.agent.clone());
        let mut request = post(input.to_string());
        request.extensions_mut().insert(Tenant(tenant.into()));
        send(service, request).await.body
    }

    /// Starts a run that does not end, and returns once its first text is written.
    async fn start_endless(&self, tenant: &str, run: &str) -> impl Sized + use<> {
        let input = json!({"threadId": "t", "runId": run,
            "messages": [{"id": run, "role": "user", "content": "pay"}]});
        let service = AgUiLayer::new().agent("clerk").layer(self.agent.clone());
        let mut request = post(input.to_string());
        request.extensions_mut().insert(Tenant(tenant.into()));
        let mut body = Box::pin(service.oneshot(request).await.unwrap().into_body());
        let mut read = String::new();
        while !read.contains("TEXT_MESSAGE_CONTENT") {
            let frame = http_body_util::BodyExt::frame(&mut body).await.unwrap();
            let bytes = frame.unwrap().into_data().unwrap();
            read.push_str(std::str::from_utf8(&bytes).unwrap());
        }
        body
    }

    /// The arguments of the first payment.
    fn paid(&self) -> Value {
        serde_json::from_str(&self.paid.lock().unwrap()[0]).unwrap()
    }

    async fn send(&self, operator: Option<&Operator>, mut request: Request) -> Answer {
        if let Some(operator) = operator {
            request.extensions_mut().insert(operator.clone());
        }
        send(self.console.clone(), request).await
    }

    async fn get(&self, operator: &Operator, path: &str) -> Answer {
        self.send(Some(operator), get(path)).await
    }

    async fn page(&self, operator: &Operator, path: &str) -> String {
        let answer = self.get(operator, path).await;
        assert_eq!(answer.status, 200, "{path}: {}", answer.body);
        answer.body
    }

    async fn post(&self, operator: &Operator, form: &Form) -> Answer {
        self.send(Some(operator), form.request()).await
    }

    /// The events of the run `r` as the console streams them, to its end.
    async fn follow(&self, operator: &Operator) -> String {
        self.page(operator, "/run/events?tenant=&thread=t&run=r")
            .await
    }
}

fn get(path: &str) -> Request {
    http::Request::get(path)
        .header("host", "localhost:8080")
        .body(Full::default())
        .unwrap()
}

fn all(name: &str) -> Operator {
    Operator::new(name, [Tenant::default()])
        .content()
        .decide()
        .cancel()
        .release()
        .remember()
}

const RUN: &str = "/run?tenant=&thread=t&run=r";

/// A form of a page, filled in.
#[derive(Clone, Debug, PartialEq)]
struct Form {
    action: String,
    fields: Vec<(String, String)>,
}

impl Form {
    /// The form with a button of this value.
    #[track_caller]
    fn deciding(page: &str, decision: &str) -> Self {
        let button = format!("value=\"{decision}\"");
        let mut form = Self::with(page, &button);
        form.set("decision", decision);
        form
    }

    /// The form that contains a text.
    #[track_caller]
    fn with(page: &str, text: &str) -> Self {
        let forms = page.split("<form ").skip(1);
        let mut forms = forms.map(|form| form.split("</form>").next().unwrap());
        let form = forms.find(|form| form.contains(text));
        let form = form.unwrap_or_else(|| panic!("no form with {text}: {page}"));
        let value = |tag: &str, name: &str| {
            let (_, rest) = tag.split_once(&format!("{name}=\""))?;
            Some(rest.split('"').next()?.to_owned())
        };
        let inputs = form.split("<input type=\"hidden\" ").skip(1);
        Self {
            action: value(form, "action").unwrap(),
            fields: inputs
                .map(|tag| (value(tag, "name").unwrap(), value(tag, "value").unwrap()))
                .collect(),
        }
    }

    fn set(&mut self, name: &str, value: &str) {
        self.fields.retain(|(known, _)| known != name);
        self.fields.push((name.to_owned(), value.to_owned()));
    }

    fn and(mut self, name: &str, value: &str) -> Self {
        self.set(name, value);
        self
    }

    fn request(&self) -> Request {
        let pairs = self.fields.iter().map(|(name, value)| {
            let value: String = value.bytes().map(|byte| format!("%{byte:02X}")).collect();
            format!("{name}={value}")
        });
        let path = self.action.strip_prefix("/console").unwrap();
        http::Request::post(path)
            .header("host", "localhost:8080")
            .header("origin", "null")
            .header("sec-fetch-site", "same-origin")
            .header("content-type", "application/x-www-form-urlencoded")
            .body(Full::from(pairs.collect::<Vec<_>>().join("&")))
            .unwrap()
    }
}

fn script(events: Vec<Event>) -> Script {
    stream::iter(events.into_iter().map(Ok).collect::<Vec<_>>())
}
