use super::layer::{Opens, Options};
use std::{
    sync::{Mutex, PoisonError},
    time::Duration,
};

/// The number of parts of a window. Calls leave it a part at a time.
const PARTS: usize = 10;

/// The state of a circuit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CircuitState {
    /// Calls pass.
    Closed,
    /// Calls fail.
    Open,
    /// Some calls pass, to find out whether the service has recovered, and the others fail.
    HalfOpen,
}

impl CircuitState {
    pub(super) const fn as_str(self) -> &'static str {
        match self {
            Self::Closed => "closed",
            Self::Open => "open",
            Self::HalfOpen => "half_open",
        }
    }
}

/// The outcome of a call, as far as it concerns the health of the service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    Success,
    Failure,
    /// Neither of the two.
    Unknown,
}

/// Whether calls pass, shared by those of a key.
#[derive(Default)]
pub(super) struct Circuit(Mutex<Inner>);

#[derive(Default)]
struct Inner {
    state: State,
    // The number of changes of the state. The outcome of a call counts for the state that admitted it.
    changes: u64,
    // How often the circuit has opened since it was closed.
    opened: u32,
}

enum State {
    Closed(Window),
    // Without a time until it is closed by hand.
    Open { until: Option<Duration> },
    HalfOpen(Probes),
}

struct Probes {
    // The number of probes that may begin.
    free: u32,
    succeeded: u32,
    // When others may begin in place of those that have not ended.
    renewed: Duration,
    // How often others have begun in their place: the late ends of those do not make room for more.
    replaced: u64,
}

impl Probes {
    /// The number of probes that must still succeed. Clones of a layer share circuits and may have other options.
    const fn left(&self, options: &Options) -> u32 {
        options.probes.saturating_sub(self.succeeded)
    }
}

/// The permission for a call: the number of changes of the state before it, and that of the replacements of probes.
#[derive(Clone, Copy)]
pub(super) struct Pass(u64, u64);

impl Circuit {
    /// Admits a call. Returns the state if it changes.
    ///
    /// # Errors
    ///
    /// The time after which a call may be admitted, if it is known.
    pub(super) fn admit(
        &self,
        now: Duration,
        options: &Options,
    ) -> Result<(Pass, Option<CircuitState>), Option<Duration>> {
        self.with(|inner| {
            let mut changed = None;
            if let State::Open { until: Some(until) } = inner.state {
                if now < until {
                    return Err(Some(until - now));
                }
                changed = Some(CircuitState::HalfOpen);
                inner.change(State::HalfOpen(Probes {
                    free: options.probes,
                    succeeded: 0,
                    renewed: now,
                    replaced: 0,
                }));
            }
            let replaced = match &mut inner.state {
                State::Closed(_) => 0,
                State::Open { .. } => return Err(None),
                State::HalfOpen(probes) => {
                    if probes.free == 0 && now >= probes.renewed {
                        probes.free = probes.left(options);
                        probes.replaced += 1;
                    }
                    let Some(free) = probes.free.checked_sub(1) else {
                        return Err(Some(probes.renewed.saturating_sub(now)));
                    };
                    probes.free = free;
                    probes.renewed = now.saturating_add(options.open_for);
                    probes.replaced
                }
            };
            Ok((Pass(inner.changes, replaced), changed))
        })
    }

    /// Records the outcome of an admitted call. Returns the state if it changes.
    ///
    /// `jitter` is a random number between 0 and 1.
    pub(super) fn record(
        &self,
        pass: Pass,
        outcome: Outcome,
        is_slow: bool,
        now: Duration,
        options: &Options,
        jitter: impl FnOnce() -> f64,
    ) -> Option<CircuitState> {
        self.with(|inner| {
            if pass.0 != inner.changes {
                return None;
            }
            match &mut inner.state {
                State::Closed(window) => {
                    if outcome == Outcome::Unknown {
                        return None;
                    }
                    window.add(outcome, is_slow, now, options);
                    window
                        .is_bad(options)
                        .then(|| inner.open(now, options, jitter()))
                }
                State::Open { .. } => None,
                State::HalfOpen(probes) => match outcome {
                    Outcome::Unknown if pass.1 != probes.replaced => None,
                    Outcome::Unknown => {
                        probes.free = (probes.free + 1).min(probes.left(options));
                        None
                    }
                    Outcome::Success if !is_slow => {
                        probes.succeeded += 1;
                        probes.free = probes.free.min(probes.left(options));
                        (probes.left(options) == 0).then(|| {
                            inner.opened = 0;
                            inner.change(State::default());
                            CircuitState::Closed
                        })
                    }
                    _ => Some(inner.open(now, options, jitter())),
                },
            }
        })
    }

