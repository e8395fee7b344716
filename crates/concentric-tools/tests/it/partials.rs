//! Values that are shown while they are written.

use concentric_core::{CustomEvent, Event, FinishReason, MessageId, Part, StepStart, Usage};
use concentric_tools::output::{Partials, VALUE_FOLLOWS, output};
use proptest::prelude::*;
use schemars::JsonSchema;
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::{Value, json};

#[derive(Deserialize, JsonSchema)]
struct Folder {}

fn follows(schema: &str) -> Event {
    let custom = CustomEvent::new(VALUE_FOLLOWS, json!({ "schema": schema }));
    Event::Custom(Box::new(custom))
}

fn finish() -> Event {
    Event::finish(FinishReason::Stop, Usage::default())
}

fn start() -> Event {
    Event::StepStart(Box::new(StepStart::new(1, MessageId::new("m1"))))
}

/// A reader in a step that is for the value.
fn reader<P: DeserializeOwned>() -> Partials<P> {
    let mut partials = output::<Folder>("folder").partials();
    assert!(partials.push(&follows("folder")).is_none());
    partials
}

/// What shows of `text`, which arrives a character at a time.
fn shown(partials: &mut Partials<Value>, text: &str) -> Vec<Value> {
    let mut buffer = [0; 4];
    let deltas = text
        .chars()
        .map(|c| Event::text(&*c.encode_utf8(&mut buffer)));
    let mut shown: Vec<_> = deltas.filter_map(|delta| partials.push(&delta)).collect();
    shown.extend(partials.push(&finish()));
    shown
}

fn all(text: &str) -> Vec<Value> {
    shown(&mut reader(), text)
}

// ---- what shows ----

#[test]
fn a_value_grows() {
    let text = r#"{"a": "x\n", "b": [12, true], "c": {"d": null}}"#;
    let expected = [
        json!({}),
        json!({"a": ""}),
        json!({"a": "x"}),
        json!({"a": "x\n"}),
        json!({"a": "x\n", "b": []}),
        json!({"a": "x\n", "b": [12]}),
        json!({"a": "x\n", "b": [12, true]}),
        json!({"a": "x\n", "b": [12, true], "c": {}}),
        json!({"a": "x\n", "b": [12, true], "c": {"d": null}}),
    ];
    assert_eq!(all(text), expected);
}

#[test]
fn a_number_shows_when_it_is_whole() {
    assert_eq!(all("12"), [json!(12)]);
    let numbers = all("[-1.5e2, 0.25 ,7]");
    let expected = [
        json!([]),
        json!([-150.0]),
        json!([-150.0, 0.25]),
        json!([-150.0, 0.25, 7]),
    ];
    assert_eq!(numbers, expected);
}

#[test]
fn a_number_beyond_an_i64_shows_at_the_end() {
    let expected = [json!([]), json!([1]), json!([1, u64::MAX, 2])];
    assert_eq!(all(&format!("[1, {}, 2]", u64::MAX)), expected);
}

