//! Loans of links: a region that the peer writes to in one transfer after the other, and never again once the loan is revoked.

use doorbell::link::{
    EndReason, LoanId, Request, RequestEnd, SessionEvent, TransferEnd, TransferEvent, TransferId,
    TransferOptions, TransferRefusal, UnknownReason,
};
use doorbell::memory::Region;
use doorbell::provider::Rkey;
use doorbell::{RemoteAccess, RemoteWindow};
use doorbell_sim::Host;

use crate::anything::{Chance, plan, seeds};
use crate::processes::{A, Aside, B, Two, errno_of, ms};
use crate::transfers::{bytes_of, end_of, filled, offer, offered, read, region};

type Memory = Region<Host>;

fn lend(two: &mut Two, region: &Memory, offset: usize, bytes: usize) -> Result<LoanId, TransferRefusal> {
    let b = two.process_mut(B);
    b.links.lend(&b.node, b.link.unwrap(), (region, offset, bytes))
}

/// B joins what A offered, with a part of a region that lies in a loan.
fn join(
    two: &mut Two,
    id: TransferId,
    (region, offset, loan): (&Memory, usize, LoanId),
) -> Result<(), TransferRefusal> {
    let b = two.process_mut(B);
    let mut options = TransferOptions::default();
    options.loan = Some(loan);
    b.links
        .join(&b.node, (b.link.unwrap(), id), (region, offset), &options)
}

fn revoke(two: &mut Two, loan: LoanId) {
    let b = two.process_mut(B);
    b.links.revoke(&b.node, (b.link.unwrap(), loan)).unwrap();
}

fn is_revoked(two: &Two, loan: LoanId) -> bool {
    let asides = &two.process(B).asides;
    asides.contains(&Aside::Revoked(loan))
}

fn later(two: &Two, ms: u64) -> core::time::Duration {
    core::time::Duration::from_nanos(two.fabric.now().to_ns() + ms * 1_000_000)
}

/// A gives these bytes into the loan, from an offset of the region on.
fn given(two: &mut Two, number: u64, bytes: usize, place: (&Memory, usize, LoanId)) {
    let from = filled(two.process(A), number, bytes);
    let id = offer(two, A, &from, &TransferOptions::default());
    assert_eq!(offered(two, B).0, id);
    join(two, id, place).unwrap();
    let until = later(two, 500);
    let is_over = |two: &Two| [A, B].iter().all(|at| end_of(two.process(*at), id).is_some());
    assert!(two.run(until, is_over));
    for at in [A, B] {
        assert_eq!(end_of(two.process(at), id).unwrap().0, TransferEnd::Done);
    }
}

#[test]
fn transfers_into_a_loan_register_nothing() {
    for rails in [1, 2] {
        let mut two = Two::new(rails, "");
        two.connected(rails as u8);
        let to = region(two.process(B), 40_000);
        let before = two.fabric.registrations();
        let loan = lend(&mut two, &to, 4000, 36_000).unwrap();
        assert_eq!(two.fabric.registrations(), before + rails);
        for round in 0..5 {
            let offset = 4000 + 7000 * round as usize;
            given(&mut two, round, 7001.min(40_000 - offset), (&to, offset, loan));
            let landed = read(&to)[offset..].to_vec();
            let bytes = 7001.min(40_000 - offset);
            assert!(landed[..bytes] == bytes_of(round, bytes));
            assert_eq!(two.fabric.registrations(), before + rails);
        }
        revoke(&mut two, loan);
        let until = later(&two, 10);
        assert!(two.run(until, |two| is_revoked(two, loan)));
        assert_eq!(two.fabric.registrations(), before);
        two.fabric.audit().unwrap();
    }
}

/// Address and key of the first WRITE that was captured.
///
/// Source: InfiniBand Architecture volume 1, section 9.3.1 (RETH), and annex A17.
fn key_of_the_first_write(two: &Two) -> (u64, u32) {
    let frames = two.fabric.take_captured();
    let reth = frames.iter().find_map(|frame| {
        let ip = match frame.bytes.get(12..14)? {
            [0x86, 0xdd] => 40,
            _ => 20,
        };
        let transport = frame.bytes.get(14 + ip + 8..)?;
        // RDMA WRITE first, and only.
        matches!(transport.first()?, 0x06 | 0x0a).then(|| transport[12..24].to_vec())
    });
    let reth = reth.expect("a WRITE was captured");
    let (address, key) = reth.split_at(8);
    (
        u64::from_be_bytes(address.try_into().unwrap()),
        u32::from_be_bytes(key.try_into().unwrap()),
    )
}

