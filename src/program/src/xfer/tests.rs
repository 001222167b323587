//! Tests of both ends over the simulated fabric, in virtual time.

use core::time::Duration;
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use clap::Parser as _;
use doorbell::link::FinalReason;
use doorbell_sim::{Fabric, Host, LinkConfig as Wire};

use super::end::{End, Part};
use super::receiver::Receiver;
use super::report::Report;
use super::simulated::SimulatedPair;
use super::sink::WriteOutcome;
use super::wire::{Message, VERSION};
use super::{Arguments, Fault, region};

#[derive(clap::Parser)]
struct Line {
    #[command(flatten)]
    arguments: Arguments,
}

fn arguments(words: &[&str]) -> Arguments {
    let words = ["xfer", "--simulated"].iter().chain(words);
    Line::try_parse_from(words).unwrap().arguments
}

/// A folder with a file to send, and with the destination.
struct Files {
    folder: tempfile::TempDir,
    bytes: Vec<u8>,
}

impl Files {
    fn new(bytes: usize) -> Self {
        let files = Self {
            folder: tempfile::tempdir().unwrap(),
            bytes: (0..bytes)
                .map(|at| (at.wrapping_mul(at | 1) >> 7) as u8)
                .collect(),
        };
        fs::write(files.from(), &files.bytes).unwrap();
        files
    }

    fn from(&self) -> PathBuf {
        self.folder.path().join("from")
    }

    fn to(&self) -> PathBuf {
        self.folder.path().join("to")
    }

    /// Creates both ends, with more options, under a plan of faults.
    fn two(&self, plan: &str, words: &[&str]) -> SimulatedPair {
        let (from, to) = (self.from(), self.to());
        let files = [from.to_str().unwrap(), "--out", to.to_str().unwrap()];
        let arguments = arguments(&[&files[..], words].concat());
        let wire = Wire {
            latency_ns: 50_000,
            bandwidth_mbps: Some(1000),
        };
        let fabric = Fabric::builder()
            .link(wire)
            .plan(plan.parse().unwrap())
            .driven()
            .build();
        let opened = arguments.open().unwrap().unwrap();
        let place = (arguments.out(), arguments.memory);
        let configs = (&arguments.config(), &arguments.worker_config());
        SimulatedPair::new(fabric, configs, opened, place, arguments.limits()).unwrap()
    }

    /// Panics unless the received file is equal to the sent one, and the folder has no other file.
    fn is_there(&self) {
        assert!(fs::read(self.to()).unwrap() == self.bytes);
        assert_eq!(self.names(), ["from", "to"]);
    }

    fn names(&self) -> Vec<String> {
        let names = fs::read_dir(self.folder.path()).unwrap();
        let mut names: Vec<_> = names
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }
}

/// Returns the failure of each end. Both must end within this time.
fn failures(two: &mut SimulatedPair, within: Duration) -> [Option<String>; 2] {
    let until = two.fabric.now().after(within);
    while !two.sender.is_over() || !two.receiver.is_over() {
        assert!(two.fabric.now() < until, "no end");
        two.step().unwrap();
    }
    two.fabric.audit().unwrap();
    [&two.sender, &two.receiver].map(|end: &End<Host, Host>| {
        let report = Report::of(end, "file".into(), 1 << 18);
        let document = serde_json::to_value(&report).unwrap();
        crate::schema::check(&document, &mut Default::default());
        let has_failed = report.text().contains("FAILED");
        assert_eq!(has_failed, end.failure.is_some(), "{}", report.text());
        end.failure.clone()
    })
}

const LONG: Duration = Duration::from_secs(60);

/// Steps until both are connected, and this number of bytes has arrived.
fn landed(two: &mut SimulatedPair, bytes: u64) {
    let is_open =
        |two: &SimulatedPair| two.sender.line.open().is_some() && two.receiver.line.open().is_some();
    while !is_open(two) || two.receiver.landed_bytes() < bytes {
        two.step().unwrap();
    }
}

