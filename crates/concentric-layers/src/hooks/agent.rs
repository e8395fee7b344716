use super::{Hooks, HooksLayer, HooksLayers, OnModel, OnRun};
use concentric_core::{
    AgentLayer, Declares,
    capability::{Encloses, InLoop},
};
use concentric_tools::Toolset;
use std::fmt;
use tower::layer::util::{Identity, Stack};
use tower_layer::Layer;

/// Takes [`Hooks`] whole: at the run, between the steps, at the model and at the tools of an agent.
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
    /// Adds `hooks` at each place where they have something to do.
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

/// [`Layer`] that makes an agent with [`Hooks`] around it.
///
/// Made by [`AgentHooks::hooks`]. It is the layers of the hooks around the run, the
/// [`AgentLayer`], and their layers around the model, of which those that were added first are the
/// outermost. Their layers around tools are inside of those that the toolset had.
#[derive(Clone)]
pub struct HookedAgentLayer<R, M> {
    run: R,
    agent: AgentLayer<Toolset>,
    model: M,
}

/// Layers around a run, with those of `H` inside.
pub type RunStack<H, R> = Stack<HooksLayer<OnRun<H>>, R>;

/// Layers around a model, with those of `H` inside.
pub type ModelStack<H, M> = Stack<HooksLayer<OnModel<H>>, M>;

impl<R, M> HookedAgentLayer<R, M> {
    /// Adds `hooks` inside of those that were added before.
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
