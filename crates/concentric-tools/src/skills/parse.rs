//! `SKILL.md`: YAML front matter, and instructions in Markdown.

use super::{Skill, SkillError};
use concentric_core::Str;
use serde::{Deserialize, Deserializer, de};
use std::{borrow::Cow, collections::BTreeMap, fmt};

/// The limit of a `SKILL.md` (bytes).
pub(super) const MAX_BYTES: usize = 256 * 1024;

const MAX_FRONT_MATTER: usize = 32 * 1024;
const MAX_NAME: usize = 64;
const MAX_DESCRIPTION: usize = 1024;
const MAX_COMPATIBILITY: usize = 500;

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "kebab-case")]
struct FrontMatter {
    name: Option<String>,
    description: Option<String>,
    license: Option<String>,
    compatibility: Option<String>,
    metadata: Option<BTreeMap<String, String>>,
    allowed_tools: Option<Names>,
}

/// Parses the text of a `SKILL.md`.
pub(super) fn parse(text: &str) -> Result<Skill, SkillError> {
    if text.len() > MAX_BYTES {
        return Err(SkillError::TooLarge { limit: MAX_BYTES });
    }
    let text = normal(text);
    let (front, body) = split(&text)?;
    if front.len() > MAX_FRONT_MATTER {
        return Err(SkillError::FrontMatter(
            format!("larger than {MAX_FRONT_MATTER} bytes").into(),
        ));
    }
    let front = read(front)?;
    let text = |text: Option<String>| text.map(|text| Str::from(text.trim()));
    let mut skill = Skill::new(
        text(front.name).ok_or(SkillError::Missing("name"))?,
        text(front.description).ok_or(SkillError::Missing("description"))?,
        body.trim(),
    );
    skill.license = text(front.license);
    skill.compatibility = text(front.compatibility);
    skill.allowed_tools = front.allowed_tools.unwrap_or_default().0;
    let metadata = front.metadata.unwrap_or_default();
    skill.metadata = metadata
        .into_iter()
        .map(|(key, value)| (key.into(), value.into()))
        .collect();
    check(&skill)?;
    Ok(skill)
}

/// Checks that a skill complies with the format's limits.
pub(super) fn check(skill: &Skill) -> Result<(), SkillError> {
    let invalid = |field, expected| Err(SkillError::Invalid { field, expected });
    let name = skill.name.as_str();
    let is_kebab = name.split('-').all(|word| {
        !word.is_empty()
            && word
                .chars()
                .all(|c| c.is_ascii_lowercase() || c.is_ascii_digit())
    });
    if !is_kebab || name.len() > MAX_NAME {
        return invalid("name", "1–64 of `a-z`, `0-9` and single `-` between them");
    }
    let description = skill.description.trim();
    if description.is_empty() || description.chars().count() > MAX_DESCRIPTION {
        return invalid("description", "1–1024 characters");
    }
    if let Some(compatibility) = &skill.compatibility
        && compatibility.chars().count() > MAX_COMPATIBILITY
    {
        return invalid("compatibility", "at most 500 characters");
    }
    match skill.instructions.len() > MAX_BYTES {
        true => Err(SkillError::TooLarge { limit: MAX_BYTES }),
        false => Ok(()),
    }
}

/// Removes the byte order mark, and converts line ends to `\n`: the checkout of a skill does not
/// change its bytes.
fn normal(text: &str) -> Cow<'_, str> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    match text.contains('\r') {
        true => text.replace("\r\n", "\n").replace('\r', "\n").into(),
        false => text.into(),
    }
}

/// Splits a text into the part between the first two lines of `---`, and the rest.
fn split(text: &str) -> Result<(&str, &str), SkillError> {
    let rest = text
        .split_once('\n')
        .and_then(|(first, rest)| (first.trim_end() == "---").then_some(rest))
        .ok_or(SkillError::NoFrontMatter)?;
    let mut end = 0;
    for line in rest.split_inclusive('\n') {
        if line.trim_end() == "---" {
            let front = rest.get(..end).unwrap_or_default();
            let body = rest.get(end + line.len()..).unwrap_or_default();
            return Ok((front, body));
        }
        end += line.len();
    }
    Err(SkillError::NoFrontMatter)
}

fn read(yaml: &str) -> Result<FrontMatter, SkillError> {
    let error = match from_yaml(yaml) {
        Ok(front) => return Ok(front),
        Err(error) => error,
    };
    // `description: Use this: when …` is invalid YAML, but common.
    if let Some(quoted) = quote(yaml)
        && let Ok(front) = from_yaml(&quoted)
    {
        return Ok(front);
    }
    let mut reason = one_line(&error.without_snippet().to_string());
    if yaml.lines().any(|line| line.matches(": ").count() > 1) {
        reason.push_str(" (put values that contain `: ` in quotes)");
    }
    Err(SkillError::FrontMatter(reason.into()))
}

