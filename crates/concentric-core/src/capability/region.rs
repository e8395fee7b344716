use super::{
    Declares, Fault,
    declare::{Item, Kind},
};
use crate::{Context, Error, ErrorKind, Phase, capability::Capabilities, layers::ModelLayers};
use std::{
    any::{Any, TypeId, type_name},
    fmt,
    sync::Arc,
};

/// A part of a stack: everything inside of a layer that [encloses](super::Encloses) it.
///
/// Layers that must stand [outside](super::Outside) of a region name it, and not the layer: two
/// layers may enclose the same region.
///
/// ```
/// use concentric_core::{
///     Declares, Layers,
///     capability::{Encloses, Outside, Region},
///     layers::DefaultsLayer,
/// };
///
/// enum Transaction {}
///
/// impl Region for Transaction {}
///
/// struct TransactionLayer;
///
/// impl Declares for TransactionLayer {
///     // Transactions are not nested.
///     type Capabilities = (Encloses<Transaction>, Outside<Transaction>);
/// }
///
/// let _ = Layers::new().with(TransactionLayer).layer(DefaultsLayer::new());
/// ```
pub trait Region: 'static {
    /// Returns the name of the layer that encloses the region `context` is in, if one does.
    fn layer(context: &Context) -> Option<&'static str>
    where
        Self: Sized,
    {
        context.marks.layer(TypeId::of::<Self>())
    }
}

/// The region inside of the loop of an agent, where a layer runs once per model call.
#[derive(Debug)]
pub enum InLoop {}

impl Region for InLoop {
    fn layer(context: &Context) -> Option<&'static str> {
        (context.depth() > 0).then_some("AgentLayer")
    }
}

/// The region inside of a layer that keeps runs in a store, as `SuspendLayer` does.
#[derive(Debug)]
pub enum StoredRun {}

impl Region for StoredRun {}

/// The region inside of a session.
#[derive(Debug)]
pub enum SessionTurn {}

impl Region for SessionTurn {}

/// What the layers of a stack have marked on the way in; a list that contexts share.
#[derive(Clone, Default)]
pub(crate) struct Marks(Option<Arc<Mark>>);

struct Mark {
    kind: MarkKind,
    outer: Marks,
}

enum MarkKind {
    Encloses { region: TypeId, layer: &'static str },
    Expects { capability: TypeId, fault: Fault },
    Uses { capability: TypeId },
    // Held, so that nothing else gets its address.
    Shares(Arc<dyn Any + Send + Sync>),
}

impl Marks {
    fn push(&mut self, kind: MarkKind) {
        let outer = std::mem::take(self);
        self.0 = Some(Arc::new(Mark { kind, outer }));
    }

    /// The marks, the innermost first.
    fn iter(&self) -> impl Iterator<Item = &MarkKind> {
        std::iter::successors(self.0.as_deref(), |mark| mark.outer.0.as_deref())
            .map(|mark| &mark.kind)
    }

    fn layer(&self, wanted: TypeId) -> Option<&'static str> {
        self.iter().find_map(|mark| match mark {
            MarkKind::Encloses { region, layer } if *region == wanted => Some(*layer),
            _ => None,
        })
    }

    /// The first expectation, from the inside, that no layer inside of it has met; of `capability`
    /// only, if that is given.
    fn unmet(&self, wanted: Option<TypeId>) -> Option<Fault> {
        for (at, mark) in self.iter().enumerate() {
            if let MarkKind::Expects { capability, fault } = mark
                && wanted.is_none_or(|wanted| wanted == *capability)
                && !self.iter().take(at).any(
                    |inner| matches!(inner, MarkKind::Uses { capability: used } if used == capability),
                )
            {
                return Some(*fault);
            }
        }
        None
    }
}

impl fmt::Debug for Marks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Marks").finish_non_exhaustive()
    }
}

/// What keeps `layer` from being called in `context`.
pub(super) fn check(
    context: &Context,
    layer: fn() -> &'static str,
    items: &[Item],
) -> Result<(), Fault> {
    for item in items {
        match item.kind {
            Kind::Requires | Kind::Replaces if !(item.is_in)(context) => {
                return Err(Fault::Missing {
                    layer: layer(),
                    capability: (item.name)(),
                    provider: (item.other)(),
                });
            }
            Kind::Outside => {
                if let Some(outer) = (item.layer)(context) {
                    return Err(Fault::Inside {
                        layer: layer(),
                        outer,
                    });
                }
            }
            _ => {}
        }
    }
    Ok(())
}

