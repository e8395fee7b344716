//! The nesting depth of JSON.

/// The nesting depth at which `serde_json` stops reading.
pub(super) const MAX_DEPTH: usize = 127;

pub(super) fn is_deeper_than(limit: usize, json: &str) -> bool {
    let (mut depth, mut quoted, mut escaped) = (0_usize, false, false);
    for byte in json.bytes() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' => escaped = true,
            b'"' => quoted = !quoted,
            _ if quoted => {}
            b'{' | b'[' => {
                depth += 1;
                if depth > limit {
                    return true;
                }
            }
            b'}' | b']' => depth -= 1,
            _ => {}
        }
    }
    false
}
