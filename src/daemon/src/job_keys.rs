//! The keys of jobs from a file: the jobs that processes may attach to, and the users of each.

use std::path::Path;

use doorbell::trust::{KeyRingError, wipe, with_secret_file};

use crate::name::{JobKey, JobNumber};
use crate::reason::AttachRefusal;

/// The line that admits jobs which the file does not list.
const OTHERS: &str = "*";

/// Length of a key in hexadecimal digits.
const KEY_DIGITS: usize = 32;

/// The jobs that processes may attach to, each with its key and its users.
///
/// In text, a line is the number of a job, a colon, and the 32 hexadecimal digits of its key. The IDs of the users that may attach can follow,
/// separated by commas. Without them, each user that has the key may attach. The rest of a line after a `#` is a comment:
///
/// ```text
/// 7:8f3c…            # every user that has the key
/// 8:51aa… 1000,1001  # two users, each with a job of its own
/// *                  # also jobs that are not listed
/// ```
///
/// A job without a line is refused, unless there is a line `*`: then the first process of such a job sets its key. A text without lines
/// refuses all jobs. The keys are overwritten when this value is dropped.
#[derive(Debug)]
pub struct JobKeys {
    jobs: Vec<ListedJob>,
    has_others: bool,
}

#[derive(Debug)]
struct ListedJob {
    job: JobNumber,
    key: JobKey,
    /// Empty if all users may attach.
    users: Vec<u32>,
}

impl JobKeys {
    /// Reads the keys from a file that only its owner can read: see [`with_secret_file`].
    ///
    /// # Errors
    /// As for [`with_secret_file`] and [`JobKeys::from_text`].
    pub fn from_file(path: &Path) -> Result<Self, KeyRingError> {
        with_secret_file(path, Self::from_text)
    }

    /// Reads the keys in a text. The caller is responsible for erasing the text.
    ///
    /// # Errors
    /// A line is invalid, or two lines have the same job. The error has the number of the line.
    pub fn from_text(text: &str) -> Result<Self, KeyRingError> {
        let mut keys = Self {
            // Never grows, so that no copy of the keys stays in freed memory.
            jobs: Vec::with_capacity(text.lines().count()),
            has_others: false,
        };
        for (index, line) in text.lines().enumerate() {
            let number = index.saturating_add(1);
            match line.split('#').next().unwrap_or_default().trim() {
                "" => {}
                OTHERS => keys.has_others = true,
                entry => keys
                    .add(entry)
                    .map_err(|why| KeyRingError::Text { line: number, why })?,
            }
        }
        Ok(keys)
    }

    fn add(&mut self, entry: &str) -> Result<(), &'static str> {
        let (job, rest) = entry.split_once(':').ok_or("there is no colon after a job")?;
        let job = number(job)
            .map(JobNumber)
            .ok_or("the job is not a number below 2^64")?;
        if self.find(job).is_some() {
            return Err("an earlier line has this job");
        }
        let rest = rest.trim();
        let (digits, users) = rest.split_once(char::is_whitespace).unwrap_or((rest, ""));
        let is_key = digits.len() == KEY_DIGITS && digits.bytes().all(|digit| digit.is_ascii_hexdigit());
        let key = u128::from_str_radix(digits, 16).ok().filter(|_| is_key);
        let key = key.ok_or("the key is not 32 hexadecimal digits")?;
        let users = users.split(',').filter(|_| !users.is_empty());
        let users: Option<_> = users.map(|user| u32::try_from(number(user)?).ok()).collect();
        self.jobs.push(ListedJob {
            job,
            key: JobKey(key.to_be_bytes()),
            users: users.ok_or("a user is not a number below 2^32")?,
        });
        Ok(())
    }

    /// Number of listed jobs.
    #[must_use]
    pub fn jobs(&self) -> usize {
        self.jobs.len()
    }

    /// Whether a line has this job.
    #[must_use]
    pub fn lists(&self, job: JobNumber) -> bool {
        self.find(job).is_some()
    }

    fn find(&self, job: JobNumber) -> Option<&ListedJob> {
        self.jobs.iter().find(|listed| listed.job == job)
    }

    /// Checks whether a process of a user may attach to a job with this key.
    pub(crate) fn check(&self, user: u32, job: JobNumber, key: JobKey) -> Result<(), AttachRefusal> {
        match self.find(job) {
            None if self.has_others => Ok(()),
            None => Err(AttachRefusal::UnlistedJob),
            Some(listed) if !listed.users.is_empty() && !listed.users.contains(&user) => {
                Err(AttachRefusal::UserOfJob)
            }
            Some(listed) if listed.key != key => Err(AttachRefusal::JobKey),
            Some(_) => Ok(()),
        }
    }
}

