use super::{TrimLayer, layer::Limit};
use crate::window::{
    ByDepth, Mark, Sent, Step, budget, changed, current_exchange, emit, media, middleware,
    newest_messages, note,
};
use concentric_core::{
    ChatRequest, Part, PartKind, Role, ToolContent, ToolResult, Transcript, Turn,
    state::{Durable, Scope, Slot, Transient},
};
use serde_json::json;

/// The ends of the turns that are left out after the head, in a run's loops.
struct Cuts;

impl Slot for Cuts {
    type Value = ByDepth<Mark>;
    type Keep = Durable;
    const NAME: &'static str = "concentric/trim";
    const SCOPE: Scope = Scope::Run;
}

/// The views that were sent in the last steps.
struct Steps;

impl Slot for Steps {
    type Value = ByDepth<Step>;
    type Keep = Transient;
    const NAME: &'static str = "concentric/trim/step";
    const SCOPE: Scope = Scope::Run;
}

middleware! {
    /// Middleware that sends the newest turns of a conversation.
    Trim of TrimLayer
}

impl TrimLayer {
    /// Replaces the conversation of the request by its view.
    fn view(&self, request: &mut ChatRequest) -> Option<Sent> {
        let (context, of) = (request.context.clone(), request.transcript.clone());
        let depth = context.depth();
        // A slot that can't be read is set again.
        let steps = context.state::<Steps>().unwrap_or_default();
        let last = steps.get(depth);
        let last = last.and_then(|last| last.extended(&of, |turn| self.weigh(turn)));
        let mut step = last.unwrap_or_else(|| {
            let cuts = context.state::<Cuts>().unwrap_or_default();
            let end = cuts.get(depth).map_or(0, |cut| cut.end(&of));
            self.step(&of, if end < of.len() { end } else { 0 })
        });
        let prompt = match self.limit {
            Limit::Tokens(_) => self.counter.prompt(request),
            _ => 0,
        };
        let limit = Measure {
            layer: self,
            request,
            prompt,
        };
        if !limit.fits(step.sum()) {
            let was_over = step.is_over;
            let (end, fits) = self.plan(&of, step.end, &limit);
            let is_cut = end > step.end.max(self.head);
            if is_cut {
                step = self.step(&of, end);
                let cut = Mark::new(&of, end);
                let _ = context.update_state::<Cuts>(|cuts| cuts.with(depth, &cut));
            }
            step.is_over = !fits;
            if is_cut || !was_over {
                let turns = step.end.saturating_sub(self.head);
                let value = json!({"turns": turns, "over": step.is_over});
                emit(&context, "concentric.trim", value);
            }
        } else {
            step.is_over = false;
        }
        let view = step.view().clone();
        let sent = matches!(self.limit, Limit::Tokens(_)).then(|| Sent {
            counter: self.counter.clone(),
            transcript: view.clone(),
            model: request.options.model.clone(),
            count: prompt.saturating_add(step.sum()),
            report: None,
        });
        request.transcript = view;
        let _ = context.update_state::<Steps>(|steps| steps.with(depth, &step));
        sent
    }

    fn weigh(&self, turn: &Turn) -> u64 {
        match self.limit {
            Limit::Turns(_) => 1,
            Limit::Messages(_) => 1 + turn.results().len() as u64,
            Limit::Tokens(_) => self.counter.turn(turn),
        }
    }

    fn marker_turn(&self) -> Option<Turn> {
        let marker = self.marker.clone()?;
        Some(note("concentric/trim", marker))
    }

    /// The step that leaves out the turns from the head to `end`.
    fn step(&self, of: &Transcript, end: usize) -> Step {
        let reduce = Reduce::new(self, of);
        let view = match (end <= self.head, reduce.is_needed()) {
            (true, false) => of.clone(),
            (is_whole, _) => {
                let mut view = Transcript::new();
                for (index, turn) in of.iter().enumerate() {
                    if !is_whole && index == self.head {
                        view.extend(self.marker_turn());
                    }
                    if is_whole || index < self.head || index >= end {
                        view.push(reduce.turn(index, turn).unwrap_or_else(|| turn.clone()));
                    }
                }
                view
            }
        };
        Step::new(of, &view, end, |turn| self.weigh(turn))
    }

