use concentric_core::{MediaSource, PartKind, Str};

use super::{
    content::Content,
    edit::json_len,
    input::{RunAgentInput, Tool},
    message::{Message, MessageKind},
    reply::Refused,
};

/// Limits on the size and the content of client requests.
///
/// A request that violates the policy is answered with `422` before the agent is called. For an
/// exceeded limit, the response body has the limit and the value:
///
/// ```json
/// {"error": {"code": "limit_exceeded", "message": "messages: 10001, the limit is 10000",
///            "field": "messages", "limit": "messages", "max": 10000, "value": 10001}}
/// ```
///
/// | limit | of | default |
/// |---|---|---|
/// | [`values`](Self::max_values) | JSON values in the body, counted by its commas and opening brackets before it is parsed; in free-form JSON, a value counts twice and an object six times | 98,304 |
/// | [`messages`](Self::max_messages) | messages | 10,000 |
/// | [`tool_calls`](Self::max_tool_calls) | tool calls of one message | 1,024 |
/// | [`parts`](Self::max_parts) | content parts of one message | 1,024 |
/// | [`tools`](Self::max_tools) | tools of the client | 256 |
/// | [`tool_schema`](Self::max_tool_schema) | bytes of one tool's schema as JSON, and of its description | 65,536 |
/// | [`id`](Self::max_id) | bytes of one id or tool name; four times as many for an interrupt id, which consists of other ids | 256 |
/// | [`client_results`](Self::max_client_results) | results of the client's tools at the end of the history | 256 |
/// | [`replies`](Self::max_replies) | entries of `resume` | 256 |
/// | [`context`](Self::max_context) | entries of `context` | 1,024 |
///
/// Free-form JSON is everything outside `messages`, and within them the content of activities,
/// metadata, and values nested deeper than the fields of a tool call or a content part.
///
/// A limit of zero accepts none of the counted items; `usize::MAX` disables a limit. A body nested
/// deeper than 127 levels is answered with `400`.
/// [`AgUiLayer::body_limit`](super::AgUiLayer::body_limit) limits the size of a body in bytes.
///
/// | content | default | changed by |
/// |---|---|---|
/// | `system` and `developer` messages | rejected | [`system_messages`](Self::system_messages) |
/// | inline media: a source of type `data`, or a `data:` URL | accepted | |
/// | media at an `https:` URL | rejected | [`media_host`](Self::media_host) |
/// | media at any other URL | rejected | |
/// | ids of files in a provider's store | rejected | [`file_ids`](Self::file_ids) |
/// | tools that the client executes | accepted | [`client_tools`](Self::client_tools) |
///
/// ```
/// use concentric_http::ag_ui::{AgUiLayer, ClientPolicy};
///
/// let policy = ClientPolicy::new()
///     .max_messages(500)
///     .media_host("uploads.example.com")
///     .client_tools(false);
/// let layer = AgUiLayer::new().client_policy(policy);
/// # let _ = layer;
/// ```
///
/// # Why media is restricted
///
/// The model server fetches the URLs of a client: the vendor's, or one inside your own network,
/// such as vLLM. There an arbitrary URL allows server-side request forgery: it reaches metadata
/// services and internal hosts that the client cannot reach. Some providers also read URLs of their
/// own schemes with your credentials (`gs://` on Vertex AI). A file id may name a file of any user
/// of the same API key.
///
/// Therefore only listed hosts are accepted, at the standard port, and a listed host must not
/// redirect to arbitrary URLs. The policy applies to the whole history, since the client controls
/// all of it: if tools of an endpoint return media by URL, list their hosts too.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientPolicy {
    values: usize,
    messages: usize,
    tool_calls: usize,
    parts: usize,
    tools: usize,
    tool_schema: usize,
    id: usize,
    client_results: usize,
    replies: usize,
    context: usize,
    system_messages: bool,
    file_ids: bool,
    client_tools: bool,
    media_hosts: Vec<Str>,
}

impl ClientPolicy {
    /// Creates the default policy.
    pub const fn new() -> Self {
        Self {
            values: 96 << 10,
            messages: 10_000,
            tool_calls: 1024,
            parts: 1024,
            tools: 256,
            tool_schema: 64 << 10,
            id: 256,
            client_results: 256,
            replies: 256,
            context: 1024,
            system_messages: false,
            file_ids: false,
            client_tools: true,
            media_hosts: Vec::new(),
        }
    }

