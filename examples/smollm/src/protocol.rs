//! What the processes of the demonstration say to each other: the payload that goes with a KV cache, and
//! the lines between the router and its workers.
//!
//! A worker reads one [`Command`] a line from its input and writes one [`Event`] a line, both as JSON.

use anyhow::{Result, bail};
use serde::{Deserialize, Serialize};

/// The first generated token, as it goes with the KV cache: one byte of version, four of the token,
/// little-endian.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[expect(clippy::exhaustive_structs, reason = "the version tells what is in it")]
pub struct FirstToken(pub u32);

impl FirstToken {
    /// Returns the bytes.
    pub fn encode(self) -> [u8; 5] {
        let [a, b, c, d] = self.0.to_le_bytes();
        [VERSION, a, b, c, d]
    }

    /// Reads the bytes.
    ///
    /// # Errors
    /// Another version or another length.
    pub fn decode(bytes: &[u8]) -> Result<Self> {
        match *bytes {
            [VERSION, a, b, c, d] => Ok(Self(u32::from_le_bytes([a, b, c, d]))),
            [version, ..] if version != VERSION => bail!("first token of version {version}, not {VERSION}"),
            _ => bail!("first token in {} bytes, not 5", bytes.len()),
        }
    }
}

/// A prompt to be continued.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[expect(clippy::exhaustive_structs, reason = "the router states every field")]
pub struct Request {
    /// The transfer's room, the same on both sides.
    pub room: u64,
    /// The prompt.
    pub text: String,
}

/// What the router tells a worker.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[expect(clippy::exhaustive_enums, reason = "both ends are this program")]
#[serde(rename_all = "snake_case")]
pub enum Command {
    /// No more requests come: finish, check, end.
    End,
    /// Take a request.
    Run(Request),
}

/// What a worker tells the router.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[expect(clippy::exhaustive_enums, reason = "both ends are this program")]
#[serde(rename_all = "snake_case", tag = "event")]
pub enum Event {
    /// Decode: tokens that the same prompt gives without any transfer.
    Checked {
        /// The request's room.
        room: u64,
        /// All of them.
        tokens: Vec<u32>,
    },
    /// Either side: a request failed.
    Failed {
        /// The request's room.
        room: u64,
        /// Why.
        error: String,
    },
    /// Decode: a request is answered.
    Generated {
        /// The request's room.
        room: u64,
        /// All tokens.
        tokens: Vec<u32>,
        /// Time of the first step of generation, if there was one.
        first_step: Option<f64>,
        /// Time of all steps.
        seconds: f64,
    },
    /// Prefill: a prompt is computed.
    Prefilled {
        /// The request's room.
        room: u64,
        /// Tokens of the prompt.
        prompt_tokens: usize,
        /// Chunks it was computed in.
        chunks: usize,
        /// Time from the begin of the first chunk to the first token.
        seconds: f64,
    },
    /// Either side: the model is loaded and the pool registered.
    Ready,
    /// Decode: the whole KV cache has come.
    Received {
        /// The request's room.
        room: u64,
        /// Tokens of the prompt.
        prompt_tokens: usize,
        /// Bytes of KV.
        bytes: u64,
        /// The transport it took.
        path: String,
    },
    /// Prefill: the whole KV cache is sent, its pages are unused again.
    Sent {
        /// The request's room.
        room: u64,
        /// Bytes of KV.
        bytes: u64,
        /// Bytes of what was handed over last: a chunk, or a layer of it.
        last_bytes: usize,
        /// Time from the end of its computation until it was sent.
        last_seconds: f64,
    },
    /// Decode: more text.
    Text {
        /// The request's room.
        room: u64,
        /// What to append.
        text: String,
    },
}

const VERSION: u8 = 1;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_first_token_comes_back_from_its_bytes() {
        let bytes = FirstToken(0x0403_0201).encode();
        assert_eq!(bytes, [1, 1, 2, 3, 4]);
        assert_eq!(FirstToken::decode(&bytes).unwrap(), FirstToken(0x0403_0201));
        for wrong in [&bytes[..4], &[2, 1, 2, 3, 4], &[1, 1, 2, 3, 4, 5], &[]] {
            FirstToken::decode(wrong).unwrap_err();
        }
    }

    #[test]
    fn lines_are_json_that_names_its_kind() {
        let request = Request { room: u64::MAX, text: "a\nb".into() };
        let line = serde_json::to_string(&Command::Run(request.clone())).unwrap();
        assert_eq!(line, r#"{"run":{"room":18446744073709551615,"text":"a\nb"}}"#);
        assert_eq!(serde_json::from_str::<Command>(&line).unwrap(), Command::Run(request));
        assert_eq!(serde_json::to_string(&Event::Ready).unwrap(), r#"{"event":"ready"}"#);
    }
}