    pub(super) fn state(&self) -> CircuitState {
        self.with(|inner| match inner.state {
            State::Closed(_) => CircuitState::Closed,
            State::Open { .. } => CircuitState::Open,
            State::HalfOpen(_) => CircuitState::HalfOpen,
        })
    }

    /// Opens the circuit until it is closed by hand.
    pub(super) fn open(&self) {
        self.with(|inner| inner.change(State::Open { until: None }));
    }

    pub(super) fn close(&self) {
        self.with(|inner| {
            inner.opened = 0;
            inner.change(State::default());
        });
    }

    fn with<R>(&self, act: impl FnOnce(&mut Inner) -> R) -> R {
        act(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Inner {
    fn change(&mut self, state: State) {
        self.state = state;
        self.changes += 1;
    }

    fn open(&mut self, now: Duration, options: &Options, jitter: f64) -> CircuitState {
        let doubled = 1_u32.checked_shl(self.opened).unwrap_or(u32::MAX);
        self.opened = self.opened.saturating_add(1);
        let time = options.open_for.saturating_mul(doubled);
        let time = time.min(options.longest_open.max(options.open_for));
        // Processes that opened their circuits together must not probe together.
        let jitter = time.as_secs_f64() * 0.2 * jitter;
        let time = time.saturating_add(Duration::try_from_secs_f64(jitter).unwrap_or_default());
        let until = Some(now.saturating_add(time));
        self.change(State::Open { until });
        CircuitState::Open
    }
}

impl Default for State {
    fn default() -> Self {
        Self::Closed(Window::default())
    }
}

/// The counted calls of the last time.
#[derive(Default)]
struct Window {
    parts: [Counts; PARTS],
    // The number of the newest part since the clock's fixed point.
    newest: u128,
    // The number of failures since the last success.
    in_a_row: u32,
}

#[derive(Clone, Copy, Default)]
struct Counts {
    calls: u32,
    failed: u32,
    slow: u32,
}

impl Window {
    fn add(&mut self, outcome: Outcome, is_slow: bool, now: Duration, options: &Options) {
        let is_failure = outcome == Outcome::Failure;
        self.in_a_row = match is_failure {
            true => self.in_a_row.saturating_add(1),
            false => 0,
        };
        let part = (options.window.as_nanos() / PARTS as u128).max(1);
        let at = (now.as_nanos() / part).max(self.newest);
        let passed = (at - self.newest).min(PARTS as u128);
        for gone in 0..passed {
            if let Some(counts) = self.parts.get_mut(index(at - gone)) {
                *counts = Counts::default();
            }
        }
        self.newest = at;
        if let Some(counts) = self.parts.get_mut(index(at)) {
            counts.calls = counts.calls.saturating_add(1);
            counts.failed = counts.failed.saturating_add(is_failure.into());
            counts.slow = counts.slow.saturating_add(is_slow.into());
        }
    }

    fn is_bad(&self, options: &Options) -> bool {
        let sum = |of: fn(&Counts) -> u32| self.parts.iter().map(|it| u64::from(of(it))).sum();
        let calls: u64 = sum(|it| it.calls);
        let reaches = |count: u64, rate: f64| {
            count > 0
                && calls >= u64::from(options.minimum_calls)
                && count as f64 >= rate * calls as f64
        };
        let is_slow = options
            .slow
            .is_some_and(|(_, rate)| reaches(sum(|it| it.slow), rate));
        is_slow
            || match options.opens {
                Opens::AfterFailures(failures) => self.in_a_row >= failures,
                Opens::AtRate(rate) => reaches(sum(|it| it.failed), rate),
            }
    }
}

#[allow(clippy::cast_possible_truncation, reason = "less than `PARTS`")]
const fn index(part: u128) -> usize {
    (part % PARTS as u128) as usize
}
