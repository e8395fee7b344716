//! The response to a request.

use std::sync::Arc;

use concentric_core::{
    ThreadId,
    store::{RunStore, StoreError, Tenant, ThreadStore},
};
use http::{HeaderMap, HeaderValue, Method, StatusCode, header, request::Parts};
use serde_json::json;

use super::{
    super::{future::is_json, reply::Refused},
    ThreadsBody, page,
    query::{Query, Resource},
    run,
    service::Config,
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
        match store.delete(tenant, ThreadId::new(thread)).await {
            Ok(true) => Ok(empty(StatusCode::NO_CONTENT)),
            Ok(false) => Err(unknown_thread()),
            Err(error) => Err(failed(&error)),
        }
    }

    async fn runs(&self, thread: &str) -> Result<Response, Refused> {
        let mut runs = Vec::new();
        if let Some(store) = self.run_store() {
            let stored = run::unfinished(store, &self.tenant, thread).await?;
            let stored = stored.iter().map(
                |run| json!({"runId": run.client_id.as_str(), "status": run::status(run.status)}),
            );
            runs.extend(stored);
        }
        let runs = json!({"threadId": thread, "runs": runs});
        Ok(self.json(StatusCode::OK, runs.to_string()))
    }

    async fn run(&self, thread: &str, run: &str) -> Result<Response, Refused> {
        let mut status = json!({"threadId": thread, "runId": run});
        let stored = match self.run_store() {
            Some(store) => run::find(store, &self.tenant, thread, run).await?,
            None => None,
        };
        let stored = stored.ok_or_else(unknown_run)?;
        status["status"] = run::status(stored.status).into();
        if let Some(store) = self.run_store()
            && let Some(outcome) = run::waiting(store, &stored).await?
        {
            status["outcome"] = outcome;
        }
        Ok(self.json(StatusCode::OK, status.to_string()))
    }

    async fn cancel(&self, thread: &str, run: &str) -> Result<Response, Refused> {
        // A page of another origin can send other content types with the user's cookies.
        if !is_json(&self.parts.headers) {
            return Err(Refused::media_type());
        }
        let store = self.run_store().ok_or_else(unknown_run)?;
        run::cancel(store, &self.tenant, thread, run).await?;
        let run = json!({"threadId": thread, "runId": run});
        Ok(self.json(StatusCode::ACCEPTED, run.to_string()))
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
    Refused::not_found("run_not_found", "the run does not exist, or has ended")
}

/// The response to a request whose store failed.
pub(super) fn failed(error: &StoreError) -> Refused {
    tracing::error!(error = ?error, "the store of an AG-UI endpoint failed");
    Refused::internal()
}
