#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| (wakeful_fuzz::target("dockerfile").run)(bytes));
