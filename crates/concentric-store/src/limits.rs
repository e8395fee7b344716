//! The states of limits, as the stores without a script keep them: each is read, changed and written as a whole.

use crate::{Options, rules::check_total};
use concentric_core::store::{BudgetState, PermitState, QuotaState, StoreError};
use serde::{Serialize, de::DeserializeOwned};
use std::time::{Duration, SystemTime};

/// A state with its kind.
pub(crate) trait State: Default + Serialize + DeserializeOwned + Send + 'static {
    const KIND: &'static str;
}

impl State for QuotaState {
    const KIND: &'static str = "quota";
}

impl State for PermitState {
    const KIND: &'static str = "permits";
}

impl State for BudgetState {
    const KIND: &'static str = "budgets";
}

/// A state after a change.
pub(crate) enum Next {
    /// Written, and forgotten after this time since 1970.
    Until(Duration),
    /// Written, and kept. A change with an id, which can be repeated if its answer was lost.
    Kept,
    /// Written, and kept. Not repeated.
    Once,
    Removed,
    /// Not changed.
    Same,
}

/// Implements the traits by the method `change_limit`.
macro_rules! limits {
    ($store:ty) => {
        impl concentric_core::store::QuotaStore for $store {
            fn take(
                &self,
                bucket: concentric_core::Str,
                quota: concentric_core::store::Quota,
                caller: concentric_core::Str,
                wants: Vec<concentric_core::store::QuotaWant>,
                ahead: [u64; 3],
            ) -> concentric_core::store::StoreFuture<concentric_core::store::QuotaTaken> {
                self.change_limit(
                    bucket.to_string(),
                    move |state: &mut concentric_core::store::QuotaState, now| {
                        let taken = state.take(&quota, &caller, &wants, ahead, now);
                        (taken, crate::limits::Next::Until(state.expiry(&quota)))
                    },
                )
            }

            fn record(
                &self,
                bucket: concentric_core::Str,
                quota: concentric_core::store::Quota,
                changes: Vec<concentric_core::store::QuotaChange>,
            ) -> concentric_core::store::StoreFuture<()> {
                self.change_limit(
                    bucket.to_string(),
                    move |state: &mut concentric_core::store::QuotaState, now| {
                        for change in &changes {
                            state.record(&quota, change, now);
                        }
                        ((), crate::limits::Next::Until(state.expiry(&quota)))
                    },
                )
            }

            fn hold(
                &self,
                bucket: concentric_core::Str,
                max: u64,
                (caller, request): (concentric_core::Str, u64),
                used: u64,
                wanted: u64,
                lease: std::time::Duration,
            ) -> concentric_core::store::StoreFuture<u64> {
                self.change_limit(
                    bucket.to_string(),
                    move |state: &mut concentric_core::store::PermitState, now| {
                        let allowed = state.hold(max, (&caller, request), used, wanted, lease, now);
                        (allowed, crate::limits::Next::Until(state.expiry()))
                    },
                )
            }
        }

        impl concentric_core::store::BudgetStore for $store {
            fn reserve(
                &self,
                tenant: concentric_core::store::Tenant,
                id: concentric_core::Str,
                budgets: Vec<concentric_core::store::SharedBudget>,
                amounts: concentric_core::store::Amounts,
                lease: std::time::Duration,
            ) -> concentric_core::store::StoreFuture<
                Result<(), (concentric_core::Str, concentric_core::store::OverBudget)>,
            > {
                self.change_limit(
                    tenant.0.to_string(),
                    move |state: &mut concentric_core::store::BudgetState, now| {
                        let reserved = state.reserve(&id, &budgets, amounts, lease, now);
                        let next = match reserved {
                            Ok(()) => crate::limits::Next::Kept,
                            Err(_) => crate::limits::Next::Same,
                        };
                        (reserved, next)
                    },
                )
            }

            fn settle(
                &self,
                tenant: concentric_core::store::Tenant,
                id: concentric_core::Str,
                actual: concentric_core::store::Amounts,
            ) -> concentric_core::store::StoreFuture<()> {
                self.change_limit(
                    tenant.0.to_string(),
                    move |state: &mut concentric_core::store::BudgetState, now| {
                        state.settle(&id, actual, now);
                        let next = match state.is_empty(now) {
                            true => crate::limits::Next::Removed,
                            false => crate::limits::Next::Kept,
                        };
                        ((), next)
                    },
                )
            }

            fn extend(
                &self,
                tenant: concentric_core::store::Tenant,
                budget: concentric_core::store::SharedBudget,
                more: concentric_core::store::Amounts,
            ) -> concentric_core::store::StoreFuture<()> {
                self.change_limit(
                    tenant.0.to_string(),
                    move |state: &mut concentric_core::store::BudgetState, now| {
                        state.extend(&budget, more, now);
                        ((), crate::limits::Next::Once)
                    },
                )
            }

            fn spent(
                &self,
                tenant: concentric_core::store::Tenant,
                budget: concentric_core::store::SharedBudget,
            ) -> concentric_core::store::StoreFuture<[concentric_core::store::Amounts; 2]> {
                self.change_limit(
                    tenant.0.to_string(),
                    move |state: &mut concentric_core::store::BudgetState, now| {
                        (state.spent(&budget, now), crate::limits::Next::Same)
                    },
                )
            }
        }
    };
}

pub(crate) use limits;

/// The time of a store, for the arithmetic of limits.
pub(crate) fn since_1970(now: SystemTime) -> Duration {
    now.duration_since(SystemTime::UNIX_EPOCH)
        .unwrap_or_default()
}

/// Reads a stored state.
pub(crate) fn read<S: State>(name: &str, json: &[u8]) -> Result<S, StoreError> {
    serde_json::from_slice(json).map_err(|error| {
        crate::Fault::corrupt(format!("the {} of `{name}`", S::KIND), error).into()
    })
}

pub(crate) fn write<S: State>(state: &S, options: &Options) -> Result<Vec<u8>, StoreError> {
    let json = serde_json::to_vec(state).map_err(StoreError::unwritable)?;
    check_total(json.len(), options.max_state_bytes)?;
    Ok(json)
}
