//! What holds for all rounds: driven live, suspended and resumed, and by hand, they come out the
//! same; and whatever becomes of each call, it has one result, and no effect before its decision.
//!
//! `CONCENTRIC_SEED` and `CONCENTRIC_CASES` set what is tried; a failure prints its seed.

use crate::common::{Log, pace, paced};
use crate::kit::{
    ANY_REPLY, Call, Chance, Minutes, Model, Ran, Scene, World, call_part, drive, drive_with,
    env_or, failing, number, panicking, quietly, written,
};
use concentric_core::trace::TraceStep;
use concentric_core::{
    ChatRequest, Event, Executor, Interrupt, InterruptHub, Message, MessageId, Outcome, Part,
    PartKind, Reply, Role, ToolSpec, ToolSpecs, ToolStatus, Transcript, Turn, interrupt,
    store::Tenant,
};
use concentric_test::Pace;
use concentric_tools::{Approval, RoundEnd, SiblingPolicy, ToolLifecycle, Toolset};
use serde_json::json;
use std::{collections::BTreeMap, sync::Arc, time::Duration};

// ---- live, resumed, by hand ----

/// The names of the tools; `ask_*` are gated.
const NAMES: [&str; 9] = [
    "read",
    "write",
    "failing",
    "panicking",
    "ask",
    "ask_read",
    "ask_failing",
    "ask_panicking",
    "beep",
];

fn tools(
    log: &Log,
    minutes: &Minutes,
    siblings: SiblingPolicy,
    live: Option<&InterruptHub>,
) -> Toolset {
    let approval = Approval::for_tools("ask*").replies(ANY_REPLY);
    let approval = match live {
        Some(live) => approval.live(live, Duration::from_secs(60)),
        None => approval,
    };
    Toolset::new()
        .tool(number("read", log).read_only())
        .tool(number("write", log))
        .tool(failing("failing", log).read_only())
        .tool(panicking("panicking", log))
        .tool(number("ask", log))
        .tool(number("ask_read", log).read_only())
        .tool(failing("ask_failing", log))
        .tool(panicking("ask_panicking", log))
        .gate(approval)
        .siblings(siblings)
        .trace(minutes.sink())
}

fn client() -> ToolSpecs {
    ToolSpecs::new([Arc::new(ToolSpec::new(
        "beep",
        "",
        json!({"type": "object"}),
    ))])
}

#[derive(Clone, Debug)]
struct Script {
    rounds: Vec<Vec<Call>>,
    siblings: SiblingPolicy,
    // What is replied to a question is a matter of its call.
    salt: u64,
}

