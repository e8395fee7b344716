//! Which tool calls something is about.
//!
//! ```
//! use concentric_tools::Matcher;
//!
//! // By name, by pattern, or by several of either.
//! let money = Matcher::from(["refund", "pay_*"]);
//! // By what a tool does to the world, and by the call itself.
//! let risky = Matcher::effects()
//!     .and(Matcher::group("internal").not())
//!     .and(Matcher::when(|call| call.arguments().as_str().len() > 1_000));
//!
//! assert_eq!(money.to_string(), "`refund` or `pay_*`");
//! assert_eq!(Matcher::effects().to_string(), "not read-only");
//! # let _ = risky;
//! ```
//!
//! Whatever takes an `impl Into<Matcher>` takes a name, a pattern or a list as it is:
//! `Approval::for_tools(["refund", "pay_*"])`.
//!
//! # When a predicate fails
//!
//! One that returns an error or panics says nothing about the call. If the answer hangs on it,
//! [`matches`](Matcher::matches) returns an error, and whoever asked takes the careful way: an
//! approval asks, a layer applies.

use crate::{ToolsetError, panic::Caught};
use concentric_core::{
    Annotations, BoxError, Error, ErrorKind, Str, ToolCall, ToolSpec, ToolSpecs, method::catch,
    service::BoxFuture,
};
use std::{any::type_name, fmt, future::Future, ops::Not, sync::Arc};

/// Which tool calls something is about.
///
/// See the [module docs](self). Cloning is cheap. `Debug` and `Display` say which calls it matches,
/// and are the same in every process of one build.
#[derive(Clone)]
pub struct Matcher(Kind);

#[derive(Clone)]
enum Kind {
    All,
    Name(Str),
    Pattern(Str),
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
    /// Every call.
    pub const fn all() -> Self {
        Self(Kind::All)
    }

    /// The calls of the tool of exactly that name; a `*` in it stands for itself.
    pub fn name(name: impl Into<Str>) -> Self {
        Self(Kind::Name(name.into()))
    }

    /// The calls of tools whose name is `pattern`, in which each `*` stands for any run of
    /// characters.
    pub fn pattern(pattern: impl Into<Str>) -> Self {
        Self(Kind::Pattern(pattern.into()))
    }

    /// The calls of tools that [belong](ToolSpec::groups) to `group`.
    pub fn group(group: impl Into<Str>) -> Self {
        Self(Kind::Group(group.into()))
    }

    /// The calls of tools that declare to be so. A tool that nobody knows is taken for the
    /// [worst](Annotations::default).
    pub fn annotated<F>(f: F) -> Self
    where
        F: Fn(&Annotations) -> bool + Send + Sync + 'static,
    {
        Self(Kind::Annotated(type_name::<F>(), Arc::new(f)))
    }

    /// The calls of tools that only read.
    pub const fn read_only() -> Self {
        Self(Kind::ReadOnly)
    }

    /// The calls of tools that may change something, and of those that nobody knows.
    pub fn effects() -> Self {
        Self::read_only().not()
    }

    /// The calls for which `f` returns `true`.
    ///
    /// The predicate is known by the name of its type alone, in `Debug` and so in the
    /// [policy](crate::Gate::policy) of a gate: an approval that was asked for under an older
    /// predicate still holds under one that behaves differently and has the same name, as another
    /// closure of the same function has. If earlier approvals must not hold any more, use a predicate
    /// of another name (a named function), or put the rule into a gate whose policy you state, as
    /// [`gate_fn`](crate::gate_fn) does. The same holds for [`try_when`](Self::try_when),
    /// [`when_async`](Self::when_async) and [`annotated`](Self::annotated).
    pub fn when<F>(f: F) -> Self
    where
        F: Fn(&ToolCall) -> bool + Send + Sync + 'static,
    {
        Self(Kind::When(
            type_name::<F>(),
            Arc::new(move |call| Ok(f(call))),
        ))
    }

