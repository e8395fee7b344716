use super::{FailedAttempts, layer::Options};
use crate::repeats::count_repeat;
use concentric_core::{
    BoxModel, ChatRequest, Context, CustomEvent, Error, ErrorKind, SideEffects, Str,
    context::Sleep,
    state::{Durable, Scope, Slot},
};
use serde_json::json;
use std::{collections::BTreeMap, sync::Arc};

/// The models that answered last in a run, by the names of the first models of their layers.
struct Chosen;

impl Slot for Chosen {
    type Value = BTreeMap<Str, Str>;
    type Keep = Durable;
    const NAME: &'static str = "concentric/fallback";
    const SCOPE: Scope = Scope::Run;
}

/// The attempts at a call, one at a time.
pub(super) struct Attempts {
    request: ChatRequest,
    options: Arc<Options>,
    // The index of the model of the first attempt.
    start: usize,
    effects: u64,
    failed: Vec<(Str, Error)>,
}

impl Attempts {
    pub(super) fn new(request: ChatRequest, options: Arc<Options>) -> Self {
        let start = match options.is_sticky {
            true => chosen(&request.context, &options),
            false => 0,
        };
        Self {
            start,
            effects: request.context.effect_count(),
            request,
            options,
            failed: Vec::new(),
        }
    }

    /// The index of the current model.
    fn current(&self) -> usize {
        (self.start + self.failed.len()) % self.options.len()
    }

    /// The current model with the request for it; `None` if it is the inner service.
    pub(super) fn other(&self) -> Option<(BoxModel, ChatRequest)> {
        self.options.other(self.current(), &self.request)
    }

    /// The request for the inner service.
    pub(super) fn request(&self) -> ChatRequest {
        self.request.clone()
    }

    /// The end of the time for the first content of an attempt that begins now.
    pub(super) fn limit(&self) -> Option<Sleep> {
        let limit = self.options.time_to_first?;
        Some(self.request.context.environment().clock().sleep(limit))
    }

    /// Proceeds to the next model after `error`.
    ///
    /// # Errors
    ///
    /// The error to return, if there is no further attempt.
    pub(super) fn failed(&mut self, error: Error) -> Result<(), Error> {
        let context = &self.request.context;
        let has_effects =
            error.effects() != SideEffects::None || context.effect_count() != self.effects;
        let is_late = context.remaining().is_some_and(|left| left.is_zero());
        let is_last = self.failed.len() + 1 >= self.options.len();
        let is_over = has_effects || is_late || is_last || context.is_cancelled();
        if is_over || !self.options.is_cause(&error) {
            return Err(self.returned(error));
        }
        let from = self.options.name(self.current()).clone();
        let (kind, code) = (error.kind().as_str(), error.code().map(str::to_owned));
        self.failed.push((from.clone(), error));
        let context = &self.request.context;
        count_repeat(context);
        let to = self.options.name(self.current());
        tracing::warn!(
            target: "concentric::fallback",
            run = %context.run_id(),
            step = context.step(),
            %from,
            %to,
            kind,
            code,
            "a model failed, and another is called"
        );
        let value = json!({"from": from, "to": to, "kind": kind, "code": code});
        // A consumer that is far behind loses the event.
        let _ = context.emit(CustomEvent::new("concentric.fallback", value));
        Ok(())
    }

    fn returned(&mut self, error: Error) -> Error {
        if self.failed.is_empty() {
            return error;
        }
        let earlier = std::mem::take(&mut self.failed);
        let own = error.attempts();
        let attempts = earlier.iter().map(|(_, error)| error.attempts());
        let error = error.with_attempts(attempts.fold(own, u32::saturating_add));
        match error.kind() {
            // These are not failures, and their source is part of their meaning.
            ErrorKind::Waiting | ErrorKind::Halted | ErrorKind::Cancelled => error,
            _ => FailedAttempts::before(earlier, error),
        }
    }

    /// Records the model that answered. Returns the attempts that failed before it, if there are any.
    pub(super) fn answered(&mut self) -> Option<FailedAttempts> {
        if self.failed.is_empty() {
            return None;
        }
        let (context, options) = (&self.request.context, &self.options);
        if options.is_sticky {
            let (first, name) = (options.name(0), options.name(self.current()));
            let updated = context.update_state::<Chosen>(|chosen| {
                let mut chosen = chosen.clone();
                chosen.insert(first.clone(), name.clone());
                chosen
            });
            if let Err(error) = updated {
                tracing::warn!(target: "concentric::fallback", %error, "the choice of a model was not stored");
            }
        }
        Some(FailedAttempts::new(std::mem::take(&mut self.failed)))
    }
}

/// The index of the model that answered last in the run.
fn chosen(context: &Context, options: &Options) -> usize {
    match context.state::<Chosen>() {
        // The configuration may have changed since the run was stored.
        Ok(chosen) => chosen
            .get(options.name(0))
            .and_then(|name| options.position(name))
            .unwrap_or(0),
        Err(error) => {
            tracing::warn!(target: "concentric::fallback", %error, "the choice of a model was not read");
            0
        }
    }
}
