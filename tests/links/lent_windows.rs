//! Loans of links as windows, which the peer's requests name until they are revoked.

use doorbell::RemoteAccess;
use doorbell::link::{
    LoanId, Request, RequestEnd, RequestRefusal, SessionEvent, TransferRefusal, UnknownReason,
};
use doorbell::memory::Region;
use doorbell_sim::Host;

use crate::anything::{Chance, plan, seeds};
use crate::one_sided::{ask, done};
use crate::processes::{A, Aside, B, Two, ms};
use crate::transfers::{bytes_of, read, region};

type Memory = Region<Host>;

fn lend(
    two: &mut Two,
    range: (&Memory, usize, usize),
    access: RemoteAccess,
) -> Result<(LoanId, u32), TransferRefusal> {
    let b = two.process_mut(B);
    b.links.lend_window(&b.node, b.link.unwrap(), range, access)
}

fn revoke(two: &mut Two, loan: LoanId) {
    let b = two.process_mut(B);
    b.links.revoke(&b.node, (b.link.unwrap(), loan)).unwrap();
}

/// Runs until a process was told something, for a second at most.
fn told(two: &mut Two, at: usize, what: &Aside) -> bool {
    let until = ms(two.fabric.now().to_ns() / 1_000_000 + 1000);
    two.run(until, |two| two.process(at).asides.contains(what))
}

/// Two processes, and a part of a region of B's, from byte 8 on, that A reaches as a window.
fn lent(rails: usize, access: RemoteAccess) -> (Two, Memory, (LoanId, u32)) {
    let mut two = Two::new(rails, "");
    two.connected(rails as u8);
    let memory = region(two.process(B), 4096);
    let (loan, window) = lend(&mut two, (&memory, 8, 4000), access).unwrap();
    assert!(told(&mut two, A, &Aside::Granted(window, 4000, access)));
    two.process_mut(A).asides.clear();
    (two, memory, (loan, window))
}

#[test]
fn a_part_of_a_region_is_written_read_and_added_to_as_a_window() {
    for rails in [1, 2] {
        let (mut two, memory, (loan, window)) = lent(rails, RemoteAccess::ALL);
        let bytes = bytes_of(3, 3000);
        let nothing = (RequestEnd::Done, Vec::new());
        assert_eq!(done(&mut two, (window, 1000), &Request::Write(&bytes)), nothing);
        assert_eq!(read(&memory)[1008..4008], bytes);
        let (end, data) = done(&mut two, (window, 1000), &Request::Read(3000));
        assert!(end == RequestEnd::Done && data == bytes);
        let before = done(&mut two, (window, 0), &Request::FetchAndAdd(7));
        assert_eq!(before, (RequestEnd::Done, vec![0; 8]));
        assert_eq!(read(&memory)[8..16], 7_u64.to_ne_bytes());
        // The window begins and ends with the loan.
        let refused = ask(&mut two, (window, 3999), &Request::Read(2));
        assert!(matches!(refused, Err(RequestRefusal::OutOfWindow { .. })));
        revoke(&mut two, loan);
        assert!(told(&mut two, A, &Aside::Withdrawn(window)));
        assert!(told(&mut two, B, &Aside::Revoked(loan)));
        assert_eq!(
            ask(&mut two, (window, 0), &Request::Read(1)),
            Err(RequestRefusal::NoWindow)
        );
        // The next loan has a number and a key of its own.
        let again = lend(&mut two, (&memory, 0, 4096), RemoteAccess::WRITE).unwrap();
        assert!(again.0 > loan && again.1 > window);
        two.fabric.audit().unwrap();
    }
}

#[test]
fn a_window_gives_the_rights_it_was_lent_with() {
    let read_alone = RemoteAccess {
        read: true,
        ..RemoteAccess::NONE
    };
    let (mut two, memory, (_, window)) = lent(1, read_alone);
    memory.copy_in(8, b"these").unwrap();
    let read = done(&mut two, (window, 0), &Request::Read(5));
    assert_eq!(read, (RequestEnd::Done, b"these".to_vec()));
    for request in [Request::Write(b"x"), Request::FetchAndAdd(1)] {
        assert_eq!(
            ask(&mut two, (window, 0), &request),
            Err(RequestRefusal::NotGranted)
        );
    }
}

