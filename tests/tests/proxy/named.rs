//! Each fault by itself, for each API.

use super::{
    check::{Outcome, check, read},
    dice::Dice,
    faults::{Case, Fault, RETRY_AFTER, limits},
    http::{Framing, head, last_chunk, piece, start, whole},
    memory::{MIB, Watch, alone, shared},
    server::{Act, LIMIT, Server},
    wire::{Api, CALLS, CANARY},
};
use concentric_core::{AgentLayer, BoxModel, ErrorKind, Event};
use concentric_providers::{HttpClient, Limits, Timeouts};
use concentric_tools::{Toolset, tool};
use schemars::JsonSchema;
use serde::Deserialize;
use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};
use tokio::time::timeout;
use tower::ServiceBuilder;

/// The servers of a test.
struct Rig {
    client: HttpClient,
    server: Server,
    elsewhere: Server,
    dice: Dice,
    next: u64,
}

impl Rig {
    async fn new() -> Self {
        Self {
            client: HttpClient::new().unwrap(),
            server: Server::start().await,
            elsewhere: Server::start().await,
            dice: Dice::cast(),
            next: 0,
        }
    }

    fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    async fn check(&mut self, api: Api, case: Case) -> Outcome {
        let number = self.number();
        check(api, &self.client, &self.server, number, case).await
    }

    /// Has each API meet each of the faults, so many times.
    async fn faults(&mut self, faults: &[Fault], times: u64) {
        for api in Api::ALL {
            for fault in faults.iter().filter(|fault| fault.is_of(api)) {
                for _ in 0..times {
                    println!("{api:?} {fault:?}");
                    let elsewhere = self.elsewhere.url(0);
                    let case = fault.case(api, &elsewhere, &mut self.dice);
                    self.check(api, case).await;
                }
            }
        }
    }
}

#[tokio::test]
async fn f001_an_answer_that_ends_before_it_is_whole_is_truncated() {
    let _shared = shared().await;
    let mut rig = Rig::new().await;
    for api in Api::ALL {
        let answer = api.answer("a");
        for frames in 0..answer.frames.len() {
            let said = answer.frames[..frames].concat();
            if said.len() > answer.short_of_whole() {
                break;
            }
            let typed = [("content-type", api.content_type())];
            let case = Case {
                acts: whole(200, &typed, said.as_bytes(), &mut rig.dice),
                timeouts: Timeouts::off(),
                fails: Some(Fault::Empty.case(api, "", &mut rig.dice).fails.unwrap()),
            };
            rig.check(api, case).await;
        }
    }
    rig.faults(&[Fault::Ended, Fault::Empty], 5).await;
}

#[derive(Deserialize, JsonSchema)]
#[allow(dead_code, reason = "never called")]
struct Anything {
    city: Option<String>,
    seats: Option<u32>,
}

#[tokio::test]
async fn f002_no_tool_is_called_by_what_is_cut() {
    let _shared = shared().await;
    let mut rig = Rig::new().await;
    let (mut cut, mut executed) = (0, 0);
    for api in Api::ALL {
        let answer = api.answer("a");
        let bytes = answer.bytes();
        // At every seventh byte of the calls, by turns as if it were whole, closed and reset.
        for (turn, k) in (answer.first_call()..=answer.short_of_whole())
            .step_by(7)
            .enumerate()
        {
            let typed = [("content-type", api.content_type())];
            let framing = Framing::Chunked;
            let head = head(200, &typed, framing);
            let mut acts = start(head, framing, &bytes[..k], 1000, &mut rig.dice);
            acts.extend(match turn % 3 {
                0 => Some(last_chunk()),
                1 => Some(Act::Reset),
                _ => None,
            });
            let number = rig.number();
            let script = rig.server.script(number, acts);
            let model = api.model(&rig.client, &rig.server, number, limits(), Timeouts::off());
            let called = Arc::new(AtomicUsize::new(0));
            let tools = CALLS.iter().fold(Toolset::new(), |tools, (name, _)| {
                let called = Arc::clone(&called);
                tools.tool(tool(*name, "", move |_: Anything| {
                    called.fetch_add(1, Ordering::SeqCst);
                    async { "done" }
                }))
            });
            let agent = ServiceBuilder::new()
                .layer(AgentLayer::new(tools))
                .service(model);
            let outcome = timeout(LIMIT, read(BoxModel::new(agent), script.request())).await;
            let outcome = outcome.unwrap();
            let kind = outcome.error.unwrap().kind();
            let expected = match turn % 3 {
                0 => ErrorKind::Truncated,
                _ => ErrorKind::Connection,
            };
            assert_eq!(kind, expected, "{api:?} at {k}");
            cut += 1;
            executed += called.load(Ordering::SeqCst);
            assert_eq!(called.load(Ordering::SeqCst), 0, "{api:?} at {k}");
            script.closed().await;
        }
    }
    println!("{cut} answers cut within their tool calls, {executed} tools called");
}

#[tokio::test]
async fn f005_an_answer_is_the_same_in_pieces_of_a_byte() {
    let _shared = shared().await;
    let mut rig = Rig::new().await;
    for api in Api::ALL {
        let bytes = api.answer("a").bytes();
        for framing in [
            Framing::Chunked,
            Framing::Length(bytes.len()),
            Framing::Close,
        ] {
            let typed = [("content-type", api.content_type())];
            let head = head(200, &typed, framing);
            let mut acts = start(head, framing, &bytes, 1, &mut rig.dice);
            acts.extend((framing == Framing::Chunked).then(last_chunk));
            let case = Case {
                acts,
                timeouts: Timeouts::off(),
                fails: None,
            };
            rig.check(api, case).await;
        }
    }
    rig.faults(&[Fault::None, Fault::WrongHead], 10).await;
}

