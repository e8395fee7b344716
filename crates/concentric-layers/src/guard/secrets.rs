//! Rules for credentials.
//!
//! | rule | matches |
//! |---|---|
//! | [`pem`] | private keys in PEM (RFC 7468), also without their end |
//! | [`anthropic`], [`openai`], [`google`], [`aws`], [`github`], [`slack`], [`stripe`] | keys and tokens of these services, by their prefixes |
//! | [`jwt`] | JSON Web Tokens (RFC 7519) |
//! | [`connection_string`] | the passwords of databases, in URLs and in lists of `name=value` |
//! | [`bearer`] | the credentials after `Bearer` or `Authorization: Basic`; the word is kept |
//! | [`generic`] | random texts after a word such as `api_key`; the word is kept |
//!
//! The rules are code, since some need more than a pattern: a new version of the crate may find more. For a fixed
//! set, list [`Rule`]s of one's own.
//!
//! Of a text beyond the [maximum length](Rule::at_most) of its rule, nothing is released: a URL without an end of
//! its password within 512 bytes counts as one with a password.

use super::{
    Rule,
    pii::{URL, credentials},
};
use std::ops::Range;

/// All rules of this module, in the order of the table.
pub fn all() -> Vec<Rule> {
    vec![
        pem(),
        anthropic(),
        openai(),
        google(),
        aws(),
        github(),
        slack(),
        stripe(),
        jwt(),
        connection_string(),
        bearer(),
        generic(),
    ]
}

/// Private keys in PEM.
pub fn pem() -> Rule {
    let label = "(?:[A-Z0-9]+ )*PRIVATE KEY";
    let encrypted = r"(?:\s*Proc-Type: 4,ENCRYPTED\s+DEK-Info: [A-Z0-9-]+,[0-9A-Fa-f]+)?";
    // Line ends may be escaped, as in JSON.
    let pattern =
        format!(r"-----BEGIN {label}-----{encrypted}[A-Za-z0-9+/=\s\\]*(?:-----END {label}-----)?");
    Rule::pattern("pem", pattern).at_most(16 * 1024)
}

/// Keys of Anthropic.
pub fn anthropic() -> Rule {
    let pattern = "(?-u:\\b)sk-ant-[A-Za-z0-9_-]{16}[A-Za-z0-9_-]*";
    Rule::pattern("anthropic", pattern).at_most(256)
}

/// Keys of OpenAI.
pub fn openai() -> Rule {
    let pattern = "(?-u:\\b)sk-[A-Za-z0-9_-]{20}[A-Za-z0-9_-]*";
    // A text of words and hyphens is a name.
    Rule::pattern("openai", pattern)
        .at_most(256)
        .check(all_with_digit)
}

/// API keys, client secrets and access tokens of Google.
pub fn google() -> Rule {
    let pattern = r"(?-u:\b)(?:AIza[A-Za-z0-9_-]{35}|GOCSPX-[A-Za-z0-9_-]{28}|ya29\.[A-Za-z0-9_-]{20}[A-Za-z0-9_-]*)";
    Rule::pattern("google", pattern).at_most(2048)
}

/// Access key ids of AWS, and secret keys after their name.
pub fn aws() -> Rule {
    let id = r"(?-u:\b)(?:AKIA|ASIA)[A-Z0-9]{16}(?-u:\b)";
    let secret = r#"(?-u:\b)(?i-u:aws_?secret_?access_?key|secretaccesskey)\\*["']?\s{0,2}[:=]\s{0,2}\\*["']?[A-Za-z0-9/+]{40}"#;
    Rule::pattern("aws", format!("{id}|{secret}"))
        .at_most(256)
        .check(|text| {
            let start = if text.len() > 40 { text.len() - 40 } else { 0 };
            Some(start..text.len())
        })
}

/// Tokens of GitHub.
pub fn github() -> Rule {
    let pattern = r"(?-u:\b)(?:gh[pousr]_[A-Za-z0-9]{30}[A-Za-z0-9]*|github_pat_[A-Za-z0-9_]{22}[A-Za-z0-9_]*)";
    Rule::pattern("github", pattern).at_most(256)
}

/// Tokens and webhooks of Slack.
pub fn slack() -> Rule {
    let pattern = r"(?-u:\b)(?:xox[abeoprs]-[A-Za-z0-9-]{10}[A-Za-z0-9-]*|xapp-[A-Za-z0-9-]{10}[A-Za-z0-9-]*|https://hooks\.slack\.com/services/[A-Za-z0-9/]{20}[A-Za-z0-9/]*)";
    Rule::pattern("slack", pattern)
        .at_most(256)
        .check(all_with_digit)
}

