//! Path of the shared object, for the tests and programs that load it.

use core::fmt;
use std::path::{Path, PathBuf};

/// The shared object is not where cargo puts it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotBuilt {
    /// Paths that were tried.
    pub looked: Vec<PathBuf>,
}

impl fmt::Display for NotBuilt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the fake libibverbs is not built: it is none of")?;
        for path in &self.looked {
            write!(f, " {}", path.display())?;
        }
        f.write_str("; a package finds it beside its tests where doorbell-fake is among its dependencies")
    }
}

impl core::error::Error for NotBuilt {}

/// The shared object that was built for the program that runs.
///
/// Cargo puts it into the folder `deps` of the target directory, where tests and benchmarks lie too;
/// programs lie above it and examples beside it.
///
/// # Errors
/// It lies in none of those places, each of which the error names.
pub fn library_path() -> Result<PathBuf, NotBuilt> {
    let program = std::env::current_exe().unwrap_or_default();
    beside(&program)
}

fn beside(program: &Path) -> Result<PathBuf, NotBuilt> {
    let name = format!(
        "{}doorbell_fake{}",
        std::env::consts::DLL_PREFIX,
        std::env::consts::DLL_SUFFIX
    );
    let folders = program.ancestors().skip(1).take(2);
    let mut looked = Vec::new();
    for folder in folders {
        for candidate in [folder.join(&name), folder.join("deps").join(&name)] {
            if candidate.is_file() {
                return Ok(candidate);
            }
            looked.push(candidate);
        }
    }
    Err(NotBuilt { looked })
}

#[cfg(test)]
mod tests {
    use super::beside;
    use std::fs;
    use std::path::Path;

    #[test]
    fn it_is_found_from_where_cargo_puts_programs() {
        let target = std::env::temp_dir().join(format!("doorbell-fake-path-{}", std::process::id()));
        let library = target.join("deps/libdoorbell_fake.so");
        fs::create_dir_all(target.join("deps")).unwrap();
        fs::write(&library, "").unwrap();
        for program in ["deps/test-0123", "program", "examples/example"] {
            assert_eq!(beside(&target.join(program)).unwrap(), library, "{program}");
        }
        fs::remove_dir_all(&target).unwrap();
    }

    #[test]
    fn where_it_is_not_the_error_names_the_places() {
        let error = beside(Path::new("/nowhere/deps/test")).unwrap_err();
        let text = error.to_string();
        assert!(text.contains("/nowhere/deps/libdoorbell_fake.so"), "{text}");
        assert!(text.contains("not built"), "{text}");
    }
}
