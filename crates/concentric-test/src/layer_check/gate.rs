//! Checks of the contract of gates.

use super::calls::{fail, for_a_while, in_time, settle};
use crate::{Pace, ScriptedModel, ScriptedTools, Spurious, drop_at_each_wait, tools::question};
use concentric_core::{
    AgentLayer, Arguments, BoxError, CallId, ChatRequest, Clearance, Context, Error, Finish,
    InterruptId, Outcome, Reply, RoundCall, Suspension, ToolCall, ToolCallPart, ToolOutcome,
    ToolSpec, Transcript,
    agent::{FinishDecision, RoundDecision, StepDecision, StepDraft, StepGate, StepView},
    gate::{Decided, Gate, Verdict},
    hooks::Interest,
    machine::RunState,
    panic::caught,
};
use serde_json::{Value, json};
use std::{
    collections::HashSet,
    sync::{Arc, Mutex, PoisonError},
};
use tower::{ServiceExt, service_fn};
use tower_layer::Layer;

/// Checks a gate of tool calls with a call that it holds back: a call of `tool` with `arguments` that it
/// denies, or for which it requires an approval or ends the run.
///
/// ```
/// use concentric_core::{ToolSpec, gate::{Verdict, gate_fn}};
/// use concentric_test::check_gate;
/// use serde_json::json;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// let gate = gate_fn("no_refunds", |call| match call.name().as_str() {
///     "refund" => Verdict::deny("Refunds are paid by the accounting department."),
///     _ => Verdict::Pass,
/// });
/// let refund = ToolSpec::new("refund", "Pays a refund.", json!({"type": "object"}));
/// check_gate(gate, refund, json!({"amount": 3, "currency": "EUR"})).await;
/// # }
/// ```
///
/// The gate
/// - has a policy, which does not change;
/// - holds the call back each time, also while it decides about another call, and after a decision that was
///   dropped at any await point;
/// - is not weaker for the same arguments as other JSON text, for another call id, or for a call that is
///   resumed with an approval;
/// - decides about arguments of any form, such as an approver or the model may send, without a panic;
/// - tolerates spurious polls, and wakes the waker of its last poll;
/// - decides in time.
///
/// An error counts as a denial, as in a toolset, and the strictest verdict of all gates applies: a gate that
/// passes these checks is never weaker than its absence. To show that it holds calls back while a service that
/// it calls is broken or hangs, check it with such a service.
///
/// The check needs a tokio runtime with a timer, which may be paused.
///
/// # Panics
///
/// Panics if the gate breaks a rule; the message names it. Panics if `arguments` are not JSON.
pub async fn check_gate(gate: impl Gate, tool: ToolSpec, arguments: impl Into<Arguments>) {
    let arguments = arguments.into();
    let value = serde_json::from_str(arguments.as_str());
    let value: Value = value.expect("the arguments are one JSON value");
    let gate: Arc<dyn Gate> = Arc::new(gate);
    let policy = gate.policy();
    assert!(!policy.is_empty(), "the gate has no policy");
    let tool = Arc::new(tool);
    let call = |id: &str, arguments: Arguments| {
        let part = ToolCallPart::new(CallId::new(id), tool.name.clone(), arguments);
        let call = RoundCall::new(0, part);
        ToolCall::of_round(call, Clearance::Ungated, Transcript::new(), &Context::new())
            .with_spec(Arc::clone(&tool))
    };
    let held = call("c1", arguments.clone());
    let mut first = Verdict::Pass;
    in_time("a decision", async {
        first = decide(&*gate, &held).await;
    })
    .await;
    assert!(
        !matches!(first, Verdict::Pass | Verdict::Allow),
        "the gate does not hold the call back: {first:?}"
    );

    in_time("a second decision", async {
        let (again, other) = (call("c1", arguments.clone()), call("c2", "{}".into()));
        let mut waits = Box::pin(decide(&*gate, &again));
        let early = for_a_while(waits.as_mut()).await;
        decide(&*gate, &other).await;
        let again = match early {
            Some(verdict) => verdict,
            None => waits.await,
        };
        assert_not_weaker(&first, &again, "the second time");
    })
    .await;

    in_time("a decision about the same arguments", async {
        let same = call("c3", spaced(&value).into());
        let verdict = decide(&*gate, &same).await;
        assert_not_weaker(
            &first,
            &verdict,
            "about the same arguments as other JSON text",
        );
    })
    .await;

    for edited in hostile() {
        let edited = call("c1", edited.into());
        in_time("a decision about edited arguments", async {
            decide(&*gate, &edited).await;
        })
        .await;
    }

    in_time("a decision that is polled without a wakeup", async {
        let verdict = Spurious::new(decide(&*gate, &held)).await;
        assert_not_weaker(&first, &verdict, "polled without a wakeup");
    })
    .await;

    in_time("a decision that is dropped at each await point", async {
        drop_at_each_wait(
            || decide(&*gate, &held),
            async |polls| {
                let verdict = decide(&*gate, &held).await;
                let when = format!("after a decision that was dropped after {polls} polls");
                assert_not_weaker(&first, &verdict, &when);
            },
        )
        .await;
    })
    .await;

    in_time("a decision about a resumed call", async {
        let verdict = decide_resumed(&gate, &tool, &arguments).await;
        assert_not_weaker(&first, &verdict, "about a resumed call");
    })
    .await;
    assert_eq!(gate.policy(), policy, "the policy of the gate changes");
}

