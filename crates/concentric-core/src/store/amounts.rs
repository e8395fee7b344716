//! Amounts and limits of budgets.

use concentric_proto::{Error, Usage};
use serde::{Deserialize, Serialize};
use std::{error::Error as StdError, fmt};

/// Generates the types that have one item per dimension of a budget.
macro_rules! dimensions {
    ($($(#[$doc:meta])* $field:ident $Dimension:ident $name:literal;)*) => {
        /// A dimension of a budget.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
        #[serde(rename_all = "snake_case")]
        #[non_exhaustive]
        pub enum Dimension {
            $($(#[$doc])* $Dimension,)*
        }

        impl Dimension {
            /// All dimensions.
            pub const ALL: [Self; [$(stringify!($field)),*].len()] = [$(Self::$Dimension),*];
        }

        impl fmt::Display for Dimension {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(match self {
                    $(Self::$Dimension => $name,)*
                })
            }
        }

        /// An amount for each dimension; sums saturate at [`u64::MAX`].
        ///
        /// ```
        /// use concentric_core::store::Amounts;
        ///
        /// let amounts = Amounts::new().money(1_500_000).tool_calls(3);
        /// assert_eq!((amounts.money, amounts.input_tokens), (1_500_000, 0));
        /// ```
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
        #[serde(default)]
        #[non_exhaustive]
        pub struct Amounts {
            $($(#[$doc])* pub $field: u64,)*
        }

        impl Amounts {
            /// Creates amounts that are all zero.
            pub const fn new() -> Self {
                Self { $($field: 0,)* }
            }

            $(
                $(#[$doc])*
                #[must_use]
                pub const fn $field(mut self, amount: u64) -> Self {
                    self.$field = amount;
                    self
                }
            )*

            /// Returns the amounts in the order of [`Dimension::ALL`], for stores.
            pub const fn to_array(self) -> [u64; Dimension::ALL.len()] {
                [$(self.$field),*]
            }

            /// Creates amounts in the order of [`Dimension::ALL`], for stores.
            pub const fn from_array([$($field),*]: [u64; Dimension::ALL.len()]) -> Self {
                Self { $($field),* }
            }

            fn with(self, other: Self, f: impl Fn(u64, u64) -> u64) -> Self {
                Self { $($field: f(self.$field, other.$field),)* }
            }
        }

        /// An optional limit for each dimension.
        ///
        /// ```
        /// use concentric_core::store::Limits;
        ///
        /// let limits = Limits::new().money(2_000_000).model_calls(20);
        /// assert_eq!((limits.money, limits.tool_calls), (Some(2_000_000), None));
        /// ```
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
        #[serde(default, deny_unknown_fields)]
        #[non_exhaustive]
        pub struct Limits {
            $(
                $(#[$doc])*
                #[serde(skip_serializing_if = "Option::is_none")]
                pub $field: Option<u64>,
            )*
        }

        impl Limits {
            $(
                $(#[$doc])*
                #[must_use]
                pub const fn $field(mut self, limit: u64) -> Self {
                    self.$field = Some(limit);
                    self
                }
            )*

            /// Returns the limits in the order of [`Dimension::ALL`], for stores.
            pub const fn to_array(self) -> [Option<u64>; Dimension::ALL.len()] {
                [$(self.$field),*]
            }

            /// Checks that `used` plus `wanted` is within the limits. Dimensions with no wanted
            /// amount are ignored.
            ///
            /// # Errors
            ///
            /// The first exceeded dimension.
            pub fn check(&self, used: Amounts, wanted: Amounts) -> Result<(), OverBudget> {
                $(
                    if let Some(limit) = self.$field
                        && wanted.$field > 0
                        && used.$field.saturating_add(wanted.$field) > limit
                    {
                        return Err(OverBudget {
                            dimension: Dimension::$Dimension,
                            limit,
                            used: used.$field,
                            wanted: wanted.$field,
                        });
                    }
                )*
                Ok(())
            }

            /// Returns the limits as amounts, with zero for dimensions without a limit.
            pub fn whole(&self) -> Amounts {
                Amounts { $($field: self.$field.unwrap_or(0),)* }
            }

            /// Returns `amounts` with zero for dimensions without a limit.
            pub fn limited(&self, amounts: Amounts) -> Amounts {
                Amounts { $($field: self.$field.map_or(0, |_| amounts.$field),)* }
            }

            /// Returns the limits with `more` added to those that are set.
            #[must_use]
            pub fn plus(self, more: Amounts) -> Self {
                Self { $($field: self.$field.map(|limit| limit.saturating_add(more.$field)),)* }
            }
        }
    };
}

dimensions! {
    /// Money, in micro-units of the currency that prices are in: 1,000,000 is one dollar.
    money Money "money";
    /// Tokens in requests, including cached ones (`gen_ai.usage.input_tokens`).
    input_tokens InputTokens "input tokens";
    /// Tokens in answers, including reasoning (`gen_ai.usage.output_tokens`).
    output_tokens OutputTokens "output tokens";
    /// Tokens in requests and answers.
    total_tokens TotalTokens "tokens";
    /// Input tokens read from a provider's cache (`gen_ai.usage.cache_read.input_tokens`); also
    /// counted as input tokens.
    cached_input_tokens CachedInputTokens "cached input tokens";
    /// Model calls, including failed ones.
    model_calls ModelCalls "model calls";
    /// Tool calls.
    tool_calls ToolCalls "tool calls";
    /// The duration of calls by the run's clock, in milliseconds. Concurrent calls are added up.
    /// Time outside of calls, such as waiting for an approver, is not counted.
    time_ms TimeMs "milliseconds";
}

impl Amounts {
    /// Converts the usage of a model. Values that the provider did not report are zero, except the
    /// total, which is then the sum of input and output.
    pub fn of_usage(usage: &Usage) -> Self {
        let input = usage.input_tokens().unwrap_or(0);
        let output = usage.output_tokens().unwrap_or(0);
        let total = usage.total_tokens();
        Self::new()
            .input_tokens(input)
            .output_tokens(output)
            .total_tokens(total.unwrap_or_else(|| input.saturating_add(output)))
            .cached_input_tokens(usage.cached_input_tokens().unwrap_or(0))
    }

    /// Returns the sum.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        self.with(other, u64::saturating_add)
    }

    /// Returns the difference, which is zero where `other` is greater.
    #[must_use]
    pub fn minus(self, other: Self) -> Self {
        self.with(other, u64::saturating_sub)
    }

    /// Returns the minimum of each dimension.
    #[must_use]
    pub fn min(self, other: Self) -> Self {
        self.with(other, u64::min)
    }

    /// Returns the maximum of each dimension.
    #[must_use]
    pub fn max(self, other: Self) -> Self {
        self.with(other, u64::max)
    }
}

impl Limits {
    /// Creates limits with no dimension limited.
    pub fn new() -> Self {
        Self::default()
    }
}

/// The [code](Error::code) of an error for a budget that is used up.
pub const OVER_BUDGET: &str = "over_budget";

/// The error for an amount that exceeds the limit of a budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct OverBudget {
    /// The exceeded dimension.
    pub dimension: Dimension,
    /// The limit.
    pub limit: u64,
    /// The spending and the reservations.
    pub used: u64,
    /// The additional amount that was requested.
    pub wanted: u64,
}

impl OverBudget {
    /// Creates the error.
    pub const fn new(dimension: Dimension, limit: u64, used: u64, wanted: u64) -> Self {
        Self {
            dimension,
            limit,
            used,
            wanted,
        }
    }
}

impl fmt::Display for OverBudget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            dimension,
            limit,
            used,
            wanted,
        } = self;
        write!(
            f,
            "budget exceeded: {used} of {limit} {dimension} used, {wanted} more requested"
        )
    }
}

impl StdError for OverBudget {}

/// Converts to an error of the kind [`ErrorKind::Halted`](crate::ErrorKind::Halted), with the code [`OVER_BUDGET`].
impl From<OverBudget> for Error {
    fn from(over: OverBudget) -> Self {
        Self::halted(over.to_string())
            .with_code(OVER_BUDGET)
            .with_source(over)
    }
}
