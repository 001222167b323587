//! A handle as text.

use super::only_if;

/// The bytes that a text spells, where it does so as a handle's does: prefix, digits, check sum.
pub(crate) fn read(text: &str) -> Option<Vec<u8>> {
    only_if(text.len() <= 269)?;
    let digits = text.strip_prefix("doorbell:")?;
    let digits: Option<Vec<u32>> = digits
        .chars()
        .map(|digit| "0123456789abcdef".chars().position(|known| known == digit))
        .map(|place| place.map(|place| u32::try_from(place).unwrap()))
        .collect();
    let digits = digits?;
    only_if(digits.len() % 2 == 0 && digits.len() >= 4)?;
    let (spelled, sum) = digits.split_at(digits.len() - 4);
    let bytes: Vec<u8> = spelled
        .chunks(2)
        .map(|pair| u8::try_from(pair[0] * 16 + pair[1]).unwrap())
        .collect();
    let sum = sum.iter().fold(0, |sum, digit| sum * 16 + digit);
    only_if(u32::from(check_sum(&bytes)) == sum)?;
    Some(bytes)
}

/// The text of any bytes.
pub(crate) fn write(bytes: &[u8]) -> String {
    let digits: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("doorbell:{digits}{:04x}", check_sum(bytes))
}

/// One bit after the other through a register of sixteen.
fn check_sum(bytes: &[u8]) -> u16 {
    let mut register = 0xffff_u16;
    for byte in bytes {
        for place in (0..8).rev() {
            let is_set = byte >> place & 1 == 1;
            let falls_out = register >= 0x8000;
            register <<= 1;
            if is_set != falls_out {
                register ^= 0x1021;
            }
        }
    }
    register
}
