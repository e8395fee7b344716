use super::ClearToolResultsLayer;
use crate::window::{ByDepth, Mark, Sent, Step, budget, changed, emit, media, middleware};
use concentric_core::{
    Arguments, ChatRequest, Part, PartKind, Str, ToolContent, ToolResult, ToolStatus, Transcript,
    Turn,
    state::{Durable, Scope, Slot, Transient},
};
use serde_json::json;
use std::collections::HashMap;

/// The places up to which results are cleared, in a run's loops.
struct Marks;

impl Slot for Marks {
    type Value = ByDepth<Mark>;
    type Keep = Durable;
    const NAME: &'static str = "concentric/clear_results";
    const SCOPE: Scope = Scope::Run;
}

/// The views that were sent in the last steps.
struct Steps;

impl Slot for Steps {
    type Value = ByDepth<Step>;
    type Keep = Transient;
    const NAME: &'static str = "concentric/clear_results/step";
    const SCOPE: Scope = Scope::Run;
}

middleware! {
    /// Middleware that sends placeholders for old results of tools.
    ClearToolResults of ClearToolResultsLayer
}

impl ClearToolResultsLayer {
    /// Replaces the conversation of the request by its view.
    fn view(&self, request: &mut ChatRequest) -> Option<Sent> {
        let (context, of) = (request.context.clone(), request.transcript.clone());
        let depth = context.depth();
        // A slot that can't be read is set again.
        let steps = context.state::<Steps>().unwrap_or_default();
        let last = steps.get(depth);
        let last = last.and_then(|last| last.extended(&of, |turn| self.counter.turn(turn)));
        let mut step = last.unwrap_or_else(|| {
            let marks = context.state::<Marks>().unwrap_or_default();
            let end = marks.get(depth).map_or(0, |mark| mark.end(&of));
            self.step(&of, end)
        });
        let prompt = self.counter.prompt(request);
        let model = request.options.model.clone();
        let tokens = |sum: u64| {
            let count = prompt.saturating_add(sum);
            self.counter.corrected(model.as_deref(), count)
        };
        let trigger = budget(request).map_or(self.trigger, |budget| self.trigger.min(budget / 2));
        let before = tokens(step.sum());
        if before > trigger
            && let Some(end) = self.plan(&of, step.end, |sum| tokens(sum) - tokens(0))
        {
            step = self.step(&of, end);
            let mark = Mark::new(&of, end);
            let _ = context.update_state::<Marks>(|marks| marks.with(depth, &mark));
            let after = tokens(step.sum());
            let value = json!({"turns": end, "tokens_before": before, "tokens_after": after});
            emit(&context, "concentric.clear_results", value);
        }
        let view = step.view().clone();
        let count = prompt.saturating_add(step.sum());
        request.transcript = view.clone();
        let _ = context.update_state::<Steps>(|steps| steps.with(depth, &step));
        Some(Sent {
            counter: self.counter.clone(),
            transcript: view,
            model,
            count,
            report: None,
        })
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
        Step::new(of, &view, end, |turn| self.counter.turn(turn))
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
