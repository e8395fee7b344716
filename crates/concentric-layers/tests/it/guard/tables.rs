//! At least 30 texts that each built-in rule matches, and 30 that it does not match.
//!
//! Most are made here from their specifications: check digits are computed, and keys have random characters, so
//! that no scanner takes one for a leaked key.

use super::{Random, check, check_part};
use concentric_layers::guard::{Rule, pii, secrets};
use std::{
    collections::BTreeSet,
    net::{Ipv4Addr, Ipv6Addr},
};

const DIGITS: &str = "0123456789";
const UPPER: &str = "ABCDEFGHJKLMNPQRSTUVWXYZ23456789";
const LETTERS: &str = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
const BASE62: &str = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789";

/// A part of a text that is replaced is between `<` and `>`; without these, the whole text is.
fn table(rule: fn() -> Rule, matches: &[String], others: &[String]) {
    let name = rule().name().to_owned();
    for texts in [matches, others] {
        let different: BTreeSet<_> = texts.iter().collect();
        assert!(different.len() >= 30, "{name}: {}", different.len());
    }
    let matches: Vec<&str> = matches.iter().map(String::as_str).collect();
    let others: Vec<&str> = others.iter().map(String::as_str).collect();
    let (parts, whole): (Vec<&str>, Vec<&str>) =
        matches.into_iter().partition(|text| text.contains('<'));
    check_part(rule(), &parts, &others);
    check(rule(), &whole, &[]);
}

/// Texts that are separated by ` | `.
fn list(texts: &str) -> Vec<String> {
    texts
        .split(" | ")
        .map(|text| text.trim().to_owned())
        .collect()
}

/// Each text of `first` with each of `second`.
fn each<A: AsRef<str>, B: AsRef<str>>(first: &[A], second: &[B]) -> Vec<String> {
    let pairs = first
        .iter()
        .flat_map(|a| second.iter().map(move |b| (a, b)));
    pairs
        .map(|(a, b)| [a.as_ref(), b.as_ref()].concat())
        .collect()
}

/// Random characters that begin with a letter and, from two on, contain a digit.
fn random(seed: &mut Random, of: &str, len: usize) -> String {
    let of: Vec<char> = of.chars().collect();
    let mut text: Vec<char> = (0..len).map(|_| *seed.of(&of)).collect();
    if let Some(last) = text.last_mut().filter(|_| len > 1) {
        *last = '7';
    }
    text.iter().collect()
}

/// `count` texts of `make`, with a random source of their own.
fn some(count: usize, mut make: impl FnMut(&mut Random) -> String) -> Vec<String> {
    let mut seed = Random(count as u64);
    (0..count).map(|_| make(&mut seed)).collect()
}

/// A text in groups.
fn grouped(text: &str, sizes: &[usize], by: &str) -> String {
    let mut rest = text;
    let mut groups = Vec::new();
    for size in sizes.iter().cycle() {
        if rest.is_empty() {
            break;
        }
        let (group, others) = rest.split_at((*size).min(rest.len()));
        groups.push(group);
        rest = others;
    }
    groups.join(by)
}

fn luhn(digits: &str) -> u32 {
    let digits = digits.chars().rev().filter_map(|c| c.to_digit(10));
    let sum: u32 = digits
        .enumerate()
        .map(|(at, digit)| match (at % 2, digit * 2) {
            (1, _) => digit,
            (_, twice @ 10..) => twice - 9,
            (_, twice) => twice,
        })
        .sum();
    (10 - sum % 10) % 10
}

