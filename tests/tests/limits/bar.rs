//! Four processes compete for one bucket: none of its periods may have more calls than the quota, almost all of it must
//! be used, and no tenant may have much less than an equal share.

use super::process::{Part, Quotas, Server, say, unix};
use concentric_core::{
    BoxModel, ChatRequest, ChatResponse, Error, Event, FinishReason, Usage,
    store::{Quota, Tenant},
};
use concentric_layers::{OnOutage, RateLimitLayer, Shared};
use futures_util::stream;
use serde::{Deserialize, Serialize};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};
use tower::{Service as _, ServiceBuilder, ServiceExt as _, service_fn};

/// A process with tenants, each with a number of calls that it makes at the same time, one after the other.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Competitor {
    tenants: Vec<(String, usize)>,
    rate: u64,
    begins_ms: u64,
    ends_ms: u64,
}

/// The calls of a process that began, by tenant and by milliseconds since the beginning.
type Begun = BTreeMap<String, Vec<u64>>;

fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |value| value.parse().unwrap())
}

impl Competitor {
    pub async fn run(self, quotas: Quotas) {
        let begun: Arc<Mutex<Begun>> = Arc::default();
        let begins = Duration::from_millis(self.begins_ms);
        let counter = Arc::clone(&begun);
        let model = service_fn(move |request: ChatRequest| {
            let at = unix().saturating_sub(begins).as_millis();
            let tenant = Tenant::of(&request.context).0.to_string();
            let at = u64::try_from(at).unwrap();
            counter.lock().unwrap().entry(tenant).or_default().push(at);
            async {
                let finish = Event::finish(FinishReason::Stop, Usage::new(10, 10));
                Ok::<_, Error>(ChatResponse::new(stream::iter([Ok(finish)])))
            }
        });
        let quota = Quota::per(Duration::from_secs(1)).requests(self.rate);
        let shared = Shared::new(quotas, "bar")
            .patience(Duration::from_secs(3))
            .on_outage(OnOutage::Refuse);
        let limit = RateLimitLayer::new(quota)
            .shared(shared.clone())
            .wait(Duration::from_secs(60))
            .queue(100_000);
        let model = BoxModel::new(ServiceBuilder::new().layer(limit).service(model));
        tokio::time::sleep(begins.saturating_sub(unix())).await;
        let ends = Duration::from_millis(self.ends_ms);
        let mut callers = Vec::new();
        for (tenant, calls) in self.tenants {
            for _ in 0..calls {
                let (mut model, tenant) = (model.clone(), tenant.clone());
                callers.push(tokio::spawn(async move {
                    while unix() < ends {
                        let mut request = ChatRequest::user("hi");
                        let extensions = request.context.extensions_mut();
                        extensions.insert(Tenant(tenant.clone().into()));
                        let answer = model.ready().await.unwrap().call(request).await;
                        drop(answer.unwrap().collect().await.unwrap());
                    }
                }));
            }
        }
        tokio::time::sleep(ends.saturating_sub(unix())).await;
        for caller in callers {
            caller.abort();
        }
        assert_eq!(shared.outages(), 0, "the store did not answer");
        say(serde_json::to_string(&*begun.lock().unwrap()).unwrap());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn four_processes_use_a_bucket_together() {
    let seconds = setting("CONCENTRIC_LIMITS_SECONDS", 10);
    let rate = setting("CONCENTRIC_LIMITS_RATE", 100);
    // One tenant in all processes with many calls, one in two, and one in one with few.
    let large = || ("large".to_owned(), 100);
    let middle = || ("middle".to_owned(), 30);
    let small = || ("small".to_owned(), 10);
    let parts = [
        vec![large(), small()],
        vec![large(), middle()],
        vec![large(), middle()],
        vec![large()],
    ];
    for server in Server::all("bar").await {
        compete(&server, &parts, seconds, rate).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_processes_of_one_tenant_use_a_bucket_together() {
    let seconds = setting("CONCENTRIC_LIMITS_SECONDS", 10);
    let part = vec![("acme".to_owned(), 20)];
    for server in Server::all("one").await {
        compete(&server, &[part.clone(), part.clone()], seconds, 20).await;
    }
}

/// The number of further measurements if less is used because the server stood still.
const REPEATS: usize = 2;

async fn compete(server: &Server, parts: &[Vec<(String, usize)>], seconds: u64, rate: u64) {
    for repeat in 0..=REPEATS {
        let (begun, still) = measure(server, parts, seconds, rate).await;
        if check(server, parts, seconds, rate, begun) >= 95.0 {
            return;
        }
        let stood_still = still > Duration::from_secs(seconds) / 50;
        assert!(stood_still && repeat < REPEATS, "less than 95 % used");
        let kind = server.kind();
        println!("{kind}: stood still for {still:?}, measured again");
    }
}

/// Returns when calls began, and for how long the server, or the machine, stood still.
async fn measure(
    server: &Server,
    parts: &[Vec<(String, usize)>],
    seconds: u64,
    rate: u64,
) -> (Begun, Duration) {
    let (quotas, _) = server.open().await;
    let begins = unix() + Duration::from_secs(2);
    let begins_ms = u64::try_from(begins.as_millis()).unwrap();
    let ends_ms = begins_ms + seconds * 1_000;
    let processes: Vec<_> = parts
        .iter()
        .map(|tenants| {
            let competitor = Competitor {
                tenants: tenants.clone(),
                rate,
                begins_ms,
                ends_ms,
            };
            server.start(&Part::Compete(competitor))
        })
        .collect();
    let begun = tokio::task::spawn_blocking(move || {
        let mut all = Begun::new();
        for mut process in processes {
            let begun: Begun = serde_json::from_str(&process.line()).unwrap();
            for (tenant, times) in begun {
                all.entry(tenant).or_default().extend(times);
            }
        }
        all
    });
    tokio::time::sleep(begins.saturating_sub(unix())).await;
    let mut still = Duration::ZERO;
    while !begun.is_finished() {
        let asked = Instant::now();
        // A bucket of its own: what the competitors make slow is not excused.
        let quota = Quota::per(Duration::from_secs(1));
        let recorded = quotas.record("still".into(), quota, Vec::new()).await;
        recorded.unwrap();
        tokio::time::sleep(Duration::from_millis(20)).await;
        still += asked.elapsed().saturating_sub(Duration::from_millis(100));
    }
    (begun.await.unwrap(), still)
}

/// Asserts what holds however slow the server is, and returns how much of the quota was used, in percent.
fn check(
    server: &Server,
    parts: &[Vec<(String, usize)>],
    seconds: u64,
    rate: u64,
    mut begun: Begun,
) -> f64 {
    for times in begun.values_mut() {
        times.retain(|at| *at < seconds * 1_000);
    }
    let mut times: Vec<u64> = begun.values().flatten().copied().collect();
    times.sort_unstable();
    // Clocks and transport add milliseconds to the time at which a call was granted.
    let period = |at: usize| {
        times[at..]
            .iter()
            .take_while(|it| **it < times[at] + 1_000)
            .count()
    };
    let fullest = (0..times.len()).map(period).max().unwrap_or_default();
    let (all, limit) = (times.len() as f64, (rate * seconds) as f64);
    let used = 100.0 * all / limit;
    let over = (used - 100.0).max(0.0);
    let fair = limit / begun.len() as f64;
    let shares = begun
        .iter()
        .map(|(tenant, times)| (tenant, 100.0 * times.len() as f64 / fair));
    let (least, share) = shares.min_by(|a, b| a.1.total_cmp(&b.1)).unwrap();
    let of: Vec<_> = begun
        .iter()
        .map(|(tenant, times)| format!("{tenant} {}", times.len()))
        .collect();
    println!(
        "{}: {} processes, {seconds} s at {rate}/s: {} calls ({}); {used:.2} % used, {over:.2} % over; the fullest \
         second has {fullest}; the smallest tenant ({least}) has {share:.1} % of its fair share",
        server.kind(),
        parts.len(),
        times.len(),
        of.join(", "),
    );
    let tenants: BTreeSet<_> = parts.iter().flatten().map(|(tenant, _)| tenant).collect();
    assert_eq!(begun.len(), tenants.len(), "each tenant was served");
    assert!(over <= 1.0, "more than 1 % over the limit");
    assert!(
        share >= 50.0,
        "a tenant has less than half of its fair share"
    );
    used
}
