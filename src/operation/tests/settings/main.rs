//! Tests of settings: the precedence of their sources, the reports of wrong ones, and the values that are never printed.

use core::num::NonZeroU64;
use core::time::Duration;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt as _;

use rustix::fs::{CWD, FileType, Mode, mknodat};

use doorbell::Notify;
use doorbell::mesh::MeshConfig;
use doorbell::worker::Classes;
use doorbell_operation::{LogLevel, SettingSource, SettingValues, Settings, SettingsError};

#[path = "../../../../fuzz/replay.rs"]
mod replay;

mod oracle;

fn variables(all: &[(&str, &str)]) -> Vec<(OsString, OsString)> {
    let pairs = all.iter().map(|(name, value)| (name.into(), value.into()));
    pairs.collect()
}

fn told(text: &str) -> String {
    let mut settings = Settings::default();
    settings.text("a.toml", text).unwrap_err().to_string()
}

#[test]
fn seeds_keep_every_promise() {
    let mut whole = 0;
    replay::replay("settings", |bytes| {
        oracle::check(bytes);
    });
    for entry in std::fs::read_dir(replay::folder("settings")).unwrap() {
        let bytes = std::fs::read(entry.unwrap().path()).unwrap();
        whole += usize::from(oracle::check(&bytes));
    }
    assert!(whole >= 3, "{whole}");
}

#[test]
fn changed_settings_keep_every_promise() {
    let text =
        "rails = \"mlx5_*,^mlx5_3\"\n[link]\ndead_after = \"200ms\"\nretained = 9\nchannel.send_depth = 64\n";
    assert!(oracle::check(text.as_bytes()));
    for at in 0..text.len() {
        oracle::check(&text.as_bytes()[..at]);
        let mut changed = text.as_bytes().to_vec();
        changed[at] = b"\"[]=.0\n#\\{\xff"[at % 11];
        oracle::check(&changed);
    }
}

/// The command line overrides the environment, and the environment overrides a file. A file overrides the defaults of
/// the program and of doorbell. The order of reading does not matter.
#[test]
fn the_order_is_that_of_strength_and_not_of_reading() {
    let file = "timeout = \"4s\"\n[worker]\nslots = 4\nslot_bytes = \"4K\"\n[mesh]\nwindow = 4\n";
    let environment = variables(&[
        ("DOORBELL_TIMEOUT", "3s"),
        ("DOORBELL_WORKER_SLOTS", "3"),
        ("HOME", "/"),
    ]);
    let orders: [[u8; 3]; 6] = [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]];
    for order in orders {
        let mut own = SettingValues::default();
        own.mesh.window = 1;
        own.mesh.hops_max = 1;
        own.worker.slots = 1;
        let mut settings = Settings::new(own);
        for layer in order {
            match layer {
                0 => settings.text("a.toml", file).unwrap(),
                1 => settings.environment(environment.clone()).unwrap(),
                _ => settings.argument("--timeout", "timeout", "2s").unwrap(),
            }
        }
        let values = settings.values();
        assert_eq!(values.timeout, Duration::from_secs(2), "{order:?}");
        assert_eq!((values.worker.slots, values.worker.slot_bytes), (3, 4096));
        assert_eq!((values.mesh.window, values.mesh.hops_max), (4, 1));
        let sources = ["timeout", "worker.slots", "mesh.window", "mesh.hops_max", "rails"];
        let sources = sources.map(|key| settings.source(key).unwrap().to_string());
        let expected = [
            "--timeout",
            "DOORBELL_WORKER_SLOTS",
            "a.toml:6",
            "default of the program",
            "default",
        ];
        assert_eq!(sources, expected, "{order:?}");
    }
}

#[test]
fn trust_is_off_by_its_name_alone_and_never_beside_keys() {
    let set = |file: &str, value: &str| {
        let mut settings = Settings::default();
        settings.text("a.toml", file).unwrap();
        settings.environment([("DOORBELL_UNAUTHENTICATED".into(), value.into())])?;
        settings.check()?;
        Ok::<_, SettingsError>(settings.values().unauthenticated)
    };
    assert!(!Settings::default().values().unauthenticated);
    assert_eq!(set("", "true"), Ok(true));
    assert_eq!(set("unauthenticated = true", "false"), Ok(false));
    assert_eq!(set("key_file = 'keys'", "false"), Ok(false));
    for (file, value, told) in [
        ("", "1", "unauthenticated: must be true or false"),
        ("", "", "unauthenticated: must be true or false"),
        (
            "key_file = 'keys'",
            "true",
            "unauthenticated: it is true, and key_file names the keys that peers have to have (a.toml:1): one of them has to go",
        ),
    ] {
        let error = set(file, value).unwrap_err().to_string();
        assert_eq!(error, format!("DOORBELL_UNAUTHENTICATED: {told}"));
    }
}

