//! Figures: run with `--ignored --nocapture figures`.

use super::process::{Quotas, Server};
use concentric_core::{
    BoxModel, ChatRequest,
    store::{Quota, QuotaWant},
};
use concentric_layers::{RateLimitLayer, Shared};
use concentric_test::ScriptedModel;
use std::time::{Duration, Instant};
use tower::{ServiceBuilder, ServiceExt as _};

fn quota() -> Quota {
    Quota::per(Duration::from_secs(60)).requests(1 << 40)
}

async fn take(quotas: &Quotas) {
    let wants = vec![QuotaWant::new("acme", vec![[1, 0, 0]])];
    let taken = quotas.take("figures".into(), quota(), "p".into(), wants, [0; 3]);
    assert_eq!(taken.await.unwrap().granted, [1]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "prints figures"]
async fn figures() {
    for server in Server::all("figures").await {
        let (quotas, _) = server.open().await;
        let calls = if server.kind() == "redis" {
            20_000
        } else {
            1_000
        };
        let mut times: Vec<Duration> = Vec::new();
        for _ in 0..calls / 4 {
            let began = Instant::now();
            take(&quotas).await;
            times.push(began.elapsed());
        }
        times.sort_unstable();
        let at = |share: usize| times[(times.len() - 1) * share / 100];
        let (p50, p99) = (at(50), at(99));
        let began = Instant::now();
        let mut callers = tokio::task::JoinSet::new();
        let at_once = if server.kind() == "redis" { 64 } else { 4 };
        for _ in 0..at_once {
            let quotas = quotas.clone();
            callers.spawn(async move {
                for _ in 0..calls / at_once {
                    take(&quotas).await;
                }
            });
        }
        while callers.join_next().await.is_some() {}
        let rate = calls as f64 / began.elapsed().as_secs_f64();
        println!(
            "{}: one take: {p50:?} (p50), {p99:?} (p99); {rate:.0} takes/s by {at_once} callers",
            server.kind()
        );

        let time = async |limit: Option<RateLimitLayer>| {
            let model = ScriptedModel::new().text("hi").repeat();
            let model = match limit {
                Some(limit) => BoxModel::new(ServiceBuilder::new().layer(limit).service(model)),
                None => BoxModel::new(model),
            };
            let began = Instant::now();
            for _ in 0..20_000 {
                let answer = model
                    .clone()
                    .oneshot(ChatRequest::user("hi"))
                    .await
                    .unwrap();
                drop(answer.collect().await.unwrap());
            }
            began.elapsed() / 20_000
        };
        let local = time(Some(RateLimitLayer::new(quota()))).await;
        let shared = Shared::new(quotas, "batched");
        let batched = time(Some(RateLimitLayer::new(quota()).shared(shared))).await;
        let none = time(None).await;
        println!(
            "{}: a call: {none:?} without a limit, {local:?} with one of the process, {batched:?} with a shared one",
            server.kind()
        );
    }
}
