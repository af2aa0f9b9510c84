//! Pax records: `length key=value\n`, where the value may hold anything.

/// All records of a header block's data, or nothing if they are damaged.
pub(crate) fn parse(mut data: &[u8]) -> Option<Vec<(&[u8], &[u8])>> {
    let mut records = Vec::new();
    while !data.is_empty() {
        // Some writers fill the last block and count it.
        if data.iter().all(|byte| *byte == 0) {
            break;
        }
        let space = data.iter().take(20).position(|byte| *byte == b' ')?;
        let length = usize::try_from(decimal(&data[..space])?).ok()?;
        if length <= space + 1 || length > data.len() || data[length - 1] != b'\n' {
            return None;
        }
        let record = &data[space + 1..length - 1];
        let equals = record.iter().position(|byte| *byte == b'=')?;
        records.push((&record[..equals], &record[equals + 1..]));
        data = &data[length..];
    }
    Some(records)
}

/// One record, appended. Its length counts its own digits.
pub(crate) fn push(out: &mut Vec<u8>, key: &[u8], value: &[u8]) {
    let rest = key.len() + value.len() + 3;
    let mut length = rest + 1;
    while rest + length.to_string().len() != length {
        length = rest + length.to_string().len();
    }
    out.extend_from_slice(length.to_string().as_bytes());
    out.push(b' ');
    out.extend_from_slice(key);
    out.push(b'=');
    out.extend_from_slice(value);
    out.push(b'\n');
}

/// Digits only.
pub(crate) fn decimal(text: &[u8]) -> Option<u64> {
    if text.is_empty() {
        return None;
    }
    text.iter().try_fold(0u64, |value, digit| match digit {
        b'0'..=b'9' => value.checked_mul(10)?.checked_add(u64::from(digit - b'0')),
        _ => None,
    })
}

/// Seconds with a sign and a fraction, as whole seconds and nanoseconds after them.
pub(crate) fn time(text: &[u8]) -> Option<(i64, u32)> {
    let (negative, text) = match text.strip_prefix(b"-") {
        Some(rest) => (true, rest),
        None => (false, text),
    };
    let mut halves = text.splitn(2, |byte| *byte == b'.');
    let seconds = i64::try_from(decimal(halves.next()?)?).ok()?;
    let fraction = halves.next().unwrap_or_default();
    let mut nanos = 0;
    for place in 0..9 {
        let digit = fraction.get(place).copied().unwrap_or(b'0');
        if !digit.is_ascii_digit() {
            return None;
        }
        nanos = nanos * 10 + u32::from(digit - b'0');
    }
    match (negative, nanos) {
        (false, _) => Some((seconds, nanos)),
        (true, 0) => Some((-seconds, 0)),
        (true, _) => Some((-seconds - 1, 1_000_000_000 - nanos)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_hold_anything_and_count_themselves() {
        for length in 0..1200 {
            let value = vec![b'\n'; length];
            let mut out = Vec::new();
            push(&mut out, b"key", &value);
            push(&mut out, b"other", b"=");
            assert_eq!(parse(&out), Some(vec![(&b"key"[..], &value[..]), (&b"other"[..], &b"="[..])]));
        }
        assert_eq!(parse(b"6 a=b\n\0\0\0"), Some(vec![(&b"a"[..], &b"b"[..])]));
        for bad in
            [&b"7 a=b\n"[..], b"6 a=b", b"x a=b\n", b"99999999999999999999999 a=b\n", b"1 \n", b"4 ab\n", b"0 a=b\n"]
        {
            assert_eq!(parse(bad), None, "{bad:?}");
        }
    }

    #[test]
    fn times_have_signs_and_fractions() {
        assert_eq!(time(b"1700000000"), Some((1_700_000_000, 0)));
        assert_eq!(time(b"1.5"), Some((1, 500_000_000)));
        assert_eq!(time(b"1.1234567899"), Some((1, 123_456_789)));
        assert_eq!(time(b"-1.5"), Some((-2, 500_000_000)));
        assert_eq!(time(b"-3"), Some((-3, 0)));
        for bad in [&b""[..], b"-", b"x", b"1.x", b"99999999999999999999"] {
            assert_eq!(time(bad), None, "{bad:?}");
        }
    }
}