/// Panics unless both ends failed with these words, and there is no file.
fn ended(files: &Files, two: &mut SimulatedPair, words: [&str; 2]) {
    let failures = failures(two, LONG).map(|failure| failure.expect("a failure"));
    for (failure, words) in failures.iter().zip(words) {
        assert!(failure.contains(words), "{failures:#?} and not {words:?}");
    }
    // The writer thread, for which the drop waits, removes the file.
    two.receiver.part = Part::Receive(Receiver::new(files.to(), None));
    assert_eq!(files.names(), ["from"]);
}

#[test]
fn a_file_of_any_size_arrives() {
    for bytes in [0, 1, 4095, 4096, 262_145, 3_000_001] {
        for words in [
            &[][..],
            &["--memory", "64K", "--chunk", "20000", "--piece", "4K"],
            &["--memory", "1M", "--piece", "64K"],
        ] {
            let files = Files::new(bytes);
            let mut two = files.two("", words);
            assert_eq!(failures(&mut two, LONG), [None, None], "{bytes} {words:?}");
            files.is_there();
            let Part::Send(sender) = &two.sender.part else {
                panic!()
            };
            assert!(sender.plan.memory_bytes() as u64 <= 256 << 20);
            assert_eq!(two.sender.line.watch.over, Some(FinalReason::Closed));
            assert_eq!(two.receiver.line.watch.over, Some(FinalReason::PeerClosed));
        }
    }
}

#[test]
fn no_chunk_overtakes_an_earlier_one() {
    let files = Files::new(600 * 4096);
    let mut two = files.two("", &["--memory", "64K", "--chunk", "4K", "--piece", "4K"]);
    let (mut most, mut chunks) = (0, 0);
    while !two.sender.is_over() || !two.receiver.is_over() {
        two.step().unwrap();
        let Part::Send(sender) = &two.sender.part else {
            panic!()
        };
        let open = sender.open();
        assert!(open.windows(2).all(|pair| pair[0].1 > pair[1].1), "{open:?}");
        most = most.max(open.len());
        chunks = chunks.max(open.last().map_or(0, |(chunk, _)| chunk + 1));
    }
    assert!(most > 2 && chunks == 600, "{most} {chunks}");
    files.is_there();
}

#[test]
fn a_part_of_a_file_is_sent_if_that_is_asked_for() {
    let files = Files::new(100_000);
    let mut two = files.two("", &["--bytes", "70000"]);
    assert_eq!(failures(&mut two, LONG), [None, None]);
    assert!(fs::read(files.to()).unwrap() == files.bytes[..70_000]);
}

#[test]
fn a_rail_that_is_cut_under_way_loses_nothing() {
    for plan in [
        "at 20ms link host1/sim0-host2/sim0 down",
        "at 20ms link host1/sim1-host2/sim1 down for 300ms",
        "at 15ms link host1-host2 down for 400ms",
    ] {
        let files = Files::new(12_000_000);
        let mut two = files.two(plan, &["--memory", "4M"]);
        assert_eq!(failures(&mut two, LONG), [None, None], "{plan}");
        files.is_there();
        let watch = &two.sender.line.watch;
        let downs: u32 = watch.rails.iter().map(|rail| rail.downs).sum();
        assert!(downs > 0, "{plan}: {watch:?}");
        let Part::Send(sender) = &two.sender.part else {
            panic!()
        };
        assert!(sender.repeated_bytes > 0, "{plan}");
    }
}

