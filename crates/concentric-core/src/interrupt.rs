//! Questions that a run waits for the answer of, and the answers.
//!
//! A run that ends with [`Outcome::Interrupted`](crate::Outcome::Interrupted) has asked something:
//! [`MachineState::interrupts`](crate::machine::MachineState::interrupts) says what. It goes on by a
//! request that holds its state and the replies ([`ChatRequest::resume`](crate::ChatRequest::resume)).
//!
//! ```
//! use concentric_core::{Interrupt, InterruptId, Reply, interrupt};
//! use serde_json::json;
//!
//! let ask = Interrupt::new(InterruptId::new("msg_1/0/call_1"), interrupt::TOOL_CALL)
//!     .with_message("May I pay the money back?");
//!
//! let reply = Reply::approve(ask.id.clone());
//! assert_eq!(reply.payload, Some(json!({"approved": true})));
//! ```

use crate::{CallId, InterruptId, MessageId, Str};
use serde::{Deserialize, Serialize, Serializer, de::DeserializeOwned};
use serde_json::{Map, Value, json};
use std::{
    borrow::Cow, collections::BTreeSet, error::Error as StdError, fmt, sync::Arc, time::SystemTime,
};

/// The [reason](Interrupt::reason) of a question whether a tool call may run.
pub const TOOL_CALL: Str = Str::from_static("tool_call");

/// The [reason](Interrupt::reason) of a question what came of a call that was started, when the
/// process died.
pub const UNKNOWN_EFFECT: Str = Str::from_static("unknown_effect");

/// The [reason](Interrupt::reason) of a call of a tool that the client executes.
pub const CLIENT_TOOL: Str = Str::from_static("client_tool");

/// The metadata of a question that lists the kinds of reply that it accepts.
const REPLIES: &str = "replies";

/// A question that a run waits for the answer of (AG-UI `Interrupt`).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct Interrupt {
    /// Names the question; no other question of any run has the same id.
    pub id: InterruptId,
    /// What kind of question it is: [`TOOL_CALL`], [`UNKNOWN_EFFECT`], [`CLIENT_TOOL`], or another.
    pub reason: Str,
    /// The question, for a person.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<Str>,
    /// The call it is about.
    #[serde(
        default,
        rename = "toolCallId",
        skip_serializing_if = "Option::is_none"
    )]
    pub call_id: Option<CallId>,
    /// The JSON Schema of a reply's payload.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub response_schema: Option<Arc<Value>>,
    /// Until when it can be answered.
    #[serde(default, with = "millis", skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<SystemTime>,
    /// What else there is to know: the tool and its arguments, a token.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub metadata: Map<String, Value>,
}

impl Interrupt {
    /// Creates a question.
    pub fn new(id: InterruptId, reason: impl Into<Str>) -> Self {
        Self {
            id,
            reason: reason.into(),
            message: None,
            call_id: None,
            response_schema: None,
            expires_at: None,
            metadata: Map::new(),
        }
    }

    /// Says what is asked.
    #[must_use]
    pub fn with_message(mut self, message: impl Into<Str>) -> Self {
        self.message = Some(message.into());
        self
    }

    /// Says which call it is about.
    #[must_use]
    pub fn about(mut self, call: CallId) -> Self {
        self.call_id = Some(call);
        self
    }

    /// Says what a reply's payload is to be.
    #[must_use]
    pub fn with_response_schema(mut self, schema: impl Into<Arc<Value>>) -> Self {
        self.response_schema = Some(schema.into());
        self
    }

    /// Says until when it can be answered.
    #[must_use]
    pub fn until(mut self, expires_at: SystemTime) -> Self {
        self.expires_at = Some(expires_at);
        self
    }

    /// Adds something to know.
    #[must_use]
    pub fn with_metadata(mut self, name: impl Into<String>, value: impl Into<Value>) -> Self {
        self.metadata.insert(name.into(), value.into());
        self
    }

