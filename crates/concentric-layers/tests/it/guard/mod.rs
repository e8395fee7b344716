mod canary;
mod events;
mod layer;
mod pii;
mod rules;
mod secrets;
mod stream;
mod streams;
mod summaries;
mod tables;
mod values;

use concentric_layers::guard::{Rule, Rules};

/// A reproducible source of numbers (SplitMix64).
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub(crate) fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }

    pub(crate) fn of<'a, T>(&mut self, all: &'a [T]) -> &'a T {
        &all[self.below(all.len())]
    }
}

/// The number of random cases: `GUARD_CASES`, or `otherwise`. The seed is `GUARD_SEED`, or 1.
pub(crate) fn cases(otherwise: u64) -> (u64, Random) {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse().ok());
    let seed = number("GUARD_SEED").unwrap_or(1);
    println!("GUARD_SEED={seed}");
    (number("GUARD_CASES").unwrap_or(otherwise), Random(seed))
}

/// The texts in which a rule is tried: alone, in a sentence, in punctuation, and beside other alphabets.
const PLACES: [(&str, &str); 5] = [
    ("", ""),
    ("It is ", " today."),
    ("(\"", "\"), "),
    ("Grüße: ", ", señor"),
    ("one\n", "\ntwo"),
];

/// Checks that a rule replaces each of `matches` everywhere, and nothing in `others`.
fn check(rule: Rule, matches: &[&str], others: &[&str]) {
    let name = rule.name().to_owned();
    let rules = Rules::new([rule.replace("<>")]).unwrap();
    for text in matches {
        for (before, after) in PLACES {
            let whole = format!("{before}{text}{after}");
            let is = rules.apply(&whole);
            assert_eq!(is, format!("{before}<>{after}"), "{name}: {text}");
        }
    }
    for text in others {
        for (before, after) in PLACES {
            let whole = format!("{before}{text}{after}");
            assert_eq!(rules.apply(&whole), whole, "{name}: {text}");
        }
    }
}

/// Checks that a rule replaces the part of each text that is between `<` and `>`.
fn check_part(rule: Rule, matches: &[&str], others: &[&str]) {
    let name = rule.name().to_owned();
    let rules = Rules::new([rule.replace("*")]).unwrap();
    for marked in matches {
        let (start, rest) = marked.split_once('<').unwrap();
        let (part, end) = rest.split_once('>').unwrap();
        for (before, after) in PLACES {
            let whole = format!("{before}{start}{part}{end}{after}");
            let redacted = format!("{before}{start}*{end}{after}");
            assert_eq!(rules.apply(&whole), redacted, "{name}: {marked}");
        }
    }
    for text in others {
        for (before, after) in PLACES {
            let whole = format!("{before}{text}{after}");
            assert_eq!(rules.apply(&whole), whole, "{name}: {text}");
        }
    }
}
