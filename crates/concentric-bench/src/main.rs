//! Benchmarks of Concentric against plain tower stacks.
//!
//! ```text
//! cargo run --profile bench -p concentric-bench -- [--quick] [--json] [--check <work>] [--sdk <python>] [<work> ...]
//! ```
//!
//! - `--quick` takes fewer samples of the times, and counts the instructions of fewer runs, as in CI. CI builds without
//!   LTO and in several units, so its figures are not those of a release.
//! - `--json` also prints the figures as JSON, on the last line.
//! - `--check` exits with 1 if a work whose name begins with this prefix misses its goal, such as `idle`.
//! - `--sdk` also measures the vendors' own SDKs for all works that decode a stream, and adds the
//!   works with recorded streams. The Python interpreter must have the packages of
//!   `tests/sdk/requirements.txt`; `.ci/sdk` creates one, `target/sdk-venv/bin/python`.
//! - `<work>` selects the works whose names begin with one of these prefixes, such as `w1` or
//!   `decode`.
//!
//! # Works
//!
//! The benchmarks measure the overhead of an agent: its model and its tools cost almost nothing.
//! Each work is done by Concentric and by a minimal stack on plain tower ([`bare`]), which is the
//! lower limit. Both have the same mock model, consumer, tool and counters. The bare side has a loop
//! only in W2 and W3, whose tools require one: in W1 and W4 it keeps no text and no conversation.
//!
//! | work | a run | divided by |
//! |---|---|---|
//! | W1 | the model streams N = 1,000 chunks of 20 bytes; K layers inside the loop ([`inspect_events`]) each count the bytes | chunks |
//! | W2 | 10 turns (or 100) call the tool `noop` once each, and one more returns one chunk; K tool layers count before and after each call | calls |
//! | W3 | one turn calls `noop` 100 times, concurrently | calls |
//! | W4a | 10,000 runs wait for the model's second chunk | runs |
//! | W4b | W1 with N = 1 | runs |
//! | decode | the complete provider layer reads an OpenAI stream with 229 bytes per chunk; bare: split, typed serde structs, drop | chunks |
//! | decode-anthropic, -responses, -gemini, -ollama | the same for a stream of 1,000 text deltas in the format of each service, with its first and last events | text deltas |
//! | decode-recorded, decode-anthropic-recorded, ... | the same for all recorded streams of a service that its vendor's SDK can read, including text, reasoning and tool calls | events on the wire |
//! | W5 | a gateway over sockets, from an OpenAI-compatible service to AG-UI, each answer with 50 text events: 16 connections without pauses (`closed`), or 2 ms between events (`paced`); CPU time of the gateway's thread. Bare: each event decoded and encoded, without an agent | answers |
//! | gateway | a gateway over sockets between clients of OpenAI and a provider with the same API, as the example `gateway`: a key, a rate limit, a response cache that has no answer, a fallback, a retry and budgets. Its measures are those of W5, with 40 requests per second in `paced`, and 1,000 µs for an answer are one CPU second for 1,000; `first` is the time that the gateway adds, at the 99th percentile of 720 answers (`--quick`: 240), to that of a request to the provider itself (its median). Bare: the key is checked, and each event decoded and encoded; those that are ready together are one chunk | answers |
//! | W6 | W2 with ten extensions, or with budgets after 10 to 10,000 messages; waiting runs as tasks; 101 changes of one field of an AG-UI state of 0.8 MB before the stream is written | steps, runs |
//! | encode | an AG-UI `TEXT_MESSAGE_CONTENT` of 20 bytes | events |
//! | hooks | W1 with ten `Hooks` that count the bytes, outside the loop (`run`) or inside (`model`), or with `Hooks` that implement nothing; bare: Concentric with ten [`inspect_events`] at the same place, or with none | chunks |
//! | idle | W1 with 4,000 chunks, or its model alone, and one built-in layer around it that has nothing to do; bare: none. Instructions of a chunk are the difference to 2,000 chunks, and a row of its own has the rest of the run | chunks |
//! | busy, cache-stream, guard-12 | the same for layers that read, or keep, each event; `guard-12-split`: of chunks that are cut within words | chunks |
//! | retry-call, cache-hit, cache-miss | a model call with one event through `RetryModel` or `ResponseCacheLayer`; bare: without it | calls |
//! | cache-shared | two readers, in turn, of an answer with 2,000 chunks that they share; bare: of an answer each | events of both |
//! | tool-cache | W2 with `ToolCacheLayer`, and with (`hit`) or without (`miss`) earlier results; bare: without it | calls |
//! | plan, trim, clear-results | a model call after 10,000 turns, of which a compaction is planned or which a layer shortens; bare: without it | calls |
//! | tokens-bpe | 1 MiB of text, counted by a new `BpeCounter`, with the feature `tokens-openai`; bare: by `Estimator` | texts |
//! | otel-call, log-call, otel-run | a model call or a run with one event, and an `Otel` or a `LogLayer` without a subscriber; bare: none | calls or runs |
//! | otel-tool | W3 with an `Otel` around the tools and no subscriber; bare: a layer that does nothing | tool calls |
//! | store | a run that is suspended and resumed after 1,000 messages, with a SQLite file; bare: after one. A stored step of a run of 200; bare: of a run of 10 | runs, steps |
//! | disconnect | 10,000 consumers (`--quick`: 1,000), 100 at a time, disconnect before or during a response that streams over a socket; measures the time until the service, on another thread, reads the end of the connection. Bare: the HTTP client alone | |
//!
//! The tool layers are hand-written and added in one call, hand-written and added one by one, or
//! async functions ([`tool_from_fn`]).
//!
//! Every run asserts the output to the consumer: the bytes of text, the number and bytes of tool
//! results, and one finish. Each batch of runs asserts all counters.
//!
//! Bare decoding reads what a gateway needs to pass on text: the text, the finish, ids, the model
//! and the tokens. It skips the rest and keeps no state between events, so it does less than a
//! provider layer for tool calls, reasoning and citations, as in recorded streams. These also have
//! many short responses, each with a request of its own.
//!
//! # Method
//!
//! - Instructions (Ir) are counted by callgrind, as the difference between two numbers of runs in a
//!   process, which excludes its start. They are deterministic for a given binary. They are omitted
//!   if `valgrind` is not on the path.
//! - Times are CPU times of the process in nanoseconds, the median of 15 samples (`--quick`: 3),
//!   with both sides in turn.
//! - Allocations and heap bytes are counted by the allocator ([`stats_alloc`]), including
//!   reallocations. W4a counts a whole run, including a box for the future that reads it, as in a
//!   task. Counting costs both sides about 10 Ir per allocation.
//! - The SDKs (`sdk.py`) read the same bytes in the same number of samples, with their synchronous
//!   clients, into their typed events, over a transport whose response is ready. Their time is CPU
//!   time as well, but starts at the first read of the body; ours includes the request and the
//!   response head. They must read the same text.
//! - Wall time is used for disks and connections.
//!
//! The goals ([`goals`]) are Concentric's own. The workload is fixed, so that other frameworks can
//! be compared: on 2026-11-21, in process and by instructions, rig 0.44 took 7,836 Ir for an event
//! of W1 (K=0), 650,000 for a step of W2 (K=5), and 204,000 for a trivial run.
//!
//! [`inspect_events`]: concentric_layers::inspect_events
//! [`tool_from_fn`]: concentric_layers::tool_from_fn

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

