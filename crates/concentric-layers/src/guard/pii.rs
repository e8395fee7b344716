//! Rules for personal data.
//!
//! | rule | matches |
//! |---|---|
//! | [`card`] | card numbers with a known issuer and a valid check digit (ISO/IEC 7812) |
//! | [`iban`] | account numbers with a valid checksum and the length of their country (ISO 13616) |
//! | [`url_credentials`] | the user and password in a URL; the rest is kept |
//! | [`email`] | email addresses |
//! | [`mac`] | hardware addresses of networks |
//! | [`ip`] | IPv4 and IPv6 addresses |
//! | [`us_ssn`] | social security numbers of the United States, with separators |
//! | [`de_tax_id`] | tax numbers (`IdNr`) of Germany with a valid check digit |
//! | [`uk_nino`] | national insurance numbers of the United Kingdom |
//! | [`fr_nir`] | social security numbers (`NIR`) of France with a valid key |
//! | [`es_dni`] | identity numbers (`DNI`, `NIE`) of Spain with a valid letter |
//! | [`date_of_birth`] | dates after a word such as `born`; the word is kept |
//! | [`phone`] | phone numbers: international, North American, or national with separators |
//!
//! As in [`secrets`](super::secrets), the rules are code, and a new version of the crate may find more.

use super::Rule;
use std::{
    net::{Ipv4Addr, Ipv6Addr},
    ops::Range,
};

/// The maximum length of a URL up to its host.
pub(super) const URL: usize = 512;

/// All rules of this module, in the order of the table.
pub fn all() -> Vec<Rule> {
    vec![
        card(),
        iban(),
        url_credentials(),
        email(),
        mac(),
        ip(),
        us_ssn(),
        de_tax_id(),
        uk_nino(),
        fr_nir(),
        es_dni(),
        date_of_birth(),
        phone(),
    ]
}

/// Card numbers.
pub fn card() -> Rule {
    let pattern = r"(?-u:\b)[2-68](?:[ -]?[0-9]){12,18}(?-u:\b)";
    Rule::pattern("card", pattern).validate(|text| {
        let (digits, count) = digits(text);
        let digits = digits.get(..count).unwrap_or_default();
        is_issued(digits) && luhn(digits)
    })
}

/// Bank account numbers.
pub fn iban() -> Rule {
    let pattern = r"(?-u:\b)[A-Z]{2}[0-9]{2}(?: ?[A-Z0-9]){11,30}(?-u:\b)";
    Rule::pattern("iban", pattern).validate(is_iban)
}

/// The user and the password in a URL.
pub fn url_credentials() -> Rule {
    let name = r"[A-Za-z0-9._~%!$&'()*+,;=-]";
    let scheme = r"(?-u:\b)[A-Za-z][A-Za-z0-9+.-]*://";
    Rule::pattern("url_credentials", format!("{scheme}(?:{name}|:)*@?"))
        .at_most(URL)
        .check(credentials)
}

/// The user and the password in the beginning of a URL.
pub(super) fn credentials(url: &str) -> Option<Range<usize>> {
    let start = url.find("://")? + 3;
    let Some(all) = url.get(start..)?.strip_suffix('@') else {
        // The end of the password is out of reach.
        return (url.len() >= URL).then_some(start..url.len());
    };
    let (_, password) = all.split_once(':')?;
    (!password.is_empty()).then_some(start..start + all.len())
}

/// Email addresses.
pub fn email() -> Rule {
    let pattern = r"(?-u:\b)[A-Za-z0-9._%+-]+@(?:[A-Za-z0-9-]+\.)+[A-Za-z]{2,24}(?-u:\b)";
    Rule::pattern("email", pattern).at_most(254)
}

/// Hardware addresses of networks.
pub fn mac() -> Rule {
    let hex = "[0-9A-Fa-f]";
    Rule::pattern(
        "mac",
        format!(
            r"(?-u:\b)(?:{hex}{{2}}(?::{hex}{{2}}){{5}}|{hex}{{2}}(?:-{hex}{{2}}){{5}}|{hex}{{4}}\.{hex}{{4}}\.{hex}{{4}})(?-u:\b)"
        ),
    )
    // Twelve digits are a number.
    .validate(|text| !text.contains('.') || text.contains(|c: char| c.is_ascii_alphabetic()))
}

/// IPv4 and IPv6 addresses.
pub fn ip() -> Rule {
    ip_rule(|_| true, |_| true)
}

