//! What a hostile client may send to Concentric, and what it costs.
//!
//! ```text
//! cargo run --profile bench -p concentric-hostile -- [--quick] [--native] [<shape> ...]
//! ```
//!
//! - `--quick` measures fewer shapes, with fewer bytes: what CI does.
//! - `--native` leaves the instructions out, as is done without `valgrind` on the path.
//! - `<shape>`: only the shapes whose names begin with one of these.
//!
//! It ends with how many shapes were measured, how many are within all bounds, and the largest figure
//! of each column with its shape. It exits with 1 if a bound is exceeded.
//!
//! # What is measured
//!
//! A [shape](shapes) is an AG-UI request that consists of as much of one thing as a number of bytes
//! holds: messages, calls, schema nodes, state keys. Each goes through seven [stacks](stack): the AG-UI
//! layer, a suspend layer over SQLite, the loop with gates, tokens, lazy tools and skills, and each of
//! the providers up to the bytes of its request; `agent` has a model that calls tools instead.
//!
//! | column | is | bound |
//! |---|---|---|
//! | taken | the most bytes that start a run under the default limits, of 4 MiB | |
//! | Ir 2n/n | the instructions of a stage for 2n bytes, divided by those for n, with no limit but that on bytes; of the stage that grows most | 2.3 |
//! | CPU | the CPU time per byte at 4 MiB, divided by that at 512 KiB, with no limit but that on bytes | 4 |
//! | heap | the most heap at a time under the default limits, divided by the 4 MiB that a body may have; of a taken and of a refused body | 12 |
//! | raised | the most heap at 4 MiB with no limit but that on bytes, divided by the body's bytes; it may grow as they do | |
//! | poll | the longest time that a worker thread was held under the default limits, in milliseconds | 50 |
//!
//! # How
//!
//! - Every measurement is a process of its own, so that one that aborts or hangs is a row of the table.
//! - Instructions by callgrind, which writes its counts at each boundary between stages. A stage of
//!   fewer than [`LEAST`] instructions is too small to have a ratio.
//! - Heap by the allocator ([`cap`]): all threads, with the body; SQLite's own is not in it. It is what
//!   one request may take, so it is divided by what one request may have, however small a body has to
//!   be to be taken.
//! - Polls in CPU time of the thread, so that other processes do not count: the longest that a task
//!   which always wants a turn had to wait for it. What is beyond a bound of time is measured three
//!   times, and the least is kept.

mod callgrind;
mod run;
mod shapes;
mod stack;
mod table;

use concentric_core::BoxError;
use run::Taken;
use shapes::Shape;
use stack::{Limits, STACKS};
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

/// The most that `AgUiLayer` reads of a body by default.
const BODY: usize = 4 << 20;

/// The bytes of which instructions are counted, and twice as many.
const COUNTED: usize = 64 << 10;
const QUICK_COUNTED: usize = 32 << 10;

/// The instructions below which a stage has no ratio: in a smaller one, what is done once outweighs what
/// grows. If such a stage were quadratic, it would take 200 million at the limit, some 50 ms, and would
/// show in the columns `CPU` and `poll`.
const LEAST: u64 = 200_000;

/// How long a measurement may take.
const PATIENCE: Duration = Duration::from_secs(300);

fn main() -> ExitCode {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let mut parts = arguments.iter().map(String::as_str);
    let result = match parts.next() {
        Some("one") => one(parts).map(|()| true),
        Some("taken") => taken(parts).map(|()| true),
        Some("count") => count(parts).map(|()| true),
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

// ---- what a process of its own does ----

fn shape(name: Option<&str>) -> Result<&'static Shape, BoxError> {
    let name = name.unwrap_or_default();
    shapes::find(name).ok_or_else(|| format!("there is no shape `{name}`").into())
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
    let most = run::most_taken(shape(parts.next())?, BODY)?;
    println!("{most}");
    Ok(())
}

fn count<'a>(mut parts: impl Iterator<Item = &'a str>) -> Result<(), BoxError> {
    let shape = shape(parts.next())?;
    let bytes = parts.next().unwrap_or_default().parse()?;
    run::count(shape, &parts.collect::<Vec<_>>(), bytes)
}

// ---- the whole ----

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
    let shapes: Vec<&Shape> = shapes::ALL.iter().filter(is_asked).collect();
    let counted = match (flag("--native"), callgrind::is_available()) {
        (true, _) => None,
        (false, true) if flag("--quick") => Some(QUICK_COUNTED),
        (false, true) => Some(COUNTED),
        (false, false) => {
            eprintln!("no valgrind on the path: instructions are left out");
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
    Ok(rows.iter().all(Row::is_within))
}

/// Measures one shape, in processes of its own.
fn measure(shape: &Shape, counted: Option<usize>) -> Row {
    let mut row = Row::new(shape.name);
    let most = child(None, &["taken", shape.name]).and_then(|out| Ok(last(&out).parse()?));
    match most {
        Ok(most) => row.taken = most,
        Err(error) => row.fail("the edge", error),
    }
    for stack in STACKS {
        // A smaller one may pass a limit of a later stage, such as that on states.
        let mut sizes = vec![row.taken / 8, row.taken, BODY];
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
        match callgrind::ratios(shape.name, bytes) {
            Ok(ratios) => row.ratios(&ratios),
            Err(error) => row.fail("callgrind", error),
        }
    }
    row
}

/// The run of three that held the thread for the shortest time: the machine is shared.
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

/// Two requests without limits, the second of eight times as many bytes: of three pairs the one whose
/// time grows least, since a busy machine takes time of the kernel's.
fn least_growth(shape: &Shape, stack: &str) -> Result<(Taken, Taken), BoxError> {
    let pair = || {
        let one = |bytes| one_of(shape, stack, Limits::Raised, bytes);
        Ok::<_, BoxError>((one(BODY / 8)?, one(BODY)?))
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

/// The output of this binary with these arguments, under a tool if there is one.
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
