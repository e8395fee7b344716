//! The fields of an envelope.
//!
//! A failing case of the property prints its seed, which is stored in
//! `envelope.proptest-regressions`.

use concentric_core::{
    CallId, Context, CustomEvent, Error, ErrorKind, Event, Executor, FinishReason, Interrupt,
    InterruptId, Message, MessageId, OpenRound, Outcome, Part, PartKind, Reply, Role, RunId,
    StepFinish, StepStart, SubAgentEvent, Suspension, ThreadId, ToolCallDelta, ToolCallPart,
    ToolCallStart, ToolOutcome, ToolResult, ToolSpec, ToolSpecs, Transcript, Usage, interrupt,
    machine::{Action, Input, Machine, ModelStart, RunLimits, RunState},
};
use concentric_layers::{Envelope, Envelopes};
use futures_util::{FutureExt, Stream, StreamExt, stream};
use proptest::{prelude::*, test_runner::FileFailurePersistence};
use serde_json::{Value, json};
use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
    task::Poll,
    time::SystemTime,
};

fn context() -> Context {
    Context::builder()
        .run_id(RunId::new("run"))
        .thread_id(ThreadId::new("thread"))
        .agent("clerk")
        .build()
}

fn body(events: Vec<Event>) -> impl Stream<Item = Result<Event, Error>> + Unpin {
    stream::iter(events.into_iter().map(Ok))
}

fn read<B>(envelopes: &mut Envelopes<B>) -> Vec<Envelope>
where
    B: Stream<Item = Result<Event, Error>> + Unpin,
{
    let all = envelopes.map(Result::unwrap).collect();
    FutureExt::now_or_never(all).unwrap()
}

fn of(events: Vec<Event>) -> Vec<Envelope> {
    read(&mut Envelopes::new(body(events), &context()))
}

fn ids(envelopes: &[Envelope]) -> Vec<&str> {
    let ids = envelopes.iter().map(|e| e.correlation_id.as_str());
    ids.collect()
}

fn start(step: u32) -> Event {
    let message = MessageId::new(format!("m{step}"));
    Event::StepStart(Box::new(StepStart::new(step, message)))
}

fn step_finish(step: u32) -> Event {
    let finish = StepFinish::new(step, FinishReason::ToolCalls, Usage::new(1, 1));
    Event::StepFinish(Box::new(finish))
}

fn begins(index: u32, id: &str) -> Event {
    Event::ToolCallStart(Box::new(ToolCallStart::new(index, CallId::new(id), "act")))
}

fn delta(index: u32) -> Event {
    Event::ToolCallDelta(ToolCallDelta::new(index, "{}"))
}

fn part(id: &str) -> ToolCallPart {
    ToolCallPart::new(CallId::new(id), "act", "{}")
}

fn call(id: &str) -> Event {
    Event::tool_call(part(id).executed_by(Executor::Agent))
}

fn result(id: &str) -> Event {
    let outcome = ToolOutcome::done("yes");
    Event::ToolResult(Box::new(ToolResult::new(CallId::new(id), "act", outcome)))
}

fn custom(id: Option<&str>) -> Event {
    let custom = CustomEvent::new("progress", json!(1));
    Event::Custom(Box::new(match id {
        Some(id) => custom.for_call(CallId::new(id)),
        None => custom,
    }))
}

fn finish() -> Event {
    Event::finish(FinishReason::Stop, Usage::new(1, 1))
}

fn inside(run: &str, call: &str, event: Event) -> Event {
    let call = Some(CallId::new(call));
    let event = SubAgentEvent::new(RunId::new(run), None, call, event);
    Event::SubAgent(Box::new(event))
}

// ---- the wire format ----

