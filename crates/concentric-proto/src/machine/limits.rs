use crate::{
    call::{LimitOf, Refusal},
    interrupt::{Reply, ReplyError, Ruling},
    message::{Arguments, ToolCallPart},
    run_state::{Calls, Slot},
    text::Str,
};
use serde_json::Value;
use std::{fmt, sync::Arc};

/// What a run may do; kept by whoever drives it, and not with its state.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Rules {
    /// How many model calls it makes at the most; 32 by default. Those that are free of charge
    /// ([`ToolOutcome::free`](crate::ToolOutcome::free)) don't count, but for as many again.
    pub steps: u32,
    /// How many tool calls it makes at the most. A call over the limit is answered with an error,
    /// and no further step starts.
    pub calls: Option<u32>,
    /// How many tool calls one answer may make. A call over the limit is answered with an error.
    pub calls_per_round: Option<u32>,
    /// How many calls of a tool a run makes at the most; as above.
    pub calls_per_tool: Vec<(Str, u32)>,
    /// Whether the round service knows what to do with calls that waited, or were running when a
    /// process died; else the machine settles them.
    pub resumes: bool,
    /// Whether the round service writes down what its tools are about to do.
    pub ledger: bool,
    /// Whether a run that has come to its own end is to wait until it is told that it may
    /// ([`Action::MayFinish`](super::Action::MayFinish)).
    pub asks_to_finish: bool,
    /// Whether somebody may decide about a round also where all its calls are the client's to run
    /// ([`Action::RunTools`](super::Action::RunTools)).
    pub asks_before_round: bool,
    /// What arguments a person may give a call in a reply; by default any. A reply with others is
    /// refused, and its question stays open.
    pub edits: Option<CheckEdit>,
}

/// Checks the arguments that a person gives a tool call in a reply, before the reply is taken.
///
/// ```
/// use concentric_proto::{
///     CallId, InterruptId, Reply, ToolCallPart,
///     machine::{CheckEdit, Rules},
/// };
/// use serde_json::json;
///
/// let small = CheckEdit::new(|call| match call.arguments.as_str().len() {
///     0..=16 => Ok(()),
///     _ => Err("the arguments are too long".into()),
/// });
/// let call = ToolCallPart::new(CallId::new("call_1"), "pay", "{}");
/// let edit = |eur: u64| Reply::approve_edited(InterruptId::new("i"), json!({"eur": eur}));
/// assert!(small.check(&call, &edit(5)).is_ok());
/// assert_eq!(small.check(&call, &edit(u64::MAX)).unwrap_err().code(), "malformed_reply");
///
/// let mut rules = Rules::default();
/// rules.edits = Some(small);
/// ```
#[derive(Clone)]
pub struct CheckEdit(Arc<Check>);

type Check = dyn Fn(&ToolCallPart) -> Result<(), Str> + Send + Sync;

impl CheckEdit {
    /// Creates a check: `check` is called with the call as it was edited, and returns what is wrong.
    pub fn new(check: impl Fn(&ToolCallPart) -> Result<(), Str> + Send + Sync + 'static) -> Self {
        Self(Arc::new(check))
    }

    /// Checks `reply` to the question whether `call` may run.
    ///
    /// # Errors
    ///
    /// [`ReplyError::Malformed`]: it edits the arguments in a way that is not accepted.
    pub fn check(&self, call: &ToolCallPart, reply: &Reply) -> Result<(), ReplyError> {
        let Ok(Ruling::Approved {
            edited: Some(edited),
            ..
        }) = reply.ruling()
        else {
            return Ok(());
        };
        let mut call = call.clone();
        call.arguments = Arguments::new(Value::Object(edited).to_string());
        (self.0)(&call).map_err(|why| ReplyError::Malformed {
            id: reply.interrupt_id.clone(),
            why,
        })
    }
}

impl fmt::Debug for CheckEdit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CheckEdit").finish_non_exhaustive()
    }
}

impl Default for Rules {
    fn default() -> Self {
        Self {
            steps: 32,
            calls: None,
            calls_per_round: None,
            calls_per_tool: Vec::new(),
            resumes: false,
            ledger: false,
            asks_to_finish: false,
            asks_before_round: false,
            edits: None,
        }
    }
}

impl Rules {
    /// Counts the calls of a new round, and refuses those over a limit. Calls that are refused or
    /// denied count.
    pub(super) fn count(&self, calls: &mut Calls, slots: &mut [Slot]) {
        let mut in_round = 0;
        for slot in slots {
            in_round += 1;
            calls.total = calls.total.saturating_add(1);
            let name = &slot.call.name;
            let per_tool = self.calls_per_tool.iter().find(|(tool, _)| tool == name);
            let per_tool = per_tool.map(|(_, limit)| {
                let count = calls.by_tool.entry(name.clone()).or_default();
                *count = count.saturating_add(1);
                (Some(*limit), *count, LimitOf::Tool)
            });
            let limits = [
                Some((self.calls, calls.total, LimitOf::Run)),
                Some((self.calls_per_round, in_round, LimitOf::Round)),
                per_tool,
            ];
            let over = limits.into_iter().flatten().find_map(|(limit, count, of)| {
                let calls = limit.filter(|limit| count > *limit)?;
                Some(Refusal::Limit { calls, of })
            });
            slot.refusal = slot.refusal.take().or(over);
        }
    }

    /// Whether more calls were made than may be.
    pub(super) fn is_over(&self, calls: &Calls) -> bool {
        self.calls.is_some_and(|limit| calls.total > limit)
    }
}
