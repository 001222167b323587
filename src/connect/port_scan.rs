//! Scans of the ports of a Node's devices, on the threads of its [`Makers`]. All callers that ask before a scan begins share it.

use core::task::Waker;
use core::time::Duration;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use doorbell_core::Deadline;
use doorbell_core::network::Network;
use doorbell_core::provider::{Provider, ProviderError};

use crate::connect::node::Node;
use crate::error::ConnectError;
use crate::machine::makers::{Commission, Makers, Panicked, Whom};
use crate::rails::Rails;
use crate::rails::scan::Scan;
use crate::worker::Worker;

/// The waker of a caller that waits for a scan. Dropping it ends the wait.
type Waiting = Arc<Waker>;

/// The scan that has been requested and has not begun, if any.
#[derive(Debug, Default)]
pub(crate) struct PortScans {
    next: Mutex<Weak<PortScan>>,
}

impl PortScans {
    /// Requests a scan that begins after this call. Without threads, the scan runs at once, for this caller alone. With threads, the
    /// caller joins the scan that has not begun, and is woken at its end if it still waits.
    fn ask<P: Provider>(
        &self,
        provider: &Arc<P>,
        makers: &Makers,
        waiting: Option<&Waiting>,
    ) -> Arc<PortScan> {
        let mut next = self.next.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(scan) = next.upgrade().filter(|scan| scan.is_joined(waiting)) {
            return scan;
        }
        let scan = Arc::new(PortScan::default());
        scan.is_joined(waiting);
        if makers.is_background() {
            *next = Arc::downgrade(&scan);
        }
        drop(next);
        let begun = ScanJob(Arc::downgrade(&scan));
        let provider = Arc::clone(provider);
        let job = makers.make(Whom::All, None, move || {
            begun.run(&*provider);
            Ok::<_, ConnectError>(())
        });
        scan.state().job = Some(job);
        scan
    }
}

/// One scan. When all its callers have dropped it, its job is withdrawn from the makers.
#[derive(Debug, Default)]
struct PortScan(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    has_begun: bool,
    outcome: Option<Result<Arc<Scan>, ScanError>>,
    /// The wakers of the callers.
    waiting: Vec<Weak<Waker>>,
    job: Option<Commission<()>>,
}

impl PortScan {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a caller, and returns whether it was added. A scan that has begun accepts no callers: it may have passed a port that has
    /// changed since.
    fn is_joined(&self, waiting: Option<&Waiting>) -> bool {
        let mut state = self.state();
        if !state.has_begun {
            // Callers that gave up are removed, so that their descriptors are closed even if the scan does not begin for long.
            state.waiting.retain(|waiting| waiting.strong_count() > 0);
            state.waiting.extend(waiting.map(Arc::downgrade));
        }
        !state.has_begun
    }

    fn end(&self, outcome: Result<Arc<Scan>, ScanError>) {
        let mut state = self.state();
        state.outcome.get_or_insert(outcome);
        let waiting = core::mem::take(&mut state.waiting);
        drop(state);
        for waker in waiting.iter().filter_map(Weak::upgrade) {
            waker.wake_by_ref();
        }
    }
}

/// The job of a scan. Dropping it ends the scan with an outcome, also after a panic.
struct ScanJob(Weak<PortScan>);

impl ScanJob {
    fn run(&self, provider: &impl Provider) {
        let Some(scan) = self.0.upgrade() else {
            return;
        };
        scan.state().has_begun = true;
        drop(scan);
        let found = Scan::of(provider);
        if let Some(scan) = self.0.upgrade() {
            scan.end(found.map(Arc::new).map_err(ScanError::Failed));
        }
    }
}

impl Drop for ScanJob {
    fn drop(&mut self) {
        // No effect if the scan has an outcome.
        if let Some(scan) = self.0.upgrade() {
            scan.end(Err(ScanError::Panicked));
        }
    }
}

