use crate::ManualClock;
use std::future::Future;

/// A store under test, for [`store_suite!`](crate::store_suite).
///
/// See the [module docs](crate::store) for an example.
pub trait StoreHarness: Sized {
    /// A handle of the store.
    type Store;

    /// Whether the store can be tested here, for example because its server runs; otherwise each case
    /// passes at once. `true` by default.
    fn is_available() -> bool {
        true
    }

    /// Creates an empty store whose clock is `clock`. Each case has a store of its own.
    fn start(clock: ManualClock) -> impl Future<Output = Self>;

    /// Opens the store. Each handle acts as another process that uses it.
    fn open(&self) -> impl Future<Output = Self::Store>;

    /// Removes what the store no longer has to keep, as it may do at any time; by default nothing.
    ///
    /// Cases call it before they read what must have been kept.
    fn purge(&self) -> impl Future<Output = ()> {
        async {}
    }

    /// Opens the store with this name, and creates it if there is none; by default `None`: several processes cannot use
    /// the store, and the cases of crashes pass at once.
    ///
    /// A test calls it with a name that no other test has (of lower-case letters, digits and `_`), and starts processes
    /// that call it with the same name, and are killed while they write.
    fn shared(name: &str, clock: ManualClock) -> impl Future<Output = Option<Self>> {
        let _ = (name, clock);
        async { None }
    }

    /// Closes the connections of all handles, which then connect again; by default none.
    ///
    /// The cases of races call it during writes, which may fail but must not be applied in part.
    fn cut_connections(&self) -> impl Future<Output = ()> {
        async {}
    }
}

