use concentric_core::Event;

/// The commit point of an answer.
pub trait Point {
    /// Returns whether `event` reaches the commit point.
    ///
    /// Called for each event in order until it returns `true`. A finish always commits.
    fn is_reached(&mut self, event: &Event) -> bool;
}

/// Commits at the first content, as a model's own future does.
#[derive(Clone, Copy, Debug, Default)]
pub struct FirstEvent;

impl Point for FirstEvent {
    fn is_reached(&mut self, event: &Event) -> bool {
        event.is_content()
    }
}

/// Commits after the first sentence, or at the first content other than text and reasoning.
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

/// Commits when the answer is complete.
#[derive(Clone, Copy, Debug, Default)]
pub struct Whole;

impl Point for Whole {
    fn is_reached(&mut self, _: &Event) -> bool {
        false
    }
}

/// Commits when a predicate returns `true`.
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