    /// The calls that `f` says, which may fail.
    pub fn try_when<F>(f: F) -> Self
    where
        F: Fn(&ToolCall) -> Result<bool, BoxError> + Send + Sync + 'static,
    {
        Self(Kind::When(type_name::<F>(), Arc::new(f)))
    }

    /// The calls that the future of `f` says.
    ///
    /// It is dropped with whatever waits for it.
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

    /// The calls that both match. `other` is not asked about a call that this does not match.
    #[must_use]
    pub fn and(self, other: impl Into<Self>) -> Self {
        Self(Kind::Every(Arc::new([self, other.into()])))
    }

    /// The calls that either matches. `other` is not asked about a call that this matches.
    #[must_use]
    pub fn or(self, other: impl Into<Self>) -> Self {
        Self(Kind::Any(Arc::new([self, other.into()])))
    }

    /// The calls that this does not match; `!` does the same.
    #[must_use]
    #[expect(
        clippy::should_implement_trait,
        reason = "it does; but `and`, `or` and `not` are to be found in one place"
    )]
    pub fn not(self) -> Self {
        Self(Kind::Not(Arc::new(self)))
    }

    /// Whether it matches `call`.
    ///
    /// Allocates nothing, unless a predicate is [asynchronous](Self::when_async).
    pub fn matches(&self, call: &ToolCall) -> Matched {
        let spec = call.spec().map(|spec| &**spec);
        Matched::Now(match &self.0 {
            Kind::All => Ok(true),
            Kind::Name(name) => Ok(call.name() == name),
            Kind::Pattern(pattern) => Ok(fits(pattern, call.name())),
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
                return match of.matches(call) {
                    Matched::Now(matched) => Matched::Now(matched.map(bool::not)),
                    Matched::Later(later) => {
                        Matched::Later(Box::pin(async move { later.await.map(bool::not) }))
                    }
                };
            }
        })
    }

    /// The matchers any of which is enough.
    pub(crate) fn alternatives(self) -> Vec<Self> {
        match self.0 {
            // One that is empty stays, so that it is noticed.
            Kind::Any(of) if !of.is_empty() => {
                of.iter().cloned().flat_map(Self::alternatives).collect()
            }
            kind => vec![Self(kind)],
        }
    }

    /// Whether there is an empty list in it, which matches nothing.
    pub(crate) fn has_none(&self) -> bool {
        match &self.0 {
            Kind::Any(of) => of.is_empty() || of.iter().any(Self::has_none),
            Kind::Every(of) => of.iter().any(Self::has_none),
            Kind::Not(of) => of.has_none(),
            _ => false,
        }
    }

    /// Checks that each name and pattern in it is that of one of `tools`.
    ///
    /// # Errors
    ///
    /// One is not.
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
            Kind::Any(of) | Kind::Every(of) => of.iter().try_for_each(|it| it.check_names(tools)),
            Kind::Not(of) => of.check_names(tools),
            _ => Ok(()),
        }
    }

    /// How exactly it says which calls it is about: of two rules for a call, the more exact one is
    /// the exception.
    pub fn exactness(&self) -> Exactness {
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

/// How exactly a [`Matcher`] says which calls it is about.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Exactness {
    /// By anything else than names: a pattern, a group, a predicate; or not all of it by name.
    #[default]
    Other,
    /// By name.
    Name,
}

/// Whether a [`Matcher`] matches a call: now, or when a future resolves.
///
/// # Errors
///
/// It is not known, since a predicate failed.
#[must_use]
pub enum Matched {
    /// It is known.
    Now(Result<bool, Error>),
    /// An asynchronous predicate is to be asked.
    Later(BoxFuture<bool>),
}

impl Matched {
    /// Waits until it is known.
    ///
    /// # Errors
    ///
    /// A predicate failed.
    pub async fn resolve(self) -> Result<bool, Error> {
        match self {
            Self::Now(matched) => matched,
            Self::Later(later) => later.await,
        }
    }
}

