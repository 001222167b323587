//! How a test makes the loaded library go wrong: the names of what can, and the one function that takes
//! them.
//!
//! A test links this crate and loads its shared object, which are two copies: what is set goes
//! through [`Control`] to the copy that was loaded.

use core::ffi::{CStr, c_char, c_int, c_void};
use core::fmt;
use std::ffi::CString;
use std::path::Path;

use crate::{faults, memory};

/// Lists what has a number and a name.
macro_rules! numbered {
    ($(#[$of_type:meta])* $type:ident { $($(#[$of_variant:meta])* $variant:ident = $name:literal,)+ }) => {
        $(#[$of_type])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[non_exhaustive]
        pub enum $type {
            $($(#[$of_variant])* #[doc = concat!("`", $name, "`")] $variant,)+
        }

        impl $type {
            /// All of them.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)+];

            /// Its name in C.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)+ }
            }
        }
    };
}

numbered! {
    /// A call that can be made to fail, in the way its manual page says that it fails: every one that `ffi` makes and that
    /// can fail, to which a test of `ffi` sees.
    Call {
        ForkInit = "ibv_fork_init",
        GetDeviceList = "ibv_get_device_list",
        GetDeviceName = "ibv_get_device_name",
        OpenDevice = "ibv_open_device",
        CloseDevice = "ibv_close_device",
        QueryDevice = "ibv_query_device_ex",
        QueryPort = "ibv_query_port",
        QueryGidTable = "ibv_query_gid_table",
        AllocPd = "ibv_alloc_pd",
        DeallocPd = "ibv_dealloc_pd",
        RegMr = "ibv_reg_mr",
        RegDmabufMr = "ibv_reg_dmabuf_mr",
        DeregMr = "ibv_dereg_mr",
        CreateCompChannel = "ibv_create_comp_channel",
        DestroyCompChannel = "ibv_destroy_comp_channel",
        CreateCq = "ibv_create_cq",
        DestroyCq = "ibv_destroy_cq",
        ReqNotifyCq = "ibv_req_notify_cq",
        GetCqEvent = "ibv_get_cq_event",
        PollCq = "ibv_poll_cq",
        CreateSrq = "ibv_create_srq",
        ModifySrq = "ibv_modify_srq",
        DestroySrq = "ibv_destroy_srq",
        CreateAh = "ibv_create_ah",
        DestroyAh = "ibv_destroy_ah",
        CreateQp = "ibv_create_qp",
        ModifyQp = "ibv_modify_qp",
        QueryQp = "ibv_query_qp",
        QueryQpDataInOrder = "ibv_query_qp_data_in_order",
        DestroyQp = "ibv_destroy_qp",
        PostSend = "ibv_post_send",
        PostRecv = "ibv_post_recv",
        PostSrqRecv = "ibv_post_srq_recv",
        GetAsyncEvent = "ibv_get_async_event",
    }
}

impl Call {
    /// Calls that make an object that a device works with, each with the call that destroys it. They may take
    /// milliseconds. [`Self::RegDmabufMr`] is not among them: [`Self::DeregMr`] has its pair.
    pub const LIVES: [(Self, Self); 8] = [
        (Self::OpenDevice, Self::CloseDevice),
        (Self::AllocPd, Self::DeallocPd),
        (Self::RegMr, Self::DeregMr),
        (Self::CreateCompChannel, Self::DestroyCompChannel),
        (Self::CreateCq, Self::DestroyCq),
        (Self::CreateSrq, Self::DestroySrq),
        (Self::CreateAh, Self::DestroyAh),
        (Self::CreateQp, Self::DestroyQp),
    ];

    /// Whether it destroys something.
    #[must_use]
    pub fn destroys(self) -> bool {
        Self::LIVES.iter().any(|(_, destroy)| *destroy == self)
    }
}

numbered! {
    /// A value that the library gives, and can be made to give another of: one that no enumeration of
    /// today has, say.
    Value {
        WcStatus = "ibv_wc.status",
        WcOpcode = "ibv_wc.opcode",
        WcWrId = "ibv_wc.wr_id",
        WcByteLen = "ibv_wc.byte_len",
        WcFlags = "ibv_wc.wc_flags",
        WcSrcQp = "ibv_wc.src_qp",
        WcCount = "the result of ibv_poll_cq",
        PortState = "ibv_port_attr.state",
        ActiveMtu = "ibv_port_attr.active_mtu",
        LinkLayer = "ibv_port_attr.link_layer",
        ActiveSpeed = "ibv_port_attr.active_speed",
        GidType = "ibv_gid_entry.gid_type",
        EventType = "ibv_async_event.event_type",
        QpState = "ibv_qp_attr.qp_state",
        QpNum = "ibv_qp.qp_num",
        PhysPortCnt = "ibv_device_attr.phys_port_cnt",
        RcOdpCaps = "ibv_odp_caps.rc_odp_caps",
    }
}

numbered! {
    /// Parts that contexts opened later lack.
    Without {
        Nothing = "nothing: all is there",
        QueryPort = "verbs_context.query_port: the context ends before it",
        Extension = "the extended context",
        PostSend = "ibv_context_ops.post_send",
        PostRecv = "ibv_context_ops.post_recv",
        PostSrqRecv = "ibv_context_ops.post_srq_recv",
        PollCq = "ibv_context_ops.poll_cq",
        ReqNotifyCq = "ibv_context_ops.req_notify_cq",
        Dmabuf = "the import of dma-bufs",
        OnDemand = "on-demand paging",
    }
}

/// Commands of the control function.
const HEAL: u32 = 0;
const FAIL: u32 = 1;
const GIVE: u32 = 2;
const LACK: u32 = 3;
const CALLS: u32 = 4;
const HOLD_DESTROYS: u32 = 5;
const HOLD: u32 = 6;
const LET_GO: u32 = 7;
const SERIAL: u32 = 8;

/// The one function behind [`Control`]; see there. Gives a count where one is asked for, else 0.
#[unsafe(no_mangle)]
extern "C" fn doorbell_fake_control(command: u32, which: u32, first: u32, second: c_int) -> u32 {
    match command {
        HEAL => faults::heal(),
        FAIL => faults::fail(which, first, second),
        GIVE => faults::give(which, first),
        LACK => faults::lack(which),
        CALLS => return faults::calls(which),
        HOLD_DESTROYS => faults::hold_destroys(),
        HOLD => faults::hold(which, first),
        LET_GO => return faults::let_go(),
        SERIAL => return memory::serial(which),
        _ => {}
    }
    0
}

/// The faults of the library that was loaded, for the whole process.
#[derive(Clone, Copy, Debug)]
pub struct Control {
    entry: extern "C" fn(u32, u32, u32, c_int) -> u32,
}

/// The library that was loaded is not this fake, or none was.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotLoaded(String);

impl fmt::Display for NotLoaded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "no fake libibverbs is loaded: {}", self.0)
    }
}

