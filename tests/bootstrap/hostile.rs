//! Strangers at the port, and servers that mean no good.

use super::*;
use std::io;
use std::net::TcpListener;
use std::thread;

/// A server that reads each request and then acts, until the test ends with the process.
fn trap(act: impl Fn(TcpStream) -> io::Result<()> + Send + 'static) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            // The client is expected to break off.
            let _ = stream.read(&mut [0; 4096]).and_then(|_| act(stream));
        }
    });
    url
}

fn impatient() -> ClientConfig {
    let mut config = ClientConfig::default();
    config.request_time = Duration::from_millis(300);
    config
}

#[test]
fn garbage_at_every_length_changes_nothing_for_others() {
    let server = server();
    let watched = Watched::new(&server.url(), ClientConfig::default());
    let _registration = watched.directory.register(record(0, 1, 1));
    watched.until_ready("a/b c");
    let good = message("PUT", "/v1/groups/g/ranks/0/0/0/0", &put_body(1, 1, 60_000));
    for length in 0..good.len() {
        let answer = send(server.address(), &good.as_bytes()[..length]);
        assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 4"), "{length}: {answer}");
    }
    let mut noise = 1_u64;
    for length in 0..200 {
        let mut next = || {
            noise = noise.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (noise >> 56) as u8
        };
        let bytes: Vec<_> = (0..length).map(|_| next()).collect();
        let answer = send(server.address(), &bytes);
        assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 4"), "{length}: {answer}");
    }
    assert!(send(server.address(), good.as_bytes()).starts_with("HTTP/1.1 200"));
    watched.until_fresh("a/b c", |state| matches!(state, GroupState::Ready(_)).then_some(()));
    assert!(server.is_running());
}

