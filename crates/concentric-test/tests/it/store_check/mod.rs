//! Each fault of a store is found by a case of the suite.

mod faulty;

use concentric_test::store::cases;
use faulty::{Fault, Faulty};

/// The suite finds nothing in the store without a fault.
mod without_a_fault {
    use super::{Fault, Faulty};

    concentric_test::store_suite!(Faulty<{ Fault::None as u8 }>);
}

/// A store of one trait passes the cases of that trait.
mod of_one_trait {
    use concentric_core::{
        Str,
        context::Clock,
        store::{Once, StoreFuture, Tenant},
    };
    use concentric_test::{ManualClock, StoreHarness};
    use std::{
        collections::HashMap,
        sync::{Arc, Mutex},
        time::{Duration, SystemTime},
    };

    #[derive(Clone)]
    struct UsedKeys {
        until: Arc<Mutex<HashMap<(Tenant, Str), SystemTime>>>,
        clock: ManualClock,
    }

    impl Once for UsedKeys {
        fn once(&self, tenant: Tenant, key: Str, keep: Duration) -> StoreFuture<bool> {
            let mut until = self.until.lock().unwrap();
            let end = self
                .clock
                .now()
                .checked_add(keep.min(Duration::from_secs(1 << 32)));
            let first = !until.contains_key(&(tenant.clone(), key.clone()));
            until.entry((tenant, key)).or_insert(end.unwrap());
            Box::pin(async move { Ok(first) })
        }
    }

    impl StoreHarness for UsedKeys {
        type Store = Self;

        async fn start(clock: ManualClock) -> Self {
            let until = Arc::default();
            Self { until, clock }
        }

        async fn open(&self) -> Self {
            self.clone()
        }

        async fn purge(&self) {
            let now = self.clock.now();
            self.until.lock().unwrap().retain(|_, until| *until > now);
        }
    }

    concentric_test::store_suite!(UsedKeys, only = [once]);
}

macro_rules! faults {
    ($($fault:ident: $group:ident::$case:ident says $message:literal;)+) => {
        $(
            #[allow(non_snake_case, reason = "the name of the fault")]
            #[test]
            #[should_panic(expected = $message)]
            fn $fault() {
                cases::$group::$case::<Faulty<{ Fault::$fault as u8 }>>();
            }
        )+
    };
}

