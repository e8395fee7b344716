use super::{Claims, TokenError, TokenKeys, TokenSubject};
use crate::{
    Digest,
    panic::stored,
    rules::{Invalid, Verified, VerifyReplies},
};
use concentric_core::{
    Context, Decision, InterruptId, Reply, Str, ToolCall,
    store::{Once, Tenant},
};
use std::{
    fmt,
    sync::Arc,
    time::{Duration, SystemTime},
};

/// Signed approval tokens, for hosts that do not store interrupts: an interrupt carries a
/// [token](crate::token), and a reply that returns it is accepted once.
///
/// Interrupts that ask whether a call may run carry one, including those about edited arguments of
/// less than about 2 KiB. Interrupts for arguments that a layer changed, for unknown outcomes after
/// a crash, and of nested agents need the run's state: from a
/// [`RunStore`](concentric_core::store::RunStore), or in the process that raised them.
///
/// ```
/// use concentric_tools::{ApprovalTokens, Toolset, token::TokenKeys};
/// # use concentric_core::{Str, store::{Once, StoreFuture, Tenant}};
/// # use std::time::SystemTime;
///
/// # fn tools(store: impl Once, secret: Vec<u8>) -> Result<Toolset, Box<dyn std::error::Error>> {
/// let keys = TokenKeys::new("2026-11", secret)?;
/// // All processes that accept replies share `store`.
/// let tools = Toolset::new().tokens(ApprovalTokens::new(keys, "https://agent.example", store));
/// # Ok(tools)
/// # }
/// ```
#[derive(Clone)]
pub struct ApprovalTokens(Arc<Inner>);

#[derive(Clone)]
struct Inner {
    keys: TokenKeys,
    audience: Str,
    once: Arc<dyn Once>,
    lifetime: Duration,
}

/// The minimum time for which a used token is remembered.
const USED_FOR: Duration = Duration::from_secs(30 * 24 * 60 * 60);

/// The default lifetime of an interrupt.
const LIFETIME: Duration = Duration::from_secs(24 * 60 * 60);

/// The lookup of earlier uses failed.
const UNSURE: Invalid = Invalid("unsure");

/// A hundred years: longer times may overflow a `SystemTime`.
const LONGEST: Duration = Duration::from_secs(100 * 365 * 24 * 60 * 60);

impl ApprovalTokens {
    /// Creates tokens for `audience`, the name of this service; `once` ensures that each interrupt
    /// is answered once, even if it was raised repeatedly.
    pub fn new(keys: TokenKeys, audience: impl Into<Str>, once: impl Once) -> Self {
        Self(Arc::new(Inner {
            keys,
            audience: audience.into(),
            once: Arc::new(once),
            lifetime: LIFETIME,
        }))
    }

    /// Sets the lifetime of interrupts that do not set their own; the default is one day.
    ///
    /// The lifetime is limited by [`TokenKeys::max_lifetime`]. With zero, such an interrupt has no
    /// token, and cannot be answered with one.
    #[must_use]
    pub fn lifetime(mut self, lifetime: Duration) -> Self {
        Arc::make_mut(&mut self.0).lifetime = lifetime;
        self
    }

    fn subject(
        &self,
        call: &ToolCall,
        id: InterruptId,
        definition: Digest,
        policy: Digest,
    ) -> Option<TokenSubject> {
        let context = &call.context;
        Some(TokenSubject {
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

    /// How long an answered interrupt is remembered: its other tokens may be valid for longer than the
    /// used one.
    fn used_for(&self) -> Duration {
        self.0.keys.longest().clamp(USED_FOR, LONGEST)
    }

    async fn spend(
        &self,
        id: &InterruptId,
        context: &Context,
        keep: Duration,
    ) -> Result<(), Invalid> {
        // Not the token itself: listing an interrupt again creates another token for it (F38).
        let key = format!("token:{id}").into();
        let first = stored(|| self.0.once.once(Tenant::of(context), key, keep)).await;
        match first {
            Ok(true) => Ok(()),
            Ok(false) => Err(Invalid::USED),
            Err(error) => {
                tracing::error!(%error, "marking an approval token as used failed; the reply is rejected");
                Err(UNSURE)
            }
        }
    }
}

impl VerifyReplies for ApprovalTokens {
    fn lifetime_of(&self, wanted: Option<Duration>) -> Duration {
        let lifetime = wanted.unwrap_or(self.0.lifetime);
        lifetime.min(self.0.keys.longest()).min(LONGEST)
    }

    fn sign(
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
            Ok(token) => Some(token),
            Err(error) => {
                tracing::error!(%error, "signing an approval token failed; replies without the run's state are rejected");
                None
            }
        }
    }

    fn edited(&self, reply: &Reply, now: SystemTime) -> Result<Option<Str>, Invalid> {
        let token = reply.token.as_deref().ok_or(Invalid::MISSING)?;
        let claims = self.0.keys.open(token, now).map_err(Invalid::from)?;
        Ok(claims.edited)
    }

    fn check(
        &self,
        reply: &Reply,
        call: &ToolCall,
        definition: Digest,
        policy: Digest,
    ) -> Result<(), Invalid> {
        let token = reply.token.as_deref().ok_or(Invalid::MISSING)?;
        let subject = self
            .subject(call, reply.interrupt_id.clone(), definition, policy)
            .ok_or(Invalid::MISSING)?;
        let now = call.context.now();
        match self.0.keys.verify(token, &subject, now) {
            Ok(_) => Ok(()),
            // A denial executes nothing.
            Err(TokenError::Expired) if denies(reply) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    fn take<'a>(&'a self, reply: &'a Reply, context: &'a Context) -> Verified<'a> {
        Box::pin(self.spend(&reply.interrupt_id, context, self.used_for()))
    }

    fn decided<'a>(&'a self, id: &'a InterruptId, context: &'a Context) -> Verified<'a> {
        Box::pin(self.spend(id, context, LONGEST))
    }
}

/// Whether a reply denies or cancels its call.
fn denies(reply: &Reply) -> bool {
    matches!(
        reply.decision(),
        Ok(Decision::Denied { .. } | Decision::Cancelled)
    )
}

impl From<TokenError> for Invalid {
    fn from(error: TokenError) -> Self {
        match error {
            TokenError::Definition => Self::DEFINITION,
            TokenError::Policy => Self::POLICY,
            _ => Self(error.code()),
        }
    }
}

impl fmt::Debug for ApprovalTokens {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ApprovalTokens")
            .field("audience", &self.0.audience)
            .field("lifetime", &self.0.lifetime)
            .finish_non_exhaustive()
    }
}
