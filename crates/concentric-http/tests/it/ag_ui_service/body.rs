//! The event stream of a response, and its end.

use super::*;

#[tokio::test]
async fn response_headers_disable_buffering() {
    let service = AgUiLayer::new().layer(agent(vec![Ok(finish())]));
    let answer = send(service, post(input().to_string())).await;
    assert_eq!(answer.headers["content-type"], "text/event-stream");
    assert_eq!(answer.headers["cache-control"], "no-cache");
    assert_eq!(answer.headers["x-accel-buffering"], "no");
}

#[tokio::test]
async fn the_run_has_started_before_the_agent_is_ready() {
    // The mock panics if it is called before it is ready.
    let (agent, mut handle) = mock::pair::<ChatRequest, ChatResponse<crate::support::Script>>();
    handle.allow(0);
    let mut service = AgUiLayer::new().keep_alive(None).layer(agent);
    let ready = std::future::poll_fn(|cx| {
        Service::<http::Request<Full<Bytes>>>::poll_ready(&mut service, cx)
    });
    ready.await.unwrap();
    let response = service.call(post(input().to_string())).await.unwrap();
    let mut body = Box::pin(response.into_body());
    let mut task = tokio_test::task::spawn(());
    macro_rules! poll {
        () => {
            task.enter(|cx, _| http_body::Body::poll_frame(body.as_mut(), cx))
        };
    }
    let Poll::Ready(Some(Ok(frame))) = poll!() else {
        panic!("no RUN_STARTED")
    };
    let first = frame.into_data().unwrap();
    assert!(first.starts_with(b"data: {\"type\":\"RUN_STARTED\""));
    assert!(poll!().is_pending());

    handle.allow(1);
    assert!(task.is_woken());
    assert!(poll!().is_pending());
    let (_, answer) = handle.next_request().await.unwrap();
    answer.send_response(ChatResponse::new(stream::iter(vec![
        Ok(Event::text("x")),
        Ok(finish()),
    ])));
    assert!(task.is_woken());
    // All events that are ready together are one chunk.
    let Poll::Ready(Some(Ok(frame))) = poll!() else {
        panic!("no frame")
    };
    let rest = frame.into_data().unwrap();
    let text = String::from_utf8([first, rest].concat()).unwrap();
    assert_eq!(legal(&text).len(), 5);
    assert!(matches!(poll!(), Poll::Ready(None)));
}

#[tokio::test]
async fn an_agent_that_fails_to_get_ready_fails_the_run() {
    let (agent, mut handle) = mock::pair::<ChatRequest, ChatResponse<crate::support::Script>>();
    handle.send_error("down");
    let service = AgUiLayer::new().layer(agent);
    let events = send(service, post(input().to_string())).await.events();
    assert_eq!(types(&events), ["RUN_STARTED", "RUN_ERROR"]);
}

#[tokio::test]
async fn chunks_stay_near_their_target_size() {
    let mut script = vec![Ok(step(0, "m"))];
    script.extend((0..10_000).map(|_| Ok(Event::text("twenty bytes of text"))));
    script.push(Ok(finish()));
    let service = AgUiLayer::new().layer(agent(script));
    let response = service.oneshot(post(input().to_string())).await.unwrap();
    let mut body = Box::pin(response.into_body());
    let (mut pieces, mut text) = (0, Vec::new());
    while let Some(frame) = body.frame().await {
        let data = frame.unwrap().into_data().unwrap();
        assert!(data.len() < (16 << 10) + 200);
        pieces += 1;
        text.extend_from_slice(&data);
    }
    assert!((10..100).contains(&pieces), "{pieces}");
    legal(std::str::from_utf8(&text).unwrap());
}

/// An agent whose model has one event per wake-up, after a pause before each.
fn one_event_per_wake(
    pause: Duration,
) -> impl Service<ChatRequest, Response = ChatResponse<BoxStream>, Error = Error, Future: Send>
+ Clone
+ Send
+ Sync
+ 'static {
    service_fn(move |_: ChatRequest| async move {
        let events = (0..50).map(|_| Event::text("twenty bytes of text"));
        let events = stream::iter(events.chain([finish()]));
        let body = futures_util::StreamExt::then(events, move |event| async move {
            match pause.is_zero() {
                true => tokio::task::yield_now().await,
                false => tokio::time::sleep(pause).await,
            }
            Ok::<_, Error>(event)
        });
        Ok::<_, Error>(ChatResponse::new(Box::pin(body) as BoxStream))
    })
}