#[test]
fn an_envelope_has_the_documented_wire_format() {
    let envelopes = of(vec![
        custom(None),
        start(0),
        begins(0, "c"),
        inside("sub", "c", Event::text("hi")),
    ]);
    let wire = |seq: u64, correlation: &str, event: Value| {
        json!({
            "version": 1, "seq": seq, "run_id": "run", "thread_id": "thread", "agent": "clerk",
            "step": 0, "correlation_id": correlation, "event": event,
        })
    };
    let mut first = wire(
        0,
        "run",
        json!({"custom": {"name": "progress", "value": 1}}),
    );
    first.as_object_mut().unwrap().remove("step");
    let start = json!({"step_start": {"step": 0, "message_id": "m0"}});
    let begins = json!({"tool_call_start": {"index": 0, "id": "c", "name": "act"}});
    let within = json!({"sub_agent": {
        "run_id": "sub", "call_id": "c", "event": {"text_delta": "hi"},
    }});
    let mut last = wire(3, "m0/0/c", within);
    last["inner"] = json!(["sub"]);
    let golden = [first, wire(1, "m0", start), wire(2, "m0/0/c", begins), last];
    for (envelope, golden) in envelopes.iter().zip(&golden) {
        assert_eq!(&serde_json::to_value(envelope).unwrap(), golden);
        let read: Envelope = serde_json::from_value(golden.clone()).unwrap();
        assert_eq!(&read, envelope);
    }
    assert_eq!(envelopes.len(), golden.len());
}

#[test]
fn absent_thread_and_agent_are_omitted() {
    let context = Context::builder().run_id(RunId::new("run")).build();
    let text = vec![Event::text("hi")];
    let envelopes = read(&mut Envelopes::new(body(text), &context));
    assert_eq!(
        serde_json::to_value(&envelopes[0]).unwrap(),
        json!({"version": 1, "seq": 0, "run_id": "run", "correlation_id": "run",
            "event": {"text_delta": "hi"}})
    );
}

#[test]
fn other_versions_are_rejected_and_other_fields_ignored() {
    let envelopes = of(vec![Event::text("hi")]);
    let mut wire = serde_json::to_value(&envelopes[0]).unwrap();
    wire["since"] = json!("1.1");
    let read: Envelope = serde_json::from_value(wire.clone()).unwrap();
    assert_eq!(read, envelopes[0]);
    wire["version"] = json!(2);
    let error = serde_json::from_value::<Envelope>(wire).unwrap_err();
    assert!(error.to_string().contains("version 2"), "{error}");
}

// ---- sequence numbers ----

#[test]
fn sequence_numbers_continue_after_the_last_stream() {
    let mut first = Envelopes::new(body(vec![start(0), finish()]), &context());
    read(&mut first);
    assert_eq!(first.next_seq(), 2);
    let second = Envelopes::new(body(vec![Event::Resumed, finish()]), &context());
    let mut second = second.starting_at(first.next_seq());
    let seqs: Vec<u64> = read(&mut second).iter().map(|e| e.seq).collect();
    assert_eq!(seqs, [2, 3]);
}

#[test]
fn an_error_is_passed_through_without_a_number() {
    let error = Error::new(ErrorKind::Server, "it broke").with_code("E7");
    let items = stream::iter([Ok(Event::text("hi")), Err(error)]);
    let mut body = Envelopes::new(items, &context());
    let mut next = || body.next().now_or_never().unwrap();
    assert_eq!(next().unwrap().unwrap().seq, 0);
    let error = next().unwrap().unwrap_err();
    assert_eq!(
        (error.kind(), error.code()),
        (ErrorKind::Server, Some("E7"))
    );
    assert!(next().is_none());
    assert_eq!(body.next_seq(), 1);
}

#[test]
fn the_size_hint_is_that_of_the_body() {
    let envelopes = Envelopes::new(body(vec![start(0), finish()]), &context());
    assert_eq!(envelopes.size_hint(), (2, Some(2)));
}

// ---- correlation ids ----

#[test]
fn answers_correlate_with_their_message_and_the_rest_with_runs() {
    let part = Event::Part(Box::new(Part::new(PartKind::Text("hm".into()))));
    let envelopes = of(vec![
        Event::State(Arc::new(json!({}))),
        start(0),
        Event::text("a"),
        Event::ReasoningDelta("b".into()),
        part,
        custom(None),
        step_finish(0),
        start(1),
        Event::text("c"),
        Event::Reset,
        finish(),
    ]);
    assert_eq!(
        ids(&envelopes),
        [
            "run", "m0", "m0", "m0", "m0", "run", "m0", "m1", "m1", "m1", "run"
        ]
    );
    let steps: Vec<_> = envelopes.iter().map(|e| e.step).collect();
    let (before, rest) = steps.split_first().unwrap();
    assert_eq!(*before, None);
    assert_eq!(rest[..6], [Some(0); 6]);
    assert_eq!(rest[6..], [Some(1); 4]);
}

