// Runs the network in several threads, each with a handle of its own, and compares with the function without one.
//
//     rustc -O --edition 2024 -L . -l static=@NAME@ -l m -o rust_example main.rs     # rustc 1.82 or later
use std::os::raw::c_int;
use std::thread;
use std::time::Instant;

const NUM_THREADS: usize = 4;
const BATCH: usize = 3;
const SECONDS: f64 = 0.2; // of each thread

mod ffi {
    use std::os::raw::c_int;

    #[repr(C)]
    pub struct Handle {
        _private: [u8; 0],
    }

    unsafe extern "C" {
        pub fn @NAME@_run(@RUST_PARAMETERS@) -> c_int;
        pub fn @NAME@_create() -> *mut Handle;
        pub fn @NAME@_run_with(handle: *mut Handle, num: usize, @RUST_PARAMETERS@) -> c_int;
        pub fn @NAME@_destroy(handle: *mut Handle);
    }
}

#[derive(Clone)]
struct Tensors {
@RUST_MEMBERS@
}

/// A handle that is given back when it goes out of scope.
struct Network(*mut ffi::Handle);

// it may go from thread to thread, and `run` takes it alone
unsafe impl Send for Network {}

impl Network {
    fn new() -> Option<Network> {
        let handle = unsafe { ffi::@NAME@_create() };
        if handle.is_null() { None } else { Some(Network(handle)) }
    }

    fn run(&mut self, t: &mut Tensors) -> c_int {
        unsafe { ffi::@NAME@_run_with(self.0, BATCH, @RUST_DATA@) }
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        unsafe { ffi::@NAME@_destroy(self.0) }
    }
}

fn bit(seed: usize, i: usize) -> u8 {
    ((i as u32).wrapping_add(1 + 1000 * seed as u32).wrapping_mul(2654435761) >> 31) as u8
}

/// Inputs, and the outputs that one call at a time gives.
fn expected(seed: usize) -> Tensors {
    let mut t = Tensors {
@RUST_FILLS@
    };
    for i in 0..BATCH {
        let code = unsafe { ffi::@NAME@_run(@RUST_NEXT@) };
        assert_eq!(code, 0, "@NAME@_run");
    }
    t
}

fn main() {
    let all: Vec<Tensors> = (0..NUM_THREADS).map(expected).collect();
    let threads: Vec<_> = all
        .into_iter()
        .map(|expected| {
            let mut network = Network::new().expect("memory for a handle");
            thread::spawn(move || {
                let mut t = expected.clone();
                let start = Instant::now();
                let mut alike = true;
                while alike {
@RUST_CLEARS@
                    assert_eq!(network.run(&mut t), 0, "@NAME@_run_with");
                    alike = @RUST_ALIKE@;
                    if start.elapsed().as_secs_f64() > SECONDS {
                        break;
                    }
                }
                alike
            })
        })
        .collect();
    let alike = threads.into_iter().all(|thread| thread.join().unwrap());
    assert!(alike, "a thread computed something else");
    println!("{} threads: all alike", NUM_THREADS);
}
