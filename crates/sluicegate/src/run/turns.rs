//! Work of tasks and threads that needs the control loop: closures, each run in a turn of its own.
//!
//! In: closures by a [`Handle`], from any thread. Out: their results, to the task that awaits them.
//! So a task that takes its time (a reload) reads from top to bottom, and the loop serves everything else between its turns.
//! Invariant: a turn waits for nothing.

use std::sync::Arc;

use tokio::sync::{Mutex, mpsc, oneshot};

type Turn<D> = Box<dyn FnOnce(&mut D) + Send>;

/// The turns that wait for the loop over a `D`.
#[derive(Debug)]
pub(super) struct Turns<D> {
    handle: Handle<D>,
    waiting: mpsc::UnboundedReceiver<Turn<D>>,
    compiling: Arc<Mutex<()>>,
}

impl<D: 'static> Turns<D> {
    pub(super) fn new() -> Self {
        let (sender, waiting) = mpsc::unbounded_channel();
        Self { handle: Handle(sender), waiting, compiling: Arc::default() }
    }

    /// For a task or a thread.
    pub(super) fn handle(&self) -> Handle<D> {
        self.handle.clone()
    }

    /// The next one. Cancel safe.
    pub(super) async fn next(&mut self) -> Option<Turn<D>> {
        self.waiting.recv().await
    }

    /// Held by what compiles. It is fair: a reload that waits comes before tables that only follow states.
    pub(super) fn compiling(&self) -> &Arc<Mutex<()>> {
        &self.compiling
    }
}

/// The way to the loop.
#[derive(Debug)]
pub(super) struct Handle<D>(mpsc::UnboundedSender<Turn<D>>);

impl<D> Clone for Handle<D> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<D: 'static> Handle<D> {
    /// Runs `work` on the loop, some time.
    pub(super) fn send(&self, work: impl FnOnce(&mut D) + Send + 'static) {
        let _ = self.0.send(Box::new(work)); // the loop has ended: there is nothing to do it to
    }

    /// Runs `work` on the loop, and gives its result. Once the loop has ended it waits for ever: the runtime ends with the loop,
    /// and its tasks with it.
    pub(super) async fn turn<T: Send + 'static>(&self, work: impl FnOnce(&mut D) -> T + Send + 'static) -> T {
        let (result, done) = oneshot::channel();
        self.send(move |daemon| {
            let _ = result.send(work(daemon)); // the task has ended
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
        let (mut turns, mut log) = (Turns::<Vec<String>>::new(), Vec::new());
        let handle = turns.handle();
        let task = tokio::spawn(async move {
            let first = handle.turn(|log| log.len()).await;
            tokio::task::yield_now().await;
            handle.turn(move |log| log.push(format!("{first} then {}", log.len()))).await;
        });
        while log.len() < 2 {
            turns.next().await.unwrap()(&mut log);
            log.push("the loop".to_owned());
        }
        while !task.is_finished() {
            tokio::task::yield_now().await;
        }
        assert_eq!(log, ["the loop", "0 then 1", "the loop"]);
    }

    #[tokio::test]
    async fn a_reload_that_waits_is_compiled_before_tables() {
        let turns = Turns::<()>::new();
        let tables = Arc::clone(turns.compiling()).try_lock_owned().unwrap();
        let waiting = tokio::spawn(Arc::clone(turns.compiling()).lock_owned());
        tokio::task::yield_now().await;
        drop(tables);
        assert!(turns.compiling().try_lock().is_err(), "it is the reload's");
        drop(waiting.await.unwrap());
        assert!(turns.compiling().try_lock().is_ok());
    }
}
