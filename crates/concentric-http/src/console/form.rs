//! Queries, forms and links.

use std::fmt::Write;

use crate::percent::decode;

/// The maximum number of fields of a query or a form.
const FIELDS: usize = 4096;

/// The fields of a query or of the body of a form, in their order.
pub(super) struct Form(Vec<(String, String)>);

impl Form {
    /// Parses `application/x-www-form-urlencoded`; `None` if it is invalid.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let mut fields = Vec::new();
        for pair in text.split('&').filter(|pair| !pair.is_empty()) {
            if fields.len() == FIELDS {
                return None;
            }
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            fields.push((plain(name)?, plain(value)?));
        }
        Some(Self(fields))
    }

    /// The value of the only field with this name.
    pub(super) fn get(&self, name: &str) -> Option<&str> {
        let mut values = self.0.iter().filter(|(known, _)| known == name);
        let (_, value) = values.next()?;
        values.next().is_none().then_some(value.as_str())
    }

    /// The value of a field that a form has [`encoded`].
    pub(super) fn id(&self, name: &str) -> Option<String> {
        decode(self.get(name)?).map(std::borrow::Cow::into_owned)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(name, value)| (&**name, &**value))
    }
}

fn plain(text: &str) -> Option<String> {
    let text = text.replace('+', " ");
    decode(&text).map(std::borrow::Cow::into_owned)
}

/// A link to a page below `path`, with a query.
pub(super) fn link(path: &str, page: &str, query: &[(&str, &str)]) -> String {
    let mut link = format!("{path}{page}");
    for (n, (name, value)) in query.iter().enumerate() {
        link.push(if n == 0 { '?' } else { '&' });
        link.push_str(name);
        link.push('=');
        link.push_str(&encoded(value));
    }
    link
}

/// Text with percent encoding. Ids have it in forms, too, since browsers change line breaks in fields.
pub(super) fn encoded(value: &str) -> String {
    let mut encoded = String::with_capacity(value.len());
    for byte in value.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => {
                encoded.push(char::from(byte));
            }
            // Writing to a `String` does not fail.
            byte => drop(write!(encoded, "%{byte:02X}")),
        }
    }
    encoded
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_is_parsed_to_its_values() {
        let odd = "a b&c=d+\u{202e}/%";
        let link = link("/console", "/run", &[("thread", odd), ("run", "")]);
        let query = link.strip_prefix("/console/run?").unwrap();
        let form = Form::parse(query).unwrap();
        assert_eq!(form.get("thread"), Some(odd));
        assert_eq!(form.get("run"), Some(""));
        assert_eq!(form.get("tenant"), None);
    }

    #[test]
    fn a_repeated_field_has_no_value() {
        let form = Form::parse("a=1&a=2&b=x+y").unwrap();
        assert_eq!((form.get("a"), form.get("b")), (None, Some("x y")));
        assert!(Form::parse("a=%ff").is_none());
    }
}
