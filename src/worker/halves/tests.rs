//! The end of a channel whose peer writes a farewell into the credit word, with and without lost messages.

use core::time::Duration;

use doorbell_core::provider::{ArenaConfig, Operation, RemoteAddress, Window};
use doorbell_sim::Fabric;

use crate::connect::connected::connected;
use crate::worker::channel::SendErrorKind;
use crate::worker::config::ChannelConfig;
use crate::worker::event::{ChannelState, Event};

/// Returns the eight bytes of a farewell after so many messages, for a peer that counts from `start` (docs/wire-format.md,
/// Farewell).
pub(in crate::worker) fn farewell(messages: u32, start: u32) -> [u8; 8] {
    let count = start.wrapping_add(messages);
    let check = count ^ u32::from_be_bytes(*b"fare") ^ start;
    (u64::from(count) << 32 | u64::from(check)).to_be_bytes()
}

#[test]
fn both_halves_say_whether_all_arrived() {
    for (messages, all_arrived) in [(0, true), (1, false), (5, false)] {
        let fabric = Fabric::new();
        let config = ChannelConfig {
            close_when_lost: false,
            ..ChannelConfig::default()
        };
        let [server, client] = connected(&fabric, &config);
        let (here, there) = (server.channel, client.channel);
        let (mut ours, mut theirs) = (server.workers, client.workers);
        let mut worker = ours.remove(0);
        let start = worker.channel(here).unwrap().receive.receiver.received();
        let word = RemoteAddress::within(&worker.credit_words.remote(), 0, 8).unwrap();
        let channel = theirs[0].channel(there).unwrap();
        channel
            .post_inline(Operation::Write(word), &farewell(messages, start))
            .unwrap();
        fabric.run_for(Duration::from_millis(1));

        let (mut sending, mut receiving) = worker.split(&ArenaConfig::new(8, 64)).unwrap();
        sending.channel(here).unwrap().shut().unwrap();
        let mut ends = Vec::new();
        for _ in 0..100 {
            receiving
                .poll(|_, event| match event {
                    Event::PeerClosed { all_arrived } => ends.push(all_arrived),
                    other => panic!("{other:?}"),
                })
                .unwrap();
            sending.poll(|_, event| panic!("{event:?}")).unwrap();
        }
        assert_eq!(ends, [all_arrived], "{messages}");
        let expected = ChannelState::PeerClosed { all_arrived };
        let half = sending.channel(here).unwrap();
        assert_eq!(half.state(), expected, "the half that sends, {messages}");
        let refused = half.post_inline(Operation::Send, b"x").unwrap_err();
        assert_eq!(refused, SendErrorKind::PeerClosed);
        assert_eq!(receiving.channel(here).unwrap().state(), expected);
        let mut whole = sending.join(receiving).unwrap();
        whole.poll_tending(|_, event| panic!("{event:?}")).unwrap();
        assert_eq!(whole.state(here), Some(expected), "{messages}");
    }
}
