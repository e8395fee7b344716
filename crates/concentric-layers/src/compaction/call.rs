//! One call of the inner model.

use super::{
    NO_PROGRESS,
    hooks::{Cause, CompactionDecision, Plan, Report},
    layer::Settings,
    plan::{self, Limits},
    render::is_summary,
    state::{Step, Steps, Summary, digest, take_request},
    summary::{summarise, warn},
};
use crate::{
    compaction::Trigger,
    tokens::scaled,
    wait::Stop,
    window::{Memo, Reported, Sent, Total, budget, emit, is_by_user},
};
use concentric_core::{
    Author, ChatRequest, Context, Error, ErrorKind, Role, SideEffects, Str, Transcript, Turn,
    panic::{catch, caught},
    run_state::RunEdits,
};
use serde_json::json;
use std::{
    future::{Future, poll_fn},
    pin::pin,
    sync::Arc,
    task::Poll,
};

/// The part of the window that is kept when the model rejects a conversation, and the part that the
/// current exchange may have then.
const AFTER_OVERFLOW: f64 = 0.4;
const EXCHANGE: f64 = 0.8;

/// How much more a trigger must be exceeded after a compaction that failed or was skipped.
const GROWTH: f64 = 1.1;

const DEFAULT: [Trigger; 1] = [Trigger::fraction(0.85)];

pub(super) struct Call {
    settings: Arc<Settings>,
    // With the whole conversation.
    request: ChatRequest,
    // The tokens of the system prompt and the tools, not corrected.
    prompt: u64,
    window: u64,
    step: Step,
    // The number of the run's effects before the call.
    effects: u64,
    rejected: Option<Error>,
}

/// A request for the inner model.
pub(super) struct Prepared {
    pub(super) request: ChatRequest,
    pub(super) sent: Sent,
    pub(super) edits: Option<RunEdits>,
}

impl Call {
    pub(super) fn new(settings: &Arc<Settings>, request: ChatRequest) -> Self {
        let prompt = settings.counter.prompt(&request);
        let window = budget(&request).unwrap_or(settings.window);
        let (context, of) = (&request.context, &request.transcript);
        let steps = context.state::<Steps>().unwrap_or_default();
        let last = steps.get(context.depth()).cloned().unwrap_or_default();
        let weigh = |turn: &Turn| settings.counter.turn(turn);
        let step = match last.memo.extended(of) {
            Some(view) => Step {
                total: last.total.of(&view, weigh),
                memo: Memo::new(of, &view),
                ..last
            },
            None => {
                let summary = Summary::read(context).filter(|summary| summary.is_of(of));
                let cut = summary
                    .as_ref()
                    .map(|it| it.cut.clone())
                    .unwrap_or_default();
                let view = cut.view(of);
                Step {
                    total: Total::default().of(&view, weigh),
                    memo: Memo::new(of, &view),
                    cut,
                    summary,
                    failures: last.failures,
                }
            }
        };
        Self {
            settings: Arc::clone(settings),
            effects: request.context.effect_count(),
            request,
            prompt,
            window,
            step,
            rejected: None,
        }
    }

    /// Whether the model rejected the conversation before the call may have had an effect.
    pub(super) fn is_recoverable(&self, error: &Error) -> bool {
        error.kind() == ErrorKind::ContextWindow
            && error.effects() == SideEffects::None
            && self.context().effect_count() == self.effects
    }

    /// The call, whose conversation the model has rejected.
    pub(super) fn rejected_with(mut self, error: Error) -> Self {
        self.rejected = Some(error);
        self
    }

    fn context(&self) -> &Context {
        &self.request.context
    }

    fn corrected(&self, count: u64) -> u64 {
        let model = self.request.options.model.as_deref();
        self.settings.counter.corrected(model, count)
    }

    /// The tokens of the request.
    fn tokens(&self) -> u64 {
        let total = &self.step.total;
        let estimate = self.corrected(self.prompt.saturating_add(total.sum));
        let reported = Reported::tokens(self.context(), self.step.memo.view(), total.sum);
        reported.map_or(estimate, |reported| reported.max(estimate))
    }

    fn triggers(&self) -> &[Trigger] {
        match self.settings.triggers.is_empty() {
            true => &DEFAULT,
            false => &self.settings.triggers,
        }
    }

    /// The cause to compact before the call; `None` if there is none.
    pub(super) fn due(&self) -> Option<Cause> {
        if take_request(self.context()) {
            return Some(Cause::Request);
        }
        let (tokens, turns) = (self.tokens(), self.step.memo.view().len());
        let scale = GROWTH.powi(self.step.failures);
        let mut triggers = self.triggers().iter();
        let holds = triggers.any(|it| it.holds(tokens, turns, self.window, scale));
        holds.then_some(Cause::Trigger)
    }

