//! The contract of all stores.

macro_rules! contract {
    ($kind:ty) => {
        concentric_test::store_suite!($kind);
    };
}

for_each_kind!(contract);
