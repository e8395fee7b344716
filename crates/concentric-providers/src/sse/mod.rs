//! An incremental decoder for server-sent events (WHATWG HTML, section 9.2.6).
//!
//! Differs from the specification in two points. Data at the end of the stream without a blank line
//! after it is also an event, since some servers omit that line; the caller must determine from the
//! content whether it is complete. And a line that starts with `{` is data, with all lines up to
//! the blank line: Google's servers and some gateways report errors within a stream in this form.

#[cfg(test)]
mod tests;

use bytes::{Buf, Bytes, BytesMut};
use memchr::memchr2;

/// Splits bytes into events.
#[derive(Debug, Default)]
pub(crate) struct Decoder {
    max_line: usize,
    max_event: usize,
    // Received bytes that are still needed.
    buf: BytesMut,
    // The start of the next line.
    line: usize,
    // The position up to which the end of the next line was searched.
    searched: usize,
    // The range of the event's data in `buf`, as long as it is a single line.
    first: Option<(usize, usize)>,
    // The event's data if it has several lines, each followed by a line feed.
    joined: Vec<u8>,
    // Whether the returned data must be dropped at the next call.
    taken: bool,
    // Whether the event's type is `error`.
    error: bool,
    // Whether the event is JSON without a field name.
    bare: bool,
    // Whether a carriage return ended the last line, so that a following line feed belongs to it.
    after_cr: bool,
    begun: bool,
    ended: bool,
}

/// One event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Frame<'a> {
    pub(crate) data: &'a [u8],
    /// Whether the event's type is `error`.
    pub(crate) error: bool,
    /// Whether the stream ended within the event, which may be incomplete.
    pub(crate) tail: bool,
}

/// The error for a line or an event that exceeds its limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TooLarge {
    Line,
    Event,
}

impl Decoder {
    pub(crate) fn new(max_line: usize, max_event: usize) -> Self {
        Self {
            max_line,
            max_event,
            ..Self::default()
        }
    }

    /// Adds bytes. Must be called only after [`next`](Self::next) has returned `None`.
    pub(crate) fn push(&mut self, bytes: Bytes) {
        self.forget();
        let keep = self.first.map_or(self.line, |(start, _)| start);
        self.buf.advance(keep);
        self.line -= keep;
        self.searched -= keep;
        if let Some((start, end)) = &mut self.first {
            *start -= keep;
            *end -= keep;
        }
        append(&mut self.buf, bytes);
    }

    /// Marks the end of the stream.
    pub(crate) fn end(&mut self) {
        self.ended = true;
    }

