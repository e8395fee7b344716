//! Matchers, which select tool calls.
//!
//! ```
//! use concentric_tools::Matcher;
//!
//! // By name, by pattern, or by a list of these.
//! let money = Matcher::from(["refund", "pay_*"]);
//! // By the tool's annotations, and by the call itself.
//! let risky = Matcher::effects()
//!     .and(Matcher::group("internal").not())
//!     .and(Matcher::when(|call| call.arguments().as_str().len() > 1_000));
//!
//! assert_eq!(money.to_string(), "`refund` or `pay_*`");
//! assert_eq!(Matcher::effects().to_string(), "not read-only");
//! # let _ = risky;
//! ```
//!
//! An `impl Into<Matcher>` parameter accepts a name, a pattern or a list:
//! `Approval::for_tools(["refund", "pay_*"])`.
//!
//! # Failing predicates
//!
//! A predicate that returns an error or panics has no result. If the match depends on it,
//! [`matches`](Matcher::matches) returns an error, and the caller takes the safe choice: an
//! approval is required, a layer applies.

mod convert;

use crate::{ToolsetError, panic::Caught};
use concentric_core::{
    Annotations, BoxError, Error, ErrorKind, Str, ToolCall, ToolSpec, ToolSpecs, panic::catch,
    service::BoxFuture,
};
use std::{any::type_name, fmt, future::Future, ops::Not, sync::Arc};

/// Selects tool calls.
///
/// See the [module docs](self). Cloning is cheap. `Debug` and `Display` describe the selected
/// calls, and are the same in every process of one build.
#[derive(Clone)]
pub struct Matcher(Kind);

