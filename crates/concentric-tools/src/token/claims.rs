use super::TokenError;
use crate::Digest;
use concentric_core::{CallId, InterruptId, MessageId, RunId, Str, store::Tenant};
use std::time::SystemTime;

/// The subject of an approval, determined independently by the issuer and the verifier.
///
/// The call and its arguments are in the resumed transcript, the tool and the policy are configured,
/// the tenant is authenticated. There is no constructor: a struct literal ensures that every field is
/// set, and that a new field is a compile error.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenSubject {
    /// The tenant of the call, from the request's authentication.
    pub tenant: Tenant,
    /// The service that issues the token, and that alone accepts it.
    pub audience: Str,
    /// The message that contains the call.
    pub message_id: Option<MessageId>,
    /// The call (`gen_ai.tool.call.id`).
    pub call_id: CallId,
    /// The index of the call in its message, from 0.
    pub position: usize,
    /// The interrupt (AG-UI `interruptId`).
    pub interrupt_id: InterruptId,
    /// The tool's name (`gen_ai.tool.name`).
    pub tool: Str,
    /// The tool's definition ([`Digest::of_spec`]).
    pub definition: Digest,
    /// The policy under which the call requires an approval.
    pub policy: Digest,
    /// The call's arguments ([`Digest::of_json`]).
    pub arguments: Digest,
}

/// The contents of a token.
///
/// Times have a resolution of milliseconds.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Claims {
    /// The subject of the approval.
    pub subject: TokenSubject,
    /// The run that raised the interrupt. Another run, whose steps start at 0, may receive the reply.
    pub run_id: RunId,
    /// The step that raised the interrupt, from 0.
    pub step: u32,
    /// The unique id of this token, to be used up by the verifier.
    pub nonce: Str,
    /// The arguments that the interrupt is about, if an approver edited those in the transcript.
    pub edited: Option<Str>,
    /// The time of issue.
    pub issued_at: SystemTime,
    /// The time from which the token is invalid.
    pub expires_at: SystemTime,
}

impl Claims {
    /// Creates the claims for an interrupt that was raised by `step` of the run at `issued_at`.
    pub fn new(
        subject: TokenSubject,
        run_id: RunId,
        step: u32,
        nonce: impl Into<Str>,
        issued_at: SystemTime,
        expires_at: SystemTime,
    ) -> Self {
        Self {
            subject,
            run_id,
            step,
            nonce: nonce.into(),
            edited: None,
            issued_at,
            expires_at,
        }
    }

    /// Sets the edited arguments that the interrupt is about; [`TokenSubject::arguments`] must be their
    /// digest.
    #[must_use]
    pub fn edited(mut self, arguments: impl Into<Str>) -> Self {
        self.edited = Some(arguments.into());
        self
    }
}

impl TokenSubject {
    pub(super) fn check(&self, signed: &Self) -> Result<(), TokenError> {
        // Destructured, so that a new field is a compile error here.
        let Self {
            tenant,
            audience,
            message_id,
            call_id,
            position,
            interrupt_id,
            tool,
            definition,
            policy,
            arguments,
        } = signed;
        let checks = [
            (*tenant == self.tenant, TokenError::Tenant),
            (*audience == self.audience, TokenError::Audience),
            (*message_id == self.message_id, TokenError::Message),
            (*call_id == self.call_id, TokenError::Call),
            (*position == self.position, TokenError::Position),
            (*interrupt_id == self.interrupt_id, TokenError::Interrupt),
            (*tool == self.tool, TokenError::Tool),
            (*definition == self.definition, TokenError::Definition),
            (*policy == self.policy, TokenError::Policy),
            (*arguments == self.arguments, TokenError::Arguments),
        ];
        match checks.into_iter().find(|(holds, _)| !holds) {
            None => Ok(()),
            Some((_, error)) => Err(error),
        }
    }
}
