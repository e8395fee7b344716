//! Virtual keys.

use super::{stored::Broken, *};
use concentric_core::{Turn, store::Tenant};
use concentric_http::openai::{NewKey, VirtualKey, VirtualKeys};
use concentric_store::MemoryStore;
use concentric_test::TestEnvironment;
use std::time::Duration;
use tokio::sync::Notify;
use tower::Service;

/// A server that answers with the tenant and the name of the key.
fn who() -> OpenAi {
    let model = service_fn(|request: ChatRequest| {
        let extensions = request.context.extensions();
        let key = extensions.get::<VirtualKey>().expect("a key").clone();
        let text = format!("{}/{}", Tenant::of(&request.context).0, key.name);
        let events = ok([Event::text(text), finish()]);
        async { Ok::<_, Error>(ChatResponse::new(stream::iter(events))) }
    });
    OpenAi::new().model("m", model)
}

async fn ask(keys: &VirtualKeys, authorization: Option<&str>) -> Reply {
    let mut request = chat(json!({}));
    if let Some(value) = authorization {
        request
            .headers_mut()
            .insert("authorization", value.parse().unwrap());
    }
    let (parts, body) = keys
        .layer(who())
        .oneshot(request)
        .await
        .unwrap()
        .into_parts();
    let (body, cut) = read(body).await;
    Reply {
        status: parts.status.as_u16(),
        headers: parts.headers,
        body,
        cut,
    }
}

async fn status(keys: &VirtualKeys, key: &NewKey) -> u16 {
    let header = format!("Bearer {}", key.expose());
    ask(keys, Some(&header)).await.status
}

fn id_of(key: &NewKey) -> String {
    let written = key.expose().strip_prefix("sk-cc-").unwrap();
    assert_eq!(written.split_once('_').unwrap().0, key.id());
    key.id().to_owned()
}

fn ann() -> Tenant {
    Tenant("ann".into())
}

#[tokio::test]
async fn a_key_gives_a_request_its_tenant() {
    let keys = VirtualKeys::new(MemoryStore::new());
    let key = keys.create(ann(), "laptop").await.unwrap();
    assert!(!format!("{key:?} {keys:?}").contains(key.expose()));
    let header = format!("Bearer {}", key.expose());
    let reply = ask(&keys, Some(&header)).await.json();
    assert_eq!(reply["choices"][0]["message"]["content"], "ann/laptop");
    let listed = keys.list().await.unwrap();
    assert_eq!(listed.len(), 1);
    assert_eq!(
        (listed[0].id.as_str(), listed[0].tenant.clone()),
        (&*id_of(&key), ann())
    );
    let owner = keys.create(Tenant("concentric:keys".into()), "x").await;
    assert_eq!(
        owner.unwrap_err().kind(),
        concentric_core::ErrorKind::InvalidRequest
    );
}

#[tokio::test]
async fn all_invalid_keys_have_the_same_response() {
    let keys = VirtualKeys::new(MemoryStore::new());
    let key = keys.create(ann(), "a").await.unwrap();
    let key = key.expose();
    let other = keys.create(ann(), "b").await.unwrap();
    keys.revoke(&id_of(&other)).await.unwrap();
    let (start, secret) = key.split_at(key.len() - 43);
    let wrong = [start, &"A".repeat(43)].concat();
    let unknown = ["sk-cc-", &"0".repeat(24), "_", secret].concat();
    let mut bodies = Vec::new();
    for key in [&wrong, &unknown, "", "x", start, other.expose()] {
        let reply = ask(&keys, Some(&format!("Bearer {key}"))).await;
        assert_eq!(
            (reply.status, &reply.error()["code"]),
            (401, &json!("invalid_api_key"))
        );
        assert_eq!(reply.headers["www-authenticate"], "Bearer");
        bodies.push(reply.body);
    }
    bodies.push(ask(&keys, None).await.body);
    bodies.push(ask(&keys, Some(key)).await.body);
    bodies.dedup();
    assert_eq!(bodies.len(), 1, "{bodies:?}");
}

#[tokio::test(start_paused = true)]
async fn a_key_that_another_process_revokes_is_refused_after_30_seconds() {
    let store = MemoryStore::new();
    let (keys, admin) = (VirtualKeys::new(store.clone()), VirtualKeys::new(store));
    let key = admin.create(ann(), "a").await.unwrap();
    assert_eq!(status(&keys, &key).await, 200);
    assert!(admin.revoke(&id_of(&key)).await.unwrap());
    assert!(!admin.revoke(&id_of(&key)).await.unwrap());
    assert_eq!(status(&admin, &key).await, 401);
    tokio::time::advance(Duration::from_secs(29)).await;
    assert_eq!(status(&keys, &key).await, 200);
    tokio::time::advance(Duration::from_secs(2)).await;
    assert_eq!(status(&keys, &key).await, 401);
    assert!(admin.list().await.unwrap().is_empty());
}

