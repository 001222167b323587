//! Random bytes of the operating system.

/// Fills an array with random bytes.
///
/// # Errors
/// The system gave none: its error number.
pub(crate) fn random<const N: usize>() -> Result<[u8; N], i32> {
    let mut bytes = [0; N];
    match getrandom::fill(&mut bytes) {
        Ok(()) => Ok(bytes),
        Err(error) => Err(error.raw_os_error().unwrap_or(0)),
    }
}
