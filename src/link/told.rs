//! Log events about links.

use doorbell_core::session::SessionEvent;
use doorbell_core::wire::RefusalReason;

use super::links::LinkId;
use crate::error::ConnectError;
use crate::machine::tell::tell;
use crate::worker::event::ChannelState;

/// It was begun here.
pub(super) fn tell_begun(link: LinkId) {
    tell!(info, "link begun", link = link);
}

/// Our ports are looked at once more.
pub(super) fn tell_late() {
    tell!(warn, "the ports are not looked at in time: once more");
}

/// A peer began it.
pub(super) fn tell_accepted(link: LinkId) {
    tell!(info, "link accepted", link = link);
}

/// Logs that a link begun by a peer was refused: its frame was invalid, or there is no room.
pub(super) fn tell_refused(reason: RefusalReason) {
    tell!(warn, "link refused", reason = format_args!("{reason:?}"));
}

/// Logs that no peer is accepted any more.
pub(super) fn tell_closed(reason: &ConnectError) {
    tell!(error, "no peer is let in any more", reason = reason);
}

/// Logs that the channel of a rail failed.
pub(super) fn tell_failed(link: LinkId, rail: u8, state: ChannelState) {
    match state {
        // The reason for a flush is logged where the channel is closed.
        ChannelState::Failed { cause } if !cause.status.is_flush() => {
            tell!(
                warn,
                "rail failed",
                link = link,
                rail = rail,
                cause = cause.status
            );
        }
        _ => tell!(warn, "rail failed", link = link, rail = rail),
    }
}

/// Tells what happened to a link; messages that are done are none of it.
pub(super) fn tell_session(link: LinkId, event: &SessionEvent) {
    match event {
        SessionEvent::Connected => tell!(info, "link connected", link = link),
        SessionEvent::RailUp { rail } => tell!(info, "rail up", link = link, rail = rail),
        SessionEvent::RailDown { rail } => tell!(warn, "rail down", link = link, rail = rail),
        SessionEvent::Recovering => tell!(warn, "link without a rail", link = link),
        SessionEvent::Recovered => tell!(info, "link has a rail again", link = link),
        SessionEvent::Stalled => tell!(warn, "the peer takes no messages", link = link),
        SessionEvent::Resumed => tell!(info, "the peer takes messages again", link = link),
        SessionEvent::Final { reason } => tell!(info, "link over", link = link, reason = reason),
        _ => {}
    }
}
