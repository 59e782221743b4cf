//! Compiles `bpf/*.bpf.c` to BPF object files in `OUT_DIR`. The code in `src/` embeds these files.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

const PROGRAMS: [&str; 3] = ["steer", "packet", "decap"];
const HELP: &str = "the BPF programs need clang and the headers of libbpf and the kernel;\n\
    on Debian: apt-get install clang libbpf-dev linux-libc-dev";

fn main() {
    println!("cargo::rerun-if-changed=bpf");
    println!("cargo::rerun-if-env-changed=CLANG");
    let clang = env::var("CLANG").unwrap_or_else(|_| "clang".to_owned());
    let out = PathBuf::from(variable("OUT_DIR"));
    for program in PROGRAMS {
        let source = Path::new("bpf").join(format!("{program}.bpf.c"));
        compile(&clang, &source, &out.join(format!("{program}.bpf.o")));
    }
}

fn compile(clang: &str, source: &Path, object: &Path) {
    // On Debian, asm/types.h is in a folder named after the architecture. Clang with `-target bpf`
    // does not search that folder.
    let triple = format!("{}-linux-gnu", variable("CARGO_CFG_TARGET_ARCH"));
    let output = Command::new(clang)
        .args(["-O2", "-g", "-target", "bpf", "-mcpu=v3", "-Wall", "-Wextra", "-Werror"])
        // The second folder belongs to Debian's packages linux-libc-dev-*-cross, which are used for
        // cross-compilation.
        .args([format!("-I/usr/include/{triple}"), format!("-I/usr/{triple}/include")])
        // makes the object files independent of the build folder
        .arg(format!("-fdebug-prefix-map={}=.", variable("CARGO_MANIFEST_DIR")))
        .arg("-c")
        .arg(source)
        .arg("-o")
        .arg(object)
        .output();
    match output {
        Err(error) => fail(&format!("cannot run {clang}: {error}\n{HELP}")),
        Ok(output) if !output.status.success() => {
            let said = String::from_utf8_lossy(&output.stderr);
            let missing = said.contains("file not found") || said.contains("target triple");
            fail(&format!("{}: {said}{}", source.display(), if missing { HELP } else { "" }));
        }
        Ok(_) => {}
    }
}

fn variable(name: &str) -> String {
    env::var(name).unwrap_or_else(|error| fail(&format!("{name}: {error}")))
}

fn fail(message: &str) -> ! {
    for line in message.lines() {
        println!("cargo::error={line}");
    }
    std::process::exit(1)
}
