//! A panic of the agent or of one of its layers ends only its own run.

use crate::support::{Item, agent, finish, input, post, real::serve, send, step, types};
use axum::Router;
use concentric_core::{ChatRequest, ChatResponse, Error, ErrorKind, Event};
use concentric_http::ag_ui::AgUiLayer;
use futures_util::{Stream, stream};
use serde_json::Value;
use std::{
    convert::Infallible,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll},
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tower::{Layer, Service, service_fn};

/// The panic message, which must not reach the client.
const SECRET: &str = "sk-secret";

/// The place where an agent panics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum At {
    Ready,
    Call,
    Future,
    FutureLater,
    Body,
    BodyLater,
    DropOfFuture,
    DropOfBody,
}

const ALL: [At; 8] = [
    At::Ready,
    At::Call,
    At::Future,
    At::FutureLater,
    At::Body,
    At::BodyLater,
    At::DropOfFuture,
    At::DropOfBody,
];

#[derive(Clone, Debug)]
struct Panics {
    at: At,
    /// The number of polls after the panic.
    polled_after: Arc<AtomicUsize>,
    dropped: Arc<AtomicUsize>,
}

impl Panics {
    fn new(at: At) -> Self {
        Self {
            at,
            polled_after: Arc::default(),
            dropped: Arc::default(),
        }
    }
}

impl Service<ChatRequest> for Panics {
    type Response = ChatResponse<Part>;
    type Error = Error;
    type Future = Part;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Error>> {
        assert_ne!(self.at, At::Ready, "{SECRET}");
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: ChatRequest) -> Part {
        assert_ne!(self.at, At::Call, "{SECRET}");
        Part {
            agent: self.clone(),
            is_body: false,
            polls: 0,
            panicked: false,
        }
    }
}

/// The future of the agent, or its body.
struct Part {
    agent: Panics,
    is_body: bool,
    polls: usize,
    panicked: bool,
}

impl Part {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if self.panicked {
            self.agent.polled_after.fetch_add(1, Ordering::Relaxed);
        }
        self.polls += 1;
        let first = self.polls == 1;
        let here = match self.agent.at {
            At::Future => !self.is_body && first,
            At::FutureLater => !self.is_body && !first,
            At::Body => self.is_body && first,
            At::BodyLater => self.is_body && !first,
            _ => false,
        };
        if here {
            self.panicked = true;
            panic!("{SECRET}");
        }
        if first {
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        Poll::Ready(())
    }
}

impl Future for Part {
    type Output = Result<ChatResponse<Self>, Error>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        std::task::ready!(Self::poll(&mut self, cx));
        if self.agent.at == At::DropOfFuture {
            return Poll::Ready(Err(Error::new(ErrorKind::Overloaded, "busy")));
        }
        Poll::Ready(Ok(ChatResponse::new(Self {
            agent: self.agent.clone(),
            is_body: true,
            polls: 0,
            panicked: false,
        })))
    }
}

impl Stream for Part {
    type Item = Item;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Item>> {
        std::task::ready!(Self::poll(&mut self, cx));
        Poll::Ready(match self.polls {
            2 => Some(Ok(step(0, "m"))),
            3 => Some(Ok(Event::text("x"))),
            _ => Some(Ok(finish())),
        })
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        self.agent.dropped.fetch_add(1, Ordering::Relaxed);
        let here = match self.agent.at {
            At::DropOfFuture => !self.is_body,
            At::DropOfBody => self.is_body,
            _ => false,
        };
        if here && !std::thread::panicking() {
            panic!("{SECRET}");
        }
    }
}

#[tokio::test]
async fn a_panic_ends_its_stream_with_one_error() {
    for at in ALL {
        let agent = Panics::new(at);
        let service = AgUiLayer::new().layer(agent.clone());
        let answer = send(service, post(input().to_string())).await;
        assert!(!answer.body.contains(SECRET), "{at:?}: {}", answer.body);
        // A legal stream with one terminal event.
        let events = answer.events();
        let end = events.last().unwrap();
        match at {
            // The run ended before the panic.
            At::DropOfBody => assert_eq!(end["type"], "RUN_FINISHED"),
            At::DropOfFuture => assert_eq!(end["code"], "overloaded"),
            _ => assert_eq!(
                (&end["type"], &end["code"], &end["message"]),
                (
                    &"RUN_ERROR".into(),
                    &"other".into(),
                    &"Something went wrong.".into()
                ),
                "{at:?}"
            ),
        }
        assert_eq!(agent.polled_after.load(Ordering::Relaxed), 0, "{at:?}");
    }
}

