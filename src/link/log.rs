//! Log events about links.

use doorbell_core::provider::MemoryError;
use doorbell_core::session::SessionEvent;
use doorbell_core::wire::RefusalReason;

use super::event::LinkId;
use crate::error::ConnectError;
use crate::machine::log::log;
use crate::worker::event::ChannelState;

/// Logs that a link was begun here.
pub(super) fn log_begun(link: LinkId) {
    log!(info, "link begun", link = link);
}

/// Logs that a device refused memory for long messages, so they go as fragments in slots.
pub(super) fn log_unplaced(error: MemoryError) {
    log!(warn, "no memory for long messages", reason = error);
}

/// Logs that a scan of the ports was late, and another one begins.
pub(super) fn log_late() {
    log!(warn, "the ports are not looked at in time: once more");
}

/// Logs that a peer began a link.
pub(super) fn log_accepted(link: LinkId) {
    log!(info, "link accepted", link = link);
}

/// Logs that a connection of a peer was refused as a rail.
pub(super) fn log_refused(reason: RefusalReason) {
    log!(warn, "link refused", reason = format_args!("{reason:?}"));
}

/// Logs that no peer is accepted any more.
pub(super) fn log_closed(reason: &ConnectError) {
    log!(error, "no peer is let in any more", reason = reason);
}

/// Logs that the channel of a rail failed.
pub(super) fn log_failed(link: LinkId, rail: u8, state: ChannelState) {
    match state {
        // The reason for a flush is logged where the channel is closed.
        ChannelState::Failed { cause } if !cause.status.is_flush() => {
            log!(
                warn,
                "rail failed",
                link = link,
                rail = rail,
                cause = cause.status
            );
        }
        _ => log!(warn, "rail failed", link = link, rail = rail),
    }
}

/// Logs an event of a link, except for [`SessionEvent::Done`] and [`SessionEvent::Unknown`].
pub(super) fn log_session(link: LinkId, event: &SessionEvent) {
    match event {
        SessionEvent::Connected => log!(info, "link connected", link = link),
        SessionEvent::RailUp { rail } => log!(info, "rail up", link = link, rail = rail),
        SessionEvent::RailDown { rail } => log!(warn, "rail down", link = link, rail = rail),
        SessionEvent::Recovering => log!(warn, "link without a rail", link = link),
        SessionEvent::Recovered => log!(info, "link has a rail again", link = link),
        SessionEvent::Stalled => log!(warn, "the peer takes no messages", link = link),
        SessionEvent::Resumed => log!(info, "the peer takes messages again", link = link),
        SessionEvent::Final { reason } => log!(info, "link over", link = link, reason = reason),
        _ => {}
    }
}
