//! Finding libibverbs: opened at run time with its symbol versions, or linked by the feature `link`.
//!
//! One library per process, found once: at the first [`load`], [`load_from`] or call of a verb.

use core::fmt;
use core::ops::Deref;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use crate::functions::Functions;

/// The environment variable that names another library than `libibverbs.so.1`.
///
/// Not looked at in a program that runs with more rights than its caller (`AT_SECURE`), nor with the feature
/// `link`.
pub const LIBRARY_ENV: &str = "DOORBELL_LIBIBVERBS";

/// The name that the dynamic linker searches for where nothing else is asked.
const DEFAULT_NAME: &str = "libibverbs.so.1";

/// The library of this process, or why there is none.
static LIBRARY: OnceLock<Result<Library, LoadError>> = OnceLock::new();

/// An opened libibverbs: its functions, and where it came from. It is never closed.
#[derive(Debug)]
pub struct Library {
    functions: Functions,
    asked: PathBuf,
    file: Option<PathBuf>,
}

impl Library {
    /// Name that the dynamic linker was asked to open.
    #[must_use]
    pub fn asked(&self) -> &Path {
        &self.asked
    }

    /// The file behind it, symbolic links resolved, where the dynamic linker reports it.
    #[must_use]
    pub fn file(&self) -> Option<&Path> {
        self.file.as_deref()
    }

    /// The release of rdma-core that the file's name states: `(44, 0)` for `libibverbs.so.1.14.44.0`.
    #[must_use]
    pub fn rdma_core_version(&self) -> Option<(u32, u32)> {
        version_in_file_name(self.file.as_deref()?)
    }
}

impl Deref for Library {
    type Target = Functions;

    fn deref(&self) -> &Functions {
        &self.functions
    }
}

/// `libibverbs.so.1.<interface>.<major>.<minor>`, the name rdma-core's own build gives the file.
fn version_in_file_name(file: &Path) -> Option<(u32, u32)> {
    let mut parts = file
        .file_name()?
        .to_str()?
        .strip_prefix("libibverbs.so.")?
        .split('.');
    let (_soname, _interface) = (parts.next()?, parts.next()?);
    let (major, minor) = (parts.next()?.parse().ok()?, parts.next()?.parse().ok()?);
    parts.next().is_none().then_some((major, minor))
}

/// Reason why there is no libibverbs. The first three are for the administrator of the machine.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LoadError {
    /// The dynamic linker cannot open the library.
    Open {
        /// Name that it was asked to open.
        path: PathBuf,
        /// Its message.
        reason: String,
    },
    /// The library lacks a function that every supported libibverbs has.
    Symbol {
        /// The library.
        path: PathBuf,
        /// The function.
        name: &'static str,
        /// The version node it should be in.
        version: &'static str,
    },
    /// The name given cannot be one of a library: it is empty or contains a NUL.
    Path {
        /// The name.
        path: PathBuf,
    },
    /// [`load_from`] came too late: this process already settled on another library.
    Settled {
        /// The library that was asked for first.
        path: PathBuf,
    },
    /// [`load_from`] in a program whose libibverbs was linked when it was built (feature `link`).
    Linked,
}

/// Advice what to install, in the words of the package managers.
const INSTALL: &str = "install the packages libibverbs1 and ibverbs-providers (Debian, Ubuntu) or libibverbs \
                       (Fedora, RHEL)";

impl fmt::Display for LoadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Open { path, reason } => write!(
                f,
                "cannot open the RDMA verbs library {}: {reason}; {INSTALL}, or name another file in {LIBRARY_ENV}",
                path.display()
            ),
            Self::Symbol { path, name, version } => write!(
                f,
                "{} has no {name} of version {version}, so it is no libibverbs this program can use; {INSTALL}",
                path.display()
            ),
            Self::Path { path } => write!(
                f,
                "{path:?} cannot be the name of a library; unset {LIBRARY_ENV}, or name a file in it"
            ),
            Self::Settled { path } => {
                write!(
                    f,
                    "this process already uses {}; choose a library before the first verb",
                    path.display()
                )
            }
            Self::Linked => {
                f.write_str("libibverbs was linked when this program was built; no other can be opened")
            }
        }
    }
}

