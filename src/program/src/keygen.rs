//! `doorbell keygen`: creates a file with a new key, in the format that `--key-file` reads, or adds the key of a job to a file for
//! `doorbell serve --job-keys`.

use core::fmt::Write as _;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use doorbell::trust::{KEY_BYTES_MIN, wipe};
use doorbell_daemon::{JobKey, JobKeys, JobNumber};
use rustix::fs::{FlockOperation, Mode, OFlags, flock};
use rustix::io::Errno;
use serde::Serialize;

use crate::report::{Failure, print};

/// Make a file with a new random key of 256 bits, or add the key of a job to a file
///
/// Only its owner can read the file (mode 0600), and an existing file is never overwritten. Copy the file to every peer, over a
/// confidential channel, and name it with --key-file. A file of two keys replaces a key without a restart: docs/security.md has
/// the steps.
///
/// With --job the key is that of a job, of 128 bits, for `doorbell serve --job-keys FILE`. It is added to the end of the file, which is
/// made if it is missing. A job that is in the file already is refused. The daemon reads the changed file within two seconds.
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  \
    doorbell keygen keys                    the first key of a site\n  \
    doorbell keygen next-keys --id 2        its successor\n  \
    doorbell lat --key-file keys\n  \
    doorbell keygen job-keys --job 7 --uid 1000,1001")]
pub(crate) struct Arguments {
    /// The file to make; with --job, the file to add to
    #[arg(value_name = "FILE")]
    file: PathBuf,

    /// The id of the key, by which both sides name it
    #[arg(long, value_name = "ID", default_value_t = 1)]
    id: u32,

    /// Add the key of this job, for `doorbell serve --job-keys`
    #[arg(long, value_name = "JOB", conflicts_with = "id")]
    job: Option<u64>,

    /// The ID of a user that may attach to the job, if not all users with the key. May be given many times
    #[arg(long = "uid", value_name = "UID", requires = "job", value_delimiter = ',')]
    uids: Vec<u32>,

    /// Print one JSON document
    #[arg(long)]
    json: bool,
}

/// The key that was generated. Only the file has its bytes.
#[derive(Serialize)]
struct Report {
    file: String,
    #[serde(flatten)]
    of: Of,
    key_bits: usize,
}

#[derive(Serialize)]
#[serde(untagged)]
enum Of {
    Peers { key_id: u32 },
    Job { job: u64, uids: Vec<u32> },
}

/// Creates the file, or adds to it.
///
/// # Errors
/// The file exists, has the job already, or cannot be written, or the system gave no random bytes.
pub(crate) fn run(arguments: &Arguments) -> Result<(), Failure> {
    let path = &arguments.file;
    let (of, key_bytes) = if let Some(job) = arguments.job {
        let uids = arguments.uids.clone();
        add(path, job, &uids)?;
        (Of::Job { job, uids }, size_of::<JobKey>())
    } else {
        make(path, arguments.id)?;
        let key_id = arguments.id;
        (Of::Peers { key_id }, KEY_BYTES_MIN)
    };
    let report = Report {
        file: path.display().to_string(),
        of,
        key_bits: key_bytes.saturating_mul(8),
    };
    print("keygen", &report, arguments.json, |report| {
        let key = match report.of {
            Of::Peers { key_id } => format!("key {key_id}"),
            Of::Job { job, .. } => format!("key of job {job}"),
        };
        format!(
            "{}: {key} of {} bits, for its owner alone (mode 0600)\n",
            report.file, report.key_bits
        )
    })
}

fn make(path: &Path, id: u32) -> Result<(), Failure> {
    let mut line = line_of(id.into(), KEY_BYTES_MIN, &[])?;
    let written = create(path).and_then(|mut file| {
        append(&mut file, &line).inspect_err(|_| {
            // It was made here, and has no complete key.
            let _ = fs::remove_file(path);
        })
    });
    wipe(&mut line);
    written.map_err(|error| {
        let path = path.display();
        match error.kind() {
            io::ErrorKind::AlreadyExists => {
                format!("{path}: the file exists, and is not overwritten: name another, or remove it first")
            }
            _ => format!("{path}: {error}"),
        }
        .into()
    })
}

/// Adds the key of a job to a file. The file has its previous content if that fails.
fn add(path: &Path, job: u64, uids: &[u32]) -> Result<(), Failure> {
    let failed = |why: &dyn core::fmt::Display| Failure::from(format!("{}: {why}", path.display()));
    let mut file = open(path).map_err(|error| failed(&error))?;
    // Another `keygen` waits. A file without a line is one that was made just now.
    flock(&file, FlockOperation::LockExclusive).map_err(|error| failed(&error))?;
    let before = JobKeys::from_file(path)?;
    let is_same = |named: fs::Metadata, opened: fs::Metadata| {
        (named.dev(), named.ino()) == (opened.dev(), opened.ino())
    };
    let opened = file.metadata().map_err(|error| failed(&error))?;
    let bytes = opened.len();
    if !fs::metadata(path).is_ok_and(|named| is_same(named, opened)) {
        return Err(failed(&"the file was replaced just now: try again"));
    }
    if before.lists(JobNumber(job)) {
        return Err(failed(&format_args!(
            "the file has a key of job {job} already: remove its line first, or name another job with --job"
        )));
    }
    let mut line = line_of(job, size_of::<JobKey>(), uids)?;
    // A last line without its end is ended first.
    line.insert(0, b'\n');
    let added = line.get(usize::from(ends_a_line(path))..).unwrap_or_default();
    let written = append(&mut file, added).map_err(|error| failed(&error));
    wipe(&mut line);
    // The daemon would not take a file that is too long, for example.
    let taken = written.and_then(|()| Ok(JobKeys::from_file(path)?));
    if taken.is_err() {
        file.set_len(bytes).map_err(|error| failed(&error))?;
    }
    taken.map(drop)
}

