//! Headers and data of a tar stream: ustar, with pax records for whatever does not fit, and GNU's sparse form 1.0.

use std::io::{self, Write};

use crate::block::{self, BLOCK, Fields, MAX_ID, MAX_OCTAL, split_name};
use crate::pax;

/// One entry to be written.
pub(crate) struct Item<'a> {
    pub(crate) fields: Fields<'a>,
    pub(crate) xattrs: &'a [(Vec<u8>, Vec<u8>)],
    /// Of a sparse file: where its data belongs. Then `fields.size` is its whole size.
    pub(crate) pieces: Option<&'a [(u64, u64)]>,
}

pub(crate) struct Writer<W> {
    output: W,
    /// Data of the current entry.
    data: u64,
}

impl<W: Write> Writer<W> {
    pub(crate) fn new(output: W) -> Self {
        Self { output, data: 0 }
    }

    /// Begins an entry. Exactly its data must follow: `fields.size` bytes, or the sum of its pieces.
    pub(crate) fn begin(&mut self, item: &Item<'_>) -> io::Result<()> {
        let mut fields = Fields { ..item.fields };
        let mut records = Vec::new();
        let mut map = Vec::new();
        let sparse_name;
        if let Some(pieces) = item.pieces {
            map = leading_map(pieces);
            pax::push(&mut records, b"GNU.sparse.major", b"1");
            pax::push(&mut records, b"GNU.sparse.minor", b"0");
            pax::push(&mut records, b"GNU.sparse.name", fields.name);
            pax::push(&mut records, b"GNU.sparse.realsize", fields.size.to_string().as_bytes());
            // For those who do not know the form: they get the map in a file of this name.
            let last = fields.name.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
            sparse_name = [b"GNUSparseFile.0/", &last[..last.len().min(80)]].concat();
            fields.name = &sparse_name;
            fields.size = map.len() as u64 + pieces.iter().map(|(_, length)| length).sum::<u64>();
        }
        let mut number = |key: &[u8], value: u64, most: u64| {
            if value > most {
                pax::push(&mut records, key, value.to_string().as_bytes());
            }
        };
        number(b"uid", fields.uid, MAX_ID);
        number(b"gid", fields.gid, MAX_ID);
        number(b"size", fields.size, MAX_OCTAL);
        if !u64::try_from(fields.mtime).is_ok_and(|mtime| mtime <= MAX_OCTAL) {
            pax::push(&mut records, b"mtime", fields.mtime.to_string().as_bytes());
        }
        if split_name(fields.name).is_none() {
            pax::push(&mut records, b"path", fields.name);
        }
        if fields.link.len() > 100 {
            pax::push(&mut records, b"linkpath", fields.link);
        }
        for (name, value) in item.xattrs {
            pax::push(&mut records, &[b"SCHILY.xattr.", name.as_slice()].concat(), value);
        }
        if !records.is_empty() {
            let header = Fields {
                name: b"./PaxHeaders/entry",
                kind: b'x',
                link: b"",
                mode: 0o644,
                uid: 0,
                gid: 0,
                size: records.len() as u64,
                mtime: 0,
            };
            self.output.write_all(&header.block())?;
            self.output.write_all(&records)?;
            self.fill(records.len() as u64)?;
        }
        self.output.write_all(&fields.block())?;
        self.output.write_all(&map)?;
        self.data = map.len() as u64;
        Ok(())
    }

    pub(crate) fn data(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.data += bytes.len() as u64;
        self.output.write_all(bytes)
    }

    /// Ends an entry.
    pub(crate) fn end(&mut self) -> io::Result<()> {
        let length = std::mem::take(&mut self.data);
        self.fill(length)
    }

    /// Ends the archive.
    pub(crate) fn finish(&mut self) -> io::Result<()> {
        self.output.write_all(&[0; 2 * BLOCK])?;
        self.output.flush()
    }

    fn fill(&mut self, length: u64) -> io::Result<()> {
        self.output.write_all(&[0; BLOCK][..block::padding(length) as usize])
    }
}

/// The map of a sparse file as lines of digits, filled to whole blocks.
fn leading_map(pieces: &[(u64, u64)]) -> Vec<u8> {
    let mut map = format!("{}\n", pieces.len());
    for (offset, length) in pieces {
        map.push_str(&format!("{offset}\n{length}\n"));
    }
    let fill = block::padding(map.len() as u64) as usize;
    let mut map = map.into_bytes();
    map.resize(map.len() + fill, 0);
    map
}
