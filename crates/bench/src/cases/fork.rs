//! How long a fork holds its source up. Seen from inside: the longest that a program there did not run.

use serde_json::json;

use super::{Bench, id_of, timed};
use crate::report::Pairs;
use crate::stats::summary;
use crate::{Case, Error, Row};

/// Looks at the clock all the time and keeps the longest gap, in seconds; the first looks run cold code. The clock of the
/// day is the one that is put right after a stop: the guest's others stand still with it. `perl-base` has no module for it.
const WATCH: &str = r#"pkill perl; rm -f /tmp/gap; setsid perl -e '
my $t = "\0" x 16;
sub now { syscall(228, 0, $t); my ($s, $n) = unpack("qq", $t); $s + $n / 1e9 }
sub pause { select(undef, undef, undef, 0.001) }
for (1 .. 200) { now(); pause() }
my ($last, $most) = (now(), 0);
while (1) { pause(); my $now = now(); my $gap = $now - $last; $last = $now; next if $gap <= $most; $most = $gap;
open(my $f, ">", "/tmp/new"); print $f $most; close $f; rename "/tmp/new", "/tmp/gap"; }' >/dev/null 2>&1 </dev/null &
while ! test -e /tmp/gap; do sleep 0.05; done"#;

pub(super) async fn stop(bench: &Bench<'_>) -> Result<Row, Error> {
    let mut bare = bench.qemu(json!({})).await?.create(bench.name()).await?;
    let ours = bench.create(json!({})).await?;
    let id = id_of(&ours);
    let (mut pairs, mut whole, n) = (Pairs::default(), Vec::new(), bench.pairs(Case::ForkStop));
    for round in 0..n {
        bench.tell(Case::ForkStop, round, n);
        bench.execute(id, &["sh", "-c", WATCH]).await?;
        let (took, children) = timed(bench.fork(id)).await?;
        whole.push(took);
        let gap: f64 = bench.output(id, &["cat", "/tmp/gap"]).await?.trim().parse().unwrap_or(f64::NAN);
        pairs.ours.push(gap * 1000.0);
        for child in children {
            bench.destroy(&child).await?;
        }
        pairs.engine.push(bare.cut().await?.as_secs_f64() * 1000.0);
    }
    bare.destroy().await?;
    bench.destroy(id).await?;
    Ok(Row::of(Case::ForkStop, &bench.runtime, &pairs).with("fork_ms", json!(summary(&whole))))
}