/// IPv4 and IPv6 addresses that are not private, local, of this machine, or reserved for documentation.
pub fn public_ip() -> Rule {
    let is_public_v4 = |ip: Ipv4Addr| {
        !(ip.is_private()
            || ip.is_loopback()
            || ip.is_link_local()
            || ip.is_unspecified()
            || ip.is_broadcast()
            || ip.is_documentation())
    };
    let is_public_v6 = |ip: Ipv6Addr| {
        let is_documentation = ip.segments().starts_with(&[0x2001, 0xdb8]);
        !(ip.is_loopback()
            || ip.is_unspecified()
            || ip.is_unique_local()
            || ip.is_unicast_link_local()
            || is_documentation)
    };
    ip_rule(is_public_v4, is_public_v6)
}

fn ip_rule(v4: fn(Ipv4Addr) -> bool, v6: fn(Ipv6Addr) -> bool) -> Rule {
    let hex = "[0-9A-Fa-f]";
    Rule::pattern(
        "ip",
        format!(
            r"(?-u:\b)[0-9]{{1,3}}(?:\.[0-9]{{1,3}}){{3}}(?-u:\b)|(?:(?-u:\b){hex}{{1,4}})?(?::{hex}{{0,4}}){{2,7}}(?-u:\b)"
        ),
    )
    // Of an address that is not replaced, no part is another address.
    .check(move |text| {
        let is_replaced = match text.parse() {
            Ok(ip) => v4(ip),
            Err(_) => v6(text.parse().ok().filter(|_| is_written_as_v6(text))?),
        };
        Some(0..if is_replaced { text.len() } else { 0 })
    })
}

/// Whether a text is an address rather than a path such as `add::face`.
fn is_written_as_v6(text: &str) -> bool {
    let groups = text.split(':').filter(|group| !group.is_empty());
    let is_long = |group: &str| group.len() >= 3 && group.contains(|c: char| c.is_ascii_digit());
    groups.clone().count() >= 2 && groups.clone().any(is_long)
}

/// Social security numbers of the United States.
pub fn us_ssn() -> Rule {
    let pattern = r"(?-u:\b)[0-9]{3}(?:-[0-9]{2}-| [0-9]{2} )[0-9]{4}(?-u:\b)";
    Rule::pattern("us_ssn", pattern).validate(|text| {
        let part = |range: Range<usize>| text.get(range).unwrap_or_default();
        let area = part(0..3);
        area != "000"
            && area != "666"
            && !area.starts_with('9')
            && part(4..6) != "00"
            && part(7..11) != "0000"
    })
}

/// Tax numbers of Germany.
pub fn de_tax_id() -> Rule {
    let pattern = r"(?-u:\b)[1-9][0-9](?: ?[0-9]{3}){3}(?-u:\b)";
    Rule::pattern("de_tax_id", pattern).validate(is_de_tax_id)
}

/// National insurance numbers of the United Kingdom.
pub fn uk_nino() -> Rule {
    let pattern =
        r"(?-u:\b)[A-CEGHJ-PR-TW-Z][A-CEGHJ-NPR-TW-Z] ?[0-9]{2} ?[0-9]{2} ?[0-9]{2} ?[A-D](?-u:\b)";
    Rule::pattern("uk_nino", pattern).validate(|text| {
        let unused = ["BG", "GB", "NK", "KN", "TN", "NT", "ZZ"];
        !unused.iter().any(|prefix| text.starts_with(prefix))
    })
}

/// Social security numbers of France.
pub fn fr_nir() -> Rule {
    let pattern = r"(?-u:\b)[1-478] ?[0-9]{2} ?[0-9]{2} ?(?:[0-9]{2}|2[AB]) ?[0-9]{3} ?[0-9]{3} ?[0-9]{2}(?-u:\b)";
    Rule::pattern("fr_nir", pattern).validate(|text| {
        let text: String = text.chars().filter(|c| *c != ' ').collect();
        // The departments of Corsica count as 19 and 18.
        let number = text.replacen("2A", "19", 1).replacen("2B", "18", 1);
        let (Some(number), Some(key)) = (number.get(..13), number.get(13..)) else {
            return false;
        };
        match (number.parse::<u64>(), key.parse::<u64>()) {
            (Ok(number), Ok(key)) => key == 97 - number % 97,
            _ => false,
        }
    })
}

/// Identity numbers of Spain.
pub fn es_dni() -> Rule {
    let pattern = r"(?-u:\b)(?:[0-9]{8}|[XYZ]-?[0-9]{7})-?[A-HJ-NP-TV-Z](?-u:\b)";
    Rule::pattern("es_dni", pattern).validate(|text| {
        let first = match text.chars().next() {
            Some('Y') => "1",
            Some('Z') => "2",
            _ => "",
        };
        let digits: String = text.chars().filter(char::is_ascii_digit).collect();
        let number = [first, &digits]
            .concat()
            .parse::<usize>()
            .unwrap_or_default();
        let letter = "TRWAGMYFPDXBNJZSQVHLCKE".chars().nth(number % 23);
        text.chars().next_back() == letter
    })
}

