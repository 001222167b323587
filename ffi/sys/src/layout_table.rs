// Generated with bindings.rs, from the same headers. Do not edit.
//
// Each row: the type in C ("" where C has no way to name it), in Rust, its size and alignment. Then
// for each field the C member, the Rust one and its offset. Values that differ stand in by_arch!(x86_64, aarch64).

layout! {
    "struct _ibv_device_ops" _ibv_device_ops [16, 8] {
        "_dummy1" _dummy1 0;
        "_dummy2" _dummy2 8;
    }
    "struct ib_uverbs_flow_action_esp" ib_uverbs_flow_action_esp [24, 8] {
        "spi" spi 0;
        "seq" seq 4;
        "tfc_pad" tfc_pad 8;
        "flags" flags 12;
        "hard_limit_pkts" hard_limit_pkts 16;
    }
    "struct ib_uverbs_flow_action_esp_encap" ib_uverbs_flow_action_esp_encap [24, 8] {
        "len" len 16;
        "type" type_ 18;
    }
    "struct ibv_ah" ibv_ah [24, 8] {
        "context" context 0;
        "pd" pd 8;
        "handle" handle 16;
    }
    "struct ibv_ah_attr" ibv_ah_attr [32, 8] {
        "grh" grh 0;
        "dlid" dlid 24;
        "sl" sl 26;
        "src_path_bits" src_path_bits 27;
        "static_rate" static_rate 28;
        "is_global" is_global 29;
        "port_num" port_num 30;
    }
    "struct ibv_alloc_dm_attr" ibv_alloc_dm_attr [16, 8] {
        "length" length 0;
        "log_align_req" log_align_req 8;
        "comp_mask" comp_mask 12;
    }
    "struct ibv_async_event" ibv_async_event [16, 8] {
        "element" element 0;
        "event_type" event_type 8;
    }
    "struct ibv_async_event.element" ibv_async_event_element_t [8, 8] {
        "cq" cq 0;
        "qp" qp 0;
        "srq" srq 0;
        "wq" wq 0;
        "port_num" port_num 0;
    }
    "struct ibv_comp_channel" ibv_comp_channel [16, 8] {
        "context" context 0;
        "fd" fd 8;
        "refcnt" refcnt 12;
    }
    "struct ibv_context" ibv_context [by_arch!(328, 336), 8] {
        "device" device 0;
        "ops" ops 8;
        "cmd_fd" cmd_fd 264;
        "async_fd" async_fd 268;
        "num_comp_vectors" num_comp_vectors 272;
        "mutex" mutex 280;
        "abi_compat" abi_compat by_arch!(320, 328);
    }
    "struct ibv_context_ops" ibv_context_ops [256, 8] {
        "_compat_query_device" _compat_query_device 0;
        "_compat_query_port" _compat_query_port 8;
        "_compat_alloc_pd" _compat_alloc_pd 16;
        "_compat_dealloc_pd" _compat_dealloc_pd 24;
        "_compat_reg_mr" _compat_reg_mr 32;
        "_compat_rereg_mr" _compat_rereg_mr 40;
        "_compat_dereg_mr" _compat_dereg_mr 48;
        "alloc_mw" alloc_mw 56;
        "bind_mw" bind_mw 64;
        "dealloc_mw" dealloc_mw 72;
        "_compat_create_cq" _compat_create_cq 80;
        "poll_cq" poll_cq 88;
        "req_notify_cq" req_notify_cq 96;
        "_compat_cq_event" _compat_cq_event 104;
        "_compat_resize_cq" _compat_resize_cq 112;
        "_compat_destroy_cq" _compat_destroy_cq 120;
        "_compat_create_srq" _compat_create_srq 128;
        "_compat_modify_srq" _compat_modify_srq 136;
        "_compat_query_srq" _compat_query_srq 144;
        "_compat_destroy_srq" _compat_destroy_srq 152;
        "post_srq_recv" post_srq_recv 160;
        "_compat_create_qp" _compat_create_qp 168;
        "_compat_query_qp" _compat_query_qp 176;
        "_compat_modify_qp" _compat_modify_qp 184;
        "_compat_destroy_qp" _compat_destroy_qp 192;
        "post_send" post_send 200;
        "post_recv" post_recv 208;
        "_compat_create_ah" _compat_create_ah 216;
        "_compat_destroy_ah" _compat_destroy_ah 224;
        "_compat_attach_mcast" _compat_attach_mcast 232;
        "_compat_detach_mcast" _compat_detach_mcast 240;
        "_compat_async_event" _compat_async_event 248;
    }
    "struct ibv_counter_attach_attr" ibv_counter_attach_attr [12, 4] {
        "counter_desc" counter_desc 0;
        "index" index 4;
        "comp_mask" comp_mask 8;
    }
    "struct ibv_counters" ibv_counters [8, 8] {
        "context" context 0;
    }
    "struct ibv_counters_init_attr" ibv_counters_init_attr [4, 4] {
        "comp_mask" comp_mask 0;
    }
    "struct ibv_cq" ibv_cq [by_arch!(128, 136), 8] {
        "context" context 0;
        "channel" channel 8;
        "cq_context" cq_context 16;
        "handle" handle 24;
        "cqe" cqe 28;
        "mutex" mutex 32;
        "cond" cond by_arch!(72, 80);
        "comp_events_completed" comp_events_completed by_arch!(120, 128);
        "async_events_completed" async_events_completed by_arch!(124, 132);
    }
    "struct ibv_cq_ex" ibv_cq_ex [by_arch!(288, 296), 8] {
        "context" context 0;
        "channel" channel 8;
        "cq_context" cq_context 16;
        "handle" handle 24;
        "cqe" cqe 28;
        "mutex" mutex 32;
        "cond" cond by_arch!(72, 80);
        "comp_events_completed" comp_events_completed by_arch!(120, 128);
        "async_events_completed" async_events_completed by_arch!(124, 132);
        "comp_mask" comp_mask by_arch!(128, 136);
        "status" status by_arch!(132, 140);
        "wr_id" wr_id by_arch!(136, 144);
        "start_poll" start_poll by_arch!(144, 152);
        "next_poll" next_poll by_arch!(152, 160);
        "end_poll" end_poll by_arch!(160, 168);
        "read_opcode" read_opcode by_arch!(168, 176);
        "read_vendor_err" read_vendor_err by_arch!(176, 184);
        "read_byte_len" read_byte_len by_arch!(184, 192);
        "read_imm_data" read_imm_data by_arch!(192, 200);
        "read_qp_num" read_qp_num by_arch!(200, 208);
        "read_src_qp" read_src_qp by_arch!(208, 216);
        "read_wc_flags" read_wc_flags by_arch!(216, 224);
        "read_slid" read_slid by_arch!(224, 232);
        "read_sl" read_sl by_arch!(232, 240);
        "read_dlid_path_bits" read_dlid_path_bits by_arch!(240, 248);
        "read_completion_ts" read_completion_ts by_arch!(248, 256);
        "read_cvlan" read_cvlan by_arch!(256, 264);
        "read_flow_tag" read_flow_tag by_arch!(264, 272);
        "read_tm_info" read_tm_info by_arch!(272, 280);
        "read_completion_wallclock_ns" read_completion_wallclock_ns by_arch!(280, 288);
    }
    "struct ibv_cq_init_attr_ex" ibv_cq_init_attr_ex [56, 8] {
        "cqe" cqe 0;
        "cq_context" cq_context 8;
        "channel" channel 16;
        "comp_vector" comp_vector 24;
        "wc_flags" wc_flags 32;
        "comp_mask" comp_mask 40;
        "flags" flags 44;
        "parent_domain" parent_domain 48;
    }
    "struct ibv_cq_moderation_caps" ibv_cq_moderation_caps [4, 2] {
        "max_cq_count" max_cq_count 0;
        "max_cq_period" max_cq_period 2;
    }
    "struct ibv_data_buf" ibv_data_buf [16, 8] {
        "addr" addr 0;
        "length" length 8;
    }
    "struct ibv_device" ibv_device [664, 8] {
        "_ops" _ops 0;
        "node_type" node_type 16;
        "transport_type" transport_type 20;
        "name" name 24;
        "dev_name" dev_name 88;
        "dev_path" dev_path 152;
        "ibdev_path" ibdev_path 408;
    }
    "struct ibv_device_attr" ibv_device_attr [232, 8] {
        "fw_ver" fw_ver 0;
        "node_guid" node_guid 64;
        "sys_image_guid" sys_image_guid 72;
        "max_mr_size" max_mr_size 80;
        "page_size_cap" page_size_cap 88;
        "vendor_id" vendor_id 96;
        "vendor_part_id" vendor_part_id 100;
        "hw_ver" hw_ver 104;
        "max_qp" max_qp 108;
        "max_qp_wr" max_qp_wr 112;
        "device_cap_flags" device_cap_flags 116;
        "max_sge" max_sge 120;
        "max_sge_rd" max_sge_rd 124;
        "max_cq" max_cq 128;
        "max_cqe" max_cqe 132;
        "max_mr" max_mr 136;
        "max_pd" max_pd 140;
        "max_qp_rd_atom" max_qp_rd_atom 144;
        "max_ee_rd_atom" max_ee_rd_atom 148;
        "max_res_rd_atom" max_res_rd_atom 152;
        "max_qp_init_rd_atom" max_qp_init_rd_atom 156;
        "max_ee_init_rd_atom" max_ee_init_rd_atom 160;
        "atomic_cap" atomic_cap 164;
        "max_ee" max_ee 168;
        "max_rdd" max_rdd 172;
        "max_mw" max_mw 176;
        "max_raw_ipv6_qp" max_raw_ipv6_qp 180;
        "max_raw_ethy_qp" max_raw_ethy_qp 184;
        "max_mcast_grp" max_mcast_grp 188;
        "max_mcast_qp_attach" max_mcast_qp_attach 192;
        "max_total_mcast_qp_attach" max_total_mcast_qp_attach 196;
        "max_ah" max_ah 200;
        "max_fmr" max_fmr 204;
        "max_map_per_fmr" max_map_per_fmr 208;
        "max_srq" max_srq 212;
        "max_srq_wr" max_srq_wr 216;
        "max_srq_sge" max_srq_sge 220;
        "max_pkeys" max_pkeys 224;
        "local_ca_ack_delay" local_ca_ack_delay 226;
        "phys_port_cnt" phys_port_cnt 227;
    }
    "struct ibv_device_attr_ex" ibv_device_attr_ex [400, 8] {
        "orig_attr" orig_attr 0;
        "comp_mask" comp_mask 232;
        "odp_caps" odp_caps 240;
        "completion_timestamp_mask" completion_timestamp_mask 264;
        "hca_core_clock" hca_core_clock 272;
        "device_cap_flags_ex" device_cap_flags_ex 280;
        "tso_caps" tso_caps 288;
        "rss_caps" rss_caps 296;
        "max_wq_type_rq" max_wq_type_rq 328;
        "packet_pacing_caps" packet_pacing_caps 332;
        "raw_packet_caps" raw_packet_caps 344;
        "tm_caps" tm_caps 348;
        "cq_mod_caps" cq_mod_caps 368;
        "max_dm_size" max_dm_size 376;
        "pci_atomic_caps" pci_atomic_caps 384;
        "xrc_odp_caps" xrc_odp_caps 392;
        "phys_port_cnt_ex" phys_port_cnt_ex 396;
    }
    "struct ibv_dm" ibv_dm [32, 8] {
        "context" context 0;
        "memcpy_to_dm" memcpy_to_dm 8;
        "memcpy_from_dm" memcpy_from_dm 16;
        "comp_mask" comp_mask 24;
        "handle" handle 28;
    }
    "struct ibv_ece" ibv_ece [12, 4] {
        "vendor_id" vendor_id 0;
        "options" options 4;
        "comp_mask" comp_mask 8;
    }
    "struct ibv_flow" ibv_flow [24, 8] {
        "comp_mask" comp_mask 0;
        "context" context 8;
        "handle" handle 16;
    }
    "struct ibv_flow_action" ibv_flow_action [8, 8] {
        "context" context 0;
    }
    "struct ibv_flow_action_esp_attr" ibv_flow_action_esp_attr [56, 8] {
        "esp_attr" esp_attr 0;
        "keymat_proto" keymat_proto 8;
        "keymat_len" keymat_len 12;
        "keymat_ptr" keymat_ptr 16;
        "replay_proto" replay_proto 24;
        "replay_len" replay_len 28;
        "replay_ptr" replay_ptr 32;
        "esp_encap" esp_encap 40;
        "comp_mask" comp_mask 48;
        "esn" esn 52;
    }
    "struct ibv_flow_attr" ibv_flow_attr [20, 4] {
        "comp_mask" comp_mask 0;
        "type" type_ 4;
        "size" size 8;
        "priority" priority 10;
        "num_of_specs" num_of_specs 12;
        "port" port 13;
        "flags" flags 16;
    }
    "struct ibv_flow_esp_filter" ibv_flow_esp_filter [8, 4] {
        "spi" spi 0;
        "seq" seq 4;
    }
    "struct ibv_flow_eth_filter" ibv_flow_eth_filter [16, 2] {
        "dst_mac" dst_mac 0;
        "src_mac" src_mac 6;
        "ether_type" ether_type 12;
        "vlan_tag" vlan_tag 14;
    }
    "struct ibv_flow_gre_filter" ibv_flow_gre_filter [8, 4] {
        "c_ks_res0_ver" c_ks_res0_ver 0;
        "protocol" protocol 2;
        "key" key 4;
    }
    "struct ibv_flow_ipv4_ext_filter" ibv_flow_ipv4_ext_filter [12, 4] {
        "src_ip" src_ip 0;
        "dst_ip" dst_ip 4;
        "proto" proto 8;
        "tos" tos 9;
        "ttl" ttl 10;
        "flags" flags 11;
    }
    "struct ibv_flow_ipv4_filter" ibv_flow_ipv4_filter [8, 4] {
        "src_ip" src_ip 0;
        "dst_ip" dst_ip 4;
    }
    "struct ibv_flow_ipv6_filter" ibv_flow_ipv6_filter [40, 4] {
        "src_ip" src_ip 0;
        "dst_ip" dst_ip 16;
        "flow_label" flow_label 32;
        "next_hdr" next_hdr 36;
        "traffic_class" traffic_class 37;
        "hop_limit" hop_limit 38;
    }
    "struct ibv_flow_mpls_filter" ibv_flow_mpls_filter [4, 4] {
        "label" label 0;
    }
    "struct ibv_flow_spec" ibv_flow_spec [88, 8] {
        "hdr" ibv_flow_spec_union 0;
    }
    "" ibv_flow_spec_union_t [88, 8] {
        "hdr" hdr 0;
        "eth" eth 0;
        "ipv4" ipv4 0;
        "tcp_udp" tcp_udp 0;
        "ipv4_ext" ipv4_ext 0;
        "ipv6" ipv6 0;
        "esp" esp 0;
        "tunnel" tunnel 0;
        "gre" gre 0;
        "mpls" mpls 0;
        "flow_tag" flow_tag 0;
        "drop" drop 0;
        "handle" handle 0;
        "flow_count" flow_count 0;
    }
    "struct ibv_flow_spec.hdr" hdr_t [8, 4] {
        "type" type_ 0;
        "size" size 4;
    }
    "struct ibv_flow_spec_action_drop" ibv_flow_spec_action_drop [8, 4] {
        "type" type_ 0;
        "size" size 4;
    }
    "struct ibv_flow_spec_action_handle" ibv_flow_spec_action_handle [16, 8] {
        "type" type_ 0;
        "size" size 4;
        "action" action 8;
    }
    "struct ibv_flow_spec_action_tag" ibv_flow_spec_action_tag [12, 4] {
        "type" type_ 0;
        "size" size 4;
        "tag_id" tag_id 8;
    }
    "struct ibv_flow_spec_counter_action" ibv_flow_spec_counter_action [16, 8] {
        "type" type_ 0;
        "size" size 4;
        "counters" counters 8;
    }
    "struct ibv_flow_spec_esp" ibv_flow_spec_esp [24, 4] {
        "type" type_ 0;
        "size" size 4;
        "val" val 8;
        "mask" mask 16;
    }
    "struct ibv_flow_spec_eth" ibv_flow_spec_eth [40, 4] {
        "type" type_ 0;
        "size" size 4;
        "val" val 6;
        "mask" mask 22;
    }
    "struct ibv_flow_spec_gre" ibv_flow_spec_gre [24, 4] {
        "type" type_ 0;
        "size" size 4;
        "val" val 8;
        "mask" mask 16;
    }
    "struct ibv_flow_spec_ipv4" ibv_flow_spec_ipv4 [24, 4] {
        "type" type_ 0;
        "size" size 4;
        "val" val 8;
        "mask" mask 16;
    }
    "struct ibv_flow_spec_ipv4_ext" ibv_flow_spec_ipv4_ext [32, 4] {
        "type" type_ 0;
        "size" size 4;
        "val" val 8;
        "mask" mask 20;
    }
    "struct ibv_flow_spec_ipv6" ibv_flow_spec_ipv6 [88, 4] {
        "type" type_ 0;
        "size" size 4;
        "val" val 8;
        "mask" mask 48;
    }
    "struct ibv_flow_spec_mpls" ibv_flow_spec_mpls [16, 4] {
        "type" type_ 0;
        "size" size 4;
        "val" val 8;
        "mask" mask 12;
    }
    "struct ibv_flow_spec_tcp_udp" ibv_flow_spec_tcp_udp [16, 4] {
        "type" type_ 0;
        "size" size 4;
        "val" val 6;
        "mask" mask 10;
    }
    "struct ibv_flow_spec_tunnel" ibv_flow_spec_tunnel [16, 4] {
        "type" type_ 0;
        "size" size 4;
        "val" val 8;
        "mask" mask 12;
    }
    "struct ibv_flow_tcp_udp_filter" ibv_flow_tcp_udp_filter [4, 2] {
        "dst_port" dst_port 0;
        "src_port" src_port 2;
    }
    "struct ibv_flow_tunnel_filter" ibv_flow_tunnel_filter [4, 4] {
        "tunnel_id" tunnel_id 0;
    }
    "union ibv_gid" ibv_gid [16, 8] {
        "raw" raw 0;
        "global" global 0;
    }
    "union ibv_gid.global" ibv_gid_global_t [16, 8] {
        "subnet_prefix" subnet_prefix 0;
        "interface_id" interface_id 8;
    }
    "struct ibv_gid_entry" ibv_gid_entry [32, 8] {
        "gid" gid 0;
        "gid_index" gid_index 16;
        "port_num" port_num 20;
        "gid_type" gid_type 24;
        "ndev_ifindex" ndev_ifindex 28;
    }
    "struct ibv_global_route" ibv_global_route [24, 8] {
        "dgid" dgid 0;
        "flow_label" flow_label 16;
        "sgid_index" sgid_index 20;
        "hop_limit" hop_limit 21;
        "traffic_class" traffic_class 22;
    }
    "struct ibv_grh" ibv_grh [40, 8] {
        "version_tclass_flow" version_tclass_flow 0;
        "paylen" paylen 4;
        "next_hdr" next_hdr 6;
        "hop_limit" hop_limit 7;
        "sgid" sgid 8;
        "dgid" dgid 24;
    }
    "struct ibv_moderate_cq" ibv_moderate_cq [4, 2] {
        "cq_count" cq_count 0;
        "cq_period" cq_period 2;
    }
    "struct ibv_modify_cq_attr" ibv_modify_cq_attr [8, 4] {
        "attr_mask" attr_mask 0;
        "moderate" moderate 4;
    }
    "struct ibv_mr" ibv_mr [48, 8] {
        "context" context 0;
        "pd" pd 8;
        "addr" addr 16;
        "length" length 24;
        "handle" handle 32;
        "lkey" lkey 36;
        "rkey" rkey 40;
    }
    "struct ibv_mw" ibv_mw [32, 8] {
        "context" context 0;
        "pd" pd 8;
        "rkey" rkey 16;
        "handle" handle 20;
        "type" type_ 24;
    }
    "struct ibv_mw_bind" ibv_mw_bind [48, 8] {
        "wr_id" wr_id 0;
        "send_flags" send_flags 8;
        "bind_info" bind_info 16;
    }
    "struct ibv_mw_bind_info" ibv_mw_bind_info [32, 8] {
        "mr" mr 0;
        "addr" addr 8;
        "length" length 16;
        "mw_access_flags" mw_access_flags 24;
    }
    "struct ibv_odp_caps" ibv_odp_caps [24, 8] {
        "general_caps" general_caps 0;
        "per_transport_caps" per_transport_caps 8;
    }
    "struct ibv_odp_caps.per_transport_caps" ibv_odp_caps__bindgen_ty_1 [12, 4] {
        "rc_odp_caps" rc_odp_caps 0;
        "uc_odp_caps" uc_odp_caps 4;
        "ud_odp_caps" ud_odp_caps 8;
    }
    "struct ibv_ops_wr" ibv_ops_wr [72, 8] {
        "wr_id" wr_id 0;
        "next" next 8;
        "opcode" opcode 16;
        "flags" flags 20;
        "tm" tm 24;
    }
    "struct ibv_ops_wr.tm" tm_t [48, 8] {
        "unexpected_cnt" unexpected_cnt 0;
        "handle" handle 4;
        "add" add 8;
    }
    "struct ibv_ops_wr.tm.add" add_t [40, 8] {
        "recv_wr_id" recv_wr_id 0;
        "sg_list" sg_list 8;
        "num_sge" num_sge 16;
        "tag" tag 24;
        "mask" mask 32;
    }
    "struct ibv_packet_pacing_caps" ibv_packet_pacing_caps [12, 4] {
        "qp_rate_limit_min" qp_rate_limit_min 0;
        "qp_rate_limit_max" qp_rate_limit_max 4;
        "supported_qpts" supported_qpts 8;
    }
    "struct ibv_parent_domain_init_attr" ibv_parent_domain_init_attr [48, 8] {
        "pd" pd 0;
        "td" td 8;
        "comp_mask" comp_mask 16;
        "alloc" alloc 24;
        "free" free 32;
        "pd_context" pd_context 40;
    }
    "struct ibv_pci_atomic_caps" ibv_pci_atomic_caps [6, 2] {
        "fetch_add" fetch_add 0;
        "swap" swap 2;
        "compare_swap" compare_swap 4;
    }
    "struct ibv_pd" ibv_pd [16, 8] {
        "context" context 0;
        "handle" handle 8;
    }
    "struct ibv_poll_cq_attr" ibv_poll_cq_attr [4, 4] {
        "comp_mask" comp_mask 0;
    }
    "struct ibv_port_attr" ibv_port_attr [52, 4] {
        "state" state 0;
        "max_mtu" max_mtu 4;
        "active_mtu" active_mtu 8;
        "gid_tbl_len" gid_tbl_len 12;
        "port_cap_flags" port_cap_flags 16;
        "max_msg_sz" max_msg_sz 20;
        "bad_pkey_cntr" bad_pkey_cntr 24;
        "qkey_viol_cntr" qkey_viol_cntr 28;
        "pkey_tbl_len" pkey_tbl_len 32;
        "lid" lid 34;
        "sm_lid" sm_lid 36;
        "lmc" lmc 38;
        "max_vl_num" max_vl_num 39;
        "sm_sl" sm_sl 40;
        "subnet_timeout" subnet_timeout 41;
        "init_type_reply" init_type_reply 42;
        "active_width" active_width 43;
        "active_speed" active_speed 44;
        "phys_state" phys_state 45;
        "link_layer" link_layer 46;
        "flags" flags 47;
        "port_cap_flags2" port_cap_flags2 48;
    }
    "struct ibv_qp" ibv_qp [by_arch!(160, 168), 8] {
        "context" context 0;
        "qp_context" qp_context 8;
        "pd" pd 16;
        "send_cq" send_cq 24;
        "recv_cq" recv_cq 32;
        "srq" srq 40;
        "handle" handle 48;
        "qp_num" qp_num 52;
        "state" state 56;
        "qp_type" qp_type 60;
        "mutex" mutex 64;
        "cond" cond by_arch!(104, 112);
        "events_completed" events_completed by_arch!(152, 160);
    }
    "struct ibv_qp_attr" ibv_qp_attr [144, 8] {
        "qp_state" qp_state 0;
        "cur_qp_state" cur_qp_state 4;
        "path_mtu" path_mtu 8;
        "path_mig_state" path_mig_state 12;
        "qkey" qkey 16;
        "rq_psn" rq_psn 20;
        "sq_psn" sq_psn 24;
        "dest_qp_num" dest_qp_num 28;
        "qp_access_flags" qp_access_flags 32;
        "cap" cap 36;
        "ah_attr" ah_attr 56;
        "alt_ah_attr" alt_ah_attr 88;
        "pkey_index" pkey_index 120;
        "alt_pkey_index" alt_pkey_index 122;
        "en_sqd_async_notify" en_sqd_async_notify 124;
        "sq_draining" sq_draining 125;
        "max_rd_atomic" max_rd_atomic 126;
        "max_dest_rd_atomic" max_dest_rd_atomic 127;
        "min_rnr_timer" min_rnr_timer 128;
        "port_num" port_num 129;
        "timeout" timeout 130;
        "retry_cnt" retry_cnt 131;
        "rnr_retry" rnr_retry 132;
        "alt_port_num" alt_port_num 133;
        "alt_timeout" alt_timeout 134;
        "rate_limit" rate_limit 136;
    }
    "struct ibv_qp_cap" ibv_qp_cap [20, 4] {
        "max_send_wr" max_send_wr 0;
        "max_recv_wr" max_recv_wr 4;
        "max_send_sge" max_send_sge 8;
        "max_recv_sge" max_recv_sge 12;
        "max_inline_data" max_inline_data 16;
    }
    "struct ibv_qp_ex" ibv_qp_ex [by_arch!(352, 360), 8] {
        "qp_base" qp_base 0;
        "comp_mask" comp_mask by_arch!(160, 168);
        "wr_id" wr_id by_arch!(168, 176);
        "wr_flags" wr_flags by_arch!(176, 184);
        "wr_atomic_cmp_swp" wr_atomic_cmp_swp by_arch!(184, 192);
        "wr_atomic_fetch_add" wr_atomic_fetch_add by_arch!(192, 200);
        "wr_bind_mw" wr_bind_mw by_arch!(200, 208);
        "wr_local_inv" wr_local_inv by_arch!(208, 216);
        "wr_rdma_read" wr_rdma_read by_arch!(216, 224);
        "wr_rdma_write" wr_rdma_write by_arch!(224, 232);
        "wr_rdma_write_imm" wr_rdma_write_imm by_arch!(232, 240);
        "wr_send" wr_send by_arch!(240, 248);
        "wr_send_imm" wr_send_imm by_arch!(248, 256);
        "wr_send_inv" wr_send_inv by_arch!(256, 264);
        "wr_send_tso" wr_send_tso by_arch!(264, 272);
        "wr_set_ud_addr" wr_set_ud_addr by_arch!(272, 280);
        "wr_set_xrc_srqn" wr_set_xrc_srqn by_arch!(280, 288);
        "wr_set_inline_data" wr_set_inline_data by_arch!(288, 296);
        "wr_set_inline_data_list" wr_set_inline_data_list by_arch!(296, 304);
        "wr_set_sge" wr_set_sge by_arch!(304, 312);
        "wr_set_sge_list" wr_set_sge_list by_arch!(312, 320);
        "wr_start" wr_start by_arch!(320, 328);
        "wr_complete" wr_complete by_arch!(328, 336);
        "wr_abort" wr_abort by_arch!(336, 344);
        "wr_atomic_write" wr_atomic_write by_arch!(344, 352);
    }
    "struct ibv_qp_init_attr" ibv_qp_init_attr [64, 8] {
        "qp_context" qp_context 0;
        "send_cq" send_cq 8;
        "recv_cq" recv_cq 16;
        "srq" srq 24;
        "cap" cap 32;
        "qp_type" qp_type 52;
        "sq_sig_all" sq_sig_all 56;
    }
    "struct ibv_qp_init_attr_ex" ibv_qp_init_attr_ex [136, 8] {
        "qp_context" qp_context 0;
        "send_cq" send_cq 8;
        "recv_cq" recv_cq 16;
        "srq" srq 24;
        "cap" cap 32;
        "qp_type" qp_type 52;
        "sq_sig_all" sq_sig_all 56;
        "comp_mask" comp_mask 60;
        "pd" pd 64;
        "xrcd" xrcd 72;
        "create_flags" create_flags 80;
        "max_tso_header" max_tso_header 84;
        "rwq_ind_tbl" rwq_ind_tbl 88;
        "rx_hash_conf" rx_hash_conf 96;
        "source_qpn" source_qpn 120;
        "send_ops_flags" send_ops_flags 128;
    }
    "struct ibv_qp_open_attr" ibv_qp_open_attr [32, 8] {
        "comp_mask" comp_mask 0;
        "qp_num" qp_num 4;
        "xrcd" xrcd 8;
        "qp_context" qp_context 16;
        "qp_type" qp_type 24;
    }
    "struct ibv_qp_rate_limit_attr" ibv_qp_rate_limit_attr [16, 4] {
        "rate_limit" rate_limit 0;
        "max_burst_sz" max_burst_sz 4;
        "typical_pkt_sz" typical_pkt_sz 8;
        "comp_mask" comp_mask 12;
    }
    "struct ibv_query_device_ex_input" ibv_query_device_ex_input [4, 4] {
        "comp_mask" comp_mask 0;
    }
    "struct ibv_recv_wr" ibv_recv_wr [32, 8] {
        "wr_id" wr_id 0;
        "next" next 8;
        "sg_list" sg_list 16;
        "num_sge" num_sge 24;
    }
    "struct ibv_rss_caps" ibv_rss_caps [32, 8] {
        "supported_qpts" supported_qpts 0;
        "max_rwq_indirection_tables" max_rwq_indirection_tables 4;
        "max_rwq_indirection_table_size" max_rwq_indirection_table_size 8;
        "rx_hash_fields_mask" rx_hash_fields_mask 16;
        "rx_hash_function" rx_hash_function 24;
    }
    "struct ibv_rwq_ind_table" ibv_rwq_ind_table [24, 8] {
        "context" context 0;
        "ind_tbl_handle" ind_tbl_handle 8;
        "ind_tbl_num" ind_tbl_num 12;
        "comp_mask" comp_mask 16;
    }
    "struct ibv_rwq_ind_table_init_attr" ibv_rwq_ind_table_init_attr [24, 8] {
        "log_ind_tbl_size" log_ind_tbl_size 0;
        "ind_tbl" ind_tbl 8;
        "comp_mask" comp_mask 16;
    }
    "struct ibv_rx_hash_conf" ibv_rx_hash_conf [24, 8] {
        "rx_hash_function" rx_hash_function 0;
        "rx_hash_key_len" rx_hash_key_len 1;
        "rx_hash_key" rx_hash_key 8;
        "rx_hash_fields_mask" rx_hash_fields_mask 16;
    }
    "struct ibv_send_wr" ibv_send_wr [128, 8] {
        "wr_id" wr_id 0;
        "next" next 8;
        "sg_list" sg_list 16;
        "num_sge" num_sge 24;
        "opcode" opcode 28;
        "send_flags" send_flags 32;
        "wr" wr 40;
        "qp_type" qp_type 72;
        "imm_data" imm_data_invalidated_rkey_union 36;
        "bind_mw" bind_mw_tso_union 80;
    }
    "struct ibv_send_wr.wr" wr_t [32, 8] {
        "rdma" rdma 0;
        "atomic" atomic 0;
        "ud" ud 0;
    }
    "struct ibv_send_wr.wr.rdma" rdma_t [16, 8] {
        "remote_addr" remote_addr 0;
        "rkey" rkey 8;
    }
    "struct ibv_send_wr.wr.atomic" atomic_t [32, 8] {
        "remote_addr" remote_addr 0;
        "compare_add" compare_add 8;
        "swap" swap 16;
        "rkey" rkey 24;
    }
    "struct ibv_send_wr.wr.ud" ud_t [16, 8] {
        "ah" ah 0;
        "remote_qpn" remote_qpn 8;
        "remote_qkey" remote_qkey 12;
    }
    "struct ibv_send_wr.qp_type" qp_type_t [4, 4] {
        "xrc" xrc 0;
    }
    "struct ibv_send_wr.qp_type.xrc" xrc_t [4, 4] {
        "remote_srqn" remote_srqn 0;
    }
    "" bind_mw_tso_union_t [48, 8] {
        "bind_mw" bind_mw 0;
        "tso" tso 0;
    }
    "struct ibv_send_wr.bind_mw" bind_mw_t [48, 8] {
        "mw" mw 0;
        "rkey" rkey 8;
        "bind_info" bind_info 16;
    }
    "struct ibv_send_wr.tso" tso_t [16, 8] {
        "hdr" hdr 0;
        "hdr_sz" hdr_sz 8;
        "mss" mss 10;
    }
    "struct ibv_sge" ibv_sge [16, 8] {
        "addr" addr 0;
        "length" length 8;
        "lkey" lkey 12;
    }
    "struct ibv_srq" ibv_srq [by_arch!(128, 136), 8] {
        "context" context 0;
        "srq_context" srq_context 8;
        "pd" pd 16;
        "handle" handle 24;
        "mutex" mutex 32;
        "cond" cond by_arch!(72, 80);
        "events_completed" events_completed by_arch!(120, 128);
    }
    "struct ibv_srq_attr" ibv_srq_attr [12, 4] {
        "max_wr" max_wr 0;
        "max_sge" max_sge 4;
        "srq_limit" srq_limit 8;
    }
    "struct ibv_srq_init_attr" ibv_srq_init_attr [24, 8] {
        "srq_context" srq_context 0;
        "attr" attr 8;
    }
    "struct ibv_srq_init_attr_ex" ibv_srq_init_attr_ex [64, 8] {
        "srq_context" srq_context 0;
        "attr" attr 8;
        "comp_mask" comp_mask 20;
        "srq_type" srq_type 24;
        "pd" pd 32;
        "xrcd" xrcd 40;
        "cq" cq 48;
        "tm_cap" tm_cap 56;
    }
    "struct ibv_td" ibv_td [8, 8] {
        "context" context 0;
    }
    "struct ibv_td_init_attr" ibv_td_init_attr [4, 4] {
        "comp_mask" comp_mask 0;
    }
    "struct ibv_tm_cap" ibv_tm_cap [8, 4] {
        "max_num_tags" max_num_tags 0;
        "max_ops" max_ops 4;
    }
    "struct ibv_tm_caps" ibv_tm_caps [20, 4] {
        "max_rndv_hdr_size" max_rndv_hdr_size 0;
        "max_num_tags" max_num_tags 4;
        "flags" flags 8;
        "max_ops" max_ops 12;
        "max_sge" max_sge 16;
    }
    "struct ibv_tso_caps" ibv_tso_caps [8, 4] {
        "max_tso" max_tso 0;
        "supported_qpts" supported_qpts 4;
    }
    "struct ibv_values_ex" ibv_values_ex [24, 8] {
        "comp_mask" comp_mask 0;
        "raw_clock" raw_clock 8;
    }
    "struct ibv_wc" ibv_wc [48, 8] {
        "wr_id" wr_id 0;
        "status" status 8;
        "opcode" opcode 12;
        "vendor_err" vendor_err 16;
        "byte_len" byte_len 20;
        "qp_num" qp_num 28;
        "src_qp" src_qp 32;
        "wc_flags" wc_flags 36;
        "pkey_index" pkey_index 40;
        "slid" slid 42;
        "sl" sl 44;
        "dlid_path_bits" dlid_path_bits 45;
        "imm_data" imm_data_invalidated_rkey_union 24;
    }
    "" imm_data_invalidated_rkey_union_t [4, 4] {
        "imm_data" imm_data 0;
        "invalidated_rkey" invalidated_rkey 0;
    }
    "struct ibv_wc_tm_info" ibv_wc_tm_info [16, 8] {
        "tag" tag 0;
        "priv" priv_ 8;
    }
    "struct ibv_wq" ibv_wq [by_arch!(152, 160), 8] {
        "context" context 0;
        "wq_context" wq_context 8;
        "pd" pd 16;
        "cq" cq 24;
        "wq_num" wq_num 32;
        "handle" handle 36;
        "state" state 40;
        "wq_type" wq_type 44;
        "post_recv" post_recv 48;
        "mutex" mutex 56;
        "cond" cond by_arch!(96, 104);
        "events_completed" events_completed by_arch!(144, 152);
        "comp_mask" comp_mask by_arch!(148, 156);
    }
    "struct ibv_wq_attr" ibv_wq_attr [20, 4] {
        "attr_mask" attr_mask 0;
        "wq_state" wq_state 4;
        "curr_wq_state" curr_wq_state 8;
        "flags" flags 12;
        "flags_mask" flags_mask 16;
    }
    "struct ibv_wq_init_attr" ibv_wq_init_attr [48, 8] {
        "wq_context" wq_context 0;
        "wq_type" wq_type 8;
        "max_wr" max_wr 12;
        "max_sge" max_sge 16;
        "pd" pd 24;
        "cq" cq 32;
        "comp_mask" comp_mask 40;
        "create_flags" create_flags 44;
    }
    "struct ibv_xrcd" ibv_xrcd [8, 8] {
        "context" context 0;
    }
    "struct ibv_xrcd_init_attr" ibv_xrcd_init_attr [12, 4] {
        "comp_mask" comp_mask 0;
        "fd" fd 4;
        "oflags" oflags 8;
    }
    "struct verbs_context" verbs_context [by_arch!(648, 656), 8] {
        "query_port" query_port 0;
        "advise_mr" advise_mr 8;
        "alloc_null_mr" alloc_null_mr 16;
        "read_counters" read_counters 24;
        "attach_counters_point_flow" attach_counters_point_flow 32;
        "create_counters" create_counters 40;
        "destroy_counters" destroy_counters 48;
        "reg_dm_mr" reg_dm_mr 56;
        "alloc_dm" alloc_dm 64;
        "free_dm" free_dm 72;
        "modify_flow_action_esp" modify_flow_action_esp 80;
        "destroy_flow_action" destroy_flow_action 88;
        "create_flow_action_esp" create_flow_action_esp 96;
        "modify_qp_rate_limit" modify_qp_rate_limit 104;
        "alloc_parent_domain" alloc_parent_domain 112;
        "dealloc_td" dealloc_td 120;
        "alloc_td" alloc_td 128;
        "modify_cq" modify_cq 136;
        "post_srq_ops" post_srq_ops 144;
        "destroy_rwq_ind_table" destroy_rwq_ind_table 152;
        "create_rwq_ind_table" create_rwq_ind_table 160;
        "destroy_wq" destroy_wq 168;
        "modify_wq" modify_wq 176;
        "create_wq" create_wq 184;
        "query_rt_values" query_rt_values 192;
        "create_cq_ex" create_cq_ex 200;
        "priv" priv_ 208;
        "query_device_ex" query_device_ex 216;
        "ibv_destroy_flow" ibv_destroy_flow 224;
        "ABI_placeholder2" ABI_placeholder2 232;
        "ibv_create_flow" ibv_create_flow 240;
        "ABI_placeholder1" ABI_placeholder1 248;
        "open_qp" open_qp 256;
        "create_qp_ex" create_qp_ex 264;
        "get_srq_num" get_srq_num 272;
        "create_srq_ex" create_srq_ex 280;
        "open_xrcd" open_xrcd 288;
        "close_xrcd" close_xrcd 296;
        "_ABI_placeholder3" _ABI_placeholder3 304;
        "sz" sz 312;
        "context" context 320;
    }
}

