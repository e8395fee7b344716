//! JSON from bytes as they come in: one object, several one after another (NDJSON), or an array of
//! them.

use memchr::memchr2;

/// Splits bytes into objects.
#[derive(Debug, Default)]
pub(crate) struct Splitter {
    buf: Vec<u8>,
    // How far `buf` was looked at.
    at: usize,
    // Where the object that is open begins, and how deep what was looked at is within it.
    start: usize,
    depth: usize,
    string: bool,
    escaped: bool,
}

impl Splitter {
    /// Takes in more bytes. To be called when [`next`](Self::next) has nothing left.
    pub(crate) fn push(&mut self, bytes: &[u8]) {
        // Here, and not with each object: a piece may hold very many.
        let done = match self.depth {
            0 => self.at,
            _ => self.start,
        };
        self.buf.drain(..done);
        self.at -= done;
        self.start = 0;
        self.buf.extend_from_slice(bytes);
    }

    /// The next object that is whole, if one is there. `Err` is what is no object, nor stands
    /// between two.
    pub(crate) fn next(&mut self) -> Option<Result<&[u8], &[u8]>> {
        while let Some(&byte) = self.buf.get(self.at) {
            if self.string {
                self.skip_text();
                continue;
            }
            self.at += 1;
            if self.depth == 0 {
                match byte {
                    b'{' => {
                        self.start = self.at - 1;
                        self.depth = 1;
                    }
                    b'[' | b']' | b',' | b' ' | b'\t' | b'\n' | b'\r' => {}
                    // A byte order mark.
                    0xef | 0xbb | 0xbf => {}
                    _ => return Some(Err(self.buf.get(self.at - 1..).unwrap_or_default())),
                }
                continue;
            }
            match byte {
                b'"' => self.string = true,
                b'{' | b'[' => self.depth += 1,
                b'}' | b']' => self.depth -= 1,
                _ => {}
            }
            if self.depth == 0 {
                return Some(Ok(self.buf.get(self.start..self.at).unwrap_or_default()));
            }
        }
        None
    }

    /// Goes on to behind the string that is open, or as far as bytes have come.
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

    /// The object that is not whole yet; empty if there is none.
    pub(crate) fn rest(&self) -> &[u8] {
        match self.depth {
            0 => &[],
            _ => self.buf.get(self.start..).unwrap_or_default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Splitter;

    fn split(pieces: &[&[u8]]) -> Vec<String> {
        let mut splitter = Splitter::default();
        let mut out = Vec::new();
        for piece in pieces {
            splitter.push(piece);
            while let Some(next) = splitter.next() {
                match next {
                    Ok(object) => out.push(String::from_utf8_lossy(object).into_owned()),
                    Err(odd) => {
                        out.push(format!("odd: {}", String::from_utf8_lossy(odd)));
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
    fn objects_come_whole_wherever_the_bytes_are_cut() {
        let cases: [(&str, &[&str]); 6] = [
            (r#"{"a":1}"#, &[r#"{"a":1}"#]),
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
    fn very_many_objects_in_one_piece_are_split() {
        const MANY: usize = 1_000_000;
        let mut splitter = Splitter::default();
        splitter.push("{}".repeat(MANY).as_bytes());
        let mut count = 0;
        while let Some(object) = splitter.next() {
            assert_eq!(object, Ok(&b"{}"[..]));
            count += 1;
        }
        assert_eq!(count, MANY);
    }
}
