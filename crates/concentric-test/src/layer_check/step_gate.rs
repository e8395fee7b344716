//! The check of a gate between the steps of a run.

use super::calls::{fail, in_time, settle};
use crate::{Pace, ScriptedModel, ScriptedTools, Spurious, drop_at_each_wait};
use concentric_core::{
    AgentLayer, BoxError, ChatRequest, Error, Finish, InterruptId, Outcome, Reply,
    agent::{FinishDecision, RoundDecision, StepDecision, StepDraft, StepGate, StepView},
    hooks::Interest,
    machine::RunState,
};
use serde_json::{Value, json};
use std::collections::HashSet;
use tower::ServiceExt;
use tower_layer::Layer;

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
pub(super) struct Run {
    pub(super) model: ScriptedModel,
    pub(super) tools: ScriptedTools,
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
    pub(super) async fn play(
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
