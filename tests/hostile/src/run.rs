//! One request in a process of its own: what it takes of the worker thread and of the heap.

use crate::{
    shapes::Shape,
    stack::{self, Answered, Limits, Served},
};
use bytes::Bytes;
use cap::Cap;
use concentric_core::BoxError;
use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};
use std::{
    alloc::System,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

#[global_allocator]
static HEAP: Cap<System> = Cap::new(System, usize::MAX);

/// A process that takes more is ended by its allocator, before the machine suffers.
const MOST_HEAP: usize = 3 << 30;

/// What one request took.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Taken {
    /// The bytes of the request's body.
    pub(crate) body: usize,
    /// The status that it was answered with.
    pub(crate) status: u16,
    /// The bytes of the answer, and of what the provider was sent.
    pub(crate) answer: usize,
    pub(crate) sent: usize,
    /// The most heap at a time, with the body, beyond what the stack itself takes.
    pub(crate) heap: usize,
    /// The longest that the worker thread was not given back, in microseconds of its CPU time.
    pub(crate) poll: u64,
    /// The CPU time of the process, of all threads, in microseconds.
    pub(crate) cpu: u64,
}

/// Sends the shape of so many bytes through a stack.
pub(crate) fn one(
    shape: &Shape,
    stack: &str,
    limits: Limits,
    bytes: usize,
) -> Result<Taken, BoxError> {
    let _ = HEAP.set_limit(MOST_HEAP);
    let runtime = runtime()?;
    let (served, sent) = stack::build(stack, limits)?;
    runtime.block_on(warm_up(&served));
    let sent_before = sent.bytes();
    let kept = HEAP.allocated();
    let body = Bytes::from(shape.body(bytes));
    let length = body.len();
    let cpu = cpu(ClockId::ProcessCPUTime);
    let longest = Arc::new(AtomicU64::new(0));
    let Answered { status, bytes } = runtime.block_on(async {
        let watch = tokio::spawn(watch(
            self::cpu(ClockId::ThreadCPUTime),
            Arc::clone(&longest),
        ));
        let answered = stack::send(&served, body).await;
        // The request's end is a part of what it takes, whoever drops it.
        tokio::task::yield_now().await;
        watch.abort();
        answered
    });
    Ok(Taken {
        body: length,
        status,
        answer: bytes,
        sent: sent.bytes() - sent_before,
        heap: HEAP.max_allocated().saturating_sub(kept),
        poll: longest.load(Ordering::Relaxed),
        cpu: micros(self::cpu(ClockId::ProcessCPUTime).saturating_sub(cpu)),
    })
}

/// The most bytes of the shape, of up to `most`, that start a run under the default limits.
pub(crate) fn most_taken(shape: &Shape, most: usize) -> Result<usize, BoxError> {
    let runtime = runtime()?;
    let (served, _) = stack::build(stack::EDGE, Limits::Default)?;
    let is_taken = |bytes| {
        let body = Bytes::from(shape.body(bytes));
        runtime.block_on(stack::send(&served, body)).status == 200
    };
    if is_taken(most) {
        return Ok(most);
    }
    let (mut taken, mut refused) = (0, most);
    while refused - taken > 1 + taken / 64 {
        let middle = taken.midpoint(refused);
        match is_taken(middle) {
            true => taken = middle,
            false => refused = middle,
        }
    }
    Ok(taken)
}

/// Sends the shape through each stack, with as many bytes and with twice as many: what callgrind
/// counts.
pub(crate) fn count(shape: &Shape, stacks: &[&str], bytes: usize) -> Result<(), BoxError> {
    let runtime = runtime()?;
    for stack in stacks {
        let (served, _) = stack::build(stack, Limits::Raised)?;
        // The first run of a thread differs from those that follow: the store has none of it.
        println!("warm up");
        runtime.block_on(warm_up(&served));
        let body = Bytes::from(shape.body(bytes / 8));
        runtime.block_on(stack::send(&served, body));
        for bytes in [bytes, 2 * bytes] {
            let body = Bytes::from(shape.body(bytes));
            println!("stack {stack} {bytes}");
            runtime.block_on(stack::send(&served, body));
        }
    }
    Ok(())
}

/// What is made once is made before anything is measured.
async fn warm_up(served: &Served) {
    let body =
        r#"{"threadId":"w","runId":"w","messages":[{"id":"m","role":"user","content":"a"}]}"#;
    stack::send(served, Bytes::from_static(body.as_bytes())).await;
}

fn runtime() -> std::io::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()
}

/// Asks for its turn again and again, and notes the longest that it had to wait for it.
///
/// The thread's own CPU time is what counts: another process on the machine does not.
async fn watch(mut last: Duration, longest: Arc<AtomicU64>) {
    loop {
        let now = cpu(ClockId::ThreadCPUTime);
        longest.fetch_max(micros(now.saturating_sub(last)), Ordering::Relaxed);
        last = now;
        tokio::task::yield_now().await;
    }
}

fn cpu(clock: ClockId) -> Duration {
    Duration::try_from(clock_gettime(clock)).unwrap_or_default()
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}
