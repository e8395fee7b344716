use super::ClearToolResultsLayer;
use crate::window::{
    ByDepth, Mark, Searched, Sent, Step, budget, changed, emit, media, middleware,
};
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
            let whole = Step::new(&of, &of, 0, |turn| self.counter.turn(turn));
            self.clear(&whole, &of, end)
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
            && let Some(end) = self.plan(&of, &mut step, |sum| tokens(sum) - tokens(0))
        {
            step = self.clear(&step, &of, end);
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

    /// The step after `last` that also clears the results of the turns before `end`.
    fn clear(&self, last: &Step, of: &Transcript, end: usize) -> Step {
        let (mut view, mut sum): (Option<Transcript>, _) = (None, last.sum());
        for (index, turn) in turns(of, last.end, of.len()) {
            let cleared = (index < end).then(|| self.cleared(turn)).flatten();
            if let Some(cleared) = &cleared {
                sum = sum.saturating_sub(self.counter.turn(turn));
                sum = sum.saturating_add(self.counter.turn(cleared));
                // The turns before the first change are shared.
                view.get_or_insert_with(|| last.view().prefix(index));
            }
            if let Some(view) = &mut view {
                view.push(cleared.unwrap_or_else(|| turn.clone()));
            }
        }
        let view = view.unwrap_or_else(|| last.view().clone());
        last.changed(&view, sum, end)
    }

    /// The new end of the turns without results; `None` if nothing or too little would be reclaimed.
    ///
    /// The turns that were searched in vain are not searched in the next step.
    fn plan(&self, of: &Transcript, last: &mut Step, tokens: impl Fn(u64) -> u64) -> Option<usize> {
        let searched = last.searched;
        // The newest results stay, with their rounds.
        let (mut kept, mut limit) = (0, of.len());
        for turn in of.rev().take(of.len().saturating_sub(searched.end)) {
            if kept >= self.keep {
                break;
            }
            kept += turn.results().len();
            limit -= 1;
        }
        let (mut end, mut reclaimed) = (None, searched.reclaimed);
        if reclaimed > 0 && tokens(reclaimed) >= self.at_least {
            return Some(searched.end);
        }
        for (index, turn) in turns(of, searched.end, limit) {
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
        last.searched = Searched {
            end: limit,
            reclaimed,
        };
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

/// The turns from `start` up to `end`, with their places.
fn turns(of: &Transcript, start: usize, end: usize) -> impl Iterator<Item = (usize, &Turn)> {
    let newer = of.rev().skip(of.len().saturating_sub(end));
    let turns: Vec<&Turn> = newer.take(end.saturating_sub(start)).collect();
    (start..).zip(turns.into_iter().rev())
}
