//! The 512 bytes that begin every entry, read and written.

use crate::error::Error;

/// Everything in a tar stream is a multiple of this.
pub(crate) const BLOCK: usize = 512;
/// The same, for lengths.
pub(crate) const BLOCK_LEN: u64 = 512;

/// What twelve octal digits hold.
pub(crate) const MAX_OCTAL: u64 = 0o77_777_777_777;
/// What seven octal digits hold.
pub(crate) const MAX_ID: u64 = 0o7_777_777;

/// A header block as it came.
pub(crate) struct Header<'a>(pub(crate) &'a [u8; BLOCK]);

impl<'a> Header<'a> {
    /// Both sums that are in use: of unsigned and of signed bytes.
    pub(crate) fn sum_is_right(&self) -> bool {
        let Some(said) = octal(&self.0[148..156]) else { return false };
        let byte = |n: usize| if (148..156).contains(&n) { b' ' } else { self.0[n] };
        let unsigned: u64 = (0..BLOCK).map(|n| u64::from(byte(n))).sum();
        let signed: i64 = (0..BLOCK).map(|n| i64::from(byte(n).cast_signed())).sum();
        said == unsigned || i64::try_from(said) == Ok(signed)
    }

    pub(crate) fn kind(&self) -> u8 {
        self.0[156]
    }

    pub(crate) fn is_gnu(&self) -> bool {
        self.0[257..265] == *b"ustar  \0"
    }

    fn is_ustar(&self) -> bool {
        self.0[257..263] == *b"ustar\0"
    }

    pub(crate) fn name(&self) -> Vec<u8> {
        let name = text(&self.0[..100]);
        let prefix = text(&self.0[345..500]);
        if !self.is_ustar() || prefix.is_empty() {
            return name.to_vec();
        }
        [prefix, b"/", name].concat()
    }

    pub(crate) fn link(&self) -> &'a [u8] {
        text(&self.0[157..257])
    }

    pub(crate) fn mode(&self) -> Option<u64> {
        number(&self.0[100..108])
    }

    pub(crate) fn uid(&self) -> Option<u64> {
        number(&self.0[108..116])
    }

    pub(crate) fn gid(&self) -> Option<u64> {
        number(&self.0[116..124])
    }

    pub(crate) fn size(&self) -> Option<u64> {
        number(&self.0[124..136])
    }

    pub(crate) fn mtime(&self) -> Option<i64> {
        signed(&self.0[136..148])
    }

    /// Of an old GNU sparse entry: its size unpacked.
    pub(crate) fn real_size(&self) -> Option<u64> {
        number(&self.0[483..495])
    }

    /// Of an old GNU sparse entry: the first four pieces, and whether more blocks of them follow.
    pub(crate) fn sparse(&self) -> (&'a [u8], bool) {
        (&self.0[386..482], self.0[482] != 0)
    }
}

/// Pieces of an old GNU sparse map: pairs of offset and length, ended by an empty one.
pub(crate) fn sparse_pairs(bytes: &[u8]) -> impl Iterator<Item = Option<(u64, u64)>> + '_ {
    let pairs = bytes.chunks_exact(24).take_while(|pair| pair[0] != 0);
    pairs.map(|pair| Some((number(&pair[..12])?, number(&pair[12..])?)))
}

/// Up to the first NUL.
fn text(field: &[u8]) -> &[u8] {
    field.split(|byte| *byte == 0).next().unwrap_or_default()
}

fn octal(field: &[u8]) -> Option<u64> {
    let field = text(field).trim_ascii();
    field.iter().try_fold(0u64, |value, digit| match digit {
        b'0'..=b'7' => value.checked_mul(8)?.checked_add(u64::from(digit - b'0')),
        _ => None,
    })
}

/// Octal digits, or GNU's binary form for what they cannot hold.
fn signed(field: &[u8]) -> Option<i64> {
    let (first, rest) = field.split_first()?;
    match first {
        0x80 | 0xff => {
            // Sixteen digits' worth is enough: whatever is left of it may only continue the sign.
            let start = if *first == 0xff { -1i128 } else { 0 };
            let value = rest
                .iter()
                .try_fold(start, |value, byte| value.checked_mul(256).map(|value| value | i128::from(*byte)))?;
            i64::try_from(value).ok()
        }
        _ => octal(field).and_then(|value| i64::try_from(value).ok()),
    }
}

fn number(field: &[u8]) -> Option<u64> {
    signed(field).and_then(|value| u64::try_from(value).ok())
}