    /// Sets the kinds of reply that the question accepts; by default, all. A cancellation is always
    /// accepted.
    #[must_use]
    pub fn with_replies(self, kinds: impl IntoIterator<Item = ReplyKind>) -> Self {
        let kinds: BTreeSet<ReplyKind> = kinds.into_iter().collect();
        self.with_metadata(REPLIES, json!(kinds))
    }

    /// Whether the question accepts replies of that kind, by its metadata (`replies`).
    ///
    /// A question that lists no kinds, as one that an older version stored, accepts all of them.
    pub fn accepts(&self, kind: ReplyKind) -> bool {
        let Some(kinds) = self.metadata.get(REPLIES) else {
            return true;
        };
        let mut kinds = kinds.as_array().into_iter().flatten();
        kinds.any(|it| it.as_str() == Some(kind.as_str()))
    }

    /// Whether the question lists the kinds of reply that it accepts.
    pub fn lists_replies(&self) -> bool {
        self.metadata.contains_key(REPLIES)
    }

    /// The tool that it asks about.
    pub fn tool(&self) -> Option<&str> {
        self.metadata.get("tool")?.as_str()
    }

    /// What the tool is to be called with.
    pub fn arguments(&self) -> Option<&Value> {
        self.metadata.get("arguments")
    }

    /// Checks that `reply` is of a form that this question can be answered in, and in time: to deny a
    /// call, or to give it up, it is never too late.
    ///
    /// # Errors
    ///
    /// It is not.
    pub fn check(&self, reply: &Reply, now: SystemTime) -> Result<(), ReplyError> {
        let late = self.expires_at.is_some_and(|expires_at| expires_at <= now);
        let expired = || Err(ReplyError::Expired(self.id.clone()));
        if ![TOOL_CALL, UNKNOWN_EFFECT, CLIENT_TOOL].contains(&self.reason) {
            return match reply.status {
                ReplyStatus::Cancelled if reply.payload.is_some() => {
                    Err(reply.malformed("a cancellation has no payload"))
                }
                ReplyStatus::Resolved if late => expired(),
                _ => Ok(()),
            };
        }
        let ruling = reply.ruling()?;
        let fits = match &ruling {
            Ruling::Cancelled | Ruling::Answered(_) => true,
            Ruling::Denied { .. } => self.reason != UNKNOWN_EFFECT,
            // Only who ran a call can say that it failed.
            Ruling::Failed(_) => self.reason == CLIENT_TOOL,
            // Only an executor of ours can be told to run.
            Ruling::Approved { .. } => self.reason == TOOL_CALL,
        };
        if !fits {
            return Err(reply.malformed("this question is not answered that way"));
        }
        if let Some(kind) = ruling.kind()
            && !self.accepts(kind)
        {
            let kind = kind.as_str();
            return Err(reply.malformed(format!("the question does not accept the reply `{kind}`")));
        }
        match &ruling {
            Ruling::Approved { remember, .. } | Ruling::Denied { remember, .. }
                if remember.is_some_and(|remember| !self.allows(remember)) =>
            {
                Err(reply.malformed("it is to hold for more than the question allows"))
            }
            Ruling::Cancelled | Ruling::Denied { .. } => Ok(()),
            _ if late => expired(),
            _ => Ok(()),
        }
    }

    /// Whether a reply may hold for other calls as `remember` says; a question that does not speak of
    /// them lets it say what it likes.
    fn allows(&self, remember: Remember) -> bool {
        let schema = self.response_schema.as_deref();
        let among = |name: &str, value: Value| {
            let at = format!("/properties/remember/properties/{name}/enum");
            let all = schema.and_then(|schema| schema.pointer(&at)?.as_array());
            all.is_none_or(|all| all.contains(&value))
        };
        among("what", json!(remember.what)) && among("for", json!(remember.span))
    }
}

/// The id of the question about the `position`th call of a message.
pub(crate) fn key(message: Option<&MessageId>, position: usize, call: &CallId) -> Str {
    let message = message.map_or("-", MessageId::as_str);
    format!("{message}/{position}/{call}").into()
}

