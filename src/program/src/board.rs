//! Metrics of a program over HTTP. The polling thread notes its counters a few times a second. The answering thread adds the
//! kernel's port counters and renders the text.

use core::net::SocketAddr;
use core::time::Duration;
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use doorbell::Worker;
use doorbell::provider::Provider;
use doorbell_operation::{Labels, Metrics, MetricsServer};

use crate::port_counts::add_ports;
use crate::report::Failure;

/// The age after which noted counters are replaced.
pub(crate) const NOTE_EVERY: Duration = Duration::from_millis(200);

type SharedMetrics = Arc<Mutex<Arc<Metrics>>>;

/// The counters noted last, and the server that renders them.
pub(crate) struct Board {
    /// Replaced as a whole, so that neither thread waits while the other makes its own of it.
    told: SharedMetrics,
    noted: Option<Instant>,
    /// It answers until it is dropped.
    server: MetricsServer,
}

impl Board {
    /// Starts to answer at this address. The kernel's counters are those of the ports of these Workers' devices.
    ///
    /// # Errors
    /// The address cannot be bound.
    pub(crate) fn start<P: Provider>(at: SocketAddr, workers: &[Worker<P>]) -> Result<Self, Failure> {
        let told = SharedMetrics::default();
        let devices: BTreeSet<_> = workers.iter().map(|worker| worker.device().to_owned()).collect();
        let of_program = Arc::clone(&told);
        let render = move || {
            let noted = Arc::clone(&of_program.lock().unwrap_or_else(PoisonError::into_inner));
            let mut metrics = Metrics::clone(&noted);
            add_ports(&mut metrics, &devices);
            metrics.to_string()
        };
        let server = MetricsServer::start(at, render).map_err(|error| format!("metrics at {at}: {error}"))?;
        Ok(Self {
            told,
            noted: None,
            server,
        })
    }

    /// The address it answers at.
    pub(crate) fn address(&self) -> SocketAddr {
        self.server.address()
    }

    /// Calls [`Board::start`], and prints the address on standard error.
    ///
    /// # Errors
    /// The address cannot be bound.
    pub(crate) fn announced<P: Provider>(at: SocketAddr, workers: &[Worker<P>]) -> Result<Self, Failure> {
        let board = Self::start(at, workers)?;
        eprintln!("metrics at http://{}/metrics", board.address());
        Ok(board)
    }

    /// Whether the last note is old enough for the next one.
    pub(crate) fn is_due(&self) -> bool {
        self.noted.is_none_or(|at| at.elapsed() >= NOTE_EVERY)
    }

    /// Notes the counters of the Workers and those that `gather` adds, if the last note is old enough.
    pub(crate) fn note<P: Provider>(&mut self, workers: &mut [Worker<P>], gather: impl FnOnce(&mut Metrics)) {
        if !self.is_due() {
            return;
        }
        self.noted = Some(Instant::now());
        let mut metrics = Metrics::default();
        for worker in workers {
            // A device's name is a value of a label, and so may be anything.
            let labels = Labels::new(&[("device", worker.device())]).unwrap_or(Labels::NONE);
            metrics.worker(&labels, worker);
        }
        gather(&mut metrics);
        *self.told.lock().unwrap_or_else(PoisonError::into_inner) = Arc::new(metrics);
    }
}
