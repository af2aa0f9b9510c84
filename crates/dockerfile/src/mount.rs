//! `RUN --mount=…`: what a step sees for its own time only.

use crate::error::Error;
use crate::instruction::MountSpec;

/// Reads the value of one `--mount`.
pub(crate) fn parse(text: &str, line: u32) -> Result<MountSpec, Error> {
    let mut fields = Vec::new();
    for field in text.split(',') {
        let (name, value) = field.split_once('=').map_or((field, None), |(name, value)| (name, Some(value)));
        fields.push((name.trim().to_ascii_lowercase(), value.map(|v| v.trim().to_owned())));
    }
    let kind = fields.iter().find(|(name, _)| name == "type").and_then(|(_, value)| value.as_deref()).unwrap_or("bind");
    if ["secret", "ssh"].contains(&kind) {
        return Err(Error::unsupported(line, format!("RUN --mount=type={kind}: builds have no secrets")));
    }
    if !["bind", "cache", "tmpfs"].contains(&kind) {
        return Err(Error::syntax(line, format!("unknown mount type {kind:?}")));
    }
    let kind = kind.to_owned();
    let mut mount = Fields::default();
    for (name, value) in fields {
        let wrong = |why: &str| Error::syntax(line, format!("mount field {name:?}: {why}"));
        let needed = || value.clone().filter(|v| !v.is_empty()).ok_or_else(|| wrong("needs a value"));
        let number = |radix: u32| u32::from_str_radix(&needed()?, radix).map_err(|_| wrong("is not a number"));
        match (name.as_str(), kind.as_str()) {
            ("type", _) => {}
            ("target" | "dst" | "destination", _) => mount.target = Some(needed()?),
            ("source" | "src", "bind") => mount.source = Some(needed()?),
            ("from", "bind") => mount.from = Some(needed()?),
            ("from" | "source" | "src", "cache") => {
                return Err(Error::unsupported(line, format!("mount field {name:?} of a cache: caches begin empty")));
            }
            // What is mounted is taken away after the step, so writing to it harms nobody.
            ("rw" | "readwrite" | "ro" | "readonly", "bind" | "cache") => {}
            ("sharing", "cache") => match needed()?.as_str() {
                "shared" | "private" | "locked" => {}
                _ => return Err(wrong("must be shared, private or locked")),
            },
            ("id", "cache") => mount.id = Some(needed()?),
            ("mode", "cache") => mount.mode = Some(number(8)?),
            ("uid", "cache") => mount.uid = number(10)?,
            ("gid", "cache") => mount.gid = number(10)?,
            ("size", "tmpfs") => mount.size = Some(bytes(&needed()?).ok_or_else(|| wrong("is not a size"))?),
            _ => return Err(Error::syntax(line, format!("unexpected field {name:?} of a {kind} mount"))),
        }
    }
    let target = mount.target.ok_or_else(|| Error::syntax(line, format!("a {kind} mount needs a target")))?;
    if let Some(from) = mount.from.as_deref().filter(|from| from.contains('$')) {
        return Err(Error::syntax(
            line,
            format!("variables are not expanded in from={from}: give the image a stage of its own"),
        ));
    }
    Ok(match kind.as_str() {
        "cache" => MountSpec::Cache {
            target,
            id: mount.id,
            mode: mount.mode.unwrap_or(0o755) & 0o7777,
            uid: mount.uid,
            gid: mount.gid,
        },
        "tmpfs" => MountSpec::Tmpfs { target, size: mount.size },
        _ => MountSpec::Bind { target, source: mount.source.unwrap_or_else(|| "/".to_owned()), from: mount.from },
    })
}

#[derive(Default)]
struct Fields {
    target: Option<String>,
    source: Option<String>,
    from: Option<String>,
    id: Option<String>,
    mode: Option<u32>,
    uid: u32,
    gid: u32,
    size: Option<u64>,
}

/// `64m`, `1g`, `4096`, also with a `b` behind.
fn bytes(text: &str) -> Option<u64> {
    let text = text.to_ascii_lowercase();
    let text = text.strip_suffix('b').unwrap_or(&text);
    let text = text.strip_suffix('i').unwrap_or(text);
    let (digits, unit) = match text.as_bytes().last()? {
        b'k' => (&text[..text.len() - 1], 1u64 << 10),
        b'm' => (&text[..text.len() - 1], 1 << 20),
        b'g' => (&text[..text.len() - 1], 1 << 30),
        _ => (text, 1),
    };
    digits.parse::<u64>().ok()?.checked_mul(unit)
}

#[cfg(test)]
mod tests {
    use super::parse;
    use crate::instruction::MountSpec;

    #[test]
    fn mounts_are_read() {
        assert_eq!(
            parse("type=cache,target=/root/.cache,sharing=locked,mode=0700,uid=5", 1).unwrap(),
            MountSpec::Cache { target: "/root/.cache".into(), id: None, mode: 0o700, uid: 5, gid: 0 }
        );
        assert_eq!(
            parse("source=a,target=b,from=x", 1).unwrap(),
            MountSpec::Bind { target: "b".into(), source: "a".into(), from: Some("x".into()) }
        );
        assert_eq!(
            parse("type=tmpfs,dst=/t,size=64m", 1).unwrap(),
            MountSpec::Tmpfs { target: "/t".into(), size: Some(64 << 20) }
        );
    }

    #[test]
    fn what_cannot_be_is_refused() {
        for (text, why) in [
            ("type=secret,id=x", "no secrets"),
            ("type=ssh", "no secrets"),
            ("type=floppy,target=/a", "unknown mount type"),
            ("type=cache", "needs a target"),
            ("type=cache,target=", "needs a value"),
            ("type=cache,target=/a,from=x", "begin empty"),
            ("type=tmpfs,target=/a,size=many", "not a size"),
            ("type=cache,target=/a,mode=9", "not a number"),
            ("type=tmpfs,target=/a,colour=red", "unexpected field"),
            ("target=/a,from=$x", "not expanded"),
        ] {
            let error = parse(text, 3).unwrap_err();
            assert!(error.detail().contains(why) && error.line() == Some(3), "{text}: {error}");
        }
    }
}
