//! One thread through all that can happen, and many with a table of their own.

use std::sync::{Arc, Mutex};
use std::vec::Vec;

use super::{AcceptQueue, AcceptSlot, ReserveError, TakeError};

type Queue = AcceptQueue<Vec<AcceptSlot>>;

fn queue(places: usize) -> Queue {
    AcceptQueue::new((0..places).map(|_| AcceptSlot::new()).collect())
}

#[test]
fn full_is_full_until_a_place_is_left() {
    let queue = queue(2);
    let first = AcceptQueue::reserve(&queue).unwrap();
    let second = AcceptQueue::reserve(&queue).unwrap();
    assert_ne!(first.index(), second.index());
    assert_eq!(AcceptQueue::reserve(&queue).err(), Some(ReserveError::Full));
    assert_eq!(queue.free(), 0);
    // Given up, it is another's at once.
    let freed = second.index();
    drop(second);
    assert_eq!(queue.free(), 1);
    let second = AcceptQueue::reserve(&queue).unwrap();
    assert_eq!(second.index(), freed);
    // Published and taken, it is held until what was there has gone.
    first.publish();
    assert_eq!(AcceptQueue::reserve(&queue).err(), Some(ReserveError::Full));
    let taken = AcceptQueue::take(&queue).unwrap();
    assert_eq!(AcceptQueue::reserve(&queue).err(), Some(ReserveError::Full));
    assert_eq!(queue.free(), 0);
    let index = taken.index();
    drop(taken);
    assert_eq!(AcceptQueue::reserve(&queue).unwrap().index(), index);
}

#[test]
fn what_is_reserved_cannot_be_taken() {
    let queue = queue(2);
    assert_eq!(AcceptQueue::take(&queue).err(), Some(TakeError::Empty));
    let place = AcceptQueue::reserve(&queue).unwrap();
    assert_eq!(AcceptQueue::take(&queue).err(), Some(TakeError::Empty));
    place.publish();
    let taken = AcceptQueue::take(&queue).unwrap();
    assert_eq!(AcceptQueue::take(&queue).err(), Some(TakeError::Empty));
    drop(taken);
    assert_eq!(AcceptQueue::take(&queue).err(), Some(TakeError::Empty));
}

#[test]
fn the_oldest_goes_first_wherever_it_lies() {
    let queue = queue(5);
    let mut places: Vec<_> = (0..5).map(|_| AcceptQueue::reserve(&queue).unwrap()).collect();
    places.swap(0, 3);
    places.swap(1, 4);
    let order: Vec<u32> = places.iter().map(super::Reservation::index).collect();
    places.into_iter().for_each(super::Reservation::publish);
    let taken: Vec<_> = (0..5).map(|_| AcceptQueue::take(&queue).unwrap()).collect();
    assert!(taken.iter().map(super::Taken::index).eq(order));
}

#[test]
fn closed_it_is_over_once_all_is_settled() {
    let queue = queue(3);
    let given_up = AcceptQueue::reserve(&queue).unwrap();
    let late = AcceptQueue::reserve(&queue).unwrap();
    AcceptQueue::reserve(&queue).unwrap().publish();
    assert!(!queue.is_closed());
    queue.close();
    assert!(queue.is_closed() && !queue.is_over());
    assert_eq!(AcceptQueue::reserve(&queue).err(), Some(ReserveError::Closed));
    let first = AcceptQueue::take(&queue).unwrap();
    assert_eq!(AcceptQueue::take(&queue).err(), Some(TakeError::Empty));
    // The peer was accepted before: its connection is still taken.
    late.publish();
    let second = AcceptQueue::take(&queue).unwrap();
    drop(given_up);
    assert_eq!(AcceptQueue::take(&queue).err(), Some(TakeError::Closed));
    drop(first);
    assert!(!queue.is_over());
    drop(second);
    assert!(queue.is_over());
    queue.close();
    assert!(queue.is_over());
}

#[test]
fn without_places_it_is_always_full() {
    let queue = queue(0);
    assert_eq!(queue.capacity(), 0);
    assert_eq!(AcceptQueue::reserve(&queue).err(), Some(ReserveError::Full));
    queue.close();
    assert_eq!(AcceptQueue::take(&queue).err(), Some(TakeError::Closed));
}

#[test]
fn a_handle_is_let_go_with_each_guard() {
    let queue = Arc::new(queue(2));
    AcceptQueue::reserve(Arc::clone(&queue)).unwrap().publish();
    drop(AcceptQueue::reserve(Arc::clone(&queue)).unwrap());
    drop(AcceptQueue::take(Arc::clone(&queue)).unwrap());
    assert_eq!(Arc::strong_count(&queue), 1);
}

/// Many that publish or give up, several that take, a table in which each connection is moved in and out.
#[test]
fn between_threads_each_connection_is_accepted_once() {
    const PRODUCERS: u32 = 4;
    const CONSUMERS: u32 = 2;
    const EACH: u32 = 500;
    let queue = Arc::new(queue(7));
    let table: Arc<Vec<Mutex<Option<u32>>>> = Arc::new((0..7).map(|_| Mutex::new(None)).collect());
    let producers: Vec<_> = (0..PRODUCERS)
        .map(|producer| {
            let (queue, table) = (Arc::clone(&queue), Arc::clone(&table));
            std::thread::spawn(move || {
                let mut number = 0;
                while number < EACH {
                    let Ok(place) = AcceptQueue::reserve(&*queue) else {
                        std::thread::yield_now();
                        continue;
                    };
                    let connection = producer * EACH + number;
                    let before = table[place.index() as usize].lock().unwrap().replace(connection);
                    assert_eq!(before, None, "a place has one owner");
                    if number % 5 == 4 {
                        // The peer went away: its connection is not accepted.
                        *table[place.index() as usize].lock().unwrap() = None;
                        drop(place);
                    } else {
                        place.publish();
                    }
                    number += 1;
                }
            })
        })
        .collect();
    let consumers: Vec<_> = (0..CONSUMERS)
        .map(|_| {
            let (queue, table) = (Arc::clone(&queue), Arc::clone(&table));
            std::thread::spawn(move || {
                let mut accepted = Vec::new();
                loop {
                    match AcceptQueue::take(&*queue) {
                        Ok(taken) => {
                            let connection = table[taken.index() as usize].lock().unwrap().take();
                            accepted.push(connection.unwrap());
                        }
                        Err(TakeError::Closed) => return accepted,
                        Err(_) => std::thread::yield_now(),
                    }
                }
            })
        })
        .collect();
    producers.into_iter().for_each(|thread| thread.join().unwrap());
    queue.close();
    let mut accepted: Vec<u32> = consumers
        .into_iter()
        .flat_map(|thread| thread.join().unwrap())
        .collect();
    accepted.sort_unstable();
    let expected = (0..PRODUCERS * EACH).filter(|connection| connection % EACH % 5 != 4);
    assert!(accepted.into_iter().eq(expected));
    assert!(queue.is_over());
}
