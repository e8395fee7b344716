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
//! 3. The run's own rule, before the agent's. A run has its own as an `Approval` in the
//!    [extensions](concentric_core::Context::extensions) of its context.
//! 4. The one that asks, before the one that allows.
//!
//! A matcher that fails means that somebody is asked.
//!
//! A run's own rules are part of the request, and not of what is written down: whoever takes the run
//! up puts the same into the context, else what was asked under them is not approved by any reply, and
//! later calls are not asked about. What must always hold belongs on the toolset.
//!
//! # Who can answer
//!
//! A reply is believed for what is recorded as asked: in the run's state, which came from this very
//! process or from a store that nobody else writes; or in a [token](crate::token) that nobody else
//! can make. A reply without either runs nothing. See [`Toolset::tokens`](crate::Toolset::tokens).

mod ask;

pub use self::ask::{ApprovalEvent, Ask};

use crate::{
    Digest, Matcher,
    gate::{Decided, Gate, Verdict},
    matcher::{Exactness, Matched},
};
use concentric_core::{
    BoxError, Context, LiveInterrupts, RunId, Str, ToolCall,
    interrupt::{Remember, RememberFor, RememberWhat},
    method::catch,
    store::{Decisions, RunClaim, Tenant},
};
use std::{fmt, sync::Arc, time::Duration};

/// Asks a person about tool calls.
///
/// See the [module docs](self).
#[derive(Clone, Default)]
pub struct Approval {
    rules: Vec<(Matcher, Rule)>,
    ask: Ask,
    message: Option<Message>,
    decisions: Option<Arc<dyn Decisions>>,
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

    /// Sets how long a question can be answered; the default is for ever.
    #[must_use]
    pub fn expires_after(mut self, time: Duration) -> Self {
        self.ask = self.ask.expires_after(time);
        self
    }

    /// Calls `watch` when somebody is asked, and when the question has its end.
    ///
    /// Both are told once, over all processes that share the store given by
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
    /// Whoever may answer a question may thereby decide about calls to come: see
    /// [`remember_at_most`](Self::remember_at_most). A rule that denies is not overruled by what is
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

    /// What the rules say, the run's own among them.
    fn matched(&self, call: &ToolCall) -> Found {
        let run = call.context.extensions().get::<Self>();
        let levels = [(Level::Agent, Some(self)), (Level::Run, run)];
        let mut found = Found::default();
        for (level, approval) in levels {
            for (matcher, rule) in approval.iter().flat_map(|approval| &approval.rules) {
                let rank = (matcher.exactness(), level);
                match matcher.matches(call) {
                    Matched::Now(matched) => found.take(rank, rule, matched.map_err(Into::into)),
                    Matched::Later(later) => found.later.push((rank, rule.clone(), later)),
                }
            }
        }
        found
    }

    /// The verdict of a rule.
    fn verdict(&self, rule: Option<(Level, Rule)>, call: &ToolCall) -> Decided {
        let Some((level, rule)) = rule else {
            return Verdict::Pass.into();
        };
        match rule {
            Rule::Allow => Verdict::Allow.into(),
            Rule::Deny(reason) => Verdict::Deny(reason).into(),
            Rule::Ask => {
                // A run's own rule asks as the run says, and else as its agent does.
                let own = call.context.extensions().get::<Self>();
                let own = own.filter(|_| level == Level::Run);
                let message = own.and_then(|own| own.message.as_ref());
                let decisions = own.and_then(|own| own.decisions.as_ref());
                let mut ask = match own {
                    Some(own) => own.ask.clone().before(self.ask.clone()),
                    None => self.ask.clone(),
                };
                if let Some(message) = message.or(self.message.as_ref())
                    && let Ok(message) = catch(|| message(call))
                {
                    ask = ask.message(message);
                }
                match decisions.or(self.decisions.as_ref()) {
                    Some(decisions) => {
                        Decided::Later(Box::pin(recall(Arc::clone(decisions), call.clone(), ask)))
                    }
                    None => Verdict::Ask(ask).into(),
                }
            }
        }
    }
}

/// Which level a rule is of; the later wins over the earlier.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Level {
    Agent,
    Run,
}

type Rank = (Exactness, Level);
type Later = concentric_core::service::BoxFuture<bool>;

/// The rules that hold for a call.
#[derive(Default)]
struct Found {
    best: Option<(Rank, Rule)>,
    deny: Option<Rule>,
    failed: bool,
    later: Vec<(Rank, Rule, Later)>,
}

impl Found {
    fn take(&mut self, rank: Rank, rule: &Rule, matched: Result<bool, BoxError>) {
        match matched {
            Ok(false) => {}
            Ok(true) => {
                if let Rule::Deny(_) = rule {
                    self.deny.get_or_insert_with(|| rule.clone());
                    return;
                }
                let wins = match &self.best {
                    None => true,
                    Some((best, _)) if rank > *best => true,
                    Some((best, _)) => rank == *best && *rule == Rule::Ask,
                };
                if wins {
                    self.best = Some((rank, rule.clone()));
                }
            }
            Err(error) => {
                tracing::warn!(%error, "a rule's matcher failed, so somebody is asked");
                self.failed = true;
            }
        }
    }

    fn rule(self) -> Option<(Level, Rule)> {
        match (self.deny, self.failed) {
            (Some(deny), _) => Some((Level::Agent, deny)),
            (None, true) => Some((Level::Agent, Rule::Ask)),
            (None, false) => self.best.map(|((_, level), rule)| (level, rule)),
        }
    }
}

impl Gate for Approval {
    fn policy(&self) -> Str {
        format!("{:?}", self.rules).into()
    }

    fn decide(&self, call: &ToolCall) -> Decided {
        let mut found = self.matched(call);
        if found.later.is_empty() {
            return self.verdict(found.rule(), call);
        }
        let (approval, call) = (self.clone(), call.clone());
        Decided::later(async move {
            for (rank, rule, later) in std::mem::take(&mut found.later) {
                found.take(rank, &rule, later.await.map_err(Into::into));
            }
            match approval.verdict(found.rule(), &call) {
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
    let recalled = decisions
        .recall(
            Tenant::of(context),
            call.name().clone(),
            run_of(context),
            context.thread_id().cloned(),
        )
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

/// The name that the run of `context` keeps while it is taken up by others.
pub(crate) fn run_of(context: &Context) -> RunId {
    match RunClaim::of(context) {
        Some(claim) => claim.key.run,
        None => context.run_id().clone(),
    }
}
