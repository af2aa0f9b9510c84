//! The initramfs: the agent as `/init`, the kernel's modules, and the secret.
//!
//! A newc archive made by hand. The kernel unpacks concatenated archives, so the large part is made once and a small one
//! with the secret is appended at each boot; both go to the engine in memory, and no secret is ever in a file.
//!
//! ```text
//!   /init   /mods/order   /mods/<name>.ko   /dev   /proc   /sys        the same for all
//!   /secret                                                            32 bytes, 0400, per boot
//! ```

use std::fs::File;
use std::io::{self, Write};

use rustix::fs::MemfdFlags;

use crate::kernel::Kernel;

const DIRECTORY: u32 = 0o040_000;
const REGULAR: u32 = 0o100_000;

/// The part that all boots with this kernel and this agent share.
pub(crate) fn common(kernel: &Kernel, agent: &[u8]) -> io::Result<Vec<u8>> {
    let mut archive = Archive::default();
    for dir in ["dev", "proc", "sys", "mods"] {
        archive.add(dir, DIRECTORY | 0o755, &[]);
    }
    archive.add("init", REGULAR | 0o755, agent);
    let order = std::fs::read_to_string(kernel.path.join("modules/order"))?;
    for name in order.lines() {
        let module = std::fs::read(kernel.path.join("modules").join(format!("{name}.ko")))?;
        archive.add(&format!("mods/{name}.ko"), REGULAR | 0o644, &module);
    }
    archive.add("mods/order", REGULAR | 0o644, order.as_bytes());
    Ok(archive.finish())
}

/// The initramfs of one boot, as a file in memory.
pub(crate) fn with_secret(common: &[u8], secret: &[u8; 32]) -> io::Result<File> {
    let mut archive = Archive::default();
    archive.add("secret", REGULAR | 0o400, secret);
    // Any engine may be the one that opens it through its descriptor, so it is readable by whoever holds that.
    let mut file = File::from(rustix::fs::memfd_create("initramfs", MemfdFlags::CLOEXEC)?);
    rustix::fs::fchmod(&file, rustix::fs::Mode::from_raw_mode(0o444))?;
    file.write_all(common)?;
    file.write_all(&archive.finish())?;
    Ok(file)
}

#[derive(Default)]
struct Archive {
    bytes: Vec<u8>,
    count: u32,
}

impl Archive {
    fn add(&mut self, name: &str, mode: u32, content: &[u8]) {
        self.count += 1;
        let links = if mode & DIRECTORY == DIRECTORY { 2 } else { 1 };
        // inode, mode, uid, gid, links, time, size, four device numbers, length of the name, checksum
        let size = u32::try_from(content.len()).expect("agent and modules are a few megabytes");
        let name_size = u32::try_from(name.len()).expect("names are short") + 1;
        let fields = [self.count, mode, 0, 0, links, 0, size, 0, 0, 0, 0, name_size, 0];
        self.bytes.extend_from_slice(b"070701");
        for field in fields {
            self.bytes.extend_from_slice(format!("{field:08x}").as_bytes());
        }
        self.bytes.extend_from_slice(name.as_bytes());
        self.bytes.push(0);
        self.pad();
        self.bytes.extend_from_slice(content);
        self.pad();
    }

    fn pad(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }

    fn finish(mut self) -> Vec<u8> {
        self.add("TRAILER!!!", 0, &[]);
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Seek};
    use std::process::{Command, Stdio};

    use super::*;

    /// Names, modes and contents, read back by the rules of the format.
    fn list(mut bytes: &[u8]) -> Vec<(String, u32, Vec<u8>)> {
        let (mut found, whole) = (Vec::new(), bytes.len());
        while !bytes.is_empty() {
            assert_eq!(&bytes[..6], b"070701");
            let field = |at: usize| {
                let digits = std::str::from_utf8(&bytes[6 + at * 8..14 + at * 8]).expect("digits");
                usize::from_str_radix(digits, 16).expect("digits")
            };
            let (mode, size, name_size) = (field(1), field(6), field(11));
            let name = String::from_utf8(bytes[110..110 + name_size - 1].to_vec()).expect("a name");
            let content = (110 + name_size).next_multiple_of(4);
            let end = (content + size).next_multiple_of(4);
            found.push((name, u32::try_from(mode).expect("a mode"), bytes[content..content + size].to_vec()));
            bytes = &bytes[end..];
            assert_eq!((whole - bytes.len()) % 4, 0);
        }
        found
    }

    #[test]
    fn archives_are_what_the_kernel_reads() {
        let dir = tempfile::tempdir().expect("can be made");
        std::fs::create_dir(dir.path().join("modules")).expect("can be made");
        std::fs::write(dir.path().join("modules/order"), "b\na\n").expect("can be written");
        for name in ["a", "b"] {
            std::fs::write(dir.path().join(format!("modules/{name}.ko")), name.repeat(5)).expect("can be written");
        }
        let kernel = Kernel { path: dir.path().to_owned(), digest: String::new(), version: String::new() };
        let common = common(&kernel, b"agent").expect("modules are there");
        let mut file = with_secret(&common, &[9; 32]).expect("can be made");
        let mut bytes = Vec::new();
        file.rewind().expect("can be rewound");
        file.read_to_end(&mut bytes).expect("can be read");
        let entries = list(&bytes);
        let names: Vec<_> = entries.iter().map(|(name, ..)| name.as_str()).collect();
        let expected = [
            "dev",
            "proc",
            "sys",
            "mods",
            "init",
            "mods/b.ko",
            "mods/a.ko",
            "mods/order",
            "TRAILER!!!",
            "secret",
            "TRAILER!!!",
        ];
        assert_eq!(names, expected);
        assert_eq!(entries[4], ("init".to_owned(), 0o100_755, b"agent".to_vec()));
        assert_eq!(entries[9], ("secret".to_owned(), 0o100_400, vec![9; 32]));

        // And by somebody else's reading, where that is installed.
        if let Ok(mut cpio) =
            Command::new("cpio").arg("-t").stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn()
        {
            cpio.stdin.take().expect("piped").write_all(&common).expect("it reads");
            let output = cpio.wait_with_output().expect("it ends");
            assert!(String::from_utf8_lossy(&output.stdout).contains("mods/order"));
        }
    }
}
