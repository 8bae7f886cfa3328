//! Prompts computed by one engine and continued by another, with small random weights.
#![expect(clippy::unwrap_used, reason = "a test, its helper functions too")]

mod tiny;

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use kvferry::bootstrap::FixedDirectory;
use kvferry::transport::local::LocalNetwork;
use kvferry::transport::tcp::{TcpConfig, TcpTransport};
use kvferry::{
    Engine, EngineBuilder, ErrorKind, GroupSizes, KVPoll, KVTransferError, Place, Rank, Room, Sources,
};
use kvferry_smollm::decode::Decode;
use kvferry_smollm::pool::{Geometry, PagePool};
use kvferry_smollm::prefill::{Outgoing, Prefill};
use tiny::{CONFIG, model, prompt};

#[test]
fn a_split_run_gives_identical_tokens() {
    for network in [Network::Local, Network::Tcp] {
        for page_tokens in [1, 5, 16] {
            let (mut prefill, decode) = pair(network, page_tokens);
            for (room, chunk_tokens, by_layer) in [
                (1, 7, false),
                (2, 16, false),
                (3, PROMPT_TOKENS, false),
                (4, 7, true),
                (5, PROMPT_TOKENS, true),
            ] {
                prefill = prefill.layer_by_layer(by_layer);
                let prompt = prompt(PROMPT_TOKENS);
                let incoming = decode.open(Room(room), from_prefill(), prompt.len(), LIMIT).unwrap();
                let mut outgoing = prefill.open(Room(room), prompt.clone()).unwrap();
                let computed = prefill.compute(&mut outgoing, chunk(chunk_tokens)).unwrap();
                assert_eq!(computed.chunks, PROMPT_TOKENS.div_ceil(chunk_tokens));
                let received = incoming.wait(PATIENCE).unwrap();
                let sent = outgoing.wait(PATIENCE).unwrap();
                let bytes = prefill.pool().geometry().kv_bytes(PROMPT_TOKENS) as u64;
                if by_layer {
                    assert!(sent.last_bytes as u64 * CONFIG.layers as u64 <= bytes, "{sent:?}");
                }
                assert_eq!((sent.bytes, received.stats.bytes), (bytes, bytes));
                assert_eq!(received.first, computed.first);
                let tokens = decode.generate(received, LIMIT, None, |_| Ok(())).unwrap();
                let expected = decode.alone(&prompt, chunk(chunk_tokens), LIMIT, None).unwrap();
                assert_eq!(tokens, expected, "{network:?}, {page_tokens} a page, {chunk_tokens} a chunk");
                assert!(tokens.len() == LIMIT && tokens.iter().any(|token| *token != tokens[0]));
            }
            assert_unused(&prefill, &decode);
        }
    }
}

#[test]
fn prefill_processes_that_share_out_the_heads_give_identical_tokens() {
    for (network, prefill_page, decode_page, by_layer) in
        [(Network::Local, 4, 16, false), (Network::Tcp, 16, 1, true), (Network::Tcp, 5, 7, false)]
    {
        let build = building(network);
        let model = Arc::new(model());
        let prefills: Vec<_> = (0..2)
            .map(|rank| {
                let geometry = Geometry { kv_heads: 1, ..geometry(prefill_page) };
                let place = Place::new("prefill", Rank::tp(rank), GroupSizes::tp(2));
                let pool = PagePool::new(geometry, rank.into()).unwrap();
                Prefill::start(build(place), Arc::clone(&model), pool).unwrap().layer_by_layer(by_layer)
            })
            .collect();
        let pool = PagePool::new(geometry(decode_page), 9).unwrap();
        let decode = Decode::start(build(Place::alone("decode")), model, pool).unwrap();
        let prompt = prompt(PROMPT_TOKENS);
        let incoming = decode.open(Room(1), from_prefill(), prompt.len(), LIMIT).unwrap();
        let mut sent = 0;
        let outgoing: Vec<_> = prefills
            .iter()
            .map(|prefill| {
                let mut outgoing = prefill.open(Room(1), prompt.clone()).unwrap();
                prefill.compute(&mut outgoing, chunk(6)).unwrap();
                outgoing
            })
            .collect();
        let received = incoming.wait(PATIENCE).unwrap();
        for outgoing in outgoing {
            let bytes = outgoing.wait(PATIENCE).unwrap().bytes;
            assert_eq!(bytes, received.stats.bytes / 2, "each sends its half");
            sent += bytes;
        }
        assert_eq!(sent, decode.pool().geometry().kv_bytes(PROMPT_TOKENS) as u64);
        let tokens = decode.generate(received, LIMIT, None, |_| Ok(())).unwrap();
        let expected = decode.alone(&prompt, chunk(6), LIMIT, None).unwrap();
        assert_eq!(tokens, expected, "{network:?}, pages of {prefill_page} and {decode_page}");
    }
}

#[test]
fn several_requests_at_once_do_not_mix() {
    for network in [Network::Local, Network::Tcp] {
        let (prefill, decode) = pair(network, 4);
        let rooms = || (0..).zip([20, 23, 26, 29, 32].map(prompt));
        let incoming: Vec<_> = rooms()
            .map(|(room, prompt)| decode.open(Room(room), from_prefill(), prompt.len(), LIMIT).unwrap())
            .collect();
        let mut outgoing: Vec<_> =
            rooms().map(|(room, prompt)| prefill.open(Room(room), prompt).unwrap()).collect();
        for room in &mut outgoing {
            prefill.compute(room, chunk(8)).unwrap();
        }
        let received: Vec<_> = incoming.into_iter().map(|room| room.wait(PATIENCE).unwrap()).collect();
        for ((_, prompt), received) in rooms().zip(received) {
            let tokens = decode.generate(received, LIMIT, None, |_| Ok(())).unwrap();
            assert_eq!(tokens, decode.alone(&prompt, chunk(8), LIMIT, None).unwrap());
        }
        for room in outgoing {
            room.wait(PATIENCE).unwrap();
        }
        assert_unused(&prefill, &decode);
    }
}

