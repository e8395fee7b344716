use concentric_proto::{Error, Event, Finish, Head, Message, MessageBuilder, Transcript};
use futures_core::Stream;
use std::{fmt, pin::pin};

/// The answer of a model or an agent: a head, and a body of [`Event`]s that is still arriving.
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
/// A consumer that has seen one of the first two need not poll for the `None` behind it, so a layer
/// that must act at the end acts on the terminal item, on `None`, and on drop, and at most once.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ChatResponse<B> {
    /// What is known as soon as the service accepts the request.
    pub head: Head,
    /// Values of any type that a layer leaves for the layers outside it.
    pub extensions: http::Extensions,
    /// The events.
    pub body: B,
}

impl<B> ChatResponse<B> {
    /// Creates an answer with an empty head.
    pub fn new(body: B) -> Self {
        Self {
            head: Head::default(),
            extensions: http::Extensions::new(),
            body,
        }
    }

    /// Sets the head.
    #[must_use]
    pub fn with_head(mut self, head: Head) -> Self {
        self.head = head;
        self
    }

    /// Replaces the body with what `f` makes of it, keeping the head.
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
    /// The body's error, or [`ErrorKind::Truncated`](crate::ErrorKind::Truncated) if it ended early; with what had arrived.
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

    /// Reads the body to its end, and returns the final answer: what [`Answer::text`] returns.
    ///
    /// What an agent wrote in earlier steps is left out; [`Answer::all_text`] has it.
    ///
    /// # Errors
    ///
    /// Those of [`collect`](Self::collect).
    pub async fn text(self) -> Result<String, Error> {
        Ok(self.collect().await?.text())
    }
}

/// An answer that arrived whole.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Answer {
    /// The answer's head.
    pub head: Head,
    /// The whole answer in one message: for an agent's answer, the text, tool calls and results of
    /// all its steps.
    pub message: Message,
    /// How it ended.
    pub finish: Finish,
    // Which part of the message the final answer begins with.
    answer_start: usize,
}

impl Answer {
    /// The final answer: the text of the last step, after its last tool result.
    ///
    /// An answer that a gate rejected, and that the model made again in another step, is not in it;
    /// nor is what the model wrote before it called tools. It is empty if the run ended on a tool
    /// result, as at a step limit.
    pub fn text(&self) -> String {
        self.message.text_from(self.answer_start)
    }

    /// The text of all steps, put together without a separator: what the consumer of the events was
    /// shown, answers that were rejected included.
    pub fn all_text(&self) -> String {
        self.message.text()
    }

    /// The conversation with this turn in it, for the next one; `None` for a model's own answer,
    /// whose [`message`](Self::message) is yours to append.
    pub fn transcript(&self) -> Option<&Transcript> {
        self.finish.transcript.as_ref()
    }
}

/// An answer that did not arrive whole.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Incomplete {
    /// Why.
    pub error: Error,
    /// What had arrived.
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
