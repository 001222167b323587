//! The states of a queue pair: which follow which, and with what attributes.
//!
//! Written down here once more, apart from `doorbell-core`'s table: what tests the stack must not
//! take its word.

use core::ffi::c_int;
use core::sync::atomic::Ordering;
use std::sync::PoisonError;

use rdma_sys::{ibv_qp_attr, ibv_qp_attr_mask};

use crate::device::RD_ATOMIC_MAX;
use crate::queue_pair::{QueuePair, path, state};
use crate::registry::NULL_QPN;
use crate::{address, engine, registry, send};

/// One change of state: the attributes it needs, and those it takes beside them.
struct Transition {
    from: u32,
    to: u32,
    required: u32,
    optional: u32,
}

const fn bits<const N: usize>(masks: [ibv_qp_attr_mask; N]) -> u32 {
    let mut all = 0;
    let mut rest: &[ibv_qp_attr_mask] = &masks;
    while let [first, others @ ..] = rest {
        all |= first.0;
        rest = others;
    }
    all
}

const STATE: u32 = ibv_qp_attr_mask::IBV_QP_STATE.0;
const CURRENT: u32 = ibv_qp_attr_mask::IBV_QP_CUR_STATE.0;
const DRAINED: ibv_qp_attr_mask = ibv_qp_attr_mask::IBV_QP_EN_SQD_ASYNC_NOTIFY;
const PORT: ibv_qp_attr_mask = ibv_qp_attr_mask::IBV_QP_PORT;
const PKEY: ibv_qp_attr_mask = ibv_qp_attr_mask::IBV_QP_PKEY_INDEX;
const ACCESS: ibv_qp_attr_mask = ibv_qp_attr_mask::IBV_QP_ACCESS_FLAGS;
const QKEY: ibv_qp_attr_mask = ibv_qp_attr_mask::IBV_QP_QKEY;
const VECTOR: ibv_qp_attr_mask = ibv_qp_attr_mask::IBV_QP_AV;
const MTU: ibv_qp_attr_mask = ibv_qp_attr_mask::IBV_QP_PATH_MTU;
const PEER: ibv_qp_attr_mask = ibv_qp_attr_mask::IBV_QP_DEST_QPN;
const RQ_PSN: ibv_qp_attr_mask = ibv_qp_attr_mask::IBV_QP_RQ_PSN;
const READS_IN: ibv_qp_attr_mask = ibv_qp_attr_mask::IBV_QP_MAX_DEST_RD_ATOMIC;
const RNR_TIMER: ibv_qp_attr_mask = ibv_qp_attr_mask::IBV_QP_MIN_RNR_TIMER;
const SQ_PSN: ibv_qp_attr_mask = ibv_qp_attr_mask::IBV_QP_SQ_PSN;
const READS_OUT: ibv_qp_attr_mask = ibv_qp_attr_mask::IBV_QP_MAX_QP_RD_ATOMIC;
const RETRIES: ibv_qp_attr_mask = ibv_qp_attr_mask::IBV_QP_RETRY_CNT;
const RNR_RETRIES: ibv_qp_attr_mask = ibv_qp_attr_mask::IBV_QP_RNR_RETRY;
const TIMEOUT: ibv_qp_attr_mask = ibv_qp_attr_mask::IBV_QP_TIMEOUT;

/// For reliable connections.
///
/// Source: InfiniBand Architecture volume 1, section 11.2.5.2; Linux drivers/infiniband/core/verbs.c.
const TRANSITIONS: &[Transition] = &[
    Transition {
        from: state::READY_TO_SEND,
        to: state::DRAIN,
        required: 0,
        optional: bits([DRAINED]),
    },
    Transition {
        from: state::DRAIN,
        to: state::READY_TO_SEND,
        required: 0,
        optional: CURRENT | bits([ACCESS, RNR_TIMER]),
    },
    Transition {
        from: state::RESET,
        to: state::INIT,
        required: bits([PKEY, PORT, ACCESS]),
        optional: 0,
    },
    Transition {
        from: state::INIT,
        to: state::INIT,
        required: 0,
        optional: bits([PKEY, PORT, ACCESS]),
    },
    Transition {
        from: state::INIT,
        to: state::READY_TO_RECEIVE,
        required: bits([VECTOR, MTU, PEER, RQ_PSN, READS_IN, RNR_TIMER]),
        optional: bits([PKEY, ACCESS]),
    },
    Transition {
        from: state::READY_TO_RECEIVE,
        to: state::READY_TO_SEND,
        required: bits([SQ_PSN, READS_OUT, RETRIES, RNR_RETRIES, TIMEOUT]),
        optional: CURRENT | bits([ACCESS, RNR_TIMER]),
    },
    Transition {
        from: state::READY_TO_SEND,
        to: state::READY_TO_SEND,
        required: 0,
        optional: CURRENT | bits([ACCESS, RNR_TIMER]),
    },
];

