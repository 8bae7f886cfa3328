//! What decode says when the other side is not there.

use crate::program::{Program, SMALL};
use kvferry::bootstrap::{
    BootstrapServer, ClientConfig, Directory, HttpDirectory, RankRecord, Registration, ServerConfig,
};
use kvferry::layout::LayoutDigest;
use kvferry::{GroupSizes, Instance, Rank};

/// The error of a decode process that waits in vain.
fn complaint(url: &str) -> String {
    let failure = Program::decode(url, &[SMALL, &["--patience=1"]].concat()).end().failure();
    assert_eq!(
        (&failure["kind"], &failure["state"]),
        (&"Timeout".into(), &"Bootstrapping".into()),
        "{failure}"
    );
    failure["error"].as_str().unwrap().to_owned()
}

#[test]
fn an_unreachable_directory_is_named() {
    let server = BootstrapServer::bind("127.0.0.1:0", ServerConfig::default()).unwrap();
    let url = server.url();
    server.close();
    let complaint = complaint(&url);
    assert!(complaint.contains(url.trim_start_matches("http://")), "{complaint}");
    assert!(complaint.contains("refused"), "{complaint}");
}

#[test]
fn missing_ranks_of_the_group_are_named() {
    let server = BootstrapServer::bind("127.0.0.1:0", ServerConfig::default()).unwrap();
    let nobody = complaint(&server.url());
    assert!(nobody.contains(r#"group "prefill""#), "{nobody}");

    let directory = HttpDirectory::new(&server.url(), ClientConfig::default()).unwrap();
    let record =
        RankRecord::new("prefill", GroupSizes::tp(2), Rank::tp(0), Instance(1), LayoutDigest([0; 16]));
    let _registration: Box<dyn Registration> = directory.register(record);
    let one = complaint(&server.url());
    assert!(one.contains("1 of 2 ranks are registered, missing dp0 pp0 cp0 tp1"), "{one}");
}

#[test]
fn a_prefill_process_that_nobody_asks_ends_with_an_error() {
    let prefill = Program::prefill(&[SMALL, &["--patience=0.5"]].concat());
    let failure = prefill.end().failure();
    assert_eq!(failure["kind"], "Timeout", "{failure}");
}

#[test]
fn sides_of_different_shapes_refuse_each_other() {
    let mut prefill = Program::prefill(SMALL);
    let decode = Program::decode(&prefill.url(), &[SMALL, &["--head-dim=64"]].concat());
    assert_eq!(decode.end().failure()["kind"], "Layout");
}

#[test]
fn options_that_cannot_work_are_refused() {
    for options in [&["--shape=gpt"][..], &["--transport=pigeon"], &["--layers=0"], &["--liveness=-1"]] {
        assert!(!Program::prefill(options).end().is_success, "{options:?}");
    }
}
