//! The events of one run.

use std::{
    collections::VecDeque,
    fmt::Write,
    mem,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll, Waker},
    time::SystemTime,
};

use bytes::{BufMut, Bytes, BytesMut};
#[cfg(feature = "console")]
use concentric_core::RunUsage;
use concentric_core::{CancelReason, Context as Run, Error, Str};
use memchr::{memchr, memchr_iter, memmem};

use super::{
    super::Cut,
    hub::{Hub, Limits, Name},
    share::share,
};

/// The size of the blocks that frames are written to. Frames of more than a quarter of it have a block of their
/// own, since the rest of a block is not counted, and is kept as long as its frames.
const BLOCK: usize = 8 << 10;

/// The size of an event's id besides the tag of the log.
const ID: usize = 16;

/// The maximum number of readers of a log: each event wakes all of them.
pub(super) const READERS: usize = 256;

/// The bytes that each piece takes besides its frames, and each log besides its pieces.
const PIECE: usize = size_of::<Piece>();
const LOG: usize = 1024;

/// The size up to which a reader returns pieces as one.
pub(super) const JOINED: usize = 16 << 10;

/// How many times the limits of a run may be exceeded while the copy in a store lacks the events, since the store may
/// fail for longer than the run takes.
const COPY_BEHIND: (usize, usize) = (8, 3);

/// The form of the frames of a log.
pub(crate) struct Format {
    /// The name of the protocol.
    pub(crate) name: &'static str,
    /// Whether the log adds an `id` to each frame, which is one line and an empty one then.
    pub(crate) has_ids: bool,
    /// Makes the last frame of a stream that ends before its run.
    pub(crate) cut: fn(Cut) -> Bytes,
}

/// The events of one run as frames, of which the oldest are removed.
///
/// Events are numbered from 1. Their ids are the number and the tag of the log, since another log of a run with the
/// same name, in this process or in another one, has other events.
pub(crate) struct RunLog {
    hub: Arc<Hub>,
    name: Name,
    format: &'static Format,
    // The order in which the logs of a process began.
    serial: u64,
    tag: Str,
    since: SystemTime,
    #[cfg(feature = "console")]
    about: About,
    state: Mutex<State>,
}

/// What is known of a run from its beginning on.
#[cfg(feature = "console")]
pub(crate) struct About {
    pub(crate) agent: Option<Str>,
    pub(crate) begun: SystemTime,
}

#[derive(Default)]
struct State {
    // What the client had before the run; `None` if it is too large, or is removed.
    earlier: Option<Bytes>,
    pieces: VecDeque<Piece>,
    // The number of the next event.
    next: u64,
    // What the limits of the hub count.
    bytes: usize,
    block: BytesMut,
    readers: Vec<Place>,
    readers_so_far: u64,
    // Until the run has ended.
    run: Option<Run>,
    // The tokens of a run that has ended.
    #[cfg(feature = "console")]
    usage: RunUsage,
    // The end of a run that is dropped before its end, if it is not its consumer that has left.
    ending: Option<Ending>,
    is_cleared: bool,
    // Whether the events are removed because they must not be read.
    is_discarded: bool,
    // Whether the store of the hub has the whole log, and no task writes it any more.
    is_copied: bool,
    // Whether the run ended with an error, or without an end.
    is_failed: bool,
}

/// Consecutive events that were written together.
struct Piece {
    frames: Bytes,
    // The number of its first event.
    first: u64,
}

/// A reader that is connected.
struct Place {
    reader: u64,
    // Whether it counts among the readers, unlike the copy in a store.
    is_client: bool,
    // The number of the next event that it reads.
    next: u64,
    waker: Option<Waker>,
}

/// The end of a run that does not end by itself.
#[derive(Clone, Debug)]
pub(crate) enum Ending {
    Failed(Error),
    Cancelled(CancelReason),
}

/// The position after which a client needs the events of a run.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct After {
    pub(crate) number: u64,
    /// The tag of the log, if the client knows it.
    pub(crate) tag: Option<Str>,
}

impl After {
    /// Parses the id of an event, or its number alone.
    pub(crate) fn parse(id: &str) -> Option<Self> {
        let (number, tag) = match id.split_once('-') {
            Some((number, tag)) => (number, Some(tag.into())),
            None => (id, None),
        };
        // `parse` accepts a sign, too.
        let is_number = number.bytes().all(|byte| byte.is_ascii_digit());
        let number = is_number.then(|| number.parse().ok())??;
        Some(Self { number, tag })
    }
}

