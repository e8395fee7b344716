use super::*;
use concentric_core::{CancelReason, ErrorKind};
use concentric_http::Shutdown;
use futures_util::{Stream, StreamExt};
use std::{
    sync::Mutex,
    task::{Context, Poll, Waker},
    time::Duration,
};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

/// A model whose runs a test drives: one for each call.
#[derive(Clone, Default)]
pub(super) struct Driven {
    runs: Arc<Mutex<Vec<Handle>>>,
    pub(super) dropped: Arc<AtomicUsize>,
}

/// The events of a run, and its context.
type Handle = (UnboundedSender<Item>, concentric_core::Context);

struct Run {
    items: UnboundedReceiver<Item>,
    dropped: Arc<AtomicUsize>,
}

impl Stream for Run {
    type Item = Item;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Item>> {
        self.items.poll_recv(cx)
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        self.dropped.fetch_add(1, Ordering::SeqCst);
    }
}

impl Driven {
    pub(super) fn api(&self) -> OpenAi {
        let driven = self.clone();
        OpenAi::new().model(
            "m",
            service_fn(move |request: ChatRequest| {
                let (sender, items) = unbounded_channel();
                driven.runs.lock().unwrap().push((sender, request.context));
                let dropped = driven.dropped.clone();
                async { Ok::<_, Error>(ChatResponse::new(Run { items, dropped })) }
            }),
        )
    }

    pub(super) fn emit(&self, run: usize, event: Event) {
        self.send(run, Ok(event));
    }

    pub(super) fn send(&self, run: usize, item: Item) {
        self.runs.lock().unwrap()[run].0.send(item).unwrap();
    }

    /// The number of runs that were started.
    pub(super) fn runs(&self) -> usize {
        self.runs.lock().unwrap().len()
    }

    pub(super) fn context(&self, run: usize) -> concentric_core::Context {
        self.runs.lock().unwrap()[run].1.clone()
    }
}

pub(super) fn poll_once<F: Future>(future: &mut Pin<Box<F>>) -> Poll<F::Output> {
    future
        .as_mut()
        .poll(&mut Context::from_waker(Waker::noop()))
}

fn poll_body(body: &mut Open) -> Poll<Option<Result<String, Error>>> {
    let frame = body
        .as_mut()
        .poll_frame(&mut Context::from_waker(Waker::noop()));
    frame.map(|frame| {
        let frame = frame?;
        Some(frame.map(|frame| String::from_utf8(frame.into_data().unwrap().to_vec()).unwrap()))
    })
}

fn streamed() -> http::Request<Full<Bytes>> {
    chat(json!({"stream": true}))
}

#[tokio::test(start_paused = true)]
async fn the_head_waits_for_the_first_item_for_ten_seconds() {
    let driven = Driven::default();
    let mut answer = Box::pin(driven.api().oneshot(streamed()));
    assert!(poll_once(&mut answer).is_pending());
    driven.emit(0, Event::ReasoningDelta("hm".into()));
    tokio::time::advance(Duration::from_secs(9)).await;
    assert!(poll_once(&mut answer).is_pending());
    driven.emit(0, Event::text("a"));
    let Poll::Ready(Ok(response)) = poll_once(&mut answer) else {
        panic!("the head is not sent");
    };
    let mut body = Box::pin(response.into_body());
    assert!(next(&mut body).await.unwrap().unwrap().contains("\"a\""));

    let mut answer = Box::pin(driven.api().oneshot(streamed()));
    assert!(poll_once(&mut answer).is_pending());
    tokio::time::advance(Duration::from_secs(10)).await;
    let Poll::Ready(Ok(response)) = poll_once(&mut answer) else {
        panic!("the head is not sent");
    };
    let mut body = Box::pin(response.into_body());
    assert!(
        next(&mut body)
            .await
            .unwrap()
            .unwrap()
            .contains("assistant")
    );
}

#[tokio::test(start_paused = true)]
async fn a_silent_stream_has_comments() {
    for (silence, comments) in [(Some(Duration::from_secs(5)), true), (None, false)] {
        let driven = Driven::default();
        let api = driven.api().keep_alive(silence);
        let mut answer = Box::pin(api.oneshot(streamed()));
        assert!(poll_once(&mut answer).is_pending());
        driven.emit(0, Event::text("a"));
        let mut body = Box::pin(answer.await.unwrap().into_body());
        next(&mut body).await.unwrap().unwrap();
        let second = tokio::time::timeout(Duration::from_secs(6), next(&mut body)).await;
        match second {
            Ok(comment) => assert!(comments && comment.unwrap().unwrap().starts_with(':')),
            Err(_) => assert!(!comments),
        }
    }
}

