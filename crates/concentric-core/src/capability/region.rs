use super::{
    Capabilities, Declares,
    declare::{Item, Kind},
};
use crate::{
    capability_error::CapabilityError,
    context::Context,
    marks::{Expectation, MarkKind},
};
use concentric_proto::{Error, Phase};
use std::{
    any::{TypeId, type_name},
    sync::{Arc, atomic::AtomicBool},
};

/// A part of a stack: everything inside a layer that [encloses](super::Encloses) it.
///
/// Layers that must be [outside](super::Outside) a region name the region rather than the layer,
/// because several layers may enclose the same region.
///
/// ```
/// use concentric_core::{Declares, Layers, capability::{Encloses, Outside, Region}};
/// use concentric_layers::RequestDefaultsLayer;
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
/// let _ = Layers::new().with(TransactionLayer).layer(RequestDefaultsLayer::new());
/// ```
pub trait Region: 'static {
    /// Returns the name of the layer that encloses the region, if `context` is inside the region.
    fn layer(context: &Context) -> Option<&'static str>
    where
        Self: Sized,
    {
        context.marks().layer(TypeId::of::<Self>())
    }
}

/// The region inside an agent's loop, where a layer runs once per model call.
#[derive(Debug)]
pub enum InLoop {}

impl Region for InLoop {
    fn layer(context: &Context) -> Option<&'static str> {
        (context.depth() > 0).then_some("AgentLayer")
    }
}

/// The region inside a layer that stores runs, such as `SuspendLayer`.
#[derive(Debug)]
pub enum StoredRun {}

impl Region for StoredRun {}

/// The region inside a layer that prepares the request of a run, such as `ConversationLayer`, which adds the
/// history.
///
/// A run that is resumed, or continues without its consumer, would be a new or an ended one for such a layer, so
/// layers that store, resume or continue runs go outside.
#[derive(Debug)]
pub enum PreparedRun {}

impl Region for PreparedRun {}

/// The region inside a session.
#[derive(Debug)]
pub enum SessionTurn {}

impl Region for SessionTurn {}

/// Checks that `layer` may be called in `context`.
pub(super) fn check(
    context: &Context,
    layer: &'static str,
    items: &[Item],
) -> Result<(), CapabilityError> {
    for item in items {
        match item.kind {
            Kind::Requires if !item.is_in(context) => {
                return Err(CapabilityError::Missing {
                    layer,
                    capability: (item.name)(),
                    provider: (item.other)(),
                });
            }
            Kind::Encloses if !item.is_in(context) => {
                if let Some(outer) = context.marks().awaits((item.id)()) {
                    return Err(CapabilityError::Inside { layer, outer });
                }
            }
            Kind::Outside => {
                if let Some(outer) = (item.layer)(context) {
                    return Err(CapabilityError::Inside { layer, outer });
                }
            }
            _ => {}
        }
    }
    Ok(())
}

/// Records the regions and expectations of `layer`. `is_met` is set once its expectation is met.
pub(super) fn mark(
    context: &mut Context,
    layer: &'static str,
    items: &[Item],
    is_met: Option<&Arc<AtomicBool>>,
) {
    for item in items {
        let of = (item.id)();
        match item.kind {
            Kind::Encloses => {
                context.met(of);
                // The depth already identifies the loop.
                if of != TypeId::of::<InLoop>() && !item.is_in(context) {
                    let mark = MarkKind::Encloses { region: of, layer };
                    context.marks_mut().push(mark);
                }
            }
            Kind::Within if !item.is_in(context) && context.marks().awaits(of).is_none() => {
                let mark = MarkKind::Awaits { region: of, layer };
                context.marks_mut().push(mark);
            }
            Kind::Around if context.marks().unmet(Some(of)).is_none() => {
                if let Some(outer) = (item.layer)(context) {
                    context.expects(of, CapabilityError::Inside { layer, outer }, None);
                }
            }
            Kind::Expects if context.marks().unmet(Some(of)).is_none() => {
                let fault = CapabilityError::Unused {
                    layer,
                    capability: (item.name)(),
                    user: (item.other)().unwrap_or_default(),
                };
                context.expects(of, fault, is_met);
            }
            Kind::Requires | Kind::Uses => context.met(of),
            _ => {}
        }
    }
}

impl Context {
    /// Records an expectation that layers inside must meet.
    fn expects(&mut self, of: TypeId, fault: CapabilityError, is_met: Option<&Arc<AtomicBool>>) {
        let depth = self.depth().saturating_sub(1);
        let is_met = is_met.map_or_else(Arc::default, Arc::clone);
        let expectation = Arc::new(Expectation::new(of, fault, is_met, depth));
        if self.depth() > 0 {
            // The loop does not see the marks inside its model calls.
            self.noted_or_new().push(&expectation);
        }
        self.marks_mut().push(MarkKind::Expects(expectation));
    }

