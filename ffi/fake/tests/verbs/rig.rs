//! A device with its domain, memory and queue pairs, by plain verbs.

use core::ptr;
use core::time::Duration;
use std::time::Instant;

use rdma_sys::*;

/// No wait of a test is longer.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// Access that registrations and queue pairs allow: all of it.
pub(crate) const ALL: i32 = 15;

/// An opened device; closed and checked at the end.
pub(crate) struct Device {
    pub(crate) context: *mut ibv_context,
    pub(crate) pd: *mut ibv_pd,
}

/// Zero bytes, for structures of integers and pointers.
pub(crate) fn zeroed<T>() -> T {
    // SAFETY: tests ask for structures of integers, pointers and arrays of them alone, of which all zero bytes are a value.
    unsafe { core::mem::zeroed() }
}

pub(crate) fn last_errno() -> i32 {
    std::io::Error::last_os_error().raw_os_error().unwrap()
}

impl Device {
    pub(crate) fn open() -> Self {
        // SAFETY: the fake was built from this workspace and stands for libibverbs of the machine's ABI.
        unsafe { load_from(&doorbell_fake::library_path().unwrap()) }.unwrap();
        // SAFETY: the fake lists one device, the list is freed after its use, and what is opened stays open until `close`.
        unsafe {
            let list = ibv_get_device_list(ptr::null_mut());
            let context = ibv_open_device(list.read());
            ibv_free_device_list(list);
            let pd = ibv_alloc_pd(context);
            Self { context, pd }
        }
    }

    pub(crate) fn cq(&self, depth: i32) -> *mut ibv_cq {
        // SAFETY: the context is open until `close`, and a completion queue may lack a context and a channel.
        unsafe { ibv_create_cq(self.context, depth, ptr::null_mut(), ptr::null_mut(), 0) }
    }

    pub(crate) fn region(&self, bytes: usize) -> Region {
        let memory = Box::leak(vec![0_u64; bytes.div_ceil(8)].into_boxed_slice());
        let start = memory.as_mut_ptr().cast::<u8>();
        // SAFETY: the domain is there until `close`, and the memory is leaked: it stays as long as the registration.
        let mr = unsafe { ibv_reg_mr(self.pd, start.cast(), bytes, ALL) };
        assert!(!mr.is_null());
        Region { mr, start }
    }

    /// A queue pair in RESET with a completion queue of its own.
    pub(crate) fn queue_pair(&self, srq: *mut ibv_srq) -> QueuePair {
        let cq = self.cq(64);
        let mut wanted: ibv_qp_init_attr = zeroed();
        wanted.send_cq = cq;
        wanted.recv_cq = cq;
        wanted.srq = srq;
        wanted.cap = ibv_qp_cap {
            max_send_wr: 8,
            max_recv_wr: 8,
            max_send_sge: 3,
            max_recv_sge: 2,
            max_inline_data: 32,
        };
        wanted.qp_type = ibv_qp_type::IBV_QPT_RC;
        // SAFETY: the domain and the completion queue are there, the attributes are whole, and the shared receive queue is null or there.
        let qp = unsafe { ibv_create_qp(self.pd, &raw mut wanted) };
        assert!(!qp.is_null());
        QueuePair { qp, cq }
    }

    /// Two queue pairs, connected to each other.
    pub(crate) fn pair(&self) -> (QueuePair, QueuePair) {
        let (one, other) = (self.queue_pair(ptr::null_mut()), self.queue_pair(ptr::null_mut()));
        one.connect(other.number());
        other.connect(one.number());
        (one, other)
    }

    /// The kinds of the events that wait.
    pub(crate) fn events(&self) -> Vec<ibv_event_type> {
        let mut kinds = Vec::new();
        // SAFETY: the context is open until `close`, the event is written by the get and acknowledged once.
        unsafe {
            let fd = (*self.context).async_fd;
            libc::fcntl(fd, libc::F_SETFL, libc::O_NONBLOCK);
            let mut event: ibv_async_event = zeroed();
            while ibv_get_async_event(self.context, &raw mut event) == 0 {
                kinds.push(event.event_type);
                ibv_ack_async_event(&raw mut event);
            }
            assert_eq!(last_errno(), libc::EAGAIN);
        }
        kinds
    }

    /// Ends everything: what was made here must be gone.
    pub(crate) fn close(self) {
        // SAFETY: the domain is there, and nothing uses it after this call.
        assert_eq!(unsafe { ibv_dealloc_pd(self.pd) }, 0);
        // SAFETY: the context is open, and nothing uses it after this call.
        assert_eq!(unsafe { ibv_close_device(self.context) }, 0);
    }
}

#[derive(Clone, Copy)]
pub(crate) struct Region {
    pub(crate) mr: *mut ibv_mr,
    pub(crate) start: *mut u8,
}

impl Region {
    pub(crate) fn key(&self) -> u32 {
        // SAFETY: the registration is there until `release`, and its fields never change.
        unsafe { (*self.mr).lkey }
    }

    pub(crate) fn address(&self) -> u64 {
        self.start.expose_provenance() as u64
    }