/// The reason why events can't be read.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Unreadable {
    /// The log does not have them any more, or did never.
    Gone,
    /// The run has ended, and there are no more.
    Over,
    /// The log has the maximum number of readers.
    Busy,
}

impl RunLog {
    pub(crate) fn new(
        hub: &Arc<Hub>,
        name: Name,
        format: &'static Format,
        earlier: Bytes,
        run: &Run,
    ) -> Arc<Self> {
        let earlier = Some(earlier).filter(|it| it.len() <= hub.limits.bytes);
        let bytes = LOG + earlier.as_ref().map_or(0, Bytes::len);
        let state = State {
            earlier,
            next: 1,
            bytes,
            run: Some(run.clone()),
            ..State::default()
        };
        hub.grown(bytes);
        // Distinguishes two logs, and keeps nothing secret.
        let tag = format!("{:08x}", hub.environment.random().next_u64() as u32).into();
        Arc::new(Self {
            hub: Arc::clone(hub),
            name,
            format,
            serial: hub.serial(),
            tag,
            since: hub.environment.clock().now(),
            #[cfg(feature = "console")]
            about: About {
                agent: run.agent().cloned(),
                begun: run.now(),
            },
            state: Mutex::new(state),
        })
    }

    #[cfg(feature = "console")]
    pub(crate) const fn about(&self) -> &About {
        &self.about
    }

    /// The tokens of the run so far, also of its earlier requests.
    #[cfg(feature = "console")]
    pub(crate) fn usage(&self) -> RunUsage {
        let state = self.lock();
        let usage = state.run.as_ref().map(Run::run_usage);
        usage.unwrap_or_else(|| state.usage.clone())
    }

    /// Sets the tokens of a run that ends, in place of those that its models have recorded.
    #[cfg(feature = "console")]
    pub(crate) fn set_usage(&self, usage: RunUsage) {
        self.lock().usage = usage;
    }

    /// The number of the first event that is kept, the frames, and the position after them.
    #[cfg(feature = "console")]
    pub(crate) fn frames(&self) -> (u64, Vec<Bytes>, After) {
        let state = self.lock();
        let frames = state.pieces.iter().map(|piece| piece.frames.clone());
        let after = After {
            number: state.next - 1,
            tag: Some(self.tag.clone()),
        };
        (state.first(), frames.collect(), after)
    }

    pub(crate) const fn tag(&self) -> &Str {
        &self.tag
    }

    /// The time at which the log began.
    pub(super) const fn since(&self) -> SystemTime {
        self.since
    }

    pub(crate) const fn name(&self) -> &Name {
        &self.name
    }

    pub(crate) const fn format(&self) -> &'static Format {
        self.format
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether no event was ever written.
    #[cfg(feature = "openai")]
    pub(crate) fn is_empty(&self) -> bool {
        self.lock().next == 1
    }

    pub(crate) fn is_ended(&self) -> bool {
        self.lock().run.is_none()
    }

    pub(crate) const fn serial(&self) -> u64 {
        self.serial
    }

    /// The frames of what the client had before the run, which follow the first frame; `None` if they are not kept.
    pub(crate) fn earlier(&self) -> Option<Bytes> {
        self.lock().earlier.clone()
    }

    /// Whether the run has ended with an error. Another process may continue it, if it is stored.
    pub(crate) fn is_failed(&self) -> bool {
        self.lock().is_failed
    }

    /// Notes that the run ends with an error, before its end is appended.
    pub(crate) fn set_failed(&self) {
        self.lock().is_failed = true;
    }

    /// The id of the last event.
    pub(crate) fn last_id(&self) -> String {
        let last = self.lock().next - 1;
        format!("{last}-{}", self.tag)
    }

    /// The JSON of the terminal event of an ended run; `None` if the run is live or its events are removed.
    pub(crate) fn terminal(&self) -> Option<Vec<u8>> {
        let state = self.lock();
        if state.run.is_some() {
            return None;
        }
        // A piece may have only the mark that follows the terminal event.
        for piece in state.pieces.iter().rev().take(2) {
            let mut rest = &piece.frames[..];
            while let Some(at) = memmem::rfind(rest, b"\ndata: ") {
                let (before, line) = rest.split_at(at);
                let line = line.get(b"\ndata: ".len()..)?;
                let data = line.split(|byte| *byte == b'\n').next()?;
                if data != b"[DONE]" {
                    return Some(data.to_vec());
                }
                rest = before;
            }
        }
        None
    }

