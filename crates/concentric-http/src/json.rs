//! Parsing of request bodies.

use std::io;

use http::StatusCode;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::refused::Refused;

/// Parses an invalid request body again, which may take twice as long: the error names the
/// invalid field, as a path from the root of the body (`messages[1].content`), unless the body
/// is not JSON or not an object.
pub(crate) fn parse_with_paths<T: DeserializeOwned>(body: &[u8]) -> Result<T, Refused> {
    let mut deserializer = serde_json::Deserializer::from_slice(body);
    let input = serde_path_to_error::deserialize(&mut deserializer).map_err(|error| {
        let path = error.path().to_string();
        refused(&path, &error.into_inner())
    })?;
    match deserializer.end() {
        Ok(()) => Ok(input),
        Err(error) => Err(refused(".", &error)),
    }
}

/// The response to an invalid body, with the path at which serde found `error`.
fn refused(path: &str, error: &serde_json::Error) -> Refused {
    let text = error.to_string();
    let named = named(&text);
    // serde reports a missing field at the value that lacks it.
    let field = match (path, named) {
        (path, None) if path != "." && error.is_data() => path.to_owned(),
        (".", Some((_, name, _))) if error.is_data() => name.to_owned(),
        (path, Some((_, name, _))) if error.is_data() => format!("{path}.{name}"),
        _ => {
            let status = StatusCode::BAD_REQUEST;
            return Refused::new(status, "invalid_request", &text, None);
        }
    };
    // The position in the body does not help, since bodies are generated.
    let problem = |text: &str| {
        text.rsplit_once(" at line ")
            .map_or(text, |(text, _)| text)
            .to_owned()
    };
    let problem = match named {
        Some(("missing field", ..)) => "missing field".to_owned(),
        Some((_, _, rest)) => problem(rest.trim_start_matches(": ")),
        None => problem(&text),
    };
    Refused::field(&field, &problem)
}

/// Splits a message that begins with a field error into the problem, the field's name and the rest.
fn named(message: &str) -> Option<(&str, &str, &str)> {
    let (problem, rest) = ["missing field", "invalid field"]
        .iter()
        .find_map(|problem| Some((*problem, message.strip_prefix(problem)?.strip_prefix(" `")?)))?;
    let (name, rest) = rest.split_once('`')?;
    Some((problem, name, rest))
}

/// The length of `value` as JSON; `None` if it exceeds `limit`.
pub(crate) fn json_len(value: &Value, limit: usize) -> Option<usize> {
    struct Count {
        len: usize,
        limit: usize,
    }

    impl io::Write for Count {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.len = self.len.saturating_add(bytes.len());
            if self.len > self.limit {
                return Err(io::ErrorKind::StorageFull.into());
            }
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    let mut count = Count { len: 0, limit };
    serde_json::to_writer(&mut count, value)
        .is_ok()
        .then_some(count.len)
}
