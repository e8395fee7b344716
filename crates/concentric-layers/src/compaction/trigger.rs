/// When a conversation is summarised.
///
/// ```
/// use concentric_layers::compaction::Trigger;
///
/// // At 85 % of the window, if there are 20 turns at least.
/// let trigger = Trigger::fraction(0.85).and(Trigger::turns(20));
/// # let _ = trigger;
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Trigger {
    fraction: Option<f64>,
    tokens: Option<u64>,
    turns: Option<usize>,
}

impl Trigger {
    const NEVER: Self = Self {
        fraction: None,
        tokens: None,
        turns: None,
    };

    /// A request has more than this fraction of the window's tokens; never, if it is not a number.
    pub const fn fraction(fraction: f64) -> Self {
        Self {
            fraction: Some(fraction),
            ..Self::NEVER
        }
    }

    /// A request has more than `tokens` tokens.
    pub const fn tokens(tokens: u64) -> Self {
        Self {
            tokens: Some(tokens),
            ..Self::NEVER
        }
    }

    /// The conversation has more than `turns` turns.
    pub const fn turns(turns: usize) -> Self {
        Self {
            turns: Some(turns),
            ..Self::NEVER
        }
    }

    /// Requires both. Of two limits of one kind, the second replaces the first.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self {
            fraction: other.fraction.or(self.fraction),
            tokens: other.tokens.or(self.tokens),
            turns: other.turns.or(self.turns),
        }
    }

    pub(super) fn holds(&self, tokens: u64, turns: usize, window: u64, scale: f64) -> bool {
        let is_long = |limit: f64| tokens as f64 > limit * scale;
        self.fraction.is_none_or(|it| is_long(it * window as f64))
            && self.tokens.is_none_or(|it| is_long(it as f64))
            && self.turns.is_none_or(|it| turns as f64 > it as f64 * scale)
    }

    /// The tokens over which it may hold, if they matter.
    pub(super) fn limit(&self, window: u64) -> Option<u64> {
        let fraction = self
            .fraction
            .map(|it| crate::tokens::scaled(window, it.max(0.0)));
        fraction.into_iter().chain(self.tokens).max()
    }
}
