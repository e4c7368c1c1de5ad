//! Child processes that never outlive the tests.

use std::io;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus};
use std::sync::mpsc;
use std::sync::{Mutex, OnceLock};
use std::time::Duration;

/// A child process: killed and reaped on drop, and by the kernel when the test process dies in any other way.
#[derive(Debug)]
pub struct RunningProcess {
    name: String,
    child: Child,
    exit: Option<ExitStatus>,
}

impl RunningProcess {
    /// Starts `command`; `name` is for messages.
    pub fn spawn(name: &str, command: Command) -> Self {
        let program = command.get_program().to_owned();
        let child = spawn_from_lasting_thread(command)
            .unwrap_or_else(|e| panic!("cannot start {name} ({}): {e}", program.display()));
        Self { name: name.to_owned(), child, exit: None }
    }

    /// The process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn child_mut(&mut self) -> &mut Child {
        &mut self.child
    }

    /// The exit status, if it has ended.
    pub fn exit_status(&mut self) -> Option<ExitStatus> {
        if self.exit.is_none() {
            self.exit =
                self.child.try_wait().unwrap_or_else(|e| panic!("cannot wait for {}: {e}", self.name));
        }
        self.exit
    }

    /// Sends a signal; does nothing if the process has ended.
    pub fn signal(&mut self, signal: libc::c_int) {
        if self.exit_status().is_some() {
            return;
        }
        // SAFETY: the child is ours and not yet reaped, so its id cannot have been reused.
        let sent = unsafe { libc::kill(self.child.id() as libc::pid_t, signal) };
        assert_eq!(sent, 0, "cannot send signal {signal} to {}: {}", self.name, io::Error::last_os_error());
    }

    /// Waits for the end; panics after `deadline`.
    pub async fn wait_exit(&mut self, deadline: Duration) -> ExitStatus {
        match crate::within(deadline, async || self.exit_status()).await {
            Some(status) => status,
            None => panic!("{} (pid {}) still runs after {deadline:?}", self.name, self.pid()),
        }
    }

    /// SIGKILL, and reaps.
    pub fn kill(&mut self) {
        if self.exit_status().is_none() {
            let _ = self.child.kill();
            self.exit = self.child.wait().ok();
        }
    }
}

impl Drop for RunningProcess {
    fn drop(&mut self) {
        self.kill();
    }
}

/// PR_SET_PDEATHSIG fires when the *thread* that forked ends, and test threads end early. So one thread, which lives
/// as long as the process, does all the forking.
fn spawn_from_lasting_thread(mut command: Command) -> io::Result<Child> {
    type Job = (Command, mpsc::Sender<io::Result<Child>>);
    static SPAWNER: OnceLock<Mutex<mpsc::Sender<Job>>> = OnceLock::new();

    let parent = std::process::id();
    // SAFETY: only async-signal-safe calls between fork and exec.
    unsafe {
        command.pre_exec(move || {
            if libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) != 0 {
                return Err(io::Error::last_os_error());
            }
            // The parent may have died before the call above.
            if libc::getppid() as u32 != parent {
                return Err(io::Error::from_raw_os_error(libc::ESRCH));
            }
            Ok(())
        });
    }
    let spawner = SPAWNER.get_or_init(|| {
        let (sender, jobs) = mpsc::channel::<Job>();
        std::thread::Builder::new()
            .name("spawner".into())
            .spawn(move || {
                for (mut command, reply) in jobs {
                    let _ = reply.send(command.spawn());
                }
            })
            .expect("a thread can be started");
        Mutex::new(sender)
    });
    let (reply, answer) = mpsc::channel();
    let sender = spawner.lock().map(|s| s.clone()).map_err(|_| io::Error::other("spawner poisoned"))?;
    sender.send((command, reply)).map_err(|_| io::Error::other("spawner ended"))?;
    answer.recv().map_err(|_| io::Error::other("spawner ended"))?
}