/// The time limit of a scan for callers without a deadline. Devices answer in milliseconds, and even on a busy machine the thread
/// runs within this time.
pub(crate) const SCANNED_WITHIN: Duration = Duration::from_secs(5);

/// Reason why a scan has no result.
#[derive(Clone, Copy, Debug)]
pub(crate) enum ScanError {
    Failed(ProviderError),
    Panicked,
    TimedOut,
}

impl From<ScanError> for ConnectError {
    fn from(reason: ScanError) -> Self {
        match reason {
            ScanError::Failed(error) => error.into(),
            ScanError::Panicked => Panicked.into(),
            ScanError::TimedOut => Self::PortsTimedOut,
        }
    }
}

/// A scan as one caller sees it.
#[derive(Debug)]
pub(crate) struct PendingScan {
    scan: Arc<PortScan>,
    until: Deadline,
    _waiting: Option<Waiting>,
}

impl PendingScan {
    /// Requests a scan for these Workers with this deadline. If it runs on another thread, `waker` is woken at its end.
    ///
    /// # Errors
    /// A Worker belongs to another Node.
    pub(crate) fn begin<P: Provider, N: Network>(
        node: &Node<P, N>,
        workers: &[Worker<P>],
        waker: Option<Waker>,
        until: Deadline,
    ) -> Result<Self, ConnectError> {
        node.check(workers)?;
        Ok(Self::beside(node, waker, until))
    }

    /// Requests a scan as [`PendingScan::begin`] does, for Workers that may be on other threads, and so without checking the Workers.
    pub(crate) fn beside<P: Provider, N: Network>(
        node: &Node<P, N>,
        waker: Option<Waker>,
        until: Deadline,
    ) -> Self {
        let waiting = waker.map(Arc::new);
        let makers = node.makers();
        let scan = node.port_scans.ask(&node.provider, makers, waiting.as_ref());
        Self {
            scan,
            until,
            _waiting: waiting,
        }
    }

    /// Returns the rails that were found, for the same Workers; `None` while the scan is in progress.
    pub(crate) fn take<P: Provider, N: Network>(
        &self,
        node: &Node<P, N>,
        workers: &[Worker<P>],
    ) -> Option<Result<Rails, ConnectError>> {
        let devices: Vec<_> = workers.iter().map(Worker::device).collect();
        let found = self.take_of(node, &devices)?;
        Some(found.map_err(ConnectError::from))
    }

    /// Returns the rails that were found, for the device of each Worker; `None` while the scan is in progress.
    pub(crate) fn take_of<P: Provider, N: Network>(
        &self,
        node: &Node<P, N>,
        devices: &[&str],
    ) -> Option<Result<Rails, ScanError>> {
        match &self.scan.state().outcome {
            Some(Ok(scan)) => Some(Ok(Rails::of_scan(scan, devices, &node.rail_filter))),
            Some(Err(error)) => Some(Err(*error)),
            None if self.until.has_passed(node.network.now()) => Some(Err(ScanError::TimedOut)),
            None => None,
        }
    }

    /// Returns when the scan times out.
    pub(crate) const fn deadline(&self) -> Deadline {
        self.until
    }
}

#[cfg(test)]
mod tests {
    use super::{PortScan, PortScans, ScanJob, Waiting};
    use crate::error::ConnectError;
    use crate::machine::makers::{Makers, Whom};
    use crate::machine::reaper::Reaper;
    use crate::machine::signal::Signal;
    use crate::machine::tcp::Tcp;
    use crate::within;
    use core::time::Duration;
    use doorbell_core::{Clock as _, IpPrefix};
    use doorbell_sim::{Fabric, Host, PortConfig};
    use std::sync::{Arc, mpsc};

    const SOON: Duration = Duration::from_secs(20);

    fn provider() -> Arc<Host> {
        let prefix = IpPrefix::new([10, 0, 0, 1].into(), 24).unwrap();
        let port = PortConfig::new("sim0", &[prefix]);
        Arc::new(Fabric::new().host("host", vec![port]).unwrap())
    }

