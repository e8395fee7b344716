//! The tokens of runs, and their cost.

use std::{collections::BTreeMap, sync::Arc};

use concentric_core::{Str, Usage};
use serde_json::Value;

use super::{
    config::Config,
    fold::{COUNTS, end},
    html::{Html, html},
    layout::{Page, Place},
    operator::Operator,
};

/// What a model call costs, in millionths of a currency; `None` if it is unknown.
#[derive(Clone)]
pub(super) struct Price {
    pub(super) currency: Str,
    pub(super) of: Arc<PriceOf>,
}

type PriceOf = dyn Fn(&str, &Usage) -> Option<u64> + Send + Sync;

impl Price {
    /// The sum of what models have used, as a text; `None` if a price is unknown.
    pub(super) fn sum(&self, used: &[Value]) -> Option<String> {
        let costs = used.iter().map(|used| self.cost(used));
        let sum = costs.sum::<Option<u128>>();
        sum.filter(|_| !used.is_empty()).map(|sum| self.text(sum))
    }

    fn cost(&self, used: &Value) -> Option<u128> {
        let model = used["model"].as_str().unwrap_or_default();
        (self.of)(model, &usage(used)).map(u128::from)
    }

    fn text(&self, millionths: u128) -> String {
        let (whole, rest) = (millionths / 1_000_000, millionths % 1_000_000);
        format!("{whole}.{rest:06} {}", self.currency)
    }
}

/// What an event has of a model's usage.
fn usage(used: &Value) -> Usage {
    let mut usage = Usage::default();
    usage.set_input_tokens(used["inputTokens"].as_u64());
    usage.set_output_tokens(used["outputTokens"].as_u64());
    usage.set_total_tokens(used["totalTokens"].as_u64());
    usage.set_reasoning_tokens(used["reasoningTokens"].as_u64());
    usage.set_cached_input_tokens(used["cachedInputTokens"].as_u64());
    usage.set_cache_write_tokens(used["cacheWriteInputTokens"].as_u64());
    usage
}

/// The sums of some runs.
#[derive(Default)]
struct Sum {
    runs: u64,
    counts: [u64; COUNTS.len()],
    cost: u128,
    /// The number of runs whose cost is unknown.
    unpriced: u64,
}

pub(super) fn page(config: &Config, operator: &Operator) -> Page {
    let mut page = Page::new(Place::Usage, "Usage");
    let content = &mut page.content;
    let logs = config.logs.as_ref();
    let logs = logs.map_or_else(Vec::new, |logs| logs.of_tenants(&operator.tenants));
    let mut sums: BTreeMap<[String; 3], Sum> = BTreeMap::new();
    for log in logs {
        let Some(end) = log.terminal().and_then(|event| end(&event)) else {
            continue;
        };
        let agent = log.about().agent.clone().unwrap_or_default();
        for used in &end.usage {
            let model = used["model"].as_str().unwrap_or_default();
            let of = [log.name().0.as_str(), agent.as_str(), model].map(str::to_owned);
            let sum = sums.entry(of).or_default();
            sum.runs += 1;
            for (total, (name, _)) in sum.counts.iter_mut().zip(COUNTS) {
                *total = total.saturating_add(used[name].as_u64().unwrap_or(0));
            }
            match config.price.as_ref().and_then(|price| price.cost(used)) {
                Some(cost) => sum.cost += cost,
                None => sum.unpriced += 1,
            }
        }
    }
    if sums.is_empty() {
        content.markup("<p class=\"empty\">No ended run has reported tokens.</p>");
    } else {
        table(content, config, operator, &sums);
    }
    content.markup("<p class=\"note\">These are the ended runs of this process, as long as it keeps their events. A store of metrics has all of them.</p>");
    page
}

fn table(
    content: &mut Html,
    config: &Config,
    operator: &Operator,
    sums: &BTreeMap<[String; 3], Sum>,
) {
    let has_tenants = operator.tenants.len() > 1;
    content.markup("<div class=\"scroll\" role=\"region\" aria-label=\"Usage\" tabindex=\"0\"><table><caption>Tokens of ended runs</caption><thead><tr>");
    if has_tenants {
        content.markup("<th scope=\"col\">Tenant</th>");
    }
    content.markup(
        "<th scope=\"col\">Agent</th><th scope=\"col\">Model</th><th scope=\"col\">Runs</th>",
    );
    for (_, words) in COUNTS {
        html!(content; "<th scope=\"col\">" (words) "</th>");
    }
    if config.price.is_some() {
        content.markup("<th scope=\"col\">Cost</th>");
    }
    content.markup("</tr></thead><tbody>");
    for ([tenant, agent, model], sum) in sums {
        content.markup("<tr>");
        if has_tenants {
            html!(content; "<td>" (tenant) "</td>");
        }
        html!(content;
            "<td>" (or_none(agent)) "</td><td>" (or_none(model)) "</td><td>" (&sum.runs.to_string()) "</td>"
        );
        for count in sum.counts {
            html!(content; "<td>" (&count.to_string()) "</td>");
        }
        if let Some(price) = &config.price {
            let mut cost = price.text(sum.cost);
            if sum.unpriced > 0 {
                cost.push_str(&format!(", without {} runs of unknown price", sum.unpriced));
            }
            html!(content; "<td>" (&cost) "</td>");
        }
        content.markup("</tr>");
    }
    content.markup("</tbody></table></div>");
}

const fn or_none(name: &str) -> &str {
    if name.is_empty() { "–" } else { name }
}
