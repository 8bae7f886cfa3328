//! Ranks come, are found, are replaced and go.

use super::*;
use kvferry::Room;

#[test]
fn a_group_is_not_ready_until_its_last_rank_registers() {
    let server = server();
    let prefill = Watched::new(&server.url(), ClientConfig::default());
    let decode = Watched::new(&server.url(), ClientConfig::default());
    let empty = GroupState::NotReady { registered: 0, announced: 0, missing: vec![] };
    decode.until(|directory| (directory.group("a/b c") == empty).then_some(()));
    let registered: Vec<_> = [0, 1, 3].map(|tp| prefill.directory.register(record(tp, 4, tp.into()))).into();
    let three = GroupState::NotReady { registered: 3, announced: 4, missing: vec![Rank::tp(2)] };
    decode.until(|directory| (directory.group("a/b c") == three).then_some(()));
    let (status, answer) = request(server.address(), "GET", "/v1/groups/a%2Fb%20c", "");
    assert_eq!((status, &answer["state"], &answer["registered"]), (200, &"not_ready".into(), &3.into()));
    let last = prefill.directory.register(record(2, 4, 2));
    let info = decode.until_ready("a/b c");
    assert_eq!(info.ranks, (0..4).map(|tp| record(tp, 4, tp.into())).collect::<Vec<_>>());
    for registration in registered.iter().chain([&last]) {
        prefill.until_state(registration.as_ref(), is_published);
    }
}

#[test]
fn dropping_a_registration_removes_the_rank() {
    let server = server();
    let watched = Watched::new(&server.url(), ClientConfig::default());
    let registration = watched.directory.register(record(0, 1, 1));
    watched.until_ready("a/b c");
    drop(registration);
    let (_, answer) = request(server.address(), "GET", "/v1/groups/a%2Fb%20c", "");
    assert_eq!(answer["registered"], 0);
    let _again = watched.directory.register(record(0, 1, 1));
    watched.until_fresh("a/b c", |state| matches!(state, GroupState::Ready(_)).then_some(()));
}

#[test]
fn the_directory_outlives_its_first_handle_while_a_rank_is_registered() {
    let server = server();
    let watched = Watched::new(&server.url(), ClientConfig::default());
    let registration = watched.directory.register(record(0, 1, 1));
    watched.until_state(registration.as_ref(), is_published);
    drop(watched);
    let path = "/v1/groups/a%2Fb%20c";
    assert_eq!(request(server.address(), "GET", path, "").1["state"], "ready");
    drop(registration);
    assert_eq!(request(server.address(), "GET", path, "").1["registered"], 0);
}

#[test]
fn a_new_instance_replaces_the_old_which_is_told() {
    let server = server();
    let mut config = ClientConfig::default();
    config.lease = Duration::from_millis(150);
    let old = Watched::new(&server.url(), config.clone());
    let new = Watched::new(&server.url(), config);
    let replaced = old.directory.register(record(0, 1, 1));
    old.until_state(replaced.as_ref(), is_published);
    let current = new.directory.register(record(0, 1, 2));
    let state = old.until_state(replaced.as_ref(), |state| !is_published(state));
    let RegistrationState::Refused { detail } = state else { panic!("{state:?}") };
    assert!(detail.contains("00000002"), "{detail}");
    drop(replaced);
    assert_eq!(new.until_ready("a/b c").ranks[0].instance, Instance(2));
    new.until_state(current.as_ref(), is_published);
}

#[test]
fn differing_sizes_are_refused_by_naming_both() {
    let server = server();
    let watched = Watched::new(&server.url(), ClientConfig::default());
    let first = watched.directory.register(record(0, 2, 1));
    watched.until_state(first.as_ref(), is_published);
    let second = watched.directory.register(record(1, 4, 1));
    let state =
        watched.until_state(second.as_ref(), |state| matches!(state, RegistrationState::Refused { .. }));
    let RegistrationState::Refused { detail } = state else { panic!("{state:?}") };
    assert!(detail.contains("tp4") && detail.contains("tp2"), "{detail}");
    // Once the other has gone, it is taken without being asked again.
    drop(first);
    watched.until_state(second.as_ref(), is_published);
    let path = "/v1/groups/a%2Fb%20c/ranks/0/0/0/1";
    let (status, answer) = request(server.address(), "PUT", path, &put_body(1, 9, 1000));
    assert_eq!((status, &answer["error"]["kind"]), (400, &"outside".into()));
}