#[test]
fn cards() {
    let issued = [
        ("4", 13),
        ("4", 16),
        ("4", 19),
        ("51", 16),
        ("52", 16),
        ("53", 16),
        ("54", 16),
        ("55", 16),
        ("2221", 16),
        ("2500", 16),
        ("2720", 16),
        ("34", 15),
        ("37", 15),
        ("300", 14),
        ("305", 14),
        ("36", 14),
        ("38", 14),
        ("39", 14),
        ("3528", 16),
        ("3589", 16),
        ("6011", 16),
        ("644", 16),
        ("65", 16),
        ("62", 16),
        ("62", 19),
        ("8100", 16),
        ("5018", 13),
        ("6304", 16),
        ("6759", 18),
        ("6763", 19),
        ("5020", 12 + 2),
    ];
    let number = |prefix: &str, len: usize, seed: &mut Random, add: u32| {
        let digits = prefix.to_owned() + &random(seed, DIGITS, len - prefix.len() - 1);
        format!("{digits}{}", (luhn(&digits) + add) % 10)
    };
    let mut seed = Random(1);
    let (mut matches, mut others) = (Vec::new(), list("4111.1111.1111.1111 | 2024-01-15 10:30"));
    for (prefix, len) in issued {
        let card = number(prefix, len, &mut seed, 0);
        if len == 16 {
            matches.push(grouped(&card, &[4], " "));
            matches.push(grouped(&card, &[4], "-"));
        }
        others.push(["x", &card].concat());
        others.push(number(prefix, len, &mut seed, 1));
        matches.push(card);
    }
    for prefix in ["0", "1", "7", "90", "2220", "2721", "35", "50", "56", "60"] {
        others.push(number(prefix, 16, &mut seed, 0));
    }
    table(pii::card, &matches, &others);
}

#[test]
fn bank_accounts() {
    let countries = [
        ("AT", 20),
        ("BE", 16),
        ("BG", 22),
        ("CH", 21),
        ("CY", 28),
        ("CZ", 24),
        ("DE", 22),
        ("DK", 18),
        ("EE", 20),
        ("ES", 24),
        ("FI", 18),
        ("FR", 27),
        ("GB", 22),
        ("GR", 27),
        ("HR", 21),
        ("HU", 28),
        ("IE", 22),
        ("IS", 26),
        ("IT", 27),
        ("LI", 21),
        ("LT", 20),
        ("LU", 20),
        ("LV", 21),
        ("MC", 27),
        ("MT", 31),
        ("NL", 18),
        ("NO", 15),
        ("PL", 28),
        ("PT", 25),
        ("RO", 24),
        ("SE", 24),
        ("SI", 19),
        ("SK", 24),
        ("SM", 27),
        ("TR", 26),
    ];
    let account = |country: &str, len: usize, seed: &mut Random, add: u64| {
        let number = random(seed, UPPER, len - 4);
        // The letters count as 10 to 35, and the country with `00` as the end.
        let digits = [&number, country, "00"].concat();
        let digits = digits.chars().filter_map(|c| c.to_digit(36));
        let rest = digits.fold(0, |rest, digit| {
            (rest * if digit < 10 { 10 } else { 100 } + u64::from(digit)) % 97
        });
        format!("{country}{:02}{number}", (98 - rest + add - 2) % 97 + 2)
    };
    let mut seed = Random(1);
    let (mut matches, mut others) = (Vec::new(), list("THE QUICK BROWN FOX | FR14 | AB12 CDEF"));
    for (country, len) in countries {
        let valid = account(country, len, &mut seed, 0);
        matches.push(grouped(&valid, &[4], " "));
        others.push(valid.to_lowercase());
        others.push(account(country, len, &mut seed, 1));
        others.push(account(country, len - 1, &mut seed, 0));
        matches.push(valid);
    }
    others.push(account("XX", 22, &mut seed, 0));
    table(pii::iban, &matches, &others);
}

#[test]
fn credentials_in_urls() {
    let schemes = ["http", "https", "ftp", "amqp", "git+ssh", "svn"].map(|it| format!("{it}://"));
    let users = [
        "<bob:hunter2>",
        "<:secret>",
        "<a.b:p%40ss>",
        "<x:y:z>",
        "<u:$!*>",
        "<me_1:~>",
    ];
    let hosts = [
        "example.com",
        "localhost:8080/x",
        "[::1]/",
        "10.0.0.1:5432/db?a=b",
        "h/u:p@x",
    ];
    let matches = each(&each(&schemes, &users), &["@example.com/x"]);
    let mut others = each(&schemes, &hosts);
    others.extend(each(&schemes, &["bob@example.com"]));
    others.extend(list("mailto:a@b.c | bob:hunter2@example | https://:@"));
    table(pii::url_credentials, &matches, &others);
}

