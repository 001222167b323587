//! The example over the simulated fabric, a gateway and a trader in one process; and that what they check can fail.

use core::time::Duration;
use std::time::Instant;

use clap::{CommandFactory as _, Parser as _};

use super::message::{Answer, Order};
use super::orders::{Orders, Sent};
use super::{All, Arguments, PROGRAM, Role, Served, Traded, both};

fn run(arguments: &[&str]) -> All<Served, Traded> {
    let program = [PROGRAM, "simulated"].iter().chain(arguments);
    let Role::Simulated(simulated) = Arguments::try_parse_from(program).unwrap().role else {
        panic!("another role");
    };
    both(&simulated).unwrap()
}

/// Every order ended in one way.
fn offered(found: &All<Served, Traded>) -> u64 {
    let trader = &found.connected[0];
    trader.answered + trader.late + trader.lost + trader.rejected
}

#[test]
fn all_orders_are_answered() {
    // In the open loop no more orders than fit into the backlog: none can be rejected, however slow this is.
    let closed = ["--in-flight", "8", "--orders", "2000"];
    let open = ["--rate", "1000", "--orders", "500"];
    for (load, orders) in [(closed, 2000), (open, 500)] {
        let found = run(&[&load[..], &["--deadline-us", "5000000", "--backlog", "512"]].concat());
        assert_eq!(found.failures, [""; 0]);
        assert_eq!(found.connected[0].answered, orders);
        assert_eq!(found.listener.answered, orders);
        assert_eq!(found.connected[0].latency.unwrap().count, orders);
    }
}

#[test]
fn a_gateway_that_sleeps_is_woken() {
    let found = run(&["--sleep", "--orders", "500", "--deadline-us", "5000000"]);
    assert_eq!(found.failures, [""; 0]);
    assert_eq!(found.connected[0].answered, 500);
}

#[test]
fn a_lost_order_is_told_and_not_waited_for() {
    let found = run(&[
        "--orders",
        "1000",
        "--in-flight",
        "4",
        "--mute-every",
        "100",
        "--grace-ms",
        "1000",
    ]);
    assert_eq!(found.connected[0].lost, 10);
    assert_eq!(found.failures, ["10 orders were lost: sent, and never answered"]);
    assert_eq!(offered(&found), 1000);
}

#[test]
fn back_pressure_is_no_loss() {
    let found = run(&[
        "--orders",
        "1000",
        "--rate",
        "100000",
        "--work-us",
        "200",
        "--backlog",
        "16",
    ]);
    assert_eq!(found.failures, [""; 0]);
    assert!(found.connected[0].rejected > 0);
    assert_eq!(found.connected[0].lost, 0);
    assert_eq!(offered(&found), 1000);
    assert_eq!(found.listener.orders, 1000 - found.connected[0].rejected);
}

#[test]
fn each_answer_is_taken_once_and_compared() {
    let began = Instant::now();
    let at = |ms| began + Duration::from_millis(ms);
    let sent = |id| Sent {
        order: Order::of(id),
        since: began,
    };
    let answer = |id| Order::of(id).answer().to_bytes();
    let mut orders = Orders::new().unwrap();
    orders.note_answer(at(5), sent(1), &answer(1));
    // Again; and to orders that were never sent.
    for id in [1, 4, 9] {
        orders.note_late(at(6), &answer(id));
    }
    assert_eq!((orders.answered, orders.unasked), (1, 3));
    for id in [0, 2, 3] {
        orders.note_overdue(sent(id));
    }
    orders.note_late(at(12), &answer(0));
    assert_eq!((orders.late, orders.overdue()), (1, 2));
    // One that was changed on its way, and another order's.
    let mut bytes = answer(3);
    assert_eq!(Answer::parse(&bytes), Some(Order::of(3).answer()));
    bytes[9] ^= 1;
    orders.note_late(at(12), &bytes);
    assert_eq!((orders.wrong, orders.overdue()), (1, 2));
    orders.note_answer(at(12), sent(5), &answer(6));
    let mut other = Order::of(2).answer();
    other.id = 3;
    orders.note_late(at(12), &other.to_bytes());
    assert_eq!((orders.wrong, orders.overdue()), (3, 1));
    assert_eq!(orders.latencies.percentiles().unwrap().count, 4);
    let order = Order::of(3);
    assert_eq!(Order::parse(&order.to_bytes()), Some(order));
}

#[test]
fn the_commands_of_scenarios_are_understood() {
    let (faults, commands) =
        super::around::scenarios::faults("{examples}/order-gateway", &Arguments::command());
    assert!(faults.is_empty() && commands > 0, "{faults:#?}");
}
