//! The stored decisions, which apply to further calls.

use concentric_core::{
    Str,
    store::{StoredDecision, StoredScope, Tenant},
};
use http::StatusCode;

use super::{
    config::Config,
    form::{Form, encoded, link},
    html::{Html, html},
    layout::{Page, Place},
    listing::{failed, not_found},
    operator::Operator,
    runs::time,
    threads::{tenant, tenants},
};
use crate::refused::Refused;

/// The number of decisions on a page.
const ROWS: usize = 200;

/// The list of the decisions of one tenant.
pub(super) async fn list(
    config: &Config,
    operator: &Operator,
    query: &Form,
    number: usize,
) -> Result<Page, Refused> {
    let mut page = Page::new(Place::Decisions, "Decisions");
    let content = &mut page.content;
    let store = config.decisions.as_ref().ok_or_else(not_found)?;
    let tenant = tenant(operator, query)?;
    if operator.tenants.len() > 1 {
        tenants(content, config, operator, "/decisions", &tenant);
    }
    let all = store.list(tenant.clone()).await;
    let all = all.map_err(|error| failed(&error))?;
    let begin = (number - 1).saturating_mul(ROWS);
    let rest = all.get(begin..).unwrap_or_default();
    let shown = rest.get(..ROWS).unwrap_or(rest);
    if shown.is_empty() {
        content.markup("<p class=\"empty\">No decision applies to further calls.</p>");
    } else {
        table(content, config, operator, shown);
    }
    content.markup("<nav aria-label=\"Pages of the list\" class=\"paging\">");
    let mut to = |is_there: bool, number: usize, name: &'static str| {
        if is_there {
            let number = number.to_string();
            let query = [("tenant", &*tenant.0), ("page", &number)];
            let to = link(&config.path, "/decisions", &query);
            html!(content; "<a href=\"" (&to) "\">" (name) "</a> ");
        }
    };
    to(number > 1, number - 1, "Newer");
    to(rest.len() > ROWS, number.saturating_add(1), "Older");
    content.markup("</nav>");
    Ok(page)
}

fn table(content: &mut Html, config: &Config, operator: &Operator, shown: &[StoredDecision]) {
    content.markup("<div class=\"scroll\" role=\"region\" aria-label=\"Decisions\" tabindex=\"0\"><table><thead><tr>");
    content.markup(
        "<th scope=\"col\">Tool</th><th scope=\"col\">Calls</th><th scope=\"col\">Applies</th>",
    );
    content.markup("<th scope=\"col\">Decision</th><th scope=\"col\">Decided</th>");
    if operator.remember {
        content.markup("<th scope=\"col\">Revoke</th>");
    }
    content.markup("</tr></thead><tbody>");
    let now = config.environment.clock().now();
    for decision in shown {
        html!(content; "<tr><th scope=\"row\"><code>" (&decision.tool) "</code></th><td>");
        match &decision.arguments {
            None => content.markup("all"),
            Some(digest) => html!(content; "with the arguments <code>" (digest) "</code>"),
        }
        content.markup("</td><td>");
        scope(content, &decision.span);
        html!(content; "</td><td>" (if decision.allow { "approved" } else { "denied" }));
        if let Some(reason) = decision.reason.as_ref().filter(|_| operator.content) {
            html!(content; ": " (reason));
        }
        content.markup("</td><td>");
        time(content, decision.at, now);
        content.markup("</td>");
        if operator.remember {
            button(content, config, operator, decision);
        }
        content.markup("</tr>");
    }
    content.markup("</tbody></table></div>");
}

fn scope(content: &mut Html, span: &StoredScope) {
    match span {
        StoredScope::Run { run, .. } => {
            html!(content; "in the run <code>" (run.as_str()) "</code>");
        }
        StoredScope::Thread(thread) => {
            html!(content; "in the conversation <code>" (thread.as_str()) "</code>");
        }
        StoredScope::Session(thread) => {
            html!(content; "in the session of the conversation <code>" (thread.as_str()) "</code>");
        }
        StoredScope::Always => content.markup("always, to all users of the tenant"),
        _ => content.markup("for a time that this console does not know"),
    }
}

fn button(content: &mut Html, config: &Config, operator: &Operator, decision: &StoredDecision) {
    let to = link(&config.path, "/decisions/revoke", &[]);
    let now = config.environment.clock().now();
    let purpose = purpose(&decision.tenant, &decision.id);
    let token = config.forms.token(operator, &purpose, now);
    html!(content;
        "<td><form method=\"post\" action=\"" (&to) "\"><input type=\"hidden\" name=\"token\" value=\"" (&token) "\">"
        "<input type=\"hidden\" name=\"tenant\" value=\"" (&encoded(&decision.tenant.0)) "\">"
        "<input type=\"hidden\" name=\"decision\" value=\"" (&encoded(&decision.id)) "\">"
        "<button aria-label=\"Revoke the decision about " (&decision.tool) "\">Revoke</button></form></td>"
    );
}

/// What the token of a form is for.
fn purpose(tenant: &Tenant, id: &str) -> String {
    format!("{:?}", ("revoke", &*tenant.0, id))
}

/// Revokes the decision of a form. Returns the page that follows.
pub(super) async fn revoke(
    config: &Config,
    operator: &Operator,
    form: &Form,
) -> Result<String, Refused> {
    let (Some(tenant), Some(id)) = (form.id("tenant"), form.id("decision")) else {
        return Err(not_found());
    };
    // Not all stores accept a NUL character.
    let has_nul = tenant.contains('\0') || id.contains('\0');
    let tenant = Tenant(tenant.into());
    if has_nul || !operator.sees(&tenant) {
        return Err(not_found());
    }
    let now = config.environment.clock().now();
    let token = form.get("token");
    config
        .forms
        .check(token, operator, &purpose(&tenant, &id), now)?;
    if !operator.remember {
        let why = "You may not decide about further calls.";
        return Err(Refused::new(StatusCode::FORBIDDEN, "forbidden", why, None));
    }
    let store = config.decisions.as_ref().ok_or_else(not_found)?;
    let revoked = store.revoke(tenant.clone(), Str::from(&*id)).await;
    if !revoked.map_err(|error| failed(&error))? {
        let why = "This decision does not apply any more.";
        return Err(Refused::conflict("decision_revoked", why));
    }
    tracing::info!(
        target: "concentric::console",
        operator = operator.name.as_str(), tenant = tenant.0.as_str(), decision = id.as_str(),
        "an operator revoked a decision"
    );
    Ok(link(&config.path, "/decisions", &[("tenant", &tenant.0)]))
}