#[derive(Clone)]
enum Kind {
    All,
    Name(Str),
    Pattern(Str),
    #[cfg(feature = "regex")]
    Regex(regex::Regex),
    Group(Str),
    ReadOnly,
    Annotated(
        &'static str,
        Arc<dyn Fn(&Annotations) -> bool + Send + Sync>,
    ),
    When(&'static str, Arc<When>),
    WhenAsync(&'static str, Arc<WhenAsync>),
    Any(Arc<[Matcher]>),
    Every(Arc<[Matcher]>),
    Not(Arc<Matcher>),
}

type When = dyn Fn(&ToolCall) -> Result<bool, BoxError> + Send + Sync;
type WhenAsync = dyn Fn(ToolCall) -> BoxFuture<bool> + Send + Sync;

impl Matcher {
    /// Matches every call.
    pub const fn all() -> Self {
        Self(Kind::All)
    }

    /// Matches calls of the tool with exactly this name; a `*` in it has no special meaning.
    pub fn name(name: impl Into<Str>) -> Self {
        Self(Kind::Name(name.into()))
    }

    /// Matches calls of tools whose name matches `pattern`, in which each `*` stands for any
    /// sequence of characters.
    pub fn pattern(pattern: impl Into<Str>) -> Self {
        Self(Kind::Pattern(pattern.into()))
    }

    /// Matches calls of tools whose name matches a regular expression of the crate `regex`, at any
    /// position unless it is anchored.
    ///
    /// ```
    /// use concentric_tools::{Matcher, ToolsetError};
    ///
    /// # fn main() -> Result<(), ToolsetError> {
    /// let admin = Matcher::from(["export".into(), Matcher::regex("^admin")?]);
    /// assert_eq!(admin.to_string(), "`export` or `/^admin/`");
    /// assert!(Matcher::regex("(").is_err());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`ToolsetError::InvalidPattern`]: the expression is invalid, or larger than 10 MiB when it is
    /// compiled.
    #[cfg(feature = "regex")]
    pub fn regex(pattern: &str) -> Result<Self, ToolsetError> {
        match regex::Regex::new(pattern) {
            Ok(regex) => Ok(Self(Kind::Regex(regex))),
            Err(error) => Err(ToolsetError::InvalidPattern {
                pattern: pattern.into(),
                reason: error.to_string().into(),
            }),
        }
    }

    /// Matches calls of tools in a [group](ToolSpec::groups).
    pub fn group(group: impl Into<Str>) -> Self {
        Self(Kind::Group(group.into()))
    }

    /// Matches calls of tools whose annotations satisfy `f`. An unknown tool has the [most
    /// restrictive](Annotations::default) annotations.
    pub fn annotated<F>(f: F) -> Self
    where
        F: Fn(&Annotations) -> bool + Send + Sync + 'static,
    {
        Self(Kind::Annotated(type_name::<F>(), Arc::new(f)))
    }

    /// Matches calls of read-only tools.
    pub const fn read_only() -> Self {
        Self(Kind::ReadOnly)
    }

    /// Matches calls of tools that are unknown or not read-only.
    pub fn effects() -> Self {
        Self::read_only().not()
    }

    /// Matches calls for which `f` returns `true`.
    ///
    /// `Debug`, and therefore the [policy](crate::Gate::policy) of a gate, contains only the type
    /// name of the predicate: an earlier approval stays valid for a changed predicate of the same
    /// name, such as another closure in the same function. To invalidate earlier approvals, use a
    /// predicate with another name (a named function), or put the rule into a gate with an explicit
    /// policy, as [`gate_fn`](crate::gate_fn) does. The same applies to
    /// [`try_when`](Self::try_when), [`when_async`](Self::when_async) and
    /// [`annotated`](Self::annotated).
    pub fn when<F>(f: F) -> Self
    where
        F: Fn(&ToolCall) -> bool + Send + Sync + 'static,
    {
        Self(Kind::When(
            type_name::<F>(),
            Arc::new(move |call| Ok(f(call))),
        ))
    }

    /// Matches calls for which the fallible `f` returns `true`.
    pub fn try_when<F>(f: F) -> Self
    where
        F: Fn(&ToolCall) -> Result<bool, BoxError> + Send + Sync + 'static,
    {
        Self(Kind::When(type_name::<F>(), Arc::new(f)))
    }

    /// Matches calls for which the future of `f` resolves to `true`.
    ///
    /// The future is dropped with the future that awaits it.
    pub fn when_async<F, Fut>(f: F) -> Self
    where
        F: Fn(ToolCall) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<bool, BoxError>> + Send + 'static,
    {
        Self(Kind::WhenAsync(
            type_name::<F>(),
            Arc::new(move |call| {
                let future = f(call);
                Box::pin(async move { Ok(future.await?) })
            }),
        ))
    }

    /// Matches calls that both match. `other` is evaluated only if `self` matches.
    #[must_use]
    pub fn and(self, other: impl Into<Self>) -> Self {
        Self(Kind::Every(Arc::new([self, other.into()])))
    }

    /// Matches calls that either matches. `other` is evaluated only if `self` does not match.
    #[must_use]
    pub fn or(self, other: impl Into<Self>) -> Self {
        Self(Kind::Any(Arc::new([self, other.into()])))
    }

    /// Matches calls that `self` does not match; the same as `!`.
    #[must_use]
    #[expect(
        clippy::should_implement_trait,
        reason = "`Not` is implemented; the method keeps `and`, `or` and `not` together"
    )]
    pub fn not(self) -> Self {
        Self(Kind::Not(Arc::new(self)))
    }

    /// Evaluates the matcher for `call`.
    ///
    /// # Errors
    ///
    /// Returns an error if a predicate failed.
    pub async fn matches(&self, call: &ToolCall) -> Result<bool, Error> {
        self.evaluate(call).resolve().await
    }

    /// Evaluates the matcher without allocation, unless a predicate is asynchronous.
    pub(crate) fn evaluate(&self, call: &ToolCall) -> Matched {
        let spec = call.spec().map(|spec| &**spec);
        Matched::Now(match &self.0 {
            Kind::All => Ok(true),
            Kind::Name(name) => Ok(call.name() == name),
            Kind::Pattern(pattern) => Ok(fits(pattern, call.name())),
            #[cfg(feature = "regex")]
            Kind::Regex(regex) => Ok(regex.is_match(call.name())),
            Kind::Group(group) => Ok(spec.is_some_and(|spec| spec.groups.contains(group))),
            Kind::ReadOnly => Ok(spec.is_some_and(|spec| spec.annotations.read_only)),
            Kind::Annotated(of, f) => annotated(of, &**f, spec),
            Kind::When(of, f) => match catch(|| f(call)) {
                Ok(matched) => matched.map_err(Error::from),
                Err(_) => Err(panicked(of)),
            },
            Kind::WhenAsync(of, f) => return later(of, &**f, call),
            Kind::Any(of) => return decide(of, 0, true, None, call),
            Kind::Every(of) => return decide(of, 0, false, None, call),
            Kind::Not(of) => {
                return match of.evaluate(call) {
                    Matched::Now(matched) => Matched::Now(matched.map(bool::not)),
                    Matched::Later(later) => {
                        Matched::Later(Box::pin(async move { later.await.map(bool::not) }))
                    }
                };
            }
        })
    }

