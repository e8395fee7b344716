//! The number of repeated model calls of a run, by which stacked policies see each other.

use concentric_core::{
    Context,
    state::{Scope, Slot, Transient},
};

struct Repeats;

impl Slot for Repeats {
    type Value = u32;
    type Keep = Transient;
    const NAME: &'static str = "concentric/repeats";
    const SCOPE: Scope = Scope::Run;
}

/// Returns the number of model calls that policies have made in place of failed ones, so far in the run.
///
/// An answer may fail after policies inside have repeated its call, and a layer in between may return that
/// failure from its future, without their attempts. A policy compares the number before and after the call.
#[cfg(feature = "retry")]
pub(crate) fn repeats(context: &Context) -> u32 {
    // Run slots exist everywhere, so this can't fail.
    context.state::<Repeats>().map_or(0, |repeats| *repeats)
}

/// Counts a model call that is made in place of a failed one.
pub(crate) fn count_repeat(context: &Context) {
    let _ = context.update_state::<Repeats>(|repeats| repeats.saturating_add(1));
}
