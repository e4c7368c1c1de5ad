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

fn work(jobs: &Mutex<Receiver<Job>>) {
    // SAFETY: no memory is involved; on Linux 0 is the calling thread. Failing changes nothing.
    unsafe {
        libc::setpriority(libc::PRIO_PROCESS, 0, NICE);
    }
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
