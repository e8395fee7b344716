//! Composition of a text from the results of tools.

use super::{
    plan::Done,
    question::{Question, is_path},
};
use concentric::{Str, ToolSpec};
use serde_json::Value;
use std::{collections::BTreeMap, fmt::Write as _};

/// The largest number of lines, names or fields of one result in the text.
const SHOWN: usize = 5;

/// Describes the results of the tools, or, without any, the available tools.
pub(super) fn compose(
    question: &Question,
    done: Vec<&Done>,
    tools: &[&ToolSpec],
    missing: Option<(Str, String)>,
) -> String {
    if done.is_empty() {
        return without_results(question, tools, missing);
    }
    let mut out: Vec<String> = missing.map(lacks).into_iter().collect();
    for done in done {
        let text = describe(done);
        if !out.contains(&text) {
            out.push(text);
        }
    }
    out.join("\n\n")
}

fn lacks((tool, parameter): (Str, String)) -> String {
    format!("`{tool}` needs a `{parameter}`, and I did not find one in your question.")
}

fn without_results(
    question: &Question,
    tools: &[&ToolSpec],
    missing: Option<(Str, String)>,
) -> String {
    let names: Vec<String> = tools
        .iter()
        .map(|tool| format!("`{}`", tool.name))
        .collect();
    let can = match names.as_slice() {
        [] => "I have no tools.".to_owned(),
        [name] => format!("I can use {name}."),
        [some @ .., last] => format!("I can use {} and {last}.", some.join(", ")),
    };
    if question.is_greeting() {
        return format!("Hello! I am an offline stand-in for a language model. {can}");
    }
    if let Some(missing) = missing {
        return lacks(missing);
    }
    if question.words.is_empty() && question.paths.is_empty() {
        return format!("I did not find a question. {can}");
    }
    let fits = if tools.is_empty() {
        ""
    } else {
        "I found no tool that matches your question. "
    };
    format!("I am an offline stand-in for a language model. {fits}{can}")
}

fn describe(done: &Done) -> String {
    let text = done.text.trim();
    if !done.ok {
        return format!(
            "{}: `{}` failed. {}",
            subject(done),
            done.call.tool,
            one_line(text, 200)
        );
    }
    let mut lines: Vec<&str> = text
        .lines()
        .filter(|line| !line.trim().is_empty())
        .collect();
    // A tool may begin its result with a heading.
    let headed = lines.len() > 1 && lines.first().is_some_and(|line| line.ends_with(':'));
    if headed {
        lines.remove(0);
    }
    let hits: Vec<Hit<'_>> = lines.iter().filter_map(|line| hit(line)).collect();
    let paths: Vec<&str> = lines.iter().filter_map(|line| path_of_line(line)).collect();
    if let Ok(value @ (Value::Object(_) | Value::Array(_))) = serde_json::from_str(text) {
        fields(done, &value)
    } else if !hits.is_empty() && hits.len() * 2 >= lines.len() {
        // Half is enough: a search with one hit may add a line about skipped files.
        quote(done, &hits)
    } else if !paths.is_empty() && paths.len() * 3 >= lines.len() * 2 {
        count(done, &paths)
    } else if headed || lines.len() > 2 {
        begin(done, &lines)
    } else {
        one_line(text, 400)
    }
}

/// Returns the first string among a call's arguments, which distinguishes it from other calls.
fn subject(done: &Done) -> String {
    let mut texts = done.call.arguments.values().filter_map(Value::as_str);
    match texts.next() {
        Some(text) => format!("`{}`", one_line(text, 60)),
        None => "This folder".to_owned(),
    }
}

/// A line in the form `path:12: text`.
pub(super) struct Hit<'a> {
    path: &'a str,
    line: &'a str,
    text: &'a str,
}

pub(super) fn hit(line: &str) -> Option<Hit<'_>> {
    let (path, rest) = line.split_once(':')?;
    let (number, text) = rest.split_once(':')?;
    let numbered = !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit());
    (numbered && !path.is_empty() && path.len() < 300).then_some(Hit {
        path,
        line: number,
        text,
    })
}

/// Returns the path in a line of a search result or a list, such as `src/main.rs (1,024 bytes)`.
pub(super) fn path_of_line(line: &str) -> Option<&str> {
    if let Some(hit) = hit(line) {
        return Some(hit.path);
    }
    let line = line.trim();
    let line = line.strip_prefix("- ").unwrap_or(line);
    match line.rsplit_once(" (") {
        Some((path, note)) if note.ends_with("bytes)") || note.ends_with("byte)") => Some(path),
        _ if line.contains(char::is_whitespace) => line.ends_with('/').then_some(line),
        _ => (line.ends_with('/') || is_path(line)).then_some(line),
    }
}