/// Which call of a message a question of that [`key`] is about, if there is such a call.
pub(crate) fn position(message: Option<&MessageId>, id: &str) -> Option<usize> {
    let message = message.map_or("-", MessageId::as_str);
    let rest = id.strip_prefix(message)?.strip_prefix('/')?;
    rest.split_once('/')?.0.parse().ok()
}

/// The answer to one [`Interrupt`] (AG-UI `ResumeEntry`).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct Reply {
    /// The question.
    pub interrupt_id: InterruptId,
    /// Whether it was answered at all.
    pub status: ReplyStatus,
    /// The answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub payload: Option<Value>,
    /// The proof that the question was asked, if whoever asked keeps no record of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token: Option<Str>,
}

/// Whether a question was answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum ReplyStatus {
    /// It was.
    Resolved,
    /// Nobody wanted to answer.
    Cancelled,
}

impl Reply {
    /// Creates an answer.
    pub fn resolve(to: InterruptId, payload: Value) -> Self {
        Self {
            interrupt_id: to,
            status: ReplyStatus::Resolved,
            payload: Some(payload),
            token: None,
        }
    }

    /// Lets a call run as it is.
    pub fn approve(to: InterruptId) -> Self {
        Self::resolve(to, json!({"approved": true}))
    }

    /// Lets a call run with other arguments, an object.
    #[allow(
        clippy::needless_pass_by_value,
        reason = "the reply is made of it, as by `resolve`"
    )]
    pub fn approve_edited(to: InterruptId, arguments: Value) -> Self {
        Self::resolve(to, json!({"approved": true, "editedArgs": arguments}))
    }

    /// Does not let a call run; the model is told why.
    pub fn deny(to: InterruptId, reason: impl Into<String>) -> Self {
        Self::resolve(to, json!({"approved": false, "reason": reason.into()}))
    }

    /// Answers a call with a result, and does not run it.
    pub fn answer(to: InterruptId, result: impl Into<Value>) -> Self {
        Self::resolve(to, json!({"result": result.into()}))
    }

    /// Says that the client ran a call of its own ([`CLIENT_TOOL`]), and that it failed; the model is
    /// told how.
    pub fn answer_failed(to: InterruptId, error: impl Into<String>) -> Self {
        Self::resolve(to, json!({"error": error.into()}))
    }

    /// Gives the question up.
    pub fn cancel(to: InterruptId) -> Self {
        Self {
            interrupt_id: to,
            status: ReplyStatus::Cancelled,
            payload: None,
            token: None,
        }
    }

    /// Says that an approval or a denial holds for more than its call, where the question's schema
    /// has `remember`.
    #[must_use]
    pub fn remembered(mut self, what: RememberWhat, span: RememberFor) -> Self {
        if let Some(Value::Object(payload)) = &mut self.payload {
            payload.insert("remember".to_owned(), json!({"what": what, "for": span}));
        }
        self
    }

    /// Adds the proof that the question was asked.
    #[must_use]
    pub fn with_token(mut self, token: impl Into<Str>) -> Self {
        self.token = Some(token.into());
        self
    }

    /// The answer, as a `T`.
    ///
    /// # Errors
    ///
    /// [`ReplyError::Malformed`]: there is none, or it is not a `T`.
    pub fn read<T>(&self) -> Result<T, ReplyError>
    where
        T: DeserializeOwned,
    {
        let payload = self.payload.as_ref();
        let payload = payload.filter(|_| self.status == ReplyStatus::Resolved);
        let payload = payload.ok_or_else(|| self.malformed("it has no payload"))?;
        T::deserialize(payload).map_err(|error| self.malformed(format!("its payload: {error}")))
    }

    /// What the reply says about a tool call.
    ///
    /// # Errors
    ///
    /// [`ReplyError::Malformed`]: it says nothing, or contradicts itself.
    pub fn ruling(&self) -> Result<Ruling, ReplyError> {
        let payload = match (self.status, &self.payload) {
            (ReplyStatus::Cancelled, None) => return Ok(Ruling::Cancelled),
            (ReplyStatus::Cancelled, Some(_)) => {
                return Err(self.malformed("a cancellation has no payload"));
            }
            (ReplyStatus::Resolved, None) => return Err(self.malformed("it has no payload")),
            (ReplyStatus::Resolved, Some(payload)) => payload,
        };
        let payload = Payload::deserialize(payload)
            .map_err(|error| self.malformed(format!("its payload: {error}")))?;
        let Payload {
            approved,
            edited_args,
            reason,
            result,
            error,
            remember,
        } = payload;
        if let Some(error) = error {
            let alone = approved.is_none()
                && edited_args.is_none()
                && reason.is_none()
                && result.is_none()
                && remember.is_none();
            return match alone {
                true => Ok(Ruling::Failed(error)),
                false => Err(self.malformed("its parts contradict each other")),
            };
        }
        match (approved, result) {
            (None | Some(true), Some(result))
                if edited_args.is_none() && reason.is_none() && remember.is_none() =>
            {
                Ok(Ruling::Answered(result))
            }
            (Some(true), None) if reason.is_none() => Ok(Ruling::Approved {
                edited: edited_args,
                remember,
            }),
            (Some(false), None) if edited_args.is_none() => Ok(Ruling::Denied { reason, remember }),
            (None, None) => Err(self.malformed("it says none of `approved`, `result` and `error`")),
            _ => Err(self.malformed("its parts contradict each other")),
        }
    }

    fn malformed(&self, why: impl Into<Str>) -> ReplyError {
        ReplyError::Malformed {
            id: self.interrupt_id.clone(),
            why: why.into(),
        }
    }
}

