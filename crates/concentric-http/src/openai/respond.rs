//! The response to a request.

use std::{
    borrow::Cow,
    future::poll_fn,
    pin::pin,
    task::{Context, Poll},
    time::Duration,
};

use bytes::{Bytes, BytesMut};
use concentric_core::{
    RequestId, RunId, Str, ThreadId,
    context::{Context as Run, Sleep},
    panic::caught,
    store::Tenant,
};
use http::{HeaderValue, Method, header, request::Parts};
use http_body::Body;
use serde_json::{Value, json};
use tower::BoxError;

use super::{
    ResponseBody,
    chat::ChatInput,
    failure::Failure,
    input::{Input, Opening},
    responses::ResponsesInput,
    run::Answering,
    service::{Config, seconds},
    stored::{self, Keep, StoredResponse},
};
use crate::{
    json::parse_with_paths,
    keep_alive::KeepAlive,
    percent::decode,
    refused::Refused,
    upload::{self, event_stream},
};

type Response = http::Response<ResponseBody>;

/// The maximum time that the head of a stream waits for the first item of the answer, since proxies
/// close a connection without a response.
const HEAD_WITHIN: Duration = Duration::from_secs(10);

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

    let tenant = tenant(&parts);
    let previous = match input.previous() {
        Some(id) => Some(previous(config, &tenant, id).await?),
        None => None,
    };
    let run_id = config.settings.environment.ids().next("run_");
    let response = ThreadId::new(Str::concat([stored::PREFIX, &run_id]));
    let root = previous.as_ref().map_or(&response, StoredResponse::root);
    let kept = config.threads.clone().filter(|_| input.is_kept());
    let opening = Opening {
        run: run_id.clone(),
        thread: root.clone(),
        is_kept: kept.is_some(),
        model: name,
        created: seconds(&config.settings.environment),
    };
    let before = previous.as_ref().map(StoredResponse::before);
    let policy = &config.settings.policy;
    let mut job = input.job(policy, opening, before.unwrap_or_default())?;
    let keep = kept.map(|store| {
        let root = job.thread.clone().unwrap_or_else(|| response.clone());
        let conversation = (job.system.clone(), job.request.transcript.clone());
        Keep::new((store, tenant), (response, root), previous, conversation)
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

    let guard = match &config.settings.shutdown {
        Some(shutdown) => Some(shutdown.enter().ok_or_else(Refused::shutting_down)?),
        None => None,
    };
    let is_streamed = job.is_streamed;
    let describe = config.settings.error_message.clone();
    let run = Answering::new(model, job, keep, guard, describe, config.shows_reasoning);
    match is_streamed {
        true => stream(config, run).await,
        false => whole(run).await,
    }
}

/// The owner of the runs and responses of a request, whom the host has authenticated.
fn tenant(parts: &Parts) -> Tenant {
    parts.extensions.get().cloned().unwrap_or_default()
}

/// The stored response that a request continues.
async fn previous(config: &Config, tenant: &Tenant, id: &str) -> Result<StoredResponse, Failure> {
    let Some(store) = config.threads.as_deref() else {
        let problem = "responses are not stored; send the whole conversation in `input`";
        return Err(Failure::unsupported("previous_response_id", problem));
    };
    let found = StoredResponse::find(store, tenant, &config.settings.policy, id).await?;
    found.ok_or_else(|| Failure::unknown_previous_response(id))
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
    let store = config.threads.as_deref().ok_or_else(unknown)?;
    let tenant = tenant(parts);
    let found = StoredResponse::find(store, &tenant, &config.settings.policy, &id).await?;
    let response = found.ok_or_else(unknown)?;
    if action.is_some() {
        let problem = "the response has ended; none runs in the background";
        return Err(Failure::invalid("response_id", problem));
    }
    if method == Method::DELETE {
        let existed = stored::delete(store, tenant, response).await?;
        let deleted = || whole_json(stored::deleted(&id).to_string().into());
        return existed.then(deleted).ok_or_else(unknown);
    }
    let query = parts.uri.query().unwrap_or_default().split('&');
    for (name, value) in query.filter_map(|pair| pair.split_once('=')) {
        if (name == "stream" && value != "false") || name == "starting_after" {
            let problem = "the events of a response are not stored";
            return Err(Failure::unsupported(name, problem));
        }
    }
    Ok(whole_json(response.into_json()))
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
    let body = ResponseBody::stream(run, keep_alive, config.read_timeout);
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
