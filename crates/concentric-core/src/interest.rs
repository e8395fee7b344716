use std::{
    fmt,
    ops::{BitAnd, BitOr},
};

/// The lifecycle points that hooks or a step gate use: a set of flags, combined with `|`.
///
/// Points outside the set are skipped, with their cost: a boxed future for most of them, and for
/// `BEFORE_RUN` and `BEFORE_MODEL` also the readiness of the inner service, which is then awaited
/// inside the call.
///
/// ```
/// use concentric_core::hooks::Interest;
///
/// let audit = Interest::AFTER_RUN | Interest::AFTER_CALL;
/// assert!(audit.contains(Interest::AFTER_RUN));
/// assert!(!audit.intersects(Interest::MODEL));
/// ```
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Interest(u32);

macro_rules! points {
    ($($name:ident = $bit:literal, $method:literal;)*) => {
        impl Interest {
            $(
                #[doc = concat!("The point of `", $method, "`.")]
                pub const $name: Self = Self(1 << $bit);
            )*

            /// All points.
            pub const ALL: Self = Self(0 $(| 1 << $bit)*);

            const NAMES: &[(Self, &str)] = &[$((Self::$name, stringify!($name)),)*];
        }
    };
}

points! {
    BEFORE_RUN = 0, "before_run";
    EVENT = 1, "event";
    STEP_STARTED = 2, "step_started";
    STEP_FINISHED = 3, "step_finished";
    ROUND_FINISHED = 4, "round_finished";
    AFTER_RUN = 5, "after_run";
    BEFORE_STEP = 6, "before_step";
    BEFORE_ROUND = 7, "before_round";
    BEFORE_FINISH = 8, "before_finish";
    BEFORE_MODEL = 9, "before_model";
    MODEL_EVENT = 10, "model_event";
    AFTER_MODEL = 11, "after_model";
    BEFORE_CALL = 12, "before_call";
    AFTER_CALL = 13, "after_call";
    ON_CALL_ERROR = 14, "on_call_error";
    CALL_CANCELLED = 15, "call_cancelled";
    SESSION_STARTED = 16, "session_started";
    SESSION_ENDED = 17, "session_ended";
}

impl Interest {
    /// No point.
    pub const NONE: Self = Self(0);

    /// The points around a run.
    pub const RUN: Self = Self(0b11_1111);

    /// The points between the steps of a run.
    pub const STEPS: Self = Self(0b111 << 6);

    /// The points around a model call.
    pub const MODEL: Self = Self(0b111 << 9);

    /// The points around a tool call.
    pub const TOOL: Self = Self(0b1111 << 12);

    /// Returns the points of either set.
    pub(crate) const fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Returns whether all points of `other` are in the set.
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// Returns whether any point of `other` is in the set.
    pub const fn intersects(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }
}

impl BitOr for Interest {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

impl BitAnd for Interest {
    type Output = Self;

    fn bitand(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }
}

impl fmt::Debug for Interest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let points = Self::NAMES
            .iter()
            .filter(|(point, _)| self.contains(*point));
        f.debug_set().entries(points.map(|(_, name)| name)).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_groups_contain_their_points() {
        let session = Interest::SESSION_STARTED | Interest::SESSION_ENDED;
        let run = Interest::BEFORE_RUN
            | Interest::EVENT
            | Interest::STEP_STARTED
            | Interest::STEP_FINISHED
            | Interest::ROUND_FINISHED
            | Interest::AFTER_RUN;
        let steps = Interest::BEFORE_STEP | Interest::BEFORE_ROUND | Interest::BEFORE_FINISH;
        let model = Interest::BEFORE_MODEL | Interest::MODEL_EVENT | Interest::AFTER_MODEL;
        let tool = Interest::BEFORE_CALL
            | Interest::AFTER_CALL
            | Interest::ON_CALL_ERROR
            | Interest::CALL_CANCELLED;
        assert_eq!(
            [run, steps, model, tool],
            [
                Interest::RUN,
                Interest::STEPS,
                Interest::MODEL,
                Interest::TOOL
            ]
        );
        assert_eq!(run | steps | model | tool | session, Interest::ALL);
        assert!(!run.intersects(steps | model | tool | session));
    }
}
