//! The tokens of runs, and their cost.

use std::collections::BTreeMap;

use concentric_core::{RunUsage, Str, Usage};

use super::{
    config::Config,
    html::{Html, html},
    layout::{Page, Place},
    operator::Operator,
};

/// The tokens of some runs.
#[derive(Default)]
struct Sum {
    runs: u64,
    usage: RunUsage,
}

pub(super) fn page(config: &Config, operator: &Operator) -> Page {
    let mut page = Page::new(Place::Usage, "Usage");
    let content = &mut page.content;
    let logs = config.logs.as_ref();
    let logs = logs.map_or_else(Vec::new, |logs| logs.of_tenants(&operator.tenants));
    let mut sums: BTreeMap<[Str; 2], Sum> = BTreeMap::new();
    let mut all = RunUsage::default();
    for log in logs {
        let usage = log.usage();
        if usage.models().is_empty() {
            continue;
        }
        let agent = log.about().agent.clone().unwrap_or_default();
        let sum = sums.entry([log.name().0.clone(), agent]).or_default();
        sum.runs += 1;
        sum.usage.extend(usage.clone());
        all.extend(usage);
    }
    if sums.is_empty() {
        content.markup("<p class=\"empty\">No run has reported tokens.</p>");
    } else {
        by_agent(content, config, operator, &sums);
        by_model(content, &all);
    }
    content.markup("<p class=\"note\">These are the runs of this process, as long as it keeps their events. A store of metrics has all of them.</p>");
    page
}

fn by_agent(
    content: &mut Html,
    config: &Config,
    operator: &Operator,
    sums: &BTreeMap<[Str; 2], Sum>,
) {
    let has_tenants = operator.tenants.len() > 1;
    begin(content, "By agent");
    if has_tenants {
        content.markup("<th scope=\"col\">Tenant</th>");
    }
    content.markup("<th scope=\"col\">Agent</th><th scope=\"col\">Runs</th>");
    heads(content);
    if config.cost.is_some() {
        content.markup("<th scope=\"col\">Cost</th>");
    }
    content.markup("</tr></thead><tbody>");
    for ([tenant, agent], sum) in sums {
        content.markup("<tr>");
        if has_tenants {
            html!(content; "<td>" (tenant) "</td>");
        }
        html!(content; "<td>" (or_none(agent)) "</td><td>" (&sum.runs.to_string()) "</td>");
        let calls = sum.usage.models().iter();
        let calls = calls.fold(0_u64, |sum, of| sum.saturating_add(of.calls));
        counts(content, calls, &sum.usage.total());
        if let Some(cost) = &config.cost {
            let cost = cost(&sum.usage);
            html!(content; "<td>" (cost.as_deref().unwrap_or("unknown")) "</td>");
        }
        content.markup("</tr>");
    }
    content.markup("</tbody></table></div>");
}

fn by_model(content: &mut Html, usage: &RunUsage) {
    let mut sums: BTreeMap<[&str; 2], (u64, Usage)> = BTreeMap::new();
    for of in usage.models() {
        let name = [&of.provider, &of.model].map(|name| name.as_deref().unwrap_or_default());
        let (calls, sum) = sums.entry(name).or_default();
        *calls = calls.saturating_add(of.calls);
        *sum += of.usage;
    }
    begin(content, "By model");
    content.markup("<th scope=\"col\">Provider</th><th scope=\"col\">Model</th>");
    heads(content);
    content.markup("</tr></thead><tbody>");
    for ([provider, model], (calls, sum)) in sums {
        html!(content; "<tr><td>" (or_none(provider)) "</td><td>" (or_none(model)) "</td>");
        counts(content, calls, &sum);
        content.markup("</tr>");
    }
    content.markup("</tbody></table></div>");
}

fn begin(content: &mut Html, caption: &str) {
    html!(content;
        "<div class=\"scroll\" role=\"region\" aria-label=\"" (caption) "\" tabindex=\"0\"><table><caption>" (caption)
        "</caption><thead><tr>"
    );
}

fn heads(content: &mut Html) {
    content.markup(
        "<th scope=\"col\">Model calls</th><th scope=\"col\">Input tokens</th>\
         <th scope=\"col\">of these, cached</th><th scope=\"col\">Output tokens</th>\
         <th scope=\"col\">of these, reasoning</th>",
    );
}

fn counts(content: &mut Html, calls: u64, usage: &Usage) {
    let counts = [
        usage.input_tokens(),
        usage.cached_input_tokens(),
        usage.output_tokens(),
        usage.reasoning_tokens(),
    ];
    for count in [calls]
        .into_iter()
        .chain(counts.map(Option::unwrap_or_default))
    {
        html!(content; "<td>" (&count.to_string()) "</td>");
    }
}

const fn or_none(name: &str) -> &str {
    if name.is_empty() { "–" } else { name }
}
