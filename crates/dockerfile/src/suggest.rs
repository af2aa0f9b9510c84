//! What somebody may have meant, for messages about names that do not exist.

/// The nearest of `known`, when it is near enough to be a slip of the hand.
pub(crate) fn nearest<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let word: Vec<char> = word.chars().take(40).map(|c| c.to_ascii_lowercase()).collect();
    known
        .into_iter()
        .map(|name| {
            let letters: Vec<char> = name.chars().take(40).map(|c| c.to_ascii_lowercase()).collect();
            (distance(&word, &letters), letters.len(), name)
        })
        .filter(|(far, length, _)| *far > 0 && *far <= (length / 3).clamp(1, 2))
        .min_by_key(|(far, ..)| *far)
        .map(|(.., name)| name)
}

/// How many letters are changed, lost, added or swapped with their neighbour.
fn distance(a: &[char], b: &[char]) -> usize {
    let mut rows = vec![vec![0usize; b.len() + 1]; a.len() + 1];
    for (i, row) in rows.iter_mut().enumerate() {
        row[0] = i;
    }
    for (j, cell) in rows[0].iter_mut().enumerate() {
        *cell = j;
    }
    for i in 1..=a.len() {
        for j in 1..=b.len() {
            let cost = usize::from(a[i - 1] != b[j - 1]);
            let mut best = (rows[i - 1][j] + 1).min(rows[i][j - 1] + 1).min(rows[i - 1][j - 1] + cost);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                best = best.min(rows[i - 2][j - 2] + 1);
            }
            rows[i][j] = best;
        }
    }
    rows[a.len()][b.len()]
}

#[cfg(test)]
mod tests {
    use super::nearest;

    #[test]
    fn slips_are_found_and_strangers_are_not() {
        let known = ["RUN", "COPY", "ENTRYPOINT", "WORKDIR"];
        assert_eq!(nearest("RNU", known), Some("RUN"));
        assert_eq!(nearest("copyy", known), Some("COPY"));
        assert_eq!(nearest("ENTRYPIONT", known), Some("ENTRYPOINT"));
        assert_eq!(nearest("FOO", known), None);
        assert_eq!(nearest("", known), None);
    }
}
