//! Runs closures from other tasks and threads on the control loop.
//!
//! A long task, such as a reload, sends each short step as a closure to the loop and awaits the
//! result. The task can therefore be written as sequential code, and the loop handles other events
//! between the steps. A closure must not block.

use std::sync::Arc;

use tokio::sync::{Mutex, mpsc, oneshot};

type LoopTask<D> = Box<dyn FnOnce(&mut D) + Send>;

/// The queue of closures for a loop. The loop calls each closure with a mutable reference to its
/// state `D`.
#[derive(Debug)]
pub(super) struct LoopTasks<D> {
    handle: Handle<D>,
    waiting: mpsc::UnboundedReceiver<LoopTask<D>>,
    compiling: Arc<Mutex<()>>,
}

impl<D: 'static> LoopTasks<D> {
    pub(super) fn new() -> Self {
        let (sender, waiting) = mpsc::unbounded_channel();
        Self { handle: Handle(sender), waiting, compiling: Arc::default() }
    }

    /// Returns a handle that another task or thread can use.
    pub(super) fn handle(&self) -> Handle<D> {
        self.handle.clone()
    }

    /// Returns the next closure. This function is cancel safe.
    pub(super) async fn next(&mut self) -> Option<LoopTask<D>> {
        self.waiting.recv().await
    }

    /// Returns the lock that a task must hold while it compiles. The lock is fair, so a waiting
    /// reload acquires the lock before the next rebuild of tables does.
    pub(super) fn compiling(&self) -> &Arc<Mutex<()>> {
        &self.compiling
    }
}

/// A handle that sends closures to the loop.
#[derive(Debug)]
pub(super) struct Handle<D>(mpsc::UnboundedSender<LoopTask<D>>);

impl<D> Clone for Handle<D> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<D: 'static> Handle<D> {
    /// Queues `work` to run on the loop.
    pub(super) fn send(&self, work: impl FnOnce(&mut D) + Send + 'static) {
        // An error means that the loop has ended and `work` never runs.
        let _ = self.0.send(Box::new(work));
    }

    /// Runs `work` on the loop and returns its result. If the loop has ended, this function never
    /// returns, and the runtime drops the waiting task.
    pub(super) async fn turn<T: Send + 'static>(&self, work: impl FnOnce(&mut D) -> T + Send + 'static) -> T {
        let (result, done) = oneshot::channel();
        self.send(move |daemon| {
            let _ = result.send(work(daemon)); // The task may have ended.
        });
        match done.await {
            Ok(result) => result,
            Err(_) => std::future::pending().await,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_task_reads_from_top_to_bottom_while_the_loop_goes_on() {
        let (mut iterations, mut log) = (LoopTasks::<Vec<String>>::new(), Vec::new());
        let handle = iterations.handle();
        let task = tokio::spawn(async move {
            let first = handle.turn(|log| log.len()).await;
            tokio::task::yield_now().await;
            handle.turn(move |log| log.push(format!("{first} then {}", log.len()))).await;
        });
        while log.len() < 2 {
            iterations.next().await.unwrap()(&mut log);
            log.push("the loop".to_owned());
        }
        while !task.is_finished() {
            tokio::task::yield_now().await;
        }
        assert_eq!(log, ["the loop", "0 then 1", "the loop"]);
    }

    #[tokio::test]
    async fn a_reload_that_waits_is_compiled_before_tables() {
        let iterations = LoopTasks::<()>::new();
        let tables = Arc::clone(iterations.compiling()).try_lock_owned().unwrap();
        let waiting = tokio::spawn(Arc::clone(iterations.compiling()).lock_owned());
        tokio::task::yield_now().await;
        drop(tables);
        assert!(iterations.compiling().try_lock().is_err(), "the waiting reload holds the lock");
        drop(waiting.await.unwrap());
        assert!(iterations.compiling().try_lock().is_ok());
    }
}
