//! A peer that speaks over a stream by the document, and says no more than it is told to.

use core::net::{IpAddr, Ipv4Addr, SocketAddr};

use doorbell::provider::{Io as _, IoError, Network as _};
use doorbell_sim::{Host, Stream};

use crate::by_document::{self, ACCEPT, CONNECT, Greeting, Heard, Offer, REJECT, WELCOME};

/// One that begins a handshake.
pub(crate) struct Stranger {
    stream: Stream,
    pub(crate) greeting: Greeting,
    pub(crate) offer: Offer,
    /// Whether it has said each: Hello and Connect.
    has_said: [bool; 2],
    unsent: Vec<u8>,
    unread: Vec<u8>,
    /// The whole frames that came.
    pub(crate) heard: Vec<Heard>,
    /// Whether the stream is over.
    pub(crate) is_over: bool,
}

impl Stranger {
    /// One at this address, which names itself by a number.
    pub(crate) fn new(host: &Host, address: Ipv4Addr, to: SocketAddr, number: u32) -> Result<Self, String> {
        let stream = host.connect(to).map_err(|error| error.to_string())?;
        let mut nonce = [0x5a; 16];
        nonce[..4].copy_from_slice(&number.to_le_bytes());
        let greeting = Greeting {
            versions: [1, 1 + (number % 2) as u8],
            instance: 0x5eed_0000 + u64::from(number),
            listener: 0,
            nonce,
            address,
            prefix_bits: 24,
            speed_mbps: 100_000,
        };
        let offer = Offer {
            gid: by_document::gid(address),
            qpn: 0x8000 + number,
            psn: number,
            mtu: 5,
            reads_wanted: 1,
            reads_served: 1,
            own_rail: 0,
            peer_rail: 0,
            receive_depth: 4,
            slot_bytes: 4096,
            credit_address: 0x1000,
            credit_rkey: 1,
            credit_start: 0,
        };
        Ok(Self {
            stream,
            greeting,
            offer,
            has_said: [false; 2],
            unsent: Vec::new(),
            unread: Vec::new(),
            heard: Vec::new(),
            is_over: false,
        })
    }

    pub(crate) fn say_hello(&mut self) {
        if !core::mem::replace(&mut self.has_said[0], true) {
            self.unsent.extend(self.greeting.hello());
        }
    }

    /// Says Connect, where it was welcomed and has not yet.
    pub(crate) fn say_connect(&mut self) {
        if self.heard_of(WELCOME).is_some() && !core::mem::replace(&mut self.has_said[1], true) {
            let version = self.greeting.version();
            let body = self.offer.body(version);
            self.unsent.extend(by_document::frame(version, CONNECT, &body));
        }
    }

    /// Says these bytes, whatever they are.
    pub(crate) fn say(&mut self, bytes: &[u8]) {
        self.unsent.extend(bytes);
    }

    /// Returns the offer of the other side's Accept.
    pub(crate) fn accepted(&self) -> Option<Offer> {
        let heard = self.heard_of(ACCEPT)?;
        Offer::read(heard.version, &heard.body)
    }

    pub(crate) fn heard_of(&self, kind: u8) -> Option<&Heard> {
        self.heard.iter().find(|heard| heard.kind == kind)
    }

    /// The reason why it was turned away, and the detail.
    pub(crate) fn rejected(&self) -> Option<(u16, u32)> {
        by_document::reject(self.heard_of(REJECT)?)
    }

    pub(crate) fn was_accepted(&self) -> bool {
        self.heard_of(ACCEPT).is_some()
    }

    /// Writes what is to be said and reads what came.
    ///
    /// # Errors
    /// The bytes that came are not as the document says.
    pub(crate) fn poll(&mut self) -> Result<(), String> {
        while !self.unsent.is_empty() && !self.is_over {
            match self.stream.write(&self.unsent) {
                Ok(count) => drop(self.unsent.drain(..count)),
                Err(IoError::WouldBlock) => break,
                Err(_) => self.is_over = true,
            }
        }
        let mut buffer = [0; 4096];
        while !self.is_over {
            match self.stream.read(&mut buffer) {
                Ok(0) => self.is_over = true,
                Ok(count) => self.unread.extend(&buffer[..count]),
                Err(IoError::WouldBlock) => break,
                Err(_) => self.is_over = true,
            }
        }
        while let Some(heard) = by_document::take(&mut self.unread)? {
            self.check(&heard)?;
            self.heard.push(heard);
        }
        Ok(())
    }

    /// Whether a frame is as it has to be where this one comes.
    fn check(&self, heard: &Heard) -> Result<(), String> {
        let is_right = match heard.kind {
            WELCOME => by_document::welcome(heard).is_some_and(|(version, instance, rails)| {
                version == self.greeting.version()
                    && heard.version == version
                    && instance != 0
                    && !rails.is_empty()
                    && self.heard.is_empty()
            }),
            ACCEPT => Offer::read(heard.version, &heard.body).is_some_and(|offer| {
                let rails = self.heard_of(WELCOME).and_then(by_document::welcome);
                let addresses = rails.map(|(_, _, addresses)| addresses).unwrap_or_default();
                let rail = addresses.get(usize::from(offer.own_rail));
                (offer.own_rail, offer.peer_rail) == (self.offer.peer_rail, self.offer.own_rail)
                    && rail.is_some_and(|address| by_document::gid(*address) == offer.gid)
                    && offer.mtu <= self.offer.mtu
                    && (2..1 << 24).contains(&offer.qpn)
                    && offer.credit_address % 8 == 0
            }),
            REJECT => heard.version == 1 && by_document::reject(heard).is_some(),
            kind => kind == by_document::READY,
        };
        match is_right {
            true => Ok(()),
            false => Err(format!("{heard:02x?} came behind {:02x?}", self.heard)),
        }
    }
}

/// Returns the address at which a host listens.
pub(crate) fn at(address: Ipv4Addr, port: u16) -> SocketAddr {
    SocketAddr::new(IpAddr::V4(address), port)
}
