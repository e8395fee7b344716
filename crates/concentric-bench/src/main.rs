//! The workload of Concentric, measured against tower alone.
//!
//! ```text
//! cargo run --profile bench -p concentric-bench -- [--quick] [--json] [--check] [--sdk <python>] [<work> ...]
//! ```
//!
//! - `--quick` takes few samples of the times, as CI does; all else is exact as it is.
//! - `--json` prints the figures once more, as JSON on the last line.
//! - `--check` exits with 1 if a goal is missed.
//! - `--sdk` has the works that decode a stream done by the vendors' own SDKs, too, and does those
//!   of recorded streams. The Python must have what is in `tests/sdk/requirements.txt`; `.ci/sdk`
//!   makes one, `target/sdk-venv/bin/python`.
//! - `<work>`: only the works whose names begin with one of these, as `w1` or `decode`.
//!
//! # What is measured
//!
//! An agent's own cost: its model and its tools cost next to nothing, so that what is left is the
//! framework. Each work is done by Concentric and by a stack on tower alone that knows nothing but
//! this workload ([`bare`]): the limit. Both have the same mock, consumer, tool and counters.
//!
//! | work | a run | divided by |
//! |---|---|---|
//! | W1 | the model streams N = 1,000 chunks of 20 bytes; K layers inside the loop ([`inspect_events`]) each count the bytes | chunks |
//! | W2 | 10 turns (or 100) call the tool `noop` once each, an 11th says one chunk; K layers on the tools count before and after | calls |
//! | W3 | one turn calls `noop` 100 times, at once | calls |
//! | W4a | 10,000 runs wait for the model's second chunk | runs |
//! | W4b | W1 with N = 1 | runs |
//! | decode | a chunk of an OpenAI stream, 229 bytes on the wire, through the whole provider layer; bare: split, serde's typed structs, drop | chunks |
//! | decode-anthropic, -responses, -gemini, -ollama | the same of a stream of 1,000 text deltas as each of these services sends it, with what stands before and behind them | text deltas |
//! | decode-recorded, decode-anthropic-recorded, ... | the same of all streams that were recorded of a service and read by its vendor's SDK: text, reasoning, tool calls and all, as they came | events on the wire |
//! | encode | an AG-UI `TEXT_MESSAGE_CONTENT` of 20 bytes | events |
//! | hooks | W1 with ten `Hooks` that count the bytes, outside of the loop (`run`) or inside (`model`), or with `Hooks` that implement nothing; bare: Concentric with ten [`inspect_events`] at the same place, or with none | chunks |
//! | disconnect | 10,000 consumers (`--quick`: 1,000) go away before or while an answer streams over a socket, 100 at a time; from then until the service, on another thread, reads the end of the connection. Bare: the HTTP client alone | |
//!
//! The layers on tools are hand-written and added at once, the same added one by one, or async
//! functions ([`tool_from_fn`]).
//!
//! Every run asserts what the consumer was given: bytes of text, results of tools and their bytes,
//! one finish; and after each batch of runs, what every counter counted.
//!
//! Bare decoding knows of an event what a gateway needs to pass text on: typed structs with the text,
//! the finish, ids, the model and the tokens. All else in it is skipped, and nothing is kept from one
//! event to the next; so it does less than a provider layer where there are tool calls, reasoning or
//! citations, as in what was recorded. There, too, a run asks anew for each of many short answers.
//!
//! # How
//!
//! - Instructions (Ir) by callgrind, as the difference of two counts of runs, so that the start of
//!   the process does not count. They are the same each time for the same binary. Without
//!   `valgrind` on the path, there are none.
//! - CPU time of the process in nanoseconds, the median of 15 samples (`--quick`: 3), both sides in
//!   turn.
//! - Allocations and bytes of heap by the allocator ([`stats_alloc`]), reallocations included. W4a
//!   counts the whole of a run: the future that reads it is boxed, as a task is. The allocator's
//!   counting costs both sides some 10 Ir per allocation.
//! - The SDKs (`sdk.py`) read the same bytes in as many samples, by their synchronous clients, to
//!   their typed events, over a transport that has answered already. Their time is CPU time, too,
//!   from when the body is first asked for; ours has the request and the head besides. They must
//!   read as much text of each answer as the other sides do.
//! - Wall time where it is waited, for a disk or a connection.
//!
//! The goals ([`goals`]) are Concentric's own. The workload is fixed, so that figures of other
//! frameworks can stand beside these; measured on 2026-11-21, in process and by instructions, rig
//! 0.44 took 7,836 Ir for an event of W1 (K=0), 650,000 for an iteration of W2 (K=5), and 204,000
//! for a trivial run.
//!
//! [`inspect_events`]: concentric_core::layers::inspect_events
//! [`tool_from_fn`]: concentric_core::layers::tool_from_fn

mod bare;
mod goals;
mod measure;
mod table;
mod work;

use self::{
    measure::{heap, instructions, sdk, time},
    table::{Quantity, Table},
};
use std::{io, process::ExitCode};

const SAMPLES: usize = 15;
const QUICK_SAMPLES: usize = 3;

