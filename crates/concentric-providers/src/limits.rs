use std::time::Duration;

/// How much a provider may send, in bytes, before the answer fails with
/// [`ErrorKind::TooLarge`](concentric_core::ErrorKind::TooLarge). Zero takes nothing at all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Limits {
    /// One line of an event stream.
    pub line: usize,
    /// The data of one event of a stream: also a line of NDJSON, and an element of an array. A whole
    /// answer, where no stream was asked for, may be as long as a [response](Self::response).
    pub event: usize,
    /// A whole response.
    pub response: usize,
    /// The arguments of one tool call.
    pub tool_arguments: usize,
    /// How many tool calls one answer may make; not bytes.
    pub tool_calls: usize,
    /// As much of an error's body is read; the rest is not.
    pub error: usize,
    /// The longest time that a provider may ask to be left alone for
    /// ([`Error::retry_after`](concentric_core::Error::retry_after)); more counts as this much.
    pub retry_after: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        const MIB: usize = 1024 * 1024;
        Self {
            line: 16 * MIB,
            event: 16 * MIB,
            response: 64 * MIB,
            tool_arguments: 4 * MIB,
            tool_calls: 1024,
            error: 64 * 1024,
            retry_after: Duration::from_secs(60 * 60),
        }
    }
}
