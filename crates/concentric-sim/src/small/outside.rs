//! The world outside of the processes: where tools have their effects, and the providers of models.

use super::{
    agent::Script,
    history::{Ending, What},
    time::{Act, ProcessId, Time, lock},
};
use concentric_core::{
    BoxModel, CallId, ChatRequest, ChatResponse, Environment, Error, ErrorKind, Event, EventStream,
    FinishReason, Role, ToolCallPart, Usage,
};
use futures_util::stream;
use serde_json::json;
use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
    time::Duration,
};
use tokio::sync::oneshot;
use tower::service_fn;

// ---- effects ----

/// What a tool does to the world, and how often it may.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Class {
    /// Nothing.
    ReadOnly,
    /// Something that the world does once for a key.
    Keyed,
    /// Something that must not be repeated, and that the world does each time.
    AtMostOnce,
}

/// The effects so far, by their keys.
#[derive(Clone)]
pub(super) struct Effects {
    time: Time,
    // Whether each is done. One that is not was given up, and is not done any more.
    done: Arc<Mutex<HashMap<String, bool>>>,
}

/// The effect of a call, under a claim of its run.
#[derive(Clone)]
pub(super) struct Effect {
    pub(super) call: String,
    pub(super) class: Class,
    pub(super) key: String,
    pub(super) run: String,
    pub(super) fence: u64,
}

impl Effects {
    pub(super) fn new(time: Time) -> Self {
        let done = Arc::default();
        Self { time, done }
    }

    fn act(&self, process: ProcessId, effect: Effect) -> bool {
        let Effect {
            call,
            class,
            key,
            run,
            fence,
        } = effect;
        let did = *lock(&self.done).entry(key).or_insert(true);
        let what = What::Acted {
            call,
            class,
            run,
            fence,
            did,
        };
        self.time.note(Some(process), what);
        did
    }

    /// Requests an effect, which takes place after some milliseconds, also if the process dies meanwhile. Returns whether
    /// it took place.
    pub(super) async fn request(&self, process: ProcessId, effect: Effect) -> bool {
        let (to, back) = self
            .time
            .dice(|dice| (dice.range(1, 20), dice.range(1, 20)));
        let (sender, answer) = oneshot::channel();
        let effects = self.clone();
        self.time.then(to, move || {
            let did = effects.act(process, effect);
            let act = Act::Do(Box::new(move || _ = sender.send(did)));
            effects.time.after(back, Some(process), act);
        });
        match answer.await {
            Ok(did) => did,
            // The process is dead.
            Err(_) => std::future::pending().await,
        }
    }

    /// Determines whether an effect was had; if not, it can't be had any more.
    pub(super) fn inquire(&self, call: &str, key: &str) -> bool {
        let did = *lock(&self.done).entry(key.to_owned()).or_insert(false);
        let call = call.to_owned();
        self.time.note(None, What::Inquired { call });
        did
    }
}

// ---- providers ----

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Provider {
    First,
    Second,
}

/// How a provider answers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Health {
    #[default]
    Well,
    /// Each request fails.
    Out,
    /// No request has an answer.
    Hangs,
    /// Each request is rejected with a status of 429.
    Rejects,
    /// Three of ten requests fail.
    Brown,
}

/// The state of the providers.
#[derive(Clone, Default)]
pub(super) struct Providers(Arc<Mutex<HashMap<Provider, Health>>>);

impl Providers {
    pub(super) fn set(&self, provider: Provider, health: Health) {
        lock(&self.0).insert(provider, health);
    }

    fn health(&self, provider: Provider) -> Health {
        lock(&self.0).get(&provider).copied().unwrap_or_default()
    }
}

/// The number of a model call that a circuit let pass: an extension of its context.
#[derive(Clone, Copy)]
pub(super) struct Admission(pub(super) u64);

/// Notes the end of an attempt.
struct Attempt {
    time: Time,
    process: ProcessId,
    provider: Provider,
    id: u64,
    environment: Environment,
    ending: Ending,
}

pub(super) fn mono(environment: &Environment) -> u64 {
    u64::try_from(environment.clock().monotonic().as_micros()).unwrap_or(u64::MAX)
}

impl Attempt {
    fn end(mut self, ending: Ending) {
        self.ending = ending;
    }
}

impl Drop for Attempt {
    fn drop(&mut self) {
        let what = What::AttemptOver {
            provider: self.provider,
            id: self.id,
            mono: mono(&self.environment),
            ending: self.ending,
        };
        self.time.note(Some(self.process), what);
    }
}