const ANSWERS: usize = 6_000;
const QUICK_ANSWERS: usize = 2_000;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [command, side, name, runs] = arguments.as_slice()
        && command == "work"
    {
        return work_only(side, name, runs);
    }
    let (mut flags, mut names) = (Vec::new(), Vec::new());
    let (mut python, mut checked) = (None, None);
    let mut arguments = arguments.into_iter();
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--quick" | "--json" => flags.push(argument),
            "--check" => match arguments.next() {
                Some(prefix) => checked = Some(prefix),
                None => {
                    eprintln!("--check requires the beginning of the names of works");
                    return ExitCode::from(2);
                }
            },
            "--sdk" => match arguments.next() {
                Some(path) => python = Some(path),
                None => {
                    eprintln!("--sdk requires the path of a Python interpreter with the SDKs");
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
        eprintln!("valgrind not found: instructions are not counted");
    }
    let (samples, connections) = match flag("--quick") {
        true => (QUICK_SAMPLES, [QUICK_DISCONNECTS, QUICK_ANSWERS]),
        false => (SAMPLES, [DISCONNECTS, ANSWERS]),
    };
    let table = match measure(&names, python.as_deref(), samples, connections, counts) {
        Ok(table) => table,
        Err(error) => {
            eprintln!("failed to run the SDKs: {error}");
            return ExitCode::FAILURE;
        }
    };
    println!("{table}");
    if table.missed() > 0 {
        println!("missed goals: {}", table.missed());
    }
    if flag("--json") {
        println!("{}", table.json());
    }
    let violations = checked.map_or_else(Vec::new, |prefix| table.violations(&prefix));
    for violation in &violations {
        eprintln!("{violation}");
    }
    match violations.is_empty() {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    }
}

/// Executes batches of `runs` runs of one work, for callgrind.
fn work_only(side: &str, name: &str, runs: &str) -> ExitCode {
    let Some(work) = work::find(name) else {
        eprintln!("unknown work `{name}`");
        return ExitCode::from(2);
    };
    let Ok(runs) = runs.parse() else {
        eprintln!("invalid number of runs `{runs}`");
        return ExitCode::from(2);
    };
    let (whole, half) = match side {
        "bare" => (work.bare, work.half.map(|[bare, _]| bare)),
        _ => (work.concentric, work.half.map(|[_, concentric]| concentric)),
    };
    instructions::batches(whole, half, runs);
    ExitCode::SUCCESS
}