fn from_yaml(yaml: &str) -> Result<FrontMatter, serde_saphyr::Error> {
    let options = serde_saphyr::options! {
        budget: serde_saphyr::budget! {
            max_depth: 8,
            flow_nesting_limit: 8,
            max_events: 20_000,
            max_nodes: 10_000,
            max_anchors: 0,
            max_aliases: 0,
            max_merge_keys: 0,
            max_documents: 1,
            max_total_scalar_bytes: 2 * MAX_FRONT_MATTER,
        },
    };
    serde_saphyr::from_str_with_options(yaml, options)
}

/// Quotes the text fields whose unquoted values contain a colon; `None` if there are none.
fn quote(yaml: &str) -> Option<String> {
    const FIELDS: [&str; 5] = [
        "name",
        "description",
        "license",
        "compatibility",
        "allowed-tools",
    ];
    let mut quoted = String::with_capacity(yaml.len() + 16);
    let mut changed = false;
    for line in yaml.lines() {
        let plain = line.split_once(": ").and_then(|(key, value)| {
            let value = value.trim();
            let is_text = !value.starts_with(['"', '\'', '|', '>', '[', '{', '&', '*', '!', '#']);
            let has_colon = value.contains(": ") || value.ends_with(':');
            (FIELDS.contains(&key) && is_text && has_colon).then_some((key, value))
        });
        match plain {
            Some((key, value)) => {
                changed = true;
                quoted.push_str(key);
                quoted.push_str(": '");
                quoted.push_str(&value.replace('\'', "''"));
                quoted.push('\'');
            }
            None => quoted.push_str(line),
        }
        quoted.push('\n');
    }
    changed.then_some(quoted)
}

fn one_line(text: &str) -> String {
    crate::lazy::one_line(text)
}

/// Tool names: a list, or a text separated by spaces or commas, which are ignored inside of
/// parentheses as in `Bash(git add:*)`.
#[derive(Default)]
struct Names(Vec<Str>);

impl Names {
    fn of(text: &str) -> Self {
        let mut depth = 0_usize;
        let names = text.split(|c: char| {
            match c {
                '(' => depth += 1,
                ')' => depth = depth.saturating_sub(1),
                _ => {}
            }
            depth == 0 && (c == ',' || c.is_whitespace())
        });
        Self(names.filter(|n| !n.is_empty()).map(Str::from).collect())
    }
}

impl<'de> Deserialize<'de> for Names {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;

        impl<'de> de::Visitor<'de> for Visitor {
            type Value = Names;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("tool names separated by spaces")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Names, E> {
                Ok(Names::of(text))
            }

