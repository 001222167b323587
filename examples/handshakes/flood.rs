//! The flood: streams that never become peers. Two of three say nothing, half a word or a Hello and stay; the others say what is no
//! handshake. Plain TCP, and of doorbell only the Hello that is replayed, and the Reject that is counted.

use core::fmt::{self, Display};
use core::net::{IpAddr, SocketAddr};
use core::time::Duration;
use std::io::{self, ErrorKind, Read as _, Write as _};
use std::net::{Shutdown, TcpStream};
use std::time::Instant;

use clap::Args;
use doorbell::provider::{Gid, IpPrefix};
use doorbell::rails::{AdvertisedRail, SpeedClass};
use doorbell::wire::{
    Frame, FrameBuffer, FrameHeader, Hello, InstanceId, KeyId, Nonce, REJECT_FRAME_BYTES, Reject,
    RejectReason, VersionRange,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, connect, socket_with};
use serde::Serialize;

use crate::around::{Failure, Report, mix};

/// How many streams are opened before those there are get their turn.
const OPENED_MAX: u32 = 32;

/// Most talking streams at a time. A flood that is faster than it is heard waits in a line of its own making, and real peers with
/// it.
const TALKING_MAX: usize = 60;

/// A stream that is turned away later than this after it was taken had a place, and made room for another.
const LET_IN: Duration = Duration::from_millis(500);

/// Keeps half-open handshakes at a listener, and says to it what is none, until it is gone.
#[derive(Args, Clone, Debug)]
pub(crate) struct Flood {
    /// Address and port of the listener.
    to: SocketAddr,
    /// Addresses of this host to come from. The first of several is for the talking streams, the others for the staying ones.
    #[arg(long, value_delimiter = ',')]
    from: Vec<IpAddr>,
    /// New streams a second at most, two of three to stay.
    #[arg(long, default_value_t = 120)]
    per_second: u32,
    /// Streams that stay at a time at most. Streams that the listener closes come again.
    #[arg(long, default_value_t = 300)]
    held: usize,
    /// For how long.
    #[arg(long, default_value_t = 60)]
    seconds: u64,
    /// Every stream says a Hello that names the key of this id, and nothing behind it; they come from all addresses alike.
    #[arg(long)]
    hellos_by: Option<u32>,
}

/// Result of a flood.
#[derive(Debug, Default, Serialize)]
pub(crate) struct Flooded {
    opened: u64,
    /// Streams that the listener's host took.
    taken: u64,
    /// Told that their bytes are no frame.
    pub(crate) malformed: u64,
    /// Told that their frame came out of turn.
    pub(crate) out_of_turn: u64,
    /// Told that their time was over.
    timed_out: u64,
    /// Told that there are too many.
    pub(crate) turned_away: u64,
    /// Rejected streams that had been let in, and made room for another.
    pub(crate) made_room: u64,
    /// It ended with the listener, and not with its time.
    pub(crate) listener_gone: bool,
    failures: Vec<String>,
}

/// One stream.
struct Stream {
    stream: TcpStream,
    stays: bool,
    /// Bytes that it has yet to send.
    unsaid: Vec<u8>,
    /// Whether that is all it ever says.
    says_no_more: bool,
    heard: Vec<u8>,
    taken_at: Option<Instant>,
}

impl Flood {
    pub(crate) fn new(to: SocketAddr, from: Vec<IpAddr>, seconds: u64) -> Self {
        Self {
            to,
            from,
            per_second: 120,
            held: 300,
            seconds,
            hellos_by: None,
        }
    }

    /// One of Hellos alone, by the id of a key.
    pub(crate) fn of_hellos(to: SocketAddr, from: Vec<IpAddr>, seconds: u64, key: u32) -> Self {
        Self {
            per_second: 1000,
            hellos_by: Some(key),
            ..Self::new(to, from, seconds)
        }
    }

