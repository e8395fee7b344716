//! Debug output without approval tokens, since logs are read by more people than may approve.

use super::{Interrupt, Reply, suspension::TOKEN};
use serde_json::{Map, Value};
use std::fmt;

impl fmt::Debug for Interrupt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Interrupt")
            .field("id", &self.id)
            .field("reason", &self.reason)
            .field("message", &self.message)
            .field("call_id", &self.call_id)
            .field("response_schema", &self.response_schema)
            .field("expires_at", &self.expires_at)
            .field("metadata", &WithoutToken(&self.metadata))
            .finish()
    }
}

impl fmt::Debug for Reply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reply")
            .field("interrupt_id", &self.interrupt_id)
            .field("status", &self.status)
            .field("payload", &self.payload)
            .field("token", &self.token.as_ref().map(|_| Hidden))
            .field("by", &self.by)
            .finish()
    }
}

struct WithoutToken<'a>(&'a Map<String, Value>);

impl fmt::Debug for WithoutToken<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut map = f.debug_map();
        for (name, value) in self.0 {
            match name.as_str() {
                TOKEN => map.entry(name, &Hidden),
                _ => map.entry(name, value),
            };
        }
        map.finish()
    }
}

struct Hidden;

impl fmt::Debug for Hidden {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[hidden]")
    }
}
