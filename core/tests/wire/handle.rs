//! Handles: limits in pairs, padding, newer versions, and every byte cut or changed.

use core::num::NonZeroU16;

use doorbell_core::wire::{
    Field, Fit, HANDLE_TEXT_BYTES_MAX, Handle, HandleTextError, NoRails, Reason, WireError,
};

use crate::{oracle, samples};

fn refusal(bytes: &[u8]) -> (Field, u16, Reason) {
    let WireError {
        field,
        offset,
        reason,
        ..
    } = Handle::parse(bytes).unwrap_err();
    (field, offset, reason)
}

/// The sample with one byte changed.
fn changed(index: usize, value: u8) -> Vec<u8> {
    let mut bytes = samples::handle(&samples::rails()).as_bytes().to_vec();
    bytes[index] = value;
    bytes
}

#[test]
fn each_truncation_names_the_field_that_is_cut() {
    let handle = samples::handle(&samples::rails());
    let bytes = handle.as_bytes();
    for length in 0..bytes.len() {
        let (_, offset, reason) = refusal(&bytes[..length]);
        assert_eq!(reason, Reason::Truncated, "{length}");
        assert!(usize::from(offset) <= length);
        oracle::handle::check(&bytes[..length]);
    }
    for (length, field) in [
        (0, Field::Magic),
        (3, Field::Magic),
        (4, Field::Version),
        (9, Field::Port),
        (19, Field::Instance),
        (20, Field::RailTag),
        (21, Field::RailPrefix),
        (22, Field::RailSpeed),
        (26, Field::RailAddress),
        (27, Field::RailTag),
        (53, Field::RailGid),
        (103, Field::RailGid),
    ] {
        assert_eq!(refusal(&bytes[..length]).0, field, "{length}");
    }
}

#[test]
fn each_changed_byte_is_refused_or_means_what_it_says() {
    let bytes = samples::handle(&samples::rails()).as_padded_bytes().to_vec();
    for index in 0..bytes.len() {
        for value in 0..=u8::MAX {
            let mut changed = bytes.clone();
            changed[index] = value;
            oracle::handle::check(&changed);
        }
    }
}

#[test]
fn what_is_wrong_is_named() {
    for (index, value, refused) in [
        (0, 0x45, (Field::Magic, 0, Reason::Unknown)),
        (4, 0, (Field::VersionMin, 10, Reason::Mismatch)),
        (5, 19, (Field::Length, 5, Reason::OutOfRange)),
        (5, 129, (Field::Length, 5, Reason::OutOfRange)),
        (5, 105, (Field::Length, 5, Reason::Truncated)),
        (6, 2, (Field::Flags, 6, Reason::NotZero)),
        (7, 0, (Field::RailCount, 7, Reason::Zero)),
        (7, 3, (Field::Length, 5, Reason::Mismatch)),
        (10, 0, (Field::VersionMin, 10, Reason::Zero)),
        (10, 5, (Field::VersionMin, 10, Reason::Mismatch)),
        (11, 1, (Field::Reserved, 11, Reason::NotZero)),
        (20, 0x03, (Field::RailTag, 20, Reason::Unknown)),
        (20, 0x81, (Field::RailTag, 20, Reason::Unknown)),
        (21, 33, (Field::RailPrefix, 21, Reason::OutOfRange)),
        (28, 129, (Field::RailPrefix, 28, Reason::OutOfRange)),
        (23, 0xe0, (Field::RailAddress, 23, Reason::NotUnicast)),
        (30, 0xff, (Field::RailAddress, 30, Reason::NotUnicast)),
    ] {
        assert_eq!(refusal(&changed(index, value)), refused, "byte {index} = {value}");
    }
    let mut no_port = changed(8, 0);
    no_port[9] = 0;
    assert_eq!(refusal(&no_port), (Field::Port, 8, Reason::Zero));
    let mut no_instance = changed(12, 0);
    no_instance[12..20].fill(0);
    assert_eq!(refusal(&no_instance), (Field::Instance, 12, Reason::Zero));
    let mut derived_gid = changed(53, 0);
    derived_gid[53..69].copy_from_slice(&[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 192, 0, 2, 1]);
    assert_eq!(refusal(&derived_gid), (Field::RailGid, 53, Reason::NotCanonical));
    derived_gid[53..69].fill(0);
    assert_eq!(refusal(&derived_gid), (Field::RailGid, 53, Reason::Zero));
}

#[test]
fn padding_is_zero_and_ends_at_128() {
    let handle = samples::handle(&samples::rails());
    let length = handle.as_bytes().len();
    assert!(Handle::parse(handle.as_padded_bytes()).is_ok());
    assert!(Handle::parse(&handle.as_padded_bytes()[..length + 1]).is_ok());
    for index in length..128 {
        let mut padded = *handle.as_padded_bytes();
        padded[index] = 1;
        assert_eq!(
            refusal(&padded),
            (Field::Trailing, u16::try_from(index).unwrap(), Reason::NotZero)
        );
    }
    let mut longer = handle.as_padded_bytes().to_vec();
    longer.push(0);
    assert_eq!(refusal(&longer), (Field::Trailing, 128, Reason::TooLong));
}

