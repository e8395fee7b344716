use crate::{
    Digest,
    panic::stored,
    token::{Claims, Expected, Keys, Subject, TokenError},
};
use concentric_core::{
    Context, InterruptId, Reply, Ruling, Str, ToolCall,
    store::{Once, Tenant},
};
use std::{
    fmt,
    sync::Arc,
    time::{Duration, SystemTime},
};

/// Proofs that a call was asked about, for hosts that keep no record of it: the question carries a
/// [token](crate::token), and a reply that brings it back is believed, once.
///
/// The question whether a call may run carries one, and so does the question about arguments that a
/// person edited, if they have less than about 2 KiB. What a layer changed on the way, what a crash
/// leaves in doubt, and what an agent that is a tool asks are answered where the run's state is kept:
/// in a [`RunStore`](concentric_core::store::RunStore), or in the process that asked.
///
/// ```
/// use concentric_tools::{Tokens, Toolset, token::{Key, Keys}};
/// # use concentric_core::{Str, store::{Once, StoreFuture, Tenant}};
/// # use std::time::SystemTime;
///
/// # fn tools(store: impl Once, secret: Vec<u8>) -> Result<Toolset, Box<dyn std::error::Error>> {
/// let keys = Keys::new(Key::new("2026-11", secret)?);
/// // `store` is shared by all processes that take replies.
/// let tools = Toolset::new().tokens(Tokens::new(keys, "https://agent.example", store));
/// # Ok(tools)
/// # }
/// ```
#[derive(Clone)]
pub struct Tokens(Arc<Inner>);

#[derive(Clone)]
struct Inner {
    keys: Keys,
    audience: Str,
    once: Arc<dyn Once>,
    lifetime: Duration,
}

/// How long it is known at least that a question was answered.
const USED_FOR: Duration = Duration::from_secs(30 * 24 * 60 * 60);

/// How long a question can be answered that says nothing of it.
const LIFETIME: Duration = Duration::from_secs(24 * 60 * 60);

/// A hundred years: a longer time may be none that a clock can tell.
const LONGEST: Duration = Duration::from_secs(100 * 365 * 24 * 60 * 60);

impl Tokens {
    /// Creates proofs for `audience`, which names this service; `once` sees to it that each question
    /// is answered once, however often it was asked.
    pub fn new(keys: Keys, audience: impl Into<Str>, once: impl Once) -> Self {
        Self(Arc::new(Inner {
            keys,
            audience: audience.into(),
            once: Arc::new(once),
            lifetime: LIFETIME,
        }))
    }

    /// Sets how long a question can be answered that does not say so itself; the default is a day.
    ///
    /// No question can be answered for longer than a token [may count](Keys::max_lifetime). With zero,
    /// such a question has no token, and can't be answered by one.
    #[must_use]
    pub fn lifetime(mut self, lifetime: Duration) -> Self {
        Arc::make_mut(&mut self.0).lifetime = lifetime;
        self
    }

    /// How long a question can be answered that is to be answered within `wanted`.
    pub(super) fn lifetime_of(&self, wanted: Option<Duration>) -> Duration {
        let lifetime = wanted.unwrap_or(self.0.lifetime);
        lifetime.min(self.0.keys.longest()).min(LONGEST)
    }

    fn subject(
        &self,
        call: &ToolCall,
        id: InterruptId,
        definition: Digest,
        policy: Digest,
    ) -> Option<Subject> {
        let context = &call.context;
        Some(Subject {
            tenant: Tenant::of(context),
            audience: self.0.audience.clone(),
            message_id: context.message_id().cloned(),
            call_id: call.id().clone(),
            position: context.call_position()?,
            interrupt_id: id,
            tool: call.name().clone(),
            definition,
            policy,
            arguments: Digest::of_json(call.arguments().as_str()).ok()?,
        })
    }

    /// The proof that `call` was asked about; `edited`: with arguments that a person edited.
    pub(super) fn sign(
        &self,
        call: &ToolCall,
        id: InterruptId,
        definition: Digest,
        policy: Digest,
        expires_at: SystemTime,
        edited: bool,
    ) -> Option<Str> {
        let context = &call.context;
        let mut claims = Claims::new(
            self.subject(call, id, definition, policy)?,
            context.run_id().clone(),
            context.step(),
            context.new_id(""),
            context.now(),
            expires_at,
        );
        if edited {
            claims = claims.edited(call.arguments().as_str());
        }
        match self.0.keys.sign(&claims) {
            Ok(token) => Some(token.as_str().into()),
            Err(error) => {
                tracing::error!(%error, "a question can't be proved, and not be answered");
                None
            }
        }
    }

