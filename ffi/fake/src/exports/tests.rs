//! Tests that every function `rdma_sys` looks up is exported, with the signature it is called by.

use super::unsupported;

/// The table that `rdma_sys` fills in by name, filled in here by the compiler.
macro_rules! table {
    ($($name:ident),* $(; $($lacking:ident),*)?) => {
        rdma_sys::Functions {
            $($name: Some(super::$name),)*
            $($($lacking: Some(unsupported::$lacking),)*)?
        }
    };
}

#[test]
fn all_of_a_library_is_here() {
    let _compiles = table! {
        ibv_get_device_list, ibv_free_device_list, ibv_get_device_name, ibv_get_device_index,
        ibv_get_device_guid, ibv_open_device, ibv_close_device, ibv_get_async_event, ibv_ack_async_event,
        ibv_query_device, ibv_query_port, ibv_query_gid, _ibv_query_gid_ex, _ibv_query_gid_table,
        ibv_query_pkey, ibv_get_pkey_index, ibv_alloc_pd, ibv_dealloc_pd, ibv_reg_mr, ibv_reg_mr_iova,
        ibv_reg_mr_iova2, ibv_reg_dmabuf_mr, ibv_dereg_mr, ibv_create_comp_channel, ibv_destroy_comp_channel, ibv_create_cq,
        ibv_destroy_cq, ibv_get_cq_event, ibv_ack_cq_events, ibv_create_srq, ibv_modify_srq, ibv_query_srq,
        ibv_destroy_srq, ibv_create_ah, ibv_destroy_ah, ibv_create_qp, ibv_qp_to_qp_ex, ibv_modify_qp, ibv_query_qp,
        ibv_query_qp_data_in_order, ibv_destroy_qp, ibv_fork_init, ibv_is_fork_initialized,
        ibv_wc_status_str, ibv_node_type_str, ibv_port_state_str, ibv_event_type_str;
        ibv_import_device, ibv_import_pd, ibv_unimport_pd, ibv_import_mr, ibv_unimport_mr, ibv_import_dm,
        ibv_unimport_dm, ibv_rereg_mr, ibv_resize_cq, ibv_set_ece, ibv_query_ece,
        ibv_init_ah_from_wc, ibv_create_ah_from_wc, ibv_attach_mcast,
        ibv_detach_mcast, ibv_resolve_eth_l2_from_gid, ibv_rate_to_mult, mult_to_ibv_rate,
        ibv_rate_to_mbps, mbps_to_ibv_rate
    };
}
