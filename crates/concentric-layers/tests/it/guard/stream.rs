//! The output of a stream is that of the whole text.

use super::{
    Random, cases,
    rules::{PIECES, SPECS, random_text},
};
use concentric_core::{
    BoxError, ChatRequest, ChatResponse, CustomEvent, Error, Event, FinishReason, Usage,
};
use concentric_layers::guard::{GuardLayer, Parts, Rule, Rules, pii, secrets};
use futures_util::{FutureExt, StreamExt, stream};
use std::sync::OnceLock;
use tower::{Layer, Service, service_fn};

fn built_in() -> &'static Rules {
    static RULES: OnceLock<Rules> = OnceLock::new();
    RULES.get_or_init(|| Rules::new(pii::all().into_iter().chain(secrets::all())).unwrap())
}

/// Beginnings, middles and ends of matches.
const SECRETS: [&str; 26] = [
    "4111 1111 1111 1111",
    "4111",
    " 1111",
    "1",
    "ann@example.com",
    "ann",
    "@example",
    ".com",
    "https://bob:",
    "hunter2@",
    "+49 30 1234567",
    "DE89 3704 0044 0532 0130 00",
    "born on 12 May 1980",
    "-----BEGIN PRIVATE KEY-----",
    "\nMIIEvQIBADAN",
    "-----END PRIVATE KEY-----",
    "sk-ant-api03-AbCdEfGhIjKlMnOp",
    "password=",
    "Zx8kQ2mN7pR4tV1wY6bC3dF9",
    "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0",
    "fe80::1",
    " ",
    ", ",
    "é",
    "👩‍👩",
    "and so it is",
];

/// As `SECRETS`, with texts beyond the maximum length of their rules.
pub(super) fn secrets() -> Vec<String> {
    let mut all = SECRETS.map(str::to_owned).to_vec();
    for (before, count) in [
        ("refresh_token = ", 15),
        ("sk-ant-api03-", 20),
        ("postgres://user:", 40),
        ("https://", 40),
        ("", 4),
        ("\\", 0),
        ("\\n", 0),
        ("t", 0),
        ("\\n4111111111111111\\n", 0),
    ] {
        all.push([before, &"aB3dE5gH7jK9mN2p".repeat(count)].concat());
    }
    all
}

pub(super) fn delta(kind: usize, text: &str) -> Event {
    match kind {
        0 => Event::TextDelta(text.into()),
        1 => Event::ReasoningDelta(text.into()),
        _ => Event::RefusalDelta(text.into()),
    }
}

pub(super) fn tick() -> Event {
    Event::from(CustomEvent::new("tick", ().into()))
}

pub(super) fn finish() -> Event {
    Event::finish(FinishReason::Stop, Usage::default())
}

/// The events of a guarded answer.
pub(super) fn guarded(layer: &GuardLayer, events: Vec<Event>) -> Vec<Event> {
    guarded_answer(layer, ChatRequest::new(Default::default()), events)
}

/// The events of a guarded answer to a request.
pub(super) fn guarded_answer(
    layer: &GuardLayer,
    request: ChatRequest,
    events: Vec<Event>,
) -> Vec<Event> {
    let mut events = Some(events);
    let model = service_fn(move |_: ChatRequest| {
        let events = events.take().unwrap_or_default();
        async move {
            let body = stream::iter(events).map(Ok::<_, Error>);
            Ok::<_, BoxError>(ChatResponse::new(body))
        }
    });
    let mut guard = layer.layer(model);
    let response = guard.call(request).now_or_never();
    let body = response.unwrap().unwrap().body;
    let events = body.map(Result::unwrap).collect().now_or_never();
    events.unwrap()
}

/// The released texts of a stream of these pieces.
fn released(rules: &Rules, kind: usize, pieces: &[&str], random: &mut Random) -> Vec<String> {
    let mut events = Vec::new();
    for piece in pieces {
        events.push(delta(kind, piece));
        if random.below(8) == 0 {
            events.push(tick());
        }
    }
    events.push(finish());
    let layer = GuardLayer::new(rules.clone()).input(Parts::NONE);
    let texts = guarded(&layer, events);
    let texts = texts.into_iter().filter_map(|event| match event {
        Event::TextDelta(text) | Event::ReasoningDelta(text) | Event::RefusalDelta(text) => {
            Some(text.to_string())
        }
        _ => None,
    });
    texts.collect()
}

