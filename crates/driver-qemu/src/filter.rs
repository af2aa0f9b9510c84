//! System calls that an engine never needs.
//!
//! QEMU has a filter of its own (`-sandbox`), which it installs when it has started; this one is there from the first
//! instruction on, cannot be left out by a changed QEMU, and knows what our engines do. It names what is forbidden and
//! not what is allowed: which calls a QEMU makes depends on its version, on its libraries and on the accelerator, kept
//! engines live for years, and a call that is missing on a list of allowed ones ends a guest in the middle of its work.
//! What is forbidden is chosen by a rule: whatever makes, enters or changes namespaces, mounts, other processes, kernel
//! objects beyond files, or sockets. Engines inherit the two sockets that they serve and make none.
//!
//! A forbidden call fails with EPERM, so that a library which only tries finds another way. `clone3` fails with ENOSYS:
//! its flags are in memory, where a filter cannot look, and the C library then uses `clone`, whose flags are looked at.

use std::collections::BTreeMap;

use libc::c_long;
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule, TargetArch,
};
use wakeful_sys::spawn::Instruction;

const DENIED: &[c_long] = &[
    // other processes
    libc::SYS_ptrace,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_process_madvise,
    libc::SYS_process_mrelease,
    libc::SYS_kcmp,
    libc::SYS_pidfd_open,
    libc::SYS_pidfd_getfd,
    libc::SYS_pidfd_send_signal,
    libc::SYS_move_pages,
    libc::SYS_migrate_pages,
    // namespaces and mounts
    libc::SYS_unshare,
    libc::SYS_setns,
    libc::SYS_mount,
    libc::SYS_umount2,
    libc::SYS_pivot_root,
    libc::SYS_chroot,
    libc::SYS_open_tree,
    libc::SYS_move_mount,
    libc::SYS_mount_setattr,
    libc::SYS_fsopen,
    libc::SYS_fsconfig,
    libc::SYS_fsmount,
    libc::SYS_fspick,
    libc::SYS_quotactl,
    libc::SYS_quotactl_fd,
    // files by other ways than their names
    libc::SYS_open_by_handle_at,
    libc::SYS_name_to_handle_at,
    libc::SYS_mknod,
    libc::SYS_mknodat,
    libc::SYS_fanotify_init,
    libc::SYS_fanotify_mark,
    // sockets
    libc::SYS_socket,
    libc::SYS_socketpair,
    libc::SYS_connect,
    libc::SYS_bind,
    // kernel objects with a long history of holes
    libc::SYS_bpf,
    libc::SYS_perf_event_open,
    libc::SYS_userfaultfd,
    libc::SYS_io_uring_setup,
    libc::SYS_io_uring_enter,
    libc::SYS_io_uring_register,
    libc::SYS_add_key,
    libc::SYS_request_key,
    libc::SYS_keyctl,
    libc::SYS_shmget,
    libc::SYS_shmat,
    libc::SYS_msgget,
    libc::SYS_semget,
    libc::SYS_mq_open,
    libc::SYS_modify_ldt,
    libc::SYS_personality,
    libc::SYS_uselib,
    // the machine itself
    libc::SYS_reboot,
    libc::SYS_kexec_load,
    libc::SYS_kexec_file_load,
    libc::SYS_init_module,
    libc::SYS_finit_module,
    libc::SYS_delete_module,
    libc::SYS_swapon,
    libc::SYS_swapoff,
    libc::SYS_acct,
    libc::SYS_syslog,
    libc::SYS_settimeofday,
    libc::SYS_clock_settime,
    libc::SYS_clock_adjtime,
    libc::SYS_adjtimex,
    libc::SYS_sethostname,
    libc::SYS_setdomainname,
    libc::SYS_iopl,
    libc::SYS_ioperm,
    libc::SYS_vhangup,
];

/// Flags with which `clone` makes a namespace.
const NAMESPACES: [i32; 7] = [
    libc::CLONE_NEWNS,
    libc::CLONE_NEWCGROUP,
    libc::CLONE_NEWUTS,
    libc::CLONE_NEWIPC,
    libc::CLONE_NEWUSER,
    libc::CLONE_NEWPID,
    libc::CLONE_NEWNET,
];

/// Numbers from here on mean the same calls to a kernel with the x32 interface, and would go past all rules.
const X32: u32 = 0x4000_0000;

