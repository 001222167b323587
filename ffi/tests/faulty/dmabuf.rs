//! Devices, kernels and libraries that register no dma-buf, and answers that say neither yes nor no.

use std::fs::File;
use std::os::fd::{AsFd as _, AsRawFd as _};

use doorbell_core::provider::{Context as _, LookFailure, Provider as _, ProviderError, RemoteAccess};
use doorbell_fake::{Call, Without, memory_file};
use doorbell_ffi::{Context, DmabufError, DmabufRange, Window, leaks};

use crate::Bench;
use crate::life::port;

const CALL: &str = "ibv_reg_dmabuf_mr";
const BYTES: usize = 4096;
/// An address that is that of a page.
pub(crate) const IOVA: u64 = 1 << 40;

/// A memory file, which the fake takes for a dma-buf.
pub(crate) fn buffer() -> File {
    memory_file(BYTES as u64).unwrap()
}

/// All of it, from this address on.
pub(crate) const fn whole(iova: u64) -> DmabufRange {
    DmabufRange {
        offset: 0,
        bytes: BYTES,
        iova,
    }
}

fn open(bench: &Bench) -> Context {
    bench.rdma.open(&port(&bench.rdma).unwrap().device).unwrap()
}

fn register(context: &Context, iova: u64) -> Result<Window, DmabufError> {
    let domain = context.protection_domain().unwrap();
    domain.register_dmabuf(buffer().as_fd(), whole(iova), RemoteAccess::ALL)
}

const fn refused(errno: i32) -> ProviderError {
    ProviderError { call: CALL, errno }
}

/// Whether the device says in its report that it imports them, and why it could not be asked.
fn reported(bench: &Bench) -> (Option<bool>, Vec<LookFailure>) {
    let mut reports = bench.rdma.devices().unwrap();
    assert_eq!(reports.len(), 1);
    let report = reports.remove(0);
    (report.imports_dmabuf, report.failures)
}

#[test]
fn a_device_that_imports_none_says_so() {
    let bench = Bench::new();
    bench.control.lack(Without::Dmabuf);
    let context = open(&bench);
    assert_eq!(context.imports_dmabuf(), Ok(false));
    assert_eq!(reported(&bench), (Some(false), vec![]));
    let unsupported = DmabufError::Unsupported(refused(libc::EOPNOTSUPP));
    assert_eq!(register(&context, IOVA).unwrap_err(), unsupported);
    // Even if the range breaks a rule: no other range would do.
    assert_eq!(register(&context, 1).unwrap_err(), unsupported);
    bench.control.lack(Without::Nothing);
    assert_eq!(open(&bench).imports_dmabuf(), Ok(true));
    assert_eq!(reported(&bench), (Some(true), vec![]));
}

#[test]
fn an_older_kernel_and_an_older_library_do_not_know_how() {
    let bench = Bench::new();
    let context = open(&bench);
    for errno in [libc::EOPNOTSUPP, libc::EPROTONOSUPPORT, libc::ENOSYS] {
        bench.control.fail(Call::RegDmabufMr, 0, errno);
        assert_eq!(context.imports_dmabuf(), Ok(false), "{errno}");
        bench.control.fail(Call::RegDmabufMr, 0, errno);
        let outcome = register(&context, IOVA).unwrap_err();
        assert_eq!(outcome, DmabufError::Unsupported(refused(errno)));
        // The device answers the question with yes. Then the refusal is about this buffer.
        bench.control.fail(Call::RegDmabufMr, 1, errno);
        let outcome = register(&context, IOVA).unwrap_err();
        assert_eq!(outcome, DmabufError::Provider(refused(errno)));
    }
    assert!(register(&context, IOVA).is_ok());
}

#[test]
fn an_answer_that_says_neither_is_an_error_and_no_no() {
    let bench = Bench::new();
    let before = leaks();
    let context = open(&bench);
    for errno in [libc::EINVAL, libc::ENOMEM, libc::EPERM] {
        bench.control.fail(Call::RegDmabufMr, 0, errno);
        assert_eq!(context.imports_dmabuf(), Err(refused(errno)));
        bench.control.fail(Call::RegDmabufMr, 0, errno);
        let outcome = register(&context, IOVA).unwrap_err();
        assert_eq!(outcome, DmabufError::Provider(refused(errno)));
        bench.control.fail(Call::RegDmabufMr, 0, errno);
        let failure = LookFailure {
            port: None,
            error: refused(errno),
        };
        assert_eq!(reported(&bench), (None, vec![failure]));
    }
    bench.control.fail(Call::AllocPd, 0, libc::ENOMEM);
    let error = context.imports_dmabuf().unwrap_err();
    assert_eq!((error.call, error.errno), ("ibv_alloc_pd", libc::ENOMEM));
    drop(context);
    assert_eq!(leaks(), before);
}

/// The fake maps a region as its local side may use it, and a file that is sealed against writing lets it read alone.
#[test]
fn this_host_may_write_what_peers_may_only_read() {
    let bench = Bench::new();
    let context = open(&bench);
    let domain = context.protection_domain().unwrap();
    let file = buffer();
    // SAFETY: an open descriptor (fcntl(2)).
    let status = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, libc::F_SEAL_WRITE) };
    assert_eq!(status, 0);
    let outcome = domain.register_dmabuf(file.as_fd(), whole(IOVA), RemoteAccess::READ);
    assert_eq!(outcome.unwrap_err(), DmabufError::Provider(refused(libc::EPERM)));
    let outcome = domain.register_dmabuf(buffer().as_fd(), whole(IOVA), RemoteAccess::READ);
    assert!(outcome.is_ok());
}

#[test]
fn a_scan_for_connections_does_not_ask() {
    let bench = Bench::new();
    let mut found = 0;
    bench.rdma.scan(&mut |_| found += 1, &mut |_, _| {}).unwrap();
    assert_eq!(found, 1);
    let calls = [Call::RegDmabufMr, Call::AllocPd].map(|call| bench.control.calls(call));
    assert_eq!(calls, [0, 0]);
}

#[test]
fn a_region_that_the_device_keeps_is_counted_and_its_domain_stays() {
    let bench = Bench::new();
    let context = open(&bench);
    let before = leaks();
    let region = register(&context, IOVA).unwrap();
    bench.control.fail(Call::DeregMr, 0, libc::EBUSY);
    drop(region);
    drop(context);
    let after = leaks();
    assert_eq!(after.memory_regions, before.memory_regions + 1);
    assert_eq!(
        (after.protection_domains, after.contexts),
        (before.protection_domains, before.contexts)
    );
    // The device was not asked to release the domain under it.
    assert_eq!(bench.control.calls(Call::DeallocPd), 0);
}