/// A peer that kept the key of a loan writes by it: as long as the loan stands, that is its right.
#[test]
fn a_key_that_the_peer_keeps_is_of_no_use_once_the_loan_is_revoked() {
    let mut two = Two::new(1, "");
    two.connected(1);
    let to = region(two.process(B), 4096);
    let loan = lend(&mut two, &to, 0, 4096).unwrap();
    two.fabric.capture(10_000);
    given(&mut two, 3, 4096, (&to, 0, loan));
    let (address, key) = key_of_the_first_write(&two);
    // Announced as a window, it is a key that A's requests may name.
    let stolen = RemoteWindow::new(address, 4096, Rkey(key));
    let b = two.process_mut(B);
    let window = b
        .links
        .grant(b.link.unwrap(), &[(0, stolen)], RemoteAccess::WRITE)
        .unwrap();
    let until = later(&two, 50);
    let is_told = |aside: &Aside| matches!(aside, Aside::Granted(of, ..) if *of == window);
    assert!(two.run(until, |two| { two.process(A).asides.iter().any(is_told) }));
    let write = |two: &mut Two| {
        let a = two.process_mut(A);
        a.asides.clear();
        let bytes = [0xee; 64];
        let request = Request::Write(&bytes);
        let link = a.link.unwrap();
        let id = a.links.request(&a.node, link, (window, 0), &request).unwrap();
        let until = later(two, 2000);
        let ended = |two: &Two| {
            two.process(A).asides.iter().find_map(|aside| match aside {
                Aside::Ended(of, end, _) if *of == id => Some(*end),
                _ => None,
            })
        };
        assert!(two.run(until, |two| ended(two).is_some()));
        ended(two).unwrap()
    };
    assert_eq!(write(&mut two), RequestEnd::Done);
    assert_eq!(read(&to)[..64], [0xee; 64]);
    revoke(&mut two, loan);
    let until = later(&two, 10);
    assert!(two.run(until, |two| is_revoked(two, loan)));
    to.copy_in(0, &bytes_of(9, 4096)).unwrap();
    let reason = UnknownReason::Denied;
    let denied = RequestEnd::Unknown {
        was_posted: true,
        reason,
    };
    assert_eq!(write(&mut two), denied);
    assert!(read(&to) == bytes_of(9, 4096), "it wrote behind the revocation");
    two.fabric.audit().unwrap();
}

/// A fence that failed is none: the application is told that the memory is not its own.
#[test]
fn memory_that_a_device_does_not_deregister_is_not_given_back() {
    const EBUSY: i32 = 16;
    for with_loan in [false, true] {
        let mut two = Two::new(1, "");
        two.connected(1);
        let to = region(two.process(B), 4096);
        let loan = with_loan.then(|| lend(&mut two, &to, 0, 4096).unwrap());
        let from = filled(two.process(A), 3, 4096);
        let before = two.fabric.registrations();
        let plan = "fail every 1st deregistration of b with 16";
        two.fabric.follow(&plan.parse().unwrap());
        let id = offer(&mut two, A, &from, &TransferOptions::default());
        offered(&mut two, B);
        match loan {
            Some(loan) => join(&mut two, id, (&to, 0, loan)).unwrap(),
            None => crate::transfers::join(&mut two, B, id, &to),
        }
        let until = later(&two, 500);
        let is_over = |two: &Two| [A, B].iter().all(|at| end_of(two.process(*at), id).is_some());
        assert!(two.run(until, is_over));
        // All of it arrived, as the giver knows.
        assert_eq!(end_of(two.process(A), id).unwrap().0, TransferEnd::Done);
        let (end, counts) = end_of(two.process(B), id).unwrap();
        assert_eq!(counts.landed_bytes, 4096);
        let errors = two.process(B).asides.iter().filter_map(|aside| match aside {
            Aside::Transfer(of, TransferEvent::Ended { error, .. }) if *of == id => error.map(errno_of),
            _ => None,
        });
        let errors: Vec<_> = errors.collect();
        let Some(loan) = loan else {
            assert_eq!(end, TransferEnd::Here(EndReason::NOT_WITHDRAWN));
            assert_eq!(errors, [EBUSY]);
            assert_eq!(two.fabric.registrations(), before + 1, "the transfer's own stays");
            continue;
        };
        assert_eq!((end, errors), (TransferEnd::Done, Vec::new()));
        revoke(&mut two, loan);
        let until = later(&two, 10);
        let is_kept = |two: &Two| two.process(B).asides.contains(&Aside::NotRevoked(loan, EBUSY));
        assert!(two.run(until, is_kept));
        assert!(!is_revoked(&two, loan));
        assert_eq!(two.fabric.registrations(), before, "the loan's stays");
        // The link goes on without it.
        let again = lend(&mut two, &to, 0, 4096).unwrap();
        given(&mut two, 6, 4096, (&to, 0, again));
    }
}

