use std::time::Duration;

/// The size of a response chunk, in bytes, at which no further events are added to it.
pub(crate) const PIECE: usize = 16 << 10;

/// The maximum number of items polled from a run in one poll, since some write nothing.
pub(crate) const ITEMS: usize = 1024;

/// The silence that counts as a pause.
const PAUSE: Duration = Duration::from_millis(20);

/// The maximum number of chunks between two attempts to merge.
const APART: u8 = 32;

/// The number of polls without further events that end an attempt. hyper polls a body twice before
/// it yields, and a frame of the provider may bring no event, such as the one with the finish reason.
const POLLS: u8 = 4;

/// The maximum time that written events wait for further events.
const DELAY: Duration = Duration::from_millis(10);

/// Decides whether written events wait for further events, so that they are sent in one chunk.
///
/// An HTTP client passes on one frame per wake-up, also when the next frames have arrived. A body
/// therefore yields to the other tasks of its thread before it returns a chunk, and again as long as
/// that brings events. After an attempt that brings none, it returns more and more chunks at once
/// before the next attempt.
#[derive(Debug)]
pub(crate) struct Merge {
    /// The number of chunks after a pause that are returned at once.
    first: u8,
    /// The number of chunks until the next attempt.
    skip: u8,
    /// The number of chunks between the last attempts.
    apart: u8,
    /// When the last chunk was returned (monotonic).
    sent: Duration,
    waiting: Option<Waiting>,
}

/// The chunk that waits for further events.
#[derive(Debug)]
struct Waiting {
    since: Duration,
    len: usize,
    has_grown: bool,
    // The number of polls since it has grown.
    polls: u8,
}

impl Merge {
    /// Returns the first `first` chunks after a pause at once: up to the one with the first content.
    pub(crate) const fn new(first: u8) -> Self {
        Self {
            first,
            skip: first,
            apart: 1,
            sent: Duration::ZERO,
            waiting: None,
        }
    }

    /// Returns whether a chunk of `len` bytes waits until the body is polled again.
    pub(crate) fn waits(&mut self, len: usize, now: Duration) -> bool {
        let Some(waiting) = &mut self.waiting else {
            if now.saturating_sub(self.sent) >= PAUSE {
                self.skip = self.skip.max(self.first);
            }
            if self.skip > 0 {
                self.skip -= 1;
                return false;
            }
            self.waiting = Some(Waiting {
                since: now,
                len,
                has_grown: false,
                polls: 0,
            });
            return true;
        };
        if len > waiting.len {
            waiting.len = len;
            waiting.has_grown = true;
            waiting.polls = 0;
            return now.saturating_sub(waiting.since) < DELAY;
        }
        waiting.polls += 1;
        if waiting.polls < POLLS {
            return true;
        }
        match waiting.has_grown {
            true => self.apart = 1,
            false => {
                self.apart = (2 * self.apart).min(APART);
                self.skip = self.apart;
            }
        }
        false
    }

    /// Records that a chunk is returned.
    pub(crate) const fn sent(&mut self, now: Duration) {
        self.sent = now;
        self.waiting = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    /// Returns chunks at once, and asserts their number; the next chunk waits.
    #[track_caller]
    fn assert_at_once(merge: &mut Merge, chunks: usize, now: Duration) {
        for n in 0..chunks {
            assert!(!merge.waits(100, now), "chunk {n} waits");
            merge.sent(now);
        }
        assert!(merge.waits(100, now), "more than {chunks} chunks");
    }

    #[test]
    fn a_chunk_waits_while_it_grows() {
        let mut merge = Merge::new(2);
        assert_at_once(&mut merge, 2, at(1));
        for len in [200, 200, 200, 200, 300, 300, 300, 300] {
            assert!(merge.waits(len, at(1)));
        }
        assert!(!merge.waits(300, at(1)));
        merge.sent(at(1));
        // The attempt was productive, so the next chunk waits as well.
        assert_at_once(&mut merge, 0, at(1));
    }

    #[test]
    fn attempts_in_vain_become_rare() {
        let mut merge = Merge::new(2);
        for chunks in [2, 2, 4, 8, 16, 32, 32, 32] {
            assert_at_once(&mut merge, chunks, at(1));
            for _ in 1..POLLS {
                assert!(merge.waits(100, at(1)));
            }
            assert!(!merge.waits(100, at(1)));
            merge.sent(at(1));
        }
    }

    #[test]
    fn a_chunk_waits_for_a_limited_time() {
        let mut merge = Merge::new(2);
        assert_at_once(&mut merge, 2, at(1));
        assert!(merge.waits(200, at(10)));
        assert!(!merge.waits(300, at(11)));
    }

    #[test]
    fn the_first_chunks_after_a_pause_do_not_wait() {
        let mut merge = Merge::new(2);
        assert_at_once(&mut merge, 2, at(1));
        assert!(merge.waits(200, at(1)));
        merge.sent(at(1));
        assert_at_once(&mut merge, 0, at(20));
        merge.sent(at(20));
        assert_at_once(&mut merge, 2, at(40));
    }
}
