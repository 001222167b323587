//! Metrics of a program over HTTP. The polling thread records its counters a few times a second. The thread of the server
//! adds the kernel's port counters, and renders the text.

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

/// Interval at which the recorded counters are replaced.
pub(crate) const NOTE_EVERY: Duration = Duration::from_millis(200);

type SharedMetrics = Arc<Mutex<Arc<Metrics>>>;

/// The counters that were last recorded, and the server that renders them.
pub(crate) struct Board {
    /// Replaced as a whole, so that neither thread holds the lock while it builds or renders.
    told: SharedMetrics,
    noted: Option<Instant>,
    /// Answers requests until it is dropped.
    server: MetricsServer,
}

impl Board {
    /// Starts a server at this address. The kernel's counters are those of the ports of the Workers' devices.
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

    /// The address of the server.
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

    /// Whether the recorded counters are old enough to be replaced.
    pub(crate) fn is_due(&self) -> bool {
        self.noted.is_none_or(|at| at.elapsed() >= NOTE_EVERY)
    }

    /// Records the counters of the Workers and those that `gather` adds, if the last record is old enough.
    pub(crate) fn note<P: Provider>(&mut self, workers: &mut [Worker<P>], gather: impl FnOnce(&mut Metrics)) {
        if !self.is_due() {
            return;
        }
        self.noted = Some(Instant::now());
        let mut metrics = Metrics::default();
        for worker in workers {
            // A label value may be any text, such as the name of a device.
            let labels = Labels::new(&[("device", worker.device())]).unwrap_or(Labels::NONE);
            metrics.worker(&labels, worker);
        }
        gather(&mut metrics);
        *self.told.lock().unwrap_or_else(PoisonError::into_inner) = Arc::new(metrics);
    }
}
