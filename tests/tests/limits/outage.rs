//! A server that cannot be reached for a while.

use super::process::Server;
use concentric_core::{
    BoxModel, ChatRequest, Context, Error, ErrorKind,
    store::{Limits, Quota, SharedBudget},
};
use concentric_layers::{BudgetPlugin, OnOutage, RateLimitLayer, Shared, rate_limit::RATE_LIMITED};
use concentric_test::ScriptedModel;
use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, SystemTime},
};
use tokio::{
    io::copy_bidirectional,
    net::{TcpListener, TcpStream},
};
use tower::{ServiceBuilder, ServiceExt as _};

/// Forwards connections to a server while it is up; a connection that is silent in between is not closed.
async fn proxy(server: &Server) -> (Server, Arc<AtomicBool>) {
    let host = server
        .url
        .rsplit('@')
        .next()
        .unwrap()
        .rsplit("//")
        .next()
        .unwrap();
    let host = host.split('/').next().unwrap().to_owned();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let url = server.url.replacen(&host, &format!("127.0.0.1:{port}"), 1);
    let up = Arc::new(AtomicBool::new(true));
    let is_up = Arc::clone(&up);
    tokio::spawn(async move {
        while let Ok((mut client, _)) = listener.accept().await {
            let (host, is_up) = (host.clone(), Arc::clone(&is_up));
            tokio::spawn(async move {
                if !is_up.load(Ordering::SeqCst) {
                    return;
                }
                let Ok(mut server) = TcpStream::connect(&host).await else {
                    return;
                };
                let down = async {
                    while is_up.load(Ordering::SeqCst) {
                        tokio::time::sleep(Duration::from_millis(10)).await;
                    }
                };
                tokio::select! {
                    _ = copy_bidirectional(&mut client, &mut server) => {}
                    () = down => {}
                }
            });
        }
    });
    let schema = server.schema.clone();
    (Server { url, schema }, up)
}

/// Calls until the time is over; returns the number of calls that succeeded, and the codes of the others.
async fn call_for(model: &BoxModel, time: Duration, at_once: usize) -> (usize, Vec<Error>) {
    let ends = tokio::time::Instant::now() + time;
    let mut callers = tokio::task::JoinSet::new();
    for _ in 0..at_once {
        let model = model.clone();
        callers.spawn(async move {
            let (mut done, mut failed) = (0, Vec::new());
            while tokio::time::Instant::now() < ends {
                let deadline = SystemTime::now() + Duration::from_millis(1_500);
                let mut request = ChatRequest::user("hi");
                request.context = Context::builder().deadline(deadline).build();
                let began = tokio::time::Instant::now();
                match model.clone().oneshot(request).await {
                    Ok(answer) => {
                        done += usize::from(answer.collect().await.is_ok());
                    }
                    Err(error) => {
                        failed.push(error);
                        tokio::time::sleep(Duration::from_millis(50)).await;
                    }
                }
                // No call waits for longer than its deadline, but for the load of the machine.
                assert!(began.elapsed() < Duration::from_secs(10));
            }
            (done, failed)
        });
    }
    let mut all = (0, Vec::new());
    while let Some(called) = callers.join_next().await {
        let (done, failed) = called.unwrap();
        all.0 += done;
        all.1.extend(failed);
    }
    all
}

