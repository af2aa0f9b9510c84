use std::time::Instant;
use wakeful_driver::{Driver, Source, Machine, Engine};
use crate::lab::Lab;
#[tokio::test(flavor = "multi_thread")]
async fn timing() {
    let lab = Lab::open().await;
    let (s, e, g) = lab.clone("look").await;
    let o = std::process::Command::new("sh").arg("-c").arg(format!("ls -l /proc/{0}/fd; grep -E '^(Cap|NoNew|Seccomp|Uid|Gid|Groups|VmRSS)' /proc/{0}/status; tr '\\0' ' ' < /proc/{0}/cmdline; ls -la {1} {2}; ls -la {3}; ps -o pid,ppid,pgid,sid,comm -p {0}; cat {1}/engine.json", e.pid(), s.place.run.display(), s.place.data.display(), lab.golden.display())).output().unwrap();
    eprintln!("{}", String::from_utf8_lossy(&o.stdout));
    drop(g);
    let sandbox = lab.sandbox("smp");
    let two = Machine { cpu: 2, memory_mb: 192, disk_mb: 128 };
    let t = Instant::now();
    let engine = sandbox.qemu.launch(&sandbox.place, two, &sandbox.base, Source::Golden { secret: [7; 32] }).await.unwrap();
    let mut sb = lab.sandbox("x");
    let guest = sb.go(&*engine).await;
    eprintln!("two cpus: boot {:?} {}", t.elapsed(), crate::lab::shell(&guest, "cat /proc/cpuinfo | head -c 3000; cat /proc/meminfo | head -n 2; cat /proc/mounts").await.matches("processor\t").count());
    let image = sandbox.suspend(&*engine, guest, &sandbox.place.data).await;
    engine.kill().await.unwrap();
    let secret = sb.secret;
    let mut set = tokio::task::JoinSet::new();
    let t = Instant::now();
    for i in 0..16 {
        let mut c = lab.sandbox(&format!("c{i}"));
        c.secret = secret;
        let (golden, image) = (sandbox.place.data.clone(), image.clone());
        set.spawn(async move {
            let t = Instant::now();
            let e = c.qemu.launch(&c.place, two, &c.base, Source::Clone { golden: &golden, image: &image }).await.unwrap();
            let l = t.elapsed();
            let g = c.go(&*e).await;
            (l, t.elapsed(), c, e, g)
        });
    }
    let all = set.join_all().await;
    for a in &all { eprintln!("{:.1?} {:.1?}", a.0, a.1); }
    eprintln!("16 clones of two cpus {:?}", t.elapsed());
    drop(e);
}