/// The drop of the memory would deregister it all the same, so it would be reported as kept although it is not.
#[test]
fn memory_that_a_device_refuses_to_deregister_once_is_given_back() {
    for with_loan in [false, true] {
        let mut two = Two::new(1, "");
        two.connected(1);
        let to = region(two.process(B), 4096);
        let before = two.fabric.registrations();
        let loan = with_loan.then(|| lend(&mut two, &to, 0, 4096).unwrap());
        let from = filled(two.process(A), 3, 4096);
        let id = offer(&mut two, A, &from, &TransferOptions::default());
        offered(&mut two, B);
        let plan = "fail 1st deregistration of b with 16";
        two.fabric.follow(&plan.parse().unwrap());
        match loan {
            Some(loan) => join(&mut two, id, (&to, 0, loan)).unwrap(),
            None => crate::transfers::join(&mut two, B, id, &to),
        }
        let until = later(&two, 500);
        assert!(two.run(until, |two| end_of(two.process(B), id).is_some()));
        assert_eq!(end_of(two.process(B), id).unwrap().0, TransferEnd::Done);
        if let Some(loan) = loan {
            revoke(&mut two, loan);
            let until = later(&two, 10);
            assert!(two.run(until, |two| is_revoked(two, loan)));
        }
        // The giver's memory was registered meanwhile.
        assert_eq!(two.fabric.registrations(), before + 1);
    }
}

#[test]
fn a_loan_that_is_revoked_ends_its_transfers_and_nothing_is_written_behind_it() {
    let mut two = Two::with(2, "", Some(1000));
    two.connected(2);
    let bytes = 20_000_000;
    let (from, to) = (filled(two.process(A), 5, bytes), region(two.process(B), bytes));
    let loan = lend(&mut two, &to, 0, bytes).unwrap();
    let id = offer(&mut two, A, &from, &TransferOptions::default());
    offered(&mut two, B);
    join(&mut two, id, (&to, 0, loan)).unwrap();
    two.run(ms(60), |_| false);
    let link = two.process(B).link.unwrap();
    let counts = two.process(B).links.transfer_counts(link, id).unwrap();
    assert!(counts.landed_bytes > 0 && counts.landed_bytes < bytes as u64);
    revoke(&mut two, loan);
    let until = later(&two, 10);
    assert!(two.run(until, |two| is_revoked(two, loan)));
    to.copy_in(0, &bytes_of(9, bytes)).unwrap();
    let until = later(&two, 1000);
    assert!(two.run(until, |two| end_of(two.process(A), id).is_some()));
    let ends = [A, B].map(|at| end_of(two.process(at), id).unwrap().0);
    assert_eq!(ends[B], TransferEnd::Here(EndReason::CANCELLED));
    assert_eq!(ends[A], TransferEnd::ByPeer(EndReason::CANCELLED));
    two.run(later(&two, 500), |_| false);
    assert!(
        read(&to) == bytes_of(9, bytes),
        "it was written behind the revocation"
    );
    // The link goes on.
    let again = lend(&mut two, &to, 0, 5000).unwrap();
    given(&mut two, 6, 5000, (&to, 0, again));
}

