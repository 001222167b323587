//! Reading a bzImage: the release it holds, and the kernel inside it.
//!
//! An emulated machine takes seconds to unpack its own kernel; unpacked here
//! once, it starts at once (through the PVH entry, which QEMU knows).
//!
//! Source: the kernel's Documentation/arch/x86/boot.rst.

use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result, bail, ensure};
use object::LittleEndian;
use object::elf::{FileHeader64, NoteType};
use object::read::elf::{FileHeader as _, ProgramHeader as _};

use crate::tool;

/// Offset of the setup header's magic.
const MAGIC_OFFSET: usize = 0x202;

/// The release of the kernel in an image, as `uname -r` will give it.
///
/// # Errors
///
/// The file cannot be read or is no bzImage.
pub(crate) fn release(image: &Path) -> Result<String> {
    let bytes = fs::read(image).with_context(|| format!("cannot read {}", image.display()))?;
    release_in(&bytes).with_context(|| format!("{} is not a kernel image", image.display()))
}

fn release_in(bytes: &[u8]) -> Result<String> {
    check_magic(bytes)?;
    let offset = usize::from(u16::from_le_bytes(field(bytes, 0x20e)?)).saturating_add(0x200);
    let text = bytes.get(offset..).context("its version lies outside it")?;
    let word = text.split(|&b| b == b' ' || b == 0).next().unwrap_or_default();
    ensure!(!word.is_empty() && word.len() < 100, "it names no version");
    Ok(core::str::from_utf8(word)
        .context("its version is no text")?
        .to_owned())
}

/// Writes the unpacked kernel in `image` to `vmlinux`.
///
/// # Errors
///
/// The image has another form, or the tool for its compression is missing.
pub(crate) fn unpack(image: &Path, vmlinux: &Path) -> Result<()> {
    let bytes = fs::read(image).with_context(|| format!("cannot read {}", image.display()))?;
    let payload = payload_in(&bytes)?;
    let (program, payload) = decompressor(payload)?;
    let packed = vmlinux.with_extension("packed");
    fs::write(&packed, payload)?;
    let unpacked = tool::filter(program, &["-dc"], &packed, vmlinux);
    fs::remove_file(&packed)?;
    unpacked?;
    let head = fs::File::open(vmlinux).and_then(|mut file| {
        let mut head = [0; 4];
        std::io::Read::read_exact(&mut file, &mut head).map(|()| head)
    })?;
    ensure!(
        &head == b"\x7fELF",
        "the content packed in {} is no ELF file",
        image.display()
    );
    Ok(())
}

/// Whether QEMU can start this unpacked kernel: by the entry its Xen note of type 18 names.
///
/// # Errors
///
/// It cannot be read.
pub(crate) fn has_pvh_entry(vmlinux: &Path) -> Result<bool> {
    // Another file has no such entry.
    Ok(names_pvh_entry(&fs::read(vmlinux)?).unwrap_or(false))
}

/// Xen's note for the entry. Source: Xen's `xen/include/public/elfnote.h`.
const XEN_ELFNOTE_PHYS32_ENTRY: NoteType = NoteType(18);

fn names_pvh_entry(elf: &[u8]) -> object::Result<bool> {
    let header = FileHeader64::<LittleEndian>::parse(elf)?;
    let endian = header.endian()?;
    for segment in header.program_headers(endian, elf)? {
        let Some(mut notes) = segment.notes(endian, elf)? else {
            continue;
        };
        while let Some(note) = notes.next()? {
            if note.name() == b"Xen" && note.n_type(endian) == XEN_ELFNOTE_PHYS32_ENTRY {
                return Ok(true);
            }
        }
    }
    Ok(false)
}

/// Returns the offset of the last byte that is loaded from a 64-bit little-endian ELF file; `None` for any
/// other file.
pub(crate) fn loaded_end(elf: &[u8]) -> Option<usize> {
    let header = FileHeader64::<LittleEndian>::parse(elf).ok()?;
    let endian = header.endian().ok()?;
    let segments = header.program_headers(endian, elf).ok()?;
    let mut ends = segments.iter().map(|segment| {
        let (offset, bytes) = segment.file_range(endian);
        usize::try_from(offset.checked_add(bytes)?).ok()
    });
    ends.try_fold(0, |end, this| {
        let this = this?;
        (this <= elf.len()).then_some(this.max(end))
    })
}

/// The tool that unpacks a payload, and the payload without the four bytes of
/// length that follow it where the format's own tool does not expect them.
fn decompressor(payload: &[u8]) -> Result<(&'static str, &[u8])> {
    let end = payload.len().saturating_sub(4);
    let without_length = payload.get(..end).unwrap_or_default();
    match payload {
        [0x28, 0xb5, 0x2f, 0xfd, ..] => Ok(("zstd", without_length)),
        // The whole: xz has its length at its end already.
        [0xfd, b'7', b'z', b'X', b'Z', 0, ..] => Ok(("xz", xz_stream(payload))),
        [0x1f, 0x8b, ..] => Ok(("gzip", payload)),
        [0x02, 0x21, 0x4c, 0x18, ..] => Ok(("lz4", without_length)),
        _ => bail!("its kernel is packed in a way not known here"),
    }
}

