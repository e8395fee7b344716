//! Digests of JSON, fields and specs.

use super::*;

fn of(text: &str) -> Digest {
    Digest::of_json(text).unwrap()
}

#[test]
fn the_digest_of_json_is_of_what_it_says() {
    let same = [
        (
            r#"{"a":1,"b":[true,null]}"#,
            " { \"b\" :\t[ true,\r\n null ] , \"a\" : 1 } ",
        ),
        (r#""ab""#, r#""\u0061\u0062""#),
        (r#""/""#, r#""\/""#),
        ("\"\u{1f600}\"", r#""\ud83d\uDE00""#),
        (r#"{"é":1,"z":2}"#, r#"{"z":2,"\u00e9":1}"#),
        ("{}", " { } "),
        ("[]", "[\n]"),
    ];
    for (a, b) in same {
        assert_eq!(of(a), of(b), "{a} {b}");
    }
    // Made with Python's hashlib: digests are kept and sent, so they must not change.
    let golden = of(r#"{"amount":5,"to":["Zoë",null]}"#).to_string();
    assert_eq!(golden, "jsHq_lUYtwpQz6TAJkj6laZ1d084nJa0Z58zxnjKX8s");
    let differ = [
        "1",
        "1.0",
        "1e0",
        "1E0",
        "1e+0",
        "10",
        "0",
        "-0",
        "0.0",
        "-0.0",
        "\"1\"",
        "true",
        "false",
        "null",
        "\"null\"",
        "\"\"",
        "[]",
        "{}",
        "[[]]",
        "[{}]",
        "[null]",
        "[1,2]",
        "[12]",
        "[2,1]",
        "[[1],2]",
        "[[1,2]]",
        "[1,[2]]",
        r#"{"a":1}"#,
        r#"{"a":"1"}"#,
        r#"{"b":1}"#,
        r#"{"":1}"#,
        r#"{"a":1,"b":2}"#,
        r#"{"a":2,"b":1}"#,
        r#"{"a":{"b":2}}"#,
        r#"["a",1]"#,
        r#"["a","1"]"#,
        r#"["ab"]"#,
        r#"["a","b"]"#,
        r#"["","ab"]"#,
        r#"["a,b"]"#,
        r#""a""#,
        r#""A""#,
        r#""a ""#,
        r#""\u0000""#,
        r#""\u00e9""#,
        r#""e\u0301""#,
        "1180591620717411303424",
        "1180591620717411303425",
        "9007199254740992",
        "9007199254740993",
        "1e999",
        "1e1000",
    ];
    let digests: HashSet<_> = differ.iter().map(|text| of(text).to_string()).collect();
    assert_eq!(digests.len(), differ.len());
}

#[test]
fn what_is_not_one_sound_json_value_has_no_digest() {
    let deep = |levels: usize| "[".repeat(levels) + &"]".repeat(levels);
    let deep_objects = |levels: usize| r#"{"a":"#.repeat(levels) + "1" + &"}".repeat(levels);
    assert!(Digest::of_json(&deep(127)).is_ok());
    assert!(Digest::of_json(&deep_objects(127)).is_ok());
    for text in [
        "",
        " ",
        "1 2",
        "nul",
        "nullx",
        "[1,]",
        "[,]",
        "{,}",
        "{\"a\"}",
        "{\"a\":}",
        "{a:1}",
        "01",
        "1.",
        ".5",
        "+1",
        "-",
        "1e",
        "NaN",
        "'a'",
        "\"",
        "\"\\\"",
        "\"\\x\"",
        "\"\n\"",
        "[",
        "]",
        "{",
        "}",
        "[}",
        r#""\ud83d""#,
        r#"{"\udc00":1}"#,
        "\u{feff}1",
        "\u{a0}1",
        "// c\n1",
        r#"{"a":1,"a":1}"#,
        r#"{"a":1,"\u0061":2}"#,
        r#"[{"b":{"":0,"":0}}]"#,
        &deep(128),
        &deep(1_000_000),
        &deep_objects(128),
        &"[".repeat(1_000_000),
    ] {
        let start: String = text.chars().take(30).collect();
        assert!(Digest::of_json(text).is_err(), "{start}");
    }
}

#[test]
fn the_digest_of_a_value_is_that_of_its_text() {
    let value = json!({"b": [1, -1, 1.5, 1e300, "\n\"é", null], "a": {"y": true, "x": {}}, "": []});
    assert_eq!(Digest::of_value(&value), of(&value.to_string()));
    // However deep. It is leaked, since serde_json drops it by recursion.
    let mut deep = Value::Null;
    for _ in 0..100_000 {
        deep = Value::Array(vec![deep]);
    }
    let deep = Box::leak(Box::new(deep));
    assert_ne!(Digest::of_value(deep), Digest::of_value(&value));
}

#[test]
fn fields_and_their_domain_are_kept_apart() {
    let all: &[(&str, &[&[u8]])] = &[
        ("a", &[]),
        ("a", &[b""]),
        ("a", &[b"", b""]),
        ("a", &[b"b", b"c"]),
        ("a", &[b"bc"]),
        ("a", &[b"c", b"b"]),
        ("ab", &[b"c"]),
        ("", &[b"a"]),
        ("concentric/json/v1", &[]),
    ];
    let mut digests: HashSet<_> = all
        .iter()
        .map(|(domain, fields)| Digest::of_fields(domain, fields).to_string())
        .collect();
    digests.extend(["\"a\"", "[\"a\"]"].map(|text| of(text).to_string()));
    assert_eq!(digests.len(), all.len() + 2);
}

#[test]
fn a_digest_is_text_in_one_spelling() {
    let digest = of("1");
    let text = digest.to_string();
    assert_eq!(text.len(), 43);
    assert_eq!(serde_json::to_value(digest).unwrap(), json!(text));
    let read = |text: &str| serde_json::from_value::<Digest>(json!(text)).ok();
    assert_eq!(read(&text), Some(digest));
    assert_eq!(read(&format!("{text}=")), None);
    assert_eq!(read(&text[..42]), None);
    assert_eq!(read(&format!("{}A", &text[..40])), None);
    let zeros = "A".repeat(43);
    assert_eq!(read(&zeros), Some(Digest::from_bytes([0; 32])));
    assert_eq!(read(&format!("{}B", &zeros[..42])), None);
    assert_eq!(format!("{digest:?}"), format!("Digest({text})"));
}

#[test]
fn the_digest_of_a_spec_is_of_all_of_it() {
    let spec = ToolSpec::new("n", "d", json!({"type": "object"}));
    // If this fails, the type has a field more, and `Digest::of_spec` has to take it in.
    assert_eq!(
        format!("{spec:?}"),
        "ToolSpec { name: \"n\", description: \"d\", \
         input_schema: Object {\"type\": String(\"object\")}, output_schema: None, \
         annotations: Annotations { title: None, read_only: false, destructive: true, \
         idempotent: false, open_world: true }, groups: [], keyed: false }"
    );
    let changes: &[fn(&mut ToolSpec)] = &[
        |_| {},
        |spec| spec.name = "nd".into(),
        |spec| (spec.name, spec.description) = ("nd".into(), "".into()),
        |spec| spec.description = "e".into(),
        |spec| spec.input_schema = json!({"type": "array"}).into(),
        |spec| spec.output_schema = Some(json!({"type": "object"}).into()),
        |spec| spec.output_schema = Some(json!(null).into()),
        |spec| spec.annotations.title = Some("".into()),
        |spec| spec.annotations.title = Some("t".into()),
        |spec| spec.annotations.read_only = true,
        |spec| spec.annotations.destructive = false,
        |spec| spec.annotations.idempotent = true,
        |spec| spec.annotations.open_world = false,
        |spec| spec.annotations = Annotations::read_only(),
        |spec| spec.groups = vec!["ab".into()],
        |spec| spec.groups = vec!["a".into(), "b".into()],
        |spec| spec.keyed = true,
    ];
    let digests: HashSet<_> = changes
        .iter()
        .map(|change| {
            let mut spec = spec.clone();
            change(&mut spec);
            Digest::of_spec(&spec).to_string()
        })
        .collect();
    assert_eq!(digests.len(), changes.len());
    let sorted = ToolSpec::new("n", "d", json!({"a": 1, "b": 2}));
    let other = ToolSpec::new("n", "d", json!({"b": 2, "a": 1}));
    assert_eq!(Digest::of_spec(&sorted), Digest::of_spec(&other));
}

/// JSON, with the text of its numbers.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Json {
    Word(&'static str),
    Number(String),
    String(String),
    Array(Vec<Self>),
    // Without a key twice, in the order of the keys.
    Object(std::collections::BTreeMap<String, Self>),
}

/// Few different ones, so that two are often nearly equal.
fn json_strategy() -> impl Strategy<Value = Json> {
    let text = || {
        prop_oneof![
            "[a-b]{0,2}",
            "\\PC{0,3}",
            proptest::collection::vec(any::<char>(), 0..3).prop_map(String::from_iter),
        ]
    };
    let leaf = prop_oneof![
        prop_oneof![Just("null"), Just("true"), Just("false")].prop_map(Json::Word),
        "-?(0|[1-3][0-9]{0,1}|1180591620717411303424)(\\.[01]{1,2})?([eE][+-]?[01])?"
            .prop_map(Json::Number),
        text().prop_map(Json::String),
    ];
    leaf.prop_recursive(4, 24, 4, move |inner| {
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..4).prop_map(Json::Array),
            proptest::collection::btree_map(text(), inner, 0..4).prop_map(Json::Object),
        ]
    })
}

/// Writes `json` in one of the ways it may be written, by what `choose` says.
fn write(json: &Json, choose: &mut impl FnMut(usize) -> usize, to: &mut String) {
    fn white(choose: &mut impl FnMut(usize) -> usize, to: &mut String) {
        to.push_str(match choose(6) {
            0 => " ",
            1 => "\n",
            2 => "\t\r ",
            _ => "",
        });
    }
    fn string(text: &str, choose: &mut impl FnMut(usize) -> usize, to: &mut String) {
        to.push('"');
        for c in text.chars() {
            let short = match c {
                '"' => Some("\\\""),
                '\\' => Some("\\\\"),
                '/' => Some("\\/"),
                '\n' => Some("\\n"),
                '\t' => Some("\\t"),
                '\r' => Some("\\r"),
                '\u{8}' => Some("\\b"),
                '\u{c}' => Some("\\f"),
                _ => None,
            };
            let must = matches!(c, '"' | '\\' | '\0'..='\x1f');
            match (choose(4), short) {
                (0, _) => escape(c, false, to),
                (1, _) => escape(c, true, to),
                (2, Some(short)) => to.push_str(short),
                _ if must => escape(c, false, to),
                _ => to.push(c),
            }
        }
        to.push('"');
    }
    fn escape(c: char, upper: bool, to: &mut String) {
        for unit in c.encode_utf16(&mut [0; 2]) {
            to.push_str(&if upper {
                format!("\\u{unit:04X}")
            } else {
                format!("\\u{unit:04x}")
            });
        }
    }
    white(choose, to);
    match json {
        Json::Word(word) => to.push_str(word),
        Json::Number(number) => to.push_str(number),
        Json::String(text) => string(text, choose, to),
        Json::Array(items) => {
            to.push('[');
            for (i, item) in items.iter().enumerate() {
                if i > 0 {
                    to.push(',');
                }
                write(item, choose, to);
            }
            white(choose, to);
            to.push(']');
        }
        Json::Object(entries) => {
            let mut entries: Vec<_> = entries.iter().collect();
            for i in 1..entries.len() {
                entries.swap(i, choose(i + 1));
            }
            to.push('{');
            for (i, (key, value)) in entries.into_iter().enumerate() {
                if i > 0 {
                    to.push(',');
                }
                white(choose, to);
                string(key, choose, to);
                white(choose, to);
                to.push(':');
                write(value, choose, to);
            }
            white(choose, to);
            to.push('}');
        }
    }
    white(choose, to);
}

/// `json` with one leaf or length changed, if `at` is one of its places.
fn change(json: &mut Json, at: &mut usize) {
    if *at == 0 {
        match json {
            Json::Word(word) => *word = if *word == "null" { "true" } else { "null" },
            Json::Number(number) if number.contains(['.', 'e', 'E']) => number.push('0'),
            Json::Number(number) => number.push_str(".0"),
            Json::String(text) => text.push('a'),
            Json::Array(items) => items.push(Json::Array(Vec::new())),
            Json::Object(entries) => {
                let key = format!("{}a", entries.keys().last().map_or("", |key| key));
                entries.insert(key, Json::Word("null"));
            }
        }
    }
    *at = at.wrapping_sub(1);
    match json {
        Json::Array(items) => items.iter_mut().for_each(|item| change(item, at)),
        Json::Object(entries) => entries.values_mut().for_each(|value| change(value, at)),
        _ => {}
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(2000) })]

    #[test]
    fn two_texts_have_one_digest_iff_they_say_the_same(
        a in json_strategy(),
        other in json_strategy(),
        at in 0..8_usize,
        seeds in any::<[[u8; 32]; 4]>(),
    ) {
        let text = |json: &Json, seed: &[u8; 32]| {
            let mut rng = TestRng::from_seed(RngAlgorithm::ChaCha, seed);
            let mut choose = |n: usize| usize::try_from(rng.next_u64() % n as u64).unwrap();
            let mut text = String::new();
            write(json, &mut choose, &mut text);
            text
        };
        let mut changed = a.clone();
        change(&mut changed, &mut at.clone());
        let first = text(&a, &seeds[0]);
        let again = text(&a, &seeds[1]);
        prop_assert_eq!(of(&first), of(&again), "{} {}", first, again);
        for (i, b) in [changed, other].iter().enumerate() {
            let second = text(b, &seeds[2 + i]);
            prop_assert_eq!(of(&first) == of(&second), a == *b, "{} {}", first, second);
        }
    }

    #[test]
    fn any_text_is_read_as_serde_json_reads_it(text in "[\\[\\]{}:,\"\\\\ u0-1a.eE+-]{0,12}|\\PC{0,8}") {
        let ours = Digest::of_json(&text);
        let theirs = serde_json::from_str::<Value>(&text);
        // What we alone refuse: a key that stands twice. What it alone does: a number too large.
        match (&ours, &theirs) {
            (Ok(_), Err(error)) => prop_assert!(error.to_string().contains("out of range"), "{text}"),
            (Err(error), Ok(_)) => prop_assert!(error.to_string().contains("duplicate key"), "{text}"),
            _ => {}
        }
    }
}