#[test]
fn email_addresses() {
    let names = ["ann", "ann.b", "ann+tag", "A_B", "a%c", "1", "o-brien"];
    let domains = [
        "@example.com",
        "@EXAMPLE.ORG",
        "@b.io",
        "@a-b.co.uk",
        "@x.y.example.museum",
    ];
    let mut others = each(
        &names,
        &["@", "@example", "@.com", "@example.c", " at example.com"],
    );
    others.extend(list(
        "npm install @scope/name | x @example.com | a@b@c | @example.com",
    ));
    table(pii::email, &each(&names, &domains), &others);
}

#[test]
fn hardware_addresses() {
    let hex = |seed: &mut Random| format!("1a{}", random(seed, "0123456789abcdef", 10));
    let numbers = some(12, hex);
    let (mut matches, mut others) = (Vec::new(), list("10:30:45 | 1234.5678.9012 | ab:cd"));
    for number in &numbers {
        let address = grouped(number, &[2], ":");
        matches.push(address.to_uppercase());
        matches.push(grouped(number, &[2], "-"));
        matches.push(grouped(number, &[4], "."));
        others.push(number.clone());
        others.push(address[3..].to_owned());
        others.push(address.replacen(':', "-", 1));
        others.push(["x", &address].concat());
        others.push(address.replace('a', "g"));
        matches.push(address);
    }
    table(pii::mac, &matches, &others);
}

#[test]
fn addresses_of_hosts() {
    let v4 = |seed: &mut Random| Ipv4Addr::from(seed.next() as u32).to_string();
    let v6 = |seed: &mut Random| Ipv6Addr::from(seed.next() as u128 | 0x2a01 << 112).to_string();
    let full = |seed: &mut Random| {
        let hex = random(seed, "0123456789abcdef", 32);
        grouped(&hex, &[4], ":")
    };
    let matches = [some(15, v4), some(10, v6), some(10, full)].concat();
    let large = |seed: &mut Random| {
        let octet = |seed: &mut Random| seed.below(256);
        format!(
            "{}.{}.{}.{}",
            octet(seed),
            256 + octet(seed),
            octet(seed),
            octet(seed)
        )
    };
    let others = [
        some(10, large),
        some(8, |seed| format!("v{}", v4(seed))),
        some(6, |seed| format!("{}a", v4(seed))),
        list(
            "1.2.3 | 01.02.03.04 | 10:30:45 | 23:59 | std::vec::Vec | add::face | a::b | :: | core::fmt \
             | 1,234.567.890 | dead::beef | f::<u8> | ab:cd | face::a",
        ),
    ];
    table(pii::ip, &matches, &others.concat());
}

#[test]
fn addresses_of_public_hosts() {
    let v4 = |seed: &mut Random, net: u32, bits: u32| {
        Ipv4Addr::from(net | seed.next() as u32 >> bits).to_string()
    };
    let v6 = |seed: &mut Random, net: u128| Ipv6Addr::from(net << 112 | u128::from(seed.next()));
    let matches = [
        some(20, |seed| v4(seed, 0x0800_0000, 8)),
        some(15, |seed| v6(seed, 0x2606).to_string()),
    ];
    let others = [
        some(8, |seed| v4(seed, 0x0a00_0000, 8)),
        some(6, |seed| v4(seed, 0x7f00_0000, 8)),
        some(7, |seed| v4(seed, 0xc0a8_0000, 16)),
        some(5, |seed| v4(seed, 0xac10_0000, 12)),
        some(4, |seed| v4(seed, 0xa9fe_0000, 16)),
        some(3, |seed| v6(seed, 0xfd12).to_string()),
        some(3, |seed| v6(seed, 0xfe80).to_string()),
        list("0.0.0.0 | 192.0.2.1 | 255.255.255.255 | ::1 | 2001:db8::1234 | 1.2.3 | add::face"),
    ];
    table(pii::public_ip, &matches.concat(), &others.concat());
}

