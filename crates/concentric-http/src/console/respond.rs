//! The response to a request.

use std::{future::poll_fn, pin::pin, sync::Arc, time::Duration};

use bytes::BytesMut;
use concentric_core::{CancelReason, panic::CaughtPanic, store::Tenant};
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header, request::Parts};
use http_body::Body;
use tower::BoxError;

use super::{
    access::{check_host, check_origin},
    approvals,
    body::ResponseBody,
    config::Config,
    decisions,
    form::{Form, link},
    html::html,
    layout::{Page, Place, asset},
    listing::{Listing, RunName, Show, failed, log, not_found, stored},
    live::{Changes, RunEvents, Source, Stream},
    operator::Operator,
    reply::reply,
    run, runs, stacks, threads, usage,
};
use crate::{
    refused::Refused,
    run::{After, Unreadable},
    shutdown::enter,
    upload::{event_stream, poll_read, poll_timeout},
};

type Response = http::Response<ResponseBody>;

/// The maximum size of a form, in bytes, and the time in which it must arrive.
const FORM: usize = 8 << 20;
const UPLOAD: Duration = Duration::from_secs(30);

/// The maximum length of a query, in bytes.
const QUERY: usize = 16 << 10;

/// The headers of all responses.
const HEADERS: [(&str, &str); 7] = [
    (
        "content-security-policy",
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; \
         form-action 'self'; base-uri 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'",
    ),
    ("x-content-type-options", "nosniff"),
    ("x-frame-options", "DENY"),
    ("referrer-policy", "no-referrer"),
    ("cache-control", "no-store"),
    ("cross-origin-opener-policy", "same-origin"),
    ("cross-origin-resource-policy", "same-origin"),
];

pub(super) async fn respond<RB>(config: Arc<Config>, request: http::Request<RB>) -> Response
where
    RB: Body,
    RB::Error: Into<BoxError>,
{
    let (parts, body) = request.into_parts();
    let is_head = parts.method == Method::HEAD;
    let mut operator = None;
    let answered = answer(&config, &parts, body, &mut operator).await;
    let mut response =
        answered.unwrap_or_else(|refused| problem(&config, operator.as_ref(), refused));
    secure(&mut response);
    if is_head {
        *response.body_mut() = ResponseBody::whole("");
    }
    response
}

/// The response to a request whose handling panicked.
pub(super) fn panicked(config: &Config, panic: &CaughtPanic) -> Response {
    let mut response = problem(config, None, Refused::panicked(panic));
    secure(&mut response);
    response
}

/// Sets the headers of all responses.
fn secure(response: &mut Response) {
    let headers = response.headers_mut();
    for (name, value) in HEADERS {
        let name = HeaderName::from_static(name);
        // An asset has its own caching.
        if name != header::CACHE_CONTROL || !headers.contains_key(&name) || is_stream(headers) {
            headers.insert(name, HeaderValue::from_static(value));
        }
    }
}

fn is_stream(headers: &HeaderMap) -> bool {
    headers
        .get(header::CONTENT_TYPE)
        .is_some_and(|of| of == "text/event-stream")
}