constants! {
    global {
        IB_UVERBS_FLOW_ACTION_ESP_KEYMAT_AES_GCM = 0;
        IB_UVERBS_FLOW_ACTION_ESP_REPLAY_NONE = 0;
        IB_UVERBS_FLOW_ACTION_ESP_REPLAY_BMP = 1;
        IBV_GID_TYPE_IB = 0;
        IBV_GID_TYPE_ROCE_V1 = 1;
        IBV_GID_TYPE_ROCE_V2 = 2;
        IBV_FORK_DISABLED = 0;
        IBV_FORK_ENABLED = 1;
        IBV_FORK_UNNEEDED = 2;
        IBV_DM_MASK_HANDLE = 1;
    }
    ib_uverbs_access_flags {
        IB_UVERBS_ACCESS_LOCAL_WRITE = 1;
        IB_UVERBS_ACCESS_REMOTE_WRITE = 2;
        IB_UVERBS_ACCESS_REMOTE_READ = 4;
        IB_UVERBS_ACCESS_REMOTE_ATOMIC = 8;
        IB_UVERBS_ACCESS_MW_BIND = 16;
        IB_UVERBS_ACCESS_ZERO_BASED = 32;
        IB_UVERBS_ACCESS_ON_DEMAND = 64;
        IB_UVERBS_ACCESS_HUGETLB = 128;
        IB_UVERBS_ACCESS_RELAXED_ORDERING = 1048576;
        IB_UVERBS_ACCESS_OPTIONAL_RANGE = 1072693248;
    }
    ib_uverbs_advise_mr_advice {
        IB_UVERBS_ADVISE_MR_ADVICE_PREFETCH = 0;
        IB_UVERBS_ADVISE_MR_ADVICE_PREFETCH_WRITE = 1;
        IB_UVERBS_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT = 2;
    }
    ibv_access_flags {
        IBV_ACCESS_LOCAL_WRITE = 1;
        IBV_ACCESS_REMOTE_WRITE = 2;
        IBV_ACCESS_REMOTE_READ = 4;
        IBV_ACCESS_REMOTE_ATOMIC = 8;
        IBV_ACCESS_MW_BIND = 16;
        IBV_ACCESS_ZERO_BASED = 32;
        IBV_ACCESS_ON_DEMAND = 64;
        IBV_ACCESS_HUGETLB = 128;
        IBV_ACCESS_RELAXED_ORDERING = 1048576;
    }
    ibv_atomic_cap {
        IBV_ATOMIC_NONE = 0;
        IBV_ATOMIC_HCA = 1;
        IBV_ATOMIC_GLOB = 2;
    }
    ibv_counter_description {
        IBV_COUNTER_PACKETS = 0;
        IBV_COUNTER_BYTES = 1;
    }
    ibv_cq_attr_mask {
        IBV_CQ_ATTR_MODERATE = 1;
        IBV_CQ_ATTR_RESERVED = 2;
    }
    ibv_cq_init_attr_mask {
        IBV_CQ_INIT_ATTR_MASK_FLAGS = 1;
        IBV_CQ_INIT_ATTR_MASK_PD = 2;
    }
    ibv_create_cq_attr_flags {
        IBV_CREATE_CQ_ATTR_SINGLE_THREADED = 1;
        IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN = 2;
    }
    ibv_create_cq_wc_flags {
        IBV_WC_EX_WITH_BYTE_LEN = 1;
        IBV_WC_EX_WITH_IMM = 2;
        IBV_WC_EX_WITH_QP_NUM = 4;
        IBV_WC_EX_WITH_SRC_QP = 8;
        IBV_WC_EX_WITH_SLID = 16;
        IBV_WC_EX_WITH_SL = 32;
        IBV_WC_EX_WITH_DLID_PATH_BITS = 64;
        IBV_WC_EX_WITH_COMPLETION_TIMESTAMP = 128;
        IBV_WC_EX_WITH_CVLAN = 256;
        IBV_WC_EX_WITH_FLOW_TAG = 512;
        IBV_WC_EX_WITH_TM_INFO = 1024;
        IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK = 2048;
    }
    ibv_device_cap_flags {
        IBV_DEVICE_RESIZE_MAX_WR = 1;
        IBV_DEVICE_BAD_PKEY_CNTR = 2;
        IBV_DEVICE_BAD_QKEY_CNTR = 4;
        IBV_DEVICE_RAW_MULTI = 8;
        IBV_DEVICE_AUTO_PATH_MIG = 16;
        IBV_DEVICE_CHANGE_PHY_PORT = 32;
        IBV_DEVICE_UD_AV_PORT_ENFORCE = 64;
        IBV_DEVICE_CURR_QP_STATE_MOD = 128;
        IBV_DEVICE_SHUTDOWN_PORT = 256;
        IBV_DEVICE_INIT_TYPE = 512;
        IBV_DEVICE_PORT_ACTIVE_EVENT = 1024;
        IBV_DEVICE_SYS_IMAGE_GUID = 2048;
        IBV_DEVICE_RC_RNR_NAK_GEN = 4096;
        IBV_DEVICE_SRQ_RESIZE = 8192;
        IBV_DEVICE_N_NOTIFY_CQ = 16384;
        IBV_DEVICE_MEM_WINDOW = 131072;
        IBV_DEVICE_UD_IP_CSUM = 262144;
        IBV_DEVICE_XRC = 1048576;
        IBV_DEVICE_MEM_MGT_EXTENSIONS = 2097152;
        IBV_DEVICE_MEM_WINDOW_TYPE_2A = 8388608;
        IBV_DEVICE_MEM_WINDOW_TYPE_2B = 16777216;
        IBV_DEVICE_RC_IP_CSUM = 33554432;
        IBV_DEVICE_RAW_IP_CSUM = 67108864;
        IBV_DEVICE_MANAGED_FLOW_STEERING = 536870912;
    }
    ibv_event_type {
        IBV_EVENT_CQ_ERR = 0;
        IBV_EVENT_QP_FATAL = 1;
        IBV_EVENT_QP_REQ_ERR = 2;
        IBV_EVENT_QP_ACCESS_ERR = 3;
        IBV_EVENT_COMM_EST = 4;
        IBV_EVENT_SQ_DRAINED = 5;
        IBV_EVENT_PATH_MIG = 6;
        IBV_EVENT_PATH_MIG_ERR = 7;
        IBV_EVENT_DEVICE_FATAL = 8;
        IBV_EVENT_PORT_ACTIVE = 9;
        IBV_EVENT_PORT_ERR = 10;
        IBV_EVENT_LID_CHANGE = 11;
        IBV_EVENT_PKEY_CHANGE = 12;
        IBV_EVENT_SM_CHANGE = 13;
        IBV_EVENT_SRQ_ERR = 14;
        IBV_EVENT_SRQ_LIMIT_REACHED = 15;
        IBV_EVENT_QP_LAST_WQE_REACHED = 16;
        IBV_EVENT_CLIENT_REREGISTER = 17;
        IBV_EVENT_GID_CHANGE = 18;
        IBV_EVENT_WQ_FATAL = 19;
    }
    ibv_flow_action_esp_mask {
        IBV_FLOW_ACTION_ESP_MASK_ESN = 1;
    }
    ibv_flow_attr_type {
        IBV_FLOW_ATTR_NORMAL = 0;
        IBV_FLOW_ATTR_ALL_DEFAULT = 1;
        IBV_FLOW_ATTR_MC_DEFAULT = 2;
        IBV_FLOW_ATTR_SNIFFER = 3;
    }
    ibv_flow_flags {
        IBV_FLOW_ATTR_FLAGS_DONT_TRAP = 2;
        IBV_FLOW_ATTR_FLAGS_EGRESS = 4;
    }
    ibv_flow_spec_type {
        IBV_FLOW_SPEC_ETH = 32;
        IBV_FLOW_SPEC_IPV4 = 48;
        IBV_FLOW_SPEC_IPV6 = 49;
        IBV_FLOW_SPEC_IPV4_EXT = 50;
        IBV_FLOW_SPEC_ESP = 52;
        IBV_FLOW_SPEC_TCP = 64;
        IBV_FLOW_SPEC_UDP = 65;
        IBV_FLOW_SPEC_VXLAN_TUNNEL = 80;
        IBV_FLOW_SPEC_GRE = 81;
        IBV_FLOW_SPEC_MPLS = 96;
        IBV_FLOW_SPEC_INNER = 256;
        IBV_FLOW_SPEC_ACTION_TAG = 4096;
        IBV_FLOW_SPEC_ACTION_DROP = 4097;
        IBV_FLOW_SPEC_ACTION_HANDLE = 4098;
        IBV_FLOW_SPEC_ACTION_COUNT = 4099;
    }
    ibv_ind_table_init_attr_mask {
        IBV_CREATE_IND_TABLE_RESERVED = 1;
    }
    ibv_mig_state {
        IBV_MIG_MIGRATED = 0;
        IBV_MIG_REARM = 1;
        IBV_MIG_ARMED = 2;
    }
    ibv_mtu {
        IBV_MTU_256 = 1;
        IBV_MTU_512 = 2;
        IBV_MTU_1024 = 3;
        IBV_MTU_2048 = 4;
        IBV_MTU_4096 = 5;
    }
    ibv_mw_type {
        IBV_MW_TYPE_1 = 1;
        IBV_MW_TYPE_2 = 2;
    }
    ibv_node_type {
        IBV_NODE_UNKNOWN = -1;
        IBV_NODE_CA = 1;
        IBV_NODE_SWITCH = 2;
        IBV_NODE_ROUTER = 3;
        IBV_NODE_RNIC = 4;
        IBV_NODE_USNIC = 5;
        IBV_NODE_USNIC_UDP = 6;
        IBV_NODE_UNSPECIFIED = 7;
    }
    ibv_odp_general_caps {
        IBV_ODP_SUPPORT = 1;
        IBV_ODP_SUPPORT_IMPLICIT = 2;
    }
    ibv_odp_transport_cap_bits {
        IBV_ODP_SUPPORT_SEND = 1;
        IBV_ODP_SUPPORT_RECV = 2;
        IBV_ODP_SUPPORT_WRITE = 4;
        IBV_ODP_SUPPORT_READ = 8;
        IBV_ODP_SUPPORT_ATOMIC = 16;
        IBV_ODP_SUPPORT_SRQ_RECV = 32;
    }
    ibv_ops_flags {
        IBV_OPS_SIGNALED = 1;
        IBV_OPS_TM_SYNC = 2;
    }
    ibv_ops_wr_opcode {
        IBV_WR_TAG_ADD = 0;
        IBV_WR_TAG_DEL = 1;
        IBV_WR_TAG_SYNC = 2;
    }
    ibv_parent_domain_init_attr_mask {
        IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS = 1;
        IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT = 2;
    }
    ibv_pci_atomic_op_size {
        IBV_PCI_ATOMIC_OPERATION_4_BYTE_SIZE_SUP = 1;
        IBV_PCI_ATOMIC_OPERATION_8_BYTE_SIZE_SUP = 2;
        IBV_PCI_ATOMIC_OPERATION_16_BYTE_SIZE_SUP = 4;
    }
    ibv_port_cap_flags {
        IBV_PORT_SM = 2;
        IBV_PORT_NOTICE_SUP = 4;
        IBV_PORT_TRAP_SUP = 8;
        IBV_PORT_OPT_IPD_SUP = 16;
        IBV_PORT_AUTO_MIGR_SUP = 32;
        IBV_PORT_SL_MAP_SUP = 64;
        IBV_PORT_MKEY_NVRAM = 128;
        IBV_PORT_PKEY_NVRAM = 256;
        IBV_PORT_LED_INFO_SUP = 512;
        IBV_PORT_SYS_IMAGE_GUID_SUP = 2048;
        IBV_PORT_PKEY_SW_EXT_PORT_TRAP_SUP = 4096;
        IBV_PORT_EXTENDED_SPEEDS_SUP = 16384;
        IBV_PORT_CAP_MASK2_SUP = 32768;
        IBV_PORT_CM_SUP = 65536;
        IBV_PORT_SNMP_TUNNEL_SUP = 131072;
        IBV_PORT_REINIT_SUP = 262144;
        IBV_PORT_DEVICE_MGMT_SUP = 524288;
        IBV_PORT_VENDOR_CLASS_SUP = 1048576;
        IBV_PORT_DR_NOTICE_SUP = 2097152;
        IBV_PORT_CAP_MASK_NOTICE_SUP = 4194304;
        IBV_PORT_BOOT_MGMT_SUP = 8388608;
        IBV_PORT_LINK_LATENCY_SUP = 16777216;
        IBV_PORT_CLIENT_REG_SUP = 33554432;
        IBV_PORT_IP_BASED_GIDS = 67108864;
    }
    ibv_port_cap_flags2 {
        IBV_PORT_SET_NODE_DESC_SUP = 1;
        IBV_PORT_INFO_EXT_SUP = 2;
        IBV_PORT_VIRT_SUP = 4;
        IBV_PORT_SWITCH_PORT_STATE_TABLE_SUP = 8;
        IBV_PORT_LINK_WIDTH_2X_SUP = 16;
        IBV_PORT_LINK_SPEED_HDR_SUP = 32;
        IBV_PORT_LINK_SPEED_NDR_SUP = 1024;
    }
    ibv_port_state {
        IBV_PORT_NOP = 0;
        IBV_PORT_DOWN = 1;
        IBV_PORT_INIT = 2;
        IBV_PORT_ARMED = 3;
        IBV_PORT_ACTIVE = 4;
        IBV_PORT_ACTIVE_DEFER = 5;
    }
    ibv_qp_attr_mask {
        IBV_QP_STATE = 1;
        IBV_QP_CUR_STATE = 2;
        IBV_QP_EN_SQD_ASYNC_NOTIFY = 4;
        IBV_QP_ACCESS_FLAGS = 8;
        IBV_QP_PKEY_INDEX = 16;
        IBV_QP_PORT = 32;
        IBV_QP_QKEY = 64;
        IBV_QP_AV = 128;
        IBV_QP_PATH_MTU = 256;
        IBV_QP_TIMEOUT = 512;
        IBV_QP_RETRY_CNT = 1024;
        IBV_QP_RNR_RETRY = 2048;
        IBV_QP_RQ_PSN = 4096;
        IBV_QP_MAX_QP_RD_ATOMIC = 8192;
        IBV_QP_ALT_PATH = 16384;
        IBV_QP_MIN_RNR_TIMER = 32768;
        IBV_QP_SQ_PSN = 65536;
        IBV_QP_MAX_DEST_RD_ATOMIC = 131072;
        IBV_QP_PATH_MIG_STATE = 262144;
        IBV_QP_CAP = 524288;
        IBV_QP_DEST_QPN = 1048576;
        IBV_QP_RATE_LIMIT = 33554432;
    }
    ibv_qp_create_flags {
        IBV_QP_CREATE_BLOCK_SELF_MCAST_LB = 2;
        IBV_QP_CREATE_SCATTER_FCS = 256;
        IBV_QP_CREATE_CVLAN_STRIPPING = 512;
        IBV_QP_CREATE_SOURCE_QPN = 1024;
        IBV_QP_CREATE_PCI_WRITE_END_PADDING = 2048;
    }
    ibv_qp_create_send_ops_flags {
        IBV_QP_EX_WITH_RDMA_WRITE = 1;
        IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM = 2;
        IBV_QP_EX_WITH_SEND = 4;
        IBV_QP_EX_WITH_SEND_WITH_IMM = 8;
        IBV_QP_EX_WITH_RDMA_READ = 16;
        IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP = 32;
        IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD = 64;
        IBV_QP_EX_WITH_LOCAL_INV = 128;
        IBV_QP_EX_WITH_BIND_MW = 256;
        IBV_QP_EX_WITH_SEND_WITH_INV = 512;
        IBV_QP_EX_WITH_TSO = 1024;
        IBV_QP_EX_WITH_ATOMIC_WRITE = 4096;
    }
    ibv_qp_init_attr_mask {
        IBV_QP_INIT_ATTR_PD = 1;
        IBV_QP_INIT_ATTR_XRCD = 2;
        IBV_QP_INIT_ATTR_CREATE_FLAGS = 4;
        IBV_QP_INIT_ATTR_MAX_TSO_HEADER = 8;
        IBV_QP_INIT_ATTR_IND_TABLE = 16;
        IBV_QP_INIT_ATTR_RX_HASH = 32;
        IBV_QP_INIT_ATTR_SEND_OPS_FLAGS = 64;
    }
    ibv_qp_open_attr_mask {
        IBV_QP_OPEN_ATTR_NUM = 1;
        IBV_QP_OPEN_ATTR_XRCD = 2;
        IBV_QP_OPEN_ATTR_CONTEXT = 4;
        IBV_QP_OPEN_ATTR_TYPE = 8;
        IBV_QP_OPEN_ATTR_RESERVED = 16;
    }
    ibv_qp_state {
        IBV_QPS_RESET = 0;
        IBV_QPS_INIT = 1;
        IBV_QPS_RTR = 2;
        IBV_QPS_RTS = 3;
        IBV_QPS_SQD = 4;
        IBV_QPS_SQE = 5;
        IBV_QPS_ERR = 6;
        IBV_QPS_UNKNOWN = 7;
    }
    ibv_qp_type {
        IBV_QPT_RC = 2;
        IBV_QPT_UC = 3;
        IBV_QPT_UD = 4;
        IBV_QPT_RAW_PACKET = 8;
        IBV_QPT_XRC_SEND = 9;
        IBV_QPT_XRC_RECV = 10;
        IBV_QPT_DRIVER = 255;
    }
    ibv_rate {
        IBV_RATE_MAX = 0;
        IBV_RATE_2_5_GBPS = 2;
        IBV_RATE_5_GBPS = 5;
        IBV_RATE_10_GBPS = 3;
        IBV_RATE_20_GBPS = 6;
        IBV_RATE_30_GBPS = 4;
        IBV_RATE_40_GBPS = 7;
        IBV_RATE_60_GBPS = 8;
        IBV_RATE_80_GBPS = 9;
        IBV_RATE_120_GBPS = 10;
        IBV_RATE_14_GBPS = 11;
        IBV_RATE_56_GBPS = 12;
        IBV_RATE_112_GBPS = 13;
        IBV_RATE_168_GBPS = 14;
        IBV_RATE_25_GBPS = 15;
        IBV_RATE_100_GBPS = 16;
        IBV_RATE_200_GBPS = 17;
        IBV_RATE_300_GBPS = 18;
        IBV_RATE_28_GBPS = 19;
        IBV_RATE_50_GBPS = 20;
        IBV_RATE_400_GBPS = 21;
        IBV_RATE_600_GBPS = 22;
        IBV_RATE_800_GBPS = 23;
        IBV_RATE_1200_GBPS = 24;
    }
    ibv_raw_packet_caps {
        IBV_RAW_PACKET_CAP_CVLAN_STRIPPING = 1;
        IBV_RAW_PACKET_CAP_SCATTER_FCS = 2;
        IBV_RAW_PACKET_CAP_IP_CSUM = 4;
        IBV_RAW_PACKET_CAP_DELAY_DROP = 8;
    }
    ibv_read_counters_flags {
        IBV_READ_COUNTERS_ATTR_PREFER_CACHED = 1;
    }
    ibv_rereg_mr_err_code {
        IBV_REREG_MR_ERR_INPUT = -1;
        IBV_REREG_MR_ERR_DONT_FORK_NEW = -2;
        IBV_REREG_MR_ERR_DO_FORK_OLD = -3;
        IBV_REREG_MR_ERR_CMD = -4;
        IBV_REREG_MR_ERR_CMD_AND_DO_FORK_NEW = -5;
    }
    ibv_rereg_mr_flags {
        IBV_REREG_MR_CHANGE_TRANSLATION = 1;
        IBV_REREG_MR_CHANGE_PD = 2;
        IBV_REREG_MR_CHANGE_ACCESS = 4;
        IBV_REREG_MR_FLAGS_SUPPORTED = 7;
    }
    ibv_rx_hash_fields {
        IBV_RX_HASH_SRC_IPV4 = 1;
        IBV_RX_HASH_DST_IPV4 = 2;
        IBV_RX_HASH_SRC_IPV6 = 4;
        IBV_RX_HASH_DST_IPV6 = 8;
        IBV_RX_HASH_SRC_PORT_TCP = 16;
        IBV_RX_HASH_DST_PORT_TCP = 32;
        IBV_RX_HASH_SRC_PORT_UDP = 64;
        IBV_RX_HASH_DST_PORT_UDP = 128;
        IBV_RX_HASH_IPSEC_SPI = 256;
        IBV_RX_HASH_INNER = 2147483648;
    }
    ibv_rx_hash_function_flags {
        IBV_RX_HASH_FUNC_TOEPLITZ = 1;
    }
    ibv_send_flags {
        IBV_SEND_FENCE = 1;
        IBV_SEND_SIGNALED = 2;
        IBV_SEND_SOLICITED = 4;
        IBV_SEND_INLINE = 8;
        IBV_SEND_IP_CSUM = 16;
    }
    ibv_srq_attr_mask {
        IBV_SRQ_MAX_WR = 1;
        IBV_SRQ_LIMIT = 2;
    }
    ibv_srq_init_attr_mask {
        IBV_SRQ_INIT_ATTR_TYPE = 1;
        IBV_SRQ_INIT_ATTR_PD = 2;
        IBV_SRQ_INIT_ATTR_XRCD = 4;
        IBV_SRQ_INIT_ATTR_CQ = 8;
        IBV_SRQ_INIT_ATTR_TM = 16;
        IBV_SRQ_INIT_ATTR_RESERVED = 32;
    }
    ibv_srq_type {
        IBV_SRQT_BASIC = 0;
        IBV_SRQT_XRC = 1;
        IBV_SRQT_TM = 2;
    }
    ibv_tm_cap_flags {
        IBV_TM_CAP_RC = 1;
    }
    ibv_transport_type {
        IBV_TRANSPORT_UNKNOWN = -1;
        IBV_TRANSPORT_IB = 0;
        IBV_TRANSPORT_IWARP = 1;
        IBV_TRANSPORT_USNIC = 2;
        IBV_TRANSPORT_USNIC_UDP = 3;
        IBV_TRANSPORT_UNSPECIFIED = 4;
    }
    ibv_values_mask {
        IBV_VALUES_MASK_RAW_CLOCK = 1;
        IBV_VALUES_MASK_RESERVED = 2;
    }
    ibv_wc_flags {
        IBV_WC_GRH = 1;
        IBV_WC_WITH_IMM = 2;
        IBV_WC_IP_CSUM_OK = 4;
        IBV_WC_WITH_INV = 8;
        IBV_WC_TM_SYNC_REQ = 16;
        IBV_WC_TM_MATCH = 32;
        IBV_WC_TM_DATA_VALID = 64;
    }
    ibv_wc_opcode {
        IBV_WC_SEND = 0;
        IBV_WC_RDMA_WRITE = 1;
        IBV_WC_RDMA_READ = 2;
        IBV_WC_COMP_SWAP = 3;
        IBV_WC_FETCH_ADD = 4;
        IBV_WC_BIND_MW = 5;
        IBV_WC_LOCAL_INV = 6;
        IBV_WC_TSO = 7;
        IBV_WC_ATOMIC_WRITE = 9;
        IBV_WC_RECV = 128;
        IBV_WC_RECV_RDMA_WITH_IMM = 129;
        IBV_WC_TM_ADD = 130;
        IBV_WC_TM_DEL = 131;
        IBV_WC_TM_SYNC = 132;
        IBV_WC_TM_RECV = 133;
        IBV_WC_TM_NO_TAG = 134;
        IBV_WC_DRIVER1 = 135;
        IBV_WC_DRIVER2 = 136;
        IBV_WC_DRIVER3 = 137;
    }
    ibv_wc_status {
        IBV_WC_SUCCESS = 0;
        IBV_WC_LOC_LEN_ERR = 1;
        IBV_WC_LOC_QP_OP_ERR = 2;
        IBV_WC_LOC_EEC_OP_ERR = 3;
        IBV_WC_LOC_PROT_ERR = 4;
        IBV_WC_WR_FLUSH_ERR = 5;
        IBV_WC_MW_BIND_ERR = 6;
        IBV_WC_BAD_RESP_ERR = 7;
        IBV_WC_LOC_ACCESS_ERR = 8;
        IBV_WC_REM_INV_REQ_ERR = 9;
        IBV_WC_REM_ACCESS_ERR = 10;
        IBV_WC_REM_OP_ERR = 11;
        IBV_WC_RETRY_EXC_ERR = 12;
        IBV_WC_RNR_RETRY_EXC_ERR = 13;
        IBV_WC_LOC_RDD_VIOL_ERR = 14;
        IBV_WC_REM_INV_RD_REQ_ERR = 15;
        IBV_WC_REM_ABORT_ERR = 16;
        IBV_WC_INV_EECN_ERR = 17;
        IBV_WC_INV_EEC_STATE_ERR = 18;
        IBV_WC_FATAL_ERR = 19;
        IBV_WC_RESP_TIMEOUT_ERR = 20;
        IBV_WC_GENERAL_ERR = 21;
        IBV_WC_TM_ERR = 22;
        IBV_WC_TM_RNDV_INCOMPLETE = 23;
    }
    ibv_wq_attr_mask {
        IBV_WQ_ATTR_STATE = 1;
        IBV_WQ_ATTR_CURR_STATE = 2;
        IBV_WQ_ATTR_FLAGS = 4;
        IBV_WQ_ATTR_RESERVED = 8;
    }
    ibv_wq_flags {
        IBV_WQ_FLAGS_CVLAN_STRIPPING = 1;
        IBV_WQ_FLAGS_SCATTER_FCS = 2;
        IBV_WQ_FLAGS_DELAY_DROP = 4;
        IBV_WQ_FLAGS_PCI_WRITE_END_PADDING = 8;
        IBV_WQ_FLAGS_RESERVED = 16;
    }
    ibv_wq_init_attr_mask {
        IBV_WQ_INIT_ATTR_FLAGS = 1;
        IBV_WQ_INIT_ATTR_RESERVED = 2;
    }
    ibv_wq_state {
        IBV_WQS_RESET = 0;
        IBV_WQS_RDY = 1;
        IBV_WQS_ERR = 2;
        IBV_WQS_UNKNOWN = 3;
    }
    ibv_wq_type {
        IBV_WQT_RQ = 0;
    }
    ibv_wr_opcode {
        IBV_WR_RDMA_WRITE = 0;
        IBV_WR_RDMA_WRITE_WITH_IMM = 1;
        IBV_WR_SEND = 2;
        IBV_WR_SEND_WITH_IMM = 3;
        IBV_WR_RDMA_READ = 4;
        IBV_WR_ATOMIC_CMP_AND_SWP = 5;
        IBV_WR_ATOMIC_FETCH_AND_ADD = 6;
        IBV_WR_LOCAL_INV = 7;
        IBV_WR_BIND_MW = 8;
        IBV_WR_SEND_WITH_INV = 9;
        IBV_WR_TSO = 10;
        IBV_WR_DRIVER1 = 11;
        IBV_WR_ATOMIC_WRITE = 15;
    }
    ibv_xrcd_init_attr_mask {
        IBV_XRCD_INIT_ATTR_FD = 1;
        IBV_XRCD_INIT_ATTR_OFLAGS = 2;
        IBV_XRCD_INIT_ATTR_RESERVED = 4;
    }
    plain {
        IBV_ACCESS_OPTIONAL_FIRST = 1048576;
        IBV_DEVICE_RAW_SCATTER_FCS = 17179869184;
        IBV_DEVICE_PCI_WRITE_END_PADDING = 68719476736;
        ETHERNET_LL_SIZE = 6;
        IB_ROCE_UDP_ENCAP_VALID_PORT_MIN = 49152;
        IB_ROCE_UDP_ENCAP_VALID_PORT_MAX = 65535;
        IB_GRH_FLOWLABEL_MASK = 1048575;
        IBV_LINK_LAYER_UNSPECIFIED = 0;
        IBV_LINK_LAYER_INFINIBAND = 1;
        IBV_LINK_LAYER_ETHERNET = 2;
        IBV_WC_IP_CSUM_OK_SHIFT = 2;
        IBV_WC_STANDARD_FLAGS = 127;
        IBV_CREATE_CQ_SUP_WC_FLAGS = 4095;
        IBV_SYSFS_NAME_MAX = 64;
        IBV_SYSFS_PATH_MAX = 256;
    }
}
