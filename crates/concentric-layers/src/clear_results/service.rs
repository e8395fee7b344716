use super::{ClearToolResultsLayer, ResponseFuture, WindowBody};
use crate::window::{ByDepth, Memo, Sent, Total, budget, changed, emit, fingerprint, media};
use concentric_core::{
    Arguments, ChatRequest, ChatResponse, Error, Event, Part, PartKind, Str, ToolContent,
    ToolResult, ToolStatus, Transcript, Turn,
    state::{Durable, Scope, Slot, Transient},
};
use futures_core::Stream;
use serde::{Deserialize, Serialize};
use serde_json::json;
use std::{
    collections::HashMap,
    task::{Context, Poll},
};
use tower_service::Service;

/// The places up to which results are cleared, in a run's loops.
struct Marks;

impl Slot for Marks {
    type Value = ByDepth<Mark>;
    type Keep = Durable;
    const NAME: &'static str = "concentric/clear_results";
    const SCOPE: Scope = Scope::Run;
}

/// The results of the turns before `end` are cleared.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
struct Mark {
    end: usize,
    // Of the last cleared turn.
    fingerprint: u64,
}

/// What was sent in the last step.
struct Steps;

impl Slot for Steps {
    type Value = ByDepth<Step>;
    type Keep = Transient;
    const NAME: &'static str = "concentric/clear_results/step";
    const SCOPE: Scope = Scope::Run;
}

#[derive(Clone, Debug, Default)]
struct Step {
    memo: Memo,
    total: Total,
    end: usize,
}

/// Middleware that sends placeholders for old results of tools.
#[derive(Clone, Debug)]
pub struct ClearToolResults<S> {
    inner: S,
    layer: ClearToolResultsLayer,
}

impl<S> ClearToolResults<S> {
    pub(super) const fn new(inner: S, layer: ClearToolResultsLayer) -> Self {
        Self { inner, layer }
    }

    /// Gets a reference to the inner service.
    pub const fn get_ref(&self) -> &S {
        &self.inner
    }
}

impl<S, B> Service<ChatRequest> for ClearToolResults<S>
where
    S: Service<ChatRequest, Response = ChatResponse<B>>,
    B: Stream<Item = Result<Event, Error>>,
{
    type Response = ChatResponse<WindowBody<B>>;
    type Error = S::Error;
    type Future = ResponseFuture<S::Future>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, mut request: ChatRequest) -> Self::Future {
        let sent = self.layer.clear(&mut request);
        ResponseFuture::new(self.inner.call(request), Some(sent))
    }
}

impl ClearToolResultsLayer {
    /// Replaces the conversation of the request by its view.
    fn clear(&self, request: &mut ChatRequest) -> Sent {
        let (context, of) = (request.context.clone(), request.transcript.clone());
        let depth = context.depth();
        let weigh = |turn: &Turn| self.counter.turn(turn);
        // A slot that can't be read is set again.
        let steps = context.state::<Steps>().unwrap_or_default();
        let last = steps.get(depth).cloned().unwrap_or_default();
        let mut step = match last.memo.extended(&of) {
            Some(view) => Step {
                total: last.total.of(&view, weigh),
                memo: Memo::new(&of, &view),
                ..last
            },
            None => {
                let marks = context.state::<Marks>().unwrap_or_default();
                let mark = marks.get(depth).copied().unwrap_or_default();
                let cleared = of.prefix(mark.end);
                let is_valid = cleared.len() == mark.end
                    && (cleared.last()).is_some_and(|turn| fingerprint(turn) == mark.fingerprint);
                self.step(&of, if is_valid { mark.end } else { 0 })
            }
        };
        let prompt = self.counter.prompt(request);
        let model = request.options.model.clone();
        let tokens = |sum: u64| {
            let count = prompt.saturating_add(sum);
            self.counter.corrected(model.as_deref(), count)
        };
        let trigger = budget(request).map_or(self.trigger, |budget| self.trigger.min(budget / 2));
        let before = tokens(step.total.sum);
        if before > trigger
            && let Some(end) = self.plan(&of, step.end, |sum| tokens(sum) - tokens(0))
        {
            step = self.step(&of, end);
            let turn = of.prefix(end);
            let fingerprint = turn.last().map(fingerprint).unwrap_or_default();
            let mark = Mark { end, fingerprint };
            let _ = context.update_state::<Marks>(|marks| marks.with(depth, &mark));
            let after = tokens(step.total.sum);
            let value = json!({"turns": end, "tokens_before": before, "tokens_after": after});
            emit(&context, "concentric.clear_results", value);
        }
        let view = step.memo.view().clone();
        let count = prompt.saturating_add(step.total.sum);
        request.transcript = view.clone();
        let _ = context.update_state::<Steps>(|steps| steps.with(depth, &step));
        Sent {
            counter: self.counter.clone(),
            transcript: view,
            model,
            count,
            report: None,
        }
    }

