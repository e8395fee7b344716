/// Limits on the data of a server.
///
/// ```
/// use concentric_mcp::McpLimits;
///
/// let mut limits = McpLimits::default();
/// limits.max_tools = 50;
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct McpLimits {
    /// The tools of a listing; 1,000 by default. A longer listing is an error.
    pub max_tools: usize,
    /// The pages of a listing; 100 by default.
    pub max_pages: usize,
    /// The definitions and the cursors of a listing together (bytes); 4 MiB by default.
    pub max_listing_bytes: usize,
    /// The schema of the arguments or the result of a tool (bytes); 64 KiB by default. A tool with a
    /// larger schema is refused.
    pub max_schema_bytes: usize,
    /// The depth of such a schema; 32 by default.
    pub max_schema_depth: usize,
    /// The description of a tool (bytes); 4 KiB by default. A longer one is cut.
    pub max_description_bytes: usize,
    /// The text of a result that the model receives (bytes); 1 MiB by default. A longer one is cut
    /// in the middle.
    pub max_result_bytes: usize,
    /// A message of the server (bytes); 16 MiB by default. A longer message ends the connection.
    pub max_message_bytes: usize,
    /// The opaque state that a server requires back with the answers to its questions (bytes); 64 KiB
    /// by default. A call with a larger one fails.
    pub max_state_bytes: usize,
    /// The rounds of questions in one call; 5 by default. A call with more fails.
    pub max_input_rounds: u32,
    /// The requests for the [model](crate::McpServer::sampling) during a call, or in one round of
    /// questions; 4 by default. Further ones are refused.
    pub max_samples: u32,
    /// The messages of such a request (bytes); 64 KiB by default. A larger request is refused.
    pub max_sampling_bytes: usize,
    /// The tokens of such an answer; 4,096 by default. The model receives this limit if the request has
    /// a higher one.
    pub max_sampling_tokens: u32,
}

impl Default for McpLimits {
    fn default() -> Self {
        Self {
            max_tools: 1_000,
            max_pages: 100,
            max_listing_bytes: 4 << 20,
            max_schema_bytes: 64 << 10,
            max_schema_depth: 32,
            max_description_bytes: 4 << 10,
            max_result_bytes: 1 << 20,
            max_message_bytes: 16 << 20,
            max_state_bytes: 64 << 10,
            max_input_rounds: 5,
            max_samples: 4,
            max_sampling_bytes: 64 << 10,
            max_sampling_tokens: 4_096,
        }
    }
}
