use super::{Fault, Keep, Slot, SlotError};
use concentric_proto::{
    Str,
    run_state::{SlotPlace, StoredSlot},
};
use serde_json::Value;
use std::{
    any::{Any, TypeId},
    collections::HashMap,
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

/// The slot values of one run, conversation or session. A handle: clones share the values.
///
/// A host that stores conversations keeps one `Slots` for each, adds it to the contexts of its runs
/// ([`Context::set_thread_slots`](crate::Context::set_thread_slots)), and stores its
/// [`snapshot`](Self::snapshot) with the conversation.
///
/// ```
/// use concentric_core::{ChatRequest, state::Slots};
///
/// let thread = Slots::new();
/// let mut request = ChatRequest::user("hi");
/// request.context.set_thread_slots(thread.clone());
/// // After the run:
/// let written = thread.snapshot()?;
/// # assert!(written.is_empty());
/// # Ok::<_, concentric_core::state::SlotError>(())
/// ```
#[derive(Clone, Default)]
pub struct Slots(Arc<Mutex<Inner>>);

#[derive(Default)]
struct Inner {
    live: HashMap<(TypeId, SlotPlace), Live>,
    // Stored values that were not read yet.
    stored: HashMap<(Str, SlotPlace), StoredSlot>,
    names: HashMap<&'static str, TypeId>,
    // The stored values of the run were restored.
    resumed: bool,
    // In a draft: its initial values.
    base: Option<HashMap<(TypeId, SlotPlace), Arc<dyn Any + Send + Sync>>>,
    // In a draft that was restored: its stored values are changes.
    restored: bool,
}

struct Live {
    slot: &'static str,
    version: u32,
    durable: bool,
    value: Arc<dyn Any + Send + Sync>,
    write: Write,
}

type Write = fn(&(dyn Any + Send + Sync)) -> Option<Result<Value, serde_json::Error>>;

impl Slots {
    /// Creates an empty set of slots.
    pub fn new() -> Self {
        Self::default()
    }

    /// Creates slots from stored values. Each is deserialized when it is first read.
    pub fn restore(stored: impl IntoIterator<Item = StoredSlot>) -> Self {
        let slots = Self::default();
        slots.lock().put(stored);
        slots
    }

    /// Creates a [draft](Self::draft) from stored values, such as those of a suspended turn that
    /// another process began. [`commit`](Self::commit) applies all of them, whether they were read
    /// or not.
    pub fn restore_draft(stored: impl IntoIterator<Item = StoredSlot>) -> Self {
        let slots = Self::restore(stored);
        slots.lock().restored = true;
        slots
    }

    /// Serializes the values of durable slots, in the order of their names. Stored values that were
    /// not read since are included unchanged.
    ///
    /// # Errors
    ///
    /// A value can't be serialized.
    pub fn snapshot(&self) -> Result<Vec<StoredSlot>, SlotError> {
        let inner = self.lock();
        let mut all: Vec<StoredSlot> = inner.stored.values().cloned().collect();
        let live: Vec<_> = inner
            .live
            .iter()
            .map(|((_, place), live)| (place.clone(), live.clone()))
            .collect();
        // Serializing a value may be slow, so it is done without the lock.
        drop(inner);
        for (place, live) in live {
            let Some(value) = (live.write)(&*live.value) else {
                continue;
            };
            let value =
                value.map_err(|error| SlotError::new(live.slot, Fault::Write(Arc::new(error))))?;
            let name = Str::from_static(live.slot);
            all.push(StoredSlot::new(name, live.version, value, place));
        }
        all.sort_by(|a, b| (&a.slot, order(&a.place)).cmp(&(&b.slot, order(&b.place))));
        Ok(all)
    }

    /// Copies the values of durable slots, for a fork of the conversation.
    ///
    /// # Errors
    ///
    /// A value can't be serialized.
    pub fn fork(&self) -> Result<Self, SlotError> {
        self.snapshot().map(Self::restore)
    }

    /// Copies all values, including transient ones, for changes that take effect only when they are
    /// [committed](Self::commit).
    ///
    /// ```
    /// use concentric_core::state::Slots;
    ///
    /// let thread = Slots::new();
    /// let turn = thread.draft();
    /// // A run of the conversation changes `turn`, and finishes:
    /// drop(thread.commit(&turn));
    /// ```
    #[must_use]
    pub fn draft(&self) -> Self {
        let inner = self.lock();
        let values = || {
            let live = inner.live.iter();
            let values = live.map(|(at, live)| (at.clone(), Arc::clone(&live.value)));
            values.collect()
        };
        Self(Arc::new(Mutex::new(Inner {
            live: inner.live.clone(),
            stored: inner.stored.clone(),
            names: inner.names.clone(),
            resumed: inner.resumed,
            base: Some(inner.base.clone().unwrap_or_else(values)),
            restored: inner.restored,
        })))
    }

    /// Applies the values that were changed in `draft`, and returns the values they replace. Values
    /// that the draft has not changed keep their current state.
    #[must_use = "drop the replaced values where their destructors may run"]
    pub fn commit(&self, draft: &Self) -> Self {
        let (changed, stored, names) = {
            let draft = draft.lock();
            let stored = draft.restored.then(|| draft.stored.clone());
            let is_changed = |at: &(TypeId, SlotPlace), live: &Live| {
                let base = draft.base.as_ref().and_then(|base| base.get(at));
                !base.is_some_and(|base| Arc::ptr_eq(base, &live.value))
            };
            let live = draft.live.iter().filter(|(at, live)| is_changed(at, live));
            let changed: Vec<_> = live.map(|(at, live)| (at.clone(), live.clone())).collect();
            (changed, stored.unwrap_or_default(), draft.names.clone())
        };
        let mut replaced = Inner::default();
        let mut inner = self.lock();
        inner.names.extend(names);
        for (at, live) in changed {
            inner
                .stored
                .remove(&(Str::from_static(live.slot), at.1.clone()));
            if let Some(old) = inner.live.insert(at.clone(), live) {
                replaced.live.insert(at, old);
            }
        }
        for ((name, place), value) in stored {
            if let Some(slot) = inner.names.get(name.as_str()).copied() {
                let at = (slot, place.clone());
                if let Some(old) = inner.live.remove(&at) {
                    replaced.live.insert(at, old);
                }
            }
            inner.stored.insert((name, place), value);
        }
        drop(inner);
        Self(Arc::new(Mutex::new(replaced)))
    }

    /// Removes and returns all values; the slots are then empty.
    #[must_use = "drop the removed values where their destructors may run"]
    pub fn take(&self) -> Self {
        let taken = std::mem::take(&mut *self.lock());
        Self(Arc::new(Mutex::new(taken)))
    }

    /// Restores the stored values of a resumed run. Only the first call has an effect.
    pub(crate) fn resume(&self, stored: impl IntoIterator<Item = StoredSlot>) {
        let mut inner = self.lock();
        if !std::mem::replace(&mut inner.resumed, true) {
            inner.put(stored);
        }
    }

    /// Replaces the durable values with the stored values of a resumed run.
    pub(crate) fn replace(&self, stored: impl IntoIterator<Item = StoredSlot>) {
        let mut inner = self.lock();
        inner.resumed = true;
        inner.stored.clear();
        let gone: Vec<Live> = inner
            .live
            .extract_if(|_, live| live.durable)
            .map(|(_, live)| live)
            .collect();
        inner.put(stored);
        // Foreign code runs without the lock.
        drop(inner);
        drop(gone);
    }

    pub(crate) fn get<S>(&self, place: SlotPlace) -> Result<Arc<S::Value>, SlotError>
    where
        S: Slot,
    {
        let mut inner = self.lock();
        if let Some(value) = inner.value::<S>(&place) {
            return Ok(value);
        }
        let stored = inner.stored::<S>(&place)?;
        // Foreign code runs without the lock.
        drop(inner);
        let read = Arc::new(read::<S>(stored)?);
        let mut inner = self.lock();
        Ok(match inner.value::<S>(&place) {
            Some(value) => value,
            None => inner.set::<S>(place, read),
        })
    }

    pub(crate) fn update<S>(
        &self,
        place: SlotPlace,
        mut update: impl FnMut(&S::Value) -> S::Value,
    ) -> Result<Arc<S::Value>, SlotError>
    where
        S: Slot,
    {
        let mut last = self.get::<S>(place.clone())?;
        loop {
            let next = Arc::new(update(&last));
            let mut inner = self.lock();
            match inner.value::<S>(&place) {
                Some(value) if !Arc::ptr_eq(&value, &last) => last = value,
                _ => return Ok(inner.set::<S>(place, next)),
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the key that sorts the values of one slot.
fn order(place: &SlotPlace) -> String {
    serde_json::to_string(place).unwrap_or_default()
}

impl Inner {
    /// Adds stored values, replacing current values of the same slots.
    fn put(&mut self, stored: impl IntoIterator<Item = StoredSlot>) {
        for stored in stored {
            let (slot, place) = (stored.slot.clone(), stored.place.clone());
            self.live
                .retain(|(_, at), live| live.slot != slot.as_str() || *at != place);
            self.stored.insert((slot, place), stored);
        }
    }

    fn value<S>(&self, place: &SlotPlace) -> Option<Arc<S::Value>>
    where
        S: Slot,
    {
        let live = self.live.get(&(TypeId::of::<S>(), place.clone()))?;
        Arc::clone(&live.value).downcast().ok()
    }

    /// Returns the stored value of a slot that was not read yet.
    fn stored<S>(&mut self, place: &SlotPlace) -> Result<Option<StoredSlot>, SlotError>
    where
        S: Slot,
    {
        let named = *self.names.entry(S::NAME).or_insert(TypeId::of::<S>());
        if named != TypeId::of::<S>() {
            return Err(SlotError::new(S::NAME, Fault::Name));
        }
        let key = (Str::from_static(S::NAME), place.clone());
        Ok(self.stored.get(&key).cloned())
    }

    fn set<S>(&mut self, place: SlotPlace, value: Arc<S::Value>) -> Arc<S::Value>
    where
        S: Slot,
    {
        let slot = TypeId::of::<S>();
        self.stored
            .remove(&(Str::from_static(S::NAME), place.clone()));
        if let Some(round) = place.round() {
            // Rounds are sequential, and values of past rounds are not read again.
            self.live
                .retain(|(of, at), _| *of != slot || at.round() == Some(round));
        }
        let live = Live {
            slot: S::NAME,
            version: S::VERSION,
            durable: <S::Keep as Keep<S::Value>>::DURABLE,
            value: Arc::clone(&value) as Arc<dyn Any + Send + Sync>,
            write: |value| {
                value
                    .downcast_ref()
                    .and_then(<S::Keep as Keep<S::Value>>::write)
            },
        };
        self.live.insert((slot, place), live);
        value
    }
}

fn read<S>(stored: Option<StoredSlot>) -> Result<S::Value, SlotError>
where
    S: Slot,
{
    let Some(StoredSlot { version, value, .. }) = stored else {
        return Ok(S::Value::default());
    };
    let unread = |error: tower::BoxError| {
        let error = Fault::Read(version, Arc::from(error));
        SlotError::new(S::NAME, error)
    };
    if version != S::VERSION {
        return S::migrate(version, value).map_err(unread);
    }
    match <S::Keep as Keep<S::Value>>::read(value) {
        Some(read) => read.map_err(|error| unread(error.into())),
        // The slot was durable in an earlier version.
        None => Ok(S::Value::default()),
    }
}

impl Clone for Live {
    fn clone(&self) -> Self {
        Self {
            value: Arc::clone(&self.value),
            ..*self
        }
    }
}

impl fmt::Debug for Slots {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Values are the user's, and may be secret.
        let inner = self.lock();
        let mut names: Vec<_> = inner.live.values().map(|live| live.slot).collect();
        names.sort_unstable();
        f.debug_struct("Slots")
            .field("live", &names)
            .finish_non_exhaustive()
    }
}