    /// Splits the matcher into the matchers any of which suffices.
    pub(crate) fn alternatives(self) -> Vec<Self> {
        match self.0 {
            // An empty list is kept so that it can be reported.
            Kind::Any(of) if !of.is_empty() => {
                of.iter().cloned().flat_map(Self::alternatives).collect()
            }
            kind => vec![Self(kind)],
        }
    }

    /// Whether the matcher contains an empty list, which matches nothing.
    pub(crate) fn has_none(&self) -> bool {
        match &self.0 {
            Kind::Any(of) => of.is_empty() || of.iter().any(Self::has_none),
            Kind::Every(of) => of.iter().any(Self::has_none),
            Kind::Not(of) => of.has_none(),
            _ => false,
        }
    }

    /// Checks that each name and pattern matches one of `tools`. Returns the first one that does
    /// not.
    pub(crate) fn check_names(&self, tools: &ToolSpecs) -> Result<(), ToolsetError> {
        let unknown = |name: &Str| Err(ToolsetError::UnknownTool(name.clone()));
        match &self.0 {
            Kind::Name(name) if tools.get(name).is_none() => unknown(name),
            Kind::Pattern(pattern)
                if pattern.bytes().any(|byte| byte != b'*')
                    && !tools.iter().any(|spec| fits(pattern, &spec.name)) =>
            {
                unknown(pattern)
            }
            #[cfg(feature = "regex")]
            Kind::Regex(regex) if !tools.iter().any(|spec| regex.is_match(&spec.name)) => {
                unknown(&regex.as_str().into())
            }
            Kind::Any(of) | Kind::Every(of) => of.iter().try_for_each(|it| it.check_names(tools)),
            Kind::Not(of) => of.check_names(tools),
            _ => Ok(()),
        }
    }

    /// The exactness of the matcher: of two rules for a call, the more exact one is the exception.
    pub(crate) fn exactness(&self) -> Exactness {
        match &self.0 {
            Kind::Name(_) => Exactness::Name,
            Kind::Any(of) => of.iter().map(Self::exactness).min().unwrap_or_default(),
            Kind::Every(of) => of.iter().map(Self::exactness).max().unwrap_or_default(),
            _ => Exactness::Other,
        }
    }

    fn write(&self, f: &mut fmt::Formatter<'_>, nested: bool) -> fmt::Result {
        match &self.0 {
            Kind::All => f.write_str("all"),
            Kind::Name(name) if name.contains('*') => write!(f, "exactly `{name}`"),
            Kind::Name(name) => write!(f, "`{name}`"),
            Kind::Pattern(pattern) => write!(f, "`{pattern}`"),
            #[cfg(feature = "regex")]
            Kind::Regex(regex) => write!(f, "`/{regex}/`"),
            Kind::Group(group) => write!(f, "group `{group}`"),
            Kind::ReadOnly => f.write_str("read-only"),
            Kind::Annotated(of, _) => write!(f, "annotated as in `{of}`"),
            Kind::When(of, _) | Kind::WhenAsync(of, _) => write!(f, "when `{of}`"),
            Kind::Any(of) if of.is_empty() => f.write_str("none"),
            Kind::Any(of) => list(f, of, " or ", nested),
            Kind::Every(of) => list(f, of, " and ", nested),
            Kind::Not(of) => {
                f.write_str("not ")?;
                of.write(f, true)
            }
        }
    }
}