#[tokio::test]
async fn a_client_that_disconnects_drops_the_run() {
    let driven = Driven::default();
    // Before the head, of a stream and of a whole answer.
    for request in [streamed(), chat(json!({}))] {
        let mut answer = Box::pin(driven.api().oneshot(request));
        assert!(poll_once(&mut answer).is_pending());
        drop(answer);
    }
    assert_eq!(driven.dropped.load(Ordering::SeqCst), 2);
    // After it.
    let mut answer = Box::pin(driven.api().oneshot(streamed()));
    assert!(poll_once(&mut answer).is_pending());
    driven.emit(2, Event::text("a"));
    let mut body = Box::pin(answer.await.unwrap().into_body());
    next(&mut body).await.unwrap().unwrap();
    assert_eq!(driven.dropped.load(Ordering::SeqCst), 2);
    drop(body);
    assert_eq!(driven.dropped.load(Ordering::SeqCst), 3);
}

#[tokio::test(start_paused = true)]
async fn the_run_of_a_client_that_does_not_read_is_dropped() {
    for (timeout, is_dropped) in [(Some(Duration::from_secs(5)), true), (None, false)] {
        let driven = Driven::default();
        let shutdown = Shutdown::new();
        let api = driven
            .api()
            .read_timeout(timeout)
            .shutdown(shutdown.clone());
        let mut answer = Box::pin(api.oneshot(streamed()));
        assert!(poll_once(&mut answer).is_pending());
        driven.emit(0, Event::text("a"));
        let mut body = Box::pin(answer.await.unwrap().into_body());
        next(&mut body).await.unwrap().unwrap();
        driven.emit(0, Event::text("b"));
        tokio::time::sleep(Duration::from_secs(4)).await;
        assert_eq!(driven.dropped.load(Ordering::SeqCst), 0);
        tokio::time::sleep(Duration::from_secs(2)).await;
        assert_eq!(driven.dropped.load(Ordering::SeqCst) == 1, is_dropped);
        assert_eq!(shutdown.streams() == 0, is_dropped);
        assert_eq!(next(&mut body).await.unwrap().is_err(), is_dropped);
    }
}

