//! The actions that wait for the driver.

use super::Action;
use crate::event::Event;
use std::collections::VecDeque;

/// A queue of actions. Most of the time it has one action at most, which needs no allocation.
#[derive(Debug, Default)]
pub(super) struct Actions {
    // `None` only if the queue is empty.
    first: Option<Action>,
    #[allow(
        clippy::box_collection,
        reason = "a `VecDeque` is 32 bytes, and most runs do not need one"
    )]
    more: Option<Box<VecDeque<Action>>>,
}

impl Actions {
    #[inline]
    pub(super) const fn is_empty(&self) -> bool {
        self.first.is_none()
    }

    /// Makes room for so many more actions.
    pub(super) fn reserve(&mut self, actions: usize) {
        let second = usize::from(self.first.is_none());
        if actions > second {
            self.more.get_or_insert_default().reserve(actions - second);
        }
    }

    pub(super) fn push_front(&mut self, action: Action) {
        if let Some(second) = self.first.replace(action) {
            self.more.get_or_insert_default().push_front(second);
        }
    }

    pub(super) fn push_back(&mut self, action: Action) {
        match self.first {
            None => self.first = Some(action),
            Some(_) => self.more.get_or_insert_default().push_back(action),
        }
    }

    #[inline]
    pub(super) fn pop_front(&mut self) -> Option<Action> {
        let second = self.more.as_mut().and_then(|more| more.pop_front());
        std::mem::replace(&mut self.first, second)
    }

    /// Removes the first action if it is an event other than the last one of the run.
    #[inline]
    pub(super) fn pop_event(&mut self) -> Option<Event> {
        match &self.first {
            Some(Action::Emit(event)) if !matches!(event, Event::Finish(_)) => {}
            _ => return None,
        }
        match self.pop_front() {
            Some(Action::Emit(event)) => Some(event),
            _ => None,
        }
    }

    pub(super) fn pop_back(&mut self) -> Option<Action> {
        let last = self.more.as_mut().and_then(|more| more.pop_back());
        last.or_else(|| self.first.take())
    }

    pub(super) fn retain(&mut self, keep: impl Fn(&Action) -> bool) {
        if let Some(more) = &mut self.more {
            more.retain(&keep);
        }
        if self.first.as_ref().is_some_and(|first| !keep(first)) {
            self.pop_front();
        }
    }

    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }
}
