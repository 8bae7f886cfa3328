//! How long it takes to write and read frames, and what a page costs on the wire.
//!
//! `cargo bench --bench codec`. The bytes of each frame are printed.

use bytes::Bytes;
use criterion::{BatchSize, BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use kvferry::layout::{HeadSpan, PageList, PoolEntry, PoolLayout, Role};
use kvferry::wire::{DataHeader, Frame, RoomFrame, crc32c};
use kvferry::{GroupId, RegionId};
use std::hint::black_box;

/// Bytes of a golden file.
macro_rules! golden {
    ($name:literal) => {
        bytes_of(include_str!(concat!("../tests/format/golden/", $name, ".hex")))
    };
}

fn bytes_of(text: &str) -> Vec<u8> {
    let digits = text.lines().flat_map(|line| line.split('#').next().unwrap_or("").split_whitespace());
    digits.map(|byte| u8::from_str_radix(byte, 16).expect("two digits")).collect()
}

fn grant(pages: Vec<u32>) -> Frame {
    let mut frame = Frame::decode(&Bytes::from(golden!("grant"))).expect("a golden frame");
    if let Frame::Room { frame: RoomFrame::Grant(grant), .. } = &mut frame {
        grant.pages = vec![(GroupId(0), PageList::new(0, pages))];
    }
    frame
}

fn layout(layers: u32) -> Frame {
    let mut pools = PoolLayout::new();
    let kv = pools.paged("kv", 16, 10_000);
    for (layer, role) in (0..layers).flat_map(|layer| [Role::Key, Role::Value].map(|role| (layer, role))) {
        pools.push(PoolEntry::token_major(kv, role, layer, RegionId(layer), 16, HeadSpan::all(8), 256));
    }
    let mut frame = Frame::decode(&Bytes::from(golden!("layout"))).expect("a golden frame");
    if let Frame::Layout(layout) = &mut frame {
        (layout.layout, layout.keys) = (pools, Vec::new());
    }
    frame
}

fn control(c: &mut Criterion) {
    let scattered =
        |count: u32| (0..count).map(|page| page.wrapping_mul(2_654_435_761) % 1_000_003).collect();
    let cases = [
        ("grant of one run", 4096, grant((7..4103).collect())),
        ("grant of runs of four", 4096, grant((0..4096).map(|page| page / 4 * 9 + page % 4).collect())),
        ("grant of scattered pages", 4096, grant(scattered(4096))),
        ("grant of scattered pages", 65_536, grant(scattered(65_536))),
        ("layout", 160, layout(80)),
    ];
    let mut group = c.benchmark_group("codec");
    for (name, count, frame) in cases {
        let bytes = frame.encode();
        eprintln!("{name} {count}: {} bytes", bytes.len());
        group.throughput(Throughput::Elements(count));
        group.bench_function(BenchmarkId::new(format!("write {name}"), count), |b| {
            b.iter(|| black_box(&frame).encode());
        });
        group.bench_function(BenchmarkId::new(format!("read {name}"), count), |b| {
            b.iter_batched(|| bytes.clone(), |bytes| Frame::decode(&bytes), BatchSize::SmallInput);
        });
    }
    group.finish();
}

fn data(c: &mut Criterion) {
    let bytes: [u8; DataHeader::BYTES] = golden!("data").try_into().expect("72 bytes");
    let header = DataHeader::decode(&bytes).expect("a golden frame");
    let mut group = c.benchmark_group("data frame");
    group.bench_function("write", |b| b.iter(|| black_box(&header).encode()));
    group.bench_function("read", |b| b.iter(|| DataHeader::decode(black_box(&bytes))));
    group.finish();
}

fn checksum(c: &mut Criterion) {
    let payload = vec![7_u8; 512 << 10];
    let mut group = c.benchmark_group("crc32c");
    group.throughput(Throughput::Bytes(payload.len() as u64));
    group.bench_function("512 KiB", |b| b.iter(|| crc32c(black_box(&payload))));
    group.finish();
}

criterion_group! {
    name = benches;
    config = Criterion::default().sample_size(20);
    targets = control, data, checksum
}
criterion_main!(benches);
