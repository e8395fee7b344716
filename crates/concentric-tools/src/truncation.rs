use concentric_core::{Context, Part, PartKind, Str, ToolCallPart, ToolContent, ToolOutcome};
use std::{fmt, sync::Arc};

/// A result that exceeded the size limit, in full: the argument of [`Tool::on_truncation`].
///
/// [`Tool::on_truncation`]: crate::Tool::on_truncation
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Truncation {
    /// The call.
    pub call: ToolCallPart,
    /// The run of the call.
    pub context: Context,
    /// The tool's full result.
    pub content: ToolContent,
}

impl Truncation {
    pub(crate) const fn new(call: ToolCallPart, context: Context, content: ToolContent) -> Self {
        Self {
            call,
            context,
            content,
        }
    }
}

/// The callback for results that exceed the limit.
#[derive(Clone)]
pub(crate) struct Sink(pub(crate) Arc<dyn Fn(Truncation) + Send + Sync>);

impl fmt::Debug for Sink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Sink")
    }
}

/// Truncates the text of `outcome` to `max` bytes.
pub(crate) fn limited(mut outcome: ToolOutcome, max: usize) -> ToolOutcome {
    if let Some(short) = cut(&outcome.content, max) {
        outcome.content = short;
    }
    outcome
}

/// Truncates `content` if its text has more than `max` bytes, to the first 80 % and the last 20 %
/// with a marker between them.
pub(crate) fn cut(content: &ToolContent, max: usize) -> Option<ToolContent> {
    match content {
        ToolContent::Text(text) if text.len() <= max => None,
        ToolContent::Text(text) => {
            let mut cutter = Cutter::new(text.len(), max);
            cutter.cut(text).map(ToolContent::Text)
        }
        ToolContent::Parts(parts) => {
            let total = parts.iter().filter_map(text_of).map(str::len).sum();
            if total <= max {
                return None;
            }
            let mut cutter = Cutter::new(total, max);
            Some(ToolContent::Parts(
                parts
                    .iter()
                    .filter_map(|part| match text_of(part) {
                        None => Some(part.clone()),
                        Some(text) => cutter.cut(text).map(|text| {
                            let mut part = part.clone();
                            part.kind = PartKind::Text(text);
                            part
                        }),
                    })
                    .collect(),
            ))
        }
        // Kinds of content that are added later have no known text.
        _ => None,
    }
}

fn text_of(part: &Part) -> Option<&str> {
    match &part.kind {
        PartKind::Text(text) => Some(text),
        _ => None,
    }
}

/// Truncates the texts of a result, in order.
struct Cutter {
    // The end of the head and the start of the tail, as offsets into the whole text.
    head: usize,
    tail: usize,
    at: usize,
    marker: Option<String>,
}

impl Cutter {
    fn new(total: usize, max: usize) -> Self {
        let marker = format!("\n[... cut here: the whole result has {total} bytes ...]\n");
        // The marker counts, unless it is larger than the limit.
        let max = max.checked_sub(marker.len()).unwrap_or(max);
        let head = max - max / 5;
        Self {
            head,
            tail: total - (max - head),
            at: 0,
            marker: Some(marker),
        }
    }

    /// Truncates the next text; `None` if nothing of it is left.
    fn cut(&mut self, text: &str) -> Option<Str> {
        let start = self.at;
        self.at += text.len();
        let head = text.floor_char_boundary(self.head.saturating_sub(start));
        if head == text.len() {
            return Some(text.into());
        }
        let tail = text.ceil_char_boundary(self.tail.saturating_sub(start).min(text.len()));
        let mut left = String::with_capacity(head + (text.len() - tail) + 80);
        left.push_str(text.get(..head).unwrap_or_default());
        left.push_str(&self.marker.take().unwrap_or_default());
        left.push_str(text.get(tail..).unwrap_or_default());
        (!left.is_empty()).then(|| left.into())
    }
}

/// `text`, truncated to `max` bytes.
pub(crate) fn short(text: &str, max: usize) -> std::borrow::Cow<'_, str> {
    if text.len() <= max {
        return text.into();
    }
    let end = text.floor_char_boundary(max);
    format!("{}...", text.get(..end).unwrap_or_default()).into()
}
