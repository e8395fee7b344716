use std::{fmt, sync::Arc};

use concentric_core::{Context, ToolSpec};
use http::{HeaderMap, HeaderValue};
use serde_json::Value;
use tower_layer::Layer;

use super::{
    UiMessages,
    convert::{check, convert},
    input::ChatInput,
    translate::Translator,
};
use crate::{
    ag_ui::EventLogLayer,
    describe::ErrorMessage,
    json::parse_with_paths,
    refused::Refused,
    run::{Config, Hub, Parsed, Protocol, RunIds, Tool, Translate, run_setters},
    settings::{Settings, setters},
};

/// The major version of `ai`, the client's package.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Sdk {
    /// `ai` 6. It can't take back parts of a message: after a
    /// [`Reset`](concentric_core::Event::Reset), the message has a part `data-reset`, and the text of the step
    /// before it is invalid.
    ///
    /// It has no chunk for a decision, either: in a stream that is [resumed](super#resume), a call that the user has
    /// approved waits for the approval until its result follows.
    V6,
    /// `ai` 7.
    #[default]
    V7,
}

/// [`Layer`] that serves an agent to `useChat` of the Vercel AI SDK.
///
/// See the [module docs](super) for an example.
#[derive(Clone)]
pub struct UiMessagesLayer {
    config: Arc<Config>,
    options: Options,
    tools: Arc<[ToolSpec]>,
    hub: Option<Arc<Hub>>,
}

/// The options of the encoding.
#[derive(Clone, Copy, Debug)]
pub(super) struct Options {
    pub(super) sdk: Sdk,
    pub(super) reasoning: bool,
    pub(super) sources: bool,
    pub(super) dynamic_tools: bool,
    pub(super) transient: bool,
}

impl UiMessagesLayer {
    /// Creates a layer with the defaults: `ai` 7, bodies of up to 4 MiB that arrive within 30 seconds, states of up to
    /// 1 MiB, the strict [`ClientPolicy`](crate::ClientPolicy), and a comment after 15 seconds of silence.
    pub fn new() -> Self {
        let options = Options {
            sdk: Sdk::default(),
            reasoning: true,
            sources: true,
            dynamic_tools: true,
            transient: false,
        };
        let tools = Arc::from([]);
        Self {
            config: Arc::new(Config::new(UiMessagesProtocol {
                options,
                tools: Arc::clone(&tools),
            })),
            options,
            tools,
            hub: None,
        }
    }

    fn with(mut self, set: impl FnOnce(&mut Config)) -> Self {
        set(Arc::make_mut(&mut self.config));
        self
    }

    fn settings(self, set: impl FnOnce(&mut Settings)) -> Self {
        self.with(|config| set(&mut config.settings))
    }

    fn options(mut self, set: impl FnOnce(&mut Options)) -> Self {
        set(&mut self.options);
        self.protocol()
    }

    fn protocol(self) -> Self {
        let protocol = UiMessagesProtocol {
            options: self.options,
            tools: Arc::clone(&self.tools),
        };
        self.with(|config| config.protocol = Arc::new(protocol))
    }

    /// Sets the client's version of `ai`; the default is [`Sdk::V7`].
    #[must_use]
    pub fn sdk(self, sdk: Sdk) -> Self {
        self.options(|options| options.sdk = sdk)
    }

    /// Sets whether the client receives reasoning; the default is yes.
    #[must_use]
    pub fn reasoning(self, is_sent: bool) -> Self {
        self.options(|options| options.reasoning = is_sent)
    }

    /// Sets whether the client receives [sources](super#data-and-sources); the default is yes.
    #[must_use]
    pub fn sources(self, are_sent: bool) -> Self {
        self.options(|options| options.sources = are_sent)
    }

    /// Sets whether the parts of tool calls have the type `dynamic-tool`, with the name in `toolName`, or a type of
    /// their own, `tool-NAME`, for clients that declare the tools in the type of their messages; the default is
    /// `dynamic-tool`.
    #[must_use]
    pub fn dynamic_tools(self, are_dynamic: bool) -> Self {
        self.options(|options| options.dynamic_tools = are_dynamic)
    }

    /// Sets whether [custom events](concentric_core::Event::Custom) are transient: `onData` receives them, and they are
    /// not parts of the message; the default is no.
    #[must_use]
    pub fn transient(self, is_transient: bool) -> Self {
        self.options(|options| options.transient = is_transient)
    }

    /// Adds a tool that the client executes, in `onToolCall` or from its user interface.
    ///
    /// Requests of this protocol have no tools of their own.
    #[must_use]
    pub fn client_tool(mut self, tool: ToolSpec) -> Self {
        self.tools = self.tools.iter().cloned().chain([tool]).collect();
        self.protocol()
    }

    /// Sets the logs of runs that clients can [resume](super#resume) after a lost connection.
    ///
    /// The layer `log` must also be around the agent, and inside a `DetachLayer` of `concentric-layers`.
    #[must_use]
    pub fn events(mut self, log: &EventLogLayer) -> Self {
        self.hub = Some(Arc::clone(log.hub()));
        self
    }

    setters! {
        body_limit: "4 MiB",
        client_policy: "[`ClientPolicy::new`](crate::ClientPolicy::new).",
        error_message: "the `errorText` of an `error` chunk"
    }

    run_setters! {}
}

impl Default for UiMessagesLayer {
    fn default() -> Self {
        Self::new()
    }
}

impl<A> Layer<A> for UiMessagesLayer {
    type Service = UiMessages<A>;

    fn layer(&self, agent: A) -> Self::Service {
        UiMessages::new(agent, self.config.clone(), self.hub.clone())
    }
}

impl fmt::Debug for UiMessagesLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UiMessagesLayer")
            .field("config", &self.config)
            .field("options", &self.options)
            .field("tools", &self.tools.len())
            .finish_non_exhaustive()
    }
}

/// The protocol, with the tools that the client executes.
struct UiMessagesProtocol {
    options: Options,
    tools: Arc<[ToolSpec]>,
}

impl UiMessagesProtocol {
    fn parsed(&self, input: ChatInput) -> Parsed {
        let tools = self.tools.iter().map(|tool| Tool {
            name: tool.name.as_str().to_owned(),
            description: tool.description.as_str().to_owned(),
            parameters: Some(Value::clone(&tool.input_schema)),
        });
        let (tools, sdk) = (tools.collect(), self.options.sdk);
        Box::new(move |policy| {
            check(policy, &input)?;
            Ok(convert(input, tools, sdk))
        })
    }
}

impl Protocol for UiMessagesProtocol {
    fn parse(&self, body: &[u8]) -> Option<Parsed> {
        let input = serde_json::from_slice(body).ok()?;
        Some(self.parsed(input))
    }

    fn explain(&self, body: &[u8]) -> Result<Parsed, Refused> {
        Ok(self.parsed(parse_with_paths(body)?))
    }

    fn translator(
        &self,
        context: Context,
        ids: RunIds,
        error_message: ErrorMessage,
    ) -> Box<dyn Translate> {
        let translator = Translator::new(self.options, context, ids, error_message);
        Box::new(translator)
    }

    fn headers(&self, headers: &mut HeaderMap) {
        add_version(headers);
    }
}

/// Adds the version of the protocol.
pub(super) fn add_version(headers: &mut HeaderMap) {
    let version = HeaderValue::from_static("v1");
    headers.insert("x-vercel-ai-ui-message-stream", version);
}
