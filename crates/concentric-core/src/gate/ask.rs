use crate::{hub::InterruptHub, panic::catch, store::Decisions, tool_call::ToolCall};
use concentric_proto::{Interrupt, ReplyKind, Str, interrupt::DecisionScope};
use serde_json::Value;
use std::{collections::BTreeSet, fmt, sync::Arc, time::Duration};

/// The interrupt that a gate raises for a call.
#[derive(Clone, Default)]
#[non_exhaustive]
pub struct Ask {
    /// The message of the interrupt; without one, the round service composes it.
    pub message: Option<Str>,
    /// How long the interrupt can be approved.
    pub expires_after: Option<Duration>,
    /// The hub that accepts the reply while the run stays open, and how long it waits.
    pub live: Option<(InterruptHub, Duration)>,
    /// The store of replies that apply to further calls.
    pub decisions: Option<Arc<dyn Decisions>>,
    /// The limit of the calls that a reply may apply to.
    pub remember_at_most: Option<DecisionScope>,
    replies: Option<Arc<BTreeSet<ReplyKind>>>,
    watchers: Vec<Watcher>,
}

/// The kinds of reply that an interrupt accepts by default.
const DEFAULT_REPLIES: [ReplyKind; 2] = [ReplyKind::Approve, ReplyKind::Deny];

type Watcher = Arc<dyn Fn(&ApprovalEvent<'_>) + Send + Sync>;

impl Ask {
    /// Sets the message of the interrupt.
    #[must_use]
    pub fn message(mut self, message: impl Into<Str>) -> Self {
        self.message = Some(message.into());
        self
    }

    /// Sets how long the interrupt can be approved.
    #[must_use]
    pub fn expires_after(mut self, time: Duration) -> Self {
        self.expires_after = Some(time);
        self
    }

    /// Sets the kinds of reply that the interrupt accepts; by default approval and denial.
    #[must_use]
    pub fn replies(mut self, kinds: impl IntoIterator<Item = ReplyKind>) -> Self {
        self.replies = Some(Arc::new(kinds.into_iter().collect()));
        self
    }

    /// Returns the kinds of reply that the interrupt accepts.
    pub fn accepted(&self) -> BTreeSet<ReplyKind> {
        match &self.replies {
            Some(kinds) => BTreeSet::clone(kinds),
            None => DEFAULT_REPLIES.into(),
        }
    }

    /// Returns the kinds of reply that were set, if they differ from the default.
    pub fn unusual_replies(&self) -> Option<BTreeSet<ReplyKind>> {
        let kinds = self.accepted();
        (kinds != DEFAULT_REPLIES.into()).then_some(kinds)
    }

    /// Calls `callback` when the interrupt is raised and when it ends.
    #[must_use]
    pub fn on_approval(
        mut self,
        callback: impl Fn(&ApprovalEvent<'_>) + Send + Sync + 'static,
    ) -> Self {
        self.watchers.push(Arc::new(callback));
        self
    }

    /// Combines the interrupts of two gates: the shorter expiry and the narrower limit apply, the
    /// replies that both accept are accepted, and the observers of both are called.
    #[must_use]
    pub fn and(mut self, other: Self) -> Self {
        let replies = match (&self.replies, &other.replies) {
            (None, None) => None,
            _ => Some(Arc::new(&self.accepted() & &other.accepted())),
        };
        self.observed_by(other.watchers);
        let limits = [self.remember_at_most, other.remember_at_most];
        let times = [self.expires_after, other.expires_after];
        Self {
            message: self.message.or(other.message),
            expires_after: times.into_iter().flatten().min(),
            // If one gate suspends the run, the run does not stay open.
            live: self.live.zip(other.live).map(|(live, _)| live),
            decisions: self.decisions.or(other.decisions),
            remember_at_most: limits.into_iter().flatten().reduce(narrower),
            replies,
            watchers: self.watchers,
        }
    }

    /// Combines two settings: those of `self` take precedence, and the observers of both are
    /// called.
    #[must_use]
    pub fn or(mut self, other: Self) -> Self {
        self.observed_by(other.watchers);
        Self {
            message: self.message.or(other.message),
            expires_after: self.expires_after.or(other.expires_after),
            live: self.live.or(other.live),
            decisions: self.decisions.or(other.decisions),
            remember_at_most: self.remember_at_most.or(other.remember_at_most),
            replies: self.replies.or(other.replies),
            watchers: self.watchers,
        }
    }

    /// Returns an interrupt with the same observers and default settings.
    #[must_use]
    pub fn observers(self) -> Self {
        Self {
            watchers: self.watchers,
            ..Self::default()
        }
    }

    /// Adds observers, each at most once.
    fn observed_by(&mut self, watchers: Vec<Watcher>) {
        for watcher in watchers {
            if !self
                .watchers
                .iter()
                .any(|known| Arc::ptr_eq(known, &watcher))
            {
                self.watchers.push(watcher);
            }
        }
    }

    /// Calls the observers.
    pub fn notify(&self, event: &ApprovalEvent<'_>) {
        for watch in &self.watchers {
            if catch(|| watch(event)).is_err() {
                tracing::error!("the `on_approval` callback of an approval panicked");
            }
        }
    }

    /// Returns whether there are observers.
    pub fn is_observed(&self) -> bool {
        !self.watchers.is_empty()
    }
}

/// The scope that both limits allow.
fn narrower(a: DecisionScope, b: DecisionScope) -> DecisionScope {
    DecisionScope {
        what: a.what.min(b.what),
        span: a.span.min(b.span),
    }
}

impl fmt::Debug for Ask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ask")
            .field("message", &self.message)
            .field("expires_after", &self.expires_after)
            .field("live", &self.live.is_some())
            .field("remember_at_most", &self.remember_at_most)
            .field("replies", &self.accepted())
            .finish_non_exhaustive()
    }
}

/// An event of an interrupt's life; see [`Ask::on_approval`].
///
/// Each interrupt is requested, and ends with one of the other events.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum ApprovalEvent<'a> {
    /// The interrupt was raised.
    Requested {
        /// The call.
        call: &'a ToolCall,
        /// The interrupt.
        interrupt: &'a Interrupt,
    },
    /// The call may run with its present arguments.
    Approved {
        /// The call.
        call: &'a ToolCall,
    },
    /// The call may not run: an approver or a gate denied it, or the tool or its rules changed
    /// after the interrupt was raised.
    Denied {
        /// The call.
        call: &'a ToolCall,
        /// The reason, if one was given.
        reason: Option<&'a Str>,
    },
    /// The approver provided a result, and the tool did not run.
    Answered {
        /// The call.
        call: &'a ToolCall,
        /// The provided result.
        result: &'a Value,
    },
    /// The interrupt ended without a decision, and the call was dropped.
    Cancelled {
        /// The call.
        call: &'a ToolCall,
    },
}
