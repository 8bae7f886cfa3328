//! Where a server listens and what it calls itself; how it ends.

use super::*;
use kvferry::HostPort;
use kvferry::bootstrap::BootstrapError;
use std::collections::BTreeSet;
use std::net::TcpListener;

/// One registration and one lookup.
fn works(server: &BootstrapServer, directory: HttpDirectory) {
    let watched = Watched::watch(directory);
    let registration = watched.directory.register(record(0, 1, 5));
    let info = watched.until_ready("a/b c");
    assert_eq!(info.ranks, [record(0, 1, 5)]);
    drop(registration);
    assert!(server.is_running());
}

#[test]
fn ipv4_ipv6_and_names_work_together_and_apart() {
    for host in ["127.0.0.1", "::1", "localhost"] {
        let address = HostPort::new(host, 0).unwrap();
        let server = match BootstrapServer::listen(&address, ServerConfig::default()) {
            Err(BootstrapError::Bind { .. }) if host == "::1" => {
                eprintln!("skipped [::1]: this host has no IPv6");
                continue;
            }
            server => server.unwrap(),
        };
        let together = HostPort::new(host, server.address().port()).unwrap().to_string();
        for url in [server.url(), format!("http://{together}"), format!("http://{together}/")] {
            works(&server, HttpDirectory::new(&url, ClientConfig::default()).unwrap());
        }
        let apart = HostPort::new(host, server.address().port()).unwrap();
        works(&server, HttpDirectory::at(apart, ClientConfig::default()).unwrap());
    }
}

#[test]
fn text_that_could_mean_two_things_is_refused() {
    for url in [
        "http://::1:8998",
        "127.0.0.1:1",
        "https://127.0.0.1:1",
        "http://127.0.0.1",
        "http://127.0.0.1:0",
        "http://a@b:1",
        "http://a:1/b",
    ] {
        let error = HttpDirectory::new(url, ClientConfig::default()).unwrap_err();
        assert!(matches!(error, BootstrapError::Address(_)), "{url}: {error}");
    }
    let error = BootstrapServer::bind("::1:8998", ServerConfig::default()).unwrap_err();
    assert!(error.to_string().contains("[address]:port"), "{error}");
}

#[test]
fn a_wildcard_needs_an_advertised_host() {
    let error = BootstrapServer::bind("0.0.0.0:0", ServerConfig::default()).unwrap_err();
    assert!(error.to_string().contains("advertise"), "{error}");
    let mut config = ServerConfig::default();
    config.advertise = Some("192.0.2.10".parse().unwrap());
    let server = BootstrapServer::bind("0.0.0.0:0", config.clone()).unwrap();
    assert_eq!(server.url(), format!("http://192.0.2.10:{}", server.address().port()));
    config.advertise = Some("::".parse().unwrap());
    assert!(matches!(BootstrapServer::bind("127.0.0.1:0", config), Err(BootstrapError::Address(_))));
}

#[test]
fn a_taken_port_is_an_error_that_names_it() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let error = BootstrapServer::bind(&address, ServerConfig::default()).unwrap_err();
    assert!(matches!(error, BootstrapError::Bind { .. }), "{error}");
    assert!(error.to_string().contains(&address), "{error}");
}

#[test]
fn port_0_gives_each_server_its_own() {
    let servers: Vec<_> = (0..16).map(|_| server()).collect();
    let ports: BTreeSet<_> = servers.iter().map(|server| server.address().port()).collect();
    assert_eq!(ports.len(), 16);
    assert!(!ports.contains(&0));
}

#[test]
fn closing_twice_and_with_open_connections_frees_the_port_at_once() {
    let server = server();
    let address = server.address();
    let _silent = TcpStream::connect(address).unwrap();
    let mut half = TcpStream::connect(address).unwrap();
    half.write_all(b"PUT /v1/groups/x HTTP/1.1\r\ncontent-length: 9\r\n\r\n").unwrap();
    // Answered, so the connections before it are served already.
    assert_eq!(request(address, "GET", "/health", "").0, 200);
    server.close();
    assert!(!server.is_running());
    server.close();
    let again = BootstrapServer::bind(&address.to_string(), ServerConfig::default()).unwrap();
    drop(again);
    drop(TcpListener::bind(address).unwrap());
}