    /// The step that clears the results of the turns before `end`.
    fn step(&self, of: &Transcript, end: usize) -> Step {
        let first = of
            .iter()
            .take(end)
            .position(|turn| self.cleared(turn).is_some());
        let view = match first {
            // Turns that follow a change can't be shared.
            Some(first) => {
                let mut view = of.prefix(first);
                for (index, turn) in of.iter().enumerate().skip(first) {
                    let cleared = (index < end).then(|| self.cleared(turn)).flatten();
                    view.push(cleared.unwrap_or_else(|| turn.clone()));
                }
                view
            }
            None => of.clone(),
        };
        Step {
            total: Total::default().of(&view, |turn| self.counter.turn(turn)),
            memo: Memo::new(of, &view),
            end,
        }
    }

    /// The new end of the turns without results; `None` if nothing or too little would be reclaimed.
    fn plan(&self, of: &Transcript, old: usize, tokens: impl Fn(u64) -> u64) -> Option<usize> {
        // The newest results stay, with their rounds.
        let (mut kept, mut limit) = (0, of.len());
        for turn in of.rev() {
            if kept >= self.keep {
                break;
            }
            kept += turn.results().len();
            limit -= 1;
        }
        let (mut end, mut reclaimed) = (None, 0);
        for (index, turn) in of.iter().enumerate().take(limit).skip(old) {
            let Some(cleared) = self.cleared(turn) else {
                continue;
            };
            let (whole, rest) = (self.counter.turn(turn), self.counter.turn(&cleared));
            reclaimed += whole.saturating_sub(rest);
            end = Some(index + 1);
            if self.at_least > 0 && tokens(reclaimed) >= self.at_least {
                return end;
            }
        }
        end.filter(|_| self.at_least == 0)
    }

    /// The turn without its results; `None` if nothing of it is cleared.
    fn cleared(&self, turn: &Turn) -> Option<Turn> {
        let results = turn.results().iter();
        let results = results.filter_map(|result| Some((&result.call_id, self.text(result)?)));
        let texts: HashMap<_, _> = results.collect();
        if texts.is_empty() {
            return None;
        }
        let part = |part: &Part| match &part.kind {
            PartKind::ToolCall(call)
                if self.inputs
                    && texts.contains_key(&call.id)
                    && part.provider_data.is_none()
                    && call.arguments.as_str().len() > 2 =>
            {
                let mut call = call.clone();
                call.arguments = Arguments::from("{}");
                Some(vec![
                    Part::new(PartKind::ToolCall(call)).by(part.author.clone()),
                ])
            }
            _ => None,
        };
        let result = |result: &ToolResult| {
            let text = texts.get(&result.call_id)?;
            let mut cleared = result.clone();
            cleared.outcome.content = ToolContent::Text(text.clone());
            Some(cleared)
        };
        changed(turn, part, result)
    }

    /// The text in place of a result; `None` if it stays.
    fn text(&self, result: &ToolResult) -> Option<Str> {
        let outcome = &result.outcome;
        if outcome.status != ToolStatus::Done || self.except.contains(&result.name) {
            return None;
        }
        let bytes = outcome.content.text().len();
        // With the digits, so that a placeholder is not replaced.
        let most = self.placeholder.len() + 20;
        let is_larger = match &outcome.content {
            ToolContent::Text(_) => bytes > most,
            ToolContent::Parts(parts) => {
                bytes > most || parts.iter().any(|part| media(part).is_some())
            }
            _ => false,
        };
        is_larger.then(|| {
            let text = self.placeholder.replace("{bytes}", &bytes.to_string());
            text.into()
        })
    }
}