/// Divides a text at random places between characters.
pub(super) fn split<'a>(text: &'a str, random: &mut Random) -> Vec<&'a str> {
    let most = 1 + random.below(12);
    let mut pieces = Vec::new();
    let mut start = 0;
    let mut left = 1 + random.below(most);
    for (at, _) in text.char_indices().skip(1) {
        left -= 1;
        if left == 0 {
            pieces.push(&text[start..at]);
            start = at;
            left = 1 + random.below(most);
        }
    }
    pieces.push(&text[start..]);
    pieces
}

/// Rules, and texts for them.
pub(super) fn random_rules<'a>(
    random: &mut Random,
    secrets: &'a [&'a str],
) -> (Rules, impl Fn(&mut Random) -> String + 'a) {
    let of_secrets = random.below(2) == 0;
    let rules = match of_secrets {
        true => built_in().clone(),
        false => {
            let count = 1 + random.below(5);
            let specs: Vec<_> = (0..count).map(|_| *random.of(&SPECS)).collect();
            Rules::new(specs.iter().map(super::rules::Spec::rule)).unwrap()
        }
    };
    let texts = move |random: &mut Random| {
        let len = 1 + random.below(30);
        match of_secrets {
            true => random_text(random, secrets, len / 4 + 1),
            false => random_text(random, &PIECES, len),
        }
    };
    (rules, texts)
}

// Case F056. `GUARD_CASES=10000000` is the whole bar.
#[test]
fn a_stream_has_the_output_of_the_whole_text() {
    let (count, mut random) = cases(2_000);
    let secrets = secrets();
    let secrets: Vec<&str> = secrets.iter().map(String::as_str).collect();
    let mut left = count;
    while left > 0 {
        let (rules, texts) = random_rules(&mut random, &secrets);
        for _ in 0..8 {
            let text = texts(&mut random);
            let whole = rules.apply(&text);
            for _ in 0..25.min(left) {
                left -= 1;
                let pieces = split(&text, &mut random);
                let kind = random.below(3);
                let mut emitted = String::new();
                for piece in released(&rules, kind, &pieces, &mut random) {
                    emitted += &piece;
                    assert!(
                        whole.starts_with(&emitted),
                        "{pieces:?}: {emitted:?}, not {whole:?}"
                    );
                }
                assert_eq!(emitted, whole, "{pieces:?}");
            }
        }
    }
}

// Searches that end after hundreds of bytes without a match, in texts with matches before and after.
#[test]
fn long_searches_in_pieces_have_the_output_of_the_whole_text() {
    let (count, mut random) = cases(20_000);
    let rules = [
        pii::email(),
        secrets::openai(),
        secrets::jwt(),
        Rule::pattern("long", "[a-z]*@corp").at_most(300),
        Rule::pattern("nested", "(?:(?:x+)*y?)*!").at_most(200),
        Rule::pattern("odd", "[ax]{70}(?:[a-z]{40})*;").at_most(400),
    ];
    let rules = Rules::new(rules).unwrap();
    let units = [
        "a",
        "x",
        "xy",
        "sk-",
        "a.",
        "a@",
        "a@a.",
        "eyJaaaaa.",
        "é",
        "ab ",
    ];
    let ends = ["", "@corp", "!", ";", " ", "@corp.example"];
    // Each text is as long as a hundred others.
    for _ in 0..count / 100 {
        let mut text = String::new();
        for _ in 0..1 + random.below(4) {
            text += &random.of(&units).repeat(1 + random.below(400));
            text += *random.of(&ends);
        }
        let whole = rules.apply(&text);
        let pieces = split(&text, &mut random);
        let texts = released(&rules, 0, &pieces, &mut random);
        assert_eq!(texts.concat(), whole, "{pieces:?}");
    }
}

#[test]
fn text_in_which_no_match_can_begin_is_released_at_once() {
    let mut random = Random(1);
    let pieces = [
        "I see",
        ": ",
        "an",
        "n@",
        "example",
        ".com",
        " and",
        ", (more) ",
        "x.",
    ];
    let texts = released(built_in(), 0, &pieces, &mut random);
    assert_eq!(texts, ["I ", "see: ", "[email] ", "and, (more) ", "x."]);
}

