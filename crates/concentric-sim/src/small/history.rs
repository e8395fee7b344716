//! What happened in a world, in its order: the record that the invariants are checked on.

use super::{
    outside::{Class, Provider},
    time::ProcessId,
};
use std::fmt;

/// An event, with its time in milliseconds, and the process that caused it.
#[derive(Clone, Debug)]
pub(crate) struct Note {
    pub(crate) at: u64,
    pub(crate) process: Option<ProcessId>,
    pub(crate) what: What,
}

impl fmt::Display for Note {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:>7} ", self.at)?;
        if let Some((place, process)) = self.process {
            write!(f, "{place}/{process} ")?;
        }
        match &self.what {
            What::Told(text) => f.write_str(text),
            what => write!(f, "{what:?}"),
        }
    }
}

/// How a run ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum End {
    Completed,
    Halted,
    Aborted,
    Failed,
    Other,
}

/// How an attempt ended, as a circuit breaker counts it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    Success,
    Failure,
    Neither,
}

/// A limit that processes share.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum LimitKind {
    Quota,
    Permits,
    Money,
}

/// What a process receives about a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LimitAnswer {
    /// The calls that may begin, and those that may begin in the time of a batch.
    Calls {
        now: u64,
        ahead: u64,
    },
    Reserved(bool),
    Other,
}

/// Writes of the store are recorded when it applies them, in its order.
#[derive(Clone, Debug)]
pub(crate) enum What {
    /// A run was stored, for the request `tag`, whose client gave it the id `client`.
    Begun {
        run: String,
        client: String,
        tag: String,
        fence: u64,
        lease: u64,
    },
    /// A run was claimed. `sent` are the replies of the claim, and `known` those that the store returns.
    Claimed {
        run: String,
        fence: u64,
        lease: u64,
        sent: Vec<(String, String)>,
        known: Vec<(String, String)>,
    },
    /// A process looked for abandoned runs, and claimed these.
    Swept {
        limit: usize,
        runs: Vec<String>,
    },
    Saved {
        run: String,
        fence: u64,
        lease: u64,
    },
    Renewed {
        run: String,
        fence: u64,
        lease: u64,
    },
    Suspended {
        run: String,
        fence: u64,
        questions: Vec<String>,
    },
    Ended {
        run: String,
        fence: u64,
        end: End,
    },
    /// A conversation was changed for a run that goes on.
    Appended {
        run: String,
        fence: u64,
    },
    Released {
        run: String,
    },
    /// The ledger recorded the start of an effect for the first time.
    EffectBegan {
        run: String,
        fence: u64,
    },
    /// The loop called its model.
    Step {
        tag: String,
    },
    /// A circuit let a model call pass, at a monotonic time of its process in microseconds.
    Admitted {
        provider: Provider,
        id: u64,
        mono: u64,
    },
    /// That model call has a permit.
    Permitted {
        provider: Provider,
        id: u64,
    },
    /// The quota let it begin.
    Passed {
        provider: Provider,
        id: u64,
        mono: u64,
    },
    /// That model call reached the provider.
    Attempt {
        provider: Provider,
        id: u64,
        tag: String,
        mono: u64,
    },
    /// The answer of a provider has ended, or was dropped.
    AttemptOver {
        provider: Provider,
        id: u64,
        mono: u64,
        ending: Ending,
    },
    /// The store answered a process about a shared limit, or did not: `None` if the request failed or was given up.
    Answered {
        limit: String,
        kind: LimitKind,
        mono: u64,
        answer: Option<LimitAnswer>,
    },
    /// A shared quota let calls of a process begin, by their owners: those that wait, and those that may begin.
    Taken {
        limit: String,
        calls: Vec<(String, u64, u64)>,
        ahead: u64,
        wait: u64,
    },
    /// Calls of a process that had not begun were returned to a shared quota, or the provider has rejected others.
    Returned {
        limit: String,
        calls: u64,
        rejected: bool,
    },
    /// A process uses so many permits, and may use others. `request` is the number of its request.
    Held {
        limit: String,
        request: u64,
        used: u64,
        wanted: u64,
        allowed: u64,
        lease: u64,
    },
    /// Money of a tenant was reserved or refused. `sums` are the spending and the reservations of its budgets, in the
    /// store, after that.
    Reserved {
        tenant: String,
        id: String,
        money: u64,
        lease: u64,
        is_granted: bool,
        sums: Vec<[u64; 2]>,
    },
    Settled {
        tenant: String,
        id: String,
        money: u64,
        sums: Vec<[u64; 2]>,
    },
    /// The function of a tool was entered.
    Started {
        call: String,
        class: Class,
        key: String,
        run: String,
        fence: u64,
    },
    /// An effect reached the world, which did it or not.
    Acted {
        call: String,
        class: Class,
        run: String,
        fence: u64,
        did: bool,
    },
    /// A person determined whether a call has had its effect.
    Inquired {
        call: String,
    },
    /// A client sent a request.
    Sent,
    /// A client received the end of a run.
    Finished {
        tag: String,
        outcome: End,
    },
    /// A note for the reader.
    Told(String),
    Fault(String),
    /// The last fault has ended.
    Calm,
}

/// A digest that is the same for the same bytes (FNV-1a).
pub(super) struct Digest(u64);

impl Default for Digest {
    fn default() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }
}

impl Digest {
    pub(super) fn add(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }

    pub(super) const fn value(&self) -> u64 {
        self.0
    }
}
