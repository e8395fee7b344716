use std::{fmt, sync::Arc};

use concentric_core::Context;
use tower_layer::Layer;

use super::{AgUi, input::RunAgentInput, policy, stream::Translator};
use crate::{
    describe::ErrorMessage,
    json::parse_with_paths,
    refused::Refused,
    run::{Config, Parsed, Protocol, RunIds, Translate, run_setters},
    settings::{Settings, setters},
};

/// [`Layer`] that serves an agent as an AG-UI endpoint.
///
/// See the [module docs](super) for an example.
#[derive(Clone)]
pub struct AgUiLayer {
    config: Arc<Config>,
}

impl AgUiLayer {
    /// Creates a layer with the defaults: bodies of up to 4 MiB that arrive within 30 seconds,
    /// states of up to 1 MiB, the strict [`ClientPolicy`](crate::ClientPolicy), and a comment after
    /// 15 seconds of silence.
    pub fn new() -> Self {
        Self {
            config: Arc::new(Config::new(AgUiProtocol)),
        }
    }

    fn with(mut self, set: impl FnOnce(&mut Config)) -> Self {
        set(Arc::make_mut(&mut self.config));
        self
    }

    fn settings(self, set: impl FnOnce(&mut Settings)) -> Self {
        self.with(|config| set(&mut config.settings))
    }

    setters! {
        body_limit: "4 MiB",
        client_policy: "[`ClientPolicy::new`](crate::ClientPolicy::new).",
        error_message: "the `message` of `RUN_ERROR`"
    }

    run_setters! {}
}

impl Default for AgUiLayer {
    fn default() -> Self {
        Self::new()
    }
}

impl<A> Layer<A> for AgUiLayer {
    type Service = AgUi<A>;

    fn layer(&self, agent: A) -> Self::Service {
        AgUi::new(agent, self.config.clone())
    }
}

impl fmt::Debug for AgUiLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("AgUiLayer").field(&self.config).finish()
    }
}

fn parsed(input: RunAgentInput) -> Parsed {
    Box::new(|policy| {
        let input = input.into();
        policy::check(policy, &input)?;
        Ok(input)
    })
}

/// The protocol AG-UI.
struct AgUiProtocol;

impl Protocol for AgUiProtocol {
    fn parse(&self, body: &[u8]) -> Option<Parsed> {
        serde_json::from_slice(body).ok().map(parsed)
    }

    fn explain(&self, body: &[u8]) -> Result<Parsed, Refused> {
        parse_with_paths(body).map(parsed)
    }

    fn translator(
        &self,
        context: Context,
        ids: RunIds,
        error_message: ErrorMessage,
    ) -> Box<dyn Translate> {
        Box::new(Translator::new(context, ids, error_message))
    }
}
