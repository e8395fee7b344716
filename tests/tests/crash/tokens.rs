//! Approvals that nobody keeps a record of, through the whole stack: the token that a question
//! carries is all there is, and who brings it back is not trusted.
//!
//! What the token itself withstands is in `concentric-tools/tests/it/token.rs`.
//!
//! | in the environment | | default |
//! |---|---|---|
//! | `CONCENTRIC_TOKENS` | how many mutations of a token are tried | 1000 |
//! | `CONCENTRIC_REPLAYS` | how often several processes replay one | 5 |
//! | `CONCENTRIC_SEED` | of what is random | random, and printed |

use crate::durable::{
    Dice,
    actor::{Part, block, say, wait},
    agent::{Ahead, SystemRandom},
    setting,
    world::{Class, Entry, World},
};
use concentric_core::{
    AgentLayer, BoxModel, CallId, ChatRequest, ChatResponse, Context, Environment, Error, Event,
    FinishReason, Interrupt, InterruptId, OpenRound, Outcome, Reply, Role, Str, ThreadId,
    ToolCallPart, ToolStatus, Transcript, Usage, context::Ids, store::Tenant,
};
use concentric_store::SqliteStore;
use concentric_tools::{Approval, ApprovalTokens, Toolset, token::TokenKeys, tool};
use futures_util::{StreamExt, stream};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::{path::Path, time::Duration};
use tower::{Layer, ServiceExt, service_fn};

// ---- a service that keeps nothing ----

/// What a service is, who asks it, and what its model says.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Case {
    tenant: String,
    audience: String,
    secret: String,
    message: String,
    /// Tool, id, arguments of each call. The one that it is about is of `wire` or `send`.
    calls: Vec<(String, String, String)>,
    description: String,
    also_asks_about: String,
    days: u64,
}

impl Case {
    fn new() -> Self {
        let call = ("wire", "call_1", r#"{"amount":7}"#);
        Self {
            tenant: "acme".into(),
            audience: "https://one.example".into(),
            secret: "0123456789abcdef0123456789abcdef".into(),
            message: "msg_1".into(),
            calls: vec![(call.0.into(), call.1.into(), call.2.into())],
            description: "Sends money.".into(),
            also_asks_about: "send".into(),
            days: 0,
        }
    }

    /// The same with something else.
    fn but(&self, change: impl FnOnce(&mut Self)) -> Self {
        let mut other = self.clone();
        change(&mut other);
        other
    }

    fn environment(&self) -> Environment {
        Environment::new(
            Ahead(Duration::from_secs(self.days * 24 * 60 * 60)),
            SameMessages(self.message.clone()),
            SystemRandom,
        )
    }

    fn context(&self) -> Context {
        let mut context = Context::builder()
            .thread_id(ThreadId::new("thread"))
            .environment(self.environment())
            .build();
        let tenant = Tenant(self.tenant.as_str().into());
        context.extensions_mut().insert(tenant);
        context
    }

    fn agent(&self, world: &World) -> BoxModel {
        let store = SqliteStore::open(world.file("runs.db")).unwrap();
        let keys = TokenKeys::new("key", self.secret.as_bytes().to_vec()).unwrap();
        let work = |name: &'static str| {
            let (world, description) = (world.clone(), self.description.clone());
            tool(name, description, move |Amount { amount }: Amount| {
                world.log(&Entry::Started {
                    call: amount.to_string(),
                    class: Class::AtMostOnce,
                    key: String::new(),
                    fence: 0,
                });
                async move { format!("{amount} sent") }
            })
        };
        let tools = Toolset::new()
            .tool(work("wire"))
            .tool(work("send"))
            .tool(tool("look", "Looks.", |_: Amount| async { "seen" }).read_only())
            .gate(Approval::for_tools(["wire", self.also_asks_about.as_str()]))
            .gate(Approval::for_tools("send"))
            .tokens(ApprovalTokens::new(keys, self.audience.as_str(), store));
        let calls = self.calls.clone();
        let model = service_fn(move |request: ChatRequest| {
            let is_first = request
                .transcript
                .iter()
                .all(|turn| turn.as_message().role != Role::Assistant);
            let mut events: Vec<Event> = match is_first {
                true => calls.iter().map(call).collect(),
                false => vec![Event::text("done")],
            };
            let reason = match is_first {
                true => FinishReason::ToolCalls,
                false => FinishReason::Stop,
            };
            events.push(Event::finish(reason, Usage::new(1, 1)));
            async { Ok::<_, Error>(ChatResponse::new(stream::iter(events.into_iter().map(Ok)))) }
        });
        BoxModel::new(AgentLayer::new(tools).layer(BoxModel::new(model)))
    }

