//! Scenarios that leave out one rule each. A rule that nothing notices is no rule: each search must end in
//! a violation, and the trace says what the rule is for.

use crate::config::{Attempts, Config, Faults, Mutation, WriteModel};
use crate::search::search;

/// Searches a scenario without one of its rules and expects this promise to break.
#[track_caller]
fn breaks(config: Config, promise: &str) {
    let title = format!("without {:?}", config.mutations);
    match search(&config) {
        Ok(seen) => panic!("{title}: nothing noticed it in {} states", seen.states),
        Err(found) => {
            println!("{title}, {found}");
            assert!(
                found.rule.contains(promise),
                "{title} breaks another promise than \"{promise}\": {found}"
            );
        }
    }
}

const GIVEN_BACK: &str = "a write landed in pages that were given back";

fn one_sided(faults: Faults, mutations: &'static [Mutation]) -> Config {
    Config { faults, late: (1, 1), ..Config::new(WriteModel::OneSided).without(mutations) }
}

fn two_sided(faults: Faults, mutations: &'static [Mutation]) -> Config {
    Config { faults, late: (1, 1), ..Config::new(WriteModel::TwoSided).without(mutations) }
}

#[test]
fn an_answer_before_writes_settle_is_caught() {
    let faults = Faults { sender_aborts: 1, ..Faults::default() };
    breaks(one_sided(faults, &[Mutation::EarlyQuiet]), GIVEN_BACK);
    breaks(one_sided(Faults::default(), &[Mutation::EarlyDone]), "Success in use 0 but not all bytes");
}

#[test]
fn a_link_down_taken_as_quiet_is_caught() {
    let faults = Faults { breaks: 1, ..Faults::default() };
    breaks(one_sided(faults, &[Mutation::DownIsQuiet]), GIVEN_BACK);
    let faults = Faults { sender_deaths: 1, ..Faults::default() };
    breaks(one_sided(faults, &[Mutation::DownIsQuiet]), GIVEN_BACK);
}

#[test]
fn a_grant_that_outlives_its_link_is_caught() {
    let faults = Faults { breaks: 1, reconnects: 1, ..Faults::default() };
    breaks(one_sided(faults, &[Mutation::UnboundGrant]), GIVEN_BACK);
}

#[test]
fn an_abort_that_leaves_its_parked_join_is_caught() {
    let faults = Faults { receiver_aborts: 1, ..Faults::default() };
    breaks(one_sided(faults, &[Mutation::NoTombstone]), GIVEN_BACK);
}

#[test]
fn an_applier_that_revoke_does_not_wait_for_is_caught() {
    let faults = Faults { receiver_aborts: 1, ..Faults::default() };
    breaks(two_sided(faults, &[Mutation::RevokedAtOnce]), GIVEN_BACK);
    let faults = Faults { doubles: 1, ..Faults::default() };
    breaks(two_sided(faults, &[Mutation::RevokedAtOnce, Mutation::ApplyTwice]), GIVEN_BACK);
}

#[test]
fn a_count_of_writes_that_are_not_distinct_is_caught() {
    let faults = Faults { doubles: 1, ..Faults::default() };
    let config = Config { writes: 2, ..two_sided(faults, &[Mutation::CountEvery, Mutation::ApplyTwice]) };
    breaks(config, "Success in use 0 but not all bytes");
}

#[test]
fn a_damaged_copy_over_a_good_one_is_caught() {
    let faults = Faults { doubles: 1, damages: 1, ..Faults::default() };
    breaks(two_sided(faults, &[Mutation::ApplyTwice]), "Success in use 0 but not all bytes");
}

#[test]
fn a_second_attempt_that_adopts_the_first_one_s_join_is_caught() {
    for model in [WriteModel::OneSided, WriteModel::TwoSided] {
        let config = Config { uses: 2, ..Config::new(model).without(&[Mutation::AnyAttempt]) };
        breaks(config, "bytes of another use");
    }
}

#[test]
fn a_sender_that_forgets_its_open_writes_is_caught() {
    let faults = Faults { sender_aborts: 1, ..Faults::default() };
    breaks(two_sided(faults, &[Mutation::EagerSender]), "a write reads pages of S0");
}

#[test]
fn a_refusal_without_quiet_is_caught() {
    let config = Config { lists: [0b01, 0b11], ..Config::fan_out(WriteModel::OneSided) };
    breaks(config.without(&[Mutation::NoQuietAfterRefusal]), "needed 1 deadlines");
}

#[test]
fn a_refused_destination_that_keeps_its_room_waiting_is_caught() {
    let config = Config { lists: [0b11, 0b10], ..Config::fan_out(WriteModel::OneSided) };
    breaks(config.without(&[Mutation::RefusalKeepsWaiting]), "needed 1 deadlines");
}

#[test]
fn a_failure_told_only_to_destinations_that_granted_is_caught() {
    let faults = Faults { sender_aborts: 1, ..Faults::default() };
    let config = Config { faults, ..Config::new(WriteModel::TwoSided) };
    breaks(config.without(&[Mutation::NoFailedBeforeGrant]), "R0 needed 1 deadlines");
}

#[test]
fn a_failure_told_only_to_sources_with_a_grant_is_caught() {
    let faults = Faults { receiver_aborts: 1, ..Faults::default() };
    let config = Config { faults, ..Config::new(WriteModel::TwoSided) };
    breaks(config.without(&[Mutation::NoAbortBeforeGrant]), "S0 needed 1 deadlines");
}

#[test]
fn a_tombstone_that_a_later_sender_does_not_heed_is_caught() {
    let faults = Faults { receiver_aborts: 1, ..Faults::default() };
    let config = Config { faults, ..Config::fan_out(WriteModel::TwoSided) };
    breaks(config.without(&[Mutation::MuteTombstone]), "needed 1 deadlines");
}

#[test]
fn a_live_sender_that_refuses_the_next_attempt_is_caught() {
    let faults = Faults { receiver_aborts: 1, breaks: 1, reconnects: 1, ..Faults::default() };
    let config = one_sided(faults, &[Mutation::RefuseOtherAttempt]);
    breaks(Config { uses: 2, ..config }, "a second use failed");
}

#[test]
fn a_tombstone_that_answers_for_ever_is_caught() {
    let faults = Faults { sender_aborts: 1, ..Faults::default() };
    let config = one_sided(faults, &[Mutation::EndlessTombstone]);
    breaks(Config { uses: 2, attempts: Attempts::Same, ..config }, "a second use failed");
}

/// Not a rule left out but a limit of the protocol: only numbered attempts tell a new use from what is
/// still on its way from an old one.
#[test]
fn a_reused_attempt_number_can_inherit_a_failure() {
    let faults = Faults { sender_aborts: 1, receiver_aborts: 1, ..Faults::default() };
    let config = Config { attempts: Attempts::Same, faults, ..Config::new(WriteModel::TwoSided) };
    breaks(Config { uses: 2, late: (2, 2), ..config }, "a second use failed");
}

/// The same limit, for a caller that does not wait until both ends are over and `Safe`.
#[test]
fn an_attempt_number_reused_at_once_can_mix_two_uses() {
    let faults = Faults { sender_aborts: 1, ..Faults::default() };
    let config = Config { attempts: Attempts::Careless, faults, ..Config::new(WriteModel::TwoSided) };
    breaks(Config { uses: 2, late: (1, 1), ..config }, "bytes of another use");
}
