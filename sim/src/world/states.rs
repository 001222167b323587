//! Changes of state beyond bringing queue pairs up and failing them: draining a send queue and going on, going on
//! after a datagram failed, and going back to RESET.

use doorbell_core::provider::{AsyncEvent, ProviderError};
use doorbell_core::{Access, QpState};

use super::World;
use crate::errno::{EINVAL, failed};
use crate::queue_pair::QueuePairKey;
use crate::receive::Receives;
use crate::requester::Request;
use crate::responder::Responder;

impl World {
    /// RTS to SQD: what has begun goes on, and nothing else begins.
    pub(crate) fn drain(&mut self, key: QueuePairKey) -> Result<(), ProviderError> {
        let change = (QpState::ReadyToSend, QpState::SendQueueDrain);
        self.modify(key, "modify to SQD", change, |qp| qp.reports_drained = true)?;
        self.report_drained(key);
        Ok(())
    }

    /// Reports that a send queue drained, once it did.
    pub(super) fn report_drained(&mut self, key: QueuePairKey) {
        let Some(qp) = self.queue_pairs.get_mut(key) else {
            return;
        };
        if qp.reports_drained && qp.state == QpState::SendQueueDrain && !qp.requester.is_under_way() {
            qp.reports_drained = false;
            let (context, qpn) = (qp.context, qp.qpn);
            self.raise(context, AsyncEvent::SendQueueDrained(qpn));
        }
    }

    /// SQD or SQE to RTS: requests go on.
    pub(crate) fn go_on(&mut self, key: QueuePairKey, from: QpState) -> Result<(), ProviderError> {
        const CALL: &str = "modify to RTS";
        let qp = self.queue_pairs.get(key);
        if qp.is_none_or(|qp| qp.requester.is_under_way()) {
            return Err(failed(CALL, EINVAL));
        }
        self.modify(key, CALL, (from, QpState::ReadyToSend), |qp| {
            qp.requester.recover();
        })?;
        if from == QpState::SendQueueError || !self.quirks_of(key).resumed_queues_wait {
            self.kick(key);
        }
        Ok(())
    }

    /// RTS to SQE, where a datagram failed: those behind it are flushed, and receives stay (S1).
    pub(super) fn fail_sends(&mut self, key: QueuePairKey) {
        if let Some(qp) = self.queue_pairs.get_mut(key) {
            qp.state = QpState::SendQueueError;
            self.flush_requests(key, false);
        }
    }

    /// Any state to RESET: what was posted is forgotten, and its requests come back.
    pub(crate) fn reset(
        &mut self,
        key: QueuePairKey,
    ) -> Result<impl Iterator<Item = Request> + use<>, ProviderError> {
        let qp = self.queue_pairs.get_mut(key);
        let qp = qp.ok_or(failed("modify to RESET", EINVAL))?;
        let unretired = qp.requester.unretired();
        let requests = qp.requester.outstanding().saturating_add(unretired);
        let receives = qp.receives.counts().iter().sum::<usize>();
        let held = usize::from(qp.responder.stop().is_some());
        let forgotten = core::mem::take(&mut qp.requester);
        // The slots of receives go home with what held them.
        qp.responder = Responder::default();
        qp.receives = Receives::default();
        (qp.state, qp.port, qp.access) = (QpState::Reset, 0, Access::empty());
        (qp.connection, qp.route, qp.reports_drained) = (None, None, false);
        self.tally.requests.destroyed_more(requests);
        self.tally.receives.destroyed_more(receives.saturating_add(held));
        Ok(forgotten.into_requests())
    }
}
