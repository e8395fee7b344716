use super::{Hooks, HooksLayer, HooksLayers, OnModel, OnRun};
use concentric_core::{
    AgentLayer, Declares,
    capability::{Encloses, InLoop},
};
use concentric_tools::Toolset;
use std::fmt;
use tower::layer::util::{Identity, Stack};
use tower_layer::Layer;

/// Adds [`Hooks`] to an agent at all places: its runs, steps, model calls and tool calls.
///
/// ```
/// use concentric_core::{AgentLayer, ChatRequest, Error};
/// use concentric_layers::hooks::{AgentHooks, Hooks};
/// use concentric_test::ScriptedModel;
/// use concentric_tools::Toolset;
/// use tower::{ServiceBuilder, ServiceExt};
///
/// struct Audit;
///
/// impl Hooks for Audit {
///     fn id(&self) -> &str {
///         "audit"
///     }
/// }
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Error> {
/// let agent = ServiceBuilder::new()
///     .layer(AgentLayer::new(Toolset::new()).step_limit(8).hooks(Audit))
///     .service(ScriptedModel::new().text("Hello!"));
/// assert_eq!(agent.oneshot(ChatRequest::user("hi")).await?.text().await?, "Hello!");
/// # Ok(())
/// # }
/// ```
pub trait AgentHooks {
    /// Adds `hooks` to the runs, steps, model calls and tool calls of the agent.
    fn hooks<H>(self, hooks: H) -> HookedAgentLayer<RunStack<H, Identity>, ModelStack<H, Identity>>
    where
        H: Hooks;
}

impl AgentHooks for AgentLayer<Toolset> {
    fn hooks<H>(self, hooks: H) -> HookedAgentLayer<RunStack<H, Identity>, ModelStack<H, Identity>>
    where
        H: Hooks,
    {
        let bare = HookedAgentLayer {
            run: Identity::new(),
            agent: self,
            model: Identity::new(),
        };
        bare.hooks(hooks)
    }
}

/// [`Layer`] that creates an agent with [`Hooks`].
///
/// Created by [`AgentHooks::hooks`]. It applies the run layers of the hooks, the [`AgentLayer`],
/// and the model layers of the hooks. Hooks that were added first are outermost. Their tool layers
/// are inside those of the toolset.
#[derive(Clone)]
pub struct HookedAgentLayer<R, M> {
    run: R,
    agent: AgentLayer<Toolset>,
    model: M,
}

/// The run layers `R`, with that of `H` as the innermost.
pub type RunStack<H, R> = Stack<HooksLayer<OnRun<H>>, R>;

/// The model layers `M`, with that of `H` as the innermost.
pub type ModelStack<H, M> = Stack<HooksLayer<OnModel<H>>, M>;

impl<R, M> HookedAgentLayer<R, M> {
    /// Adds `hooks` inside those that were added before.
    pub fn hooks<H>(self, hooks: H) -> HookedAgentLayer<RunStack<H, R>, ModelStack<H, M>>
    where
        H: Hooks,
    {
        let layers: HooksLayers<H> = super::hooks(hooks);
        let agent = self.agent.gate(layers.gate());
        HookedAgentLayer {
            run: Stack::new(layers.run(), self.run),
            agent: agent.map_tools(|tools| tools.hooks(layers.tool())),
            model: Stack::new(layers.model(), self.model),
        }
    }
}

impl<R, M> Declares for HookedAgentLayer<R, M> {
    type Capabilities = Encloses<InLoop>;
}

impl<S, R, M> Layer<S> for HookedAgentLayer<R, M>
where
    M: Layer<S>,
    AgentLayer<Toolset>: Layer<M::Service>,
    R: Layer<<AgentLayer<Toolset> as Layer<M::Service>>::Service>,
{
    type Service = R::Service;

    fn layer(&self, model: S) -> Self::Service {
        self.run.layer(self.agent.layer(self.model.layer(model)))
    }
}

impl<R, M> fmt::Debug for HookedAgentLayer<R, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HookedAgentLayer")
            .field("agent", &self.agent)
            .finish_non_exhaustive()
    }
}
