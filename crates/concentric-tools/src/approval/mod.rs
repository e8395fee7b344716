//! Approvals: tool calls that a person decides about.
//!
//! [`Approval`] is a [`Gate`] whose rules say which calls may run, which are asked about and which
//! are denied. A call that is asked about is not run: its round stays open and the run ends with
//! [`Outcome::Interrupted`](concentric_core::Outcome::Interrupted), until a request brings the
//! [`Reply`](concentric_core::Reply).
//!
//! ```
//! use concentric_tools::{Approval, Matcher, Toolset};
//! use std::time::Duration;
//!
//! let approval = Approval::for_tools(["refund", "mail_*"])
//!     .deny("drop_table", "The database is not yours to drop.")
//!     .message(|call| format!("May I call {} with {}?", call.name(), call.arguments().as_str()))
//!     .expires_after(Duration::from_secs(3600));
//! let tools = Toolset::new().gate(approval);
//! # let _ = tools;
//! ```
//!
//! # Which rule holds
//!
//! 1. A rule that denies, wherever it stands: nothing weakens it.
//! 2. The rule that names the tool exactly, before one that matches in another way.
//! 3. The one that asks, before the one that allows.
//!
//! If a matcher fails, the call is asked about.
//!
//! # Rules of one run
//!
//! A run can have rules of its own: an `Approval` in the
//! [extensions](concentric_core::Context::extensions) of its context, which the agents that it calls
//! as tools inherit. They make the agent's rules stricter: of the two decisions about a call the
//! stricter one holds, and a question that both ask has the shorter time and accepts what both accept.
//! A run can loosen the agent's rules only where the agent's approval allows it
//! ([`runs_may_loosen`](Approval::runs_may_loosen)).
//!
//! The rules of a run are part of the request and are not stored with the run: a request that resumes
//! it needs the same rules in its context, else no reply approves what was asked under them, and
//! later calls are not asked about. What must always hold belongs on the toolset.
//!
//! # What a rule may name
//!
//! An empty list of tools, and a name or a pattern (except `*`) that no tool of the toolset has, are
//! mistakes: [`Toolset::check`](crate::Toolset::check) fails, and so does every run of the agent
//! before its model is called. The tools of [skills](crate::skills) and
//! [lazy tools](crate::lazy) are in the toolset. Tools of the client are not, and no gate decides
//! about them. The gates of a toolset also decide about the calls of agents that are its tools, whose
//! tools it does not know: such a toolset logs unknown names as a warning. For an agent in the
//! model's place, use [`names_inner_tools`](Approval::names_inner_tools). Of a run's own rules only an
//! empty list is a mistake, since the agents that inherit them have different tools. Groups and
//! predicates are not checked.
//!
//! # Edited arguments
//!
//! A reply may carry other arguments for the call, if the approval [accepts](Approval::replies)
//! edits. Arguments that the tool does not take are refused with
//! [`ReplyError::Malformed`](concentric_core::ReplyError::Malformed), and the question stays open; a
//! reply with a [token](crate::token), or to an agent that is a tool, has its question asked again, with
//! the event `approval-invalid`. All gates then decide about the edited arguments as about a new call. One that denies
//! denies the call. One that asks, and that had not asked about the arguments before the edit, asks
//! anew, with an interrupt of its own (its id ends in `#edit-1`, `#edit-2`, …): the call runs when that
//! is approved. The watchers receive the end of the last question only.
//!
//! # After an approval
//!
//! An approval lets a call start, and says nothing of its outcome. A call that is given up while it
//! runs ([`Tool::timeout`](crate::Tool::timeout)) may have taken effect all the same. Whether a person
//! is asked about that too depends on the [ledger](crate::Toolset::ledger) of the toolset, and not on
//! its approvals:
//!
//! | the toolset | of a call that was given up |
//! |---|---|
//! | has a ledger, and a run that waits is [stored](concentric_core::Context::is_suspension_stored) | the tool's [`reconcile`](crate::Tool::reconcile) finds the outcome, or a person is asked for it ([`UNKNOWN_EFFECT`](concentric_core::interrupt::UNKNOWN_EFFECT)) |
//! | has a ledger, and it is not | the tool's `reconcile` finds the outcome, or the model reads that it is [`Unknown`](concentric_core::ToolStatus::Unknown); so does the ledger |
//! | has no ledger | the same, and nothing is recorded: if its process ends, a run that is resumed asks about each call of the round |
//!
//! A call of a tool that may run again (read-only, idempotent or keyed) has failed instead, and the
//! model may repeat it.
//!
//! # Who can answer
//!
//! A reply is believed for what is recorded as asked: in the run's state, which came from this very
//! process or from a store that nobody else writes; or in a [token](crate::token) that nobody else
//! can make. A reply without either runs nothing. See [`Toolset::tokens`](crate::Toolset::tokens).
//!
//! The agent's caller needs neither a store nor tokens: the state of an interrupted run is in its last
//! event ([`Finish::state`](concentric_core::Finish::state)), and
//! [`ChatRequest::resume`](concentric_core::ChatRequest::resume) with that state and the replies
//! continues the run. So an agent with an approval and without a store is no error. Where the state
//! does not reach a caller, what keeps it is needed, and its absence is reported: an AG-UI endpoint
//! ends a run whose question no reply can answer with an error, and a detached run whose consumer has
//! left logs one.