#[tokio::test]
async fn a_panic_while_a_stream_is_dropped_is_caught() {
    for at in [At::DropOfFuture, At::DropOfBody] {
        let agent = Panics::new(at);
        let mut service = AgUiLayer::new().layer(agent.clone());
        let response = service.call(post(input().to_string())).await.unwrap();
        let mut body = Box::pin(response.into_body());
        if at == At::DropOfBody {
            // Polls until the agent's future is dropped and its body is used.
            while agent.dropped.load(Ordering::Relaxed) == 0 {
                let frame = http_body_util::BodyExt::frame(&mut body).await;
                assert!(frame.is_some());
            }
        }
        drop(body);
        assert!(agent.dropped.load(Ordering::Relaxed) > 0);
    }
}

#[tokio::test]
async fn a_panicking_error_message_function_is_replaced() {
    let failing = service_fn(async |_: ChatRequest| {
        Err::<ChatResponse<crate::support::Script>, _>(Error::new(ErrorKind::Overloaded, "busy"))
    });
    let layer = AgUiLayer::new().error_message(|_| panic!("{SECRET}"));
    let answer = send(layer.layer(failing), post(input().to_string())).await;
    assert!(!answer.body.contains(SECRET));
    assert_eq!(answer.events().last().unwrap()["code"], "overloaded");
}

#[tokio::test]
async fn an_agent_that_cannot_be_cloned_is_a_server_error() {
    struct Unclonable;
    impl Clone for Unclonable {
        fn clone(&self) -> Self {
            panic!("{SECRET}")
        }
    }
    impl Service<ChatRequest> for Unclonable {
        type Response = ChatResponse<crate::support::Script>;
        type Error = Infallible;
        type Future = std::future::Pending<Result<Self::Response, Infallible>>;
        fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
            Poll::Ready(Ok(()))
        }
        fn call(&mut self, _: ChatRequest) -> Self::Future {
            std::future::pending()
        }
    }
    let service = AgUiLayer::new().layer(Unclonable);
    let answer = send(service, post(input().to_string())).await;
    assert_eq!(answer.status, 500);
    assert!(!answer.body.contains(SECRET));
    assert_eq!(answer.json()["error"]["code"], "internal");
}

#[tokio::test]
async fn a_connection_outlives_a_panic_of_its_run() {
    let app = Router::new()
        .route_service(
            "/panics",
            AgUiLayer::new().layer(Panics::new(At::BodyLater)),
        )
        .route_service("/works", AgUiLayer::new().layer(agent(vec![Ok(finish())])));
    let address = serve(app).await;
    let mut socket = tokio::net::TcpStream::connect(address).await.unwrap();
    let input = input().to_string();
    for (path, connection, last) in [
        ("/panics", "keep-alive", "RUN_ERROR"),
        ("/works", "close", "RUN_FINISHED"),
    ] {
        let request = format!(
            "POST {path} HTTP/1.1\r\nhost: x\r\nconnection: {connection}\r\n\
             content-type: application/json\r\ncontent-length: {}\r\n\r\n{input}",
            input.len()
        );
        socket.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        // The last chunk of a body is empty.
        while !answer.ends_with("\r\n0\r\n\r\n") {
            let mut piece = [0; 4096];
            let n = socket.read(&mut piece).await.unwrap();
            assert_ne!(n, 0, "reset: {answer}");
            answer.push_str(std::str::from_utf8(&piece[..n]).unwrap());
        }
        assert!(answer.contains(last), "{answer}");
    }
}

#[tokio::test]
async fn events_before_a_panic_are_sent() {
    let mut left: Vec<Item> = vec![Ok(Event::text("before")), Ok(step(0, "m"))];
    let body = stream::poll_fn(move |_| match left.pop() {
        Some(item) => Poll::Ready(Some(item)),
        None => panic!("{SECRET}"),
    });
    let body = Arc::new(std::sync::Mutex::new(Some(body)));
    let agent = service_fn(move |_: ChatRequest| {
        let body = body.lock().unwrap().take().unwrap();
        async move { Ok::<_, Error>(ChatResponse::new(body)) }
    });
    let service = AgUiLayer::new().layer(agent);
    let events: Vec<Value> = send(service, post(input().to_string())).await.events();
    assert_eq!(
        types(&events),
        [
            "RUN_STARTED",
            "STEP_STARTED",
            "TEXT_MESSAGE_START",
            "TEXT_MESSAGE_CONTENT",
            "TEXT_MESSAGE_END",
            "STEP_FINISHED",
            "RUN_ERROR",
        ]
    );
}