#[test]
fn a_character_shows_when_both_of_its_halves_are_there() {
    let expected = [json!(""), json!("a"), json!("a\u{1f600}")];
    assert_eq!(all(r#""a\ud83d\ude00""#), expected);
}

#[test]
fn whole_strings_leaves_those_out_that_are_cut() {
    let mut partials = reader().whole_strings();
    let text = r#"{"a": "xy", "b": ["z"]}"#;
    let expected = [
        json!({}),
        json!({"a": "xy"}),
        json!({"a": "xy", "b": []}),
        json!({"a": "xy", "b": ["z"]}),
    ];
    assert_eq!(shown(&mut partials, text), expected);
}

#[test]
fn a_fence_is_no_part_of_the_value() {
    for text in ["```json\n[1, 2]\n```\n", "\n ```[1, 2]```", "[1, 2]\n"] {
        assert_eq!(all(text), [json!([]), json!([1]), json!([1, 2])], "{text}");
    }
}

#[test]
fn every_fence_that_the_final_reader_accepts_is_accepted() {
    let numbers = output::<Vec<u8>>("numbers");
    for text in [
        "```JSON\n[1, 2]\n```",
        "```Json [1, 2]```",
        "```json[1, 2]```",
        "```JSON[1, 2]```",
        "```\r\n[1, 2]\r\n```",
        "```json5\n[1, 2]\n```",
        "\u{feff}[1, 2]",
        "\u{feff}```json\n\u{feff}[1, 2]\n```",
        "Here it is:\n```json\n[1, 2]\n```",
        "```json\n[1, 2]\n```\nThat is all.",
        "Two of them:\n```json\n[1, 2]\n```\nThese: 12",
    ] {
        assert_eq!(numbers.of_text(text).unwrap(), [1, 2], "{text}");
        assert_eq!(all(text), [json!([]), json!([1]), json!([1, 2])], "{text}");
    }
}

#[test]
fn a_fence_in_a_string_is_text() {
    let text = "[\"```json\\n1 ```\"]";
    assert_eq!(all(text).last(), Some(&json!(["```json\n1 ```"])));
    let fenced = format!("```json\n{text}\n```");
    assert_eq!(all(&fenced), all(text));
}

#[test]
fn what_is_no_json_shows_nothing_more_and_is_no_error() {
    for (text, last) in [
        ("", None),
        ("Here it is: [1]", None),
        ("15 × 27 = 405", None),
        ("1, 2, 3", None),
        ("8c27", None),
        ("null and void", None),
        ("`[1]`", None),
        ("[NaN]", Some(json!([]))),
        ("[1 2]", Some(json!([1]))),
        ("[1] and more [2]", Some(json!([1]))),
        (r#"{"a": [1, x], "b": 2}"#, Some(json!({"a": [1]}))),
        ("[1", Some(json!([]))),
        ("[1e999]", Some(json!([]))),
        ("```json\n[1,", Some(json!([1]))),
    ] {
        assert_eq!(all(text).pop(), last, "{text}");
    }
}

#[test]
fn a_value_that_is_no_p_yet_does_not_show() {
    #[derive(Debug, PartialEq, Deserialize)]
    struct Named {
        name: String,
        #[serde(default)]
        size: Option<u32>,
    }
    let mut partials = reader::<Named>();
    let mut push = |text: &str| partials.push(&Event::text(text));
    assert_eq!(push("{"), None);
    let named = |name: &str, size| {
        Some(Named {
            name: name.to_owned(),
            size,
        })
    };
    assert_eq!(push(r#""name": "a"#), named("a", None));
    assert_eq!(push(r#"b", "size": 1"#), named("ab", None));
    assert_eq!(push("2}"), named("ab", Some(12)));
    assert_eq!(partials.push(&finish()), None);
}

// ---- which text ----

#[test]
fn text_is_read_from_the_event_on_to_the_end_of_the_step() {
    let mut partials = output::<Folder>("folder").partials::<Value>();
    let mut push = |event: Event| partials.push(&event);
    assert_eq!(push(Event::text("[0,")), None);
    assert_eq!(push(follows("other")), None);
    assert_eq!(push(Event::text("[0,")), None);
    assert_eq!(push(follows("folder")), None);
    assert_eq!(push(Event::text("[1,")), Some(json!([1])));
    assert_eq!(push(Event::ReasoningDelta("2".into())), None);
    let part = Event::Part(Box::new(Part::text("3,")));
    assert_eq!(push(part), Some(json!([1, 3])));
    assert_eq!(push(start()), None);
    assert_eq!(push(Event::text("4,")), None);
    assert_eq!(push(finish()), None);
}

#[test]
fn after_a_reset_and_in_a_further_step_it_begins_anew() {
    let mut partials = reader::<Value>();
    let mut push = |event: Event| partials.push(&event);
    assert_eq!(push(Event::text("[1,")), Some(json!([1])));
    assert_eq!(push(Event::Reset), None);
    assert_eq!(push(Event::text("[1,")), Some(json!([1])));
    push(start());
    push(follows("folder"));
    assert_eq!(push(Event::text("[1,")), Some(json!([1])));
    assert_eq!(push(Event::text(" ]")), None);
    assert_eq!(push(finish()), None);
}

// ---- limits ----

#[test]
fn a_long_text_is_read_when_it_has_grown_by_its_share() {
    let numbers: Vec<u32> = (0..20_000).collect();
    let text = serde_json::to_string(&numbers).unwrap();
    let mut partials = reader::<Value>();
    let early = text[..4096]
        .chars()
        .filter_map(|c| partials.push(&Event::text(c.to_string())))
        .count();
    assert!(early > 500, "{early}");
    let late = shown(&mut partials, &text[4096..]);
    // Each is 17/16 of the one before: ln(108_890 / 4096) / ln(17 / 16) is 54.
    assert!((50..=56).contains(&late.len()), "{}", late.len());
    assert_eq!(late.last(), Some(&json!(numbers)));
}

#[test]
fn of_more_than_the_most_bytes_nothing_shows_and_the_next_step_does() {
    let mut partials = reader::<Value>().max_bytes(4);
    assert_eq!(shown(&mut partials, "[1,2]"), [json!([]), json!([1])]);
    partials.push(&follows("folder"));
    assert_eq!(shown(&mut partials, "[12]"), [json!([]), json!([12])]);
}

#[test]
fn depth_is_limited() {
    let text = "[".repeat(1 << 20);
    assert_eq!(reader::<Value>().push(&Event::text(text)), None);
}

// ---- all values ----

fn value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        "(?s).{0,12}".prop_map(Value::from),
        "[a-e0-9:,\\-+.\\[\\]{}`\" ]{0,12}".prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 40, 6, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..6).prop_map(Value::from),
            prop::collection::btree_map("(?s).{0,4}", inner, 0..6)
                .prop_map(|map| Value::Object(map.into_iter().collect())),
        ]
    })
}

/// The text of a value, as models write it.
fn written(value: &Value, pretty: bool, escaped: bool, fence: &str) -> String {
    let json = match pretty {
        true => serde_json::to_string_pretty(value).unwrap(),
        false => value.to_string(),
    };
    let mut text = format!("{fence}\n");
    for c in json.chars() {
        match escaped && !c.is_ascii() {
            true => {
                let mut units = [0; 2];
                let units = c.encode_utf16(&mut units).iter();
                text.extend(units.map(|unit| format!("\\u{unit:04x}")));
            }
            false => text.push(c),
        }
    }
    text + "\n" + fence.trim_end_matches("json")
}

/// Whether `part` is what is written of `whole` at some time.
fn begins(part: &Value, whole: &Value) -> bool {
    match (part, whole) {
        (Value::String(part), Value::String(whole)) => whole.starts_with(part.as_str()),
        (Value::Array(part), Value::Array(whole)) => {
            let Some((last, before)) = part.split_last() else {
                return true;
            };
            whole.len() > before.len()
                && before.iter().zip(whole).all(|(a, b)| same(a, b))
                && begins(last, &whole[before.len()])
        }
        (Value::Object(part), Value::Object(whole)) => {
            let unequal = part.iter().filter(|(name, value)| {
                let whole = whole.get(*name);
                !whole.is_some_and(|whole| same(value, whole))
            });
            let unequal: Vec<_> = unequal.collect();
            match unequal[..] {
                [] => true,
                [(name, value)] => whole.get(name).is_some_and(|whole| begins(value, whole)),
                _ => false,
            }
        }
        _ => same(part, whole),
    }
}

/// Equal, but for the last bit of a float, which `serde_json` does not always get right.
fn same(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Number(a), Value::Number(b)) if a.is_f64() && b.is_f64() => {
            let (a, b) = (a.as_f64().unwrap(), b.as_f64().unwrap());
            a == b || (a - b).abs() <= a.abs() * f64::EPSILON
        }
        (Value::Array(a), Value::Array(b)) => {
            a.len() == b.len() && a.iter().zip(b).all(|(a, b)| same(a, b))
        }
        (Value::Object(a), Value::Object(b)) => {
            let mut fields = a.iter();
            a.len() == b.len() && fields.all(|(name, a)| b.get(name).is_some_and(|b| same(a, b)))
        }
        _ => a == b,
    }
}

