//! Observers of any service.

use concentric_core::{BoxError, hooks::End};
use concentric_layers::observe;
use std::{
    convert::Infallible,
    sync::{Arc, Mutex},
};
use tokio_test::task::spawn;
use tower::{Layer, Service, ServiceExt, service_fn};

type Seen = Arc<Mutex<Vec<String>>>;

/// A layer that notes requests and ends.
macro_rules! noting {
    ($seen:expr) => {{
        let seen = Arc::clone(&$seen);
        observe(move |request: &u32| {
            seen.lock().unwrap().push(format!("call {request}"));
            let (seen, request) = (Arc::clone(&seen), *request);
            move |end: End<'_, u32, BoxError>| {
                seen.lock().unwrap().push(format!("{request} {end:?}"));
            }
        })
    }};
}

fn take(seen: &Seen) -> Vec<String> {
    std::mem::take(&mut *seen.lock().unwrap())
}

#[tokio::test]
async fn s086_an_observer_sees_the_calls_of_any_service() {
    let seen = Seen::default();
    let half = service_fn(async |n: u32| match n % 2 {
        0 => Ok(n / 2),
        _ => Err(BoxError::from("odd")),
    });
    let half = noting!(seen).layer(half);
    assert_eq!(half.clone().oneshot(4).await.unwrap(), 2);
    assert!(half.oneshot(3).await.is_err());
    let expected = ["call 4", "4 Finished(2)", "call 3", "3 Failed(\"odd\")"];
    assert_eq!(take(&seen), expected);
}

#[tokio::test]
async fn a_dropped_call_ends_once() {
    let seen = Seen::default();
    let never = service_fn(async |_: u32| std::future::pending::<Result<u32, BoxError>>().await);
    let mut never = noting!(seen).layer(never);
    // Never polled, and polled.
    drop(never.call(1));
    let mut call = spawn(never.call(2));
    assert!(call.poll().is_pending());
    drop(call);
    assert_eq!(take(&seen), ["call 1", "1 Dropped", "call 2", "2 Dropped"]);
}

#[tokio::test]
async fn a_panic_while_a_call_is_dropped_is_contained() {
    let never = service_fn(async |(): ()| std::future::pending::<Result<(), Infallible>>().await);
    let observer = observe(|(): &()| |_: End<'_, (), Infallible>| panic!("of the test"));
    drop(observer.layer(never).call(()));
}

#[test]
fn readiness_is_forwarded() {
    let (mock, mut handle) = tower_test::mock::pair::<u32, u32>();
    let mut observed = tokio_test::task::spawn(noting!(Seen::default()).layer(mock));
    handle.allow(0);
    let ready = observed.enter(|cx, mut service| service.poll_ready(cx));
    assert!(ready.is_pending());
    handle.allow(1);
    let ready = observed.enter(|cx, mut service| service.poll_ready(cx));
    assert!(ready.is_ready());
}
