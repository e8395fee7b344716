//! Composition of a value for a schema from the results of tools.

use super::{
    answer::{one_line, path_of_line},
    plan::Done,
    schema::{choices, required, resolve, type_of},
};
use serde_json::{Map, Value};

/// The largest number of items in a list.
const ITEMS: usize = 20;
/// The largest depth of a value.
const DEPTH: usize = 8;

/// Returns a value that conforms to `schema`: strings have the first line of `text`, and lists have
/// an item for each file in the results.
pub(super) fn compose(schema: &Value, text: &str, done: &[&Done]) -> String {
    let lines = done.iter().flat_map(|done| done.text.lines());
    let mut files: Vec<&str> = Vec::new();
    for line in lines {
        let is_file = path_of_line(line).is_some_and(|path| !path.ends_with('/'));
        if is_file && !files.contains(&line) && files.len() < ITEMS {
            files.push(line);
        }
    }
    let first = text.lines().next().unwrap_or_default();
    let about = About {
        text: one_line(first.trim_end_matches(':'), 200),
        number: files.len() as u64,
        files: &files,
    };
    // With spaces between the words, because the response streams word by word.
    format!("{:#}", about.value(schema, schema, DEPTH))
}

/// The data for a value: about all files, or about one.
struct About<'a> {
    text: String,
    number: u64,
    files: &'a [&'a str],
}

impl About<'_> {
    fn value(&self, root: &Value, schema: &Value, depth: usize) -> Value {
        let schema = resolve(root, schema);
        let Some(depth) = depth.checked_sub(1) else {
            return Value::Null;
        };
        if let Some(choice) = choices(schema).and_then(|choices| choices.into_iter().next()) {
            return choice;
        }
        match type_of(schema) {
            Some("string") => self.text.as_str().into(),
            Some("integer" | "number") => self.number.into(),
            Some("boolean") => (self.number > 0).into(),
            Some("array") => {
                let items = schema.get("items").unwrap_or(&Value::Null);
                let item = |line: &&str| Self::of_line(line).value(root, items, depth);
                self.files.iter().map(item).collect()
            }
            _ => match schema.get("properties").and_then(Value::as_object) {
                Some(fields) => {
                    let required = required(schema);
                    let fields = fields
                        .iter()
                        .filter(|(name, _)| required.contains(&name.as_str()));
                    let fields = fields
                        .map(|(name, schema)| (name.clone(), self.value(root, schema, depth)));
                    Value::Object(fields.collect::<Map<_, _>>())
                }
                None => Value::Null,
            },
        }
    }

    /// Creates the data of one file from a line such as `src/main.rs (1,024 bytes)`.
    fn of_line(line: &str) -> Self {
        let note = line.rsplit_once(" (").map_or("", |(_, note)| note);
        let digits = note.chars().filter(char::is_ascii_digit);
        Self {
            text: path_of_line(line).unwrap_or_default().to_owned(),
            number: digits.collect::<String>().parse().unwrap_or_default(),
            files: &[],
        }
    }
}