    /// Floods, and says once that the listener had no place left.
    ///
    /// # Errors
    /// Nobody listens there, or the system gives no more streams.
    pub(crate) fn run(&self, is_full: impl FnOnce()) -> Result<Flooded, Failure> {
        let hello = hello(self.hellos_by)?;
        let (mut flooded, mut streams) = (Flooded::default(), Vec::<Stream>::new());
        let mut is_full = Some(is_full);
        let each = Duration::from_secs(1) / self.per_second.max(1);
        let (mut turn, mut due) = (0, Instant::now());
        let end = due + Duration::from_secs(self.seconds);
        while !flooded.listener_gone && Instant::now() < end {
            for _ in 0..OPENED_MAX {
                if Instant::now() < due {
                    break;
                }
                (turn, due) = (turn + 1, due + each);
                let stays = self.hellos_by.is_some() || turn % 3 != 0;
                let max = if stays { self.held } else { TALKING_MAX };
                if streams.iter().filter(|stream| stream.stays == stays).count() >= max {
                    continue;
                }
                match self.open(mix(turn), stays, &hello)? {
                    Some(stream) => streams.push(stream),
                    None => flooded.listener_gone = true,
                }
                flooded.opened += 1;
            }
            let mut ready = wait(&streams, due)?.into_iter();
            streams.retain_mut(|stream| {
                if ready.next() != Some(true) {
                    return true;
                }
                let next = stream.go_on(&mut flooded);
                flooded.listener_gone |= next == Next::Gone;
                next == Next::Stays
            });
            if flooded.made_room > 0 {
                is_full.take().into_iter().for_each(|tell| tell());
            }
        }
        if flooded.taken == 0 {
            return Err("nobody listens there".into());
        }
        Ok(flooded)
    }

    /// Begins a stream; none where nobody listens.
    fn open(&self, chance: u64, stays: bool, hello: &[u8]) -> Result<Option<Stream>, Failure> {
        let from = match (&*self.from, stays) {
            ([], _) => None,
            (all, _) if self.hellos_by.is_some() => all.get((chance >> 8) as usize % all.len()),
            ([_, staying @ ..], true) if !staying.is_empty() => {
                staying.get((chance >> 8) as usize % staying.len())
            }
            ([first, ..], _) => Some(first),
        };
        let family = if self.to.is_ipv4() {
            AddressFamily::INET
        } else {
            AddressFamily::INET6
        };
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let socket = socket_with(family, SocketType::STREAM, flags, None)?;
        if let Some(from) = from {
            bind(&socket, &SocketAddr::new(*from, 0))?;
        }
        match connect(&socket, &self.to) {
            Ok(()) | Err(Errno::INPROGRESS) => {}
            Err(Errno::CONNREFUSED) => return Ok(None),
            Err(error) => return Err(error.into()),
        }
        let (unsaid, says_no_more) = match self.hellos_by {
            Some(_) => (hello.into(), false),
            None => words(chance, stays, hello),
        };
        Ok(Some(Stream {
            stream: socket.into(),
            stays,
            unsaid,
            says_no_more,
            heard: Vec::new(),
            taken_at: None,
        }))
    }
}

/// Returns the bytes that a stream sends, and whether it closes its side then.
fn words(chance: u64, stays: bool, hello: &[u8]) -> (Vec<u8>, bool) {
    let half = hello.len() / 2;
    match (stays, chance % 4) {
        (true, 0) => (Vec::new(), false),
        // The beginning of a header.
        (true, 1) => (hello[..3].into(), false),
        (true, 2) => (hello[..half].into(), false),
        // All of it, and then it is silent.
        (true, _) => (hello.into(), false),
        (false, 0) => (chance.to_le_bytes().repeat(64), false),
        (false, 1) => (hello[..half].into(), true),
        // Its version is none, in an announcement that is one otherwise.
        (false, 2) => ([&hello[..4], &[0xff], &hello[5..]].concat(), false),
        // Said again where another frame is due.
        (false, _) => (hello.repeat(2), false),
    }
}

/// A Hello as a peer sends it, the same each time: by the id of a key, or by none. Nothing of the key itself is in it.
fn hello(key: Option<u32>) -> Result<Vec<u8>, Failure> {
    let address: IpAddr = [10, 0, 0, 1].into();
    let prefix = IpPrefix::new(address, 24).map_err(|_| "no such subnet")?;
    let rail = AdvertisedRail::new(prefix, Gid::from_ip(address), SpeedClass::default())?;
    let hello = Hello {
        versions: VersionRange::OURS,
        initiator: InstanceId::new(1).ok_or("no such instance")?,
        listener: None,
        nonce: Nonce([7; 16]),
        key: key.map(|id| KeyId::new(id).ok_or("no such key")).transpose()?,
    };
    Ok(FrameBuffer::hello(&hello, &[rail].into_iter().collect())
        .as_bytes()
        .to_vec())
}

