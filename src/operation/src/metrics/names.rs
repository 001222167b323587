//! Names of metrics, by the conventions of Prometheus: the prefix `doorbell_`, the unit at the end, and `_total` for counters.

use doorbell::link::{SessionCounts, TransferTotals};
use doorbell::memory::RegistrationStatistics;
use doorbell::worker::StatisticsSnapshot;

use super::exposition::{Description, Kind};
use doorbell::link::LinkRailCounts;
use doorbell::mesh::{MeshCounts, MeshMemberCounts};

/// Declares a function that lists the counters of a type with their descriptions.
macro_rules! counters {
    ($(#[$doc:meta])+ $function:ident($counts:ty) { $($field:ident: $name:literal, $help:literal;)+ }) => {
        $(#[$doc])+
        pub(super) fn $function(counts: &$counts) -> impl Iterator<Item = (&'static Description, u64)> {
            [$((const { &counter($name, $help) }, counts.$field)),+].into_iter()
        }
    };
}

const fn counter(name: &'static str, help: &'static str) -> Description {
    described(name, Kind::Counter, help)
}

const fn gauge(name: &'static str, help: &'static str) -> Description {
    described(name, Kind::Gauge, help)
}

const fn described(name: &'static str, kind: Kind, help: &'static str) -> Description {
    Description { name, kind, help }
}

counters! {
    /// Counters of a Worker, except the histogram.
    of_worker(StatisticsSnapshot) {
        doorbells: "doorbell_worker_doorbells_total", "Post calls for sends of which the device accepted at least one request.";
        requests: "doorbell_worker_requests_total", "Requests that were posted to be sent.";
        bytes: "doorbell_worker_sent_bytes_total", "Payload bytes of requests: sent, written, or asked for.";
        inline: "doorbell_worker_inline_requests_total", "Requests whose bytes went inline.";
        announcements: "doorbell_worker_announcements_total", "Credits announced to peers.";
        would_block: "doorbell_worker_would_block_total", "Requests refused for want of room or of credit.";
        refused: "doorbell_worker_refused_posts_total", "Post calls for sends of which the device refused a part, or all.";
        completions: "doorbell_worker_send_completions_total", "Completions of sends.";
        received: "doorbell_worker_received_messages_total", "Messages received.";
        received_bytes: "doorbell_worker_received_bytes_total", "Payload bytes received.";
        receives_posted: "doorbell_worker_receives_posted_total", "Receives posted.";
        rejected: "doorbell_worker_rejected_completions_total", "Completions that named nothing in flight.";
        orphaned: "doorbell_worker_orphaned_completions_total", "Completions of channels that are closed, or of none.";
    }
}

counters! {
    /// Counters of a link.
    of_link(SessionCounts) {
        sent: "doorbell_link_sent_fragments_total", "Fragments sent, each time.";
        sent_again: "doorbell_link_sent_again_fragments_total", "Fragments sent again after their rail failed.";
        placed: "doorbell_link_placed_fragments_total", "Fragments written into memory that the peer lent.";
        early: "doorbell_link_early_fragments_total", "Fragments that arrived before one that they follow.";
        duplicates: "doorbell_link_duplicate_fragments_total", "Fragments that arrived again.";
        old_epoch: "doorbell_link_old_epoch_frames_total", "Frames of another epoch than their connection.";
        acknowledgements: "doorbell_link_acknowledgements_total", "Acknowledgements that went by themselves.";
        probes: "doorbell_link_probes_total", "Signs of life asked for.";
        rails_dead: "doorbell_link_dead_rails_total", "Rails given up because they did not answer.";
        recoveries: "doorbell_link_recoveries_total", "Times there was no rail.";
    }
}

counters! {
    /// Counters of a member of a mesh.
    of_mesh(MeshCounts) {
        sent: "doorbell_mesh_sent_messages_total", "Messages taken in to be sent.";
        received: "doorbell_mesh_received_messages_total", "Messages given to the application.";
        sent_again: "doorbell_mesh_sent_again_messages_total", "Messages sent again.";
        out_of_turn: "doorbell_mesh_out_of_turn_messages_total", "Messages that came again, or ahead of one that was lost.";
        relayed: "doorbell_mesh_relayed_frames_total", "Frames passed on for others.";
        announcements: "doorbell_mesh_announcements_total", "Announcements of neighbours sent.";
        dropped: "doorbell_mesh_dropped_frames_total", "Frames dropped: of no member, gone too far, or without a way.";
    }
}

counters! {
    /// Counters of a rail of a link.
    of_link_rail(LinkRailCounts) {
        connections: "doorbell_link_rail_connections_total", "Channels a rail of a link had.";
        failures: "doorbell_link_rail_failures_total", "Channels a rail of a link lost.";
        sent: "doorbell_link_rail_sent_requests_total", "Requests posted on a rail of a link.";
        sent_bytes: "doorbell_link_rail_sent_bytes_total", "Bytes of these, with their headers.";
        received: "doorbell_link_rail_received_frames_total", "Frames that came over a rail of a link.";
        received_bytes: "doorbell_link_rail_received_bytes_total", "Bytes of these, with their headers.";
    }
}

counters! {
    /// Counters between two members of a mesh.
    of_mesh_member(MeshMemberCounts) {
        sent: "doorbell_mesh_member_sent_messages_total", "Messages to a member that were taken in.";
        received: "doorbell_mesh_member_received_messages_total", "Messages of a member that were given to the application.";
        sent_again: "doorbell_mesh_member_sent_again_messages_total", "Messages to a member that were sent again.";
    }
}

counters! {
    /// Counters of transfers, except their outcomes.
    of_transfers(TransferTotals) {
        begun: "doorbell_transfers_begun_total", "Transfers of links that this side began.";
        offered: "doorbell_transfers_offered_total", "Transfers of links that peers began.";
        given_bytes: "doorbell_transfer_given_bytes_total", "Bytes of transfers that takers have from this side, as far as it knows.";
        taken_bytes: "doorbell_transfer_taken_bytes_total", "Bytes of transfers that this side took.";
        repeated_bytes: "doorbell_transfer_repeated_bytes_total", "Bytes of pieces that were written again after their rail failed.";
        duplicates: "doorbell_transfer_duplicate_pieces_total", "Pieces that were announced again.";
    }
}

counters! {
    /// Counters of a registration cache.
    of_registrations(RegistrationStatistics) {
        hits: "doorbell_registration_hits_total", "Uses of a registration that was kept.";
        misses: "doorbell_registration_misses_total", "Lookups that found no registration.";
        evictions: "doorbell_registration_evictions_total", "Registrations that left for lack of room.";
        invalidations: "doorbell_registration_invalidations_total", "Registrations that left as their memory was unmapped or forgotten.";
    }
}

pub(super) static TRANSFERS_ENDED: Description = counter(
    "doorbell_transfers_ended_total",
    "Transfers of links that ended, by outcome.",
);
pub(super) static UNCACHED: Description = counter(
    "doorbell_registration_uncached_total",
    "Registrations that served one use and were not kept, by reason.",
);
pub(super) static REGISTRATIONS: Description =
    gauge("doorbell_registrations", "Registrations of caches by state.");
pub(super) static REGISTERED_BYTES: Description = gauge(
    "doorbell_registered_bytes",
    "Bytes that caches have registered: pinned memory.",
);
pub(super) static PORT_COUNTER: Description = counter(
    "doorbell_port_hw_counter_total",
    "Counters of the kernel at a port, over all its users: the files of its hw_counters in sysfs.",
);
pub(super) static LINK_RAILS: Description = gauge("doorbell_link_rails", "Rails of links by state.");
pub(super) static MESH_ROUTE: Description = gauge(
    "doorbell_mesh_route_hops",
    "Hops to a member by the shortest way, and which members pass on in between, in order; 0 where there is none.",
);
pub(super) static MESH_WAITING: Description = gauge(
    "doorbell_mesh_member_waiting_messages",
    "Messages to a member that it has not taken yet.",
);
pub(super) static BATCH_REQUESTS: Description = described(
    "doorbell_worker_batch_requests",
    Kind::Histogram,
    "Requests posted with one doorbell.",
);
pub(super) static NOT_DESTROYED: Description = gauge(
    "doorbell_worker_not_destroyed_queue_pairs",
    "Queue pairs that the device would not destroy, each with its memory, its place and its room in the queues.",
);
pub(super) static CHANNELS: Description = gauge("doorbell_channels", "Channels by peer and state.");
pub(super) static CHANNEL_CREDITS: Description = gauge(
    "doorbell_channel_credits",
    "Messages that may be sent now: receives that peers announced and that were not used.",
);
pub(super) static CHANNEL_IN_FLIGHT: Description =
    gauge("doorbell_channel_in_flight_requests", "Requests in flight.");
pub(super) static HANDSHAKES_BEGUN: Description =
    counter("doorbell_handshakes_begun_total", "Peers whose handshake began.");
pub(super) static HANDSHAKES: Description = counter("doorbell_handshakes_total", "Handshakes by outcome.");
pub(super) static PORT_FAILURES: Description = counter(
    "doorbell_handshake_port_failures_total",
    "Times the port could not accept a connection, as for want of descriptors.",
);
pub(super) static UNTRUSTED: Description = counter(
    "doorbell_handshakes_untrusted_total",
    "Handshakes that failed because the peer or its address is not trusted.",
);
pub(super) static LINKS: Description = gauge("doorbell_links", "Links by state.");
pub(super) static MESH_REACHED: Description = gauge(
    "doorbell_mesh_reached_members",
    "Members that are reached, by whatever way.",
);
pub(super) static MESH_MEMBERS: Description = gauge(
    "doorbell_mesh_members",
    "Members the mesh may have, with this one.",
);
