//! Verification of replies to interrupts that are not stored.

use crate::Digest;
use concentric_core::{Context, InterruptId, Reply, Str, ToolCall};
use std::{
    fmt,
    future::Future,
    pin::Pin,
    time::{Duration, SystemTime},
};

/// The future of a [`VerifyReplies`].
pub(crate) type Verified<'a> = Pin<Box<dyn Future<Output = Result<(), Invalid>> + Send + 'a>>;

/// Proofs that interrupts carry and replies return.
pub(crate) trait VerifyReplies: fmt::Debug + Send + Sync {
    /// The time to reply to an interrupt that requests a reply within `wanted`.
    fn lifetime_of(&self, wanted: Option<Duration>) -> Duration;

    /// The proof of an interrupt about `call`; `edited`: with arguments that a person edited.
    fn sign(
        &self,
        call: &ToolCall,
        id: InterruptId,
        definition: Digest,
        policy: Digest,
        expires_at: SystemTime,
        edited: bool,
    ) -> Option<Str>;

    /// The edited arguments that the interrupt was about according to the proof of `reply`.
    ///
    /// # Errors
    ///
    /// The proof is not authentic.
    fn edited(&self, reply: &Reply, now: SystemTime) -> Result<Option<Str>, Invalid>;

    /// Checks the proof of a `reply` about `call` without using it up. An expired one still proves a
    /// denial.
    ///
    /// # Errors
    ///
    /// The proof is not valid.
    fn check(
        &self,
        reply: &Reply,
        call: &ToolCall,
        definition: Digest,
        policy: Digest,
    ) -> Result<(), Invalid>;

    /// Uses up the proof of `reply`, with all others of the same interrupt.
    ///
    /// # Errors
    ///
    /// The proof was used before, or may have been.
    fn take<'a>(&'a self, reply: &'a Reply, context: &'a Context) -> Verified<'a>;

    /// Uses up all proofs of an interrupt that was decided without one.
    ///
    /// # Errors
    ///
    /// A proof was used before, or may have been.
    fn decided<'a>(&'a self, id: &'a InterruptId, context: &'a Context) -> Verified<'a>;
}

/// The reason why a reply is rejected: a code for logs and clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Invalid(pub(crate) &'static str);

impl Invalid {
    /// The reply has no proof.
    pub(crate) const MISSING: Self = Self("missing");
    /// The proof of the reply was used before.
    pub(crate) const USED: Self = Self("used");
    /// Its interrupt does not accept such a reply.
    pub(crate) const NOT_ACCEPTED: Self = Self("reply_not_accepted");
    /// Its edited arguments are not valid for the tool.
    pub(crate) const EDIT: Self = Self("invalid_edit");
    /// The tool has changed since the interrupt.
    pub(crate) const DEFINITION: Self = Self("definition");
    /// The policy has changed since the interrupt.
    pub(crate) const POLICY: Self = Self("policy");

    pub(crate) const fn code(self) -> &'static str {
        self.0
    }

    /// Whether the tool or the policy has changed since the interrupt.
    pub(crate) fn is_drift(self) -> bool {
        self == Self::DEFINITION || self == Self::POLICY
    }
}
