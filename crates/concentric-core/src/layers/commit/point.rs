use concentric_proto::Event;

/// Decides when an answer is shown.
pub trait Point {
    /// Whether what has arrived is enough to show it, now that `event` has.
    ///
    /// It is asked for each event in turn, until it says so; a finish is always enough.
    fn is_reached(&mut self, event: &Event) -> bool;
}

/// The first content; what a model's own future does.
#[derive(Clone, Copy, Debug, Default)]
pub struct FirstEvent;

impl Point for FirstEvent {
    fn is_reached(&mut self, event: &Event) -> bool {
        event.is_content()
    }
}

/// The first sentence of text, or the first content that is neither text nor reasoning.
///
/// A sentence ends with a line, with `.`, `!` or `?` before white space, or with their CJK forms.
#[derive(Clone, Copy, Debug, Default)]
pub struct FirstSentence {
    after_stop: bool,
}

impl Point for FirstSentence {
    fn is_reached(&mut self, event: &Event) -> bool {
        match event {
            Event::TextDelta(text) => text.chars().any(|c| {
                let ends = matches!(c, '\n' | '。' | '！' | '？')
                    || (self.after_stop && c.is_whitespace());
                self.after_stop = matches!(c, '.' | '!' | '?');
                ends
            }),
            Event::ReasoningDelta(_) => false,
            other => other.is_content(),
        }
    }
}

/// The whole answer.
#[derive(Clone, Copy, Debug, Default)]
pub struct Whole;

impl Point for Whole {
    fn is_reached(&mut self, _: &Event) -> bool {
        false
    }
}

/// When a predicate says so.
#[derive(Clone, Copy, Debug)]
pub struct Until<F>(pub(super) F);

impl<F> Point for Until<F>
where
    F: FnMut(&Event) -> bool,
{
    fn is_reached(&mut self, event: &Event) -> bool {
        (self.0)(event)
    }
}
