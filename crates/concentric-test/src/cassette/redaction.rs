use super::scan::{SECRET_NAMES, begins, fields, fold, is_secret, merge, percent, token};
use http::{HeaderMap, HeaderValue, Uri, header::HeaderName};
use memchr::memmem;
use std::{collections::BTreeMap, fmt, ops::Range};

/// The placeholder for a secret.
pub(super) const GONE: &str = "[REDACTED]";

/// The parts of requests and responses that are not recorded.
///
/// | in | removed |
/// |---|---|
/// | headers | all but a few diagnostic ones (content type, request id, `retry-after`) and [added](Self::keep_header) ones; of these, still the value of any secret header |
/// | query | the values of `key`, `token`, `signature` and similar parameters, and of [added](Self::query) ones |
/// | body, path, and the rest of the above | the configured [values](Self::value), literally and in their JSON and URL encodings; the secrets in the request's headers and query, with and without a scheme such as `Bearer`, if they have at least 16 bytes; words that begin like a key (`sk-…`, `AIza…`, `ghp_…`); JSON web tokens; the word after `Bearer`; strings in JSON fields such as `api_key` and `password` |
///
/// A header is secret if it is marked as [sensitive](HeaderValue::is_sensitive), or if its name
/// contains `auth`, `cookie`, `key`, `token`, `secret` or `signature`. The spelling of parameters
/// and fields does not matter: `X-API-Key` equals `x_api_key` and `xApiKey`. Some names are secret
/// in a query but common in JSON, and are kept there: `code` (of an error), `key` (of a map),
/// `token` (of a text), `signature` (of a thought), `sig` and `auth`.
///
/// Replayed requests are redacted in the same way before they are compared, so their API key does
/// not matter.
#[derive(Clone)]
pub struct Redaction {
    // Each value in its literal, JSON and URL forms.
    values: Vec<Vec<u8>>,
    headers: Vec<HeaderName>,
    query: Vec<String>,
}

/// The headers that are recorded.
const HEADERS: [&str; 9] = [
    "accept",
    "apim-request-id",
    "cf-ray",
    "content-type",
    "request-id",
    "retry-after",
    "retry-after-ms",
    "x-request-id",
    "x-should-retry",
];

/// Secret query parameters that are common as JSON fields; [folded](fold).
const SECRET_PARAMETERS: [&str; 6] = ["auth", "code", "key", "sig", "signature", "token"];

/// The prefixes of keys.
const PREFIXES: [&str; 19] = [
    "sk-",
    "sk_",
    "rk_",
    "AIza",
    "AKIA",
    "ASIA",
    "gsk_",
    "xai-",
    "hf_",
    "ghp_",
    "gho_",
    "ghs_",
    "github_pat_",
    "glpat-",
    "xoxb-",
    "xoxp-",
    "key-",
    "nvapi-",
    "pplx-",
];

/// The least length of a key. Shorter matches may be words.
const LEAST: usize = 16;

impl Default for Redaction {
    fn default() -> Self {
        Self {
            values: Vec::new(),
            headers: HEADERS
                .iter()
                .map(|name| HeaderName::from_static(name))
                .collect(),
            query: Vec::new(),
        }
    }
}

impl Redaction {
    /// Removes `value` wherever it occurs. An empty value has no effect.
    #[must_use]
    pub fn value(mut self, value: impl AsRef<str>) -> Self {
        let value = value.as_ref();
        let json = serde_json::Value::from(value).to_string();
        let json = json.trim_start_matches('"');
        let forms = [
            value.to_owned(),
            json.strip_suffix('"').unwrap_or(json).to_owned(),
            percent(value),
        ];
        for form in forms.map(String::into_bytes) {
            if !form.is_empty() && !self.values.contains(&form) {
                self.values.push(form);
            }
        }
        // Longest first, so that nothing of a value remains if another is a part of it.
        self.values
            .sort_by_key(|value| std::cmp::Reverse(value.len()));
        self
    }

    /// Keeps a header, in addition to the default ones.
    #[must_use]
    pub fn keep_header(mut self, name: HeaderName) -> Self {
        self.headers.push(name);
        self
    }

    /// Removes the value of a query parameter.
    #[must_use]
    pub fn query(mut self, name: impl Into<String>) -> Self {
        self.query.push(name.into());
        self
    }

    /// Returns the redaction of one call, which also removes the secrets in its request's headers
    /// and query wherever they occur: a response may repeat an invalid key.
    pub(super) fn of_call(&self, headers: &HeaderMap, uri: &Uri) -> Self {
        let secrets = headers
            .iter()
            .filter(|(name, value)| is_secret(name, value));
        let secrets = secrets.filter_map(|(_, value)| std::str::from_utf8(value.as_bytes()).ok());
        let forms =
            secrets.flat_map(|value| [Some(value), value.split_once(' ').map(|(_, key)| key)]);
        let forms = forms.flatten().map(str::trim);
        let pairs = uri.query().unwrap_or_default().split('&');
        let pairs = pairs.filter_map(|pair| pair.split_once('='));
        let in_query = pairs.filter(|(name, _)| self.is_secret_parameter(name));
        forms
            .chain(in_query.map(|(_, value)| value))
            .filter(|value| value.len() >= LEAST)
            .fold(self.clone(), Self::value)
    }