mod ask;

pub use self::ask::{ApprovalEvent, Ask};

use crate::{
    Digest, Matcher, ToolsetError,
    gate::{Decided, Gate, Verdict},
    matcher::{Exactness, Matched},
    panic::stored,
};
use concentric_core::{
    BoxError, Context, LiveInterrupts, ReplyKind, RunId, Str, ToolCall, ToolSpecs,
    interrupt::{Remember, RememberFor, RememberWhat},
    method::catch,
    store::{Decisions, RunKey, Tenant},
};
use std::{
    fmt::{self, Write},
    sync::Arc,
    time::Duration,
};

/// Asks a person about tool calls.
///
/// See the [module docs](self).
#[derive(Clone, Default)]
pub struct Approval {
    rules: Vec<(Matcher, Rule)>,
    ask: Ask,
    message: Option<Message>,
    decisions: Option<Arc<dyn Decisions>>,
    runs_may_loosen: bool,
    names_inner_tools: bool,
}

type Message = Arc<dyn Fn(&ToolCall) -> String + Send + Sync>;

/// What a rule says of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Rule {
    Allow,
    Ask,
    Deny(Str),
}

impl Approval {
    /// Creates an approval without a rule: it lets every call pass.
    pub fn new() -> Self {
        Self::default()
    }

    /// Creates an approval that asks about calls of `tools`.
    ///
    /// An empty list, and a name that no tool has, fail [`Toolset::check`](crate::Toolset::check) and
    /// every run of the agent; see the [module docs](self#what-a-rule-may-name).
    pub fn for_tools(tools: impl Into<Matcher>) -> Self {
        Self::new().ask(tools)
    }

    /// Asks about calls of `tools`.
    #[must_use]
    pub fn ask(self, tools: impl Into<Matcher>) -> Self {
        self.rule(tools.into(), Rule::Ask)
    }

    /// Lets calls of `tools` run, as an exception to a rule that is less exact.
    #[must_use]
    pub fn allow(self, tools: impl Into<Matcher>) -> Self {
        self.rule(tools.into(), Rule::Allow)
    }

    /// Denies calls of `tools`; the model is told why.
    #[must_use]
    pub fn deny(self, tools: impl Into<Matcher>, reason: impl Into<Str>) -> Self {
        self.rule(tools.into(), Rule::Deny(reason.into()))
    }

    /// Adds a rule; of a list, one for each of it, since a name in it is as exact as one alone.
    fn rule(mut self, tools: Matcher, rule: Rule) -> Self {
        let all = tools.alternatives();
        let rules = std::iter::repeat_n(rule, all.len());
        self.rules.extend(all.into_iter().zip(rules));
        self
    }

    /// Says what is asked; by default, whether the tool may be called.
    #[must_use]
    pub fn message(
        mut self,
        message: impl Fn(&ToolCall) -> String + Send + Sync + 'static,
    ) -> Self {
        self.message = Some(Arc::new(message));
        self
    }

