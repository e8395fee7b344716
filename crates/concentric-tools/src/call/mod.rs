//! One call: its verdict, its prompts and records, its arrival at the tool, and its ledger entry.

pub(crate) mod arrival;
pub(crate) mod effect;
pub(crate) mod gates;
pub(crate) mod ledger;
pub(crate) mod notify;
pub(crate) mod prompt;
pub(crate) mod suspend_record;

pub(crate) use self::arrival::Arrivals;
