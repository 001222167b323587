//! Where queue pairs are made: calls that take milliseconds, and seconds where a neighbour does not answer, kept
//! off the thread that talks to peers.

use std::io;
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread::{self, JoinHandle};

type Job = Box<dyn FnOnce() + Send>;

/// Does what it is handed, as much at a time as it has threads. Dropped, it waits until all is done.
#[derive(Debug, Default)]
pub(crate) struct Makers {
    /// `None` does it at once, where it is handed over.
    to: Option<mpsc::Sender<Job>>,
    threads: Vec<JoinHandle<()>>,
}

impl Makers {
    /// Makers with so many threads.
    ///
    /// # Errors
    /// The system gave no thread.
    pub(crate) fn background(threads: usize) -> io::Result<Self> {
        let (to, from) = mpsc::channel::<Job>();
        let from = Arc::new(Mutex::new(from));
        let mut makers = Self {
            to: Some(to),
            threads: Vec::new(),
        };
        for _ in 0..threads.max(1) {
            let from = Arc::clone(&from);
            let thread = thread::Builder::new()
                .name("doorbell-maker".into())
                .spawn(move || {
                    while let Some(job) = next(&from) {
                        job();
                    }
                })?;
            makers.threads.push(thread);
        }
        Ok(makers)
    }

    /// Hands something over to be done.
    pub(crate) fn run(&self, job: impl FnOnce() + Send + 'static) {
        match &self.to {
            // Where all threads are gone, having panicked, the send fails and drops it here.
            Some(to) => drop(to.send(Box::new(job))),
            None => job(),
        }
    }
}

/// The next job, for one of the threads; none where nobody hands over more.
fn next(from: &Mutex<mpsc::Receiver<Job>>) -> Option<Job> {
    from.lock().unwrap_or_else(PoisonError::into_inner).recv().ok()
}

impl Drop for Makers {
    fn drop(&mut self) {
        self.to = None;
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Makers;
    use core::time::Duration;
    use std::sync::mpsc;

    #[test]
    fn one_that_takes_long_holds_up_no_other() {
        let makers = Makers::background(2).unwrap();
        let (to, from) = mpsc::channel();
        let (go, wait) = mpsc::channel::<()>();
        let last = to.clone();
        makers.run(move || {
            let _ = wait.recv();
            last.send(9).unwrap();
        });
        for number in 0..3 {
            let to = to.clone();
            makers.run(move || to.send(number).unwrap());
        }
        for number in 0..3 {
            assert_eq!(from.recv_timeout(Duration::from_secs(20)), Ok(number));
        }
        go.send(()).unwrap();
        drop(makers);
        assert_eq!(from.try_recv(), Ok(9));
    }

    #[test]
    fn without_threads_it_is_done_at_once() {
        let (to, from) = mpsc::channel();
        Makers::default().run(move || to.send(1).unwrap());
        assert_eq!(from.try_recv(), Ok(1));
    }
}