#[test]
fn a_rank_that_does_not_renew_its_lease_vanishes() {
    let server = server();
    let watched = Watched::new(&server.url(), ClientConfig::default());
    let path = "/v1/groups/a%2Fb%20c/ranks/0/0/0/0";
    assert_eq!(request(server.address(), "PUT", path, &put_body(1, 1, 300)).0, 200);
    watched.until_ready("a/b c");
    let gone = |state| matches!(state, GroupState::NotReady { registered: 0, .. }).then_some(());
    watched.until_fresh("a/b c", gone);
}

#[test]
fn a_renewed_rank_outlives_its_lease_many_times() {
    let server = server();
    let mut config = ClientConfig::default();
    config.lease = Duration::from_secs(2);
    let watched = Watched::new(&server.url(), config);
    let registration = watched.directory.register(record(0, 1, 1));
    watched.until_state(registration.as_ref(), is_published);
    // A stranger's lease of the same length ends; ours, which began earlier, must not.
    let path = "/v1/groups/stranger/ranks/0/0/0/0";
    assert_eq!(request(server.address(), "PUT", path, &put_body(1, 1, 2500)).0, 200);
    let gone = |state| matches!(state, GroupState::NotReady { .. }).then_some(());
    watched.until_fresh("stranger", gone);
    watched.until_fresh("a/b c", |state| matches!(state, GroupState::Ready(_)).then_some(()));
    assert_eq!(registration.state(), RegistrationState::Published);
}

#[test]
fn ranks_register_again_when_the_server_restarts() {
    let first = server();
    let (address, url) = (first.address().to_string(), first.url());
    let mut config = ClientConfig::default();
    config.lease = Duration::from_millis(600);
    let watched = Watched::new(&url, config);
    let registration = watched.directory.register(record(0, 1, 1));
    watched.until_ready("a/b c");
    first.close();
    watched
        .until_state(registration.as_ref(), |state| matches!(state, RegistrationState::Unreachable { .. }));
    // What is known stays while the server is away.
    assert!(matches!(watched.directory.group("a/b c"), GroupState::Ready(_)));
    let _second = BootstrapServer::bind(&address, ServerConfig::default()).unwrap();
    watched.until_state(registration.as_ref(), is_published);
    watched.until_fresh("a/b c", |state| matches!(state, GroupState::Ready(_)).then_some(()));
}

#[test]
fn owners_of_many_rooms_are_found() {
    let server = server();
    let prefill = Watched::new(&server.url(), ClientConfig::default());
    let decode = Watched::new(&server.url(), ClientConfig::default());
    let rooms = || (0..5000).chain([u64::MAX]).map(Room);
    assert_eq!(decode.directory.owner("a/b c", Room(0)), None);
    for (room, dp) in rooms().zip(0..) {
        prefill.directory.publish_owner("a/b c", room, dp);
    }
    assert_eq!(prefill.directory.owner("a/b c", Room(7)), Some(7));
    decode.until(|directory| {
        let known = rooms().filter_map(|room| directory.owner("a/b c", room));
        known.eq(0..5001).then_some(())
    });
    let (status, answer) = request(
        server.address(),
        "POST",
        "/v1/groups/a%2Fb%20c/owners/query",
        r#"{"rooms":[1,18446744073709551615,6000]}"#,
    );
    assert_eq!(
        (status, answer.to_string().as_str()),
        (200, r#"{"owners":{"1":1,"18446744073709551615":5000}}"#)
    );
}
