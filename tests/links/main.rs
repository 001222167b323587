//! Links over a simulated fabric, in its time: rails that fail and come back, processes that stop, die and are replaced, with the
//! shipped handshake. Each message once, in order, and with an end.

mod accepting;
mod announced;
mod answers;
mod anything;
mod classes;
mod crowd;
mod elsewhere;
mod ended;
#[path = "../fabric/mod.rs"]
mod fabric;
mod failing;
mod flushing;
mod full;
mod hostile;
mod in_place;
mod keys;
mod lengths;
mod lent_windows;
mod loans;
mod long;
mod moved;
mod one_sided;
mod other_workers;
mod panics;
mod peers;
mod placed;
mod ports;
mod processes;
mod scarce;
mod sleeping;
mod striping;
mod totals;
mod transfers;
