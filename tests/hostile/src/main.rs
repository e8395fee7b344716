//! Measures the cost of hostile requests to Concentric.
//!
//! ```text
//! cargo run --profile bench -p concentric-hostile -- [--quick] [--native] [<shape> ...]
//! ```
//!
//! - `--quick` measures fewer shapes with fewer bytes, as in CI.
//! - `--native` does not count instructions. This is the default if `valgrind` is not on the path.
//! - `<shape>` selects the shapes whose names begin with one of these prefixes.
//!
//! The last lines are the number of measured shapes, the number of shapes within all bounds, and
//! the largest figure of each column with its shape. The exit code is 1 if a bound is exceeded.
//!
//! # Figures
//!
//! A [shape](shapes) is a request with one repeated element, such as messages, calls, schema nodes or
//! state keys, up to a number of bytes. Each shape goes through the [stacks](stack) of its
//! [endpoint](endpoint):
//!
//! | endpoint | shapes | stacks |
//! |---|---|---|
//! | AG-UI | without a prefix | the AG-UI layer, a suspend layer over SQLite, the loop with gates, tokens, lazy tools and skills, and one of the providers up to the bytes of its request; `agent` has a model that calls tools instead |
//! | OpenAI's chat completions and responses | `chat-`, `responses-` | the layers of a gateway and a provider (`-gateway`), or that agent (`-agent`); one of them answers with a stream (`-streamed`) |
//! | `useChat` | `use-chat-` | that agent, with the log of its events |
//! | the console | `console-`: forms; `pages-`: paths and queries | that agent |
//! | threads of AG-UI | `threads-`: paths and queries | a store |
//! | MCP | `mcp-` | a toolset, called without a session |
//!
//! | column | figure | bound |
//! |---|---|---|
//! | taken | the largest body that is accepted under the default limits | |
//! | Ir 2n/n | the instructions of a stage for 2n bytes, divided by those for n, without limits except that on the body; for the stage with the largest growth | 2.3 |
//! | CPU | the CPU time per byte at 4 MiB (of a URI at 60 KiB), divided by that at an eighth of it, without limits except that on the body | 4 |
//! | heap | the peak heap under the default limits, divided by the largest body (4 MiB; OpenAI's 20 MiB, a form 8 MiB, a URI 60 KiB); for accepted and rejected bodies | 12 |
//! | raised | the peak heap at 4 MiB without limits except that on the body, divided by the size of the body; it may grow linearly | |
//! | poll | the longest time that a worker thread was blocked under the default limits, in milliseconds | 50 |
//!
//! A second table has the figures of clients that hold connections, 1,000 at a time for each
//! [endpoint](held), unless shapes are selected, or `--quick` is given:
//!
//! | column | figure | bound |
//! |---|---|---|
//! | upload | the heap of each body that does not end | 64 KiB |
//! | answered in | the time until all of them are answered | 60 s |
//! | unread | the peak heap of an answer of 16 MiB of which the client reads the first part | 4 MiB |
//! | waiting | the heap of each run, or stream of the console, that waits | 64 KiB |
//! | accepted | the number of them that are not refused | |
//!
//! # Method
//!
//! - Each measurement runs in a process of its own, so that an abort or a hang is one row of the
//!   table.
//! - MCP keeps its limit on the number of values in all measurements.
//! - Instructions are counted by callgrind, which writes its counts at each boundary between
//!   stages. A stage of fewer than [`LEAST`] instructions is too small for a ratio.
//! - The heap is counted by the allocator ([`cap`]): for all threads, including the body, excluding
//!   SQLite's own allocations. It is divided by the largest allowed body, even if only a smaller
//!   one is accepted, because it is the cost of one request.
//! - Polls are measured in CPU time of the thread, which excludes other processes: the longest time
//!   that an always ready task waits for its turn. A time above its bound is measured three times,
//!   and the lowest figure is used.

mod callgrind;
mod endpoint;
mod held;
mod run;
mod shapes;
mod stack;
mod table;

use concentric_core::BoxError;
use run::Taken;
use shapes::Shape;
use stack::Limits;
use std::{
    env,
    io::Read,
    process::{Child, Command, ExitCode, ExitStatus, Stdio},
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::{Duration, Instant},
};
use table::Row;

/// The sizes for which instructions are counted: n and 2n.
const COUNTED: usize = 64 << 10;
const QUICK_COUNTED: usize = 32 << 10;

/// The least instructions of a stage for a ratio. In smaller stages, constant costs outweigh
/// growth. A quadratic stage of this size would take 200 million instructions at the limit, about
/// 50 ms, and would be visible in the columns `CPU` and `poll`.
const LEAST: u64 = 200_000;