#[test]
fn numbers_of_the_united_states() {
    let number = |area: &'static str| [area, "11", "2345"];
    let valid = [
        "001", "078", "219", "524", "577", "665", "667", "700", "771", "772", "800", "888", "898",
        "899", "123",
    ];
    let (mut matches, mut others) = (Vec::new(), Vec::new());
    for area in valid {
        let [area, group, serial] = number(area);
        matches.push([area, group, serial].join("-"));
        matches.push([area, group, serial].join(" "));
        others.push([area, group, serial].concat());
        others.push(format!("{area}-00-{serial}"));
        others.push(format!("{area}-{group}-0000"));
        others.push(format!("{area}-{group} {serial}"));
        others.push(format!("5{area}-{group}-{serial}"));
    }
    for area in ["000", "666", "900", "950", "999"] {
        others.push(number(area).join("-"));
    }
    table(pii::us_ssn, &matches, &others);
}

#[test]
fn numbers_of_germany() {
    // ISO/IEC 7064, MOD 11,10.
    let check_digit = |digits: &str| {
        let product = digits
            .chars()
            .filter_map(|c| c.to_digit(10))
            .fold(10, |product, digit| {
                let sum = (product + digit) % 10;
                (if sum == 0 { 10 } else { sum }) * 2 % 11
            });
        (11 - product) % 10
    };
    // The digits in another order, of which the first one is not zero, and of which one is there twice.
    let digits = |seed: &mut Random, of: &str| loop {
        let mut left: Vec<char> = of.chars().collect();
        let text: String = (0..of.len())
            .map(|_| left.swap_remove(seed.below(left.len())))
            .collect();
        if !text.starts_with('0') {
            return text;
        }
    };
    let number = |seed: &mut Random, of: &str, add: u32| {
        let digits = digits(seed, of);
        format!("{digits}{}", (check_digit(&digits) + add) % 10)
    };
    let twice = some(10, |seed| number(seed, "0123456788", 0));
    let three_times = some(8, |seed| number(seed, "0123456777", 0));
    let mut matches = [twice, three_times].concat();
    matches.extend(
        matches
            .clone()
            .iter()
            .map(|text| grouped(text, &[2, 3, 3, 3], " ")),
    );
    let others = [
        some(12, |seed| number(seed, "0123456788", 1)),
        some(6, |seed| number(seed, "0123456789", 0)),
        some(6, |seed| number(seed, "0123455667", 0)),
        some(4, |seed| number(seed, "0123444478", 0)),
        some(5, |seed| number(seed, "0123456788", 0)[1..].to_owned()),
        some(5, |seed| number(seed, "0123456788", 0) + "1"),
    ];
    table(pii::de_tax_id, &matches, &others.concat());
}

#[test]
fn numbers_of_the_united_kingdom() {
    let valid = each(
        &["AB", "JG", "PE", "SC", "WK", "ZY", "LM", "HX"],
        &["123456C", "103759A"],
    );
    let mut matches: Vec<String> = valid.iter().map(|text| grouped(text, &[2], " ")).collect();
    matches.extend(valid.clone());
    let bad = [
        "BG", "GB", "NK", "KN", "TN", "NT", "ZZ", "DB", "FB", "IB", "QB", "UB", "VB", "AO", "AD",
    ];
    let mut others = each(&bad, &["123456C"]);
    others.extend(valid.iter().map(|text| text.to_lowercase()));
    others.extend(each(
        &["AB"],
        &["123456E", "12345C", "1234567C", "123456", "123456CX"],
    ));
    table(pii::uk_nino, &matches, &others);
}

