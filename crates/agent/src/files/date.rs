//! Dates in the two forms that the protocols want. Only UTC, so no library is needed for it.

/// A moment taken apart.
struct Civil {
    year: i64,
    month: usize,
    day: i64,
    weekday: usize,
    hour: i64,
    minute: i64,
    second: i64,
}

/// Howard Hinnant's `civil_from_days`: eras of 400 years, years that begin in March.
fn civil(seconds: i64) -> Civil {
    let (days, rest) = (seconds.div_euclid(86_400), seconds.rem_euclid(86_400));
    let shifted = days + 719_468;
    let (era, day_of_era) = (shifted.div_euclid(146_097), shifted.rem_euclid(146_097));
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * day_of_year + 2) / 153;
    let month = if shifted_month < 10 { shifted_month + 3 } else { shifted_month - 9 };
    Civil {
        year: year_of_era + era * 400 + i64::from(month <= 2),
        month: usize::try_from(month).unwrap_or(1),
        day: day_of_year - (153 * shifted_month + 2) / 5 + 1,
        weekday: usize::try_from((days + 4).rem_euclid(7)).unwrap_or(0),
        hour: rest / 3600,
        minute: rest / 60 % 60,
        second: rest % 60,
    }
}

/// `2026-11-16T01:02:03.004Z`
pub(super) fn rfc3339(seconds: i64, nanoseconds: i64) -> String {
    let Civil { year, month, day, hour, minute, second, .. } = civil(seconds);
    let milliseconds = nanoseconds / 1_000_000;
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{milliseconds:03}Z")
}

/// `Mon, 16 Nov 2026 01:02:03 GMT`
pub(super) fn http_date(seconds: i64) -> String {
    const DAYS: [&str; 7] = ["Sun", "Mon", "Tue", "Wed", "Thu", "Fri", "Sat"];
    const MONTHS: [&str; 12] = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
    let Civil { year, month, day, weekday, hour, minute, second } = civil(seconds);
    format!("{}, {day:02} {} {year:04} {hour:02}:{minute:02}:{second:02} GMT", DAYS[weekday], MONTHS[month - 1])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_moments() {
        for (seconds, iso, http) in [
            (0, "1970-01-01T00:00:00.000Z", "Thu, 01 Jan 1970 00:00:00 GMT"),
            (951_782_400, "2000-02-29T00:00:00.000Z", "Tue, 29 Feb 2000 00:00:00 GMT"),
            (1_794_790_923, "2026-11-16T01:02:03.000Z", "Mon, 16 Nov 2026 01:02:03 GMT"),
            (-1, "1969-12-31T23:59:59.000Z", "Wed, 31 Dec 1969 23:59:59 GMT"),
            (4_107_542_399, "2100-02-28T23:59:59.000Z", "Sun, 28 Feb 2100 23:59:59 GMT"),
        ] {
            assert_eq!((rfc3339(seconds, 0).as_str(), http_date(seconds).as_str()), (iso, http));
        }
        assert_eq!(rfc3339(0, 4_999_999), "1970-01-01T00:00:00.004Z");
    }
}
