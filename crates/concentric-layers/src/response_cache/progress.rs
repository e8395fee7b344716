//! The progress of a shared call, and the places of its readers.

use super::{
    LAGGED,
    answer::{NONE, Stored, size},
    call::{Origin, Reader},
};
use concentric_core::{ChatResponse, Error, ErrorKind, Event, EventStream, SideEffects};
use std::{
    collections::VecDeque,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    task::{Poll, Wake, Waker},
};

/// The events of a shared call so far.
///
/// It is the waker of the inner call as well: that wakes all readers that wait, so none depends on another
/// one being polled.
pub(super) struct Progress {
    // Whether the inner call can make progress: at first, after it made some, and after it was woken.
    is_woken: AtomicBool,
    // Held to copy an event or a waker, never while foreign code runs.
    state: Mutex<State>,
}

struct State {
    answer: Option<Answer>,
    events: VecDeque<Event>,
    // The index in the answer of the first of `events`.
    first: usize,
    bytes: usize,
    max_bytes: usize,
    // Whether `events` begins with the answer, and a new reader may begin to read.
    is_open: bool,
    end: Option<CallEnd>,
    readers: Vec<Option<Place>>,
    // The reader whose finish reports the tokens, and whether it has.
    payer: Option<usize>,
    is_reported: bool,
}

/// An answer without its body.
pub(super) type Answer = ChatResponse<()>;

/// The end of a shared call.
pub(super) enum CallEnd {
    Finished,
    Truncated,
    Failed(Error),
    /// The store has the answer.
    Stored(Arc<Stored>),
    /// The answer is of the first reader's run only.
    Private(Option<Box<Private>>),
}

/// An answer for one reader.
pub(super) struct Private {
    pub(super) answer: Answer,
    pub(super) first: Event,
    pub(super) body: EventStream,
}

/// The place of the reader whose run makes the call.
pub(super) const FIRST: usize = 0;

/// The place of a reader.
#[derive(Default)]
struct Place {
    // The index of the next event in the answer.
    next: usize,
    waker: Option<Waker>,
    // Whether it has the beginning of the answer.
    has_begun: bool,
    // Events after `next` have been discarded.
    has_lagged: bool,
    has_finished: bool,
    // The place in an earlier call, whose reader has not been polled since it was given this one.
    origin: Option<Origin>,
    // The place in a later call, which the reader waits for without having been polled.
    moved: Option<Reader>,
}

/// The beginning of an answer, for a reader that has not received any of it.
pub(super) enum Beginning {
    Shared(Answer),
    Private(Box<Private>),
    Stored(Arc<Stored>),
    Failed(Error),
    /// Another call is needed.
    Again,
}