    /// The limits of a cut after the turns of `head`.
    fn limits(&self, cause: Cause, tokens: u64, head: &[&Turn]) -> Limits {
        let settings = &self.settings;
        // What is sent beside the turns after the cut.
        let window = self.window.min(tokens);
        let head = head.iter().map(|turn| settings.counter.turn(turn));
        let summary = u64::from(settings.max_summary).min(window / 10);
        let fixed = head.sum::<u64>() + self.prompt + summary;
        // Limits are compared with counts that are not corrected.
        let count = |tokens: u64| {
            let ratio = self.corrected(1_000_000).max(1);
            let count = u128::from(tokens) * 1_000_000 / u128::from(ratio);
            u64::try_from(count)
                .unwrap_or(u64::MAX)
                .saturating_sub(fixed)
        };
        let part = scaled(self.window, AFTER_OVERFLOW);
        let limits = self.triggers().iter();
        let limit = limits
            .filter_map(|trigger| trigger.limit(self.window))
            .min();
        match cause {
            Cause::Overflow => Limits {
                keep: count(scaled(window, AFTER_OVERFLOW)).min(settings.keep),
                exchange: count(scaled(window, EXCHANGE)),
                cuts_exchange: true,
            },
            Cause::Trigger => Limits {
                keep: settings.keep.min(count(part)),
                exchange: limit.map_or(u64::MAX, count),
                cuts_exchange: limit.is_some(),
            },
            Cause::Request => Limits {
                keep: settings.keep.min(count(part)),
                exchange: u64::MAX,
                cuts_exchange: false,
            },
        }
    }

    /// Compacts the conversation.
    ///
    /// # Errors
    ///
    /// The run was cancelled, or the model rejected a conversation of which nothing can be left out.
    pub(super) async fn compact(mut self, cause: Cause) -> Result<Self, Error> {
        let settings = Arc::clone(&self.settings);
        let (before, of) = (self.tokens(), self.request.transcript.clone());
        let all: Vec<&Turn> = of.iter().collect();
        // A committed summary is not one of the first turns that are kept.
        let head = all.iter().take(settings.head);
        let head = head.take_while(|turn| !is_summary(turn)).count();
        let limits = self.limits(cause, before, all.get(..head).unwrap_or_default());
        let weigh = |turn: &Turn| settings.counter.turn(turn);
        let Some(mut cut) = plan::cut(&of, &all, &self.step, head, &limits, weigh) else {
            self.step.failures += i32::from(cause == Cause::Trigger);
            return self.or_rejected();
        };

        // An earlier cut may have kept messages that this one does not.
        let previous = self.step.summary.as_ref();
        let is_new = |index: &usize| {
            let is_covered = previous.is_some_and(|summary| !summary.cut.keeps(*index));
            !cut.keeps(*index) && !is_covered
        };
        let turns = all.iter().enumerate().take(cut.end);
        let turns: Transcript = turns
            .filter(|(index, _)| is_new(index))
            .map(|(_, turn)| Turn::clone(turn))
            .collect();
        let previous: Option<Str> = previous.and_then(|summary| summary.cut.text.clone());

        let plan = Plan {
            cause,
            turns: turns.clone(),
            previous: previous.clone(),
            tokens: before,
            context: self.context().clone(),
        };
        let text = match self.decide(plan).await? {
            CompactionDecision::Skip if cause != Cause::Overflow => {
                // A request that is skipped does not raise the trigger.
                self.step.failures += i32::from(cause == Cause::Trigger);
                return Ok(self);
            }
            CompactionDecision::Instead(text) if !text.trim().is_empty() => Some(text),
            _ => summarise(&settings, self.context(), previous.as_ref(), &turns).await?,
        };
        let text = text.filter(|text| {
            let mut more = settings.counter.text(text).saturating_add(1);
            let previous = previous.iter().map(|text| settings.counter.text(text));
            // As many as are needed.
            let is_shorter = previous.chain(turns.rev().map(weigh)).any(|replaced| {
                more = more.saturating_sub(replaced);
                more == 0
            });
            if !is_shorter {
                warn("the summary is not shorter than the turns", None);
            }
            is_shorter
        });

        let last = self.step.clone();
        match text {
            Some(text) => {
                cut.text = Some(text);
                self.step.failures = 0;
                let known = last.summary.as_ref();
                let known = known.map_or((0, None), |it| (it.cut.end, Some(it.digest)));
                let digest = digest(&of.prefix(cut.end), known.0, known.1);
                let cut = cut.clone();
                self.step.summary = digest.map(|digest| Summary { cut, digest });
            }
            None => {
                cut.text = previous;
                self.step.failures += 1;
            }
        }
        let view = cut.view(&of);
        self.step.total = Total::default().of(&view, weigh);
        self.step.memo = Memo::new(&of, &view);
        self.step.cut = cut;
        let after = self.corrected(self.prompt.saturating_add(self.step.total.sum));
        if self.step.total.sum >= last.total.sum {
            let failures = self.step.failures.max(last.failures + 1);
            self.step = Step { failures, ..last };
            return self.or_rejected();
        }
        // A summary that is not sent is not stored.
        if self.step.failures == 0
            && let Some(summary) = &self.step.summary
        {
            summary.write(self.context());
        }
        self.rejected = None;
        self.report(cause, before, after);
        Ok(self)
    }

