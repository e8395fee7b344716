use concentric_core::Usage;
use serde::Deserialize;
use std::{fmt, iter::Sum, ops::AddAssign};

/// The price of a model's tokens, in millionths of a dollar per million tokens.
///
/// For example, 2,500,000 is 2.50 dollars per million tokens. A token costs the same number of
/// millionths of a millionth of a dollar, so that prices are whole numbers, however cheap a token
/// is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct Price {
    /// Input.
    pub input: u64,
    /// Output, reasoning included.
    pub output: u64,
    /// Input that is read from the provider's cache; priced as other input if unknown.
    pub cached_input: Option<u64>,
    /// Input that is written to the provider's cache; priced as other input if unknown. If the
    /// price depends on the time to live, this is the price of the shortest one (Anthropic: five
    /// minutes).
    pub cache_write: Option<u64>,
    /// Input that is written to the provider's cache for an hour; priced as other cache writes if
    /// unknown.
    pub cache_write_1h: Option<u64>,
    /// The price of calls with a long input; see [`at`](Self::at).
    above: Option<Above>,
}

/// The price of all tokens of calls whose input exceeds a length. `None` means the regular price.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
struct Above {
    // The length, in input tokens, cached or not.
    input_tokens: u64,
    input: Option<u64>,
    output: Option<u64>,
    cached_input: Option<u64>,
    cache_write: Option<u64>,
    cache_write_1h: Option<u64>,
}

impl Price {
    /// Creates a price for input and output.
    pub const fn new(input: u64, output: u64) -> Self {
        Self {
            input,
            output,
            cached_input: None,
            cache_write: None,
            cache_write_1h: None,
            above: None,
        }
    }

    /// Sets the price of cached input.
    #[must_use]
    pub const fn cached_input(mut self, price: u64) -> Self {
        self.cached_input = Some(price);
        self
    }

    /// Sets the price of input that is written to the cache.
    #[must_use]
    pub const fn cache_write(mut self, price: u64) -> Self {
        self.cache_write = Some(price);
        self
    }

    /// Sets the price of input that is written to the cache for an hour.
    #[must_use]
    pub const fn cache_write_1h(mut self, price: u64) -> Self {
        self.cache_write_1h = Some(price);
        self
    }

    /// The cost of a call; `None` if its input or output tokens are unknown.
    ///
    /// Cached tokens are part of the input and reasoning is part of the output; neither is counted
    /// twice. Media are priced as text tokens.
    pub fn cost(&self, usage: &Usage) -> Option<Cost> {
        self.cost_of_calls(usage, 1)
    }

    /// The cost of several calls, at the price of one with the mean number of input tokens.
    pub(super) fn cost_of_calls(&self, usage: &Usage, calls: u64) -> Option<Cost> {
        let (input, output) = (usage.input_tokens()?, usage.output_tokens()?);
        let price = self.at(input / calls.max(1));
        let cached = usage.cached_input_tokens().unwrap_or(0).min(input);
        let written = usage.cache_write_tokens().unwrap_or(0).min(input - cached);
        let for_an_hour = usage.cache_write_1h_tokens().unwrap_or(0).min(written);
        let plain = input - cached - written;
        let write = price.cache_write.unwrap_or(price.input);
        let cost = |tokens: u64, price: u64| u128::from(tokens) * u128::from(price);
        Some(Cost {
            input: cost(plain, price.input),
            cached_input: cost(cached, price.cached_input.unwrap_or(price.input)),
            cache_write: cost(written - for_an_hour, write)
                + cost(for_an_hour, price.cache_write_1h.unwrap_or(write)),
            output: cost(output, price.output),
        })
    }

    /// The price of a call with `input` input tokens, cached or not: a catalogue may have another one
    /// for all tokens of calls whose input exceeds a length.
    #[must_use]
    pub fn at(&self, input: u64) -> Self {
        match self.above {
            Some(above) if input > above.input_tokens => Self {
                input: above.input.unwrap_or(self.input),
                output: above.output.unwrap_or(self.output),
                cached_input: above.cached_input.or(self.cached_input),
                cache_write: above.cache_write.or(self.cache_write),
                cache_write_1h: above.cache_write_1h.or(self.cache_write_1h),
                above: None,
            },
            _ => *self,
        }
    }
}

/// An exact cost, in millionths of a millionth of a dollar.
///
/// ```
/// use concentric_core::Usage;
/// use concentric_providers::catalogue::{Cost, Price};
///
/// let price = Price::new(3_000_000, 15_000_000);
/// let calls = [Usage::new(1_000, 100), Usage::new(1_200, 50)];
/// let run: Cost = calls.iter().filter_map(|usage| price.cost(usage)).sum();
/// assert_eq!(run.to_string(), "$0.00885");
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub struct Cost {
    /// Input, without tokens read from or written to the cache.
    pub input: u128,
    /// Input that was read from the cache.
    pub cached_input: u128,
    /// Input that was written to the cache.
    pub cache_write: u128,
    /// Output.
    pub output: u128,
}

/// The units in a dollar.
const DOLLAR: u128 = 1_000_000_000_000;

impl Cost {
    /// The total cost.
    pub fn total(&self) -> u128 {
        self.input
            .saturating_add(self.cached_input)
            .saturating_add(self.cache_write)
            .saturating_add(self.output)
    }

    /// The total cost in millionths of a dollar, rounded up.
    pub fn micros(&self) -> u64 {
        let micros = self.total().div_ceil(DOLLAR / 1_000_000);
        u64::try_from(micros).unwrap_or(u64::MAX)
    }
}

impl AddAssign for Cost {
    fn add_assign(&mut self, other: Self) {
        self.input = self.input.saturating_add(other.input);
        self.cached_input = self.cached_input.saturating_add(other.cached_input);
        self.cache_write = self.cache_write.saturating_add(other.cache_write);
        self.output = self.output.saturating_add(other.output);
    }
}

impl Sum for Cost {
    fn sum<I: Iterator<Item = Self>>(costs: I) -> Self {
        costs.fold(Self::default(), |mut sum, cost| {
            sum += cost;
            sum
        })
    }
}

/// Formats the exact cost in dollars, with at least two decimal places: `$0.02`.
impl fmt::Display for Cost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let total = self.total();
        let fraction = format!("{:012}", total % DOLLAR);
        let digits = fraction.trim_end_matches('0').len().max(2);
        let fraction = fraction.get(..digits).unwrap_or_default();
        write!(f, "${}.{fraction}", total / DOLLAR)
    }
}