#[test]
fn a_model_call_in_the_loop_is_identified_by_context() {
    let context = context().at_step(3, MessageId::new("m"));
    let events = vec![Event::text("a"), begins(0, "c"), call("c"), finish()];
    let envelopes = read(&mut Envelopes::new(body(events), &context));
    assert_eq!(ids(&envelopes), ["m", "m/0/c", "m/0/c", "run"]);
    assert_eq!(envelopes[0].step, Some(3));
}

#[test]
fn calls_of_a_message_without_an_id_are_distinguished() {
    let envelopes = of(vec![begins(0, "c"), call("c"), begins(1, "c"), call("c~2")]);
    assert_eq!(
        ids(&envelopes),
        ["run/0/0/c", "run/0/0/c", "run/0/1/c", "run/0/1/c"]
    );
}

#[test]
fn concurrently_streamed_calls_are_distinguished() {
    let envelopes = of(vec![
        start(0),
        begins(0, "a"),
        begins(1, "b"),
        delta(0),
        delta(1),
        delta(0),
        call("a"),
        call("b"),
        step_finish(0),
        custom(Some("b")),
        custom(Some("a")),
        result("b"),
        // A result that is emitted before the round is closed.
        custom(Some("b")),
        result("a"),
    ]);
    let (a, b) = ("m0/0/a", "m0/1/b");
    assert_eq!(
        ids(&envelopes),
        ["m0", a, b, a, b, a, a, b, "m0", b, a, b, b, a]
    );
}

#[test]
fn repeated_call_ids_are_distinguished_within_and_across_messages() {
    let round = |step| {
        vec![
            start(step),
            begins(0, "c"),
            begins(1, "c"),
            call("c"),
            call("c~2"),
            step_finish(step),
            result("c"),
            result("c~2"),
        ]
    };
    let envelopes = of([round(0), round(1)].concat());
    let (a, b, c, d) = ("m0/0/c", "m0/1/c", "m1/0/c", "m1/1/c");
    assert_eq!(
        ids(&envelopes),
        ["m0", a, b, a, b, "m0", a, b, "m1", c, d, c, d, "m1", c, d]
    );
}

#[test]
fn a_provider_call_correlates_but_has_no_round_position() {
    let of_provider = part("p").executed_by(Executor::Provider);
    let envelopes = of(vec![
        start(0),
        Event::Part(Box::new(Part::new(PartKind::ToolCall(of_provider)))),
        result("p"),
        call("c"),
        result("c"),
    ]);
    assert_eq!(
        ids(&envelopes),
        ["m0", "m0/-/p", "m0/-/p", "m0/0/c", "m0/0/c"]
    );
}

#[test]
fn a_nested_agent_may_reuse_an_id_in_each_round() {
    let events = vec![
        start(0),
        begins(0, "c"),
        call("c"),
        result("c"),
        begins(0, "c"),
        Event::Reset,
        begins(0, "c"),
        call("c"),
        result("c"),
    ];
    let envelopes = of(events);
    let (a, b) = ("m0/0/c", "m0/1/c");
    assert_eq!(ids(&envelopes), ["m0", a, a, a, b, "m0", b, b, b]);
}

#[test]
fn a_repeated_call_keeps_the_key_of_its_tool() {
    let envelopes = of(vec![
        start(0),
        call("void"),
        Event::Reset,
        call("c"),
        result("c"),
    ]);
    assert_eq!(ids(&envelopes)[3..], ["m0/0/c", "m0/0/c"]);
}

#[test]
fn an_unknown_call_still_has_one_id() {
    let envelopes = of(vec![Event::Resumed, custom(Some("c")), result("c")]);
    assert_eq!(ids(&envelopes), ["run", "run/c", "run/c"]);
}