    /// The call without a compaction, or the model's error if it rejected the conversation.
    fn or_rejected(mut self) -> Result<Self, Error> {
        match self.rejected.take() {
            None => Ok(self),
            Some(error) => {
                let why = "the conversation does not fit into the context window, and nothing of it can be summarised";
                let attempts = error.attempts();
                Err(Error::new(ErrorKind::ContextWindow, why)
                    .with_code(NO_PROGRESS)
                    .with_attempts(attempts)
                    .with_source(error))
            }
        }
    }

    /// # Errors
    ///
    /// The run was cancelled, or its deadline passed.
    async fn decide(&self, plan: Plan) -> Result<CompactionDecision, Error> {
        let Some(before) = &self.settings.before else {
            return Ok(CompactionDecision::Proceed);
        };
        let mut stop = Stop::new(self.context());
        let mut decided = pin!(caught(|| before(plan)));
        let decided = poll_fn(|cx| match decided.as_mut().poll(cx) {
            Poll::Ready(decided) => Poll::Ready(Ok(decided)),
            Poll::Pending => stop.poll("the hook before a compaction", cx).map(Err),
        });
        Ok(decided.await?.unwrap_or_else(|panic| {
            let panic = panic.text();
            tracing::warn!(target: "concentric::compaction", panic, "the hook before a compaction panicked");
            CompactionDecision::Proceed
        }))
    }

    fn report(&self, cause: Cause, before: u64, after: u64) {
        let cut = &self.step.cut;
        let value = json!({
            "turns": cut.end,
            "tokens_before": before,
            "tokens_after": after,
            "summarised": self.step.failures == 0,
        });
        emit(self.context(), "concentric.compacted", value);
        if let Some(hook) = &self.settings.after {
            let report = Report {
                cause,
                turns: cut.end,
                tokens_before: before,
                tokens_after: after,
                summary: cut.text.clone().filter(|_| self.step.failures == 0),
                context: self.context().clone(),
            };
            if let Err(panic) = catch(|| hook(&report)) {
                let panic = panic.text();
                tracing::warn!(target: "concentric::compaction", panic, "the hook after a compaction panicked");
            }
        }
    }

    /// The request for the inner model.
    ///
    /// # Errors
    ///
    /// A committed rewrite is not valid.
    pub(super) fn prepare(&self) -> Result<Prepared, Error> {
        let mut request = self.request.clone();
        let mut step = self.step.clone();
        let mut edits = None;
        if self.settings.commits && step.cut.end > 0 {
            let mut rewrite = RunEdits::default();
            let kept = committed(&request.transcript, &step);
            rewrite.rewrite(&mut request.transcript, step.cut.end, kept)?;
            edits = Some(rewrite);
            let of = &request.transcript;
            step.total = Total::default().of(of, |turn| self.settings.counter.turn(turn));
            step.memo = Memo::new(of, of);
            (step.cut, step.summary) = (super::state::Cut::default(), None);
        } else {
            request.transcript = step.memo.view().clone();
        }
        let sent = Sent {
            counter: self.settings.counter.clone(),
            transcript: request.transcript.clone(),
            model: request.options.model.clone(),
            count: self.prompt.saturating_add(step.total.sum),
            report: Some((self.context().clone(), step.total.sum)),
        };
        let depth = self.context().depth();
        let _ = self
            .context()
            .update_state::<Steps>(|steps| steps.with(depth, &step));
        Ok(Prepared {
            request,
            sent,
            edits,
        })
    }
}

/// The turns that replace those before the cut's end. A rewrite keeps the user's last message, after them.
fn committed(of: &Transcript, step: &Step) -> Vec<Turn> {
    let cut = &step.cut;
    let is_by_author = |turn: &Turn| {
        let mut authors = turn.as_message().parts.iter().map(|part| &part.author);
        is_by_user(turn) && authors.any(|author| *author == Author::User)
    };
    let last = of.rev().position(is_by_author).or_else(|| {
        let mut roles = of.rev().map(|turn| turn.as_message().role);
        roles.position(|role| role == Role::User)
    });
    let last = last.map(|from_end| of.len() - 1 - from_end);
    let mut turns = Vec::new();
    for (index, turn) in of.iter().enumerate().take(cut.end) {
        if index == cut.head {
            turns.extend(cut.turn());
        }
        if cut.keeps(index) && last != Some(index) {
            turns.push(turn.clone());
        }
    }
    turns
}
