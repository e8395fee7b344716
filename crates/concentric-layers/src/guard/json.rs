//! JSON texts, of which single values are replaced.

use serde::de::{Deserializer, Visitor};
use serde_json::value::RawValue;
use std::{
    borrow::Cow,
    collections::{HashMap, HashSet},
    fmt,
};

/// Replaces the strings, the names of fields and the numbers of a JSON text by what `replace` returns for
/// them; `None` if it replaces nothing, or the text is not JSON. All else keeps its form.
///
/// `replace` also receives the name of the field, also for each element of an array. A string is passed without
/// its escapes. What replaces a number is a string. A name that another field of the object has gets a number.
pub(super) fn rewrite(
    text: &str,
    mut replace: impl FnMut(Option<&str>, &str) -> Option<String>,
) -> Option<String> {
    let mut rewritten = String::new();
    let mut copied = 0;
    let places = places(text);
    // The decoded names of fields, by their places: an array has one for all of its elements.
    let mut fields: HashMap<usize, Cow<'_, str>> = HashMap::new();
    let mut names: Option<HashMap<usize, Names>> = None;
    for (at, place) in places.iter().enumerate() {
        let value = decoded(text.get(place.start..place.end)?)?;
        let name = place.name.and_then(|at| fields.get(&at));
        if let Some(mut by) = replace(name.map(Cow::as_ref), &value) {
            if let Some(object) = place.names {
                let names = names.get_or_insert_with(|| names_of(text, &places));
                by = names.entry(object).or_default().add(&by);
            }
            rewritten.push_str(text.get(copied..place.start)?);
            rewritten.push_str(&serde_json::to_string(&by).ok()?);
            copied = place.end;
        }
        if place.names.is_some() {
            fields.insert(at, value);
        }
    }
    if copied == 0 {
        return None;
    }
    rewritten.push_str(text.get(copied..)?);
    Some(rewritten)
}

/// The names of the fields of an object.
#[derive(Default)]
pub(super) struct Names {
    all: HashSet<String>,
    // The number of names that were added, by their form before the number.
    added: HashMap<String, usize>,
}

impl Names {
    /// Adds a name; with a number, if another field has it, so that no field replaces another.
    pub(super) fn add(&mut self, name: &str) -> String {
        let count = self.added.entry(name.to_owned()).or_insert(1);
        let mut unique = name.to_owned();
        while !self.all.insert(unique.clone()) {
            *count += 1;
            unique = format!("{name} {count}");
        }
        unique
    }
}

impl FromIterator<String> for Names {
    fn from_iter<I: IntoIterator<Item = String>>(names: I) -> Self {
        Self {
            all: names.into_iter().collect(),
            ..Self::default()
        }
    }
}

/// The names of each object.
fn names_of(text: &str, places: &[Place]) -> HashMap<usize, Names> {
    let mut all: HashMap<usize, Names> = HashMap::new();
    for place in places {
        let raw = text.get(place.start..place.end);
        if let (Some(object), Some(name)) = (place.names, raw.and_then(decoded)) {
            all.entry(object).or_default().all.insert(name.into_owned());
        }
    }
    all
}

/// Whether a text is one JSON value.
pub(super) fn is_json(text: &str) -> bool {
    serde_json::from_str::<&RawValue>(text).is_ok()
}

/// A string without its escapes, or a number as it is.
///
/// Half of a surrogate pair, which JSON permits and a `str` cannot hold, becomes `U+FFFD`: it must not hide
/// the rest of the text from the rules.
fn decoded(raw: &str) -> Option<Cow<'_, str>> {
    struct Lossy;
    impl Visitor<'_> for Lossy {
        type Value = String;
        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a string")
        }
        fn visit_bytes<E>(self, bytes: &[u8]) -> Result<String, E> {
            Ok(String::from_utf8_lossy(bytes).into_owned())
        }
    }
    if !raw.starts_with('"') {
        return Some(Cow::Borrowed(raw));
    }
    let mut deserializer = serde_json::Deserializer::from_str(raw);
    let text = Deserializer::deserialize_bytes(&mut deserializer, Lossy);
    text.map(Cow::Owned).ok()
}

/// Where a string, or another value without parts, stands in a text.
struct Place {
    start: usize,
    end: usize,
    /// The index of the place of its field's name.
    name: Option<usize>,
    /// The object that has a field of this name.
    names: Option<usize>,
}

/// The places of the strings and of other values without parts, in valid JSON.
fn places(text: &str) -> Vec<Place> {
    let mut places: Vec<Place> = Vec::new();
    // Where each open array or object begins, with the name for the elements of an array.
    let mut open: Vec<(usize, Option<usize>)> = Vec::new();
    let mut name = None;
    let mut start = None;
    let (mut is_string, mut is_escaped) = (false, false);
    for (at, byte) in text.bytes().enumerate() {
        match (start, byte) {
            (Some(_), _) if is_escaped => is_escaped = false,
            (Some(_), b'\\') if is_string => is_escaped = true,
            (Some(start_of), b'"') if is_string => {
                let end = at + 1;
                places.push(Place {
                    start: start_of,
                    end,
                    name,
                    names: None,
                });
                (start, is_string) = (None, false);
            }
            (Some(_), _) if is_string => {}
            (None, b'"') => (start, is_string) = (Some(at), true),
            (_, b'{' | b'}' | b'[' | b']' | b':' | b',' | b' ' | b'\t' | b'\n' | b'\r') => {
                places.extend(start.take().map(|start| Place {
                    start,
                    end: at,
                    name,
                    names: None,
                }));
                match byte {
                    b'{' => {
                        open.push((at, None));
                        name = None;
                    }
                    b'[' => open.push((at, name)),
                    b'}' | b']' => _ = open.pop(),
                    b',' => name = open.last().and_then(|(_, name)| *name),
                    b':' => {
                        name = places.len().checked_sub(1);
                        if let (Some(place), Some((object, _))) = (places.last_mut(), open.last()) {
                            place.names = Some(*object);
                        }
                    }
                    _ => {}
                }
            }
            (None, _) => start = Some(at),
            (Some(_), _) => {}
        }
    }
    let end = text.len();
    places.extend(start.map(|start| Place {
        start,
        end,
        name,
        names: None,
    }));
    places
}
