//! Writes the events of a run to its log.

use std::{
    mem,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::Waker,
};

use bytes::{Bytes, BytesMut};
use concentric_core::{
    Context as Run, Error, Event, Finish, OpenRound, ResponseHead, Str, Transcript, store::Tenant,
};

use super::{
    super::Translate,
    hub::{Hub, Name},
    run_log::{Ending, RunLog},
    share::share,
};

/// The translator of a request, which the endpoint offers to the log: an extension of the run's context.
///
/// The log takes it, if there is one, so that the ids in the events are those of the client.
#[derive(Clone, Default)]
pub(crate) struct Offer(Arc<Mutex<Offered>>);

#[derive(Default)]
pub(crate) enum Offered {
    /// No log has taken the translator.
    Translator(Box<dyn Translate>),
    /// The log of the run, which the endpoint reads.
    Log(Arc<RunLog>),
    /// The endpoint has not made the offer yet, or has taken it back.
    #[default]
    Nothing,
}

impl Offer {
    /// Makes the offer.
    pub(crate) fn set(&self, translator: Box<dyn Translate>) {
        *self.lock() = Offered::Translator(translator);
    }

    /// Returns whether a log has taken the translator.
    pub(crate) fn is_accepted(&self) -> bool {
        matches!(*self.lock(), Offered::Log(_))
    }

    /// The number of bytes that the translator has written.
    pub(crate) fn len(&self) -> usize {
        match &*self.lock() {
            Offered::Translator(translator) => translator.len(),
            _ => 0,
        }
    }

    /// Takes the bytes that the translator has written.
    pub(crate) fn take_bytes(&self) -> Option<Bytes> {
        match &mut *self.lock() {
            Offered::Translator(translator) => take(translator.buffer()),
            _ => None,
        }
    }

    fn lock(&self) -> MutexGuard<'_, Offered> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes what is left: the translator, or the log.
    pub(crate) fn take(&self) -> Offered {
        mem::replace(&mut self.lock(), Offered::Nothing)
    }

    /// Takes the translator for a log of `run`; `None` if there is no translator.
    fn accept(
        &self,
        log: impl FnOnce(&dyn Translate) -> Arc<RunLog>,
    ) -> Option<(Box<dyn Translate>, Arc<RunLog>)> {
        let mut offered = self.lock();
        let Offered::Translator(translator) = &*offered else {
            return None;
        };
        let log = log(&**translator);
        match mem::replace(&mut *offered, Offered::Log(Arc::clone(&log))) {
            Offered::Translator(translator) => Some((translator, log)),
            _ => None,
        }
    }
}

/// The writer of a run's log. It ends the log, on drop at the latest.
pub(crate) struct Writer {
    translator: Box<dyn Translate>,
    log: Arc<RunLog>,
    has_client: bool,
    is_ended: bool,
    woken: Vec<Waker>,
}

impl Writer {
    /// Begins the log of a run; `None` if another log has taken the translator of its request. `without_client`
    /// makes the translator of a run that no endpoint has started.
    pub(crate) fn begin(
        hub: &Arc<Hub>,
        offer: Option<&Offer>,
        run: &Run,
        without_client: impl FnOnce(&Run) -> Box<dyn Translate>,
    ) -> Option<Self> {
        let id = run.run_id().as_str();
        let thread = run
            .thread_id()
            .map(|thread| thread.as_str())
            .unwrap_or_default();
        let name = (Tenant::of(run).0, Str::from(thread), Str::from(id));
        let (translator, log) = match offer {
            Some(offer) => offer.accept(|translator| log_of(hub, name, translator, run))?,
            None => {
                let translator = without_client(run);
                let log = log_of(hub, name, &*translator, run);
                (translator, log)
            }
        };
        if hub.add(&log) {
            share(hub, &log);
        }
        let mut writer = Self {
            translator,
            log,
            has_client: offer.is_some(),
            is_ended: false,
            woken: Vec::new(),
        };
        writer.translator.restart();
        writer.publish();
        Some(writer)
    }

    /// Returns whether an endpoint reads the log.
    pub(crate) const fn has_client(&self) -> bool {
        self.has_client
    }

    /// Writes what a client without the history needs: the conversation, and the round that the run resumes.
    pub(crate) fn snapshot(&mut self, transcript: &Transcript, open: Option<&OpenRound>) {
        self.translator.snapshot(transcript, open);
        self.publish();
    }

    pub(crate) fn head(&mut self, head: &ResponseHead, extensions: &http::Extensions) {
        self.translator.head(head, extensions);
    }

    /// Translates an event, without publishing it.
    #[inline]
    pub(crate) fn event(&mut self, event: Event) {
        self.translator.event(event);
    }

    /// The number of bytes that are not published.
    pub(crate) fn len(&self) -> usize {
        self.translator.len()
    }

    /// Publishes the translated events.
    pub(crate) fn publish(&mut self) {
        self.append(false);
    }

    fn append(&mut self, is_end: bool) {
        let frames = self.translator.buffer();
        if is_end || !frames.is_empty() {
            self.log.append(frames, is_end, &mut self.woken);
            frames.clear();
        }
    }

    // ---- the end ----

    pub(crate) fn finish(&mut self, finish: &Finish) {
        #[cfg(feature = "console")]
        self.log.set_usage(finish.run_usage());
        self.end(|translator| translator.finish(finish));
    }

    pub(crate) fn fail(&mut self, error: &Error) {
        self.log.set_failed();
        self.end(|translator| translator.fail(error));
    }

    pub(crate) fn truncated(&mut self) {
        self.log.set_failed();
        self.end(|translator| translator.truncated());
    }

    fn end(&mut self, write: impl FnOnce(&mut dyn Translate)) {
        if !mem::replace(&mut self.is_ended, true) {
            write(&mut *self.translator);
            self.append(true);
        }
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        if self.is_ended {
            return;
        }
        match self.log.take_ending() {
            Ending::Failed(error) => self.fail(&error),
            Ending::Cancelled(reason) => self.end(|translator| translator.cancelled(&reason)),
        }
    }
}

fn log_of(hub: &Arc<Hub>, name: Name, translator: &dyn Translate, run: &Run) -> Arc<RunLog> {
    RunLog::new(hub, name, translator.format(), translator.earlier(), run)
}

/// Takes the frames of a translator; `None` if there are none.
pub(crate) fn take(frames: &mut BytesMut) -> Option<Bytes> {
    (!frames.is_empty()).then(|| frames.split().freeze())
}