/// The payload of a reply about a tool call.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Payload {
    approved: Option<bool>,
    edited_args: Option<Map<String, Value>>,
    reason: Option<Str>,
    // `null` is a result, too.
    #[serde(default, deserialize_with = "some")]
    result: Option<Value>,
    error: Option<Str>,
    remember: Option<Remember>,
}

fn some<'de, D>(deserializer: D) -> Result<Option<Value>, D::Error>
where
    D: serde::Deserializer<'de>,
{
    Value::deserialize(deserializer).map(Some)
}

/// What a [`Reply`] says about a tool call.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Ruling {
    /// It may run.
    Approved {
        /// With these arguments, if they were changed.
        edited: Option<Map<String, Value>>,
        /// What it is to mean for other calls.
        remember: Option<Remember>,
    },
    /// It may not run.
    Denied {
        /// Why.
        reason: Option<Str>,
        /// What it is to mean for other calls.
        remember: Option<Remember>,
    },
    /// It is not to run; this is its result.
    Answered(Value),
    /// The client ran it, and it failed.
    Failed(Str),
    /// Nobody decided.
    Cancelled,
}

impl Ruling {
    /// The kind of reply that it is; `None` for a cancellation, and for a client's own failure.
    pub const fn kind(&self) -> Option<ReplyKind> {
        Some(match self {
            Self::Approved { edited: None, .. } => ReplyKind::Approve,
            Self::Approved {
                edited: Some(_), ..
            } => ReplyKind::Edit,
            Self::Denied { .. } => ReplyKind::Deny,
            Self::Answered(_) => ReplyKind::Answer,
            Self::Failed(_) | Self::Cancelled => return None,
        })
    }
}

/// A kind of reply to the question whether a tool call may run.
///
/// See [`Interrupt::accepts`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum ReplyKind {
    /// Lets the call run as it is ([`Reply::approve`]).
    Approve,
    /// Does not let the call run ([`Reply::deny`]).
    Deny,
    /// Lets the call run with other arguments ([`Reply::approve_edited`]).
    Edit,
    /// Gives the call a result instead of running it ([`Reply::answer`]).
    Answer,
}

impl ReplyKind {
    /// Its name on the wire.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Approve => "approve",
            Self::Deny => "deny",
            Self::Edit => "edit",
            Self::Answer => "answer",
        }
    }
}

/// Which other calls a decision is to hold for, and how long.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Remember {
    /// Which calls.
    pub what: RememberWhat,
    /// How long.
    #[serde(rename = "for")]
    pub span: RememberFor,
}

/// Which calls a remembered decision holds for, the fewest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RememberWhat {
    /// Those of the same tool with the same arguments.
    Arguments,
    /// Those of the same tool.
    Tool,
}