#[test]
fn the_end_of_the_link_revokes_all_in_front_of_it() {
    let mut two = Two::new(2, "");
    two.connected(2);
    let to = region(two.process(B), 4096);
    let before = two.fabric.registrations();
    let loans = [0, 2048].map(|offset| lend(&mut two, &to, offset, 2048).unwrap());
    let (deadline, link) = (two.deadline(ms(100)), two.process(B).link.unwrap());
    two.process_mut(B).links.close(link, deadline);
    let until = later(&two, 1000);
    // The harness asserts that nothing follows the end of the link but its own.
    assert!(two.run(until, |two| two.process(B).over.is_some()));
    assert!(loans.iter().all(|loan| is_revoked(&two, *loan)));
    assert_eq!(two.fabric.registrations(), before);
}

#[test]
fn transfers_into_memory_that_a_device_refuses_end_with_its_reason_on_both_sides() {
    const ENOMEM: i32 = 12;
    // Both devices refuse, or only the second one does.
    for every in [1, 2] {
        let mut two = Two::with(2, "", Some(1000));
        two.connected(2);
        let bytes = 5_000_000;
        let (from, to) = (filled(two.process(A), 5, bytes), region(two.process(B), bytes));
        let loan = lend(&mut two, &to, 0, bytes).unwrap();
        let with_loan = two.fabric.registrations();
        let [going, first, second, third] =
            [(); 4].map(|()| offer(&mut two, A, &from, &TransferOptions::default()));
        let is_offered = |two: &Two, id| {
            let asides = &two.process(B).asides;
            let is_so = |aside: &Aside| matches!(aside, Aside::Transfer(of, TransferEvent::Offered { .. }) if *of == id);
            asides.iter().any(is_so)
        };
        let until = later(&two, 5);
        assert!(two.run(until, |two| is_offered(two, third)));
        // While bytes of one transfer come, there is no memory for the others.
        join(&mut two, going, (&to, 0, loan)).unwrap();
        let until = later(&two, 5);
        two.run(until, |_| false);
        let plan = format!(
            "fail every {every}{} registration of b with 12",
            ["st", "nd"][every - 1]
        );
        two.fabric.follow(&plan.parse().unwrap());
        let mut refused = Vec::new();
        for id in [first, second] {
            let loan = lend(&mut two, &to, 0, bytes).unwrap();
            join(&mut two, id, (&to, 0, loan)).unwrap();
            refused.push(Aside::NotLent(loan, ENOMEM));
        }
        let b = two.process_mut(B);
        let options = TransferOptions::default();
        b.links
            .join(&b.node, (b.link.unwrap(), third), (&to, 0), &options)
            .unwrap();
        let until = later(&two, 10);
        let is_over = |two: &Two, id| [A, B].iter().all(|at| end_of(two.process(*at), id).is_some());
        let all = [first, second, third];
        assert!(two.run(until, |two| all.iter().all(|id| is_over(two, *id))));
        for id in all {
            let ends = [A, B].map(|at| end_of(two.process(at), id).unwrap().0);
            assert_eq!(ends[A], TransferEnd::ByPeer(EndReason::NO_MEMORY));
            assert_eq!(ends[B], TransferEnd::Here(EndReason::NO_MEMORY));
            let errors = two.process(B).asides.iter().filter_map(|aside| match aside {
                Aside::Transfer(of, TransferEvent::Ended { error, .. }) if *of == id => error.map(errno_of),
                _ => None,
            });
            assert_eq!(errors.collect::<Vec<_>>(), [ENOMEM]);
        }
        for loan in &refused {
            assert!(two.process(B).asides.contains(loan), "{loan:?}");
        }
        assert_eq!(two.fabric.registrations(), with_loan, "{every}");
        assert!(end_of(two.process(B), going).is_none());
        let until = later(&two, 500);
        assert!(two.run(until, |two| is_over(two, going)));
        assert_eq!(end_of(two.process(B), going).unwrap().0, TransferEnd::Done);
        assert!(read(&to) == bytes_of(5, bytes));
        // The device takes memory again, and nothing stands in its way.
        let calm = format!("at {}us calm", two.fabric.now().to_ns() / 1000 + 1);
        two.fabric.follow(&calm.parse().unwrap());
        two.run(later(&two, 1), |_| false);
        let again = lend(&mut two, &to, 0, 5000).unwrap();
        two.process_mut(B).asides.clear();
        given(&mut two, 6, 5000, (&to, 0, again));
        two.fabric.audit().unwrap();
    }
}

