//! How much a model is to think, and how many tokens it may write.

use super::model::Model;
use crate::{Unsupported, api::Call};
use concentric_core::ToolChoice;
use serde::Serialize;

/// What a call asks for.
#[derive(Debug, Default)]
pub(super) struct Plan<'a> {
    pub(super) thinking: Option<Thinking>,
    pub(super) effort: Option<&'a str>,
    pub(super) max_tokens: u32,
    pub(super) unsupported: Vec<Unsupported>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(super) enum Thinking {
    Adaptive,
    Enabled { budget_tokens: u32 },
    Disabled,
}

/// The least that the service takes as a budget.
const LEAST: u32 = 1_024;

/// What a model is left for its answer, if nobody says how much it may write, but how much of it is
/// for thinking.
const FOR_THE_ANSWER: u32 = 8_192;

impl<'a> Plan<'a> {
    /// What `call` asks for. `default` is how many tokens it may write if it does not say.
    pub(super) fn of(call: &Call<'a>, default: Option<u32>) -> Self {
        let options = &call.request.options;
        let model = Model::named(call.model);
        let mut plan = Self {
            max_tokens: options
                .max_output_tokens
                .or(default)
                .unwrap_or(model.max_tokens()),
            ..Self::default()
        };
        if options.provider.contains_key("thinking") {
            // Whoever says that knows the rest.
            plan.effort = options.reasoning_effort.as_deref();
            plan.effort = plan.effort.filter(|_| model.is_adaptive());
            return plan;
        }
        match options.reasoning_effort.as_deref() {
            _ if !model.thinks() => {}
            None => {}
            Some("none") if !model.can_be_thoughtless() => plan.no("to be told not to reason"),
            Some("none") if model.thinks_by_itself() => plan.thinking = Some(Thinking::Disabled),
            Some("none") => {}
            Some(effort) => match effort.parse() {
                Ok(_) if !model.takes_budget() => plan.no("a budget of tokens for its reasoning"),
                Ok(budget) => plan.budget(budget, call),
                Err(_) if model.is_adaptive() => {
                    plan.thinking = Some(Thinking::Adaptive);
                    plan.effort = Some(effort);
                }
                Err(_) => plan.budget_of(effort),
            },
        }
        plan.check(call);
        plan
    }

    fn no(&mut self, what: &'static str) {
        self.unsupported.push(Unsupported::new(what));
    }

    /// A budget that the caller chose.
    fn budget(&mut self, budget: u32, call: &Call<'_>) {
        if call.request.options.max_output_tokens.is_none() {
            let all = budget.saturating_add(FOR_THE_ANSWER);
            self.max_tokens = self.max_tokens.max(all);
        }
        if budget < LEAST || budget >= self.max_tokens {
            return self
                .no("a budget for its reasoning of less than 1024 tokens, or of all it may write");
        }
        self.thinking = Some(Thinking::Enabled {
            budget_tokens: budget,
        });
    }

    /// The budget of a model that is not told in words.
    fn budget_of(&mut self, effort: &str) {
        let budget = match effort {
            "minimal" => LEAST,
            "low" => 2_048,
            "medium" => 8_192,
            "high" => 16_384,
            "xhigh" | "max" => 24_576,
            _ => return self.no("such a reasoning effort"),
        };
        let budget = budget.min(self.max_tokens.saturating_sub(1));
        if budget < LEAST {
            return self.no("a reasoning effort with so few output tokens");
        }
        self.thinking = Some(Thinking::Enabled {
            budget_tokens: budget,
        });
    }

    /// Lists what can't be had beside thinking.
    fn check(&mut self, call: &Call<'_>) {
        let (request, options) = (call.request, &call.request.options);
        let thinks = self
            .thinking
            .is_some_and(|thinking| thinking != Thinking::Disabled);
        let forces = matches!(
            options.tool_choice,
            Some(ToolChoice::Required | ToolChoice::Tool(_))
        );
        // A model that decides itself how much to think may be told.
        let is_manual = matches!(self.thinking, Some(Thinking::Enabled { .. }));
        if is_manual && forces && !request.tools.is_empty() {
            self.no("to be told to call a tool, beside a reasoning effort");
        }
        if thinks && options.temperature.is_some_and(|t| t != 1.0) {
            self.no("a temperature beside a reasoning effort");
        }
    }
}
