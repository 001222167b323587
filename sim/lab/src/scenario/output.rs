//! Output of a step: kept in two files as it came, and as lines for the patterns.

use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};

/// Most bytes of output of one step: patterns are searched in memory, and a step that repeats itself for ever
/// should be found out before the disk is full.
const OUTPUT_BYTES_MAX: usize = 64 * 1024 * 1024;

/// Which of the two streams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stream {
    Out,
    Err,
}

/// The output of one step so far.
#[derive(Debug)]
pub(super) struct Output {
    out: Half,
    err: Half,
    /// Both streams' lines in the order in which they were completed, so that no line is torn by the other.
    lines: String,
    bytes: usize,
}

#[derive(Debug)]
struct Half {
    path: PathBuf,
    file: File,
    /// Bytes since the last end of a line.
    partial: Vec<u8>,
}

impl Output {
    /// Opens `DIR/STEM.stdout` and `DIR/STEM.stderr`.
    pub(super) fn create(dir: &Path, stem: &str) -> Result<Self> {
        std::fs::create_dir_all(dir).with_context(|| format!("cannot create {}", dir.display()))?;
        Ok(Self {
            out: Half::create(dir.join(format!("{stem}.stdout")))?,
            err: Half::create(dir.join(format!("{stem}.stderr")))?,
            lines: String::new(),
            bytes: 0,
        })
    }

    /// Takes in bytes of one stream, and gives back where in [`Self::lines`] the lines they completed begin.
    pub(super) fn take(&mut self, stream: Stream, bytes: &[u8]) -> Result<usize> {
        let before = self.lines.len();
        self.bytes = self.bytes.saturating_add(bytes.len());
        ensure!(
            self.bytes <= OUTPUT_BYTES_MAX,
            "it wrote more than {} MiB",
            OUTPUT_BYTES_MAX / 1024 / 1024
        );
        let half = match stream {
            Stream::Out => &mut self.out,
            Stream::Err => &mut self.err,
        };
        half.file
            .write_all(bytes)
            .with_context(|| format!("cannot write {}", half.path.display()))?;
        half.partial.extend_from_slice(bytes);
        if let Some(end) = half.partial.iter().rposition(|&byte| byte == b'\n') {
            let rest = half.partial.split_off(end.saturating_add(1));
            self.lines.push_str(&String::from_utf8_lossy(&half.partial));
            half.partial = rest;
        }
        Ok(before)
    }

    /// Counts what stands after the last end of a line as a line, once nothing more can come.
    pub(super) fn finish(&mut self) -> usize {
        let before = self.lines.len();
        for half in [&mut self.out, &mut self.err] {
            if !half.partial.is_empty() {
                self.lines.push_str(&String::from_utf8_lossy(&half.partial));
                self.lines.push('\n');
                half.partial.clear();
            }
        }
        before
    }

    /// All lines of both streams.
    pub(super) fn lines(&self) -> &str {
        &self.lines
    }

    /// The lines from `start` on, as [`Self::take`] gave it, and what has no end of line yet: a prompt is
    /// something one may wait for.
    pub(super) fn news(&self, start: usize) -> String {
        let mut news = self.lines.get(start..).unwrap_or_default().to_owned();
        for half in [&self.out, &self.err] {
            news.push_str(&String::from_utf8_lossy(&half.partial));
            news.push('\n');
        }
        news
    }

    /// The last `count` lines of both streams.
    pub(super) fn tail(&self, count: usize) -> Vec<String> {
        let all: Vec<&str> = self.lines.lines().collect();
        all.iter()
            .skip(all.len().saturating_sub(count))
            .map(|&line| line.to_owned())
            .collect()
    }

    pub(super) fn stdout_path(&self) -> &Path {
        &self.out.path
    }

    pub(super) fn stderr_path(&self) -> &Path {
        &self.err.path
    }
}

impl Half {
    fn create(path: PathBuf) -> Result<Self> {
        let file = File::create(&path).with_context(|| format!("cannot create {}", path.display()))?;
        Ok(Self {
            path,
            file,
            partial: Vec::new(),
        })
    }
}