#[tokio::test]
async fn f007_an_error_within_an_answer_is_typed() {
    let _shared = shared().await;
    Rig::new().await.faults(&[Fault::ErrorEvent], 5).await;
}

#[tokio::test]
async fn f008_a_second_answer_in_one_body_is_an_error() {
    let _shared = shared().await;
    Rig::new().await.faults(&[Fault::Restarted], 5).await;
}

#[tokio::test]
async fn f009_what_stalls_and_what_drips_is_late() {
    let _shared = shared().await;
    let late = [
        Fault::StalledHead,
        Fault::DrippedHead,
        Fault::Stalled,
        Fault::StalledEnd,
        Fault::Dripped,
        Fault::Pings,
        Fault::Slow,
    ];
    Rig::new().await.faults(&late, 1).await;
}

#[tokio::test]
async fn f010_what_has_no_end_is_too_large() {
    let _alone = alone().await;
    let mut rig = Rig::new().await;
    let memory = Watch::start();
    let endless = [
        Fault::EndlessLine,
        Fault::EndlessEvent,
        Fault::EndlessBody,
        Fault::EndlessArguments,
        Fault::ManyCalls,
        Fault::EndlessError,
    ];
    rig.faults(&endless, 1).await;
    assert!(memory.grown() < limits().response as u64 + 16 * MIB);
}

#[tokio::test]
async fn f010_a_line_without_an_end_takes_no_more_than_its_limit() {
    let _alone = alone().await;
    let mut rig = Rig::new().await;
    let most = Limits::default();
    // The largest first, so that it is not measured with what the allocator keeps of the others.
    for api in Api::ALL.into_iter().rev() {
        let typed = [("content-type", api.content_type())];
        let (begun, cap) = match api {
            Api::Ollama => ("{\"x\":\"", most.event),
            _ => ("data: {\"x\":\"", most.line),
        };
        let memory = Watch::start();
        let acts = vec![
            Act::Send(head(200, &typed, Framing::Close).into()),
            Act::Send(begun.into()),
            Act::Flood(piece(Framing::Close, &[b'x'; 64 * 1024])),
        ];
        let number = rig.number();
        let script = rig.server.script(number, acts);
        let model = api.model(&rig.client, &rig.server, number, most, Timeouts::off());
        let outcome = timeout(LIMIT, read(model, script.request())).await.unwrap();
        assert_eq!(
            outcome.error.unwrap().kind(),
            ErrorKind::TooLarge,
            "{api:?}"
        );
        script.closed().await;
        let grown = memory.grown();
        assert!(grown < cap as u64 + 16 * MIB, "{api:?}: {grown}");
    }
}

#[tokio::test]
async fn f017_a_full_limit_says_when_to_come_back() {
    let _shared = shared().await;
    let mut rig = Rig::new().await;
    for api in Api::ALL {
        for (name, value, retry_after) in RETRY_AFTER {
            let mut case = Fault::RateLimited.case(api, "", &mut rig.dice);
            case.acts = whole(429, &[(name, value)], b"slow down", &mut rig.dice);
            case.fails.as_mut().unwrap().retry_after = retry_after;
            let error = rig.check(api, case).await.error.unwrap();
            assert!(error.is_retryable());
        }
    }
}

#[tokio::test]
async fn f018_what_fails_before_the_first_byte_may_be_tried_again() {
    let _shared = shared().await;
    let mut rig = Rig::new().await;
    let faults = [
        Fault::CutHead,
        Fault::ResetHead,
        Fault::Unavailable,
        Fault::EndlessError,
        Fault::StalledError,
        Fault::CutError,
        Fault::NoHttp,
    ];
    for api in Api::ALL {
        for fault in faults {
            let case = fault.case(api, "", &mut rig.dice);
            let outcome = rig.check(api, case).await;
            assert!(outcome.events.is_empty());
            assert!(outcome.error.unwrap().is_retryable(), "{api:?} {fault:?}");
        }
    }
}

#[tokio::test]
async fn f019_a_connection_that_breaks_repeats_nothing() {
    let _shared = shared().await;
    let breaks = [Fault::Cut, Fault::Reset, Fault::NoChunk];
    Rig::new().await.faults(&breaks, 5).await;
}

#[tokio::test]
async fn f022_what_is_no_answer_is_an_error() {
    let _shared = shared().await;
    let mut rig = Rig::new().await;
    let faults = [
        Fault::NoAnswer,
        Fault::NoEvent,
        Fault::Page,
        Fault::BadGateway,
        Fault::Empty,
        Fault::Redirect,
        Fault::Compressed,
    ];
    rig.faults(&faults, 3).await;
    assert_eq!(rig.elsewhere.accepted(), 0, "the key went elsewhere");
}

#[tokio::test]
async fn f055_a_key_that_comes_back_is_not_shown() {
    let _shared = shared().await;
    let mut rig = Rig::new().await;
    let said = format!(r#"{{"error":{{"message":"no {CANARY}","code":"{CANARY}"}}}}"#);
    for api in Api::ALL {
        for status in [200, 401, 500] {
            let number = rig.number();
            let typed = [("content-type", "application/json")];
            let acts = whole(status, &typed, said.as_bytes(), &mut rig.dice);
            let script = rig.server.script(number, acts);
            let timeouts = Timeouts::off().total(Duration::from_secs(60));
            let model = api.model(&rig.client, &rig.server, number, limits(), timeouts);
            let outcome = read(model, script.request()).await;
            assert!(!outcome.events.iter().any(Event::is_content));
            let error = outcome.error.unwrap();
            let shown = format!("{error:#} {error:?} {:?}", error.code());
            assert!(!shown.contains(CANARY), "{shown}");
        }
    }
}
