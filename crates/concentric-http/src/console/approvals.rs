//! The questions of waiting runs, and the forms of their replies.

use std::time::SystemTime;

use concentric_core::{
    Interrupt, Reply, ReplyKind,
    digest::Digest,
    interrupt::{CLIENT_TOOL, ScopeCalls, ScopeLifetime, TOOL_CALL, UNKNOWN_EFFECT},
    store::{RunRecord, RunStatus, StoreError},
};
use serde_json::Value;

use super::{
    config::{Config, ago},
    form::{encoded, link},
    html::{Html, html, visible_json},
    layout::{Page, Place},
    listing::{Listing, RunName, Show, between, failed, waiting},
    operator::Operator,
    runs::changes,
};
use crate::{
    refused::Refused,
    run::{TOKEN, rfc3339},
};

/// The number of runs whose questions are on a page.
const RUNS: usize = 20;

pub(super) async fn page(
    config: &Config,
    operator: &Operator,
    listing: &Listing,
    number: usize,
) -> Result<Page, Refused> {
    let mut page = Page::new(Place::Approvals, "Approvals");
    page.is_live = true;
    let content = &mut page.content;
    changes(content, config, listing, Show::Waiting);
    let mut keys = Vec::new();
    for tenant in &operator.tenants {
        keys.extend(waiting(config, tenant).await?);
    }
    let pages = keys.len().div_ceil(RUNS).max(1);
    let number = number.min(pages);
    let mut shown = 0;
    for run in keys.iter().skip((number - 1) * RUNS).take(RUNS) {
        let Some(record) = record(config, &run.key).await? else {
            continue;
        };
        let name = RunName::of_stored(run);
        shown += 1;
        let to = link(&config.path, "/run", &name.fields());
        html!(content;
            "<section class=\"run\" aria-label=\"Run " (&name.run) "\"><h2>Run <a href=\"" (&to) "\">"
            (&name.run) "</a></h2>"
        );
        questions(content, config, operator, &name, &record);
        content.markup("</section>");
    }
    if shown == 0 {
        content.markup("<p class=\"empty\">No run waits for a reply.</p>");
    }
    if pages > 1 {
        content.markup("<nav aria-label=\"Pages of the list\" class=\"paging\">");
        for (name, to, exists) in [
            ("Older", number - 1, number > 1),
            ("Newer", number + 1, number < pages),
        ] {
            let to = link(&config.path, "/approvals", &[("page", &to.to_string())]);
            if exists {
                html!(content; "<a href=\"" (&to) "\">" (name) "</a> ");
            }
        }
        html!(content; "<span>Page " (&number.to_string()) " of " (&pages.to_string()) "</span></nav>");
    }
    Ok(page)
}

/// The stored run, if it waits.
pub(super) async fn record(
    config: &Config,
    key: &concentric_core::store::RunKey,
) -> Result<Option<RunRecord>, Refused> {
    let Some(store) = &config.runs else {
        return Ok(None);
    };
    match store.get(key.clone()).await {
        Ok(record) if record.status == RunStatus::Suspended => Ok(Some(record)),
        Ok(_) | Err(StoreError::NotFound) => Ok(None),
        Err(error) => Err(failed(&error)),
    }
}

/// The digest of what an interrupt is about, by which a form notices that this is another question.
pub(super) fn digest(interrupt: &Interrupt) -> String {
    let text = |text: Option<&str>| Digest::of_value(&text.into());
    let schema = interrupt.response_schema.as_deref();
    let fields = [
        text(Some(&interrupt.reason)),
        text(interrupt.message.as_deref()),
        text(interrupt.call_id.as_ref().map(|id| id.as_str())),
        Digest::of_value(schema.unwrap_or(&Value::Null)),
        Digest::of_value(&metadata(interrupt, &[TOKEN])),
    ];
    let fields = fields.each_ref().map(|field| &field.as_bytes()[..]);
    Digest::of_fields("concentric/console/question/v1", &fields).to_string()
}

/// The metadata of an interrupt without these.
fn metadata(interrupt: &Interrupt, without: &[&str]) -> Value {
    let all = interrupt.metadata.iter();
    let shown = all.filter(|(name, _)| !without.contains(&name.as_str()));
    let shown = shown.map(|(name, value)| (name.clone(), value.clone()));
    shown.collect::<serde_json::Map<_, _>>().into()
}

/// What a form for these interrupts of a stored run does, for its token.
pub(super) fn purpose(name: &RunName, key: &str, asked: &[(&str, &str)]) -> String {
    format!("{:?}", ("reply", name.fields(), key, asked))
}