/// The time limit of a measurement.
const PATIENCE: Duration = Duration::from_secs(300);

fn main() -> ExitCode {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let mut parts = arguments.iter().map(String::as_str);
    let result = match parts.next() {
        Some("one") => one(parts).map(|()| true),
        Some("taken") => taken(parts).map(|()| true),
        Some("count") => count(parts).map(|()| true),
        Some("held") => held(parts).map(|()| true),
        _ => all(&arguments),
    };
    match result {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::from(2)
        }
    }
}

// ---- child processes ----

fn shape(name: Option<&str>) -> Result<&'static Shape, BoxError> {
    let name = name.unwrap_or_default();
    shapes::find(name).ok_or_else(|| format!("unknown shape `{name}`").into())
}

fn one<'a>(mut parts: impl Iterator<Item = &'a str>) -> Result<(), BoxError> {
    let shape = shape(parts.next())?;
    let stack = parts.next().unwrap_or_default();
    let limits = match parts.next() {
        Some("raised") => Limits::Raised,
        _ => Limits::Default,
    };
    let bytes = parts.next().unwrap_or_default().parse()?;
    let taken = run::one(shape, stack, limits, bytes)?;
    println!("{}", serde_json::to_string(&taken)?);
    Ok(())
}

fn taken<'a>(mut parts: impl Iterator<Item = &'a str>) -> Result<(), BoxError> {
    let most = run::most_taken(shape(parts.next())?)?;
    println!("{most}");
    Ok(())
}

fn count<'a>(mut parts: impl Iterator<Item = &'a str>) -> Result<(), BoxError> {
    let shape = shape(parts.next())?;
    let bytes = parts.next().unwrap_or_default().parse()?;
    run::count(shape, &parts.collect::<Vec<_>>(), bytes)
}

fn held<'a>(mut parts: impl Iterator<Item = &'a str>) -> Result<(), BoxError> {
    let name = parts.next().unwrap_or_default();
    let mut endpoints = held::ENDPOINTS.into_iter();
    let endpoint = endpoints.find(|endpoint| format!("{endpoint:?}") == name);
    let endpoint = endpoint.ok_or_else(|| format!("unknown endpoint `{name}`"))?;
    let held = held::one(endpoint, parts.next().unwrap_or_default())?;
    println!("{}", serde_json::to_string(&held)?);
    Ok(())
}

// ---- the main process ----

fn all(arguments: &[String]) -> Result<bool, BoxError> {
    let (flags, names): (Vec<_>, Vec<_>) = arguments.iter().partition(|a| a.starts_with("--"));
    let known = ["--quick", "--native"];
    if let Some(unknown) = flags.iter().find(|flag| !known.contains(&flag.as_str())) {
        return Err(format!("unknown flag {unknown}").into());
    }
    let flag = |name: &str| flags.iter().any(|flag| *flag == name);
    let is_asked = |shape: &&Shape| match names.is_empty() {
        true => !flag("--quick") || shape.quick,
        false => names
            .iter()
            .any(|name| shape.name.starts_with(name.as_str())),
    };
    let shapes: Vec<&Shape> = shapes::all().filter(is_asked).collect();
    let counted = match (flag("--native"), callgrind::is_available()) {
        (true, _) => None,
        (false, true) if flag("--quick") => Some(QUICK_COUNTED),
        (false, true) => Some(COUNTED),
        (false, false) => {
            eprintln!("valgrind not found: instructions are not counted");
            None
        }
    };
    let next = AtomicUsize::new(0);
    let rows = Mutex::new(Vec::new());
    let workers = thread::available_parallelism().map_or(1, |n| n.get());
    thread::scope(|scope| {
        for _ in 0..workers {
            scope.spawn(|| {
                while let Some(shape) = shapes.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let row = measure(shape, counted);
                    eprintln!("{row}");
                    let mut rows = rows.lock().unwrap_or_else(PoisonError::into_inner);
                    rows.push(row);
                }
            });
        }
    });
    let mut rows = rows.into_inner().unwrap_or_else(PoisonError::into_inner);
    rows.sort_by_key(|row| shapes.iter().position(|shape| shape.name == row.shape));
    println!("{}", table::Table(&rows));
    if !names.is_empty() || flag("--quick") {
        return Ok(rows.iter().all(Row::is_within));
    }
    let held = held::Table(held::ENDPOINTS.map(|it| (it, hold(it))).into());
    println!("\n{held}");
    Ok(rows.iter().all(Row::is_within) && held.is_within())
}

