//! The threads that check passwords. A check takes milliseconds to seconds by design, so none is made
//! on a thread that serves, and only so many wait.

use parking_lot::Mutex;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::{Duration, Instant};

/// Checks that wait for one thread.
const QUEUE: usize = 16;
/// Below that of serving threads, so that guesses cost other routes nothing.
const NICE: libc::c_int = 19;
/// Nanoseconds that a thread may go on when another one has become ready, the least that Linux grants (since 6.12;
/// earlier ones do not ask). Else it is some 3 ms in spite of the rank, which a request would have to wait.
const SLICE: u64 = 100_000;
/// Longest rest.
const REST: Duration = Duration::from_secs(1);

type Job = Box<dyn FnOnce() + Send>;

/// A few threads with one bounded queue. They end when this is dropped.
pub struct Workers(SyncSender<Job>);

/// The queue is full.
#[derive(Debug, PartialEq, Eq)]
pub struct Busy;

impl Workers {
    /// Starts `threads` of them, at least one.
    pub fn start(threads: usize) -> std::io::Result<Self> {
        let threads = threads.max(1);
        let (send, receive) = sync_channel(threads * QUEUE);
        let receive = Arc::new(Mutex::new(receive));
        for i in 0..threads {
            let receive = receive.clone();
            std::thread::Builder::new().name(format!("auth-hash-{i}")).spawn(move || work(&receive))?;
        }
        Ok(Self(send))
    }

    /// Queues a job, or says at once that it cannot be.
    pub fn submit(&self, job: impl FnOnce() + Send + 'static) -> Result<(), Busy> {
        self.0.try_send(Box::new(job)).map_err(|_| Busy)
    }
}

/// Lets all other threads go first.
fn step_back() {
    let attributes = libc::sched_attr {
        size: size_of::<libc::sched_attr>() as u32,
        sched_policy: libc::SCHED_OTHER as u32,
        sched_flags: 0,
        sched_nice: NICE,
        sched_priority: 0,
        sched_runtime: SLICE,
        sched_deadline: 0,
        sched_period: 0,
    };
    // SAFETY: the structure is as long as it says; 0 is the calling thread.
    let done = unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const attributes, 0) };
    if done != 0 {
        // SAFETY: no memory is involved; on Linux 0 is the calling thread. Failing changes nothing.
        unsafe {
            libc::setpriority(libc::PRIO_PROCESS, 0, NICE);
        }
    }
}

fn work(jobs: &Mutex<Receiver<Job>>) {
    step_back();
    loop {
        // Whoever waits holds the lock; the others wait for it.
        let job = jobs.lock().recv();
        match job {
            // Whoever waits for a job that panicked finds its end of the channel closed.
            Ok(job) => {
                let begun = Instant::now();
                drop(catch_unwind(AssertUnwindSafe(job)));
                // A limit on the process's CPU knows no priorities: half of the time is for others.
                std::thread::sleep(begun.elapsed().min(REST));
            }
            Err(_) => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;

    #[test]
    fn jobs_are_done_and_too_many_are_refused() {
        let workers = Workers::start(1).unwrap();
        let (hold, held) = channel::<()>();
        let (begun, begins) = channel();
        workers
            .submit(move || {
                begun.send(()).unwrap();
                let _ = held.recv();
            })
            .unwrap();
        begins.recv().unwrap();
        let (done, dones) = channel();
        for _ in 0..QUEUE {
            let done = done.clone();
            workers.submit(move || done.send(()).unwrap()).unwrap();
        }
        assert_eq!(workers.submit(|| ()), Err(Busy));
        drop(hold);
        for _ in 0..QUEUE {
            dones.recv().unwrap();
        }
    }

    #[test]
    fn threads_let_others_go_first() {
        let workers = Workers::start(1).unwrap();
        let (tell, told) = channel();
        let ask = move || {
            // SAFETY: all of it is numbers, for which zero is a value.
            let mut attributes: libc::sched_attr = unsafe { std::mem::zeroed() };
            let size = size_of::<libc::sched_attr>();
            // SAFETY: the structure is as long as stated; 0 is the calling thread.
            let done = unsafe { libc::syscall(libc::SYS_sched_getattr, 0, &raw mut attributes, size, 0) };
            tell.send((done, attributes.sched_nice, attributes.sched_runtime)).unwrap();
        };
        workers.submit(ask).unwrap();
        let (done, nice, slice) = told.recv().unwrap();
        assert_eq!((done, nice), (0, NICE));
        // a kernel that does not know of slices says nothing
        assert!([0, SLICE].contains(&slice), "{slice}");
    }

    #[test]
    fn a_thread_rests_as_long_as_it_worked() {
        let workers = Workers::start(1).unwrap();
        let work = Duration::from_millis(50);
        let (done, dones) = channel();
        for _ in 0..2 {
            let done = done.clone();
            let job = move || {
                let begun = Instant::now();
                std::thread::sleep(work);
                done.send((begun, Instant::now())).unwrap();
            };
            workers.submit(job).unwrap();
        }
        let (first, second) = (dones.recv().unwrap(), dones.recv().unwrap());
        assert!(second.0 - first.1 >= work, "{:?}", second.0 - first.1);
    }

    #[test]
    fn a_job_that_panics_ends_no_worker() {
        let workers = Workers::start(1).unwrap();
        workers.submit(|| std::panic::resume_unwind(Box::new("on purpose"))).unwrap();
        let (done, dones) = channel();
        workers.submit(move || done.send(()).unwrap()).unwrap();
        dones.recv().unwrap();
    }
}