proptest! {
    #[test]
    fn each_partial_value_begins_the_next_one_and_the_last_is_the_whole(
        value in value(),
        pretty in any::<bool>(),
        escaped in any::<bool>(),
        fence in prop::sample::select(vec!["", "```", "```json"]),
        whole_strings in any::<bool>(),
    ) {
        let text = written(&value, pretty, escaped, fence);
        let whole = serde_json::from_str::<Value>(&value.to_string()).unwrap();
        let mut partials = reader::<Value>();
        if whole_strings {
            partials = partials.whole_strings();
        }
        let shown = shown(&mut partials, &text);
        for pair in shown.windows(2) {
            prop_assert!(begins(&pair[0], &pair[1]), "{} {}", pair[0], pair[1]);
        }
        for partial in &shown {
            prop_assert!(begins(partial, &whole), "{partial} {whole}");
        }
        prop_assert_eq!(shown.last(), Some(&whole), "{}", text);
    }

    #[test]
    fn nothing_makes_it_panic(
        noise in "(?s).{0,80}",
        near in "[\\[\\]{}\",:0-9eE+.\\-truefalsn\\\\ud8`j \n]{0,200}",
        value in value(),
        cut in any::<prop::sample::Index>(),
    ) {
        let text = value.to_string();
        let at = text.floor_char_boundary(cut.index(text.len() + 1));
        let broken = format!("{}{noise}{}", &text[..at], &text[at..]);
        for text in [noise, near, broken] {
            let shown = all(&text);
            if let Ok(whole) = serde_json::from_str::<Value>(&text) {
                prop_assert_eq!(shown.last(), Some(&whole));
            }
        }
    }
}