    /// Returns `true` if the values of a query parameter are secret.
    fn is_secret_parameter(&self, name: &str) -> bool {
        let plain = fold(name.as_bytes());
        let mut names = SECRET_NAMES.iter().chain(&SECRET_PARAMETERS);
        names.any(|secret| secret.as_bytes() == plain) || self.query.iter().any(|q| q == name)
    }

    pub(super) fn headers(&self, headers: &HeaderMap) -> BTreeMap<String, String> {
        let kept = headers
            .iter()
            .filter(|(name, _)| self.headers.contains(name));
        let kept = kept.map(|(name, value)| (name.to_string(), self.header(name, value)));
        kept.collect()
    }

    fn header(&self, name: &HeaderName, value: &HeaderValue) -> String {
        if is_secret(name, value) {
            GONE.to_owned()
        } else {
            self.text(&String::from_utf8_lossy(value.as_bytes()))
        }
    }

    /// Returns the redacted path of a URL.
    pub(super) fn path(&self, uri: &Uri) -> String {
        self.text(uri.path())
    }

    /// Returns the redacted query parameters of a URL, percent-encoded as received, sorted.
    pub(super) fn parameters(&self, uri: &Uri) -> Vec<(String, String)> {
        let pairs = uri.query().unwrap_or_default().split('&');
        let mut pairs: Vec<_> = pairs
            .filter(|pair| !pair.is_empty())
            .map(|pair| {
                let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
                let value = if self.is_secret_parameter(name) {
                    GONE.to_owned()
                } else {
                    self.text(value)
                };
                (self.text(name), value)
            })
            .collect();
        pairs.sort();
        pairs
    }

