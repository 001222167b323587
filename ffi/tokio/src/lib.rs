//! doorbell in tokio: a Worker as something to await.
//!
//! An [`AsyncWorker`] owns a [`Worker`] that notifies, and watches its descriptors. Its task sleeps while nothing comes, and no
//! thread is blocked. [`AsyncWorker::next`] gives events one after the other; [`AsyncWorker::turn`] lends them to a closure, as
//! [`Worker::poll`] does, and copies nothing.
//!
//! | | |
//! |---|---|
//! | connect | [`AsyncWorker::connect`] |
//! | accept | [`AsyncWorker::listen`], [`AsyncWorker::accept_from`]; then [`Next::Accepted`] |
//! | events | [`AsyncWorker::next`], [`AsyncWorker::turn`] |
//! | send once there is room | [`AsyncWorker::room`] |
//! | end | [`AsyncWorker::close`], [`AsyncWorker::close_all`] |
//!
//! # Cancellation
//! Each future may be dropped at any await, as `tokio::select!` does: no event is lost, and what was begun goes on with the next call.
//! An [`AsyncWorker::connect`] that is dropped undoes what it made. [`AsyncWorker::close_all`] owns the Worker: if it is dropped, the
//! Worker is dropped with all events that it kept.
//!
//! The example `service` is a server and its clients, over simulated hosts.

mod watched;
mod worker;

pub use worker::{AsyncWorker, Error, Next};

#[cfg(doc)]
use doorbell::Worker;

/// The examples of the book's page on event loops run.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/cookbook/event-loops.md")]
struct EventLoops;
