//! The example for CUDA, over the fake libibverbs and a library that stands for libcuda.
#![expect(clippy::unwrap_used, reason = "tests")]

#[path = "../examples/cuda.rs"]
#[expect(dead_code, reason = "its main function")]
mod example;

#[path = "../sys/tests/compiled/mod.rs"]
mod compiled;

use std::ffi::CString;
use std::path::{Path, PathBuf};

use doorbell_fake::{Control, Without};
use doorbell_ffi::Rdma;

/// Compiles the stand-in.
fn build() -> PathBuf {
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("cuda-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    let output = dir.join("libcuda.so");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cuda/libcuda.rs");
    compiled::shared_library(&source, &output, &["non_snake_case"]);
    output
}

#[test]
fn memory_of_a_gpu_is_registered_or_what_is_missing_is_named() {
    let path = doorbell_fake::library_path().unwrap();
    // SAFETY: the fake was built from this workspace and stands for libibverbs of the machine's ABI.
    unsafe { rdma_sys::load_from(&path) }.unwrap();
    let rdma = Rdma::load().unwrap();
    let control = Control::of(&path).unwrap();
    let library = CString::new(build().to_str().unwrap()).unwrap();
    let lacks = |what: &str| {
        // SAFETY: the only thread of this process that reads or writes the environment.
        unsafe { std::env::set_var("LIBCUDA_LACKS", what) };
        example::register(&rdma, &library).unwrap_err()
    };
    assert_eq!(
        lacks("a GPU"),
        "cuInit failed: no CUDA-capable device is detected (100)"
    );
    assert!(lacks("exports").starts_with("this GPU exports no dma-buf"));
    control.lack(Without::Dmabuf);
    assert_eq!(
        lacks("nothing"),
        r#"none of the RDMA devices ["fake0"] imports dma-bufs"#
    );
    control.heal();
    let said = example::register(&rdma, &library).unwrap();
    assert!(said.starts_with("fake0: RemoteWindow"), "{said}");
    let nowhere = example::register(&rdma, c"/nonexistent/libcuda.so.1").unwrap_err();
    assert!(nowhere.ends_with("install the NVIDIA driver"), "{nowhere}");
    let old = CString::new(path.to_str().unwrap()).unwrap();
    let old = example::register(&rdma, &old).unwrap_err();
    assert_eq!(old, "cuInit is missing: the driver is too old");
}
