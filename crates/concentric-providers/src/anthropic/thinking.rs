//! The thinking settings and the output limit of a call.

use super::model::Model;
use crate::{Unsupported, api::Call};
use concentric_core::ToolChoice;
use serde::Serialize;

/// The settings of a call.
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

/// The minimum budget that the service accepts.
const LEAST: u32 = 1_024;

/// The number of tokens for the response if a request sets a thinking budget without an output
/// limit.
const FOR_THE_ANSWER: u32 = 8_192;

impl<'a> Plan<'a> {
    /// Determines the settings for `call`. `default` is the output limit if the call has none.
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
            // The option replaces all other thinking settings.
            plan.effort = options.reasoning_effort.as_deref();
            plan.effort = plan.effort.filter(|_| model.is_adaptive());
            return plan;
        }
        match options.reasoning_effort.as_deref() {
            _ if !model.thinks() => {}
            None => {}
            Some("none") if !model.can_disable_thinking() => plan.no("disabled reasoning"),
            Some("none") if model.thinks_by_itself() => plan.thinking = Some(Thinking::Disabled),
            Some("none") => {}
            Some(effort) => match effort.parse() {
                Ok(_) if !model.takes_budget() => plan.no("a token budget for reasoning"),
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

    /// Applies a budget from the request.
    fn budget(&mut self, budget: u32, call: &Call<'_>) {
        if call.request.options.max_output_tokens.is_none() {
            let all = budget.saturating_add(FOR_THE_ANSWER);
            self.max_tokens = self.max_tokens.max(all);
        }
        if budget < LEAST || budget >= self.max_tokens {
            return self.no(
                "a reasoning budget of less than 1024 tokens, or not less than the output limit",
            );
        }
        self.thinking = Some(Thinking::Enabled {
            budget_tokens: budget,
        });
    }

    /// Converts an effort for a model that only accepts a budget.
    fn budget_of(&mut self, effort: &str) {
        let budget = match effort {
            "minimal" => LEAST,
            "low" => 2_048,
            "medium" => 8_192,
            "high" => 16_384,
            "xhigh" | "max" => 24_576,
            _ => return self.no("this reasoning effort"),
        };
        let budget = budget.min(self.max_tokens.saturating_sub(1));
        if budget < LEAST {
            return self.no("a reasoning effort with an output limit of 1024 tokens or less");
        }
        self.thinking = Some(Thinking::Enabled {
            budget_tokens: budget,
        });
    }

    /// Lists settings that cannot be combined with thinking.
    fn check(&mut self, call: &Call<'_>) {
        let (request, options) = (call.request, &call.request.options);
        let thinks = self
            .thinking
            .is_some_and(|thinking| thinking != Thinking::Disabled);
        let forces = matches!(
            options.tool_choice,
            Some(ToolChoice::Required | ToolChoice::Tool(_))
        );
        // Forced calls are accepted with adaptive thinking.
        let is_manual = matches!(self.thinking, Some(Thinking::Enabled { .. }));
        if is_manual && forces && !request.tools.is_empty() {
            self.no("a forced tool call together with a reasoning effort");
        }
        if thinks && options.temperature.is_some_and(|t| t != 1.0) {
            self.no("a temperature together with a reasoning effort");
        }
    }
}
