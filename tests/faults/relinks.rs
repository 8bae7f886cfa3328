//! Peers that are lost when all but their last word has come.

use crate::bed::{Node, PATIENCE};
use crate::links::{scripted, until, watched};
use crate::patient;
use kvferry::faults::{Fate, ScriptedNetwork};
use kvferry::transport::WriteModel;
use kvferry::wire::{Frame, RoomFrame};
use kvferry::{Chunk, Config, ErrorKind, Finish, KVPoll, KVReceiver};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// A network in which the prefill side's last word is lost, and all it says while it is mute.
fn lossy() -> (ScriptedNetwork, Arc<AtomicBool>) {
    let (network, mute) = (ScriptedNetwork::new(WriteModel::TwoSided), Arc::new(AtomicBool::new(false)));
    let is_mute = Arc::clone(&mute);
    let mut lost = false;
    network.filter_control(move |from, frame| {
        let is_last_word = matches!(frame, Frame::Room { frame: RoomFrame::Done(_), .. });
        let is_lost = from == "prefill" && (is_mute.load(Ordering::Relaxed) || (is_last_word && !lost));
        lost |= is_last_word;
        if is_lost { Fate::Drop } else { Fate::Pass }
    });
    (network, mute)
}

/// Nobody asks where a room stands while its link lives.
fn incurious() -> Config {
    let mut config = patient();
    config.deadlines.query = Duration::from_secs(300);
    config
}

/// A room of which only the last word is missing; the sender's end of it is over.
fn all_but_the_last_word(prefill: &Node, decode: &Node, room: u64) -> KVReceiver {
    let (sender, receiver) = (prefill.sender(room), decode.receiver(room, prefill));
    decode.lend(&receiver, 0..4, &[0]);
    sender.send(Chunk::new(0..4).pages(prefill.kv, &[0])).unwrap();
    until(|| receiver.ready_tokens() == 4);
    sender.finish(Finish::new(4)).unwrap();
    assert_eq!(sender.wait(PATIENCE), KVPoll::Success, "{:?}", sender.error());
    receiver
}

fn assert_lost_for_its_link(receiver: &KVReceiver) {
    assert_eq!(receiver.wait(PATIENCE), KVPoll::Failed);
    let error = receiver.error().unwrap();
    assert!(error.kind == ErrorKind::PeerLost && error.is_from_another_rank(), "{error}");
    assert!(error.detail.starts_with("link lost"), "{error}");
}

#[test]
fn o01_a_process_started_anew_hears_nothing_of_rooms_of_the_former() {
    watched(|| {
        let (network, mute) = lossy();
        let decode = scripted(&network, "decode", 8, incurious());
        let prefill = scripted(&network, "prefill", 8, patient());
        let lost = all_but_the_last_word(&prefill, &decode, 1);
        // It is not asked for its last word before it is gone.
        mute.store(true, Ordering::Relaxed);
        drop(prefill);
        assert_lost_for_its_link(&lost);
        let prefill = scripted(&network, "prefill", 8, patient());
        mute.store(false, Ordering::Relaxed);
        // Both are there before the link is: what is said over it first concerns them.
        let (sender, other) = (prefill.sender(1), prefill.sender(2));
        let receiver = decode.receiver(2, &prefill);
        decode.lend(&receiver, 0..4, &[1]);
        prefill.send_all(&other, 4, 4, &[1]);
        assert_eq!(receiver.wait(PATIENCE), KVPoll::Success, "{:?}", receiver.error());
        let receiver = decode.receiver(1, &prefill);
        decode.lend(&receiver, 0..4, &[1]);
        prefill.send_all(&sender, 4, 4, &[1]);
        assert_eq!(receiver.wait(PATIENCE), KVPoll::Success, "{:?}", receiver.error());
    });
}

#[test]
fn s03_a_peer_that_cannot_be_asked_for_its_last_word_is_the_one_that_was_lost() {
    watched(|| {
        let (network, mute) = lossy();
        let decode = scripted(&network, "decode", 8, incurious());
        let prefill = scripted(&network, "prefill", 8, patient());
        let lost = all_but_the_last_word(&prefill, &decode, 1);
        // Its links end, and it takes new ones without a word.
        mute.store(true, Ordering::Relaxed);
        network.sever("prefill");
        assert_lost_for_its_link(&lost);
    });
}
