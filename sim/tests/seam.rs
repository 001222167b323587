//! Promises of the seam beyond verbs, on the simulated fabric.
#![expect(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    reason = "tests"
)]

#[expect(dead_code, reason = "another test program uses more of it")]
mod suite;

use doorbell_sim::{Fabric, Host};
use suite::{End, Rig, hosts};

/// The same two hosts on another fabric each time.
struct Simulated;

impl Rig for Simulated {
    type P = Host;

    fn ends(&self) -> [End<Host>; 2] {
        hosts::pair(&Fabric::new())
    }
}

macro_rules! simulated {
    ($($module:ident: $($test:ident),+;)+) => {$(
        mod $module {
            $(#[test] fn $test() { crate::suite::$module::$test(&crate::Simulated); })+
        }
    )+};
}

simulated! {
    data:
        inline_bytes_and_empty_messages,
        windows_are_checked_locally,
        unequal_path_mtus_fail_long_messages;
    ownership:
        a_slot_moves_in_by_posting_and_back_by_retiring,
        a_slot_dropped_elsewhere_goes_home,
        a_lease_is_empty_and_its_length_is_cut,
        an_arena_may_go_before_its_slots,
        an_unrung_batch_sends_its_slots_home,
        what_never_completed_goes_home_with_the_queue_pair,
        the_queue_pair_lives_until_its_last_part_goes,
        what_is_kept_is_redeemed_once,
        a_completion_of_another_queue_is_rejected,
        an_older_completion_is_spent_by_a_newer,
        receives_behind_a_dropped_completion_come_back_empty,
        a_channel_is_taken_once,
        what_is_claimed_is_made_elsewhere_or_free_again,
        a_stale_completion_names_nothing_of_the_next_queue_pair,
        what_cannot_be_made_is_refused;
    ranges:
        a_window_is_there_while_a_request_is_in_flight,
        the_slot_of_a_range_has_no_bytes;
    reset:
        a_reset_sends_all_slots_home_once,
        a_completion_kept_over_a_reset_is_rejected,
        a_reset_wants_both_its_halves;
    detached:
        a_detached_slot_is_attached_once,
        a_slot_detached_elsewhere_brings_its_bytes,
        what_is_not_detached_is_not_attached,
        words_of_another_arena_attach_nothing,
        the_length_of_words_is_cut,
        lost_words_keep_their_slot_out,
        of_threads_that_attach_a_slot_one_gets_it,
        an_attacher_outlives_its_arena;
    datagrams:
        a_slot_moves_in_and_comes_back_with_what_came,
        behind_a_dropped_completion_slots_come_back_empty,
        an_unrung_batch_sends_its_slots_home,
        what_never_completed_goes_home_with_its_queue_pair,
        an_address_handle_is_named_until_it_is_released,
        a_full_queue_hands_slots_back;
    shared_receive:
        completions_are_redeemed_in_any_order,
        what_is_not_of_the_queue_is_rejected_and_counted,
        a_stale_completion_names_nothing_of_the_next_shared_queue,
        shared_slots_go_home_when_the_last_queue_pair_is_gone,
        a_shared_receive_is_taken_after_its_half_is_gone,
        a_full_shared_queue_hands_slots_back,
        an_unrung_shared_batch_sends_its_slots_home,
        what_cannot_share_is_refused;
}