#[test]
fn every_kind_of_setting_arrives_where_it_is_for() {
    let text = r#"
        rails = "mlx5_*, ^netdev=mgmt0"
        key_file = "/etc/doorbell/keys"
        job_keys = "/etc/doorbell/job-keys"
        only_from = "10.1.0.0/16, fd00::/64"
        metrics = "[::1]:9400"
        log = "debug"
        [worker]
        shared_receives = 256
        notify = "every"
        [link]
        reconnect_first = "5 ms"
        channel = { mtu_max = 1024, timeout = 14 }
        message_bytes_max = "2M"
        [mesh]
        resend_after = "1s"
        [handshakes]
        per_address = 0x10
    "#;
    let mut settings = Settings::default();
    settings.text("a.toml", text).unwrap();
    settings.check().unwrap();
    let values = settings.values();
    assert_eq!(values.rails.to_string(), "mlx5_*,^netdev=mgmt0");
    assert_eq!(values.key_file.as_deref(), Some("/etc/doorbell/keys".as_ref()));
    assert_eq!(
        values.job_keys.as_deref(),
        Some("/etc/doorbell/job-keys".as_ref())
    );
    assert_eq!(values.only_from.0.len(), 2);
    assert_eq!(values.metrics.unwrap().port(), 9400);
    assert_eq!(
        (values.log, values.worker.notify),
        (LogLevel::Debug, Notify::Every)
    );
    assert_eq!(values.worker.shared_receives.unwrap().depth, 256);
    assert_eq!(values.link.session.backoff.first, Duration::from_millis(5));
    assert_eq!(
        (values.link.channel.mtu_max.bytes(), values.link.channel.timeout),
        (1024, 14)
    );
    assert_eq!(values.channel.mtu_max.bytes(), 4096);
    assert_eq!(values.link.handshakes.per_address, 16);
    let mut mesh = MeshConfig::new(doorbell::mesh::Rank::FIRST, 2, 1);
    values.configure(&mut mesh);
    assert_eq!(mesh.resend_after, Duration::from_secs(1));
    assert_eq!(mesh.link.message_bytes_max, 2 << 20);
    // The setting is removed again.
    settings.argument("--set", "only_from", "").unwrap();
    settings.argument("--set", "metrics", "").unwrap();
    settings.argument("--set", "worker.shared_receives", "0").unwrap();
    let values = settings.values();
    assert!(values.only_from.0.is_empty() && values.metrics.is_none());
    assert!(values.worker.shared_receives.is_none());
}

