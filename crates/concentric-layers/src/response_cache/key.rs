use super::layer::Options;
use crate::{
    caching::{Owner, SharedStore},
    provider_state::is_stored_by_provider,
};
use concentric_core::{ChatRequest, digest::Digest, store::CacheKey};

/// What equal requests have in common.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(super) struct Key {
    owner: Owner,
    digest: [u8; 32],
}

/// An extension of a request's [context](concentric_core::Context::extensions): how the cache treats its
/// model calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum CacheControl {
    /// Makes a new call, whose answer replaces the stored one.
    Refresh,
    /// Makes a new call, and stores nothing.
    Bypass,
}

impl Key {
    /// Returns the key of a request; `None` if the request is not cached.
    pub(super) fn of(options: &Options, request: &ChatRequest) -> Option<Self> {
        let control = request.context.extensions().get();
        if request.resume.is_some() || control == Some(&CacheControl::Bypass) || has_state(request)
        {
            return None;
        }
        let cache = &options.cache;
        // First, since a digest reads the whole request.
        let owner = cache.scope.owner(&request.context)?;
        let digest = cache.key(request, || Digest::of_request(request).ok())?;
        Some(Self {
            owner,
            digest: *digest.as_bytes(),
        })
    }

    /// The key of the answer in a store.
    pub(super) fn in_store(&self, store: &SharedStore) -> CacheKey {
        let digest = Digest::of_fields("concentric/response-cache/1", &[&self.digest]);
        store.key(&self.owner, &digest)
    }
}

/// Whether the answer depends on state at the provider that the request does not contain.
fn has_state(request: &ChatRequest) -> bool {
    let container = request.options.provider.get("container");
    is_stored_by_provider(request) || container.is_some_and(|value| !value.is_null())
}