    /// Cancels the run. Returns `false` if it has ended.
    pub(crate) fn cancel(&self, reason: CancelReason) -> bool {
        let run = self.lock().run.clone();
        run.is_some_and(|run| {
            run.cancel(reason);
            true
        })
    }

    /// Sets the end of the run for the case that it is dropped before its end.
    pub(crate) fn set_ending(&self, ending: Ending) {
        self.lock().ending.get_or_insert(ending);
    }

    /// Takes the end of the run that was dropped before its end.
    pub(crate) fn take_ending(&self) -> Ending {
        let mut state = self.lock();
        let ending = state.ending.take();
        let cancelled = || state.run.as_ref().and_then(Run::cancel_reason);
        ending
            .unwrap_or_else(|| Ending::Cancelled(cancelled().unwrap_or(CancelReason::Disconnected)))
    }

    /// Appends frames without ids, and wakes the readers. `woken` is an empty buffer.
    pub(crate) fn append(self: &Arc<Self>, frames: &[u8], is_end: bool, woken: &mut Vec<Waker>) {
        let mut state = self.lock();
        let run = match is_end {
            true => state.run.take(),
            false => None,
        };
        #[cfg(feature = "console")]
        if let Some(run) = run.as_ref().filter(|_| state.usage.models().is_empty()) {
            state.usage = run.run_usage();
        }
        let before = state.bytes;
        if !state.is_cleared {
            state.push(frames, self.format.has_ids.then_some(&*self.tag));
            state.trim(&self.hub.limits);
        }
        let after = state.bytes;
        woken.extend(state.readers.iter_mut().filter_map(|it| it.waker.take()));
        drop(state);
        // The context of the run is dropped, and the readers are woken, without the lock.
        drop(run);
        woken.drain(..).for_each(Waker::wake);
        if after < before {
            self.hub.shrunk(before - after);
        } else if self.hub.grown(after - before) {
            self.shrink();
        }
        if is_end {
            self.hub.ended(self);
        }
    }

    /// Removes events until all logs are small enough. The newest piece is kept.
    fn shrink(&self) {
        let mut removed = Vec::new();
        let mut state = self.lock();
        while self.hub.is_full() && state.pieces.len() > 1 {
            let before = state.bytes;
            removed.extend(state.pop());
            self.hub.shrunk(before - state.bytes);
        }
        drop(state);
    }

    /// Removes the log, and all of its events, also from the store of its hub.
    pub(crate) fn discard(self: &Arc<Self>) {
        let mut state = self.lock();
        state.is_discarded = true;
        let is_copied = mem::take(&mut state.is_copied);
        drop(state);
        self.hub.remove(self);
        if is_copied {
            share(&self.hub, self);
        }
    }

    pub(super) fn is_discarded(&self) -> bool {
        self.lock().is_discarded
    }

    /// Notes that the store of the hub has the whole log. Returns whether it has to be removed from there.
    pub(super) fn end_copy(&self) -> bool {
        let mut state = self.lock();
        state.is_copied = !state.is_discarded;
        state.is_discarded
    }

    /// Removes all events. Later ones are not kept.
    pub(crate) fn clear(&self) {
        let mut state = self.lock();
        state.is_cleared = true;
        let pieces = mem::take(&mut state.pieces);
        let block = mem::take(&mut state.block);
        state.earlier = None;
        let bytes = mem::take(&mut state.bytes);
        let woken: Vec<Waker> = state
            .readers
            .iter_mut()
            .filter_map(|it| it.waker.take())
            .collect();
        drop(state);
        drop((pieces, block));
        woken.into_iter().for_each(Waker::wake);
        self.hub.shrunk(bytes);
    }

    /// Returns a reader of the events after `after`.
    pub(crate) fn read(self: &Arc<Self>, after: &After) -> Result<Reader, Unreadable> {
        let mut state = self.lock();
        // The events of another log have other numbers.
        let is_other = after.tag.as_ref().is_some_and(|tag| *tag != self.tag);
        let number = if is_other { 0 } else { after.number };
        let next = number.saturating_add(1);
        if next > state.next || state.is_cleared || next < state.first() {
            return Err(Unreadable::Gone);
        }
        if next == state.next && state.run.is_none() {
            return Err(Unreadable::Over);
        }
        let clients = state.readers.iter().filter(|it| it.is_client).count();
        if clients >= READERS {
            return Err(Unreadable::Busy);
        }
        let reader = state.add_reader(next, true);
        drop(state);
        Ok(Reader {
            log: Arc::clone(self),
            reader,
        })
    }

