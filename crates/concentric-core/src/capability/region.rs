use super::{
    Capabilities, Declares,
    declare::{Item, Kind},
};
use crate::{
    context::Context,
    fault::Fault,
    marks::{Expectation, MarkKind},
    model_layers::{ModelLayers, not_applied},
};
use concentric_proto::{Error, Phase};
use std::{
    any::{TypeId, type_name},
    sync::{Arc, atomic::AtomicBool},
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
            Kind::Encloses if (item.layer)(context).is_none() => {
                if let Some(outer) = context.marks.awaits((item.id)()) {
                    return Err(Fault::Inside {
                        layer: layer(),
                        outer,
                    });
                }
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

/// Marks what is inside of `layer`. Whether the capability that it expects to be used is used is kept
/// in `is_met`, if that is given.
pub(super) fn mark(
    context: &mut Context,
    layer: fn() -> &'static str,
    items: &[Item],
    is_met: Option<&Arc<AtomicBool>>,
) {
    for item in items {
        let of = (item.id)();
        match item.kind {
            Kind::Encloses => {
                context.met(of);
                // The loop itself is known by the depth.
                if of != TypeId::of::<InLoop>() && (item.layer)(context).is_none() {
                    let layer = layer();
                    context.marks.push(MarkKind::Encloses { region: of, layer });
                }
            }
            Kind::Within
                if (item.layer)(context).is_none() && context.marks.awaits(of).is_none() =>
            {
                let layer = layer();
                context.marks.push(MarkKind::Awaits { region: of, layer });
            }
            Kind::Around if context.marks.unmet(Some(of)).is_none() => {
                if let Some(outer) = (item.layer)(context) {
                    let layer = layer();
                    context.expects(of, Fault::Inside { layer, outer }, None);
                }
            }
            Kind::Expects if context.marks.unmet(Some(of)).is_none() => {
                let fault = Fault::Unused {
                    layer: layer(),
                    capability: (item.name)(),
                    user: (item.other)().unwrap_or_default(),
                };
                context.expects(of, fault, is_met);
            }
            Kind::Requires | Kind::Replaces | Kind::Optional => context.met(of),
            _ => {}
        }
    }
}

impl Context {
    /// Marks that what is inside must meet an expectation.
    fn expects(&mut self, of: TypeId, fault: Fault, is_met: Option<&Arc<AtomicBool>>) {
        let depth = self.depth().saturating_sub(1);
        let is_met = is_met.map_or_else(Arc::default, Arc::clone);
        let expectation = Arc::new(Expectation::new(of, fault, is_met, depth));
        if self.depth() > 0 {
            // The loop does not see the marks inside of its model calls.
            self.noted_or_new().push(&expectation);
        }
        self.marks.push(MarkKind::Expects(expectation));
    }

    /// Marks that an expectation is met, if there is one.
    fn met(&mut self, of: TypeId) {
        if self.marks.unmet(Some(of)).is_some() {
            // What tools use is not what a model call uses.
            if matches!(self.phase(), Phase::Run | Phase::Model) {
                self.marks.meet(of);
            }
            self.marks.push(MarkKind::Meets(of));
        }
    }

    /// Enters the layer `L`, which is a loop: it checks what the layers around it expect.
    pub(crate) fn enter_loop<L>(&mut self) -> Result<(), Fault>
    where
        L: Declares,
    {
        self.enter::<L>()?;
        let depth = self.depth();
        for expectation in self.marks.expectations() {
            expectation.check_at(depth);
        }
        Ok(())
    }

    /// Forgets what layers inside of an earlier model call of the loop expected.
    pub(crate) fn forget_expectations(&self) {
        if let Some(noted) = self.noted() {
            noted.take(self.depth());
        }
    }

    /// Checks, once a model that this loop has called answers, that what layers expect was met, for
    /// models that do not [check their stack](Self::check_stack).
    ///
    /// # Errors
    ///
    /// It was not.
    pub(crate) fn check_expectations(&self) -> Result<(), Error> {
        let depth = self.depth();
        let outside = self.marks.expectations();
        let failed = outside
            .filter_map(|expectation| expectation.failed(depth))
            .next()
            .or_else(|| self.noted()?.take(depth));
        failed.map_or(Ok(()), |fault| Err(fault.into()))
    }

    /// Stops checking, for the rest of the run, what layers outside expect of those inside: for a
    /// layer that may answer without calling what is inside of it, as a cache does.
    ///
    /// A loop checks when its model begins to answer that, for instance, a run's budget was charged,
    /// and cannot tell such an answer from that of a model which nothing charges. The layer calls this
    /// before it answers by itself. [`from_fn`](crate::layers::from_fn()) does where
    /// [`Next::run`](crate::layers::Next::run) was not called.
    pub fn skip_stack_check(&self) {
        self.marks.skip();
    }

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
        self.enter_with::<L>(None)
    }

    /// Enters the layer `L` as [`enter`](Self::enter) does, and keeps in `is_met` whether what the
    /// layer [expects](super::Expects) was met by any of its calls.
    ///
    /// For a layer that knows of those that it expects before it is called: what is met already is not
    /// checked again when the model answers. A model that [checks its stack](Self::check_stack) does
    /// so at each call.
    ///
    /// # Errors
    ///
    /// Those of [`enter`](Self::enter).
    pub fn enter_expecting<L>(&mut self, is_met: &Arc<AtomicBool>) -> Result<(), Fault>
    where
        L: Declares,
    {
        self.enter_with::<L>(Some(is_met))
    }

    fn enter_with<L>(&mut self, is_met: Option<&Arc<AtomicBool>>) -> Result<(), Fault>
    where
        L: Declares,
    {
        let items = L::Capabilities::ITEMS;
        check(self, type_name::<L>, items)?;
        mark(self, type_name::<L>, items, is_met);
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
    /// Models call this before they send anything; those of `concentric-providers` do. Where a model
    /// does not, the loop finds most of this out when the model begins to answer, and the run fails
    /// then. Of a context that is not of a model call inside of a loop, nothing is expected.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Configuration`](crate::ErrorKind::Configuration), which names the layers.
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
