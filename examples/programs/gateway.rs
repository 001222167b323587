//! A gateway with deadlines: many orders in flight, and each ends exactly once.

use core::time::Duration;

use doorbell::provider::{Network, Provider};
use doorbell::requests::{Asked, Ended, RequestCounts, Requests};
use doorbell::{ChannelConfig, Event, Handle, Listener, Node};

use super::{Announce, Failure, PATIENCE, sleeping, until};

pub(crate) const ORDERS: u32 = 200;

/// Each order whose number this divides is left without an answer.
pub(crate) const MUTE_EVERY: u32 = 50;

/// Answers orders, but for some, until the trader has closed.
pub(crate) fn serve<P: Provider>(node: &Node<P, impl Network>, tell: Announce<'_>) -> Result<u32, Failure> {
    let mut workers = node.workers(&sleeping())?;
    let mut listener = Listener::bind(node, &workers, "[::]:0".parse()?, &ChannelConfig::default())?;
    tell(listener.handle());
    let trader = listener.accept(node, &mut workers, node.within(PATIENCE))?;
    let worker = workers.get_mut(trader.worker).ok_or("no such worker")?;
    let mut orders = 0;
    until(worker, |turn, event| {
        match event {
            Event::Received { message, .. } => {
                orders += 1;
                let asked = Asked::of(message).ok().filter(|_| orders % MUTE_EVERY != 0)?;
                let number = asked.body().to_vec();
                // If there is no room, the trader's deadline ends the request.
                let _ = asked
                    .answer(&number)
                    .map(|answer| turn.channel.send_lease(answer));
                None
            }
            Event::PeerClosed { .. } => Some(()),
            _ => None,
        }
    })?;
    Ok(orders)
}

/// Has up to eight orders in flight, each for 200 ms.
pub(crate) fn trade<P: Provider>(
    node: &Node<P, impl Network>,
    handle: &Handle,
) -> Result<RequestCounts, Failure> {
    let mut workers = node.workers(&sleeping())?;
    let config = ChannelConfig::default();
    let to = node.connect(&mut workers, handle, &config, node.within(PATIENCE))?;
    let worker = workers.get_mut(to.worker).ok_or("no such worker")?;
    let (mut requests, mut next) = (Requests::new(8, 64), 0_u32);
    while next < ORDERS || requests.in_flight() > 0 {
        let deadline = worker.within(Duration::from_millis(200));
        while next < ORDERS && requests.room() > 0 {
            let sent = requests.send(worker, to.channel, &next.to_be_bytes(), deadline, next);
            sent.map_err(|refused| refused.kind)?;
            next += 1;
        }
        requests.poll(worker, |number, end| match end {
            Ended::Answered(body) => assert_eq!(body, number.to_be_bytes()),
            end => println!("order {number}: {end:?}"),
        })?;
    }
    worker.close(to.channel, worker.within(PATIENCE), |_, _| {})?;
    Ok(requests.counts())
}