/// The kinds of reply that the console can give to an interrupt.
pub(super) fn accepted(interrupt: &Interrupt, now: SystemTime) -> Vec<ReplyKind> {
    let kinds: &[ReplyKind] = match &interrupt.reason {
        reason if *reason == UNKNOWN_EFFECT => &[ReplyKind::Answer],
        // The client executes the call.
        reason if *reason == CLIENT_TOOL => &[],
        reason if *reason == TOOL_CALL => &[
            ReplyKind::Approve,
            ReplyKind::Deny,
            ReplyKind::Edit,
            ReplyKind::Answer,
        ],
        _ => &[ReplyKind::Approve, ReplyKind::Deny],
    };
    let is_late = interrupt.expires_at.is_some_and(|at| at <= now);
    let kinds = kinds.iter().filter(|kind| interrupt.accepts(**kind));
    let kinds = kinds.filter(|kind| !is_late || **kind == ReplyKind::Deny);
    kinds.copied().collect()
}

/// The calls and the time for which a decision may be stored, each with its value in a form and its words.
pub(super) const SCOPES: [(&str, ScopeCalls, ScopeLifetime, &str); 6] = {
    use ScopeCalls::{Arguments, Tool};
    use ScopeLifetime::{Always, Run, Thread};
    [
        (
            "arguments-run",
            Arguments,
            Run,
            "the same call, in this run",
        ),
        (
            "arguments-thread",
            Arguments,
            Thread,
            "the same call, in this conversation",
        ),
        (
            "arguments-always",
            Arguments,
            Always,
            "the same call, always",
        ),
        ("tool-run", Tool, Run, "each call of the tool, in this run"),
        (
            "tool-thread",
            Tool,
            Thread,
            "each call of the tool, in this conversation",
        ),
        ("tool-always", Tool, Always, "each call of the tool, always"),
    ]
};

/// Writes the questions of a waiting run, with their forms.
pub(super) fn questions(
    content: &mut Html,
    config: &Config,
    operator: &Operator,
    name: &RunName,
    record: &RunRecord,
) {
    let now = config.environment.clock().now();
    let asked = record.state.interrupts();
    let is_together = record.state.asks_together() && asked.len() > 1;
    for (n, interrupt) in asked.iter().enumerate() {
        let id = format!("{}-{n}", record.key.run);
        html!(content; "<div class=\"card\" role=\"group\" aria-labelledby=\"q-" (&id) "\"><h3 id=\"q-" (&id) "\">");
        match interrupt.tool() {
            Some(tool) => html!(content; "Call of <code>" (tool) "</code>"),
            None => html!(content; "Question: " (&interrupt.reason)),
        }
        content.markup("</h3>");
        facts(content, operator, interrupt, now);
        if operator.may_decide() && !is_together {
            let form = Form {
                config,
                operator,
                name,
                key: record.key.run.as_str(),
                interrupt,
                id: &id,
            };
            form.write(content, now);
        }
        content.markup("</div>");
    }
    match () {
        () if !operator.may_decide() => {
            content.markup("<p class=\"note\">You can't decide: that needs the rights to read content and to decide.</p>");
        }
        () if config.agent.is_none() => {
            content
                .markup("<p class=\"note\">This console has no agent that receives replies.</p>");
        }
        () if is_together => together(content, config, operator, name, record, now),
        () => {}
    }
}

fn facts(content: &mut Html, operator: &Operator, interrupt: &Interrupt, now: SystemTime) {
    html!(content; "<dl><dt>Reason</dt><dd>" (&interrupt.reason) "</dd>");
    if let Some(expires) = interrupt.expires_at {
        let exact = rfc3339(expires);
        html!(content; "<dt>Expires</dt><dd><time datetime=\"" (&exact) "\">");
        match expires <= now {
            true => content.markup("expired: it can be denied only"),
            false => {
                let left = ago(between(now, expires).as_secs());
                html!(content; "in " (&left) " (" (&exact) ")");
            }
        }
        content.markup("</time></dd>");
    }
    if !operator.content {
        content.markup("</dl><p class=\"note\">The content is hidden.</p>");
        return;
    }
    if let Some(message) = &interrupt.message {
        html!(content; "<dt>Question</dt><dd>" (message) "</dd>");
    }
    if let Some(arguments) = interrupt.arguments() {
        let digest = Digest::of_value(arguments).to_string();
        html!(content;
            "<dt>SHA-256 of the arguments</dt><dd><code>" (&digest) "</code></dd></dl>"
            "<h4>Arguments</h4><pre tabindex=\"0\" role=\"group\" aria-label=\"Arguments\">" (&pretty(arguments)) "</pre>"
        );
    } else {
        content.markup("</dl>");
    }
    // What is shown elsewhere, and the token, which is a secret.
    let is_call = interrupt.arguments().is_some();
    let known: &[&str] = match is_call {
        true => &[TOKEN, "tool", "arguments", "argumentsSchema", "replies"],
        false => &[TOKEN],
    };
    let metadata = metadata(interrupt, known);
    if metadata.as_object().is_some_and(|it| !it.is_empty()) {
        html!(content;
            "<h4>Metadata</h4><pre tabindex=\"0\" role=\"group\" aria-label=\"Metadata\">" (&pretty(&metadata)) "</pre>"
        );
    }
}