    /// Has the model make its calls, and returns what a client has then.
    fn ask(&self, world: &World) -> Asked {
        let request = ChatRequest::user("Send it.").with_context(self.context());
        let answer = block(async {
            let response = self.agent(world).oneshot(request).await.unwrap();
            response.collect().await.unwrap()
        });
        assert_eq!(answer.finish.outcome, Outcome::Interrupted);
        let state = answer.finish.state.as_deref().unwrap();
        let asked = state.interrupts();
        assert_eq!(asked.len(), 1);
        Asked {
            transcript: state.transcript().clone(),
            open: state.open_round().unwrap(),
            question: asked[0].clone(),
        }
    }

    /// Brings a history and a reply, as a client does.
    fn bring(&self, world: &World, asked: &Asked, replies: Vec<Reply>) -> Brought {
        let (transcript, open) = (asked.transcript.clone(), asked.open.clone());
        let request = ChatRequest::resume_history(transcript, open, replies);
        let request = request.with_context(self.context());
        block(async {
            let response = self.agent(world).oneshot(request).await;
            let mut body = response.unwrap().body;
            let mut code = None;
            while let Some(item) = body.next().await {
                match item.unwrap() {
                    Event::Custom(custom) if custom.name == "approval-invalid" => {
                        code = Some(custom.value["code"].as_str().unwrap().to_owned());
                    }
                    Event::Finish(finish) => {
                        if finish.outcome == Outcome::Interrupted {
                            let asked = finish.interrupts();
                            return Brought::Question(Box::new(asked[0].clone()));
                        }
                        let transcript = finish.transcript.unwrap();
                        let id = asked.question.call_id.as_ref().unwrap();
                        let result = transcript
                            .iter()
                            .flat_map(|turn| turn.results().to_vec())
                            .find(|result| result.call_id == *id)
                            .unwrap();
                        let outcome = result.outcome;
                        return Brought::Result {
                            text: outcome.content.text().into_owned(),
                            status: outcome.status,
                            code,
                        };
                    }
                    _ => {}
                }
            }
            panic!("it has no end");
        })
    }
}

fn call((tool, id, arguments): &(String, String, String)) -> Event {
    Event::tool_call(ToolCallPart::new(
        CallId::new(id.as_str()),
        tool.as_str(),
        arguments.as_str(),
    ))
}

#[derive(Deserialize, JsonSchema)]
struct Amount {
    amount: u64,
}

/// What a client has that was asked.
#[derive(Clone, Debug)]
struct Asked {
    transcript: Transcript,
    open: OpenRound,
    question: Interrupt,
}

impl Asked {
    fn token(&self) -> &str {
        self.question.metadata["token"].as_str().unwrap()
    }

    fn approve(&self, token: &str) -> Vec<Reply> {
        vec![Reply::approve(self.question.id.clone()).with_token(token)]
    }
}

/// What came of it.
#[derive(Debug)]
enum Brought {
    Question(Box<Interrupt>),
    Result {
        text: String,
        status: ToolStatus,
        code: Option<String>,
    },
}

impl Brought {
    fn is_done(&self) -> bool {
        matches!(self, Self::Result { text, status: ToolStatus::Done, .. } if text.ends_with("sent"))
    }

    /// The model was told that it was not run, and the host why.
    fn assert_refused(&self, wanted: Option<&str>, about: &str) {
        let Self::Result { text, status, code } = self else {
            panic!("{about}: {self:?}");
        };
        // What was decided about before may have been run then, and without a ledger nobody knows.
        let expected = match code.as_deref() {
            Some("used") => ToolStatus::Unknown,
            _ => ToolStatus::Denied,
        };
        assert_eq!(*status, expected, "{about}: {self:?}");
        match wanted {
            // The model may ask again.
            Some("changed") => assert!(text.contains("changed after"), "{about}: {text}"),
            wanted => {
                assert!(text.starts_with("approval-invalid"), "{about}: {text}");
                assert!(code.is_some(), "{about}: {text}");
                if wanted.is_some() {
                    assert_eq!(code.as_deref(), wanted, "{about}");
                }
            }
        }
    }
}