/// Keys of Stripe.
pub fn stripe() -> Rule {
    let pattern = r"(?-u:\b)(?:[sr]k_(?:live|test)_|whsec_)[A-Za-z0-9]{16}[A-Za-z0-9]*";
    Rule::pattern("stripe", pattern).at_most(256)
}

/// JSON Web Tokens.
pub fn jwt() -> Rule {
    let text = "[A-Za-z0-9_-]";
    let pattern = format!(r"(?-u:\b)eyJ{text}{{5}}{text}*\.eyJ{text}{{5}}{text}*(?:\.{text}*)?");
    Rule::pattern("jwt", pattern).at_most(8 * 1024)
}

/// Passwords of databases and services.
pub fn connection_string() -> Rule {
    let scheme = r"(?-u:\b)(?i-u:postgres(?:ql)?|mysql|mariadb|mongodb(?:\+srv)?|rediss?|amqps?|mssql|sqlserver|clickhouse)";
    let name = r"[A-Za-z0-9._~%!$&'()*+,;=-]";
    let url = format!("{scheme}://(?:{name}|:)*@?");
    let list = r"(?-u:\b)(?i-u:password|pwd|accountkey|sharedaccesskey)=[A-Za-z0-9+/=!#$%^&*._~-]{6}[A-Za-z0-9+/=!#$%^&*._~-]*";
    Rule::pattern("connection_string", format!("{url}|{list}"))
        .at_most(URL)
        .check(|text| {
            if !text.contains("://") {
                return Some(text.find('=')? + 1..text.len());
            }
            // The user is kept.
            let all = credentials(text)?;
            let colon = text.get(all.clone())?.find(':');
            Some(colon.map_or(all.start, |at| all.start + at + 1)..all.end)
        })
}

/// Credentials of HTTP requests.
pub fn bearer() -> Rule {
    let token = "[A-Za-z0-9._~+/-]";
    let bearer = format!(r"(?-u:\b)(?i-u:bearer)\s{{1,3}}{token}{{16}}{token}*=*");
    let basic = format!(
        r#"(?-u:\b)(?i-u:authorization)\\*["']?\s{{0,2}}[:=]\s{{0,2}}\\*["']?(?i-u:basic|token)\s{{1,3}}{token}{{8}}{token}*=*"#
    );
    Rule::pattern("bearer", format!("{bearer}|{basic}"))
        .at_most(4096)
        .check(|text| {
            let start = text.rfind(char::is_whitespace)? + 1;
            let is_basic = !text.get(..6)?.eq_ignore_ascii_case("bearer");
            let token = text.get(start..)?;
            (is_basic || has_digit(token)).then_some(start..text.len())
        })
}

/// Random texts after a word for a credential: at least 20 characters, with 3.5 bits of entropy for each.
pub fn generic() -> Rule {
    let word = r"(?:(?-u:\b)|_)(?i-u:(?:api|access|auth|private|secret|client|session|refresh)[_ -]?(?:key|token|secret)|secret|token|password|passwd|credentials?)";
    let value = "[A-Za-z0-9+/=_.~-]";
    let pattern = format!(
        r#"{word}\\*["']?\s{{0,3}}(?:[:=]|=>|:=|(?i-u: is ))\s{{0,3}}\\*["'`]?{value}{{20}}{value}*"#
    );
    Rule::pattern("generic", pattern)
        .at_most(192)
        .check(|text| {
            let is_value = |c: char| c.is_ascii_alphanumeric() || "+/=_.~-".contains(c);
            let start = text.rfind(|c| !is_value(c)).map_or(0, |at| at + 1);
            // Without a space, the value is after the first sign.
            let start = match text.get(start..)?.find('=') {
                Some(at) if start == 0 => at + 1,
                _ => start,
            };
            is_random(text.get(start..)?).then_some(start..text.len())
        })
}

fn all_with_digit(text: &str) -> Option<Range<usize>> {
    has_digit(text).then_some(0..text.len())
}

fn has_digit(text: &str) -> bool {
    text.contains(|c: char| c.is_ascii_digit())
}

/// Whether a text has 3.5 bits of entropy per character (Shannon) or more.
fn is_random(text: &str) -> bool {
    let mut counts = [0_u32; 256];
    for byte in text.bytes() {
        if let Some(count) = counts.get_mut(usize::from(byte)) {
            *count += 1;
        }
    }
    let len = f64::from(u32::try_from(text.len()).unwrap_or(u32::MAX));
    let bits = counts.iter().filter(|count| **count > 0).map(|count| {
        let share = f64::from(*count) / len;
        -share * share.log2()
    });
    has_digit(text) && text.len() >= 20 && bits.sum::<f64>() >= 3.5
}