    /// Records that an expectation is met, if there is one.
    fn met(&mut self, of: TypeId) {
        if self.marks().unmet(Some(of)).is_some() {
            // What tools use is not what a model call uses.
            if matches!(self.phase(), Phase::Run | Phase::Model) {
                self.marks().meet(of);
            }
            self.marks_mut().push(MarkKind::Meets(of));
        }
    }

    /// Enters the loop of the layer `L`, which checks the expectations of the layers around it.
    pub(crate) fn enter_loop<L>(&mut self) -> Result<(), CapabilityError>
    where
        L: Declares,
    {
        self.enter::<L>()?;
        let depth = self.depth();
        for expectation in self.marks().expectations() {
            expectation.check_at(depth);
        }
        Ok(())
    }

    /// Discards the expectations that layers recorded inside an earlier model call of the loop.
    pub(crate) fn forget_expectations(&self) {
        if let Some(noted) = self.noted() {
            noted.take(self.depth());
        }
    }

    /// Checks that the layers' expectations were met, once a model called by this loop answers; for
    /// models that do not [check their stack](crate::ChatRequest::check_stack).
    ///
    /// # Errors
    ///
    /// An expectation was not met.
    pub(crate) fn check_expectations(&self) -> Result<(), Error> {
        let depth = self.depth();
        let outside = self.marks().expectations();
        let failed = outside
            .filter_map(|expectation| expectation.failed(depth))
            .next()
            .or_else(|| self.noted()?.take(depth));
        failed.map_or(Ok(()), |fault| Err(fault.into()))
    }

    /// Disables the check of expected inner layers for the rest of the run.
    ///
    /// Call this in a layer that may answer without calling its inner service, such as a cache,
    /// before it does. When a model begins to answer, the loop checks, for example, that the run's
    /// budget was charged, and it cannot distinguish a cached answer from a model that nothing
    /// charges. `from_fn` of `concentric-layers` calls this itself if
    /// `Next::run` was not called.
    pub fn skip_stack_check(&self) {
        self.marks().skip();
    }

    /// Enters the layer `L`: checks that its position matches its [declaration](Declares), and
    /// records its regions and expectations for the layers inside.
    ///
    /// Call this first in the service of a layer that must be checked in every stack, including a
    /// plain `ServiceBuilder`, and fail the call with the error. Other layers are checked in
    /// [`Layers`](super::Layers) only.
    ///
    /// The records are not visible to earlier clones of the context or to [child](Self::child)
    /// runs.
    ///
    /// # Errors
    ///
    /// `L` requires a capability that no outer layer provides, or must be outside an outer layer.
    pub fn enter<L>(&mut self) -> Result<(), CapabilityError>
    where
        L: Declares,
    {
        self.enter_with::<L>(None)
    }

    /// Enters the layer `L` like [`enter`](Self::enter), and sets `is_met` when its
    /// [expectation](super::Expects) is met by any of its calls.
    ///
    /// For a layer that knows its inner layers before it is called: an expectation that is already
    /// met is not checked again when the model answers. A model that [checks its
    /// stack](crate::ChatRequest::check_stack) does so at each call.
    ///
    /// # Errors
    ///
    /// Those of [`enter`](Self::enter).
    pub fn enter_expecting<L>(&mut self, is_met: &Arc<AtomicBool>) -> Result<(), CapabilityError>
    where
        L: Declares,
    {
        self.enter_with::<L>(Some(is_met))
    }

    fn enter_with<L>(&mut self, is_met: Option<&Arc<AtomicBool>>) -> Result<(), CapabilityError>
    where
        L: Declares,
    {
        let items = L::Capabilities::ITEMS;
        check(self, type_name::<L>(), items)?;
        mark(self, type_name::<L>(), items, is_met);
        Ok(())
    }

    /// Returns the name of the layer that encloses the region `R`, if this context is inside it.
    pub fn region<R>(&self) -> Option<&'static str>
    where
        R: Region,
    {
        R::layer(self)
    }

    /// Records that the layers inside share `shared`, and returns whether none did before.
    ///
    /// For a layer that must not be inside another layer over the same resource, such as a limit
    /// that would wait for itself. Unlike a [region](Region), the record is visible in
    /// [child](Self::child) runs as well.
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
            if here.marks().iter().any(is_it) {
                return false;
            }
            context = here.parent();
        }
        let shared: Arc<T> = Arc::clone(shared);
        self.marks_mut().push(MarkKind::Shares(shared));
        true
    }

    /// Checks that the [expectations](super::Expects) of the layers around a model call are met. A
    /// context outside a loop's model call always passes.
    pub(crate) fn check_stack(&self) -> Result<(), Error> {
        if self.phase() != Phase::Model {
            return Ok(());
        }
        match self.marks().unmet(None) {
            Some(fault) => Err(fault.into()),
            None => Ok(()),
        }
    }
}