/// Dates of birth after a word for them, in English, German, French or Spanish.
pub fn date_of_birth() -> Rule {
    let word = r"(?i-u:born(?: on)?|date of birth|dob|d\.o\.b\.|birth ?date|birthday|geboren(?: am)?|geburtsdatum|nacido el|nacida el|fecha de nacimiento|date de naissance)";
    let month = "(?i-u:jan(?:uary)?|feb(?:ruary)?|mar(?:ch)?|apr(?:il)?|may|june?|july?|aug(?:ust)?|sep(?:t(?:ember)?)?|oct(?:ober)?|nov(?:ember)?|dec(?:ember)?)";
    let numbers = r"[0-9]{1,2}[./-][0-9]{1,2}[./-](?:19|20)?[0-9]{2}|(?:19|20)[0-9]{2}[./-][0-9]{1,2}[./-][0-9]{1,2}";
    let day = "[0-9]{1,2}(?i-u:st|nd|rd|th)?";
    let words = format!(
        r"{day} (?:of )?{month}\.?,? (?:19|20)[0-9]{{2}}|{month}\.? {day},? (?:19|20)[0-9]{{2}}"
    );
    let pattern = format!(r"(?-u:\b){word}[ :=-]{{1,3}}(?:is )?(?:{numbers}|{words})(?-u:\b)");
    Rule::pattern("date_of_birth", pattern).check(|text| {
        // The date begins with a digit or, after the word, with a month.
        let digit = text.find(|c: char| c.is_ascii_digit())?;
        let before = text.get(..digit)?.trim_end();
        let last = before.rsplit([' ', ':', '=', '-']).next();
        let last = last.unwrap_or_default();
        let months = [
            "jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec",
        ];
        let is_month = last
            .get(..3)
            .is_some_and(|word| months.iter().any(|month| month.eq_ignore_ascii_case(word)));
        let start = if is_month {
            before.len() - last.len()
        } else {
            digit
        };
        Some(start..text.len())
    })
}

/// Phone numbers.
pub fn phone() -> Rule {
    // Abroad or with a trunk prefix, and in North America. Other groups of digits are not checked.
    let long = r"(?:\+[1-9]|\(0|(?-u:\b)0)(?:[ ()./-]{0,3}[0-9])*";
    let by = "[ ()./-]{1,3}";
    let american = format!(r"(?:\(|(?-u:\b))(?:1{by})?[2-9][0-9]{{2}}{by}[0-9]{{3}}{by}[0-9]{{4}}");
    Rule::pattern("phone", format!(r"(?:{long}|{american})(?-u:\b)"))
        .at_most(32)
        .validate(is_phone)
}

/// The digits in a text of at most 19 of them.
fn digits(text: &str) -> ([u32; 19], usize) {
    let mut digits = [0; 19];
    let found = text.chars().filter_map(|c| c.to_digit(10));
    let places = digits.iter_mut().zip(found);
    let count = places.map(|(place, digit)| *place = digit).count();
    (digits, count)
}

/// Whether the check digit (ISO/IEC 7812-1, annex B) is valid.
fn luhn(digits: &[u32]) -> bool {
    let doubled = |(at, digit): (usize, &u32)| match at % 2 {
        0 => *digit,
        _ => digit * 2 / 10 + digit * 2 % 10,
    };
    let sum: u32 = digits.iter().rev().enumerate().map(doubled).sum();
    sum.is_multiple_of(10)
}

/// Whether an issuer has numbers that begin like this, and with this length.
fn is_issued(digits: &[u32]) -> bool {
    let first = |count: usize| {
        digits
            .iter()
            .take(count)
            .fold(0, |all, digit| all * 10 + digit)
    };
    let len = digits.len();
    match first(4) {
        4000..=4999 => matches!(len, 13 | 16 | 19),
        2221..=2720 | 5100..=5599 => len == 16,
        3400..=3499 | 3700..=3799 => len == 15,
        3000..=3059 | 3600..=3699 | 3800..=3999 => (14..=19).contains(&len),
        3528..=3589 | 6011 | 6440..=6599 | 8100..=8171 => (16..=19).contains(&len),
        6200..=6299 => (16..=19).contains(&len),
        5018 | 5020 | 5038 | 5893 | 6304 | 6759 | 6761..=6763 => (13..=19).contains(&len),
        _ => false,
    }
}