#[test]
fn numbers_of_france() {
    let number = |seed: &mut Random, first: &str, department: &str, add: u64| {
        let number = format!(
            "{first}{}08{department}{}",
            10 + seed.below(90),
            random(seed, DIGITS, 6)
        );
        let value = number
            .replace("2A", "19")
            .replace("2B", "18")
            .parse::<u64>()
            .unwrap();
        format!("{number}{:02}", (97 - value % 97 + add - 1) % 97 + 1)
    };
    let firsts = ["1", "2", "3", "4", "7", "8"];
    let departments = ["14", "75", "2A", "2B", "97"];
    let mut seed = Random(1);
    let (mut matches, mut others) = (Vec::new(), Vec::new());
    for first in firsts {
        for department in departments {
            let valid = number(&mut seed, first, department, 0);
            matches.push(grouped(&valid, &[1, 2, 2, 2, 3, 3, 2], " "));
            others.push(number(&mut seed, first, department, 1));
            others.push(valid.to_lowercase().replacen(first, "9", 1));
            matches.push(valid);
        }
    }
    others.push(number(&mut seed, "1", "75", 0)[1..].to_owned());
    others.push(number(&mut seed, "1", "75", 0) + "0");
    table(pii::fr_nir, &matches, &others);
}

#[test]
fn numbers_of_spain() {
    let letter = |number: usize| "TRWAGMYFPDXBNJZSQVHLCKE".as_bytes()[number % 23] as char;
    let mut seed = Random(1);
    let (mut matches, mut others) = (Vec::new(), Vec::new());
    for at in 0..16 {
        let number = 10_000_000 + seed.below(90_000_000);
        matches.push(format!("{number}{}", letter(number)));
        matches.push(format!("{number}-{}", letter(number)));
        others.push(format!("{number}{}", letter(number + 1)));
        others.push(format!("{number}{}", letter(number).to_lowercase()));
        others.push(format!("1{number}{}", letter(number)));
        others.push(format!("{number}I"));
        let (first, of_first) = [("X", 0), ("Y", 1), ("Z", 2)][at % 3];
        let number = 1_000_000 + seed.below(9_000_000);
        let valid = letter(of_first * 10_000_000 + number);
        matches.push(format!("{first}{number}{valid}"));
        matches.push(format!("{first}-{number}-{valid}"));
        others.push(format!(
            "{first}{number}{}",
            letter(of_first * 10_000_000 + number + 1)
        ));
        others.push(format!("W{number}{valid}"));
    }
    table(pii::es_dni, &matches, &others);
}

#[test]
fn dates_of_birth() {
    let words = [
        "born on ",
        "Born ",
        "DOB: ",
        "date of birth: ",
        "d.o.b. ",
        "birthday is ",
        "birthdate=",
        "geboren am ",
        "Geburtsdatum: ",
        "nacida el ",
        "fecha de nacimiento: ",
        "date de naissance: ",
    ];
    let dates = [
        "12 May 1980",
        "1980-05-12",
        "05/12/1980",
        "12.5.80",
        "Sept. 3rd, 1999",
        "3rd of June 2001",
    ];
    let marked = dates.map(|date| format!("<{date}>"));
    let mut others = each(&["due on ", "on ", "stubborn ", "since ", ""], &dates);
    others.extend(each(&words, &["unknown", "1980"]));
    table(pii::date_of_birth, &each(&words, &marked), &others);
}

#[test]
fn phone_numbers() {
    let abroad = list(
        "+49 30 1234567 | +44 20 7946 0958 | +33 1 23 45 67 89 | +39 06 1234 5678 | +34 912 345 678 \
         | +31 20 123 4567 | +41 44 123 45 67 | +43 1 1234567 | +46 8 123 456 78 | +47 21 23 45 67 \
         | +45 32 12 34 56 | +48 22 123 45 67 | +351 21 123 4567 | +30 21 0123 4567 | +81 3 1234 5678 \
         | +86 10 1234 5678 | +91 22 1234 5678 | +61 2 1234 5678 | +55 11 91234 5678",
    );
    let together = abroad.iter().map(|text| text.replace(' ', ""));
    let with_hyphens = abroad.iter().map(|text| text.replace(' ', "-"));
    let mut matches: Vec<String> = together.chain(with_hyphens).collect();
    matches.extend(abroad);
    matches.extend(list(
        "+1 (415) 555-2671 | (415) 555-2671 | 415-555-2671 | 415.555.2671 | 1-800-555-0199 | 020 7946 0958 \
         | 030 12345678 | 0171/1234567 | (030) 1234 5678 | 0049 30 1234567 | 01 23 45 67 89",
    ));
    let others = list(
        "1234567 | 12345678901 | 2024-01-15 | 01/02/2024 10 | 12.05.1980 | 192.168.0.1 | 3.14159265 | 1 000 000 \
         | 115-555-2671 | +1 | +12 34 | v1.2.3 | 0.123456789 | ISBN 978-3-16-148410-0 \
         | 100-200-300-400 | 0123456789 | 2024-01-15 10:30 | 10:30 | 100 000 000 | 4-5-6 | 1/2/3 | 12 34 56 78 \
         | 1, 2, 3, 4, 5, 6, 7 | 20240115103000 | 007 | 2024 2025 2026 | x+49301234567x | 16-byte | 99.99 | 1e10 \
         | 50-60 people | 0.5.1",
    );
    table(pii::phone, &matches, &others);
}