async fn decide(gate: &dyn Gate, call: &ToolCall) -> Verdict {
    let decided = caught(|| async {
        match gate.decide(call) {
            Decided::Now(verdict) => Ok(verdict),
            Decided::Later(verdict) => verdict.await,
        }
    });
    match decided.await {
        Ok(decided) => decided.unwrap_or_else(|error: BoxError| Verdict::deny(error.to_string())),
        Err(panic) => fail(&format!("the gate panicked: {panic:?}")),
    }
}

/// The verdict about a call that waited, and that a reply approved.
async fn decide_resumed(gate: &Arc<dyn Gate>, tool: &ToolSpec, arguments: &Arguments) -> Verdict {
    let verdict = Arc::new(Mutex::new(Verdict::Pass));
    let (gate, decided) = (Arc::clone(gate), Arc::clone(&verdict));
    let service = service_fn(move |call: ToolCall| {
        let (gate, decided) = (Arc::clone(&gate), Arc::clone(&decided));
        async move {
            let verdict = decide(&*gate, &call).await;
            *decided.lock().unwrap_or_else(PoisonError::into_inner) = verdict;
            Ok::<_, Error>(ToolOutcome::done(""))
        }
    });
    let tools = ScriptedTools::new()
        .service(tool.clone(), service)
        .waits(tool.name.clone(), |call| {
            Suspension::new(vec![question(call)])
        });
    let run = Run {
        model: ScriptedModel::new()
            .tool_call(tool.name.clone(), arguments.clone())
            .then()
            .text("Done."),
        tools,
    };
    let agent = || AgentLayer::new(run.tools.clone());
    if let Err(error) = run.play(&run.model, agent, Reply::approve).await {
        fail(&format!("the call was not resumed: {error}"));
    }
    let verdict = verdict.lock().unwrap_or_else(PoisonError::into_inner);
    verdict.clone()
}

#[track_caller]
fn assert_not_weaker(first: &Verdict, verdict: &Verdict, when: &str) {
    assert_eq!(
        verdict.clone().and(first.clone()).as_str(),
        verdict.as_str(),
        "the gate is weaker {when}: {first:?}, then {verdict:?}"
    );
}

/// The same JSON with spaces, and with escapes in its strings and keys.
fn spaced(value: &Value) -> String {
    let escaped = |text: &str| -> String {
        let units = text.encode_utf16();
        let escaped: String = units.map(|unit| format!("\\u{unit:04x}")).collect();
        format!("\"{escaped}\"")
    };
    match value {
        Value::String(text) => escaped(text),
        Value::Array(items) => {
            let items: Vec<_> = items.iter().map(spaced).collect();
            format!("[ {} ]", items.join(" , "))
        }
        Value::Object(fields) => {
            let fields = fields.iter().rev();
            let fields: Vec<_> = fields
                .map(|(key, value)| format!("{} : {}", escaped(key), spaced(value)))
                .collect();
            format!("{{ {} }}", fields.join(" , "))
        }
        other => other.to_string(),
    }
}