#[test]
fn a_sum_that_differs_fails_both_with_both_sums_and_leaves_no_file() {
    let files = Files::new(1_000_000);
    let mut two = files.two("", &[]);
    let ours = loop {
        two.step().unwrap();
        let Part::Send(sender) = &mut two.sender.part else {
            panic!()
        };
        if let Some(sum) = &mut sender.sum {
            sum[31] ^= 1;
            break super::hexadecimal(sum);
        }
    };
    let failures = failures(&mut two, LONG).map(|failure| failure.expect("a failure"));
    for failure in &failures {
        assert!(failure.contains("not those that were sent"), "{failures:#?}");
        assert!(failure.contains(&ours), "{failures:#?}");
    }
    let Part::Receive(receiver) = &two.receiver.part else {
        panic!()
    };
    let theirs = super::hexadecimal(&receiver.sum.unwrap());
    assert!(
        failures.iter().all(|failure| failure.contains(&theirs)),
        "{failures:#?}"
    );
    assert_eq!(files.names(), ["from"]);
}

#[test]
fn without_checksums_the_file_is_the_same_and_the_report_has_none() {
    let files = Files::new(1_000_000);
    let mut two = files.two("", &["--no-checksum"]);
    assert_eq!(failures(&mut two, LONG), [None, None]);
    files.is_there();
    let text = Report::of(&two.sender, "from".into(), 1 << 18).text();
    assert!(text.contains("no checksums were compared"), "{text}");
    assert!(!text.contains("sha256"), "{text}");
}

#[test]
fn either_side_that_gives_up_ends_the_other_with_its_reason() {
    for bytes in [0, 200_000] {
        let files = Files::new(4_000_000);
        let mut two = files.two("", &[]);
        landed(&mut two, bytes);
        two.sender.give_up(Fault::both("interrupted by a signal".into()));
        ended(
            &files,
            &mut two,
            ["interrupted", "the sender gave up: interrupted by a signal"],
        );
        let mut two = files.two("", &[]);
        landed(&mut two, bytes);
        two.receiver
            .give_up(Fault::both("to: No space left on device".into()));
        ended(
            &files,
            &mut two,
            [
                "the receiver gave up: to: No space left on device",
                "No space left",
            ],
        );
    }
}

#[test]
fn a_file_that_gets_its_name_is_received_whatever_else_ends() {
    let files = Files::new(4_000_000);
    let mut two = files.two("", &[]);
    landed(&mut two, 200_000);
    let side = &mut two.receiver;
    let Part::Receive(receiver) = &mut side.part else {
        panic!()
    };
    let named = receiver.name_by(Some([7; 32]));
    side.give_up(Fault::both("interrupted by a signal".into()));
    side.line.watch.over = Some(FinalReason::PeerClosed);
    side.turn(false).unwrap();
    assert!(side.failure.is_none() && !side.is_over());
    named.send(WriteOutcome::All([7; 32])).unwrap();
    side.turn(false).unwrap();
    assert!(side.is_over() && side.failure.is_none() && side.done_at.is_some());
}

/// The sender hears of the receiver's disk, and waits for it.
#[test]
fn writing_is_progress_on_both_sides() {
    let files = Files::new(1000);
    let mut two = files.two("", &["--timeout", "0.5"]);
    landed(&mut two, 1000);
    let Part::Receive(receiver) = &mut two.receiver.part else {
        panic!()
    };
    let disk = receiver.name_by(None);
    for _ in 0..3 {
        disk.send(WriteOutcome::Part).unwrap();
        let until = two.fabric.now().after(Duration::from_millis(400));
        while two.fabric.now() < until {
            for side in [&mut two.sender, &mut two.receiver] {
                side.turn(false).unwrap();
            }
            two.fabric.run_for(Duration::from_millis(1));
        }
        assert_eq!([&two.sender.failure, &two.receiver.failure], [&None; 2]);
    }
}

#[test]
fn a_place_that_is_gone_once_the_sender_comes_is_said_to_it() {
    let files = Files::new(100_000);
    let mut two = files.two("", &[]);
    fs::create_dir(files.to()).unwrap();
    let failures = failures(&mut two, LONG).map(Option::unwrap);
    assert!(failures[0].starts_with("the receiver gave up: "), "{failures:#?}");
    assert!(
        failures.iter().all(|failure| failure.contains("it is a folder")),
        "{failures:#?}"
    );
}