    /// Sets which kinds of reply its questions accept; by default [`Approve`](ReplyKind::Approve) and
    /// [`Deny`](ReplyKind::Deny). A cancellation is always accepted, and all that an empty list
    /// leaves.
    ///
    /// The interrupt lists the kinds, and its response schema has the fields of these alone. A reply of
    /// another kind is refused before anything of it takes effect, and the question stays open.
    ///
    /// An [`Edit`](ReplyKind::Edit) runs the call with other arguments, about which the gates decide
    /// [anew](self#edited-arguments). With [`Answer`](ReplyKind::Answer), the person who replies makes
    /// up the result: the outcome is marked as a person's
    /// ([`OutcomeSource::Person`](concentric_core::OutcomeSource::Person)), also for the model.
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

    /// Lets the [own rules of a run](self#rules-of-one-run) allow calls that this approval asks about,
    /// where they are as exact. By default they can make it stricter only. A rule that denies is
    /// never loosened.
    ///
    /// ```
    /// use concentric_core::ChatRequest;
    /// use concentric_tools::{Approval, Toolset};
    ///
    /// let tools = Toolset::new().gate(Approval::for_tools("refund").runs_may_loosen());
    ///
    /// let mut request = ChatRequest::user("Pay all of today's refunds.");
    /// request.context.extensions_mut().insert(Approval::new().allow("refund"));
    /// # let _ = (tools, request);
    /// ```
    #[must_use]
    pub fn runs_may_loosen(mut self) -> Self {
        self.runs_may_loosen = true;
        self
    }

    /// Lets its rules name tools that the toolset does not have, as those of an agent in the model's
    /// place; a misspelt name is then not an error. See the
    /// [module docs](self#what-a-rule-may-name).
    #[must_use]
    pub fn names_inner_tools(mut self) -> Self {
        self.names_inner_tools = true;
        self
    }

    /// Sets how long a question can be answered; the default is for ever. After zero time, and from
    /// then on, it can only be denied or cancelled.
    #[must_use]
    pub fn expires_after(mut self, time: Duration) -> Self {
        self.ask = self.ask.expires_after(time);
        self
    }

