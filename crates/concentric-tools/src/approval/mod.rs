//! Approvals: tool calls that wait for a human decision.
//!
//! [`Approval`] is a [`Gate`] whose rules allow calls, require an approval or deny calls. A call
//! that requires an approval does not run: its round stays open and the run ends with
//! [`Outcome::Interrupted`](concentric_core::Outcome::Interrupted), until a request provides the
//! [`Reply`](concentric_core::Reply).
//!
//! ```
//! use concentric_tools::{Approval, Matcher, Toolset};
//! use std::time::Duration;
//!
//! let approval = Approval::for_tools(["refund", "mail_*"])
//!     .deny("drop_table", "Tables must not be dropped.")
//!     .message(|call| format!("Call {} with {}?", call.name(), call.arguments().as_str()))
//!     .expires_after(Duration::from_secs(3600));
//! let tools = Toolset::new().gate(approval);
//! # let _ = tools;
//! ```
//!
//! # Precedence of rules
//!
//! 1. A rule that denies, wherever it is defined: nothing overrides it.
//! 2. The rule that names the tool exactly, before one that matches in another way.
//! 3. A rule that requires an approval, before one that allows.
//!
//! If a matcher fails, the call requires an approval.
//!
//! # Rules of one run
//!
//! A run can have its own rules: an `Approval` as a
//! [gate](concentric_core::RunOverrides::gate) of the run, which nested agents inherit. They make the agent's rules stricter: the stricter of the two decisions about a call applies,
//! and an interrupt that both require has the shorter expiry and accepts the replies that both
//! accept. A run can loosen the agent's rules only if the agent's approval allows it
//! ([`runs_may_allow`](Approval::runs_may_allow)).
//!
//! The rules of a run are part of the request and are not stored with the run: a request that
//! resumes it needs the same rules. Otherwise no reply approves a call that waits
//! because of them, and later calls need no approval. Rules that must always apply belong on the
//! toolset.
//!
//! # Unknown tools
//!
//! An empty list of tools, and a name or a pattern (except `*`) that matches no tool of the
//! toolset, are configuration errors: [`Toolset::check`](crate::Toolset::check) fails, and so does
//! every run of the agent before the first model call. The tools of [skills](crate::skills) and
//! [lazy tools](crate::lazy) are in the toolset. Tools of the client are not, and no gate decides
//! about them. The gates of a toolset also decide about the calls of nested agents, whose tools the
//! toolset does not know: such a toolset logs unknown names as a warning. For an agent in the
//! model's place, use [`names_inner_tools`](Approval::names_inner_tools). In the rules of a run
//! only an empty list is an error, since the agents that inherit the rules have different tools.
//! Groups and predicates are not checked.
//!
//! # Edited arguments
//!
//! A reply may replace the arguments of the call, if the approval [accepts](Approval::replies)
//! edits. Arguments that the tool does not accept are refused with
//! [`ReplyError::Malformed`](concentric_core::ReplyError::Malformed), and the interrupt stays open;
//! for a reply with a [token](crate::token), or to a nested agent, the interrupt is raised again
//! with the event `approval-invalid`. All gates then decide about the edited arguments as about a
//! new call. A gate that denies denies the call. A gate that requires an approval, and did not
//! before the edit, raises an interrupt with its own id (which ends in `#edit-1`, `#edit-2`, …):
//! the call runs once that is approved. Observers receive only the end of the last interrupt.
//!
//! # After an approval
//!
//! An approval allows a call to start, and does not imply an outcome. A call that is abandoned while
//! it runs ([`Tool::timeout`](crate::Tool::timeout)) may have taken effect. Whether the run is
//! interrupted to ask for its outcome depends on the toolset's [ledger](crate::Toolset::ledger),
//! not on its approvals:
//!
//! | the toolset | outcome of an abandoned call |
//! |---|---|
//! | has a ledger, and a run that waits is [stored](concentric_core::Context::is_suspension_stored) | the tool's [`reconcile`](crate::Tool::reconcile) finds the outcome, or a person is asked for it ([`UNKNOWN_EFFECT`](concentric_core::interrupt::UNKNOWN_EFFECT)) |
//! | has a ledger, and it is not | the tool's `reconcile` finds the outcome, or the model reads that it is [`Unknown`](concentric_core::ToolStatus::Unknown); so does the ledger |
//! | has no ledger | the same, and nothing is recorded: if its process ends, a run that is resumed asks about each call of the round |
//!
//! A call of a tool that may run again (read-only, idempotent or keyed) fails instead, and the
//! model may repeat it.
//!
//! # Trusted replies
//!
//! A reply is accepted only for an interrupt that is recorded: in the run's state, which came from
//! this process or from a store that only trusted processes write; or in a signed
//! [token](crate::token). A reply without either runs nothing. See
//! [`Toolset::tokens`](crate::Toolset::tokens).
//!
//! The agent's caller needs neither a store nor tokens: the state of an interrupted run is in its
//! last event ([`Finish::state`](concentric_core::Finish::state)), and
//! [`ChatRequest::resume`](concentric_core::ChatRequest::resume) with that state and the replies
//! continues the run. An agent with an approval and without a store is therefore valid. If the
//! state does not reach a caller, a store is necessary, and its absence is reported: an AG-UI
//! endpoint fails a run whose interrupt cannot be answered, and a detached run whose consumer has
//! left logs an error.

