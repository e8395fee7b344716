//! The frame of all pages, and their assets.

use std::sync::LazyLock;

use concentric_core::digest::Digest;

use super::{
    config::Config,
    form::link,
    html::{Html, html},
    operator::Operator,
};

const SCRIPT: &str = include_str!("assets/console.js");
const STYLE: &str = include_str!("assets/console.css");

/// The names of the assets, which have a digest of their content, so that they can be cached for ever.
static NAMES: LazyLock<[String; 2]> = LazyLock::new(|| {
    [("js", SCRIPT), ("css", STYLE)].map(|(extension, content)| {
        let digest = Digest::of_fields("concentric/console/asset/v1", &[content.as_bytes()]);
        let digest = digest.to_string();
        let short = digest.get(..16).unwrap_or(&digest);
        format!("console-{short}.{extension}")
    })
});

/// The type and the content of an asset.
pub(super) fn asset(name: &str) -> Option<(&'static str, &'static str)> {
    let [script, style] = &*NAMES;
    match name {
        name if name == script => Some(("text/javascript; charset=utf-8", SCRIPT)),
        name if name == style => Some(("text/css; charset=utf-8", STYLE)),
        _ => None,
    }
}

/// The places of the navigation.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    Runs,
    Approvals,
    Threads,
    Decisions,
    Stacks,
    Usage,
    Other,
}

/// A page without its frame.
pub(super) struct Page {
    pub(super) place: Place,
    pub(super) title: String,
    pub(super) content: Html,
    /// Whether the page changes by itself, so that it is loaded again where no script runs.
    pub(super) is_live: bool,
}

impl Page {
    pub(super) fn new(place: Place, title: impl Into<String>) -> Self {
        Self {
            place,
            title: title.into(),
            content: Html::new(),
            is_live: false,
        }
    }

    /// The whole document.
    pub(super) fn render(&self, config: &Config, operator: Option<&Operator>) -> String {
        let [script, style] = &*NAMES;
        let to = |page: &str| link(&config.path, page, &[]);
        let mut page = Html::new();
        html!(page;
            "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">"
            "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">"
            "<meta name=\"color-scheme\" content=\"light dark\">"
            "<title>" (&self.title) " – " (&config.title) "</title>"
            "<link rel=\"icon\" href=\"data:,\">"
            "<link rel=\"stylesheet\" href=\"" (&to(&format!("/assets/{style}"))) "\">"
            "<script type=\"module\" src=\"" (&to(&format!("/assets/{script}"))) "\"></script>"
        );
        if self.is_live {
            page.markup("<noscript><meta http-equiv=\"refresh\" content=\"5\"></noscript>");
        }
        html!(page;
            "</head><body><a class=\"skip\" href=\"#main\">Skip to the content</a>"
            "<header><p class=\"title\">" (&config.title) "</p>"
        );
        if let Some(operator) = operator {
            page.markup("<nav aria-label=\"Pages\"><ul>");
            let pages = [
                (Place::Runs, "/", "Runs"),
                (Place::Approvals, "/approvals", "Approvals"),
                (Place::Threads, "/threads", "Conversations"),
                (Place::Decisions, "/decisions", "Decisions"),
                (Place::Stacks, "/stacks", "Stacks"),
                (Place::Usage, "/usage", "Usage"),
            ];
            for (place, path, name) in pages {
                let is_there = match place {
                    Place::Threads => config.threads.is_some(),
                    Place::Decisions => config.decisions.is_some(),
                    _ => true,
                };
                if !is_there {
                    continue;
                }
                html!(page; "<li><a href=\"" (&to(path)) "\"");
                if place == self.place {
                    page.markup(" aria-current=\"page\"");
                }
                html!(page; ">" (name) "</a></li>");
            }
            html!(page; "</ul></nav><p class=\"operator\">Operator: " (&operator.name) "</p>");
        }
        html!(page; "</header><main id=\"main\" tabindex=\"-1\"><h1>" (&self.title) "</h1>");
        page.part(&self.content);
        page.markup("</main></body></html>\n");
        page.into_string()
    }
}
