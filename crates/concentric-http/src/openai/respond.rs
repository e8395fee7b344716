//! The response to a request.

use std::{
    borrow::Cow,
    collections::{BTreeMap, HashSet},
    future::poll_fn,
    pin::pin,
    task::{Context, Poll},
    time::Duration,
};

use bytes::{Bytes, BytesMut};
use concentric_core::{
    CancelReason, RequestId, RunId, Str, ThreadId,
    context::{Context as Run, Sleep},
    panic::caught,
};
use http::{HeaderValue, Method, header, request::Parts};
use http_body::Body;
use serde_json::{Value, json, value::RawValue};
use tower::BoxError;

use super::{
    ResponseBody,
    body::Source,
    chat::ChatInput,
    failure::Failure,
    follow::{Events, Following},
    input::{Input, Opening},
    responses::{ResponsesInput, items, output, response_of},
    run::Answering,
    service::{Config, seconds},
    stored::{self, EndedBy, Keep, Owned, StoredResponse},
};
use crate::{
    json::parse_with_paths,
    keep_alive::KeepAlive,
    percent::decode,
    refused::Refused,
    run::After,
    shutdown::enter,
    upload::{self, event_stream},
};

type Response = http::Response<ResponseBody>;

/// The maximum time that the head of a stream waits for the first item of the answer, since proxies
/// close a connection without a response.
const HEAD_WITHIN: Duration = Duration::from_secs(10);

/// How many responses are loaded, one after the other, for the items that a request refers to.
const LOADS: usize = 32;

/// The minimum size of a body, in bytes, for which the request yields to other tasks before it is
/// parsed and after that.
const LARGE: usize = 64 << 10;

pub(super) async fn respond<RB>(config: &Config, request: http::Request<RB>) -> Response
where
    RB: Body + Send,
    RB::Error: Into<BoxError>,
{
    let id = request_id(config, &request);
    let answer = match caught(|| answer(config, &id, request)).await {
        Ok(answer) => answer,
        Err(panic) => Err(Failure::panicked(&panic, None)),
    };
    let mut response =
        answer.unwrap_or_else(|failure| failure.into_response().map(ResponseBody::whole));
    if let Ok(id) = HeaderValue::from_str(id.as_str()) {
        response.headers_mut().insert("x-request-id", id);
    }
    response
}

/// The id of the request: that of the header `x-request-id`, or a new one.
fn request_id<RB>(config: &Config, request: &http::Request<RB>) -> RequestId {
    let given = request.headers().get("x-request-id");
    let given = given.and_then(|id| id.to_str().ok());
    let given = given.filter(|id| !id.is_empty() && config.settings.policy.is_id(id));
    let new = || config.settings.environment.ids().next("req_");
    RequestId::new(given.map_or_else(new, Str::from))
}

async fn answer<RB>(
    config: &Config,
    id: &RequestId,
    request: http::Request<RB>,
) -> Result<Response, Failure>
where
    RB: Body + Send,
    RB::Error: Into<BoxError>,
{
    let path = request.uri().path();
    match (path, request.method()) {
        ("/chat/completions", &Method::POST) => {
            let (body, parts) = read(config, request).await?;
            run::<ChatInput>(config, id, &body, parts).await
        }
        ("/responses", &Method::POST) => {
            let (body, parts) = read(config, request).await?;
            run::<ResponsesInput>(config, id, &body, parts).await
        }
        ("/chat/completions" | "/responses", _) => Err(Failure::method("POST")),
        (path, _) if path.starts_with("/responses/") => {
            // These requests have no body.
            stored_response(config, &request.into_parts().0).await
        }
        ("/models", &Method::GET) => Ok(models(config)),
        ("/models", _) => Err(Failure::method("GET")),
        (path, method) => match path.strip_prefix("/models/") {
            Some(name) if method == Method::GET => model(config, name),
            Some(_) => Err(Failure::method("GET")),
            None => Err(Failure::unknown_route(method, path)),
        },
    }
}