/// An xz stream ends with `YZ`; the length after it is not part of it.
fn xz_stream(payload: &[u8]) -> &[u8] {
    let end = payload.len().saturating_sub(4);
    match payload.get(..end) {
        Some(stream) if stream.ends_with(b"YZ") => stream,
        _ => payload,
    }
}

fn payload_in(bytes: &[u8]) -> Result<&[u8]> {
    check_magic(bytes)?;
    let protocol = u16::from_le_bytes(field(bytes, 0x206)?);
    ensure!(protocol >= 0x208, "its boot protocol {protocol:#x} is too old");
    let sectors = match field::<1>(bytes, 0x1f1)? {
        [0] => 4,
        [n] => usize::from(n),
    };
    let base = sectors.saturating_add(1).saturating_mul(512);
    let offset = usize::try_from(u32::from_le_bytes(field(bytes, 0x248)?))?;
    let length = usize::try_from(u32::from_le_bytes(field(bytes, 0x24c)?))?;
    let start = base.saturating_add(offset);
    bytes
        .get(start..start.saturating_add(length))
        .context("its kernel lies outside it")
}

fn check_magic(bytes: &[u8]) -> Result<()> {
    ensure!(
        &field::<4>(bytes, MAGIC_OFFSET)? == b"HdrS",
        "it has no boot header"
    );
    Ok(())
}

fn field<const N: usize>(bytes: &[u8], offset: usize) -> Result<[u8; N]> {
    let field = bytes
        .get(offset..offset.saturating_add(N))
        .context("it is too short")?;
    Ok(field.try_into()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A bzImage with one setup sector after the first, and this payload.
    fn image_of(payload: &[u8]) -> Vec<u8> {
        let mut image = vec![0; 1024];
        image[0x1f1] = 1;
        image[0x202..0x206].copy_from_slice(b"HdrS");
        image[0x206..0x208].copy_from_slice(&0x20f_u16.to_le_bytes());
        image[0x20e..0x210].copy_from_slice(&0x100_u16.to_le_bytes());
        image[0x300..0x30f].copy_from_slice(b"6.1.0-50-x (me)");
        image[0x248..0x24c].copy_from_slice(&16_u32.to_le_bytes());
        image[0x24c..0x250].copy_from_slice(&u32::try_from(payload.len()).unwrap().to_le_bytes());
        image.extend([0; 16]);
        image.extend(payload);
        image
    }

    #[test]
    fn the_release_is_read_from_the_header() {
        assert_eq!(release_in(&image_of(b"")).unwrap(), "6.1.0-50-x");
        assert!(release_in(b"short").is_err());
        assert!(
            release_in(&vec![0; 4096])
                .unwrap_err()
                .to_string()
                .contains("boot header")
        );
    }

    #[test]
    fn the_payload_is_unpacked_and_must_be_a_kernel() {
        let folder = tempfile::tempdir().unwrap();
        let (plain, packed) = (folder.path().join("plain"), folder.path().join("packed"));
        for (content, good) in [(&b"\x7fELFkernel"[..], true), (b"something else", false)] {
            fs::write(&plain, content).unwrap();
            tool::filter("gzip", &["-c"], &plain, &packed).unwrap();
            let image = folder.path().join("image");
            fs::write(&image, image_of(&fs::read(&packed).unwrap())).unwrap();
            let out = folder.path().join("vmlinux");
            let result = unpack(&image, &out);
            assert_eq!(result.is_ok(), good, "{result:?}");
            if good {
                assert_eq!(fs::read(&out).unwrap(), content);
            }
        }
    }

    /// An ELF file with one segment of notes, that has one of this owner and type.
    fn elf_with_note(owner: &[u8; 4], kind: u32) -> Vec<u8> {
        let mut elf = vec![0; 64 + 56];
        elf[..7].copy_from_slice(b"\x7fELF\x02\x01\x01");
        elf[0x20] = 64;
        elf[0x34..0x3a].copy_from_slice(&[64, 0, 56, 0, 1, 0]);
        let note = [4_u32, 4, kind].map(u32::to_le_bytes).concat();
        let note = [&note[..], owner, &[0; 4]].concat();
        elf[64] = 4;
        elf[64 + 8] = 120;
        elf[64 + 32] = u8::try_from(note.len()).unwrap();
        elf[64 + 48] = 4;
        elf.extend(note);
        elf
    }

    #[test]
    fn the_entry_for_machines_is_named_by_a_note_of_xens() {
        assert!(names_pvh_entry(&elf_with_note(b"Xen\0", 18)).unwrap());
        assert!(!names_pvh_entry(&elf_with_note(b"Xen\0", 17)).unwrap());
        assert!(!names_pvh_entry(&elf_with_note(b"GNU\0", 18)).unwrap());
        let whole = elf_with_note(b"Xen\0", 18);
        assert_eq!(loaded_end(&whole), Some(whole.len()));
        for length in 0..whole.len() {
            assert!(!names_pvh_entry(&whole[..length]).unwrap_or(false), "{length}");
            assert_eq!(loaded_end(&whole[..length]), None, "{length}");
        }
    }

    #[test]
    fn a_payload_outside_the_image_or_of_another_kind_is_refused() {
        let mut image = image_of(b"abc");
        assert!(decompressor(payload_in(&image).unwrap()).is_err());
        image.truncate(1030);
        assert!(payload_in(&image).unwrap_err().to_string().contains("outside"));
    }
}
