//! Limits at their edges and under load.

use super::*;

#[tokio::test(start_paused = true)]
async fn limits_of_zero_one_and_the_maximum_work() {
    let most = usize::MAX;
    let refused_with = async |layer: AdmissionLayer| {
        let service = layer.layer(Streams::default());
        let answer = service.oneshot(of("a")).await.unwrap();
        let after = answer.headers().get("retry-after").cloned();
        (
            answer.status().as_u16(),
            after.map(|after| after.to_str().unwrap().to_owned()),
        )
    };
    let five = || Some("5".to_owned());
    assert_eq!(refused_with(AdmissionLayer::new(0)).await, (503, five()));
    let none = AdmissionLayer::new(1).per_tenant(0);
    assert_eq!(refused_with(none).await, (429, five()));
    for (time, text) in [
        (Duration::ZERO, "1"),
        (Duration::from_nanos(1), "1"),
        (Duration::from_secs(1), "1"),
        (Duration::MAX, "18446744073709551615"),
    ] {
        let layer = AdmissionLayer::new(0).retry_after(time);
        assert_eq!(refused_with(layer).await.1.as_deref(), Some(text));
    }
    let open = AdmissionLayer::new(most)
        .per_tenant(most)
        .queue(most)
        .queue_per_tenant(most)
        .queue_timeout(Duration::MAX);
    assert_eq!(refused_with(open.clone()).await, (200, None));
    assert_eq!(
        refused_with(AdmissionLayer::new(1).per_tenant(1)).await,
        (200, None)
    );

    // With an empty queue or no timeout, requests do not wait.
    for layer in [
        AdmissionLayer::new(1).queue(0),
        AdmissionLayer::new(1).queue_per_tenant(0),
        AdmissionLayer::new(1).queue_timeout(Duration::ZERO),
    ] {
        let service = layer.layer(Streams::default());
        let _running = admitted(&mut ask(&service, "a"));
        refused(&mut ask(&service, "a"));
        assert_eq!(layer.waiting(), 0);
    }
    for layer in [
        AdmissionLayer::new(1).queue(1).queue_per_tenant(1),
        AdmissionLayer::new(1).queue_timeout(Duration::MAX),
    ] {
        let service = layer.layer(Streams::default());
        let running = admitted(&mut ask(&service, "a"));
        let mut waits = ask(&service, "a");
        assert_pending!(waits.poll());
        drop(running);
        drop(admitted(&mut waits));
    }
}

#[tokio::test]
async fn a_clone_with_other_limits_counts_separately() {
    let layer = AdmissionLayer::new(1).queue(0);
    let other = layer.clone().per_tenant(1);
    let service = layer.layer(Streams::default());
    let _running = admitted(&mut ask(&service, "a"));
    let _other = admitted(&mut ask(&other.layer(Streams::default()), "a"));
    assert_eq!((layer.running(), other.running()), (1, 1));
    refused(&mut ask(&layer.layer(Streams::default()), "a"));
}

