//! Whoever drops a call or an answer, after any poll, closes the connection at once.

use super::{
    faults::limits,
    http::{Framing, head, piece},
    memory::shared,
    server::{Act, LIMIT, Server},
    wire::Api,
};
use concentric_core::{BoxModel, ChatRequest};
use concentric_providers::{HttpClient, Timeouts};
use futures_util::StreamExt;
use std::{
    future::{Future, poll_fn},
    pin::pin,
    task::Poll,
    time::Duration,
};
use tokio::time::timeout;
use tower::{Service, ServiceExt};

/// Polls a call and its body so many times, whenever they are woken, and drops them then. Whether
/// they came to their end before.
async fn polled(mut model: BoxModel, polls: u64) -> bool {
    let mut left = polls;
    let mut call = pin!(model.ready().await.unwrap().call(ChatRequest::user("hi")));
    let mut body = None;
    poll_fn(|cx| {
        loop {
            if left == 0 {
                return Poll::Ready(false);
            }
            left -= 1;
            let is_pending = match &mut body {
                None => match call.as_mut().poll(cx) {
                    Poll::Ready(Ok(response)) => {
                        body = Some(response.body);
                        false
                    }
                    Poll::Ready(Err(_)) => return Poll::Ready(true),
                    Poll::Pending => true,
                },
                Some(body) => match body.poll_next_unpin(cx) {
                    Poll::Ready(Some(_)) => false,
                    Poll::Ready(None) => return Poll::Ready(true),
                    Poll::Pending => true,
                },
            };
            // The last poll is not followed by a wait.
            if is_pending && left > 0 {
                return Poll::Pending;
            }
        }
    })
    .await
}

/// Drops a call after each number of polls that it may have. Its service never closes anything.
async fn drops(api: Api, status: u16, body: &[String]) {
    let client = HttpClient::new().unwrap();
    let server = Server::start().await;
    let typed = [("content-type", api.content_type())];
    let pause = Duration::from_millis(1);
    let mut acts = vec![Act::Send(head(status, &typed, Framing::Chunked).into())];
    for frame in body {
        // So long that it is waited for.
        acts.push(Act::Pause(pause));
        acts.push(Act::Send(piece(Framing::Chunked, frame.as_bytes())));
    }
    acts.push(Act::Stall);
    let mut calls = 0;
    for polls in 0.. {
        let script = server.script(polls, acts.clone());
        // An error is given up where it stalls.
        let timeouts = Timeouts::off().idle(Duration::from_millis(200));
        let model = api.model(&client, &server, polls, limits(), timeouts);
        let polled = timeout(LIMIT, polled(model, polls)).await;
        let is_over = polled.expect("an end");
        script.closed().await;
        if is_over {
            assert!(polls > 2, "{api:?} after {polls} polls");
            calls = polls + 1;
            break;
        }
    }
    drop(client);
    server.closed().await;
    println!(
        "{calls} calls of {api:?} dropped, {} connections opened and closed",
        server.accepted()
    );
}

#[tokio::test]
async fn f012_an_answer_that_is_dropped_closes_the_connection() {
    let _shared = shared().await;
    for api in Api::ALL {
        drops(api, 200, &api.answer("a").frames).await;
    }
}

#[tokio::test]
async fn f012_an_error_that_is_dropped_closes_the_connection() {
    let _shared = shared().await;
    for api in Api::ALL {
        let body = ["{\"error\":", "{\"message\":"].map(str::to_owned);
        drops(api, 500, &body).await;
    }
}
