//! The rules that match a call.

use crate::matcher::Exactness;
use concentric_core::{BoxError, Str};

/// The decision of a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Rule {
    Allow,
    Ask,
    Deny(Str),
}

type Later = concentric_core::service::BoxFuture<bool>;

/// The rules of an approval that match a call.
#[derive(Default)]
pub(super) struct Found {
    best: Option<(Exactness, Rule)>,
    deny: Option<Rule>,
    pub(super) failed: bool,
    pub(super) later: Vec<(Exactness, Rule, Later)>,
}

impl Found {
    pub(super) fn take(
        &mut self,
        exactness: Exactness,
        rule: &Rule,
        matched: Result<bool, BoxError>,
    ) {
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
                // Not within the current span, into which its exporter would copy the text.
                tracing::warn!(parent: None, %error, "the matcher of an approval rule failed; the call requires an approval");
                self.failed = true;
            }
        }
    }

    pub(super) async fn resolve(&mut self) {
        for (exactness, rule, later) in std::mem::take(&mut self.later) {
            self.take(exactness, &rule, later.await.map_err(Into::into));
        }
    }

    /// Whether a rule that is as exact allows a call for which `agent` requires an approval.
    pub(super) fn loosens(&self, agent: &Self) -> bool {
        let denied = self.deny.is_some() || agent.deny.is_some();
        match (&self.best, &agent.best) {
            (Some((own, Rule::Allow)), Some((of, Rule::Ask))) => {
                !denied && !self.failed && own >= of
            }
            _ => false,
        }
    }

    pub(super) fn rule(self) -> Option<Rule> {
        match (self.deny, self.failed) {
            (Some(deny), _) => Some(deny),
            (None, true) => Some(Rule::Ask),
            (None, false) => self.best.map(|(_, rule)| rule),
        }
    }
}