#[test]
fn what_is_wrong_is_told_with_its_line_and_name() {
    for (text, expected) in [
        (
            "\n\nlonk.dead_after = 1",
            "a.toml:3: lonk.dead_after: there is no such setting; is it link.dead_after?",
        ),
        (
            "[wroker]\nslots = 1",
            "a.toml:2: wroker.slots: there is no such setting; is it worker.slots?",
        ),
        (
            "[worker]\nslots = 1\nslos = 1",
            "a.toml:3: worker.slos: there is no such setting; is it worker.slots?",
        ),
        (
            "[worker]\nslots = 0",
            "a.toml:2: worker.slots: must be from 1 to 1048576",
        ),
        ("worker = 5", "a.toml:1: worker: there is no such setting"),
        ("worker.slots = {}", "a.toml:1: worker.slots: must be a number"),
        ("worker.slots = \"5\"", "a.toml:1: worker.slots: must be a number"),
        (
            "worker.slots = -5",
            "a.toml:1: worker.slots: must be from 1 to 1048576",
        ),
        ("worker.slots = 5.0", "a.toml:1: worker.slots: must be a number"),
        (
            "[link]\n\ndead_after = 5",
            "a.toml:3: link.dead_after: must be a time with its unit in quotes, as in \"50ms\": ns, us, ms, s, m or h",
        ),
        (
            "rails = true",
            "a.toml:1: rails: must be rules for rails in quotes, as in \"mlx5_*,^mlx5_3\"",
        ),
        (
            "rails = \"mlx5_0,,\"",
            "a.toml:1: rails: rule 2 of the rail filter, `` at byte 7: there is nothing between the commas",
        ),
        (
            "only_from = \"10.1.2.3/16\"",
            "a.toml:1: only_from: 10.1.2.3/16 has bits set behind its prefix; its subnet is 10.1.0.0/16",
        ),
        (
            "metrics = \"9400\"",
            "a.toml:1: metrics: must be an address and a port, as in \"127.0.0.1:9400\"",
        ),
        (
            "channel.mtu_max = 1500",
            "a.toml:1: channel.mtu_max: must be one of 256, 512, 1024, 2048 and 4096",
        ),
        (
            "log = \"loud\"",
            "a.toml:1: log: must be \"off\", \"error\", \"warn\", \"info\", \"debug\" or \"trace\"",
        ),
        (
            "\"\\u001b[2J\" = 1",
            "a.toml:1: \\u{1b}[2J: there is no such setting",
        ),
    ] {
        assert_eq!(told(text), expected, "{text}");
    }
    for (text, line) in [
        ("timeout = \"1s\"\ntimeout = \"2s\"", 2),
        ("\n[link\n", 2),
        ("a = ", 1),
    ] {
        let told = told(text);
        assert!(
            told.starts_with(&format!("a.toml:{line}: not valid TOML: ")),
            "{told}"
        );
    }
    // Any depth of nesting is refused.
    let deep = told(&format!("{}a = 1", "a.".repeat(32_000)));
    assert!(deep.starts_with("a.toml:1: ") && deep.len() < 200, "{deep}");
    // The report is about the first wrong setting in the file, not in the order of names.
    assert!(told("z = 1\na = 1").starts_with("a.toml:1: z: "));
    assert_eq!(
        told(&"#".repeat(65_537)),
        "a.toml:1: a settings file has at most 65536 bytes"
    );
}

#[test]
fn the_environment_is_held_to_the_same() {
    for (name, value, expected) in [
        (
            "DOORBELL_LINK_DEAD_AFTR",
            "1s",
            "DOORBELL_LINK_DEAD_AFTR: there is no such setting",
        ),
        (
            "DOORBELL_WORKER_SLOTS",
            "many",
            "DOORBELL_WORKER_SLOTS: worker.slots: must be a number",
        ),
        (
            "DOORBELL_TIMEOUT",
            "2d",
            "DOORBELL_TIMEOUT: timeout: must be a time with its unit in quotes, as in \"50ms\": ns, us, ms, s, m or h",
        ),
    ] {
        let error = Settings::default()
            .environment(variables(&[(name, value)]))
            .unwrap_err();
        assert_eq!(error.to_string(), expected);
    }
    let bytes = OsStr::from_bytes(b"\xff").to_owned();
    let error = Settings::default()
        .environment([("DOORBELL_RAILS".into(), bytes)])
        .unwrap_err();
    assert_eq!(error.to_string(), "DOORBELL_RAILS: rails: not valid UTF-8");
    // Variables that are not settings, or are read elsewhere.
    let others = variables(&[
        ("DOORBELL_LIBIBVERBS", "x"),
        ("DOORBELL_NCCL_EAGER_BYTES", "x"),
        ("DOORBELL_KEYS", "1:00"),
        ("DOORBELL_SERVICE_HOST", "x"),
        ("DOORBELL_METRICS_SERVICE_HOST", "10.0.0.1"),
        ("DOORBELL_METRICS_SERVICE_PORT", "9100"),
        ("DOORBELL_METRICS_SERVICE_PORT_HTTP", "9100"),
        ("DOORBELL_METRICS_PORT", "tcp://10.0.0.1:9100"),
        ("DOORBELL_METRICS_PORT_9100_TCP", "tcp://10.0.0.1:9100"),
        ("DOORBELL_METRICS_PORT_9100_TCP_ADDR", "10.0.0.1"),
        ("DOORBELLS", "x"),
        ("doorbell_rails", "x"),
    ]);
    Settings::default().environment(others).unwrap();
}

/// A value that is overridden must be valid all the same.
#[test]
fn what_is_weaker_is_checked_too() {
    let mut settings = Settings::default();
    settings.argument("--set", "worker.slots", "7").unwrap();
    assert!(settings.text("a.toml", "worker.slots = 0").is_err());
    settings.text("a.toml", "worker.slots = 8").unwrap();
    assert_eq!(settings.values().worker.slots, 7);
}