/// With many threads, the limits hold, every request completes, and all counts return to zero.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn limits_hold_under_load() {
    #[derive(Default)]
    struct Seen {
        running: HashMap<String, usize>,
        most: usize,
        most_of_one: usize,
        served: usize,
    }
    struct Run(Arc<Mutex<Seen>>, String);
    impl Drop for Run {
        fn drop(&mut self) {
            *self.0.lock().unwrap().running.get_mut(&self.1).unwrap() -= 1;
        }
    }
    let seen = Arc::new(Mutex::new(Seen::default()));
    let layer = AdmissionLayer::new(8)
        .per_tenant(3)
        .queue(10_000)
        .queue_per_tenant(10_000)
        .queue_timeout(Duration::MAX);
    let inner = {
        let seen = seen.clone();
        service_fn(move |request: Request<()>| {
            let seen = seen.clone();
            async move {
                let tenant = request.extensions().get::<Tenant>().unwrap().0.to_string();
                {
                    let mut seen = seen.lock().unwrap();
                    *seen.running.entry(tenant.clone()).or_default() += 1;
                    let (all, own) = (seen.running.values().sum(), seen.running[&tenant]);
                    seen.most = seen.most.max(all);
                    seen.most_of_one = seen.most_of_one.max(own);
                }
                let run = Run(seen, tenant);
                let frames = stream::unfold((run, 0), async |(run, at)| {
                    tokio::task::yield_now().await;
                    if at == 3 {
                        run.0.lock().unwrap().served += 1;
                        return None;
                    }
                    let frame = http_body::Frame::data(Bytes::from_static(b"x"));
                    Some((Ok::<_, Infallible>(frame), (run, at + 1)))
                });
                Ok::<_, Infallible>(Response::new(StreamBody::new(frames).boxed_unsync()))
            }
        })
    };
    let service = layer.layer(inner);
    let mut tasks = JoinSet::new();
    for at in 0..1000 {
        let service = service.clone();
        tasks.spawn(async move {
            let asked = service.oneshot(of(&format!("t{}", at % 7)));
            if at % 5 == 0 {
                // Drops the request at some point.
                let _ = tokio::time::timeout(Duration::from_micros(at), asked).await;
                return;
            }
            let answer = asked.await.unwrap();
            assert_eq!(answer.status(), StatusCode::OK);
            answer.into_body().collect().await.unwrap();
        });
    }
    tokio::time::timeout(Duration::from_secs(60), async {
        while let Some(done) = tasks.join_next().await {
            done.unwrap();
        }
    })
    .await
    .expect("a request waits forever");
    let seen = seen.lock().unwrap();
    assert!(seen.served >= 800);
    assert!(seen.most <= 8 && seen.most_of_one <= 3);
    assert_eq!(
        (layer.running(), layer.waiting(), layer.tenants()),
        (0, 0, 0)
    );
    drop(seen);
}

#[tokio::test]
async fn ag_ui_runs_count_until_their_stream_ends() {
    let gate = Arc::new(tokio::sync::Notify::new());
    let wait = gate.clone();
    let agent = service_fn(move |_: ChatRequest| {
        let wait = wait.clone();
        let body = stream::once(async move {
            wait.notified().await;
            Ok::<_, Error>(Event::text("x"))
        });
        let body = futures_util::StreamExt::chain(body, stream::iter([Ok(finish())]));
        async move { Ok::<_, Error>(ChatResponse::new(Box::pin(body))) }
    });
    let layer = AdmissionLayer::new(1).queue(0);
    let service = layer.layer(AgUiLayer::new().layer(agent));
    let request = || post(input().to_string());
    // The head arrives at once, before the stream ends.
    let first = service.clone().oneshot(request()).await.unwrap();
    assert_eq!(first.status(), 200);
    assert_eq!(send(service.clone(), request()).await.status, 503);
    gate.notify_one();
    first.into_body().collect().await.unwrap();
    gate.notify_one();
    send(service, request()).await.events();
}

// The paused clock advances when all tasks are idle.
#[tokio::test(start_paused = true)]
async fn an_unfinished_upload_releases_its_place() {
    let agent = crate::support::agent(vec![Ok(finish())]);
    let layer = AdmissionLayer::new(2).queue_timeout(Duration::from_secs(60));
    let service = layer.layer(AgUiLayer::new().layer(agent));
    let unfinished = || {
        let begins = stream::iter([Ok::<_, Infallible>(http_body::Frame::data(
            Bytes::from_static(b"{"),
        ))]);
        let body = StreamBody::new(futures_util::StreamExt::chain(begins, stream::pending()));
        Request::post("/agent")
            .header("content-type", "application/json")
            .body(body.boxed())
            .unwrap()
    };
    let mut uploads = [(); 2].map(|()| task::spawn(service.clone().oneshot(unfinished())));
    for upload in &mut uploads {
        assert_pending!(upload.poll());
    }
    assert_eq!(layer.running(), 2);
    let whole = post(input().to_string()).map(BodyExt::boxed);
    let mut whole = task::spawn(service.clone().oneshot(whole));
    assert_pending!(whole.poll());
    for upload in uploads {
        let answer = tokio::time::timeout(Duration::from_secs(3600), upload).await;
        let answer = answer.unwrap().unwrap();
        assert_eq!(answer.status(), StatusCode::REQUEST_TIMEOUT);
        let error = answer.into_body().collect().await.unwrap().to_bytes();
        let error: Value = serde_json::from_slice(&error).unwrap();
        assert_eq!(error["error"]["code"], "upload_timeout");
    }
    assert_eq!(whole.await.unwrap().status(), StatusCode::OK);
    assert_eq!(layer.running(), 0);
}
