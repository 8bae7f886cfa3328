//! Things built wrong on purpose: the checks notice each of them, and soon.

use crate::calls::start;
use crate::walks;
use kvferry::sim::{Flaw, Model, Setup, World};

/// The first of many walks on which a flaw shows, and how.
fn noticed(flaw: Flaw, model: Model) -> String {
    let walks = (0..20_000).map(|seed| {
        let shape = |setup: &mut Setup| {
            setup.model = model;
            setup.flaw = Some(flaw);
        };
        walks::walk(seed, false, shape).1
    });
    let broken = walks.filter_map(Result::err).next();
    broken.unwrap_or_else(|| panic!("{flaw:?} goes unnoticed"))
}

#[test]
fn quiet_before_writes_have_settled_is_noticed() {
    let broken = noticed(Flaw::SettlesEarly, Model::OneSided);
    assert!(broken.contains("release") || broken.contains("wrong byte"), "{broken}");
}

#[test]
fn the_end_of_a_link_taken_as_quiet_is_noticed() {
    let broken = noticed(Flaw::LinkDownIsQuiet, Model::OneSided);
    assert!(broken.contains("after release"), "{broken}");
}

#[test]
fn a_grant_obeyed_over_a_later_link_is_noticed() {
    let broken = noticed(Flaw::GrantOutlivesLink, Model::OneSided);
    assert!(broken.contains("after release"), "{broken}");
}

#[test]
fn source_pages_reused_before_their_writes_settled_are_noticed() {
    for model in [Model::OneSided, Model::TwoSided] {
        let broken = noticed(Flaw::ReusesAtTheEnd, model);
        assert!(broken.contains("after its source pages were released"), "{broken}");
    }
}

#[test]
fn a_revocation_answered_while_bytes_are_applied_is_noticed() {
    let broken = noticed(Flaw::RevokedEarly, Model::TwoSided);
    assert!(broken.contains("after release"), "{broken}");
}

#[test]
fn writes_into_a_revoked_grant_are_noticed() {
    let broken = noticed(Flaw::ObeysRevoked, Model::TwoSided);
    assert!(broken.contains("after release"), "{broken}");
}

#[test]
fn rooms_that_outlive_their_deadlines_are_noticed() {
    for model in [Model::OneSided, Model::TwoSided] {
        let broken = noticed(Flaw::ForgetsTimers, model);
        assert!(broken.contains("lives on at") || broken.contains("stays"), "{broken}");
    }
}

#[test]
fn a_process_that_looks_at_its_deadlines_long_after_a_thaw_is_noticed() {
    let broken = noticed(Flaw::OversleepsThaw, Model::TwoSided);
    assert!(broken.contains("lives on at"), "{broken}");
}

#[test]
fn frames_parked_for_ever_are_noticed() {
    let broken = noticed(Flaw::LobbyKeepsAll, Model::TwoSided);
    assert!(broken.contains("parked frames"), "{broken}");
}

#[test]
fn rooms_kept_after_their_handles_are_noticed() {
    let broken = noticed(Flaw::KeepsRooms, Model::TwoSided);
    assert!(broken.contains("keeps") || broken.contains("does not live on"), "{broken}");
}

#[test]
fn a_cause_changed_on_its_way_is_noticed() {
    let broken = noticed(Flaw::TakesTheBlame, Model::OneSided);
    assert!(broken.contains("which it heard of another"), "{broken}");
}

#[test]
fn answers_to_answers_are_noticed() {
    let broken = noticed(Flaw::AnswersAnswers, Model::TwoSided);
    assert!(broken.contains("no end"), "{broken}");
}

#[test]
fn actions_that_grow_without_bound_are_noticed() {
    let broken = noticed(Flaw::RepeatsItself, Model::TwoSided);
    assert!(broken.contains("things at once"), "{broken}");
}

/// The same flaw on a course made for it: the grant is parked, its link ends, another link comes, and
/// only then the sender is made.
#[test]
fn a_parked_grant_dies_with_its_link() {
    use crate::calls::{ROOM, chunk, finish, grant, receiver, sender};
    use kvferry::sim::Call;
    use std::time::Duration;
    let late = |flaw| {
        let mut setup = Setup::new(Model::OneSided, 1, 1);
        (setup.vouched, setup.flaw) = (100, flaw);
        let mut world = World::new(start(), 3, setup);
        let wait = Duration::from_millis(300);
        world.call(receiver(1, 1, 1)).call(grant(1, 0..6));
        world.run_for(wait)?;
        world.call(Call::Cut { prefill: 0, decode: 1 });
        world.run_for(wait)?;
        let other = kvferry::Room(8);
        let sources = vec![(0, Some(kvferry::layout::Share::WHOLE))];
        let other =
            Call::Receiver { node: 1, room: other, attempt: 0, salt: 1, destinations: vec![0], sources };
        world.call(other);
        world.run_for(wait)?;
        world.call(sender(0)).call(chunk(0, 0..6)).call(finish(0, 6));
        assert_eq!(world.release(1, ROOM), Some(kvferry::Release::Safe));
        world.run()
    };
    assert_eq!(late(None), Ok(()));
    let broken = late(Some(Flaw::GrantOutlivesLink)).expect_err("noticed");
    assert!(broken.what.contains("after release"), "{broken}");
}