impl Progress {
    /// Creates the progress of a call that has not begun, with its reader at [`FIRST`].
    pub(super) fn new(max_bytes: usize) -> Arc<Self> {
        Arc::new(Self {
            is_woken: AtomicBool::new(true),
            state: Mutex::new(State {
                answer: None,
                events: VecDeque::new(),
                first: 0,
                bytes: 0,
                max_bytes,
                is_open: true,
                end: None,
                readers: vec![Some(Place::default())],
                payer: Some(FIRST),
                is_reported: false,
            }),
        })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a reader, unless it is too late to read all of the answer.
    pub(super) fn join(&self, origin: Option<Origin>) -> Option<usize> {
        let mut state = self.lock();
        if !state.is_open {
            return None;
        }
        let place = Place {
            origin,
            ..Place::default()
        };
        let mut later = state.readers.iter_mut().enumerate().skip(FIRST + 1);
        if let Some((at, free)) = later.find(|(_, place)| place.is_none()) {
            *free = Some(place);
            return Some(at);
        }
        state.readers.push(Some(place));
        Some(state.readers.len() - 1)
    }

    /// The readers that need another call and have none, with their places in earlier calls.
    pub(super) fn in_need(&self) -> Vec<(usize, Option<Origin>)> {
        let state = self.lock();
        let places = state.readers.iter().enumerate();
        let places = places.filter_map(|(at, place)| Some((at, place.as_ref()?)));
        places
            .filter(|(at, place)| place.moved.is_none() && state.needs_another(*at, place))
            .map(|(at, place)| (at, place.origin.clone()))
            .collect()
    }

    /// Whether the reader at `at` has a place in a later call that it has not taken.
    pub(super) fn has_moved(&self, at: usize) -> bool {
        let mut state = self.lock();
        state.place(at).is_some_and(|place| place.moved.is_some())
    }

    /// Sets the place in a later call of the reader at `at`, and returns what it replaces; `to` if the
    /// reader has left.
    pub(super) fn set_moved(&self, at: usize, to: Reader) -> Option<Reader> {
        match self.lock().place(at) {
            Some(place) => place.moved.replace(to),
            None => Some(to),
        }
    }

    /// Takes the place in a later call of the reader at `at`.
    pub(super) fn take_moved(&self, at: usize) -> Option<Reader> {
        self.lock().place(at)?.moved.take()
    }

    /// Removes a reader.
    pub(super) fn leave(&self, at: usize) {
        let mut state = self.lock();
        let place = state.readers.get_mut(at).and_then(Option::take);
        state.release_payer(at);
        let private = match &mut state.end {
            Some(CallEnd::Private(private)) if at == FIRST => private.take(),
            _ => None,
        };
        drop(state);
        // Dropping a waker or a body runs foreign code.
        drop((place, private));
    }

    /// Resolves with the beginning of the answer for the reader at `at`.
    pub(super) fn poll_beginning(&self, at: usize, waker: &Waker) -> Poll<Beginning> {
        let mut locked = self.lock();
        let state = &mut *locked;
        let place = state.readers.get(at).and_then(Option::as_ref);
        if place.is_none_or(|place| state.needs_another(at, place)) {
            return Poll::Ready(Beginning::Again);
        }
        let beginning = match (&state.answer, &mut state.end) {
            (_, Some(CallEnd::Private(private))) => {
                private.take().map_or(Beginning::Again, Beginning::Private)
            }
            (Some(answer), _) => {
                let answer = answer.clone();
                if let Some(place) = state.place(at) {
                    place.has_begun = true;
                }
                Beginning::Shared(answer)
            }
            (None, Some(CallEnd::Stored(stored))) => Beginning::Stored(Arc::clone(stored)),
            (None, Some(CallEnd::Failed(error))) => Beginning::Failed(error.clone()),
            (None, Some(_)) => Beginning::Failed(Error::truncated()),
            (None, None) => {
                let replaced = state.wait(at, waker);
                drop(locked);
                drop(replaced);
                return Poll::Pending;
            }
        };
        Poll::Ready(beginning)
    }

    /// Resolves with the next item for the reader at `at`.
    pub(super) fn poll_next(&self, at: usize, waker: &Waker) -> Poll<Option<Result<Event, Error>>> {
        let mut state = self.lock();
        let first = state.first;
        let item = match state.place(at) {
            None => None,
            Some(place) if place.has_finished => None,
            Some(place) if place.has_lagged => {
                place.has_finished = true;
                // A caller that repeats the request must know of effects.
                let error = state.error_with_effects().cloned();
                Some(Err(error.unwrap_or_else(lagged)))
            }
            Some(place) => {
                let next = place.next - first;
                match state.events.get(next).cloned() {
                    Some(event) => Some(Ok(state.read(at, event))),
                    None => match &state.end {
                        None => {
                            let replaced = state.wait(at, waker);
                            drop(state);
                            drop(replaced);
                            return Poll::Pending;
                        }
                        Some(CallEnd::Failed(error)) => {
                            let error = error.clone();
                            state.finish(at);
                            Some(Err(error))
                        }
                        Some(_) => None,
                    },
                }
            }
        };
        Poll::Ready(item)
    }

    /// Sets the head of an answer whose first event follows.
    pub(super) fn begin(&self, answer: Answer) {
        self.lock().answer = Some(answer);
    }

    /// Adds an event, for which the caller wakes the readers.
    pub(super) fn push(&self, event: Event) {
        let bytes = kept(&event);
        let mut state = self.lock();
        state.events.push_back(event);
        state.bytes = state.bytes.saturating_add(bytes);
        state.discard();
    }

    /// Ends the call, for which the caller wakes the readers.
    pub(super) fn end(&self, mut end: CallEnd) {
        let mut state = self.lock();
        state.is_open = false;
        let unread = match &mut end {
            CallEnd::Private(private) if state.place(FIRST).is_none() => private.take(),
            _ => None,
        };
        state.end = Some(end);
        drop(state);
        // Dropping a body runs foreign code.
        drop(unread);
    }

    /// Whether the inner call can make progress; it is polled next.
    pub(super) fn take_woken(&self) -> bool {
        self.is_woken.swap(false, Ordering::AcqRel)
    }

    pub(super) fn is_woken(&self) -> bool {
        self.is_woken.load(Ordering::Acquire)
    }

    pub(super) fn set_woken(&self) {
        self.is_woken.store(true, Ordering::Release);
    }

    /// Wakes the readers that wait, except the one at `by`, which polls the call.
    pub(super) fn wake_readers(&self, by: Option<usize>) {
        let mut from = 0;
        // One at a time, without the lock: a waker may drop a reader, or poll it.
        while let Some((at, waker)) = self.take_waker(from, by) {
            waker.wake();
            from = at + 1;
        }
    }

    fn take_waker(&self, from: usize, by: Option<usize>) -> Option<(usize, Waker)> {
        let mut state = self.lock();
        let places = state.readers.iter_mut().enumerate().skip(from);
        let mut waiting = places
            .filter(|(at, _)| Some(*at) != by)
            .filter_map(|(at, place)| Some((at, place.as_mut()?.waker.take()?)));
        waiting.next()
    }
}

impl Wake for Progress {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.set_woken();
        self.wake_readers(None);
    }
}

