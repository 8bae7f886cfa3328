//! The model over scattered pages, with small random weights.
#![allow(unsafe_code, reason = "copies pages as a transfer library does, by address")]
#![expect(clippy::unwrap_used, reason = "a test, its helper functions too")]

mod tiny;

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::{ptr, thread};

use kvferry_smollm::generate::{Chunk, Progress, decode, prefill};
use kvferry_smollm::model::Model;
use kvferry_smollm::pool::{Kind, Lending, PagePool, Sequence};
use tiny::{CONFIG, model};

#[test]
fn page_size_and_places_do_not_change_logits() {
    let model = model();
    for chunk_tokens in [1, 7, 16, PROMPT_TOKENS] {
        let expected = logits_in(&model, PROMPT_TOKENS, 0, chunk_tokens);
        for (page_tokens, seed) in [(1, 1), (1, 2), (3, 3), (16, 4), (16, 5), (PROMPT_TOKENS + 9, 6)] {
            let found = logits_in(&model, page_tokens, seed, chunk_tokens);
            assert_eq!(found, expected, "{page_tokens} tokens a page, {chunk_tokens} a chunk");
        }
    }
}

#[test]
fn chunked_prefill_gives_the_logits_of_one_shot() {
    let model = model();
    let expected = logits_in(&model, PROMPT_TOKENS, 0, PROMPT_TOKENS);
    for chunk_tokens in [1, 5, 16, 40] {
        let found = logits_in(&model, 4, 1, chunk_tokens);
        let worst = expected.iter().zip(&found).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        // Products of other shapes add in another order.
        assert!(worst < 1e-4, "{chunk_tokens} tokens a chunk differ by {worst}");
    }
}

#[test]
fn earlier_tokens_change_the_logits() {
    let model = model();
    let mut prompt = prompt();
    let expected = logits(&model, 4, 1, &prompt, 8);
    prompt[0] += 1;
    assert_ne!(logits(&model, 4, 1, &prompt, 8), expected);
}

#[test]
fn pages_copied_to_another_pool_continue_with_identical_tokens() {
    let model = model();
    for page_tokens in [1, 5, 16] {
        let mut whole = sequence(page_tokens, 1);
        let first = prefill(&model, &mut whole, &prompt(), chunk(7), |_| Ok(())).unwrap();
        let expected = decode(&model, &mut whole, first, LIMIT, None, |_| Ok(())).unwrap();
        assert_eq!(expected.len(), LIMIT);
        assert!(expected.iter().any(|token| *token != first), "a run of one token proves little");

        let mut source = sequence(page_tokens, 2);
        let first = prefill(&model, &mut source, &prompt(), chunk(7), |_| Ok(())).unwrap();
        let mut destination = sequence(page_tokens, 3);
        assert_ne!(source.pages(), destination.pages());
        source.lend(Lending::Outgoing).unwrap();
        destination.lend(Lending::Incoming).unwrap();
        copy_pages(&source, &destination);
        // SAFETY: the copying thread has ended.
        unsafe { source.take_back(PROMPT_TOKENS) }.unwrap();
        // SAFETY: as above.
        unsafe { destination.take_back(PROMPT_TOKENS) }.unwrap();
        drop(source);

        let found = decode(&model, &mut destination, first, LIMIT, None, |_| Ok(())).unwrap();
        assert_eq!(found, expected, "{page_tokens} tokens a page");
    }
}

#[test]
fn chunks_cover_the_prompt_and_finish_each_page_once() {
    let model = model();
    let mut sequence = sequence(4, 1);
    let numbers = sequence.pages().to_vec();
    let (mut tokens, mut pages, mut lasts, mut layers) = (0, 0, 0, 0);
    prefill(&model, &mut sequence, &prompt(), chunk(6), |progress| {
        match progress {
            Progress::Layer { tokens: done, layer, .. } => {
                assert_eq!((done.start, layer), (tokens, layers));
                layers += 1;
            }
            Progress::Chunk(Chunk { tokens: done, finished, pages: new, last, .. }) => {
                assert_eq!((done.start, layers), (tokens, CONFIG.layers));
                assert_eq!(finished.start, pages);
                assert_eq!(new, &numbers[finished.clone()]);
                assert!(last || finished.end == done.end / 4);
                (tokens, pages, lasts) = (done.end, finished.end, lasts + usize::from(last));
                layers = 0;
            }
        }
        Ok(())
    })
    .unwrap();
    assert_eq!((tokens, pages, lasts), (PROMPT_TOKENS, PROMPT_TOKENS.div_ceil(4), 1));
}

#[test]
fn decode_ends_after_the_end_token() {
    let model = model();
    let mut whole = sequence(4, 1);
    let first = prefill(&model, &mut whole, &prompt(), chunk(16), |_| Ok(())).unwrap();
    let all = decode(&model, &mut whole, first, LIMIT, None, |_| Ok(())).unwrap();
    let end = all[2];
    let until = all.iter().position(|token| *token == end).unwrap();

    let mut again = sequence(4, 1);
    prefill(&model, &mut again, &prompt(), chunk(16), |_| Ok(())).unwrap();
    let mut seen = Vec::new();
    let ended = decode(&model, &mut again, first, LIMIT, Some(end), |token| {
        seen.push(token);
        Ok(())
    })
    .unwrap();
    assert_eq!(ended, all[..=until]);
    assert_eq!(seen, ended);
}