mod found;
mod stored;

pub(crate) use self::stored::run_of;

use self::{
    found::{Found, Rule},
    stored::recall,
};
use crate::{
    Matcher, ToolsetError,
    gate::{ApprovalEvent, Ask, Decided, Gate, Verdict},
    matcher::Matched,
};
use concentric_core::{
    BoxError, InterruptHub, ReplyKind, Str, ToolCall, ToolSpecs,
    interrupt::{DecisionScope, ScopeCalls, ScopeLifetime},
    panic::catch,
    store::Decisions,
};
use futures_util::future::join;
use std::{
    any::Any,
    fmt::{self, Write},
    sync::Arc,
    time::Duration,
};

/// A gate that requires approvals for tool calls.
///
/// See the [module docs](self).
#[derive(Clone, Default)]
pub struct Approval {
    rules: Vec<(Matcher, Rule)>,
    ask: Ask,
    message: Option<Message>,
    decisions: Option<Arc<dyn Decisions>>,
    runs_may_allow: bool,
    names_inner_tools: bool,
}

type Message = Arc<dyn Fn(&ToolCall) -> String + Send + Sync>;

impl Approval {
    /// Creates an approval without rules, which passes every call.
    pub fn new() -> Self {
        Self::default()
    }

    /// Creates an approval that is required for calls of `tools`.
    ///
    /// An empty list, or a name that matches no tool, fails
    /// [`Toolset::check`](crate::Toolset::check) and every run of the agent; see the [module
    /// docs](self#unknown-tools).
    pub fn for_tools(tools: impl Into<Matcher>) -> Self {
        Self::new().ask(tools)
    }

    /// Requires an approval for calls of `tools`.
    #[must_use]
    pub fn ask(self, tools: impl Into<Matcher>) -> Self {
        self.rule(tools.into(), Rule::Ask)
    }

    /// Allows calls of `tools`, as an exception to a less exact rule.
    #[must_use]
    pub fn allow(self, tools: impl Into<Matcher>) -> Self {
        self.rule(tools.into(), Rule::Allow)
    }

    /// Denies calls of `tools`; the model receives `reason`.
    #[must_use]
    pub fn deny(self, tools: impl Into<Matcher>, reason: impl Into<Str>) -> Self {
        self.rule(tools.into(), Rule::Deny(reason.into()))
    }

    /// Adds one rule for each alternative of `tools`: a name in a list is as exact as a single
    /// name.
    fn rule(mut self, tools: Matcher, rule: Rule) -> Self {
        let all = tools.alternatives();
        let rules = std::iter::repeat_n(rule, all.len());
        self.rules.extend(all.into_iter().zip(rules));
        self
    }

    /// Sets the message of interrupts; the default is "Allow the call of `…`?".
    #[must_use]
    pub fn message(
        mut self,
        message: impl Fn(&ToolCall) -> String + Send + Sync + 'static,
    ) -> Self {
        self.message = Some(Arc::new(message));
        self
    }

    /// Sets the accepted kinds of reply; the default is [`Approve`](ReplyKind::Approve) and
    /// [`Deny`](ReplyKind::Deny). A cancellation is always accepted; with an empty list, only that.
    ///
    /// The interrupt lists the kinds, and its response schema has only their fields. A reply of
    /// another kind is refused before it takes effect, and the interrupt stays open.
    ///
    /// An [`Edit`](ReplyKind::Edit) runs the call with other arguments, which the gates decide
    /// about [again](self#edited-arguments). An [`Answer`](ReplyKind::Answer) provides the result
    /// instead of the tool: the outcome's source is
    /// [`OutcomeSource::Person`](concentric_core::OutcomeSource::Person), also for the model.
    ///
    /// ```
    /// use concentric_core::ReplyKind;
    /// use concentric_tools::Approval;
    ///
    /// let approval = Approval::for_tools("refund")
    ///     .replies([ReplyKind::Approve, ReplyKind::Deny, ReplyKind::Edit]);
    /// # let _ = approval;
    /// ```
    #[must_use]
    pub fn replies(mut self, kinds: impl IntoIterator<Item = ReplyKind>) -> Self {
        self.ask = self.ask.replies(kinds);
        self
    }

