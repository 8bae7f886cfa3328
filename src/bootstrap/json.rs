//! The bodies of requests and answers. Unknown fields are ignored, so that newer peers can say more.

use super::{GroupInfo, GroupState, RankRecord};
use crate::ids::{GroupSizes, Instance, Rank};
use crate::layout::LayoutDigest;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use std::collections::BTreeMap;
use std::fmt::Write;

/// The kind of an [`Error`] that ends a registration for good.
pub(super) const REPLACED: &str = "replaced";

/// Four numbers, one for each axis: a place or the sizes.
#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
pub(super) struct Axes {
    dp: u32,
    pp: u32,
    cp: u32,
    tp: u32,
}

/// Bytes, written as lower-case hexadecimal digits.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct Hex(pub(super) Vec<u8>);

/// One way to reach a rank.
#[derive(Debug, Deserialize, Serialize)]
pub(super) struct Address {
    transport: String,
    address: Hex,
}

/// What a rank says of itself, its place apart.
#[derive(Debug, Deserialize, Serialize)]
pub(super) struct Body {
    instance: Hex,
    addresses: Vec<Address>,
    layout: Hex,
    #[serde(default)]
    extra: BTreeMap<String, String>,
}

/// `PUT` of a rank.
#[derive(Debug, Deserialize, Serialize)]
pub(super) struct Registering {
    pub(super) sizes: Axes,
    pub(super) ttl_ms: u64,
    #[serde(flatten)]
    pub(super) body: Body,
}

/// A rank as it is found in a group.
#[derive(Debug, Deserialize, Serialize)]
pub(super) struct Registered {
    rank: Axes,
    #[serde(flatten)]
    body: Body,
}

/// Answer to a lookup.
#[derive(Debug, Deserialize, Serialize)]
#[serde(tag = "state", rename_all = "snake_case")]
pub(super) enum Group {
    NotReady { registered: u64, announced: u64, missing: Vec<Axes> },
    Ready { sizes: Axes, ranks: Vec<Registered> },
}

/// Rooms and their data parallel ranks.
#[derive(Debug, Deserialize, Serialize)]
pub(super) struct Owners {
    pub(super) owners: BTreeMap<u64, u32>,
}

/// Rooms whose owners are asked for.
#[derive(Debug, Deserialize, Serialize)]
pub(super) struct Rooms {
    pub(super) rooms: Vec<u64>,
}

/// Answer when there is nothing to say.
#[derive(Debug, Deserialize, Serialize)]
pub(super) struct Done {
    pub(super) status: String,
}

/// Answer to what was refused.
#[derive(Debug, Deserialize, Serialize)]
pub(super) struct Refused {
    pub(super) error: Error,
}

/// Why it was refused.
#[derive(Debug, Deserialize, Serialize)]
pub(super) struct Error {
    pub(super) kind: String,
    pub(super) detail: String,
}

impl Registering {
    pub(super) fn new(record: &RankRecord, ttl_ms: u64) -> Self {
        Self { sizes: record.sizes.into(), ttl_ms, body: Body::of(record) }
    }
}

impl Body {
    fn of(record: &RankRecord) -> Self {
        let address = |(transport, address): &(String, Vec<u8>)| Address {
            transport: transport.clone(),
            address: Hex(address.clone()),
        };
        Self {
            instance: Hex(record.instance.0.to_be_bytes().to_vec()),
            addresses: record.addresses.iter().map(address).collect(),
            layout: Hex(record.layout.0.to_vec()),
            extra: record.extra.clone(),
        }
    }

    pub(super) fn into_record(
        self,
        group: &str,
        sizes: GroupSizes,
        rank: Rank,
    ) -> Result<RankRecord, String> {
        let sixteen = |field: &str, hex: Hex| {
            <[u8; 16]>::try_from(hex.0)
                .map_err(|bytes| format!("{field} has {} bytes instead of 16", bytes.len()))
        };
        Ok(RankRecord {
            group: group.into(),
            sizes,
            rank,
            instance: Instance(u128::from_be_bytes(sixteen("instance", self.instance)?)),
            addresses: self.addresses.into_iter().map(|entry| (entry.transport, entry.address.0)).collect(),
            layout: LayoutDigest(sixteen("layout", self.layout)?),
            extra: self.extra,
        })
    }
}

impl Group {
    /// The answer for a state that the server's table can be in.
    pub(super) fn of(state: &GroupState) -> Self {
        match state {
            GroupState::Ready(info) => Self::Ready {
                sizes: info.sizes.into(),
                ranks: info
                    .ranks
                    .iter()
                    .map(|r| Registered { rank: r.rank.into(), body: Body::of(r) })
                    .collect(),
            },
            GroupState::NotReady { registered, announced, missing } => Self::NotReady {
                registered: *registered,
                announced: *announced,
                missing: missing.iter().map(|&rank| rank.into()).collect(),
            },
            GroupState::Unknown | GroupState::Unreachable { .. } => {
                Self::NotReady { registered: 0, announced: 0, missing: Vec::new() }
            }
        }
    }

