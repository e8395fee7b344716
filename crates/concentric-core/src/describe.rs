//! Descriptions of service stacks: their layers, by name and position.

use concentric_proto::Phase;
use std::fmt;

/// The layers of a stack in order, outermost first.
///
/// Derived from the stack's type. Types of other projects are prefixed with their crate. `Display`
/// prints one line per layer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Description {
    layers: Vec<Described>,
}

/// One layer of a [`Description`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Described {
    /// The name of the layer's type, prefixed with its crate for other projects.
    pub name: String,
    /// The position of the layer.
    pub place: Place,
}

/// The position of a layer in an agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Place {
    /// Around a model, or around a loop.
    Chat(Phase),
    /// Below a provider.
    Upstream,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Chat(phase) => phase.as_str(),
            Self::Upstream => "upstream",
        })
    }
}

impl Description {
    /// Describes a stack.
    pub fn of<S>(_: &S) -> Self {
        Self::of_type_name(std::any::type_name::<S>())
    }

    /// Returns the layers, outermost first.
    pub fn layers(&self) -> &[Described] {
        &self.layers
    }

    /// Describes an agent of type `A` with layers whose types it does not contain: those around the
    /// agent, and those around its model.
    pub(crate) fn of_agent<A>(
        run: impl Iterator<Item = &'static str>,
        model: impl Iterator<Item = &'static str>,
    ) -> Self {
        let Self { mut layers } = Self::of_type_name(std::any::type_name::<A>());
        let at = |phase| {
            move |name| Described {
                name: short_path(split(name).0),
                place: Place::Chat(phase),
            }
        };
        // The agent and its tools precede the model.
        let end = layers.len().min(2);
        layers.splice(end..end, model.map(at(Phase::Model)));
        layers.splice(0..0, run.map(at(Phase::Run)));
        Self { layers }
    }

    pub(crate) fn of_type_name(name: &str) -> Self {
        let mut layers = Vec::new();
        let mut place = Place::Chat(if name.contains(AGENT) {
            Phase::Run
        } else {
            Phase::Model
        });
        let mut next = Some(name);
        while let Some(name) = next {
            let (path, arguments) = split(name);
            // Wrappers that check declarations were not added by the user.
            if path != CHECKED {
                layers.push(Described {
                    name: short_path(path),
                    place,
                });
            }
            if path == AGENT {
                place = Place::Chat(Phase::Model);
                if let Some(round) = arguments.get(1) {
                    layers.push(Described {
                        name: last(split(round).0),
                        place: Place::Chat(Phase::Round),
                    });
                }
                next = arguments.first().copied();
                continue;
            }
            if path.starts_with("concentric_providers") {
                place = Place::Upstream;
            }
            // The inner service is the first argument, except in tower's `Retry`; the other
            // arguments are policies, closures and plain data.
            let mut services = arguments.into_iter().filter(|name| is_service(name));
            next = match path {
                "tower::retry::Retry" => services.next_back(),
                _ => services.next(),
            };
        }
        Self { layers }
    }
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

impl fmt::Display for Description {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, layer) in self.layers.iter().enumerate() {
            if at > 0 {
                writeln!(f)?;
            }
            write!(f, "{:<9} {}", layer.place.to_string(), layer.name)?;
        }
        Ok(())
    }
}