fn limited(shared: &Shared) -> BoxModel {
    let second = Quota::per(Duration::from_secs(1)).requests(40);
    let limit = RateLimitLayer::new(second).shared(shared.clone());
    let model = ScriptedModel::new().text("hi").repeat();
    BoxModel::new(ServiceBuilder::new().layer(limit).service(model))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_policy_applies_while_the_store_is_out() {
    for server in Server::all("outage").await {
        let policies = [
            OnOutage::LocalShare(0.25),
            OnOutage::Refuse,
            OnOutage::Allow,
        ];
        let each = policies.map(|policy| tokio::spawn(applies(server.clone(), policy)));
        for applied in each {
            applied.await.unwrap();
        }
    }
}

async fn applies(server: Server, policy: OnOutage) {
    let what = format!("{}, {policy:?}", server.kind());
    let (through, up) = proxy(&server).await;
    let (quotas, _) = through.open().await;
    let name = format!("{policy:?}");
    // The proxy closes connections at once, whereas a shared machine may stand still for a second.
    let patience = Duration::from_secs(3);
    let shared = Shared::new(quotas, name).patience(patience);
    let shared = shared.on_outage(policy);
    let model = limited(&shared);
    let (done, failed) = call_for(&model, Duration::from_secs(2), 10).await;
    assert!(
        (40..=120).contains(&done) && failed.is_empty(),
        "{what}: {done} {failed:?}"
    );
    assert_eq!(shared.outages(), 0, "{what}");
    up.store(false, Ordering::SeqCst);
    // The first calls find the outage.
    drop(call_for(&model, Duration::from_secs(1), 1).await);
    let (done, failed) = call_for(&model, Duration::from_secs(4), 10).await;
    assert!(shared.outages() > 0, "{what}");
    match policy {
        OnOutage::LocalShare(_) => {
            assert!((10..=60).contains(&done), "{what}: {done}");
        }
        OnOutage::Refuse => {
            assert_eq!(done, 0, "{what}");
            let is_limited =
                |it: &Error| it.code() == Some(RATE_LIMITED) && it.retry_after().is_some();
            assert!(
                !failed.is_empty() && failed.iter().all(is_limited),
                "{what}: {failed:?}"
            );
        }
        OnOutage::Allow => assert!(done > 200 && failed.is_empty(), "{what}: {done} {failed:?}"),
    }
    up.store(true, Ordering::SeqCst);
    // The store is found again, within the time of a probe.
    tokio::time::sleep(Duration::from_secs(3)).await;
    let before = shared.outages();
    let (done, failed) = call_for(&model, Duration::from_secs(2), 10).await;
    assert!(
        (40..=120).contains(&done) && failed.is_empty(),
        "{what}: {done} {failed:?}"
    );
    assert_eq!(shared.outages(), before, "{what}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn money_is_refused_while_the_store_is_out_unless_it_is_allowed() {
    for server in Server::all("money").await {
        let (through, up) = proxy(&server).await;
        let (_, budgets) = through.open().await;
        let plugin = |allowed| {
            let shared = SharedBudget::new("b", Limits::new().model_calls(1_000));
            let plugin = BudgetPlugin::new(Limits::new())
                .shared(Arc::clone(&budgets), move |_| vec![shared.clone()]);
            match allowed {
                0 => plugin,
                calls => plugin.allow_in_outage(Limits::new().model_calls(calls)),
            }
        };
        let model = |plugin: &BudgetPlugin| {
            let model = ScriptedModel::new().text("hi").repeat();
            let agent = ServiceBuilder::new()
                .layer(plugin.run())
                .layer(concentric_core::AgentLayer::new(concentric_core::NoTools))
                .layer(plugin.model())
                .service(model);
            BoxModel::new(agent)
        };
        let call = async |model: &BoxModel| {
            let answer = model.clone().oneshot(ChatRequest::user("hi")).await?;
            let answer = answer.collect().await?;
            Ok::<_, Error>(answer.finish.outcome)
        };
        let (refuses, allows) = (model(&plugin(0)), model(&plugin(2)));
        assert!(call(&refuses).await.is_ok() && call(&allows).await.is_ok());
        up.store(false, Ordering::SeqCst);
        tokio::time::sleep(Duration::from_millis(100)).await;
        let refused = call(&refuses).await.unwrap_err();
        assert_eq!(
            refused.kind(),
            ErrorKind::Server,
            "{}: {refused:?}",
            server.kind()
        );
        for _ in 0..2 {
            assert!(matches!(
                call(&allows).await,
                Ok(concentric_core::Outcome::Completed)
            ));
        }
        let over = call(&allows).await;
        assert!(
            matches!(over, Ok(concentric_core::Outcome::Halted { .. })),
            "{}: {over:?}",
            server.kind()
        );
        up.store(true, Ordering::SeqCst);
        // Those whose reservations were lost are charged in full, or settled; the others once.
        let ends = tokio::time::Instant::now() + Duration::from_secs(20);
        while call(&refuses).await.is_err() {
            assert!(tokio::time::Instant::now() < ends, "{}", server.kind());
        }
    }
}
