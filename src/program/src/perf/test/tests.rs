use doorbell::provider::Mtu;

use super::{CELL_MESSAGE_BYTES_MAX, Kind, Op, Plant, ROUND_MESSAGES_MAX, Role, Round, SENDS_A_TURN, Test};

fn test(kind: Kind, op: Op) -> Test {
    Test {
        kind,
        op,
        message_bytes: 8,
        iterations: 1000,
        warmup: 100,
        inline_bytes_max: 220,
        batch: 1,
        depth: 128,
        unsignaled_max: 64,
        buffers: 0,
        traffic_class: 0,
        mtu_max: Mtu::B4096,
        plant: None,
    }
}

#[test]
fn bounds_hold_at_the_limit_and_not_past_it() {
    let good = test(Kind::Bandwidth, Op::Send);
    assert_eq!(good.check(), Ok(()));
    let with = |change: fn(&mut Test)| {
        let mut test = good;
        change(&mut test);
        test.check().is_ok()
    };
    assert!(with(|test| test.message_bytes = super::MESSAGE_BYTES_MAX));
    assert!(!with(|test| test.message_bytes = super::MESSAGE_BYTES_MAX + 1));
    assert!(!with(|test| test.message_bytes = 0));
    assert!(with(|test| test.batch = 128));
    assert!(!with(|test| test.batch = 129));
    assert!(!with(|test| test.batch = 0));
    assert!(!with(|test| test.iterations = 0));
    assert!(with(|test| test.warmup = 0));
    assert!(with(|test| test.depth = 4096));
    assert!(!with(|test| test.depth = 4097));
    assert!(!with(|test| {
        test.op = Op::FetchAdd;
        test.message_bytes = 9;
    }));
    assert!(!with(|test| {
        (test.op, test.kind) = (Op::Write, Kind::Latency);
        (test.message_bytes, test.plant) = (1, Some(Plant::Client));
    }));
}

#[test]
fn what_is_made_on_the_spot_goes_out_from_cells() {
    for op in Op::ALL {
        for kind in [Kind::Latency, Kind::Bandwidth] {
            let with = |message_bytes| Test {
                message_bytes,
                ..test(kind, op)
            };
            let carries = matches!(op, Op::Send | Op::Write | Op::WriteImm);
            assert!(!with(220).is_by_cells(), "inline");
            assert_eq!(with(221).is_by_cells(), carries);
            let most = with(CELL_MESSAGE_BYTES_MAX);
            assert_eq!(most.is_by_cells(), carries);
            assert!(!with(CELL_MESSAGE_BYTES_MAX + 1).is_by_cells());
            let cell_bytes = most.channel_config(Role::Client).cell_bytes;
            assert_eq!(cell_bytes == CELL_MESSAGE_BYTES_MAX, carries);
        }
    }
    let again = Test {
        message_bytes: 4096,
        buffers: 4,
        ..test(Kind::Bandwidth, Op::Write)
    };
    assert!(!again.is_by_cells(), "from memory that is kept");
}

#[test]
fn rounds_are_all_messages_once_and_no_larger_than_their_memory() {
    for (iterations, warmup, bytes) in [
        (1, 0, 1),
        (1000, 100, 64),
        (10_000, 5000, 64),
        (100, 3, 1 << 20),
        (9, 1, 16 << 20),
    ] {
        let test = Test {
            iterations,
            warmup,
            message_bytes: bytes,
            ..test(Kind::Bandwidth, Op::Write)
        };
        let rounds: Vec<Round> = test.rounds().collect();
        let mut next = 0;
        for round in &rounds {
            assert_eq!(round.first, next);
            assert_eq!(round.counts, round.first >= warmup);
            assert!(round.count > 0 && round.count <= ROUND_MESSAGES_MAX);
            assert!(round.count * u64::from(test.place_bytes()) <= 64 << 20);
            // There is a place for each message, and each is within the window.
            let (window, _) = test.window(Role::Listener).unwrap();
            let last = test.place_of(round.sequences().end - 1, round.first);
            assert!(last + test.bytes() <= window);
            next = round.sequences().end;
        }
        assert_eq!(next, iterations + warmup);
    }
}

#[test]
fn one_message_can_be_checked_while_the_next_arrives() {
    for op in [Op::Write, Op::WriteImm] {
        let test = test(Kind::Latency, op);
        for sequence in 0..10 {
            assert_ne!(test.place_of(sequence, 0), test.place_of(sequence + 1, 0));
        }
    }
}

#[test]
fn the_completion_queues_have_room_and_so_has_the_memory() {
    for kind in [Kind::Latency, Kind::Bandwidth] {
        for op in Op::ALL {
            for message_bytes in [1, 4096, 1 << 20, 16 << 20] {
                for depth in [1, 2, 128, 4096] {
                    let test = Test {
                        message_bytes: if op.is_atomic() { 8 } else { message_bytes },
                        depth,
                        iterations: 5000,
                        ..test(kind, op)
                    };
                    for role in [Role::Client, Role::Listener] {
                        let worker = test.worker_config(role);
                        let channel = test.channel_config(role);
                        assert!(worker.completion_depth >= channel.send_depth);
                        assert!(worker.completion_depth >= channel.receive_depth);
                        assert!(worker.slots > channel.receive_depth);
                        // The requests of a turn must fit in addition to a message whose completion
                        // is late.
                        let is_cramped = kind == Kind::Latency && channel.send_depth <= SENDS_A_TURN;
                        assert!(!is_cramped || message_bytes > 1 << 20);
                        // 64 MiB for the messages, the same for receives, and a few more.
                        let bytes = u64::from(worker.slots) * u64::from(worker.slot_bytes);
                        assert!(
                            bytes <= 400 << 20,
                            "{kind:?} {op} {message_bytes} {depth}: {bytes}"
                        );
                    }
                }
            }
        }
    }
}
