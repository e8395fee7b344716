//! Processes that are killed, and many that start at once.

use super::process::{Budgets, Part, Quotas, Server, say, unix};
use concentric_core::{
    BoxModel, ChatRequest, ChatResponse, Error, Event,
    store::{Amounts, Limits, SharedBudget, Tenant},
};
use concentric_layers::{InFlightLimitLayer, Shared};
use futures_util::{StreamExt as _, stream};
use std::time::Duration;
use tower::{ServiceBuilder, ServiceExt as _, service_fn};

fn budget(name: &str, limit: u64) -> SharedBudget {
    SharedBudget::new(name.to_owned(), Limits::new().model_calls(limit))
}

/// Reserves calls of a budget, settles a single one, and says how many it got.
pub async fn reserve(
    budgets: Budgets,
    name: &str,
    id: &str,
    limit: u64,
    lease: Duration,
    calls: u64,
) {
    let call = Amounts::new().model_calls(1);
    let mut got = 0;
    for n in 0..calls {
        let id = format!("{id} {n}");
        let of = vec![budget(name, limit)];
        let reserved = budgets
            .reserve(Tenant::default(), id.clone().into(), of, call, lease)
            .await
            .unwrap();
        got += u64::from(reserved.is_ok());
        if calls == 1 && reserved.is_ok() {
            budgets
                .settle(Tenant::default(), id.into(), call)
                .await
                .unwrap();
        }
    }
    say(got);
    if calls > 1 {
        std::future::pending::<()>().await;
    }
}

fn open_model() -> BoxModel {
    BoxModel::new(service_fn(|_: ChatRequest| async {
        let first = stream::iter([Ok(Event::text("hi"))]);
        Ok::<_, Error>(ChatResponse::new(first.chain(stream::pending())))
    }))
}

fn limit(quotas: Quotas, lease: Duration, max: usize) -> BoxModel {
    let shared = Shared::new(quotas, "streams").lease(lease);
    let limit = InFlightLimitLayer::new(max).shared(shared);
    BoxModel::new(ServiceBuilder::new().layer(limit).service(open_model()))
}

/// Holds responses open, and says how many.
pub async fn hold(quotas: Quotas, lease: Duration, permits: usize, max: usize) {
    let model = limit(quotas, lease, max);
    let mut answers = Vec::new();
    for _ in 0..permits {
        answers.push(
            model
                .clone()
                .oneshot(ChatRequest::user("hi"))
                .await
                .unwrap(),
        );
    }
    say(answers.len());
    std::future::pending::<()>().await;
}

async fn line(mut process: super::process::Process) -> (super::process::Process, String) {
    let read = move || {
        let line = process.line();
        (process, line)
    };
    tokio::task::spawn_blocking(read).await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fifty_processes_that_start_at_once_spend_a_budget_exactly() {
    for server in Server::all("start").await {
        let processes: Vec<_> = (0..50)
            .map(|n| {
                let (name, id) = ("b".to_owned(), n.to_string());
                let part = Part::Reserve {
                    name,
                    id,
                    limit: 10,
                    lease_ms: 60_000,
                    calls: 1,
                };
                server.start(&part)
            })
            .collect();
        let mut got = 0;
        for process in processes {
            got += line(process).await.1.parse::<u64>().unwrap();
        }
        assert_eq!(got, 10, "{}", server.kind());
        let (_, budgets) = server.open().await;
        let spent = budgets
            .spent(Tenant::default(), budget("b", 10))
            .await
            .unwrap();
        assert_eq!(spent.map(|it| it.model_calls), [10, 0], "{}", server.kind());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reservations_of_a_killed_process_are_charged_in_full() {
    for server in Server::all("killed").await {
        let part = Part::Reserve {
            name: "b".to_owned(),
            id: "r".to_owned(),
            limit: 150,
            lease_ms: 3_000,
            calls: 100,
        };
        let began = unix();
        let (process, got) = line(server.start(&part)).await;
        assert_eq!(got, "100");
        process.kill();
        let (_, budgets) = server.open().await;
        let mut seen_reserved = false;
        let ended = loop {
            let spent = budgets
                .spent(Tenant::default(), budget("b", 150))
                .await
                .unwrap();
            let [spent, reserved] = spent.map(|it| it.model_calls);
            assert_eq!(spent + reserved, 100, "{}", server.kind());
            seen_reserved |= reserved > 0;
            if reserved == 0 {
                break unix();
            }
            assert!(unix() < began + Duration::from_secs(60));
            tokio::time::sleep(Duration::from_millis(50)).await;
        };
        assert!(
            seen_reserved && ended >= began + Duration::from_secs(3),
            "{}",
            server.kind()
        );
        // The rest can be spent, and no more.
        let call = |n| Amounts::new().model_calls(n);
        let of = || vec![budget("b", 150)];
        let lease = Duration::from_secs(60);
        let too_many = budgets.reserve(Tenant::default(), "x".into(), of(), call(51), lease);
        assert!(too_many.await.unwrap().is_err());
        let rest = budgets.reserve(Tenant::default(), "y".into(), of(), call(50), lease);
        assert!(rest.await.unwrap().is_ok());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn permits_of_a_killed_process_are_free_after_its_lease() {
    for server in Server::all("permits").await {
        let lease = Duration::from_secs(2);
        let lease_ms = 2_000;
        let (process, got) = line(server.start(&Part::Hold {
            lease_ms,
            permits: 6,
            max: 8,
        }))
        .await;
        assert_eq!(got, "6");
        let (quotas, _) = server.open().await;
        let model = limit(quotas, lease, 8);
        let mut answers = Vec::new();
        for _ in 0..2 {
            answers.push(
                model
                    .clone()
                    .oneshot(ChatRequest::user("hi"))
                    .await
                    .unwrap(),
            );
        }
        // The others are used, and renewed for longer than a lease.
        let mut third = Box::pin(model.clone().oneshot(ChatRequest::user("hi")));
        let waited = tokio::time::timeout(2 * lease, third.as_mut()).await;
        assert!(waited.is_err(), "{}", server.kind());
        process.kill();
        answers.push(third.await.unwrap());
        for _ in 0..5 {
            answers.push(
                model
                    .clone()
                    .oneshot(ChatRequest::user("hi"))
                    .await
                    .unwrap(),
            );
        }
        let more = model.clone().oneshot(ChatRequest::user("hi"));
        assert!(
            tokio::time::timeout(lease, more).await.is_err(),
            "{}",
            server.kind()
        );
        // Those of ended responses are used again.
        answers.truncate(4);
        for _ in 0..4 {
            answers.push(
                model
                    .clone()
                    .oneshot(ChatRequest::user("hi"))
                    .await
                    .unwrap(),
            );
        }
    }
}
