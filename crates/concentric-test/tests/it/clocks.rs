//! A provider's use of the clock of the test.

use bytes::Bytes;
use concentric_core::ErrorKind;
use concentric_providers::{ApiKey, OpenAiLayer, Timeouts};
use concentric_test::TestEnvironment;
use http_body_util::Full;
use std::{convert::Infallible, task::Poll, time::Duration};
use tokio_test::{assert_pending, task::spawn};
use tower::{Layer, ServiceExt, service_fn};

#[test]
fn providers_use_the_time_of_the_runs_environment() {
    let test = TestEnvironment::new();
    let layer = OpenAiLayer::new("gpt-test", ApiKey::new("key"))
        .timeouts(Timeouts::off().idle(Duration::from_secs(30)));
    let http = service_fn(|_: http::Request<Full<Bytes>>| {
        std::future::pending::<Result<http::Response<Full<Bytes>>, Infallible>>()
    });
    let mut call = spawn(layer.layer(http).oneshot(test.request("hi")));
    assert_pending!(call.poll());
    test.advance(Duration::from_millis(29_999));
    assert_pending!(call.poll());
    test.advance(Duration::from_millis(1));
    assert!(call.is_woken());
    // Once more, in case that data has arrived meanwhile.
    assert_pending!(call.poll());
    assert!(call.is_woken());
    let Poll::Ready(Err(error)) = call.poll() else {
        panic!("the time is over");
    };
    assert_eq!(error.kind(), ErrorKind::Timeout);
    assert_eq!(error.code(), Some("idle"));
    assert_eq!(test.clock().sleepers(), 0);
}
