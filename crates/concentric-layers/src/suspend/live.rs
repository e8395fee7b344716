//! The runs that one process drives, by the ids of their requests.

use concentric_core::{
    Context, RunId, ThreadId,
    store::{StoreError, Tenant},
};
use std::{
    collections::{HashMap, hash_map::Entry},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

/// The runs that are driven. A run is not stored until it executes its first tools; a second
/// request for it must be refused before that, too.
#[derive(Clone, Default)]
pub(super) struct LiveRuns(Arc<Mutex<HashMap<Name, Live>>>);

type Name = (Tenant, ThreadId, RunId);

struct Live {
    run: usize,
    attempts: usize,
}

impl LiveRuns {
    /// Marks the run of `context` as driven until the guard is dropped, which must not outlive
    /// `context`. Attempts of the same request may overlap.
    ///
    /// # Errors
    ///
    /// [`StoreError::Live`] if another request with the same id is driven.
    pub(super) fn enter(&self, context: &Context) -> Result<LiveRun, StoreError> {
        let thread = context.thread_id().cloned();
        let name = (
            Tenant::of(context),
            thread.unwrap_or_else(|| ThreadId::new("")),
            context.run_id().clone(),
        );
        // Clones of a context share their run's id, and no other context does.
        let run = std::ptr::from_ref(context.run_id()).addr();
        match self.lock().entry(name.clone()) {
            Entry::Vacant(entry) => drop(entry.insert(Live { run, attempts: 1 })),
            Entry::Occupied(mut entry) if entry.get().run == run => entry.get_mut().attempts += 1,
            Entry::Occupied(_) => return Err(StoreError::Live),
        }
        Ok(LiveRun {
            runs: self.clone(),
            name,
        })
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Name, Live>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The guard of a driven run.
pub(super) struct LiveRun {
    runs: LiveRuns,
    name: Name,
}

impl Drop for LiveRun {
    fn drop(&mut self) {
        let mut runs = self.runs.lock();
        if let Some(live) = runs.get_mut(&self.name) {
            live.attempts -= 1;
            if live.attempts == 0 {
                runs.remove(&self.name);
            }
        }
    }
}
