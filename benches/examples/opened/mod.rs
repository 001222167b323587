//! A node of this process and its links, with the times that a program needs under an instrument.

use core::error::Error;
use core::time::Duration;
use std::sync::Arc;

use doorbell::link::{LinkConfig, Links};
use doorbell::{Node, Trust, Worker, WorkerConfig};

pub(crate) type Failure = Box<dyn Error>;

/// Counted under an instrument, everything takes its time.
pub(crate) const SOON: Duration = Duration::from_secs(300);

/// Opens it with default settings, but for those times and what `adjust` changes.
pub(crate) fn open(adjust: impl FnOnce(&mut LinkConfig)) -> Result<(Arc<Node>, Vec<Worker>, Links), Failure> {
    let node = Arc::new(Node::open(Trust::unauthenticated_on_purpose())?);
    let workers = node.workers(&WorkerConfig::default())?;
    let mut config = LinkConfig::default();
    config.channel.handshake_stage = SOON;
    config.session.attach_within = SOON;
    config.session.dead_after = SOON;
    config.session.recover_within = SOON;
    // As on a fast rail: as many pieces of a transfer ahead as may be.
    config.session.suspect_after = SOON;
    adjust(&mut config);
    let links = Links::new(&node, &workers, &config)?;
    Ok((node, workers, links))
}
