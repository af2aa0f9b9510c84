//! What all engines of one driver share.

use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use wakeful_confine::files;
use wakeful_driver::{EngineInfo, Error};
use wakeful_sys::tsc;

use crate::boot::{self, Accelerator};
use crate::engines::Pinned;
use crate::jail::Jail;
use crate::kernel::Kernel;
use crate::launch;

/// How long the counter is watched.
const MEASURE: Duration = Duration::from_millis(200);

/// Everything that is the same for all engines.
#[derive(Clone, Debug)]
pub(crate) struct Host {
    pub(crate) data_dir: PathBuf,
    /// What new engines are.
    pub(crate) engine: Pinned,
    pub(crate) accelerator: Accelerator,
    pub(crate) tsc_khz: u64,
    pub(crate) kernel: Kernel,
    pub(crate) initramfs: Vec<u8>,
    pub(crate) jail: Jail,
}

impl Host {
    /// What the images of this kept engine fit, as it would be run here and now.
    pub(crate) fn key(&self, engine: &Pinned) -> String {
        key(engine, self.accelerator, self.tsc_khz)
    }

    pub(crate) fn groups(&self) -> Vec<u32> {
        launch::kvm_groups(self.accelerator)
    }

    pub(crate) fn info(&self) -> EngineInfo {
        let key = self.key(&self.engine);
        let mut golden = blake3::Hasher::new();
        golden.update(key.as_bytes()).update(self.kernel.digest.as_bytes());
        golden.update(boot::kernel_command_line(self.accelerator, self.tsc_khz).as_bytes());
        golden.update(blake3::hash(&self.initramfs).as_bytes());
        EngineInfo {
            runtime: "qemu".to_owned(),
            accel: self.accelerator.name().to_owned(),
            version: self.engine.version.clone(),
            golden_key: golden.finalize().to_hex()[..16].to_owned(),
            key,
        }
    }
}

/// Version, files, machine, arguments, processor, accelerator and clock rate, in sixteen digits.
pub(crate) fn key(engine: &Pinned, accelerator: Accelerator, tsc_khz: u64) -> String {
    let mut hasher = blake3::Hasher::new();
    hasher.update(engine.version.as_bytes()).update(&[0]).update(engine.digest.as_bytes()).update(&[0]);
    hasher.update(boot::shape(engine, accelerator).as_bytes()).update(&[0]);
    hasher.update(accelerator.name().as_bytes()).update(&tsc_khz.to_le_bytes());
    if accelerator == Accelerator::Kvm {
        // The emulated processor is always the same; the real one is not.
        hasher.update(processor().as_bytes());
    }
    hasher.finalize().to_hex()[..16].to_owned()
}

/// Model and features of the host's processor.
fn processor() -> String {
    let text = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let first = text.split("\n\n").next().unwrap_or_default();
    let kept = ["vendor_id", "cpu family", "model", "stepping", "flags"];
    first.lines().filter(|line| kept.iter().any(|name| line.starts_with(name))).collect::<Vec<_>>().join("\n")
}

#[derive(Serialize, Deserialize)]
struct Measured {
    boot_id: String,
    khz: u64,
}

/// The rate of the time stamp counter. It is part of what an image fits, and no two measurements are the same, so the
/// value in use is kept for as long as a measurement agrees with it to half a per cent; one is made per boot of the host.
pub(crate) async fn tsc_khz(data_dir: &Path, run_dir: &Path) -> Result<u64, Error> {
    let failed = |source| Error::io("measure the time stamp counter", source);
    let (cache, kept) = (run_dir.join("tsc.json"), data_dir.join("engines/tsc_khz"));
    let boot_id = files::boot_id().map_err(failed)?;
    let measured = match files::read_json::<Measured>(&cache) {
        Some(measured) if measured.boot_id == boot_id => measured.khz,
        _ => {
            let first = tsc::sample();
            tokio::time::sleep(MEASURE).await;
            let khz = tsc::khz(first, tsc::sample())
                .ok_or_else(|| failed(std::io::Error::other("the counter stands still")))?;
            files::write_json(&cache, &Measured { boot_id, khz }).map_err(failed)?;
            khz
        }
    };
    let in_use: Option<u64> = std::fs::read_to_string(&kept).ok().and_then(|text| text.trim().parse().ok());
    if let Some(in_use) = in_use
        && in_use.abs_diff(measured) * 200 <= in_use
    {
        return Ok(in_use);
    }
    files::write(&kept, format!("{measured}\n").as_bytes()).map_err(failed)?;
    Ok(measured)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_clock_rate_in_use_is_kept() {
        let (data, run) = (tempfile::tempdir().expect("can be made"), tempfile::tempdir().expect("can be made"));
        std::fs::create_dir(data.path().join("engines")).expect("can be made");
        let kept = data.path().join("engines/tsc_khz");
        let first = tsc_khz(data.path(), run.path()).await.expect("can be measured");
        assert_eq!(std::fs::read_to_string(&kept).expect("is kept"), format!("{first}\n"));
        let near = first + first / 400;
        std::fs::write(&kept, near.to_string()).expect("can be written");
        assert_eq!(tsc_khz(data.path(), run.path()).await.expect("is cached"), near);
        std::fs::write(&kept, (first * 2).to_string()).expect("can be written");
        assert_eq!(tsc_khz(data.path(), run.path()).await.expect("is cached"), first);
    }

    #[test]
    fn a_key_depends_on_everything() {
        let engine = |version: &str, digest: &str| Pinned {
            name: String::new(),
            path: PathBuf::new(),
            version: version.to_owned(),
            digest: digest.to_owned(),
        };
        let one = key(&engine("7.2.22", "a"), Accelerator::Tcg, 1000);
        assert_eq!(one.len(), 16);
        assert_eq!(one, key(&engine("7.2.22", "a"), Accelerator::Tcg, 1000));
        for other in [
            key(&engine("7.2.23", "a"), Accelerator::Tcg, 1000),
            key(&engine("7.2.22", "b"), Accelerator::Tcg, 1000),
            key(&engine("7.2.22", "a"), Accelerator::Kvm, 1000),
            key(&engine("7.2.22", "a"), Accelerator::Tcg, 1001),
        ] {
            assert_ne!(one, other);
        }
    }
}
