//! The command line of an engine.
//!
//! It is part of what an image fits: the same devices in the same order, or the state does not load. So there is one
//! place where it is made, and its shape goes into the engine's key. Every file is a descriptor that the engine inherits
//! under its number.

use std::ffi::OsString;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::path::PathBuf;

use wakeful_driver::Machine;
use wakeful_guest_proto::card;

use crate::engines::Pinned;

/// How guest code is run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Accelerator {
    Kvm,
    Tcg,
}

impl Accelerator {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Kvm => "kvm",
            Self::Tcg => "tcg",
        }
    }

    /// What the option says. The default translation buffer of the emulator is 1 GiB a machine.
    fn option(self) -> &'static str {
        match self {
            Self::Kvm => "kvm",
            Self::Tcg => "tcg,tb-size=64",
        }
    }
}

/// Size of the emulator's translation buffer, as the option above says.
pub(crate) const TRANSLATION_MB: u64 = 64;

/// For the kernel: quiet, quick, no hardware that a microvm does not have, and an end instead of a panic loop. No
/// mandatory access control without a policy (it would be SELinux where AppArmor is off), no pressure accounting: both
/// are on the way of every call.
const CMDLINE: &str = "reboot=t panic=-1 quiet loglevel=0 nokaslr mitigations=off lsm=landlock,yama audit=0 psi=0 \
    noautogroup cryptomgr.notests random.trust_cpu=on no_timer_check init_on_alloc=0 rodata=off 8250.nr_uarts=0 \
    rcupdate.rcu_expedited=1 nowatchdog pci=off";

/// Name of the network card, for plugging it.
pub(crate) const CARD: &str = "card";

/// Names of the disks in the engine.
pub(crate) const BASE_NODE: &str = "b";
pub(crate) const OVERLAY_NODE: &str = "o";

/// The kernel's command line. Under emulation the guest's clock is the host's counter, and a microvm has nothing else to
/// find its rate with. And there programs are not put at random addresses: the emulator keeps what it has translated by
/// address, and every start of a program would translate its loader and libraries anew (half of the time of `true`).
pub(crate) fn kernel_command_line(accelerator: Accelerator, tsc_khz: u64) -> String {
    match accelerator {
        Accelerator::Kvm => CMDLINE.to_owned(),
        Accelerator::Tcg => format!("{CMDLINE} norandmaps tsc_early_khz={tsc_khz} tsc=reliable"),
    }
}

/// What the guest starts from.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Start<'a> {
    /// Kernel and initramfs, running at once.
    Kernel { kernel: BorrowedFd<'a>, initramfs: BorrowedFd<'a>, command_line: &'a str },
    /// Device state that will be handed over; stopped until told.
    Incoming,
}

/// The descriptors and numbers of one command line.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Arguments<'a> {
    pub(crate) engine: &'a Pinned,
    /// Its directory, if it stays in our own world; inside walls the directory is the root.
    pub(crate) engine_dir: Option<BorrowedFd<'a>>,
    pub(crate) accelerator: Accelerator,
    pub(crate) machine: Machine,
    pub(crate) memory: BorrowedFd<'a>,
    /// The guest writes to the memory file itself.
    pub(crate) shared: bool,
    pub(crate) base: BorrowedFd<'a>,
    pub(crate) overlay: BorrowedFd<'a>,
    pub(crate) agent: BorrowedFd<'a>,
    pub(crate) monitor: BorrowedFd<'a>,
    /// Where frames of the network card go, if anywhere.
    pub(crate) tap: Option<BorrowedFd<'a>>,
    pub(crate) start: Start<'a>,
}

