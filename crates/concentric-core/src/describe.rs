//! Descriptions of service stacks: their layers, by name and position.

use concentric_proto::Phase;

const UPSTREAM: &str = "upstream";

/// One layer of a stack: its position, and the name of its type.
struct Described(&'static str, String);

/// Describes a stack, one line per layer, outermost first: the layer's position and its name.
///
/// The names are derived from the stack's type. Types of other projects are prefixed with their crate.
pub fn describe<S>(_: &S) -> String {
    describe_type(std::any::type_name::<S>())
}

/// Describes an agent of type `A` with layers whose types it does not contain: those around the
/// agent, and those around its model.
pub(crate) fn describe_agent<A>(
    run: impl Iterator<Item = &'static str>,
    model: impl Iterator<Item = &'static str>,
) -> String {
    let mut layers = layers(std::any::type_name::<A>());
    let at = |phase: Phase| {
        move |name| {
            let own = self::layers(name).into_iter();
            let own = own.filter(|Described(_, name)| name != "BoxModel");
            own.map(move |Described(_, name)| Described(phase.as_str(), name))
        }
    };
    // The agent and its tools precede the model.
    let end = layers.len().min(2);
    layers.splice(end..end, model.flat_map(at(Phase::Model)));
    layers.splice(0..0, run.flat_map(at(Phase::Run)));
    lines(&layers)
}

pub(crate) fn describe_type(name: &str) -> String {
    lines(&layers(name))
}

fn lines(layers: &[Described]) -> String {
    let lines = layers.iter();
    let lines = lines.map(|Described(place, name)| format!("{place:<9} {name}"));
    lines.collect::<Vec<_>>().join("\n")
}

fn layers(name: &str) -> Vec<Described> {
    let mut layers = Vec::new();
    let mut place = match name.contains(AGENT) {
        true => Phase::Run,
        false => Phase::Model,
    }
    .as_str();
    let mut next = Some(name);
    while let Some(name) = next {
        let (path, arguments) = split(name);
        // Wrappers that check declarations were not added by the user.
        if path != CHECKED {
            layers.push(Described(place, short_path(path)));
        }
        if path == AGENT {
            place = Phase::Model.as_str();
            if let Some(round) = arguments.get(1) {
                layers.push(Described(Phase::Round.as_str(), last(split(round).0)));
            }
            next = arguments.first().copied();
            continue;
        }
        if path.starts_with("concentric_providers") {
            place = UPSTREAM;
        }
        // The inner service is the first argument, except in tower's `Retry`; the other
        // arguments are policies, closures and plain data.
        let mut services = arguments.into_iter().filter(|name| is_service(name));
        next = match path {
            "tower::retry::Retry" => services.next_back(),
            _ => services.next(),
        };
    }
    layers
}

const CHECKED: &str = "concentric_core::capability::check::Checked";
const AGENT: &str = "concentric_core::agent::service::Agent";

/// Splits the name of a type into its path and its generic arguments.
fn split(name: &str) -> (&str, Vec<&str>) {
    let Some((path, rest)) = name.split_once('<') else {
        return (name, Vec::new());
    };
    let rest = rest.strip_suffix('>').unwrap_or(rest);
    let mut arguments = Vec::new();
    let mut depth = 0_usize;
    let mut start = 0;
    let mut before = ' ';
    for (at, c) in rest.char_indices() {
        match c {
            '<' | '(' | '[' => depth += 1,
            // The arrow of a function type closes no bracket.
            '>' if before == '-' => {}
            '>' | ')' | ']' => depth = depth.saturating_sub(1),
            ',' if depth == 0 => {
                arguments.extend(rest.get(start..at).map(str::trim));
                start = at + 1;
            }
            _ => {}
        }
        before = c;
    }
    arguments.extend(rest.get(start..).map(str::trim));
    (path, arguments)
}

fn is_service(name: &str) -> bool {
    let (path, _) = split(name);
    let closure = path.contains("{{") || path.ends_with("Future") || !path.contains("::");
    // Function items are in snake case, types are not.
    let function = last(path).starts_with(|c: char| c.is_lowercase());
    let data = [
        "concentric_core::request",
        "alloc::",
        "core::",
        "std::",
        "http::",
        "tokio::",
    ];
    !(closure || function || data.iter().any(|prefix| path.starts_with(prefix)))
}

/// Removes the modules from the name of a type and of its generic arguments. Types of other crates
/// keep the name of their crate.
pub(crate) fn short(name: &str) -> String {
    let is_path = |c: char| c.is_alphanumeric() || matches!(c, '_' | ':' | '{' | '}' | '#');
    name.split_inclusive(|c| !is_path(c))
        .map(|piece| {
            let path = piece.trim_end_matches(|c| !is_path(c));
            short_path(path) + piece.get(path.len()..).unwrap_or_default()
        })
        .collect()
}

fn short_path(path: &str) -> String {
    match path.starts_with("concentric") {
        true => last(path),
        false => foreign(path),
    }
}

fn last(path: &str) -> String {
    path.rsplit("::").next().unwrap_or(path).to_owned()
}

fn foreign(path: &str) -> String {
    match path.split_once("::") {
        Some((krate, _)) => format!("{krate}::{}", last(path)),
        None => path.to_owned(),
    }
}