/// Arguments that no tool expects.
fn hostile() -> [String; 8] {
    [
        String::new(),
        "null".to_owned(),
        "{".to_owned(),
        r#"{"amount": "\ud800"}"#.to_owned(),
        r#"{"amount": 1e999, "amount": -1}"#.to_owned(),
        "[".repeat(100_000),
        format!("{{\"amount\": {}}}", "9".repeat(10_000)),
        json!({"amount": "x".repeat(1 << 16)}).to_string(),
    ]
}

/// Checks a gate between the steps of a run. `gate` creates it anew for each agent, as each process does.
///
/// ```
/// use concentric_layers::stop::LoopDetector;
/// use concentric_test::check_step_gate;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// check_step_gate(|| LoopDetector::new(3)).await;
/// # }
/// ```
///
/// The gate
/// - has a name, which does not change, and decides about the moments of its
///   [interest](StepGate::interest) only;
/// - fails no run of a model that calls two tools and answers, whose messages, calls and answers are plain;
/// - decides the same in a second run of its agent, and at each [`Pace`];
/// - continues runs that it interrupted, from their stored state in another process, and does not interrupt
///   them for ever; a reply that it cannot read fails the run, without a panic;
/// - runs no call twice and makes no more model calls than the step limit, however its interrupts are answered;
/// - runs no round that another gate has stopped;
/// - keeps nothing of a run that is dropped at any await point, and wakes its callers.
///
/// An error or a panic of a gate fails its run and executes nothing that was undecided, so a gate that passes
/// these checks is never weaker than its absence.
///
/// The check needs a tokio runtime with a timer, which may be paused. A gate that breaks one of the rules on
/// purpose, such as one that ends every run with an error, cannot be checked.
///
/// # Panics
///
/// Panics if the gate breaks a rule; the message names it.
pub async fn check_step_gate<G>(gate: impl Fn() -> G)
where
    G: StepGate,
{
    in_time("the moments of the gate", moments(&gate())).await;

    let mut ends: Option<(Vec<Outcome>, usize)> = None;
    for pace in Pace::ALL {
        in_time("a run", async {
            let agent = {
                let run = Run::new(pace);
                run.agent(gate())
            };
            // The same gate for two runs, one after the other.
            for _ in 0..2 {
                let run = Run::new(pace);
                let outcomes =
                    Spurious::new(run.play(&run.model, || agent.clone(), Reply::approve));
                let outcomes = match outcomes.await {
                    Ok(outcomes) => outcomes,
                    Err(error) => fail(&format!("the gate failed the run: {error}")),
                };
                let end = (outcomes, run.model.calls());
                let first = ends.get_or_insert_with(|| end.clone());
                assert_eq!(*first, end, "the gate decides differently in another run");
            }
        })
        .await;
    }

    let replies: [fn(InterruptId) -> Reply; 5] = [
        Reply::approve,
        |id| Reply::deny(id, "no"),
        Reply::cancel,
        |id| Reply::resolve(id, Value::Null),
        |id| Reply::resolve(id, json!([{"approved": [true]}])),
    ];
    for reply in replies {
        in_time("a run that is resumed", async {
            let run = Run::new(Pace::AtOnce);
            let played = run.play(&run.model, || run.agent(gate()), reply).await;
            if let Err(error) = played {
                let panicked = error.message().contains("it panicked");
                assert!(!panicked, "the gate panicked about a reply: {error}");
            }
            run.assert_once();
        })
        .await;
    }

    in_time("a run that another gate stops", async {
        let run = Run::new(Pace::AtOnce);
        let agent = || run.agent(gate()).gate(Stops);
        let _ = run.play(&run.model, agent, Reply::approve).await;
        let calls = run.tools.calls();
        assert!(
            calls.is_empty(),
            "calls ran that another gate stopped: {calls:?}"
        );
    })
    .await;

    in_time("a run that is dropped at each await point", async {
        let run = Run::new(Pace::NextTick);
        let agent = run.agent(gate());
        let play = || {
            let (model, agent) = (Run::model(Pace::NextTick), agent.clone());
            let run = &run;
            async move { run.play(&model, || agent.clone(), Reply::approve).await }
        };
        drop_at_each_wait(play, async |polls| {
            settle().await;
            let live = run.tools.live();
            assert_eq!(
                live, 0,
                "a call runs after the run was dropped at poll {polls}"
            );
        })
        .await;
        let last = Run::new(Pace::NextTick);
        let outcomes = last
            .play(&last.model, || agent.clone(), Reply::approve)
            .await;
        let end = (outcomes.unwrap_or_default(), last.model.calls());
        assert_eq!(
            ends,
            Some(end),
            "the gate decides differently after dropped runs"
        );
    })
    .await;
}