#[test]
fn fifteen_ipv4_or_five_ipv6_rails_fit() {
    for (address, fitting) in [("10.0.0.1/24", 15), ("fd00::1/64", 5)] {
        let rail = samples::rail(address, 10_000);
        let mut builder = Handle::builder(NonZeroU16::MIN, samples::listener());
        for _ in 0..fitting {
            assert_eq!(builder.push(&rail), Fit::Included);
        }
        let full = builder.clone().finish().unwrap();
        assert!(!full.has_more());
        assert_eq!(builder.push(&rail), Fit::LeftOut);
        let more = builder.finish().unwrap();
        assert!(more.has_more() && Handle::parse(more.as_bytes()).unwrap().has_more());
        assert_eq!(more.rails().iter().count(), fitting);
    }
    assert_eq!(
        Handle::builder(NonZeroU16::MIN, samples::listener()).finish(),
        Err(NoRails)
    );
}

#[test]
fn a_shorter_rail_goes_in_where_a_longer_one_did_not() {
    let mut rails = vec![samples::rail("fd00::1/64", 0); 6];
    rails.push(samples::rail("10.0.0.1/24", 0));
    let handle = samples::handle(&rails);
    assert!(handle.has_more());
    assert_eq!(handle.rails().iter().count(), 6);
    assert_eq!(handle.rails().iter().last(), rails.last().copied());
}

/// A handle as a newer version could write it: this one reads what it knows.
#[test]
fn of_a_newer_version_the_unknown_is_passed_over() {
    let mut newer = samples::handle(&samples::rails()[..1]).as_bytes().to_vec();
    // A kind not known, of a fixed and of an explicit length, then one that is; then bytes of no rail at all.
    newer.extend_from_slice(&[0x05, 1, 2, 3, 4, 5, 6]);
    newer.extend_from_slice(&[0xe9, 5, 9, 9, 9]);
    newer.extend_from_slice(&[0x01, 16, 0, 10, 9, 8, 7]);
    newer.extend_from_slice(&[1, 2, 3]);
    let length = u8::try_from(newer.len()).unwrap();
    newer[4] = 5;
    newer[5] = length;
    newer[6] = 0x81;
    newer[7] = 4;
    newer[11] = 0xff;
    let handle = Handle::parse(&newer).unwrap();
    let rails: Vec<_> = handle.rails().iter().collect();
    assert_eq!(rails, [samples::rails()[0], samples::rail("10.9.8.7/16", 0)]);
    assert!(handle.has_more());
    assert_eq!(handle.versions().newest(), 5);
    oracle::handle::check(&newer);
    for length in 0..newer.len() {
        assert!(Handle::parse(&newer[..length]).is_err());
    }
    // With this version's number, the same bytes are wrong, and so is an unknown length class.
    for known in [1, 2, 3, 4] {
        let mut lying = newer.clone();
        lying[4] = known;
        assert!(Handle::parse(&lying).is_err());
    }
    newer[27] = 0x85;
    assert_eq!(refusal(&newer), (Field::RailTag, 27, Reason::Unknown));
    // A listener that no longer speaks this version says so in its oldest version.
    newer[10] = 5;
    assert_eq!(refusal(&newer), (Field::VersionMin, 10, Reason::Unknown));
}

#[test]
fn an_explicit_length_covers_its_own_two_bytes() {
    for (length, is_good) in [(0, false), (1, false), (2, true)] {
        let mut newer = samples::handle(&samples::rails()[..1]).as_bytes().to_vec();
        newer.extend_from_slice(&[0xe9, length]);
        newer[4] = 5;
        newer[5] += 2;
        newer[7] = 2;
        assert_eq!(Handle::parse(&newer).is_ok(), is_good, "{length}");
    }
}

#[test]
fn text_survives_and_notices_each_changed_character() {
    let handle = samples::handle(&samples::rails());
    let text = handle.to_string();
    assert_eq!(text.parse(), Ok(handle));
    for (position, _) in text.char_indices() {
        for digit in "0123456789abcdefAFg:"
            .chars()
            .filter(|digit| !text[position..].starts_with(*digit))
        {
            let mut changed = text.clone();
            changed.replace_range(position..=position, &digit.to_string());
            assert!(changed.parse::<Handle>().is_err(), "{changed}");
        }
        assert!(text[..position].parse::<Handle>().is_err());
    }
    let full = samples::handle(&vec![samples::rail("10.0.0.1/24", 0); 15]);
    assert!(full.to_string().len() <= HANDLE_TEXT_BYTES_MAX);
    assert_eq!(
        (text.clone() + "0").parse::<Handle>(),
        Err(HandleTextError::TooShort)
    );
    assert_eq!(
        format!("doorbell:{}", "00".repeat(130)).parse::<Handle>(),
        Err(HandleTextError::CheckSum)
    );
    assert_eq!(
        format!("doorbell:{}", "00".repeat(131)).parse::<Handle>(),
        Err(HandleTextError::TooLong)
    );
    assert_eq!("10.0.0.1:18515".parse::<Handle>(), Err(HandleTextError::Prefix));
    assert_eq!("doorbell:".parse::<Handle>(), Err(HandleTextError::TooShort));
    assert_eq!(
        "doorbell:0G".parse::<Handle>(),
        Err(HandleTextError::NotHexadecimal { position: 10 })
    );
}
