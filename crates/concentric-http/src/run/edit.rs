use serde_json::{Map, Value};

use crate::json::json_len;

/// A change of a JSON value at one path (RFC 6901).
pub(super) struct Edit<'a> {
    path: &'a str,
    // `None` removes the value.
    value: Option<Value>,
}

impl<'a> Edit<'a> {
    /// Creates an edit that sets the value at `path`, and adds missing objects around it; `None` if
    /// `root` can't have such a path.
    pub(super) fn new(root: &Value, mut path: &'a str, mut value: Value) -> Option<Self> {
        loop {
            let (parent, token) = match root.pointer(path) {
                Some(_) => break,
                None => path.rsplit_once('/')?,
            };
            match root.pointer(parent) {
                Some(Value::Object(_)) => break,
                Some(Value::Array(_)) if token == "-" => break,
                None | Some(Value::Null) => {
                    value = Value::Object(Map::from_iter([(unescape(token), value)]));
                    path = parent;
                }
                Some(_) => return None,
            }
        }
        let value = Some(value);
        Some(Self { path, value })
    }

    /// The length of `root` as JSON after the edit, given its length if known; `None` if that exceeds
    /// `limit`.
    pub(super) fn len(&self, root: &Value, len: Option<usize>, limit: usize) -> Option<usize> {
        let new = match &self.value {
            Some(value) => json_len(value, limit)?,
            None => 0,
        };
        if self.path.is_empty() {
            return Some(new);
        }
        let len = len.or_else(|| json_len(root, usize::MAX))?;
        let rest = match root.pointer(self.path) {
            Some(old) => len.checked_sub(json_len(old, usize::MAX)?)?,
            None => len.checked_add(self.overhead(root)?)?,
        };
        rest.checked_add(new).filter(|len| *len <= limit)
    }

    /// The length of the comma and the name of a value that is added.
    fn overhead(&self, root: &Value) -> Option<usize> {
        let (parent, token) = self.path.rsplit_once('/')?;
        Some(match root.pointer(parent)? {
            Value::Object(object) => {
                let name = json_len(&unescape(token).into(), usize::MAX)? + ":".len();
                name + usize::from(!object.is_empty())
            }
            Value::Array(list) => usize::from(!list.is_empty()),
            _ => 0,
        })
    }

    /// Applies the edit, and returns the one that reverts it.
    pub(super) fn apply(self, root: &mut Value) -> Self {
        let Self { path, value } = self;
        let old = match (root.pointer_mut(path), value) {
            (Some(slot), Some(value)) => Some(std::mem::replace(slot, value)),
            (_, value) => add_or_remove(root, path, value),
        };
        Self { path, value: old }
    }
}

/// Adds `value` at a path that does not exist, or removes and returns the value there.
fn add_or_remove(root: &mut Value, path: &str, value: Option<Value>) -> Option<Value> {
    let (parent, token) = path.rsplit_once('/')?;
    match (root.pointer_mut(parent)?, value) {
        (Value::Object(object), Some(value)) => object.insert(unescape(token), value),
        (Value::Object(object), None) => object.remove(&unescape(token)),
        (Value::Array(list), Some(value)) => {
            list.push(value);
            None
        }
        // Only appended elements are removed.
        (Value::Array(list), None) => list.pop(),
        _ => None,
    }
}

fn unescape(token: &str) -> String {
    token.replace("~1", "/").replace("~0", "~")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn edited(root: &Value, path: &str, value: &Value) -> Option<Value> {
        let edit = Edit::new(root, path, value.clone())?;
        let len = edit.len(root, None, usize::MAX);
        let mut edited = root.clone();
        let undo = edit.apply(&mut edited);
        assert_eq!(len, Some(edited.to_string().len()), "{path} in {root}");
        let mut reverted = edited.clone();
        undo.apply(&mut reverted);
        assert_eq!(&reverted, root, "{path}");
        Some(edited)
    }

    #[test]
    fn an_edit_sets_adds_and_appends() {
        let root = json!({"a": {"b/c": [1]}, "~": null, "s": "text", "e": [], "o": {}});
        for (path, expected) in [
            ("", json!({"x": "\"é"})),
            (
                "/a",
                json!({"a": {"x": "\"é"}, "~": null, "s": "text", "e": [], "o": {}}),
            ),
            (
                "/a/b~1c/0",
                json!({"a": {"b/c": [{"x": "\"é"}]}, "~": null, "s": "text", "e": [], "o": {}}),
            ),
            (
                "/a/b~1c/-",
                json!({"a": {"b/c": [1, {"x": "\"é"}]}, "~": null, "s": "text", "e": [], "o": {}}),
            ),
            (
                "/e/-",
                json!({"a": {"b/c": [1]}, "~": null, "s": "text", "e": [{"x": "\"é"}], "o": {}}),
            ),
            (
                "/o/~1\"",
                json!({"a": {"b/c": [1]}, "~": null, "s": "text", "e": [], "o": {"/\"": {"x": "\"é"}}}),
            ),
            (
                "/~0/n/m",
                json!({"a": {"b/c": [1]}, "~": {"n": {"m": {"x": "\"é"}}}, "s": "text", "e": [], "o": {}}),
            ),
        ] {
            let got = edited(&root, path, &json!({"x": "\"é"}));
            assert_eq!(got, Some(expected), "{path}");
        }
    }

    #[test]
    fn an_edit_needs_a_path_that_can_exist() {
        let root = json!({"s": "text", "list": [1]});
        for path in [
            "s",
            "a/b",
            "/s/x",
            "/s/x/y",
            "/list/1",
            "/list/x",
            "/list/1/x",
        ] {
            assert_eq!(edited(&root, path, &json!(1)), None, "{path}");
        }
    }

    #[test]
    fn a_longer_value_than_the_limit_is_refused() {
        let root = json!({"n": 1});
        let edit = Edit::new(&root, "/n", json!(10)).unwrap();
        assert_eq!(edit.len(&root, None, 8), Some(8));
        assert_eq!(edit.len(&root, Some(7), 7), None);
    }
}