/// Whether the next line of a file begins at its end.
fn ends_a_line(path: &Path) -> bool {
    let mut text = fs::read(path).unwrap_or_default();
    let is_end = text.last().is_none_or(|last| *last == b'\n');
    wipe(&mut text);
    is_end
}

/// A line with a new key of this many bytes.
fn line_of(name: u64, key_bytes: usize, uids: &[u32]) -> Result<Vec<u8>, Failure> {
    let mut secret = [0; KEY_BYTES_MIN];
    getrandom::fill(&mut secret).map_err(|error| format!("the system gave no random bytes: {error}"))?;
    // Never grows, so that no copy of the key stays in freed memory.
    let mut line = String::with_capacity(128_usize.saturating_add(uids.len().saturating_mul(12)));
    // Writing to a String does not fail.
    let _ = write!(line, "{name}:");
    for byte in secret.iter().take(key_bytes) {
        let _ = write!(line, "{byte:02x}");
    }
    wipe(&mut secret);
    for (at, uid) in uids.iter().enumerate() {
        let _ = write!(line, "{}{uid}", if at == 0 { ' ' } else { ',' });
    }
    line.push('\n');
    Ok(line.into_bytes())
}

/// Opens a file to add to it, or creates it.
fn open(path: &Path) -> io::Result<File> {
    // A pipe without a reader would wait.
    let flags = OFlags::WRONLY | OFlags::APPEND | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    match rustix::fs::open(path, flags, Mode::empty()) {
        Err(Errno::NOENT) => create(path),
        opened => Ok(opened?.into()),
    }
}

/// Creates a file that only its owner can open, from the beginning. A symbolic link at the path is not followed.
fn create(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.append(true).create_new(true).mode(0o600).open(path)
}

fn append(file: &mut File, line: &[u8]) -> io::Result<()> {
    file.write_all(line)?;
    file.sync_all()
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    use doorbell::KeyRing;
    use doorbell_daemon::{JobKeys, JobNumber};

    use super::{add, make};

    #[test]
    fn a_new_key_is_read_by_those_who_take_keys_and_is_another_each_time() {
        let folder = tempfile::tempdir().unwrap();
        let [one, two] = ["one", "two"].map(|name| folder.path().join(name));
        make(&one, 7).unwrap();
        make(&two, 7).unwrap();
        let ids: Vec<_> = KeyRing::from_file(&one).unwrap().ids().collect();
        assert_eq!(ids, [7]);
        assert_eq!(fs::metadata(&one).unwrap().permissions().mode() & 0o7777, 0o600);
        assert_ne!(fs::read(&one).unwrap(), fs::read(&two).unwrap());
    }

    #[test]
    fn no_file_is_overwritten_and_no_link_followed() {
        let folder = tempfile::tempdir().unwrap();
        let [there, link, beyond] = ["there", "link", "beyond"].map(|name| folder.path().join(name));
        fs::write(&there, "kept").unwrap();
        symlink(&beyond, &link).unwrap();
        for path in [&there, &link] {
            let why = make(path, 1).unwrap_err().to_string();
            assert!(why.contains("is not overwritten"), "{why}");
        }
        assert_eq!(fs::read_to_string(&there).unwrap(), "kept");
        assert!(!beyond.exists());
        let nowhere = make(&folder.path().join("no/such"), 1).unwrap_err().to_string();
        assert!(nowhere.contains("no/such: No such file"), "{nowhere}");
    }

    #[test]
    fn keys_of_jobs_are_added_to_a_file_that_a_daemon_takes() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("job-keys");
        add(&path, 7, &[]).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o7777, 0o600);
        add(&path, u64::MAX, &[1000, u32::MAX]).unwrap();
        let text = fs::read_to_string(&path).unwrap();
        let lines: Vec<_> = text.lines().collect();
        assert!(
            lines[1].starts_with("18446744073709551615:") && lines[1].ends_with(" 1000,4294967295"),
            "{text}"
        );
        assert_ne!(lines[0].split(':').nth(1), lines[1].split([':', ' ']).nth(1));
        // A last line without its end is no part of the next one.
        fs::write(&path, format!("{text}# by hand")).unwrap();
        add(&path, 8, &[]).unwrap();
        let keys = JobKeys::from_file(&path).unwrap();
        assert!([7, 8, u64::MAX].iter().all(|job| keys.lists(JobNumber(*job))));
        assert_eq!(keys.jobs(), 3);
    }

    #[test]
    fn a_file_to_which_no_key_can_be_added_stays_as_it_is() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("job-keys");
        let refused = |text: &str, job, why: &str| {
            let error = add(&path, job, &[]).unwrap_err().to_string();
            assert!(error.contains(why), "{error}");
            assert_eq!(fs::read_to_string(&path).unwrap(), text);
        };
        add(&path, 7, &[]).unwrap();
        let text = fs::read_to_string(&path).unwrap();
        refused(&text, 7, "has a key of job 7 already");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
        refused(&text, 8, "make it 0600");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        let long = format!("{text}#{}\n", "-".repeat((64 << 10) - text.len() - 2));
        for wrong in ["7:key\n", &long] {
            fs::write(&path, wrong).unwrap();
            refused(wrong, 8, if wrong == long { "bytes" } else { "line 1" });
        }
        // Neither a link to nothing nor a folder is a file.
        let (link, beyond) = (folder.path().join("link"), folder.path().join("beyond"));
        symlink(&beyond, &link).unwrap();
        assert!(add(&link, 8, &[]).is_err() && !beyond.exists());
        assert!(add(folder.path(), 8, &[]).is_err());
    }
}