    /// The state a client learns from an answer.
    pub(super) fn into_state(self, name: &str) -> Result<GroupState, String> {
        match self {
            Self::NotReady { registered, announced, missing } => Ok(GroupState::NotReady {
                registered,
                announced,
                missing: missing.into_iter().take(super::roster::NAMED_MISSING).map(Into::into).collect(),
            }),
            Self::Ready { sizes, ranks } => {
                let sizes = GroupSizes::from(sizes);
                let record = |entry: Registered| entry.body.into_record(name, sizes, entry.rank.into());
                let ranks = ranks.into_iter().map(record).collect::<Result<Vec<_>, _>>()?;
                let info = GroupInfo::new(name, sizes, ranks).map_err(|error| error.to_string())?;
                Ok(GroupState::Ready(info.into()))
            }
        }
    }
}

impl Serialize for Hex {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut text = String::with_capacity(self.0.len() * 2);
        for byte in &self.0 {
            // Writing to a string cannot fail.
            let _ = write!(text, "{byte:02x}");
        }
        serializer.serialize_str(&text)
    }
}

impl<'de> Deserialize<'de> for Hex {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        parse_hex(&text).map(Self).ok_or_else(|| de::Error::custom("pairs of hexadecimal digits expected"))
    }
}

impl From<Rank> for Axes {
    fn from(Rank { dp, pp, cp, tp }: Rank) -> Self {
        Self { dp, pp, cp, tp }
    }
}

impl From<GroupSizes> for Axes {
    fn from(GroupSizes { dp, pp, cp, tp }: GroupSizes) -> Self {
        Self { dp, pp, cp, tp }
    }
}

impl From<Axes> for Rank {
    fn from(Axes { dp, pp, cp, tp }: Axes) -> Self {
        Self { dp, pp, cp, tp }
    }
}

impl From<Axes> for GroupSizes {
    fn from(Axes { dp, pp, cp, tp }: Axes) -> Self {
        Self { dp, pp, cp, tp }
    }
}

/// The bytes of pairs of hexadecimal digits.
pub(super) fn parse_hex(text: &str) -> Option<Vec<u8>> {
    let digit = |byte: u8| char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
    let pair = |pair: &[u8]| match pair {
        [high, low] => Some(digit(*high)? << 4 | digit(*low)?),
        _ => None,
    };
    text.as_bytes().chunks(2).map(pair).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(tp: u32) -> RankRecord {
        RankRecord::new(
            "a/b c",
            GroupSizes::tp(2),
            Rank::tp(tp),
            Instance(1 << 127 | 5),
            LayoutDigest([9; 16]),
        )
        .address("tcp", [0, 255, 16])
        .extra("http_port", "30000")
    }

    #[test]
    fn a_ready_group_survives_its_json() {
        let info = GroupInfo::new("a/b c", GroupSizes::tp(2), vec![record(1), record(0)]).unwrap();
        let state = GroupState::Ready(info.into());
        let text = serde_json::to_string(&Group::of(&state)).unwrap();
        assert!(text.contains(r#""address":"00ff10""#), "{text}");
        assert_eq!(serde_json::from_str::<Group>(&text).unwrap().into_state("a/b c").unwrap(), state);
    }

    #[test]
    fn a_group_with_a_rank_missing_or_twice_is_not_ready() {
        let info =
            GroupInfo { name: "p".into(), sizes: GroupSizes::tp(2), ranks: vec![record(0), record(0)] };
        let detail = Group::of(&GroupState::Ready(info.into())).into_state("p").unwrap_err();
        assert_eq!(detail, "group p has 1 records for 2 ranks");
    }

    #[test]
    fn rooms_of_all_64_bits_are_keys() {
        let text = serde_json::to_string(&Owners { owners: [(u64::MAX, 3), (0, 1)].into() }).unwrap();
        assert_eq!(text, r#"{"owners":{"0":1,"18446744073709551615":3}}"#);
        assert_eq!(serde_json::from_str::<Owners>(&text).unwrap().owners[&u64::MAX], 3);
    }

    #[test]
    fn bad_hex_is_refused() {
        for text in ["0", "0g", "+1", "é"] {
            assert_eq!(parse_hex(text), None, "{text}");
        }
        assert_eq!(parse_hex("0aFF"), Some(vec![10, 255]));
    }
}
