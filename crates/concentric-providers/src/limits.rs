use std::time::Duration;

/// The maximum amount of data that a provider may send, in bytes. A larger response fails with
/// [`ErrorKind::TooLarge`](concentric_core::ErrorKind::TooLarge). Zero allows no data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Limits {
    /// One line of an event stream.
    pub line: usize,
    /// The data of one event of a stream, including a line of NDJSON and an element of an array.
    /// Without streaming, the whole response is limited by [`response`](Self::response) instead.
    pub event: usize,
    /// A whole response.
    pub response: usize,
    /// The arguments of one tool call.
    pub tool_arguments: usize,
    /// The number of tool calls in one response; not in bytes.
    pub tool_calls: usize,
    /// The body of an error response; the rest is discarded.
    pub error: usize,
    /// The maximum of [`Error::retry_after`](concentric_core::Error::retry_after). A longer time
    /// that a provider requests is reduced to it.
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