fn quote(done: &Done, hits: &[Hit<'_>]) -> String {
    let mut files: Vec<&str> = hits.iter().map(|hit| hit.path).collect();
    files.dedup();
    let mut out = format!(
        "{} is in {} of {}:\n",
        subject(done),
        plural(hits.len(), "line"),
        plural(files.len(), "file"),
    );
    for Hit { path, line, text } in hits.iter().take(SHOWN) {
        let _ = write!(out, "\n- {path}:{line}: `{}`", one_line(text, 120));
    }
    if let Some(more) = hits.len().checked_sub(SHOWN).filter(|more| *more > 0) {
        let _ = write!(out, "\n- and {more} more");
    }
    out
}

fn count(done: &Done, paths: &[&str]) -> String {
    let mut kinds: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    let mut folders = Vec::new();
    for path in paths {
        match path.strip_suffix('/') {
            Some(folder) => folders.push(folder),
            None => kinds.entry(kind(path)).or_default().push(path),
        }
    }
    let files = paths.len() - folders.len();
    let mut out = format!("{} has {}", subject(done), plural(files, "file"));
    if !folders.is_empty() {
        let _ = write!(out, " and {}", plural(folders.len(), "folder"));
    }
    out.push_str(":\n");
    let mut kinds: Vec<_> = kinds.into_iter().collect();
    kinds.sort_by_key(|(_, files)| std::cmp::Reverse(files.len()));
    for (kind, files) in kinds {
        let many = plural(files.len(), &format!("{kind} file"));
        let _ = write!(out, "\n- {many}: {}", names(&files));
    }
    if !folders.is_empty() {
        let _ = write!(out, "\n- folders: {}", names(&folders));
    }
    out
}

fn names(of: &[&str]) -> String {
    let mut out = of
        .iter()
        .take(2 * SHOWN)
        .copied()
        .collect::<Vec<_>>()
        .join(", ");
    if let Some(more) = of.len().checked_sub(2 * SHOWN).filter(|more| *more > 0) {
        let _ = write!(out, " and {more} more");
    }
    out
}

/// Returns the type of a file, by its name.
fn kind(path: &str) -> &str {
    let name = path.rsplit('/').next().unwrap_or(path);
    match name.rsplit_once('.').map(|(_, extension)| extension) {
        Some("rs") => "Rust",
        Some("md") => "Markdown",
        Some("toml") => "TOML",
        Some("json") => "JSON",
        Some("yml" | "yaml") => "YAML",
        Some("txt") => "text",
        Some("py") => "Python",
        Some("js" | "mjs" | "cjs" | "jsx") => "JavaScript",
        Some("ts" | "tsx") => "TypeScript",
        Some("html" | "css") => "web",
        Some("png" | "jpg" | "jpeg" | "gif" | "svg" | "webp") => "image",
        Some(extension) => extension,
        None => "plain",
    }
}

/// Returns the headings of a text and its first lines.
fn begin(done: &Done, lines: &[&str]) -> String {
    let headings: Vec<&str> = lines
        .iter()
        .filter(|line| line.starts_with('#'))
        .map(|line| line.trim_matches(['#', ' ']))
        .filter(|line| !line.is_empty() && !line.starts_with(['[', '!']))
        .collect();
    let mut out = subject(done);
    if headings.is_empty() {
        out.push_str(" begins:\n");
    } else {
        let _ = writeln!(out, " has these headings: {}. It begins:", names(&headings));
    }
    let text = lines.iter().filter(|line| !line.starts_with('#'));
    for line in text.take(SHOWN) {
        let _ = write!(out, "\n> {}", one_line(line, 160));
    }
    out
}

fn fields(done: &Done, value: &Value) -> String {
    let mut found = Vec::new();
    flatten("", value, &mut found);
    let more = found.len().saturating_sub(2 * SHOWN);
    found.truncate(2 * SHOWN);
    let mut out = format!("`{}` returned: {}", done.call.tool, found.join(", "));
    out.push_str(&match more {
        0 => ".".to_owned(),
        more => format!(" and {more} more."),
    });
    out
}

fn flatten(name: &str, value: &Value, into: &mut Vec<String>) {
    let under = |key: &str| match name {
        "" => key.to_owned(),
        name => format!("{name}.{key}"),
    };
    match value {
        Value::Object(map) => map
            .iter()
            .for_each(|(key, value)| flatten(&under(key), value, into)),
        Value::Array(items) => {
            let items = items.iter().enumerate();
            items.for_each(|(index, value)| flatten(&under(&(index + 1).to_string()), value, into));
        }
        Value::String(text) if name.is_empty() => into.push(one_line(text, 120)),
        Value::String(text) => into.push(format!("{name}: {}", one_line(text, 120))),
        other => into.push(format!("{name}: {other}")),
    }
}

fn plural(count: usize, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}

/// Returns the first `most` bytes of a text, on one line.
pub(super) fn one_line(text: &str, most: usize) -> String {
    let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    match line.get(..line.floor_char_boundary(most)) {
        Some(short) if short.len() < line.len() => format!("{short}…"),
        _ => line,
    }
}
