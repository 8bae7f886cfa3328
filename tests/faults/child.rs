//! Tests that need processes of their own: they change, fork or measure the whole process.
#![expect(unsafe_code, reason = "forking and its ends are calls of the system")]

use crate::links::watched;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Runs a test, by its full name, in a process in which nothing else runs.
pub(crate) fn alone(name: &str, test: impl FnOnce()) {
    if std::env::var(ALONE).is_ok_and(|running| running == name) {
        return watched(test);
    }
    let program = std::env::current_exe().unwrap();
    let arguments = ["--exact", name, "--nocapture"];
    let ran = Command::new(program).args(arguments).env(ALONE, name).output().unwrap();
    let said = [ran.stdout, ran.stderr].map(|said| String::from_utf8_lossy(&said).into_owned()).join("\n");
    assert!(ran.status.success(), "{}: {said}", ran.status);
    assert!(said.contains("1 passed"), "{name} is no test: {said}");
}

/// A forked child; killed when dropped.
#[derive(Debug)]
pub(crate) struct Child(libc::pid_t);

impl Child {
    /// Forks: the child does this and then ends as a program does at the end of `main`.
    pub(crate) fn fork(act: impl FnOnce()) -> Self {
        // SAFETY: the child goes on with this thread alone, and uses what others may have held only
        // where that is what is tested; a lock that it waits for in vain ends it by the alarm.
        let process = unsafe { libc::fork() };
        assert!(process >= 0, "{}", std::io::Error::last_os_error());
        if process > 0 {
            return Self(process);
        }
        // SAFETY: sets a timer whose signal ends the child.
        unsafe { libc::alarm(HANG) };
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(act));
        std::process::exit(i32::from(result.is_err()));
    }

    pub(crate) fn signal(&self, signal: libc::c_int) {
        // SAFETY: a child of this process that was not waited for, so its number is its own.
        let sent = unsafe { libc::kill(self.0, signal) };
        assert_eq!(sent, 0, "{}", std::io::Error::last_os_error());
    }

    /// Stops it, and waits until it has stopped.
    pub(crate) fn freeze(&self) {
        self.signal(libc::SIGSTOP);
        let mut status = 0;
        // SAFETY: a child of this process that was not waited for; `status` is written to.
        let stopped = unsafe { libc::waitpid(self.0, &raw mut status, libc::WUNTRACED) };
        assert!(stopped == self.0 && libc::WIFSTOPPED(status), "{status}");
    }

    /// Waits until it ends; gives its status, which is the number of the signal if one has ended it.
    pub(crate) fn ended(self) -> libc::c_int {
        let mut status = 0;
        // SAFETY: a child of this process that was not waited for; `status` is written to.
        let ended = unsafe { libc::waitpid(self.0, &raw mut status, 0) };
        assert_eq!(ended, self.0, "{}", std::io::Error::last_os_error());
        std::mem::forget(self);
        status
    }

    /// Waits until it ends: by itself, and well.
    pub(crate) fn succeed(self) {
        let status = self.ended();
        assert_ne!(status, libc::SIGALRM, "the child hung");
        assert_eq!(status, 0, "the status in which the child ended");
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        self.signal(libc::SIGKILL);
        // SAFETY: a child of this process that was not waited for; no status is asked for.
        unsafe { libc::waitpid(self.0, std::ptr::null_mut(), 0) };
    }
}

/// Another program; killed when dropped.
#[derive(Debug)]
pub(crate) struct Program(std::process::Child);

impl Program {
    pub(crate) fn start(command: &mut Command) -> Self {
        Self(command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap())
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The time that this process has used of the processors.
pub(crate) fn cpu() -> Duration {
    let used = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(used.tv_sec.try_into().unwrap(), used.tv_nsec.try_into().unwrap())
}

/// Does something that must not wait for anybody.
pub(crate) fn at_once<T>(what: &str, act: impl FnOnce() -> T) -> T {
    let start = Instant::now();
    let answer = act();
    // The calls that might wait here do so for a second at least.
    assert!(start.elapsed() < Duration::from_millis(900), "{what} took {:?}", start.elapsed());
    answer
}

const ALONE: &str = "KVF_TEST_ALONE";
/// Seconds after which a forked child is taken to hang.
const HANG: u32 = 90;
