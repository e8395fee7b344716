//! The destination of a run's events, and the source of the response's chunks.

use bytes::{Bytes, BytesMut};
use concentric_core::{CancelReason, Error, ErrorKind, Event, ResponseHead, panic::CaughtPanic};
use std::task::{Context, Poll};

use super::{
    encode,
    event::Event as Wire,
    log::{After, Ending, Offer, Offered, Read, Reader},
    stream::Translator,
};

/// The destination of a run's events.
pub(super) enum Output {
    /// The response head is not known yet, and a log inside may take the translator.
    Offered {
        offer: Offer,
        // Whether `RUN_STARTED` is sent.
        is_begun: bool,
    },
    /// Events are translated here.
    Own(Box<Translator>),
    /// A log inside translates the events.
    Log(LogStream),
}

/// A stream that reads a log.
pub(super) enum LogStream {
    Open(Reader),
    /// The stream ends before its run.
    Cut(Cut),
    Over,
}

/// The end of a run, other than its outcome.
pub(super) enum End<'a> {
    Failed(&'a Error),
    Panicked(&'a CaughtPanic),
    Truncated,
    Cancelled(&'a CancelReason),
}

impl Output {
    pub(super) fn new(offer: Offer, translator: Translator) -> Self {
        offer.set(Box::new(translator));
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
                Err(_) => LogStream::Cut(Cut::Gap),
            }),
            Offered::Nothing => Self::Log(LogStream::Over),
        };
    }

    /// Notices that a log has taken the translator.
    pub(super) fn notice(&mut self) {
        if let Self::Offered { offer, .. } = self
            && offer.is_accepted()
        {
            self.settle();
        }
    }

    pub(super) fn head(&mut self, head: &ResponseHead, extensions: &http::Extensions) {
        self.settle();
        if let Self::Own(translator) = self {
            translator.head(head, extensions);
        }
    }

    #[inline]
    pub(super) fn event(&mut self, event: Event) {
        if let Self::Own(translator) = self {
            translator.event(event);
        }
    }

    /// The number of bytes that are ready.
    pub(super) fn len(&self) -> usize {
        match self {
            Self::Own(translator) => translator.len(),
            Self::Offered { offer, .. } => offer.len(),
            Self::Log(_) => 0,
        }
    }

    /// Returns whether nothing follows if the run is over.
    pub(super) fn is_over(&self) -> bool {
        match self {
            Self::Log(log) => log.is_over(),
            _ => self.len() == 0,
        }
    }

    /// Takes the bytes that are ready.
    pub(super) fn take(&mut self) -> Option<Bytes> {
        match self {
            Self::Own(translator) => translator.take(),
            Self::Offered { offer, is_begun } => {
                let bytes = offer.take_bytes();
                *is_begun |= bytes.is_some();
                bytes
            }
            Self::Log(_) => None,
        }
    }

    /// The stream that reads the log, if there is a log.
    pub(super) const fn log(&mut self) -> Option<&mut LogStream> {
        match self {
            Self::Log(log) => Some(log),
            _ => None,
        }
    }

    /// Ends the stream. `drop_run` drops the run, so that its resources are free when the client reads the end.
    pub(super) fn end(&mut self, end: &End<'_>, drop_run: impl FnOnce()) {
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
    pub(super) fn discard(&mut self) {
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
pub(super) enum Cut {
    Gap,
    Shutdown,
}

impl Cut {
    /// The last frame of the stream. It has no id, since the run continues.
    pub(super) fn frame(self) -> Bytes {
        let (code, message) = match self {
            Self::Gap => (
                "events_lost",
                "The connection was too slow for the events of the run.",
            ),
            Self::Shutdown => ("shutting_down", "The server is shutting down."),
        };
        let mut frame = BytesMut::new();
        let error = Wire::RunError {
            message,
            code,
            usage: None,
        };
        encode::event(&error, &mut frame);
        frame.freeze()
    }
}

impl LogStream {
    /// Ends the stream before the run.
    pub(super) fn cut(&mut self, cut: Cut) {
        if !self.is_over() {
            *self = Self::Cut(cut);
        }
    }

    pub(super) const fn is_over(&self) -> bool {
        matches!(self, Self::Over)
    }

    /// Returns the next chunk. The stream ends once the run is dropped, too (`is_done`).
    pub(super) fn poll(&mut self, is_done: bool, cx: &mut Context<'_>) -> Poll<Option<Bytes>> {
        if let Self::Open(reader) = self {
            match reader.poll(cx) {
                Poll::Ready(Read::Frames(frames)) => return Poll::Ready(Some(frames)),
                Poll::Ready(Read::Gap) => *self = Self::Cut(Cut::Gap),
                Poll::Ready(Read::End) if is_done => *self = Self::Over,
                Poll::Ready(Read::End) | Poll::Pending => return Poll::Pending,
            }
        }
        let cut = match self {
            Self::Cut(cut) => Some(cut.frame()),
            _ => None,
        };
        *self = Self::Over;
        Poll::Ready(cut)
    }
}
