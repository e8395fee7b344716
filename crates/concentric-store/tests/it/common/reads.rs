//! The time that reads of a long conversation take.

use super::tenant;
use concentric_core::{ThreadId, store::ThreadStore};
use std::{
    future::Future,
    time::{Duration, Instant},
};

/// Prints how long reads of a conversation take, which must have 10,000 turns.
pub(crate) async fn print_times(store: &impl ThreadStore, thread: &str) {
    let of = || (tenant("acme"), ThreadId::new(thread));
    let page = |start, limit| async move {
        let (tenant, thread) = of();
        let found = store.turns(tenant, thread, start, limit).await.unwrap();
        let (summary, turns) = found.unwrap();
        assert_eq!((summary.turns, turns.len()), (10_000, limit));
    };
    let whole = || async {
        let (tenant, thread) = of();
        let found = store.load(tenant, thread).await.unwrap().unwrap();
        assert_eq!(found.history.len(), 10_000);
    };
    let head = fastest(20, || page(None, 0)).await;
    let newest = fastest(20, || page(None, 50)).await;
    let middle = fastest(20, || page(Some(5_000), 50)).await;
    let whole = fastest(3, whole).await;
    println!(
        "of 10,000 turns: the summary takes {head:?}, the newest 50 {newest:?}, 50 in the middle {middle:?}, all \
         {whole:?}"
    );
}

/// The fastest time of some repetitions, so that it is not the load of the machine that is measured.
async fn fastest<F: Future<Output = ()>>(times: u32, work: impl Fn() -> F) -> Duration {
    let mut fastest = Duration::MAX;
    for _ in 0..times {
        let began = Instant::now();
        work().await;
        fastest = fastest.min(began.elapsed());
    }
    fastest
}
