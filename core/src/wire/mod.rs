//! Wire formats 1 to 4: the handle of a listener, the frames of the handshake, descriptions of windows and rings,
//! the frames of a session, and the header of requests and answers.
//!
//! All fields are big-endian. Each format has a fixed size or a checked length. This module only encodes and decodes: it does not
//! wait, choose or send. `docs/wire-format.md` has the byte tables.
//!
//! Each format of fixed size is a zerocopy struct with a layout: its fields and their offsets, by `offset_of!`. For all formats:
//!
//! - Parsing is total: any bytes yield a frame or a [`WireError`], which names the first wrong field, its offset and the reason.
//!   Parsing never panics or allocates.
//! - Parsing reads in place. Payloads, handles and lists of rails are borrowed and never copied.
//! - Parsing checks versions, kinds, ranges, reserved bits, lengths, and trailing bytes. A format that newer sides may
//!   extend documents what its parser skips.
//! - Encoding writes the one form that parsing accepts. A frame whose values are in range parses to the same values.

mod endpoint;
mod error;
mod frame;
mod greeting;
mod handle;
mod number;
mod rails;
mod reject;
mod request;
mod resumption;
mod ring;
mod session;
mod session_beside;
mod session_placed;
mod session_transfer;
pub(crate) mod stage;
mod tag;
mod text;
mod version;

pub use crate::advertised_rail::{AdvertisedRail, NotAdvertisable, RAILS_MAX, SpeedClass};
pub use crate::remote::{REMOTE_WINDOW_BYTES, RemoteWindow};
pub use endpoint::{
    Connect, CreditWord, Endpoint, EndpointParameters, FLOW_LABEL_MAX, PRIVATE_DATA_BYTES_MAX, PrivateData,
    PrivateDataTooLong, RECEIVE_DEPTH_MAX, SERVICE_LEVEL_MAX, SLOT_BYTES_MAX,
};
pub use error::{Field, Part, Reason, WireError};
pub use frame::{
    ENDPOINT_FRAME_BYTES_MAX, FRAME_BODY_BYTES_MAX, FRAME_BYTES_MAX, FRAME_HEADER_BYTES, Frame, FrameBuffer,
    FrameHeader, FrameKind, READY_FRAME_BYTES_MAX, REJECT_FRAME_BYTES,
};
pub use greeting::{Hello, HelloRef, Welcome, WelcomeRef};
pub use handle::{Fit, HANDLE_BYTES_MAX, HANDLE_HEADER_BYTES, Handle, HandleBuilder, HandleRef, NoRails};
pub use rails::{RAIL_BYTES_MAX, RailIter, Rails, TooManyRails};
pub use reject::{Reject, RejectReason};
pub use request::{CorrelationId, REQUEST_HEADER_BYTES, RequestHeader, RequestKind};
pub use resumption::{Resumption, SessionId};
pub use ring::{
    Publication, RING_CELL_BYTES_MAX, RING_CELLS_MAX, RING_INVITATION_BYTES, RING_TRAILER_BYTES,
    RING_WORD_BYTES, RingInvitation, ring_window_bytes,
};
pub use session::{
    Attach, AttachParameters, Refusal, RefusalReason, SESSION_ATTACH_BYTES, SESSION_HEADER_BYTES,
    SESSION_REFUSAL_BYTES, SessionFrame, SessionHeader, SessionKind,
};
pub use session_beside::{Fence, FenceFrame, Grant, Granted, SESSION_FENCE_BYTES, SESSION_GRANT_BYTES};
pub use session_placed::{
    Lend, LendFrame, PLACED_BYTES_MAX, Placed, PlacedFrame, SESSION_LEND_BYTES, SESSION_PLACED_BYTES,
};
pub use session_transfer::{
    End, EndFrame, EndReason, Landed, LandedFrame, Open, OpenFrame, Progress, ProgressFrame,
    SESSION_END_BYTES, SESSION_LANDED_BYTES, SESSION_OPEN_BYTES, SESSION_PROGRESS_BYTES, SESSION_TAKE_BYTES,
    Take, TakeFrame,
};
pub use tag::{KeyId, TAG_BYTES, Tag};
pub use text::{HANDLE_TEXT_BYTES_MAX, HANDLE_TEXT_PREFIX, HandleTextError};
pub use version::{
    InstanceId, Nonce, VERSION, VERSION_AUTHENTICATED, VERSION_OLDEST, VERSION_PLACED, VERSION_TRANSFERS,
    VersionRange,
};
