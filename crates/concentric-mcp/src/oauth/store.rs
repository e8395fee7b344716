//! Stores of tokens.

use concentric_core::{
    Str,
    store::{StoreError, StoreFuture, Tenant},
};
use secrecy::{ExposeSecret, SecretString};
use std::{
    collections::HashMap,
    fmt,
    sync::{Arc, Mutex, PoisonError},
};

/// Stores the tokens of servers, and the state of authorizations that have begun.
///
/// A record belongs to a tenant and the name of a server. It must survive from the start of an
/// authorization to its end, which may be in another process. A store should encrypt it.
///
/// The last write wins. Two processes that renew a token at once may both write; each reads the record
/// again before it gives up.
pub trait TokenStore: Send + Sync + 'static {
    /// Returns the record of a server.
    fn load_tokens(&self, tenant: Tenant, server: Str) -> StoreFuture<Option<TokenRecord>>;

    /// Stores the record of a server, and replaces the previous one.
    fn save_tokens(&self, tenant: Tenant, server: Str, record: TokenRecord) -> StoreFuture<()>;

    /// Removes the record of a server, so that the user must authorize the application again.
    fn remove_tokens(&self, tenant: Tenant, server: Str) -> StoreFuture<()>;
}

/// The secrets for a server: tokens, the registration of the client, and open authorizations.
///
/// Its text is JSON of at most 64 KiB, which is not printed.
#[derive(Clone)]
pub struct TokenRecord(SecretString);

impl TokenRecord {
    /// Creates a record from the text that was [stored](Self::expose).
    pub fn new(text: impl Into<String>) -> Self {
        Self(SecretString::from(text.into()))
    }

    /// The text, to be stored.
    pub fn expose(&self) -> &str {
        self.0.expose_secret()
    }
}

impl fmt::Debug for TokenRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TokenRecord(..)")
    }
}

/// A [`TokenStore`] in the memory of this process. Clones share it.
///
/// It has at most 10,000 records: a further one is an error.
#[derive(Clone, Default)]
pub struct MemoryTokens(Arc<Mutex<HashMap<(Tenant, Str), TokenRecord>>>);

const MAX_RECORDS: usize = 10_000;

impl MemoryTokens {
    /// Creates an empty store.
    pub fn new() -> Self {
        Self::default()
    }

    fn with<T>(&self, change: impl FnOnce(&mut HashMap<(Tenant, Str), TokenRecord>) -> T) -> T {
        change(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl TokenStore for MemoryTokens {
    fn load_tokens(&self, tenant: Tenant, server: Str) -> StoreFuture<Option<TokenRecord>> {
        let found = self.with(|records| records.get(&(tenant, server)).cloned());
        Box::pin(async move { Ok(found) })
    }

    fn save_tokens(&self, tenant: Tenant, server: Str, record: TokenRecord) -> StoreFuture<()> {
        let saved = self.with(|records| {
            let key = (tenant, server);
            if records.len() >= MAX_RECORDS && !records.contains_key(&key) {
                return Err(StoreError::failed("there are too many records of tokens"));
            }
            records.insert(key, record);
            Ok(())
        });
        Box::pin(async move { saved })
    }

    fn remove_tokens(&self, tenant: Tenant, server: Str) -> StoreFuture<()> {
        self.with(|records| records.remove(&(tenant, server)));
        Box::pin(async move { Ok(()) })
    }
}

impl fmt::Debug for MemoryTokens {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryTokens").finish_non_exhaustive()
    }
}
