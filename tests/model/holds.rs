//! Scenarios in which every promise holds.
//!
//! `late` is how many deadlines a sender's and a receiver's session may need once something has gone wrong
//! somewhere: none where everybody can be told. A sender cannot be told whose receiver's join was lost with
//! its link, or whose other receiver died before it joined; a receiver has to wait for a writer that can no
//! longer answer, or for such a sender.

use crate::config::{Attempts, Config, Faults, Mutation, WriteModel};
use crate::search::search;

/// Searches a scenario and fails with the shortest trace if a promise breaks.
#[track_caller]
fn holds(config: Config) {
    match search(&config) {
        Ok(seen) => {
            println!("{} states, {} ends, {} of them good", seen.states, seen.ends, seen.successes);
            let lists = &config.lists[..usize::from(config.receivers)];
            let agreed = lists.iter().all(|&list| list == config.everybody());
            assert_eq!(seen.successes > 0, agreed, "a room can succeed if its receivers agree: {config:?}");
        }
        Err(found) => panic!("{config:?}\n{found}"),
    }
}

#[track_caller]
fn holds_on_both(scenario: impl Fn(WriteModel) -> Config) {
    holds(scenario(WriteModel::OneSided));
    holds(scenario(WriteModel::TwoSided));
}

/// One deadline for a sender whose join got lost; one for a receiver that must drain a link which it cannot
/// revoke on its own.
fn late(model: WriteModel) -> (u8, u8) {
    match model {
        WriteModel::OneSided => (1, 1),
        WriteModel::TwoSided => (1, 0),
    }
}

/// One abort on each side.
const ABORTS: Faults = Faults { sender_aborts: 1, receiver_aborts: 1, ..NO_FAULTS };

const NO_FAULTS: Faults = Faults {
    sender_aborts: 0,
    receiver_aborts: 0,
    breaks: 0,
    reconnects: 0,
    sender_deaths: 0,
    receiver_deaths: 0,
    freezes: 0,
    write_errors: 0,
    doubles: 0,
    damages: 0,
};

#[test]
fn aborts_reach_everybody_at_any_time() {
    holds_on_both(|model| Config { writes: 2, faults: ABORTS, ..Config::new(model) });
}

#[test]
fn two_senders_fail_together() {
    holds_on_both(|model| Config { senders: 2, faults: ABORTS, ..Config::new(model) });
    let faults = Faults { sender_aborts: 1, ..NO_FAULTS };
    holds(Config { senders: 2, writes: 2, faults, ..Config::new(WriteModel::OneSided) });
}

#[test]
fn two_receivers_fail_together() {
    holds_on_both(|model| Config { faults: ABORTS, ..Config::fan_out(model) });
    let faults = Faults { receiver_aborts: 1, ..NO_FAULTS };
    holds(Config { writes: 2, faults, ..Config::fan_out(WriteModel::OneSided) });
}

#[test]
fn receivers_that_name_different_destinations_end() {
    for lists in [[0b11, 0b10], [0b01, 0b10], [0b01, 0b11]] {
        holds_on_both(|model| Config { lists, faults: ABORTS, ..Config::fan_out(model) });
    }
}

#[test]
fn a_receiver_that_does_not_name_itself_ends() {
    for lists in [[0b11, 0b01], [0b10, 0b01]] {
        holds_on_both(|model| Config { lists, faults: ABORTS, late: (1, 1), ..Config::fan_out(model) });
    }
}

#[test]
fn a_link_may_break_and_come_back() {
    let faults = Faults { breaks: 1, reconnects: 1, ..ABORTS };
    holds_on_both(|model| Config { writes: 2, faults, late: late(model), ..Config::new(model) });
}

#[test]
fn a_link_of_many_may_break() {
    let faults = Faults { breaks: 1, ..NO_FAULTS };
    holds_on_both(|model| Config { senders: 2, faults, late: late(model), ..Config::new(model) });
    holds_on_both(|model| Config { faults, late: (1, 1), ..Config::fan_out(model) });
}

#[test]
fn a_room_of_three_survives_a_reconnect_of_one() {
    let faults = Faults { breaks: 1, reconnects: 1, ..ABORTS };
    holds(Config { senders: 2, faults, late: (1, 1), ..Config::new(WriteModel::OneSided) });
    holds(Config { faults, late: (1, 1), ..Config::fan_out(WriteModel::OneSided) });
}

