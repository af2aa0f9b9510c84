//! Making a slot, and taking it down again. All of it blocks, on a thread of its own.

use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::mount::UnmountFlags;
use wakeful_model::{Cidr, Rules};

use crate::inside::{apart_now, inside};
use crate::links::Links;
use crate::network::{Kind, Limits};
use crate::ranges::Ranges;
use crate::tables::{CARD, GUEST_CARD, UPLINK, host_link};
use crate::{Error, GATEWAY, GATEWAY_MAC, GUEST, GUEST_MAC, PREFIX, compile, files, nft, pool, tables};

/// What all slots of a network have in common.
pub(crate) struct Plan {
    pub(crate) host: Arc<OwnedFd>,
    pub(crate) run_dir: PathBuf,
    pub(crate) tag: String,
    pub(crate) pool: Cidr,
    pub(crate) private: Ranges,
    pub(crate) limits: Limits,
}

/// A slot as it comes into being.
pub(crate) struct Made {
    pub(crate) namespace: OwnedFd,
    /// The guest's card, if it is one.
    pub(crate) tap: Option<OwnedFd>,
}

/// Settings of a slot's namespace. Those with `false` may be missing from a kernel that does not need them.
const SETTINGS: &[(&str, &str, bool)] = &[
    ("ipv4/ip_forward", "1", true),
    ("ipv4/conf/all/accept_source_route", "0", true),
    ("ipv4/conf/all/accept_redirects", "0", true),
    ("ipv4/conf/all/send_redirects", "0", true),
    ("ipv4/conf/default/send_redirects", "0", true),
    // Refusals are answered, however many there are.
    ("ipv4/icmp_ratelimit", "0", true),
];

/// Settings of every namespace.
const NO_IPV6: &[(&str, &str, bool)] =
    &[("ipv6/conf/all/disable_ipv6", "1", false), ("ipv6/conf/default/disable_ipv6", "1", false)];

/// Set once conntrack is in use: a connection begins at its beginning, so that one from before a sleep is not taken up.
const LOOSE: (&str, &str, bool) = ("netfilter/nf_conntrack_tcp_loose", "0", false);

fn set(&(name, value, needed): &(&str, &str, bool)) -> Result<(), Error> {
    let path = format!("/proc/sys/net/{name}");
    match std::fs::write(&path, value) {
        Err(error) if !needed && error.kind() == io::ErrorKind::NotFound => Ok(()),
        done => done.map_err(Error::io("set", path)),
    }
}

impl Plan {
    /// Makes slot `number`, with a policy in force and its way out closed. The calling thread ends up in its namespace.
    pub(crate) fn make(&self, number: u32, kind: Kind, rules: &Rules) -> Result<Made, Error> {
        let directory = files::directory(&self.run_dir, number);
        std::fs::create_dir(&directory).map_err(Error::io("make", &directory))?;
        let made = self.build(number, kind, rules);
        if made.is_err()
            && let Err(error) = self.destroy(number)
        {
            tracing::warn!(slot = number, %error, "could not remove a half-made network slot; sweeping will");
        }
        made
    }

    fn build(&self, number: u32, kind: Kind, rules: &Rules) -> Result<Made, Error> {
        let namespace = new_namespace(&files::namespace(&self.run_dir, number))?;
        SETTINGS.iter().chain(NO_IPV6).try_for_each(set)?;
        let mut links = Links::open().map_err(Error::link("open", "netlink"))?;
        links.set_up("lo", true).map_err(Error::link("set up", "lo"))?;
        let tap = match kind {
            Kind::Tap => Some(wakeful_sys::net::open_tap(CARD).map_err(Error::link("make", CARD))?),
            Kind::Veth => {
                self.lay_card(number, &mut links)?;
                None
            }
        };
        links.set_mac(CARD, GATEWAY_MAC).map_err(Error::link("address", CARD))?;
        let mark = self.remember_names(number, rules)?.0;
        let script = tables::slot(self.pool, &self.private, self.limits) + &compile::policy(rules, mark, false);
        nft::apply("set a slot's rules", &script)?;
        set(&LOOSE)?;
        links.add_address(CARD, GATEWAY, PREFIX).map_err(Error::link("address", CARD))?;
        links.set_up(CARD, true).map_err(Error::link("set up", CARD))?;
        links.add_neighbour(CARD, GUEST, GUEST_MAC).map_err(Error::link("tell the neighbour of", CARD))?;
        self.connect(number, &mut links)?;
        Ok(Made { namespace, tap })
    }

