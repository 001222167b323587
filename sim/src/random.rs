//! Randomness from a seed: the one source of it in the simulation, so a seed determines a run.

/// A generator of numbers that look random: xoshiro256**, seeded through splitmix64.
///
/// The same seed gives the same numbers on every machine. It keeps no secret.
///
/// Source: Blackman and Vigna, "Scrambled linear pseudorandom number generators", 2018.
#[derive(Clone, Debug)]
pub struct Random {
    state: [u64; 4],
}

/// Denominator of all probabilities.
pub(crate) const MILLION: u32 = 1_000_000;

impl Random {
    /// The numbers of a seed.
    #[must_use]
    pub const fn new(seed: u64) -> Self {
        let (a, seed) = split_mix(seed);
        let (b, seed) = split_mix(seed);
        let (c, seed) = split_mix(seed);
        let (d, _) = split_mix(seed);
        Self { state: [a, b, c, d] }
    }

    /// The next number.
    pub const fn draw(&mut self) -> u64 {
        let [mut a, mut b, mut c, mut d] = self.state;
        let drawn = b.wrapping_mul(5).rotate_left(7).wrapping_mul(9);
        let shifted = b << 17;
        c ^= a;
        d ^= b;
        b ^= c;
        a ^= d;
        c ^= shifted;
        d = d.rotate_left(45);
        self.state = [a, b, c, d];
        drawn
    }

    /// A number below this one; zero where it is zero.
    pub fn below(&mut self, end: u64) -> u64 {
        // The upper half of the product: nearly even for the small ends it is for.
        let product = u128::from(self.draw()).wrapping_mul(u128::from(end));
        u64::try_from(product >> 64).unwrap_or_default()
    }

    /// A place in a list of so many; zero where there is none.
    pub fn index(&mut self, count: usize) -> usize {
        usize::try_from(self.below(count as u64)).unwrap_or_default()
    }

    /// Whether something happens that happens so often in a million.
    pub fn happens(&mut self, per_million: u32) -> bool {
        self.below(u64::from(MILLION)) < u64::from(per_million)
    }
}

/// A number of the seed, and the seed of the next.
const fn split_mix(seed: u64) -> (u64, u64) {
    let next = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut word = next;
    word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    (word ^ (word >> 31), next)
}

#[cfg(test)]
mod tests {
    use super::{Random, split_mix};

    #[test]
    fn the_numbers_are_those_published() {
        assert_eq!(split_mix(0).0, 0xe220_a839_7b1d_cdaf);
        let mut random = Random { state: [1, 2, 3, 4] };
        let drawn = [(); 4].map(|()| random.draw());
        assert_eq!(drawn, [11520, 0, 1_509_978_240, 1_215_971_899_390_074_240]);
    }

    #[test]
    fn what_is_below_stays_below_and_comes_evenly() {
        let mut random = Random::new(7);
        let mut counts = [0_u32; 5];
        for _ in 0..5000 {
            counts[usize::try_from(random.below(5)).unwrap()] += 1;
        }
        assert!(
            counts.iter().all(|count| (800..1200).contains(count)),
            "{counts:?}"
        );
        assert_eq!(random.below(0), 0);
        let often = (0..100_000).filter(|_| random.happens(10_000)).count();
        assert!((800..1200).contains(&often), "{often} of 100,000 at one percent");
        assert!(!random.happens(0) && random.happens(1_000_000));
    }
}