    /// Returns a reader of all events, besides those of clients.
    pub(super) fn follow(self: &Arc<Self>) -> Reader {
        let reader = self.lock().add_reader(1, false);
        Reader {
            log: Arc::clone(self),
            reader,
        }
    }
}

impl State {
    fn add_reader(&mut self, next: u64, is_client: bool) -> u64 {
        self.readers_so_far += 1;
        let reader = self.readers_so_far;
        self.readers.push(Place {
            reader,
            is_client,
            next,
            waker: None,
        });
        reader
    }

    /// The number of the oldest event, or of the next one if there is none.
    fn first(&self) -> u64 {
        self.pieces.front().map_or(self.next, |piece| piece.first)
    }

    /// Adds frames, each with an id that ends with `tag`, if there is one.
    fn push(&mut self, frames: &[u8], tag: Option<&str>) {
        let first = self.next;
        let id = tag.map_or(0, |tag| tag.len() + ID);
        let ids = memchr_iter(b'\n', frames).count() / 2 * id;
        let size = frames.len() + ids;
        let mut own;
        let block = match size > BLOCK / 4 {
            true => {
                own = BytesMut::with_capacity(size);
                &mut own
            }
            false => {
                if self.block.capacity() < size {
                    self.block = BytesMut::with_capacity(BLOCK);
                }
                &mut self.block
            }
        };
        let mut rest = frames;
        while let Some(tag) = tag
            && let Some(end) = memchr(b'\n', rest)
        {
            // A frame is one line and an empty one.
            let (frame, later) = rest.split_at(rest.len().min(end + 2));
            // Writes to a buffer do not fail.
            let _ = writeln!(block, "id: {}-{tag}", self.next);
            block.put_slice(frame);
            self.next += 1;
            rest = later;
        }
        if tag.is_none() {
            block.put_slice(frames);
            self.next += memmem::find_iter(frames, b"\n\n").count() as u64;
        }
        let frames = block.split().freeze();
        if !frames.is_empty() {
            self.bytes += frames.len() + PIECE;
            self.pieces.push_back(Piece { frames, first });
        }
    }

    /// Removes the oldest events as far as the limits demand. The newest piece is kept, and those that a reader
    /// lacks, until it is far behind.
    fn trim(&mut self, limits: &Limits) {
        let Limits { events, bytes, .. } = *limits;
        while self.pieces.len() > 1 {
            let kept = usize::try_from(self.next - self.first()).unwrap_or(usize::MAX);
            let exceeds = |(of_events, of_bytes): (usize, usize)| {
                kept > events.saturating_mul(of_events)
                    || self.bytes > bytes.saturating_mul(of_bytes)
            };
            let is_lacking = |is_client: bool| {
                let second = self.pieces.get(1).map_or(self.next, |piece| piece.first);
                let mut readers = self.readers.iter().filter(|it| it.is_client == is_client);
                readers.any(|place| place.next < second)
            };
            if !exceeds((1, 1))
                || (!exceeds(limits.behind) && is_lacking(true))
                || (!exceeds(COPY_BEHIND) && is_lacking(false))
            {
                break;
            }
            self.pop();
        }
    }

    fn pop(&mut self) -> Option<Piece> {
        let piece = self.pieces.pop_front()?;
        self.bytes -= piece.frames.len() + PIECE;
        Some(piece)
    }
}

impl Drop for RunLog {
    fn drop(&mut self) {
        let bytes = mem::take(&mut self.lock().bytes);
        self.hub.shrunk(bytes);
    }
}

/// A reader of a run's events.
pub(crate) struct Reader {
    log: Arc<RunLog>,
    reader: u64,
}

/// The result of a read.
pub(crate) enum Read {
    /// Whole frames.
    Frames(Bytes),
    /// The log has removed the next events, since the reader is too far behind.
    Gap,
    /// The run has ended, and all events are read.
    End,
}

/// Events that are copied elsewhere.
pub(super) enum Pulled {
    Events {
        first: u64,
        pieces: Vec<Bytes>,
        /// Whether the log ends with them.
        is_end: bool,
        /// Whether there are more.
        is_full: bool,
    },
    /// All events are removed.
    Removed { next: u64, is_ended: bool },
    /// All events are removed, since they must not be read.
    Discarded,
}

impl Reader {
    pub(crate) const fn log(&self) -> &Arc<RunLog> {
        &self.log
    }

    /// The number of the next event.
    pub(super) fn next(&self) -> u64 {
        let state = self.log.lock();
        let place = state.readers.iter().find(|it| it.reader == self.reader);
        place.map_or(state.next, |place| place.next)
    }