#[test]
fn a_contradiction_names_both_places() {
    let mut settings = Settings::default();
    settings
        .text("a.toml", "\nlink.suspect_after = \"150ms\"")
        .unwrap();
    let error = settings.check().unwrap_err();
    assert_eq!(
        error.to_string(),
        "a.toml:2: link.suspect_after: it is 150ms, and more than link.dead_after allows, which is 120ms (default)"
    );
    assert!(matches!(error.source, SettingSource::File { line: 2, .. }));
    settings.argument("--set", "link.dead_after", "150ms").unwrap();
    settings.check().unwrap();
}

#[test]
fn channels_that_no_link_works_with_are_named() {
    let refused = [("unsignaled_max", "2", "1"), ("inline_bytes_max", "39", "40")];
    for (name, wrong, right) in refused {
        let key = format!("link.channel.{name}");
        let mut settings = Settings::default();
        settings.argument("--set", &key, wrong).unwrap();
        let error = settings.check().unwrap_err().to_string();
        let said = format!("--set: {key}: channel.{name} is {wrong}; ");
        assert!(error.starts_with(&said), "{error}");
        settings.argument("--set", &key, right).unwrap();
        settings.check().unwrap();
        // Channels outside links may use this value.
        settings
            .argument("--set", &format!("channel.{name}"), wrong)
            .unwrap();
        settings.check().unwrap();
    }
}

/// Links of a mesh also delay acknowledgments by the mesh's time.
#[test]
fn what_a_mesh_tells_late_contradicts_when_its_links_give_up() {
    let mut settings = Settings::default();
    let mut of = |after: &str| {
        settings
            .argument("--set", "mesh.acknowledge_after", after)
            .unwrap();
        settings.check().map_err(|error| error.to_string())
    };
    assert_eq!(of("119ms"), Ok(()));
    assert_eq!(
        of("120ms").unwrap_err(),
        "--set: mesh.acknowledge_after: it is 120ms, and more than link.dead_after allows, which is 120ms (default)"
    );
}

/// A link allocates all of this memory when it starts.
#[test]
fn memory_of_a_link_beyond_all_bounds_is_a_contradiction() {
    for name in ["retained", "ahead", "requests"] {
        let mut settings = Settings::default();
        settings
            .text(
                "a.toml",
                &format!("[link]\nfragment_bytes = \"1G\"\n{name} = 2\n"),
            )
            .unwrap();
        for other in ["retained", "ahead", "requests"]
            .into_iter()
            .filter(|other| *other != name)
        {
            settings.argument("--set", &format!("link.{other}"), "1").unwrap();
        }
        let error = settings.check().unwrap_err();
        assert_eq!(
            error.to_string(),
            format!(
                "a.toml:3: link.{name}: it is 2, and with link.fragment_bytes, which is 1073741824 (a.toml:2), more \
                 than 1073741824 bytes of memory for each link"
            )
        );
        settings.argument("--set", &format!("link.{name}"), "1").unwrap();
        settings.check().unwrap();
    }
}

/// A quoted name is not a path. Otherwise a file could contain a setting twice.
#[test]
fn a_name_in_quotes_is_no_path() {
    for text in [
        "\"link.dead_after\" = \"1s\"",
        "link.dead_after = \"1s\"\n\"link.dead_after\" = \"2s\"",
        "[\"link.channel\"]\nsend_depth = 1",
        "[link]\n\"channel.send_depth\" = 1",
        "[\"\"]\ntimeout = \"1s\"",
        "[link.\"\"]\ndead_after = \"1s\"",
    ] {
        assert!(told(text).contains("there is no such setting"), "{}", told(text));
    }
    let mut settings = Settings::default();
    settings
        .text("a.toml", "[\"link\"]\n\"dead_after\" = \"1s\"")
        .unwrap();
}

/// A key in place of the name of a key file is neither accepted nor printed. The same holds after a wrong name on the
/// line.
#[test]
fn keys_are_never_told() {
    let secret = "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f";
    for text in [
        format!("key_file = \"3:{secret}\""),
        format!("key_file = \"3:{}\"", &secret[..40]),
        format!("key_file = \"{secret}\""),
        format!("key = \"{secret}\""),
        format!("timeout = \"{secret}\""),
        format!("log = \"{secret}\""),
        format!("metrics = \"{secret}\""),
        format!("key_file = \"{secret}"),
        format!("key_file = {secret}"),
    ] {
        let mut settings = Settings::default();
        let error = settings.text("a.toml", &text).unwrap_err();
        for told in [error.to_string(), format!("{error:?}"), settings.to_toml()] {
            assert!(!told.contains(&secret[..16]), "{told}");
        }
    }
    let mut settings = Settings::default();
    let variables = variables(&[("DOORBELL_KEY_FILE", &format!("1:{secret}"))]);
    let error = settings.environment(variables).unwrap_err();
    assert_eq!(
        error.to_string(),
        "DOORBELL_KEY_FILE: key_file: must name a key file that only its owner can read, and is a key itself"
    );
}

