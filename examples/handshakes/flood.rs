//! The flood: peers that say nothing, say half a word, or talk nonsense. Plain TCP, and nothing of doorbell.

use core::fmt::{self, Display};
use core::net::SocketAddr;
use core::time::Duration;
use std::io::{ErrorKind, Read as _, Write as _};
use std::net::TcpStream;
use std::thread;
use std::time::Instant;

use clap::Args;
use serde::Serialize;

use crate::around::{Failure, Report};

/// Keeps so many half-open handshakes at a listener, and sends it nonsense besides.
#[derive(Args, Clone, Debug)]
pub(crate) struct Flood {
    /// Where it listens: an address and the port.
    to: SocketAddr,
    /// Streams to keep open, that say nothing or half a word; closed by the listener, they come again.
    #[arg(long, default_value_t = 300)]
    silent: usize,
    /// Streams a second that say something that is no handshake.
    #[arg(long, default_value_t = 200)]
    garbage: u32,
    /// For how long.
    #[arg(long, default_value_t = 60)]
    seconds: u64,
}

/// What a flood came to.
#[derive(Debug, Serialize)]
pub(crate) struct Flooded {
    silent_opened: u64,
    silent_closed: u64,
    garbage_sent: u64,
    refused_to_connect: u64,
    failures: Vec<String>,
}

impl Flood {
    /// # Errors
    /// It cannot connect at all.
    pub(crate) fn run(&self) -> Result<Flooded, Failure> {
        let mut flooded = Flooded {
            silent_opened: 0,
            silent_closed: 0,
            garbage_sent: 0,
            refused_to_connect: 0,
            failures: Vec::new(),
        };
        let mut silent = Vec::new();
        let (began, span) = (Instant::now(), Duration::from_secs(self.seconds));
        while began.elapsed() < span {
            while silent.len() < self.silent {
                let Some(mut stream) = self.connect(&mut flooded) else {
                    break;
                };
                if flooded.silent_opened % 2 == 0 {
                    // What may be the beginning of a frame.
                    let _ = stream.write(&[b'D'; 3]);
                }
                flooded.silent_opened += 1;
                silent.push(stream);
            }
            let due = began.elapsed().as_millis() * u128::from(self.garbage) / 1000;
            while u128::from(flooded.garbage_sent) < due {
                let Some(mut stream) = self.connect(&mut flooded) else {
                    break;
                };
                let noise = flooded
                    .garbage_sent
                    .wrapping_mul(0x9e37_79b9_7f4a_7c15)
                    .to_le_bytes();
                let _ = stream.write(&noise.repeat(64));
                flooded.garbage_sent += 1;
            }
            let before = silent.len();
            silent.retain_mut(|stream| {
                matches!(stream.read(&mut [0; 256]), Err(error) if error.kind() == ErrorKind::WouldBlock)
            });
            flooded.silent_closed += (before - silent.len()) as u64;
            thread::sleep(Duration::from_millis(5));
        }
        if flooded.silent_opened + flooded.garbage_sent == 0 {
            return Err("nobody listens there".into());
        }
        Ok(flooded)
    }

    fn connect(&self, flooded: &mut Flooded) -> Option<TcpStream> {
        let stream = TcpStream::connect_timeout(&self.to, Duration::from_secs(1)).ok();
        let stream = stream.filter(|stream| stream.set_nonblocking(true).is_ok());
        flooded.refused_to_connect += u64::from(stream.is_none());
        stream
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
            "{} silent streams, of which {} were closed; {} times nonsense; {} streams that nobody took",
            self.silent_opened, self.silent_closed, self.garbage_sent, self.refused_to_connect
        )
    }
}