/// What a header block is made of; whatever does not fit stands in pax records before it.
pub(crate) struct Fields<'a> {
    pub(crate) name: &'a [u8],
    pub(crate) kind: u8,
    pub(crate) link: &'a [u8],
    pub(crate) mode: u32,
    pub(crate) uid: u64,
    pub(crate) gid: u64,
    pub(crate) size: u64,
    pub(crate) mtime: i64,
}

impl Fields<'_> {
    /// The block. Numbers and names that do not fit are cut: the records before it tell the truth.
    pub(crate) fn block(&self) -> [u8; BLOCK] {
        let mut block = [0; BLOCK];
        let (prefix, name) = split_name(self.name).unwrap_or((b"", cut(self.name, 100)));
        block[..name.len()].copy_from_slice(name);
        block[345..345 + prefix.len()].copy_from_slice(prefix);
        put_octal(&mut block[100..108], u64::from(self.mode));
        put_octal(&mut block[108..116], self.uid.min(MAX_ID));
        put_octal(&mut block[116..124], self.gid.min(MAX_ID));
        put_octal(&mut block[124..136], self.size.min(MAX_OCTAL));
        put_octal(&mut block[136..148], u64::try_from(self.mtime).unwrap_or(0).min(MAX_OCTAL));
        block[148..156].fill(b' ');
        block[156] = self.kind;
        let link = cut(self.link, 100);
        block[157..157 + link.len()].copy_from_slice(link);
        block[257..265].copy_from_slice(b"ustar\x0000");
        let sum: u64 = block.iter().map(|byte| u64::from(*byte)).sum();
        put_octal(&mut block[148..155], sum);
        block
    }
}

fn cut(text: &[u8], most: usize) -> &[u8] {
    &text[..text.len().min(most)]
}

/// How a name fits into the two fields of a header, if it does.
pub(crate) fn split_name(name: &[u8]) -> Option<(&[u8], &[u8])> {
    if name.len() <= 100 {
        return Some((b"", name));
    }
    if name.len() > 256 {
        return None;
    }
    let slash = (1..name.len() - 1).find(|at| name[*at] == b'/' && name.len() - at - 1 <= 100)?;
    (slash <= 155).then(|| (&name[..slash], &name[slash + 1..]))
}

/// Right-aligned with zeros and ended by a NUL.
fn put_octal(field: &mut [u8], mut value: u64) {
    let digits = field.len() - 1;
    field[digits] = 0;
    for digit in field[..digits].iter_mut().rev() {
        *digit = b'0' + (value & 7) as u8;
        value >>= 3;
    }
}

/// How many bytes follow a length to fill its last block.
pub(crate) fn padding(length: u64) -> u64 {
    (BLOCK_LEN - length % BLOCK_LEN) % BLOCK_LEN
}

/// A field that is not the number it should be.
pub(crate) fn bad_number(at: u64) -> Error {
    Error::Damaged { at, why: "a number is not one" }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_is_read_as_it_was_written() {
        let long = [&[b'd'; 150][..], b"/", &[b'n'; 100][..]].concat();
        let fields = Fields { name: &long, kind: b'0', link: b"", mode: 0o4755, uid: 7, gid: 8, size: 9, mtime: 10 };
        let block = fields.block();
        let header = Header(&block);
        assert!(header.sum_is_right());
        assert_eq!(header.name(), long);
        assert_eq!((header.mode(), header.uid(), header.gid()), (Some(0o4755), Some(7), Some(8)));
        assert_eq!((header.size(), header.mtime()), (Some(9), Some(10)));
        let mut broken = block;
        broken[0] ^= 1;
        assert!(!Header(&broken).sum_is_right());
    }

    #[test]
    fn numbers_come_in_two_forms() {
        assert_eq!(number(b"0000644\0"), Some(0o644));
        assert_eq!(number(b"   644 \0"), Some(0o644));
        assert_eq!(number(b"\0\0\0\0\0\0\0\0"), Some(0));
        assert_eq!(number(b"0000648\0"), None);
        assert_eq!(number(b"\x80\0\0\0\x01\0\0\0"), Some(1 << 24));
        assert_eq!(signed(&[0xff; 12]), Some(-1));
        assert_eq!(number(&[0xff; 12]), None);
        let mut wide = [0xff; 40];
        wide[0] = 0x80;
        assert_eq!(number(&wide), None);
    }
}