/// Prefixes with random characters, as many as the least length and more.
fn keys(prefixes: &[&str], of: &str, least: usize, more: &[usize]) -> Vec<String> {
    let mut seed = Random(1);
    let mut keys = Vec::new();
    for prefix in prefixes {
        for more in more {
            keys.push([prefix, random(&mut seed, of, least + more).as_str()].concat());
        }
    }
    keys
}

/// Prefixes with too few random characters, and keys inside of words.
fn no_keys(prefixes: &[&str], of: &str, least: usize) -> Vec<String> {
    let mut seed = Random(1);
    let mut texts = Vec::new();
    for prefix in prefixes {
        let key = [prefix, random(&mut seed, of, least).as_str()].concat();
        texts.extend(["x", "_", "1"].map(|before| [before, &key].concat()));
        for len in (0..least).step_by(least / 5) {
            texts.push([prefix, random(&mut seed, of, len).as_str()].concat());
        }
        let half = random(&mut seed, of, least / 2);
        texts.push(format!("{prefix}{half}/{half}"));
        texts.push(format!("{prefix}{half} {half}"));
    }
    texts
}

const MORE: [usize; 11] = [0, 1, 2, 3, 5, 8, 13, 21, 34, 55, 89];

#[test]
fn private_keys() {
    let begin = |label: &str, key: &str, end: &str| {
        format!("-----BEGIN {label}-----{end}{key}{end}-----END {label}-----")
    };
    let kinds = ["", "RSA ", "EC ", "DSA ", "OPENSSH ", "ENCRYPTED "]
        .map(|it| [it, "PRIVATE KEY"].concat());
    let ends = ["\n", "\r\n", "\\n", "\n\n", " "];
    let (mut matches, mut others) = (
        Vec::new(),
        list("a private key | --BEGIN PRIVATE KEY-- | BEGIN PRIVATE KEY"),
    );
    let key = random(&mut Random(1), BASE62, 64) + "+/=";
    for end in ends {
        matches.extend(kinds.iter().map(|kind| begin(kind, &key, end)));
        let kinds = [
            "PUBLIC KEY",
            "RSA PUBLIC KEY",
            "CERTIFICATE",
            "X509 CRL",
            "DH PARAMETERS",
            "PGP MESSAGE",
        ];
        others.extend(kinds.iter().map(|kind| begin(kind, &key, end)));
    }
    table(secrets::pem, &matches, &others);
}

#[test]
fn keys_of_anthropic() {
    let prefixes = ["sk-ant-", "sk-ant-api03-", "sk-ant-admin01-"];
    let mut others = no_keys(&prefixes[..1], BASE62, 16);
    others.extend(some(14, |seed| {
        format!("sk-ant-{}", random(seed, LETTERS, 15))
    }));
    others.extend(list(
        "sk-antonym-of-something-good | sk-ant | SK-ANT-a | an ant | sk_ant_0123456789abcdef0123 \
         | skant0123456789abcdef0123 | ant-0123456789abcdef0123 | sk-bee-0123456789abcdef0123",
    ));
    table(
        secrets::anthropic,
        &keys(&prefixes, BASE62, 16, &MORE),
        &others,
    );
}

