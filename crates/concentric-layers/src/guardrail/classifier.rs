use concentric_core::{Context, Media, Str, Transcript};

/// What a classifier judges.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Subject {
    /// The text to judge; empty if there are only images.
    pub text: Str,
    /// The images in the messages of the user to judge. A subject of an answer has none.
    pub images: Vec<Media>,
    /// Whether the text is of an answer, rather than of a user.
    pub is_answer: bool,
    /// The conversation that the request continues, with the media of its messages.
    pub transcript: Transcript,
    /// The context of the request. A classifier that calls a model makes a
    /// [child](Context::child) of it, so that the usage, the deadline and a cancellation apply to the call.
    pub context: Context,
}

/// What a classifier decides about a [`Subject`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Assessment {
    /// The text is released.
    Pass,
    /// The text is released, and the categories are reported.
    Flag(Vec<Str>),
    /// The text is not released.
    Block(Vec<Str>),
}