/// The same for datagrams.
const OF_DATAGRAMS: &[Transition] = &[
    Transition {
        from: state::SEND_ERROR,
        to: state::READY_TO_SEND,
        required: 0,
        optional: CURRENT | bits([QKEY]),
    },
    Transition {
        from: state::RESET,
        to: state::INIT,
        required: bits([PKEY, PORT, QKEY]),
        optional: 0,
    },
    Transition {
        from: state::INIT,
        to: state::INIT,
        required: 0,
        optional: bits([PKEY, PORT, QKEY]),
    },
    Transition {
        from: state::INIT,
        to: state::READY_TO_RECEIVE,
        required: 0,
        optional: bits([PKEY, QKEY]),
    },
    Transition {
        from: state::READY_TO_RECEIVE,
        to: state::READY_TO_SEND,
        required: bits([SQ_PSN]),
        optional: CURRENT | bits([QKEY]),
    },
    Transition {
        from: state::READY_TO_SEND,
        to: state::READY_TO_SEND,
        required: 0,
        optional: CURRENT | bits([QKEY]),
    },
];

/// Which attributes a change of state needs and takes; `None` where there is no such change.
fn attributes_of(transitions: &[Transition], from: u32, to: u32) -> Option<(u32, u32)> {
    if to == state::RESET || to == state::ERROR && from != state::RESET {
        return Some((0, 0));
    }
    let found = transitions
        .iter()
        .find(|known| (known.from, known.to) == (from, to))?;
    Some((found.required, found.optional))
}

/// Changes a queue pair, see `ibv_modify_qp(3)`; what is refused changes nothing (S2).
///
/// # Errors
/// `EINVAL`.
pub(crate) fn modify(qp: &QueuePair, wanted: &ibv_qp_attr, mask: u32) -> Result<(), c_int> {
    // One change at a time.
    let mut kept = qp.attributes.lock().unwrap_or_else(PoisonError::into_inner);
    let from = qp.state();
    let to = if mask & STATE != 0 {
        wanted.qp_state.0
    } else {
        from
    };
    let transitions = if qp.is_datagram { OF_DATAGRAMS } else { TRANSITIONS };
    let (required, optional) = attributes_of(transitions, from, to).ok_or(libc::EINVAL)?;
    let given = mask & !STATE;
    if given & required != required || given & !(required | optional) != 0 {
        return Err(libc::EINVAL);
    }
    check(wanted, mask)?;
    let mut attributes = *kept;
    keep(&mut attributes, wanted, mask);
    if to == state::ERROR {
        *kept = attributes;
        drop(kept);
        engine::fail(qp);
        return Ok(());
    }
    let mut requester = qp.core.requester.lock();
    let mut responder = qp.core.responder.lock();
    let is_null = attributes.dest_qp_num == qp.qpn || attributes.dest_qp_num == NULL_QPN;
    let goes_on = from == state::DRAIN && to == state::READY_TO_SEND;
    // A send on a null connection is done as it is posted, and never waits.
    if goes_on && requester.is_under_way() || to == state::DRAIN && is_null {
        return Err(libc::EINVAL);
    }
    if to != state::RESET && qp.state() == state::ERROR {
        // It failed meanwhile.
        return Err(libc::EINVAL);
    }
    *kept = attributes;
    drop(kept);
    if to == state::RESET {
        requester.forget_waiting(qp);
        // Posted requests are forgotten, as if they had been polled.
        let receives = qp.receives_posted.load(Ordering::Relaxed);
        qp.receives_taken.store(receives, Ordering::Relaxed);
        qp.core.receives_polled.store(receives, Ordering::Relaxed);
        qp.core
            .sends_polled
            .store(qp.sends_posted.load(Ordering::Relaxed), Ordering::Relaxed);
        qp.attention.store(0, Ordering::Relaxed);
    }
    requester.attributes = attributes.into();
    responder.peer_qpn = attributes.dest_qp_num;
    responder.attributes = attributes.into();
    let path = match to {
        state::READY_TO_SEND if is_null => path::NULL,
        state::READY_TO_SEND | state::DRAIN => path::LOOPBACK,
        _ => path::REFUSE,
    };
    qp.set_state(to, path);
    requester.reports_drained = to == state::DRAIN && mask & DRAINED.0 != 0;
    requester.report_drained(qp);
    drop((requester, responder));
    if goes_on {
        send::run(qp.core);
    }
    if to == state::READY_TO_RECEIVE {
        // Requests that the peer had to keep until now are carried out.
        if let Some(peer) = registry::find(attributes.dest_qp_num) {
            send::run(peer);
        }
    }
    Ok(())
}

