#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| (wakeful_fuzz::target("stream_frames").run)(bytes));