#[test]
fn what_cannot_be_lent_or_taken_is_refused() {
    let mut two = Two::new(2, "");
    two.connected(2);
    let (to, other) = (region(two.process(B), 100), region(two.process(B), 100));
    let outside = |offset, bytes| {
        Err(TransferRefusal::OutOfRegion {
            offset,
            bytes,
            region_bytes: 100,
        })
    };
    assert_eq!(
        lend(&mut two, &to, 0, 0),
        Err(TransferRefusal::Length { bytes: 0 })
    );
    assert_eq!(lend(&mut two, &to, 1, 100), outside(1, 100));
    assert_eq!(lend(&mut two, &to, usize::MAX, 2), outside(usize::MAX, 2));
    let loan = lend(&mut two, &to, 10, 50).unwrap();
    let from = filled(two.process(A), 1, 50);
    let id = offer(&mut two, A, &from, &TransferOptions::default());
    offered(&mut two, B);
    // The bytes would lie outside the loan by one, or in another region.
    for (region, offset) in [(&to, 9), (&to, 11), (&other, 10)] {
        let refused = join(&mut two, id, (region, offset, loan));
        assert_eq!(refused, Err(TransferRefusal::NoLoan), "{offset}");
    }
    let mut count = 1;
    let refusal = loop {
        match lend(&mut two, &to, 0, 1) {
            Ok(_) => count += 1,
            Err(refusal) => break refusal,
        }
    };
    assert_eq!(
        (count, refusal),
        (64, TransferRefusal::LoansFull { loans_max: 64 })
    );
    revoke(&mut two, loan);
    assert_eq!(join(&mut two, id, (&to, 10, loan)), Err(TransferRefusal::NoLoan));
    let b = two.process_mut(B);
    let again = b.links.revoke(&b.node, (b.link.unwrap(), loan));
    assert_eq!(again, Err(TransferRefusal::NoLoan));
}

#[test]
fn under_random_plans_a_loan_carries_all_bytes_and_nothing_is_written_once_it_is_revoked() {
    for seed in seeds() {
        let mut chance = Chance(seed);
        let rails = 1 + chance.below(3);
        let plan = plan(&mut chance, rails, |rail| format!("sim{rail}:1"), 5_000);
        let mut two = Two::with(rails as usize, &plan, Some(200));
        let is_up = |two: &Two| two.process(A).saw(SessionEvent::Connected).is_some();
        two.run(ms(3000), |two| is_up(two) && two.process(B).link.is_some());
        let bytes = 400_000;
        let to = region(two.process(B), bytes);
        let loan = lend(&mut two, &to, 0, bytes).unwrap();
        for number in 0..1 + chance.below(4) {
            let bytes = 1 + chance.below(bytes as u64) as usize;
            let from = filled(two.process(A), number, bytes);
            let id = offer(&mut two, A, &from, &TransferOptions::default());
            let is_offered = |aside: &Aside| matches!(aside, Aside::Transfer(of, TransferEvent::Offered { .. }) if *of == id);
            let until = later(&two, 5000);
            assert!(two.run(until, |two| two.process(B).asides.iter().any(is_offered)));
            join(&mut two, id, (&to, 0, loan)).unwrap();
            let until = later(&two, chance.below(50));
            let is_done = |two: &Two| end_of(two.process(B), id).is_some();
            if !two.run(until, is_done) && chance.below(3) == 0 {
                break;
            }
            let until = later(&two, 10_000);
            assert!(two.run(until, is_done), "seed {seed}: {plan}");
            assert_eq!(end_of(two.process(B), id).unwrap().0, TransferEnd::Done);
            assert!(
                read(&to)[..bytes] == bytes_of(number, bytes),
                "seed {seed}: {plan}"
            );
        }
        revoke(&mut two, loan);
        let until = later(&two, 1000);
        assert!(two.run(until, |two| is_revoked(two, loan)));
        to.copy_in(0, &bytes_of(1234, bytes)).unwrap();
        two.run(later(&two, 2000), |_| false);
        assert!(
            read(&to) == bytes_of(1234, bytes),
            "seed {seed}: {plan}: written behind the revocation"
        );
        two.fabric.audit().unwrap();
    }
}
