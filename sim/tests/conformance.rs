//! The suite, on the simulated fabric.
#![expect(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    reason = "tests"
)]

mod suite;

use doorbell_core::{Gid, IpPrefix, Mtu};
use doorbell_sim::{Fabric, Host, PortConfig, Quirks};
use suite::{End, Rig};

/// Two hosts on one subnet, with an MTU like a software device's.
fn two_hosts(fabric: &Fabric) -> [End<Host>; 2] {
    ["10.0.0.1", "10.0.0.2"].map(|address| {
        let address = address.parse().unwrap();
        let prefix = IpPrefix::new(address, 24).unwrap();
        let port = PortConfig {
            active_mtu: Some(Mtu::B1024),
            ..PortConfig::new("sim0", &[prefix])
        };
        let provider = fabric.host("host", vec![port]).unwrap();
        let gid = Gid::from_ip(address);
        End {
            provider,
            device: "sim0".into(),
            port: 1,
            gid_index: 0,
            gid,
        }
    })
}

/// A fabric where nothing goes wrong.
struct Simulated;

impl Rig for Simulated {
    type P = Host;

    fn ends(&self) -> [End<Host>; 2] {
        two_hosts(&Fabric::new())
    }
}

/// Devices as Soft-RoCE is.
macro_rules! soft {
    ($name:ident, $quirks:expr) => {
        struct $name;

        impl Rig for $name {
            type P = Host;

            fn ends(&self) -> [End<Host>; 2] {
                two_hosts(&Fabric::builder().quirks(self.quirks()).build())
            }

            fn quirks(&self) -> Quirks {
                $quirks
            }
        }
    };
}

soft!(SoftRoce6, Quirks::RXE_6_1);
soft!(SoftRoce7, Quirks::RXE_7);
soft!(Hardware, Quirks::MLX5);

/// A fabric where every packet comes twice, and later than the one behind it: that changes
/// nothing of what verbs promise (S15).
struct Doubled;

impl Rig for Doubled {
    type P = Host;

    fn ends(&self) -> [End<Host>; 2] {
        let plan = "duplicate every 1st packet of any->any; reorder every 5th packet of any->any";
        two_hosts(&Fabric::builder().plan(plan.parse().unwrap()).build())
    }
}

