//! Frames around texts that the operator did not write.

/// Returns the value of an attribute of a frame.
pub(crate) fn attribute(id: &str) -> String {
    id.replace('&', "&amp;")
        .replace('"', "&quot;")
        .replace(['<', '>'], "")
        .replace('\n', " ")
}

/// Escapes the tags of frames with this name, in any case.
pub(crate) fn neutralised(text: &str, name: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('<') {
        let (before, tag) = rest.split_at(at);
        escaped += before;
        escaped += if is_frame(tag, name) { "&lt;" } else { "<" };
        rest = tag.get(1..).unwrap_or_default();
    }
    escaped + rest
}

fn is_frame(tag: &str, name: &str) -> bool {
    let found = tag.trim_start_matches(|c: char| c == '<' || c == '/' || c.is_whitespace());
    found
        .get(..name.len())
        .is_some_and(|found| found.eq_ignore_ascii_case(name))
}
