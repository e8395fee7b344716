//! Text of a server that a model or an approver reads.

/// Removes characters that are not shown: controls other than line feeds and tabs, characters that
/// change the direction of the text, and others without a glyph, which can hide instructions.
pub(crate) fn visible(text: &str) -> String {
    text.chars().filter(|&c| !is_hidden(c)).collect()
}

fn is_hidden(c: char) -> bool {
    match c {
        '\n' | '\t' => false,
        // Soft hyphen, combining grapheme joiner, Arabic letter mark, Hangul and Khmer fillers.
        '\u{ad}' | '\u{34f}' | '\u{61c}' | '\u{115f}' | '\u{1160}' | '\u{17b4}' | '\u{17b5}' => {
            true
        }
        '\u{180b}'..='\u{180f}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' => true,
        '\u{2060}'..='\u{206f}' | '\u{3164}' | '\u{fe00}'..='\u{fe0f}' | '\u{feff}' => true,
        '\u{ffa0}' | '\u{fff0}'..='\u{fffb}' | '\u{e0000}'..='\u{e0fff}' => true,
        c => c.is_control(),
    }
}

/// Cuts `text` to `max` bytes, between characters, with a marker that counts.
pub(crate) fn cut(mut text: String, max: usize) -> String {
    const MARKER: &str = " [...]";
    if text.len() > max {
        let end = text.floor_char_boundary(max.saturating_sub(MARKER.len()));
        text.truncate(end);
        text.push_str(MARKER);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hidden_characters_are_removed() {
        let text = "a\u{202e}b\u{200b}c\u{7}d\u{e0041}e\r\n\tf\u{feff}\u{2066}";
        assert_eq!(visible(text), "abcde\n\tf");
        assert_eq!(visible("Zoë, 東京, 🙂"), "Zoë, 東京, 🙂");
    }

    #[test]
    fn a_long_text_is_cut_between_characters() {
        assert_eq!(cut("short".to_owned(), 5), "short");
        assert_eq!(cut("éééééééé".to_owned(), 11), "éé [...]");
    }
}