    pub(super) fn text(&self, text: &str) -> String {
        let (bytes, _) = self.bytes(text.as_bytes(), &[]);
        // Secrets begin and end at character boundaries.
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// Redacts `bytes`, and returns them with the new positions of `cuts`, which must be sorted.
    pub(super) fn bytes(&self, bytes: &[u8], cuts: &[usize]) -> (Vec<u8>, Vec<usize>) {
        let mut out = Vec::with_capacity(bytes.len());
        let mut moved = Vec::with_capacity(cuts.len());
        let mut cuts = cuts.iter().copied().peekable();
        let mut at = 0;
        for gone in self.secrets(bytes) {
            while let Some(cut) = cuts.next_if(|cut| *cut <= gone.start) {
                moved.push(out.len() + cut.saturating_sub(at));
            }
            out.extend_from_slice(bytes.get(at..gone.start).unwrap_or_default());
            out.extend_from_slice(GONE.as_bytes());
            while cuts.next_if(|cut| *cut < gone.end).is_some() {
                moved.push(out.len());
            }
            at = gone.end;
        }
        moved.extend(cuts.map(|cut| out.len() + cut.saturating_sub(at)));
        out.extend_from_slice(bytes.get(at..).unwrap_or_default());
        (out, moved)
    }

    /// Returns the ranges of secrets, sorted and disjoint.
    fn secrets(&self, bytes: &[u8]) -> Vec<Range<usize>> {
        let mut found = Vec::new();
        for value in &self.values {
            found.extend(memmem::find_iter(bytes, value).map(|at| at..at + value.len()));
        }
        // The word boundary is checked first, so that a long `sk-sk-…` is scanned only once.
        let words =
            |prefix: &'static str| memmem::find_iter(bytes, prefix).filter(|at| begins(bytes, *at));
        for prefix in PREFIXES {
            for at in words(prefix) {
                let token = token(bytes, at);
                let digits = bytes.get(token.clone()).unwrap_or_default();
                let digits = digits.iter().any(u8::is_ascii_digit);
                if token.len() >= LEAST && digits {
                    found.push(token);
                }
            }
        }
        // `eyJ` is the beginning of a JSON object in base64.
        for at in words("eyJ") {
            let token = token(bytes, at);
            let dots = bytes.get(token.clone()).unwrap_or_default();
            if dots.iter().filter(|byte| **byte == b'.').count() == 2 {
                found.push(token);
            }
        }
        for word in ["Bearer ", "bearer "] {
            for at in memmem::find_iter(bytes, word) {
                let token = token(bytes, at + word.len());
                if token.len() >= LEAST {
                    found.push(token);
                }
            }
        }
        found.extend(fields(bytes));
        merge(found)
    }
}

// Does not print the values.
impl fmt::Debug for Redaction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Redaction")
            .field("values", &self.values.len())
            .field("headers", &self.headers)
            .field("query", &self.query)
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_removed_and_words_are_kept() {
        let redaction = Redaction::default().value("pa\"ss wörd");
        let cases = [
            ("a sk-0123456789abcdef.", "a [REDACTED]"),
            (
                r#"{"t":"\nsk-0123456789abcdef"}"#,
                r#"{"t":"\n[REDACTED]"}"#,
            ),
            (
                "task-0123456789abcdef sk-word",
                "task-0123456789abcdef sk-word",
            ),
            ("pa\"ss wörd", "[REDACTED]"),
            (r#"{"t":"pa\"ss wörd"}"#, r#"{"t":"[REDACTED]"}"#),
            ("?x=pa%22ss%20w%C3%B6rd&y", "?x=[REDACTED]&y"),
            ("Bearer 0123456789abcdef", "Bearer [REDACTED]"),
            (
                "eyJhbGciOiJIUzI1NiJ9.e30.abc eyJhbGciOiJIUzI1NiJ9",
                "[REDACTED] eyJhbGciOiJIUzI1NiJ9",
            ),
            (
                r#"{"api_key" : "a\"b","x":"y"}"#,
                r#"{"api_key" : "[REDACTED]","x":"y"}"#,
            ),
            (
                r#"{"a":"{\"password\":\"p\",\"x\":1}"}"#,
                r#"{"a":"{\"password\":\"[REDACTED]\",\"x\":1}"}"#,
            ),
            (
                r#"{"X-API-Key":"p","apikey":"p","private-key":"p","Client_Secret" :"p"}"#,
                r#"{"X-API-Key":"[REDACTED]","apikey":"[REDACTED]","private-key":"[REDACTED]","Client_Secret" :"[REDACTED]"}"#,
            ),
            (
                r#"{"a":"{\"accessToken\":\"{\\\"api_key\\\":1}\",\"x\":1}"}"#,
                r#"{"a":"{\"accessToken\":\"[REDACTED]\",\"x\":1}"}"#,
            ),
            (
                r#"{"code":"c","key":"k","token":"t","signature":"s","api_key":null,"b":"password:c"}"#,
                r#"{"code":"c","key":"k","token":"t","signature":"s","api_key":null,"b":"password:c"}"#,
            ),
            (r#"{"max_tokens":"3"}"#, r#"{"max_tokens":"3"}"#),
            (r#"{"password":"cut"#, r#"{"password":"[REDACTED]"#),
        ];
        for (text, expected) in cases {
            assert_eq!(redaction.text(text), expected, "{text}");
        }
    }

    #[test]
    fn a_long_word_is_scanned_once() {
        // With quadratic time, these would take hours.
        // By its square, these would take hours.
        for part in ["sk-", "eyJ"] {
            let text = part.repeat(1 << 20);
            assert_eq!(Redaction::default().text(&text), text);
        }
    }

    #[test]
    fn secrets_in_headers_and_query_are_removed_everywhere() {
        let mut headers = HeaderMap::new();
        let mut marked = HeaderValue::from_static("marked-0123456789");
        marked.set_sensitive(true);
        headers.insert("x-marked", marked);
        headers.insert("x-plain", HeaderValue::from_static("plain-0123456789"));
        let bearer = HeaderValue::from_static("Custom 0123456789abcdef0123456789abcdef");
        headers.insert("authorization", bearer);
        headers.insert("api-key", HeaderValue::from_static("none"));
        let uri = Uri::from_static("/v1?key=query-0123456789abc&page=plain-0123456789");
        let redaction = Redaction::default().of_call(&headers, &uri);
        let text = "marked-0123456789 plain-0123456789 none 0123456789abcdef0123456789abcdef \
                    Custom query-0123456789abc";
        let left = "[REDACTED] plain-0123456789 none [REDACTED] Custom [REDACTED]";
        assert_eq!(redaction.text(text), left);
    }

    #[test]
    fn cuts_move_with_the_text() {
        let redaction = Redaction::default().value("secret");
        let text = b"ab secret cd secret";
        let (out, cuts) = redaction.bytes(text, &[1, 3, 5, 9, 11, 13, 16, 19]);
        assert_eq!(out, b"ab [REDACTED] cd [REDACTED]");
        assert_eq!(cuts, [1, 3, 13, 13, 15, 17, 27, 27]);
    }

    #[test]
    fn values_of_secret_headers_and_parameters_are_removed() {
        let redaction = Redaction::default()
            .keep_header(HeaderName::from_static("x-custom-token"))
            .keep_header(HeaderName::from_static("x-kept"));
        let mut headers = HeaderMap::new();
        for name in ["authorization", "x-custom-token", "x-kept", "cookie"] {
            headers.insert(name, HeaderValue::from_static("v"));
        }
        let kept = redaction.headers(&headers);
        let kept: Vec<_> = kept.iter().map(|(n, v)| (n.as_str(), v.as_str())).collect();
        assert_eq!(kept, [("x-custom-token", GONE), ("x-kept", "v")]);

        let uri = "https://u:p@x.test/p?b=1&key=v&Api-Key=v&a=2&X-Amz-Signature=v";
        let parameters = redaction.parameters(&uri.parse().unwrap());
        let parameters: Vec<_> = parameters.iter().map(|(n, v)| format!("{n}={v}")).collect();
        assert_eq!(
            parameters.join("&"),
            "Api-Key=[REDACTED]&X-Amz-Signature=[REDACTED]&a=2&b=1&key=[REDACTED]"
        );
    }
}
