//! The stored conversations.

use concentric_core::{
    ThreadId,
    store::{Tenant, ThreadSummary},
};

use super::{
    config::Config,
    fold::{ENTRIES, Entries, Op},
    form::{Form, link},
    html::{Html, html},
    layout::{Page, Place},
    listing::{RunName, failed},
    operator::Operator,
    run::{PAGE, turn_ops, write_entries},
    runs::{badge, status, time},
};
use crate::refused::Refused;

/// The number of conversations on a page, of turns of one, and of its runs.
const ROWS: usize = 50;
const TURNS: usize = 200;
const RUNS: usize = 50;

/// The list of the conversations of one tenant.
pub(super) async fn list(
    config: &Config,
    operator: &Operator,
    query: &Form,
) -> Result<Page, Refused> {
    let mut page = Page::new(Place::Threads, "Conversations");
    let content = &mut page.content;
    let Some(store) = &config.threads else {
        return Err(unknown());
    };
    let tenant = tenant(operator, query)?;
    let before = number(query, "before")?;
    if operator.tenants.len() > 1 {
        tenants(content, config, operator, "/threads", &tenant);
    }
    let found = store.list_threads(tenant.clone(), before, ROWS + 1).await;
    let found = found.map_err(|error| failed(&error))?;
    let shown = found.get(..ROWS).unwrap_or(&found);
    if shown.is_empty() {
        content.markup("<p class=\"empty\">No conversations are in this list.</p>");
    } else {
        table(content, config, &tenant, shown);
    }
    content.markup("<nav aria-label=\"Pages of the list\" class=\"paging\">");
    if before.is_some() {
        let to = link(&config.path, "/threads", &[("tenant", &tenant.0)]);
        html!(content; "<a href=\"" (&to) "\">Newest</a> ");
    }
    if let (true, Some(last)) = (found.len() > ROWS, shown.last()) {
        let before = last.version.to_string();
        let query = [("tenant", &*tenant.0), ("before", &before)];
        let to = link(&config.path, "/threads", &query);
        html!(content; "<a href=\"" (&to) "\">Older</a>");
    }
    content.markup("</nav>");
    Ok(page)
}

/// The tenant whose list a query names; by default the first one of the operator.
pub(super) fn tenant(operator: &Operator, query: &Form) -> Result<Tenant, Refused> {
    let tenant = match query.get("tenant") {
        Some(tenant) => Some(Tenant(tenant.into())),
        None => operator.tenants.first().cloned(),
    };
    let tenant = tenant.filter(|tenant| operator.sees(tenant));
    let unknown = || Refused::not_found("tenant_not_found", "This list does not exist.");
    tenant.ok_or_else(unknown)
}

/// The tenants of an operator, each with its list at `path`.
pub(super) fn tenants(
    content: &mut Html,
    config: &Config,
    operator: &Operator,
    path: &str,
    of: &Tenant,
) {
    content.markup("<nav aria-label=\"Tenants\"><ul class=\"tabs\">");
    for tenant in &operator.tenants {
        let to = link(&config.path, path, &[("tenant", &tenant.0)]);
        html!(content; "<li><a href=\"" (&to) "\"");
        if tenant == of {
            content.markup(" aria-current=\"page\"");
        }
        html!(content; ">" (named(tenant)) "</a></li>");
    }
    content.markup("</ul></nav>");
}

fn named(tenant: &Tenant) -> &str {
    match &*tenant.0 {
        "" => "(no name)",
        name => name,
    }
}

fn table(content: &mut Html, config: &Config, tenant: &Tenant, shown: &[ThreadSummary]) {
    let now = config.environment.clock().now();
    content.markup(
        "<div class=\"scroll\" role=\"region\" aria-label=\"Conversations\" tabindex=\"0\"><table>\
         <caption>Those written last are first</caption><thead><tr><th scope=\"col\">Conversation</th>\
         <th scope=\"col\">Turns</th><th scope=\"col\">Last written</th><th scope=\"col\">Session</th>\
         </tr></thead><tbody>",
    );
    for thread in shown {
        let to = to(config, tenant, &thread.thread);
        html!(content;
            "<tr><th scope=\"row\"><a href=\"" (&to) "\">" (thread.thread.as_str()) "</a></th><td>"
            (&thread.turns.to_string()) "</td><td>"
        );
        time(content, thread.at, now);
        html!(content; "</td><td>" (thread.session.as_str()) "</td></tr>");
    }
    content.markup("</tbody></table></div>");
}

/// The link to the page of a conversation.
pub(super) fn to(config: &Config, tenant: &Tenant, thread: &ThreadId) -> String {
    let query = [("tenant", &*tenant.0), ("thread", thread.as_str())];
    link(&config.path, "/thread", &query)
}

