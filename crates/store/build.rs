//! A new migration is a new file, which the compiler by itself would not notice.

fn main() {
    println!("cargo::rerun-if-changed=migrations");
}
