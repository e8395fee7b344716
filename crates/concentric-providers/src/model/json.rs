//! Incremental splitting of JSON: a single object, a sequence of objects (NDJSON), or an array of
//! objects.

use memchr::{memchr, memchr2};

/// Splits bytes into objects.
#[derive(Debug, Default)]
pub(crate) struct Splitter {
    buf: Vec<u8>,
    // The position up to which `buf` was scanned.
    at: usize,
    // The start of the open object, and the nesting depth at `at`.
    start: usize,
    depth: usize,
    string: bool,
    escaped: bool,
    // The position of the first line break after `at`, or the end of `buf` if there is none. Less
    // than `at` if unknown.
    line_end: usize,
    limit: usize,
}

/// The reason why there is no next object.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Odd<'a> {
    /// Bytes that are neither an object nor a separator.
    NotJson(&'a [u8]),
    /// An object that exceeds the limit.
    TooLarge,
}

impl Splitter {
    /// Creates a splitter for objects of at most `limit` bytes.
    pub(crate) fn new(limit: usize) -> Self {
        Self {
            limit,
            ..Self::default()
        }
    }

    /// Adds bytes. Must be called only after [`next`](Self::next) has returned `None`.
    pub(crate) fn push(&mut self, bytes: &[u8]) {
        // Not done for each object, since one chunk of bytes may contain very many.
        let done = match self.depth {
            0 => self.at,
            _ => self.start,
        };
        self.buf.drain(..done);
        self.at -= done;
        self.start = 0;
        self.line_end = 0;
        self.buf.extend_from_slice(bytes);
    }

    /// Returns the next line if it is complete and starts with an object, so that
    /// [`next`](Self::next) does not have to scan each byte. The caller's parser determines whether
    /// the line is a complete object: JSON strings contain no line breaks, so an object that ends
    /// with the line is complete. [`pass_line`](Self::pass_line) then skips it.
    pub(crate) fn line(&mut self) -> Option<&[u8]> {
        if self.depth > 0 || !self.is_at_object() {
            return None;
        }
        if self.line_end < self.at || self.line_end == 0 {
            let rest = self.buf.get(self.at..)?;
            self.line_end = self.at + memchr(b'\n', rest).unwrap_or(rest.len());
        }
        if self.line_end == self.buf.len() || self.line_end - self.at > self.limit {
            return None;
        }
        self.buf.get(self.at..self.line_end)
    }

    /// Skips the [`line`](Self::line).
    pub(crate) fn pass_line(&mut self) {
        self.at = self.line_end + 1;
    }

    /// Skips separators, and returns whether an object follows.
    fn is_at_object(&mut self) -> bool {
        while let Some(&byte) = self.buf.get(self.at) {
            match byte {
                b'[' | b']' | b',' | b' ' | b'\t' | b'\n' | b'\r' => self.at += 1,
                // A byte order mark.
                0xef | 0xbb | 0xbf => self.at += 1,
                byte => return byte == b'{',
            }
        }
        false
    }

