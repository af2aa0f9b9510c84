//! Layers and archives as they come: plain, gzip, or zstd, recognised by their first bytes, since what a manifest says about
//! it is often wrong. Memory is bounded whatever the input says: gzip has a window of 32 KiB, zstd's is limited.
//!
//! zstd is read by `ruzstd` (pure Rust, MIT): half as fast as the C library, but nothing to compile beside it, and a hostile
//! stream meets no C.

use std::io::{self, BufReader, Cursor, Read};

use flate2::read::MultiGzDecoder;
use ruzstd::decoding::errors::{FrameDecoderError, ReadFrameHeaderError};
use ruzstd::decoding::{BlockDecodingStrategy, FrameDecoder};

type Source<R> = BufReader<io::Chain<Cursor<Vec<u8>>, R>>;

/// What a compressed stream holds.
pub(crate) enum Decompressed<R: Read> {
    Plain(Source<R>),
    Gzip(Box<MultiGzDecoder<Source<R>>>),
    Zstd(Box<Zstd<Source<R>>>),
}

const BUFFER: usize = 256 << 10;
/// As much as `zstd` itself takes without being asked.
const WINDOW: u64 = 128 << 20;

impl<R: Read> Decompressed<R> {
    pub(crate) fn new(mut reader: R) -> io::Result<Self> {
        let mut first = Vec::new();
        reader.by_ref().take(4).read_to_end(&mut first)?;
        let magic = first.clone();
        let source = BufReader::with_capacity(BUFFER, Cursor::new(first).chain(reader));
        Ok(match magic[..] {
            [0x1f, 0x8b, ..] => Self::Gzip(Box::new(MultiGzDecoder::new(source))),
            [0x28, 0xb5, 0x2f, 0xfd] | [0x50..=0x5f, 0x2a, 0x4d, 0x18] => Self::Zstd(Box::new(Zstd::new(source))),
            _ => Self::Plain(source),
        })
    }
}

impl<R: Read> Read for Decompressed<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Plain(reader) => reader.read(buffer),
            Self::Gzip(reader) => reader.read(buffer),
            Self::Zstd(reader) => reader.read(buffer),
        }
    }
}

/// All frames of a zstd stream, one after the other.
pub(crate) struct Zstd<R> {
    source: R,
    decoder: FrameDecoder,
    inside: bool,
}

impl<R: io::BufRead> Zstd<R> {
    fn new(source: R) -> Self {
        let mut decoder = FrameDecoder::new();
        decoder.set_max_window_size(WINDOW);
        Self { source, decoder, inside: false }
    }

    /// Goes to the next frame; `false` at the end.
    fn next(&mut self) -> io::Result<bool> {
        loop {
            if self.source.fill_buf()?.is_empty() {
                return Ok(false);
            }
            match self.decoder.reset(&mut self.source) {
                Ok(()) => return Ok(true),
                Err(FrameDecoderError::ReadFrameHeaderError(ReadFrameHeaderError::SkipFrame { length, .. })) => {
                    let length = u64::from(length);
                    if io::copy(&mut self.source.by_ref().take(length), &mut io::sink())? != length {
                        return Err(io::ErrorKind::UnexpectedEof.into());
                    }
                }
                Err(error) => return Err(io::Error::new(io::ErrorKind::InvalidData, error)),
            }
        }
    }
}

impl<R: io::BufRead> Read for Zstd<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if buffer.is_empty() {
            return Ok(0);
        }
        loop {
            if !self.inside {
                if !self.next()? {
                    return Ok(0);
                }
                self.inside = true;
            }
            if self.decoder.can_collect() > 0 {
                return self.decoder.read(buffer);
            }
            if self.decoder.is_finished() {
                self.inside = false;
                let wanted = self.decoder.get_checksum_from_data();
                if wanted.is_some() && wanted != self.decoder.get_calculated_checksum() {
                    return Err(io::Error::new(io::ErrorKind::InvalidData, "the checksum of a zstd frame is wrong"));
                }
                continue;
            }
            self.decoder
                .decode_blocks(&mut self.source, BlockDecodingStrategy::UptoBlocks(1))
                .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use flate2::Compression;
    use flate2::write::GzEncoder;
    use ruzstd::encoding::{CompressionLevel, compress_to_vec};

    use super::*;

    fn unpacked(bytes: &[u8]) -> io::Result<Vec<u8>> {
        let mut all = Vec::new();
        Decompressed::new(bytes)?.read_to_end(&mut all)?;
        Ok(all)
    }

    fn gzip(bytes: &[u8]) -> Vec<u8> {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap()
    }

    fn zstd(bytes: &[u8]) -> Vec<u8> {
        compress_to_vec(bytes, CompressionLevel::Fastest)
    }

    #[test]
    fn each_kind_and_several_in_a_row() {
        let text: Vec<u8> = (0..300_000u32).flat_map(|n| (n / 7).to_le_bytes()).collect();
        assert_eq!(unpacked(&text).unwrap(), text);
        assert_eq!(unpacked(b"").unwrap(), b"");
        assert_eq!(unpacked(b"ab").unwrap(), b"ab");
        let (one, two) = text.split_at(100_000);
        for kind in [gzip, zstd] {
            assert_eq!(unpacked(&kind(&text)).unwrap(), text);
            assert_eq!(unpacked(&[kind(one), kind(b""), kind(two)].concat()).unwrap(), text);
        }
        let skipped = [&[0x50, 0x2a, 0x4d, 0x18, 3, 0, 0, 0, 1, 2, 3][..], &zstd(b"x")].concat();
        assert_eq!(unpacked(&skipped).unwrap(), b"x");
    }

    #[test]
    fn damage_is_an_error() {
        let text: Vec<u8> = (0..50_000u32).flat_map(u32::to_le_bytes).collect();
        for kind in [gzip, zstd] {
            let whole = kind(&text);
            assert!(unpacked(&whole[..whole.len() - 3]).is_err());
            assert!(unpacked(&whole[..whole.len() / 2]).is_err());
            assert!(unpacked(&[&whole[..], b"garbage"].concat()).is_err());
            let mut flipped = whole.clone();
            let middle = flipped.len() / 2;
            flipped[middle] ^= 0x55;
            assert!(unpacked(&flipped).map_or(true, |found| found != text));
        }
        assert!(unpacked(&[0x50, 0x2a, 0x4d, 0x18, 9, 0, 0, 0, 1]).is_err());
        // A frame that wants a window of gigabytes.
        assert!(unpacked(&[0x28, 0xb5, 0x2f, 0xfd, 0x00, 0xf8, 0, 0, 0, 0]).is_err());
    }
}