#[tokio::test(start_paused = true)]
async fn a_client_may_read_a_large_event_slowly() {
    let failed = Err(Error::new(ErrorKind::Server, "no"));
    for last in [Ok(finish()), failed] {
        let has_failed = last.is_err();
        let large = Ok(Event::text("#".repeat(200 << 10)));
        let api = slow_api(vec![large, last]).read_timeout(Duration::from_secs(5));
        let mut body = Box::pin(api.oneshot(streamed()).await.unwrap().into_body());
        let (mut text, mut pieces) = (String::new(), 0);
        let error = loop {
            tokio::time::sleep(Duration::from_secs(4)).await;
            match next(&mut body).await {
                Some(Ok(piece)) => text += &piece,
                Some(Err(error)) => break Some(error),
                None => break None,
            }
            pieces += 1;
        };
        assert!(pieces > 5, "{pieces}");
        assert_eq!(text.matches('#').count(), 200 << 10);
        assert_eq!(text.ends_with("data: [DONE]\n\n"), !has_failed);
        // A body that is cut has no other error.
        assert_eq!(
            error.map(|it| it.kind()),
            has_failed.then_some(ErrorKind::Truncated)
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_client_may_wait_for_a_slow_model() {
    let driven = Driven::default();
    let api = driven.api().read_timeout(Duration::from_secs(5));
    let mut answer = Box::pin(api.oneshot(streamed()));
    assert!(poll_once(&mut answer).is_pending());
    driven.emit(0, Event::text("a"));
    let mut body = Box::pin(answer.await.unwrap().into_body());
    next(&mut body).await.unwrap().unwrap();
    for text in ["b", "c"] {
        assert!(poll_body(&mut body).is_pending());
        tokio::time::sleep(Duration::from_secs(14)).await;
        driven.emit(0, Event::text(text));
        assert!(next(&mut body).await.unwrap().unwrap().contains(text));
    }
}

#[tokio::test]
async fn a_slow_client_slows_the_model_down() {
    let polls = Arc::new(AtomicUsize::new(0));
    let count = polls.clone();
    let model = service_fn(move |_: ChatRequest| {
        let count = count.clone();
        let body = stream::repeat_with(move || {
            count.fetch_add(1, Ordering::SeqCst);
            Ok(Event::text("x".repeat(1024)))
        });
        async { Ok::<_, Error>(ChatResponse::new(body)) }
    });
    let api = OpenAi::new().model("m", model);
    for request in [streamed(), response(json!({"stream": true}))] {
        polls.store(0, Ordering::SeqCst);
        let mut body = open(&api, request).await;
        for _ in 0..10 {
            tokio::task::yield_now().await;
        }
        assert!(polls.load(Ordering::SeqCst) <= 16);
        for chunk in 1..5 {
            let text = next(&mut body).await.unwrap().unwrap();
            assert!(text.len() < 20 << 10, "{}", text.len());
            assert!(polls.load(Ordering::SeqCst) <= 16 * (chunk + 1));
        }
    }
}

#[tokio::test]
async fn a_stream_continues_after_each_event() {
    let driven = Driven::default();
    let mut answer = Box::pin(driven.api().oneshot(streamed()));
    assert!(poll_once(&mut answer).is_pending());
    driven.emit(0, Event::text("first"));
    let mut body = Box::pin(answer.await.unwrap().into_body());
    assert!(next(&mut body).await.unwrap().unwrap().contains("first"));
    for text in ["second", "third", "fourth"] {
        assert!(poll_body(&mut body).is_pending());
        driven.emit(0, Event::text(text));
        assert!(next(&mut body).await.unwrap().unwrap().contains(text));
    }
    driven.emit(0, finish());
    let last = next(&mut body).await.unwrap().unwrap();
    assert!(last.ends_with("data: [DONE]\n\n"));
    assert!(body.is_end_stream());
    assert!(next(&mut body).await.is_none());
}

#[tokio::test]
async fn concurrent_requests_are_independent() {
    let driven = Driven::default();
    let api = driven.api();
    let mut one = Box::pin(api.clone().oneshot(streamed()));
    assert!(poll_once(&mut one).is_pending());
    let mut two = Box::pin(api.oneshot(response(json!({}))));
    assert!(poll_once(&mut two).is_pending());
    driven.emit(1, Event::text("two"));
    driven.emit(1, finish());
    let (text, _) = read(two.await.unwrap().into_body()).await;
    assert!(text.contains("\"two\""));
    assert!(poll_once(&mut one).is_pending());
    driven.emit(0, Event::text("one"));
    driven.emit(0, finish());
    let (text, cut) = read(one.await.unwrap().into_body()).await;
    assert!(text.contains("\"one\"") && cut.is_none());
}

#[tokio::test]
async fn a_panic_after_the_head_ends_the_stream_with_an_error() {
    let model = service_fn(|_: ChatRequest| {
        let body = stream::iter([Event::text("a")])
            .map(Ok)
            .chain(stream::once(async {
                tokio::task::yield_now().await;
                panic!("sk-secret")
            }));
        async { Ok::<_, Error>(ChatResponse::new(Box::pin(body))) }
    });
    let api = OpenAi::new().model("m", model);
    for request in [streamed(), response(json!({"stream": true}))] {
        let reply = send(&api, request).await;
        assert!(reply.cut.is_some());
        assert!(!reply.body.contains("sk-secret"));
        let last = reply.events().pop().unwrap();
        let code = match last.get("error") {
            Some(error) => &error["code"],
            None => &last["response"]["error"]["code"],
        };
        assert_eq!(code, "internal");
    }
}

#[tokio::test]
async fn a_shutdown_rejects_requests_and_ends_runs() {
    let (driven, shutdown) = (Driven::default(), Shutdown::new());
    let api = driven.api().shutdown(shutdown.clone());
    let mut whole = Box::pin(api.clone().oneshot(chat(json!({}))));
    assert!(poll_once(&mut whole).is_pending());
    let mut answer = Box::pin(api.clone().oneshot(streamed()));
    assert!(poll_once(&mut answer).is_pending());
    driven.emit(1, Event::text("a"));
    let mut body = Box::pin(answer.await.unwrap().into_body());
    next(&mut body).await.unwrap().unwrap();
    assert_eq!(shutdown.streams(), 2);

    shutdown.begin(Duration::ZERO);
    let reply = send(&api, chat(json!({}))).await;
    assert_eq!(
        (reply.status, &reply.error()["code"]),
        (503, &json!("shutting_down"))
    );
    assert_eq!(reply.headers["retry-after"], "1");

    assert!(poll_once(&mut whole).is_pending());
    assert_eq!(
        driven.context(0).cancel_reason(),
        Some(CancelReason::Shutdown)
    );
    // A run that ends as cancelled, and one that does not end by itself.
    let aborted = concentric_core::Outcome::Aborted {
        reason: CancelReason::Shutdown,
    };
    driven.emit(0, crate::support::finish_with(aborted));
    let Poll::Ready(Ok(response)) = poll_once(&mut whole) else {
        panic!("the run has not ended");
    };
    assert_eq!(response.status(), 503);
    drop(response);
    assert!(poll_body(&mut body).is_pending());
    tokio::time::pause();
    tokio::time::advance(Duration::from_secs(6)).await;
    let (mut text, mut cut) = (String::new(), false);
    while let Some(chunk) = next(&mut body).await {
        match chunk {
            Ok(chunk) => text.push_str(&chunk),
            Err(_) => cut = true,
        }
    }
    assert!(cut && text.contains("shutting_down"), "{text}");
    drop(body);
    drop(whole);
    shutdown.drained().await;
}