#[test]
fn keys_of_openai() {
    let prefixes = ["sk-", "sk-proj-", "sk-svcacct-"];
    let mut others = no_keys(&prefixes[..1], BASE62, 20);
    others.extend(list(
        "sk-a-name-of-many-words-with-hyphens | sk-this-is-the-name-of-a-branch | task-12345678901234567890123 \
         | risk-1234567890123456789012345 | sk_1234567890123456789012345 | sk1234567890123456789012345",
    ));
    // Without a digit.
    others.extend(some(20, |seed| {
        format!("sk-{}", random(seed, LETTERS, 30).replace('7', "x"))
    }));
    table(
        secrets::openai,
        &keys(&prefixes, BASE62, 20, &MORE),
        &others,
    );
}

#[test]
fn keys_of_google() {
    let mut matches = keys(&["AIza"], BASE62, 35, &[0; 11]);
    matches.extend(keys(&["GOCSPX-"], BASE62, 28, &[0; 11]));
    matches.extend(keys(&["ya29."], BASE62, 20, &MORE));
    let mut others = no_keys(&["AIza"], BASE62, 35);
    others.extend(no_keys(&["GOCSPX-"], BASE62, 28));
    others.extend(no_keys(&["ya29."], BASE62, 20));
    table(secrets::google, &matches, &others);
}

#[test]
fn keys_of_aws() {
    let key = |seed: &mut Random| random(seed, BASE62, 40);
    let names = [
        "aws_secret_access_key = ",
        "AWS_SECRET_ACCESS_KEY=",
        "SecretAccessKey: ",
        "awsSecretAccessKey:\"",
    ];
    let secrets = some(3, |seed| format!("<{}>", key(seed)));
    let mut matches = keys(&["AKIA", "ASIA"], UPPER, 16, &[0; 12]);
    matches.extend(each(&names, &secrets));
    let mut others = no_keys(&["AKIA", "ASIA"], UPPER, 16);
    others.extend(keys(&["AKIB", "BKIA", "akia"], UPPER, 16, &[0; 3]));
    others.extend(keys(&["AKIA"], UPPER, 16, &[1, 2, 5]));
    // Without the name.
    others.extend(some(5, key));
    others.push(names[0].to_owned() + "none");
    table(secrets::aws, &matches, &others);
}

#[test]
fn keys_of_github() {
    let mut matches = keys(
        &["ghp_", "gho_", "ghu_", "ghs_", "ghr_"],
        BASE62,
        30,
        &[0, 6, 1, 30, 50],
    );
    matches.extend(keys(&["github_pat_"], BASE62, 22, &MORE));
    let mut others = no_keys(&["ghp_", "ghs_"], BASE62, 30);
    others.extend(no_keys(&["github_pat_"], BASE62, 22));
    others.extend(keys(&["ghx_", "GHP_", "gh_", "gha_"], BASE62, 36, &[0]));
    table(secrets::github, &matches, &others);
}

#[test]
fn keys_of_slack() {
    let hook = ["https://hooks.slack.com/", "services/"].concat();
    let mut matches = keys(&["xoxb-", "xoxp-", "xapp-"], BASE62, 10, &MORE);
    matches.extend(keys(&[&hook], BASE62, 20, &MORE));
    let mut others = no_keys(&["xoxb-", "xapp-"], BASE62, 10);
    others.extend(
        no_keys(&[&hook], BASE62, 20)
            .into_iter()
            .filter(|text| !text.contains("7/")),
    );
    others.extend(keys(
        &["xoxz-", "xox-", "XOXB-", "https://slack.com/services/"],
        BASE62,
        30,
        &[0],
    ));
    table(secrets::slack, &matches, &others);
}

#[test]
fn keys_of_stripe() {
    let prefixes = [
        ["sk_", "live_"],
        ["rk_", "live_"],
        ["sk_", "test_"],
        ["wh", "sec_"],
    ]
    .map(|it| it.concat());
    let prefixes: Vec<&str> = prefixes.iter().map(String::as_str).collect();
    let mut others = no_keys(&prefixes, BASE62, 16);
    others.extend(keys(
        &["pk_live_", "sk_prod_", "sk_", "price_", "cus_"],
        BASE62,
        24,
        &[0],
    ));
    table(
        secrets::stripe,
        &keys(&prefixes, BASE62, 16, &MORE),
        &others,
    );
}

