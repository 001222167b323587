//! The text that the two ends of a ping-pong exchange over TCP before they use RDMA. No socket is used
//! here.
//!
//! Both ends send their address, the client first. Then the client sends `done`.
//!
//! | bytes | field | form |
//! |---|---|---|
//! | 0..4 | LID | hexadecimal; zero on RoCE |
//! | 4 | | `:` |
//! | 5..11 | queue pair number | hexadecimal |
//! | 11 | | `:` |
//! | 12..18 | first PSN | hexadecimal |
//! | 18 | | `:` |
//! | 19..51 | GID | hexadecimal, in network order |
//! | 51 | | NUL |
//!
//! Source: rdma-core, libibverbs/examples/rc_pingpong.c and pingpong.c.

use core::fmt;

use doorbell::provider::{Gid, Psn, Qpn};

/// Length of the text of a [`Destination`].
pub(super) const DESTINATION_BYTES: usize = 52;

/// The last message of the client.
pub(super) const DONE: [u8; 5] = *b"done\0";

/// The address of one end's queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Destination {
    pub(super) lid: u16,
    pub(super) qpn: Qpn,
    pub(super) psn: Psn,
    pub(super) gid: Gid,
}

/// A message of the exchange.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Message {
    Destination,
    Done,
}

/// A field of a [`Destination`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Field {
    Lid,
    Qpn,
    Psn,
    Gid,
    /// The byte between two fields, or at the end of the text.
    Separator,
}

/// Error in a message of the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WireError {
    /// The peer closed the connection too early.
    Truncated { message: Message, got: usize },
    /// The peer sent more bytes than the message has.
    Oversized { message: Message },
    /// An invalid byte at this offset.
    Byte { field: Field, offset: usize, byte: u8 },
    /// A queue pair number that is reserved for management: 0 or 1.
    ReservedQpn(u32),
    /// The peer has no GID, which RoCE needs.
    NoGid,
    /// A multicast GID does not identify a single end.
    MulticastGid(Gid),
    /// The message is not `done`.
    NotDone,
}

impl Message {
    pub(super) const fn bytes(self) -> usize {
        match self {
            Self::Destination => DESTINATION_BYTES,
            Self::Done => DONE.len(),
        }
    }
}

impl fmt::Display for Message {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Destination => "its address (LID:QPN:PSN:GID)",
            Self::Done => "\"done\"",
        })
    }
}

impl fmt::Display for Field {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Lid => "LID",
            Self::Qpn => "QPN",
            Self::Psn => "PSN",
            Self::Gid => "GID",
            Self::Separator => "separator",
        })
    }
}

impl fmt::Display for WireError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Truncated { message, got } => write!(
                f,
                "the peer closed the connection after {got} of the {} bytes of {message}",
                message.bytes()
            ),
            Self::Oversized { message } => write!(
                f,
                "the peer sent more than the {} bytes of {message}",
                message.bytes()
            ),
            Self::Byte { field, offset, byte } => write!(
                f,
                "the peer's address is garbled: byte {offset} ({field}) is {:?}",
                char::from(*byte)
            ),
            Self::ReservedQpn(qpn) => write!(f, "the peer's QPN {qpn:#08x} can carry no connection"),
            Self::NoGid => {
                f.write_str("the peer's GID is zero: start it with a GID index (-g), as RoCE needs")
            }
            Self::MulticastGid(gid) => write!(f, "the peer's GID {gid} is a multicast one"),
            Self::NotDone => f.write_str("the peer did not end the exchange with \"done\""),
        }
    }
}

impl core::error::Error for WireError {}

impl Destination {
    /// The text to send.
    pub(super) fn encode(&self) -> Vec<u8> {
        let (lid, qpn, psn) = (self.lid, self.qpn.to_u32(), self.psn.to_u32());
        let gid = u128::from_be_bytes(self.gid.0);
        format!("{lid:04x}:{qpn:06x}:{psn:06x}:{gid:032x}\0").into_bytes()
    }