/// Whether every attribute of the mask has a value that can be.
fn check(wanted: &ibv_qp_attr, mask: u32) -> Result<(), c_int> {
    let given = |attribute: ibv_qp_attr_mask| mask & attribute.0 != 0;
    let within_24_bits = |value: u32| value < 1 << 24;
    let valid = [
        !given(PORT) || wanted.port_num == 1,
        !given(PKEY) || wanted.pkey_index == 0,
        !given(MTU) || (1..=5).contains(&wanted.path_mtu.0),
        !given(PEER) || within_24_bits(wanted.dest_qp_num),
        !given(RQ_PSN) || within_24_bits(wanted.rq_psn),
        !given(SQ_PSN) || within_24_bits(wanted.sq_psn),
        !given(READS_IN) || wanted.max_dest_rd_atomic <= RD_ATOMIC_MAX,
        !given(READS_OUT) || wanted.max_rd_atomic <= RD_ATOMIC_MAX,
        !given(RNR_TIMER) || wanted.min_rnr_timer <= 31,
        !given(TIMEOUT) || wanted.timeout <= 31,
        !given(RETRIES) || wanted.retry_cnt <= 7,
        !given(RNR_RETRIES) || wanted.rnr_retry <= 7,
        !given(VECTOR) || is_route(wanted),
    ];
    if valid.contains(&false) {
        return Err(libc::EINVAL);
    }
    Ok(())
}

/// Whether the address vector leads somewhere from here: RoCE needs a global route from a GID we have.
fn is_route(wanted: &ibv_qp_attr) -> bool {
    address::source(&wanted.ah_attr).is_some()
}

fn keep(kept: &mut ibv_qp_attr, wanted: &ibv_qp_attr, mask: u32) {
    macro_rules! keep {
        ($($attribute:ident: $($field:ident),+;)*) => {
            $(if mask & $attribute.0 != 0 {
                $(kept.$field = wanted.$field;)+
            })*
        };
    }
    keep! {
        PORT: port_num;
        PKEY: pkey_index;
        ACCESS: qp_access_flags;
        QKEY: qkey;
        VECTOR: ah_attr;
        MTU: path_mtu;
        PEER: dest_qp_num;
        RQ_PSN: rq_psn;
        READS_IN: max_dest_rd_atomic;
        RNR_TIMER: min_rnr_timer;
        SQ_PSN: sq_psn;
        READS_OUT: max_rd_atomic;
        RETRIES: retry_cnt;
        RNR_RETRIES: rnr_retry;
        TIMEOUT: timeout;
    }
}

#[cfg(test)]
mod tests {
    use super::{OF_DATAGRAMS, TRANSITIONS, attributes_of, state};

    #[test]
    fn s1_which_states_follow_which() {
        let all = [
            state::RESET,
            state::INIT,
            state::READY_TO_RECEIVE,
            state::READY_TO_SEND,
            state::DRAIN,
            state::SEND_ERROR,
            state::ERROR,
        ];
        for (transitions, beside) in [(TRANSITIONS, state::DRAIN), (OF_DATAGRAMS, state::SEND_ERROR)] {
            let followers = |from: u32| {
                let next = all
                    .into_iter()
                    .filter(|to| attributes_of(transitions, from, *to).is_some());
                next.collect::<Vec<_>>()
            };
            assert_eq!(followers(state::RESET), [state::RESET, state::INIT]);
            assert_eq!(
                followers(state::INIT),
                [state::RESET, state::INIT, state::READY_TO_RECEIVE, state::ERROR]
            );
            assert_eq!(
                followers(state::READY_TO_RECEIVE),
                [state::RESET, state::READY_TO_SEND, state::ERROR]
            );
            let mut of_ready = vec![state::RESET, state::READY_TO_SEND, state::ERROR];
            assert_eq!(followers(beside), of_ready);
            if beside == state::DRAIN {
                of_ready.insert(2, state::DRAIN);
            }
            assert_eq!(followers(state::READY_TO_SEND), of_ready);
            assert_eq!(followers(state::ERROR), [state::RESET, state::ERROR]);
            assert!(attributes_of(transitions, state::INIT, 4711).is_none());
        }
    }
}
