//! Analysis of a question: its words, and possible arguments.

use serde_json::Number;

/// A parsed question.
#[derive(Debug, Default)]
pub(super) struct Question {
    /// All words, in order.
    pub(super) words: Vec<Word>,
    /// Quoted strings.
    pub(super) quoted: Vec<String>,
    /// Words that look like file paths.
    pub(super) paths: Vec<String>,
    /// URLs.
    pub(super) urls: Vec<String>,
    /// Names of people and places: capitalized words within a sentence.
    pub(super) names: Vec<String>,
    /// Numbers, each with the stem of the next word.
    pub(super) numbers: Vec<(Number, String)>,
}

/// A word with its stem.
#[derive(Clone, Debug)]
pub(super) struct Word {
    pub(super) text: String,
    pub(super) stem: String,
}

impl Word {
    /// Returns `true` unless the word is a stop word.
    pub(super) fn is_content(&self) -> bool {
        !STOP.contains(&self.stem.as_str())
    }
}

/// The number of bytes of a question that are read.
const MAX_BYTES: usize = 4_000;

impl Question {
    pub(super) fn new(text: &str) -> Self {
        let mut question = Self::default();
        let text = text
            .get(..text.floor_char_boundary(MAX_BYTES))
            .unwrap_or(text);
        let rest = question.take_quoted(text);
        let mut sentence_starts = true;
        // Whether the next word may continue the last name, as in `New York`.
        let mut name_continues = false;
        for token in rest.split_whitespace().flat_map(split_sums) {
            let word = token.trim_matches(|c: char| {
                !c.is_alphanumeric() && !matches!(c, '/' | '_' | '.' | '+' | '-')
            });
            let word = word.trim_end_matches('.');
            if word.contains("://") {
                question.urls.push(word.to_owned());
            } else if let Some(number) = number(word) {
                question.numbers.push((number, String::new()));
            } else if is_path(word) {
                question.paths.push(word.to_owned());
            } else if !word.is_empty() {
                let stem = stem(word);
                if let Some((_, unit)) = question.numbers.last_mut()
                    && unit.is_empty()
                {
                    unit.clone_from(&stem);
                }
                let capital = word.starts_with(char::is_uppercase);
                if capital && !sentence_starts && word != "I" {
                    match question.names.last_mut() {
                        Some(name) if name_continues => {
                            name.push(' ');
                            name.push_str(word);
                        }
                        _ => question.names.push(word.to_owned()),
                    }
                }
                name_continues =
                    capital && !sentence_starts && token.ends_with(char::is_alphanumeric);
                let text = word.to_owned();
                question.words.push(Word { text, stem });
            }
            sentence_starts = token.ends_with(['.', '!', '?', ':']);
        }
        question.ask_for_contents();
        question
    }

    /// Collects the quoted strings, and returns the rest.
    fn take_quoted(&mut self, text: &str) -> String {
        let mut rest = String::with_capacity(text.len());
        let mut left = text;
        while let Some(at) = left.find(['"', '`', '“', '\'']) {
            let (before, from) = left.split_at(at);
            rest.push_str(before);
            let open = from.chars().next().unwrap_or('"');
            let close = if open == '“' { '”' } else { open };
            let inside = from.get(open.len_utf8()..).unwrap_or_default();
            // The apostrophe in `what's` is not a quote.
            let opens = open != '\'' || before.is_empty() || before.ends_with(char::is_whitespace);
            match inside.split_once(close) {
                Some((quoted, after)) if opens && !quoted.trim().is_empty() => {
                    if is_path(quoted) {
                        self.paths.push(quoted.to_owned());
                    }
                    self.quoted.push(quoted.to_owned());
                    rest.push(' ');
                    left = after;
                }
                _ => {
                    rest.push(open);
                    left = inside;
                }
            }
        }
        rest.push_str(left);
        rest
    }

    /// Adds the word `contents` to a question that implies it.
    fn ask_for_contents(&mut self) {
        let stems: Vec<&str> = self.words.iter().map(|w| w.stem.as_str()).collect();
        let asks = stems
            .windows(2)
            .any(|w| matches!(w, ["is" | "are" | "what", "in" | "inside"]));
        if asks && stems.first().is_some_and(|first| *first == "what") {
            let text = String::from("contents");
            let stem = stem(&text);
            self.words.push(Word { text, stem });
        }
    }

    /// Returns the words that are not stop words.
    pub(super) fn content(&self) -> impl Iterator<Item = &Word> {
        self.words.iter().filter(|word| word.is_content())
    }

    /// Returns `true` if a word of the question has the meaning `concept`.
    pub(super) fn means(&self, concept: &str) -> bool {
        self.words
            .iter()
            .any(|w| self::concept(&w.stem) == Some(concept))
    }

    /// Returns `true` if the question is only a greeting.
    pub(super) fn is_greeting(&self) -> bool {
        let mut content = self.content().peekable();
        content.peek().is_some() && content.all(|word| GREETINGS.contains(&word.stem.as_str()))
    }
}

/// Splits a name (`list_files`, `listFiles`) or a text into the stems of its words.
pub(super) fn stems(text: &str) -> Vec<String> {
    let mut spaced = String::with_capacity(text.len() + 8);
    let mut lower = false;
    for c in text.chars() {
        if c.is_uppercase() && lower {
            spaced.push(' ');
        }
        lower = c.is_lowercase();
        spaced.push(if c.is_alphanumeric() { c } else { ' ' });
    }
    spaced.split_whitespace().map(stem).collect()
}