    /// The guest's card as a link in a namespace of its own, set as an agent would set it.
    fn lay_card(&self, number: u32, links: &mut Links) -> Result<(), Error> {
        let file = files::card(&self.run_dir, number);
        let card = apart_now(|| {
            let namespace = new_namespace(&file)?;
            // Links that are made from now on; the loopback, which the guest takes over as it is, has both families.
            NO_IPV6[1..].iter().try_for_each(set)?;
            Ok(namespace)
        })?;
        links.add_veth(CARD, GUEST_CARD, card.as_fd()).map_err(Error::link("make", CARD))?;
        inside(card.as_fd(), || {
            let of = |doing| Error::link(doing, GUEST_CARD);
            let mut links = Links::open().map_err(Error::link("open", "netlink"))?;
            links.set_up("lo", true).map_err(Error::link("set up", "lo"))?;
            links.set_mac(GUEST_CARD, GUEST_MAC).map_err(of("address"))?;
            links.add_address(GUEST_CARD, GUEST, PREFIX).map_err(of("address"))?;
            links.set_up(GUEST_CARD, true).map_err(of("set up"))?;
            links.add_neighbour(GUEST_CARD, GATEWAY, GATEWAY_MAC).map_err(of("tell the neighbour of"))?;
            links.route_all_via(GATEWAY).map_err(of("route via"))
        })
    }

    /// The way from the slot to the host.
    fn connect(&self, number: u32, links: &mut Links) -> Result<(), Error> {
        let peer = host_link(&self.tag, number);
        let (outer, inner) = pool::uplink(self.pool, number);
        // Of a slot whose directory was removed by hand.
        inside(self.host.as_fd(), || remove_link(&peer))?;
        links.add_veth(UPLINK, &peer, self.host.as_fd()).map_err(Error::link("make", &peer))?;
        links.add_address(UPLINK, inner, 31).map_err(Error::link("address", UPLINK))?;
        inside(self.host.as_fd(), || {
            let mut links = Links::open().map_err(Error::link("open", "netlink"))?;
            links.add_address(&peer, outer, 31).map_err(Error::link("address", &peer))?;
            links.set_up(&peer, true).map_err(Error::link("set up", &peer))
        })
    }

    /// Opens or closes the way out of the slot that the calling thread is in.
    pub(crate) fn set_uplink(&self, number: u32, up: bool) -> Result<(), Error> {
        let mut links = Links::open().map_err(Error::link("open", "netlink"))?;
        links.set_up(UPLINK, up).map_err(Error::link("set up", UPLINK))?;
        if up {
            // It went with the link.
            links.route_all_via(pool::uplink(self.pool, number).0).map_err(Error::link("route via", UPLINK))?;
        }
        Ok(())
    }

    /// The mark that stands for what a policy says about names, and whether it is another than before. It is on disk
    /// before it is in force, so that a later daemon goes on counting where this one ended.
    pub(crate) fn remember_names(&self, number: u32, rules: &Rules) -> Result<(u32, bool), Error> {
        let file = files::directory(&self.run_dir, number).join("names");
        let names = compile::names(rules);
        let before = files::read(&file)?;
        let before = before.as_deref().and_then(|text| text.split_once('\n'));
        let last = before.and_then(|(mark, _)| mark.parse::<u32>().ok()).unwrap_or(0);
        if last > 0 && before.is_some_and(|(_, said)| said == names) {
            return Ok((last, false));
        }
        let mark = last % (u32::MAX - 1) + 1;
        files::write(&file, &format!("{mark}\n{names}"))?;
        Ok((mark, true))
    }

    /// Removes everything of a slot. What is not there is removed; what fails can be tried again.
    pub(crate) fn destroy(&self, number: u32) -> Result<(), Error> {
        // First, so that nobody adopts the rest.
        files::remove(&files::owner_file(&self.run_dir, number))?;
        inside(self.host.as_fd(), || remove_link(&host_link(&self.tag, number)))?;
        let directory = files::directory(&self.run_dir, number);
        for file in [files::card(&self.run_dir, number), files::namespace(&self.run_dir, number)] {
            match rustix::mount::unmount(&file, UnmountFlags::DETACH) {
                Ok(()) | Err(rustix::io::Errno::INVAL | rustix::io::Errno::NOENT) => {}
                Err(error) => return Err(Error::io("unmount", &file)(error.into())),
            }
        }
        match std::fs::remove_dir_all(&directory) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(Error::io("remove", &directory)(error)),
            _ => Ok(()),
        }
    }
}

/// Makes a namespace, which the calling thread is in from then on, and mounts it, so that it outlives this process.
fn new_namespace(file: &Path) -> Result<OwnedFd, Error> {
    wakeful_sys::net::leave_network().map_err(|source| Error::Namespace { source })?;
    let namespace = wakeful_sys::net::current_network().map_err(|source| Error::Namespace { source })?;
    std::fs::File::create_new(file).map_err(Error::io("make", file))?;
    rustix::mount::mount_bind("/proc/thread-self/ns/net", file)
        .map_err(|error| Error::io("mount a namespace at", file)(error.into()))?;
    Ok(namespace)
}

fn remove_link(name: &str) -> Result<(), Error> {
    let mut links = Links::open().map_err(Error::link("open", "netlink"))?;
    links.remove(name).map_err(Error::link("remove", name))
}
