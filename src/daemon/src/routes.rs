//! A cache of routes to endpoints of this node, by their numbers, so that most messages need no search.

use crate::client_state::Client;
use crate::router::ClientId;

/// Direct-mapped route cache of one client. The number of entries is a power of two and grows on demand; a client that sends nothing has none.
#[derive(Debug, Default)]
pub(crate) struct Routes(Box<[Route]>);

/// Route to the client that had this number in the job. A free entry has incarnation 0, which no client has.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Route {
    endpoint: u32,
    index: u32,
    incarnation: u64,
}

/// Smallest and largest number of entries.
const ROUTES_MIN: usize = 4;
const ROUTES_MAX: usize = 64;

impl Route {
    /// The index of the client in the router's table.
    pub(crate) const fn index(self) -> usize {
        self.index as usize
    }

    /// Whether the route leads to this process, and not to an earlier process in the same table entry.
    pub(crate) const fn is_to(self, client: &Client) -> bool {
        self.incarnation == client.incarnation
    }
}

impl Routes {
    /// Returns the cached route to an endpoint. The client may be gone by now.
    #[inline]
    pub(crate) fn get(&self, endpoint: u32) -> Option<Route> {
        let place = self.0.get(self.place(endpoint))?;
        (place.endpoint == endpoint).then_some(*place)
    }

    /// Caches a route. It evicts another route only if the cache has its largest size.
    pub(crate) fn set(&mut self, endpoint: u32, id: ClientId) {
        let is_taken = |all: &Self| {
            let there = all.0.get(all.place(endpoint));
            there.is_none_or(|there| there.incarnation != 0 && there.endpoint != endpoint)
        };
        while is_taken(self) && self.0.len() < ROUTES_MAX {
            self.grow();
        }
        let Ok(index) = u32::try_from(id.index()) else {
            return;
        };
        let incarnation = id.incarnation();
        self.put(Route {
            endpoint,
            index,
            incarnation,
        });
    }

    fn grow(&mut self) {
        let places = self.0.len().saturating_mul(2).max(ROUTES_MIN);
        let before = core::mem::replace(&mut self.0, vec![Route::default(); places].into());
        for route in before.iter().filter(|route| route.incarnation != 0) {
            self.put(*route);
        }
    }

    fn put(&mut self, route: Route) {
        let place = self.place(route.endpoint);
        if let Some(place) = self.0.get_mut(place) {
            *place = route;
        }
    }

    #[inline]
    fn place(&self, endpoint: u32) -> usize {
        endpoint as usize & self.0.len().wrapping_sub(1)
    }
}

#[cfg(test)]
mod tests {
    use super::{ROUTES_MAX, Routes};
    use crate::router::ClientId;

    #[test]
    fn ways_are_kept_up_to_the_most_and_the_last_one_in_a_place_stands() {
        let mut routes = Routes::default();
        assert!(routes.get(0).is_none());
        let index = |routes: &Routes, endpoint| routes.get(endpoint).map(super::Route::index);
        for endpoint in 0..ROUTES_MAX as u32 {
            routes.set(endpoint * 3, ClientId::of(endpoint as usize, 1));
        }
        for endpoint in 0..ROUTES_MAX as u32 {
            assert_eq!(index(&routes, endpoint * 3), Some(endpoint as usize));
        }
        let same = 3 + ROUTES_MAX as u32;
        assert_eq!(index(&routes, same), None);
        routes.set(same, ClientId::of(7, 2));
        assert_eq!((index(&routes, same), index(&routes, 3)), (Some(7), None));
        assert_eq!(routes.0.len(), ROUTES_MAX);
    }
}
