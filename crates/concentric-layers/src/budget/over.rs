/// The [code](concentric_core::Error::code) of an error for a budget that is used up.
pub const OVER_BUDGET: &str = "over_budget";
