//! Which addresses the slots' uplinks have on the host.

use std::net::{IpAddr, Ipv4Addr};

use wakeful_model::Cidr;

use crate::Error;
use crate::links::Route;

fn cidr((address, prefix): Route) -> Cidr {
    format!("{address}/{prefix}").parse().expect("an address and a prefix of the kernel's are a range")
}

/// A range as the kernel takes it.
pub(crate) fn route(pool: Cidr) -> Route {
    match pool.network().address() {
        IpAddr::V4(address) => (address, pool.prefix()),
        IpAddr::V6(_) => unreachable!("a pool is checked to be IPv4"),
    }
}

/// How many slots a pool holds: two addresses each.
pub(crate) fn slots(pool: Cidr) -> u32 {
    1 << (31 - u32::from(pool.prefix()))
}

/// The host's and the slot's address of an uplink.
pub(crate) fn uplink(pool: Cidr, slot: u32) -> (Ipv4Addr, Ipv4Addr) {
    let first = u32::from(route(pool).0) + 2 * slot;
    (first.into(), (first + 1).into())
}

/// A configured pool, if it can be one.
pub(crate) fn check(pool: Cidr) -> Result<Cidr, Error> {
    if pool.address().is_ipv4() && (8..=24).contains(&pool.prefix()) {
        Ok(pool.network())
    } else {
        Err(Error::InvalidPool { pool })
    }
}

fn collision(pool: Cidr, routes: &[Route]) -> Option<Cidr> {
    routes.iter().map(|route| cidr(*route)).find(|route| route.touches(pool))
}

/// Picks a range that the host knows no way to. Where the search begins depends on the tag, so that two daemons on one
/// host rarely meet.
pub(crate) fn pick(wanted: Option<Cidr>, tag: &str, routes: &[Route]) -> Result<Cidr, Error> {
    if let Some(pool) = wanted {
        let pool = check(pool)?;
        return match collision(pool, routes) {
            Some(route) => Err(Error::PoolTaken { pool, route }),
            None => Ok(pool),
        };
    }
    let begin = u32::from_str_radix(tag, 16).unwrap_or(0) % 128;
    let tens = (0..256_u32).map(|step| {
        // The upper half first: people number from below.
        let second = if step < 128 { 128 + (begin + step) % 128 } else { 255 - step };
        ((10 << 24) | (second << 16), 16)
    });
    let rest =
        (16..32_u32).flat_map(|second| (0..16_u32).map(move |third| (172 << 24) | (second << 16) | (third << 12)));
    let rest = rest.chain((0..16_u32).map(|third| (192 << 24) | (168 << 16) | (third << 12)));
    let mut candidates = tens.chain(rest.map(|first| (first, 20)));
    let free = candidates.find_map(|(first, prefix)| {
        let pool = cidr((first.into(), prefix));
        collision(pool, routes).is_none().then_some(pool)
    });
    free.ok_or(Error::NoPool)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn routes(texts: &[&str]) -> Vec<Route> {
        texts.iter().map(|text| route(text.parse().expect("is a range"))).collect()
    }

    #[test]
    fn a_pool_keeps_clear_of_the_hosts_routes() {
        assert_eq!(pick(None, "00001", &[]).expect("is free").to_string(), "10.129.0.0/16");
        let taken = routes(&["10.129.3.4/32", "10.130.0.0/15"]);
        assert_eq!(pick(None, "00001", &taken).expect("is free").to_string(), "10.132.0.0/16");
        let taken = routes(&["10.0.0.0/8", "172.16.0.0/14", "172.20.0.0/22"]);
        assert_eq!(pick(None, "00001", &taken).expect("is free").to_string(), "172.20.16.0/20");
        let taken = routes(&["10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16"]);
        assert!(matches!(pick(None, "00001", &taken), Err(Error::NoPool)));
        let wanted = "10.5.0.0/16".parse().ok();
        assert!(matches!(pick(wanted, "00001", &taken), Err(Error::PoolTaken { .. })));
        assert!(matches!(pick("fd00::/16".parse().ok(), "00001", &[]), Err(Error::InvalidPool { .. })));
    }

    #[test]
    fn uplinks_are_pairs() {
        let pool = "10.128.0.0/16".parse().expect("is a range");
        assert_eq!(slots(pool), 32_768);
        assert_eq!(uplink(pool, 32_767), (Ipv4Addr::new(10, 128, 255, 254), Ipv4Addr::new(10, 128, 255, 255)));
    }
}
