//! Reservations of budgets that processes share.

use super::{Amounts, Budget, Lease, OVER_BUDGET};
use crate::shared_store::{random_id, within};
use concentric_core::{
    Context, Error, ErrorKind, Str,
    context::Environment,
    store::{BudgetStore, SharedBudget, StoreError, Tenant},
};
use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};
use tokio::{runtime::Handle, sync::oneshot};

/// How long the store may take to answer.
const PATIENCE: Duration = Duration::from_secs(1);

/// The attempts to settle a reservation, which is charged in full otherwise.
const ATTEMPTS: u32 = 8;

/// The shortest time between two warnings.
const WARNINGS: Duration = Duration::from_secs(60);

pub(super) type Of = dyn Fn(&Context) -> Vec<SharedBudget> + Send + Sync;

/// The shared budgets of model calls, if there are any.
#[derive(Clone)]
pub(super) struct SharedBudgets {
    pub(super) source: Option<(Arc<dyn BudgetStore>, Arc<Of>)>,
    pub(super) lease: Duration,
    pub(super) in_outage: Option<Budget>,
    pub(super) environment: Environment,
    warned: Arc<Mutex<Option<Duration>>>,
}

/// A reservation; settled on drop.
pub(super) struct Reserved {
    pub(super) actual: Amounts,
    of: Reservation,
}

enum Reservation {
    Shared {
        store: Arc<dyn BudgetStore>,
        tenant: Tenant,
        id: Str,
        runtime: Handle,
        environment: Environment,
    },
    InOutage(Option<Lease>),
}

impl Default for SharedBudgets {
    fn default() -> Self {
        Self {
            source: None,
            lease: Duration::from_secs(10 * 60),
            in_outage: None,
            environment: Environment::system(),
            warned: Arc::default(),
        }
    }
}

impl SharedBudgets {
    /// Reserves `amounts` of all budgets of a run, or of none; `None` if there are none.
    ///
    /// Dropping the future releases the reservation.
    pub(super) async fn reserve(
        self,
        context: Context,
        amounts: Amounts,
    ) -> Result<Option<Reserved>, Error> {
        let Some((store, of)) = self.source.clone() else {
            return Ok(None);
        };
        let budgets = of(&context);
        if budgets.is_empty() {
            return Ok(None);
        }
        let Ok(runtime) = Handle::try_current() else {
            let why = "shared budgets need a tokio runtime";
            return Err(Error::new(ErrorKind::Configuration, why));
        };
        let tenant = Tenant::of(&context);
        let id = random_id(&self.environment);
        let (reply, answer) = oneshot::channel();
        // Settled if nobody takes it: the call may be dropped before it reads the answer.
        let reserved = Reserved {
            actual: Amounts::new(),
            of: Reservation::Shared {
                store: Arc::clone(&store),
                tenant: tenant.clone(),
                id: id.clone(),
                runtime: runtime.clone(),
                environment: self.environment.clone(),
            },
        };
        let reservation = store.reserve(tenant, id, budgets, amounts, self.lease);
        runtime.spawn(async move {
            let answer = reservation.await.map(|granted| match granted {
                Ok(()) => Ok(reserved),
                Err(over) => {
                    reserved.forget();
                    Err(over)
                }
            });
            drop(reply.send(answer));
        });
        let late = context.environment().clock().sleep(PATIENCE);
        let answered = match within(late, answer).await {
            Some(Ok(answered)) => answered,
            _ => Err(StoreError::failed("the store did not answer in time")),
        };
        match answered {
            Ok(Ok(reserved)) => Ok(Some(reserved)),
            Ok(Err((name, over))) => {
                let why = format!("the budget `{name}` is used up: {over}");
                let error = Error::halted(why).with_code(OVER_BUDGET);
                Err(error.with_source(over))
            }
            Err(error) => {
                let of = Reservation::InOutage(Some(self.reserve_in_outage(error, amounts)?));
                let actual = Amounts::new();
                Ok(Some(Reserved { actual, of }))
            }
        }
    }

    fn reserve_in_outage(&self, error: StoreError, amounts: Amounts) -> Result<Lease, Error> {
        let now = self.environment.clock().monotonic();
        let mut warned = self.warned.lock().unwrap_or_else(PoisonError::into_inner);
        if warned.is_none_or(|at| now >= at.saturating_add(WARNINGS)) {
            *warned = Some(now);
            let is_refused = self.in_outage.is_none();
            tracing::warn!(%error, is_refused, "the store of shared budgets failed");
        }
        match &self.in_outage {
            Some(budget) => Ok(budget.reserve(amounts)?),
            None => Err(error.into()),
        }
    }
}

async fn settle(
    store: Arc<dyn BudgetStore>,
    tenant: Tenant,
    id: Str,
    actual: Amounts,
    environment: Environment,
) {
    for attempt in 0..ATTEMPTS {
        match store.settle(tenant.clone(), id.clone(), actual).await {
            Ok(()) => return,
            Err(error) if attempt + 1 == ATTEMPTS => {
                tracing::warn!(%error, "a reservation was not settled, and is charged in full");
            }
            Err(_) => {
                environment
                    .clock()
                    .sleep(Duration::from_millis(100 << attempt))
                    .await
            }
        }
    }
}

impl Reserved {
    /// Ends it without a settlement: nothing is reserved.
    fn forget(mut self) {
        self.of = Reservation::InOutage(None);
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        match &mut self.of {
            Reservation::Shared {
                store,
                tenant,
                id,
                runtime,
                environment,
            } => {
                let (store, tenant, id) = (Arc::clone(store), tenant.clone(), id.clone());
                let settled = settle(store, tenant, id, self.actual, environment.clone());
                drop(runtime.spawn(settled));
            }
            Reservation::InOutage(lease) => {
                if let Some(lease) = lease.take() {
                    lease.settle(self.actual);
                }
            }
        }
    }
}
