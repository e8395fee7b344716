//! HTML that only literals of this crate can add markup to.

/// Writes parts to a page: literals are markup, and values in parentheses are text.
macro_rules! html {
    ($page:expr; $($part:tt)*) => {{
        $( $crate::console::html::html!(@part $page, $part); )*
    }};
    (@part $page:expr, $markup:literal) => { $page.markup($markup) };
    (@part $page:expr, ($text:expr)) => { $page.text($text) };
}

pub(super) use html;

/// A page, or a part of one.
#[derive(Default)]
pub(super) struct Html(String);

impl Html {
    pub(super) const fn new() -> Self {
        Self(String::new())
    }

    /// Appends markup, which no run and no request has written.
    pub(super) fn markup(&mut self, markup: &'static str) {
        self.0.push_str(markup);
    }

    /// Appends text, or the value of a quoted attribute.
    pub(super) fn text(&mut self, text: &str) {
        for c in text.chars() {
            match c {
                '&' => self.0.push_str("&amp;"),
                '<' => self.0.push_str("&lt;"),
                '>' => self.0.push_str("&gt;"),
                '"' => self.0.push_str("&quot;"),
                '\'' => self.0.push_str("&#39;"),
                c if is_hidden(c) => self.0.push_str(&marker(c)),
                c => self.0.push(c),
            }
        }
    }

    /// Appends another part.
    pub(super) fn part(&mut self, part: &Self) {
        self.0.push_str(&part.0);
    }

    pub(super) fn into_string(self) -> String {
        self.0
    }
}

/// Text in which each character that a reader would not see, or that would change the order of others, has a visible
/// name.
pub(super) fn visible(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for c in text.chars() {
        match is_hidden(c) {
            true => shown.push_str(&marker(c)),
            false => shown.push(c),
        }
    }
    shown
}

/// JSON in which those characters are escapes, so that an editor shows them and sends the same value back.
pub(super) fn visible_json(json: &str) -> String {
    let mut shown = String::with_capacity(json.len());
    for c in json.chars() {
        match is_hidden(c) {
            // They are in strings only, since the JSON is ours.
            true => {
                for unit in c.encode_utf16(&mut [0; 2]) {
                    shown.push_str(&format!("\\u{unit:04x}"));
                }
            }
            false => shown.push(c),
        }
    }
    shown
}

fn marker(c: char) -> String {
    format!("\u{27e6}U+{:04X}\u{27e7}", u32::from(c))
}

/// Controls, including those of terminals and of the direction of text, and characters without a width.
const fn is_hidden(c: char) -> bool {
    match c {
        '\n' | '\t' => false,
        '\u{0}'..='\u{1f}' | '\u{7f}'..='\u{9f}' => true,
        _ => matches!(
            c,
            '\u{ad}'
                | '\u{34f}'
                | '\u{61c}'
                | '\u{115f}'
                | '\u{1160}'
                | '\u{17b4}'
                | '\u{17b5}'
                | '\u{180b}'..='\u{180f}'
                | '\u{200b}'..='\u{200f}'
                | '\u{2028}'..='\u{202e}'
                | '\u{2060}'..='\u{206f}'
                | '\u{3164}'
                | '\u{fe00}'..='\u{fe0e}'
                | '\u{feff}'
                | '\u{ffa0}'
                | '\u{fff0}'..='\u{fffb}'
                | '\u{1bca0}'..='\u{1bca3}'
                | '\u{1d173}'..='\u{1d17a}'
                | '\u{e0000}'..='\u{e0fff}'
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_never_markup() {
        let mut page = Html::new();
        html!(page; "<p title=\"" ("\"'><script>") "\">" ("a & b</p>") "</p>");
        assert_eq!(
            page.into_string(),
            "<p title=\"&quot;&#39;&gt;&lt;script&gt;\">a &amp; b&lt;/p&gt;</p>"
        );
    }

    #[test]
    fn hidden_characters_have_names() {
        assert_eq!(
            visible("a\u{202e}b\u{200b}\x1b[31m\n"),
            "a⟦U+202E⟧b⟦U+200B⟧⟦U+001B⟧[31m\n"
        );
        let json = visible_json("{\"to\": \"a\u{202e}\u{e0041}\"}");
        assert_eq!(json, r#"{"to": "a\u202e\udb40\udc41"}"#);
        let value: serde_json::Value = serde_json::from_str(&json).unwrap();
        assert_eq!(value["to"], "a\u{202e}\u{e0041}");
    }
}