#[test]
fn a_file_that_changes_while_it_is_sent_fails_both() {
    type Change = fn(&Path);
    let changes: [(Change, &str); 3] = [
        (
            |path| {
                let file = fs::File::options().write(true).open(path).unwrap();
                file.set_len(9).unwrap();
            },
            "its length changed from 8000000 to 9 bytes",
        ),
        (
            |path| {
                let mut file = fs::File::options().append(true).open(path).unwrap();
                file.write_all(b"more").unwrap();
            },
            "its length changed from 8000000 to 8000004 bytes",
        ),
        (
            |path| {
                let file = fs::File::options().write(true).open(path).unwrap();
                file.set_modified(std::time::SystemTime::UNIX_EPOCH).unwrap();
            },
            "it was written to while it was sent",
        ),
    ];
    for (change, why) in changes {
        let files = Files::new(8_000_000);
        let mut two = files.two("", &["--memory", "1M"]);
        landed(&mut two, 300_000);
        change(&files.from());
        ended(
            &files,
            &mut two,
            [why, &format!("the sender gave up: {}", files.from().display())],
        );
    }
}

#[test]
fn a_peer_that_dies_ends_the_other_with_the_reason() {
    let dies = |is_sender: bool| {
        let files = Files::new(8_000_000);
        let mut two = files.two("at 30ms link host1-host2 down", &["--recover-within", "1"]);
        while two.fabric.now().to_ns() < 35_000_000 {
            two.step().unwrap();
        }
        let side = if is_sender {
            &mut two.receiver
        } else {
            &mut two.sender
        };
        let until = two.fabric.now().after(Duration::from_secs(5));
        while !side.is_over() {
            assert!(two.fabric.now() < until);
            side.turn(true).unwrap();
            two.fabric.run_for(Duration::from_millis(1));
        }
        let failure = side.failure.clone().unwrap();
        let arrived = "bytes had arrived, and none are kept";
        assert!(side.landed > 0 && !failure.contains("; 0 of"), "{failure}");
        assert!(
            failure.contains("the peer could not be reached in time") && failure.contains(arrived),
            "{failure}"
        );
        drop(two);
        assert_eq!(files.names(), ["from"]);
    };
    dies(true);
    dies(false);
}

#[test]
fn limits_of_time_end_both() {
    let files = Files::new(8_000_000);
    // Two rails of 1 Gbit/s need 32 ms for the file.
    let mut two = files.two("", &["--within", "0.02"]);
    ended(&files, &mut two, ["not done within 0.02 s", "0.02 s"]);
    let mut two = files.two("", &["--within", "0.2"]);
    assert_eq!(failures(&mut two, LONG), [None, None]);
    fs::remove_file(files.to()).unwrap();
    let words = ["--timeout", "0.5"];
    let mut two = files.two("at 0ms link host1-host2 down", &words);
    ended(
        &files,
        &mut two,
        [
            "the receiver was not reached within 0.5 s",
            "no sender came within 0.5 s",
        ],
    );
}

#[test]
fn a_chunk_that_exceeds_the_receivers_memory_is_said_on_both_sides() {
    let files = Files::new(1_000_000);
    let mut two = files.two("", &[]);
    let memory = region(&two.receiver.line, 100_000).unwrap();
    two.receiver.part = Part::Receive(Receiver::new(files.to(), memory));
    let why = "exceeds the receiver's --memory 100000";
    ended(&files, &mut two, [why, why]);
}

#[test]
fn a_receiver_with_room_for_one_chunk_takes_them_one_by_one() {
    let files = Files::new(1_000_000);
    let mut two = files.two("", &["--chunk", "100000", "--piece", "4K"]);
    let memory = region(&two.receiver.line, 100_000).unwrap();
    two.receiver.part = Part::Receive(Receiver::new(files.to(), memory));
    assert_eq!(failures(&mut two, LONG), [None, None]);
    files.is_there();
}

