//! Cases of a [`Once`].

use super::{
    kit::{Test, done, same},
    values::{secs, tenant},
};
use crate::StoreHarness;
use concentric_core::store::Once;
use std::time::Duration;

cases! {
    $ __store_once once [Once]
    a_key_is_used_once
    a_used_key_is_kept_for_its_time
    a_used_key_is_kept_when_the_clock_steps_back
    a_key_of_any_characters_and_length_is_used_once
    another_process_sees_a_used_key
    tenants_do_not_share_used_keys
}

trait WithOnce: StoreHarness<Store: Once> {}

impl<H: StoreHarness<Store: Once>> WithOnce for H {}

async fn once<H: WithOnce>(test: &Test<H>, name: &str, keep: Duration) -> bool {
    let used = test
        .store
        .once(tenant("acme"), name.to_owned().into(), keep);
    done(used.await, "`once`")
}

async fn a_key_is_used_once<H: WithOnce>(test: Test<H>) {
    same(
        once(&test, "k", secs(100)).await,
        true,
        "`once` of a new key",
    );
    same(
        once(&test, "k", secs(100)).await,
        false,
        "`once` of a used key",
    );
    same(
        once(&test, "k2", secs(100)).await,
        true,
        "`once` of another key",
    );
    same(
        once(&test, "", secs(100)).await,
        true,
        "`once` of an empty key",
    );
    same(
        once(&test, "", secs(100)).await,
        false,
        "`once` of a used empty key",
    );
}

async fn a_used_key_is_kept_for_its_time<H: WithOnce>(test: Test<H>) {
    for n in 0..20_u64 {
        let key = format!("k{n}");
        same(
            once(&test, &key, secs(100)).await,
            true,
            "`once` of a new key",
        );
    }
    same(
        once(&test, "always", Duration::MAX).await,
        true,
        "`once` of a new key without end",
    );
    same(
        once(&test, "none", Duration::ZERO).await,
        true,
        "`once` of a new key for no time",
    );
    for now in [1, 50, 99] {
        test.set(now);
        test.harness.purge().await;
        for key in ["k0", "k7", "k19", "always"] {
            let what = format!("`once` of a key that was used for 100 s, {now} s later,");
            // A shorter time does not shorten that of the first use.
            same(once(&test, key, Duration::ZERO).await, false, what);
        }
    }
    test.set(99 * 365 * 24 * 60 * 60);
    test.harness.purge().await;
    same(
        once(&test, "always", secs(1)).await,
        false,
        "`once` of a key used without end, 99 years later,",
    );
}

async fn a_used_key_is_kept_when_the_clock_steps_back<H: WithOnce>(test: Test<H>) {
    test.set(1_000);
    same(
        once(&test, "k", secs(100)).await,
        true,
        "`once` of a new key",
    );
    for now in [0, 1_099, 500] {
        test.set(now);
        test.harness.purge().await;
        let what = format!("`once` of a key used from 1,000 s to 1,100 s, at {now} s,");
        same(once(&test, "k", secs(1)).await, false, what);
    }
}

async fn a_key_of_any_characters_and_length_is_used_once<H: WithOnce>(test: Test<H>) {
    let long = "k".repeat(10_000);
    for key in [
        "it's \"k\" % _ \\ ; --",
        "漢字 🦀",
        "K",
        "k",
        "k ",
        &long,
        &long.to_uppercase(),
    ] {
        let what = format!("`once` of the key {:?}", key.get(..20).unwrap_or(key));
        same(
            once(&test, key, secs(100)).await,
            true,
            format!("{what}, which is new,"),
        );
        same(
            once(&test, key, secs(100)).await,
            false,
            format!("{what}, which is used,"),
        );
    }
}

async fn another_process_sees_a_used_key<H: WithOnce>(test: Test<H>) {
    let other = test.harness.open().await;
    same(
        once(&test, "k", secs(100)).await,
        true,
        "`once` of a new key",
    );
    let again = other.once(tenant("acme"), "k".into(), secs(100)).await;
    same(
        done(again, "`once` by another process"),
        false,
        "`once` of a key that the first process used",
    );
}

async fn tenants_do_not_share_used_keys<H: WithOnce>(test: Test<H>) {
    same(
        once(&test, "k", secs(100)).await,
        true,
        "`once` of a new key",
    );
    let other = test
        .store
        .once(tenant("other"), "k".into(), secs(100))
        .await;
    same(
        done(other, "`once` of another tenant"),
        true,
        "`once` of a key of another tenant",
    );
    // The parts of a key are not joined.
    let odd = test.store.once(tenant("acm"), "ek".into(), secs(100)).await;
    same(
        done(odd, "`once` of another tenant"),
        true,
        "`once` of a key with another border",
    );
}