const DISCONNECTS: usize = 10_000;
const QUICK_DISCONNECTS: usize = 1_000;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [command, side, name, runs] = arguments.as_slice()
        && command == "work"
    {
        return work_only(side, name, runs);
    }
    let (mut flags, mut names, mut python) = (Vec::new(), Vec::new(), None);
    let mut arguments = arguments.into_iter();
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--quick" | "--json" | "--check" => flags.push(argument),
            "--sdk" => match arguments.next() {
                Some(path) => python = Some(path),
                None => {
                    eprintln!("--sdk takes a Python that has the SDKs");
                    return ExitCode::from(2);
                }
            },
            unknown if unknown.starts_with("--") => {
                eprintln!("unknown flag {unknown}");
                return ExitCode::from(2);
            }
            _ => names.push(argument),
        }
    }
    let flag = |name: &str| flags.iter().any(|flag| flag == name);

    let counts = instructions::is_available();
    if !counts {
        eprintln!("no valgrind on the path: instructions are left out");
    }
    let (samples, disconnects) = match flag("--quick") {
        true => (QUICK_SAMPLES, QUICK_DISCONNECTS),
        false => (SAMPLES, DISCONNECTS),
    };
    let table = match measure(&names, python.as_deref(), samples, disconnects, counts) {
        Ok(table) => table,
        Err(error) => {
            eprintln!("the SDKs could not be asked: {error}");
            return ExitCode::FAILURE;
        }
    };
    println!("{table}");
    if table.missed() > 0 {
        println!("{} goals are missed.", table.missed());
    }
    if flag("--json") {
        println!("{}", table.json());
    }
    if flag("--check") && table.missed() > 0 {
        ExitCode::FAILURE
    } else {
        ExitCode::SUCCESS
    }
}

/// Does `runs` runs and nothing else: what callgrind looks at.
fn work_only(side: &str, name: &str, runs: &str) -> ExitCode {
    let Some(work) = work::find(name) else {
        eprintln!("there is no work {name}");
        return ExitCode::from(2);
    };
    let Ok(runs) = runs.parse() else {
        eprintln!("{runs} is not a number of runs");
        return ExitCode::from(2);
    };
    if side == "bare" {
        (work.bare)(runs);
    } else {
        (work.concentric)(runs);
    }
    ExitCode::SUCCESS
}

fn measure(
    names: &[String],
    python: Option<&str>,
    samples: usize,
    disconnects: usize,
    counts: bool,
) -> io::Result<Table> {
    use Quantity::{Allocations, Bytes, Instructions, Microseconds, Nanoseconds};
    let is_asked =
        |name: &str| names.is_empty() || names.iter().any(|asked| name.starts_with(asked));

    let recorded = python.map_or_else(Vec::new, |_| work::recorded::all());
    if python.is_some() && recorded.is_empty() {
        eprintln!("no recordings: what real services sent is left out");
    }
    let works = work::ALL.iter().chain(&recorded);

    let mut table = Table::default();
    for work in works.filter(|work| is_asked(work.name)) {
        let sides = [work.bare, work.concentric];
        if counts {
            let ir = ["bare", "concentric"].map(|side| instructions::of(side, work.name, work.ops));
            table.add(work.name, work.title, Instructions, ir);
        }
        let ns = time::medians(sides, work.ops, samples);
        table.add(work.name, work.title, Nanoseconds, ns);
        if let (Some(python), Some(answers)) = (python, work.answers) {
            table.add_sdk(work.name, sdk::of(python, answers, work.ops, samples)?);
        }
        let allocations = sides.map(|run| heap::allocations(run, work.ops));
        table.add(work.name, work.title, Allocations, allocations);
    }
    for quantity in [Instructions, Nanoseconds, Allocations] {
        table.derive(
            "w1-k10",
            goals::LAYER,
            "W1 each layer more",
            quantity,
            |none, ten| (ten - none) / 10.0,
            ["w1-k0", "w1-k10"],
        );
    }
    table.derive(
        "hooks-empty-k10",
        "hooks-empty-more",
        "event, each empty Hooks more",
        Instructions,
        |one, ten| (ten - one) / 9.0,
        ["hooks-empty-k1", "hooks-empty-k10"],
    );
    table.derive(
        "w2-k5-100",
        goals::GROWTH,
        "W2 100 turns against 10",
        Instructions,
        |ten, hundred| hundred / ten,
        ["w2-k5", "w2-k5-100"],
    );
    if is_asked("suspend") {
        // Wall time: a disk is waited for, and not computed.
        let title = "suspend and resume; bare: in memory; wall time";
        let runs = 10 * u32::try_from(samples).unwrap_or(1);
        table.add("suspend", title, Nanoseconds, work::suspended::wall(runs));
    }
    if is_asked("disconnect") {
        let [p50, p99] = work::disconnect::wall(disconnects);
        let title = "disconnect to upstream closed, p50; wall time";
        table.add("disconnect-p50", title, Microseconds, p50);
        let title = "disconnect to upstream closed, p99; wall time";
        table.add("disconnect-p99", title, Microseconds, p99);
    }
    for work in work::WAITING.iter().filter(|work| is_asked(work.name)) {
        let bytes = [work.bare, work.concentric].map(|bytes| bytes());
        table.add(work.name, work.title, Bytes, bytes);
    }
    Ok(table)
}