#[tokio::test]
async fn a_key_that_is_revoked_while_it_is_read_is_not_cached() {
    let reads = Arc::new((Notify::new(), Notify::new()));
    let mut store = Broken::new(|_| None);
    store.reads = Some(reads.clone());
    let keys = VirtualKeys::new(store);
    let key = Arc::new(keys.create(ann(), "a").await.unwrap());
    let first = tokio::spawn({
        let (keys, key) = (keys.clone(), key.clone());
        async move { status(&keys, &key).await }
    });
    reads.0.notified().await;
    assert!(keys.revoke(key.id()).await.unwrap());
    reads.1.notify_one();
    assert_eq!(first.await.unwrap(), 200, "the key was read before");
    reads.1.notify_one();
    assert_eq!(status(&keys, &key).await, 401);
}

#[tokio::test]
async fn a_rotated_key_has_two_secrets_for_a_time() {
    let clock = TestEnvironment::new();
    let keys = VirtualKeys::new(MemoryStore::new()).environment(clock.environment());
    let first = keys.create(ann(), "a").await.unwrap();
    let id = id_of(&first);
    assert_eq!(status(&keys, &first).await, 200);
    let hour = Duration::from_secs(3600);
    let second = keys.rotate(&id, hour).await.unwrap().unwrap();
    assert_eq!(id_of(&second), id);
    assert_eq!(
        [status(&keys, &first).await, status(&keys, &second).await],
        [200, 200]
    );
    clock.advance(hour);
    assert_eq!(
        [status(&keys, &first).await, status(&keys, &second).await],
        [401, 200]
    );
    let third = keys.rotate(&id, Duration::ZERO).await.unwrap().unwrap();
    let all = [
        status(&keys, &first).await,
        status(&keys, &second).await,
        status(&keys, &third).await,
    ];
    assert_eq!(all, [401, 401, 200]);
    assert_eq!(keys.list().await.unwrap().len(), 1);
    assert!(keys.rotate(&"0".repeat(24), hour).await.unwrap().is_none());
    assert!(keys.rotate("x", hour).await.unwrap().is_none());
}

#[tokio::test]
async fn rotations_at_once_lose_no_key() {
    let keys = VirtualKeys::new(MemoryStore::new());
    let key = keys.create(ann(), "a").await.unwrap();
    let id = id_of(&key);
    let hour = Duration::from_secs(3600);
    let (one, two) = tokio::join!(keys.rotate(&id, hour), keys.rotate(&id, hour));
    let (one, two) = (one.unwrap().unwrap(), two.unwrap().unwrap());
    assert_eq!(
        [status(&keys, &one).await, status(&keys, &two).await],
        [200, 200]
    );
    assert_eq!(
        status(&keys, &key).await,
        401,
        "two newer secrets are valid"
    );
}

#[tokio::test]
async fn the_key_is_not_passed_on() {
    let keys = VirtualKeys::new(MemoryStore::new());
    let key = keys.create(ann(), "a").await.unwrap();
    let inner = service_fn(|request: http::Request<()>| async move {
        assert!(!request.headers().contains_key("authorization"));
        Ok::<_, Error>(http::Response::new(Bytes::new()))
    });
    let request = http::Request::get("/")
        .header("authorization", format!("Bearer {}", key.expose()))
        .body(())
        .unwrap();
    let mut service = keys.layer(inner);
    let reply = service.ready().await.unwrap().call(request).await.unwrap();
    assert_eq!(reply.status(), 200);
}

#[tokio::test]
async fn other_conversations_are_no_keys() {
    // The turns of a conversation are not those of a key.
    let store = MemoryStore::new();
    let keys = VirtualKeys::new(store.clone());
    let mut history = concentric_core::Transcript::new();
    history.push(Turn::user("hi"));
    let id = "0".repeat(24);
    let change = concentric_core::store::StoredThread::default().change_to(&history, &[]);
    let thread = concentric_core::ThreadId::new(id.as_str());
    use concentric_core::store::ThreadStore;
    store
        .append(Tenant("concentric:keys".into()), thread, 0, change)
        .await
        .unwrap();
    let header = format!("Bearer sk-cc-{id}_{}", "A".repeat(43));
    assert_eq!(ask(&keys, Some(&header)).await.status, 401);
    assert!(keys.list().await.unwrap().is_empty());
}
