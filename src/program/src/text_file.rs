//! Reads text files that the user names, with a limit of their length.

use std::fs::File;
use std::io::Read as _;
use std::path::Path;

use crate::report::Failure;

/// Reads a text of at most this length.
///
/// # Errors
/// The file cannot be read, is not UTF-8, or is longer.
pub(crate) fn read(path: &Path, bytes_max: u64) -> Result<String, Failure> {
    let mut bytes = Vec::new();
    let file = File::open(path)?;
    file.take(bytes_max.saturating_add(1)).read_to_end(&mut bytes)?;
    if u64::try_from(bytes.len()).is_ok_and(|count| count > bytes_max) {
        return Err(format!("more than {bytes_max} bytes, which is the limit of such a file").into());
    }
    Ok(String::from_utf8(bytes)?)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::read;

    #[test]
    fn a_file_without_end_is_too_long() {
        let error = read(Path::new("/dev/zero"), 1 << 20).unwrap_err().to_string();
        assert!(error.starts_with("more than 1048576 bytes"), "{error}");
        assert_eq!(read(Path::new("/dev/null"), 0).unwrap(), "");
    }

    #[test]
    fn the_limit_itself_is_no_fault() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("text");
        std::fs::write(&path, "12345").unwrap();
        assert_eq!(read(&path, 5).unwrap(), "12345");
        for text in ["12345", "123\u{20ac}"] {
            std::fs::write(&path, text).unwrap();
            let error = read(&path, 4).unwrap_err().to_string();
            assert!(error.starts_with("more than 4 bytes"), "{text}: {error}");
        }
        std::fs::write(&path, [0xff]).unwrap();
        assert!(read(&path, 5).is_err());
    }
}
