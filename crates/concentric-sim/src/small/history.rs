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