#[test]
fn a_resumed_stream_identifies_the_calls_of_its_round() {
    let asked = of(vec![start(0), begins(0, "a"), call("a"), call("b")]);
    let calls = ["a", "b"].map(|id| Part::new(PartKind::ToolCall(part(id))));
    let mut message = Message::new(Role::Assistant, calls.into());
    message.id = Some(MessageId::new("m0"));
    let open = OpenRound::new(message).unwrap();
    let events = vec![Event::Resumed, custom(Some("a")), result("a"), result("b")];
    let resumed = Envelopes::new(body(events), &context()).with_open_round(&open);
    let resumed = read(&mut { resumed });
    let (a, b) = ("m0/0/a", "m0/1/b");
    assert_eq!(ids(&asked), ["m0", a, a, b]);
    assert_eq!(ids(&resumed), ["run", a, a, b]);
}

#[test]
fn events_of_a_nested_run_correlate_with_the_outer_call() {
    let deep = |event| inside("sub", "c", inside("deep", "d", event));
    let envelopes = of(vec![
        start(0),
        call("c"),
        inside("sub", "c", start(7)),
        inside("sub", "c", call("d")),
        deep(Event::text("hi")),
        deep(finish()),
        inside("sub", "c", result("d")),
        inside("sub", "c", finish()),
        result("c"),
    ]);
    let (outer, rest) = envelopes.split_at(2);
    assert_eq!(ids(outer), ["m0", "m0/0/c"]);
    assert!(outer.iter().all(|e| e.inner.is_empty()));
    assert!(ids(rest).iter().all(|id| *id == "m0/0/c"));
    let inner: Vec<String> = rest.iter().map(|e| e.inner.join(" ")).collect();
    let d = "m7/0/d";
    assert_eq!(inner, ["m7", d, "m7/0/d deep", "m7/0/d deep", d, "sub", ""]);
    // The step belongs to the run of the outer stream.
    assert!(rest.iter().all(|e| e.step == Some(0)));
}

#[test]
fn stored_keys_are_dropped_with_their_round() {
    let events = vec![
        start(0),
        begins(0, "secret"),
        begins(1, "void-secret"),
        call("secret"),
        inside("secret-run", "secret", Event::text("hi")),
        step_finish(0),
        result("secret"),
        start(1),
        call("secret"),
        finish(),
    ];
    let mut events = events.into_iter().map(Ok);
    // The `Debug` output of this body does not contain its events.
    let body = stream::poll_fn(move |_| Poll::Ready(events.next()));
    let mut envelopes = Envelopes::new(body, &context());
    let remembered: Vec<usize> = std::iter::from_fn(|| {
        envelopes.next().now_or_never().unwrap()?.unwrap();
        Some(format!("{envelopes:?}").matches("secret").count())
    })
    .collect();
    assert!(remembered[1] > 0 && remembered[4] > 0, "{remembered:?}");
    assert_eq!((remembered[7], remembered[9]), (0, 0));
}

// ---- every order of events ----

/// The random properties of a step.
#[derive(Clone, Debug)]
struct Step {
    // The calls by the ids of the model, and whether their arguments are streamed.
    calls: Vec<(u8, bool)>,
    // Whether all previews precede the first complete call.
    side_by_side: bool,
    // The number of calls in an attempt that is reset.
    void: Option<usize>,
    // Per call: whether it raises an interrupt, and its outcome.
    outcomes: Vec<(bool, u8)>,
    customs: bool,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let calls = prop::collection::vec((0..4_u8, any::<bool>()), 0..6);
    let outcomes = prop::collection::vec((prop::bool::weighted(0.3), 0..4_u8), 6);
    let void = prop::option::weighted(0.2, 0..6_usize);
    let step = (calls, any::<bool>(), void, outcomes, any::<bool>()).prop_map(
        |(calls, side_by_side, void, outcomes, customs)| Step {
            calls,
            side_by_side,
            void,
            outcomes,
            customs,
        },
    );
    prop::collection::vec(step, 1..4)
}