impl core::error::Error for NotLoaded {}

impl Control {
    /// Returns the control of the shared object at this path, which this process has loaded already.
    ///
    /// # Errors
    /// The process has not loaded it, or it is another library.
    pub fn of(path: &Path) -> Result<Self, NotLoaded> {
        let name = CString::new(path.as_os_str().as_encoded_bytes())
            .map_err(|_| NotLoaded("a path with a NUL".to_owned()))?;
        // SAFETY: a C string; with RTLD_NOLOAD nothing is loaded and no initialiser runs (dlopen(3)).
        let library = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_NOLOAD) };
        if library.is_null() {
            return Err(NotLoaded(said()));
        }
        let symbol = c"doorbell_fake_control";
        // SAFETY: a handle just had, which is never closed, and a C string (dlsym(3)).
        let entry = unsafe { libc::dlsym(library, symbol.as_ptr()) };
        if entry.is_null() {
            return Err(NotLoaded(said()));
        }
        // SAFETY: the symbol of this name is `doorbell_fake_control` above, in a library that stays.
        let entry =
            unsafe { core::mem::transmute::<*mut c_void, extern "C" fn(u32, u32, u32, c_int) -> u32>(entry) };
        Ok(Self { entry })
    }

    /// Makes everything right again, and begins to count calls from zero.
    pub fn heal(self) {
        (self.entry)(HEAL, 0, 0, 0);
    }

    /// Makes a call fail once with this errno, after it succeeded `after` times.
    pub fn fail(self, call: Call, after: u32, errno: c_int) {
        (self.entry)(FAIL, call as u32, after, errno);
    }

    /// Has this value given from now on.
    pub fn give(self, value: Value, number: u32) {
        (self.entry)(GIVE, value as u32, number, 0);
    }

    /// Makes contexts opened from now on lack this part.
    pub fn lack(self, what: Without) {
        (self.entry)(LACK, what as u32, 0, 0);
    }

    /// Makes calls that destroy something take long, on other threads than this, until [`Control::let_go`]. On
    /// this thread they are counted and go through, since a thread that waits for itself would never end.
    pub fn hold_destroys(self) {
        (self.entry)(HOLD_DESTROYS, 0, 0, 0);
    }

    /// Has a call take long, in the same way, after it was made `after` times more.
    pub fn hold(self, call: Call, after: u32) {
        (self.entry)(HOLD, call as u32, after, 0);
    }

    /// Lets calls go on that are held. Says how many of them were made by the thread that had them held.
    pub fn let_go(self) -> u32 {
        (self.entry)(LET_GO, 0, 0, 0)
    }

    /// The serial number of the registration that has this key now; `None` if it was deregistered.
    #[must_use]
    pub fn registration(self, key: u32) -> Option<u32> {
        match (self.entry)(SERIAL, key, 0, 0) {
            0 => None,
            serial => Some(serial),
        }
    }

    /// The serial number of the newest registration, or 0. Each later one has a greater number.
    #[must_use]
    pub fn newest_registration(self) -> u32 {
        (self.entry)(SERIAL, 0, 0, 0)
    }

    /// How often a call was made since all was healed, with those that failed.
    #[must_use]
    pub fn calls(self, call: Call) -> u32 {
        (self.entry)(CALLS, call as u32, 0, 0)
    }
}

/// Last message of the loader.
fn said() -> String {
    // SAFETY: takes nothing; the text lives until the next call of this thread (dlerror(3)).
    let text: *const c_char = unsafe { libc::dlerror() };
    if text.is_null() {
        return "the loader did not say why".to_owned();
    }
    // SAFETY: a C string, as just said.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}