/// Measures the clients that hold connections to an endpoint, in child processes.
fn hold(endpoint: endpoint::Endpoint) -> Result<held::Held, String> {
    let mut held = held::Held::default();
    for kind in ["upload", "unread", "waiting"] {
        let out = child(None, &["held", &format!("{endpoint:?}"), kind]);
        let one = out.and_then(|out| Ok(serde_json::from_str(last(&out))?));
        held = held::merge(held, one.map_err(|error| format!("{kind}: {error}"))?);
    }
    Ok(held)
}

/// Measures one shape, in child processes.
fn measure(shape: &Shape, counted: Option<usize>) -> Row {
    let mut row = Row::new(shape.name, shape.endpoint.limit());
    let most = child(None, &["taken", shape.name]).and_then(|out| Ok(last(&out).parse()?));
    match most {
        Ok(most) => row.taken = most,
        Err(error) => row.fail("the edge", error),
    }
    for stack in shape.endpoint.stacks() {
        // A smaller body may pass a limit of a later stage, such as that on states.
        let mut sizes = vec![row.taken / 8, row.taken, row.limit];
        sizes.retain(|bytes| *bytes > 0);
        sizes.dedup();
        for bytes in sizes {
            match least_poll(shape, stack, bytes) {
                Ok(taken) => row.default(stack, &taken),
                Err(error) => row.fail(stack, error),
            }
        }
        match least_growth(shape, stack) {
            Ok((some, most)) => row.raised(stack, &some, &most),
            Err(error) => row.fail(stack, error),
        }
    }
    if let Some(bytes) = counted {
        match callgrind::ratios(shape, bytes.min(shape.endpoint.limit() / 2)) {
            Ok(ratios) => row.ratios(&ratios),
            Err(error) => row.fail("callgrind", error),
        }
    }
    row
}

/// Returns the run with the shortest poll of three, because the machine is shared.
fn least_poll(shape: &Shape, stack: &str, bytes: usize) -> Result<Taken, BoxError> {
    let mut least = one_of(shape, stack, Limits::Default, bytes)?;
    for _ in 0..2 {
        if least.poll > u64::from(table::MOST_POLL) * 1000 {
            let again = one_of(shape, stack, Limits::Default, bytes)?;
            least.poll = least.poll.min(again.poll);
        }
    }
    Ok(least)
}

/// Sends two requests without limits, the second with eight times as many bytes. Returns the pair
/// with the least growth of three, because a busy machine adds kernel time.
fn least_growth(shape: &Shape, stack: &str) -> Result<(Taken, Taken), BoxError> {
    let pair = || {
        let most = shape.endpoint.raised();
        let one = |bytes| one_of(shape, stack, Limits::Raised, bytes);
        Ok::<_, BoxError>((one(most / 8)?, one(most)?))
    };
    let mut least = pair()?;
    for _ in 0..2 {
        let growth = table::growth(&least.0, &least.1);
        if growth.is_some_and(|growth| growth > table::MOST_GROWTH) {
            let again = pair()?;
            if table::growth(&again.0, &again.1) < growth {
                least = again;
            }
        }
    }
    Ok(least)
}

fn one_of(shape: &Shape, stack: &str, limits: Limits, bytes: usize) -> Result<Taken, BoxError> {
    let limits = match limits {
        Limits::Default => "default",
        Limits::Raised => "raised",
    };
    let out = child(
        None,
        &["one", shape.name, stack, limits, &bytes.to_string()],
    )?;
    Ok(serde_json::from_str(last(&out))?)
}

fn last(out: &str) -> &str {
    out.lines().next_back().unwrap_or_default()
}

/// Returns the output of this binary with the given arguments, under a tool if there is one.
fn child(tool: Option<&mut Command>, arguments: &[&str]) -> Result<String, BoxError> {
    let binary = env::current_exe()?;
    let mut own = Command::new(&binary);
    let command = match tool {
        Some(tool) => tool.arg(&binary),
        None => &mut own,
    };
    let mut child = command
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()?;
    let stdout = child.stdout.take();
    let reader = thread::spawn(move || {
        let mut out = String::new();
        stdout.map(|mut stdout| stdout.read_to_string(&mut out));
        out
    });
    let status = wait(&mut child)?;
    let out = reader.join().unwrap_or_default();
    match status.success() {
        true => Ok(out),
        false => Err(format!("ended with {status}").into()),
    }
}

fn wait(child: &mut Child) -> Result<ExitStatus, BoxError> {
    let start = Instant::now();
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(status);
        }
        if start.elapsed() > PATIENCE {
            child.kill()?;
            child.wait()?;
            return Err(format!("took more than {} s", PATIENCE.as_secs()).into());
        }
        thread::sleep(Duration::from_millis(2));
    }
}
