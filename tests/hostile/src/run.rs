//! The cost of one request, measured in a process of its own.

use crate::{
    endpoint::Endpoint,
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
pub(crate) static HEAP: Cap<System> = Cap::new(System, usize::MAX);

/// The allocator ends the process above this limit, to protect the machine.
const MOST_HEAP: usize = 3 << 30;

/// The cost of one request.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Taken {
    /// The size of the request body in bytes.
    pub(crate) body: usize,
    /// The status of the response.
    pub(crate) status: u16,
    /// The size of the response and of the requests to the provider, in bytes.
    pub(crate) answer: usize,
    pub(crate) sent: usize,
    /// The peak heap, including the body, excluding the stack itself.
    pub(crate) heap: usize,
    /// The longest time that the worker thread was blocked, in microseconds of its CPU time.
    pub(crate) poll: u64,
    /// The CPU time of all threads of the process, in microseconds.
    pub(crate) cpu: u64,
}

/// Sends a shape with the given number of bytes through a stack.
pub(crate) fn one(
    shape: &Shape,
    stack: &str,
    limits: Limits,
    bytes: usize,
) -> Result<Taken, BoxError> {
    let _ = HEAP.set_limit(MOST_HEAP);
    let runtime = runtime()?;
    let (served, sent) = stack::build(shape.endpoint, stack, limits)?;
    runtime.block_on(warm_up(shape.endpoint, &served));
    let sent_before = sent.bytes();
    let kept = HEAP.allocated();
    let body = body(shape, stack, bytes);
    let length = body.len();
    let cpu = cpu(ClockId::ProcessCPUTime);
    let longest = Arc::new(AtomicU64::new(0));
    let Answered { status, bytes } = runtime.block_on(async {
        let watch = tokio::spawn(watch(
            self::cpu(ClockId::ThreadCPUTime),
            Arc::clone(&longest),
        ));
        let answered = stack::send(shape.endpoint, &served, body).await;
        // The cost includes dropping the request, in whichever task that happens.
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

/// Returns the largest size of the shape, up to the limit on bodies, that is accepted under the default
/// limits.
pub(crate) fn most_taken(shape: &Shape) -> Result<usize, BoxError> {
    let runtime = runtime()?;
    let (endpoint, most) = (shape.endpoint, shape.endpoint.limit());
    let (served, _) = stack::build(endpoint, stack::EDGE, Limits::Default)?;
    let is_taken = |bytes| {
        let body = body(shape, stack::EDGE, bytes);
        let answered = runtime.block_on(stack::send(endpoint, &served, body));
        endpoint.is_taken(answered.status)
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

/// Sends the shape through each stack, with the given number of bytes and with twice as many, for
/// callgrind.
pub(crate) fn count(shape: &Shape, stacks: &[&str], bytes: usize) -> Result<(), BoxError> {
    let runtime = runtime()?;
    let endpoint = shape.endpoint;
    for stack in stacks {
        let (served, _) = stack::build(endpoint, stack, Limits::Raised)?;
        // The first run of a thread differs from later ones, because the store does not know it.
        println!("warm up");
        runtime.block_on(warm_up(endpoint, &served));
        for size in [bytes, 2 * bytes] {
            // What a stack keeps of the request before, such as the tools whose tokens it has counted, is dropped by
            // the measured one: it has the same size for both.
            println!("warm up");
            let small = body(shape, stack, bytes / 8);
            runtime.block_on(stack::send(endpoint, &served, small));
            let body = body(shape, stack, size);
            println!("stack {stack} {size}");
            runtime.block_on(stack::send(endpoint, &served, body));
        }
    }
    Ok(())
}

/// Returns a body of the shape; some stacks answer with a stream.
fn body(shape: &Shape, stack: &str, bytes: usize) -> Bytes {
    const WHOLE: &[u8] = br#""stream":false"#;
    let mut body = shape.body(bytes);
    if stack.ends_with("-streamed")
        && let Some(at) = body.windows(WHOLE.len()).position(|part| part == WHOLE)
        && let Some(field) = body.get_mut(at..at + WHOLE.len())
    {
        field.copy_from_slice(br#""stream":true "#);
    }
    body.into()
}

/// Initializes one-time state before the measurement.
async fn warm_up(endpoint: Endpoint, served: &Served) {
    let body = Bytes::from_static(endpoint.small().as_bytes());
    stack::send(endpoint, served, body).await;
}

fn runtime() -> std::io::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()
}

/// Yields in a loop, and records the longest time until its next turn.
///
/// The time is CPU time of the thread, which excludes other processes on the machine.
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
