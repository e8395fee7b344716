//! The response to a request.

use std::{borrow::Cow, sync::Arc};

use concentric_core::{
    CancelReason, Str, ThreadId,
    store::{RunStatus, RunStore, RunSummary, StoreError, Tenant, ThreadStore},
};
use http::{HeaderMap, HeaderValue, Method, StatusCode, header, request::Parts};
use serde_json::{Value, json};

use super::{
    super::stream::FORMAT,
    ThreadsBody, page,
    query::{Query, Resource},
    run,
    service::Config,
};
use crate::{
    refused::Refused,
    run::{After, Found, LogStream, Metadata, RunLog, Unreadable},
    shutdown::enter,
    upload::{event_stream, is_json},
};

type Response = http::Response<ThreadsBody>;

/// A request to one resource.
struct Request {
    config: Arc<Config>,
    tenant: Tenant,
    parts: Parts,
    is_head: bool,
}

pub(super) async fn respond(config: Arc<Config>, parts: Parts) -> Result<Response, Refused> {
    let resource = Resource::parse(parts.uri.path());
    let resource = resource.ok_or_else(|| Refused::not_found("not_found", "not found"))?;
    // The caller is authenticated by the host.
    let tenant = parts.extensions.get().cloned().unwrap_or_default();
    let request = Request {
        config,
        tenant,
        is_head: parts.method == Method::HEAD,
        parts,
    };
    let method = match &request.parts.method {
        &Method::HEAD => Method::GET,
        method => method.clone(),
    };
    match (method, resource) {
        (Method::OPTIONS, resource) => {
            let mut response = empty(StatusCode::NO_CONTENT);
            let methods = HeaderValue::from_static(resource.methods());
            response.headers_mut().insert(header::ALLOW, methods);
            Ok(response)
        }
        (Method::GET, Resource::Threads) => request.threads().await,
        (Method::GET, Resource::Thread(thread)) => request.thread(&thread).await,
        (Method::DELETE, Resource::Thread(thread)) => request.delete(&thread).await,
        (Method::GET, Resource::Runs(thread)) => request.runs(&thread).await,
        (Method::GET, Resource::Run(thread, run)) => request.run(&thread, &run).await,
        (Method::GET, Resource::Events(thread, run)) => request.events(&thread, &run).await,
        (Method::POST, Resource::Cancel(thread, run)) => request.cancel(&thread, &run).await,
        (_, resource) => Err(Refused::method_other_than(resource.methods())),
    }
}