type BoxStream = std::pin::Pin<Box<dyn Stream<Item = crate::support::Item> + Send>>;

/// The number of text deltas in each chunk of a response.
async fn deltas(pause: Duration) -> Vec<usize> {
    let service = AgUiLayer::new().layer(one_event_per_wake(pause));
    let response = service.oneshot(post(input().to_string())).await.unwrap();
    let mut body = Box::pin(response.into_body());
    let (mut deltas, mut text) = (Vec::new(), String::new());
    while let Some(frame) = body.frame().await {
        let data = frame.unwrap().into_data().unwrap();
        let chunk = std::str::from_utf8(&data).unwrap();
        deltas.push(chunk.matches("TEXT_MESSAGE_CONTENT").count());
        text.push_str(chunk);
    }
    legal(&text);
    deltas
}

#[tokio::test(start_paused = true)]
async fn events_in_quick_succession_are_merged() {
    // The first text is not held back.
    assert_eq!(deltas(Duration::ZERO).await, [0, 1, 49]);
}

#[tokio::test(start_paused = true)]
async fn events_with_pauses_are_not_held_back() {
    let expected: Vec<usize> = [0].into_iter().chain([1; 50]).chain([0]).collect();
    assert_eq!(deltas(secs(1)).await, expected);
}

#[tokio::test]
async fn an_agent_without_output_yields_to_other_tasks() {
    let silent = service_fn(async |_: ChatRequest| {
        let body = stream::repeat_with(|| Ok(Event::Resumed));
        Ok::<_, Error>(ChatResponse::new(body))
    });
    let service = AgUiLayer::new().layer(silent);
    let response = service.oneshot(post(input().to_string())).await.unwrap();
    let mut body = Box::pin(response.into_body());
    body.frame().await.unwrap().unwrap();
    let mut task = tokio_test::task::spawn(body.frame());
    assert!(task.poll().is_pending());
    assert!(task.is_woken());
}

fn silent() -> impl Service<
    ChatRequest,
    Response = ChatResponse<impl Stream<Item = crate::support::Item> + Send + 'static>,
    Error = Error,
    Future: Send,
> + Clone
+ Send
+ Sync
+ 'static {
    service_fn(async |_: ChatRequest| {
        let body = stream::once(std::future::ready(Ok(Event::text("x"))));
        Ok::<_, Error>(ChatResponse::new(futures_util::StreamExt::chain(
            body,
            stream::pending(),
        )))
    })
}

#[tokio::test(start_paused = true)]
async fn a_silent_stream_is_kept_alive() {
    let service = AgUiLayer::new().keep_alive(secs(7)).layer(silent());
    let response = service.oneshot(post(input().to_string())).await.unwrap();
    let mut body = Box::pin(response.into_body());
    body.frame().await.unwrap().unwrap();
    let start = tokio::time::Instant::now();
    for n in 1..4 {
        let frame = body.frame().await.unwrap().unwrap();
        assert_eq!(frame.into_data().unwrap(), ": keep-alive\n\n");
        assert_eq!(start.elapsed().as_secs_f64().round() as u64, 7 * n);
    }

    let service = AgUiLayer::new().keep_alive(None).layer(silent());
    let response = service.oneshot(post(input().to_string())).await.unwrap();
    let mut body = Box::pin(response.into_body());
    body.frame().await.unwrap().unwrap();
    assert!(
        tokio::time::timeout(secs(1000), body.frame())
            .await
            .is_err()
    );
}

