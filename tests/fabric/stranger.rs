//! A peer whose every byte is right, and that sends no more than the test asks for: it has no queue pair, and is never
//! ready.
#![allow(dead_code, clippy::allow_attributes, reason = "each test file uses its part")]

use core::net::IpAddr;
use core::time::Duration;

use doorbell::provider::{Gid, Instant, Io, IoError, IpPrefix, Psn, Qpn, Rkey};
use doorbell::rails::{AdvertisedRail, SpeedClass};
use doorbell::wire::{
    CreditWord, Endpoint, EndpointParameters, InstanceId, Nonce, PrivateData, Reject, VersionRange,
};
use doorbell_core::handshake::{Cause, Initiator, InitiatorConfig, Step, Timing};

/// It waits for longer than any listener.
const EVER: Duration = Duration::from_secs(3600);

/// How far its peer has come with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Heard {
    Nothing,
    Welcome,
    /// It has a place and a queue pair, and is waited for to be ready.
    Accept,
    Refused(Reject),
    /// The stream is over.
    End,
}

pub(crate) struct Stranger {
    machine: Initiator,
    address: IpAddr,
    number: u32,
}

impl Stranger {
    /// One with a rail at this address; those of one number say the same.
    pub(crate) fn new(address: IpAddr, number: u32) -> Self {
        let config = InitiatorConfig {
            instance: InstanceId::new(1 + u64::from(number)).unwrap(),
            listener: None,
            nonce: Nonce([7; 16]),
            timing: Timing {
                stage: EVER,
                whole: EVER,
            },
            versions: VersionRange::OURS,
        };
        let prefix = IpPrefix::new(address, 8).unwrap();
        let rail =
            AdvertisedRail::new(prefix, Gid::from_ip(address), SpeedClass::from_mbps(100_000)).unwrap();
        Self {
            machine: Initiator::new(config, &[rail], Instant::from_ns(0)).unwrap(),
            address,
            number,
        }
    }

    /// The bytes of its Hello.
    pub(crate) fn hello(mut self) -> Vec<u8> {
        let mut hello = Bytes(Vec::new());
        self.machine.poll(Instant::from_ns(0), &mut hello);
        hello.0
    }

    /// Says Hello, as far as the stream takes it, and hears what there is.
    pub(crate) fn greet(&mut self, io: &mut impl Io) -> Heard {
        match self.machine.poll(Instant::from_ns(0), io) {
            Step::ChooseRail => Heard::Welcome,
            Step::Prepare(_) => Heard::Accept,
            Step::Failed(error) => match error.cause {
                Cause::RejectedByPeer(reject) => Heard::Refused(reject),
                _ => Heard::End,
            },
            _ => Heard::Nothing,
        }
    }

    /// Says Connect, too, once it may.
    pub(crate) fn connect(&mut self, io: &mut impl Io) -> Heard {
        let heard = self.greet(io);
        if heard != Heard::Welcome {
            return heard;
        }
        let endpoint = self.endpoint();
        self.machine.offer(Instant::from_ns(0), endpoint, 0).unwrap();
        self.greet(io)
    }

    fn endpoint(&self) -> Endpoint {
        Endpoint {
            rail: 0,
            gid: Gid::from_ip(self.address),
            qpn: Qpn::new(0x1000 + self.number).unwrap(),
            psn: Psn::from_low_bits(self.number),
            parameters: EndpointParameters {
                receive_depth: 16,
                slot_bytes: 4096,
                ..EndpointParameters::default()
            },
            credit: CreditWord {
                address: 0x1000,
                rkey: Rkey(1),
                start: 0,
            },
            session: None,
            private_data: PrivateData::EMPTY,
        }
    }
}

/// Keeps the sent bytes, and has no answer.
struct Bytes(Vec<u8>);

impl Io for Bytes {
    fn read(&mut self, _: &mut [u8]) -> Result<usize, IoError> {
        Err(IoError::WouldBlock)
    }

    fn write(&mut self, bytes: &[u8]) -> Result<usize, IoError> {
        self.0.extend_from_slice(bytes);
        Ok(bytes.len())
    }
}

/// Takes a byte each time it is given room, and no more.
pub(crate) struct Dripping<I> {
    pub(crate) of: I,
    pub(crate) has_room: bool,
}

impl<I: Io> Io for Dripping<I> {
    fn read(&mut self, buffer: &mut [u8]) -> Result<usize, IoError> {
        self.of.read(buffer)
    }

    fn write(&mut self, bytes: &[u8]) -> Result<usize, IoError> {
        if !core::mem::take(&mut self.has_room) {
            return Err(IoError::WouldBlock);
        }
        self.of.write(&bytes[..1])
    }
}
