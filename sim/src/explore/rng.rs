//! The simulator's only source of randomness: splitmix64. Small, seedable, and the same for ever, so
//! that a seed written down today means the same run after every upgrade of every dependency.

/// A splitmix64 generator.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rng {
    state: u64,
}

/// Mixes the bits of `value`, so that near seeds give far streams.
pub const fn mix(value: u64) -> u64 {
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

impl Rng {
    /// The stream of `seed`.
    pub const fn new(seed: u64) -> Self {
        Self { state: mix(seed.wrapping_add(0x9e37_79b9_7f4a_7c15)) }
    }

    /// A stream of its own for one purpose, named by a number: drawing from it moves nobody else's.
    pub const fn split(seed: u64, purpose: u64) -> Self {
        Self::new(mix(seed) ^ mix(purpose.wrapping_mul(0xff51_afd7_ed55_8ccd)))
    }

    /// The next number.
    pub fn number(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.state)
    }

    /// A number below `width`; 0 when `width` is 0.
    pub fn below(&mut self, width: u64) -> u64 {
        // The high half of a 128-bit product: biased by less than width / 2^64.
        let product = u128::from(self.number()) * u128::from(width);
        u64::try_from(product >> 64).expect("the high half of a u128 is a u64")
    }

    /// True `part` times out of `whole`.
    pub fn chance(&mut self, part: u64, whole: u64) -> bool {
        self.below(whole) < part
    }

    /// One of `items`, or `None` when there is none.
    pub fn pick<'a, T>(&mut self, items: &'a [T]) -> Option<&'a T> {
        let index = usize::try_from(self.below(items.len() as u64)).ok()?;
        items.get(index)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_stream_of_a_seed_never_changes() {
        let mut rng = Rng::new(7);
        let first: Vec<_> = (0..4).map(|_| rng.number()).collect();
        let pinned = [
            13_309_476_754_707_697_221,
            11_984_929_618_412_882_174,
            10_134_167_572_453_724_827,
            11_146_164_815_057_002_045,
        ];
        assert_eq!(first, pinned);
        // The published test vector of splitmix64.
        assert_eq!(Rng { state: 0 }.number(), 0xe220_a839_7b1d_cdaf);
    }

    #[test]
    fn below_stays_below_and_reaches_every_value() {
        let mut rng = Rng::new(1);
        let mut seen = [0; 5];
        for _ in 0..1_000 {
            seen[usize::try_from(rng.below(5)).expect("small")] += 1;
        }
        assert!(seen.iter().all(|count| *count > 100), "{seen:?}");
        assert_eq!(rng.below(0), 0);
    }
}