#[tokio::test]
async fn dropping_the_body_drops_the_run() {
    struct Guard(Arc<AtomicUsize>);
    impl Drop for Guard {
        fn drop(&mut self) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    let dropped = Arc::new(AtomicUsize::new(0));
    let counter = dropped.clone();
    let model = service_fn(move |_: ChatRequest| {
        let guard = Guard(counter.clone());
        let mut first = true;
        let body = stream::poll_fn(move |_| {
            let _ = &guard;
            if std::mem::take(&mut first) {
                return Poll::Ready(Some(Ok::<_, Error>(Event::text("x"))));
            }
            Poll::Pending
        });
        async move { Ok::<_, Error>(ChatResponse::new(body)) }
    });
    let agent = AgentLayer::new(NoTools).layer(model);
    let service = AgUiLayer::new().layer(agent);
    let response = service.oneshot(post(input().to_string())).await.unwrap();
    let mut body = Box::pin(response.into_body());
    body.frame().await.unwrap().unwrap();
    assert_eq!(dropped.load(Ordering::Relaxed), 0);
    drop(body);
    assert_eq!(dropped.load(Ordering::Relaxed), 1);
}

#[tokio::test]
async fn the_run_is_dropped_before_its_terminal_event() {
    let shutdown = Shutdown::new();
    let service = AgUiLayer::new()
        .shutdown(shutdown.clone())
        .layer(agent(vec![Ok(finish())]));
    let response = service.oneshot(post(input().to_string())).await.unwrap();
    assert_eq!(shutdown.streams(), 1);
    let mut body = Box::pin(response.into_body());
    body.frame().await.unwrap().unwrap();
    assert!(http_body::Body::is_end_stream(&body));
    drop(body);
    assert_eq!(shutdown.streams(), 0);
}

#[tokio::test]
async fn an_unwritable_state_is_reported_as_too_large() {
    let error = StoreError::unwritable("state of 9 bytes exceeds the limit of 8 bytes");
    let service = AgUiLayer::new().layer(agent(vec![Err(error.into())]));
    let events = send(service, post(input().to_string())).await.events();
    assert_eq!(events.last().unwrap()["code"], "too_large");
}

// ---- shutting down ----

#[tokio::test(start_paused = true)]
async fn a_shutdown_rejects_runs_and_ends_streams_after_the_grace() {
    let shutdown = Shutdown::new();
    let model = silent();
    let service = AgUiLayer::new()
        .keep_alive(None)
        .shutdown(shutdown.clone())
        .layer(AgentLayer::new(NoTools).layer(model));
    let response = service
        .clone()
        .oneshot(post(input().to_string()))
        .await
        .unwrap();
    let reader = tokio::spawn(response.into_body().collect());
    tokio::time::sleep(secs(1)).await;

    let start = tokio::time::Instant::now();
    shutdown.begin(secs(20));
    shutdown.begin(secs(2000));
    let answer = send(service.clone(), post(input().to_string())).await;
    assert_eq!(answer.status, 503);
    assert_eq!(answer.headers["retry-after"], "1");
    assert_eq!(answer.json()["error"]["code"], "shutting_down");

    shutdown.drained().await;
    assert_eq!(start.elapsed().as_secs_f64().round() as u64, 20);
    let body = reader.await.unwrap().unwrap().to_bytes();
    let events = legal(std::str::from_utf8(&body).unwrap());
    let last = events.last().unwrap();
    assert_eq!(last["outcome"], json!({"type": "cancelled"}));
    assert_eq!(last["metadata"], json!({"reason": "shutdown"}));
}

#[tokio::test(start_paused = true)]
async fn a_run_that_ignores_the_shutdown_is_dropped() {
    let shutdown = Shutdown::new();
    let service = AgUiLayer::new().shutdown(shutdown.clone()).layer(silent());
    let response = service.oneshot(post(input().to_string())).await.unwrap();
    let reader = tokio::spawn(response.into_body().collect());
    tokio::time::sleep(secs(1)).await;
    let start = tokio::time::Instant::now();
    shutdown.begin(secs(60));
    tokio::time::sleep(secs(1)).await;
    // A second call without grace.
    shutdown.begin(Duration::ZERO);
    shutdown.drained().await;
    assert_eq!(start.elapsed().as_secs_f64().round() as u64, 6);
    let body = reader.await.unwrap().unwrap().to_bytes();
    let events = legal(std::str::from_utf8(&body).unwrap());
    assert_eq!(events.last().unwrap()["outcome"]["type"], "cancelled");
}

#[tokio::test]
async fn drained_resolves_at_once_without_streams() {
    let shutdown = Shutdown::new();
    let mut drained = tokio_test::task::spawn(shutdown.drained());
    assert!(drained.poll().is_pending());
    shutdown.begin(secs(1));
    assert!(drained.is_woken());
    assert!(drained.poll().is_ready());
}

#[tokio::test]
async fn a_cancelled_run_ends_as_cancelled() {
    let cancelled = service_fn(async |request: ChatRequest| {
        request.context.cancel(CancelReason::Other("spent".into()));
        Err::<ChatResponse<crate::support::Script>, _>(Error::new(
            concentric_core::ErrorKind::Cancelled,
            "the run was cancelled",
        ))
    });
    let service = AgUiLayer::new().layer(cancelled);
    let events = send(service, post(input().to_string())).await.events();
    assert_eq!(events[1]["outcome"]["type"], "cancelled");
    assert_eq!(events[1]["metadata"]["reason"], "spent");
}
