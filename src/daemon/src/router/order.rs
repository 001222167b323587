//! The order of the clients' turns. It differs in each poll, and over time no client is before another more often than behind it.

/// Generates orders. The sequence is deterministic, from a fixed seed.
#[derive(Debug)]
pub(super) struct Order(u64);

impl Default for Order {
    fn default() -> Self {
        Self(0x9e37_79b9_7f4a_7c15)
    }
}

impl Order {
    /// The next order of `count` indices: each occurs once.
    pub(super) fn next(&mut self, count: usize) -> impl Iterator<Item = usize> + use<> {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        let word = self.0.wrapping_mul(0x2545_f491_4f6c_dd1d);
        // An odd stride visits each index below a power of two exactly once.
        let mask = count.next_power_of_two().saturating_sub(1);
        #[expect(clippy::cast_possible_truncation, reason = "bits below the mask")]
        let (first, stride) = ((word >> 32) as usize, word as usize | 1);
        let place = move |step: usize| first.wrapping_add(step.wrapping_mul(stride)) & mask;
        (0..=mask).map(place).filter(move |place| *place < count)
    }
}

#[cfg(test)]
mod tests {
    use super::Order;

    #[test]
    fn an_order_has_each_place_once_and_any_two_are_as_often_one_way_as_the_other() {
        let mut order = Order::default();
        for count in [0, 1, 2, 7, 64, 100] {
            let mut places: Vec<_> = order.next(count).collect();
            places.sort_unstable();
            assert!(places.into_iter().eq(0..count));
        }
        for (one, other) in [(5, 6), (0, 99), (3, 67)] {
            let is_before = |_: &u32| {
                let both = order.next(100).find(|place| [one, other].contains(place));
                both == Some(one)
            };
            let before = (0..1000).filter(is_before).count();
            assert!((400..=600).contains(&before), "{one} before {other}: {before}");
        }
    }
}