/// Reads the body of a request.
async fn read<RB>(config: &Config, request: http::Request<RB>) -> Result<(BytesMut, Parts), Failure>
where
    RB: Body,
    RB::Error: Into<BoxError>,
{
    if config
        .settings
        .shutdown
        .as_ref()
        .is_some_and(|it| it.is_begun())
    {
        return Err(Refused::shutting_down().into());
    }
    upload::check(&request, config.settings.body_limit)?;
    let (parts, body) = request.into_parts();
    let mut body = pin!(body);
    let (mut bytes, mut timeout) = (BytesMut::new(), None::<Sleep>);
    let clock = config.settings.environment.clock();
    let read = poll_fn(|cx| {
        match upload::poll_read(body.as_mut(), &mut bytes, config.settings.body_limit, cx) {
            Poll::Ready(read) => Poll::Ready(read),
            Poll::Pending => {
                upload::poll_timeout(&mut timeout, clock, config.settings.upload_timeout, cx)
                    .map(|()| Err(Refused::upload_timeout()))
            }
        }
    });
    read.await?;
    config.settings.policy.check_body(&bytes)?;
    Ok((bytes, parts))
}

/// Runs the requested model.
async fn run<I: Input>(
    config: &Config,
    id: &RequestId,
    body: &[u8],
    parts: Parts,
) -> Result<Response, Failure> {
    let is_large = body.len() >= LARGE;
    if is_large {
        tokio::task::yield_now().await;
    }
    let input = match serde_json::from_slice::<I>(body) {
        Ok(input) => input,
        Err(_) => {
            if is_large {
                tokio::task::yield_now().await;
            }
            parse_with_paths(body)?
        }
    };
    if is_large {
        tokio::task::yield_now().await;
    }
    let name = input.model().filter(|name| !name.is_empty());
    let name = name.or(config.default_model.as_deref());
    let Some(name) = name.map(Str::from) else {
        return Err(Failure::invalid("model", "expected the name of a model"));
    };
    let model = config.model(&name);
    let model = model.ok_or_else(|| Failure::unknown_model(&name))?.clone();

    let owned = owned(config, &parts);
    let is_background = input.is_background();
    if is_background && (owned.is_none() || !input.is_kept()) {
        let problem =
            "a response in the background is stored: this server has no store, or `store` is false";
        return Err(Failure::unsupported("background", problem));
    }
    let previous = match input.previous() {
        Some(id) => Some(previous(config, owned.as_ref(), id).await?),
        None => None,
    };
    let references = input.references();
    let items = match references.is_empty() {
        true => BTreeMap::new(),
        false => {
            // With them, the request has the size that it would have without references.
            let limit = config.settings.body_limit.saturating_sub(body.len());
            referenced(config, owned.as_ref(), &references, limit).await?
        }
    };
    let referred = match items.is_empty() {
        true => String::new(),
        false => serde_json::to_string(&items.values().collect::<Vec<_>>()).unwrap_or_default(),
    };
    let run_id = config.settings.environment.ids().next("run_");
    let response = ThreadId::new(Str::concat([stored::PREFIX, &run_id]));
    let thread = match &previous {
        Some(previous) => previous.conversation(),
        None => stored::conversation(&run_id),
    };
    let kept = owned.filter(|_| input.is_kept());
    let opening = Opening {
        run: run_id.clone(),
        thread: thread.clone(),
        is_kept: kept.is_some(),
        model: name,
        created: seconds(&config.settings.environment),
        is_background,
    };
    let before = previous.as_ref().map(StoredResponse::before);
    let before = before.unwrap_or_default();
    let policy = &config.settings.policy;
    let mut job = input.job(policy, opening, before, items)?;
    let keep = kept.map(|owned| {
        let thread = job.thread.clone().unwrap_or(thread);
        let conversation = (job.system.clone(), job.request.transcript.clone());
        Keep::new(owned, (response, thread), previous, conversation, referred)
    });
    let mut context = Run::builder()
        .environment(config.settings.environment.clone())
        .run_id(RunId::new(run_id))
        .request_id(id.clone())
        .extensions(parts.extensions);
    if let Some(thread) = job.thread.clone() {
        context = context.thread_id(thread);
    }
    let mut context = context.build();
    context.set_stateless_caller();
    job.request.context = context;

    let guard = enter(config.settings.shutdown.as_ref())?;
    let is_streamed = job.is_streamed;
    let (describe, shows_reasoning) = (
        config.settings.error_message.clone(),
        config.shows_reasoning,
    );
    let answering =
        move |job, keep| Answering::new(model, job, keep, guard, describe, shows_reasoning);
    match (keep, is_streamed) {
        (Some(keep), _) if is_background => {
            let context = job.request.context.clone();
            let start = config.background.start(job, keep, answering);
            let (response, events) = start.await?;
            Ok(match is_streamed {
                true => follow(config, events, context)?,
                false => whole_json(response),
            })
        }
        (keep, true) => stream(config, answering(job, keep)).await,
        (keep, false) => whole(answering(job, keep)).await,
    }
}

