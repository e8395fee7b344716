//! Marks that layers leave in a context for the layers inside them.

use crate::capability_error::CapabilityError;
use concentric_proto::Phase;
use std::{
    any::{Any, TypeId},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
};

/// The marks of the layers passed so far; a linked list that contexts share.
#[derive(Clone, Default)]
pub(crate) struct Marks(Option<Arc<Mark>>);

struct Mark {
    kind: MarkKind,
    outer: Marks,
}

pub(crate) enum MarkKind {
    Encloses { region: TypeId, layer: &'static str },
    Awaits { region: TypeId, layer: &'static str },
    Expects(Arc<Expectation>),
    // An expectation was met: the capability was used, or the region enclosed.
    Meets(TypeId),
    // Held so that its address is not reused.
    Shares(Arc<dyn Any + Send + Sync>),
}

/// An expectation of a layer about the layers inside it.
///
/// When the model is called, the marks show whether it was met. A loop does not see the marks
/// inside its model call; it checks the flags once the model answers.
pub(crate) struct Expectation {
    // The capability or the region.
    of: TypeId,
    fault: CapabilityError,
    is_met: Arc<AtomicBool>,
    // A layer has answered in place of the layers inside.
    is_skipped: AtomicBool,
    // The depth of the loop whose model call the layer is in.
    depth: u32,
    // The depth of the innermost loop inside the layer, which checks the expectation.
    checked_at: AtomicU32,
}

impl Expectation {
    pub(crate) fn new(
        of: TypeId,
        fault: CapabilityError,
        is_met: Arc<AtomicBool>,
        depth: u32,
    ) -> Self {
        Self {
            of,
            fault,
            is_met,
            is_skipped: AtomicBool::new(false),
            depth,
            checked_at: AtomicU32::new(depth),
        }
    }

    /// Makes the loop at `depth` check the expectation, unless a loop inside that one does.
    pub(crate) fn check_at(&self, depth: u32) {
        self.checked_at.fetch_max(depth, Ordering::Relaxed);
    }

    fn meet(&self) {
        self.is_met.store(true, Ordering::Relaxed);
    }

    /// Returns the fault of an unmet expectation when the model of the loop at `depth` answers.
    pub(crate) fn failed(&self, depth: u32) -> Option<CapabilityError> {
        let is_open =
            !self.is_met.load(Ordering::Relaxed) && !self.is_skipped.load(Ordering::Relaxed);
        (is_open && self.checked_at.load(Ordering::Relaxed) == depth).then_some(self.fault)
    }
}

/// The expectations of layers inside a run's model calls.
#[derive(Default)]
pub(crate) struct Noted(Mutex<Vec<Arc<Expectation>>>);

impl Noted {
    fn lock(&self) -> MutexGuard<'_, Vec<Arc<Expectation>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn push(&self, expectation: &Arc<Expectation>) {
        let mut noted = self.lock();
        // Expectations of an earlier call that no loop has taken.
        noted.retain(|old| old.fault != expectation.fault || old.depth != expectation.depth);
        noted.push(Arc::clone(expectation));
    }

    /// Takes the expectations of the model call at `depth`, and returns the first fault.
    pub(crate) fn take(&self, depth: u32) -> Option<CapabilityError> {
        let mut noted = self.lock();
        let failed = noted.iter().find_map(|of_call| {
            let is_here = of_call.depth == depth;
            is_here.then(|| of_call.failed(depth)).flatten()
        });
        noted.retain(|of_call| of_call.depth != depth);
        failed
    }
}

impl Marks {
    pub(crate) const NONE: Self = Self(None);

    pub(crate) fn push(&mut self, kind: MarkKind) {
        let outer = std::mem::take(self);
        self.0 = Some(Arc::new(Mark { kind, outer }));
    }

    /// Returns the marks, innermost first.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &MarkKind> {
        std::iter::successors(self.0.as_deref(), |mark| mark.outer.0.as_deref())
            .map(|mark| &mark.kind)
    }

    /// Returns the layer that encloses the region `wanted`.
    pub(crate) fn layer(&self, wanted: TypeId) -> Option<&'static str> {
        self.iter().find_map(|mark| match mark {
            MarkKind::Encloses { region, layer } if *region == wanted => Some(*layer),
            _ => None,
        })
    }

    /// Returns the layer that belongs inside the region `wanted` but is not in it.
    pub(crate) fn awaits(&self, wanted: TypeId) -> Option<&'static str> {
        self.iter().find_map(|mark| match mark {
            MarkKind::Awaits { region, layer } if *region == wanted => Some(*layer),
            _ => None,
        })
    }

    pub(crate) fn expectations(&self) -> impl Iterator<Item = &Arc<Expectation>> {
        self.iter().filter_map(|mark| match mark {
            MarkKind::Expects(expectation) => Some(expectation),
            _ => None,
        })
    }

    /// Returns the fault of the innermost unmet expectation, or of the innermost one of `wanted`.
    pub(crate) fn unmet(&self, wanted: Option<TypeId>) -> Option<CapabilityError> {
        for (at, mark) in self.iter().enumerate() {
            if let MarkKind::Expects(expectation) = mark
                && wanted.is_none_or(|wanted| wanted == expectation.of)
                && !self
                    .iter()
                    .take(at)
                    .any(|inner| matches!(inner, MarkKind::Meets(of) if *of == expectation.of))
            {
                return Some(expectation.fault);
            }
        }
        None
    }

    /// Records that the expectations of `wanted` are met.
    pub(crate) fn meet(&self, wanted: TypeId) {
        for expectation in self.expectations().filter(|it| it.of == wanted) {
            expectation.meet();
        }
    }

    /// Records that a `C` was read in `phase`: in a model call this counts as a use.
    #[inline]
    pub(crate) fn used<C>(&self, phase: Phase)
    where
        C: 'static,
    {
        if self.0.is_some() && phase == Phase::Model {
            self.meet(TypeId::of::<C>());
        }
    }

    /// Records that a layer answers in place of the layers inside.
    pub(crate) fn skip(&self) {
        for expectation in self.expectations() {
            expectation.is_skipped.store(true, Ordering::Relaxed);
        }
    }
}

concentric_proto::opaque_debug!(Marks);