            fn visit_seq<A: de::SeqAccess<'de>>(self, mut list: A) -> Result<Names, A::Error> {
                let mut names = Vec::new();
                while let Some(name) = list.next_element::<String>()? {
                    names.push(Str::from(name.trim()));
                }
                Ok(Names(names))
            }
        }

        deserializer.deserialize_any(Visitor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn skill(front: &str) -> Result<Skill, String> {
        parse(&format!("---\n{front}\n---\nDo it.\n")).map_err(|error| error.to_string())
    }

    #[test]
    fn all_fields_are_read() {
        let skill = skill(
            "name: pdf-forms\ndescription: >\n  Fills\n  forms.\nlicense: MIT\nversion: 1.0\n\
             compatibility: needs python\nmetadata:\n  author: me\n  version: 1.10\n\
             allowed-tools: Read, Bash(git add:*) Write",
        )
        .unwrap();
        assert_eq!(skill.name(), "pdf-forms");
        assert_eq!(skill.description(), "Fills forms.");
        assert_eq!(skill.instructions(), "Do it.");
        assert_eq!(skill.license(), Some("MIT"));
        assert_eq!(skill.compatibility(), Some("needs python"));
        assert_eq!(skill.metadata()["version"], *"1.10");
        assert_eq!(skill.allowed_tools(), ["Read", "Bash(git add:*)", "Write"]);
    }

    #[test]
    fn names_are_not_taken_for_other_things() {
        assert_eq!(skill("name: no\ndescription: 1.0").unwrap().name(), "no");
        let list = "name: a\ndescription: b\nallowed-tools:\n- Read\n- Write";
        assert_eq!(skill(list).unwrap().allowed_tools(), ["Read", "Write"]);
    }

    #[test]
    fn a_colon_needs_no_quotes() {
        let lenient = skill("name: a\ndescription: Use this: when it's \"x\": now\nlicense: MIT");
        let lenient = lenient.unwrap();
        assert_eq!(lenient.description(), "Use this: when it's \"x\": now");
        assert_eq!(lenient.license(), Some("MIT"));
        // A value that continues on the next line is not repaired.
        let error = skill("name: a\ndescription: Use this: when\n  x").unwrap_err();
        assert!(error.contains("in quotes"), "{error}");
    }

    #[test]
    fn errors_name_the_field() {
        let long = |n| "x".repeat(n);
        for (front, said) in [
            (String::new(), "missing field `name`"),
            ("name: a".to_owned(), "missing field `description`"),
            ("name:\ndescription: b".to_owned(), "missing field `name`"),
            ("name: [a]\ndescription: b".to_owned(), "front matter"),
            ("- a\n- b".to_owned(), "front matter"),
            ("name: a\nname: b\ndescription: c".to_owned(), "duplicate"),
            (format!("name: {}\ndescription: b", long(65)), "`name`"),
            (
                format!("name: a\ndescription: {}", long(1025)),
                "`description`",
            ),
            ("name: a\ndescription: '  '".to_owned(), "`description`"),
            (
                format!("name: a\ndescription: b\ncompatibility: {}", long(501)),
                "`compatibility`",
            ),
            ("name: &x a\ndescription: *x".to_owned(), "front matter"),
        ] {
            let error = skill(&front).unwrap_err();
            assert!(error.contains(said), "{front}: {error}");
        }
        for name in ["A", "a_b", "-a", "a-", "a--b", "ä", "a b", "../a", "a.b"] {
            let error = skill(&format!("name: {name:?}\ndescription: b")).unwrap_err();
            assert!(error.contains("`name`"), "{name}: {error}");
        }
        let longest = format!("name: {}\ndescription: {}", long(64), "ä".repeat(1024));
        assert!(skill(&longest).is_ok());
    }

    #[test]
    fn a_file_without_front_matter_is_none() {
        for text in [
            "",
            "---",
            "---\n",
            "# Do it",
            "---\nname: a\n",
            "--- x\n---\n",
            "\n---\n---\n",
        ] {
            assert!(
                matches!(parse(text), Err(SkillError::NoFrontMatter)),
                "{text:?}"
            );
        }
    }

    #[test]
    fn line_ends_and_a_byte_order_mark_do_not_matter() {
        let unix = "---\nname: a\ndescription: b\n---\n\none\ntwo\n";
        let windows = format!("\u{feff}{}", unix.replace('\n', "\r\n"));
        for text in [unix, &windows] {
            let skill = parse(text).unwrap();
            assert_eq!((skill.name(), skill.instructions()), ("a", "one\ntwo"));
        }
    }

    #[test]
    fn hostile_front_matter_is_refused_at_once() {
        let mut laughs = String::from("name: a\ndescription: b\nl0: &l0 [lol, lol]\n");
        for i in 1..30 {
            let of = i - 1;
            laughs.push_str(&format!("l{i}: &l{i} [*l{of}, *l{of}, *l{of}, *l{of}]\n"));
        }
        let deep = format!(
            "name: a\ndescription: b\nx: {}{}",
            "[".repeat(9_000),
            "]".repeat(9_000)
        );
        let blocks: String = (0..200).map(|i| format!("{}x:\n", " ".repeat(i))).collect();
        let deep_blocks = format!("name: a\ndescription: b\n{blocks}");
        let merges = "x: &x {name: a}\n<<: *x\ndescription: b".to_owned();
        for front in [laughs, deep, deep_blocks, merges] {
            let began = std::time::Instant::now();
            assert!(skill(&front).is_err(), "{front:.80}");
            assert!(began.elapsed().as_secs() < 2, "{front:.80}");
        }
        assert!(matches!(
            parse(&"-".repeat(MAX_BYTES + 1)),
            Err(SkillError::TooLarge { .. })
        ));
    }

    proptest! {
        #[test]
        fn nothing_makes_the_parser_panic(text in ".*", front in "(?s).{0,200}") {
            let _ = parse(&text);
            let _ = parse(&format!("---\n{front}\n---\n{text}"));
            let _ = parse(&format!("---\nname: a\ndescription: {front}\n---"));
        }

        #[test]
        fn nothing_of_yaml_makes_the_parser_panic(
            front in "(name|description|allowed-tools|metadata|[\\[\\]{}&*!|>'\":,# \n\t\r-]|[a-z0-9<é\u{85}\u{2028}]){0,60}",
        ) {
            let _ = parse(&format!("---\n{front}\n---\n"));
        }

        #[test]
        fn a_description_of_one_line_is_read_as_it_is(text in "[A-Za-z][A-Za-z0-9 :,.'()-]{0,80}[a-z]") {
            let skill = skill(&format!("name: a\ndescription: {text}"));
            prop_assert_eq!(skill.map(|s| s.description().to_owned()), Ok(text));
        }
    }
}
