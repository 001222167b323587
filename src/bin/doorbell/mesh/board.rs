//! What a member counted, for whoever asks over HTTP: noted a few times a second by the thread that polls.

use core::net::SocketAddr;
use core::time::Duration;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use doorbell::{Labels, Mesh, Metrics, MetricsServer, Worker};

use crate::report::Failure;

/// How old what is told may be.
const NOTE_EVERY: Duration = Duration::from_millis(200);

/// What is told, and by whom.
pub(super) struct Board {
    text: Arc<Mutex<String>>,
    noted: Option<Instant>,
    /// It tells until this goes.
    _server: MetricsServer,
}

impl Board {
    /// Tells at this address; says where.
    ///
    /// # Errors
    /// The port cannot be had.
    pub(super) fn start(at: SocketAddr) -> Result<Self, Failure> {
        let text = Arc::<Mutex<String>>::default();
        let told = Arc::clone(&text);
        let render = move || told.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let server = MetricsServer::start(at, render).map_err(|error| format!("metrics at {at}: {error}"))?;
        eprintln!("metrics at http://{}/metrics", server.address());
        Ok(Self {
            text,
            noted: None,
            _server: server,
        })
    }

    /// Notes how it is now, where what was noted is old.
    pub(super) fn note(&mut self, mesh: &Mesh, workers: &mut [Worker]) {
        if self.noted.is_some_and(|at| at.elapsed() < NOTE_EVERY) {
            return;
        }
        self.noted = Some(Instant::now());
        let mut metrics = Metrics::default();
        for worker in workers {
            // A device's name is a value of a label, and so may be anything.
            let labels = Labels::new(&[("device", worker.device())]).unwrap_or(Labels::NONE);
            metrics.worker(&labels, worker);
        }
        metrics.mesh(&Labels::NONE, mesh);
        metrics.handshakes(&Labels::NONE, &mesh.links().handshakes());
        *self.text.lock().unwrap_or_else(PoisonError::into_inner) = metrics.to_string();
    }
}
