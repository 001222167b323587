//! Flow steering and counters.

use core::ffi::c_int;

use crate::bindings::{
    ibv_context, ibv_counter_attach_attr, ibv_counters, ibv_counters_init_attr, ibv_flow, ibv_flow_action,
    ibv_flow_action_esp_attr, ibv_flow_attr, ibv_qp,
};
use crate::context::extended;

extended! {
    /// Steers a flow to a queue pair, see `ibv_create_flow(3)`.
    fn ibv_create_flow(qp: *mut ibv_qp, flow: *mut ibv_flow_attr) -> *mut ibv_flow
        = ibv_create_flow of [(*qp).context];
    /// Stops steering a flow, see `ibv_create_flow(3)`.
    fn ibv_destroy_flow(flow_id: *mut ibv_flow) -> c_int = ibv_destroy_flow of [(*flow_id).context];
    /// Makes an ESP action for flows, see `ibv_flow_action(3)`.
    fn ibv_create_flow_action_esp(
        ctx: *mut ibv_context, esp: *mut ibv_flow_action_esp_attr,
    ) -> *mut ibv_flow_action = create_flow_action_esp of [ctx];
    /// Changes an ESP action, see `ibv_flow_action(3)`.
    fn ibv_modify_flow_action_esp(action: *mut ibv_flow_action, esp: *mut ibv_flow_action_esp_attr) -> c_int
        = modify_flow_action_esp of [(*action).context];
    /// Releases an action, see `ibv_flow_action(3)`.
    fn ibv_destroy_flow_action(action: *mut ibv_flow_action) -> c_int
        = destroy_flow_action of [(*action).context];
    /// Makes a set of counters, see `ibv_create_counters(3)`.
    fn ibv_create_counters(
        context: *mut ibv_context, init_attr: *mut ibv_counters_init_attr,
    ) -> *mut ibv_counters = create_counters of [context];
    /// Releases a set of counters, see `ibv_create_counters(3)`.
    fn ibv_destroy_counters(counters: *mut ibv_counters) -> c_int = destroy_counters of [(*counters).context];
    /// Counts a flow, see `ibv_attach_counters_point_flow(3)`.
    fn ibv_attach_counters_point_flow(
        counters: *mut ibv_counters, attr: *mut ibv_counter_attach_attr, flow: *mut ibv_flow,
    ) -> c_int = attach_counters_point_flow of [(*counters).context];
    /// Reads counters, see `ibv_read_counters(3)`.
    fn ibv_read_counters(
        counters: *mut ibv_counters, counters_value: *mut u64, ncounters: u32, flags: u32,
    ) -> c_int = read_counters of [(*counters).context];
}
