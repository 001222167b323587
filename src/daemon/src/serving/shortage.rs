//! Errors of the system that are no fault of a client.

use rustix::io::Errno;

use crate::reason::AttachRefusal;

/// The reason of a refusal by such an error. `None` for any other.
pub(crate) fn shortage(errno: i32) -> Option<AttachRefusal> {
    match Errno::from_raw_os_error(errno) {
        Errno::NOMEM | Errno::NOBUFS | Errno::AGAIN => Some(AttachRefusal::NoMemory),
        Errno::MFILE | Errno::NFILE => Some(AttachRefusal::NoDescriptors),
        _ => None,
    }
}
