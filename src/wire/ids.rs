//! Names of rooms, ranks and processes inside bodies.

use super::WireError;
use super::codec::{Coded, Reader, Writer};
use crate::error::ErrorKind;
use crate::ids::{
    Attempt, BallotId, Generation, GrantId, GroupId, GroupSizes, Instance, Party, Rank, RegionId, Room, Side,
};
use crate::poll::KVPoll;

impl Coded for GrantId {
    const MIN_BYTES: usize = 24;

    fn write(&self, w: &mut Writer) {
        w.u64(self.room.0);
        w.u64(self.attempt.0);
        w.u64(self.generation.0);
    }

    fn read(r: &mut Reader<'_>, field: &'static str) -> Result<Self, WireError> {
        Ok(Self {
            room: Room(r.u64(field)?),
            attempt: Attempt(r.u64(field)?),
            generation: Generation(r.u64(field)?),
        })
    }
}

impl Coded for BallotId {
    const MIN_BYTES: usize = 25;

    fn write(&self, w: &mut Writer) {
        self.side.write(w);
        w.u64(self.room.0);
        w.u64(self.attempt.0);
        w.u64(self.generation.0);
    }

    fn read(r: &mut Reader<'_>, field: &'static str) -> Result<Self, WireError> {
        Ok(Self {
            side: Side::read(r, field)?,
            room: Room(r.u64(field)?),
            attempt: Attempt(r.u64(field)?),
            generation: Generation(r.u64(field)?),
        })
    }
}

impl Coded for Rank {
    const MIN_BYTES: usize = 16;

    fn write(&self, w: &mut Writer) {
        for index in [self.dp, self.pp, self.cp, self.tp] {
            w.u32(index);
        }
    }

    fn read(r: &mut Reader<'_>, field: &'static str) -> Result<Self, WireError> {
        Ok(Self { dp: r.u32(field)?, pp: r.u32(field)?, cp: r.u32(field)?, tp: r.u32(field)? })
    }
}

impl Coded for GroupSizes {
    const MIN_BYTES: usize = 16;

    fn write(&self, w: &mut Writer) {
        for size in [self.dp, self.pp, self.cp, self.tp] {
            w.u32(size);
        }
    }

    fn read(r: &mut Reader<'_>, field: &'static str) -> Result<Self, WireError> {
        let mut size = || match r.u32(field)? {
            0 => Err(WireError::Value { field, value: 0 }),
            size => Ok(size),
        };
        Ok(Self { dp: size()?, pp: size()?, cp: size()?, tp: size()? })
    }
}

impl Coded for Instance {
    const MIN_BYTES: usize = 16;

    fn write(&self, w: &mut Writer) {
        w.u128(self.0);
    }

    fn read(r: &mut Reader<'_>, field: &'static str) -> Result<Self, WireError> {
        r.u128(field).map(Self)
    }
}

impl Coded for Side {
    const MIN_BYTES: usize = 1;

    fn write(&self, w: &mut Writer) {
        w.u8(*self as u8);
    }

    fn read(r: &mut Reader<'_>, field: &'static str) -> Result<Self, WireError> {
        match r.u8(field)? {
            0 => Ok(Self::Prefill),
            1 => Ok(Self::Decode),
            other => Err(WireError::Value { field, value: other.into() }),
        }
    }
}

impl Coded for Party {
    const MIN_BYTES: usize = Side::MIN_BYTES + Rank::MIN_BYTES + Instance::MIN_BYTES;

    fn write(&self, w: &mut Writer) {
        self.side.write(w);
        self.rank.write(w);
        self.instance.write(w);
    }

    fn read(r: &mut Reader<'_>, field: &'static str) -> Result<Self, WireError> {
        let side = Side::read(r, field)?;
        Ok(Self { side, rank: Rank::read(r, field)?, instance: Instance::read(r, field)? })
    }
}

impl Coded for RegionId {
    const MIN_BYTES: usize = 4;

    fn write(&self, w: &mut Writer) {
        w.u32(self.0);
    }

    fn read(r: &mut Reader<'_>, field: &'static str) -> Result<Self, WireError> {
        r.u32(field).map(Self)
    }
}

impl Coded for GroupId {
    const MIN_BYTES: usize = 2;

    fn write(&self, w: &mut Writer) {
        w.u16(self.0);
    }

    fn read(r: &mut Reader<'_>, field: &'static str) -> Result<Self, WireError> {
        r.u16(field).map(Self)
    }
}

impl Coded for KVPoll {
    const MIN_BYTES: usize = 1;

    fn write(&self, w: &mut Writer) {
        w.u8(*self as u8);
    }

    fn read(r: &mut Reader<'_>, field: &'static str) -> Result<Self, WireError> {
        let number = r.u8(field)?;
        Self::from_number(number).ok_or(WireError::Value { field, value: number.into() })
    }
}

impl Coded for ErrorKind {
    const MIN_BYTES: usize = 1;

    fn write(&self, w: &mut Writer) {
        w.u8(*self as u8);
    }

    fn read(r: &mut Reader<'_>, field: &'static str) -> Result<Self, WireError> {
        let number = r.u8(field)?;
        Self::from_number(number).ok_or(WireError::Value { field, value: number.into() })
    }
}