    /// Sets the maximum number of JSON values in a request; the default is 98,304.
    ///
    /// A parsed value takes about 70 bytes of memory, and an object with one value about 600, which
    /// is many times their length in a body such as `[0,0,0]`. In free-form JSON a value therefore
    /// counts twice and an object six times; values of the protocol's own fields count once.
    #[must_use]
    pub const fn max_values(mut self, max: usize) -> Self {
        self.values = max;
        self
    }

    /// Sets the maximum number of messages in a request; the default is 10,000.
    #[must_use]
    pub const fn max_messages(mut self, max: usize) -> Self {
        self.messages = max;
        self
    }

    /// Sets the maximum number of tool calls in one message; the default is 1,024.
    #[must_use]
    pub const fn max_tool_calls(mut self, max: usize) -> Self {
        self.tool_calls = max;
        self
    }

    /// Sets the maximum number of content parts in one message; the default is 1,024.
    #[must_use]
    pub const fn max_parts(mut self, max: usize) -> Self {
        self.parts = max;
        self
    }

    /// Sets the maximum number of client tools; the default is 256.
    #[must_use]
    pub const fn max_tools(mut self, max: usize) -> Self {
        self.tools = max;
        self
    }

    /// Sets the maximum size of a tool's schema, in bytes of JSON, and of its description, in
    /// bytes; the default is 65,536.
    #[must_use]
    pub const fn max_tool_schema(mut self, bytes: usize) -> Self {
        self.tool_schema = bytes;
        self
    }

    /// Sets the maximum length of an id or a tool name, in bytes; the default is 256.
    ///
    /// The limit must allow the ids of the model's provider, since the client sends them back.
    #[must_use]
    pub const fn max_id(mut self, bytes: usize) -> Self {
        self.id = bytes;
        self
    }

    /// Sets the maximum number of client tool results at the end of the history; the default is
    /// 256.
    #[must_use]
    pub const fn max_client_results(mut self, max: usize) -> Self {
        self.client_results = max;
        self
    }

    /// Sets the maximum number of entries in `resume`; the default is 256.
    #[must_use]
    pub const fn max_replies(mut self, max: usize) -> Self {
        self.replies = max;
        self
    }

    /// Sets the maximum number of entries in `context`; the default is 1,024.
    #[must_use]
    pub const fn max_context(mut self, max: usize) -> Self {
        self.context = max;
        self
    }

    /// Sets whether `system` and `developer` messages are accepted; the default is no.
    ///
    /// Messages at the start are appended to the host's system text, with the same authority:
    /// accept them only from clients that you trust with the system prompt.
    #[must_use]
    pub const fn system_messages(mut self, accepted: bool) -> Self {
        self.system_messages = accepted;
        self
    }

    /// Sets whether ids of files in a provider's store are accepted; the default is no.
    #[must_use]
    pub const fn file_ids(mut self, accepted: bool) -> Self {
        self.file_ids = accepted;
        self
    }

    /// Sets whether client tools are accepted; the default is yes.
    #[must_use]
    pub const fn client_tools(mut self, accepted: bool) -> Self {
        self.client_tools = accepted;
        self
    }

    /// Accepts media at `https:` URLs of `host`, in addition to the hosts added before.
    ///
    /// `*.example.com` matches all hosts below `example.com`. `*` matches every host, which is safe
    /// only if the model server that fetches the URL cannot reach more than the client can.
    #[must_use]
    pub fn media_host(mut self, host: impl Into<Str>) -> Self {
        self.media_hosts.push(host.into());
        self
    }

    /// Checks a body before it is parsed.
    pub(super) fn check_body(&self, body: &[u8]) -> Result<(), Refused> {
        within("values", None, values(body), self.values)
    }