#[test]
fn pages_of_a_sequence_are_scattered_by_the_seed() {
    let pages = |seed| sequence(1, seed).pages().to_vec();
    assert_eq!(pages(1), pages(1));
    assert_ne!(pages(1), pages(2));
    assert!(pages(1).windows(2).any(|pair| pair[1] != pair[0] + 1));
}

#[test]
fn dropped_sequences_give_their_pages_back_unless_lent() {
    let pool = PagePool::new(CONFIG.geometry(4, 8), 1).unwrap();
    drop(pool.allocate(16).unwrap());
    assert_eq!(pool.unused_pages(), 8);
    let mut lent = pool.allocate(16).unwrap();
    lent.lend(Lending::Incoming).unwrap();
    drop(lent);
    assert_eq!(pool.unused_pages(), 4);
    pool.allocate(17).unwrap_err();
    assert_eq!(pool.unused_pages(), 4);
}

#[test]
fn pages_lent_to_a_writer_are_not_touched() {
    let model = model();
    let mut sequence = sequence(4, 1);
    sequence.lend(Lending::Incoming).unwrap();
    sequence.lend(Lending::Outgoing).unwrap_err();
    sequence.read(0, Kind::Key, 1).unwrap_err();
    model.forward(&[1], &mut sequence).unwrap_err();
    // SAFETY: nobody was told of the pages.
    unsafe { sequence.take_back(sequence.capacity() + 1) }.unwrap_err();
    // SAFETY: as above.
    unsafe { sequence.take_back(0) }.unwrap();
    model.forward(&[1], &mut sequence).unwrap();
}

#[test]
fn a_full_sequence_refuses_more_tokens() {
    let model = model();
    let pool = PagePool::new(CONFIG.geometry(4, 8), 1).unwrap();
    let mut sequence = pool.allocate(8).unwrap();
    model.forward(&[1; 8], &mut sequence).unwrap();
    model.forward(&[1], &mut sequence).unwrap_err();
    assert_eq!(sequence.tokens(), 8);
}

/// Copies whole pages by address, from a thread of its own, as a transfer library does.
fn copy_pages(source: &Sequence, destination: &Sequence) {
    struct Address(*mut u8);
    // SAFETY: an address; the pages are lent while another thread uses it.
    unsafe impl Send for Address {}

    let page_bytes = source.pool().geometry().page_bytes();
    let place = |base: *mut u8, page: u32| Address(base.wrapping_add(page as usize * page_bytes));
    let mut copies = Vec::new();
    for (from, to) in source.pool().buffers().zip(destination.pool().buffers()) {
        assert_eq!((from.layer, from.kind, from.page_bytes), (to.layer, to.kind, page_bytes));
        assert_eq!(from.len, from.pages as usize * page_bytes);
        let used = PROMPT_TOKENS.div_ceil(source.pool().geometry().page_tokens);
        for (a, b) in source.pages().iter().zip(destination.pages()).take(used) {
            copies.push((place(from.base.as_ptr(), *a), place(to.base.as_ptr(), *b)));
        }
    }
    let copier = thread::spawn(move || {
        for (from, to) in copies {
            // SAFETY: both are whole pages of live pools, lent as outgoing and incoming.
            unsafe { ptr::copy_nonoverlapping(from.0, to.0, page_bytes) };
        }
    });
    copier.join().unwrap();
}

fn logits_in(model: &Model, page_tokens: usize, seed: u64, chunk_tokens: usize) -> Vec<f32> {
    logits(model, page_tokens, seed, &prompt(), chunk_tokens)
}

fn logits(model: &Model, page_tokens: usize, seed: u64, prompt: &[u32], chunk_tokens: usize) -> Vec<f32> {
    let mut sequence = sequence(page_tokens, seed);
    let mut state = None;
    for chunk in prompt.chunks(chunk_tokens) {
        state = Some(model.forward(chunk, &mut sequence).unwrap());
    }
    model.logits(&state.unwrap()).unwrap()
}

fn sequence(page_tokens: usize, seed: u64) -> Sequence {
    let tokens = PROMPT_TOKENS + LIMIT;
    let pages = u32::try_from(2 * tokens.div_ceil(page_tokens)).unwrap();
    let pool: Arc<PagePool> = PagePool::new(CONFIG.geometry(page_tokens, pages), seed).unwrap();
    pool.allocate(tokens).unwrap()
}

fn prompt() -> Vec<u32> {
    tiny::prompt(PROMPT_TOKENS)
}

fn chunk(tokens: usize) -> NonZeroUsize {
    NonZeroUsize::new(tokens).unwrap()
}

const PROMPT_TOKENS: usize = 43;
const LIMIT: usize = 20;
