//! Patterns of tool names, beside a matcher that is slow and plain; and what combines them.
use arbitrary::Arbitrary;
use concentric_core::{CallId, Context, ToolCall, ToolCallPart};
use concentric_fuzz::block_on;
use concentric_tools::Matcher;

#[derive(Arbitrary, Clone, Debug)]
pub(crate) enum Tree {
    All,
    Name(String),
    Pattern(String),
    Either(String),
    Few(Vec<u8>),
    Not(Box<Tree>),
    And(Box<Tree>, Box<Tree>),
    Or(Box<Tree>, Box<Tree>),
}

impl Tree {
    fn matcher(&self) -> Matcher {
        match self {
            Self::All => Matcher::all(),
            Self::Name(name) => Matcher::name(name.as_str()),
            Self::Pattern(pattern) => Matcher::pattern(pattern.as_str()),
            Self::Either(text) => Matcher::from(text.as_str()),
            Self::Few(bytes) => Matcher::pattern(few(bytes)),
            Self::Not(tree) => tree.matcher().not(),
            Self::And(one, other) => one.matcher().and(other.matcher()),
            Self::Or(one, other) => one.matcher().or(other.matcher()),
        }
    }

    fn fits(&self, name: &str) -> bool {
        match self {
            Self::All => true,
            Self::Name(own) => own == name,
            Self::Pattern(pattern) => fits(pattern, name),
            Self::Either(text) => fits(text, name),
            Self::Few(bytes) => fits(&few(bytes), name),
            Self::Not(tree) => !tree.fits(name),
            Self::And(one, other) => one.fits(name) && other.fits(name),
            Self::Or(one, other) => one.fits(name) || other.fits(name),
        }
    }
}

/// A text of few characters, so that patterns and names meet.
fn few(bytes: &[u8]) -> String {
    let char = |byte: &u8| ['*', 'a', 'b', 'é', '_'][usize::from(byte % 5)];
    bytes.iter().map(char).collect()
}

/// Whether `name` is `pattern`, place by place.
fn fits(pattern: &str, name: &str) -> bool {
    let name: Vec<char> = name.chars().collect();
    // Which beginnings of the name fit what there is of the pattern so far.
    let mut starts = vec![false; name.len() + 1];
    starts[0] = true;
    for c in pattern.chars() {
        let before = starts.clone();
        for at in 0..starts.len() {
            starts[at] = match c {
                '*' => before[..=at].contains(&true),
                c => at > 0 && before[at - 1] && name[at - 1] == c,
            };
        }
    }
    starts[name.len()]
}

pub(crate) fn run(case: (Tree, Vec<u8>, Option<String>)) {
    let (tree, bytes, name) = case;
    let name = name.unwrap_or_else(|| few(&bytes).replace('*', "a"));
    let call = ToolCallPart::new(CallId::new("c"), name.as_str(), "{}");
    let call = ToolCall::new(call, Context::new());
    let matched = block_on(tree.matcher().matches(&call));
    assert_eq!(matched.ok(), Some(tree.fits(&name)), "{tree:?} {name:?}");
}