faults! {
    // Fences and versions.
    SavesWithAnyFence: runs::a_write_with_an_older_fence_fails
        says "`save` with the fence of an earlier claim must fail with `stale_claim`, but returned ()";
    RenewsALostLease: runs::a_write_with_an_older_fence_fails
        says "`renew` with the fence of an earlier claim must fail with `stale_claim`, but returned Held";
    EndsWithAnyFence: runs::a_write_with_an_older_fence_fails
        says "`end` with the fence of an earlier claim must fail with `stale_claim`";
    SuspendsWithAnyFence: runs::a_write_with_an_older_fence_fails
        says "`suspend` with the fence of an earlier claim must fail with `stale_claim`";
    KeepsTheClaimOfAWaitingRun: runs::a_write_after_a_suspension_fails
        says "`save` after a suspension must fail with `stale_claim`";
    ClaimsAnyVersion: runs::a_claim_of_another_version_fails
        says "`claim` of version 0 instead of";
    ComparesFences: runs::a_record_is_not_claimed_after_a_write
        says "`claim` of a record before an `amend` must fail with `already_resumed`";
    ReturnsTheOldLease: runs::a_claim_returns_the_record_that_a_read_returns
        says "a claimed run has changed: its lease is";
    AmendsAnyVersion: runs::a_state_is_amended_only_while_the_run_can_be_claimed
        says "`amend` of an older version must fail with `already_resumed`";
    FailsARepeatedEnd: runs::an_ended_run_stays_ended
        says "`end` with the newest fence must succeed, but failed with `run_ended`";
    // Outcomes, and the runs of a client id.
    ForgetsOutcomes: runs::an_ended_run_keeps_its_outcome
        says "the outcome of a run that ends with Ok(Completed) must be Some(Ok(Completed)), but is None";
    MergesKindsOfErrors: runs::an_ended_run_keeps_its_outcome
        says "must be Some(Err(Authentication)), but is Some(Err(Other))";
    KeepsTheLastOutcome: runs::a_repeated_end_keeps_the_first_outcome
        says "the outcome of the run `failed` that was ended twice must be Some(Err(Timeout)), but is Some(Ok(Completed))";
    ForgetsOutcomesOfWithdrawnRuns: runs::a_withdrawn_run_was_aborted_by_the_user
        says "the outcome of a withdrawn run must be Some(Ok(Aborted { reason: User })), but is None";
    ForgetsOutcomesOfChanges: threads_of_runs::a_change_records_the_outcome_of_its_run
        says "the outcome of a run that ended with a change must be Some(Ok(StepLimit)), but is None";
    EndsWaitingRuns: threads_of_runs::a_change_of_an_interrupted_run_does_not_end_it
        says "the status of a run after the change with which it is interrupted must be Running, but is Ended";
    FindsNoEndedRunOfAClient: runs::an_ended_run_keeps_its_outcome
        says "`find_by_client_id` must succeed, but failed with `run_not_found`";
    FindsTheOldestRunOfAClient: runs::of_runs_with_one_client_id_the_live_one_is_found
        says "the run that is found by its client id, of one that waits and a newer one, must be RunKey";
    FindsTheNewestRunOfAClient: runs::of_runs_with_one_client_id_the_live_one_is_found
        says "the run that is found by its client id, of one that is driven and two newer ones, must be RunKey";
    FindsRunsOfClientsOfOtherTenants: tenants_of_runs::another_tenant_reads_and_writes_no_run
        says "`find_by_client_id` of the run `driven` by another tenant must fail with `run_not_found`";
    // Replies and states.
    LosesReplies: runs::a_waiting_run_is_claimed_once
        says "the replies of a claim must be [Reply";
    ReplacesReplies: runs::accepted_replies_are_not_replaced
        says "the replies that were accepted first must be [Reply";
    LosesAWrite: runs::a_read_returns_what_was_written
        says "that a saved state is read as written must be true, but is false";
    LosesSomeWrites: model::random_operations_equal_those_of_the_memory_store
        says "its state is ";
    TruncatesLargeStates: runs::a_large_state_is_read_as_it_was_written
        says "`begin` with a state of 4 MiB must succeed, but failed with `unwritable`";
    AllowsOneClientIdTwice: runs::a_client_id_of_a_live_run_is_rejected
        says "`begin` with the client id of a driven run must fail with `run_live`";
    ForgetsAbandonedRunsAreLive: runs::a_client_id_of_a_live_run_is_rejected
        says "`is_live` of an abandoned run must be true, but is false";
    FindsTheOldestRun: runs::the_newest_run_with_an_interrupt_is_found
        says "the newest run with the interrupt must be RunKey";
    ListsRunsOfEachMessage: runs::the_runs_of_a_conversation_are_listed_in_order
        says "the list of the runs of another message must be []";
    // Leases.
    HasShortLeases: runs::a_running_run_is_claimed_only_after_its_lease
        says "`claim` a second before the end of a lease must fail with `already_resumed`";
    WrapsLongLeases: leases::the_longest_lease_lasts_for_a_hundred_years
        says "that a lease of 18446744073709551615.999999999s lasts for 100 years";
    ClaimsTooMany: leases::abandoned_runs_are_claimed_by_the_end_of_their_leases
        says "at most 0 abandoned runs must be []";
    HandsOutARunTwice: leases::an_abandoned_run_is_claimed_by_one_process
        says "the runs that two processes claimed, one after the other, must be";
    IgnoresQuarantine: leases::a_run_is_quarantined_after_five_takeovers
        says "`claim` of a quarantined run must fail with `run_quarantined`";
    SweepsQuarantinedRuns: leases::a_run_is_quarantined_after_five_takeovers
        says "the abandoned runs, without a quarantined one, must be []";
    ResetsTakeoversAtRenewals: leases::a_renewal_does_not_reset_takeovers
        says "the takeovers after a renewal must be 5, but is 0";
    CountsEachClaimAsATakeover: leases::a_claim_after_an_expired_lease_is_a_takeover
        says "the takeovers after a claim of a waiting run must be 0, but is 1";
    ReleasesAnyRun: leases::only_quarantined_runs_are_released
        says "the result of `release` of the run `abandoned` must be false, but is true";
    ForgetsACancellationAtATakeover: leases::a_cancellation_is_kept_for_a_takeover
        says "the renewal by the process that took the run over must be CancelRequested, but is Held";
    ForgetsACancellationOnceSeen: leases::a_cancellation_is_seen_by_each_renewal
        says "a later renewal after `cancel` must be CancelRequested, but is Held";
    KeepsACancellationForever: leases::a_suspension_forgets_a_cancellation
        says "a renewal after the cancelled run was suspended and claimed must be Held";
    CancelsAnyRun: leases::only_driven_and_abandoned_runs_are_cancelled
        says "the result of `cancel` of the run `waits` must be false, but is true";
    RemovesRunsTooEarly: runs::waiting_and_ended_runs_are_kept
        says "the status of the run `waits` after an hour must be Suspended, but is Ended";
    // Tenants.
    ReadsRunsOfOtherTenants: tenants_of_runs::another_tenant_reads_and_writes_no_run
        says "`get` of the run `driven` by another tenant must fail with `run_not_found`";
    FindsRunsOfOtherTenants: tenants_of_runs::another_tenant_reads_and_writes_no_run
        says "`find_by_interrupt` by another tenant must fail with `run_not_found`";
    ListsRunsOfOtherTenants: tenants_of_runs::another_tenant_reads_and_writes_no_run
        says "the runs that another tenant lists must be []";
    ListsWaitingRunsOfOtherTenants: tenants_of_runs::another_tenant_reads_and_writes_no_run
        says "the waiting runs that another tenant lists must be []";
    CancelsRunsOfOtherTenants: tenants_of_runs::another_tenant_reads_and_writes_no_run
        says "the result of `cancel` of the run `driven` by another tenant must be false";
    WithdrawsRunsOfOtherTenants: tenants_of_runs::another_tenant_reads_and_writes_no_run
        says "the number of runs that another tenant withdraws must be 0";
    ReleasesRunsOfOtherTenants: tenants_of_runs::a_quarantined_run_is_released_by_its_tenant_only
        says "the status after another tenant released its own run must be Quarantined";
    SharesEffects: tenants_of_ledger::tenants_do_not_share_effects
        says "the effect of another tenant must be New, but is Started";
    DeletesConversationsOfOtherTenants: tenants_of_threads::another_tenant_reads_and_writes_no_conversation
        says "the result of `delete` by another tenant must be false, but is true";
    DeletesOnlyConversationsOfTenants: tenants_of_every::nothing_of_a_deleted_tenant_is_left
        says "`save` of a deleted run must fail with `run_not_found`, but returned ()";
    DeletesAllTenants: tenants_of_every::nothing_of_a_deleted_tenant_is_left
        says "the entries of another tenant must be";
    SharesUsedKeys: once::tenants_do_not_share_used_keys
        says "`once` of a key of another tenant must be true, but is false";
    RevokesForOtherTenants: decisions::tenants_do_not_share_decisions
        says "the result of `revoke` by another tenant must be false, but is true";
    SharesMemories: memories::tenants_do_not_share_memories
        says "the memories of another tenant must be []";
    // Effects and keys.
    BeginsEffectsWithoutAClaim: ledger_of_runs::an_effect_requires_the_newest_claim
        says "`begin` of an effect with the fence of an earlier claim must fail with `stale_claim`";
    BeginsEffectsTwice: ledger::an_effect_begins_once
        says "the second `begin` of an effect must be Started, but is New";
    RetractsFinishedEffects: ledger::an_effect_without_an_outcome_is_retracted
        says "a finished effect after `retract` must be Finished";
    KeepsUsedKeysTooShort: once::a_used_key_is_kept_for_its_time
        says "`once` of a key that was used for 100 s, 50 s later, must be false, but is true";
    // Conversations.
    AppendsAtAnyVersion: threads::a_change_of_another_version_is_refused
        says "the result of `append` to another version than the stored one must be";
    AppendsTwice: threads::a_repeated_change_is_applied_once
        says "the conversation after a repeated change must be";
    ForgetsIdsOfChanges: threads::a_repeated_change_is_applied_once
        says "must succeed, but failed with `thread_moved`";
    EndsNoRun: threads_of_runs::a_change_ends_its_run
        says "the status of a run after the change that ends it must be";
    AppendsForDeletedRuns: threads_of_runs::a_deleted_run_does_not_bring_its_conversation_back
        says "`append` of the run `driven 0` that was deleted with its conversation must fail with `run_not_found`";
    AppendsForLostRuns: threads_of_runs::a_change_of_a_lost_run_is_refused
        says "must fail with `stale_claim`";
    SkipsATurn: threads::pages_of_turns_cover_a_conversation
        says "the turns from position 1 on must be (7, [\"1\"]), but is (7, [\"2\"])";
    ReadsTheOldestTurns: threads::pages_of_turns_cover_a_conversation
        says "the newest turns with the limit 1 must be (7, [\"6\"]), but is (7, [\"0\"])";
    ReadsNoSharedTurns: threads::pages_of_a_fork_have_the_turns_of_its_origins
        says "the turns of fork 20 of a fork from position 0 on must be (22, [\"0\"])";
    FailsBeyondTheEnd: threads::a_page_beyond_the_end_is_empty
        says "`turns` of the conversation `empty` must succeed, but failed with `run_not_found`";
    ReadsAtLeastOneTurn: threads::a_page_beyond_the_end_is_empty
        says "the turns of a page of at most 0 must be Some([]), but is Some([\"b\"])";
    ReadsTooManyTurns: threads::a_page_has_at_most_500_turns
        says "the number of turns of a page must be 500, but is 601";
    ReadsTurnsOfOtherTenants: tenants_of_threads::another_tenant_reads_and_writes_no_conversation
        says "the turns that another tenant reads must be None";
    KeepsDeletedConversations: threads::forks_survive_the_deletion_of_their_origin
        says "the result of a second `delete` must be false, but is true";
    RepeatsAPage: threads::conversations_are_listed_in_pages
        says "the second page must be \"b:3\"";
    ListsById: threads::conversations_are_listed_in_pages
        says "all conversations must be";
    ListsWithoutTimes: threads::conversations_are_listed_in_pages
        says "all conversations must be";
    KeepsRunsOfDeletedConversations: threads_of_runs::a_deleted_conversation_takes_its_runs_with_it
        says "`get` of the run `run` of a deleted conversation must fail with `run_not_found`";
    // Decisions and memories.
    RecallsAllDecisions: decisions::a_decision_applies_within_its_span
        says "the decisions of the run and thread must be";
    ForgetsAllMemories: memories::memories_are_forgotten_one_by_one_or_all_at_once
        says "the number of forgotten memories must be 1, but is 3";
    // Caches.
    SharesCachedValues: cache::tenants_do_not_share_cached_values
        says "the value of another tenant must be None";
    KeepsTheFirstCachedValue: cache::a_cached_value_replaces_one_with_the_same_key
        says "the entry after a second write must be Some(CacheEntry { value: [116, 119, 111]";
    ServesExpiredValues: cache::a_cached_value_expires_after_its_time
        says "the value that is kept for no time must be None";
    ExtendsCachedValues: cache::a_read_does_not_extend_the_time_of_a_cached_value
        says "the age after 119 s must be Some(119s), but is Some(59s)";
    TruncatesCachedValues: cache::a_cached_value_is_read_as_it_was_written
        says "that 1048576 bytes are read as written must be true, but is false";
    IgnoresSpaces: cache::each_part_of_a_key_separates_cached_values
        says "must be None, but is Some";
    RemovesAllSpaces: cache::cached_values_are_removed_by_conversation_and_space
        says "the entries after `remove_entries` of None and Some(\"a\") must be";
    KeepsCachedValuesOfDeletedConversations: cache_of_threads::a_deleted_conversation_takes_its_cached_values_with_it
        says "after `delete` of a conversation must be None";
    // Quotas and budgets.
    IgnoresOtherCallers: quotas::a_period_has_no_more_calls_than_the_quota
        says "the calls of another process, and their wait,";
    HasFullPeriodsTwice: quotas::a_period_has_no_more_calls_than_the_quota
        says "the calls of another process, and their wait,";
    ServesInOrderOfArrival: quotas::owners_are_served_in_turns
        says "calls of two owners are almost all of 22, and equal,";
    ForgetsReturnedAmounts: quotas::unused_amounts_are_returned
        says "that a call begins after tokens were returned must be true";
    ForgetsRejections: quotas::a_rejected_call_closes_the_bucket_for_all
        says "the calls of another process while the bucket is closed must be 0";
    IgnoresProviders: quotas::the_limits_of_a_provider_are_followed
        says "the calls of which a provider has two left must be 2";
    MixesBuckets: quotas::buckets_are_separate
        says "must be [1], but is [0]";
    GrantsAllPermits: quotas::permits_are_divided_and_end_with_their_leases
        says "the permits of the first process must be 10";
    KeepsPermitsOfTheDead: quotas::permits_are_divided_and_end_with_their_leases
        says "those of a process after the lease of the other one must be 10";
    TakesLateRequests: quotas::permits_are_divided_and_end_with_their_leases
        says "those of a request that arrives after a later one of its process must be 0";
    ReservesTheOutermostOnly: budgets::all_budgets_are_reserved_or_none
        says "the budget that another call does not fit must be";
    SettlesTwice: budgets::a_reservation_is_settled_once
        says "the budget after a settlement must be (25, 0)";
    FreesReservationsOfTheDead: budgets::a_reservation_of_a_dead_process_is_charged_in_full
        says "the budget before the end of the leases must be (0, 700)";
    ForgetsLateSettlements: budgets::a_reservation_of_a_dead_process_is_charged_in_full
        says "the budget after late settlements must be (698, 0)";
    HasNoWindows: budgets::a_window_begins_anew
        says "the spending after";
    ForgetsExtensions: budgets::an_extension_raises_the_limits
        says "that it fits after an extension must be true";
    SharesBudgets: budgets::tenants_do_not_share_budgets
        says "the budget after a settlement of another tenant must be";
    // Races: the check and the change are not one step.
    ClaimsAfterACheck: races::one_of_two_processes_claims_a_waiting_run
        says "`claim` by two processes: the number of processes that succeeded, of two, must be 1, but is 2";
    AppendsAfterACheck: races_of_threads::one_of_two_processes_appends_at_a_version
        says "`append` by two processes at one version: the number of processes that succeeded";
    UsesAKeyAfterACheck: races_of_once::one_of_two_processes_uses_a_key
        says "the number of processes that use a key first, of two, must be 1, but is 2";
    SweepsAfterACheck: races::two_processes_claim_different_abandoned_runs
        says "the runs that two processes claimed, each once, must be";
}