impl Arguments<'_> {
    /// The loader, as the engine finds it; it is what is executed.
    pub(crate) fn program(&self) -> PathBuf {
        PathBuf::from(self.home() + "/lib/ld-linux-x86-64.so.2")
    }

    /// Where Debian's QEMU finds its emulator, which is a module.
    pub(crate) fn environment(&self) -> [(&'static str, OsString); 2] {
        [("QEMU_MODULE_DIR", (self.home() + "/modules").into()), ("LC_ALL", "C".into())]
    }

    fn home(&self) -> String {
        self.engine_dir.map_or_else(String::new, through)
    }

    pub(crate) fn list(&self) -> Vec<OsString> {
        let dir = self.home();
        let loader = ["--inhibit-cache", "--library-path", &format!("{dir}/lib")].map(OsString::from);
        let program =
            [format!("{dir}/bin/qemu-system-x86_64"), "-L".into(), format!("{dir}/share")].map(OsString::from);
        let mut list: Vec<OsString> = loader.into_iter().chain(program).collect();
        list.extend(self.options().into_iter().map(OsString::from));
        list
    }

    fn options(&self) -> Vec<String> {
        let number = |fd: BorrowedFd<'_>| fd.as_raw_fd();
        let (memory_mb, memory) = (self.machine.memory_mb, through(self.memory));
        let share = if self.shared { "on" } else { "off" };
        let read_only = if !self.shared && self.engine.maps_read_only() { ",readonly=on,rom=off" } else { "" };
        let mut list: Vec<String> = Vec::with_capacity(64);
        let mut add = |words: &[&str]| list.extend(words.iter().map(|word| (*word).to_owned()));
        add(&["-no-user-config", "-nodefaults", "-display", "none", "-serial", "none", "-no-reboot"]);
        // What `ps` shows; it would be the loader's name otherwise.
        add(&["-name", "wakeful,process=wakeful-qemu"]);
        // Device state that is not a migration has no description at its end, and none is to be missed.
        add(&["-M", "microvm,x-option-roms=off,rtc=on,isa-serial=off,suppress-vmdesc=on,memory-backend=m"]);
        // SeaBIOS puts its tables under the end of the initramfs, and whether Linux survives that depends on its size.
        add(&["-bios", "qboot.rom", "-accel", self.accelerator.option(), "-cpu", "max"]);
        add(&["-m", &format!("{memory_mb}M")]);
        if self.machine.cpu > 1 {
            add(&["-smp", &self.machine.cpu.to_string()]);
        }
        add(&["-object"]);
        add(&[&format!("memory-backend-file,id=m,size={memory_mb}M,mem-path={memory},share={share}{read_only}")]);
        add(&["-add-fd", &format!("fd={},set=1", number(self.base)), "-blockdev"]);
        add(&[&format!("driver=raw,node-name={BASE_NODE},read-only=on,file.driver=file,file.filename=/dev/fdset/1")]);
        add(&["-device", &format!("virtio-blk-device,drive={BASE_NODE}")]);
        add(&["-add-fd", &format!("fd={},set=2", number(self.overlay)), "-blockdev"]);
        add(&[&format!("driver=raw,node-name={OVERLAY_NODE},file.driver=file,file.filename=/dev/fdset/2")]);
        add(&["-device", &format!("virtio-blk-device,drive={OVERLAY_NODE}")]);
        add(&["-device", "virtio-serial-device", "-chardev"]);
        add(&[&format!("socket,id=agent,fd={},server=on,wait=off", number(self.agent))]);
        // Only a port with an id is reported when the guest opens it.
        add(&["-device", "virtserialport,id=port,chardev=agent,name=agent"]);
        // Announcing itself costs the guest 30 ms after every load, and fixed addresses make it needless.
        add(&["-netdev", "hubport,id=n,hubid=0", "-device"]);
        let mac = card::GUEST_MAC.map(|byte| format!("{byte:02x}")).join(":");
        add(&[&format!("virtio-net-device,id={CARD},netdev=n,mac={mac},guest_announce=off")]);
        // A hub between the two: what the card can do must not depend on what it is plugged into.
        if let Some(tap) = self.tap {
            add(&["-netdev", &format!("tap,id=tap,fd={}", number(tap))]);
            add(&["-netdev", "hubport,id=uplink,hubid=0,netdev=tap"]);
        }
        add(&["-chardev", &format!("socket,id=qmp,fd={},server=on,wait=off", number(self.monitor))]);
        add(&["-mon", "chardev=qmp,mode=control"]);
        add(&["-sandbox", "on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny"]);
        match self.start {
            Start::Kernel { kernel, initramfs, command_line } => {
                add(&["-kernel", &through(kernel), "-initrd", &through(initramfs), "-append", command_line]);
            }
            // The state has no configuration section: it is not the stream of a migration.
            Start::Incoming => add(&["-S", "-incoming", "defer", "-global", "migration.send-configuration=off"]),
        }
        list
    }
}

/// All of the command line that an image depends on: the same words for the same shape, whatever the numbers are.
pub(crate) fn shape(engine: &Pinned, accelerator: Accelerator) -> String {
    // Any number will do, as long as it is always the same.
    let stdin = std::io::stdin();
    let fd = stdin.as_fd();
    let arguments = Arguments {
        engine,
        engine_dir: None,
        accelerator,
        machine: Machine { cpu: 1, memory_mb: 0, disk_mb: 0 },
        memory: fd,
        shared: false,
        base: fd,
        overlay: fd,
        agent: fd,
        monitor: fd,
        tap: None,
        start: Start::Incoming,
    };
    arguments.options().join("\n")
}

/// A path by which whoever inherits the descriptor opens the file again: only the file's own mode counts then, not the
/// directories above it.
fn through(fd: BorrowedFd<'_>) -> String {
    format!("/proc/self/fd/{}", fd.as_raw_fd())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn engine(version: &str) -> Pinned {
        Pinned { name: String::new(), path: PathBuf::new(), version: version.to_owned(), digest: String::new() }
    }

    #[test]
    fn newer_engines_map_read_only() {
        assert!(!shape(&engine("7.2.22"), Accelerator::Tcg).contains("readonly"));
        assert!(shape(&engine("10.0.2"), Accelerator::Tcg).contains("share=off,readonly=on,rom=off"));
        assert!(shape(&engine("8.2.0"), Accelerator::Kvm).contains("\nkvm\n"));
    }

    #[test]
    fn nothing_in_the_shape_is_a_host_path() {
        let shape = shape(&engine("7.2.22"), Accelerator::Tcg);
        for word in shape.split(['\n', ',', '=']).filter(|word| word.starts_with('/')) {
            assert!(word.starts_with("/proc/self/fd/") || word.starts_with("/dev/fdset/"), "{word}");
        }
    }

    #[test]
    fn only_an_emulated_guest_is_told_its_clock() {
        assert!(kernel_command_line(Accelerator::Tcg, 2_445_000).ends_with("tsc_early_khz=2445000 tsc=reliable"));
        assert!(!kernel_command_line(Accelerator::Kvm, 2_445_000).contains("tsc"));
    }
}