    /// Calls `watch` when somebody is asked, and when the question has its end.
    ///
    /// A question whose reply is an edit that a gate asks about anew has the end of the question that
    /// follows. Both are told once, over all processes that share the store given by
    /// [`Toolset::tell_once`](crate::Toolset::tell_once), or else once in each process that comes
    /// to it. Where the tool or the gates changed in between, all that watch are told the end. A
    /// suspended run that nobody takes up any more has none, unless its host
    /// [tells it](crate::ToolLifecycle::notify_decisions). It is called from within the round, and is
    /// not to block.
    #[must_use]
    pub fn watch(mut self, watch: impl Fn(&ApprovalEvent<'_>) + Send + Sync + 'static) -> Self {
        self.ask = self.ask.watch(watch);
        self
    }

    /// Lets a reply say that it holds for more than its call, and keeps that in `decisions`: such
    /// calls are not asked about again, or are denied. Of a call that was approved with other
    /// arguments, these are what is kept. A call that waits already goes on waiting.
    ///
    /// Such a reply [counts as an effect](concentric_core::Context::count_effect) of its run before the
    /// decision is stored: if the run is dropped or fails after that, its question does not wait again.
    /// If the process crashes, the run is resumed with the reply, and the decision is stored again.
    ///
    /// Without it no reply may say so: one that does is refused, since the response schema of the
    /// question does not offer it. Whoever may answer a question may thereby decide about calls to
    /// come: see [`remember_at_most`](Self::remember_at_most). A rule that denies is not overruled by what is
    /// remembered.
    #[must_use]
    pub fn remember(mut self, decisions: impl Decisions) -> Self {
        let decisions: Arc<dyn Decisions> = Arc::new(decisions);
        self.ask = self.ask.remember(Arc::clone(&decisions));
        self.decisions = Some(decisions);
        self
    }

    /// Sets which other calls a reply may hold for at most, and how long; by default all of the tool,
    /// for always. The question says so, and a reply that asks for more is refused.
    ///
    /// ```
    /// use concentric_core::interrupt::{RememberFor, RememberWhat};
    /// use concentric_tools::Approval;
    /// # use concentric_core::store::Decisions;
    ///
    /// # fn approval(store: impl Decisions) -> Approval {
    /// Approval::for_tools("refund")
    ///     .remember(store)
    ///     .remember_at_most(RememberWhat::Arguments, RememberFor::Thread)
    /// # }
    /// ```
    #[must_use]
    pub fn remember_at_most(mut self, what: RememberWhat, span: RememberFor) -> Self {
        self.ask = self.ask.remember_at_most(Remember { what, span });
        self
    }

    /// Keeps the run open while somebody is asked (but for what a layer changed on the way, which
    /// suspends it), instead of suspending it: the question is an
    /// event, and `live` takes the reply. After `timeout` without one the call is denied.
    #[must_use]
    pub fn live(mut self, live: &LiveInterrupts, timeout: Duration) -> Self {
        self.ask = self.ask.live(live.clone(), timeout);
        self
    }

    /// What its rules say.
    fn found(&self, call: &ToolCall) -> Found {
        let mut found = Found::default();
        for (matcher, rule) in &self.rules {
            let exactness = matcher.exactness();
            match matcher.matches(call) {
                Matched::Now(matched) => found.take(exactness, rule, matched.map_err(Into::into)),
                Matched::Later(later) => found.later.push((exactness, rule.clone(), later)),
            }
        }
        found
    }

    /// The stricter of what its rules and those of the run `own` say.
    fn decide_both(&self, agent: Found, own: Option<(&Self, Found)>, call: &ToolCall) -> Decided {
        let (run, own) = own.unzip();
        let is_loosened = self.runs_may_loosen
            && !agent.failed
            && own.as_ref().is_some_and(|own| own.loosens(&agent));
        let agent = match is_loosened {
            true => Decided::from(Verdict::Pass),
            false => self.verdict(agent.rule(), call, None),
        };
        match run.zip(own) {
            Some((run, own)) => run.verdict(own.rule(), call, Some(self)).and(agent),
            None => agent,
        }
    }

    /// The verdict of a rule. What the approval does not say about its questions, `fallback` says.
    fn verdict(&self, rule: Option<Rule>, call: &ToolCall, fallback: Option<&Self>) -> Decided {
        match rule {
            None => Verdict::Pass.into(),
            Some(Rule::Allow) => Verdict::Allow.into(),
            Some(Rule::Deny(reason)) => Verdict::Deny(reason).into(),
            Some(Rule::Ask) => {
                let mut ask = match fallback {
                    Some(other) => self.ask.clone().before(other.ask.clone()),
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

type Later = concentric_core::service::BoxFuture<bool>;

/// The rules of an approval that hold for a call.
#[derive(Default)]
struct Found {
    best: Option<(Exactness, Rule)>,
    deny: Option<Rule>,
    failed: bool,
    later: Vec<(Exactness, Rule, Later)>,
}

impl Found {
    fn take(&mut self, exactness: Exactness, rule: &Rule, matched: Result<bool, BoxError>) {
        match matched {
            Ok(false) => {}
            Ok(true) => {
                if let Rule::Deny(_) = rule {
                    self.deny.get_or_insert_with(|| rule.clone());
                    return;
                }
                let wins = match &self.best {
                    None => true,
                    Some((best, _)) if exactness > *best => true,
                    Some((best, _)) => exactness == *best && *rule == Rule::Ask,
                };
                if wins {
                    self.best = Some((exactness, rule.clone()));
                }
            }
            Err(error) => {
                tracing::warn!(%error, "a rule's matcher failed, so the call is asked about");
                self.failed = true;
            }
        }
    }

    async fn resolve(&mut self) {
        for (exactness, rule, later) in std::mem::take(&mut self.later) {
            self.take(exactness, &rule, later.await.map_err(Into::into));
        }
    }

    /// Whether it allows what `agent` asks about, by a rule that is as exact.
    fn loosens(&self, agent: &Self) -> bool {
        let denied = self.deny.is_some() || agent.deny.is_some();
        match (&self.best, &agent.best) {
            (Some((own, Rule::Allow)), Some((of, Rule::Ask))) => {
                !denied && !self.failed && own >= of
            }
            _ => false,
        }
    }

    fn rule(self) -> Option<Rule> {
        match (self.deny, self.failed) {
            (Some(deny), _) => Some(deny),
            (None, true) => Some(Rule::Ask),
            (None, false) => self.best.map(|(_, rule)| rule),
        }
    }
}

impl Gate for Approval {
    fn policy(&self) -> Str {
        let mut policy = format!("{:?}", self.rules);
        // What approvals that are stored were asked under stays as it is.
        if let Some(replies) = self.ask.unusual_replies() {
            let _ = write!(policy, " replies {replies:?}");
        }
        if self.runs_may_loosen {
            policy.push_str(" runs may loosen");
        }
        policy.into()
    }

    fn decide(&self, call: &ToolCall) -> Decided {
        let run = call.context.extensions().get::<Self>();
        let mut found = self.found(call);
        let mut own = run.map(|run| run.found(call));
        let later = own.as_ref().is_some_and(|own| !own.later.is_empty());
        if found.later.is_empty() && !later {
            return self.decide_both(found, run.zip(own), call);
        }
        let (approval, call) = (self.clone(), call.clone());
        Decided::later(async move {
            found.resolve().await;
            if let Some(own) = &mut own {
                own.resolve().await;
            }
            let run = call.context.extensions().get::<Self>();
            match approval.decide_both(found, run.zip(own), &call) {
                Decided::Now(verdict) => Ok(verdict),
                Decided::Later(verdict) => verdict.await,
            }
        })
    }

    fn knows_the_runs_own(&self) -> bool {
        true
    }

    fn asks(&self) -> Option<Ask> {
        Some(self.ask.clone())
    }

    fn check(&self, tools: &ToolSpecs) -> Result<(), ToolsetError> {
        let matchers = || self.rules.iter().map(|(matcher, _)| matcher);
        self.check_rules()?;
        match self.names_inner_tools {
            true => Ok(()),
            false => matchers().try_for_each(|matcher| matcher.check_names(tools)),
        }
    }
}

impl Approval {
    /// Checks what can be said of its rules without the tools.
    ///
    /// # Errors
    ///
    /// A rule is for an empty list of tools.
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

/// What was decided before about calls like `call`; else somebody is asked.
async fn recall(
    decisions: Arc<dyn Decisions>,
    call: ToolCall,
    ask: Ask,
) -> Result<Verdict, BoxError> {
    let context = &call.context;
    let recalled = stored(|| {
        decisions.recall(
            Tenant::of(context),
            call.name().clone(),
            run_of(context),
            context.thread_id().cloned(),
        )
    })
    .await;
    let remembered = match recalled {
        Ok(remembered) => remembered,
        Err(error) => {
            tracing::warn!(%error, "what was decided before is not known, so somebody is asked");
            return Ok(Verdict::Ask(ask));
        }
    };
    let definition = call.spec().map(|spec| Digest::of_spec(spec).to_string());
    let arguments = Digest::of_json(call.arguments().as_str()).map(|digest| digest.to_string());
    let holds = remembered.iter().filter(|decision| {
        let of_arguments = match (&decision.arguments, &arguments) {
            (None, _) => true,
            (Some(of), Ok(arguments)) => **of == **arguments,
            (Some(_), Err(_)) => false,
        };
        of_arguments && definition.as_deref() == Some(&*decision.definition)
    });
    let mut verdict = Verdict::Ask(ask);
    for decision in holds {
        if !decision.allow {
            let reason = decision.reason.clone();
            return Ok(Verdict::Deny(reason.unwrap_or_else(|| {
                Str::from_static("Such calls were denied before.")
            })));
        }
        // What somebody has replied to is for the reply to say.
        let replied = call.answered().is_some_and(|of| !of.replies.is_empty());
        if !replied {
            verdict = Verdict::Allow;
        }
    }
    Ok(verdict)
}

/// The id that the run of `context` keeps while other requests continue it: that of the stored run,
/// since a client may give two runs of a conversation the same id.
pub(crate) fn run_of(context: &Context) -> RunId {
    match RunKey::of(context) {
        Some(key) => key.run,
        None => context.run_id().clone(),
    }
}