#[test]
fn a_file_is_read_and_one_that_is_not_there_is_named() {
    let folder = std::env::temp_dir().join(format!("doorbell-settings-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let path = folder.join("a.toml");
    std::fs::write(&path, "worker.slots = 5\n").unwrap();
    let mut settings = Settings::default();
    settings.file(&path).unwrap();
    assert_eq!(settings.values().worker.slots, 5);
    std::fs::write(&path, vec![b'#'; 70_000]).unwrap();
    let error = settings.file(&path).unwrap_err().to_string();
    assert!(
        error.ends_with(":1: a settings file has at most 65536 bytes"),
        "{error}"
    );
    // The limit is within the last character.
    std::fs::write(&path, "#".repeat(65_536) + "\u{20ac}").unwrap();
    let error = settings.file(&path).unwrap_err().to_string();
    assert!(
        error.ends_with(":1: a settings file has at most 65536 bytes"),
        "{error}"
    );
    for (bytes, said) in [
        (
            "# 1\n# \u{20ac}".as_bytes().split_last().unwrap().1,
            ":2: the file ends within a UTF-8 character: it may be truncated, so write it again",
        ),
        (
            b"# 1\n# \xff\n# 3\n".as_slice(),
            ":2: not valid UTF-8: save the file as UTF-8",
        ),
    ] {
        std::fs::write(&path, bytes).unwrap();
        let error = settings.file(&path).unwrap_err().to_string();
        assert!(error.ends_with(said), "{error}");
    }
    let missing = folder.join("missing.toml");
    let error = settings.file(&missing).unwrap_err().to_string();
    // The error has no line to name.
    let named = format!("{}: ", missing.display());
    assert!(
        error.starts_with(&named) && error.contains("No such file"),
        "{error}"
    );
    // No process ever writes to the FIFO, and the read does not wait for one.
    let fifo = folder.join("fifo.toml");
    mknodat(CWD, &fifo, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
    let error = settings.file(&fifo).unwrap_err().to_string();
    assert!(error.ends_with("fifo.toml: it is not a plain file"), "{error}");
    assert!(settings.file(&folder).is_err());
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn classes_are_there_once_one_of_their_settings_is_not_its_default() {
    let mut settings = Settings::default();
    settings
        .text("same.toml", "worker.class.3 = { weight = 1, priority = 0 }")
        .unwrap();
    assert_eq!(settings.values().worker.classes, None);
    let text = "[worker.class.1]\npriority = 7\nbytes_per_second_max = \"1G\"\n[link.channel]\nclass = 1\n";
    settings.text("classes.toml", text).unwrap();
    let classes = settings.values().worker.classes.unwrap();
    let mut expected = Classes::default();
    expected.table[1].priority = 7;
    expected.table[1].bytes_per_second_max = NonZeroU64::new(1 << 30);
    assert_eq!((classes, settings.values().link.channel.class), (expected, 1));
    for wrong in [
        "worker.class.8.weight = 2",
        "worker.class.0.weight = 0",
        "channel.class = 8",
    ] {
        settings.text("wrong.toml", wrong).unwrap_err();
    }
}

/// The documentation names every setting.
#[test]
fn the_documentation_names_every_setting() {
    let text = include_str!("../../../../docs/operation.md");
    for setting in Settings::default().iter() {
        let (section, name) = setting.key.rsplit_once('.').unwrap_or(("", setting.key));
        // The channels of links have the settings of channels.
        let section = match section {
            "link.channel" => "channel",
            class if class.starts_with("worker.class") => "worker.class",
            other => other,
        };
        let row = text
            .lines()
            .find(|line| line.starts_with(&format!("| `{section}")) && line.contains(&format!("`{name}`")));
        let is_general = section.is_empty() && text.contains(&format!("| `{name}` |"));
        assert!(row.is_some() || is_general, "{}", setting.key);
    }
}