/// The countries with account numbers of this form, and the length of these.
const IBAN: &str = "AD24 AE23 AL28 AT20 AZ28 BA20 BE16 BG22 BH22 BR29 BY28 CH21 CR22 CY28 CZ24 DE22 DK18 DO28 EE20 EG29 ES24 FI18 FO18 FR27 GB22 GE22 GI23 GL18 GR27 GT28 HR21 HU28 IE22 IL23 IQ23 IS26 IT27 JO30 KW30 KZ20 LB28 LC32 LI21 LT20 LU20 LV21 LY25 MC27 MD24 ME22 MK19 MR27 MT31 MU30 NL18 NO15 PK24 PL28 PS29 PT25 QA29 RO24 RS22 SA24 SC31 SE24 SI19 SK24 SM27 ST25 SV28 TL23 TN24 TR26 UA29 VA22 VG24 XK20";

fn is_iban(text: &str) -> bool {
    let Some((_, len)) = text.get(..2).and_then(|country| IBAN.split_once(country)) else {
        return false;
    };
    let is_long = |len: &str| len.parse() == Ok(text.chars().filter(|c| *c != ' ').count());
    if !len.get(..2).is_some_and(is_long) {
        return false;
    }
    // The first four characters count as the last ones.
    let (head, tail) = text.split_at_checked(4).unwrap_or((text, ""));
    let digits = tail
        .chars()
        .chain(head.chars())
        .filter_map(|c| c.to_digit(36));
    let rest = digits.fold(0, |rest, digit| match digit {
        0..=9 => (rest * 10 + digit) % 97,
        _ => (rest * 100 + digit) % 97,
    });
    rest == 1
}

fn is_de_tax_id(text: &str) -> bool {
    let (digits, _) = digits(text);
    let [number @ .., check] = digits.get(..11).unwrap_or_default() else {
        return false;
    };
    // One digit occurs twice or three times, the others at most once.
    let count = |digit: u32| number.iter().filter(|other| **other == digit).count();
    let mut repeated = (0..10).map(count).filter(|count| *count > 1);
    if !matches!((repeated.next(), repeated.next()), (Some(2 | 3), None)) {
        return false;
    }
    // ISO/IEC 7064, MOD 11,10.
    let product = number.iter().fold(10, |product, digit| {
        let sum = match (product + digit) % 10 {
            0 => 10,
            sum => sum,
        };
        sum * 2 % 11
    });
    (11 - product) % 10 == *check
}

/// Whether a text that begins with a digit, `+` or `(` is written as a phone number is.
fn is_phone(text: &str) -> bool {
    if text.len() < 8 {
        return false;
    }
    let opened = text.matches('(').count();
    if opened != text.matches(')').count() || opened > 1 {
        return false;
    }
    let mut lengths = [0; 8];
    let mut groups = text
        .split(|c: char| !c.is_ascii_digit())
        .filter(|group| !group.is_empty());
    let places = lengths.iter_mut().zip(groups.by_ref());
    let count = places.map(|(place, group)| *place = group.len()).count();
    if groups.next().is_some() {
        return false;
    }
    let lengths = lengths.get(..count).unwrap_or_default();
    let digits: usize = lengths.iter().sum();
    let is_abroad = match text.strip_prefix("00") {
        Some(_) if text.contains('.') || count == 1 => return false,
        Some(rest) => Some(rest),
        None => text.strip_prefix('+'),
    };
    if let Some(country) = is_abroad {
        return (8..=17).contains(&digits) && country.starts_with(|digit: char| digit >= '1');
    }
    let text = text.trim_start_matches('(');
    // North America, where an area does not begin with 0 or 1.
    let area = match lengths {
        [1, 3, 3, 4] => text.strip_prefix('1'),
        [3, 3, 4] => Some(text),
        _ => None,
    };
    let area = area.map(|text| text.trim_start_matches(|c: char| !c.is_ascii_digit()));
    if area.is_some_and(|area| area.starts_with(|digit: char| digit >= '2')) {
        return true;
    }
    // With a trunk prefix, as in most of Europe.
    let is_date = matches!(lengths, [1 | 2, 1 | 2, 4, ..]);
    let is_trunk = text.starts_with('0') && !text.starts_with("00");
    is_trunk
        && !is_date
        && !text.contains('.')
        && lengths.first().is_some_and(|len| (2..=6).contains(len))
        && (2..=6).contains(&count)
        && (9..=12).contains(&digits)
}