/// How long a decision is remembered, the shortest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RememberFor {
    /// In this run.
    Run,
    /// In this conversation.
    Thread,
    /// For whoever asks.
    Always,
}

/// Why replies were not taken: nothing was run.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ReplyError {
    /// No question of that id waits.
    Unknown(InterruptId),
    /// Two replies are to one question.
    Duplicate(InterruptId),
    /// The questions of this run are answered together, and this one was not.
    Missing(InterruptId),
    /// It came too late.
    Expired(InterruptId),
    /// It is not of the form that the question asks for.
    Malformed {
        /// The question.
        id: InterruptId,
        /// What is wrong.
        why: Str,
    },
}

impl ReplyError {
    /// The question it is about.
    pub fn interrupt_id(&self) -> &InterruptId {
        match self {
            Self::Unknown(id)
            | Self::Duplicate(id)
            | Self::Missing(id)
            | Self::Expired(id)
            | Self::Malformed { id, .. } => id,
        }
    }

    /// A name of what is wrong, for programs.
    pub const fn code(&self) -> &'static str {
        match self {
            Self::Unknown(_) => "unknown_interrupt",
            Self::Duplicate(_) => "duplicate_reply",
            Self::Missing(_) => "missing_reply",
            Self::Expired(_) => "expired",
            Self::Malformed { .. } => "malformed_reply",
        }
    }
}

impl fmt::Display for ReplyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unknown(id) => write!(f, "no question `{id}` waits for a reply"),
            Self::Duplicate(id) => write!(f, "two replies are to the question `{id}`"),
            Self::Missing(id) => {
                write!(f, "the question `{id}` is to be answered with the others")
            }
            Self::Expired(id) => write!(
                f,
                "the reply to `{id}` came too late: the call can only be denied or cancelled"
            ),
            Self::Malformed { id, why } => write!(f, "the reply to `{id}`: {why}"),
        }
    }
}

impl StdError for ReplyError {}

/// What a call waits for, as its round service has it written down.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct Pending {
    /// What is asked. Nothing: the call waits until the others of its round have been answered.
    ///
    /// Serialized without their approval tokens (`metadata.token`): whoever reads a stored state must
    /// not be able to answer its questions.
    #[serde(serialize_with = "without_tokens")]
    pub interrupts: Vec<Interrupt>,
    /// Whether all questions of the round are to be answered together.
    pub together: bool,
    /// Whether it is the tool that asks, which may have done something by now.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub begun: bool,
    /// Who suspended the call; `None` in what an older version stored, and in what a tool returns.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub by: Option<SuspendedBy>,
    /// What whoever asked needs to go on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub state: Option<Arc<Value>>,
}

/// Who suspended a call, and so whose the [state](Pending::state) of its suspension is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum SuspendedBy {
    /// The round service, on behalf of the call: a gate asks, or the outcome is unknown.
    Lifecycle,
    /// The tool.
    Tool,
}

/// The key of an interrupt's metadata with its approval token.
const TOKEN: &str = "token";

fn without_tokens<S>(interrupts: &[Interrupt], serializer: S) -> Result<S::Ok, S::Error>
where
    S: Serializer,
{
    serializer.collect_seq(interrupts.iter().map(|interrupt| {
        let mut interrupt = Cow::Borrowed(interrupt);
        if interrupt.metadata.contains_key(TOKEN) {
            interrupt.to_mut().metadata.remove(TOKEN);
        }
        interrupt
    }))
}

impl Pending {
    /// A call that waits for the others of its round.
    pub fn held() -> Self {
        Self::default()
    }

    /// A call that waits for replies to `interrupts`.
    pub fn asking(interrupts: Vec<Interrupt>) -> Self {
        Self {
            interrupts,
            ..Self::default()
        }
    }

    /// Keeps what is needed to go on.
    #[must_use]
    pub fn with_state(mut self, state: impl Into<Arc<Value>>) -> Self {
        self.state = Some(state.into());
        self
    }

