//! The short form of `make soak`.

use anyhow::{Result, ensure};
use wakeful_testkit::{Soak, soak};

#[tokio::test]
async fn a_few_lives_lose_nothing() -> Result<()> {
    // Another life each day; the seed is in the error.
    let day = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH)?.as_secs() / 86_400;
    let soaked = soak(Soak { cycles: 24, seed: day.wrapping_mul(0x9E37_79B9), kill: true }, |_, _| ()).await?;
    ensure!(soaked.done.values().sum::<u32>() == 24, "{soaked:?}");
    Ok(())
}
