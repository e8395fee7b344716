use concentric_core::{MediaSource, PartKind, Str};
use memchr::memchr2;
use serde_json::Value;

use crate::{json::json_len, refused::Refused};

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
/// Each limit has a setter, `max_*`, with its default.
///
/// Free-form JSON is everything outside `messages` (`input` of a response of OpenAI), and within them the content of activities,
/// metadata, and values nested deeper than the fields of a tool call or a content part.
///
/// A limit of zero accepts none of the counted items; `usize::MAX` disables a limit. A body nested
/// deeper than 127 levels is answered with `400`.
/// [`AgUiLayer::body_limit`](crate::ag_ui::AgUiLayer::body_limit) limits the size of a body in bytes.
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
/// use concentric_http::{ClientPolicy, ag_ui::AgUiLayer};
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

/// Declares the setters of limits.
macro_rules! limits {
    ($($(#[$doc:meta])* $setter:ident => $limit:ident;)*) => {$(
        $(#[$doc])*
        #[must_use]
        pub const fn $setter(mut self, max: usize) -> Self {
            self.$limit = max;
            self
        }
    )*};
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

    limits! {
        /// Sets the maximum number of JSON values in a request; the default is 98,304. They are
        /// counted by commas and opening brackets, before the body is parsed. The count of a
        /// rejected request ends there.
        ///
        /// A parsed value takes about 70 bytes of memory, and an object with one value about 600,
        /// which is many times their length in a body such as `[0,0,0]`. In free-form JSON a value
        /// therefore counts twice and an object six times; values of the protocol's own fields
        /// count once. In strings, 16 escapes such as `\n` count as a value, since they take as long
        /// to parse.
        max_values => values;

        /// Sets the maximum number of messages in a request; the default is 10,000.
        max_messages => messages;

        /// Sets the maximum number of tool calls in one message; the default is 1,024.
        max_tool_calls => tool_calls;

        /// Sets the maximum number of content parts in one message; the default is 1,024.
        max_parts => parts;

        /// Sets the maximum number of client tools; the default is 256.
        max_tools => tools;

        /// Sets the maximum size of a tool's schema, in bytes of JSON, and of its description, in
        /// bytes; the default is 65,536.
        max_tool_schema => tool_schema;

        /// Sets the maximum length of an id or a tool name, in bytes; the default is 256. An
        /// interrupt id, which consists of other ids, may be four times as long.
        ///
        /// The limit must allow the ids of the model's provider, since the client sends them back.
        max_id => id;

        /// Sets the maximum number of client tool results at the end of the history; the default
        /// is 256.
        max_client_results => client_results;

        /// Sets the maximum number of entries in `resume`; the default is 256.
        max_replies => replies;

        /// Sets the maximum number of entries in `context`; the default is 1,024.
        max_context => context;
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
    pub(crate) fn check_body(&self, body: &[u8]) -> Result<(), Refused> {
        within("values", None, values(body, self.values), self.values)
    }

    /// Checks the number of messages, in `field`.
    pub(crate) fn check_messages(&self, field: &str, count: usize) -> Result<(), Refused> {
        within("messages", Some(field), count, self.messages)
    }

    /// Checks the number of client tools.
    pub(crate) fn check_tools(&self, count: usize) -> Result<(), Refused> {
        if !self.client_tools && count > 0 {
            return Err(Refused::policy(
                "tools",
                "this agent does not accept client tools",
            ));
        }
        within("tools", Some("tools"), count, self.tools)
    }

    /// Checks the number of facts about the client's application.
    pub(crate) fn check_context(&self, count: usize) -> Result<(), Refused> {
        within("context", Some("context"), count, self.context)
    }

    /// Checks the number of replies.
    pub(crate) fn check_replies(&self, count: usize) -> Result<(), Refused> {
        within("replies", Some("resume"), count, self.replies)
    }

    /// Checks the number of client tool results, each of which may cause a store lookup.
    pub(crate) fn check_client_results(&self, count: usize) -> Result<(), Refused> {
        within(
            "client_results",
            Some("messages"),
            count,
            self.client_results,
        )
    }

    /// Returns whether an id, such as that of a header, is within the limit.
    pub(crate) const fn is_id(&self, id: &str) -> bool {
        id.len() <= self.id
    }

    pub(crate) fn check_id(&self, field: impl FnOnce() -> String, id: &str) -> Result<(), Refused> {
        if self.is_id(id) {
            return Ok(());
        }
        Err(Refused::limit("id", Some(&field()), id.len(), self.id))
    }

    /// Checks an interrupt id, which consists of other ids.
    pub(crate) fn check_interrupt_id(
        &self,
        field: impl FnOnce() -> String,
        id: &str,
    ) -> Result<(), Refused> {
        field_within("id", field, id.len(), self.id.saturating_mul(4))
    }

    /// Checks a client tool, whose fields have the names that begin with `field`.
    pub(crate) fn check_tool(
        &self,
        field: &str,
        name: &str,
        description: &str,
        schema: Option<&Value>,
    ) -> Result<(), Refused> {
        self.check_id(|| format!("{field}.name"), name)?;
        let max = self.tool_schema;
        if description.len() > max {
            let field = format!("{field}.description");
            return Err(Refused::limit(
                "tool_schema",
                Some(&field),
                description.len(),
                max,
            ));
        }
        if let Some(schema) = schema
            && json_len(schema, max).is_none()
        {
            let field = format!("{field}.parameters");
            let len = json_len(schema, usize::MAX).unwrap_or(usize::MAX);
            return Err(Refused::limit("tool_schema", Some(&field), len, max));
        }
        Ok(())
    }

    /// Checks a message of `role` that has the authority of the host, in `field`.
    pub(crate) fn check_system(
        &self,
        field: impl FnOnce() -> String,
        role: &str,
    ) -> Result<(), Refused> {
        if self.system_messages {
            return Ok(());
        }
        let problem = format!("this agent does not accept {role} messages from clients");
        Err(Refused::policy(&field(), &problem))
    }

    /// Checks the number of tool calls of one message, in `field`.
    pub(crate) fn check_calls(
        &self,
        field: impl FnOnce() -> String,
        count: usize,
    ) -> Result<(), Refused> {
        field_within("tool_calls", field, count, self.tool_calls)
    }

    /// Checks the number of parts of one message, in `field`.
    pub(crate) fn check_part_count(
        &self,
        field: impl FnOnce() -> String,
        count: usize,
    ) -> Result<(), Refused> {
        field_within("parts", field, count, self.parts)
    }

    /// Checks the parts of a message, in `field`; the source of a part's media is in `source` of the
    /// part, or in the part itself.
    pub(crate) fn check_parts<'a>(
        &self,
        field: impl Fn() -> String,
        source: &str,
        parts: impl ExactSizeIterator<Item = &'a PartKind>,
    ) -> Result<(), Refused> {
        self.check_part_count(&field, parts.len())?;
        for (at, part) in parts.enumerate() {
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
            let field = format!("{}[{at}]{source}", field());
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

/// As [`within`]; the name of the field is made for an error only.
fn field_within(
    limit: &str,
    field: impl FnOnce() -> String,
    value: usize,
    max: usize,
) -> Result<(), Refused> {
    match value > max {
        true => within(limit, Some(&field()), value, max),
        false => Ok(()),
    }
}

/// The number of escapes in strings that count as one value.
const ESCAPES: usize = 16;

/// An upper bound of the weighted number of values in a JSON text, counted by its commas and
/// opening brackets, and by the escapes in its strings. Counting ends above `max`.
///
/// Free-form JSON is parsed to a [`serde_json::Value`], which a tool may copy and compare, so there
/// a value counts twice and an object six times. Nested objects take 600 bytes of heap each.
///
/// An escape takes 15 to 26 ns to parse, and another byte half a nanosecond. Base64, which is most of
/// a large body, has no escapes.
fn values(body: &[u8], max: usize) -> usize {
    // The depth of a message's fields, and of those of a tool call or a content part:
    // `{"messages":[{"toolCalls":[{"function":..}]}]}`.
    const MESSAGE: usize = 3;
    const PART: usize = 5;

    let mut count: usize = 1;
    let mut escapes: usize = 0;
    let mut depth: usize = 0;
    let mut in_messages = false;
    // Whether the position is inside an object that is a message's field: metadata, or the content
    // of an activity. All other fields of a message are text or lists.
    let mut in_object = false;
    let mut rest = body;
    while let Some((byte, tail)) = rest.split_first() {
        rest = tail;
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
                let text;
                (text, rest) = string(rest, &mut escapes);
                // The last string before a field's value is the field's name.
                if depth == 1 {
                    in_messages = matches!(text, b"messages" | b"input");
                }
            }
            _ => continue,
        }
        if count.saturating_add(escapes / ESCAPES) > max {
            break;
        }
    }
    count.saturating_add(escapes / ESCAPES)
}

/// Splits a JSON text after the opening quote of a string into the string and what follows its
/// closing quote, and counts the escapes.
fn string<'a>(text: &'a [u8], escapes: &mut usize) -> (&'a [u8], &'a [u8]) {
    // A call of `memchr2` costs more than a few bytes.
    const NEAR: usize = 16;

    let is_special = |byte: &u8| matches!(byte, b'"' | b'\\');
    let mut rest = text;
    loop {
        let near = rest.get(..NEAR).unwrap_or(rest).iter().position(is_special);
        let at = near.or_else(|| memchr2(b'"', b'\\', rest));
        match rest.split_at(at.unwrap_or(rest.len())).1 {
            [b'"', after @ ..] => {
                let (string, _) = text.split_at(text.len() - after.len() - 1);
                return (string, after);
            }
            [_, _, after @ ..] => {
                *escapes += 1;
                rest = after;
            }
            _ => return (text, &[]),
        }
    }
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
