//! Text to tokens and back, and the chat format.

use anyhow::{Context as _, Result, ensure};
use candle_core::quantized::gguf_file;
use candle_core::quantized::tokenizer::TokenizerFromGguf as _;
use tokenizers::Tokenizer;
use tokenizers::pre_tokenizers::PreTokenizerWrapper;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::pre_tokenizers::digits::Digits;
use tokenizers::pre_tokenizers::sequence::Sequence;

/// The tokenizer of a model file.
#[derive(Debug)]
pub struct Text {
    tokenizer: Tokenizer,
    end: u32,
}

impl Text {
    /// Reads the tokenizer from a model file.
    ///
    /// # Errors
    /// A file without one, or with one of another kind than SmolLM's.
    pub fn new(file: &gguf_file::Content) -> Result<Self> {
        let kind = metadata(file, "tokenizer.ggml.pre")?.to_string()?;
        ensure!(kind == "smollm", "tokenizer of kind {kind:?}, this program knows \"smollm\"");
        let mut tokenizer = Tokenizer::from_gguf(file)?;
        // candle does not know this kind and falls back to GPT-2's; SmolLM also splits numbers into digits
        // and puts no space before the text.
        tokenizer.with_pre_tokenizer(Some(PreTokenizerWrapper::from(Sequence::new(vec![
            Digits::new(true).into(),
            ByteLevel::new(false, true, true).into(),
        ]))));
        let end = metadata(file, "tokenizer.ggml.eos_token_id")?.to_u32()?;
        Ok(Self { tokenizer, end })
    }

    /// Returns the tokens of a text. Marks such as `<|im_start|>` become their own tokens.
    ///
    /// # Errors
    /// A text that the tokenizer refuses.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>> {
        let encoding = self.tokenizer.encode(text, false).map_err(anyhow::Error::from_boxed)?;
        Ok(encoding.get_ids().to_vec())
    }

    /// Returns the text of tokens, without marks.
    ///
    /// # Errors
    /// Tokens that the tokenizer refuses.
    pub fn decode(&self, tokens: &[u32]) -> Result<String> {
        self.tokenizer.decode(tokens, true).map_err(anyhow::Error::from_boxed)
    }

    /// Begins a text that comes token by token.
    pub fn stream(&self) -> TextStream<'_> {
        TextStream { text: self, pending: Vec::new() }
    }

    /// Returns the token with which the model ends its answer.
    pub fn end(&self) -> u32 {
        self.end
    }
}

/// Puts a question into the format that the instruct model was trained on.
pub fn chat(question: &str) -> String {
    format!(
        "<|im_start|>system\n{SYSTEM}<|im_end|>\n<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n"
    )
}

/// A text that comes token by token.
#[derive(Debug)]
pub struct TextStream<'a> {
    text: &'a Text,
    /// Tokens that end inside a character.
    pending: Vec<u32>,
}

impl TextStream<'_> {
    /// Takes a token; returns the text that is complete with it, often none while a character is split.
    ///
    /// # Errors
    /// As for [`Text::decode`].
    pub fn push(&mut self, token: u32) -> Result<String> {
        self.pending.push(token);
        let text = self.text.decode(&self.pending)?;
        if text.ends_with(char::REPLACEMENT_CHARACTER) {
            return Ok(String::new());
        }
        self.pending.clear();
        Ok(text)
    }

    /// Returns what is left at the end of the text.
    ///
    /// # Errors
    /// As for [`Text::decode`].
    pub fn finish(self) -> Result<String> {
        self.text.decode(&self.pending)
    }
}

fn metadata<'a>(file: &'a gguf_file::Content, key: &str) -> Result<&'a gguf_file::Value> {
    file.metadata.get(key).with_context(|| format!("model file has no {key}"))
}

/// The system text of the model's own template.
const SYSTEM: &str = "You are a helpful AI assistant named SmolLM, trained by Hugging Face";