    /// The edited arguments that the proof of `reply` says the question was about, if it is one.
    ///
    /// # Errors
    ///
    /// No key of ours has signed it.
    pub(super) fn edited(&self, reply: &Reply, now: SystemTime) -> Result<Option<Str>, Invalid> {
        let token = reply.token.as_deref().ok_or(Invalid::Missing)?;
        let claims = self.0.keys.open(token, now).map_err(Invalid::Token)?;
        Ok(claims.edited)
    }

    /// Checks the proof of `reply` to a question about `call`, and does not use it up. One that has
    /// expired still proves a denial.
    ///
    /// # Errors
    ///
    /// Why it does not hold.
    pub(super) fn check(
        &self,
        reply: &Reply,
        call: &ToolCall,
        definition: Digest,
        policy: Digest,
    ) -> Result<(), Invalid> {
        let token = reply.token.as_deref().ok_or(Invalid::Missing)?;
        let subject = self
            .subject(call, reply.interrupt_id.clone(), definition, policy)
            .ok_or(Invalid::Missing)?;
        let now = call.context.now();
        match self.0.keys.verify(token, &Expected::new(subject), now) {
            Ok(_) => Ok(()),
            // Nothing runs by it.
            Err(TokenError::Expired) if denies(reply) => Ok(()),
            Err(error) => Err(Invalid::Token(error)),
        }
    }

    /// Uses the proof of `reply` up, with all others that were given for the same question.
    ///
    /// # Errors
    ///
    /// It was used before, or may have been.
    pub(super) async fn take(&self, reply: &Reply, context: &Context) -> Result<(), Invalid> {
        let until = self.used_until(context.now());
        self.spend(&reply.interrupt_id, context, until).await
    }

    /// Uses all proofs up that were given for a question that was decided about without one.
    ///
    /// # Errors
    ///
    /// They are used up, or may be.
    pub(super) async fn decided(&self, id: &InterruptId, context: &Context) -> Result<(), Invalid> {
        self.spend(id, context, later(context.now(), LONGEST)).await
    }

    /// Until when it must be known that a question was answered at `now`: other tokens of the same
    /// question may count for longer than the one that was used.
    fn used_until(&self, now: SystemTime) -> SystemTime {
        later(now, self.0.keys.longest().clamp(USED_FOR, LONGEST))
    }

    async fn spend(
        &self,
        id: &InterruptId,
        context: &Context,
        until: SystemTime,
    ) -> Result<(), Invalid> {
        // Not the token: whoever lists a question again gets another one for it (F38).
        let key = format!("token:{id}").into();
        let first = stored(|| self.0.once.once(Tenant::of(context), key, until)).await;
        match first {
            Ok(true) => Ok(()),
            Ok(false) => Err(Invalid::Used),
            Err(error) => {
                tracing::error!(%error, "a proof can't be used up, so it is not believed");
                Err(Invalid::Unsure)
            }
        }
    }
}

/// `by` after `now`; the latest time that a clock can tell, or `now` itself, if that is later.
fn later(now: SystemTime, by: Duration) -> SystemTime {
    let halves = std::iter::successors(Some(by), |by| (!by.is_zero()).then(|| *by / 2));
    let mut times = halves.map(|by| now.checked_add(by));
    times.find_map(|time| time).unwrap_or(now)
}

/// Whether a reply denies its call, or gives it up.
fn denies(reply: &Reply) -> bool {
    matches!(
        reply.ruling(),
        Ok(Ruling::Denied { .. } | Ruling::Cancelled)
    )
}

/// Why a reply is not believed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Invalid {
    /// There is no proof.
    Missing,
    /// It is not one, or not of this.
    Token(TokenError),
    /// It was used before.
    Used,
    /// Whether it was used before is not known.
    Unsure,
    /// The question does not accept such a reply.
    NotAccepted,
    /// The edited arguments are none that the tool takes.
    Edit,
}

impl Invalid {
    pub(super) const fn code(self) -> &'static str {
        match self {
            Self::Missing => "missing",
            Self::Token(error) => error.code(),
            Self::Used => "used",
            Self::Unsure => "unsure",
            Self::NotAccepted => "reply_not_accepted",
            Self::Edit => "invalid_edit",
        }
    }

    /// Whether the tool, or the policy, is another than when it was asked.
    pub(super) const fn is_drift(self) -> bool {
        matches!(
            self,
            Self::Token(TokenError::Definition | TokenError::Policy)
        )
    }
}

impl fmt::Debug for Tokens {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tokens")
            .field("audience", &self.0.audience)
            .field("lifetime", &self.0.lifetime)
            .finish_non_exhaustive()
    }
}