/// The responses of the owner of a request, which the host has set; `None` without a store.
fn owned(config: &Config, parts: &Parts) -> Option<Owned> {
    Some(Owned {
        store: config.threads.clone()?,
        tenant: parts.extensions.get().cloned().unwrap_or_default(),
        environment: config.settings.environment.clone(),
    })
}

/// The stored response that a request continues.
async fn previous(
    config: &Config,
    owned: Option<&Owned>,
    id: &str,
) -> Result<StoredResponse, Failure> {
    let Some(owned) = owned else {
        let problem = "responses are not stored; send the whole conversation in `input`";
        return Err(Failure::unsupported("previous_response_id", problem));
    };
    let found = owned.find(&config.settings.policy, id).await?;
    let found = found.ok_or_else(|| Failure::unknown_previous_response(id))?;
    if !found.is_continuable() {
        let problem = "the response has not ended, has failed or was cancelled";
        return Err(Failure::invalid("previous_response_id", problem));
    }
    Ok(found)
}

/// The items of stored responses with the ids `references`, which have at most `limit` bytes.
///
/// Each response has the items that its request referred to, so mostly the newest one has all of them.
async fn referenced(
    config: &Config,
    owned: Option<&Owned>,
    references: &[&str],
    limit: usize,
) -> Result<BTreeMap<Str, Box<RawValue>>, Failure> {
    let Some(owned) = owned else {
        let problem = "responses are not stored; send the items instead of references to them";
        return Err(Failure::unsupported("input", problem));
    };
    let policy = &config.settings.policy;
    policy.check_messages("input", references.len())?;
    let wanted: HashSet<&str> = references.iter().copied().collect();
    let (mut found, mut seen) = (BTreeMap::new(), HashSet::new());
    let mut size = 0;
    for id in references.iter().rev() {
        let is_found = found.contains_key(*id);
        let Some(response) = response_of(id).filter(|it| !is_found && !seen.contains(it)) else {
            continue;
        };
        if seen.len() == LOADS {
            let problem = format!("the items are of more than {LOADS} separate responses");
            return Err(Failure::invalid("input", &problem));
        }
        let stored = owned.find(policy, &response).await?;
        seen.insert(response);
        let Some((response, earlier)) = stored.map(StoredResponse::into_items) else {
            continue;
        };
        if response.len() + earlier.len() >= LARGE {
            tokio::task::yield_now().await;
        }
        for (id, item) in output(&response).chain(items(&earlier)) {
            if !wanted.contains(&*id) || found.contains_key(&id) {
                continue;
            }
            size += item.get().len();
            if size > limit {
                return Err(Refused::too_large(Some(config.settings.body_limit)).into());
            }
            found.insert(id, item);
        }
    }
    Ok(found)
}

/// Answers a request about a stored response.
async fn stored_response(config: &Config, parts: &Parts) -> Result<Response, Failure> {
    let (method, path) = (&parts.method, parts.uri.path());
    let path = path.strip_prefix("/responses/").unwrap_or_default();
    let (id, action) = match path.split_once('/') {
        None => (path, None),
        Some((id, action)) => (id, Some(action)),
    };
    match (action, method) {
        (None, &Method::GET | &Method::DELETE) | (Some("cancel"), &Method::POST) => {}
        (None, _) => return Err(Failure::method("GET, DELETE")),
        (Some("cancel"), _) => return Err(Failure::method("POST")),
        (Some(_), _) => return Err(Failure::unknown_route(method, parts.uri.path())),
    }
    let id = decode(id).unwrap_or(Cow::Borrowed(id));
    let unknown = || Failure::unknown_response(&id);
    let owned = owned(config, parts).ok_or_else(unknown)?;
    let found = owned.find(&config.settings.policy, &id).await?;
    let response = found.ok_or_else(unknown)?;
    let background = &config.background;
    if action.is_some() {
        if !response.is_background() {
            let problem = "only responses that were created with `background` can be cancelled";
            return Err(Failure::invalid("response_id", problem));
        }
        let log = background.log(&owned.tenant, response.id().as_str());
        let ended = owned.end(response, EndedBy::Cancel).await?;
        if let Some(log) = log {
            log.cancel(CancelReason::User);
        }
        let ended = ended.ok_or_else(unknown)?;
        return Ok(whole_json(ended.into_json()));
    }
    if method == Method::DELETE {
        let existed = owned.delete(response.id().clone()).await?;
        background
            .remove(&owned.tenant, response.id().as_str())
            .await;
        let deleted = || whole_json(stored::deleted(&id).to_string().into());
        return existed.then(deleted).ok_or_else(unknown);
    }
    let Some(after) = events_after(parts.uri.query().unwrap_or_default())? else {
        return Ok(whole_json(response.into_json()));
    };
    let id = response.id().as_str();
    let events = background.events(&owned.tenant, id, &after).await?;
    let context = Run::builder().environment(owned.environment.clone());
    let context = context.run_id(RunId::new(id)).build();
    follow(config, events, context)
}