    /// Sets who suspended the call.
    #[must_use]
    pub fn by(mut self, by: SuspendedBy) -> Self {
        self.by = Some(by);
        self
    }

    /// Has all questions of the round answered together.
    #[must_use]
    pub fn together(mut self) -> Self {
        self.together = true;
        self
    }

    /// Whether the call only waits for others.
    pub fn is_held(&self) -> bool {
        self.interrupts.is_empty()
    }
}

/// What became of a call that waited.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct Answered {
    /// A process that took it up has died since.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub taken_up: bool,
    /// What it waited for, as it was written down. `None`: a history claims that it waited, and
    /// nobody that can be trusted has recorded it, so the replies need a proof.
    pub pending: Option<Pending>,
    /// The replies. None, and nothing it waited for either: a history claims that the call is open.
    /// It may be asked about (again); nothing says that it may run.
    pub replies: Vec<Reply>,
    /// When the replies were accepted: they were in time then, and are not late later.
    #[serde(with = "millis", skip_serializing_if = "Option::is_none")]
    pub accepted_at: Option<SystemTime>,
}

impl Answered {
    /// Creates what became of a call.
    pub fn new(pending: Option<Pending>, replies: Vec<Reply>) -> Self {
        Self {
            taken_up: false,
            pending,
            replies,
            accepted_at: None,
        }
    }

    /// Says when the replies were accepted; it is kept in whole milliseconds.
    #[must_use]
    pub fn accepted_at(mut self, time: SystemTime) -> Self {
        self.accepted_at = millis::from(millis::since(time));
        self
    }
}

/// Wall time as milliseconds since 1970.
mod millis {
    use serde::{Deserialize, Deserializer, Serializer};
    use std::time::{Duration, SystemTime};

    pub(super) fn since(time: SystemTime) -> u64 {
        let since = time.duration_since(SystemTime::UNIX_EPOCH);
        u64::try_from(since.unwrap_or_default().as_millis()).unwrap_or(u64::MAX)
    }

    pub(super) fn from(millis: u64) -> Option<SystemTime> {
        SystemTime::UNIX_EPOCH.checked_add(Duration::from_millis(millis))
    }

