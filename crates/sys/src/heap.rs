//! How the allocator shares memory out.

/// Lets all threads allocate from one arena. By default each gets its own and keeps what it once needed: a daemon that
/// has looked through a thousand sandboxes would hold a third more than it uses.
pub fn share_one_arena() {
    // SAFETY: mallopt changes a setting of the allocator under its own lock, and takes no pointer.
    let _ = unsafe { libc::mallopt(libc::M_ARENA_MAX, 1) };
}
