//! Command line of this package's programs, and the stream between the two sides of a run.
//!
//! Each program has one function `pump` that posts and polls, so that its instructions can be counted by its name. It
//! follows the documentation of the rival crate, with 64-byte messages and at most [`DEPTH`] of them in flight. If
//! the crate leaves the choice, every [`COMPLETION_EVERY`]th message has a completion.

use std::error::Error;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};

use clap::{Parser, ValueEnum};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// Bytes of a message.
pub const MESSAGE_BYTES: usize = 64;
/// Most requests in flight, as by default in `doorbell bw` and perftest.
pub const DEPTH: u64 = 128;
/// Messages for each completion, as by default in `doorbell bw`.
pub const COMPLETION_EVERY: u64 = 64;
/// Posted receives, as in perftest.
pub const RECEIVES: u64 = 512;

/// Any error of a program.
pub type Failure = Box<dyn Error>;

/// The command line of both programs.
#[derive(Clone, Debug, Parser)]
pub struct Arguments {
    /// Address to listen on; with --connect, the address of the side that listens
    pub address: SocketAddr,
    /// Connect to the side that listens, and post
    #[arg(long)]
    pub connect: bool,
    /// RDMA device
    #[arg(long)]
    pub device: String,
    /// Index of the RoCEv2 GID
    #[arg(long)]
    pub gid_index: u32,
    /// Operation to post
    #[arg(long, value_enum)]
    pub op: Op,
    /// Messages posted with one call
    #[arg(long, default_value_t = 1)]
    pub list: u64,
    /// Messages
    #[arg(long, short = 'n')]
    pub iterations: u64,
}

/// An operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Op {
    /// SEND into a receive
    Send,
    /// WRITE into memory
    Write,
}

/// The stream to the other side.
#[derive(Debug)]
pub struct Peer(BufReader<TcpStream>);

impl Peer {
    /// Connects, or takes one connection.
    pub fn meet(arguments: &Arguments) -> Result<Self, Failure> {
        let stream = if arguments.connect {
            TcpStream::connect(arguments.address)?
        } else {
            TcpListener::bind(arguments.address)?.accept()?.0
        };
        Ok(Self(BufReader::new(stream)))
    }

    /// Sends a value to the other side, and returns the value of the other side.
    pub fn exchange<T: Serialize + DeserializeOwned>(&mut self, ours: &T) -> Result<T, Failure> {
        let mut line = serde_json::to_string(ours)?;
        line.push('\n');
        self.0.get_mut().write_all(line.as_bytes())?;
        line.clear();
        self.0.read_line(&mut line)?;
        Ok(serde_json::from_str(&line)?)
    }

    /// Waits until the other side is gone.
    pub fn wait_for_its_end(&mut self) -> Result<(), Failure> {
        let mut rest = Vec::new();
        self.0.read_to_end(&mut rest)?;
        Ok(())
    }
}