impl core::error::Error for LoadError {}

/// The libibverbs of this process, opened on the first call: the file named by [`LIBRARY_ENV`] where that is
/// set, else `libibverbs.so.1` by the dynamic linker's search.
///
/// # Errors
/// No libibverbs can be used; the error says why, and stays the same for the life of the process.
pub fn load() -> Result<&'static Library, LoadError> {
    // `OnceLock` is one acquire load once it is filled.
    LIBRARY
        .get_or_init(|| open(default_path()))
        .as_ref()
        .map_err(Clone::clone)
}

/// Opens libibverbs from a file of the caller's choice, whatever the environment says. See also [`load`].
///
/// # Errors
/// The file cannot be used; the error says why. `Settled` if this process already looked for another.
///
/// # Safety
/// The file, if there is one, is a libibverbs of this machine's ABI, or stands for one. Opening it runs its
/// constructors, and every verb runs its code, in this process and with its rights. So every user who may write
/// to the file or to a folder above it owns the process. Source: dlopen(3).
pub unsafe fn load_from(path: &Path) -> Result<&'static Library, LoadError> {
    if cfg!(feature = "link") {
        return Err(LoadError::Linked);
    }
    let settled = LIBRARY.get_or_init(|| open(path.to_path_buf()));
    match settled {
        Ok(library) if library.asked != path => Err(LoadError::Settled {
            path: library.asked.clone(),
        }),
        Ok(library) => Ok(library),
        Err(error) => Err(error.clone()),
    }
}

/// The table behind the forwarders.
#[inline]
pub(crate) fn functions() -> Option<&'static Functions> {
    match LIBRARY.get() {
        Some(Ok(library)) => Some(&library.functions),
        Some(Err(_)) => None,
        None => first_use(),
    }
}

#[cold]
fn first_use() -> Option<&'static Functions> {
    load().ok().map(|library| &library.functions)
}

/// Name to open if the program gives none.
fn default_path() -> PathBuf {
    // SAFETY: takes a constant and cannot fail; an unknown entry reads as zero (getauxval(3)).
    let raised = unsafe { libc::getauxval(libc::AT_SECURE) } != 0;
    let named = if raised {
        None
    } else {
        std::env::var_os(LIBRARY_ENV)
    };
    named.map_or_else(|| PathBuf::from(DEFAULT_NAME), PathBuf::from)
}

#[cfg(feature = "link")]
fn open(_path: PathBuf) -> Result<Library, LoadError> {
    let functions = Functions::linked();
    let file = file_of(&functions);
    Ok(Library {
        functions,
        asked: PathBuf::from(DEFAULT_NAME),
        file,
    })
}

#[cfg(not(feature = "link"))]
fn open(path: PathBuf) -> Result<Library, LoadError> {
    let handle = dynamic::open(&path)?;
    let find = dynamic::finder(handle);
    // SAFETY: the symbols are looked up by name and, in a library that has them, by version; a library that
    // defines these names is a libibverbs or stands in for one. It is never closed.
    match unsafe { Functions::resolve(find) } {
        Ok(functions) => {
            let file = file_of(&functions);
            Ok(Library {
                functions,
                asked: path,
                file,
            })
        }
        Err(symbol) => Err(LoadError::Symbol {
            path,
            name: symbol.name.to_str().unwrap_or("a function"),
            version: symbol.version.to_str().unwrap_or("IBVERBS"),
        }),
    }
}

/// The file that holds the library's functions.
fn file_of(functions: &Functions) -> Option<PathBuf> {
    use core::ffi::CStr;
    use core::mem::MaybeUninit;
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt as _;

    let function = functions.ibv_get_device_list?;
    let mut info = MaybeUninit::<libc::Dl_info>::uninit();
    // SAFETY: any address may be asked about, and the structure is writable (dladdr(3)).
    if unsafe { libc::dladdr(function as *const core::ffi::c_void, info.as_mut_ptr()) } == 0 {
        return None;
    }
    // SAFETY: the call succeeded, so it filled the structure in.
    let info = unsafe { info.assume_init() };
    if info.dli_fname.is_null() {
        return None;
    }
    // SAFETY: a C string that lives as long as the library, which is never closed.
    let name = unsafe { CStr::from_ptr(info.dli_fname) };
    std::fs::canonicalize(OsStr::from_bytes(name.to_bytes())).ok()
}

