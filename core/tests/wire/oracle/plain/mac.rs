//! HMAC-SHA-256, by its definition: RFC 2104 and FIPS 180-4.

use std::sync::LazyLock;

/// The initial hash value, and the constant that each round adds.
static NUMBERS: LazyLock<([u32; 8], [u32; 64])> = LazyLock::new(|| {
    let mut primes = (2..).filter(|number| (2..*number).all(|divisor| number % divisor != 0));
    let primes: [u32; 64] = core::array::from_fn(|_| primes.next().unwrap());
    let begin = core::array::from_fn(|at| root(primes[at], 2));
    (begin, primes.map(|prime| root(prime, 3)))
});

/// The hash of `bytes`.
pub(crate) fn sha256(bytes: &[u8]) -> [u8; 32] {
    let (mut state, constants) = *NUMBERS;
    let mut padded = [bytes, &[0x80]].concat();
    while padded.len() % 64 != 56 {
        padded.push(0);
    }
    padded.extend((bytes.len() as u64 * 8).to_be_bytes());
    for block in padded.chunks(64) {
        let mut words: Vec<u32> = block
            .chunks(4)
            .map(|word| u32::from_be_bytes(word.try_into().unwrap()))
            .collect();
        for at in 16..64 {
            let (near, far) = (words[at - 2], words[at - 15]);
            let near = near.rotate_right(17) ^ near.rotate_right(19) ^ near >> 10;
            let far = far.rotate_right(7) ^ far.rotate_right(18) ^ far >> 3;
            let sum = near.wrapping_add(words[at - 7]).wrapping_add(far);
            words.push(sum.wrapping_add(words[at - 16]));
        }
        let [mut a, mut b, mut c, mut d, mut e, mut f, mut g, mut h] = state;
        for at in 0..64 {
            let turned = e.rotate_right(6) ^ e.rotate_right(11) ^ e.rotate_right(25);
            let first = h
                .wrapping_add(turned)
                .wrapping_add(e & f ^ !e & g)
                .wrapping_add(constants[at])
                .wrapping_add(words[at]);
            let turned = a.rotate_right(2) ^ a.rotate_right(13) ^ a.rotate_right(22);
            let second = turned.wrapping_add(a & b ^ a & c ^ b & c);
            (h, g, f, e) = (g, f, e, d.wrapping_add(first));
            (d, c, b, a) = (c, b, a, first.wrapping_add(second));
        }
        for (word, more) in state.iter_mut().zip([a, b, c, d, e, f, g, h]) {
            *word = word.wrapping_add(more);
        }
    }
    let mut hash = [0; 32];
    for (to, word) in hash.chunks_mut(4).zip(state) {
        to.copy_from_slice(&word.to_be_bytes());
    }
    hash
}

/// Returns the HMAC-SHA-256 of `bytes` under `key`.
pub(crate) fn hmac(key: &[u8], bytes: &[u8]) -> [u8; 32] {
    let mut block = if key.len() > 64 {
        sha256(key).to_vec()
    } else {
        key.to_vec()
    };
    block.resize(64, 0);
    let masked = |mask: u8| block.iter().map(|byte| byte ^ mask).collect::<Vec<_>>();
    let inner = sha256(&[&masked(0x36), bytes].concat());
    sha256(&[&masked(0x5c)[..], &inner].concat())
}

/// The first 32 bits behind the point of the square root, or of the cube root.
fn root(number: u32, degree: u32) -> u32 {
    // In units of 2^-32: the largest whole number whose power is not above the number's.
    let is_below = |root: u128| match degree {
        2 => root * root <= u128::from(number) << 64,
        _ => root * root * root <= u128::from(number) << 96,
    };
    let mut root = 0;
    for bit in (0..40).rev() {
        if is_below(root | 1 << bit) {
            root |= 1 << bit;
        }
    }
    u32::try_from(root & u128::from(u32::MAX)).unwrap()
}