/// The position of the requested events; `None` if none are requested.
fn events_after(query: &str) -> Result<Option<After>, Failure> {
    let (mut is_streamed, mut after) = (false, None);
    for (name, value) in query.split('&').filter_map(|pair| pair.split_once('=')) {
        match name {
            "stream" => is_streamed = !matches!(value, "" | "false"),
            "starting_after" => after = Some(value),
            _ => {}
        }
    }
    let Some(after) = after else {
        return Ok(is_streamed.then(After::default));
    };
    if !is_streamed {
        return Err(Failure::invalid("starting_after", "expected `stream=true`"));
    }
    // The events of a log are numbered from 1, those of a response from 0.
    let is_number = after.bytes().all(|byte| byte.is_ascii_digit());
    let number = is_number.then(|| after.parse::<u64>().ok()).flatten();
    match number.and_then(|number| number.checked_add(1)) {
        Some(number) => Ok(Some(After { number, tag: None })),
        None => Err(Failure::invalid(
            "starting_after",
            "expected a sequence number",
        )),
    }
}

/// Answers with the events of a background run.
fn follow(config: &Config, events: Option<Events>, context: Run) -> Result<Response, Failure> {
    let Some(events) = events else {
        return Ok(event_stream(ResponseBody::whole(Bytes::new())));
    };
    let guard = enter(config.settings.shutdown.as_ref())?;
    let keep_alive = config.settings.keep_alive.map(KeepAlive::new);
    let source = Source::Log(Following::new(events, context, guard));
    let body = ResponseBody::stream(source, keep_alive, config.read_timeout);
    Ok(event_stream(body))
}

async fn whole(mut run: Answering) -> Result<Response, Failure> {
    let end = poll_fn(|cx| {
        run.poll(cx);
        match run.take_end() {
            Some(end) => Poll::Ready(end),
            None => Poll::Pending,
        }
    });
    let ending = end.await?;
    Ok(whole_json(run.whole(&ending)))
}

/// Answers with a stream once the answer has an item. Until then, a failure has its own status.
async fn stream(config: &Config, mut run: Answering) -> Result<Response, Failure> {
    let mut limit = None;
    poll_fn(|cx| {
        run.poll(cx);
        if run.is_over() || run.is_visible() {
            return Poll::Ready(());
        }
        poll_limit(&mut limit, run.context(), cx)
    })
    .await;
    if let Some(failure) = run.take_failure() {
        return Err(failure);
    }
    let keep_alive = config.settings.keep_alive.map(KeepAlive::new);
    let source = Source::Run(Box::new(run));
    let body = ResponseBody::stream(source, keep_alive, config.read_timeout);
    Ok(event_stream(body))
}

fn poll_limit(limit: &mut Option<Sleep>, context: &Run, cx: &mut Context<'_>) -> Poll<()> {
    let clock = context.environment().clock();
    let limit = limit.get_or_insert_with(|| clock.sleep(HEAD_WITHIN));
    limit.as_mut().poll(cx)
}

fn whole_json(json: Bytes) -> Response {
    let mut response = http::Response::new(ResponseBody::whole(json));
    let json = HeaderValue::from_static("application/json");
    response.headers_mut().insert(header::CONTENT_TYPE, json);
    response
}

fn models(config: &Config) -> Response {
    let models = config
        .models
        .keys()
        .filter(|name| config.model(name).is_some());
    let models: Vec<Value> = models.map(|name| card(config, name)).collect();
    whole_json(json!({"object": "list", "data": models}).to_string().into())
}

fn model(config: &Config, name: &str) -> Result<Response, Failure> {
    let decoded = decode(name).unwrap_or(Cow::Borrowed(name));
    match config.model(&decoded) {
        Some(_) => Ok(whole_json(card(config, &decoded).to_string().into())),
        None => Err(Failure::unknown_model(&decoded)),
    }
}

fn card(config: &Config, name: &str) -> Value {
    json!({"id": name, "object": "model", "created": config.created, "owned_by": "concentric"})
}