    /// Parses the text of a destination.
    pub(super) fn parse(text: &[u8; DESTINATION_BYTES]) -> Result<Self, WireError> {
        let mut bytes = text.iter().copied().enumerate();
        let lid = u16::from_be_bytes(octets(&mut bytes, Field::Lid)?);
        separator(&mut bytes, b':')?;
        let [high, middle, low] = octets(&mut bytes, Field::Qpn)?;
        let qpn = u32::from_be_bytes([0, high, middle, low]);
        separator(&mut bytes, b':')?;
        let [high, middle, low] = octets(&mut bytes, Field::Psn)?;
        let psn = Psn::from_low_bits(u32::from_be_bytes([0, high, middle, low]));
        separator(&mut bytes, b':')?;
        let gid = Gid(octets(&mut bytes, Field::Gid)?);
        separator(&mut bytes, 0)?;

        let Some(qpn) = Qpn::new(qpn).filter(|qpn| qpn.to_u32() > 1) else {
            return Err(WireError::ReservedQpn(qpn));
        };
        if gid.is_zero() {
            return Err(WireError::NoGid);
        }
        if gid.0.first() == Some(&0xff) {
            return Err(WireError::MulticastGid(gid));
        }
        Ok(Self { lid, qpn, psn, gid })
    }
}

/// Parses `N` bytes of two hexadecimal digits each.
fn octets<const N: usize>(
    bytes: &mut impl Iterator<Item = (usize, u8)>,
    field: Field,
) -> Result<[u8; N], WireError> {
    let mut octets = [0; N];
    for octet in &mut octets {
        for _ in 0..2 {
            let (offset, byte) = next(bytes);
            let digit = char::from(byte)
                .to_digit(16)
                .and_then(|digit| u8::try_from(digit).ok())
                .ok_or(WireError::Byte { field, offset, byte })?;
            *octet = *octet << 4 | digit;
        }
    }
    Ok(octets)
}

fn separator(bytes: &mut impl Iterator<Item = (usize, u8)>, expected: u8) -> Result<(), WireError> {
    let (offset, byte) = next(bytes);
    if byte == expected {
        return Ok(());
    }
    Err(WireError::Byte {
        field: Field::Separator,
        offset,
        byte,
    })
}

/// The next byte with its offset. It exists, since the fields are as long as the text.
fn next(bytes: &mut impl Iterator<Item = (usize, u8)>) -> (usize, u8) {
    bytes.next().unwrap_or((DESTINATION_BYTES, 0))
}

/// Collects the pieces of one message from the stream.
pub(super) struct Inbox {
    message: Message,
    bytes: Vec<u8>,
}

impl Inbox {
    pub(super) const fn new(message: Message) -> Self {
        Self {
            message,
            bytes: Vec::new(),
        }
    }

    /// Adds a piece; an empty piece means that the peer closed. Returns whether the message is
    /// complete.
    pub(super) fn take(&mut self, piece: &[u8]) -> Result<bool, WireError> {
        let message = self.message;
        if piece.is_empty() && self.bytes.len() < message.bytes() {
            let got = self.bytes.len();
            return Err(WireError::Truncated { message, got });
        }
        if self.bytes.len().saturating_add(piece.len()) > message.bytes() {
            return Err(WireError::Oversized { message });
        }
        self.bytes.extend_from_slice(piece);
        Ok(self.bytes.len() == message.bytes())
    }

    /// The number of bytes received so far.
    pub(super) fn got(&self) -> usize {
        self.bytes.len()
    }

    /// The message as a destination.
    pub(super) fn destination(&self) -> Result<Destination, WireError> {
        let text = self.bytes.as_slice().try_into();
        Destination::parse(text.map_err(|_| WireError::Truncated {
            message: self.message,
            got: self.bytes.len(),
        })?)
    }

