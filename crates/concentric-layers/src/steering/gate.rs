use super::Steering;
use concentric_core::{
    BoxError, Context, Error, ErrorKind, Str,
    agent::{FinishDecision, GateOrder, StepDecision, StepDraft, StepGate},
    hooks::Interest,
    state::{Scope, Slot, Transient},
};
use std::{
    collections::BTreeMap,
    sync::atomic::{AtomicU64, Ordering},
};

/// Inserts the messages of a [`Steering`] into one run. Created by [`Steering::gate`].
#[derive(Debug)]
pub(super) struct SteeringGate {
    steering: Steering,
    number: u64,
    // Unique within this process.
    id: u64,
    // The number of runs that have called the gate.
    runs: AtomicU64,
}

/// The number of this run among the runs of each gate, by gate id, from 1.
struct Steered;

impl Slot for Steered {
    type Value = BTreeMap<u64, u64>;
    type Keep = Transient;
    const NAME: &'static str = "concentric/steering/run";
    const SCOPE: Scope = Scope::Run;
}

impl SteeringGate {
    pub(super) fn new(steering: Steering, number: u64) -> Self {
        static GATES: AtomicU64 = AtomicU64::new(0);
        Self {
            steering,
            number,
            id: GATES.fetch_add(1, Ordering::Relaxed),
            runs: AtomicU64::new(0),
        }
    }

    /// Checks that no later run uses this gate.
    ///
    /// # Errors
    ///
    /// Another run uses this gate, so messages could be delivered to the wrong run.
    fn check(&self, context: &Context) -> Result<(), BoxError> {
        let known = context.state::<Steered>()?.get(&self.id).copied();
        let Some(run) = known else {
            let run = self.runs.fetch_add(1, Ordering::Relaxed).saturating_add(1);
            context.update_state::<Steered>(|runs| {
                let mut runs = runs.clone();
                runs.insert(self.id, run);
                runs
            })?;
            return Ok(());
        };
        match run == self.runs.load(Ordering::Relaxed) {
            true => Ok(()),
            false => Err(Error::new(
                ErrorKind::Configuration,
                Str::from_static(
                    "the gate `steering` is used by two concurrent runs: add a separate gate to \
                     the `RunOverrides` of each run",
                ),
            )
            .with_code("steering")
            .into()),
        }
    }

    /// Inserts the messages for this moment, and returns whether there are any.
    fn insert(&self, draft: &mut StepDraft, at_end: bool) -> Result<bool, BoxError> {
        self.check(&draft.context)?;
        let (said, context) = (&draft.transcript, &draft.context);
        let turns = self.steering.offer(self.number, at_end, said, context)?;
        let any = !turns.is_empty();
        turns.into_iter().for_each(|turn| draft.push(turn));
        Ok(any)
    }
}

impl StepGate for SteeringGate {
    fn name(&self) -> &'static str {
        "steering"
    }

    fn interest(&self) -> Interest {
        Interest::BEFORE_STEP | Interest::BEFORE_FINISH
    }

    fn order(&self) -> GateOrder {
        GateOrder::Message
    }

    async fn before_step(&self, draft: &mut StepDraft) -> Result<StepDecision, BoxError> {
        self.insert(draft, false)?;
        Ok(StepDecision::Continue)
    }

    async fn before_finish(&self, draft: &mut StepDraft) -> Result<FinishDecision, BoxError> {
        Ok(match self.insert(draft, true)? {
            true => FinishDecision::Retry { void: false },
            false => FinishDecision::Finish,
        })
    }
}

impl Drop for SteeringGate {
    fn drop(&mut self) {
        self.steering.end(self.number);
    }
}
