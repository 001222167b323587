//! Errors of memory: of transfers, registrations and rings, and of the calls of a device.

use doorbell::connect::FlushError;
use doorbell::link::{FinalReason, TransferRefusal};
use doorbell::memory::{DmabufError, RegistrationError, UnwatchedError};
use doorbell::provider::{
    MemoryError, Pages, PlacementConfig, PushError, RemoteAccess, RevokeError, Shortfall, WcStatus,
    WindowConfig, Wish,
};
use doorbell::worker::{RingError, SubmitterConfig};
use doorbell::{Node, Trust, WorkerConfig};
use doorbell_sim::Fabric;

use crate::{ERRORS, compare, failed, port};

#[test]
fn errors_of_transfers_and_memory() {
    let printed = texts![
        TransferRefusal::Full { transfers_max: 16 },
        TransferRefusal::Unsupported { version: 2 },
        TransferRefusal::Length { bytes: 0 },
        TransferRefusal::PiecesTooLong {
            bytes: 4 << 20,
            bytes_max: 1 << 20
        },
        TransferRefusal::OutOfRegion {
            offset: 8192,
            bytes: 4096,
            region_bytes: 8192
        },
        TransferRefusal::OtherWorkers,
        TransferRefusal::ReadOnly,
        TransferRefusal::LoansFull { loans_max: 64 },
        TransferRefusal::NoLoan,
        TransferRefusal::NoAccess,
        TransferRefusal::NotOpen,
        TransferRefusal::Closing,
        TransferRefusal::Over(FinalReason::PeerClosed),
    ];
    compare(ERRORS, "Transfers and loans", &printed);
    let four = Shortfall::Partly { bytes: 4 << 20 };
    let printed = texts![
        MemoryError::Provider(failed("ibv_reg_mr", 14)),
        MemoryError::Unmet(Wish::Pages(Pages::Huge2M), four),
        RegistrationError::Device(failed("ibv_reg_mr", 14)),
        RegistrationError::Region { bytes: 0 },
        RegistrationError::RemoteAccess,
        RegistrationError::LockedMemory {
            needed_bytes: 8 << 20,
            pinned_bytes: Some(4096),
            limit_bytes: 64 << 10
        },
        DmabufError::Unsupported(failed("ibv_reg_dmabuf_mr", 95)),
        DmabufError::NoDevice,
        DmabufError::Empty,
        DmabufError::PageOffset {
            offset: 0x10,
            iova: 0x1_0000,
            page_bytes: 4096
        },
        DmabufError::NoAddress,
        DmabufError::OutOfBuffer {
            offset: 4096,
            bytes: 8192,
            buffer_bytes: 8192
        },
        DmabufError::OutOfAddresses {
            iova: 0xffff_ffff_ffff_f800,
            bytes: 4096
        },
        DmabufError::Provider(failed("ibv_reg_mr", 14)),
    ];
    compare(ERRORS, "Memory of the engine", &printed);
}

#[test]
fn errors_of_memory_and_registrations() {
    let host = Fabric::new()
        .host("a", vec![port("mlx5_0", &["10.1.0.1/24"])])
        .unwrap();
    let node = Node::simulated(host, Trust::unauthenticated_on_purpose()).unwrap();
    let mut workers = node.workers(&WorkerConfig::default()).unwrap();
    let none = workers[0].submitters(0, &SubmitterConfig::default());
    let no_workers = node.region(&[], 4096, &PlacementConfig::DEFAULT);
    let no_bytes = node.region(&workers, 0, &PlacementConfig::DEFAULT);
    let no_window = workers[0].window(&WindowConfig::new(0, RemoteAccess::NONE));
    assert_eq!(no_window.unwrap_err(), *no_bytes.as_ref().unwrap_err());
    let printed = texts![
        none.unwrap_err(),
        no_workers.unwrap_err(),
        no_bytes.unwrap_err(),
        MemoryError::Unreachable("a call of a device panicked on a helper thread"),
        RevokeError::InFlight,
        RevokeError::Provider(failed("ibv_dereg_mr", 16)),
        UnwatchedError::TooManyCaches { caches_max: 256 },
        FlushError::Push(PushError::Full),
        FlushError::Failed(WcStatus::RETRY_EXC_ERR),
        FlushError::OtherWorkers,
    ];
    compare(ERRORS, "Memory and registrations", &printed);
}

#[test]
fn errors_of_ring_channels() {
    let printed = texts![
        RingError::Config {
            cells: 3,
            cell_bytes: 64
        },
        RingError::Closed,
        RingError::Failed,
        RingError::PeerClosed,
        RingError::OutOfTurn,
        RingError::TimedOut,
    ];
    compare(ERRORS, "Ring channels", &printed);
}

#[test]
fn calls_of_the_device() {
    let calls = [
        ("ibv_modify_qp", 1),
        ("ibv_open_device", 2),
        ("ibv_open_device", 13),
        ("ibv_reg_mr", 12),
        ("ibv_create_qp", 12),
        ("ibv_post_send", 12),
        ("ibv_create_cq", 22),
        (
            "a poll with other Workers than the links were made with, or in another order,",
            22,
        ),
        ("ibv_query_port", 19),
        ("ibv_open_device", 24),
        ("ibv_create_qp", 95),
        ("ibv_modify_qp", 101),
        ("ibv_modify_qp", 110),
        ("ibv_modify_qp", 113),
        ("ibv_poll_cq", 5),
    ];
    let printed = calls.map(|(call, errno)| failed(call, errno).to_string());
    compare(ERRORS, "Calls of the device", &printed);
}
