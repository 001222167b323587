//! Errors of settings and of collectives.

use std::ffi::OsString;

use doorbell::mesh::{
    Collective, CollectiveError, CollectiveHeader, CollectiveMisuse, GroupError, MeshSendError, Rank, Ranks,
};
use doorbell_core::collective::{COLLECTIVE_HEADER_BYTES, GroupId};
use doorbell_operation::Settings;

use crate::{ERRORS, compare};

/// The error of this file, or of its settings together.
fn of_file(text: &str) -> String {
    let mut settings = Settings::default();
    let taken = settings.text("mesh.toml", text);
    taken.and_then(|()| settings.check()).unwrap_err().to_string()
}

/// The error of this variable, beside this file.
fn of_variable(name: &str, value: &str, file: &str) -> String {
    let mut settings = Settings::default();
    settings.text("mesh.toml", file).unwrap();
    let variable = (OsString::from(name), OsString::from(value));
    let taken = settings.environment([variable]);
    taken.and_then(|()| settings.check()).unwrap_err().to_string()
}

#[test]
fn errors_of_settings() {
    let gone = Settings::default().file("/no/such/folder/mesh.toml").unwrap_err();
    let printed = [
        gone.to_string().replace("/no/such/folder", "/etc/doorbell"),
        of_file(&"#".repeat(65_537)),
        of_file("\n[link\n"),
        of_file("\n\nlink.dead_aftr = \"1s\""),
        of_variable("DOORBELL_WORKER_SLOTZ", "1", ""),
        of_file("\n\nworker.slots = \"many\""),
        of_file("\n\nlink.dead_after = 5"),
        of_variable("DOORBELL_WORKER_SLOTS", "0", ""),
        of_file("channel.mtu_max = 1500"),
        of_file("only_from = \"10.1.2.3/16\""),
        of_file(&format!("key_file = \"7:{}\"", "01".repeat(32))),
        of_variable("DOORBELL_UNAUTHENTICATED", "true", "key_file = \"keys\""),
        of_file("[link]\nsuspect_after = \"300ms\"\ndead_after = \"200ms\""),
        of_file("[link]\nretained = 2\nfragment_bytes = \"1G\""),
        of_file("link.channel.unsignaled_max = 16"),
    ];
    compare(ERRORS, "Settings", &printed);
}

#[test]
fn errors_of_collectives() {
    let peer = Rank::new(3).unwrap();
    let header = |operation, step| {
        CollectiveHeader::new(Collective::Barrier, (GroupId::default(), operation), step, 0, 0)
    };
    let error = CollectiveHeader::parse(&[0; COLLECTIVE_HEADER_BYTES]).unwrap_err();
    let lost = MeshSendError::Restarted(peer);
    let printed = [
        GroupError::Missing(Ranks::from_bits(0b1010)),
        GroupError::Collective(CollectiveError::Misuse(CollectiveMisuse::PartOfElement {
            bytes: 10,
            element_bytes: 4,
        })),
        GroupError::Collective(CollectiveError::Wire { peer, error }),
        GroupError::Collective(CollectiveError::Mismatch {
            peer,
            expected: header(4, 1),
            found: header(5, 0),
        }),
        GroupError::Collective(CollectiveError::Exchange(lost)),
        GroupError::Collective(CollectiveError::Interrupted),
    ];
    compare(ERRORS, "Collectives", &printed.map(|error| error.to_string()));
}