#[test]
fn a_second_attempt_does_not_meet_the_first() {
    holds_on_both(|model| Config { uses: 2, writes: 2, faults: ABORTS, ..Config::new(model) });
    let faults = Faults { breaks: 1, reconnects: 1, ..ABORTS };
    holds_on_both(|model| Config { uses: 2, faults, late: late(model), ..Config::new(model) });
}

#[test]
fn second_attempts_of_several_parties_do_not_meet_the_first() {
    let faults = Faults { sender_aborts: 1, ..NO_FAULTS };
    holds(Config { senders: 2, uses: 2, faults, ..Config::new(WriteModel::OneSided) });
    let faults = Faults { receiver_aborts: 1, ..NO_FAULTS };
    holds(Config { uses: 2, faults, ..Config::fan_out(WriteModel::OneSided) });
}

/// The reuse is safe, but it may inherit the failure of the first use: see `mutations`.
#[test]
fn an_attempt_number_may_be_used_again_when_both_ends_are_safe() {
    let faults = Faults { breaks: 1, reconnects: 1, ..ABORTS };
    holds_on_both(|model| Config {
        uses: 2,
        attempts: Attempts::Same,
        clean_second_use: false,
        faults,
        late: (2, 2),
        ..Config::new(model)
    });
    // With one failure alone nothing is left that the second use could inherit.
    let faults = Faults { sender_aborts: 1, ..NO_FAULTS };
    holds_on_both(|model| Config { uses: 2, attempts: Attempts::Same, faults, ..Config::new(model) });
}

/// A grant that is bound to its link and the purge of parked joins each close the same hole; with the
/// first in place the second only saves a sender from a join that is dead already.
#[test]
fn a_bound_grant_is_harmless_even_if_it_outlives_its_link() {
    let faults = Faults { breaks: 1, reconnects: 1, ..NO_FAULTS };
    let mutations = &[Mutation::ParkedOutlivesLink];
    holds_on_both(|model| Config { uses: 2, mutations, faults, late: late(model), ..Config::new(model) });
}

#[test]
fn processes_may_die() {
    let faults = Faults { sender_deaths: 1, receiver_deaths: 1, ..NO_FAULTS };
    holds_on_both(|model| Config { writes: 2, faults, late: late(model), ..Config::new(model) });
    let faults = Faults { sender_deaths: 1, ..NO_FAULTS };
    holds_on_both(|model| Config { senders: 2, faults, late: late(model), ..Config::new(model) });
    let faults = Faults { receiver_deaths: 1, ..NO_FAULTS };
    holds_on_both(|model| Config { faults, late: (1, 1), ..Config::fan_out(model) });
}

#[test]
fn a_sender_may_freeze_and_go_on() {
    let faults = Faults { freezes: 1, breaks: 1, reconnects: 1, ..ABORTS };
    for vouches in [true, false] {
        holds_on_both(|model| Config { faults, vouches, late: late(model), ..Config::new(model) });
    }
    let faults = Faults { freezes: 1, ..NO_FAULTS };
    holds_on_both(|model| Config { senders: 2, faults, late: late(model), ..Config::new(model) });
    holds_on_both(|model| Config { uses: 2, faults, late: late(model), ..Config::new(model) });
}

#[test]
fn a_frozen_sender_never_holds_pages_of_a_two_sided_link() {
    let faults = Faults { freezes: 1, receiver_aborts: 1, ..NO_FAULTS };
    holds(Config { writes: 2, faults, ..Config::new(WriteModel::TwoSided) });
}

#[test]
fn a_failed_put_ends_its_room() {
    let faults = Faults { write_errors: 1, ..ABORTS };
    holds(Config { writes: 2, faults, ..Config::new(WriteModel::OneSided) });
    holds(Config { senders: 2, faults, ..Config::new(WriteModel::OneSided) });
}

/// Doubled or not, a write is counted once: the receiver's transport applies no second copy, and the
/// session counts distinct numbers.
#[test]
fn a_session_may_count_every_write_that_is_applied_once() {
    let faults = Faults { doubles: 1, ..NO_FAULTS };
    let mutations = &[Mutation::CountEvery];
    holds(Config { writes: 2, mutations, faults, ..Config::new(WriteModel::TwoSided) });
}

#[test]
fn frames_may_be_doubled_and_damaged() {
    let faults = Faults { doubles: 1, damages: 1, ..ABORTS };
    holds(Config { writes: 2, faults, ..Config::new(WriteModel::TwoSided) });
    let faults = Faults { doubles: 1, damages: 1, breaks: 1, ..NO_FAULTS };
    holds(Config { writes: 2, faults, late: (1, 1), ..Config::new(WriteModel::TwoSided) });
}
