//! How long a request of one tenant delays the renewal of another tenant's lease.
//!
//! The times are printed, since they depend on the machine. `CONCENTRIC_HOLDS=full` has the sizes that a
//! bound is stated for; without it, the requests are small, and only their results matter.

use crate::{
    common::{at, client, clock, key, key_of, running, running_after, secs, set, tenant, thread},
    kinds::{Kind, Store},
};
use concentric_core::{
    Outcome, ThreadId, Transcript,
    store::{
        CacheKey, CacheStore, Renewed, RunChange, RunStore, StoreFuture, ThreadChange, ThreadStore,
    },
};
use concentric_store::Options;
use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

macro_rules! holds {
    ($kind:ty) => {
        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn requests_of_a_tenant_let_the_leases_of_others_be_renewed() {
            if <$kind as concentric_test::StoreHarness>::is_available() {
                super::requests::<$kind>(module_path!()).await;
            }
        }
    };
}

for_each_kind!(holds);

/// How long the lease of the other tenant is; the clock of the store does not reach its end.
const LONG: Duration = secs(86_400);

/// The other tenant, whose lease is renewed by two handles, the first of which also sends the requests.
struct Other<S> {
    handles: [S; 2],
    fence: u64,
    name: &'static str,
}

impl<S: Store> Other<S> {
    /// Renews the lease until `request` has ended, and prints the longest time that a renewal took.
    async fn during<T>(&self, what: &str, request: impl Future<Output = T>) -> T {
        let ended = Arc::new(AtomicBool::new(false));
        let renewals = self.handles.each_ref().map(|handle| {
            let (store, fence, ended) = (handle.clone(), self.fence, Arc::clone(&ended));
            tokio::spawn(async move {
                let (mut longest, mut count) = (Duration::ZERO, 0);
                while !ended.load(Ordering::Relaxed) {
                    let began = Instant::now();
                    let renewed = store.renew(key_of("other", "run"), fence, LONG).await;
                    assert_eq!(renewed.unwrap(), Renewed::Held);
                    longest = longest.max(began.elapsed());
                    count += 1;
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
                (longest, count)
            })
        });
        let began = Instant::now();
        let done = request.await;
        let took = began.elapsed();
        ended.store(true, Ordering::Relaxed);
        let mut row = format!("{} | {what} | {}", self.name, milliseconds(took));
        for renewals in renewals {
            let (longest, count) = renewals.await.unwrap();
            row += &format!(" | {} of {count}", milliseconds(longest));
        }
        println!("{row}");
        done
    }
}

fn milliseconds(time: Duration) -> String {
    format!("{:.1} ms", time.as_secs_f64() * 1000.0)
}

fn said(turns: usize) -> Transcript {
    let mut transcript = Transcript::new();
    for n in 0..turns {
        transcript.push_user(format!("The message with the number {n}."));
    }
    transcript
}

/// Sends each kind of request.
async fn requests<K: Kind>(module: &'static str) {
    let full = std::env::var("CONCENTRIC_HOLDS").is_ok_and(|sizes| sizes == "full");
    let (turns, bytes, runs) = match full {
        true => (10_000, 4 << 20, 1_000),
        false => (200, 64 << 10, 20),
    };
    let clock = clock();
    let options = Options::new().clock(clock.clone()).keep_ended(secs(3_600));
    let kind = K::with(options).await;
    let store = kind.open().await;
    let begun = store.begin_run("other", "run", running("hi").into(), LONG);
    let fence = begun.await;
    let other = Other {
        handles: [store.clone(), kind.open().await],
        fence,
        name: module.rsplit("::").next().unwrap(),
    };
    println!("store | request | it took | longest renewal by its process | by another process");

    let large = || RunChange::from(running(&"x".repeat(bytes)));
    let begin = store.begin_run("acme", "large", large(), LONG);
    let fence = other.during("begin a run of 4 MiB", begin).await;
    let save = store.save(key("large"), fence, large(), LONG);
    other.during("save 4 MiB", save).await.unwrap();
    let get = store.get(key("large"));
    other.during("get a run of 4 MiB", get).await.unwrap();

    let change = running_after(said(turns)).into();
    let begin = store.begin_run("acme", "long", change, Duration::ZERO);
    other.during("begin a run of 10,000 turns", begin).await;
    let get = store.get(key("long"));
    let record = other.during("get a run of 10,000 turns", get).await;
    let claim = store.claim(record.unwrap(), Vec::new(), LONG);
    other
        .during("claim a run of 10,000 turns", claim)
        .await
        .unwrap();

    let id = ThreadId::new("long");
    let mut change = ThreadChange::default();
    change.turns = said(turns).iter().cloned().collect();
    let append = store.append(tenant("acme"), id.clone(), 0, change);
    let version = other.during("append 10,000 turns", append).await.unwrap();
    let load = store.load(tenant("acme"), id.clone());
    other.during("load 10,000 turns", load).await.unwrap();
    let page = store.turns(tenant("acme"), id.clone(), None, 500);
    other.during("a page of 500 turns", page).await.unwrap();
    let mut change = ThreadChange::default();
    change.keep = turns;
    let to = ThreadId::new("fork");
    let fork = store.fork(tenant("acme"), id.clone(), version, to.clone(), change);
    other.during("fork 10,000 turns", fork).await.unwrap();
    for thread in [to, id] {
        let delete = store.delete(tenant("acme"), thread);
        let what = "delete a conversation of 10,000 turns, then its fork";
        assert!(other.during(what, delete).await.unwrap());
    }

    // Ended runs of one conversation.
    let ended = async || {
        for n in 0..runs {
            let name = format!("ended{n}");
            let fence = store.begin_run("acme", &name, running("hi").into(), LONG);
            let fence = fence.await;
            store
                .end(key(&name), fence, Ok(Outcome::Completed))
                .await
                .unwrap();
        }
    };
    ended().await;
    let delete = store.delete(tenant("acme"), thread());
    other
        .during("delete a conversation of 1,000 runs", delete)
        .await
        .unwrap();
    ended().await;
    let delete = store.delete_tenant(tenant("acme"));
    other
        .during("delete a tenant of 1,000 runs", delete)
        .await
        .unwrap();

    let entry = |n: usize| {
        let mut digest = [0; 32];
        digest[..8].copy_from_slice(&n.to_le_bytes());
        CacheKey::new(tenant("acme"), None, "model", digest)
    };
    for n in 0..runs {
        let put = store.put_entry(entry(n), vec![0; 1000], LONG);
        put.await.unwrap();
    }
    let remove = store.remove_entries(tenant("acme"), None, None);
    other
        .during("remove 1,000 cached values", remove)
        .await
        .unwrap();

    for n in 0..16 {
        let change = running(&"x".repeat(bytes / 4)).into();
        store
            .begin_run("acme", &format!("abandoned{n}"), change, secs(1))
            .await;
    }
    ended().await;
    set(&clock, 10);
    let claim = store.claim_abandoned(16, LONG);
    let claimed = other.during("claim 16 runs of 1 MiB", claim).await;
    assert_eq!(claimed.unwrap().len(), 16);
    // Ended runs are kept for an hour, and the lease of the other tenant is not over.
    set(&clock, 80_000);
    other.during("purge 1,000 ended runs", store.expire()).await;
    let renewed = store.renew(key_of("other", "run"), other.fence, LONG);
    assert_eq!(renewed.await.unwrap(), Renewed::Held);
    assert!(store.get(key_of("other", "run")).await.unwrap().lease_until > at(80_000));
}

/// What a test needs of a run's begin.
trait Begin: Store {
    /// Begins a run of the conversation that all runs of a tenant have here.
    async fn begin_run(
        &self,
        of: &'static str,
        run: &str,
        change: RunChange,
        lease: Duration,
    ) -> u64 {
        let begun: StoreFuture<u64> =
            RunStore::begin(self, key_of(of, run), client(run), change, lease);
        begun.await.unwrap()
    }
}

impl<S: Store> Begin for S {}
