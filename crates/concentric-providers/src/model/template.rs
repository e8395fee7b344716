//! Reads the text of an event that differs from the last one only in it, as most events of a stream do, without
//! parsing the event again.

use crate::api::{Answer, Decoder, Framing};
use concentric_core::{Error, Event};
use std::ops::Range;

/// The maximum size of an event without its text, in bytes, so that a template is small.
const LIMIT: usize = 4096;

/// The last event without its text, if all that the event did was to add that text; empty otherwise.
#[derive(Debug, Default)]
pub(super) struct Template {
    event: String,
    // Where the text was.
    at: usize,
}

impl Template {
    pub(super) fn clear(&mut self) {
        self.event.clear();
    }

    /// The text of an event that differs from the last one only in it.
    #[inline]
    pub(super) fn text<'e>(&self, event: &'e str) -> Option<&'e str> {
        if self.event.is_empty() {
            return None;
        }
        let (before, after) = self.event.split_at_checked(self.at)?;
        let text = event.strip_prefix(before)?.strip_suffix(after)?;
        // One string, without escapes.
        let is_plain = |byte| !matches!(byte, 0..0x20 | b'"' | b'\\');
        (!text.is_empty() && text.bytes().all(is_plain)).then_some(text)
    }

    /// Processes a chunk that was parsed from `event`, which becomes the template if it only adds text.
    #[inline]
    pub(super) fn take<'e, D: Decoder>(
        &mut self,
        event: &'e str,
        chunk: D::Chunk<'e>,
        decoder: &mut D,
        answer: &mut Answer,
    ) -> Result<(), Error> {
        let text = D::text(&chunk).map(|text| position(event, text));
        let (events, changed) = (answer.events.len(), std::mem::take(&mut answer.changed));
        decoder.take(chunk, Framing::Event, answer)?;
        let is_added = !answer.changed
            && answer.events.len() == events + 1
            && matches!(answer.events.back(), Some(Event::TextDelta(_)));
        answer.changed |= changed;
        match text.filter(|_| is_added) {
            Some(Some(text)) => self.set(event, text),
            // A text with escapes, which is a copy: the template of an earlier one is still of use.
            Some(None) => {}
            None => self.clear(),
        }
        Ok(())
    }

    fn set(&mut self, event: &str, text: Range<usize>) {
        self.clear();
        if event.len() - text.len() <= LIMIT
            && let (Some(before), Some(after)) = (event.get(..text.start), event.get(text.end..))
        {
            self.event.push_str(before);
            self.event.push_str(after);
            self.at = text.start;
        }
    }
}

/// The position of a text that was borrowed from an event; `None` if it is a copy.
fn position(event: &str, text: &str) -> Option<Range<usize>> {
    let start = text.as_ptr().addr().checked_sub(event.as_ptr().addr())?;
    let range = start..start.checked_add(text.len())?;
    let is_there = |there: &str| std::ptr::eq(there, text);
    event
        .get(range.clone())
        .is_some_and(is_there)
        .then_some(range)
}
