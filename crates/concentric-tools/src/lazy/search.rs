use concentric_core::{Str, ToolSpec};
use std::collections::BTreeSet;

/// The limit of a description in search results (characters).
const SUMMARY_CHARS: usize = 200;

/// A search index of tools by name and by the words of their descriptions.
///
/// Deterministic: the same query finds the same tools, in the same order.
#[derive(Debug, Default)]
pub(super) struct Index {
    // Sorted by name.
    tools: Vec<Entry>,
}

#[derive(Debug)]
pub(super) struct Entry {
    pub(super) name: Str,
    /// The start of the description, on one line.
    pub(super) summary: String,
    // In lower case.
    whole: String,
    name_words: BTreeSet<String>,
    group_words: BTreeSet<String>,
    text_words: BTreeSet<String>,
}

impl Index {
    pub(super) fn new<'a>(specs: impl IntoIterator<Item = &'a ToolSpec>) -> Self {
        let mut tools: Vec<_> = specs.into_iter().map(Entry::new).collect();
        tools.sort_by(|a, b| a.name.cmp(&b.name));
        Self { tools }
    }

    pub(super) fn len(&self) -> usize {
        self.tools.len()
    }

    pub(super) fn contains(&self, name: &str) -> bool {
        let by_name = |entry: &Entry| entry.name.as_str().cmp(name);
        self.tools.binary_search_by(by_name).is_ok()
    }

    /// Returns the best `limit` tools for `query`, the best first; and whether there are more.
    pub(super) fn find(&self, query: &str, limit: usize) -> (Vec<&Entry>, bool) {
        let query = query.to_lowercase();
        let named: BTreeSet<&str> = query
            .split(|c: char| c.is_whitespace() || ",;\"'`()[]".contains(c))
            .collect();
        let mut scores = vec![0_usize; self.tools.len()];
        for word in words(&query) {
            let hits: Vec<_> = self.tools.iter().map(|tool| tool.hit(&word)).collect();
            let missed = hits.iter().filter(|hit| **hit == 0).count();
            // A word that matches all tools has little weight.
            let rare = 1 + 8 * missed / self.tools.len().max(1);
            for (score, hit) in scores.iter_mut().zip(hits) {
                *score += hit * rare;
            }
        }
        let mut found: Vec<_> = self
            .tools
            .iter()
            .zip(scores)
            .map(|(tool, score)| match named.contains(tool.whole.as_str()) {
                true => (usize::MAX, tool),
                false => (score, tool),
            })
            .filter(|(score, _)| *score > 0)
            .collect();
        // Stable: tools of equal score stay sorted by name.
        found.sort_by(|(a, _), (b, _)| b.cmp(a));
        let more = found.len() > limit;
        let best = found.into_iter().take(limit).map(|(_, tool)| tool);
        (best.collect(), more)
    }
}

impl Entry {
    fn new(spec: &ToolSpec) -> Self {
        let mut summary = one_line(&spec.description);
        if let Some((end, _)) = summary.char_indices().nth(SUMMARY_CHARS) {
            summary.truncate(end);
            summary.push('…');
        }
        Self {
            name: spec.name.clone(),
            summary,
            whole: spec.name.to_lowercase(),
            name_words: words(&spec.name),
            group_words: spec.groups.iter().flat_map(|group| words(group)).collect(),
            text_words: words(&spec.description),
        }
    }

    /// The score of `word`.
    fn hit(&self, word: &str) -> usize {
        let fields = [
            (&self.name_words, 8),
            (&self.group_words, 4),
            (&self.text_words, 2),
        ];
        let hits = fields.iter().map(|(words, weight)| {
            if words.contains(word) {
                *weight
            } else if words.iter().any(|other| is_akin(word, other)) {
                weight / 2
            } else {
                0
            }
        });
        hits.max().unwrap_or(0)
    }
}

/// Whether one of the words is a prefix of the other, as in `mail` and `mails`.
fn is_akin(a: &str, b: &str) -> bool {
    a.len().min(b.len()) >= 3 && (a.starts_with(b) || b.starts_with(a))
}

/// The words of a text in lower case; those of `readFile` and `read_file` are the same.
fn words(text: &str) -> BTreeSet<String> {
    let mut words = BTreeSet::new();
    let mut word = String::new();
    let mut was_lower = false;
    for c in text.chars() {
        if !c.is_alphanumeric() || (was_lower && c.is_uppercase()) {
            words.insert(std::mem::take(&mut word));
        }
        if c.is_alphanumeric() {
            word.extend(c.to_lowercase());
        }
        was_lower = c.is_lowercase();
    }
    words.insert(word);
    words.remove("");
    words
}

/// Replaces each sequence of white space by one space.
pub(crate) fn one_line(text: &str) -> String {
    let words: Vec<&str> = text.split_whitespace().collect();
    words.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    fn spec(name: &str, description: &str) -> ToolSpec {
        ToolSpec::new(name, description, json!({ "type": "object" }))
    }

    fn index() -> Index {
        let mut grouped = spec("a_tool", "Does something.");
        grouped.groups.push("Billing".into());
        let specs = [
            spec("send_email", "Sends a mail to a person."),
            spec("readFile", "Reads a file from the disk."),
            spec("list_files", "Lists the files of a folder."),
            spec("files", "Nothing but a name."),
            grouped,
        ];
        Index::new(&specs)
    }

    fn find(query: &str) -> Vec<String> {
        let index = index();
        let (found, _) = index.find(query, 3);
        found.iter().map(|tool| tool.name.to_string()).collect()
    }

    #[test]
    fn words_are_those_of_names_too() {
        let expected = ["file", "http2", "read"].map(str::to_owned);
        assert_eq!(words("readFile-http2_FILE"), BTreeSet::from(expected));
    }

    #[test]
    fn the_best_come_first() {
        assert_eq!(find("read a file")[0], "readFile");
        assert_eq!(find("mails")[0], "send_email");
        assert_eq!(find("billing"), ["a_tool"]);
        // An exact name is always the best match.
        assert_eq!(find("FILES")[0], "files");
        assert_eq!(find("list folder `files`")[..2], ["files", "list_files"]);
        assert!(find("").is_empty() && find("?! 漢字").is_empty());
    }

    #[test]
    fn the_number_is_limited() {
        let index = index();
        let (found, more) = index.find("file files a the", 2);
        assert!(found.len() == 2 && more);
        assert!(index.contains("files") && !index.contains("file"));
    }

    #[test]
    fn a_summary_is_one_short_line() {
        let entry = Entry::new(&spec("t", &format!("a\n\tb\r\n{}", "ä".repeat(500))));
        assert_eq!(entry.summary.chars().count(), SUMMARY_CHARS + 1);
        assert!(entry.summary.starts_with("a b ä"));
    }

    proptest! {
        #[test]
        fn any_query_finds_no_more_than_the_limit(query in ".*", limit in 0_usize..4) {
            let index = index();
            prop_assert!(index.find(&query, limit).0.len() <= limit);
        }
    }
}
