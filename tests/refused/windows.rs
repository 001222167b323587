//! Memory a peer may write at any time is copied, never borrowed.

use doorbell::{LocalWindow, Worker};
use doorbell::provider::Window;

type RdmaWindow = LocalWindow;

pub fn borrowed_as_bytes(window: &RdmaWindow) {
    let _bytes: &[u8] = window; //~ E0308
}

pub fn seen_as_bytes(window: &RdmaWindow) {
    let _bytes: &[u8] = window.as_ref(); //~ E0599
}

pub fn indexed(window: &RdmaWindow) {
    let _byte = window[0]; //~ E0608
}

pub fn read_like_a_lease(window: &RdmaWindow) {
    let _bytes = window.payload(); //~ E0599
}

pub fn cloned(window: &RdmaWindow) {
    let _twin: RdmaWindow = window.clone(); //~ E0308
}

pub fn posted_like_a_lease(worker: &mut Worker, window: RdmaWindow) {
    worker.release(window); //~ E0308
}
