//! The list of runs.

use std::time::SystemTime;

use concentric_core::store::RunStatus;

use super::{
    config::{Config, ago},
    form::link,
    html::{Html, html},
    layout::{Page, Place},
    listing::{Listing, Row, Show, between},
    operator::Operator,
};
use crate::run::rfc3339;

/// The number of runs on a page.
const ROWS: usize = 50;

pub(super) fn page(
    config: &Config,
    operator: &Operator,
    listing: &Listing,
    show: Show,
    number: usize,
) -> Page {
    let mut page = Page::new(Place::Runs, "Runs");
    page.is_live = true;
    let content = &mut page.content;
    let rows = listing.rows(show);
    changes(content, config, listing, show);
    content.markup("<nav aria-label=\"Lists\"><ul class=\"tabs\">");
    for list in Show::ALL {
        let to = link(&config.path, "/", &[("show", list.name())]);
        html!(content; "<li><a href=\"" (&to) "\"");
        if list == show {
            content.markup(" aria-current=\"page\"");
        }
        let count = listing.count(list);
        html!(content;
            ">" (list.title()) " <span class=\"count\" data-count=\"" (list.name()) "\">" (&count) "</span></a></li>"
        );
    }
    content.markup("</ul></nav>");
    let pages = rows.len().div_ceil(ROWS).max(1);
    let number = number.min(pages);
    let shown = rows.iter().skip((number - 1) * ROWS).take(ROWS);
    if rows.is_empty() {
        content.markup("<p class=\"empty\">No runs are in this list.</p>");
    } else {
        table(content, config, operator, shown, show);
    }
    if pages > 1 {
        paging(content, config, show, number, pages);
    }
    if show != Show::Waiting {
        content.markup("<p class=\"note\">Live and ended runs are those of this process, as long as it keeps their events. Waiting runs are those of the store.</p>");
    }
    page
}

/// What the script needs to notice that a list has changed.
pub(super) fn changes(content: &mut Html, config: &Config, listing: &Listing, show: Show) {
    let to = link(&config.path, "/changes", &[("show", show.name())]);
    html!(content;
        "<div id=\"changes\" data-changes=\"" (&to) "\" data-list=\"" (&listing.fingerprint(show)) "\">"
        "<p id=\"status\" role=\"status\"></p>"
        "<p id=\"changed\" hidden><a href=\"\">The list has changed. Load it again.</a></p></div>"
    );
}

fn table<'a>(
    content: &mut Html,
    config: &Config,
    operator: &Operator,
    rows: impl Iterator<Item = &'a Row>,
    show: Show,
) {
    let now = config.environment.clock().now();
    let has_tenants = operator.tenants.len() > 1;
    html!(content;
        "<div class=\"scroll\" role=\"region\" aria-label=\"Runs\" tabindex=\"0\"><table><caption>"
        (show.title()) " runs</caption><thead><tr><th scope=\"col\">Run</th><th scope=\"col\">Status</th>"
        "<th scope=\"col\">Agent</th>"
    );
    if has_tenants {
        content.markup("<th scope=\"col\">Tenant</th>");
    }
    content.markup("<th scope=\"col\">Conversation</th><th scope=\"col\">Started</th>");
    if show == Show::Ended {
        content.markup("<th scope=\"col\">Outcome</th>");
    }
    content.markup("</tr></thead><tbody>");
    for row in rows {
        let end = row.end();
        // A run whose reply was given in another request, or in another process.
        let status = match end.as_ref().map(|end| end.status) {
            Some("waiting") => "answered",
            Some(status) => status,
            None => row.status,
        };
        let to = link(&config.path, "/run", &row.name.fields());
        html!(content; "<tr><th scope=\"row\"><a href=\"" (&to) "\">" (&row.name.run) "</a></th><td>");
        badge(content, status);
        html!(content; "</td><td>" (row.agent.as_deref().unwrap_or("–")) "</td>");
        if has_tenants {
            html!(content; "<td>" (&row.name.tenant) "</td>");
        }
        html!(content; "<td>" (&row.name.thread) "</td><td>");
        match row.begun {
            Some(begun) => time(content, begun, now),
            None => content.markup("–"),
        }
        content.markup("</td>");
        if show == Show::Ended {
            let outcome = end.map(|end| end.describe()).unwrap_or_default();
            html!(content; "<td>" (&outcome) "</td>");
        }
        content.markup("</tr>");
    }
    content.markup("</tbody></table></div>");
}

/// The status of a stored run, in a word.
pub(super) const fn status(status: RunStatus) -> &'static str {
    match status {
        RunStatus::Suspended => "waiting",
        RunStatus::Running => "running",
        RunStatus::Abandoned => "abandoned",
        RunStatus::Quarantined => "quarantined",
        _ => "ended",
    }
}

/// A status, which is a word and a colour.
pub(super) fn badge(content: &mut Html, status: &'static str) {
    html!(content; "<span class=\"badge " (status) "\">" (status) "</span>");
}

/// A time in the past.
pub(super) fn time(content: &mut Html, at: SystemTime, now: SystemTime) {
    let exact = rfc3339(at);
    let age = ago(between(at, now).as_secs());
    html!(content; "<time datetime=\"" (&exact) "\" title=\"" (&exact) "\">" (&age) " ago</time>");
}

fn paging(content: &mut Html, config: &Config, show: Show, number: usize, pages: usize) {
    content.markup("<nav aria-label=\"Pages of the list\" class=\"paging\">");
    let mut to = |name: &str, number: usize| {
        let number = number.to_string();
        let to = link(
            &config.path,
            "/",
            &[("show", show.name()), ("page", &number)],
        );
        html!(content; "<a href=\"" (&to) "\">" (name) "</a> ");
    };
    if number > 1 {
        to("Newer", number - 1);
    }
    if number < pages {
        to("Older", number + 1);
    }
    html!(content; "<span>Page " (&number.to_string()) " of " (&pages.to_string()) "</span></nav>");
}