impl Script {
    fn by(seed: u64) -> Self {
        let mut chance = Chance::new(seed);
        let rounds = 1 + chance.below(3);
        let mut round = || -> Vec<Call> {
            let calls = 1 + chance.below(5);
            (0..calls)
                .map(|_| {
                    let name = match chance.below(20) {
                        0 => "nothing",
                        n => NAMES[n % NAMES.len()],
                    };
                    let n = chance.below(200);
                    let arguments = match chance.below(12) {
                        0 => "{".to_owned(),
                        1 => format!(r#"{{"n":{n},"n":1}}"#),
                        _ => format!(r#"{{"n":{n}}}"#),
                    };
                    Call::from((name, arguments.as_str()))
                })
                .collect()
        };
        Self {
            rounds: (0..rounds).map(|_| round()).collect(),
            siblings: [
                SiblingPolicy::RunReadOnly,
                SiblingPolicy::RunAll,
                SiblingPolicy::HoldAll,
            ][chance.below(3)],
            salt: chance.next(),
        }
    }

    fn reply(&self, asked: &Interrupt) -> Reply {
        let id = asked.id.clone();
        let call = asked.call_id.as_ref().unwrap().as_str();
        let salt = call.bytes().fold(self.salt, |salt, byte| {
            salt.wrapping_mul(31).wrapping_add(u64::from(byte))
        });
        let way = Chance::new(salt).below(5);
        if asked.reason == interrupt::CLIENT_TOOL {
            return match way {
                0 => Reply::deny(id, "no"),
                1 => Reply::cancel(id),
                _ => Reply::answer(id, call),
            };
        }
        match way {
            0 => Reply::deny(id, "no"),
            1 => Reply::cancel(id),
            2 => Reply::answer(id, call),
            3 => Reply::approve_edited(id, json!({"n": 7})),
            _ => Reply::approve(id),
        }
    }
}

/// What came of a script, however it was driven.
#[derive(Debug, PartialEq)]
struct Came {
    turns: Vec<String>,
    results: usize,
    ran: Vec<String>,
    protocol: BTreeMap<String, Vec<String>>,
}

fn turns(transcript: &Transcript) -> Vec<String> {
    crate::kit::whole(transcript);
    let turn = |turn: &Turn| {
        let message = turn.as_message();
        let calls: Vec<_> = message
            .tool_calls()
            .map(|c| format!("{} {} {}", c.id, c.name, c.arguments.as_str()))
            .collect();
        let results: Vec<_> = turn
            .results()
            .iter()
            .map(|r| {
                let text = r.outcome.content.text();
                format!("{} {:?} {text}", r.call_id, r.outcome.status)
            })
            .collect();
        format!(
            "{:?} {:?} {calls:?} {results:?}",
            message.role,
            message.text()
        )
    };
    transcript.iter().map(turn).collect()
}

fn came(transcript: &Transcript, log: &Log, minutes: &Minutes) -> Came {
    let mut ran = log.lines();
    ran.sort();
    Came {
        turns: turns(transcript),
        results: transcript.iter().map(|turn| turn.results().len()).sum(),
        ran,
        protocol: minutes.lasting(),
    }
}

async fn live(script: &Script) -> Came {
    let (log, minutes, live) = (Log::default(), Minutes::default(), InterruptHub::new());
    let scene = Scene::new(script.rounds.clone());
    let tools = tools(&log, &minutes, script.siblings, Some(&live));
    let now = scene.world.now();
    let mut request = ChatRequest::user("go");
    loop {
        request.tools = client();
        let agent = scene.model.agent(&tools);
        let ran = drive_with(
            agent,
            request.with_context(scene.world.context()),
            |event| {
                if let Event::Custom(custom) = event
                    && custom.name == "interrupt"
                {
                    let asked: Interrupt = serde_json::from_value(custom.value.clone()).unwrap();
                    live.reply(&Tenant::default(), script.reply(&asked), now)
                        .unwrap();
                }
            },
        )
        .await;
        if *ran.outcome() != Outcome::Interrupted {
            assert_eq!(*ran.outcome(), Outcome::Completed);
            return came(ran.transcript(), &log, &minutes);
        }
        // Only the client's calls are left.
        let asked = ran.asked();
        assert!(asked.iter().all(|ask| ask.reason == interrupt::CLIENT_TOOL));
        let replies = asked.iter().map(|ask| script.reply(ask)).collect();
        request = ChatRequest::resume(ran.state(), replies);
    }
}

async fn resumed(script: &Script) -> Came {
    let (log, minutes) = (Log::default(), Minutes::default());
    let scene = Scene::new(script.rounds.clone());
    let mut request = ChatRequest::user("go");
    loop {
        request.tools = client();
        // Another process each time.
        let tools = tools(&log, &minutes, script.siblings, None);
        let agent = scene.model.agent(&tools);
        let ran = drive(agent, request.with_context(scene.world.context())).await;
        if *ran.outcome() != Outcome::Interrupted {
            assert_eq!(*ran.outcome(), Outcome::Completed);
            return came(ran.transcript(), &log, &minutes);
        }
        let replies = ran.asked().iter().map(|ask| script.reply(ask)).collect();
        request = ChatRequest::resume(ran.state(), replies);
    }
}

async fn by_hand(script: &Script) -> Came {
    let (log, minutes, world) = (Log::default(), Minutes::default(), World::new());
    let fresh = || {
        let tools = tools(&log, &minutes, script.siblings, None);
        ToolLifecycle::new(tools)
            .with_context(world.context())
            .with_client_tools(client())
    };
    let mut before = Transcript::new();
    before.push_user("go");
    let mut lifecycle = fresh().after(before);
    for (at, calls) in script.rounds.iter().enumerate() {
        let parts = calls
            .iter()
            .enumerate()
            .map(|(i, call)| Part::new(PartKind::ToolCall(call_part(at, i, call))));
        let message = Message::new(Role::Assistant, parts.collect())
            .with_id(MessageId::new(format!("m{at}")));
        let mut end = lifecycle.execute_round(message).await.unwrap();
        while let RoundEnd::Suspended(state) = end {
            let state = written(&state);
            let asked = state
                .interrupts()
                .into_iter()
                .map(|ask| script.reply(ask))
                .collect();
            lifecycle = fresh();
            end = lifecycle.resume(state, asked).await.unwrap();
        }
        assert!(matches!(end, RoundEnd::Closed(_)));
        assert!(lifecycle.capture_turn().is_some());
    }
    let done = Turn::message(Message::assistant("done")).unwrap();
    lifecycle.push(done).unwrap();
    came(lifecycle.transcript(), &log, &minutes)
}

paced!(f035_live_resumed_and_by_hand_come_out_the_same);
async fn f035_live_resumed_and_by_hand_come_out_the_same() {
    quietly();
    let (first, cases) = (
        env_or("CONCENTRIC_SEED", 0),
        env_or("CONCENTRIC_CASES", 300),
    );
    let (mut calls, mut results, mut executed, mut different) = (0, 0, 0, 0);
    for seed in first..first + cases {
        let script = Script::by(seed);
        let resumed = resumed(&script).await;
        let live = live(&script).await;
        let by_hand = by_hand(&script).await;
        calls += script.rounds.iter().map(Vec::len).sum::<usize>();
        results += resumed.results;
        executed += resumed.ran.len();
        different += usize::from(resumed != live) + usize::from(resumed != by_hand);
        assert_eq!(
            resumed, live,
            "resumed and live, CONCENTRIC_SEED={seed}: {script:#?}"
        );
        assert_eq!(
            resumed, by_hand,
            "resumed and by hand, CONCENTRIC_SEED={seed}: {script:#?}"
        );
        assert_eq!(calls, results, "CONCENTRIC_SEED={seed}: {script:#?}");
    }
    println!(
        "{cases} runs driven live, resumed and by hand, {calls} calls, {results} results, {executed} \
         executed, {different} differences"
    );
}

// ---- every mix of fates ----

/// What becomes of a call.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Fate {
    /// Nobody is asked, and it is done.
    Done,
    /// It is asked about, answered last, and runs.
    Pending,
    Denied,
    /// Nobody is asked, and it fails.
    Failed,
    Cancelled,
}

const FATES: [Fate; 5] = [
    Fate::Done,
    Fate::Pending,
    Fate::Denied,
    Fate::Failed,
    Fate::Cancelled,
];

/// All rounds of up to five calls.
fn mixes() -> impl Iterator<Item = Vec<Fate>> {
    (1..=5_u32).flat_map(|len| {
        (0..5_usize.pow(len)).map(move |mut code| {
            let mut next = || {
                let fate = FATES[code % 5];
                code /= 5;
                fate
            };
            (0..len).map(|_| next()).collect()
        })
    })
}

fn fate_tools(log: &Log, minutes: &Minutes, siblings: SiblingPolicy) -> Toolset {
    Toolset::new()
        .tool(number("done", log).read_only())
        .tool(number("does", log))
        .tool(failing("fails", log))
        .tool(number("ask", log))
        .gate(Approval::for_tools("ask"))
        .siblings(siblings)
        .trace(minutes.sink())
}

/// Counts of rounds whose calls have one fate each.
#[derive(Debug, Default)]
struct Figures {
    rounds: usize,
    calls: usize,
    results: usize,
    executed: usize,
    twice: usize,
    /// Calls that ran before their approval, or without it.
    unapproved: usize,
}

async fn check_mix(seed: u64, fates: &[Fate], siblings: SiblingPolicy, figures: &mut Figures) {
    let mut chance = Chance::new(seed);
    let calls: Vec<Call> = fates
        .iter()
        .enumerate()
        .map(|(n, fate)| {
            let name = match fate {
                Fate::Done if n % 2 == 0 => "done",
                Fate::Done => "does",
                Fate::Failed => "fails",
                _ => "ask",
            };
            Call::from((name, format!("{{\"n\":{n}}}").as_str()))
        })
        .collect();
    let (log, minutes) = (Log::default(), Minutes::default());
    let tools = || fate_tools(&log, &minutes, siblings);
    let scene = Scene {
        world: World::new(),
        model: Model::new(vec![calls.clone()]),
    };
    let line = |n: usize| format!("{} {n}", calls[n].name);
    let asked_about = |fate: Fate| !matches!(fate, Fate::Done | Fate::Failed);
    let mut decided = vec![false; fates.len()];
    let mut ran: Ran = scene.start(&tools()).await;
    let mut requests = 0;
    while *ran.outcome() == Outcome::Interrupted {
        requests += 1;
        assert!(requests < 20, "it goes on for ever");
        for (n, fate) in fates.iter().enumerate() {
            let times = log.count(&line(n));
            figures.twice += times.saturating_sub(1);
            assert!(times <= 1, "twice");
            if asked_about(*fate) && !decided[n] {
                figures.unapproved += times;
                assert_eq!(times, 0, "an effect before its decision");
            }
        }
        assert!(ran.results().is_empty(), "a result of an open round");
        // Some of the questions are answered, those that stay pending last.
        let of = |ask: &Interrupt| -> usize {
            let id = ask.call_id.as_ref().unwrap().as_str();
            id.rsplit('-').next().unwrap().parse().unwrap()
        };
        let mut open: Vec<_> = ran.asked();
        let early: Vec<_> = open
            .iter()
            .filter(|a| fates[of(a)] != Fate::Pending)
            .cloned()
            .collect();
        if !early.is_empty() {
            open = early;
        }
        let take = 1 + chance.below(open.len());
        while open.len() > take {
            open.remove(chance.below(open.len()));
        }
        let replies = open.iter().map(|ask| {
            let n = of(ask);
            assert!(!decided[n], "asked again");
            decided[n] = true;
            match fates[n] {
                Fate::Denied => Reply::deny(ask.id.clone(), "no"),
                Fate::Cancelled => Reply::cancel(ask.id.clone()),
                _ => Reply::approve(ask.id.clone()),
            }
        });
        let replies = replies.collect();
        ran = scene.resume(&tools(), ran.state(), replies).await;
    }
    assert_eq!(*ran.outcome(), Outcome::Completed);
    let results = ran.results();
    figures.rounds += 1;
    figures.calls += fates.len();
    figures.results += results.len();
    assert_eq!(results.len(), fates.len(), "one result per id");
    for (n, (id, status, _)) in results.iter().enumerate() {
        assert_eq!(id, &format!("call-0-{n}"));
        let (expected, times) = match fates[n] {
            Fate::Done | Fate::Pending => (ToolStatus::Done, 1),
            Fate::Failed => (ToolStatus::Failed, 1),
            Fate::Denied => (ToolStatus::Denied, 0),
            Fate::Cancelled => (ToolStatus::Cancelled, 0),
        };
        assert_eq!(*status, expected);
        let executed = log.count(&line(n));
        figures.executed += executed;
        figures.twice += executed.saturating_sub(1);
        if matches!(fates[n], Fate::Denied | Fate::Cancelled) {
            figures.unapproved += executed;
        }
        assert_eq!(executed, times);
    }
    // The model was asked twice, the second time with all of them.
    assert_eq!(scene.model.requests().len(), 2);
    let last = scene.model.requests()[1].transcript.last().unwrap().clone();
    let own = last
        .as_message()
        .tool_calls()
        .filter(|c| c.executor == Executor::Loop);
    assert_eq!(own.count(), fates.len());
    // Each call is settled once.
    for steps in minutes.lasting().values() {
        let settled = steps
            .iter()
            .filter(|step| step.starts_with("Settled"))
            .count();
        assert_eq!(settled, 1, "{steps:?}");
    }
    let asked = minutes
        .all()
        .into_iter()
        .filter(|e| e.step == TraceStep::Gated("ask"));
    assert_eq!(
        asked.count(),
        fates.iter().filter(|f| asked_about(**f)).count()
    );
}

paced!(f042_every_mix_of_fates_in_rounds_of_up_to_five_calls);
async fn f042_every_mix_of_fates_in_rounds_of_up_to_five_calls() {
    let seed = env_or("CONCENTRIC_SEED", 0);
    let all = [
        SiblingPolicy::RunReadOnly,
        SiblingPolicy::RunAll,
        SiblingPolicy::HoldAll,
    ];
    let mut figures = Figures::default();
    let part = Pace::ALL.iter().position(|of| *of == pace()).unwrap() as u64;
    for (at, fates) in mixes().enumerate() {
        let at = at as u64;
        // Each mix at one pace; a seed that is greater by three is another pace.
        if (at / 3 + seed / 3) % 3 != part {
            continue;
        }
        // Each mix in one mode; another seed is another mode.
        let siblings = all[usize::try_from((at + seed) % 3).unwrap()];
        let salt = seed.wrapping_mul(1_000_003).wrapping_add(at);
        let mix = check_mix(salt, &fates, siblings, &mut figures);
        let caught = futures_util::FutureExt::catch_unwind(std::panic::AssertUnwindSafe(mix));
        assert!(
            caught.await.is_ok(),
            "CONCENTRIC_SEED={seed}, {siblings:?}, {fates:?}"
        );
    }
    let Figures {
        rounds,
        calls,
        results,
        executed,
        twice,
        unapproved,
    } = figures;
    println!(
        "{rounds} rounds of mixed fates, {calls} calls, {results} results, {executed} executed, \
         {twice} executed twice, {unapproved} executed without their approval"
    );
}
