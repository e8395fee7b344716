use super::{Random, cases};
use concentric_layers::guard::{Rule, Rules, RulesError, pii, secrets};
use regex_automata::{
    Anchored, Input, MatchKind,
    dfa::{Automaton, dense},
    nfa::thompson::pikevm::PikeVM,
    util::{primitives::StateID, start},
};
use std::{
    collections::HashSet,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

/// A rule, for the reference.
#[derive(Clone, Copy)]
pub(super) struct Spec {
    pattern: &'static str,
    at_most: usize,
    accepts: fn(&str) -> bool,
    replacement: &'static str,
}

const fn spec(pattern: &'static str, at_most: usize, replacement: &'static str) -> Spec {
    Spec {
        pattern,
        at_most,
        accepts: |_| true,
        replacement,
    }
}

/// Rules that overlap, contain, or reject each other.
pub(super) const SPECS: [Spec; 22] = [
    spec("ab", 10, "<1>"),
    spec("abc|b", 10, "<2>"),
    spec("a+b*?", 7, "<3>"),
    spec("(?:ab|ba){2,3}", 10, "<4>"),
    spec(r"(?-u:\b)[a-c]+(?-u:\b)", 5, "<5>"),
    spec(r"b(?-u:\B)[abc]", 10, "<6>"),
    spec("^a.", 10, "<7>"),
    spec("(?s)c.{0,3}$", 10, "<8>"),
    spec("(?m)^b|a$", 10, "<9>"),
    spec("[^a]{3}", 12, "<10>"),
    spec("é+a|ß", 9, "<11>"),
    spec("(?i)É.?", 12, "<12>"),
    spec(r"\w{2,4} ", 20, "<13>"),
    spec(r"[ab]*c", 4, "<14>"),
    spec(r"[ab]*c", 200, "<15>"),
    spec(r"a(?:b|\n)*?a", 40, "a"),
    spec(r"(?-u:\b)a|b(?-u:\b)", 10, ""),
    Spec {
        accepts: |text| text.len() % 2 == 0,
        ..spec("[abc]+", 6, "<16>")
    },
    Spec {
        accepts: |text| text.ends_with('b'),
        ..spec("a[abc]{0,5}", 10, "<17>")
    },
    Spec {
        accepts: |text| text.contains('c'),
        ..spec("[ab ]+[c ]*", 9, "<18>")
    },
    Spec {
        accepts: |_| false,
        ..spec(".", 10, "<19>")
    },
    spec("👩‍👩", 20, "<20>"),
];

impl Spec {
    pub(super) fn rule(&self) -> Rule {
        let accepts = self.accepts;
        Rule::pattern("x", self.pattern)
            .at_most(self.at_most)
            .replace(self.replacement)
            .validate(accepts)
    }
}

/// A rule, and its pattern in two forms: one for the texts that match, one for those that it may continue.
type Reference = (Spec, PikeVM, dense::DFA<Vec<u32>>);

/// Replaces matches as the docs of `Rules` state it: each place is tried from the left, each rule in order,
/// each length from the longest.
fn reference(specs: &[&Reference], text: &str) -> String {
    let is_match = |regex: &PikeVM, start: usize, end: usize| {
        let input = Input::new(text).span(start..end).anchored(Anchored::Yes);
        let found = regex.find(&mut regex.create_cache(), input);
        found.is_some_and(|found| found.end() == end)
    };
    let mut redacted = String::new();
    let mut start = 0;
    'places: while let Some(next) = text[start..].chars().next() {
        for (spec, regex, dfa) in specs {
            let ends = (start + 1..=text.len()).rev();
            let ends =
                ends.filter(|end| text.is_char_boundary(*end) && end - start <= spec.at_most);
            let mut ends = ends.filter(|end| is_match(regex, start, *end)).enumerate();
            if let Some((shorter, end)) = ends.find(|(_, end)| (spec.accepts)(&text[start..*end])) {
                redacted += spec.replacement;
                start = match shorter {
                    0 => continued(spec, dfa, text, start, end),
                    _ => end,
                };
                continue 'places;
            }
        }
        redacted.push(next);
        start += next.len_utf8();
    }
    redacted
}

/// The end of a match with the text that follows it, if the pattern continues beyond the maximum length.
fn continued(
    spec: &Spec,
    dfa: &dense::DFA<Vec<u32>>,
    text: &str,
    start: usize,
    end: usize,
) -> usize {
    if text.len() - start <= spec.at_most {
        return end;
    }
    let before = start.checked_sub(1).map(|at| text.as_bytes()[at]);
    let config = start::Config::new()
        .anchored(Anchored::Yes)
        .look_behind(before);
    let mut state = dfa.start_state(&config).unwrap();
    for (at, byte) in text.bytes().enumerate().skip(start) {
        state = dfa.next_state(state, byte);
        if may_match_after(dfa, state) {
            continue;
        }
        let of_char = (0..=at).rev().find(|at| text.is_char_boundary(*at));
        return match at - start > spec.at_most {
            true => end.max(of_char.unwrap()),
            false => end,
        };
    }
    text.len()
}

