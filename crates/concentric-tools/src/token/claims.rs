use super::TokenError;
use crate::Digest;
use concentric_core::{CallId, InterruptId, MessageId, RunId, Str, store::Tenant};
use std::time::SystemTime;

/// The subject of an approval, determined independently by the issuer and the verifier.
///
/// There is no constructor: a struct literal ensures that every field is set, and that a new field
/// is a compile error.
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
    /// The run that raised the interrupt. Another run may receive the reply.
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

/// The expectations of a verifier, from its own knowledge.
///
/// The whole [`TokenSubject`] is expected: the call and its arguments are in the resumed transcript, the
/// tool and the policy are configured, the tenant is authenticated. The issuing run is only known
/// to a verifier that stores runs: a client resumes in a new run, whose steps start at 0.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Expected {
    /// The expected subject.
    pub subject: TokenSubject,
    /// The expected issuing run; any, if `None`.
    pub run_id: Option<RunId>,
    /// The expected issuing step; any, if `None`.
    pub step: Option<u32>,
}

impl Expected {
    /// Expects an approval of `subject`, issued by any run.
    pub const fn new(subject: TokenSubject) -> Self {
        Self {
            subject,
            run_id: None,
            step: None,
        }
    }

    /// Expects the given run and step as the issuer.
    #[must_use]
    pub fn asked_by(mut self, run_id: RunId, step: u32) -> Self {
        self.run_id = Some(run_id);
        self.step = Some(step);
        self
    }

    pub(super) fn check(&self, claims: &Claims) -> Result<(), TokenError> {
        // Destructured, so that a new field is a compile error here.
        let TokenSubject {
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
        } = &claims.subject;
        let of = &self.subject;
        let run = self.run_id.as_ref();
        let checks = [
            (*tenant == of.tenant, TokenError::Tenant),
            (*audience == of.audience, TokenError::Audience),
            (run.is_none_or(|run| *run == claims.run_id), TokenError::Run),
            (
                self.step.is_none_or(|step| step == claims.step),
                TokenError::Step,
            ),
            (*message_id == of.message_id, TokenError::Message),
            (*call_id == of.call_id, TokenError::Call),
            (*position == of.position, TokenError::Position),
            (*interrupt_id == of.interrupt_id, TokenError::Interrupt),
            (*tool == of.tool, TokenError::Tool),
            (*definition == of.definition, TokenError::Definition),
            (*policy == of.policy, TokenError::Policy),
            (*arguments == of.arguments, TokenError::Arguments),
        ];
        match checks.into_iter().find(|(holds, _)| !holds) {
            None => Ok(()),
            Some((_, error)) => Err(error),
        }
    }
}
