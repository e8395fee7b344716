use concentric_core::{
    Interrupt, LiveInterrupts, ReplyKind, Str, ToolCall, interrupt::Remember, method::catch,
    store::Decisions,
};
use serde_json::Value;
use std::{collections::BTreeSet, fmt, sync::Arc, time::Duration};

/// How somebody is asked about a call.
#[derive(Clone, Default)]
pub struct Ask {
    pub(crate) message: Option<Str>,
    pub(crate) expires_after: Option<Duration>,
    pub(crate) live: Option<(LiveInterrupts, Duration)>,
    pub(crate) decisions: Option<Arc<dyn Decisions>>,
    pub(crate) remember_at_most: Option<Remember>,
    replies: Option<Arc<BTreeSet<ReplyKind>>>,
    watchers: Vec<Watcher>,
}

/// The kinds of reply that a question accepts unless it says otherwise.
const DEFAULT_REPLIES: [ReplyKind; 2] = [ReplyKind::Approve, ReplyKind::Deny];

type Watcher = Arc<dyn Fn(&ApprovalEvent<'_>) + Send + Sync>;

impl Ask {
    /// Says what is asked.
    #[must_use]
    pub fn message(mut self, message: impl Into<Str>) -> Self {
        self.message = Some(message.into());
        self
    }

    /// Sets how long the question can be answered.
    #[must_use]
    pub fn expires_after(mut self, time: Duration) -> Self {
        self.expires_after = Some(time);
        self
    }

    /// Sets the kinds of reply that the question accepts; see
    /// [`Approval::replies`](crate::Approval::replies).
    #[must_use]
    pub fn replies(mut self, kinds: impl IntoIterator<Item = ReplyKind>) -> Self {
        self.replies = Some(Arc::new(kinds.into_iter().collect()));
        self
    }

    /// The kinds of reply that the question accepts.
    pub(crate) fn accepted(&self) -> BTreeSet<ReplyKind> {
        match &self.replies {
            Some(kinds) => BTreeSet::clone(kinds),
            None => DEFAULT_REPLIES.into(),
        }
    }

    /// The kinds of reply that were set, if they are not the default.
    pub(super) fn unusual_replies(&self) -> Option<BTreeSet<ReplyKind>> {
        let kinds = self.accepted();
        (kinds != DEFAULT_REPLIES.into()).then_some(kinds)
    }

    pub(super) fn watch(
        mut self,
        watch: impl Fn(&ApprovalEvent<'_>) + Send + Sync + 'static,
    ) -> Self {
        self.watchers.push(Arc::new(watch));
        self
    }

    pub(super) fn remember(mut self, decisions: Arc<dyn Decisions>) -> Self {
        self.decisions = Some(decisions);
        self
    }

    pub(super) fn remember_at_most(mut self, most: Remember) -> Self {
        self.remember_at_most = Some(most);
        self
    }

    pub(super) fn live(mut self, live: LiveInterrupts, timeout: Duration) -> Self {
        self.live = Some((live, timeout));
        self
    }

    /// One question for two gates: the shorter time and the narrower limit hold, it accepts what
    /// both accept, and both are told.
    pub(crate) fn and(mut self, other: Self) -> Self {
        let replies = match (&self.replies, &other.replies) {
            (None, None) => None,
            _ => Some(Arc::new(&self.accepted() & &other.accepted())),
        };
        self.watched_by(other.watchers);
        let limits = [self.remember_at_most, other.remember_at_most];
        let times = [self.expires_after, other.expires_after];
        Self {
            message: self.message.or(other.message),
            expires_after: times.into_iter().flatten().min(),
            // A gate that suspends does not want the run to stay open.
            live: self.live.zip(other.live).map(|(live, _)| live),
            decisions: self.decisions.or(other.decisions),
            remember_at_most: limits.into_iter().flatten().reduce(narrower),
            replies,
            watchers: self.watchers,
        }
    }

    /// This question, and where it says nothing, the other; both are told.
    pub(super) fn before(mut self, other: Self) -> Self {
        self.watched_by(other.watchers);
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

    /// Whom it concerns, without the question.
    pub(crate) fn only_watched(self) -> Self {
        Self {
            watchers: self.watchers,
            ..Self::default()
        }
    }

    /// Each watcher is told once, by whichever way it came here.
    fn watched_by(&mut self, watchers: Vec<Watcher>) {
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

    /// Tells those who want to know.
    pub(crate) fn tell(&self, event: &ApprovalEvent<'_>) {
        for watch in &self.watchers {
            if catch(|| watch(event)).is_err() {
                tracing::error!("a watcher of approvals panicked");
            }
        }
    }

    pub(crate) fn is_watched(&self) -> bool {
        !self.watchers.is_empty()
    }
}

/// What two limits allow both.
fn narrower(a: Remember, b: Remember) -> Remember {
    Remember {
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

/// What happens to a question: it is asked, and has one of the ends; see
/// [`Approval::watch`](crate::Approval::watch).
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum ApprovalEvent<'a> {
    /// Somebody is asked.
    Requested {
        /// The call.
        call: &'a ToolCall,
        /// The question.
        interrupt: &'a Interrupt,
    },
    /// The call may run, with the arguments it has now.
    Approved {
        /// The call.
        call: &'a ToolCall,
    },
    /// The call may not run: somebody, or a gate, said so, or the tool or the rules for it changed
    /// since it was asked about.
    Denied {
        /// The call.
        call: &'a ToolCall,
        /// Why.
        reason: Option<&'a Str>,
    },
    /// A person supplied a result instead of the tool, which did not run.
    Answered {
        /// The call.
        call: &'a ToolCall,
        /// Its result.
        result: &'a Value,
    },
    /// Nobody decided, and the call was given up.
    Cancelled {
        /// The call.
        call: &'a ToolCall,
    },
}
