//! The program in the image: for its machine, without any library, and with the list of what is
//! built in.

use std::io::Write as _;
use std::process::Command;

use rstest::rstest;

/// By the machine's number in the program's header. The other machine's is built in the full series.
#[rstest]
#[case("amd64", 0x3e)]
#[case("arm64", 0xb7)]
fn the_program_needs_no_library_and_names_what_is_built_in(#[case] arch: &str, #[case] machine: u8) {
    let is_full = std::env::var("REDRIVE_TEST_FULL").is_ok_and(|value| value == "1");
    if arch == "arm64" && !is_full {
        // Past the capture of the test harness, which keeps quiet about what passes.
        let _ = writeln!(std::io::stderr(), "left out without REDRIVE_TEST_FULL=1: the program for arm64");
        return;
    }
    let root = env!("CARGO_MANIFEST_DIR");
    let built = Command::new("hack/release-binary").arg(arch).current_dir(root).output().unwrap();
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    let program = std::fs::read(String::from_utf8(built.stdout).unwrap().trim()).unwrap();
    assert_eq!(program[18], machine);
    let has = |section: &str| program.windows(section.len()).any(|part| part == section.as_bytes());
    assert!(has(".dep-v0"), "cargo audit can't read its dependencies");
    assert!(!has(".interp"), "it asks for a loader of libraries");
}
