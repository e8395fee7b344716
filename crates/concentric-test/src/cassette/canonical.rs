//! The canonical form of requests, for comparison.

use super::tape::{Content, Request};
use serde_json::{Map, Value, json};

/// Returns the canonical form of a request. Requests with the same meaning have equal forms.
pub(super) fn of(request: &Request, ignored: &[Vec<String>]) -> Value {
    let mut query = Map::new();
    for (name, value) in &request.query {
        let values = query.entry(name.clone()).or_insert_with(|| json!([]));
        if let Value::Array(values) = values {
            values.push(json!(value));
        }
    }
    let body = match &request.body {
        Content::Json(value) => plain(value),
        Content::Text(text) | Content::Base64(text) => json!(text),
    };
    let mut value = json!({
        "method": request.method,
        "path": request.path,
        "query": query,
        "body": body,
    });
    for path in ignored {
        remove(&mut value, path);
    }
    value
}

/// Replaces floats without a fraction by integers: `1.0` equals `1`.
fn plain(value: &Value) -> Value {
    match value {
        Value::Array(items) => items.iter().map(plain).collect(),
        Value::Object(fields) => {
            let fields = fields
                .iter()
                .map(|(name, value)| (name.clone(), plain(value)));
            Value::Object(fields.collect())
        }
        Value::Number(number) => {
            // Below this limit a float is exact.
            const EXACT: f64 = 9_007_199_254_740_992.0;
            match number.as_f64() {
                Some(float) if number.is_f64() && float.fract() == 0.0 && float.abs() < EXACT => {
                    #[allow(clippy::cast_possible_truncation, reason = "it has no fraction")]
                    let whole = float as i64;
                    json!(whole)
                }
                _ => value.clone(),
            }
        }
        _ => value.clone(),
    }
}

/// Splits a JSON pointer (RFC 6901). The part `*` matches every field or item.
pub(super) fn pointer(text: &str) -> Vec<String> {
    let parts = text.split('/').skip(1);
    parts
        .map(|part| part.replace("~1", "/").replace("~0", "~"))
        .collect()
}

fn remove(value: &mut Value, path: &[String]) {
    let Some((first, rest)) = path.split_first() else {
        return;
    };
    match value {
        Value::Object(fields) if rest.is_empty() => match first.as_str() {
            "*" => fields.clear(),
            name => {
                fields.remove(name);
            }
        },
        Value::Object(fields) => {
            let found = fields.iter_mut();
            let found = found.filter(|(name, _)| first == "*" || *name == first);
            found.for_each(|(_, value)| remove(value, rest));
        }
        Value::Array(items) if rest.is_empty() => match first.parse::<usize>() {
            // Set to null instead of removed, so that the other items keep their indices.
            Ok(index) => {
                if let Some(item) = items.get_mut(index) {
                    *item = Value::Null;
                }
            }
            Err(_) if first == "*" => items.fill(Value::Null),
            Err(_) => {}
        },
        Value::Array(items) => {
            let index: Option<usize> = first.parse().ok();
            for (at, item) in items.iter_mut().enumerate() {
                if first == "*" || index == Some(at) {
                    remove(item, rest);
                }
            }
        }
        _ => {}
    }
}

/// The differences between two requests.
#[derive(Debug, Default)]
pub(super) struct Difference {
    /// The number of places.
    pub(super) count: usize,
    /// The first place: a JSON pointer, the recorded value and the received one.
    pub(super) first: Option<(String, Option<Value>, Option<Value>)>,
}

impl Difference {
    pub(super) fn of(recorded: &Value, asked: &Value) -> Self {
        let mut difference = Self::default();
        difference.compare(&mut String::new(), Some(recorded), Some(asked));
        difference
    }

    fn compare(&mut self, at: &mut String, recorded: Option<&Value>, asked: Option<&Value>) {
        match (recorded, asked) {
            (Some(Value::Object(a)), Some(Value::Object(b))) => {
                let added = b.keys().filter(|name| !a.contains_key(*name));
                for name in a.keys().chain(added) {
                    let part = name.replace('~', "~0").replace('/', "~1");
                    self.within(at, &part, a.get(name), b.get(name));
                }
            }
            (Some(Value::Array(a)), Some(Value::Array(b))) => {
                for index in 0..a.len().max(b.len()) {
                    self.within(at, &index.to_string(), a.get(index), b.get(index));
                }
            }
            (a, b) if a == b => {}
            (a, b) => {
                self.count += 1;
                self.first
                    .get_or_insert_with(|| (at.clone(), a.cloned(), b.cloned()));
            }
        }
    }

    fn within(
        &mut self,
        at: &mut String,
        part: &str,
        recorded: Option<&Value>,
        asked: Option<&Value>,
    ) {
        let length = at.len();
        at.push('/');
        at.push_str(part);
        self.compare(at, recorded, asked);
        at.truncate(length);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ignored_parts_are_gone() {
        let mut value =
            json!({"a": {"x": 1, "y": 2}, "b": [{"id": 1}, {"id": 2, "k": 3}], "c/d": 1});
        for path in [
            "/a/x",
            "/b/*/id",
            "/c~1d",
            "/b/0/none",
            "/nowhere/at/all",
            "",
        ] {
            remove(&mut value, &pointer(path));
        }
        assert_eq!(value, json!({"a": {"y": 2}, "b": [{}, {"k": 3}]}));
    }

    #[test]
    fn the_first_difference_has_a_pointer() {
        let a = json!({"m": [{"t": "a"}, {"t": "b", "x/y": 1}], "n": 1});
        let b = json!({"n": 1, "m": [{"t": "a"}, {"t": "b"}, 3]});
        let difference = Difference::of(&a, &b);
        assert_eq!(difference.count, 2);
        assert_eq!(
            difference.first,
            Some(("/m/1/x~1y".to_owned(), Some(json!(1)), None))
        );
        assert_eq!(Difference::of(&a, &a).count, 0);
        assert_eq!(plain(&json!([1.0, 1.5])), json!([1, 1.5]));
    }
}
