//! Whole engines in one process: handles, rooms, failures and ends, as a caller sees them; over every
//! transport.
#![expect(clippy::cast_possible_truncation, clippy::unwrap_used, reason = "test code, with small numbers")]

mod aborts;
mod bed;
mod double;
mod driving;
mod failures;
mod groups;
mod outcomes;
#[cfg(all(feature = "shm", feature = "tcp"))]
mod paths;
mod peers;
mod regions;
mod rooms;

macro_rules! engines {
    ($($module:ident: $($test:ident)*;)*) => {
        mod local {
            $($(#[test]
            fn $test() {
                crate::$module::$test(&crate::bed::Network::local());
            })*)*
        }

        #[cfg(feature = "shm")]
        mod shm {
            $($(#[test]
            fn $test() {
                crate::$module::$test(&crate::bed::Network::Shm);
            })*)*
        }

        #[cfg(feature = "tcp")]
        mod tcp {
            $($(#[test]
            fn $test() {
                crate::$module::$test(&crate::bed::Network::Tcp);
            })*)*
        }
    };
}

engines! {
    aborts:
        a_storm_of_aborts_by_prefill_ends_every_room_of_decode
        a_storm_of_aborts_by_decode_ends_every_room_of_prefill
        ends_that_abort_at_the_same_time_both_get_their_pages_back;
    rooms:
        a_chunked_prompt_arrives_byte_for_byte
        held_tokens_are_not_moved_and_rows_are
        layers_can_be_used_as_they_come_in_any_order
        a_fully_cached_prompt_moves_nothing_but_its_payload
        an_abort_reaches_the_other_end_with_its_reason
        a_room_number_has_one_live_use
        a_small_room_does_not_wait_for_a_large_one
        a_prompt_longer_than_what_was_lent_fails_both_ends_before_a_byte_moves;
    failures:
        a_sender_without_receiver_ends_by_itself_and_says_why
        a_receiver_that_comes_late_hears_that_the_sender_gave_up
        a_receiver_that_gave_up_early_ends_the_sender_that_comes_late
        a_refused_request_ends_its_receiver_at_once
        a_peer_that_closes_ends_those_who_wait_for_it
        closing_one_end_fails_the_rooms_of_both
        a_dropped_handle_ends_the_room
        no_byte_is_read_before_the_mark_is_ready
        a_mark_that_will_never_be_ready_fails_the_room
        pools_that_differ_fail_both_ends_and_name_the_field
        another_model_or_rank_is_refused_by_name
        another_model_is_served_if_both_sides_do_not_mind
        a_peer_that_is_not_there_is_named_when_the_deadline_passes
        a_receiver_that_gave_up_while_connecting_still_ends_its_sender
        sources_that_cannot_be_are_refused_at_once
        misuse_is_answered_at_once_and_touches_no_room;
    outcomes:
        a_group_succeeds_when_its_last_rank_has
        one_rank_that_fails_fails_those_that_had_succeeded
        the_first_of_several_causes_is_that_of_all_ranks
        ranks_with_a_common_source_name_the_same_cause
        senders_share_an_outcome_as_receivers_do
        a_rank_that_closes_is_named_by_all_the_others
        a_rank_that_never_opens_the_room_is_named_when_its_time_is_over
        a_room_is_used_again_a_thousand_times_with_one_outcome_each
        attempts_have_outcomes_of_their_own
        a_rank_that_went_before_fails_the_next_rooms_fast
        a_frozen_rank_fails_the_room_of_its_group_whoever_counts
        members_are_named_with_their_addresses;
    peers:
        a_peer_that_went_fails_new_rooms_fast_and_serves_again_when_it_is_back
        a_frozen_peer_is_lost_when_the_silence_is_too_long_and_a_busy_one_is_not
        a_peer_that_freezes_before_its_last_word_is_the_one_that_is_lost
        two_processes_of_one_name_do_not_disturb_each_other
        a_room_that_waits_outlives_a_short_restart_of_its_peer;
    groups:
        ranks_that_are_cut_differently_feed_each_other
        dealt_out_tokens_are_gathered_and_dealt_out_anew
        rooms_deal_out_their_tokens_in_their_own_way
        replicas_take_turns_and_those_who_owe_nothing_succeed_too
        groups_that_cannot_feed_each_other_are_refused_by_name;
    regions:
        pools_are_replaced_a_thousand_times_while_the_engine_lives
        dropped_handles_give_their_pages_back_through_the_feed;
    driving:
        an_engine_without_thread_runs_on_its_descriptor_alone
        a_mark_signalled_just_before_the_driver_sleeps_is_not_slept_over
        the_change_feed_names_every_room_that_ended
        futures_tell_offers_grants_progress_and_ends
        a_receiver_waits_until_its_group_and_the_owner_of_its_room_are_known
        a_caller_that_drives_by_hand_can_sleep_after_a_ring
        driving_a_closed_engine_does_nothing
        a_room_in_which_nothing_happens_wakes_nobody
        a_wrong_owner_is_refused_by_name;
}