    /// Returns the next complete object, if there is one.
    pub(crate) fn next(&mut self) -> Result<Option<&[u8]>, Odd<'_>> {
        if self.depth == 0 {
            if !self.is_at_object() {
                return match self.buf.get(self.at..) {
                    None | Some([]) => Ok(None),
                    Some(odd) => Err(Odd::NotJson(odd)),
                };
            }
            self.start = self.at;
        }
        while let Some(&byte) = self.buf.get(self.at) {
            if self.string {
                self.skip_text();
                continue;
            }
            self.at += 1;
            match byte {
                b'"' => self.string = true,
                b'{' | b'[' => self.depth += 1,
                b'}' | b']' => self.depth -= 1,
                _ => {}
            }
            if self.depth == 0 {
                break;
            }
        }
        let object = self.buf.get(self.start..self.at).unwrap_or_default();
        match self.depth {
            _ if object.len() > self.limit => Err(Odd::TooLarge),
            0 => Ok(Some(object)),
            _ => Ok(None),
        }
    }

    /// Skips to the end of the open string or of the received bytes.
    #[inline]
    fn skip_text(&mut self) {
        if std::mem::take(&mut self.escaped) {
            self.at += 1;
        }
        let rest = self.buf.get(self.at..).unwrap_or_default();
        let Some(length) = memchr2(b'"', b'\\', rest) else {
            self.at = self.buf.len();
            return;
        };
        self.escaped = rest.get(length) == Some(&b'\\');
        self.string = self.escaped;
        self.at += length + 1;
    }

    /// The incomplete object; empty if there is none.
    pub(crate) fn rest(&self) -> &[u8] {
        match self.depth {
            0 => &[],
            _ => self.buf.get(self.start..).unwrap_or_default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Odd, Splitter};
    use serde_json::Value;

    fn split(pieces: &[&[u8]]) -> Vec<String> {
        let mut splitter = Splitter::new(1000);
        let mut out = Vec::new();
        for piece in pieces {
            splitter.push(piece);
            loop {
                if let Some(line) = splitter.line()
                    && serde_json::from_slice::<Value>(line).is_ok()
                {
                    out.push(String::from_utf8_lossy(line).trim_end().to_owned());
                    splitter.pass_line();
                }
                match splitter.next() {
                    Ok(Some(object)) => out.push(String::from_utf8_lossy(object).into_owned()),
                    Ok(None) => break,
                    Err(Odd::NotJson(odd)) => {
                        out.push(format!("odd: {}", String::from_utf8_lossy(odd)));
                        return out;
                    }
                    Err(Odd::TooLarge) => {
                        out.push("too large".to_owned());
                        return out;
                    }
                }
            }
        }
        if !splitter.rest().is_empty() {
            out.push(format!(
                "rest: {}",
                String::from_utf8_lossy(splitter.rest())
            ));
        }
        out
    }

    #[test]
    fn objects_are_complete_at_any_split_of_the_bytes() {
        let long = format!(r#"{{"a":"{}"}}"#, "x".repeat(1000));
        let cases: [(&str, &[&str]); 9] = [
            (r#"{"a":1}"#, &[r#"{"a":1}"#]),
            (
                "{\"a\":1}\r\n\r\n{}\n{}{}\n{",
                &[r#"{"a":1}"#, "{}", "{}", "{}", "rest: {"],
            ),
            ("{\"a\":{}\n}\n{\n}", &["{\"a\":{}\n}", "{\n}"]),
            (&long, &["too large"]),
            (
                "{\"a\":1}\n{\"b\":[{}]}\n",
                &[r#"{"a":1}"#, r#"{"b":[{}]}"#],
            ),
            (
                r#"[{"a":"}\"]{"} , {"b":{}}]"#,
                &[r#"{"a":"}\"]{"}"#, r#"{"b":{}}"#],
            ),
            ("\u{feff} [ ]\r\n", &[]),
            (r#"{"a":"ä\\"}{"b"#, &[r#"{"a":"ä\\"}"#, r#"rest: {"b"#]),
            ("{}x", &["{}", "odd: x"]),
        ];
        for (text, expected) in cases {
            assert_eq!(split(&[text.as_bytes()]), expected, "{text}");
            for cut in 0..=text.len() {
                let (a, b) = text.as_bytes().split_at(cut);
                assert_eq!(split(&[a, b]), expected, "{text} at {cut}");
            }
            let bytes: Vec<&[u8]> = text.as_bytes().chunks(1).collect();
            assert_eq!(split(&bytes), expected, "{text}");
        }
    }

    #[test]
    fn many_objects_in_one_chunk_are_split() {
        const MANY: usize = 1_000_000;
        for text in ["{}", "{}\n", "[\n{}] "] {
            let mut splitter = Splitter::new(2);
            splitter.push(text.repeat(MANY).as_bytes());
            let mut count = 0;
            loop {
                if splitter.line() == Some(b"{}") {
                    splitter.pass_line();
                } else if splitter.next().expect("all are objects").is_none() {
                    break;
                }
                count += 1;
            }
            assert_eq!(count, MANY, "{text:?}");
        }
    }
}