#[test]
fn what_is_not_of_this_protocol_ends_both() {
    let mut other = Message::Ready.to_bytes();
    other[5] = VERSION as u8 + 1;
    let broken = Message::Begin {
        bytes: 5,
        chunk_bytes: 0,
        has_checksum: true,
    };
    for (message, why) in [
        (other, "run the same release on both"),
        (b"anything".to_vec(), "run `doorbell xfer` on both sides"),
        (broken.to_bytes(), "the sender broke the protocol"),
    ] {
        let files = Files::new(1_000_000);
        let mut two = files.two("", &[]);
        // Sent instead of the sender's first message.
        while two.sender.line.open().is_none() {
            two.step().unwrap();
        }
        let line = &mut two.sender.line;
        line.be_silent();
        line.links.send(line.link.unwrap(), &message).unwrap();
        ended(&files, &mut two, [why, why]);
    }
}

#[test]
fn a_limit_holds_and_marks_are_those_of_the_class() {
    let files = Files::new(1_000_000);
    let words = ["--bytes-per-second", "5M", "--traffic-class", "184"];
    let mut two = files.two("", &words);
    let began = two.fabric.now();
    assert_eq!(failures(&mut two, LONG), [None, None]);
    files.is_there();
    // Except for the bytes of 10 ms and one piece, the rate is 5 MiB/s, which takes 190 ms.
    let took = two.fabric.now().to_ns() - began.to_ns();
    assert!((120_000_000..400_000_000).contains(&took), "{took}");
    let classes = arguments(&[&["file"], &words[..]].concat())
        .worker_config()
        .classes
        .unwrap();
    assert_eq!(classes.table[0].traffic_class, 184);
    assert_eq!(arguments(&["file"]).worker_config().classes, None);
}

#[test]
fn sizes_have_units_and_limits() {
    use super::{parse_piece, parse_size};
    for (text, bytes) in [
        ("1", 1),
        ("3K", 3 << 10),
        ("5m", 5 << 20),
        ("7G", 7 << 30),
        ("2T", 2 << 40),
    ] {
        assert_eq!(parse_size(text), Ok(bytes), "{text}");
    }
    for wrong in [
        "",
        "0",
        "K",
        "-1",
        "+1",
        "1.5G",
        "1KK",
        "99999999999T",
        "1\u{212a}",
    ] {
        assert!(parse_size(wrong).is_err(), "{wrong}");
    }
    assert_eq!(
        (parse_piece("4K"), parse_piece("16M")),
        (Ok(4 << 10), Ok(16 << 20))
    );
    for wrong in ["2K", "32M", "1G", "5000", "0"] {
        assert!(parse_piece(wrong).is_err(), "{wrong}");
    }
}

#[test]
fn sides_are_told_apart() {
    let parse = |words: &[&str]| Line::try_parse_from(["xfer"].iter().chain(words));
    for well in [
        &["--listen"][..],
        &["--listen", "127.0.0.1:0", "--out", "x"],
        &["--listen", "--out", "x", "--listen", "127.0.0.1:0"],
        &["file", "host"],
        &["file", "host", "--rails", "1"],
        &["file", "host", "--rails", "mlx5_0,10.1.0.0/16"],
        &["/dev/zero", "--bytes", "1G", "@handle"],
    ] {
        assert!(parse(well).is_ok(), "{well:?}");
    }
    for wrong in [
        &[][..],
        &["file"],
        &["--out", "x"],
        &["--listen", "--chunk", "1M"],
        &["file", "host", "--out", "x"],
        &["file", "host", "--rails", "0"],
        &["file", "--simulated", "--unauthenticated"],
        &["file", "host", "--simulated"],
    ] {
        assert!(parse(wrong).is_err(), "{wrong:?}");
    }
}