/// The page of one conversation.
pub(super) async fn page(
    config: &Config,
    operator: &Operator,
    query: &Form,
) -> Result<Page, Refused> {
    let (Some(store), Some(tenant), Some(thread)) =
        (&config.threads, query.get("tenant"), query.get("thread"))
    else {
        return Err(unknown());
    };
    let (tenant, id) = (Tenant(tenant.into()), ThreadId::new(thread));
    // Not all stores accept a NUL character.
    if !operator.sees(&tenant) || thread.contains('\0') {
        return Err(unknown());
    }
    let start: Option<usize> = number(query, "start")?;
    let found = store.turns(tenant.clone(), id.clone(), start, TURNS).await;
    let found = found.map_err(|error| failed(&error))?;
    let (about, turns) = found.ok_or_else(unknown)?;
    if operator.content {
        tracing::info!(
            target: "concentric::console",
            operator = operator.name.as_str(), tenant = &*tenant.0, thread_id = thread,
            "an operator read the content of a conversation"
        );
    }
    let mut page = Page::new(Place::Other, format!("Conversation {thread}"));
    let content = &mut page.content;
    let now = config.environment.clock().now();
    html!(content;
        "<dl class=\"facts\"><dt>Turns</dt><dd>" (&about.turns.to_string()) "</dd><dt>Last written</dt><dd>"
    );
    time(content, about.at, now);
    html!(content; "</dd><dt>Session</dt><dd>" (about.session.as_str()) "</dd>");
    if !tenant.0.is_empty() {
        html!(content; "<dt>Tenant</dt><dd>" (&tenant.0) "</dd>");
    }
    content.markup("</dl>");
    runs(content, config, &tenant, &id).await?;
    let ops = turns.iter().map(|turn| turn_ops(turn, operator.content));
    let mut ops: Vec<Vec<Op>> = ops.collect();
    let first = match start {
        Some(start) => {
            ops.truncate(fitting(ops.iter()));
            start.min(about.turns)
        }
        None => {
            ops.drain(..ops.len() - fitting(ops.iter().rev()));
            about.turns.saturating_sub(ops.len())
        }
    };
    let end = first.saturating_add(ops.len());
    content.markup("<h2 id=\"turns\">Turns</h2>");
    match ops.is_empty() {
        true => content.markup("<p class=\"empty\">There are no turns here.</p>"),
        false => html!(content;
            "<p class=\"note\">" (&(first + 1).to_string()) " to " (&end.to_string()) " of "
            (&about.turns.to_string()) "</p>"
        ),
    }
    let mut entries = Entries::default();
    ops.into_iter().for_each(|ops| entries.apply(ops));
    write_entries(content, &entries);
    paging(content, config, &tenant, &id, first, end, about.turns);
    Ok(page)
}

/// The number of turns that a page shows: as many as it has place for, and one at least.
fn fitting<'a>(turns: impl Iterator<Item = &'a Vec<Op>>) -> usize {
    let (mut entries, mut bytes) = (0, 0);
    let fits = |(at, ops): &(usize, &Vec<Op>)| {
        entries += ops.len();
        bytes += ops.iter().map(Op::len).sum::<usize>();
        *at == 0 || (entries <= ENTRIES && bytes <= PAGE)
    };
    turns.enumerate().take_while(fits).count()
}

/// The runs of a conversation that have not ended.
async fn runs(
    content: &mut Html,
    config: &Config,
    tenant: &Tenant,
    thread: &ThreadId,
) -> Result<(), Refused> {
    let Some(store) = &config.runs else {
        return Ok(());
    };
    let found = store.list_by_thread(tenant.clone(), thread.clone(), None, RUNS + 1);
    let found = found.await.map_err(|error| failed(&error))?;
    if found.is_empty() {
        return Ok(());
    }
    content.markup("<h2>Open runs</h2>");
    if found.len() > RUNS {
        html!(content; "<p class=\"note\">There are more than these " (&RUNS.to_string()) ".</p>");
    }
    content.markup("<ul>");
    for run in found.iter().take(RUNS) {
        let name = RunName::of_stored(run);
        let to = link(&config.path, "/run", &name.fields());
        html!(content; "<li><a href=\"" (&to) "\">" (&name.run) "</a> ");
        badge(content, status(run.status));
        content.markup("</li>");
    }
    content.markup("</ul>");
    Ok(())
}

fn paging(
    content: &mut Html,
    config: &Config,
    tenant: &Tenant,
    thread: &ThreadId,
    first: usize,
    end: usize,
    turns: usize,
) {
    content.markup("<nav aria-label=\"Pages of the conversation\" class=\"paging\">");
    for (name, start, exists) in [
        ("Earlier", first.saturating_sub(TURNS), first > 0),
        ("Later", end, end < turns),
    ] {
        let start = start.to_string();
        let query = [
            ("tenant", &*tenant.0),
            ("thread", thread.as_str()),
            ("start", &start),
        ];
        let to = link(&config.path, "/thread", &query);
        if exists {
            html!(content; "<a href=\"" (&to) "\">" (name) "</a> ");
        }
    }
    content.markup("</nav>");
}

/// A number in a query.
fn number<T: std::str::FromStr>(query: &Form, name: &str) -> Result<Option<T>, Refused> {
    let value = query.get(name).map(str::parse).transpose();
    value.map_err(|_| Refused::field(name, "not a number"))
}

fn unknown() -> Refused {
    Refused::not_found("thread_not_found", "This conversation does not exist.")
}
