use super::{DynamicMemory, tools::tools};
use concentric_core::{
    BoxModel, Context, Str, Transcript,
    capability::{Declares, Encloses, InLoop, Outside, PreparedRun},
    service::SharedModel,
    store::Memories,
};
use concentric_tools::Tool;
use std::{fmt, sync::Arc, time::Duration};
use tower_layer::Layer;

/// [`Layer`] that recalls and captures memories ([`DynamicMemory`]).
///
/// See the [module docs](super) for an example.
#[derive(Clone)]
pub struct DynamicMemoryLayer(Settings);

type Owner = dyn Fn(&Context) -> Option<Str> + Send + Sync;
type Choice = dyn Fn(&Transcript) -> Option<String> + Send + Sync;

#[derive(Clone)]
pub(super) struct Settings {
    pub(super) store: Arc<dyn Memories>,
    pub(super) owner: Arc<Owner>,
    /// Chooses the captured text; `None` for the message of the user and the answer.
    pub(super) capture: Option<Arc<Choice>>,
    /// Extracts the facts of the captured text.
    pub(super) facts: Option<BoxModel>,
    pub(super) top: usize,
    pub(super) max_bytes: usize,
    pub(super) timeout: Duration,
}

impl DynamicMemoryLayer {
    /// Creates a layer that keeps memories in `store`, for the owners that `owner` names.
    pub fn new(
        store: impl Memories,
        owner: impl Fn(&Context) -> Option<Str> + Send + Sync + 'static,
    ) -> Self {
        Self(Settings {
            store: Arc::new(store),
            owner: Arc::new(owner),
            capture: None,
            facts: None,
            top: 8,
            max_bytes: 6_000,
            timeout: Duration::from_secs(2),
        })
    }

    /// Sets the maximum number of recalled memories; 8 by default. With 0, none is recalled.
    #[must_use]
    pub const fn top(mut self, memories: usize) -> Self {
        self.0.top = memories;
        self
    }

    /// Sets the maximum size of the added system segment; 6,000 bytes by default.
    #[must_use]
    pub const fn max_bytes(mut self, bytes: usize) -> Self {
        self.0.max_bytes = bytes;
        self
    }

    /// Sets the time limit of the search; 2 seconds by default.
    #[must_use]
    pub const fn timeout(mut self, limit: Duration) -> Self {
        self.0.timeout = limit;
        self
    }

    /// Captures the lasting facts about the user that `model` finds in the text, each as a memory of its own, in
    /// place of the text. A turn without facts leaves no memory.
    ///
    /// The model is called after the run has completed, in a task with a limit of 30 seconds, and in a
    /// [child](Context::child) of the run's context: its usage is in no finish, a budget that the model has is
    /// charged after the run, and a later cancellation of the run ends the capture. It receives the text as data, and no other part of the
    /// conversation. Up to 16 facts are stored. If the call fails, or its answer is not the requested JSON, nothing
    /// is captured, and that is logged.
    ///
    /// ```
    /// use concentric_core::BoxModel;
    /// use concentric_layers::DynamicMemoryLayer;
    /// use concentric_test::MemoryStore;
    ///
    /// fn memory(small: BoxModel) -> DynamicMemoryLayer {
    ///     DynamicMemoryLayer::new(MemoryStore::new(), |_| Some("everyone".into())).facts(small)
    /// }
    /// # let _ = memory;
    /// ```
    #[must_use]
    pub fn facts(mut self, model: impl SharedModel) -> Self {
        self.0.facts = Some(BoxModel::new(model));
        self
    }

    /// Returns the tools `remember`, `recall`, `update` and `forget`, with which a model stores, searches,
    /// replaces and deletes the memories of the run's owner. Add them to the agent's tools; they also work
    /// without the layer.
    ///
    /// They pass gates like other tools: `recall` is read-only, and `update` and `forget` are
    /// [destructive](concentric_core::Annotations::destructive). A search returns at most
    /// [`top`](Self::top) memories and [`max_bytes`](Self::max_bytes). An update with an id that the owner
    /// does not have adds a memory, as after one that was deleted in the meantime.
    ///
    /// ```
    /// use concentric_core::AgentLayer;
    /// use concentric_layers::DynamicMemoryLayer;
    /// use concentric_test::{MemoryStore, ScriptedModel};
    /// use concentric_tools::{Approval, Toolset};
    /// use tower::ServiceBuilder;
    ///
    /// let memory = DynamicMemoryLayer::new(MemoryStore::new(), |_| Some("everyone".into()));
    /// let tools = memory.tools().into_iter().fold(Toolset::new(), Toolset::tool);
    /// let agent = ServiceBuilder::new()
    ///     .layer(memory)
    ///     .layer(AgentLayer::new(tools.gate(Approval::for_tools("forget"))))
    ///     .service(ScriptedModel::new().text("Hello."));
    /// # let _ = agent;
    /// ```
    pub fn tools(&self) -> [Tool; 4] {
        tools(&self.0)
    }

    /// Captures the text that `choose` returns for the conversation of a completed run, and nothing if
    /// it returns `None`. By default, the message of the user and the answer are captured. A panic of
    /// `choose` is logged, and nothing is captured.
    ///
    /// ```
    /// use concentric_layers::DynamicMemoryLayer;
    /// use concentric_test::MemoryStore;
    ///
    /// let read_only = DynamicMemoryLayer::new(MemoryStore::new(), |_| Some("everyone".into()))
    ///     .capture(|_| None);
    /// # let _ = read_only;
    /// ```
    #[must_use]
    pub fn capture(
        mut self,
        choose: impl Fn(&Transcript) -> Option<String> + Send + Sync + 'static,
    ) -> Self {
        self.0.capture = Some(Arc::new(choose));
        self
    }
}

impl<S> Layer<S> for DynamicMemoryLayer {
    type Service = DynamicMemory<S>;

    fn layer(&self, inner: S) -> Self::Service {
        DynamicMemory::new(inner, self.0.clone())
    }
}

impl Declares for DynamicMemoryLayer {
    type Capabilities = (Encloses<PreparedRun>, Outside<InLoop>);
}

impl fmt::Debug for DynamicMemoryLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DynamicMemoryLayer")
            .field("top", &self.0.top)
            .field("max_bytes", &self.0.max_bytes)
            .field("timeout", &self.0.timeout)
            .finish_non_exhaustive()
    }
}