#[test]
fn every_split_of_a_secret_into_two_is_covered() {
    let text = "Card 4111 1111 1111 1111, key sk-ant-api03-AbCdEfGhIjKlMnOp.";
    let whole = "Card [card], key [anthropic].";
    let mut random = Random(1);
    for at in 1..text.len() {
        let (a, b) = text.split_at(at);
        assert_eq!(
            released(built_in(), 0, &[a, b], &mut random).concat(),
            whole
        );
    }
    let bytes: Vec<String> = text.chars().map(String::from).collect();
    let bytes: Vec<&str> = bytes.iter().map(String::as_str).collect();
    assert_eq!(released(built_in(), 0, &bytes, &mut random).concat(), whole);
}

#[test]
fn a_text_of_4_mib_is_scanned_with_bounded_memory() {
    let mut random = Random(1);
    let piece = "lorem ipsum dolor 4 sit amet, ".repeat(100);
    let pieces = vec![piece.as_str(); 4 * 1024 * 1024 / piece.len()];
    let texts = released(built_in(), 0, &pieces, &mut random);
    assert_eq!(
        texts.iter().map(String::len).sum::<usize>(),
        piece.len() * pieces.len()
    );
    // Nothing is held but the word at the end of a piece.
    assert!(texts.iter().all(|text| text.len() <= piece.len() + 8));
}

#[test]
fn text_beyond_the_longest_match_is_not_held() {
    let rules = Rules::new([Rule::pattern("x", "a[bc]*d").at_most(5)]).unwrap();
    let mut random = Random(1);
    let texts = released(&rules, 0, &["x abcb", "cbcb", "cb abcd"], &mut random);
    assert_eq!(texts, ["x ", "abcbcbcb", "cb ", "[x]"]);
    let texts = released(&rules, 0, &["abcbcbcb", "d"], &mut random);
    assert_eq!(texts, ["abcbcbcb", "d"]);
}

#[test]
fn the_tail_of_a_match_is_dropped_over_the_borders_of_events() {
    let token = "aB3dE5gH7jK9mN2p".repeat(1_250);
    let rules = Rules::new(secrets::all()).unwrap();
    let mut random = Random(1);
    for (before, count, after, expected) in [
        (
            "refresh_token = ",
            30,
            ". Bye",
            "refresh_token = [generic] Bye",
        ),
        (
            "aws_session_token = ",
            40,
            ", x",
            "aws_session_token = [generic], x",
        ),
        (
            "{\"access_token\": \"",
            30,
            "\"}",
            "{\"access_token\": \"[generic]\"}",
        ),
        ("sk-proj-", 30, " sk-proj", "[openai] sk-proj"),
        ("Key: ghp_", 30, "_ghp", "Key: [github]_ghp"),
        ("Bearer ", 500, "\n", "Bearer [bearer]\n"),
        ("eyJhbGciOiJ.eyJ", 900, ".aB3dE5\t", "[jwt]\t"),
        ("ya29.", 300, "é", "[google]é"),
        (
            "postgres://user:",
            60,
            "@host/db",
            "postgres://user:[connection_string]host/db",
        ),
        ("mysql://", 60, ":x@host", "mysql://[connection_string]host"),
        (
            "-----BEGIN RSA PRIVATE KEY-----\n",
            2_000,
            "\n-----END RSA PRIVATE KEY-----\nBye.",
            "[pem]\nBye.",
        ),
    ] {
        let text = [before, &token[..count * 10], after].concat();
        assert_eq!(rules.apply(&text), expected);
        for _ in 0..3 {
            let pieces = split(&text, &mut random);
            assert_eq!(released(&rules, 0, &pieces, &mut random).concat(), expected);
        }
    }
    let blocking = secrets::all().into_iter().map(Rule::block);
    let blocking = Rules::new(blocking).unwrap();
    let url = ["postgres://user:", &token[..600], "@host"].concat();
    assert_eq!(
        blocking.apply(&url),
        "postgres://user:[connection_string]host"
    );
    let urls = Rules::new(pii::all()).unwrap();
    let url = ["https://bob:", &token[..600], "@host"].concat();
    assert_eq!(urls.apply(&url), "https://[url_credentials]host");
}

#[test]
fn the_tail_of_a_match_ends_with_its_part() {
    let rules = Rules::new([Rule::pattern("ab", "ab+").at_most(3)]).unwrap();
    let mut random = Random(1);
    let texts = released(
        &rules,
        0,
        &["abbbb", "bb", "bbc abb", "b", "é"],
        &mut random,
    );
    assert_eq!(texts.concat(), "[ab]c [ab]é");
    let flagged = Rules::new([Rule::pattern("ab", "ab+").at_most(3).flag()]).unwrap();
    assert_eq!(flagged.apply("abbbbb"), "abbbbb");
}
