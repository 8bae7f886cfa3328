//! The command as it is started by others.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on")]

use std::process::Command;

fn bench(arguments: &[&str]) -> std::process::Output {
    Command::new(env!("CARGO_BIN_EXE_kvferry-bench")).args(arguments).output().unwrap()
}

fn figures(arguments: &[&str]) -> serde_json::Value {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("figures.json");
    let run = bench(&[arguments, &["--json", file.to_str().unwrap()]].concat());
    assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
    serde_json::from_str(&std::fs::read_to_string(file).unwrap()).unwrap()
}

#[test]
fn every_byte_of_each_repetition_is_checked() {
    let paths =
        [&["--transport", "tcp"][..], &["--transport", "shm"], &["--transport=shm", "--memory=private"]];
    for (path, drive) in paths.into_iter().flat_map(|path| ["thread", "caller"].map(|drive| (path, drive))) {
        let chosen = ["--role", "both", "--case", "S", "--reps", "2", "--drive", drive];
        let figures = figures(&[&chosen, path].concat());
        assert_eq!((&figures["schema"], &figures["case"]), (&"peerbench-1".into(), &"S".into()));
        let reps = figures["reps"].as_array().unwrap();
        assert_eq!(reps.len(), 2);
        for rep in reps.iter().chain([&figures["warmup"]]) {
            assert_eq!((&rep["verified"], &rep["bytes"]), (&true.into(), &262_144.into()));
            assert!(rep["seconds"].as_f64().unwrap() > 0.0);
            assert_eq!(rep["request_seconds"].as_array().unwrap().len(), 2);
        }
    }
}

#[test]
fn latency_is_given_as_percentiles() {
    let figures = figures(&["--case", "D", "--reps", "1"]);
    let rep = &figures["reps"][0];
    assert_eq!(rep["verified"], true);
    assert_eq!((&rep["round_us"]["n"], &rep["oneway_us"]["n"]), (&2000.into(), &2000.into()));
    assert!(rep["round_us"]["p50"].as_f64().unwrap() >= rep["round_us"]["min"].as_f64().unwrap());
}

#[test]
fn a_case_that_does_not_exist_is_refused_by_naming_those_that_do() {
    let run = bench(&["--case", "F"]);
    assert!(!run.status.success());
    assert!(String::from_utf8_lossy(&run.stderr).contains("A, B, C, D, E, S"));
}
