use super::{Rule, automaton::Automaton, scan};
use concentric_core::Str;
use std::{borrow::Cow, fmt, sync::Arc};

/// A set of [`Rule`]s, compiled to one automaton. Cheap to clone.
///
/// ```
/// use concentric_layers::guard::{Rule, Rules, RulesError, pii};
///
/// # fn main() -> Result<(), RulesError> {
/// let rules = Rules::new([
///     pii::card().mask(4),
///     pii::email(),
///     Rule::pattern("ticket", r"(?-u:\b)T-\d{6,8}(?-u:\b)").replace("[a ticket]"),
/// ])?;
/// assert_eq!(
///     rules.apply("T-123456 of ann@example.com, 4111 1111 1111 1111"),
///     "[a ticket] of [email], **** **** **** 1111",
/// );
/// # Ok(())
/// # }
/// ```
///
/// # Matches
///
/// The leftmost match counts: of those that begin at the same place, that of the rule listed first; of those
/// by the same rule, the longest that the rule accepts, up to its [maximum length](Rule::at_most) and with what
/// follows as far as the pattern continues. The search continues at its end, so that matches do not overlap,
/// and replacements are not searched. A text that arrives in pieces has the same matches as the
/// whole.
///
/// The time for a text is at most proportional to its length and that of the longest match, and in practice
/// to its length. There is no backtracking.
#[derive(Clone)]
pub struct Rules(Arc<Inner>);

struct Inner {
    rules: Vec<Rule>,
    automaton: Automaton,
}

impl Rules {
    /// Compiles a set of rules, in the order of their priority. The automaton has at most 8 MiB.
    ///
    /// Compile a set once, when the application starts, and clone it. All rules of [`pii`](super::pii) and
    /// [`secrets`](super::secrets) together take about 0.1 s of CPU time, and several seconds in a build without
    /// optimisation, as tests usually are.
    ///
    /// # Errors
    ///
    /// A pattern is invalid, or the automaton is too large.
    pub fn new(rules: impl IntoIterator<Item = Rule>) -> Result<Self, RulesError> {
        let rules: Vec<Rule> = rules.into_iter().collect();
        let automaton = Automaton::new(&rules)?;
        Ok(Self(Arc::new(Inner { rules, automaton })))
    }

    /// Returns `text` with its matches replaced. A match of a rule that [blocks](Rule::block) is replaced by
    /// the name of the rule in brackets.
    pub fn apply<'a>(&self, text: &'a str) -> Cow<'a, str> {
        scan::replaced(self, text).map_or(Cow::Borrowed(text), Cow::Owned)
    }

    /// Returns the rules that match in `text`, each once for each match, in order.
    pub fn find(&self, text: &str) -> Vec<&Rule> {
        let matches = scan::matches(self, text).into_iter();
        matches.filter_map(|found| self.rule(found.rule)).collect()
    }

    /// The rules, in order.
    pub fn iter(&self) -> std::slice::Iter<'_, Rule> {
        self.0.rules.iter()
    }

    pub(super) fn rule(&self, at: usize) -> Option<&Rule> {
        self.0.rules.get(at)
    }

    pub(super) fn automaton(&self) -> &Automaton {
        &self.0.automaton
    }
}

impl<'a> IntoIterator for &'a Rules {
    type Item = &'a Rule;
    type IntoIter = std::slice::Iter<'a, Rule>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

impl fmt::Debug for Rules {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self).finish()
    }
}

/// The reason why a set of rules cannot be compiled.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RulesError {
    /// The pattern of a rule is not a valid regular expression.
    Pattern {
        /// The name of the rule.
        rule: Str,
        /// The message of the parser.
        message: String,
    },
    /// The pattern of a rule matches texts of any length.
    Unbounded {
        /// The name of the rule.
        rule: Str,
    },
    /// The pattern of a rule matches the empty text.
    EmptyMatch {
        /// The name of the rule.
        rule: Str,
    },
    /// The pattern of a rule has a word boundary of Unicode.
    UnicodeWordBoundary {
        /// The name of the rule.
        rule: Str,
    },
    /// The automaton of all rules would be too large.
    TooLarge,
}

impl fmt::Display for RulesError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pattern { rule, message } => {
                write!(f, "invalid pattern of the rule `{rule}`: {message}")
            }
            Self::Unbounded { rule } => write!(
                f,
                "the rule `{rule}` matches texts of any length; set `Rule::at_most`"
            ),
            Self::EmptyMatch { rule } => write!(f, "the rule `{rule}` matches the empty text"),
            Self::UnicodeWordBoundary { rule } => write!(
                f,
                r"the rule `{rule}` has a word boundary of Unicode; use `(?-u:\b)`"
            ),
            Self::TooLarge => f.write_str(
                "the automaton of the rules would exceed 8 MiB; use fewer counted repetitions, with `Rule::at_most`",
            ),
        }
    }
}

impl std::error::Error for RulesError {}