impl State {
    /// Whether the reader at `at` has received nothing of this call, and will not.
    fn needs_another(&self, at: usize, place: &Place) -> bool {
        if place.has_begun {
            return false;
        }
        match &self.end {
            Some(CallEnd::Private(_) | CallEnd::Truncated) if at != FIRST => true,
            // Another call could repeat an effect.
            Some(CallEnd::Failed(_)) if self.error_with_effects().is_some() => false,
            Some(CallEnd::Failed(_)) if at != FIRST => true,
            _ => place.has_lagged,
        }
    }

    fn error_with_effects(&self) -> Option<&Error> {
        match &self.end {
            Some(CallEnd::Failed(error)) if error.effects() != SideEffects::None => Some(error),
            _ => None,
        }
    }

    fn place(&mut self, at: usize) -> Option<&mut Place> {
        self.readers.get_mut(at)?.as_mut()
    }

    /// Registers a waker, and returns the one it replaces, to be dropped without the lock.
    fn wait(&mut self, at: usize, waker: &Waker) -> Option<Waker> {
        let place = self.place(at)?;
        match &place.waker {
            Some(known) if known.will_wake(waker) => None,
            _ => place.waker.replace(waker.clone()),
        }
    }

    fn finish(&mut self, at: usize) {
        if let Some(place) = self.place(at) {
            place.has_finished = true;
        }
    }

    /// Lets another reader report the tokens, unless the one at `at` has done so.
    fn release_payer(&mut self, at: usize) {
        if self.payer == Some(at) && !self.is_reported {
            self.payer = None;
        }
    }

    /// Proceeds after `event`, and returns it as the reader at `at` receives it.
    fn read(&mut self, at: usize, mut event: Event) -> Event {
        if let Some(place) = self.place(at) {
            place.next += 1;
            place.has_finished = event.is_finish();
        }
        if let Event::Finish(finish) = &mut event {
            match *self.payer.get_or_insert(at) == at {
                true => self.is_reported = true,
                false => finish.usage = NONE,
            }
        }
        event
    }

    /// Discards the oldest events over the limit.
    fn discard(&mut self) {
        if self.bytes > self.max_bytes {
            self.is_open = false;
        }
        // The newest event is always kept, since no reader had the chance to read it.
        while self.bytes > self.max_bytes && self.events.len() > 1 {
            let Some(event) = self.events.pop_front() else {
                break;
            };
            self.bytes -= kept(&event);
            self.first += 1;
            for at in 0..self.readers.len() {
                let first = self.first;
                if let Some(place) = self.place(at)
                    && place.next < first
                {
                    place.has_lagged = true;
                    self.release_payer(at);
                }
            }
        }
    }
}

/// The size of an event that is kept for the readers. The last one is not counted, since none follows it.
fn kept(event: &Event) -> usize {
    match event {
        Event::Finish(_) => 0,
        other => size(other).saturating_add(size_of::<Event>()),
    }
}

fn lagged() -> Error {
    let why = "the reader is too far behind the others that share the answer";
    Error::new(ErrorKind::Overloaded, why).with_code(LAGGED)
}
