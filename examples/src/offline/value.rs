//! A value that a schema asks for, made of what the tools said.

use super::{
    answer::{one_line, path_of_line},
    plan::Done,
    schema::{choices, required, resolve, type_of},
};
use serde_json::{Map, Value};

/// How many items a list has.
const ITEMS: usize = 20;
/// How deep a value is.
const DEPTH: usize = 8;

/// Writes a value as `schema` describes it: the first line of `said` where a text stands, and an item
/// for each file that the tools named where a list does.
pub(super) fn compose(schema: &Value, said: &str, done: &[&Done]) -> String {
    let lines = done.iter().flat_map(|done| done.text.lines());
    let mut files: Vec<&str> = Vec::new();
    for line in lines {
        let is_file = path_of_line(line).is_some_and(|path| !path.ends_with('/'));
        if is_file && !files.contains(&line) && files.len() < ITEMS {
            files.push(line);
        }
    }
    let first = said.lines().next().unwrap_or_default();
    let about = About {
        said: one_line(first.trim_end_matches(':'), 200),
        number: files.len() as u64,
        files: &files,
    };
    // With space between the words, which are what an answer streams in.
    format!("{:#}", about.value(schema, schema, DEPTH))
}

/// What a value is made of: of all files, or of one.
struct About<'a> {
    said: String,
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
            Some("string") => self.said.as_str().into(),
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

    /// Of a line that names a file, as `src/main.rs (1,024 bytes)`.
    fn of_line(line: &str) -> Self {
        let note = line.rsplit_once(" (").map_or("", |(_, note)| note);
        let digits = note.chars().filter(char::is_ascii_digit);
        Self {
            said: path_of_line(line).unwrap_or_default().to_owned(),
            number: digits.collect::<String>().parse().unwrap_or_default(),
            files: &[],
        }
    }
}
