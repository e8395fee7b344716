use concentric_core::{Str, store::Tenant};

/// A person at a [`Console`](super::Console): whose runs they see, and what they may do.
///
/// The host's authentication creates it for each request ([`Console::authorize`](super::Console::authorize)). Without
/// further rights, an operator sees that runs exist, with their ids, agents, tools, tokens and states, but no content.
///
/// ```
/// use concentric_core::store::Tenant;
/// use concentric_http::console::Operator;
///
/// let support = Operator::new("ann", [Tenant("acme".into())]).content();
/// let approver = support.clone().decide();
/// # let _ = approver;
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Operator {
    pub(super) name: Str,
    pub(super) tenants: Vec<Tenant>,
    pub(super) session: Str,
    pub(super) content: bool,
    pub(super) decide: bool,
    pub(super) cancel: bool,
    pub(super) release: bool,
    pub(super) remember: bool,
}

impl Operator {
    /// Creates an operator who sees the runs of these tenants. Those of other tenants do not exist for them.
    ///
    /// Runs of a service without tenants belong to `Tenant::default()`.
    pub fn new(name: impl Into<Str>, tenants: impl IntoIterator<Item = Tenant>) -> Self {
        let mut tenants: Vec<Tenant> = tenants.into_iter().collect();
        tenants.sort_by(|a, b| a.0.cmp(&b.0));
        tenants.dedup();
        Self {
            name: name.into(),
            tenants,
            session: Str::default(),
            content: false,
            decide: false,
            cancel: false,
            release: false,
            remember: false,
        }
    }

    /// Sets the id of the operator's login, such as a digest of their session cookie.
    ///
    /// The forms of a page are valid in the login in which the page was opened. Without this id, they are valid for
    /// the operator.
    #[must_use]
    pub fn session(mut self, id: impl Into<Str>) -> Self {
        self.session = id.into();
        self
    }

    /// Grants the right to read content: texts, arguments, results and questions.
    #[must_use]
    pub const fn content(mut self) -> Self {
        self.content = true;
        self
    }

    /// Grants the right to reply to questions. It needs the right to read content, too: a call that can't be read can't
    /// be decided about.
    #[must_use]
    pub const fn decide(mut self) -> Self {
        self.decide = true;
        self
    }

    /// Grants the right to cancel runs.
    #[must_use]
    pub const fn cancel(mut self) -> Self {
        self.cancel = true;
        self
    }

    /// Grants the right to apply a decision to further calls, where the question allows that: in the run, in the
    /// conversation, or always, and to revoke such decisions. The last ones apply to all users of the tenant.
    #[must_use]
    pub const fn remember(mut self) -> Self {
        self.remember = true;
        self
    }

    /// Grants the right to release quarantined runs, so that they are resumed.
    #[must_use]
    pub const fn release(mut self) -> Self {
        self.release = true;
        self
    }

    pub(super) fn sees(&self, tenant: &Tenant) -> bool {
        self.tenants.contains(tenant)
    }

    pub(super) const fn may_decide(&self) -> bool {
        self.content && self.decide
    }
}