/// Whether any state after `state` is one of a match.
fn may_match_after(dfa: &dense::DFA<Vec<u32>>, state: StateID) -> bool {
    let mut known = HashSet::new();
    let mut open = vec![state];
    while let Some(state) = open.pop() {
        let bytes = (0..=u8::MAX).map(|byte| dfa.next_state(state, byte));
        for next in bytes.chain([dfa.next_eoi_state(state)]) {
            if dfa.is_match_state(next) {
                return true;
            }
            if known.insert(next) {
                open.push(next);
            }
        }
    }
    false
}

fn with_pattern(spec: &Spec) -> Reference {
    let config = PikeVM::config().match_kind(MatchKind::All);
    let regex = PikeVM::builder().configure(config).build(spec.pattern);
    let config = dense::Config::new()
        .match_kind(MatchKind::All)
        .start_kind(regex_automata::dfa::StartKind::Anchored);
    let dfa = dense::Builder::new().configure(config).build(spec.pattern);
    (*spec, regex.unwrap(), dfa.unwrap())
}

pub(super) fn random_text(random: &mut Random, pieces: &[&str], count: usize) -> String {
    (0..count).map(|_| *random.of(pieces)).collect()
}

pub(super) const PIECES: [&str; 14] = [
    "a",
    "a",
    "b",
    "b",
    "c",
    "c",
    "ab",
    "ba",
    " ",
    "\n",
    "é",
    "É",
    "ß",
    "👩‍👩",
];

#[test]
fn matches_are_those_of_the_definition() {
    let (count, mut random) = cases(60);
    let all: Vec<Reference> = SPECS.iter().map(with_pattern).collect();
    for case in 0..count {
        let references: Vec<&Reference> = (0..=random.below(4)).map(|_| random.of(&all)).collect();
        let specs: Vec<Spec> = references.iter().map(|(spec, ..)| *spec).collect();
        let rules = Rules::new(specs.iter().map(Spec::rule)).unwrap();
        for _ in 0..4 {
            let len = random.below(24);
            let text = random_text(&mut random, &PIECES, len);
            let patterns: Vec<_> = specs.iter().map(|spec| spec.pattern).collect();
            let expected = reference(&references, &text);
            assert_eq!(
                rules.apply(&text),
                expected,
                "case {case}: {patterns:?} in {text:?}"
            );
        }
    }
}

#[test]
fn a_rule_listed_first_has_priority_at_the_same_place() {
    let long = || Rule::literals("long", ["sk-1234"]);
    let short = || Rule::literals("short", ["sk-"]);
    let apply = |rules| Rules::new(rules).unwrap().apply("sk-1234").into_owned();
    assert_eq!(apply([long(), short()]), "[long]");
    assert_eq!(apply([short(), long()]), "[short]1234");
}

#[test]
fn a_word_has_no_boundary_where_another_search_ended() {
    let rules = Rules::new([pii::card(), pii::email()]).unwrap();
    assert_eq!(rules.apply("x4111111111111111"), "x4111111111111111");
    assert_eq!(rules.apply("x 4111111111111111"), "x [card]");
}

#[test]
fn each_action_replaces_in_its_own_way() {
    let card = |rule: fn(Rule) -> Rule| {
        let rules = Rules::new([rule(pii::card())]).unwrap();
        rules.apply("4111 1111 1111 1111.").into_owned()
    };
    assert_eq!(card(|rule| rule), "[card].");
    assert_eq!(card(|rule| rule.replace("…")), "….");
    assert_eq!(card(|rule| rule.mask(4)), "**** **** **** 1111.");
    assert_eq!(card(|rule| rule.mask(0)), "**** **** **** ****.");
    assert_eq!(card(|rule| rule.mask(99)), "**** **** **** ****.");
    assert_eq!(card(Rule::flag), "4111 1111 1111 1111.");
    assert_eq!(card(Rule::block), "[card].");
}

#[test]
fn a_mask_keeps_whole_characters() {
    let rules = Rules::new([Rule::pattern("name", "Zoë Öz").mask(2)]).unwrap();
    assert_eq!(rules.apply("Zoë Öz"), "*** Öz");
}

#[test]
fn a_keyed_hash_is_the_same_for_the_same_text_and_key() {
    let hash = |key: &str, text: &str| {
        let rules = Rules::new([pii::email().hash(key)]).unwrap();
        rules.apply(text).into_owned()
    };
    // HMAC-SHA-256 of the address, by `openssl dgst -sha256 -hmac key`.
    assert_eq!(hash("key", "ann@example.com"), "[email:9e477c88a6434858]");
    assert_eq!(
        hash("key", "ann@example.com"),
        hash("key", "ann@example.com")
    );
    assert_ne!(
        hash("key", "ann@example.com"),
        hash("key", "bob@example.com")
    );
    assert_ne!(
        hash("key", "ann@example.com"),
        hash("other", "ann@example.com")
    );
    assert_ne!(hash("", "ann@example.com"), "ann@example.com");
}

