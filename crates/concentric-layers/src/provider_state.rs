//! State at the provider that a request continues.

use concentric_core::ChatRequest;

/// Whether the request extends a conversation that the provider stores.
pub(crate) fn is_stored_by_provider(request: &ChatRequest) -> bool {
    let options = &request.options.provider;
    let mut stored = ["previous_response_id", "conversation"].into_iter();
    stored.any(|name| options.get(name).is_some_and(|value| !value.is_null()))
}