/// JSON as it is executed, except for white space.
fn pretty(value: &Value) -> String {
    // A value always serializes.
    let json = serde_json::to_string_pretty(value).unwrap_or_default();
    visible_json(&json)
}

/// The forms of one question.
struct Form<'a> {
    config: &'a Config,
    operator: &'a Operator,
    name: &'a RunName,
    /// The id of the stored run.
    key: &'a str,
    interrupt: &'a Interrupt,
    id: &'a str,
}

impl Form<'_> {
    fn write(&self, content: &mut Html, now: SystemTime) {
        if self.config.agent.is_none() {
            return;
        }
        content.markup("<div class=\"forms\">");
        // Each decision is a form of its own, so that no key in a field sends another one.
        for kind in accepted(self.interrupt, now) {
            match kind {
                ReplyKind::Approve => {
                    self.begin(content, now);
                    let approve = Reply::approve(self.interrupt.id.clone());
                    self.remember(content, "approve", &approve, now);
                    content.markup("<button name=\"decision\" value=\"approve\" class=\"approve\">Approve</button></form>");
                }
                ReplyKind::Deny => {
                    self.begin(content, now);
                    html!(content;
                        "<label for=\"reason-" (self.id) "\">Reason, which the model reads</label>"
                        "<input id=\"reason-" (self.id) "\" name=\"reason\" autocomplete=\"off\">"
                    );
                    let deny = Reply::deny(self.interrupt.id.clone(), "");
                    self.remember(content, "deny", &deny, now);
                    content.markup("<button name=\"decision\" value=\"deny\" class=\"deny\">Deny</button></form>");
                }
                ReplyKind::Edit => {
                    content.markup("<details><summary>Edit the arguments</summary>");
                    self.begin(content, now);
                    let arguments = self.interrupt.arguments().map(pretty).unwrap_or_default();
                    html!(content;
                        "<label for=\"edit-" (self.id) "\">Arguments as a JSON object</label>"
                        "<textarea id=\"edit-" (self.id) "\" name=\"arguments\" rows=\"8\" spellcheck=\"false\" required>\n"
                        (&arguments) "</textarea>"
                        "<button name=\"decision\" value=\"edit\" class=\"approve\">Approve with these arguments</button></form>"
                    );
                    if let Some(schema) = self.interrupt.metadata.get("argumentsSchema") {
                        html!(content;
                            "<h4>Schema</h4><pre tabindex=\"0\" role=\"group\" aria-label=\"Schema\">" (&pretty(schema)) "</pre>"
                        );
                    }
                    content.markup("</details>");
                }
                ReplyKind::Answer => {
                    content.markup("<details><summary>Supply the result</summary>");
                    self.begin(content, now);
                    html!(content;
                        "<label for=\"result-" (self.id) "\">Result, instead of running the call: text or JSON</label>"
                        "<textarea id=\"result-" (self.id) "\" name=\"result\" rows=\"4\" required></textarea>"
                        "<button name=\"decision\" value=\"answer\">Use this result</button></form></details>"
                    );
                }
                _ => {}
            }
        }
        self.begin(content, now);
        content.markup("<button name=\"decision\" value=\"cancel\">Dismiss without a decision</button></form></div>");
    }

    /// Writes a list of the calls for which the decision may be stored, if the interrupt allows any.
    fn remember(&self, content: &mut Html, decision: &str, reply: &Reply, now: SystemTime) {
        if self.interrupt.reason != TOOL_CALL || !self.operator.remember {
            return;
        }
        let is_allowed = |calls, lifetime| {
            let reply = reply.clone().remembered(calls, lifetime);
            self.interrupt.check(&reply, now).is_ok()
        };
        let scopes = SCOPES.iter();
        let scopes = scopes.filter(|(_, calls, lifetime, _)| is_allowed(*calls, *lifetime));
        let scopes: Vec<_> = scopes.collect();
        if scopes.is_empty() {
            return;
        }
        html!(content;
            "<details><summary>Further calls</summary>"
            "<label for=\"" (decision) "-for-" (self.id) "\">The decision also applies to</label>"
            "<select id=\"" (decision) "-for-" (self.id) "\" name=\"remember\"><option value=\"\">no other call</option>"
        );
        for (value, _, _, words) in scopes {
            html!(content; "<option value=\"" (value) "\">" (words) "</option>");
        }
        content.markup("</select></details>");
    }

    /// Begins a form, with its hidden fields.
    fn begin(&self, content: &mut Html, now: SystemTime) {
        let digest = digest(self.interrupt);
        let asked = [(self.interrupt.id.as_str(), digest.as_str())];
        begin(
            content,
            self.config,
            self.operator,
            self.name,
            self.key,
            &asked,
            now,
        );
        about(content, self.interrupt.id.as_str(), &digest);
    }
}

