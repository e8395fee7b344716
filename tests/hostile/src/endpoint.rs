//! The endpoints that read hostile requests.

use bytes::Bytes;
use http_body_util::Full;

/// An endpoint, with its limits and the head of its requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Endpoint {
    /// `AgUiLayer`.
    AgUi,
    /// The chat completions of `OpenAi`.
    Chat,
    /// The responses of `OpenAi`.
    Responses,
    /// `UiMessagesLayer`.
    UseChat,
    /// The forms of `Console`.
    Console,
    /// The pages of `Console`, whose requests have no body: a shape is the path and the query.
    Pages,
    /// `Threads`, likewise.
    Threads,
    /// `McpService`.
    Mcp,
}

impl Endpoint {
    /// The stacks behind it: see [`stack`](crate::stack).
    pub(crate) const fn stacks(self) -> &'static [&'static str] {
        match self {
            Self::AgUi => &[
                "agent",
                "anthropic",
                "chat",
                "gemini",
                "gemini-2.0",
                "ollama",
                "responses",
            ],
            Self::Chat => &["chat-gateway", "chat-agent-streamed"],
            Self::Responses => &["responses-gateway-streamed", "responses-agent"],
            Self::UseChat => &["use-chat"],
            Self::Console => &["console"],
            Self::Pages => &["pages"],
            Self::Threads => &["threads"],
            Self::Mcp => &["mcp"],
        }
    }

    /// The default limit on a body, in bytes.
    pub(crate) const fn limit(self) -> usize {
        match self {
            Self::AgUi | Self::UseChat | Self::Mcp => 4 << 20,
            Self::Chat | Self::Responses => 20 << 20,
            Self::Console => 8 << 20,
            // Longer URIs are rejected by the HTTP server.
            Self::Pages | Self::Threads => 60 << 10,
        }
    }

    /// The larger size of a request without limits, in bytes.
    pub(crate) fn raised(self) -> usize {
        self.limit().min(4 << 20)
    }

    /// The first stage of a request.
    pub(crate) const fn stage(self) -> &'static str {
        match self {
            Self::AgUi => "ag_ui",
            Self::Chat | Self::Responses => "openai",
            Self::UseChat => "ui_messages",
            Self::Console | Self::Pages => "console",
            Self::Threads => "threads",
            Self::Mcp => "mcp",
        }
    }

    /// A small request, which initializes one-time state.
    pub(crate) const fn small(self) -> &'static str {
        match self {
            Self::AgUi => {
                r#"{"threadId":"w","runId":"w","messages":[{"id":"m","role":"user","content":"a"}]}"#
            }
            Self::Chat => {
                r#"{"model":"m","stream":false,"messages":[{"role":"user","content":"a"}]}"#
            }
            Self::Responses => r#"{"model":"m","stream":false,"input":"a"}"#,
            Self::UseChat => {
                r#"{"id":"w","messages":[{"id":"m","role":"user","parts":[{"type":"text","text":"a"}]}]}"#
            }
            Self::Console => "tenant=default&thread=w&run=w&token=1.2&interrupt=i",
            Self::Pages => "/approvals",
            Self::Threads => "/",
            Self::Mcp => concat!(
                r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"look","_meta":{"#,
                r#""io.modelcontextprotocol/protocolVersion":"2026-07-28","#,
                r#""io.modelcontextprotocol/clientInfo":{"name":"c","version":"1"},"#,
                r#""io.modelcontextprotocol/clientCapabilities":{}}}}"#,
            ),
        }
    }

    /// Whether a response shows that the body was read, and had no shape that a limit forbids.
    pub(crate) const fn is_taken(self, status: u16) -> bool {
        match self {
            // The token of the form is not valid.
            Self::Console => status == 403,
            // Nothing is stored.
            Self::Pages | Self::Threads => matches!(status, 200 | 404),
            _ => status == 200,
        }
    }

    /// The request of a shape.
    pub(crate) fn request(self, shape: Bytes) -> http::Request<Full<Bytes>> {
        match self {
            Self::Pages | Self::Threads => http::Request::get(shape.as_ref())
                .header("host", "localhost")
                .body(Full::default())
                .expect("the request is valid"),
            _ => self.post(Full::new(shape)),
        }
    }

    /// The request with a body.
    pub(crate) fn post<B>(self, body: B) -> http::Request<B> {
        let path = match self {
            Self::Chat => "/chat/completions",
            Self::Responses => "/responses",
            Self::Console => "/approvals/reply",
            Self::Threads => "/t/runs/r/cancel",
            _ => "/",
        };
        let request = http::Request::post(path).header("host", "localhost");
        let request = match self {
            Self::Console => request
                .header("content-type", "application/x-www-form-urlencoded")
                .header("sec-fetch-site", "same-origin"),
            Self::Mcp => request
                .header("content-type", "application/json")
                .header("accept", "application/json, text/event-stream")
                .header("mcp-protocol-version", "2026-07-28")
                .header("mcp-method", "tools/call")
                .header("mcp-name", "look"),
            _ => request.header("content-type", "application/json"),
        };
        request.body(body).expect("the request is valid")
    }
}