impl Request {
    fn query(&self) -> Result<Query<'_>, Refused> {
        Query::new(&self.parts.uri)
    }

    fn store(&self) -> Result<&dyn ThreadStore, Refused> {
        self.config.threads.as_deref().ok_or_else(unknown_thread)
    }

    fn run_store(&self) -> Option<&dyn RunStore> {
        self.config.runs.as_deref()
    }

    async fn threads(&self) -> Result<Response, Refused> {
        let (store, query) = (self.store()?, self.query()?);
        let page = page::threads(store, self.tenant.clone(), &query).await?;
        Ok(self.json(StatusCode::OK, page.to_string()))
    }

    async fn thread(&self, thread: &str) -> Result<Response, Refused> {
        let (store, query) = (self.store()?, self.query()?);
        let page = page::turns(store, self.tenant.clone(), thread, &query).await?;
        Ok(self.json(StatusCode::OK, page))
    }

    async fn delete(&self, thread: &str) -> Result<Response, Refused> {
        let (store, tenant) = (self.store()?, self.tenant.clone());
        let logs = self.logs(thread);
        let deleted = store.delete(tenant, ThreadId::new(thread)).await;
        let is_known = deleted.map_err(|error| failed(&error))?;
        // Their events are content of the thread, too.
        for log in logs {
            log.cancel(CancelReason::User);
            log.discard();
        }
        if let Some(logs) = &self.config.logs {
            let removed = logs.remove_shared(&self.tenant, thread).await;
            removed.map_err(|error| failed(&error))?;
        }
        match is_known {
            true => Ok(empty(StatusCode::NO_CONTENT)),
            false => Err(unknown_thread()),
        }
    }

    async fn runs(&self, thread: &str) -> Result<Response, Refused> {
        let mut runs: Vec<Value> = Vec::new();
        let logs = self.logs(thread);
        let live = logs.iter().filter(|log| !log.is_ended());
        let live: Vec<&str> = live.map(|log| log.name().2.as_str()).collect();
        if let Some(store) = self.run_store() {
            let stored = run::unfinished(store, &self.tenant, thread).await?;
            let stored = stored.iter();
            let stored = stored.filter(|run| !live.contains(&run.client_id.as_str()));
            runs.extend(stored.map(
                |run| json!({"runId": run.client_id.as_str(), "status": run::status(run.status)}),
            ));
        }
        // Not all of them are stored: a run is stored before its first tools.
        let running = |run: &&str| json!({"runId": run, "status": "running"});
        runs.extend(live.iter().map(running));
        let runs = json!({"threadId": thread, "runs": runs});
        Ok(self.json(StatusCode::OK, runs.to_string()))
    }

    async fn run(&self, thread: &str, run: &str) -> Result<Response, Refused> {
        let mut status = Metadata::new();
        let mut set = |name: &str, value: Value| drop(status.insert(name.to_owned(), value));
        set("threadId", thread.into());
        set("runId", run.into());
        let log = self.log(thread, run);
        if let Some(log) = log.as_ref().filter(|log| !log.is_ended()) {
            set("status", "running".into());
            set("lastEventId", log.last_id().into());
            return Ok(self.json(StatusCode::OK, Value::from(status).to_string()));
        }
        let stored = self.stored(thread, run).await?;
        if let (Some(stored), Some(store)) = (&stored, self.run_store())
            && stored.status != RunStatus::Ended
        {
            set("status", run::status(stored.status).into());
            if let Some(outcome) = run::waiting(store, stored).await? {
                set("outcome", outcome);
            }
            return Ok(self.json(StatusCode::OK, Value::from(status).to_string()));
        }
        // The events of another protocol tell only that the run has ended.
        let is_readable = |log: &Arc<RunLog>| log.format().name == FORMAT.name;
        let logged = log.and_then(|log| match is_readable(&log) {
            true => log.terminal(),
            false => log.is_ended().then(Vec::new),
        });
        if stored.is_none() && logged.is_none() {
            return Err(unknown_run());
        }
        set("status", "ended".into());
        // The log has more details, except of a run that another request has resumed.
        let logged = logged.map(|event| run::end(&event));
        let logged = logged.filter(|end| stored.is_none() || !run::has_waited(end));
        let kept = stored.and_then(|stored| stored.outcome);
        let kept = || kept.as_ref().map(run::stored_end);
        status.extend(logged.or_else(kept).unwrap_or_default());
        Ok(self.json(StatusCode::OK, Value::from(status).to_string()))
    }

    async fn cancel(&self, thread: &str, run: &str) -> Result<Response, Refused> {
        // A page of another origin can send other content types with the user's cookies.
        if !is_json(&self.parts.headers) {
            return Err(Refused::media_type());
        }
        let log = self.log(thread, run);
        let is_cancelled = log.as_ref().map(|log| log.cancel(CancelReason::User));
        if is_cancelled != Some(true) {
            // It may be driven by another process.
            let found = self.stored(thread, run).await?;
            match (found, self.run_store()) {
                (Some(found), Some(store)) => run::cancel(store, found).await?,
                _ if log.is_some() => return Err(run::ended()),
                _ => return Err(unknown_run()),
            }
        }
        let run = json!({"threadId": thread, "runId": run});
        Ok(self.json(StatusCode::ACCEPTED, run.to_string()))
    }

    async fn events(&self, thread: &str, run: &str) -> Result<Response, Refused> {
        let after = self.after()?;
        let log = self.log(thread, run);
        // A run whose log ended with an error may be continued by another process.
        let stored = match &log {
            Some(log) if !log.is_failed() => None,
            _ => self.stored(thread, run).await?,
        };
        let is_here = log.is_some() && stored.is_none();
        // Whether the log may be in a store that does not work.
        let mut is_hidden = false;
        if !is_here {
            let shared = self.shared(thread, run, &after, log.as_ref(), stored.as_ref());
            match shared.await {
                Ok(Some(found)) => return self.read(found.reader),
                Ok(None) => {}
                Err(_) => is_hidden = true,
            }
        }
        if let (Some(log), None) = (log, &stored) {
            if log.format().name != FORMAT.name {
                let why = "the run was started by an endpoint with another protocol";
                return Err(Refused::conflict("other_protocol", why));
            }
            return self.read(log.read(&after));
        }
        if stored.is_none() && !is_hidden {
            return Err(unknown_run());
        }
        let mut response = empty(StatusCode::NO_CONTENT);
        let status = stored.map(|stored| stored.status);
        if matches!(
            status,
            None | Some(RunStatus::Running | RunStatus::Abandoned)
        ) {
            // A sweeper of this process may resume it, or the store may work again.
            let second = HeaderValue::from_static("1");
            response.headers_mut().insert(header::RETRY_AFTER, second);
        }
        Ok(response)
    }

    /// The events of a run that another process drives, or has driven; `None` if the store of the logs does not have
    /// them. `log` is that of this process, whose run ended with an error.
    async fn shared(
        &self,
        thread: &str,
        run: &str,
        after: &After,
        log: Option<&Arc<RunLog>>,
        stored: Option<&RunSummary>,
    ) -> Result<Option<Found>, StoreError> {
        let Some(logs) = &self.config.logs else {
            return Ok(None);
        };
        let found = logs.find_shared(&self.tenant, thread, run, &FORMAT, after);
        let found = found.await?;
        // Another process will resume a run that is not over, and begin another log.
        let is_resumed = |is_ended| {
            let status = stored.map(|stored| stored.status);
            is_ended && matches!(status, Some(RunStatus::Running | RunStatus::Abandoned))
        };
        let is_ours = |tag: &Str| log.is_some_and(|log| log.tag() == tag);
        Ok(found.filter(|found| !is_ours(&found.tag) && !is_resumed(found.is_ended)))
    }

    fn read(&self, log: Result<impl Into<LogStream>, Unreadable>) -> Result<Response, Refused> {
        match log {
            Ok(log) => self.stream(log.into()),
            Err(Unreadable::Over) => Ok(empty(StatusCode::NO_CONTENT)),
            Err(Unreadable::Busy) => Err(Refused::too_many_readers()),
            Err(Unreadable::Gone) => {
                let why = "the events after this one are not kept; read the thread and the run";
                Err(Refused::new(StatusCode::GONE, "events_gone", why, None))
            }
        }
    }

    fn stream(&self, log: LogStream) -> Result<Response, Refused> {
        let guard = enter(self.config.shutdown.as_ref())?;
        let body = match self.is_head {
            true => ThreadsBody::whole(bytes::Bytes::new()),
            false => ThreadsBody::events(log, &self.config, guard),
        };
        Ok(event_stream(body))
    }

    /// The position that a client has read up to.
    fn after(&self) -> Result<After, Refused> {
        // A browser that reconnects sends the header, and its URL has an older position.
        let header = self.parts.headers.get("last-event-id");
        let query = self.query()?.get("after")?;
        let (id, field) = match (header, query) {
            (Some(header), _) => (header.to_str().ok().map(Cow::Borrowed), "last-event-id"),
            (None, Some(query)) => (Some(query), "after"),
            (None, None) => return Ok(After::default()),
        };
        let after = id.and_then(|id| After::parse(&id));
        after.ok_or_else(|| Refused::field(field, "expected the id or the number of an event"))
    }

    fn log(&self, thread: &str, run: &str) -> Option<Arc<RunLog>> {
        self.config.logs.as_ref()?.find(&self.tenant, thread, run)
    }

    fn logs(&self, thread: &str) -> Vec<Arc<RunLog>> {
        let logs = self.config.logs.as_ref();
        logs.map_or_else(Vec::new, |logs| logs.of_thread(&self.tenant, thread))
    }

    async fn stored(&self, thread: &str, run: &str) -> Result<Option<RunSummary>, Refused> {
        match self.run_store() {
            Some(store) => run::find(store, &self.tenant, thread, run).await,
            None => Ok(None),
        }
    }

    fn json(&self, status: StatusCode, json: impl Into<bytes::Bytes>) -> Response {
        let json = json.into();
        let mut response = empty(status);
        let headers = response.headers_mut();
        headers.insert(
            header::CONTENT_TYPE,
            HeaderValue::from_static("application/json"),
        );
        headers.insert(header::CONTENT_LENGTH, json.len().into());
        if !self.is_head {
            *response.body_mut() = ThreadsBody::whole(json);
        }
        response
    }
}

fn empty(status: StatusCode) -> Response {
    let mut response = http::Response::new(ThreadsBody::whole(bytes::Bytes::new()));
    *response.status_mut() = status;
    no_store(response.headers_mut());
    response
}

/// Keeps a response out of caches, since it belongs to one tenant.
pub(super) fn no_store(headers: &mut HeaderMap) {
    let no_store = HeaderValue::from_static("no-store");
    headers.insert(header::CACHE_CONTROL, no_store);
}

pub(super) fn unknown_thread() -> Refused {
    Refused::not_found("thread_not_found", "the thread does not exist")
}

pub(super) fn unknown_run() -> Refused {
    Refused::not_found(
        "run_not_found",
        "the run does not exist, or is not kept any more",
    )
}

/// The response to a request whose store failed.
pub(super) fn failed(error: &StoreError) -> Refused {
    tracing::error!(error = ?error, "the store of an AG-UI endpoint failed");
    Refused::internal()
}
