//! Archives as a stranger might write them: nothing is checked.

/// An archive under construction.
#[derive(Default)]
pub(crate) struct Archive(pub(crate) Vec<u8>);

impl Archive {
    pub(crate) fn file(self, name: &str, data: &[u8]) -> Self {
        self.raw(name.as_bytes(), b'0', b"", 0o644, data)
    }

    pub(crate) fn directory(self, name: &str) -> Self {
        self.raw(name.as_bytes(), b'5', b"", 0o755, b"")
    }

    pub(crate) fn symlink(self, name: &str, target: &str) -> Self {
        self.raw(name.as_bytes(), b'2', target.as_bytes(), 0o777, b"")
    }

    pub(crate) fn hard(self, name: &str, target: &str) -> Self {
        self.raw(name.as_bytes(), b'1', target.as_bytes(), 0o644, b"")
    }

    pub(crate) fn pax(self, records: &[(&str, &[u8])]) -> Self {
        let mut data = Vec::new();
        for (key, value) in records {
            let rest = key.len() + value.len() + 3;
            let length = (rest..).find(|length| rest + length.to_string().len() == *length).expect("some length");
            data.extend_from_slice(format!("{length} {key}=").as_bytes());
            data.extend_from_slice(value);
            data.push(b'\n');
        }
        self.raw(b"pax", b'x', b"", 0o644, &data)
    }

    pub(crate) fn raw(self, name: &[u8], kind: u8, link: &[u8], mode: u32, data: &[u8]) -> Self {
        let archive = self.header(name, kind, link, mode, data.len() as u64, |_| ());
        archive.data(data)
    }

    pub(crate) fn header(
        mut self,
        name: &[u8],
        kind: u8,
        link: &[u8],
        mode: u32,
        size: u64,
        change: impl FnOnce(&mut [u8; 512]),
    ) -> Self {
        let mut block = [0u8; 512];
        block[..name.len()].copy_from_slice(name);
        block[100..107].copy_from_slice(format!("{mode:07o}").as_bytes());
        block[108..115].copy_from_slice(b"0000000");
        block[116..123].copy_from_slice(b"0000000");
        block[124..135].copy_from_slice(format!("{size:011o}").as_bytes());
        block[136..147].copy_from_slice(b"14524770400");
        block[156] = kind;
        block[157..157 + link.len()].copy_from_slice(link);
        block[257..265].copy_from_slice(b"ustar\x0000");
        change(&mut block);
        block[148..156].fill(b' ');
        let sum: u32 = block.iter().map(|byte| u32::from(*byte)).sum();
        block[148..155].copy_from_slice(format!("{sum:06o}\0").as_bytes());
        self.0.extend_from_slice(&block);
        self
    }

    pub(crate) fn data(mut self, data: &[u8]) -> Self {
        self.0.extend_from_slice(data);
        self.0.resize(self.0.len().next_multiple_of(512), 0);
        self
    }

    pub(crate) fn end(mut self) -> Vec<u8> {
        self.0.resize(self.0.len() + 1024, 0);
        self.0
    }
}
