//! What was found once is tried on every build.

use std::fs;
use std::path::Path;

#[test]
fn kept_inputs_find_nothing() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus");
    for (name, target) in ingress_fuzz::TARGETS {
        let mut inputs = 0;
        for file in fs::read_dir(root.join(name)).unwrap_or_else(|e| panic!("corpus/{name}: {e}")) {
            let file = file.unwrap().path();
            let data = fs::read(&file).unwrap();
            eprintln!("{}", file.display()); // shown where the target panics
            target(&data);
            inputs += 1;
        }
        assert!(inputs > 3, "corpus/{name} holds {inputs} inputs");
    }
}