/// The exactness of a [`Matcher`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Exactness {
    /// Not selected by names alone: a pattern, a group or a predicate.
    #[default]
    Other,
    /// Selected by name.
    Name,
}

/// The result of a [`Matcher`] for a call, immediate or asynchronous.
#[must_use]
pub(crate) enum Matched {
    /// The result is known.
    Now(Result<bool, Error>),
    /// The result of an asynchronous predicate.
    Later(BoxFuture<bool>),
}

impl Matched {
    async fn resolve(self) -> Result<bool, Error> {
        match self {
            Self::Now(matched) => matched,
            Self::Later(later) => later.await,
        }
    }
}

/// Evaluates the matchers of a list from index `from`, until one returns `decisive`. An error is
/// returned only if none does.
fn decide(
    of: &Arc<[Matcher]>,
    from: usize,
    decisive: bool,
    mut failed: Option<Error>,
    call: &ToolCall,
) -> Matched {
    for (at, matcher) in of.iter().enumerate().skip(from) {
        match matcher.evaluate(call) {
            Matched::Now(Ok(matched)) if matched == decisive => {
                return Matched::Now(Ok(decisive));
            }
            Matched::Now(Ok(_)) => {}
            Matched::Now(Err(error)) => failed = failed.or(Some(error)),
            Matched::Later(later) => {
                let (of, call) = (Arc::clone(of), call.clone());
                return Matched::Later(Box::pin(async move {
                    match later.await {
                        Ok(matched) if matched == decisive => return Ok(decisive),
                        Ok(_) => {}
                        Err(error) => failed = failed.or(Some(error)),
                    }
                    let rest = decide(&of, at + 1, decisive, failed, &call);
                    rest.resolve().await
                }));
            }
        }
    }
    Matched::Now(failed.map_or(Ok(!decisive), Err))
}

fn annotated(
    of: &str,
    f: &(dyn Fn(&Annotations) -> bool + Send + Sync),
    spec: Option<&ToolSpec>,
) -> Result<bool, Error> {
    let matched = match spec {
        Some(spec) => catch(|| f(&spec.annotations)),
        None => catch(|| f(&Annotations::default())),
    };
    matched.map_err(|_| panicked(of))
}

fn later(of: &'static str, f: &WhenAsync, call: &ToolCall) -> Matched {
    match catch(|| f(call.clone())) {
        Err(_) => Matched::Now(Err(panicked(of))),
        Ok(future) => {
            let caught = Caught::new(future);
            Matched::Later(Box::pin(async move {
                caught.await.unwrap_or_else(|_| Err(panicked(of)))
            }))
        }
    }
}

fn panicked(of: &str) -> Error {
    Error::new(ErrorKind::Other, format!("the predicate `{of}` panicked"))
}

/// Whether `text` matches `pattern`, in which each `*` stands for any sequence of characters.
fn fits(pattern: &str, text: &str) -> bool {
    let Some((head, rest)) = pattern.split_once('*') else {
        return pattern == text;
    };
    let (middle, tail) = rest.rsplit_once('*').unwrap_or(("", rest));
    let inside = text.strip_prefix(head).and_then(|t| t.strip_suffix(tail));
    // The first match of a piece leaves the most text to the pieces after it.
    let left = middle.split('*').try_fold(inside, |left, piece| {
        let (_, after) = left?.split_once(piece)?;
        Some(Some(after))
    });
    left.flatten().is_some()
}

fn list(f: &mut fmt::Formatter<'_>, of: &[Matcher], between: &str, nested: bool) -> fmt::Result {
    if nested {
        f.write_str("(")?;
    }
    for (at, matcher) in of.iter().enumerate() {
        if at > 0 {
            f.write_str(between)?;
        }
        matcher.write(f, true)?;
    }
    if nested {
        f.write_str(")")?;
    }
    Ok(())
}

impl Not for Matcher {
    type Output = Self;

    fn not(self) -> Self {
        Self::not(self)
    }
}

impl fmt::Display for Matcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.write(f, false)
    }
}

impl fmt::Debug for Matcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Matcher({self})")
    }
}

#[cfg(test)]
mod tests;