/// Marks what is inside of `layer`.
pub(super) fn mark(context: &mut Context, layer: fn() -> &'static str, items: &[Item]) {
    for item in items {
        let id = (item.id)();
        match item.kind {
            Kind::Encloses if (item.layer)(context).is_none() => {
                let layer = layer();
                context.marks.push(MarkKind::Encloses { region: id, layer });
            }
            Kind::Expects if context.marks.unmet(Some(id)).is_none() => {
                let fault = Fault::Unused {
                    layer: layer(),
                    capability: (item.name)(),
                    user: (item.other)().unwrap_or_default(),
                };
                context.marks.push(MarkKind::Expects {
                    capability: id,
                    fault,
                });
            }
            Kind::Requires | Kind::Replaces | Kind::Optional
                if context.marks.unmet(Some(id)).is_some() =>
            {
                context.marks.push(MarkKind::Uses { capability: id });
            }
            _ => {}
        }
    }
}

impl Context {
    /// Enters the layer `L`: checks that it stands where it [declares](Declares) to, and marks what
    /// is inside of it.
    ///
    /// For a layer that is to fail wherever it is misplaced, also in a bare `ServiceBuilder`: its
    /// service calls this before anything else, and fails the call with the error. Others are
    /// checked where they are added ([`CheckedLayer`](super::CheckedLayer)).
    ///
    /// Clones made before don't see the marks, and neither does a run [inside](Self::child) this one.
    ///
    /// # Errors
    ///
    /// `L` requires what no layer outside of it provides, or stands inside of a layer that it must
    /// not be in.
    pub fn enter<L>(&mut self) -> Result<(), Fault>
    where
        L: Declares,
    {
        let items = L::Capabilities::ITEMS;
        check(self, type_name::<L>, items)?;
        mark(self, type_name::<L>, items);
        Ok(())
    }

    /// Returns the name of the layer that encloses the region `R` this is in, if one does.
    pub fn region<R>(&self) -> Option<&'static str>
    where
        R: Region,
    {
        R::layer(self)
    }

    /// Marks what is inside as sharing `shared`; returns whether it is the first to do so.
    ///
    /// For a layer that must not stand inside of another one over the same thing, as a limit that
    /// would wait for itself. Unlike a [region](Region) this is seen in the runs
    /// [inside](Self::child) this one, too.
    pub fn enter_shared<T>(&mut self, shared: &Arc<T>) -> bool
    where
        T: Send + Sync + 'static,
    {
        let is_it = |mark: &MarkKind| {
            let MarkKind::Shares(other) = mark else {
                return false;
            };
            Arc::as_ptr(other).cast::<()>() == Arc::as_ptr(shared).cast::<()>()
        };
        let mut context = Some(&*self);
        while let Some(here) = context {
            if here.marks.iter().any(is_it) {
                return false;
            }
            context = here.parent();
        }
        let shared: Arc<T> = Arc::clone(shared);
        self.marks.push(MarkKind::Shares(shared));
        true
    }

    /// Checks, where a model is about to be called, that the stack around it is whole: that what a
    /// layer outside [expects](super::Expects) of those inside was met, and that the run's own
    /// [`ModelLayers`] were applied.
    ///
    /// Models call this before they send anything; those of `concentric-providers` do. Of a context
    /// that is not of a model call inside of a loop, nothing is expected.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Configuration`], which names the layers.
    pub fn check_stack(&self) -> Result<(), Error> {
        if self.phase() != Phase::Model {
            return Ok(());
        }
        if let Some(layers) = self.own().get::<ModelLayers>() {
            return Err(not_applied(layers));
        }
        match self.marks.unmet(None) {
            Some(fault) => Err(fault.into()),
            None => Ok(()),
        }
    }
}

/// The error of a run whose own model layers were left out.
pub(crate) fn not_applied(layers: &ModelLayers) -> Error {
    let message = format!(
        "no `OfRunLayer` applies the run's own model layers ({layers}): add `OfRunLayer` directly \
         inside of `AgentLayer`"
    );
    Error::new(ErrorKind::Configuration, message).with_code("model_layers")
}
