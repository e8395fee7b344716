//! Reassembly of JSON from values that arrive separately, each with its JSON Path.

use super::wire::PartialArg;
use serde_json::Value;
use std::{collections::HashSet, iter};

/// The maximum number of skipped array elements in a call. A few digits of a path could otherwise
/// produce an unlimited number of elements.
const GAPS: u64 = 1024;

/// The maximum number of steps in a path, which is the nesting limit of `serde_json`.
const STEPS: usize = 128;

/// A step of a path.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Step {
    Key(String),
    Index(u64),
}

impl Step {
    const fn opens(&self) -> char {
        match self {
            Self::Key(_) => '{',
            Self::Index(_) => '[',
        }
    }

    const fn closes(&self) -> char {
        match self {
            Self::Key(_) => '}',
            Self::Index(_) => ']',
        }
    }
}

/// The state of the JSON that has been written so far.
#[derive(Debug, Default)]
pub(super) struct Partial {
    // The path of the last value, whose containers are open.
    at: Vec<Step>,
    // The keys of each open object, to detect duplicates.
    keys: Vec<HashSet<String>>,
    // Whether the last value is a string that is still open.
    text: bool,
    // The number of skipped elements.
    gaps: u64,
}

/// The values do not arrive in document order.
#[derive(Debug)]
pub(super) struct Disorder;

impl Partial {
    /// Appends the JSON for `arg` to `out`.
    pub(super) fn push(&mut self, arg: &PartialArg<'_>, out: &mut String) -> Result<(), Disorder> {
        let path = path(arg.json_path.as_str().unwrap_or_default()).ok_or(Disorder)?;
        let text = arg.string_value.as_str();
        if self.text && path == self.at {
            out.push_str(&inner(text.unwrap_or_default()));
        } else {
            self.move_to(path, out)?;
            match text {
                Some(text) => {
                    out.push('"');
                    out.push_str(&inner(text));
                    self.text = true;
                }
                None => out.push_str(&arg.scalar().to_string()),
            }
        }
        if !arg.will_continue() {
            self.end_text(out);
        }
        Ok(())
    }

    /// Appends the end of the JSON to `out`.
    pub(super) fn end(&mut self, out: &mut String) {
        self.end_text(out);
        if self.at.is_empty() {
            out.push('{');
        }
        out.extend(self.at.iter().skip(1).rev().map(Step::closes));
        out.push('}');
    }

    fn end_text(&mut self, out: &mut String) {
        if std::mem::take(&mut self.text) {
            out.push('"');
        }
    }

    fn move_to(&mut self, path: Vec<Step>, out: &mut String) -> Result<(), Disorder> {
        self.end_text(out);
        let shared = iter::zip(&self.at, &path).take_while(|(a, b)| a == b);
        let shared = shared.count();
        let last = self.at.get(shared);
        if shared == path.len() || (last.is_none() && !self.at.is_empty()) {
            return Err(Disorder);
        }
        out.extend(self.at.iter().skip(shared + 1).rev().map(Step::closes));
        self.keys.truncate(shared + 1);
        // The first new step is a sibling of the last one, if there is one.
        let mut sibling = last.cloned();
        for step in path.iter().skip(shared) {
            let next = match (&sibling, step) {
                (None, step) => {
                    out.push(step.opens());
                    self.keys.push(HashSet::new());
                    0
                }
                (Some(Step::Key(_)), Step::Key(_)) => {
                    out.push(',');
                    0
                }
                (Some(Step::Index(old)), Step::Index(_)) => {
                    out.push(',');
                    old + 1
                }
                _ => return Err(Disorder),
            };
            sibling = None;
            match step {
                Step::Key(key) => {
                    let keys = self.keys.last_mut().ok_or(Disorder)?;
                    if !keys.insert(key.clone()) {
                        return Err(Disorder);
                    }
                    out.push_str(&Value::from(key.as_str()).to_string());
                    out.push(':');
                }
                Step::Index(index) => {
                    let gap = index.checked_sub(next).ok_or(Disorder)?;
                    self.gaps = self.gaps.saturating_add(gap);
                    if self.gaps > GAPS {
                        return Err(Disorder);
                    }
                    for _ in 0..gap {
                        out.push_str("null,");
                    }
                }
            }
        }
        self.at = path;
        Ok(())
    }
}

/// The escaped content of a JSON string.
fn inner(text: &str) -> String {
    let quoted = Value::from(text).to_string();
    quoted
        .get(1..quoted.len() - 1)
        .unwrap_or_default()
        .to_owned()
}

