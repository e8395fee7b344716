//! Requests that are not valid, not allowed, or hostile.

use super::*;

fn service() -> Threads {
    let store = Arc::new(MemoryStore::new());
    Threads::new().threads(Arc::clone(&store)).runs(store)
}

#[tokio::test]
async fn unknown_paths_and_ids_are_not_found() {
    let long = format!("/{}", "x".repeat(1025));
    for path in [
        "/t/other",
        "/t/runs/r/other",
        "/t/runs/r/events/x",
        "//",
        "/%ff",
        "/%zz",
        "/a%00b",
        &long,
    ] {
        let answer = send(service(), get(path)).await;
        assert_eq!(code(&answer), (404, "not_found".to_owned()), "{path}");
    }
    let strange = "/..%2F..%2Fetc%2Fpasswd";
    for path in [
        "/t",
        strange,
        "/%F0%9F%92%A9",
        "/'%3B%20drop%20table%20runs--",
    ] {
        let answer = send(service(), get(path)).await;
        assert_eq!(
            code(&answer),
            (404, "thread_not_found".to_owned()),
            "{path}"
        );
        let answer = send(service(), get(&format!("{path}/runs/r"))).await;
        assert_eq!(code(&answer), (404, "run_not_found".to_owned()), "{path}");
    }
}

#[tokio::test]
async fn other_methods_are_rejected() {
    for (path, allow) in [
        ("/", "GET, HEAD, OPTIONS"),
        ("/t", "GET, HEAD, DELETE, OPTIONS"),
        ("/t/runs", "GET, HEAD, OPTIONS"),
        ("/t/runs/r", "GET, HEAD, OPTIONS"),
        ("/t/runs/r/events", "GET, HEAD, OPTIONS"),
        ("/t/runs/r/cancel", "POST, OPTIONS"),
    ] {
        let options = send(service(), request("OPTIONS", path)).await;
        assert_eq!((options.status, options.body.as_str()), (204, ""));
        assert_eq!(options.headers["allow"], allow);
        for method in ["PUT", "PATCH", "DELETE", "POST", "GET", "TRACE", "BREW"] {
            if allow.split(", ").any(|it| it == method) {
                continue;
            }
            let answer = send(service(), request(method, path)).await;
            assert_eq!(code(&answer), (405, "method_not_allowed".to_owned()));
            assert_eq!(answer.headers["allow"], allow, "{method} {path}");
        }
    }
}

#[tokio::test]
async fn a_head_request_has_the_headers_and_no_body() {
    let whole = send(service(), get("/")).await;
    let head = send(service(), request("HEAD", "/")).await;
    assert_eq!((head.status, head.body.as_str()), (200, ""));
    assert_eq!(head.headers, whole.headers);
    assert_eq!(head.headers["content-length"], whole.body.len().to_string());
}

#[tokio::test]
async fn invalid_parameters_name_their_field() {
    for (query, field) in [
        ("limit=0", "limit"),
        ("limit=501", "limit"),
        ("limit=-1", "limit"),
        ("limit=1&limit=2", "limit"),
        ("after=x", "after"),
        ("after=99999999999999999999999", "after"),
        ("after=%ff", "after"),
        ("before=", "before"),
        ("before=1&after=1", "before"),
    ] {
        let answer = send(service(), get(&format!("/t?{query}"))).await;
        assert_eq!(
            code(&answer),
            (400, "invalid_request".to_owned()),
            "{query}"
        );
        assert_eq!(answer.json()["error"]["field"], field, "{query}");
    }
    for before in ["x", "-1", "99999999999999999999999"] {
        let answer = send(service(), get(&format!("/?before={before}"))).await;
        assert_eq!(answer.json()["error"]["field"], "before", "{before}");
    }
    // Unknown parameters are ignored.
    assert_eq!(
        send(service(), get("/?x&y=%zz&=&limit=1")).await.status,
        200
    );
    let long = send(service(), get(&format!("/?x={}", "y".repeat(4096)))).await;
    assert_eq!(code(&long), (414, "too_large".to_owned()));
}

#[tokio::test]
async fn a_service_without_stores_knows_nothing() {
    for (path, expected) in [
        ("/", "thread_not_found"),
        ("/t", "thread_not_found"),
        ("/t/runs/r", "run_not_found"),
    ] {
        let answer = send(Threads::new(), get(path)).await;
        assert_eq!(code(&answer), (404, expected.to_owned()));
    }
}

#[tokio::test]
async fn a_cancellation_must_be_sent_as_json() {
    for content_type in [None, Some("text/plain"), Some("multipart/form-data")] {
        let mut request = request("POST", "/t/runs/r/cancel");
        if let Some(content_type) = content_type {
            let value = content_type.parse().unwrap();
            request.headers_mut().insert("content-type", value);
        }
        let answer = send(service(), request).await;
        assert_eq!(code(&answer), (415, "unsupported_media_type".to_owned()));
    }
}

/// A store of threads that fails, or panics.
pub(super) struct Broken(pub(super) bool);

impl Broken {
    fn fail<T>(&self) -> StoreFuture<T> {
        assert!(!self.0, "secret of the store");
        Box::pin(async { Err(StoreError::failed("secret of the store")) })
    }
}

impl ThreadStore for Broken {
    fn load(&self, _: Tenant, _: ThreadId) -> StoreFuture<Option<StoredThread>> {
        self.fail()
    }

    fn turns(
        &self,
        _: Tenant,
        _: ThreadId,
        _: Option<usize>,
        _: usize,
    ) -> StoreFuture<Option<(concentric_core::store::ThreadSummary, Vec<Turn>)>> {
        self.fail()
    }

    fn append(
        &self,
        _: Tenant,
        _: ThreadId,
        _: u64,
        _: concentric_core::store::ThreadChange,
    ) -> StoreFuture<u64> {
        self.fail()
    }

    fn fork(
        &self,
        _: Tenant,
        _: ThreadId,
        _: u64,
        _: ThreadId,
        _: concentric_core::store::ThreadChange,
    ) -> StoreFuture<u64> {
        self.fail()
    }

    fn list_threads(
        &self,
        _: Tenant,
        _: Option<u64>,
        _: usize,
    ) -> StoreFuture<Vec<concentric_core::store::ThreadSummary>> {
        self.fail()
    }

    fn delete(&self, _: Tenant, _: ThreadId) -> StoreFuture<bool> {
        self.fail()
    }

    fn delete_tenant(&self, _: Tenant) -> StoreFuture<u64> {
        self.fail()
    }
}

#[tokio::test]
async fn a_failed_store_reveals_nothing() {
    for panics in [false, true] {
        for request in [get("/"), get("/t"), request("DELETE", "/t")] {
            let threads = Threads::new().threads(Broken(panics));
            let answer = send(threads, request).await;
            assert_eq!(code(&answer), (500, "internal".to_owned()));
            assert!(!answer.body.contains("secret"), "{}", answer.body);
        }
    }
}
