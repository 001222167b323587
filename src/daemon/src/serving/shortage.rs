//! System errors that mean a shortage of resources in the daemon, not an error of the client.

use rustix::io::Errno;

use crate::reason::AttachRefusal;

/// The refusal for such an error. `None` for any other error.
pub(crate) fn shortage(errno: i32) -> Option<AttachRefusal> {
    match Errno::from_raw_os_error(errno) {
        Errno::NOMEM | Errno::NOBUFS | Errno::AGAIN => Some(AttachRefusal::NoMemory),
        Errno::MFILE | Errno::NFILE => Some(AttachRefusal::NoDescriptors),
        _ => None,
    }
}