#[test]
fn literals_are_not_patterns() {
    let texts = [r".*", r"a\b", "<b>", "[x]{2}", "Blåbær", "c++"];
    let rules = Rules::new([Rule::literals("codename", texts)]).unwrap();
    for text in texts {
        assert_eq!(rules.apply(&format!("-{text}-")), "-[codename]-");
    }
    assert_eq!(rules.apply("aaa a b b x c"), "aaa a b b x c");
}

#[test]
fn invalid_rules_are_rejected_by_name() {
    let error = |rule: Rule| Rules::new([Rule::literals("fine", ["x"]), rule]).unwrap_err();
    let pattern = |pattern: &str| Rule::pattern("odd", pattern);
    let name = || "odd".into();
    assert_eq!(error(pattern("a+")), RulesError::Unbounded { rule: name() });
    assert_eq!(
        error(pattern("a*").at_most(3)),
        RulesError::EmptyMatch { rule: name() }
    );
    assert_eq!(
        error(Rule::literals("odd", [""; 0])),
        RulesError::EmptyMatch { rule: name() }
    );
    assert_eq!(
        error(pattern(r"\ba")),
        RulesError::UnicodeWordBoundary { rule: name() }
    );
    assert_eq!(error(pattern(r"\w{1000}")), RulesError::TooLarge);
    let invalid = error(pattern("(a"));
    assert!(
        matches!(&invalid, RulesError::Pattern { .. }),
        "{invalid:?}"
    );
    assert!(invalid.to_string().contains("`odd`"), "{invalid}");
    assert!(Rules::new([]).unwrap().find("anything").is_empty());
}

#[test]
fn a_check_that_panics_redacts() {
    let rules = Rules::new([Rule::literals("odd", ["x"]).validate(|_| panic!("the check failed"))])
        .unwrap();
    assert_eq!(rules.apply("axa"), "a[odd]a");
}

#[test]
fn rules_do_not_print_patterns_or_keys() {
    let rule = Rule::literals("codename", ["Bluebird"]).hash("hunter2");
    let debug = format!("{rule:?} {:?}", Rules::new([rule.clone()]).unwrap());
    assert!(debug.contains("codename"), "{debug}");
    assert!(
        !debug.contains("Bluebird") && !debug.contains("hunter2"),
        "{debug}"
    );
}

#[test]
fn the_rules_that_match_are_found_in_order() {
    let rules = Rules::new(pii::all().into_iter().chain(secrets::all())).unwrap();
    let names: Vec<_> = rules.find("ann@example.com, AKIAIOSFODNN7EXAMPLE, bob@example.com");
    let names: Vec<_> = names.into_iter().map(Rule::name).collect();
    assert_eq!(names, ["email", "aws", "email"]);
    assert_eq!(
        rules.iter().count(),
        pii::all().len() + secrets::all().len()
    );
}

#[test]
fn a_hostile_text_is_checked_a_few_times_at_each_place() {
    for unit in ["sk-", "xoxb-"] {
        let calls = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&calls);
        let pattern = r"(?-u:\b)(?:sk|xoxb)-[A-Za-z0-9_-]{20}[A-Za-z0-9_-]*";
        let rule = Rule::pattern("key", pattern).at_most(256);
        let rules = Rules::new([rule.validate(move |_| {
            count.fetch_add(1, Ordering::Relaxed);
            false
        })]);
        let rules = rules.unwrap();
        for places in [1_024, 100 * 1_024 / unit.len()] {
            calls.store(0, Ordering::Relaxed);
            let text = unit.repeat(places);
            assert_eq!(rules.apply(&text), text);
            let calls = calls.load(Ordering::Relaxed);
            assert!(calls > places && calls <= 24 * places, "{unit}: {calls}");
        }
    }
}

// Case F057.
#[test]
fn a_hostile_text_takes_linear_time() {
    let mut rules = pii::all();
    rules.extend(secrets::all());
    rules.push(Rule::pattern("long", "[a-z]*@corp").at_most(16 * 1024));
    rules.push(Rule::pattern("nested", "(?:(?:x+)*y?)*!").at_most(16 * 1024));
    let rules = Rules::new(rules).unwrap();
    let time = |text: &str| {
        let began = Instant::now();
        std::hint::black_box(rules.apply(text));
        began.elapsed()
    };
    for piece in [
        "a",
        "sk-",
        "xoxb-",
        "4111 1111 ",
        "1",
        "1 ",
        "a.",
        "a@",
        "a@a.",
        "+1(",
        "::",
        "1:",
        "secret=",
        "eyJaaaaaaa.",
        "x",
        "xy",
        "-----BEGIN RSA PRIVATE KEY-----",
        "token: aB3",
        "born on ",
        "DE89 3704 ",
        "é",
        "https://a:",
    ] {
        let short = piece.repeat(1024 / piece.len());
        let long = short.repeat(4);
        // Other processes may take the time, again and again while a machine builds.
        let is_linear = (0..50).any(|_| time(&long) < time(&short) * 9 + Duration::from_millis(5));
        assert!(is_linear, "{piece}");
    }
}