#[test]
fn what_is_malformed_is_answered_with_its_reason() {
    let server = server();
    let rank = "/v1/groups/g/ranks/0/0/0/0";
    let deep = "[".repeat(10_000);
    for (method, path, body, status, kind) in [
        ("GET", "/", "", 404, "not_found"),
        ("GET", "/v1/groups", "", 404, "not_found"),
        ("GET", "/v1/groups/g/ranks/0/0/0/0/0", "", 404, "not_found"),
        ("GET", "/v1/groups/", "", 400, "malformed"),
        ("GET", "/v1/groups/%ff", "", 400, "malformed"),
        ("GET", "/v1/groups/a%0Ab", "", 400, "malformed"),
        ("POST", "/health", "", 405, "method"),
        ("GET", rank, "", 405, "method"),
        ("PUT", rank, "", 400, "malformed"),
        ("PUT", rank, "[]", 400, "malformed"),
        ("PUT", rank, deep.as_str(), 400, "malformed"),
        ("PUT", "/v1/groups/g/ranks/0/0/0/-1", "{}", 400, "malformed"),
        ("PUT", "/v1/groups/g/ranks/0/0/0/4294967296", "{}", 400, "malformed"),
        ("PUT", rank, &put_body(1, 1, 1).replace("00ff", "00f"), 400, "malformed"),
        ("PUT", rank, &put_body(1, 1, 1).replace("\"ttl_ms\":1", "\"ttl_ms\":-1"), 400, "malformed"),
        ("PUT", rank, &put_body(0, 1, 1), 400, "outside"),
        ("PUT", rank, &put_body(u32::MAX, 1, 1), 507, "full"),
        ("DELETE", rank, "", 400, "malformed"),
        ("DELETE", &format!("{rank}?instance=12"), "", 400, "malformed"),
        ("POST", "/v1/groups/g/owners", r#"{"owners":{"-1":0}}"#, 400, "malformed"),
        ("POST", "/v1/groups/g/owners/query", r#"{"rooms":[18446744073709551616]}"#, 400, "malformed"),
    ] {
        let (found, answer) = request(server.address(), method, path, body);
        assert_eq!(
            (found, &answer["error"]["kind"]),
            (status, &kind.into()),
            "{method} {path} {body:.80}: {answer}"
        );
    }
    let head = "PUT /v1/groups/g/ranks/0/0/0/0 HTTP/1.1\r\nhost: x\r\n";
    let announced =
        send(server.address(), format!("{head}content-length: 1099511627776\r\n\r\n{{").as_bytes());
    assert!(announced.is_empty() || announced.starts_with("HTTP/1.1 4"), "{announced}");
    let chunk = format!("{:x}\r\n{}\r\n", 300 << 10, " ".repeat(300 << 10));
    let chunked =
        send(server.address(), format!("{head}transfer-encoding: chunked\r\n\r\n{chunk}").as_bytes());
    assert!(chunked.is_empty() || chunked.starts_with("HTTP/1.1 413"), "{chunked}");
    let endless = send(server.address(), format!("{head}x: {}", "y".repeat(100 << 10)).as_bytes());
    assert!(endless.is_empty() || endless.starts_with("HTTP/1.1 431"), "{endless}");
    assert_eq!(request(server.address(), "GET", "/health", "").0, 200);
}

#[test]
fn silent_connections_hold_their_places_only_for_the_time_of_a_request() {
    let mut config = ServerConfig::default();
    config.connections = 2;
    config.request_time = Duration::from_millis(200);
    let server = BootstrapServer::bind("127.0.0.1:0", config).unwrap();
    let _silent: Vec<_> = (0..4).map(|_| TcpStream::connect(server.address()).unwrap()).collect();
    assert_eq!(request(server.address(), "GET", "/health", "").0, 200);
}

#[test]
fn a_redirect_is_not_followed() {
    let goal = TcpListener::bind("127.0.0.1:0").unwrap();
    goal.set_nonblocking(true).unwrap();
    let place = goal.local_addr().unwrap();
    let url = trap(move |mut stream| {
        write!(stream, "HTTP/1.1 302 Found\r\nlocation: http://{place}/\r\ncontent-length: 0\r\n\r\n")?;
        stream.read_to_end(&mut Vec::new()).map(drop)
    });
    let watched = Watched::new(&url, ClientConfig::default());
    let detail = watched.until_unreachable("g");
    assert!(detail.contains("302"), "{detail}");
    assert_eq!(goal.accept().unwrap_err().kind(), io::ErrorKind::WouldBlock);
}

#[test]
fn an_endless_answer_is_cut_at_its_limit() {
    let body = trap(|mut stream| {
        stream.write_all(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")?;
        let piece = format!("10000\r\n{}\r\n", " ".repeat(65_536));
        loop {
            stream.write_all(piece.as_bytes())?;
        }
    });
    let detail = Watched::new(&body, ClientConfig::default()).until_unreachable("g");
    assert!(detail.contains("length limit"), "{detail}");
    let head = trap(|mut stream| {
        stream.write_all(b"HTTP/1.1 200 OK\r\n")?;
        loop {
            stream.write_all(&[b'x'; 4096])?;
        }
    });
    Watched::new(&head, ClientConfig::default()).until_unreachable("g");
}

#[test]
fn a_silent_server_is_left_at_the_time_limit() {
    let kept = std::sync::Mutex::new(Vec::new());
    let silent = trap(move |stream| {
        kept.lock().unwrap().push(stream);
        Ok(())
    });
    let watched = Watched::new(&silent, impatient());
    let registration = watched.directory.register(record(0, 1, 1));
    let detail = watched.until_unreachable("g");
    assert!(detail.contains("did not answer within"), "{detail}");
    // Both end although the server never answers.
    drop(registration);
    drop(watched);
}

#[test]
fn answers_that_make_no_sense_are_unreachable_groups() {
    for body in [
        "",
        "null",
        r#"{"state":"ready","sizes":{"dp":1,"pp":1,"cp":1,"tp":2},"ranks":[]}"#,
        r#"{"state":"ready","sizes":{"dp":0,"pp":1,"cp":1,"tp":1},"ranks":[{}]}"#,
        r#"{"state":"unheard_of"}"#,
    ] {
        let url = trap(move |mut stream| {
            write!(stream, "HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{body}", body.len())
        });
        Watched::new(&url, ClientConfig::default()).until_unreachable("g");
    }
}

#[test]
fn only_permitted_networks_are_connected_to() {
    let place = TcpListener::bind("127.0.0.9:0").unwrap();
    place.set_nonblocking(true).unwrap();
    let port = place.local_addr().unwrap().port();
    let mut config = ClientConfig::default();
    config.permitted = Some(vec!["127.0.0.0/30".parse().unwrap()]);
    let watched = Watched::new(&format!("http://127.0.0.9:{port}"), config.clone());
    let detail = watched.until_unreachable("g");
    assert!(detail.contains("outside the permitted networks"), "{detail}");
    assert_eq!(place.accept().unwrap_err().kind(), io::ErrorKind::WouldBlock);
    // A name counts by its addresses.
    config.permitted = Some(vec!["192.0.2.0/24".parse().unwrap()]);
    let server = server();
    let named = Watched::new(&format!("http://localhost:{}", server.address().port()), config.clone());
    named.until_unreachable("g");
    config.permitted = Some(vec!["127.0.0.0/8".parse().unwrap()]);
    let permitted = Watched::new(&server.url(), config);
    permitted.until(|directory| matches!(directory.group("g"), GroupState::NotReady { .. }).then_some(()));
}
