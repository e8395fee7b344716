//! The contract of all stores.

macro_rules! contract {
    ($kind:ty) => {
        concentric_test::store_suite!($kind);
    };
}

for_each_kind!(contract);

/// Those of the stores that keep the events of runs.
mod events {
    macro_rules! events {
        ($kind:ty) => {
            concentric_test::store_suite!($kind, only = [events]);
            concentric_test::__store_events_of_threads!($kind);
        };
    }

    mod in_memory {
        events!(crate::kinds::Memory);
    }

    #[cfg(feature = "redis")]
    mod redis {
        events!(crate::kinds::Redis<false>);
    }

    #[cfg(feature = "redis")]
    mod redis_cluster {
        events!(crate::kinds::Redis<true>);
    }
}