    pub(super) fn check(&self, input: &RunAgentInput) -> Result<(), Refused> {
        within(
            "messages",
            Some("messages"),
            input.messages.len(),
            self.messages,
        )?;
        if !self.client_tools && !input.tools.is_empty() {
            return Err(Refused::policy(
                "tools",
                "this agent does not accept client tools",
            ));
        }
        within("tools", Some("tools"), input.tools.len(), self.tools)?;
        within(
            "context",
            Some("context"),
            input.context.len(),
            self.context,
        )?;
        let resume = input.resume.as_deref().unwrap_or_default();
        within("replies", Some("resume"), resume.len(), self.replies)?;

        self.check_id(|| "threadId".to_owned(), &input.thread_id)?;
        self.check_id(|| "runId".to_owned(), &input.run_id)?;
        if let Some(id) = &input.parent_run_id {
            self.check_id(|| "parentRunId".to_owned(), id)?;
        }
        for (at, reply) in resume.iter().enumerate() {
            let (len, max) = (reply.interrupt_id.len(), self.id.saturating_mul(4));
            if len > max {
                let field = format!("resume[{at}].interruptId");
                return Err(Refused::limit("id", Some(&field), len, max));
            }
        }
        for (at, tool) in input.tools.iter().enumerate() {
            self.check_tool(at, tool)?;
        }
        for (at, message) in input.messages.iter().enumerate() {
            self.check_message(at, message)?;
        }
        Ok(())
    }

    /// Checks the number of client tool results, each of which may cause a store lookup.
    pub(super) fn check_client_results(&self, count: usize) -> Result<(), Refused> {
        within(
            "client_results",
            Some("messages"),
            count,
            self.client_results,
        )
    }

    /// Returns whether an id, such as that of a header, is within the limit.
    pub(super) const fn is_id(&self, id: &str) -> bool {
        id.len() <= self.id
    }

    fn check_id(&self, field: impl FnOnce() -> String, id: &str) -> Result<(), Refused> {
        if self.is_id(id) {
            return Ok(());
        }
        Err(Refused::limit("id", Some(&field()), id.len(), self.id))
    }

    fn check_tool(&self, at: usize, tool: &Tool) -> Result<(), Refused> {
        self.check_id(|| format!("tools[{at}].name"), &tool.name)?;
        let max = self.tool_schema;
        if tool.description.len() > max {
            let field = format!("tools[{at}].description");
            let len = tool.description.len();
            return Err(Refused::limit("tool_schema", Some(&field), len, max));
        }
        if let Some(schema) = &tool.parameters
            && json_len(schema, max).is_none()
        {
            let field = format!("tools[{at}].parameters");
            let len = json_len(schema, usize::MAX).unwrap_or(usize::MAX);
            return Err(Refused::limit("tool_schema", Some(&field), len, max));
        }
        Ok(())
    }

    fn check_message(&self, at: usize, message: &Message) -> Result<(), Refused> {
        self.check_id(|| format!("messages[{at}].id"), &message.id)?;
        if let Some(id) = &message.subagent_run_id {
            self.check_id(|| format!("messages[{at}].subagentRunId"), id)?;
        }
        match &message.kind {
            MessageKind::System { role, .. } if !self.system_messages => {
                let problem = format!("this agent does not accept {role} messages from clients");
                Err(Refused::policy(&format!("messages[{at}].role"), &problem))
            }
            MessageKind::Assistant(message) => {
                let calls = &message.tool_calls;
                if calls.len() > self.tool_calls {
                    let field = format!("messages[{at}].toolCalls");
                    let (len, max) = (calls.len(), self.tool_calls);
                    return Err(Refused::limit("tool_calls", Some(&field), len, max));
                }
                for (call_at, call) in calls.iter().enumerate() {
                    let field = |name| format!("messages[{at}].toolCalls[{call_at}].{name}");
                    self.check_id(|| field("id"), &call.id)?;
                    self.check_id(|| field("function.name"), &call.function.name)?;
                }
                Ok(())
            }
            MessageKind::User(content) => self.check_content(at, content),
            MessageKind::Tool(message) => {
                let field = || format!("messages[{at}].toolCallId");
                self.check_id(field, &message.tool_call_id)?;
                self.check_content(at, &message.content)
            }
            _ => Ok(()),
        }
    }

    fn check_content(&self, at: usize, content: &Content) -> Result<(), Refused> {
        let Content::Parts(parts) = content else {
            return Ok(());
        };
        if parts.len() > self.parts {
            let field = format!("messages[{at}].content");
            return Err(Refused::limit(
                "parts",
                Some(&field),
                parts.len(),
                self.parts,
            ));
        }
        for (part_at, part) in parts.iter().enumerate() {
            let (PartKind::Image(media) | PartKind::Audio(media) | PartKind::File(media)) = part
            else {
                continue;
            };
            let problem = match &media.source {
                MediaSource::Url(url) if !self.accepts_url(url) => {
                    "this agent does not accept media at this URL"
                }
                MediaSource::Id(_) if !self.file_ids => "this agent does not accept file ids",
                _ => continue,
            };
            let field = format!("messages[{at}].content[{part_at}].source");
            return Err(Refused::policy(&field, problem));
        }
        Ok(())
    }

