//! Scans of the ports of a Node's devices, by its makers. All callers that ask before a scan begins share it.

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

/// One that waits for a look, until this is dropped.
type Waiting = Arc<Waker>;

/// The look that is yet to begin, where there is one.
#[derive(Debug, Default)]
pub(crate) struct PortScans {
    next: Mutex<Weak<PortScan>>,
}

impl PortScans {
    /// Has the ports looked at from now on. If the makers have no threads, that is a look of its own. Otherwise it is a look
    /// that has not begun, which wakes the caller as long as it waits.
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
        let begun = Begun(Arc::downgrade(&scan));
        let provider = Arc::clone(provider);
        let job = makers.make(Whom::All, None, move || {
            begun.run(&*provider);
            Ok::<_, ConnectError>(())
        });
        scan.state().job = Some(job);
        scan
    }
}

/// One look. Once nobody waits for it any more, it is taken off the makers.
#[derive(Debug, Default)]
struct PortScan(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    has_begun: bool,
    outcome: Option<Result<Arc<Scan>, ScanError>>,
    /// The waiting parties that asked.
    waiting: Vec<Weak<Waker>>,
    job: Option<Commission<()>>,
}

impl PortScan {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notifies another one; not where it has begun, and may have passed by what the other is to see.
    fn is_joined(&self, waiting: Option<&Waiting>) -> bool {
        let mut state = self.state();
        if !state.has_begun {
            // A look that is long in coming keeps no descriptors of those who gave up.
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

/// A look that is being done, or is about to be. It ends with this, however that comes about.
struct Begun(Weak<PortScan>);

impl Begun {
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

impl Drop for Begun {
    fn drop(&mut self) {
        // Nothing where it has an end.
        if let Some(scan) = self.0.upgrade() {
            scan.end(Err(ScanError::Panicked));
        }
    }
}

/// How long a look may take that is waited for without a deadline of the caller's: devices answer in milliseconds, and threads get to run
/// in this, however many others do.
pub(crate) const SCANNED_WITHIN: Duration = Duration::from_secs(5);

/// Why there is nothing to go by.
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

/// Our ports, that are being looked at for somebody.
#[derive(Debug)]
pub(crate) struct PendingScan {
    scan: Arc<PortScan>,
    until: Deadline,
    _waiting: Option<Waiting>,
}

impl PendingScan {
    /// Has the ports looked at for these Workers, by the deadline, and this one woken where that is done on another thread.
    ///
    /// # Errors
    /// A Worker is another Node's.
    pub(crate) fn begin<P: Provider, N: Network>(
        node: &Node<P, N>,
        workers: &[Worker<P>],
        waker: Option<Waker>,
        until: Deadline,
    ) -> Result<Self, ConnectError> {
        node.check(workers)?;
        Ok(Self::beside(node, waker, until))
    }

    /// Has the ports looked at as [`PendingScan::begin`] does, for Workers that may be on other threads.
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

    /// Returns the rails that were found, for the same Workers; `None` while the ports are looked at.
    pub(crate) fn take<P: Provider, N: Network>(
        &self,
        node: &Node<P, N>,
        workers: &[Worker<P>],
    ) -> Option<Result<Rails, ConnectError>> {
        let devices: Vec<_> = workers.iter().map(Worker::device).collect();
        let found = self.take_of(node, &devices)?;
        Some(found.map_err(ConnectError::from))
    }

    /// Returns the rails that were found, of the device of each Worker; `None` while the ports are looked at.
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

    /// When it comes to nothing.
    pub(crate) const fn deadline(&self) -> Deadline {
        self.until
    }
}

#[cfg(test)]
mod tests {
    use super::{Begun, PortScan, PortScans, Waiting};
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

    /// Makers of one thread, which is busy until what is given with them is gone.
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
        drop(Begun(Arc::downgrade(&scan)));
        assert!(matches!(scan.state().outcome, Some(Err(_))));
        assert_notified(&signal);
    }
}