/// Parses a path to a single value (RFC 9535, section 2.7) that starts with a key.
fn path(text: &str) -> Option<Vec<Step>> {
    let mut rest = text.strip_prefix('$')?;
    let mut steps = Vec::new();
    while !rest.is_empty() {
        if steps.len() == STEPS {
            return None;
        }
        if let Some(name) = rest.strip_prefix('.') {
            let end = name.find(['.', '[']).unwrap_or(name.len());
            let (name, after) = name.split_at(end);
            steps.push(Step::Key(Some(name).filter(|n| !n.is_empty())?.to_owned()));
            rest = after;
            continue;
        }
        let inside = rest.strip_prefix('[')?;
        let quote = inside.chars().next().filter(|c| matches!(c, '\'' | '"'));
        if let Some(quote) = quote {
            let inside = inside.get(1..)?;
            let mut escaped = false;
            let end = inside.find(|c| {
                let ends = c == quote && !escaped;
                escaped = c == '\\' && !escaped;
                ends
            })?;
            let (name, after) = inside.split_at(end);
            steps.push(Step::Key(unquoted(name)?));
            rest = after.get(1..)?.strip_prefix(']')?;
        } else {
            let (index, after) = inside.split_once(']')?;
            steps.push(Step::Index(index.parse().ok()?));
            rest = after;
        }
    }
    matches!(steps.first(), Some(Step::Key(_))).then_some(steps)
}

/// Unescapes a name in single or double quotes.
fn unquoted(name: &str) -> Option<String> {
    let mut json = String::from('"');
    let mut escaped = false;
    for c in name.chars() {
        match c {
            // JSON does not have the escape `\'`.
            '\'' if escaped => {
                json.pop();
            }
            '"' if !escaped => json.push('\\'),
            _ => {}
        }
        escaped = c == '\\' && !escaped;
        json.push(c);
    }
    json.push('"');
    serde_json::from_str(&json).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(args: &[&str]) -> Result<String, Disorder> {
        let mut partial = Partial::default();
        let mut out = String::new();
        for arg in args {
            let arg: PartialArg<'_> = serde_json::from_str(arg).expect("a piece");
            partial.push(&arg, &mut out)?;
        }
        partial.end(&mut out);
        Ok(out)
    }

    #[test]
    fn values_are_reassembled_into_json() {
        let cases: [(&[&str], &str); 6] = [
            (&[], "{}"),
            (&[r#"{"jsonPath":"$.a","numberValue":1}"#], r#"{"a":1}"#),
            (
                &[
                    r#"{"jsonPath":"$.a[0].b","stringValue":"x\"","willContinue":true}"#,
                    r#"{"jsonPath":"$.a[0].b","stringValue":"ä","willContinue":true}"#,
                    r#"{"jsonPath":"$.a[0].b","stringValue":""}"#,
                    r#"{"jsonPath":"$.a[0].c","boolValue":true}"#,
                    r#"{"jsonPath":"$.a[1].b","stringValue":"y","willContinue":true}"#,
                    r#"{"jsonPath":"$.d","nullValue":"NULL_VALUE"}"#,
                ],
                r#"{"a":[{"b":"x\"ä","c":true},{"b":"y"}],"d":null}"#,
            ),
            (
                &[r#"{"jsonPath":"$['a.b'][\"c]\"]['it\\'s']","numberValue":0.5}"#],
                r#"{"a.b":{"c]":{"it's":0.5}}}"#,
            ),
            (
                &[
                    r#"{"jsonPath":"$.a[1][0]","numberValue":1}"#,
                    r#"{"jsonPath":"$.a[1][2]","numberValue":2}"#,
                ],
                r#"{"a":[null,[1,null,2]]}"#,
            ),
            (
                &[
                    r#"{"jsonPath":"$.a.x","numberValue":1}"#,
                    r#"{"jsonPath":"$.b.x","numberValue":2}"#,
                ],
                r#"{"a":{"x":1},"b":{"x":2}}"#,
            ),
        ];
        for (args, json) in cases {
            assert_eq!(written(args).expect("json"), json);
        }
    }

    #[test]
    fn invalid_paths_and_orders_are_rejected() {
        let one = |path: &str| format!(r#"{{"jsonPath":"{path}","numberValue":1}}"#);
        let cases: [&[&str]; 11] = [
            &[""],
            &["$"],
            &["$[0]"],
            &["$."],
            &["$.a[x]"],
            &["$['a]"],
            &["$.a[5000]"],
            &["$.a", "$.a"],
            &["$.a", "$.a.b"],
            &["$.a.b", "$.c", "$.a.d"],
            &["$.a[1]", "$.a[0]"],
        ];
        for paths in cases {
            let args: Vec<String> = paths.iter().map(|path| one(path)).collect();
            let args: Vec<&str> = args.iter().map(String::as_str).collect();
            assert!(written(&args).is_err(), "{paths:?}");
        }
    }

    #[test]
    fn the_number_of_skipped_elements_is_limited() {
        let one = |path: String| format!(r#"{{"jsonPath":"$.a{path}","numberValue":1}}"#);
        // Within one path, and from path to path.
        assert!(written(&[&one("[1024]".to_owned())]).is_ok());
        assert!(written(&[&one("[512][513]".to_owned())]).is_err());
        let apart: Vec<String> = (1..=512).map(|at| one(format!("[{}]", at * 3))).collect();
        let apart: Vec<&str> = apart.iter().map(String::as_str).collect();
        assert!(written(&apart[..510]).is_ok());
        assert!(written(&apart).is_err());
        assert!(written(&[&one("[0]".repeat(STEPS - 1))]).is_ok());
        assert!(written(&[&one("[0]".repeat(STEPS))]).is_err());
    }
}
