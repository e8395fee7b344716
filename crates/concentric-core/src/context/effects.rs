use super::Context;
use concentric_proto::{Error, ErrorKind};
use std::{fmt, sync::Arc};
use tokio::sync::watch;

impl Context {
    /// Delays the tool calls of all loops inside until the returned value is
    /// [released](EffectHold::release).
    ///
    /// For a layer around a loop that calls its inner service before it has accepted the request. An effect
    /// need not wait for the body to be polled by this layer: a layer in between may read the body in its
    /// future, or drive the run in a task. The models of the loops are called meanwhile.
    ///
    /// If the value is dropped without a release, a round of tools fails its run instead. Earlier clones of
    /// the context are not affected.
    pub fn hold_effects(&mut self) -> EffectHold {
        let (release, released) = watch::channel(false);
        let outer = self.extensions().get::<Held>().cloned().map(Arc::new);
        self.extensions_mut().insert(Held { released, outer });
        EffectHold { release }
    }

    /// Whether a layer outside [delays](Self::hold_effects) the tool calls of this run, since it has not accepted the
    /// request yet.
    ///
    /// A layer that keeps something of a run that is dropped reads it: a request that was not accepted leaves
    /// nothing.
    pub fn has_held_effects(&self) -> bool {
        self.held().is_some()
    }

    /// Resolves when no layer outside delays effects; `None` if none does.
    pub(crate) fn held_effects(
        &self,
    ) -> Option<impl Future<Output = Result<(), Error>> + Send + use<>> {
        self.held().map(|held| held.clone().wait())
    }

    fn held(&self) -> Option<&Held> {
        let held = self.own_extensions()?.get::<Held>()?;
        (!held.is_released()).then_some(held)
    }
}

/// Delays the tool calls of a run; see [`Context::hold_effects`](super::Context::hold_effects).
#[must_use = "a run whose effects are held fails when this is dropped"]
pub struct EffectHold {
    release: watch::Sender<bool>,
}

impl EffectHold {
    /// Lets the tool calls start.
    pub fn release(self) {
        self.release.send_replace(true);
    }
}

impl fmt::Debug for EffectHold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EffectHold").finish_non_exhaustive()
    }
}

/// The holds of the layers outside, innermost first.
#[derive(Clone)]
struct Held {
    released: watch::Receiver<bool>,
    outer: Option<Arc<Self>>,
}

impl Held {
    fn is_released(&self) -> bool {
        *self.released.borrow() && self.outer.as_ref().is_none_or(|outer| outer.is_released())
    }

    async fn wait(self) -> Result<(), Error> {
        let mut next = Some(self);
        while let Some(Self {
            mut released,
            outer,
        }) = next
        {
            if released.wait_for(|is_released| *is_released).await.is_err() {
                let message =
                    "an outer layer did not accept the request, so its tools do not start";
                return Err(Error::new(ErrorKind::Cancelled, message));
            }
            next = outer.map(Arc::unwrap_or_clone);
        }
        Ok(())
    }
}