    /// Makers with one thread, which is busy until the returned sender is dropped.
    fn busy() -> (Makers, mpsc::Sender<()>) {
        let makers = Makers::background(1, &Reaper::default()).unwrap();
        let (busy, until) = mpsc::channel::<()>();
        let (began, begins) = mpsc::channel();
        let address = Whom::Address([10, 0, 0, 1].into());
        let job = makers.make(address, None, move || {
            began.send(()).unwrap();
            Ok::<_, ConnectError>(until.recv().is_ok())
        });
        begins.recv_timeout(SOON).unwrap();
        drop(job);
        (makers, busy)
    }

    fn waiting(signal: &Arc<Signal>) -> Waiting {
        Arc::new(Arc::clone(signal).into())
    }

    fn assert_notified(signal: &Signal) {
        let too_late = within(SOON);
        signal.wait(SOON).unwrap();
        assert!(!too_late.has_passed(Tcp.now()));
    }

    #[test]
    fn all_who_ask_before_it_begins_have_the_same_one() {
        let (provider, scans) = (provider(), PortScans::default());
        let (makers, busy) = busy();
        let signals = [0; 2].map(|_| makers.signal().unwrap().unwrap());
        let [one, other] = signals
            .each_ref()
            .map(|signal| (waiting(signal), signal))
            .map(|(waiting, _)| (scans.ask(&provider, &makers, Some(&waiting)), waiting));
        let ((one, _one), (other, _other)) = (one, other);
        assert!(Arc::ptr_eq(&one, &other));
        drop(busy);
        for signal in &signals {
            assert_notified(signal);
        }
        let scan = one.state().outcome.clone().unwrap().unwrap();
        assert_eq!(scan.ports.len(), 1);
        let next = scans.ask(&provider, &makers, None);
        assert!(!Arc::ptr_eq(&one, &next));
    }

    #[test]
    fn who_gave_up_is_not_woken_by_it() {
        let (provider, scans) = (provider(), PortScans::default());
        let (makers, _busy) = busy();
        let [one, between, last] = [0; 3].map(|_| {
            let signal = makers.signal().unwrap().unwrap();
            let waiting = waiting(&signal);
            (scans.ask(&provider, &makers, Some(&waiting)), waiting)
        });
        let kept = one.0.state().waiting.len();
        assert!(Arc::ptr_eq(&one.0, &last.0) && kept == 3);
        drop((between, last.1));
        assert!(one.0.is_joined(None));
        assert_eq!(one.0.state().waiting.len(), 1);
    }

    #[test]
    fn who_asks_while_it_goes_on_has_the_next() {
        let (provider, scans) = (provider(), PortScans::default());
        let (makers, _busy) = busy();
        let one = scans.ask(&provider, &makers, None);
        one.state().has_begun = true;
        let next = scans.ask(&provider, &makers, None);
        assert!(!Arc::ptr_eq(&one, &next));
        assert!(Arc::ptr_eq(&next, &scans.ask(&provider, &makers, None)));
    }

    #[test]
    fn without_threads_each_who_asks_looks_at_once() {
        let (provider, scans) = (provider(), PortScans::default());
        let makers = Makers::default();
        let one = scans.ask(&provider, &makers, None);
        assert!(one.state().outcome.is_some());
        assert!(!Arc::ptr_eq(&one, &scans.ask(&provider, &makers, None)));
    }

    #[test]
    fn one_that_panics_comes_to_nothing_and_says_so() {
        let signal = Arc::new(Signal::new().unwrap());
        let scan = Arc::new(PortScan::default());
        let waiting = waiting(&signal);
        assert!(scan.is_joined(Some(&waiting)));
        drop(ScanJob(Arc::downgrade(&scan)));
        assert!(matches!(scan.state().outcome, Some(Err(_))));
        assert_notified(&signal);
    }
}
