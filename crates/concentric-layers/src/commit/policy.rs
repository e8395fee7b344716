use concentric_core::Event;
use std::fmt;

/// The commit point of an answer.
#[derive(Clone)]
pub(super) enum CommitPolicy {
    /// The first content, as of a model's own future.
    FirstEvent,
    /// The end of the first sentence, or the first content other than text and reasoning.
    ///
    /// A sentence ends with a line, with `.`, `!` or `?` before white space, or with their CJK
    /// forms.
    FirstSentence { is_after_stop: bool },
    /// The end of the answer.
    Whole,
    /// The first event for which a predicate returns `true`.
    Until(Box<dyn Predicate>),
}

/// A predicate that can be cloned, so that each call has its own.
pub(super) trait Predicate: FnMut(&Event) -> bool + Send + Sync {
    fn cloned(&self) -> Box<dyn Predicate>;
}

impl<F> Predicate for F
where
    F: FnMut(&Event) -> bool + Clone + Send + Sync + 'static,
{
    fn cloned(&self) -> Box<dyn Predicate> {
        Box::new(self.clone())
    }
}

impl Clone for Box<dyn Predicate> {
    fn clone(&self) -> Self {
        (**self).cloned()
    }
}

impl CommitPolicy {
    /// Returns whether `event` reaches the commit point.
    ///
    /// Called for each event in order until it returns `true`. A finish always commits.
    pub(super) fn is_reached(&mut self, event: &Event) -> bool {
        match (self, event) {
            (Self::FirstEvent, event) => event.is_content(),
            (Self::FirstSentence { is_after_stop }, Event::TextDelta(text)) => {
                text.chars().any(|c| {
                    let ends = matches!(c, '\n' | '。' | '！' | '？')
                        || (*is_after_stop && c.is_whitespace());
                    *is_after_stop = matches!(c, '.' | '!' | '?');
                    ends
                })
            }
            (Self::FirstSentence { .. }, Event::ReasoningDelta(_)) | (Self::Whole, _) => false,
            (Self::FirstSentence { .. }, other) => other.is_content(),
            (Self::Until(predicate), event) => predicate(event),
        }
    }
}

impl fmt::Debug for CommitPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::FirstEvent => "FirstEvent",
            Self::FirstSentence { .. } => "FirstSentence",
            Self::Whole => "Whole",
            Self::Until(_) => "Until",
        })
    }
}