impl fmt::Debug for Matched {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Now(matched) => f.debug_tuple("Now").field(matched).finish(),
            Self::Later(_) => f.debug_tuple("Later").finish_non_exhaustive(),
        }
    }
}

/// Asks the matchers of a list from the `from`th on, until one answers `decisive`. What failed
/// counts only if none does.
fn decide(
    of: &Arc<[Matcher]>,
    from: usize,
    decisive: bool,
    mut failed: Option<Error>,
    call: &ToolCall,
) -> Matched {
    for (at, matcher) in of.iter().enumerate().skip(from) {
        match matcher.matches(call) {
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

/// Whether `text` is `pattern`, in which each `*` stands for any run of characters.
fn fits(pattern: &str, text: &str) -> bool {
    let Some((head, rest)) = pattern.split_once('*') else {
        return pattern == text;
    };
    let (middle, tail) = rest.rsplit_once('*').unwrap_or(("", rest));
    let inside = text.strip_prefix(head).and_then(|t| t.strip_suffix(tail));
    // The first place where a piece fits leaves the most room to those that come after it.
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

impl From<Str> for Matcher {
    /// The calls of the tool of that name; a pattern, if there is a `*` in it.
    fn from(tools: Str) -> Self {
        match tools.contains('*') {
            true => Self::pattern(tools),
            false => Self::name(tools),
        }
    }
}

impl From<&str> for Matcher {
    fn from(tools: &str) -> Self {
        Str::from(tools).into()
    }
}

impl From<String> for Matcher {
    fn from(tools: String) -> Self {
        Str::from(tools).into()
    }
}

impl<T, const N: usize> From<[T; N]> for Matcher
where
    T: Into<Self>,
{
    /// The calls that any of them matches.
    fn from(any: [T; N]) -> Self {
        any.into_iter().collect()
    }
}

impl<T> From<Vec<T>> for Matcher
where
    T: Into<Self>,
{
    /// The calls that any of them matches.
    fn from(any: Vec<T>) -> Self {
        any.into_iter().collect()
    }
}

impl<T> FromIterator<T> for Matcher
where
    T: Into<Self>,
{
    /// The calls that any of them matches.
    fn from_iter<I: IntoIterator<Item = T>>(any: I) -> Self {
        Self(Kind::Any(any.into_iter().map(Into::into).collect()))
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
mod tests {
    use super::*;
    use concentric_core::{Arguments, CallId, Context, ToolCallPart};

    fn call(name: &str) -> ToolCall {
        let part = ToolCallPart::new(CallId::new("c"), name, Arguments::new("{}"));
        ToolCall::new(part, Context::new())
    }

    fn now(matcher: impl Into<Matcher>, name: &str) -> Result<bool, String> {
        match matcher.into().matches(&call(name)) {
            Matched::Now(matched) => matched.map_err(|error| error.to_string()),
            Matched::Later(_) => Err("later".to_owned()),
        }
    }

    #[test]
    fn a_star_is_any_run_of_characters() {
        for (pattern, text, fit) in [
            ("*", "", true),
            ("*", "a", true),
            ("**", "ab", true),
            ("a*", "a", true),
            ("a*", "ba", false),
            ("*a", "ba", true),
            ("*a", "ab", false),
            ("a*a", "a", false),
            ("a*a", "aa", true),
            ("a*b*c", "a__b__c", true),
            ("a*b*c", "acb", false),
            ("*ab*ab*", "abab", true),
            ("*ab*ab*", "aba", false),
            ("ä*ü", "äöü", true),
            ("fs__*", "fs__read", true),
            ("fs__*", "fs_read", false),
        ] {
            assert_eq!(fits(pattern, text), fit, "{pattern} {text}");
        }
        // Linear: no way through this is tried twice.
        let pattern = "*a".repeat(10_000);
        let text = "a".repeat(1_000_000);
        assert!(!fits(&format!("{pattern}*b"), &text));
    }

    #[test]
    fn a_list_matches_any_of_its_names_and_patterns() {
        assert_eq!(now(["refund", "pay_*"], "refund"), Ok(true));
        assert_eq!(now(["refund", "pay_*"], "pay_out"), Ok(true));
        assert_eq!(now(["refund", "pay_*"], "search"), Ok(false));
        assert_eq!(now(Vec::<Str>::new(), "search"), Ok(false));
        assert_eq!(now(Matcher::name("pay_*"), "pay_out"), Ok(false));
        assert_eq!(now(Matcher::name("pay_*"), "pay_*"), Ok(true));
    }

    #[test]
    fn a_tool_that_nobody_knows_is_the_worst() {
        assert_eq!(now(Matcher::effects(), "x"), Ok(true));
        assert_eq!(now(Matcher::read_only(), "x"), Ok(false));
        assert_eq!(now(Matcher::annotated(|a| a.destructive), "x"), Ok(true));
        assert_eq!(now(Matcher::group("g"), "x"), Ok(false));
    }

    #[test]
    fn what_failed_counts_if_the_answer_hangs_on_it() {
        let fails = || Matcher::try_when(|_| Err("gone".into()));
        let panics = || Matcher::when(|call| call.name().is_empty() || panic!("secret"));
        assert_eq!(now(fails(), "x"), Err("gone".to_owned()));
        assert!(now(panics(), "x").unwrap_err().contains("panicked"));
        assert!(!now(panics(), "x").unwrap_err().contains("secret"));
        assert!(now(panics().not(), "x").is_err());
        assert_eq!(now(fails().or("x"), "x"), Ok(true));
        assert!(now(fails().or("y"), "x").is_err());
        assert_eq!(now(fails().and("y"), "x"), Ok(false));
        assert!(now(fails().and("x"), "x").is_err());
        assert_eq!(now(Matcher::from("x").or(fails()), "x"), Ok(true));
    }

    #[tokio::test]
    async fn an_asynchronous_predicate_is_asked_if_the_answer_hangs_on_it() {
        let long = || Matcher::when_async(async |call: ToolCall| Ok(call.name().len() > 3));
        assert_eq!(now(Matcher::from("no").and(long()), "x"), Ok(false));
        assert_eq!(now(Matcher::from("x").or(long()), "x"), Ok(true));
        for (matcher, name, matched) in [
            (long(), "long", true),
            (long().not(), "long", false),
            (long().and("l*"), "long", true),
            (long().and("x"), "long", false),
            (long().or("x"), "x", true),
            (long().or(long()), "x", false),
        ] {
            let later = matcher.matches(&call(name));
            assert!(matches!(later, Matched::Later(_)), "{matcher}");
            assert_eq!(later.resolve().await.unwrap(), matched, "{matcher}");
        }
        let panics = Matcher::when_async(async |_| panic!("secret"));
        assert!(panics.matches(&call("x")).resolve().await.is_err());
        let or = panics.clone().or("x").matches(&call("x"));
        assert!(or.resolve().await.unwrap());
        assert!(panics.and("x").matches(&call("x")).resolve().await.is_err());
    }

    #[test]
    fn it_says_which_calls_it_matches() {
        let matcher = Matcher::from(["a", "b*"]).and(!Matcher::group("g"));
        assert_eq!(matcher.to_string(), "(`a` or `b*`) and not group `g`");
        let when = Matcher::when(|_| true);
        assert!(format!("{when:?}").starts_with("Matcher(when `concentric_tools"));
        assert_eq!(Matcher::from(["a"; 0]).to_string(), "none");
    }

    #[test]
    fn names_are_more_exact_than_the_rest() {
        let exact = |matcher: Matcher| matcher.exactness() == Exactness::Name;
        assert!(exact("a".into()));
        assert!(exact(["a", "b"].into()));
        assert!(exact(Matcher::from("a").and(Matcher::when(|_| true))));
        assert!(!exact(["a", "b*"].into()));
        assert!(!exact(Matcher::from("a").not()));
        assert!(!exact(Matcher::all()));
        assert!(Exactness::Name > Exactness::Other);
    }
}
