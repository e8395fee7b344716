use super::Context;
use concentric_proto::{ResponseHead, RunUsage, Usage};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The tokens that were recorded in a run.
#[derive(Default)]
pub(super) struct Recorded(Mutex<State>);

#[derive(Default)]
struct State {
    usage: RunUsage,
    // The depth and the step of the latest model call that was recorded, until the next call.
    call: Option<(u16, u32)>,
}

impl Recorded {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Context {
    /// The tokens that models have used so far in this run and in the runs within it, also for
    /// attempts whose answer was rejected or repeated.
    ///
    /// The models of `concentric-providers` record each answer that completes. A model of another kind
    /// calls [`record_usage`](Self::record_usage); without it, its calls are included once the agent
    /// that makes them has ended ([`Finish::run_usage`](crate::Finish::run_usage)).
    ///
    /// ```
    /// use concentric_core::{Context, ResponseHead, Usage};
    ///
    /// let run = Context::new();
    /// let nested = run.child().build();
    /// nested.record_usage(&ResponseHead::new("openai", "gpt-5.5"), Usage::new(100, 20));
    /// assert_eq!(run.run_usage().total(), Usage::new(100, 20));
    /// ```
    pub fn run_usage(&self) -> RunUsage {
        self.recorded_usage().unwrap_or_default()
    }

    /// Records the tokens of a model call, in this run and in the runs around it.
    ///
    /// For a model, with the context of its request, before its answer ends.
    pub fn record_usage(&self, head: &ResponseHead, usage: Usage) {
        let mut recorded = self.run.usage.get_or_init(Box::default).lock();
        recorded.usage.record(head, usage);
        recorded.call = Some((self.depth, self.step));
        drop(recorded);
        let mut outer = self.parent();
        while let Some(context) = outer {
            let recorded = context.run.usage.get_or_init(Box::default);
            recorded.lock().usage.record(head, usage);
            outer = context.parent();
        }
    }

    pub(crate) fn has_recorded(&self) -> bool {
        self.run.usage.get().is_some()
    }

    /// The recorded tokens, if there are any.
    pub(crate) fn recorded_usage(&self) -> Option<RunUsage> {
        Some(self.run.usage.get()?.lock().usage.clone())
    }

    /// Adds the tokens of an interrupted run that is resumed, unless an earlier attempt did.
    pub(crate) fn resume_usage(&self, usage: RunUsage) {
        self.run.usage.get_or_init(|| {
            let call = None;
            Box::new(Recorded(Mutex::new(State { usage, call })))
        });
    }

    /// Whether the tokens of the model call of this context were recorded. Forgets the call.
    pub(crate) fn take_recorded_call(&self) -> bool {
        let call = Some((self.depth, self.step));
        let recorded = self.run.usage.get();
        recorded.is_some_and(|recorded| {
            recorded
                .lock()
                .call
                .take_if(|it| Some(*it) == call)
                .is_some()
        })
    }

    /// Marks the tokens of the model call of this context as recorded, by the agent in the model's place.
    pub(crate) fn mark_recorded_call(&self) {
        let recorded = self.run.usage.get_or_init(Box::default);
        recorded.lock().call = Some((self.depth, self.step));
    }
}