    pub(crate) fn element(&self, offset: usize, length: u32) -> ibv_sge {
        ibv_sge {
            addr: self.address() + offset as u64,
            length,
            lkey: self.key(),
        }
    }

    pub(crate) fn write(&self, offset: usize, bytes: &[u8]) {
        // SAFETY: callers write within the leaked memory of the region, and no request uses these bytes at that time.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), self.start.add(offset), bytes.len()) };
    }

    pub(crate) fn read(&self, offset: usize, length: usize) -> Vec<u8> {
        // SAFETY: callers read within the leaked memory of the region, which was zeroed, and no request writes these bytes at that time.
        unsafe { core::slice::from_raw_parts(self.start.add(offset), length).to_vec() }
    }

    pub(crate) fn release(self) {
        // SAFETY: the registration is there, and no caller uses it after this call.
        assert_eq!(unsafe { ibv_dereg_mr(self.mr) }, 0);
    }
}

/// A request to be posted.
#[derive(Clone)]
pub(crate) struct Send {
    pub(crate) wr_id: u64,
    pub(crate) opcode: ibv_wr_opcode,
    pub(crate) flags: u32,
    pub(crate) elements: Vec<ibv_sge>,
    pub(crate) remote: (u64, u32),
}

/// A signaled SEND of these elements.
pub(crate) fn send(wr_id: u64, elements: &[ibv_sge]) -> Send {
    Send {
        wr_id,
        opcode: ibv_wr_opcode::IBV_WR_SEND,
        flags: ibv_send_flags::IBV_SEND_SIGNALED.0,
        elements: elements.to_vec(),
        remote: (0, 0),
    }
}

#[derive(Clone, Copy)]
pub(crate) struct QueuePair {
    pub(crate) qp: *mut ibv_qp,
    pub(crate) cq: *mut ibv_cq,
}

impl QueuePair {
    pub(crate) fn number(&self) -> u32 {
        // SAFETY: the queue pair is there until `destroy`, and its number never changes.
        unsafe { (*self.qp).qp_num }
    }

    pub(crate) fn modify(&self, attributes: &mut ibv_qp_attr, mask: u32) -> i32 {
        // SAFETY: the queue pair is there until `destroy`, and the attributes are whole.
        unsafe { ibv_modify_qp(self.qp, attributes, mask as i32) }
    }

    /// Brings it to this state.
    pub(crate) fn bring(&self, state: ibv_qp_state) -> i32 {
        let mut attributes: ibv_qp_attr = zeroed();
        attributes.qp_state = state;
        self.modify(&mut attributes, ibv_qp_attr_mask::IBV_QP_STATE.0)
    }

    pub(crate) fn rnr_timer(&self) -> u8 {
        let mut attributes: ibv_qp_attr = zeroed();
        let mut made_with: ibv_qp_init_attr = zeroed();
        let mask = ibv_qp_attr_mask::IBV_QP_MIN_RNR_TIMER.0 as i32;
        // SAFETY: the queue pair is there until `destroy`, and both structures are whole and writable.
        let outcome = unsafe { ibv_query_qp(self.qp, &raw mut attributes, mask, &raw mut made_with) };
        assert_eq!(outcome, 0);
        attributes.min_rnr_timer
    }

    pub(crate) fn connect(&self, peer: u32) {
        self.to_init();
        self.to_receive(peer);
        self.to_send(7);
    }

    pub(crate) fn to_init(self) {
        let mut attributes: ibv_qp_attr = zeroed();
        attributes.qp_state = ibv_qp_state::IBV_QPS_INIT;
        attributes.port_num = 1;
        attributes.qp_access_flags = ALL as u32;
        assert_eq!(self.modify(&mut attributes, 1 | 8 | 16 | 32), 0);
    }

    pub(crate) fn to_receive(self, peer: u32) {
        let mut attributes: ibv_qp_attr = zeroed();
        attributes.qp_state = ibv_qp_state::IBV_QPS_RTR;
        attributes.path_mtu = ibv_mtu::IBV_MTU_1024;
        attributes.dest_qp_num = peer;
        attributes.max_dest_rd_atomic = 4;
        attributes.min_rnr_timer = 1;
        attributes.ah_attr.is_global = 1;
        attributes.ah_attr.port_num = 1;
        let mask = ibv_qp_attr_mask::IBV_QP_STATE
            | ibv_qp_attr_mask::IBV_QP_AV
            | ibv_qp_attr_mask::IBV_QP_PATH_MTU
            | ibv_qp_attr_mask::IBV_QP_DEST_QPN
            | ibv_qp_attr_mask::IBV_QP_RQ_PSN
            | ibv_qp_attr_mask::IBV_QP_MAX_DEST_RD_ATOMIC
            | ibv_qp_attr_mask::IBV_QP_MIN_RNR_TIMER;
        assert_eq!(self.modify(&mut attributes, mask.0), 0);
    }