    pub(super) fn serialize<S: Serializer>(
        time: &Option<SystemTime>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        match time {
            None => serializer.serialize_none(),
            Some(time) => serializer.serialize_u64(since(*time)),
        }
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<SystemTime>, D::Error> {
        Ok(Option::<u64>::deserialize(deserializer)?.and_then(from))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ruling(payload: Value) -> Result<Ruling, ReplyError> {
        Reply::resolve(InterruptId::new("i"), payload).ruling()
    }

    #[test]
    fn a_reply_says_one_thing() {
        assert!(matches!(
            ruling(json!({"approved": true})),
            Ok(Ruling::Approved { edited: None, .. })
        ));
        assert!(matches!(
            ruling(json!({"result": null})),
            Ok(Ruling::Answered(Value::Null))
        ));
        assert!(matches!(
            ruling(json!({"approved": false, "reason": "no"})),
            Ok(Ruling::Denied { .. })
        ));
        for wrong in [
            json!({}),
            json!(true),
            json!({"approved": "yes"}),
            json!({"approved": false, "editedArgs": {}}),
            json!({"approved": true, "editedArgs": []}),
            json!({"approved": true, "reason": "no"}),
            json!({"approved": false, "result": 1}),
            json!({"approved": true, "else": 1}),
            json!({"error": "no", "result": 1}),
            json!({"error": "no", "approved": false}),
            json!({"error": {"code": 1}}),
        ] {
            assert!(ruling(wrong.clone()).is_err(), "{wrong}");
        }
    }

    #[test]
    fn only_a_call_of_the_clients_can_be_said_to_have_failed() {
        let id = InterruptId::new("i");
        let reply = Reply::answer_failed(id.clone(), "no camera");
        assert_eq!(reply.ruling(), Ok(Ruling::Failed("no camera".into())));
        for (reason, fits) in [
            (CLIENT_TOOL, true),
            (TOOL_CALL, false),
            (UNKNOWN_EFFECT, false),
        ] {
            let asked = Interrupt::new(id.clone(), reason);
            let checked = asked.check(&reply, SystemTime::UNIX_EPOCH);
            assert_eq!(checked.is_ok(), fits, "{checked:?}");
        }
    }

    #[test]
    fn to_deny_a_call_or_to_give_it_up_it_is_never_too_late() {
        let id = InterruptId::new("i");
        let now = SystemTime::UNIX_EPOCH;
        let late = Err(ReplyError::Expired(id.clone()));
        for reason in [TOOL_CALL, CLIENT_TOOL, Str::from_static("other")] {
            let asked = Interrupt::new(id.clone(), reason.clone()).until(now);
            assert_eq!(asked.check(&Reply::cancel(id.clone()), now), Ok(()));
            assert_eq!(asked.check(&Reply::answer(id.clone(), 1), now), late);
            let denied = asked.check(&Reply::deny(id.clone(), "no"), now);
            assert_eq!(denied.is_ok(), reason != *"other", "{reason}");
        }
        let asked = Interrupt::new(id.clone(), TOOL_CALL).until(now);
        assert_eq!(asked.check(&Reply::approve(id), now), late);
    }

    #[test]
    fn a_reply_holds_for_no_more_than_its_question_allows() {
        let id = InterruptId::new("i");
        let asked = |schema: Value| {
            Interrupt::new(id.clone(), TOOL_CALL)
                .with_response_schema(json!({"properties": schema}))
        };
        let limited = asked(json!({"remember": {"properties": {
            "what": {"enum": ["arguments"]},
            "for": {"enum": ["run", "thread"]},
        }}}));
        let silent = asked(json!({}));
        for (what, span, allowed) in [
            (RememberWhat::Arguments, RememberFor::Thread, true),
            (RememberWhat::Arguments, RememberFor::Always, false),
            (RememberWhat::Tool, RememberFor::Run, false),
        ] {
            for reply in [Reply::approve(id.clone()), Reply::deny(id.clone(), "no")] {
                let reply = reply.remembered(what, span);
                let now = SystemTime::UNIX_EPOCH;
                assert_eq!(limited.check(&reply, now).is_ok(), allowed, "{reply:?}");
                assert_eq!(silent.check(&reply, now), Ok(()));
            }
        }
    }

    #[test]
    fn a_reply_of_a_kind_that_is_not_accepted_is_refused() {
        let id = InterruptId::new("i");
        let now = SystemTime::UNIX_EPOCH;
        let all = [
            (ReplyKind::Approve, Reply::approve(id.clone())),
            (ReplyKind::Deny, Reply::deny(id.clone(), "no")),
            (
                ReplyKind::Edit,
                Reply::approve_edited(id.clone(), json!({})),
            ),
            (ReplyKind::Answer, Reply::answer(id.clone(), 1)),
        ];
        for set in 0..16_u8 {
            let in_set = |at: &usize| set & (1 << at) != 0;
            let kinds = (0..4).filter(in_set).map(|at| all[at].0);
            let asked = Interrupt::new(id.clone(), TOOL_CALL).with_replies(kinds);
            for (at, (kind, reply)) in all.iter().enumerate() {
                assert_eq!(reply.ruling().unwrap().kind(), Some(*kind));
                assert_eq!(asked.check(reply, now).is_ok(), in_set(&at), "{asked:?}");
            }
            assert_eq!(asked.check(&Reply::cancel(id.clone()), now), Ok(()));
        }
        // An older version listed no kinds; a list that is no list accepts none.
        let old = Interrupt::new(id, TOOL_CALL);
        let broken = old.clone().with_metadata("replies", "approve");
        for (_, reply) in &all {
            assert_eq!(old.check(reply, now), Ok(()));
            assert!(broken.check(reply, now).is_err());
        }
    }

    #[test]
    fn a_cancellation_has_no_payload() {
        let mut reply = Reply::cancel(InterruptId::new("i"));
        assert_eq!(reply.ruling(), Ok(Ruling::Cancelled));
        reply.payload = Some(json!({"approved": true}));
        assert!(reply.ruling().is_err());
    }
}