fn measure(
    names: &[String],
    python: Option<&str>,
    samples: usize,
    [disconnects, answers]: [usize; 2],
    counts: bool,
) -> io::Result<Table> {
    use Quantity::{Allocations, Bytes, Instructions, Microseconds, Nanoseconds, RunInstructions};
    let is_asked =
        |name: &str| names.is_empty() || names.iter().any(|asked| name.starts_with(asked));

    let recorded = python.map_or_else(Vec::new, |_| work::recorded::all());
    if python.is_some() && recorded.is_empty() {
        eprintln!("no recordings found: the recorded streams are skipped");
    }
    let works = work::ALL.iter().chain(&recorded);

    let mut table = Table::default();
    for work in works.filter(|work| is_asked(work.name)) {
        let sides = [work.bare, work.concentric];
        if counts && work.half.is_some() {
            let sides = ["bare", "concentric"];
            let [op, run] = instructions::apart(sides, work.name, work.ops, samples as u64);
            table.add(work.name, work.title, Instructions, op);
            table.add(work.name, work.title, RunInstructions, run);
        } else if counts {
            let sides = ["bare", "concentric"];
            let ir = instructions::of(sides, work.name, work.ops, samples as u64);
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
            "W1 each additional layer",
            quantity,
            |none, ten| (ten - none) / 10.0,
            ["w1-k0", "w1-k10"],
        );
    }
    table.derive(
        "hooks-empty-k10",
        "hooks-empty-more",
        "event, each additional empty Hooks",
        Instructions,
        |one, ten| (ten - one) / 9.0,
        ["hooks-empty-k1", "hooks-empty-k10"],
    );
    table.derive(
        "w2-k5-100",
        goals::GROWTH,
        "W2 100 turns relative to 10",
        Instructions,
        |ten, hundred| hundred / ten,
        ["w2-k5", "w2-k5-100"],
    );
    if is_asked("suspend") {
        // Wall time, because the time is spent waiting for a disk.
        let title = "suspend and resume; bare: in memory; wall time";
        let runs = 10 * u32::try_from(samples).unwrap_or(1);
        table.add("suspend", title, Nanoseconds, work::suspended::wall(runs));
    }
    if is_asked("store") {
        use work::suspended::{STEPS, after, checkpoints};
        let title = "suspend and resume after 1,000 messages, SQLite; bare: after one; CPU";
        let ns = time::medians([after::<1>, after::<1_000>], 1, samples);
        table.add("store-suspend", title, Nanoseconds, ns);
        let title = "stored step of a run of 200, SQLite; bare: of a run of 10; CPU";
        let ns = time::medians(
            [checkpoints::<10>, checkpoints::<200>],
            STEPS as u64,
            samples,
        );
        table.add("store-step", title, Nanoseconds, ns);
    }
    if is_asked("disconnect") {
        let [p50, p99] = work::disconnect::wall(disconnects);
        let title = "disconnect to upstream closed, p50; wall time";
        table.add("disconnect-p50", title, Microseconds, p50);
        let title = "disconnect to upstream closed, p99; wall time";
        table.add("disconnect-p99", title, Microseconds, p99);
    }
    if is_asked("w5-closed") {
        let title = "W5 answer of 50 events, 16 connections; CPU";
        let cpu = work::gateway::closed(answers);
        table.add("w5-closed", title, Microseconds, cpu);
    }
    if is_asked("w5-paced") {
        let [cpu, first] = work::gateway::paced(answers / 100);
        let title = "W5 answer of 50 events, 2 ms between events; CPU";
        table.add("w5-paced", title, Microseconds, cpu);
        let title = "W5 first text, 2 ms between events; wall time";
        table.add("w5-paced-first", title, Microseconds, first);
    }
    if is_asked("gateway-closed") {
        let title = "gateway, answer of 50 events, 16 connections; CPU";
        let cpu = work::gateway::chat_closed(answers);
        table.add("gateway-closed", title, Microseconds, cpu);
    }
    if is_asked("gateway-paced") {
        let [cpu, first] = work::gateway::chat_paced(answers / 25);
        let title = "gateway, answer of 50 events, 2 ms between events; CPU";
        table.add("gateway-paced", title, Microseconds, cpu);
        let title = "gateway, added to the first text, p99; wall time";
        table.add("gateway-paced-first", title, Microseconds, first);
    }
    if is_asked("w6-state") {
        use work::state::{bare, concentric, held};
        let title = "W6 AG-UI state of 0.8 MB, 101 updates";
        let micros = time::medians([bare, concentric], 1, samples).map(|ns| ns / 1e3);
        table.add("w6-state", title, Microseconds, micros);
        table.add("w6-state", title, Bytes, [bare, concentric].map(held));
    }
    for work in work::WAITING.iter().filter(|work| is_asked(work.name)) {
        let bytes = [work.bare, work.concentric].map(|bytes| bytes());
        table.add(work.name, work.title, Bytes, bytes);
    }
    Ok(table)
}
