use concentric_proto::{
    Error, Event, Finish, Message, MessageBuilder, ResponseHead, Transcript, run_state::RunEdits,
};
use futures_core::Stream;
use std::{fmt, pin::pin};

/// The answer of a model or an agent: a head, and a body of [`Event`]s that arrives as a stream.
///
/// # The body
///
/// A body is a `Stream<Item = Result<Event, Error>>`. It ends in one of four ways:
///
/// - *finished*: [`Event::Finish`] is its last item;
/// - *failed*: an `Err` is its last item;
/// - *ended early*: `None` comes before either, which is a truncated answer and so an error;
/// - *dropped* by its consumer, which cancels the call.
///
/// A consumer that has received a terminal item need not poll for the `None` after it. A layer that
/// acts once at the end must therefore handle the terminal item, `None` and drop.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ChatResponse<B> {
    /// The part of the answer that is known as soon as the service accepts the request.
    pub head: ResponseHead,
    /// Values of any type from a layer to the layers outside it.
    pub extensions: http::Extensions,
    /// The events.
    pub body: B,
}

impl<B> ChatResponse<B> {
    /// Creates an answer with an empty head.
    pub fn new(body: B) -> Self {
        Self {
            head: ResponseHead::default(),
            extensions: http::Extensions::new(),
            body,
        }
    }

    /// Sets the head.
    #[must_use]
    pub fn with_head(mut self, head: ResponseHead) -> Self {
        self.head = head;
        self
    }

    /// Adds lasting edits of the run, for a layer between the loop and the model.
    ///
    /// The loop applies them when it receives the answer: to the later steps of the run, and, of a
    /// run that is resumed in another process, to those of the new request. The consumer receives
    /// [`Event::TranscriptReplaced`] if the conversation is rewritten. Edits of an attempt that
    /// fails are dropped with it. An inner layer's edits follow
    /// those of an outer one. Where no loop receives the answer, there are no later steps.
    ///
    /// The call itself has only those changes that the layer makes to its request:
    ///
    /// ```
    /// use concentric_core::{ChatRequest, Error, Turn, run_state::RunEdits};
    /// use concentric_layers::{Next, from_fn};
    ///
    /// /// Replaces all but the last ten turns by a note if the provider rejects the conversation.
    /// let shorten = from_fn(async |request: ChatRequest, mut next: Next| {
    ///     let mut shorter = request.clone();
    ///     match next.run(request).await {
    ///         Err(error) if error.kind() == concentric_core::ErrorKind::ContextWindow => {
    ///             let mut edits = RunEdits::default();
    ///             let old = shorter.transcript.len().saturating_sub(10);
    ///             let note = Turn::user("(Earlier messages were removed.)");
    ///             edits.rewrite(&mut shorter.transcript, old, [note])?;
    ///             Ok(next.run(shorter).await?.with_edits(edits))
    ///         }
    ///         answer => answer,
    ///     }
    /// });
    /// # let _ = shorten;
    /// ```
    ///
    /// # Errors
    ///
    /// The loop fails the run with [`ErrorKind::Configuration`](crate::ErrorKind::Configuration) if
    /// the edits rewrite another conversation than that of the run: a layer outside this one had
    /// changed the conversation of the request.
    #[must_use]
    pub fn with_edits(mut self, mut edits: RunEdits) -> Self {
        // An inner layer saw the changes of this one.
        if let Some(inner) = self.extensions.remove() {
            edits.extend(inner);
        }
        self.extensions.insert(edits);
        self
    }

    /// Maps the body with `f`, keeping the head.
    #[inline]
    pub fn map_body<T>(self, f: impl FnOnce(B) -> T) -> ChatResponse<T> {
        ChatResponse {
            head: self.head,
            extensions: self.extensions,
            body: f(self.body),
        }
    }
}

impl<B> ChatResponse<B>
where
    B: Stream<Item = Result<Event, Error>>,
{
    /// Reads the body to its end.
    ///
    /// # Errors
    ///
    /// The body's error, or [`ErrorKind::Truncated`](crate::ErrorKind::Truncated) if it ended
    /// early; with the part of the answer that had arrived.
    pub async fn collect(self) -> Result<Answer, Incomplete> {
        let Self { head, body, .. } = self;
        let mut builder = MessageBuilder::new(&head);
        let mut body = pin!(body);
        loop {
            match std::future::poll_fn(|cx| body.as_mut().poll_next(cx)).await {
                Some(Ok(Event::Finish(finish))) => {
                    return Ok(Answer {
                        answer_start: builder.answer_start(),
                        message: builder.build(),
                        finish: *finish,
                        head,
                    });
                }
                Some(Ok(event)) => builder.push(&event),
                Some(Err(error)) => {
                    return Err(Incomplete {
                        error,
                        partial: Box::new(builder.build()),
                    });
                }
                None => {
                    return Err(Incomplete {
                        error: Error::truncated(),
                        partial: Box::new(builder.build()),
                    });
                }
            }
        }
    }

    /// Reads the body to its end, and returns the final answer as [`Answer::text`] does.
    ///
    /// Text from earlier steps of an agent is omitted; use [`Answer::all_text`] for all of it.
    ///
    /// # Errors
    ///
    /// Those of [`collect`](Self::collect).
    pub async fn text(self) -> Result<String, Error> {
        Ok(self.collect().await?.text())
    }
}

/// A complete answer.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Answer {
    /// The head of the answer.
    pub head: ResponseHead,
    /// The whole answer in one message; for an agent, with the text, tool calls and results of all
    /// steps.
    pub message: Message,
    /// The terminal event of the answer.
    pub finish: Finish,
    // The index of the message's part at which the final answer begins.
    answer_start: usize,
}

impl Answer {
    /// Returns the final answer: the text of the last step, after its last tool result.
    ///
    /// Text before tool calls is omitted, as is an answer that a gate rejected and the model
    /// replaced in another step. Empty if the run ended on a tool result, as at a step limit.
    pub fn text(&self) -> String {
        self.message.text_from(self.answer_start)
    }

    /// Returns the text of all steps, concatenated without a separator, including rejected answers:
    /// all text that a consumer of the events has received.
    pub fn all_text(&self) -> String {
        self.message.text()
    }

    /// Returns the conversation including this turn, for the next request. `None` for a plain
    /// model's answer, whose [`message`](Self::message) the caller appends to the transcript.
    pub fn transcript(&self) -> Option<&Transcript> {
        self.finish.transcript.as_ref()
    }
}

/// An answer that did not arrive completely.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Incomplete {
    /// The error that ended the answer.
    pub error: Error,
    /// The part of the answer that had arrived.
    pub partial: Box<Message>,
}

impl fmt::Display for Incomplete {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

impl std::error::Error for Incomplete {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.error.source()
    }
}

impl From<Incomplete> for Error {
    fn from(incomplete: Incomplete) -> Self {
        incomplete.error
    }
}
