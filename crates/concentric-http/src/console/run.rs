//! The page of one run.

use concentric_core::{
    ErrorKind, Outcome, PartKind, Role, ThreadId, Turn,
    store::{RunStatus, RunSummary, StoreError},
};

use super::{
    approvals::questions,
    config::Config,
    fold::{At, ENTRIES, Entries, Op, ops},
    form::{encoded, link},
    html::{Html, html},
    layout::{Page, Place},
    listing::{RunName, failed, log, stored},
    operator::Operator,
    runs::{badge, status, time},
    stacks, threads,
};
use crate::{refused::Refused, run::RunLog};

/// The length of a text, in bytes, after which the rest is folded.
const FOLDED: usize = 64 << 10;

/// The size of a page, in bytes, after which older entries are left out.
pub(super) const PAGE: usize = 4 << 20;

pub(super) async fn page(
    config: &Config,
    operator: &Operator,
    name: &RunName,
) -> Result<Page, Refused> {
    let log = log(config, name);
    let stored = stored(config, name).await?;
    if log.is_none() && stored.is_none() {
        return Err(unknown());
    }
    let record = match (&stored, &config.runs) {
        (Some(summary), Some(store)) => match store.get(summary.key.clone()).await {
            Ok(record) => Some(record),
            Err(StoreError::NotFound) => None,
            Err(error) => return Err(failed(&error)),
        },
        _ => None,
    };
    let live = log.as_ref().filter(|log| !log.is_ended());
    let mut entries = Entries::default();
    let mut after = None;
    let mut lost = 0;
    match (&log, &record) {
        (Some(log), _) => {
            let (first, frames, position) = log.frames();
            lost = first - 1;
            for frames in frames {
                entries.apply(ops(&frames, operator.content));
            }
            after = Some((position.number, log.tag().clone()));
        }
        (None, Some(record)) => {
            for turn in record.state.transcript() {
                entries.apply(turn_ops(turn, operator.content));
            }
        }
        (None, None) => {}
    }

    let mut page = Page::new(Place::Other, format!("Run {}", name.run));
    page.is_live = live.is_some();
    let content = &mut page.content;
    summary(
        content,
        config,
        name,
        log.as_deref(),
        stored.as_ref(),
        &entries,
    );
    if operator.cancel && is_driven(live.is_some(), stored.as_ref()) {
        begin(content, config, operator, name, CANCEL);
        content.markup("<button class=\"deny\">Cancel the run</button></form>");
    }
    if let Some(agent) = live.and_then(|log| log.about().agent.as_deref()) {
        stacks::of_run(content, config, agent, entries.at);
    }
    let status = stored.as_ref().map(|run| run.status);
    if status == Some(RunStatus::Quarantined) {
        content.markup("<p class=\"note\">The processes that drove this run have died, so it is not resumed.</p>");
        if operator.release {
            begin(content, config, operator, name, RELEASE);
            content.markup("<button>Release the run</button></form>");
        }
    }
    if let Some(record) = record.filter(|record| record.status == RunStatus::Suspended) {
        content.markup("<h2>Questions</h2>");
        questions(content, config, operator, name, &record);
    }
    content.markup("<h2 id=\"events\">Events</h2>");
    if log.is_none() {
        content.markup("<p class=\"note\">This process has no events of the run; these are its stored messages.</p>");
    }
    if lost > 0 {
        html!(content; "<p class=\"note\">The first " (&lost.to_string()) " events are not kept any more.</p>");
    }
    write_entries(content, &entries);
    if let (Some(_), Some((number, tag))) = (live, after) {
        let query = name.fields().into_iter();
        let after = format!("{number}-{tag}");
        let query: Vec<(&str, &str)> = query.chain([("after", after.as_str())]).collect();
        let to = link(&config.path, "/run/events", &query);
        html!(content; "<div id=\"stream\" data-events=\"" (&to) "\"></div>");
    }
    Ok(page)
}

pub(super) fn unknown() -> Refused {
    Refused::not_found(
        "run_not_found",
        "This run does not exist, or is not kept any more.",
    )
}

/// The last parts of the paths that change a run.
pub(super) const CANCEL: &str = "cancel";
pub(super) const RELEASE: &str = "release";

/// What the form with a button does, for its token.
pub(super) fn purpose(name: &RunName, action: &str) -> String {
    format!("{:?}", (action, name.fields()))
}

/// Begins the form of a button, with its hidden fields.
fn begin(content: &mut Html, config: &Config, operator: &Operator, name: &RunName, action: &str) {
    let to = link(&config.path, &format!("/run/{action}"), &[]);
    let now = config.environment.clock().now();
    let token = config.forms.token(operator, &purpose(name, action), now);
    html!(content; "<form method=\"post\" action=\"" (&to) "\"><input type=\"hidden\" name=\"token\" value=\"" (&token) "\">");
    for (field, value) in name.fields() {
        html!(content; "<input type=\"hidden\" name=\"" (field) "\" value=\"" (&encoded(value)) "\">");
    }
}

fn is_driven(is_live: bool, stored: Option<&RunSummary>) -> bool {
    let stored = stored.map(|run| run.status);
    is_live || matches!(stored, Some(RunStatus::Running | RunStatus::Abandoned))
}