#[test]
fn an_aborted_request_gives_back_all_pages_on_both_sides() {
    for network in [Network::Local, Network::Tcp] {
        let (prefill, decode) = pair(network, 4);
        for (room, decode_aborts) in [(1, true), (2, false)] {
            let incoming = decode.open(Room(room), from_prefill(), PROMPT_TOKENS, LIMIT).unwrap();
            let mut outgoing = prefill.open(Room(room), prompt(PROMPT_TOKENS)).unwrap();
            wait_met(&outgoing);
            if decode_aborts {
                incoming.abort("not wanted any more");
                // It may have computed all before it hears of the end.
                drop(prefill.compute(&mut outgoing, chunk(4)));
            } else {
                outgoing.abort("not wanted any more");
                prefill.compute(&mut outgoing, chunk(4)).unwrap_err();
            }
            for error in [incoming.wait(PATIENCE).unwrap_err(), outgoing.wait(PATIENCE).unwrap_err()] {
                let error = error.downcast_ref::<KVTransferError>().unwrap();
                assert_eq!((error.kind, &*error.detail), (ErrorKind::Aborted, "not wanted any more"));
            }
            assert_unused(&prefill, &decode);
        }
    }
}

#[test]
fn a_side_that_ends_fails_the_rooms_of_the_other() {
    for network in [Network::Local, Network::Tcp] {
        let (prefill, decode) = pair(network, 4);
        let incoming = decode.open(Room(1), from_prefill(), PROMPT_TOKENS, LIMIT).unwrap();
        let mut outgoing = prefill.open(Room(1), prompt(PROMPT_TOKENS)).unwrap();
        wait_met(&outgoing);
        prefill.close(PATIENCE);
        incoming.wait(PATIENCE).unwrap_err();
        prefill.compute(&mut outgoing, chunk(4)).unwrap_err();
        outgoing.wait(PATIENCE).unwrap_err();
        assert_unused(&prefill, &decode);
    }
}

#[test]
fn requests_without_room_take_no_pages() {
    let (prefill, decode) = pair(Network::Local, 4);
    prefill.open(Room(1), Vec::new()).unwrap_err();
    prefill.open(Room(1), prompt(CONFIG.context + 1)).unwrap_err();
    decode.open(Room(1), from_prefill(), 0, LIMIT).unwrap_err();
    decode.open(Room(1), from_prefill(), CONFIG.context, 1).unwrap_err();
    let first = prefill.open(Room(1), prompt(8)).unwrap();
    prefill.open(Room(1), prompt(8)).unwrap_err();
    first.abort("done");
    first.wait(PATIENCE).unwrap_err();
    assert_unused(&prefill, &decode);
}

#[derive(Clone, Copy, Debug)]
enum Network {
    Local,
    Tcp,
}

/// Two sides whose pages lie at different places, and who find each other.
fn pair(network: Network, page_tokens: usize) -> (Prefill, Decode) {
    let build = building(network);
    let pool = |seed| PagePool::new(geometry(page_tokens), seed).unwrap();
    let model = Arc::new(model());
    (
        Prefill::start(build(Place::alone("prefill")), Arc::clone(&model), pool(1)).unwrap(),
        Decode::start(build(Place::alone("decode")), model, pool(2)).unwrap(),
    )
}

/// Begins engines that find each other.
fn building(network: Network) -> impl Fn(Place) -> EngineBuilder {
    let (directory, local) = (FixedDirectory::new(), LocalNetwork::new());
    move |place| {
        let name = format!("{} {}", place.group, place.rank);
        let builder = Engine::builder(place).model("tiny").directory(Arc::new(directory.clone()));
        match network {
            Network::Local => builder.transport(local.endpoint(&name).unwrap()),
            Network::Tcp => builder.transport(TcpTransport::new(TcpConfig::new()).unwrap()),
        }
    }
}

fn geometry(page_tokens: usize) -> Geometry {
    CONFIG.geometry(page_tokens, u32::try_from(512_usize.div_ceil(page_tokens)).unwrap())
}

fn from_prefill() -> Sources {
    Sources::group("prefill")
}

/// Waits until the pages for a prompt are lent. Whoever gives up before that may have nobody to tell.
fn wait_met(outgoing: &Outgoing) {
    while outgoing.state() == KVPoll::Bootstrapping {
        thread::yield_now();
    }
}

fn assert_unused(prefill: &Prefill, decode: &Decode) {
    for pool in [prefill.pool(), decode.pool()] {
        assert_eq!(pool.unused_pages(), pool.geometry().pages as usize);
    }
}

fn chunk(tokens: usize) -> NonZeroUsize {
    NonZeroUsize::new(tokens).unwrap()
}

const PROMPT_TOKENS: usize = 43;
const LIMIT: usize = 20;
/// How long a test waits for what must happen.
const PATIENCE: Duration = Duration::from_secs(30);