/// Next state of a stream.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Next {
    Stays,
    /// The listener closed it.
    Over,
    /// Nobody listens any more.
    Gone,
}

impl Stream {
    /// Returns the events it waits for: a connection with room to send, then an answer.
    fn interest(&self) -> PollFd<'_> {
        let flags = if self.taken_at.is_none() || !self.unsaid.is_empty() {
            PollFlags::IN | PollFlags::OUT
        } else {
            PollFlags::IN
        };
        PollFd::new(&self.stream, flags)
    }

    /// Says and hears what it can.
    fn go_on(&mut self, flooded: &mut Flooded) -> Next {
        if self.taken_at.is_none() && self.stream.peer_addr().is_ok() {
            self.taken_at = Some(Instant::now());
            flooded.taken += 1;
        }
        // If the write fails, an answer may be there already. Only the first error shows that nobody listens.
        let said = match self.unsaid.is_empty() {
            true => Ok(0),
            false => self.stream.write(&self.unsaid),
        };
        if let Ok(bytes @ 1..) = said {
            self.unsaid.drain(..bytes);
            if self.unsaid.is_empty() && self.says_no_more {
                let _ = self.stream.shutdown(Shutdown::Write);
            }
        }
        let mut bytes = [0; 1024];
        let heard = self.stream.read(&mut bytes);
        let is = |outcome: &io::Result<usize>, kind| matches!(outcome, Err(error) if error.kind() == kind);
        match &heard {
            Ok(count @ 1..) => {
                self.heard.extend_from_slice(&bytes[..*count]);
                Next::Stays
            }
            heard if is(heard, ErrorKind::WouldBlock) => Next::Stays,
            heard if is(heard, ErrorKind::ConnectionRefused) || is(&said, ErrorKind::ConnectionRefused) => {
                Next::Gone
            }
            _ => {
                self.count(flooded);
                Next::Over
            }
        }
    }

    /// Counts its answer, now that it is over.
    fn count(&self, flooded: &mut Flooded) {
        match rejection(&self.heard).map(|reject| reject.reason) {
            Some(RejectReason::MALFORMED) => flooded.malformed += 1,
            Some(RejectReason::UNEXPECTED) => flooded.out_of_turn += 1,
            Some(RejectReason::TIMED_OUT) => flooded.timed_out += 1,
            Some(RejectReason::BUSY) => {
                flooded.turned_away += 1;
                // It has heard a Welcome, or was let be for a while.
                let had_a_place = self.heard.len() > REJECT_FRAME_BYTES
                    || self.taken_at.is_some_and(|at| at.elapsed() > LET_IN);
                flooded.made_room += u64::from(had_a_place);
            }
            _ => {}
        }
    }
}

/// The Reject that what was heard ends with.
fn rejection(mut heard: &[u8]) -> Option<Reject> {
    loop {
        let frame = heard.get(..FrameHeader::parse(heard).ok()?.frame_bytes())?;
        if let Ok(Frame::Reject(reject)) = Frame::parse(frame) {
            return Some(reject);
        }
        heard = &heard[frame.len()..];
    }
}

/// Waits until one of them gets on, or the next is due; says which do.
fn wait(streams: &[Stream], due: Instant) -> Result<Vec<bool>, Failure> {
    let left = due.saturating_duration_since(Instant::now());
    let span = Timespec {
        tv_sec: left.as_secs().try_into()?,
        tv_nsec: left.subsec_nanos().into(),
    };
    let mut waited: Vec<_> = streams.iter().map(Stream::interest).collect();
    match poll(&mut waited, Some(&span)) {
        Ok(_) => Ok(waited.iter().map(|one| !one.revents().is_empty()).collect()),
        Err(Errno::INTR) => Ok(Vec::new()),
        Err(error) => Err(error.into()),
    }
}

impl Report for Flooded {
    fn failures(&self) -> &[String] {
        &self.failures
    }
}

impl Display for Flooded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{} streams, {} taken; told: {} no frame, {} out of turn, {} too late, {} too many, of which {} made room; {}",
            self.opened,
            self.taken,
            self.malformed,
            self.out_of_turn,
            self.timed_out,
            self.turned_away,
            self.made_room,
            if self.listener_gone {
                "then the listener was gone"
            } else {
                "the listener is still there"
            }
        )
    }
}
