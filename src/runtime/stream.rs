//! Facts as a public stream: an embedder subscribes for its own monitoring.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::channel::{QueueReceiver, QueueSender, bounded};
use crate::facts::Fact;
use crate::sync::{LockClass, Mutex};

/// A fact with its place in the linear order of the process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StampedFact {
    /// Counts facts from 0.
    pub ordinal: u64,
    /// When it was recorded, in milliseconds since the Unix epoch.
    pub at: u64,
    /// The fact.
    pub fact: Arc<Fact>,
}

#[derive(Debug)]
struct Subscriber {
    queue: QueueSender<StampedFact>,
    lost: Arc<AtomicU64>,
}

#[derive(Debug, Default)]
struct State {
    next: u64,
    subscribers: Vec<Subscriber>,
}

/// Hands facts to subscribers in their order. A full subscriber loses facts, counted, and never
/// delays the section that records (architecture §4 rule 8).
#[derive(Debug)]
pub struct FactStream {
    state: Mutex<State>,
}

impl Default for FactStream {
    fn default() -> Self {
        Self { state: Mutex::new(LockClass::Facts, State::default()) }
    }
}

impl FactStream {
    /// Subscribes with room for `capacity` facts not yet received.
    pub fn subscribe(&self, capacity: usize) -> FactSubscription {
        let (sender, receiver) = bounded(capacity);
        let lost = Arc::new(AtomicU64::new(0));
        let subscriber = Subscriber { queue: sender, lost: Arc::clone(&lost) };
        self.state.lock().subscribers.push(subscriber);
        FactSubscription { queue: receiver, lost }
    }

    /// Stamps `fact` and hands it to every subscriber with room.
    pub fn publish(&self, at: u64, fact: Fact) {
        let mut state = self.state.lock();
        let ordinal = state.next;
        state.next += 1;
        if state.subscribers.is_empty() {
            return;
        }
        let stamped = StampedFact { ordinal, at, fact: Arc::new(fact) };
        state.subscribers.retain(|subscriber| {
            if subscriber.queue.try_send(stamped.clone()).is_err() {
                subscriber.lost.fetch_add(1, Ordering::Relaxed);
            }
            !subscriber.queue.is_closed()
        });
    }
}

/// One subscriber's view of the facts.
#[derive(Debug)]
pub struct FactSubscription {
    queue: QueueReceiver<StampedFact>,
    lost: Arc<AtomicU64>,
}

impl FactSubscription {
    /// The next fact; `None` when the stream is gone.
    pub async fn recv(&mut self) -> Option<StampedFact> {
        self.queue.recv().await
    }

    /// The next fact, if one is there.
    pub fn try_recv(&mut self) -> Option<StampedFact> {
        self.queue.try_recv()
    }

    /// How many facts this subscriber lost because it was full.
    pub fn lost(&self) -> u64 {
        self.lost.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::points::Point;

    #[test]
    fn a_full_subscriber_loses_facts_and_counts_them() {
        let stream = FactStream::default();
        let mut slow = stream.subscribe(2);
        let mut fast = stream.subscribe(8);
        for _ in 0..5 {
            stream.publish(0, Fact::PointReached { point: Point::TurnOpen });
        }
        let seen: Vec<_> =
            std::iter::from_fn(|| slow.try_recv()).map(|fact| fact.ordinal).collect();
        assert_eq!(seen, [0, 1]);
        assert_eq!(slow.lost(), 3);
        assert_eq!(std::iter::from_fn(|| fast.try_recv()).count(), 5);
        assert_eq!(fast.lost(), 0);
    }
}
