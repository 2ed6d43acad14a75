//! The thread that reads the store for the dashboard. It has no way to write.

use std::sync::mpsc::{SyncSender, sync_channel};
use std::time::Duration;

use leasehold::stores::{Failure, Store};
use tokio::sync::oneshot;

use crate::exit::Failed;
use crate::messages::serve as say;

/// How many questions may wait. More are refused.
const QUEUE: usize = 64;
/// A store that does not answer within this time does not answer.
const PATIENCE: Duration = Duration::from_secs(3);

/// Why there is no answer.
#[derive(Clone, Debug)]
pub enum Trouble {
    /// Too many others wait.
    Busy,
    /// The store failed.
    Failed(Failure),
}

type Task = Box<dyn FnOnce(&mut dyn Store) + Send>;

/// Asks the store.
#[derive(Clone, Debug)]
pub struct Reader {
    tasks: SyncSender<Task>,
}

impl Reader {
    /// Starts the thread.
    pub fn start(mut store: Box<dyn Store>) -> Result<Self, Failed> {
        let (tasks, asked) = sync_channel::<Task>(QUEUE);
        let work = move || {
            store.limit_calls(PATIENCE);
            asked.into_iter().for_each(|task| task(store.as_mut()));
        };
        let started = std::thread::Builder::new().name("dashboard".into()).spawn(work);
        started.map(|_| Self { tasks }).map_err(say::no_thread)
    }

    /// Asks a question, and waits for the answer.
    pub async fn ask<T: Send + 'static>(
        &self,
        question: impl FnOnce(&mut dyn Store) -> Result<T, Failure> + Send + 'static,
    ) -> Result<T, Trouble> {
        let (answer, answered) = oneshot::channel();
        let task = Box::new(move |store: &mut dyn Store| {
            // Nobody waits for it any more.
            if !answer.is_closed() {
                let _ = answer.send(question(store));
            }
        });
        self.tasks.try_send(task).map_err(|_| Trouble::Busy)?;
        answered.await.map_err(|_| Trouble::Busy)?.map_err(Trouble::Failed)
    }
}