async fn answer<RB>(
    config: &Arc<Config>,
    parts: &Parts,
    body: RB,
    known: &mut Option<Operator>,
) -> Result<Response, Refused>
where
    RB: Body,
    RB::Error: Into<BoxError>,
{
    check_host(parts, &config.hosts)?;
    let path = parts.uri.path().trim_matches('/');
    let is_post = matches!(
        path,
        "approvals/reply" | "run/cancel" | "run/release" | "decisions/revoke"
    );
    match &parts.method {
        &Method::POST if is_post => check_origin(parts)?,
        &Method::GET | &Method::HEAD if !is_post => {}
        _ if is_post => return Err(Refused::method_other_than("POST")),
        _ => return Err(Refused::method_other_than("GET, HEAD")),
    }
    if let Some(name) = path.strip_prefix("assets/") {
        let (kind, content) = asset(name).ok_or_else(not_found)?;
        let mut response = whole(StatusCode::OK, kind, content);
        let cached = HeaderValue::from_static("public, max-age=31536000, immutable");
        response.headers_mut().insert(header::CACHE_CONTROL, cached);
        return Ok(response);
    }
    let operator = config.access.operator(parts).await?;
    let operator = &*known.insert(operator);
    if is_post {
        let form = read(config, parts, body).await?;
        if path == "decisions/revoke" {
            let to = decisions::revoke(config, operator, &form).await?;
            return Ok(see_other(&to));
        }
        let name = name(operator, |field| form.id(field))?;
        match path {
            "approvals/reply" => reply(config, operator, &name, &form).await?,
            "run/cancel" => {
                check(config, operator, &name, &form, run::CANCEL, operator.cancel)?;
                cancel(config, &name).await?;
                audit(operator, Some(&name), "an operator cancelled a run");
            }
            _ => {
                check(
                    config,
                    operator,
                    &name,
                    &form,
                    run::RELEASE,
                    operator.release,
                )?;
                release(config, &name).await?;
                audit(operator, Some(&name), "an operator released a run");
            }
        }
        return Ok(see_other(&link(&config.path, "/run", &name.fields())));
    }
    let query = parts.uri.query().unwrap_or_default();
    let query = (query.len() <= QUERY).then(|| Form::parse(query)).flatten();
    let query = query.ok_or_else(|| Refused::field("query", "invalid"))?;
    let number = match query.get("page") {
        None => 1,
        Some(page) => page
            .parse()
            .ok()
            .filter(|page| *page > 0)
            .ok_or_else(not_found)?,
    };
    let show = Show::parse(query.get("show")).ok_or_else(not_found)?;
    let page = match path {
        "" => {
            let listing = Listing::read(config, operator).await?;
            runs::page(config, operator, &listing, show, number)
        }
        "approvals" => {
            let listing = Listing::read(config, operator).await?;
            let page = approvals::page(config, operator, &listing, number).await?;
            if operator.content {
                audit(operator, None, "an operator read the content of questions");
            }
            page
        }
        "decisions" => decisions::list(config, operator, &query, number).await?,
        "stacks" => stacks::page(config),
        "usage" => usage::page(config, operator),
        "threads" => threads::list(config, operator, &query).await?,
        "thread" => threads::page(config, operator, &query).await?,
        "changes" => {
            let changes = Changes::new(Arc::clone(config), operator.clone(), show);
            return stream(config, Source::List(changes));
        }
        "run" => {
            let name = name(operator, |field| query.get(field).map(str::to_owned))?;
            let page = run::page(config, operator, &name).await?;
            if operator.content {
                audit(
                    operator,
                    Some(&name),
                    "an operator read the content of a run",
                );
            }
            page
        }
        "run/events" => {
            let name = name(operator, |field| query.get(field).map(str::to_owned))?;
            return events(config, operator, parts, &query, &name);
        }
        _ => return Err(not_found()),
    };
    let html = page.render(config, Some(operator));
    Ok(whole(StatusCode::OK, HTML, html))
}

const HTML: &str = "text/html; charset=utf-8";

/// The run that a request names. One of another tenant does not exist.
fn name(operator: &Operator, field: impl Fn(&str) -> Option<String>) -> Result<RunName, Refused> {
    let (Some(tenant), Some(thread), Some(run)) = (field("tenant"), field("thread"), field("run"))
    else {
        return Err(run::unknown());
    };
    // Not all stores accept a NUL character.
    let has_nul = [&tenant, &thread, &run].iter().any(|id| id.contains('\0'));
    let tenant = Tenant(tenant.into());
    if has_nul || !operator.sees(&tenant) {
        return Err(run::unknown());
    }
    Ok(RunName {
        tenant: tenant.0,
        thread: thread.into(),
        run: run.into(),
    })
}

async fn read<RB>(config: &Config, parts: &Parts, body: RB) -> Result<Form, Refused>
where
    RB: Body,
    RB::Error: Into<BoxError>,
{
    let kind = parts.headers.get(header::CONTENT_TYPE);
    let kind = kind.and_then(|kind| kind.to_str().ok()?.split(';').next());
    if kind.is_none_or(|kind| {
        !kind
            .trim()
            .eq_ignore_ascii_case("application/x-www-form-urlencoded")
    }) {
        let status = StatusCode::UNSUPPORTED_MEDIA_TYPE;
        let why = "Expected the form of a page.";
        return Err(Refused::new(status, "unsupported_media_type", why, None));
    }
    let (mut body, mut bytes, mut timeout) = (pin!(body), BytesMut::new(), None);
    poll_fn(|cx| {
        let clock = config.environment.clock();
        match poll_timeout(&mut timeout, clock, Some(UPLOAD), cx) {
            std::task::Poll::Ready(()) => std::task::Poll::Ready(Err(Refused::upload_timeout())),
            std::task::Poll::Pending => poll_read(body.as_mut(), &mut bytes, FORM, cx),
        }
    })
    .await?;
    let form = std::str::from_utf8(&bytes).ok().and_then(Form::parse);
    form.ok_or_else(|| Refused::field("form", "invalid"))
}

/// Checks the form of a button, and whether the operator may do it.
fn check(
    config: &Config,
    operator: &Operator,
    name: &RunName,
    form: &Form,
    action: &str,
    is_allowed: bool,
) -> Result<(), Refused> {
    let now = config.environment.clock().now();
    let purpose = run::purpose(name, action);
    let token = form.get("token");
    config.forms.check(token, operator, &purpose, now)?;
    if is_allowed {
        return Ok(());
    }
    let why = format!("You may not {action} runs.");
    Err(Refused::new(StatusCode::FORBIDDEN, "forbidden", &why, None))
}

