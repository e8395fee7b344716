use super::Context;
use concentric_proto::{ResponseHead, RunUsage, Usage};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The tokens that were recorded in a run.
#[derive(Default)]
pub(super) struct Recorded(Mutex<State>);

#[derive(Default)]
struct State {
    usage: RunUsage,
    // Whether `usage` includes what the stored state of the run has: the run was resumed, or its state
    // was stored.
    is_stored: bool,
    // The latest model call with recorded tokens, until the next call.
    call: Option<Call>,
}

/// The recorded tokens of a model call of the agent.
struct Call {
    // Its depth and its step.
    at: (u16, u32),
    // Whether an agent in the model's place has recorded all of its own tokens.
    by_agent: bool,
    latest: Usage,
    // Those of earlier attempts and of layers that call other models.
    earlier: Vec<Usage>,
}

impl Call {
    fn new(at: (u16, u32), latest: Usage) -> Self {
        Self {
            at,
            by_agent: false,
            latest,
            earlier: Vec::new(),
        }
    }

    /// Whether an answer with these tokens was recorded: alone, or as the sum of all attempts.
    fn includes(&self, usage: Usage) -> bool {
        let sum = || {
            let mut sum = self.latest;
            self.earlier.iter().for_each(|earlier| sum += *earlier);
            sum
        };
        self.by_agent || self.latest == usage || self.earlier.contains(&usage) || sum() == usage
    }
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
    /// The models of `concentric-providers` record each answer that completes, and one that fails or is dropped:
    /// with the tokens that the provider had reported, or [estimated](crate::ModelUsage::estimated). A model of another kind calls [`record_usage`](Self::record_usage); without it, its calls are included once the agent
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
        self.add_usage(head, usage);
        let at = (self.depth, self.step);
        let mut recorded = self.run.usage.get_or_init(Box::default).lock();
        match &mut recorded.call {
            Some(call) if call.at == at => {
                let earlier = std::mem::replace(&mut call.latest, usage);
                call.earlier.push(earlier);
            }
            call => *call = Some(Call::new(at, usage)),
        }
    }

    /// Records the estimated tokens of a model call that failed or was dropped before its provider reported
    /// them, in this run and in the runs around it.
    pub fn record_estimated_usage(&self, head: &ResponseHead, usage: Usage) {
        self.each_usage(|recorded| recorded.record_estimate(head, usage));
    }

    /// Like [`record_usage`](Self::record_usage), for an agent.
    pub(crate) fn add_usage(&self, head: &ResponseHead, usage: Usage) {
        self.each_usage(|recorded| recorded.record(head, usage));
    }

    /// Updates the tokens of this run and of the runs around it.
    fn each_usage(&self, add: impl Fn(&mut RunUsage)) {
        let mut next = Some(self);
        while let Some(context) = next {
            let recorded = context.run.usage.get_or_init(Box::default);
            add(&mut recorded.lock().usage);
            next = context.parent();
        }
    }

    #[inline]
    pub(crate) fn has_recorded(&self) -> bool {
        self.run.usage.get().is_some()
    }

    /// The recorded tokens, if there are any.
    pub(crate) fn recorded_usage(&self) -> Option<RunUsage> {
        Some(self.run.usage.get()?.lock().usage.clone())
    }

    /// The recorded tokens, if there are any, to be stored with the run's state.
    pub(crate) fn usage_to_store(&self) -> Option<RunUsage> {
        let mut recorded = self.run.usage.get()?.lock();
        recorded.is_stored = true;
        Some(recorded.usage.clone())
    }

    /// Sets the tokens of the run to those that a journal recorded after a step.
    pub(crate) fn replace_usage(&self, usage: RunUsage) {
        let recorded = self.run.usage.get_or_init(Box::default);
        recorded.lock().usage = usage;
    }

    /// Adds the tokens of an interrupted run that is resumed, unless they were recorded here: by an
    /// earlier attempt to resume it, or because it was interrupted in this context.
    pub(crate) fn resume_usage(&self, usage: RunUsage) {
        let mut recorded = self.run.usage.get_or_init(Box::default).lock();
        if !recorded.is_stored {
            recorded.is_stored = true;
            let since = std::mem::replace(&mut recorded.usage, usage);
            recorded.usage.extend(since);
        }
    }

    /// Whether the tokens of the model call of this context were recorded, whose answer reports
    /// `usage`. Forgets the call.
    pub(crate) fn take_recorded_call(&self, usage: Usage) -> bool {
        let at = (self.depth, self.step);
        let call = self.run.usage.get().and_then(|recorded| {
            let mut recorded = recorded.lock();
            recorded.call.take_if(|call| call.at == at)
        });
        call.is_some_and(|call| call.includes(usage))
    }

    /// Marks the tokens of the model call of this context as recorded, by the agent in the model's place.
    pub(crate) fn mark_recorded_call(&self) {
        let at = (self.depth, self.step);
        let mut recorded = self.run.usage.get_or_init(Box::default).lock();
        match &mut recorded.call {
            Some(call) if call.at == at => call.by_agent = true,
            call => {
                let mut by_agent = Call::new(at, Usage::default());
                by_agent.by_agent = true;
                *call = Some(by_agent);
            }
        }
    }
}