fn summary(
    content: &mut Html,
    config: &Config,
    name: &RunName,
    log: Option<&RunLog>,
    stored: Option<&RunSummary>,
    entries: &Entries,
) {
    let end = entries.end.as_ref();
    let is_live = log.is_some_and(|log| !log.is_ended());
    let status = match (stored.map(|run| run.status), end) {
        _ if is_live => "running",
        (None | Some(RunStatus::Ended), Some(end)) if end.status != "waiting" => end.status,
        (Some(stored), _) => status(stored),
        _ => "ended",
    };
    content.markup("<dl class=\"facts\"><dt>Status</dt><dd id=\"state\">");
    badge(content, status);
    content.markup("</dd>");
    if let Some(log) = log {
        let about = log.about();
        html!(content; "<dt>Agent</dt><dd>" (about.agent.as_deref().unwrap_or("–")) "</dd><dt>Started</dt><dd>");
        time(content, about.begun, config.environment.clock().now());
        content.markup("</dd>");
    }
    if is_live {
        let at = entries.at.map_or("between the steps", At::describe);
        html!(content; "<dt>Position</dt><dd id=\"at\">" (at) "</dd>");
    }
    content.markup("<dt>Conversation</dt><dd>");
    if config.threads.is_some() {
        let to = threads::to(config, &name.tenant(), &ThreadId::new(&*name.thread));
        html!(content; "<a href=\"" (&to) "\">" (&name.thread) "</a></dd>");
    } else {
        content.text(&name.thread);
        content.markup("</dd>");
    }
    if !name.tenant.is_empty() {
        html!(content; "<dt>Tenant</dt><dd>" (&name.tenant) "</dd>");
    }
    let outcome = match (end.filter(|_| !is_live), stored) {
        (Some(end), _) if end.status != "waiting" => Some(end.describe()),
        (_, Some(run)) => run.outcome.as_ref().map(describe),
        _ => None,
    };
    if let Some(outcome) = outcome {
        html!(content; "<dt>Outcome</dt><dd>" (&outcome) "</dd>");
    }
    if let (Some(log), Some(cost)) = (log, &config.cost)
        && let Some(cost) = cost(&log.usage())
    {
        html!(content; "<dt>Cost</dt><dd>" (&cost) "</dd>");
    }
    content.markup("</dl><p id=\"status\" role=\"status\"></p>");
}

fn describe(outcome: &Result<Outcome, ErrorKind>) -> String {
    match outcome {
        Ok(Outcome::Completed) => "completed".to_owned(),
        Ok(Outcome::Halted { reason }) => format!("halted: {reason}"),
        Ok(Outcome::StepLimit) => "step limit".to_owned(),
        Ok(Outcome::CallLimit) => "call limit".to_owned(),
        Ok(Outcome::Aborted { .. }) => "cancelled".to_owned(),
        Ok(_) => "ended".to_owned(),
        Err(kind) => format!("failed: {}", kind.as_str()),
    }
}

/// The entries of a stored turn.
pub(super) fn turn_ops(turn: &Turn, content: bool) -> Vec<Op> {
    let message = turn.as_message();
    let add = |kind, title: String, text: String| Op::Add {
        key: None,
        kind,
        title,
        text: match content {
            true => text,
            false => "(content hidden)".to_owned(),
        },
    };
    let role = match message.role {
        Role::System => "System",
        Role::Assistant => "Assistant",
        _ => "User",
    };
    let mut ops = Vec::new();
    let text = message.text();
    if !text.is_empty() {
        ops.push(add("text", role.to_owned(), text));
    }
    for part in &message.parts {
        if let PartKind::ToolCall(call) = &part.kind {
            let title = format!("Call of {}", call.name);
            ops.push(add("call", title, call.arguments.as_str().to_owned()));
        }
    }
    for result in turn.results() {
        let title = format!("Result of {}: {:?}", result.name, result.outcome.status);
        ops.push(add(
            "result",
            title,
            result.outcome.content.text().to_string(),
        ));
    }
    ops
}

pub(super) fn write_entries(content: &mut Html, entries: &Entries) {
    let keys = entries.keys();
    let len = entries.all.len();
    let mut first = len.saturating_sub(ENTRIES);
    let mut size = 0;
    for (at, entry) in entries.all.iter().enumerate().skip(first).rev() {
        size += entry.text.len();
        if size > PAGE {
            // The newest entry is shown, however long it is.
            first = first.max((at + 1).min(len - 1));
            break;
        }
    }
    if first > 0 {
        html!(content; "<p class=\"note\">" (&first.to_string()) " earlier entries are not shown.</p>");
    }
    content.markup("<ol id=\"entries\" class=\"entries\">");
    for (at, entry) in entries.all.iter().enumerate().skip(first) {
        html!(content; "<li class=\"" (entry.kind) "\"");
        if let Some(key) = keys.get(&at) {
            html!(content; " data-key=\"" (&encoded(key)) "\"");
        }
        html!(content; "><h3>" (&entry.title) "</h3>");
        let (shown, rest) = split(&entry.text, FOLDED);
        if !shown.is_empty() || keys.contains_key(&at) {
            html!(content; "<pre tabindex=\"0\">" (shown) "</pre>");
        }
        if !rest.is_empty() {
            let kib = rest.len().div_ceil(1024).to_string();
            html!(content; "<details><summary>" (&kib) " KiB more</summary>");
            // In parts, which a browser lays out one by one.
            let mut rest = rest;
            while !rest.is_empty() {
                let (part, more) = split(rest, FOLDED);
                html!(content; "<pre class=\"part\" tabindex=\"0\">" (part) "</pre>");
                rest = more;
            }
            content.markup("</details>");
        }
        content.markup("</li>");
    }
    content.markup("</ol>");
}

/// Splits a text after at most `max` bytes.
fn split(text: &str, max: usize) -> (&str, &str) {
    text.split_at(text.floor_char_boundary(max))
}