/// Cancels a run.
async fn cancel(config: &Config, name: &RunName) -> Result<(), Refused> {
    if log(config, name).is_some_and(|log| log.cancel(CancelReason::User)) {
        return Ok(());
    }
    // It may be driven by another process.
    if let (Some(run), Some(store)) = (stored(config, name).await?, &config.runs)
        && store
            .cancel(run.key)
            .await
            .map_err(|error| failed(&error))?
    {
        return Ok(());
    }
    let why = "This run is not driven any more.";
    Err(Refused::conflict("run_ended", why))
}

/// Releases a quarantined run.
async fn release(config: &Config, name: &RunName) -> Result<(), Refused> {
    if let (Some(run), Some(store)) = (stored(config, name).await?, &config.runs)
        && store
            .release(run.key)
            .await
            .map_err(|error| failed(&error))?
    {
        return Ok(());
    }
    let why = "This run is not quarantined any more.";
    Err(Refused::conflict("run_not_quarantined", why))
}

/// The events of a run after those that the page has.
fn events(
    config: &Arc<Config>,
    operator: &Operator,
    parts: &Parts,
    query: &Form,
    name: &RunName,
) -> Result<Response, Refused> {
    // A browser that reconnects sends the header, and its URL has an older position.
    let header = parts.headers.get("last-event-id");
    let after = match header {
        Some(id) => id.to_str().ok(),
        None => query.get("after"),
    };
    let after = match after {
        Some(id) => After::parse(id).ok_or_else(|| Refused::field("after", "invalid"))?,
        None => After::default(),
    };
    let log = log(config, name).ok_or_else(run::unknown)?;
    let reader = match log.read(&after) {
        Ok(reader) => reader,
        Err(Unreadable::Over) => return Ok(whole(StatusCode::NO_CONTENT, HTML, "")),
        Err(Unreadable::Busy) => return Err(busy()),
        Err(Unreadable::Gone) => {
            let why = "The events after this one are not kept. Open the page again.";
            return Err(Refused::new(StatusCode::GONE, "events_gone", why, None));
        }
    };
    if operator.content {
        audit(
            operator,
            Some(name),
            "an operator follows the content of a run",
        );
    }
    let events = RunEvents {
        reader,
        content: operator.content,
        tag: after.tag,
    };
    stream(config, Source::Run(events))
}

fn stream(config: &Arc<Config>, source: Source) -> Result<Response, Refused> {
    let permit = Arc::clone(&config.streams).try_acquire_owned();
    let permit = permit.map_err(|_| busy())?;
    let guard = enter(config.shutdown.as_ref())?;
    let stream = Stream::new(config, source, guard, permit);
    Ok(event_stream(ResponseBody::stream(stream)))
}

fn busy() -> Refused {
    let why = "Too many pages follow runs. Close one of them.";
    Refused::new(StatusCode::TOO_MANY_REQUESTS, "too_many_streams", why, None)
}

/// Records that an operator read content or changed a run.
fn audit(operator: &Operator, name: Option<&RunName>, what: &'static str) {
    tracing::info!(
        target: "concentric::console",
        operator = operator.name.as_str(), tenant = name.map(|name| name.tenant.as_str()),
        thread_id = name.map(|name| name.thread.as_str()), run_id = name.map(|name| name.run.as_str()),
        "{what}"
    );
}

fn whole(status: StatusCode, kind: &'static str, body: impl Into<bytes::Bytes>) -> Response {
    let mut response = http::Response::new(ResponseBody::whole(body));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    response
}

/// The response to a form that had an effect: the page that shows it.
fn see_other(to: &str) -> Response {
    let mut response = whole(StatusCode::SEE_OTHER, HTML, "");
    // A link is ASCII, unless the path of the console is not.
    if let Ok(to) = HeaderValue::from_str(to) {
        response.headers_mut().insert(header::LOCATION, to);
    }
    response
}

/// The page of a request that was refused, with the headers of its status.
fn problem(config: &Config, operator: Option<&Operator>, refused: Refused) -> Response {
    let title = refused.status.canonical_reason().unwrap_or("Error");
    let mut page = Page::new(Place::Other, title);
    let content = &mut page.content;
    html!(content; "<p class=\"problem\" role=\"alert\">" (&refused.message) "</p>");
    if operator.is_some() {
        let to = link(&config.path, "/approvals", &[]);
        html!(content; "<p><a href=\"" (&to) "\">Open the approvals</a></p>");
    }
    let body = ResponseBody::whole(page.render(config, operator));
    let mut response = refused.into_response().map(|_| body);
    let kind = HeaderValue::from_static(HTML);
    response.headers_mut().insert(header::CONTENT_TYPE, kind);
    response
}
