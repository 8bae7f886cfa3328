//! A model small enough to run in every test, with random weights.

use anyhow::Result;
use candle_core::{Device, Tensor};
use kvferry_smollm::model::{Config, Model};

pub(crate) const CONFIG: Config = Config {
    vocabulary: 97,
    hidden: 24,
    feed_forward: 40,
    layers: 3,
    heads: 6,
    kv_heads: 2,
    head_dim: 4,
    context: 128,
    rope_base: 10_000.0,
    norm_epsilon: 1e-5,
};

pub(crate) fn model() -> Model {
    let mut state = 1_u32;
    let mut random = || {
        // The constants of Numerical Recipes; good enough for weights.
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / (1 << 23) as f32 - 1.0
    };
    let fetch = |_: &str, shape: &[usize]| -> Result<Tensor> {
        let values: Vec<f32> = (0..shape.iter().product()).map(|_| random()).collect();
        Ok(Tensor::from_vec(values, shape, &Device::Cpu)?)
    };
    Model::new(CONFIG, fetch).unwrap()
}

pub(crate) fn prompt(tokens: usize) -> Vec<u32> {
    (0_u32..).map(|i| i * i * 7 % 96).take(tokens).collect()
}
