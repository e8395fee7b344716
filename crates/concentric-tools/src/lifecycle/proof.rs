use crate::{
    Digest,
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
/// Only the first question about a call carries one. What a layer changed on the way, what a crash
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
    /// No question can be answered for longer than a token [may count](Keys::max_lifetime).
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

    /// The proof that `call` was asked about.
    pub(super) fn sign(
        &self,
        call: &ToolCall,
        id: InterruptId,
        definition: Digest,
        policy: Digest,
        expires_at: SystemTime,
    ) -> Option<Str> {
        let context = &call.context;
        let claims = Claims::new(
            self.subject(call, id, definition, policy)?,
            context.run_id().clone(),
            context.step(),
            context.new_id(""),
            context.now(),
            expires_at,
        );
        match self.0.keys.sign(&claims) {
            Ok(token) => Some(token.as_str().into()),
            Err(error) => {
                tracing::error!(%error, "a question can't be proved, and not be answered");
                None
            }
        }
    }

    /// Checks the proof of `reply` to a question about `call`, and uses it up, with all others that
    /// were given for the same question. One that has expired still proves a denial.
    ///
    /// # Errors
    ///
    /// Why it does not hold.
    pub(super) async fn verify(
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
        let until = match self.0.keys.verify(token, &Expected::new(subject), now) {
            Ok(claims) => (now + USED_FOR).max(claims.expires_at),
            // Nothing runs by it.
            Err(TokenError::Expired) if denies(reply) => now + USED_FOR,
            Err(error) => return Err(Invalid::Token(error)),
        };
        self.spend(&reply.interrupt_id, &call.context, until).await
    }

    /// Uses all proofs up that were given for a question that was decided about without one.
    ///
    /// # Errors
    ///
    /// They are used up, or may be.
    pub(super) async fn decided(&self, id: &InterruptId, context: &Context) -> Result<(), Invalid> {
        let until = context.now() + USED_FOR.max(LONGEST);
        self.spend(id, context, until).await
    }

    async fn spend(
        &self,
        id: &InterruptId,
        context: &Context,
        until: SystemTime,
    ) -> Result<(), Invalid> {
        // Not the token: whoever lists a question again gets another one for it (F38).
        let key = format!("token:{id}").into();
        match self.0.once.once(Tenant::of(context), key, until).await {
            Ok(true) => Ok(()),
            Ok(false) => Err(Invalid::Used),
            Err(error) => {
                tracing::error!(%error, "a proof can't be used up, so it is not believed");
                Err(Invalid::Unsure)
            }
        }
    }
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
}

impl Invalid {
    pub(super) const fn code(self) -> &'static str {
        match self {
            Self::Missing => "missing",
            Self::Token(error) => error.code(),
            Self::Used => "used",
            Self::Unsure => "unsure",
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