/// Names all messages alike, so that nothing else tells two questions apart.
struct SameMessages(String);

impl Ids for SameMessages {
    fn next(&self, prefix: &str) -> Str {
        match prefix {
            "msg_" => self.0.as_str().into(),
            _ => Environment::system().ids().next(prefix),
        }
    }
}

fn runs(world: &World) -> usize {
    world.entries().len()
}

fn world() -> (tempfile::TempDir, World) {
    let dir = tempfile::tempdir().unwrap();
    let world = World::new(dir.path());
    (dir, world)
}

// ---- the tests ----

#[test]
fn c070_c071_f038_a_token_is_for_the_one_call_that_it_was_asked_about() {
    type Change = fn(&mut Case);
    let changes: &[(&str, &str, Change)] = &[
        ("tenant", "tenant", |c| c.tenant = "other".into()),
        ("audience", "audience", |c| {
            c.audience = "https://two.example".into()
        }),
        ("key", "forged", |c| {
            c.secret = "fedcba9876543210fedcba9876543210".into()
        }),
        ("message", "message", |c| c.message = "msg_2".into()),
        ("call", "call", |c| c.calls[0].1 = "call_2".into()),
        ("tool", "tool", |c| c.calls[0].0 = "send".into()),
        ("arguments", "arguments", |c| {
            c.calls[0].2 = r#"{"amount":8}"#.into()
        }),
        ("position", "position", |c| {
            let look = ("look".into(), "look_1".into(), r#"{"amount":1}"#.into());
            c.calls.insert(0, look);
        }),
        ("definition", "changed", |c| {
            c.description = "Burns money.".into()
        }),
        ("policy", "changed", |c| c.also_asks_about = "se*".into()),
    ];
    let (_dir, world) = world();
    let base = Case::new();
    let asked = base.ask(&world);
    let mut refused = 0;
    for (name, code, change) in changes {
        let other = base.but(change);
        let theirs = other.ask(&world);
        // Either's token for either's question.
        for (case, at, token) in [
            (&other, &theirs, asked.token()),
            (&base, &asked, theirs.token()),
        ] {
            let brought = case.bring(&world, at, at.approve(token));
            brought.assert_refused(Some(code), name);
            refused += 1;
            assert_eq!(runs(&world), 0, "{name}");
        }
        // One's question and token to the other's service.
        if asked.open == theirs.open {
            let brought = other.bring(&world, &asked, asked.approve(asked.token()));
            brought.assert_refused(Some(code), name);
            refused += 1;
        }
        assert_eq!(runs(&world), 0, "{name}");
    }
    // The question by another name.
    let mut reply = asked.approve(asked.token());
    reply[0].interrupt_id = InterruptId::new(format!("{}#x", asked.question.id));
    let brought = base.bring(&world, &asked, reply);
    brought.assert_refused(Some("interrupt"), "interrupt");
    // Late, and without.
    let late = base.but(|c| c.days = 2);
    let brought = late.bring(&world, &asked, asked.approve(asked.token()));
    brought.assert_refused(Some("expired"), "late");
    let without = vec![Reply::approve(asked.question.id.clone())];
    base.bring(&world, &asked, without)
        .assert_refused(Some("missing"), "without");
    assert_eq!(runs(&world), 0);

    println!(
        "{refused} tokens brought to other calls or services refused, {} calls executed",
        runs(&world)
    );
    // None of it has used the token up; its use does.
    let brought = base.bring(&world, &asked, asked.approve(asked.token()));
    assert!(brought.is_done(), "{brought:?}");
    for _ in 0..3 {
        let again = base.bring(&world, &asked, asked.approve(asked.token()));
        again.assert_refused(Some("used"), "again");
    }
    assert_eq!(runs(&world), 1);
}

#[test]
fn no_mutation_of_a_token_runs_a_call() {
    let mut dice = Dice::cast();
    let mutations: u64 = setting("CONCENTRIC_TOKENS", 1000);
    let (_dir, world) = world();
    let case = Case::new();
    let asked = case.ask(&world);
    let token = asked.token().as_bytes();
    let (mut tried, mut refused) = (0, 0);
    while tried < mutations {
        let mut bytes = token.to_vec();
        for _ in 0..=dice.below(3) {
            let at = dice.below(bytes.len() as u64) as usize;
            let other = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_.=~";
            let byte = other[dice.below(other.len() as u64) as usize];
            match dice.below(5) {
                0 | 1 => bytes[at] = byte,
                2 => bytes.insert(at, byte),
                3 if bytes.len() > 1 => drop(bytes.remove(at)),
                _ => {
                    let to = dice.below(bytes.len() as u64) as usize;
                    bytes.swap(at, to);
                }
            }
        }
        if bytes == token {
            continue;
        }
        tried += 1;
        let text = String::from_utf8(bytes).unwrap();
        let brought = case.bring(&world, &asked, asked.approve(&text));
        brought.assert_refused(None, &text);
        refused += 1;
    }
    println!(
        "{tried} mutations of a token through the whole stack, {refused} refused, {} calls executed",
        runs(&world)
    );
    assert_eq!(runs(&world), 0);
    let brought = case.bring(&world, &asked, asked.approve(asked.token()));
    assert!(brought.is_done(), "{brought:?}");
    assert_eq!(runs(&world), 1);
}

// Whoever lists a question again gets another token for it.
#[test]
fn f038_a_question_that_was_asked_twice_is_answered_once() {
    for (first, second) in [(true, true), (false, true), (true, false)] {
        let (_dir, world) = world();
        let case = Case::new();
        let asked = case.ask(&world);
        let Brought::Question(again) = case.bring(&world, &asked, Vec::new()) else {
            panic!("it was not asked again");
        };
        assert_eq!(again.id, asked.question.id);
        let other = again.metadata["token"].as_str().unwrap();
        assert_ne!(other, asked.token());
        let reply = |approved: bool, token: &str| {
            let id = asked.question.id.clone();
            let reply = match approved {
                true => Reply::approve(id),
                false => Reply::deny(id, "no"),
            };
            vec![reply.with_token(token)]
        };
        let brought = case.bring(&world, &asked, reply(first, asked.token()));
        assert_eq!(brought.is_done(), first, "{brought:?}");
        let brought = case.bring(&world, &asked, reply(second, other));
        brought.assert_refused(Some("used"), "the other token");
        assert_eq!(runs(&world), usize::from(first));
    }
}

/// Replays a token when it is told to.
#[test]
#[ignore = "a child process of the test below"]
fn replayer() {
    let Some(part) = Part::mine() else { return };
    let world = part.world();
    let (case, asked, token) = read(&part.extra);
    say("ready");
    wait();
    let brought = case.bring(&world, &asked, asked.approve(&token));
    match brought.is_done() {
        true => say("done"),
        false => {
            brought.assert_refused(Some("used"), "replayed");
            say("refused");
        }
    }
}

/// What a client keeps, as text.
fn write(case: &Case, asked: &Asked, token: &str) -> String {
    let message = asked.open.message();
    let all = (case, &asked.transcript, message, &asked.question, token);
    serde_json::to_string(&all).unwrap()
}

fn read(text: &str) -> (Case, Asked, String) {
    let (case, transcript, message, question, token) = serde_json::from_str(text).unwrap();
    let asked = Asked {
        transcript,
        open: OpenRound::new(message).unwrap(),
        question,
    };
    (case, asked, token)
}

#[test]
fn f038_of_several_processes_that_replay_a_token_one_runs_the_call() {
    let replays: usize = setting("CONCENTRIC_REPLAYS", 5);
    let (mut processes, mut executed, mut refusals, mut effects) = (0, 0, 0, 0);
    for replay in 0..replays {
        let (dir, world) = world();
        let case = Case::new();
        let asked = case.ask(&world);
        let mut part = Part::new(Path::new(dir.path()), "");
        part.extra = write(&case, &asked, asked.token());
        let mut replayers: Vec<_> = (0..2 + replay % 7)
            .map(|_| part.start("tokens::replayer"))
            .collect();
        for process in &mut replayers {
            assert_eq!(process.hear().as_deref(), Some("ready"));
        }
        for process in &mut replayers {
            process.go();
        }
        let said = replayers.iter_mut().map(|process| process.hear());
        let said: Vec<_> = said.map(Option::unwrap).collect();
        let done = said.iter().filter(|said| *said == "done").count();
        let refused = said.iter().filter(|said| *said == "refused").count();
        processes += said.len();
        executed += done;
        refusals += refused;
        effects += runs(&world);
        assert_eq!((done, refused), (1, said.len() - 1), "{said:?}");
        assert_eq!(runs(&world), 1);
    }
    println!(
        "{replays} tokens replayed by {processes} processes, {executed} executed the call, \
         {refusals} refused, {effects} effects"
    );
}