/// Makes a test of each case of the [contract of stores](crate::store).
///
/// The first argument is a [`StoreHarness`]. With `only`, the store may implement only some of the traits.
///
/// ```
/// # use concentric_test::{ManualClock, MemoryStore, StoreHarness};
/// # struct Harness(MemoryStore);
/// # impl StoreHarness for Harness {
/// #     type Store = MemoryStore;
/// #     async fn start(_: ManualClock) -> Self { Self(MemoryStore::new()) }
/// #     async fn open(&self) -> MemoryStore { self.0.clone() }
/// # }
/// concentric_test::store_suite!(Harness, only = [runs, ledger]);
/// # fn main() {}
/// ```
#[macro_export]
macro_rules! store_suite {
    ($harness:ty) => {
        $crate::store_suite!(
            $harness,
            only = [runs, ledger, once, decisions, threads, memories, cache, quotas, budgets]
        );
    };
    ($harness:ty, only = $groups:tt) => {
        $crate::__store_groups!($harness, $groups, $groups);
        $crate::__store_with_every!($groups {
            $crate::__store_tenants_of_every!($harness);
        });
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! __store_groups {
    ($harness:ty, [$($group:ident),+ $(,)?], $all:tt) => {
        $($crate::__store_group!($group, $harness, $all);)+
    };
}

/// The cases of a trait, and those of it with others if these are selected.
#[doc(hidden)]
#[macro_export]
macro_rules! __store_group {
    (runs, $harness:ty, $all:tt) => {
        $crate::__store_runs!($harness);
        $crate::__store_leases!($harness);
        $crate::__store_tenants_of_runs!($harness);
        $crate::__store_model!($harness);
        $crate::__store_races!($harness);
        $crate::__store_crashes!($harness);
    };
    (ledger, $harness:ty, $all:tt) => {
        $crate::__store_ledger!($harness);
        $crate::__store_tenants_of_ledger!($harness);
        $crate::__store_crashes_of_ledger!($harness);
        $crate::__store_with_runs!($all {
            $crate::__store_ledger_of_runs!($harness);
            $crate::__store_model_of_ledger!($harness);
            $crate::__store_races_of_ledger!($harness);
        });
    };
    (once, $harness:ty, $all:tt) => {
        $crate::__store_once!($harness);
        $crate::__store_races_of_once!($harness);
        $crate::__store_crashes_of_once!($harness);
    };
    (decisions, $harness:ty, $all:tt) => {
        $crate::__store_decisions!($harness);
    };
    (threads, $harness:ty, $all:tt) => {
        $crate::__store_threads!($harness);
        $crate::__store_tenants_of_threads!($harness);
        $crate::__store_model_of_threads!($harness);
        $crate::__store_races_of_threads!($harness);
        $crate::__store_crashes_of_threads!($harness);
        $crate::__store_with_all!($all [] {
            $crate::__store_threads_of_runs!($harness);
            $crate::__store_tenants_of_all!($harness);
        });
    };
    (memories, $harness:ty, $all:tt) => {
        $crate::__store_memories!($harness);
    };
    (quotas, $harness:ty, $all:tt) => {
        $crate::__store_quotas!($harness);
    };
    (budgets, $harness:ty, $all:tt) => {
        $crate::__store_budgets!($harness);
    };
    (events, $harness:ty, $all:tt) => {
        $crate::__store_events!($harness);
        $crate::__store_with_threads!($all {
            $crate::__store_events_of_threads!($harness);
        });
    };
    (cache, $harness:ty, $all:tt) => {
        $crate::__store_cache!($harness);
        $crate::__store_with_threads!($all {
            $crate::__store_cache_of_threads!($harness);
        });
    };
}

/// `code` if `threads` is selected.
#[doc(hidden)]
#[macro_export]
macro_rules! __store_with_threads {
    ([threads $($rest:tt)*] { $($code:tt)* }) => { $($code)* };
    ([$other:tt $($rest:tt)*] { $($code:tt)* }) => {
        $crate::__store_with_threads!([$($rest)*] { $($code)* });
    };
    ([] { $($code:tt)* }) => {};
}

/// `code` if `runs` is selected.
#[doc(hidden)]
#[macro_export]
macro_rules! __store_with_runs {
    ([runs $($rest:tt)*] { $($code:tt)* }) => { $($code)* };
    ([$other:tt $($rest:tt)*] { $($code:tt)* }) => {
        $crate::__store_with_runs!([$($rest)*] { $($code)* });
    };
    ([] { $($code:tt)* }) => {};
}

/// `code` if `runs`, `ledger` and `decisions` are selected, which are counted in the second list.
#[doc(hidden)]
#[macro_export]
macro_rules! __store_with_all {
    ([$($rest:tt)*] [x x x] { $($code:tt)* }) => { $($code)* };
    ([runs $($rest:tt)*] [$($found:ident)*] { $($code:tt)* }) => {
        $crate::__store_with_all!([$($rest)*] [x $($found)*] { $($code)* });
    };
    ([ledger $($rest:tt)*] [$($found:ident)*] { $($code:tt)* }) => {
        $crate::__store_with_all!([$($rest)*] [x $($found)*] { $($code)* });
    };
    ([decisions $($rest:tt)*] [$($found:ident)*] { $($code:tt)* }) => {
        $crate::__store_with_all!([$($rest)*] [x $($found)*] { $($code)* });
    };
    ([$other:tt $($rest:tt)*] [$($found:ident)*] { $($code:tt)* }) => {
        $crate::__store_with_all!([$($rest)*] [$($found)*] { $($code)* });
    };
    ([] [$($found:ident)*] { $($code:tt)* }) => {};
}

/// `code` if all nine groups are selected.
#[doc(hidden)]
#[macro_export]
macro_rules! __store_with_every {
    (
        [$a:ident, $b:ident, $c:ident, $d:ident, $e:ident, $f:ident, $g:ident, $h:ident, $i:ident $(,)?]
        { $($code:tt)* }
    ) => { $($code)* };
    ([$($some:tt)*] { $($code:tt)* }) => {};
}

/// Lists the cases of a group, which are functions of the module around it: makes a public function of each, and
/// the macro `$list`, which makes a test of each. The first argument is a dollar sign.
macro_rules! cases {
    (@case [$($bound:ident),+] $name:ident) => {
        pub fn $name<H>()
        where
            H: $crate::StoreHarness,
            H::Store: $(concentric_core::store::$bound +)+,
        {
            $crate::store::kit::run(super::$name::<H>);
        }
    };
    ($d:tt $list:ident $group:ident $bounds:tt $($name:ident)+) => {
        #[doc(hidden)]
        pub mod $group {
            $(cases!(@case $bounds $name);)+
        }

        #[doc(hidden)]
        #[macro_export]
        macro_rules! $list {
            ($d harness:ty) => {
                $(
                    #[test]
                    fn $name() {
                        $crate::store::cases::$group::$name::<$d harness>();
                    }
                )+
            };
        }
    };
}

/// Like `cases!`, for cases that start their test again, whose path is their argument.
macro_rules! crashes {
    (@case [$($bound:ident),+] $name:ident) => {
        pub fn $name<H>(test: &str)
        where
            H: $crate::StoreHarness,
            H::Store: $(concentric_core::store::$bound +)+,
        {
            super::$name::<H>(test);
        }
    };
    ($d:tt $list:ident $group:ident $bounds:tt $($name:ident)+) => {
        #[doc(hidden)]
        pub mod $group {
            $(crashes!(@case $bounds $name);)+
        }

        #[doc(hidden)]
        #[macro_export]
        macro_rules! $list {
            ($d harness:ty) => {
                $(
                    #[test]
                    fn $name() {
                        let test = concat!(module_path!(), "::", stringify!($name));
                        $crate::store::cases::$group::$name::<$d harness>(test);
                    }
                )+
            };
        }
    };
}
