//! Readiness: the instance that was ready is the one that is called, once, at once.
#![allow(clippy::unwrap_used, reason = "a test")]

mod common;

use bytes::Bytes;
use common::{
    End, Script,
    gemini::{finish, layer, text},
};
use concentric_core::{ChatRequest, ErrorKind};
use http_body_util::Full;
use tower::{Layer, Service};
use tower_test::mock;

#[tokio::test]
async fn readiness_is_the_inner_services() {
    let (mock, mut handle) = mock::pair::<http::Request<Full<Bytes>>, http::Response<Script>>();
    let mut service = tokio_test::task::spawn(layer().layer(mock));
    handle.allow(0);
    assert!(
        service
            .enter(|cx, mut service| service.poll_ready(cx))
            .is_pending()
    );
    handle.allow(2);
    for fails in [false, true] {
        assert!(
            service
                .enter(|cx, mut service| service.poll_ready(cx))
                .is_ready()
        );
        // Called at once: before the future is polled.
        let future = service.call(ChatRequest::user("hi"));
        let (_, reply) = handle.next_request().await.unwrap();
        if fails {
            reply.send_error("unplugged");
            let error = future.await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Connection);
            assert_eq!(error.provider(), Some("gcp.gemini"));
        } else {
            let script = Script::new([text("a") + &finish("STOP")], End::Clean);
            reply.send_response(http::Response::new(script));
            assert_eq!(future.await.unwrap().text().await.unwrap(), "a");
        }
    }
}