/// Checks that the gate decides about the moments of its interest only.
async fn moments(gate: &impl StepGate) {
    let name = gate.name().to_owned();
    assert!(!name.is_empty(), "the gate has no name");
    let request = ChatRequest::user("hi");
    let view = || StepView::for_request(&request);
    let draft = || StepDraft::for_request(view(), &request);
    let interest = gate.interest();
    let unasked = "the gate decides about a moment outside of its interest";
    if !interest.contains(Interest::BEFORE_STEP) {
        let decision = gate.before_step(&mut draft()).await;
        assert!(matches!(decision, Ok(StepDecision::Continue)), "{unasked}");
    }
    if !interest.contains(Interest::BEFORE_ROUND) {
        let decision = gate.before_round(&view()).await;
        assert!(matches!(decision, Ok(RoundDecision::Continue)), "{unasked}");
    }
    if !interest.contains(Interest::BEFORE_FINISH) {
        let decision = gate.before_finish(&mut draft()).await;
        assert!(matches!(decision, Ok(FinishDecision::Finish)), "{unasked}");
    }
    assert_eq!(gate.name(), name, "the name of the gate changes");
}

/// A gate that stops every round.
struct Stops;

impl StepGate for Stops {
    fn name(&self) -> &str {
        "stops"
    }

    async fn before_round(&self, _: &StepView) -> Result<RoundDecision, BoxError> {
        Ok(RoundDecision::halt("stopped"))
    }
}

/// The model and the tools of a run.
struct Run {
    model: ScriptedModel,
    tools: ScriptedTools,
}

/// The maximum number of model calls of a run.
const STEPS: u32 = 6;

impl Run {
    fn new(pace: Pace) -> Self {
        Self {
            model: Self::model(pace),
            tools: ScriptedTools::new().paced(pace).answers("look", "seen"),
        }
    }

    fn model(pace: Pace) -> ScriptedModel {
        ScriptedModel::new()
            .paced(pace)
            .tool_call("look", json!({"at": 1}))
            .then()
            .tool_call("look", json!({"at": 2}))
            .then()
            .text("Done.")
            .repeat()
    }

    fn agent(&self, gate: impl StepGate) -> AgentLayer<ScriptedTools> {
        AgentLayer::new(self.tools.clone())
            .step_limit(STEPS)
            .gate(gate)
    }

    /// Runs to the end, with `reply` to all interrupts, and returns the outcome of each part of the run. Each
    /// part has the agent of another process.
    async fn play(
        &self,
        model: &ScriptedModel,
        agent: impl Fn() -> AgentLayer<ScriptedTools>,
        reply: fn(InterruptId) -> Reply,
    ) -> Result<Vec<Outcome>, Error> {
        let mut request = ChatRequest::user("hi");
        let mut outcomes = Vec::new();
        loop {
            let response = agent().layer(model.clone()).oneshot(request).await?;
            let mut finish: Finish = response.collect().await.map_err(Error::from)?.finish;
            outcomes.push(finish.outcome.clone());
            let Some(state) = finish.state.take() else {
                return Ok(outcomes);
            };
            // Three moments of each step can raise an interrupt.
            let most = 3 * STEPS as usize;
            assert!(
                outcomes.len() <= most,
                "the gate interrupts the run for ever"
            );
            let stored = state
                .to_json()
                .map_err(|error| Error::from(BoxError::from(error)))?;
            let state = RunState::from_json(stored.as_bytes(), stored.len());
            let state = state.map_err(|error| Error::from(BoxError::from(error)))?;
            let asked = state.interrupts().into_iter();
            let replies = asked.map(|asked| reply(asked.id.clone())).collect();
            request = ChatRequest::resume(state, replies);
        }
    }

    #[track_caller]
    fn assert_once(&self) {
        let mut ids = HashSet::new();
        for call in self.tools.calls() {
            assert!(ids.insert(call.id.clone()), "a call ran twice: {call:?}");
        }
        let calls = self.model.calls();
        assert!(
            calls <= STEPS as usize,
            "the gate exceeds the step limit: {calls} calls"
        );
    }
}
