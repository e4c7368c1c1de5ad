//! All targets in one program, so that there is one to link; FUZZ_TARGET names the one that runs.
#![no_main]

use std::sync::OnceLock;

static TARGET: OnceLock<ingress_fuzz::Target> = OnceLock::new();

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let target = TARGET.get_or_init(|| {
        let name = std::env::var("FUZZ_TARGET").unwrap_or_default();
        let found = ingress_fuzz::TARGETS.iter().find(|(target, _)| *target == name);
        found.unwrap_or_else(|| panic!("FUZZ_TARGET={name}: there is no such target")).1
    });
    target(data);
});