    /// Continues with this event, and lets the log remove those before it.
    pub(super) fn advance(&mut self, next: u64) {
        let mut state = self.log.lock();
        let place = state.readers.iter_mut().find(|it| it.reader == self.reader);
        if let Some(place) = place {
            place.next = next;
        }
    }

    /// Returns the next events that are kept, up to about `most` bytes. The log keeps them until the reader
    /// [advances](Self::advance).
    pub(super) fn pull(&mut self, most: usize, cx: &mut Context<'_>) -> Poll<Pulled> {
        let mut state = self.log.lock();
        let (oldest, is_ended) = (state.first(), state.run.is_none());
        let State {
            pieces,
            next,
            readers,
            is_cleared,
            is_discarded,
            ..
        } = &mut *state;
        if *is_discarded {
            return Poll::Ready(Pulled::Discarded);
        }
        let Some(place) = readers.iter_mut().find(|it| it.reader == self.reader) else {
            return Poll::Ready(Pulled::Removed {
                next: *next,
                is_ended,
            });
        };
        place.next = place.next.max(oldest);
        if place.next >= *next && !is_ended {
            let old = place.waker.replace(cx.waker().clone());
            drop(state);
            drop(old);
            return Poll::Pending;
        }
        if *is_cleared {
            return Poll::Ready(Pulled::Removed {
                next: *next,
                is_ended,
            });
        }
        let first = place.next;
        let at = pieces.partition_point(|piece| piece.first <= first);
        let (mut pulled, mut size, mut is_full) = (Vec::new(), 0, false);
        for piece in pieces.iter().skip(at.saturating_sub(1)) {
            if size > 0 && size + piece.frames.len() > most {
                is_full = true;
                break;
            }
            let frames = skip(&piece.frames, first.saturating_sub(piece.first));
            size += frames.len();
            pulled.push(frames);
        }
        Poll::Ready(Pulled::Events {
            first,
            pieces: pulled,
            is_end: is_ended && !is_full,
            is_full,
        })
    }

    /// Returns the next events.
    pub(crate) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Read> {
        let mut state = self.log.lock();
        let State {
            pieces,
            next,
            run,
            readers,
            is_cleared,
            ..
        } = &mut *state;
        let Some(place) = readers.iter_mut().find(|it| it.reader == self.reader) else {
            return Poll::Ready(Read::End);
        };
        if place.next >= *next {
            if run.is_none() {
                return Poll::Ready(Read::End);
            }
            if *is_cleared {
                return Poll::Ready(Read::Gap);
            }
            let old = match &mut place.waker {
                Some(waker) if waker.will_wake(cx.waker()) => None,
                waker => waker.replace(cx.waker().clone()),
            };
            drop(state);
            drop(old);
            return Poll::Pending;
        }
        // The piece with the next event.
        let at = pieces.partition_point(|piece| piece.first <= place.next);
        let Some(at) = at.checked_sub(1).filter(|_| !*is_cleared) else {
            return Poll::Ready(Read::Gap);
        };
        let mut rest = pieces.iter().skip(at);
        let Some(piece) = rest.next() else {
            return Poll::Ready(Read::Gap);
        };
        let read = skip(&piece.frames, place.next - piece.first);
        let mut count = 1;
        let mut size = read.len();
        for piece in rest.clone() {
            size += piece.frames.len();
            if size > JOINED {
                break;
            }
            count += 1;
        }
        place.next = pieces.get(at + count).map_or(*next, |piece| piece.first);
        if count == 1 {
            return Poll::Ready(Read::Frames(read));
        }
        let mut joined = BytesMut::with_capacity(size.min(JOINED));
        joined.put_slice(&read);
        for piece in pieces.iter().skip(at + 1).take(count - 1) {
            joined.put_slice(&piece.frames);
        }
        Poll::Ready(Read::Frames(joined.freeze()))
    }
}

/// The frames after the first `count`.
fn skip(frames: &Bytes, count: u64) -> Bytes {
    let mut ends = memmem::find_iter(frames, b"\n\n");
    let skipped = usize::try_from(count).unwrap_or(usize::MAX);
    match skipped.checked_sub(1).map(|nth| ends.nth(nth)) {
        None => frames.clone(),
        Some(Some(end)) => frames.slice(end + 2..),
        Some(None) => Bytes::new(),
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        let mut state = self.log.lock();
        let at = state.readers.iter().position(|it| it.reader == self.reader);
        let place = at.map(|at| state.readers.swap_remove(at));
        drop(state);
        drop(place);
    }
}
