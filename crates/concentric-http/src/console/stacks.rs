//! The layers of stacks, as nested rings and as lists.

use super::{
    config::Config,
    fold::At,
    html::{Html, html},
    layout::{Page, Place},
};

/// One layer of a stack: its position, and its name.
struct Ring<'a> {
    place: &'a str,
    name: &'a str,
}

pub(super) fn page(config: &Config) -> Page {
    let mut page = Page::new(Place::Stacks, "Stacks");
    let content = &mut page.content;
    if config.stacks.is_empty() {
        content.markup("<p class=\"empty\">This console knows no stack.</p>");
    }
    for (n, (name, description)) in config.stacks.iter().enumerate() {
        let rings = rings(description);
        let id = format!("stack-{n}");
        html!(content;
            "<section aria-labelledby=\"" (&id) "\"><h2 id=\"" (&id) "\">" (name) "</h2>"
            "<p class=\"note\">A request enters from the outside; its answer leaves the other way.</p><div class=\"stack\">"
        );
        let label = format!("Layers of {name}, as in the list");
        onion(content, &label, &rings, None);
        content.markup("<ol class=\"rings\">");
        for ring in &rings {
            html!(content; "<li><span class=\"place " (class(ring.place)) "\">" (ring.place) "</span> <code>" (ring.name) "</code></li>");
        }
        content.markup("</ol></div></section>");
    }
    page
}

/// Writes the layers of the stack of an agent, if the console knows it. Those that a live run is in are marked.
pub(super) fn of_run(content: &mut Html, config: &Config, agent: &str, at: Option<At>) {
    let Some((name, description)) = config.stacks.iter().find(|(name, _)| name == agent) else {
        return;
    };
    let label = format!("Layers of {name}. Those that the run is in have thick edges.");
    content.markup("<details class=\"layers\" open><summary>Layers</summary>");
    onion(content, &label, &rings(description), at);
    content.markup("</details>");
}

fn rings(description: &str) -> Vec<Ring<'_>> {
    description.lines().filter_map(parse).collect()
}

fn parse(line: &str) -> Option<Ring<'_>> {
    let (place, name) = line.trim().split_once(char::is_whitespace)?;
    let name = name.trim();
    Some(Ring { place, name })
}

/// The class of a position.
fn class(place: &str) -> &'static str {
    match place {
        "run" => "of-run",
        "round" => "of-round",
        "model" => "of-model",
        "upstream" => "of-upstream",
        _ => "of-other",
    }
}

/// Where a run is while it is in a ring of this position; `None` for those that it is in all the time.
fn at_of(place: &str) -> Option<At> {
    match place {
        // The call of a model passes through the layers of its provider.
        "model" | "upstream" => Some(At::Model),
        "round" => Some(At::Round),
        _ => None,
    }
}

/// The height of the label of a ring, and the space to the ring around it.
const LABEL: usize = 26;
const SPACE: usize = 8;
/// The width of the innermost ring.
const WIDTH: usize = 340;

fn onion(content: &mut Html, label: &str, rings: &[Ring<'_>], at: Option<At>) {
    let count = rings.len();
    if count == 0 {
        return;
    }
    let width = WIDTH + 2 * SPACE * (count - 1);
    let height = (LABEL + SPACE) * count + SPACE;
    html!(content;
        "<svg class=\"onion\" role=\"img\" viewBox=\"0 0 " (&(width + 2).to_string()) " " (&(height + 2).to_string()) "\" aria-label=\""
        (label) "\">"
    );
    for (n, ring) in rings.iter().enumerate() {
        let (x, y) = (1 + n * SPACE, 1 + n * LABEL);
        let (w, h) = (width - 2 * n * SPACE, height - n * (LABEL + SPACE));
        let of = at_of(ring.place);
        let now = if of.is_some() && of == at { " now" } else { "" };
        html!(content;
            "<rect class=\"" (class(ring.place)) (now) "\" data-at=\"" (of.map_or("", At::as_str)) "\" x=\"" (&x.to_string()) "\" y=\"" (&y.to_string())
            "\" width=\"" (&w.to_string()) "\" height=\"" (&h.to_string()) "\" rx=\"6\"/>"
            "<text x=\"" (&(x + 10).to_string()) "\" y=\"" (&(y + 18).to_string()) "\">" (ring.name) "</text>"
        );
    }
    content.markup("</svg>");
}