/// The model of a provider for a process. It decides by the transcript alone.
pub(super) fn model(
    time: Time,
    process: ProcessId,
    provider: Provider,
    providers: Providers,
) -> BoxModel {
    BoxModel::new(service_fn(move |request: ChatRequest| {
        let (time, providers) = (time.clone(), providers.clone());
        async move { answer(request, time, process, provider, &providers).await }
    }))
}

/// The script of the newest user message, and the number of steps since.
pub(super) fn place(request: &ChatRequest) -> Option<(Script, usize)> {
    let mut steps = 0;
    for turn in request.transcript.rev() {
        let message = turn.as_message();
        match message.role {
            Role::User => return Some((Script::read(&message.text())?, steps)),
            Role::Assistant => steps += 1,
            _ => {}
        }
    }
    None
}

async fn answer(
    request: ChatRequest,
    time: Time,
    process: ProcessId,
    provider: Provider,
    providers: &Providers,
) -> Result<ChatResponse<EventStream>, Error> {
    let clock = request.context.environment().clone();
    let (script, step) = place(&request)
        .ok_or_else(|| Error::new(ErrorKind::InvalidRequest, "the request has no script"))?;
    let id = request.context.extensions().get::<Admission>();
    let id = id.map_or(0, |Admission(id)| *id);
    let what = What::Attempt {
        provider,
        id,
        tag: script.tag.clone(),
        mono: mono(&clock),
    };
    time.note(Some(process), what);
    let attempt = Attempt {
        time: time.clone(),
        process,
        provider,
        id,
        environment: clock.clone(),
        ending: Ending::Neither,
    };
    let (wait, luck, pace) =
        time.dice(|dice| (dice.range(10, 250), dice.below(60), dice.range(1, 12)));
    let sleep = |millis| clock.clock().sleep(Duration::from_millis(millis));
    let fails = |attempt: Attempt, kind, status| {
        attempt.end(Ending::Failure);
        Err(Error::new(kind, "the provider failed").with_status(status))
    };
    match providers.health(provider) {
        Health::Out => {
            sleep(wait / 5).await;
            return fails(attempt, ErrorKind::Server, 500);
        }
        Health::Hangs => {
            sleep(60_000).await;
            return fails(attempt, ErrorKind::Timeout, 504);
        }
        Health::Rejects => {
            sleep(wait / 5).await;
            let error = Error::new(ErrorKind::RateLimited, "too many requests").with_status(429);
            return Err(error.with_retry_after(Duration::from_millis(200 + 10 * wait)));
        }
        Health::Brown if luck < 18 => {
            sleep(wait / 5).await;
            return fails(attempt, ErrorKind::Overloaded, 529);
        }
        Health::Well | Health::Brown => {}
    }
    sleep(wait).await;
    let calls = script.calls(step);
    let mut events: Vec<Result<Event, Error>> =
        calls.iter().map(|(tool, id)| Ok(call(tool, id))).collect();
    if calls.is_empty() {
        let answer = script.answer();
        events.extend(
            answer
                .split_inclusive(' ')
                .map(|word| Ok(Event::text(word))),
        );
    }
    let reason = match calls.is_empty() {
        true => FinishReason::Stop,
        false => FinishReason::ToolCalls,
    };
    // One in 60 answers breaks off.
    if luck == 59 {
        events.pop();
        events.push(Err(Error::new(
            ErrorKind::Truncated,
            "the connection broke",
        )));
    } else {
        events.push(Ok(Event::finish(reason, Usage::new(1, 1))));
    }
    let state = (events.into_iter(), Some(attempt), clock);
    let body = stream::unfold(state, move |(mut events, mut attempt, clock)| async move {
        let event = events.next()?;
        clock.clock().sleep(Duration::from_millis(pace)).await;
        if events.len() == 0
            && let Some(attempt) = attempt.take()
        {
            attempt.end(match &event {
                Ok(_) => Ending::Success,
                Err(_) => Ending::Failure,
            });
        }
        Some((event, (events, attempt, clock)))
    });
    Ok(ChatResponse::new(EventStream::new(body)))
}

fn call(tool: &str, id: &str) -> Event {
    let arguments = json!({"what": id}).to_string();
    Event::tool_call(ToolCallPart::new(CallId::new(id), tool, arguments.as_str()))
}