fn outcome(how: u8) -> ToolOutcome {
    match how {
        0 => ToolOutcome::failed("oh"),
        1 => ToolOutcome::denied("no"),
        2 => ToolOutcome::unknown("?"),
        _ => ToolOutcome::done("yes"),
    }
}

fn rules() -> RunLimits {
    let mut rules = RunLimits::default();
    rules.resumes = true;
    rules
}

/// A run that plays steps: the events of each of its streams with the round that it resumes, and
/// the keys of its tools.
struct World {
    machine: Machine,
    streams: Vec<(Option<OpenRound>, Vec<Event>)>,
    keys: HashMap<(u32, CallId), String>,
    // The pending actions.
    calls: Vec<CallId>,
    next: Option<u32>,
}

impl World {
    fn play(steps: &[Step]) -> Self {
        let mut world = Self {
            machine: Machine::new(Transcript::new(), rules()),
            streams: vec![(None, Vec::new())],
            keys: HashMap::new(),
            calls: Vec::new(),
            next: None,
        };
        world.listen();
        for step in steps {
            if let Some(at) = world.next.take() {
                world.answer(at, step);
                world.round(step);
            }
        }
        world.machine.input(Input::Halt("enough".into()));
        world.listen();
        world
    }

    fn emit(&mut self, event: Event) {
        self.streams.last_mut().unwrap().1.push(event);
    }

    fn listen(&mut self) {
        while let Some(action) = self.machine.action() {
            match action {
                Action::Emit(event) => self.emit(event),
                Action::CallModel { step, .. } => self.next = Some(step),
                Action::RunTools {
                    step,
                    message_id,
                    calls,
                } => {
                    let context = context().at_round(step, message_id);
                    for call in calls {
                        let key = context.at_call(&call).idempotency_key().unwrap();
                        let id = call.call.id.clone();
                        self.keys.insert((step, id.clone()), key.to_string());
                        self.calls.push(id);
                    }
                }
                other => panic!("{other:?}"),
            }
        }
    }

    fn say(&mut self, event: Event) {
        self.machine.input(Input::ModelEvent(event));
    }

    fn answer(&mut self, at: u32, step: &Step) {
        let mut start = ModelStart::new(MessageId::new(format!("m{at}")));
        let spec = ToolSpec::new("act", "", json!({"type": "object"}));
        start.tools = ToolSpecs::new([Arc::new(spec)]);
        self.machine.input(Input::ModelStarted(start));
        self.say(Event::text("hm"));
        if let Some(calls) = step.void {
            self.write(&step.calls[..calls.min(step.calls.len())], step);
            self.say(Event::Reset);
        }
        self.write(&step.calls, step);
        self.say(finish());
    }

    fn write(&mut self, calls: &[(u8, bool)], step: &Step) {
        let id = |id: &u8| format!("c{id}");
        for (index, (name, streams)) in (0..).zip(calls) {
            if *streams || step.side_by_side {
                self.say(begins(index, &id(name)));
                self.say(delta(index));
            }
            if !step.side_by_side {
                self.say(Event::tool_call(part(&id(name))));
            }
        }
        if step.side_by_side {
            for (name, _) in calls {
                self.say(Event::tool_call(part(&id(name))));
            }
        }
    }

    fn round(&mut self, step: &Step) {
        self.listen();
        let mut may_ask = true;
        while !self.calls.is_empty() {
            for (index, id) in std::mem::take(&mut self.calls).into_iter().enumerate() {
                if step.customs {
                    self.emit(custom(Some(id.as_str())));
                }
                let (asks, how) = step.outcomes[index];
                self.machine.input(if asks && may_ask {
                    let question = InterruptId::new(format!("asked/{id}"));
                    let question = Interrupt::new(question, interrupt::TOOL_CALL);
                    let on = Box::new(Suspension::new(vec![question]));
                    let by = interrupt::SuspendedBy::Gate;
                    Input::Suspended { index, on, by }
                } else {
                    let outcome = outcome(how);
                    Input::Settled { index, outcome }
                });
            }
            self.machine.input(Input::RoundEnded);
            self.listen();
            self.take_up();
            self.listen();
            may_ask = false;
        }
    }

