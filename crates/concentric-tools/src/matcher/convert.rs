//! Conversions into matchers.

use super::{Kind, Matcher};
use concentric_core::Str;

impl From<Str> for Matcher {
    /// Matches calls of the tool of that name; a name with a `*` is a pattern.
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
    /// Matches calls that any of the items matches.
    fn from(any: [T; N]) -> Self {
        any.into_iter().collect()
    }
}

impl<T> From<Vec<T>> for Matcher
where
    T: Into<Self>,
{
    /// Matches calls that any of the items matches.
    fn from(any: Vec<T>) -> Self {
        any.into_iter().collect()
    }
}

impl<T> FromIterator<T> for Matcher
where
    T: Into<Self>,
{
    /// Matches calls that any of the items matches.
    fn from_iter<I: IntoIterator<Item = T>>(any: I) -> Self {
        Self(Kind::Any(any.into_iter().map(Into::into).collect()))
    }
}