fn begin(
    content: &mut Html,
    config: &Config,
    operator: &Operator,
    name: &RunName,
    key: &str,
    asked: &[(&str, &str)],
    now: SystemTime,
) {
    let to = link(&config.path, "/approvals/reply", &[]);
    let token = config
        .forms
        .token(operator, &purpose(name, key, asked), now);
    html!(content;
        "<form method=\"post\" action=\"" (&to) "\" autocomplete=\"off\"><input type=\"hidden\" name=\"token\" value=\"" (&token) "\">"
    );
    for (field, value) in name.fields().into_iter().chain([("key", key)]) {
        html!(content; "<input type=\"hidden\" name=\"" (field) "\" value=\"" (&encoded(value)) "\">");
    }
}

fn about(content: &mut Html, interrupt: &str, digest: &str) {
    html!(content;
        "<input type=\"hidden\" name=\"interrupt\" value=\"" (&encoded(interrupt)) "\">"
        "<input type=\"hidden\" name=\"digest\" value=\"" (digest) "\">"
    );
}

/// One form for all questions of a run, which must be replied to together.
fn together(
    content: &mut Html,
    config: &Config,
    operator: &Operator,
    name: &RunName,
    record: &RunRecord,
    now: SystemTime,
) {
    let asked = record.state.interrupts();
    let digests: Vec<String> = asked.iter().map(|interrupt| digest(interrupt)).collect();
    let pairs = asked.iter().zip(&digests);
    let pairs: Vec<(&str, &str)> = pairs
        .map(|(interrupt, digest)| (interrupt.id.as_str(), digest.as_str()))
        .collect();
    content.markup("<div class=\"card\"><h3>Reply to all questions of this run together</h3>");
    let key = record.key.run.as_str();
    begin(content, config, operator, name, key, &pairs, now);
    for (n, (interrupt, (id, digest))) in asked.iter().zip(&pairs).enumerate() {
        let at = format!("{}-{n}", name.run);
        let number = (n + 1).to_string();
        let tool = interrupt.tool().unwrap_or(&interrupt.reason);
        html!(content; "<fieldset><legend>" (&number) ". " (tool) "</legend>");
        about(content, id, digest);
        html!(content;
            "<label for=\"decision-" (&at) "\">Decision</label>"
            "<select id=\"decision-" (&at) "\" name=\"decision\" required><option value=\"\">Select</option>"
        );
        for kind in accepted(interrupt, now) {
            match kind {
                ReplyKind::Approve => content.markup("<option value=\"approve\">Approve</option>"),
                ReplyKind::Deny => content.markup("<option value=\"deny\">Deny</option>"),
                _ => {}
            }
        }
        html!(content;
            "<option value=\"cancel\">Dismiss</option></select>"
            "<label for=\"reason-" (&at) "\">Reason of a denial</label>"
            "<input id=\"reason-" (&at) "\" name=\"reason\"></fieldset>"
        );
    }
    content.markup("<button>Send all replies</button></form></div>");
}

#[cfg(test)]
mod tests {
    use super::*;
    use concentric_core::InterruptId;
    use serde_json::json;

    #[test]
    fn a_digest_is_of_the_whole_question() {
        let asked = || Interrupt::new(InterruptId::new("q"), "budget").with_message("Pay 5?");
        let known = digest(&asked());
        assert_eq!(digest(&asked()), known);
        assert_ne!(digest(&asked().with_message("Pay 500?")), known);
        let mut other = asked();
        other.metadata.insert("amount".to_owned(), json!(500));
        assert_ne!(digest(&other), known);
        let mut other = asked();
        other.response_schema = Some(json!({"type": "object"}).into());
        assert_ne!(digest(&other), known);
        let mut same = asked();
        same.metadata.insert(TOKEN.to_owned(), json!("secret"));
        assert_eq!(digest(&same), known);
    }
}