impl Drop for JobKeys {
    fn drop(&mut self) {
        for listed in &mut self.jobs {
            wipe(&mut listed.key.0);
        }
    }
}

/// A number without a sign.
fn number(text: &str) -> Option<u64> {
    let text = Some(text.trim()).filter(|text| text.bytes().all(|digit| digit.is_ascii_digit()))?;
    text.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::JobKeys;
    use crate::name::{JobKey, JobNumber};
    use crate::reason::AttachRefusal;

    const DIGITS: &str = "000102030405060708090a0b0c0d0eFf";
    const KEY: JobKey = JobKey([0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 255]);

    #[test]
    fn a_process_attaches_with_the_key_of_the_file_as_a_user_of_its_job() {
        let text = format!(
            "# all\n 7 : {DIGITS} # anyone\n\n8:{DIGITS}\t1000, 1001\r\n18446744073709551615:{DIGITS} 0"
        );
        let keys = JobKeys::from_text(&text).unwrap();
        assert_eq!(keys.jobs(), 3);
        assert!(keys.lists(JobNumber(u64::MAX)) && !keys.lists(JobNumber(9)));
        let check = |user, job, key| keys.check(user, JobNumber(job), key);
        for (user, job) in [(0, 7), (5, 7), (1000, 8), (1001, 8), (0, u64::MAX)] {
            assert_eq!(check(user, job, KEY), Ok(()), "{user} {job}");
            for at in 0..16 {
                let mut wrong = KEY;
                wrong.0[at] ^= 1 << (at % 8);
                assert_eq!(check(user, job, wrong), Err(AttachRefusal::JobKey), "byte {at}");
            }
        }
        for (user, job) in [(1002, 8), (0, 8), (1, u64::MAX)] {
            assert_eq!(
                check(user, job, KEY),
                Err(AttachRefusal::UserOfJob),
                "{user} {job}"
            );
        }
        assert_eq!(check(0, 9, KEY), Err(AttachRefusal::UnlistedJob));
    }

    #[test]
    fn jobs_that_are_not_listed_are_admitted_by_the_word_for_that_alone() {
        let with = JobKeys::from_text(&format!("*\n7:{DIGITS}")).unwrap();
        assert_eq!(with.check(1, JobNumber(9), JobKey([1; 16])), Ok(()));
        let wrong = with.check(1, JobNumber(7), JobKey([1; 16]));
        assert_eq!(wrong, Err(AttachRefusal::JobKey), "a listed job keeps its key");
        for none in ["", "# nothing\n\n"] {
            let none = JobKeys::from_text(none).unwrap();
            let refused = none.check(0, JobNumber(7), KEY);
            assert_eq!(refused, Err(AttachRefusal::UnlistedJob));
        }
    }

    #[test]
    fn a_bad_line_is_reported_by_its_number_and_reason_without_a_word_of_the_key() {
        for (line, why) in [
            ("7", "there is no colon after a job"),
            ("**", "there is no colon after a job"),
            (":00", "the job is not a number below 2^64"),
            ("+7:00", "the job is not a number below 2^64"),
            ("18446744073709551616:00", "the job is not a number below 2^64"),
            ("7:", "the key is not 32 hexadecimal digits"),
            ("7:1000", "the key is not 32 hexadecimal digits"),
            (
                "7:+00102030405060708090a0b0c0d0eFf",
                "the key is not 32 hexadecimal digits",
            ),
            (
                "7:000102030405060708090a0b0c0d0eFf00",
                "the key is not 32 hexadecimal digits",
            ),
            ("7:é", "the key is not 32 hexadecimal digits"),
            (
                "1:000102030405060708090a0b0c0d0eFf",
                "an earlier line has this job",
            ),
            (
                "7:000102030405060708090a0b0c0d0eFf root",
                "a user is not a number below 2^32",
            ),
            (
                "7:000102030405060708090a0b0c0d0eFf 1,",
                "a user is not a number below 2^32",
            ),
            (
                "7:000102030405060708090a0b0c0d0eFf 4294967296",
                "a user is not a number below 2^32",
            ),
        ] {
            let text = format!("# jobs\n1:{DIGITS}\n{line}\n");
            let error = JobKeys::from_text(&text).unwrap_err().to_string();
            assert_eq!(error, format!("line 3 is not a key: {why}"), "{line}");
        }
    }

    #[test]
    fn keys_are_not_printed() {
        let printed = format!("{:?}", JobKeys::from_text(&format!("7:{DIGITS}")).unwrap());
        assert!(
            printed.contains("JobKey(..)") && !printed.contains("14"),
            "{printed}"
        );
    }
}