#[test]
fn web_tokens() {
    let part = |seed: &mut Random, least: usize| {
        let len = least + seed.below(60);
        format!("eyJ{}", random(seed, BASE62, len))
    };
    let signed = |seed: &mut Random| {
        format!(
            "{}.{}.{}",
            part(seed, 5),
            part(seed, 5),
            random(seed, BASE62, 43)
        )
    };
    let matches = [
        some(20, signed),
        some(12, |seed| format!("{}.{}", part(seed, 5), part(seed, 5))),
    ];
    let others = [
        some(8, |seed| part(seed, 5)),
        some(8, |seed| {
            format!("{}.{}", part(seed, 5), random(seed, UPPER, 30))
        }),
        some(8, |seed| {
            format!("{}.{}", random(seed, UPPER, 30), part(seed, 5))
        }),
        some(8, |seed| ["x", &signed(seed)].concat()),
        some(8, |seed| format!("{} {}", part(seed, 5), part(seed, 5))),
        list("eyJ.eyJ.x | eyJabcd.eyJabcd.x | a.b.c"),
    ];
    table(secrets::jwt, &matches.concat(), &others.concat());
}

#[test]
fn connection_strings() {
    let schemes = [
        "postgres",
        "postgresql",
        "mysql",
        "mongodb+srv",
        "redis",
        "rediss",
        "amqp",
        "MSSQL",
        "clickhouse",
    ];
    let schemes = schemes.map(|it| format!("{it}://"));
    let mut matches = each(
        &schemes,
        &["app:<hunter2>@db/x", ":<p%40ss>@db:5432", "a.b:<x:y>@h"],
    );
    matches.extend(each(
        &["Server=db;Password=", "pwd=", "AccountKey="],
        &["<hunter22>;", "<Ab/+==>;", "<aaaaaa>"],
    ));
    let mut others = each(&schemes, &["db:5432/shop", "app@db/shop"]);
    others.extend(each(
        &["https://", "sqlite://", "file://"],
        &["app:hunter2@host"],
    ));
    others.extend(each(
        &[
            "the password = ",
            "password: ",
            "password=x",
            "pwd=short;",
            "passwords=",
        ],
        &["none", ""],
    ));
    table(secrets::connection_string, &matches, &others);
}

#[test]
fn credentials_of_http_requests() {
    let tokens = some(8, |seed| random(seed, BASE62, 24));
    let marked: Vec<String> = tokens.iter().map(|token| format!("<{token}>")).collect();
    let names = [
        "Bearer ",
        "bearer  ",
        "Authorization: Bearer ",
        "Authorization: Basic ",
        "\"authorization\": \"token ",
    ];
    let mut others = each(
        &[
            "Basic ",
            "Token ",
            "bearers ",
            "forbearer ",
            "Authorization: Digest ",
        ],
        &tokens,
    );
    others.extend(list(
        "bearer of good news | Bearer authentication-mechanisms | basic understanding | Bearer short1 \
         | Authorization: none | the bearer, 1234567890123456",
    ));
    table(secrets::bearer, &each(&names, &marked), &others);
}

#[test]
fn random_values_with_a_name() {
    let values = some(4, |seed| random(seed, BASE62, 32));
    let marked: Vec<String> = values.iter().map(|value| format!("<{value}>")).collect();
    let names = [
        "api_key = \"",
        "API-KEY: ",
        "MY_SECRET=",
        "accessToken: ",
        "the password is ",
        "client-secret: '",
        "\"refresh_token\": \"",
        "passwd := ",
        "credential => ",
        "secret key: ",
    ];
    let mut others = each(
        &["commit ", "id = ", "secretary: ", "tokens: ", "digest=", ""],
        &values,
    );
    others.extend(each(
        &["password: ", "api_key=", "the secret is "],
        &[
            "short1",
            "aaaaaaaaaaaaaaaaaaaaaaaa1",
            "that nobody knows",
            "max_output_tokens_of_the_model",
        ],
    ));
    table(secrets::generic, &each(&names, &marked), &others);
}