/// The dynamic linker.
#[cfg(not(feature = "link"))]
mod dynamic {
    use core::ffi::{CStr, c_void};
    use core::ptr::NonNull;
    use std::ffi::CString;
    use std::os::unix::ffi::OsStrExt as _;
    use std::path::Path;

    use super::LoadError;
    use crate::functions::Symbol;

    /// Opens a library for good.
    pub(super) fn open(path: &Path) -> Result<NonNull<c_void>, LoadError> {
        let bytes = path.as_os_str().as_bytes();
        // An empty name would open the program itself.
        let name = CString::new(bytes).ok().filter(|name| !name.is_empty());
        let Some(name) = name else {
            return Err(LoadError::Path {
                path: path.to_path_buf(),
            });
        };
        // SAFETY: a C string; the library's initialisers are those of libibverbs or of its stand-in.
        let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        NonNull::new(handle).ok_or_else(|| LoadError::Open {
            path: path.to_path_buf(),
            reason: last_error(),
        })
    }

    /// How to look a symbol up in this library.
    ///
    /// libibverbs has several functions twice, in an old and a new version that differ in their structures,
    /// so the version is asked for by name. A stand-in without versions is searched by name alone.
    pub(super) fn finder(handle: NonNull<c_void>) -> impl FnMut(&Symbol) -> *mut c_void {
        let versioned = [c"IBVERBS_1.1", c"IBVERBS_1.0"]
            .into_iter()
            .any(|version| !find_version(handle, c"ibv_get_device_list", version).is_null());
        move |symbol| {
            if versioned {
                find_version(handle, symbol.name, symbol.version)
            } else {
                find_name(handle, symbol.name)
            }
        }
    }

    #[cfg(target_env = "gnu")]
    fn find_version(handle: NonNull<c_void>, name: &CStr, version: &CStr) -> *mut c_void {
        // SAFETY: an open library and two C strings (dlvsym(3)).
        unsafe { libc::dlvsym(handle.as_ptr(), name.as_ptr(), version.as_ptr()) }
    }

    /// Other C libraries have no such call; their dlsym gives the version that is not hidden, the newest.
    #[cfg(not(target_env = "gnu"))]
    fn find_version(_handle: NonNull<c_void>, _name: &CStr, _version: &CStr) -> *mut c_void {
        core::ptr::null_mut()
    }

    fn find_name(handle: NonNull<c_void>, name: &CStr) -> *mut c_void {
        // SAFETY: an open library and a C string (dlsym(3)).
        unsafe { libc::dlsym(handle.as_ptr(), name.as_ptr()) }
    }

    /// Message of the dynamic linker about this thread's last failure.
    fn last_error() -> String {
        // SAFETY: takes no argument (dlerror(3)).
        let text = unsafe { libc::dlerror() };
        if text.is_null() {
            return String::from("no reason given");
        }
        // SAFETY: a C string that lives until this thread's next call of the dynamic linker.
        unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::{LoadError, version_in_file_name};
    use std::path::Path;

    #[test]
    fn the_release_stands_in_the_file_name() {
        let version = |name| version_in_file_name(Path::new(name));
        assert_eq!(version("/usr/lib/libibverbs.so.1.14.44.0"), Some((44, 0)));
        assert_eq!(version("libibverbs.so.1.15.58.2"), Some((58, 2)));
        assert_eq!(version("/usr/lib/libibverbs.so.1"), None);
        assert_eq!(version("/tmp/libfake.so"), None);
        assert_eq!(version("libibverbs.so.1.14.44.0.1"), None);
    }

    #[test]
    fn a_missing_library_names_the_packages() {
        let error = LoadError::Open {
            path: "libibverbs.so.1".into(),
            reason: "no such file".into(),
        };
        let text = error.to_string();
        for word in [
            "libibverbs1",
            "ibverbs-providers",
            "Fedora",
            "no such file",
            "DOORBELL_LIBIBVERBS",
        ] {
            assert!(text.contains(word), "{word} is not in: {text}");
        }
    }
}
