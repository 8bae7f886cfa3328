//! What handles, callers and the progress thread share.

#[path = "../../../../src/engine/changes.rs"]
mod changes;
#[path = "../../../../src/engine/inbox.rs"]
mod inbox;
#[path = "../../../../src/engine/live.rs"]
mod live;
#[path = "../../../../src/engine/slot.rs"]
mod slot;

mod aborting;
mod closing;
mod feeding;
mod publishing;
mod ringing;

mod usage {
    use crate::ids::Room;

    #[derive(Debug)]
    pub(crate) enum UsageError {
        Closed,
        RoomInUse(Room),
        RoomsAlive(usize),
        TooManyRooms(usize),
    }
}
