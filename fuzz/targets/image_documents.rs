#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| (wakeful_fuzz::target("image_documents").run)(bytes));