    /// Returns the next event, if it is complete.
    pub(crate) fn next(&mut self) -> Result<Option<Frame<'_>>, TooLarge> {
        self.forget();
        let tail = match self.advance()? {
            true => false,
            false if self.ended && self.take_tail()? => true,
            false => return Ok(None),
        };
        self.taken = true;
        let data = match self.first {
            Some((start, end)) => self.buf.get(start..end).unwrap_or_default(),
            None => self.joined.strip_suffix(b"\n").unwrap_or(&self.joined),
        };
        Ok(Some(Frame {
            data,
            error: self.error,
            tail,
        }))
    }

    /// Drops the event that was returned.
    #[inline]
    fn forget(&mut self) {
        if std::mem::take(&mut self.taken) {
            self.first = None;
            self.joined.clear();
            self.error = false;
            self.bare = false;
        }
    }

    /// Reads lines until the end of an event that has data. Returns `false` if more bytes are
    /// needed.
    fn advance(&mut self) -> Result<bool, TooLarge> {
        if !self.begun && !self.skip_bom() {
            return Ok(false);
        }
        loop {
            if self.after_cr && self.line < self.buf.len() {
                self.after_cr = false;
                if self.buf.get(self.line) == Some(&b'\n') {
                    self.line += 1;
                    self.searched = self.searched.max(self.line);
                }
            }
            let rest = self.buf.get(self.searched..).unwrap_or_default();
            let Some(length) = memchr2(b'\n', b'\r', rest) else {
                self.searched = self.buf.len();
                return match self.searched - self.line > self.max_line {
                    true => Err(TooLarge::Line),
                    false => Ok(false),
                };
            };
            let (start, end) = (self.line, self.searched + length);
            if end - start > self.max_line {
                return Err(TooLarge::Line);
            }
            self.after_cr = self.buf.get(end) == Some(&b'\r');
            self.line = end + 1;
            self.searched = self.line;
            if start < end {
                self.field(start, end)?;
            } else if self.first.is_some() || !self.joined.is_empty() {
                return Ok(true);
            } else {
                self.error = false;
            }
        }
    }

    /// Skips a byte order mark. Returns `false` if more bytes are needed.
    fn skip_bom(&mut self) -> bool {
        const BOM: &[u8] = b"\xef\xbb\xbf";
        if self.buf.starts_with(BOM) {
            self.line = BOM.len();
            self.searched = BOM.len();
        } else if BOM.starts_with(&self.buf) && !self.ended {
            return false;
        }
        self.begun = true;
        true
    }

    /// Processes a line that is not empty.
    #[inline]
    fn field(&mut self, start: usize, end: usize) -> Result<(), TooLarge> {
        let line = self.buf.get(start..end).unwrap_or_default();
        self.bare |= self.first.is_none() && self.joined.is_empty() && line.starts_with(b"{");
        if self.bare {
            self.data(start, end)?;
        } else if let Some(value) = value(line, b"data") {
            self.data(end - value.len(), end)?;
        } else if let Some(value) = value(line, b"event") {
            self.error = value == b"error";
        }
        // Other lines (comments, `id`, `retry`) are ignored. They stay in memory while an event is
        // open that started before them.
        match self.first {
            Some((first, _)) if end - first > self.max_event.saturating_add(self.max_line) => {
                Err(TooLarge::Event)
            }
            _ => Ok(()),
        }
    }

    #[inline]
    fn data(&mut self, start: usize, end: usize) -> Result<(), TooLarge> {
        if self.first.is_none() && self.joined.is_empty() {
            if end - start > self.max_event {
                return Err(TooLarge::Event);
            }
            self.first = Some((start, end));
            return Ok(());
        }
        for (start, end) in self.first.take().into_iter().chain([(start, end)]) {
            let line = self.buf.get(start..end).unwrap_or_default();
            if self.joined.len() + line.len() > self.max_event {
                return Err(TooLarge::Event);
            }
            self.joined.extend_from_slice(line);
            self.joined.push(b'\n');
        }
        Ok(())
    }

    /// Processes an unterminated line at the end of the stream, and returns whether there is an
    /// event.
    fn take_tail(&mut self) -> Result<bool, TooLarge> {
        let (start, end) = (self.line, self.buf.len());
        if start < end {
            self.line = end;
            self.searched = end;
            self.field(start, end)?;
        }
        Ok(self.first.is_some() || !self.joined.is_empty())
    }
}

/// Appends bytes. Takes them over if the buffer is empty and nothing else has them, unless most of their memory is
/// unused: an idle stream would keep it.
pub(crate) fn append(buffer: &mut BytesMut, bytes: Bytes) {
    if !buffer.is_empty() {
        return buffer.extend_from_slice(&bytes);
    }
    match bytes.try_into_mut() {
        Ok(own) if own.capacity() <= 4 * own.len() => *buffer = own,
        Ok(sparse) => buffer.extend_from_slice(&sparse),
        Err(shared) => buffer.extend_from_slice(&shared),
    }
}

/// The value of `line` if it is the field `name`.
#[inline]
fn value<'a>(line: &'a [u8], name: &[u8]) -> Option<&'a [u8]> {
    match line.strip_prefix(name)? {
        [b':', b' ', value @ ..] | [b':', value @ ..] => Some(value),
        [] => Some(&[]),
        _ => None,
    }
}