    fn accepts_url(&self, url: &str) -> bool {
        if has_scheme(url, "data:") {
            return true;
        }
        let Some(host) = https_host(url) else {
            return false;
        };
        self.media_hosts.iter().any(|allowed| {
            match allowed.strip_prefix('*') {
                Some("") => true,
                // For `*.example.com`, the suffix includes the dot.
                Some(end) if end.starts_with('.') => host
                    .len()
                    .checked_sub(end.len())
                    .filter(|before| *before > 0)
                    .and_then(|before| host.get(before..))
                    .is_some_and(|tail| tail.eq_ignore_ascii_case(end)),
                _ => host.eq_ignore_ascii_case(allowed),
            }
        })
    }
}

impl Default for ClientPolicy {
    fn default() -> Self {
        Self::new()
    }
}

fn within(limit: &str, field: Option<&str>, value: usize, max: usize) -> Result<(), Refused> {
    if value > max {
        return Err(Refused::limit(limit, field, value, max));
    }
    Ok(())
}

/// An upper bound of the weighted number of values in a JSON text, counted by its commas and
/// opening brackets.
///
/// Free-form JSON is parsed to a [`serde_json::Value`], which a tool may copy and compare, so there
/// a value counts twice and an object six times. Nested objects take 600 bytes of heap each.
fn values(body: &[u8]) -> usize {
    // The depth of a message's fields, and of those of a tool call or a content part:
    // `{"messages":[{"toolCalls":[{"function":..}]}]}`.
    const MESSAGE: usize = 3;
    const PART: usize = 5;

    let mut count: usize = 1;
    let mut depth: usize = 0;
    let mut in_messages = false;
    // Whether the position is inside an object that is a message's field: metadata, or the content
    // of an activity. All other fields of a message are text or lists.
    let mut in_object = false;
    let mut bytes = body.iter().enumerate();
    while let Some((at, byte)) = bytes.next() {
        let is_free = !in_messages || in_object || depth > PART;
        let weight = match (byte, is_free) {
            (b',' | b'[' | b'{', false) => 1,
            (b',' | b'[', true) => 2,
            (b'{', true) => 6,
            _ => 0,
        };
        count = count.saturating_add(weight);
        match byte {
            b'[' | b'{' => {
                in_object |= depth == MESSAGE && *byte == b'{';
                depth += 1;
            }
            b']' | b'}' => {
                depth = depth.saturating_sub(1);
                in_object &= depth > MESSAGE;
            }
            b'"' => {
                let mut end = at;
                while let Some((at, byte)) = bytes.next() {
                    end = at;
                    match byte {
                        b'"' => break,
                        b'\\' => {
                            bytes.next();
                        }
                        _ => {}
                    }
                }
                // The last string before a field's value is the field's name.
                if depth == 1 {
                    in_messages = body.get(at + 1..end) == Some(b"messages");
                }
            }
            _ => {}
        }
    }
    count
}

fn has_scheme(url: &str, scheme: &str) -> bool {
    url.get(..scheme.len())
        .is_some_and(|start| start.eq_ignore_ascii_case(scheme))
}

/// The host of an `https` URL at the standard port.
///
/// URL parsers interpret user info, backslashes, blanks and the like differently, so URLs with any
/// of them have no host here.
fn https_host(url: &str) -> Option<&str> {
    const SCHEME: &str = "https://";
    let is_plain = |byte: u8| byte.is_ascii_graphic() && byte != b'\\';
    if !has_scheme(url, SCHEME) || !url.bytes().all(is_plain) {
        return None;
    }
    let rest = url.get(SCHEME.len()..)?;
    let authority = rest.split(['/', '?', '#']).next()?;
    let host = authority.strip_suffix(":443").unwrap_or(authority);
    let is_host = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'.' || byte == b'-';
    (!host.is_empty() && host.bytes().all(is_host)).then_some(host)
}
