//! Responses that require a token.

use http::{HeaderMap, StatusCode, header};

/// The reason why a server refuses a request without a token, or with the one that it has.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Challenge {
    /// Whether the token has too few scopes, rather than being missing or invalid.
    pub(super) lacks_scope: bool,
    pub(super) scopes: Vec<String>,
    pub(super) resource_metadata: Option<String>,
}

/// The longest header that is read (bytes).
const MAX_HEADER: usize = 8 << 10;
const MAX_SCOPES: usize = 100;
/// The longest scope (bytes).
const MAX_SCOPE: usize = 256;

impl Challenge {
    /// Reads the challenge of a response with this status, if it has one.
    pub(super) fn of(status: StatusCode, headers: &HeaderMap) -> Option<Self> {
        let values = headers.get_all(header::WWW_AUTHENTICATE).iter();
        let texts = values.filter_map(|value| value.to_str().ok());
        let parameters = texts.filter_map(bearer).next().unwrap_or_default();
        let find = |name: &str| {
            let found = parameters.iter().find(|(it, _)| it == name);
            found.map(|(_, value)| value.clone())
        };
        let lacks_scope = find("error").is_some_and(|it| it == "insufficient_scope");
        match status {
            StatusCode::UNAUTHORIZED => {}
            StatusCode::FORBIDDEN if lacks_scope => {}
            _ => return None,
        }
        Some(Self {
            lacks_scope: lacks_scope && status == StatusCode::FORBIDDEN,
            scopes: find("scope").map(|it| scopes(&it)).unwrap_or_default(),
            resource_metadata: find("resource_metadata"),
        })
    }
}

/// The scopes in a list that is separated by spaces.
pub(super) fn scopes(text: &str) -> Vec<String> {
    let words = text.split_ascii_whitespace();
    valid_scopes(words.map(str::to_owned))
}

/// The scopes that have only the characters of RFC 6749, of which a user reads the first 100.
pub(super) fn valid_scopes(scopes: impl IntoIterator<Item = String>) -> Vec<String> {
    let is_allowed = |byte: u8| byte.is_ascii_graphic() && byte != b'"' && byte != b'\\';
    let is_valid = |scope: &String| {
        !scope.is_empty() && scope.len() <= MAX_SCOPE && scope.bytes().all(is_allowed)
    };
    scopes
        .into_iter()
        .filter(is_valid)
        .take(MAX_SCOPES)
        .collect()
}

/// The parameters of the scheme `Bearer`, with names in lower case.
fn bearer(header: &str) -> Option<Vec<(String, String)>> {
    let mut rest = header.get(..header.len().min(MAX_HEADER))?;
    // Other schemes may precede it.
    loop {
        let at = rest.to_ascii_lowercase().find("bearer")?;
        let (before, found) = rest.split_at(at);
        rest = found.get("bearer".len()..)?;
        let is_word = before.is_empty() || before.ends_with([' ', ',']);
        if is_word && (rest.is_empty() || rest.starts_with(' ')) {
            break;
        }
    }
    let mut parameters = Vec::new();
    loop {
        rest = rest.trim_start_matches([' ', ',', '\t']);
        let Some((name, after)) = rest.split_once('=') else {
            return Some(parameters);
        };
        if name.trim().contains([' ', ',']) {
            // The next scheme.
            return Some(parameters);
        }
        let (value, after) = value(after.trim_start())?;
        parameters.push((name.trim().to_ascii_lowercase(), value));
        rest = after;
    }
}

/// The value of a parameter, and the text behind it.
fn value(text: &str) -> Option<(String, &str)> {
    let Some(quoted) = text.strip_prefix('"') else {
        let end = text.find([',', ' ']).unwrap_or(text.len());
        let (value, rest) = text.split_at(end);
        return Some((value.to_owned(), rest));
    };
    let mut value = String::new();
    let mut chars = quoted.char_indices();
    loop {
        match chars.next()? {
            (at, '"') => return Some((value, quoted.get(at + 1..)?)),
            (_, '\\') => value.push(chars.next()?.1),
            (_, char) => value.push(char),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(status: u16, header: &str) -> Option<Challenge> {
        let mut headers = HeaderMap::new();
        headers.insert(header::WWW_AUTHENTICATE, header.parse().expect("a value"));
        Challenge::of(StatusCode::from_u16(status).expect("a status"), &headers)
    }

    #[test]
    fn a_challenge_has_its_scopes_and_metadata() {
        let header = r#"Basic realm="a, b", Bearer error="insufficient_scope", scope="a b", resource_metadata="https://x.example/\"m\"""#;
        let expected = Challenge {
            lacks_scope: true,
            scopes: vec!["a".to_owned(), "b".to_owned()],
            resource_metadata: Some("https://x.example/\"m\"".to_owned()),
        };
        assert_eq!(read(403, header), Some(expected));
        let unauthorized = read(401, header).expect("a challenge");
        assert!(!unauthorized.lacks_scope);
        assert_eq!(read(403, "Bearer error=\"invalid_token\""), None);
        assert_eq!(read(200, header), None);
    }

    #[test]
    fn garbage_is_a_challenge_without_parameters() {
        let long = format!("Bearer scope=\"{}\"", "a ".repeat(10_000));
        for header in [
            "",
            "Bearer",
            "Bearer scope=\"open",
            "Bearer =,=,",
            "bearerx a=b",
            &long,
        ] {
            let challenge = read(401, header).expect("a challenge");
            assert!(challenge.scopes.is_empty(), "{header}");
        }
        let many = format!("Bearer scope=\"{}\"", "a ".repeat(1_000));
        assert_eq!(
            read(401, &many).expect("a challenge").scopes.len(),
            MAX_SCOPES
        );
        assert!(Challenge::of(StatusCode::UNAUTHORIZED, &HeaderMap::new()).is_some());
    }
}
