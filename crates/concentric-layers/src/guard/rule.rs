use concentric_core::{Str, panic::catch};
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;
use std::{
    fmt::{self, Write},
    ops::Range,
    sync::Arc,
};

/// The number of bytes of a keyed hash that replace a match.
const HASH: usize = 8;

/// The number of matches at a place that [`Rule::validate`] checks: more than a number with separators has ends.
const TRIES: usize = 24;

/// A pattern, and the treatment of the texts that match it.
///
/// By default, a match is replaced by the name of the rule in brackets.
#[derive(Clone)]
pub struct Rule {
    pub(super) name: Str,
    pub(super) pattern: String,
    pub(super) at_most: Option<usize>,
    check: Option<Arc<Check>>,
    // Whether only the longest match at a place counts.
    is_longest: bool,
    action: Action,
}

/// Returns the part of a match to replace; `None` if the text is not a match.
type Check = dyn Fn(&str) -> Option<Range<usize>> + Send + Sync;

#[derive(Clone)]
enum Action {
    Replace(Str),
    Mask(usize),
    Hash(Box<Hmac<Sha256>>),
    Block,
    Flag,
}

impl Rule {
    /// Creates a rule for a regular expression in the syntax of the `regex` crate.
    ///
    /// Word boundaries must be those of ASCII: `(?-u:\b)`.
    pub fn pattern(name: impl Into<Str>, pattern: impl Into<String>) -> Self {
        let name = name.into();
        Self {
            action: Action::Replace(Str::concat(["[", &name, "]"])),
            name,
            pattern: pattern.into(),
            at_most: None,
            check: None,
            is_longest: true,
        }
    }

    /// Creates a rule for any of `texts`.
    pub fn literals<T>(name: impl Into<Str>, texts: impl IntoIterator<Item = T>) -> Self
    where
        T: AsRef<str>,
    {
        let mut pattern = String::new();
        for text in texts {
            if !pattern.is_empty() {
                pattern.push('|');
            }
            for c in text.as_ref().chars() {
                if c.is_ascii_punctuation() && c != '<' && c != '>' {
                    pattern.push('\\');
                }
                pattern.push(c);
            }
        }
        Self::pattern(name, pattern)
    }

    /// Sets the maximum length of a match in bytes.
    ///
    /// Required if the pattern has no maximum length of its own. A text of this length may be held.
    ///
    /// If the pattern also matches longer texts, the text after a match is dropped as far as the pattern
    /// continues, however long it is, unless the match is only [flagged](Self::flag). A text that must end in
    /// a certain way does not match if its end is beyond this length: make the end optional, as in
    /// `begin[a-z]*(?:end)?`, to replace such texts, too.
    #[must_use]
    pub fn at_most(mut self, bytes: usize) -> Self {
        self.at_most = Some(bytes);
        self
    }

    /// Restricts the rule to texts for which `is_match` returns `true`, such as those with a valid check
    /// digit. If it panics, the text is a match.
    ///
    /// It is called with the matches at a place, from the longest to the shortest, at most 24 of them, so the
    /// pattern should end in a word boundary.
    #[must_use]
    pub fn validate(self, is_match: impl Fn(&str) -> bool + Send + Sync + 'static) -> Self {
        let mut rule = self.check(move |text| is_match(text).then_some(0..text.len()));
        rule.is_longest = false;
        rule
    }

    /// Restricts the rule to texts of which `part` returns the part to replace. Only the longest match at a
    /// place is checked.
    pub(super) fn check(
        mut self,
        part: impl Fn(&str) -> Option<Range<usize>> + Send + Sync + 'static,
    ) -> Self {
        self.check = Some(Arc::new(part));
        self
    }

    fn act(mut self, action: Action) -> Self {
        self.action = action;
        self
    }

    /// Replaces a match by `text`.
    #[must_use]
    pub fn replace(self, text: impl Into<Str>) -> Self {
        self.act(Action::Replace(text.into()))
    }

    /// Replaces the letters and digits of a match by asterisks, except for those among its last `chars`
    /// characters. A match without further letters or digits is masked wholly.
    #[must_use]
    pub fn mask(self, chars: usize) -> Self {
        self.act(Action::Mask(chars))
    }

    /// Replaces a match by the name of the rule and a keyed hash, which is the same for the same text: 8 bytes
    /// of HMAC-SHA-256 (RFC 2104) in hexadecimal digits.
    ///
    /// Without the key, the text cannot be found by hashing candidates.
    #[must_use]
    pub fn hash(self, key: impl AsRef<[u8]>) -> Self {
        // The algorithm accepts keys of any length.
        match Hmac::new_from_slice(key.as_ref()) {
            Ok(hash) => self.act(Action::Hash(Box::new(hash))),
            Err(_) => self,
        }
    }

    /// Rejects texts with a match.
    #[must_use]
    pub fn block(self) -> Self {
        self.act(Action::Block)
    }

    /// Leaves a match as it is, and reports it.
    ///
    /// Rules listed after this one do not match at the same place.
    #[must_use]
    pub fn flag(self) -> Self {
        self.act(Action::Flag)
    }

    /// The name of the rule.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The number of matches at a place that are checked, from the longest.
    pub(super) const fn tries(&self) -> usize {
        if self.is_longest { 1 } else { TRIES }
    }

    /// Whether a match blocks the text.
    pub(super) const fn is_block(&self) -> bool {
        matches!(self.action, Action::Block)
    }

    /// Whether a match is only reported.
    pub(super) const fn is_flag(&self) -> bool {
        matches!(self.action, Action::Flag)
    }

    /// Returns the part of a match to replace; `None` if the text is not a match.
    pub(super) fn accept(&self, text: &str) -> Option<Range<usize>> {
        let all = 0..text.len();
        let Some(check) = &self.check else {
            return Some(all);
        };
        catch(|| check(text)).unwrap_or(Some(all))
    }

    /// Appends the replacement of a match.
    pub(super) fn replace_in(&self, text: &str, to: &mut String) {
        match &self.action {
            Action::Replace(by) => to.push_str(by),
            Action::Block => to.push_str(&Str::concat(["[", &self.name, "]"])),
            Action::Flag => to.push_str(text),
            Action::Mask(chars) => {
                let count = text.chars().count();
                let masked = |chars: usize| {
                    let kept = count.saturating_sub(chars);
                    let each = text.chars().enumerate();
                    each.map(move |(at, c)| (c, at < kept && c.is_alphanumeric()))
                };
                let chars = match masked(*chars).any(|(_, is_masked)| is_masked) {
                    true => *chars,
                    false => 0,
                };
                to.extend(masked(chars).map(|(c, is_masked)| if is_masked { '*' } else { c }));
            }
            Action::Hash(key) => {
                let mut hash = key.clone();
                hash.update(text.as_bytes());
                to.push('[');
                to.push_str(&self.name);
                to.push(':');
                for byte in hash.finalize().into_bytes().iter().take(HASH) {
                    // Writing to a string does not fail.
                    let _ = write!(to, "{byte:02x}");
                }
                to.push(']');
            }
        }
    }
}

impl fmt::Debug for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Rule")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}