    /// Checks that the message is `done`.
    pub(super) fn done(&self) -> Result<(), WireError> {
        if self.bytes == DONE {
            Ok(())
        } else {
            Err(WireError::NotDone)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{DESTINATION_BYTES, DONE, Destination, Field, Inbox, Message, WireError};
    use doorbell::provider::{Gid, Psn, Qpn};

    /// The text that `ibv_rc_pingpong -g 1` sends at 10.0.0.1.
    const GOLDEN: &[u8; DESTINATION_BYTES] = b"0000:000011:0a2b3c:00000000000000000000ffff0a000001\0";

    fn golden() -> Destination {
        Destination {
            lid: 0,
            qpn: Qpn::new(0x11).unwrap(),
            psn: Psn::new(0x0a_2b3c).unwrap(),
            gid: Gid::from_ip("10.0.0.1".parse().unwrap()),
        }
    }

    fn with(offset: usize, bytes: &[u8]) -> Result<Destination, WireError> {
        let mut text = *GOLDEN;
        text[offset..][..bytes.len()].copy_from_slice(bytes);
        Destination::parse(&text)
    }

    #[test]
    fn the_text_is_what_the_stock_program_writes() {
        assert_eq!(golden().encode(), GOLDEN);
        assert_eq!(Destination::parse(GOLDEN), Ok(golden()));
        let extreme = Destination {
            lid: 0xffff,
            qpn: Qpn::new(0x00ff_ffff).unwrap(),
            psn: Psn::new(0x00ff_ffff).unwrap(),
            gid: Gid::from_ip("fe80::5054:ff:fe12:3456".parse().unwrap()),
        };
        let text = extreme.encode();
        assert_eq!(text, b"ffff:ffffff:ffffff:fe80000000000000505400fffe123456\0");
        assert_eq!(Destination::parse(&text.try_into().unwrap()), Ok(extreme));
    }

    #[test]
    fn capital_digits_are_digits() {
        assert_eq!(with(12, b"0A2B3C"), Ok(golden()));
    }

    #[test]
    fn a_wrong_byte_at_any_place_names_its_field() {
        for offset in 0..DESTINATION_BYTES {
            let field = match offset {
                4 | 11 | 18 | 51 => Field::Separator,
                0..4 => Field::Lid,
                5..11 => Field::Qpn,
                12..18 => Field::Psn,
                _ => Field::Gid,
            };
            for byte in [b'g', b' ', b'-', b'\n', 0xff] {
                assert_eq!(
                    with(offset, &[byte]),
                    Err(WireError::Byte { field, offset, byte }),
                    "{offset}"
                );
            }
        }
        assert_eq!(
            with(7, b"x").unwrap_err().to_string(),
            "the peer's address is garbled: byte 7 (QPN) is 'x'"
        );
    }

    #[test]
    fn what_is_well_formed_and_cannot_be_is_refused() {
        assert_eq!(with(5, b"000000"), Err(WireError::ReservedQpn(0)));
        assert_eq!(with(5, b"000001"), Err(WireError::ReservedQpn(1)));
        assert!(with(5, b"000002").is_ok());
        assert_eq!(with(19, &[b'0'; 32]), Err(WireError::NoGid));
        assert!(matches!(with(19, b"ff"), Err(WireError::MulticastGid(_))));
    }

    #[test]
    fn a_message_comes_in_any_pieces() {
        for cut in 1..DESTINATION_BYTES {
            let mut inbox = Inbox::new(Message::Destination);
            assert_eq!(inbox.take(&GOLDEN[..cut]), Ok(false));
            assert_eq!(inbox.take(&GOLDEN[cut..]), Ok(true));
            assert_eq!(inbox.destination(), Ok(golden()));
        }
    }

    #[test]
    fn every_truncation_is_told_with_how_much_came() {
        for cut in 0..DESTINATION_BYTES {
            let message = Message::Destination;
            let mut inbox = Inbox::new(message);
            if cut > 0 {
                assert_eq!(inbox.take(&GOLDEN[..cut]), Ok(false));
            }
            assert_eq!(inbox.take(&[]), Err(WireError::Truncated { message, got: cut }));
        }
        let error = Inbox::new(Message::Done).take(&[]).unwrap_err();
        assert_eq!(
            error.to_string(),
            "the peer closed the connection after 0 of the 5 bytes of \"done\""
        );
    }

    #[test]
    fn one_byte_too_many_is_told() {
        let message = Message::Destination;
        let mut long = GOLDEN.to_vec();
        long.push(b'0');
        assert_eq!(
            Inbox::new(message).take(&long),
            Err(WireError::Oversized { message })
        );
        let message = Message::Done;
        assert_eq!(
            Inbox::new(message).take(b"done\0\0"),
            Err(WireError::Oversized { message })
        );
    }

    #[test]
    fn done_is_done_and_nothing_else() {
        let mut inbox = Inbox::new(Message::Done);
        assert_eq!(inbox.take(&DONE), Ok(true));
        assert_eq!(inbox.done(), Ok(()));
        let mut inbox = Inbox::new(Message::Done);
        assert_eq!(inbox.take(b"done\n"), Ok(true));
        assert_eq!(inbox.done(), Err(WireError::NotDone));
    }
}