    /// Permits the [rules of a run](self#rules-of-one-run) to allow calls for which this approval
    /// requires a reply, if they are as exact. By default they can only make it stricter. A rule
    /// that denies is never loosened.
    ///
    /// ```
    /// use concentric_core::{ChatRequest, RunOverrides};
    /// use concentric_tools::{Approval, Toolset};
    ///
    /// let tools = Toolset::new().gate(Approval::for_tools("refund").runs_may_allow());
    ///
    /// let own = RunOverrides::new().gate(Approval::new().allow("refund"));
    /// let request = ChatRequest::user("Pay today's refunds.").with_overrides(own);
    /// # let _ = (tools, request);
    /// ```
    #[must_use]
    pub fn runs_may_allow(mut self) -> Self {
        self.runs_may_allow = true;
        self
    }

    /// Accepts rules for tools that the toolset does not have, such as those of an agent in the
    /// model's place; a misspelt name is then not an error. See the [module
    /// docs](self#unknown-tools).
    #[must_use]
    pub fn names_inner_tools(mut self) -> Self {
        self.names_inner_tools = true;
        self
    }

    /// Sets how long an interrupt can be approved; the default is unlimited. After that time, and
    /// always with zero, it can only be denied or cancelled.
    #[must_use]
    pub fn expires_after(mut self, time: Duration) -> Self {
        self.ask = self.ask.expires_after(time);
        self
    }

    /// Calls `callback` when an interrupt is raised and when it ends.
    ///
    /// If the reply is an edit for which a gate requires another approval, the interrupt ends with
    /// the one that follows. Both events are sent once across all processes that share the store of
    /// [`Toolset::notify_once`](crate::Toolset::notify_once), or else once in each process that handles
    /// the run. If the tool or the gates changed in between, all observers receive the end. A
    /// suspended run that is never resumed has no end, unless its host [reports
    /// it](crate::ToolLifecycle::notify_decisions). `callback` is called while the round is polled,
    /// and must not block.
    #[must_use]
    pub fn on_approval(
        mut self,
        callback: impl Fn(&ApprovalEvent<'_>) + Send + Sync + 'static,
    ) -> Self {
        self.ask = self.ask.on_approval(callback);
        self
    }

    /// Accepts replies that apply to further calls, and stores such decisions in `decisions`:
    /// matching calls are then approved or denied without an interrupt. If the reply edited the
    /// arguments, the edited ones are stored. A call that already waits keeps waiting.
    ///
    /// Such a reply [counts as an effect](concentric_core::Context::count_effect) of its run before
    /// the decision is stored: if the run is dropped or fails after that, its interrupt is not
    /// raised again. If the process crashes, the run is resumed with the reply, and the decision is
    /// stored again.
    ///
    /// Without a store, a reply with a scope is refused, and the response schema of the interrupt
    /// has no field for it. An approver can decide about future calls in this way: see
    /// [`remember_at_most`](Self::remember_at_most). A stored decision does not override a rule
    /// that denies.
    #[must_use]
    pub fn remember(mut self, decisions: impl Decisions) -> Self {
        let decisions: Arc<dyn Decisions> = Arc::new(decisions);
        self.ask.decisions = Some(Arc::clone(&decisions));
        self.decisions = Some(decisions);
        self
    }

    /// Limits the calls that a reply may apply to, and for how long; the default is all calls of
    /// the tool, without a time limit. The interrupt contains the limit, and replies that exceed it
    /// are refused.
    ///
    /// ```
    /// use concentric_core::interrupt::{ScopeLifetime, ScopeCalls};
    /// use concentric_tools::Approval;
    /// # use concentric_core::store::Decisions;
    ///
    /// # fn approval(store: impl Decisions) -> Approval {
    /// Approval::for_tools("refund")
    ///     .remember(store)
    ///     .remember_at_most(ScopeCalls::Arguments, ScopeLifetime::Thread)
    /// # }
    /// ```
    #[must_use]
    pub fn remember_at_most(mut self, what: ScopeCalls, span: ScopeLifetime) -> Self {
        self.ask.remember_at_most = Some(DecisionScope { what, span });
        self
    }

    /// Keeps the run open while an interrupt waits, instead of suspending the run: the interrupt is
    /// emitted as an event, and `live` accepts the reply. After `timeout` without a reply the call
    /// is denied. An interrupt for a call that a layer changed still suspends the run.
    #[must_use]
    pub fn live(mut self, live: &InterruptHub, timeout: Duration) -> Self {
        self.ask.live = Some((live.clone(), timeout));
        self
    }

    /// The rules that match `call`.
    fn found(&self, call: &ToolCall) -> Found {
        let mut found = Found::default();
        for (matcher, rule) in &self.rules {
            let exactness = matcher.exactness();
            match matcher.evaluate(call) {
                Matched::Now(matched) => found.take(exactness, rule, matched.map_err(Into::into)),
                Matched::Later(later) => found.later.push((exactness, rule.clone(), later)),
            }
        }
        found
    }

    /// The approvals of the run itself.
    fn of_run(call: &ToolCall) -> impl Iterator<Item = &Self> {
        let gates = call.context.run_gates().iter();
        gates.filter_map(|gate| (&**gate as &dyn Any).downcast_ref())
    }

    /// The strictest decision of the agent's rules and those of the run, `own`.
    fn decide_all(&self, agent: Found, own: Vec<Found>, call: &ToolCall) -> Decided {
        let is_loosened =
            self.runs_may_allow && !agent.failed && own.iter().any(|own| own.loosens(&agent));
        let agent = match is_loosened {
            true => Decided::from(Verdict::Pass),
            false => self.verdict(agent.rule(), call, None),
        };
        let own = Self::of_run(call).zip(own);
        own.fold(agent, |agent, (run, own)| {
            stricter(run.verdict(own.rule(), call, Some(self)), agent)
        })
    }

    /// The verdict of a rule. Settings of the interrupt that this approval lacks come from
    /// `fallback`.
    fn verdict(&self, rule: Option<Rule>, call: &ToolCall, fallback: Option<&Self>) -> Decided {
        match rule {
            None => Verdict::Pass.into(),
            Some(Rule::Allow) => Verdict::Allow.into(),
            Some(Rule::Deny(reason)) => Verdict::Deny(reason).into(),
            Some(Rule::Ask) => {
                let mut ask = match fallback {
                    Some(other) => self.ask.clone().or(other.ask.clone()),
                    None => self.ask.clone(),
                };
                let message = fallback.and_then(|other| other.message.as_ref());
                if let Some(message) = self.message.as_ref().or(message)
                    && let Ok(message) = catch(|| message(call))
                {
                    ask = ask.message(message);
                }
                let decisions = fallback.and_then(|other| other.decisions.as_ref());
                match self.decisions.as_ref().or(decisions) {
                    Some(decisions) => {
                        Decided::Later(Box::pin(recall(Arc::clone(decisions), call.clone(), ask)))
                    }
                    None => Verdict::Ask(ask).into(),
                }
            }
        }
    }
}

/// The stricter of two decisions; if both ask, the message of the first.
fn stricter(first: Decided, second: Decided) -> Decided {
    match (first, second) {
        (Decided::Now(first), Decided::Now(second)) => first.and(second).into(),
        (first, second) => Decided::later(async move {
            let (first, second) = join(resolve(first), resolve(second)).await;
            Ok(first?.and(second?))
        }),
    }
}

async fn resolve(decided: Decided) -> Result<Verdict, BoxError> {
    match decided {
        Decided::Now(verdict) => Ok(verdict),
        Decided::Later(verdict) => verdict.await,
    }
}

impl Gate for Approval {
    fn policy(&self) -> Str {
        let mut policy = format!("{:?}", self.rules);
        // The policy text is compared with that of stored approvals, so the default adds nothing.
        if let Some(replies) = self.ask.unusual_replies() {
            let _ = write!(policy, " replies {replies:?}");
        }
        if self.runs_may_allow {
            policy.push_str(" runs may loosen");
        }
        policy.into()
    }

