use super::TokenError;
use crate::Digest;
use concentric_core::{CallId, InterruptId, MessageId, RunId, Str, store::Tenant};
use std::time::SystemTime;

/// What an approval is for: what both the one who asks and the one who verifies the answer see for
/// themselves, and must see alike.
///
/// It is made by a literal, so that none of it is forgotten; a field that is added breaks whoever
/// makes one, on purpose.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Subject {
    /// Whose call it is, by the request's authentication.
    pub tenant: Tenant,
    /// The service that asks, and that alone may take the answer.
    pub audience: Str,
    /// The message that makes the call.
    pub message_id: Option<MessageId>,
    /// The call (`gen_ai.tool.call.id`).
    pub call_id: CallId,
    /// Which of its message's calls it is, from 0.
    pub position: usize,
    /// The question (AG-UI `interruptId`).
    pub interrupt_id: InterruptId,
    /// The tool's name (`gen_ai.tool.name`).
    pub tool: Str,
    /// The tool's definition ([`Digest::of_spec`]).
    pub definition: Digest,
    /// The policy by which the call needs an approval.
    pub policy: Digest,
    /// The call's arguments ([`Digest::of_json`]).
    pub arguments: Digest,
}

/// What a token says.
///
/// Its times are kept in whole milliseconds.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Claims {
    /// What was asked about.
    pub subject: Subject,
    /// The run that asked. The one that gets the answer may be another.
    pub run_id: RunId,
    /// The step that asked, from 0.
    pub step: u32,
    /// Names this token; no other one may have it. To be spent, for single use.
    pub nonce: Str,
    /// The arguments that the question is about, if they are not those that the call has in the
    /// transcript: a person has edited them.
    pub edited: Option<Str>,
    /// When it was asked.
    pub issued_at: SystemTime,
    /// From when on the token does not count.
    pub expires_at: SystemTime,
}

impl Claims {
    /// Creates the claims of one question, asked by `step` of the run at `issued_at`.
    pub fn new(
        subject: Subject,
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

    /// Says that the question is about arguments that a person has edited; the
    /// [subject's](Subject::arguments) digest is that of these.
    #[must_use]
    pub fn edited(mut self, arguments: impl Into<Str>) -> Self {
        self.edited = Some(arguments.into());
        self
    }
}

/// What a verifier knows by itself, and wants a token to say.
///
/// All of the [`Subject`]: the call and its arguments are in the transcript that is resumed, the
/// tool and the policy are the verifier's own, the tenant is authenticated. Of the run that asked
/// it knows nothing, unless it keeps one: a client resumes in a new run, whose steps are counted
/// anew.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Expected {
    /// What the token must be for.
    pub subject: Subject,
    /// The run that must have asked; any, if `None`.
    pub run_id: Option<RunId>,
    /// The step that must have asked; any, if `None`.
    pub step: Option<u32>,
}

impl Expected {
    /// Expects an approval of `subject`, whichever run asked.
    pub const fn new(subject: Subject) -> Self {
        Self {
            subject,
            run_id: None,
            step: None,
        }
    }

    /// Expects this very run and step to have asked.
    #[must_use]
    pub fn asked_by(mut self, run_id: RunId, step: u32) -> Self {
        self.run_id = Some(run_id);
        self.step = Some(step);
        self
    }

    pub(super) fn check(&self, claims: &Claims) -> Result<(), TokenError> {
        // Taken apart, so that a new field can't be forgotten here.
        let Subject {
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
