//! Whether KVM works is found out by trying, and emulation is what is left.

use std::time::{Duration, Instant};

use wakeful_driver::Driver;
use wakeful_driver_qemu::{Accel, Qemu, QemuConfig};

use crate::lab::{self, config};

#[tokio::test(flavor = "multi_thread")]
async fn a_probe_guest_reaches_user_space() {
    let lab = lab::open().await;
    let outcome = lab.qemu.probe(lab.run_dir(), Duration::from_secs(90)).await.expect("can be tried");
    assert_eq!(outcome, None);
    let late = lab.qemu.probe(lab.run_dir(), Duration::from_millis(1)).await.expect("can be tried");
    assert_eq!(late.as_deref(), Some("probe guest did not reach user space in 0 s"));
    let left = std::fs::read_dir(lab.run_dir()).expect("is there").flatten();
    assert!(left.into_iter().all(|entry| !entry.file_name().to_string_lossy().starts_with("probe-")));
}

#[tokio::test(flavor = "multi_thread")]
async fn auto_decides_by_itself_and_remembers() {
    let lab = lab::open().await;
    let data = lab.data();
    let run = lab.run_dir().join("auto/run");
    // As root, so that the rights on /dev/kvm are no reason: on a host where it does not work the guest must say so.
    let auto = QemuConfig { accel: Accel::Auto, engine_uid: 0, ..config(data, &run) };
    let qemu = Qemu::open(auto.clone()).await.expect("one of both works");
    let [kvm, tcg] = qemu.runtimes() else { panic!("two ways") };
    assert_eq!((kvm.accel.as_str(), tcg.accel.as_str(), tcg.available), ("kvm", "tcg", true));
    assert_eq!(qemu.engine().accel == "kvm", kvm.available);
    assert_eq!(kvm.reason.is_none(), kvm.available);
    assert_eq!(qemu.capabilities().hardware_virtualization, kvm.available);
    if std::path::Path::new("/dev/kvm").exists() {
        assert!(kvm.probed_at.is_some() && run.join("../kvm-probe.json").exists());
    }
    let begun = Instant::now();
    let again = Qemu::open(auto.clone()).await.expect("one of both works");
    assert_eq!(again.runtimes(), qemu.runtimes());
    assert!(begun.elapsed() < Duration::from_secs(1), "a known answer is not tried again");
    if !kvm.available {
        assert!(Qemu::open(QemuConfig { accel: Accel::Kvm, ..auto.clone() }).await.is_err());
    }
    assert_eq!(Qemu::survey(&auto).await, qemu.runtimes());
}

#[tokio::test]
async fn a_host_without_anything_says_what_is_missing() {
    let data = tempfile::tempdir().expect("can be made");
    let bare = QemuConfig { binary: Some("/nonexistent/qemu".into()), ..config(data.path(), data.path()) };
    let error = Qemu::open(bare.clone()).await.expect_err("there is no engine");
    assert!(error.to_string().contains("/nonexistent/qemu"), "{error}");
    let runtimes = Qemu::survey(&bare).await;
    assert!(runtimes.iter().all(|runtime| !runtime.available && runtime.fix.as_deref() == Some("wakeful setup")));
    let error = Qemu::open(config(data.path(), data.path())).await.expect_err("there is no kernel");
    assert!(error.to_string().contains("kernel"), "{error}");
}