#[test]
fn windows_that_cannot_be_lent_are_refused() {
    let mut two = Two::new(1, "");
    two.connected(1);
    let memory = region(two.process(B), 100);
    let refused = |two: &mut Two, range, access| lend(two, range, access).unwrap_err();
    let all = RemoteAccess::ALL;
    let none = refused(&mut two, (&memory, 0, 100), RemoteAccess::NONE);
    assert_eq!(none, TransferRefusal::NoAccess);
    let empty = refused(&mut two, (&memory, 0, 0), all);
    assert_eq!(empty, TransferRefusal::Length { bytes: 0 });
    let outside = refused(&mut two, (&memory, 1, 100), all);
    assert!(matches!(outside, TransferRefusal::OutOfRegion { .. }));
    // None of these used up a number, or a place.
    let lent: Vec<_> = (0..64)
        .map(|_| lend(&mut two, (&memory, 0, 100), all).unwrap().1)
        .collect();
    assert_eq!(lent, (0..64).collect::<Vec<_>>());
    let full = refused(&mut two, (&memory, 0, 100), all);
    assert_eq!(full, TransferRefusal::LoansFull { loans_max: 64 });
}

/// The peer writes all the time. Once the loan is revoked, nothing of that arrives, whatever happens to the rails.
#[test]
fn whatever_fails_nothing_is_written_to_a_window_behind_its_revocation() {
    let (mut denied, count) = (0, seeds().count());
    for seed in seeds() {
        let mut chance = Chance(seed);
        let rails = 1 + chance.below(3);
        let plan = plan(&mut chance, rails, |rail| format!("sim{rail}:1"), 5_000);
        let mut two = Two::with(rails as usize, &plan, Some(200));
        let is_up = |two: &Two| two.process(A).saw(SessionEvent::Connected).is_some();
        two.run(ms(3000), |two| is_up(two) && two.process(B).link.is_some());
        let memory = region(two.process(B), 4000);
        let (loan, window) = lend(&mut two, (&memory, 0, 4000), RemoteAccess::ALL).unwrap();
        assert!(told(
            &mut two,
            A,
            &Aside::Granted(window, 4000, RemoteAccess::ALL)
        ));
        let (ends, mut is_revoked) = (ms(two.fabric.now().to_ns() / 1_000_000 + 400), false);
        let revoke_at = ends - core::time::Duration::from_millis(100 + chance.below(250));
        let mut written = 0;
        while two.fabric.now().to_ns() < ends.as_nanos() as u64 {
            for _ in 0..4 {
                let at = (window, chance.below(1000));
                written += u32::from(ask(&mut two, at, &Request::WriteOnce(&[0xee; 3000])).is_ok());
            }
            let now = core::time::Duration::from_nanos(two.fabric.now().to_ns());
            if !is_revoked && now >= revoke_at {
                is_revoked = true;
                revoke(&mut two, loan);
            }
            two.run(now + core::time::Duration::from_micros(200), |_| false);
            let asides = &two.process(B).asides;
            if asides.contains(&Aside::Revoked(loan)) {
                break;
            }
        }
        assert!(told(&mut two, B, &Aside::Revoked(loan)), "seed {seed}: {plan}");
        memory.copy_in(0, &bytes_of(9, 4000)).unwrap();
        let until = ms(two.fabric.now().to_ns() / 1_000_000 + 1000);
        two.run(until, |_| false);
        assert!(written > 0, "seed {seed}: {plan}");
        assert!(
            read(&memory) == bytes_of(9, 4000),
            "seed {seed}: {plan}: written behind the revocation"
        );
        denied += two.process(A).asides.iter().filter(is_denied).count();
        two.fabric.audit().unwrap();
    }
    assert!(
        denied > 0 || count < 6,
        "no WRITE was under way when its window was revoked"
    );
}

fn is_denied(aside: &&Aside) -> bool {
    let reason = UnknownReason::Denied;
    let denied = RequestEnd::Unknown {
        was_posted: true,
        reason,
    };
    matches!(aside, Aside::Ended(_, end, _) if *end == denied)
}