    fn decide(&self, call: &ToolCall) -> Decided {
        let mut found = self.found(call);
        let mut own: Vec<_> = Self::of_run(call).map(|run| run.found(call)).collect();
        if found.later.is_empty() && own.iter().all(|own| own.later.is_empty()) {
            return self.decide_all(found, own, call);
        }
        let (approval, call) = (self.clone(), call.clone());
        Decided::later(async move {
            found.resolve().await;
            for own in &mut own {
                own.resolve().await;
            }
            resolve(approval.decide_all(found, own, &call)).await
        })
    }

    fn check(&self, tools: &ToolSpecs) -> Result<(), BoxError> {
        self.check_rules()?;
        if !self.names_inner_tools {
            let mut matchers = self.rules.iter().map(|(matcher, _)| matcher);
            matchers.try_for_each(|matcher| matcher.check_names(tools))?;
        }
        Ok(())
    }
}

impl Approval {
    /// The settings of its interrupts, and their observers.
    pub(crate) fn settings(&self) -> Ask {
        self.ask.clone()
    }

    /// Checks the rules without knowing the tools. Returns an error if a rule has an empty list of
    /// tools.
    pub(crate) fn check_rules(&self) -> Result<(), ToolsetError> {
        match self.rules.iter().any(|(matcher, _)| matcher.has_none()) {
            true => Err(ToolsetError::EmptyRule(format!("{:?}", self.rules).into())),
            false => Ok(()),
        }
    }
}

impl fmt::Debug for Approval {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Approval")
            .field("rules", &self.rules)
            .finish_non_exhaustive()
    }
}