/// Removes the endings of a word. The result is crude, but consistent.
pub(super) fn stem(word: &str) -> String {
    let mut word = word.to_lowercase().replace('’', "'");
    for ending in ["'s", "'re", "'t", "'"] {
        if let Some(short) = word.strip_suffix(ending) {
            word.truncate(short.len());
        }
    }
    let cut = |word: &str, ending: &str, least: usize| {
        word.strip_suffix(ending)
            .filter(|s| s.chars().count() >= least)
            .map(str::to_owned)
    };
    if let Some(short) = cut(&word, "ies", 3) {
        return short + "y";
    }
    let plural = !["ss", "us", "is", "as"]
        .iter()
        .any(|end| word.ends_with(end));
    if plural && let Some(short) = cut(&word, "s", 3) {
        word = short;
        for ending in ["che", "she", "xe"] {
            if word.ends_with(ending) {
                word.pop();
            }
        }
    }
    cut(&word, "ing", 4)
        .or_else(|| cut(&word, "ed", 4))
        .unwrap_or(word)
}

/// Returns the meaning of a stem, for a few common ones with synonyms.
pub(super) fn concept(stem: &str) -> Option<&'static str> {
    MEANINGS
        .iter()
        .find(|(_, stems)| stems.contains(&stem))
        .map(|(concept, _)| *concept)
}

const MEANINGS: &[(&str, &[&str])] = &[
    (
        "list",
        &[
            "list",
            "content",
            "folder",
            "directory",
            "dir",
            "entry",
            "tree",
        ],
    ),
    (
        "search",
        &[
            "search",
            "find",
            "look",
            "where",
            "mention",
            "grep",
            "match",
            "contain",
            "locate",
            "occur",
            "occurrence",
        ],
    ),
    (
        "read",
        &[
            "read", "open", "cat", "print", "line", "head", "say", "quote", "show",
        ],
    ),
    (
        "about",
        &[
            "about",
            "summary",
            "summarise",
            "summarize",
            "describe",
            "explain",
            "overview",
            "project",
            "purpose",
        ],
    ),
    ("add", &["add", "sum", "plus", "total", "addition"]),
    ("subtract", &["subtract", "minus", "difference"]),
    ("multiply", &["multiply", "time", "product"]),
    (
        "weather",
        &[
            "weather",
            "temperature",
            "forecast",
            "rain",
            "sunny",
            "warm",
            "cold",
        ],
    ),
    ("write", &["write", "save", "create", "store", "append"]),
    ("delete", &["delete", "remove", "erase"]),
    ("send", &["send", "mail", "email", "post"]),
];

/// Stop words.
const STOP: &[&str] = &[
    "a", "all", "also", "am", "an", "and", "any", "are", "as", "at", "be", "been", "but", "by",
    "can", "could", "did", "do", "doe", "does", "each", "for", "from", "get", "give", "had", "has",
    "have", "here", "how", "i", "if", "in", "inside", "into", "is", "it", "its", "just", "kind",
    "let", "many", "me", "much", "my", "need", "no", "not", "now", "of", "on", "one", "or", "our",
    "please", "see", "so", "some", "tell", "than", "that", "the", "their", "them", "then", "there",
    "these", "they", "thi", "this", "those", "to", "too", "under", "up", "us", "use", "want",
    "was", "we", "were", "what", "when", "which", "who", "why", "will", "with", "would", "you",
    "your", "word", "text", "string", "phrase", "term", "first", "last", "name", "nam",
];

const GREETINGS: &[&str] = &[
    "hello", "hi", "hey", "greet", "good", "morn", "morning", "day", "even", "evening", "thank",
    "bye",
];

/// Returns `true` if a word looks like a file path.
pub(super) fn is_path(word: &str) -> bool {
    if word.contains("://") || word.contains(char::is_whitespace) || word.len() > 300 {
        return false;
    }
    let name = word.rsplit('/').next().unwrap_or(word);
    let has_extension = name.rsplit_once('.').is_some_and(|(stem, extension)| {
        stem.chars().any(char::is_alphanumeric)
            && (1..=8).contains(&extension.len())
            && extension.starts_with(|c: char| c.is_ascii_alphabetic())
            && extension.chars().all(|c| c.is_ascii_alphanumeric())
    });
    let segments = || word.split('/').filter(|s| !s.is_empty());
    let all_stop = segments().all(|s| STOP.contains(&stem(s).as_str()));
    has_extension || (word.contains('/') && segments().next().is_some() && !all_stop)
}

fn number(word: &str) -> Option<Number> {
    let word = word.trim_start_matches('+');
    if !word.starts_with(|c: char| c.is_ascii_digit() || c == '-') {
        return None;
    }
    match word.parse::<i64>() {
        Ok(whole) => Some(whole.into()),
        Err(_) => word.parse().ok().and_then(Number::from_f64),
    }
}

/// Splits `2+3` into its parts, and replaces the signs with words.
fn split_sums(token: &str) -> Vec<&str> {
    let sign = |c: char| matches!(c, '+' | '*' | '×');
    let word = |c: char| if c == '+' { "plus" } else { "times" };
    let plain = token.trim_end_matches(['?', '=', '.', ',']);
    let is_sum = plain.contains(sign)
        && plain
            .chars()
            .all(|c| c.is_ascii_digit() || c == '.' || sign(c));
    if !is_sum {
        return vec![token];
    }
    let mut parts = Vec::new();
    let mut from = 0;
    for (at, c) in plain.char_indices().filter(|(_, c)| sign(*c)) {
        parts.push(plain.get(from..at).unwrap_or_default());
        parts.push(word(c));
        from = at + c.len_utf8();
    }
    parts.push(plain.get(from..).unwrap_or_default());
    parts.retain(|part| !part.is_empty());
    parts
}