    pub(crate) fn to_send(self, rnr_retry: u8) {
        let mut attributes: ibv_qp_attr = zeroed();
        attributes.qp_state = ibv_qp_state::IBV_QPS_RTS;
        attributes.timeout = 15;
        attributes.retry_cnt = 7;
        attributes.rnr_retry = rnr_retry;
        attributes.max_rd_atomic = 4;
        let mask = ibv_qp_attr_mask::IBV_QP_STATE
            | ibv_qp_attr_mask::IBV_QP_SQ_PSN
            | ibv_qp_attr_mask::IBV_QP_MAX_QP_RD_ATOMIC
            | ibv_qp_attr_mask::IBV_QP_RETRY_CNT
            | ibv_qp_attr_mask::IBV_QP_RNR_RETRY
            | ibv_qp_attr_mask::IBV_QP_TIMEOUT;
        assert_eq!(self.modify(&mut attributes, mask.0), 0);
    }

    /// Posts all in one list; on a refusal its errno and how many went before it.
    pub(crate) fn post(&self, sends: &[Send]) -> Result<(), (i32, usize)> {
        let mut sends = sends.to_vec();
        let mut requests: Vec<ibv_send_wr> = sends
            .iter_mut()
            .map(|send| {
                let mut request: ibv_send_wr = zeroed();
                request.wr_id = send.wr_id;
                request.opcode = send.opcode;
                request.send_flags = send.flags;
                request.sg_list = send.elements.as_mut_ptr();
                request.num_sge = send.elements.len() as i32;
                let (remote_addr, rkey) = send.remote;
                let is_atomic = send.opcode == ibv_wr_opcode::IBV_WR_ATOMIC_FETCH_AND_ADD;
                if is_atomic {
                    request.wr.atomic = atomic_t {
                        remote_addr,
                        compare_add: 1,
                        swap: 0,
                        rkey,
                    };
                } else {
                    request.wr.rdma = rdma_t { remote_addr, rkey };
                }
                request
            })
            .collect();
        let first = requests.as_mut_ptr();
        for index in 1..requests.len() {
            // SAFETY: both places are elements of `requests`, which is not moved before the post.
            unsafe { (*first.add(index - 1)).next = first.add(index) };
        }
        let mut refused = ptr::null_mut();
        // SAFETY: the queue pair is there, and the list, its elements and their memory outlive the call.
        match unsafe { ibv_post_send(self.qp, first, &raw mut refused) } {
            0 => Ok(()),
            // SAFETY: a refused post names an element of the list, so both pointers are into `requests`.
            error => Err((error, unsafe { refused.offset_from(first) } as usize)),
        }
    }

    /// Posts a receive.
    pub(crate) fn receive(&self, wr_id: u64, elements: &[ibv_sge]) -> Result<(), i32> {
        let mut elements = elements.to_vec();
        let mut request = ibv_recv_wr {
            wr_id,
            next: ptr::null_mut(),
            sg_list: elements.as_mut_ptr(),
            num_sge: elements.len() as i32,
        };
        let mut refused = ptr::null_mut();
        // SAFETY: the queue pair is there, and the request and its elements outlive the call.
        match unsafe { ibv_post_recv(self.qp, &raw mut request, &raw mut refused) } {
            0 => Ok(()),
            error => {
                assert_eq!(refused, &raw mut request);
                Err(error)
            }
        }
    }

    /// Completions by now.
    pub(crate) fn polled(&self) -> Vec<(u64, ibv_wc_status)> {
        poll(self.cq)
            .into_iter()
            .map(|completion| (completion.wr_id, completion.status))
            .collect()
    }

    pub(crate) fn destroy(self) {
        // SAFETY: both are there, nothing else uses this completion queue, and no caller uses either after this call.
        unsafe {
            assert_eq!(ibv_destroy_qp(self.qp), 0);
            assert_eq!(ibv_destroy_cq(self.cq), 0);
        }
    }
}

/// Completions by now.
pub(crate) fn poll(cq: *mut ibv_cq) -> Vec<ibv_wc> {
    let mut completions: [ibv_wc; 4] = zeroed();
    let mut all = Vec::new();
    loop {
        // SAFETY: the completion queue is there, and the array has room for the four completions that are asked for.
        let count = unsafe { ibv_poll_cq(cq, 4, completions.as_mut_ptr()) };
        assert!(count >= 0);
        all.extend_from_slice(&completions[..count as usize]);
        if count < 4 {
            return all;
        }
    }
}

/// Polls until something completes.
pub(crate) fn wait_for(queue_pair: &QueuePair) -> Vec<(u64, ibv_wc_status)> {
    let began = Instant::now();
    loop {
        let polled = queue_pair.polled();
        if !polled.is_empty() {
            return polled;
        }
        assert!(began.elapsed() < PATIENCE, "nothing completes");
    }
}

pub(crate) const SUCCESS: ibv_wc_status = ibv_wc_status::IBV_WC_SUCCESS;
pub(crate) const FLUSHED: ibv_wc_status = ibv_wc_status::IBV_WC_WR_FLUSH_ERR;
pub(crate) const INLINE: u32 = ibv_send_flags::IBV_SEND_INLINE.0;
