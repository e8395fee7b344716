use super::Conversation;
use concentric_core::{
    capability::{Declares, Encloses, InLoop, Outside, PreparedRun, Region, SessionTurn},
    store::ThreadStore,
};
use std::{fmt, sync::Arc};
use tower_layer::Layer;

/// The [code](concentric_core::Error::code) of a run without a thread id.
pub const NO_THREAD: &str = "no_thread";

/// The [code](concentric_core::Error::code) of a run of a conversation that does not exist.
pub const UNKNOWN_THREAD: &str = "thread_not_found";

/// The way in which the turns of a request join the stored history.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Merge {
    /// All turns of the request are new.
    #[default]
    Append,
    /// The user messages at the end of the request are new, and the turns before them are ignored. For
    /// clients that send the whole history, such as those of AG-UI, and may have changed it.
    ///
    /// Messages that the conversation has, of runs that have failed, are not appended again: equal ones with an
    /// id, and equal ones without an id that nothing has followed.
    ///
    /// With [`Regenerate`](concentric_core::store::Regenerate), the last message of the request replaces the stored one
    /// of the same id, and everything after it.
    ServerWins,
    /// The request has the whole history, which replaces the stored one at the end of the run.
    ClientOverwrites,
}

/// [`Layer`] that keeps the history of conversations in a store ([`Conversation`]).
///
/// See the [module docs](super) for an example.
#[derive(Clone)]
pub struct ConversationLayer(Settings);

#[derive(Clone)]
pub(super) struct Settings {
    pub(super) store: Arc<dyn ThreadStore>,
    pub(super) merge: Merge,
    pub(super) creates: bool,
    pub(super) max_turns: Option<usize>,
    pub(super) is_required: bool,
    pub(super) is_lazy: bool,
}

impl ConversationLayer {
    /// Creates a layer that keeps conversations in `store`.
    pub fn new(store: impl ThreadStore) -> Self {
        Self(Settings {
            store: Arc::new(store),
            merge: Merge::default(),
            creates: true,
            max_turns: None,
            is_required: false,
            is_lazy: false,
        })
    }

    /// Sets the way in which the turns of a request join the history; [`Merge::Append`] by default.
    #[must_use]
    pub const fn history(mut self, merge: Merge) -> Self {
        self.0.merge = merge;
        self
    }

    /// Sets whether the first run of a conversation creates it; `true` by default. Otherwise it fails
    /// with [`UNKNOWN_THREAD`].
    #[must_use]
    pub const fn create(mut self, creates: bool) -> Self {
        self.0.creates = creates;
        self
    }

    /// Sets the number of stored turns, counted by the messages of the user, with which a run starts; by default,
    /// all. Earlier turns stay in the store, and the model does not see them. With 0, a run starts without history.
    ///
    /// Not for [`Merge::ClientOverwrites`], where the client decides.
    #[must_use]
    pub const fn max_turns(mut self, turns: usize) -> Self {
        self.0.max_turns = Some(turns);
        self
    }

    /// Fails a run whose turn can't be stored, in place of its finish. By default, the failure is
    /// logged. An interrupted run waits although the store fails, and stores its turn when it is resumed.
    #[must_use]
    pub const fn required(mut self) -> Self {
        self.0.is_required = true;
        self
    }

    /// Yields the finish without waiting for the store, and stores the turn in a task of the tokio runtime. A
    /// turn that can't be stored is then logged, also with [`required`](Self::required) and if the conversation has
    /// changed. A run that starts before the turn is stored does not have it, and is a
    /// [concurrent one](super#concurrent-runs). The finish of an interrupted run waits for the store all the same.
    #[must_use]
    pub const fn lazy(mut self) -> Self {
        self.0.is_lazy = true;
        self
    }
}

impl<S> Layer<S> for ConversationLayer {
    type Service = Conversation<S>;

    fn layer(&self, inner: S) -> Self::Service {
        Conversation::new(inner, self.0.clone())
    }
}

/// The region inside the layer, where the history is complete. Another layer would append each turn twice.
impl Region for ConversationLayer {}

impl Declares for ConversationLayer {
    type Capabilities = (
        Encloses<Self>,
        Encloses<PreparedRun>,
        Outside<Self>,
        Outside<InLoop>,
        Outside<SessionTurn>,
    );
}

impl fmt::Debug for ConversationLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ConversationLayer")
            .field("history", &self.0.merge)
            .field("create", &self.0.creates)
            .field("max_turns", &self.0.max_turns)
            .field("required", &self.0.is_required)
            .field("lazy", &self.0.is_lazy)
            .finish_non_exhaustive()
    }
}