/// The program.
pub(crate) fn program() -> Vec<Instruction> {
    let rules = build().expect("the list is a constant, and a test compiles it");
    let number = |code: u16, jt: u8, jf: u8, k: u32| Instruction { code, jt, jf, k };
    let (load, at_least, equal, give) = (0x20, 0x35, 0x15, 0x06);
    let error = |errno: i32| libc::SECCOMP_RET_ERRNO | errno.cast_unsigned();
    let clone3 = u32::try_from(libc::SYS_clone3).expect("a small number");
    let mut program = vec![
        // The number is the first field of what a filter sees.
        number(load, 0, 0, 0),
        number(at_least, 0, 1, X32),
        number(give, 0, 0, error(libc::EPERM)),
        number(equal, 0, 1, clone3),
        number(give, 0, 0, error(libc::ENOSYS)),
    ];
    program.extend(rules.into_iter().map(|rule| number(rule.code, rule.jt, rule.jf, rule.k)));
    program
}

fn build() -> Result<BpfProgram, seccompiler::BackendError> {
    let mut rules: BTreeMap<i64, Vec<SeccompRule>> = DENIED.iter().map(|&call| (call, Vec::new())).collect();
    let any = NAMESPACES.into_iter().map(|flag| {
        let flag = u64::from(flag.cast_unsigned());
        let set = SeccompCondition::new(0, SeccompCmpArgLen::Qword, SeccompCmpOp::MaskedEq(flag), flag)?;
        SeccompRule::new(vec![set])
    });
    rules.insert(libc::SYS_clone, any.collect::<Result<_, _>>()?);
    let denied = SeccompAction::Errno(libc::EPERM.cast_unsigned());
    // Of another architecture (a 32-bit call) it is the end.
    SeccompFilter::new(rules, SeccompAction::Allow, denied, TargetArch::x86_64)?.try_into()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the kernel would say: the machine that runs filters is small.
    fn verdict(program: &[Instruction], call: c_long, first_argument: u64) -> u32 {
        const X86_64: u32 = 0xc000_003e;
        let argument = |half: u32| (first_argument >> (32 * half)) as u32;
        let (mut at, mut accumulator) = (0, 0u32);
        loop {
            let Instruction { code, jt, jf, k } = program[at];
            at += 1;
            let mut jump = |taken: bool| at += usize::from(if taken { jt } else { jf });
            match code {
                0x20 => {
                    accumulator = match k {
                        0 => u32::try_from(call).expect("a small number"),
                        4 => X86_64,
                        16 => argument(0),
                        20 => argument(1),
                        other => panic!("a load of {other}"),
                    };
                }
                0x54 => accumulator &= k,
                0x15 => jump(accumulator == k),
                0x35 => jump(accumulator >= k),
                0x25 => jump(accumulator > k),
                0x05 => at += usize::try_from(k).expect("a small number"),
                0x06 => return k,
                other => panic!("instruction {other:#x}"),
            }
        }
    }

    #[test]
    fn each_call_has_its_verdict() {
        let program = program();
        let denied = libc::SECCOMP_RET_ERRNO | libc::EPERM.cast_unsigned();
        for &call in DENIED {
            assert_eq!(verdict(&program, call, 0), denied, "{call}");
            assert_eq!(verdict(&program, call | c_long::from(X32), 0), denied, "{call}");
        }
        let threads = u64::from((libc::CLONE_VM | libc::CLONE_THREAD | libc::CLONE_SIGHAND).cast_unsigned());
        assert_eq!(verdict(&program, libc::SYS_clone, threads), libc::SECCOMP_RET_ALLOW);
        for flag in NAMESPACES {
            assert_eq!(verdict(&program, libc::SYS_clone, threads | u64::from(flag.cast_unsigned())), denied);
        }
        let unknown = libc::SECCOMP_RET_ERRNO | libc::ENOSYS.cast_unsigned();
        assert_eq!(verdict(&program, libc::SYS_clone3, 0), unknown);
        for call in [libc::SYS_execve, libc::SYS_openat, libc::SYS_ioctl, libc::SYS_accept4, libc::SYS_seccomp] {
            assert_eq!(verdict(&program, call, 0), libc::SECCOMP_RET_ALLOW, "{call}");
        }
    }
}