/// Every test of the suite, on a rig.
macro_rules! suite_on {
    ($rig:ident: $($module:ident: $($test:ident),+;)+) => {$(
        mod $module {
            $(#[test] fn $test() { crate::suite::$module::$test(&crate::$rig); })+
        }
    )+};
}

macro_rules! each {
    ($($tests:tt)+) => {
        mod plain { suite_on! { Simulated: $($tests)+ } }
        mod doubled { suite_on! { Doubled: $($tests)+ } }
        mod soft_roce_6 { suite_on! { SoftRoce6: $($tests)+ } }
        mod soft_roce_7 { suite_on! { SoftRoce7: $($tests)+ } }
        mod hardware { suite_on! { Hardware: $($tests)+ } }
    };
}

each! {
    states:
        s01_only_known_transitions,
        s02_a_bad_modify_changes_nothing,
        s03_posting_is_allowed_by_state,
        s03_in_error_both_are_accepted_and_flushed,
        s04_what_was_staged_before_a_refused_request_is_posted,
        s29_more_than_was_granted_is_refused;
    completions:
        s05_a_success_completes_only_if_signaled,
        s05_error_always_completes,
        s21_a_queue_that_overruns_is_lost,
        s23_a_notification_is_one_shot,
        s23_solicited_and_failed_completions_notify,
        s23_a_queue_made_without_cannot_be_armed,
        s23_a_notification_ends_a_sleep;
    data:
        s17_a_send_consumes_one_receive,
        s17_a_write_with_immediate_consumes_one_receive_untouched,
        s17_write_and_read_consume_no_receive,
        s17_a_message_gathers_and_scatters,
        s17_the_receive_is_needed_when_the_immediate_comes,
        s16_psns_wrap_over_long_messages,
        s16_long_messages_are_cut_and_put_together,
        s18_a_fence_waits_for_what_is_read,
        s20_memory_may_be_polled_where_the_device_says_so,
        s18_requests_complete_in_order_and_data_before_its_message,
        s18_what_waits_holds_back_what_follows,
        s26_the_right_to_write_is_enough,
        s27_atomics_work_on_words,
        inline_bytes_and_empty_messages,
        windows_are_checked_locally;
    faults:
        s06_one_cause_then_everything_is_flushed_in_order,
        s07_a_failure_tells_nothing_else,
        s08_a_slot_of_another_domain_is_not_sent,
        s08_an_inline_slot_needs_no_key,
        s09_a_wrong_key_opens_nothing,
        s09_nothing_beyond_the_window_is_reached,
        s09_rights_of_window_and_queue_pair_are_both_needed,
        s09_a_refused_write_with_immediate_fails_the_receive,
        s09_a_dropped_window_is_closed,
        s09_a_window_of_another_domain_is_closed,
        s10_a_receive_that_is_too_small_fails_both,
        s10_a_receive_that_just_fits_is_enough,
        s11_a_receive_of_another_domain_fails_both,
        s12_seven_retries_wait_for_a_receive,
        s12_fewer_retries_are_exhausted,
        s13_a_peer_that_is_silent_ends_the_retries,
        s24_nothing_is_told_of_what_is_gone,
        s30_the_first_packet_is_told_to_who_cannot_send_yet,
        s28_more_reads_than_may_be_outstanding_are_done_in_turn,
        s14_a_peer_that_is_gone_does_not_answer,
        s14_a_peer_that_failed_does_not_answer,
        s14_what_waits_learns_that_the_peer_is_gone,
        s27_an_atomic_must_be_aligned,
        s28_a_responder_without_depth_refuses,
        s28_a_requester_stalls_at_its_depth,
        unequal_path_mtus_fail_long_messages;
    ownership:
        a_slot_moves_in_by_posting_and_back_by_retiring,
        a_slot_dropped_elsewhere_goes_home,
        a_lease_is_empty_and_its_length_is_cut,
        an_arena_may_go_before_its_slots,
        an_unrung_batch_sends_its_slots_home,
        what_never_completed_goes_home_with_the_queue_pair,
        the_queue_pair_lives_until_its_last_part_goes,
        a_completion_of_another_queue_is_rejected,
        an_older_completion_is_spent_by_a_newer,
        receives_behind_a_dropped_completion_come_back_empty,
        a_channel_is_taken_once,
        a_stale_completion_names_nothing_of_the_next_queue_pair,
        what_cannot_be_made_is_refused;
    detached:
        a_detached_slot_is_attached_once,
        a_slot_detached_elsewhere_brings_its_bytes,
        what_is_not_detached_is_not_attached,
        words_of_another_arena_attach_nothing,
        the_length_of_words_is_cut,
        lost_words_keep_their_slot_out,
        of_threads_that_attach_a_slot_one_gets_it,
        an_attacher_outlives_its_arena;
    shared_receive:
        s17_messages_of_every_queue_pair_consume_shared_receives,
        completions_are_redeemed_in_any_order,
        s17_a_shared_receive_scatters,
        s12_what_waits_goes_on_with_a_shared_receive,
        s22_the_limit_tells_once_when_fewer_are_left,
        s22_a_failed_queue_pair_flushes_nothing_shared,
        s10_only_the_receive_that_was_taken_fails,
        what_is_not_of_the_queue_is_rejected_and_counted,
        a_stale_completion_names_nothing_of_the_next_shared_queue,
        shared_slots_go_home_when_the_last_queue_pair_is_gone,
        a_shared_receive_is_taken_after_its_half_is_gone,
        a_full_shared_queue_hands_slots_back,
        an_unrung_shared_batch_sends_its_slots_home,
        what_cannot_share_is_refused;
}
