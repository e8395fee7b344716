//! The destination of a run's events, and the source of the response's chunks.

use bytes::Bytes;
use concentric_core::{CancelReason, Error, ErrorKind, Event, ResponseHead, panic::CaughtPanic};
use std::{
    mem,
    task::{Context, Poll, ready},
};

use super::{
    After, Offer, Reader, Translate,
    log::{Ending, Offered, Read, Remote, take},
};

/// The destination of a run's events.
pub(crate) enum Output {
    /// The response head is not known yet, and a log inside may take the translator.
    Offered {
        offer: Offer,
        // Whether the first event is sent.
        is_begun: bool,
    },
    /// Events are translated here.
    Own(Box<dyn Translate>),
    /// A log inside translates the events.
    Log(LogStream),
}

/// A stream that reads a log.
pub(crate) enum LogStream {
    Open(Reader),
    /// The log is in the store.
    Remote(Box<Remote>),
    /// The stream ends before its run.
    Cut(Bytes),
    Over,
}

/// The end of a run, other than its outcome.
pub(crate) enum End<'a> {
    Failed(&'a Error),
    Panicked(&'a CaughtPanic),
    Truncated,
    Cancelled(&'a CancelReason),
}

impl Output {
    pub(crate) fn new(offer: Offer, translator: Box<dyn Translate>) -> Self {
        offer.set(translator);
        Self::Offered {
            offer,
            is_begun: false,
        }
    }

    /// Decides who translates the events, once the response head or the run's end is known.
    fn settle(&mut self) {
        let Self::Offered { offer, is_begun } = self else {
            return;
        };
        let after = After {
            number: u64::from(*is_begun),
            tag: None,
        };
        *self = match offer.take() {
            Offered::Translator(translator) => Self::Own(translator),
            Offered::Log(log) => Self::Log(match log.read(&after) {
                Ok(reader) => LogStream::Open(reader),
                Err(_) => LogStream::Cut((log.format().cut)(Cut::Gap)),
            }),
            Offered::Nothing => Self::Log(LogStream::Over),
        };
    }

    /// Notices that a log has taken the translator.
    pub(crate) fn notice(&mut self) {
        if let Self::Offered { offer, .. } = self
            && offer.is_accepted()
        {
            self.settle();
        }
    }

    pub(crate) fn head(&mut self, head: &ResponseHead, extensions: &http::Extensions) {
        self.settle();
        if let Self::Own(translator) = self {
            translator.head(head, extensions);
        }
    }

    #[inline]
    pub(crate) fn event(&mut self, event: Event) {
        if let Self::Own(translator) = self {
            translator.event(event);
        }
    }

    /// The number of bytes that are ready.
    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Own(translator) => translator.len(),
            Self::Offered { offer, .. } => offer.len(),
            Self::Log(_) => 0,
        }
    }

    /// Returns whether nothing follows if the run is over.
    pub(crate) fn is_over(&self) -> bool {
        match self {
            Self::Log(log) => log.is_over(),
            _ => self.len() == 0,
        }
    }

    /// Takes the bytes that are ready.
    pub(crate) fn take(&mut self) -> Option<Bytes> {
        match self {
            Self::Own(translator) => take(translator.buffer()),
            Self::Offered { offer, is_begun } => {
                let bytes = offer.take_bytes();
                *is_begun |= bytes.is_some();
                bytes
            }
            Self::Log(_) => None,
        }
    }

    /// The stream that reads the log, if there is a log.
    pub(crate) const fn log(&mut self) -> Option<&mut LogStream> {
        match self {
            Self::Log(log) => Some(log),
            _ => None,
        }
    }

    /// Ends the stream. `drop_run` drops the run, so that its resources are free when the client reads the end.
    pub(crate) fn end(&mut self, end: &End<'_>, drop_run: impl FnOnce()) {
        self.settle();
        if let Self::Log(LogStream::Open(reader)) = self {
            // Written when the run is dropped.
            reader.log().set_ending(end.to_owned());
        }
        drop_run();
        let Self::Own(translator) = self else {
            return;
        };
        match end {
            End::Failed(error) => translator.fail(error),
            End::Panicked(panic) => translator.panicked(panic),
            End::Truncated => translator.truncated(),
            End::Cancelled(reason) => translator.cancelled(reason),
        }
    }

    /// Removes the log of a run whose request is answered with a status.
    pub(crate) fn discard(&mut self) {
        self.settle();
        if let Self::Log(LogStream::Open(reader)) = self {
            reader.log().discard();
        }
    }
}

impl Drop for Output {
    fn drop(&mut self) {
        if let Self::Offered { offer, .. } = self {
            // The translator has the context of the run, which has the offer.
            drop(offer.take());
        }
    }
}

impl End<'_> {
    fn to_owned(&self) -> Ending {
        match self {
            Self::Failed(error) => Ending::Failed((*error).clone()),
            Self::Panicked(panic) => Ending::Failed(panic.error()),
            Self::Truncated => {
                let cut = "the response body ended before its terminal event";
                Ending::Failed(Error::new(ErrorKind::Truncated, cut))
            }
            Self::Cancelled(reason) => Ending::Cancelled((*reason).clone()),
        }
    }
}

/// The reason why a stream ends before its run.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Cut {
    /// The reader is too slow.
    Gap,
    /// The events are not there any more, or cannot be read.
    Lost,
    /// Another process has resumed the run.
    Resumed,
    Shutdown,
}

impl From<Reader> for LogStream {
    fn from(reader: Reader) -> Self {
        Self::Open(reader)
    }
}

impl From<Box<Remote>> for LogStream {
    fn from(reader: Box<Remote>) -> Self {
        Self::Remote(reader)
    }
}

impl LogStream {
    /// Ends the stream before the run.
    pub(crate) fn cut(&mut self, cut: Cut) {
        let format = match self {
            Self::Open(reader) => reader.log().format(),
            Self::Remote(reader) => reader.format(),
            Self::Cut(_) | Self::Over => return,
        };
        *self = Self::Cut((format.cut)(cut));
    }

    pub(crate) const fn is_over(&self) -> bool {
        matches!(self, Self::Over)
    }

    /// Returns the next chunk. The stream ends once the run is dropped, too (`is_done`).
    pub(crate) fn poll(&mut self, is_done: bool, cx: &mut Context<'_>) -> Poll<Option<Bytes>> {
        match self {
            Self::Open(reader) => match reader.poll(cx) {
                Poll::Ready(Read::Frames(frames)) => return Poll::Ready(Some(frames)),
                Poll::Ready(Read::Gap) => self.cut(Cut::Gap),
                Poll::Ready(Read::End) if is_done => *self = Self::Over,
                Poll::Ready(Read::End) | Poll::Pending => return Poll::Pending,
            },
            Self::Remote(reader) => match ready!(reader.poll(cx)) {
                Ok(Some(frames)) => return Poll::Ready(Some(frames)),
                Ok(None) => *self = Self::Over,
                Err(cut) => self.cut(cut),
            },
            Self::Cut(_) | Self::Over => {}
        }
        match mem::replace(self, Self::Over) {
            Self::Cut(frame) => Poll::Ready(Some(frame)),
            _ => Poll::Ready(None),
        }
    }
}