    /// The end of the next cut, and whether the request is within the limit after it.
    fn plan(&self, of: &Transcript, old: usize, limit: &Measure<'_>) -> (usize, bool) {
        let reduce = Reduce::new(self, of);
        let turns: Vec<&Turn> = of.iter().collect();
        let weigh = |index: usize, turn: &Turn| {
            let reduced = reduce.turn(index, turn);
            self.weigh(reduced.as_ref().unwrap_or(turn))
        };
        let head = turns.iter().enumerate().take(self.head);
        let marker = self.marker_turn().map_or(0, |turn| self.weigh(&turn));
        let mut sum = marker + head.map(|(index, turn)| weigh(index, turn)).sum::<u64>();
        let exchanges = [current_exchange(of), newest_messages(of, 1)];
        // The cut that leaves at most 80 %, and the last that leaves an exchange whole.
        let (mut best, mut last) = (of.len(), [None; 2]);
        let first = old.max(self.head).saturating_add(1);
        for (index, turn) in turns.iter().enumerate().skip(first).rev() {
            sum += weigh(index, turn);
            let fits = limit.fits(sum);
            if limit.is_small(sum) {
                best = index;
            }
            for (exchange, last) in exchanges.iter().zip(&mut last) {
                if fits && index <= *exchange {
                    *last = (*last).max(Some(index));
                }
            }
            if !fits {
                break;
            }
        }
        match last.into_iter().flatten().next() {
            Some(last) => (best.min(last), true),
            None => (exchanges[1].max(old), false),
        }
    }
}

/// The limit of one request.
struct Measure<'a> {
    layer: &'a TrimLayer,
    request: &'a ChatRequest,
    prompt: u64,
}

impl Measure<'_> {
    /// The limit, and the amount of a request whose turns have the weight `sum`.
    fn of(&self, sum: u64) -> (u64, u64) {
        match self.layer.limit {
            Limit::Turns(limit) | Limit::Messages(limit) => (limit, sum),
            Limit::Tokens(limit) => {
                let model = self.request.options.model.as_deref();
                let sum = self.prompt.saturating_add(sum);
                let limit = budget(self.request).map_or(limit, |budget| limit.min(budget));
                (limit, self.layer.counter.corrected(model, sum))
            }
        }
    }

    fn fits(&self, sum: u64) -> bool {
        let (limit, amount) = self.of(sum);
        amount <= limit
    }

    /// Whether the amount is at most 80 % of the limit.
    fn is_small(&self, sum: u64) -> bool {
        let (limit, amount) = self.of(sum);
        u128::from(amount) * 5 <= u128::from(limit) * 4
    }
}

/// Leaves out parts of old exchanges.
struct Reduce {
    // The ends of the turns without reasoning, and without media.
    reasoning: usize,
    media: usize,
}

impl Reduce {
    fn new(layer: &TrimLayer, of: &Transcript) -> Self {
        // Not before the limits are known to exist: this reads the conversation.
        let end = |exchanges: Option<usize>| {
            exchanges.map_or(0, |exchanges| {
                current_exchange(of).min(newest_messages(of, exchanges))
            })
        };
        Self {
            reasoning: end(layer.reasoning),
            media: end(layer.media),
        }
    }

    const fn is_needed(&self) -> bool {
        self.reasoning > 0 || self.media > 0
    }

    /// The reduced form of the turn at `index`; `None` if it is the same.
    fn turn(&self, index: usize, turn: &Turn) -> Option<Turn> {
        let (no_reasoning, no_media) = (index < self.reasoning, index < self.media);
        if !no_reasoning && !no_media {
            return None;
        }
        let is_user = turn.as_message().role == Role::User;
        let part = |part: &Part| match &part.kind {
            PartKind::Reasoning(_) if no_reasoning => Some(Vec::new()),
            // Providers may require what their models generated.
            _ if no_media && is_user => Some(vec![named(part)?]),
            _ => None,
        };
        let result = |result: &ToolResult| {
            let ToolContent::Parts(parts) = &result.outcome.content else {
                return None;
            };
            if !no_media || !parts.iter().any(|part| media(part).is_some()) {
                return None;
            }
            let parts = parts
                .iter()
                .map(|part| named(part).unwrap_or_else(|| part.clone()));
            let mut reduced = result.clone();
            reduced.outcome.content = ToolContent::Parts(parts.collect());
            Some(reduced)
        };
        changed(turn, part, result)
    }
}

/// The kind of a medium, as text.
fn named(part: &Part) -> Option<Part> {
    let name = media(part)?;
    Some(Part::text(name).by(part.author.clone()))
}
