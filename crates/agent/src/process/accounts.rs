//! Users and groups of the guest, by our own reading of `/etc/passwd` and `/etc/group`: a static binary cannot ask the C
//! library, and an image may have neither file.
//!
//! The files belong to the guest, so they are bounded, and anything that does not look like an entry is passed over.

use std::fs::File;
use std::io::Read as _;
use std::os::unix::fs::OpenOptionsExt as _;

use rustix::fs::OFlags;

const MAX_FILE: u64 = 1 << 20;
/// Linux's own limit is 65536; nobody needs more than this many to run a command.
const MAX_GROUPS: usize = 1024;

/// Who a command runs as, or whom a file belongs to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct User {
    pub(crate) name: String,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) groups: Vec<u32>,
    pub(crate) home: String,
}

#[derive(Debug)]
struct Account {
    name: String,
    uid: u32,
    gid: u32,
    home: String,
    shell: Option<String>,
}

#[derive(Debug)]
struct Group {
    name: String,
    gid: u32,
    members: Vec<String>,
}

/// Both files, read once per request: they are small, and programs inside change them.
#[derive(Debug, Default)]
pub(crate) struct Accounts {
    users: Vec<Account>,
    groups: Vec<Group>,
}

impl Accounts {
    /// Reads the guest's files; a missing one counts as empty. Blocks on the disk.
    pub(crate) fn load() -> Self {
        Self::parse(&read("/etc/passwd"), &read("/etc/group"))
    }

    fn parse(passwd: &str, group: &str) -> Self {
        let users = passwd.lines().filter_map(|line| {
            let mut fields = line.split(':');
            let name = fields.next().filter(|name| !name.is_empty())?.to_owned();
            let uid = fields.nth(1)?.parse().ok()?;
            let gid = fields.next()?.parse().ok()?;
            let home = fields.nth(1).filter(|home| home.starts_with('/')).unwrap_or("/").to_owned();
            let shell = fields.next().filter(|shell| shell.starts_with('/')).map(str::to_owned);
            Some(Account { name, uid, gid, home, shell })
        });
        let groups = group.lines().filter_map(|line| {
            let mut fields = line.split(':');
            let name = fields.next().filter(|name| !name.is_empty())?.to_owned();
            let gid = fields.nth(1)?.parse().ok()?;
            let members = fields.next().unwrap_or("");
            Some(Group { name, gid, members: members.split(',').map(|m| m.trim().to_owned()).collect() })
        });
        Self { users: users.collect(), groups: groups.collect() }
    }

    /// The user of a name or number, either optionally with `:group`, as images write it. `root` and numbers need no
    /// entry.
    pub(crate) fn find(&self, spec: &str) -> Option<User> {
        let (who, group) = match spec.split_once(':') {
            Some((who, group)) => (who, Some(group)),
            None => (spec, None),
        };
        let by_name = self.users.iter().find(|account| account.name == who);
        let account = by_name.or_else(|| {
            let uid: u32 = who.parse().ok()?;
            self.users.iter().find(|account| account.uid == uid)
        });
        let mut user = match account {
            Some(a) => User { name: a.name.clone(), uid: a.uid, gid: a.gid, groups: Vec::new(), home: a.home.clone() },
            None if who == "root" => {
                User { name: who.to_owned(), uid: 0, gid: 0, groups: Vec::new(), home: "/root".to_owned() }
            }
            None => {
                let uid = who.parse().ok().filter(|uid| *uid != u32::MAX)?;
                User { name: who.to_owned(), uid, gid: 0, groups: Vec::new(), home: "/".to_owned() }
            }
        };
        let memberships = self.groups.iter().filter(|group| group.members.contains(&user.name)).map(|group| group.gid);
        user.groups = memberships.take(MAX_GROUPS).collect();
        if let Some(group) = group {
            let by_name = self.groups.iter().find(|known| known.name == group).map(|known| known.gid);
            user.gid = by_name.or_else(|| group.parse().ok().filter(|gid| *gid != u32::MAX))?;
        }
        user.groups.insert(0, user.gid);
        user.groups.dedup();
        Some(user)
    }

    /// What a user logs in with, if its entry says so.
    pub(crate) fn shell(&self, user: &User) -> Option<&str> {
        self.users.iter().find(|account| account.name == user.name)?.shell.as_deref()
    }

    /// Name of a user id, or the number.
    pub(crate) fn user_name(&self, uid: u32) -> String {
        let known = self.users.iter().find(|account| account.uid == uid);
        known.map_or_else(|| uid.to_string(), |account| account.name.clone())
    }

    /// Name of a group id, or the number.
    pub(crate) fn group_name(&self, gid: u32) -> String {
        let known = self.groups.iter().find(|group| group.gid == gid);
        known.map_or_else(|| gid.to_string(), |group| group.name.clone())
    }
}

fn read(path: &str) -> String {
    let mut bytes = Vec::new();
    // Without blocking and regular files only: a pipe put there must not hang the agent.
    let flags = (OFlags::NONBLOCK | OFlags::NOCTTY).bits().cast_signed();
    let file = File::options().read(true).custom_flags(flags).open(path);
    if let Ok(file) = file.and_then(|file| Ok((file.metadata()?, file)))
        && file.0.is_file()
    {
        let _ = file.1.take(MAX_FILE).read_to_end(&mut bytes);
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn accounts() -> Accounts {
        Accounts::parse(
            "root:x:0:0:root:/root:/bin/sh\nbroken\n:x:1:1::/:\nuser:x:1000:1001:,,,:/home/user:/bin/bash\nodd:x:7:8\n",
            "root:x:0:\nuser:x:1001:\nsudo:x:27:user,other\nvideo:x:44:user\nbad:x:nan:user\n",
        )
    }

    #[test]
    fn names_numbers_and_groups() {
        let accounts = accounts();
        let user = accounts.find("user").unwrap();
        assert_eq!((user.uid, user.gid, user.home.as_str()), (1000, 1001, "/home/user"));
        assert_eq!(user.groups, [1001, 27, 44]);
        assert_eq!(accounts.find("1000"), Some(user.clone()));
        assert_eq!(accounts.find("user:sudo").unwrap().gid, 27);
        assert_eq!(accounts.find("4711:12").map(|u| (u.uid, u.gid, u.home)), Some((4711, 12, "/".to_owned())));
        assert_eq!(accounts.find("odd").unwrap().home, "/");
        for unknown in ["nobody-here", "", "user:nogroup", "-1", "4294967295"] {
            assert_eq!(accounts.find(unknown), None, "{unknown}");
        }
        assert_eq!((accounts.user_name(1000), accounts.group_name(99)), ("user".to_owned(), "99".to_owned()));
    }

    #[test]
    fn root_needs_no_file() {
        let root = Accounts::default().find("root").unwrap();
        assert_eq!((root.uid, root.gid, root.home.as_str()), (0, 0, "/root"));
    }
}