    /// Resumes in another process, if the run waits.
    fn take_up(&mut self) {
        let (_, events) = self.streams.last().unwrap();
        let Some(Event::Finish(finish)) = events.last() else {
            return;
        };
        if finish.outcome != Outcome::Interrupted {
            return;
        }
        let state = finish.state.as_ref().unwrap().to_json().unwrap();
        let state = RunState::from_json(state.as_bytes(), state.len()).unwrap();
        let asked = state.interrupts().into_iter();
        let replies = asked
            .map(|asked| Reply::approve(asked.id.clone()))
            .collect();
        self.streams.push((state.open_round(), Vec::new()));
        self.machine = Machine::restore(state, rules());
        let now = SystemTime::UNIX_EPOCH;
        self.machine.reply(replies, now).unwrap();
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 1_000,
        failure_persistence: Some(Box::new(FileFailurePersistence::WithSource(
            "proptest-regressions",
        ))),
        ..ProptestConfig::default()
    })]

    #[test]
    fn starts_and_ends_of_calls_are_paired(steps in steps()) {
        check(World::play(&steps));
    }
}

fn check(world: World) {
    let mut seq = 0;
    let mut step = 0;
    // The key and the stream of each complete call of an answer that was not reset.
    let mut calls: HashMap<(u32, CallId), (String, usize)> = HashMap::new();
    let mut starts: Vec<String> = Vec::new();
    let mut ended = HashSet::new();
    for (at, (open, events)) in world.streams.into_iter().enumerate() {
        let mut envelopes = Envelopes::new(body(events), &context()).starting_at(seq);
        if let Some(open) = &open {
            envelopes = envelopes.with_open_round(open);
        }
        for envelope in read(&mut envelopes) {
            assert_eq!(envelope.seq, seq);
            seq += 1;
            let key = envelope.correlation_id.to_string();
            match &envelope.event {
                Event::StepStart(start) => {
                    step = start.step;
                    assert_eq!(envelope.step, Some(step));
                    assert!(starts.is_empty(), "a start is not followed by its call");
                }
                Event::Reset => {
                    calls.retain(|(of, _), _| *of != step);
                    starts.clear();
                }
                Event::ToolCallStart(_) => starts.push(key),
                Event::ToolCallDelta(_) => assert_eq!(Some(&key), starts.last()),
                Event::ToolCall(call) => {
                    let id = call.call.id.clone();
                    // If a call has a start, it is the next start.
                    if !starts.is_empty() {
                        assert_eq!(starts.remove(0), key);
                    }
                    assert!(
                        calls.values().all(|(other, _)| *other != key),
                        "{key} twice"
                    );
                    if !id.as_str().contains('~') {
                        assert_eq!(key, format!("m{step}/{}/{id}", position(&calls, step)));
                    }
                    assert!(calls.insert((step, id), (key, at)).is_none());
                }
                Event::Custom(custom) => {
                    let id = custom.call_id.clone().unwrap();
                    expect(&calls, &(step, id), at, &key);
                }
                Event::ToolResult(result) => {
                    let call = (step, result.call_id.clone());
                    expect(&calls, &call, at, &key);
                    assert!(ended.insert(call.clone()), "{key} ended twice");
                    // Calls with duplicate ids are not run.
                    if let Some(given) = world.keys.get(&call)
                        && !call.1.as_str().contains('~')
                    {
                        assert_eq!(given, &key);
                    }
                }
                _ => {}
            }
        }
    }
    let started: HashSet<_> = calls.into_keys().collect();
    assert_eq!(started, ended, "each call has its end");
}

fn position(calls: &HashMap<(u32, CallId), (String, usize)>, step: u32) -> usize {
    calls.keys().filter(|(of, _)| *of == step).count()
}

fn expect(
    calls: &HashMap<(u32, CallId), (String, usize)>,
    call: &(u32, CallId),
    at: usize,
    key: &str,
) {
    let is_renamed = call.1.as_str().contains('~');
    let (of_call, said_at) = &calls[call];
    if *said_at == at || !is_renamed {
        assert_eq!(of_call, key);
    }
}
