//! Recording newtypes over tokio's channels. They run on any executor; the explorer learns from
//! them which steps depend on each other.

use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};

use tokio::sync::mpsc;

use crate::sync::{Access, ObjectKind, fresh_key, touch};

/// The other side of a channel is gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the other side of the channel is gone")]
pub struct Closed;

/// A channel for one value.
pub fn oneshot<T>() -> (Sender<T>, Receiver<T>) {
    let (sender, receiver) = tokio::sync::oneshot::channel();
    let key = fresh_key();
    (Sender { key, inner: Some(sender) }, Receiver { key, inner: receiver })
}

/// The sending half of [`oneshot`]. Dropping it tells the receiver.
#[derive(Debug)]
pub struct Sender<T> {
    key: u64,
    inner: Option<tokio::sync::oneshot::Sender<T>>,
}

impl<T> Sender<T> {
    /// Sends `value`; gives it back if the receiver is gone.
    pub fn send(mut self, value: T) -> Result<(), T> {
        touch(ObjectKind::Channel, self.key, Access::Write);
        match self.inner.take() {
            Some(inner) => inner.send(value),
            None => Err(value),
        }
    }

    /// Whether the receiver is gone.
    pub fn is_closed(&self) -> bool {
        touch(ObjectKind::Channel, self.key, Access::Read);
        self.inner.as_ref().is_none_or(tokio::sync::oneshot::Sender::is_closed)
    }
}

impl<T> Drop for Sender<T> {
    fn drop(&mut self) {
        if self.inner.is_some() {
            touch(ObjectKind::Channel, self.key, Access::Write);
        }
    }
}

/// The receiving half of [`oneshot`].
#[derive(Debug)]
pub struct Receiver<T> {
    key: u64,
    inner: tokio::sync::oneshot::Receiver<T>,
}

impl<T> Receiver<T> {
    /// The value, if it is there already.
    pub fn try_recv(&mut self) -> Option<T> {
        touch(ObjectKind::Channel, self.key, Access::Write);
        self.inner.try_recv().ok()
    }
}

impl<T> Future for Receiver<T> {
    type Output = Result<T, Closed>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        touch(ObjectKind::Channel, self.key, Access::Write);
        Pin::new(&mut self.inner).poll(cx).map(|result| result.map_err(|_| Closed))
    }
}

/// Counts pulses and wakes everybody who waits for the next one, first in, first out.
///
/// tokio's `watch` would do, but it spreads its waiters over eight lists by a random number of its
/// own, so the order of its wakes differs from run to run.
#[derive(Debug)]
struct Pulse {
    count: AtomicU64,
    waiters: tokio::sync::Notify,
}

impl Pulse {
    fn new() -> Self {
        Self { count: AtomicU64::new(0), waiters: tokio::sync::Notify::new() }
    }

    fn count(&self) -> u64 {
        self.count.load(Ordering::Acquire)
    }

    fn beat(&self) {
        self.count.fetch_add(1, Ordering::AcqRel);
        self.waiters.notify_waiters();
    }

    /// Waits until the count is no longer `seen`, and answers it.
    async fn after(&self, seen: u64) -> u64 {
        loop {
            let mut next = pin!(self.waiters.notified());
            // Counted among the waiters before the look, so no beat falls between the two.
            next.as_mut().enable();
            let count = self.count();
            if count != seen {
                return count;
            }
            next.await;
        }
    }
}

/// A value that is set once and seen by everybody, early or late.
#[derive(Debug)]
pub struct Latch<T> {
    key: u64,
    inner: Arc<(OnceLock<T>, Pulse)>,
}

impl<T> Clone for Latch<T> {
    fn clone(&self) -> Self {
        Self { key: self.key, inner: Arc::clone(&self.inner) }
    }
}

impl<T: Clone> Default for Latch<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T: Clone> Latch<T> {
    /// An unset latch.
    pub fn new() -> Self {
        Self { key: fresh_key(), inner: Arc::new((OnceLock::new(), Pulse::new())) }
    }

    /// Sets the value and wakes the waiters; false if it was set before.
    pub fn set(&self, value: T) -> bool {
        touch(ObjectKind::Channel, self.key, Access::Write);
        let (slot, pulse) = &*self.inner;
        let first = slot.set(value).is_ok();
        if first {
            pulse.beat();
        }
        first
    }

    /// The value, if set.
    pub fn get(&self) -> Option<T> {
        touch(ObjectKind::Channel, self.key, Access::Read);
        self.inner.0.get().cloned()
    }

    /// Waits for the value.
    pub async fn wait(&self) -> T {
        loop {
            if let Some(value) = self.get() {
                return value;
            }
            // The one beat follows the set.
            self.inner.1.after(0).await;
        }
    }
}

/// Rings for everybody who listens. A listener hears every ring since it began to listen, so
/// "listen, look, wait" misses nothing.
#[derive(Debug)]
pub struct Bell {
    key: u64,
    inner: Arc<(Pulse, AtomicBool)>,
}

impl Default for Bell {
    fn default() -> Self {
        Self::new()
    }
}

impl Bell {
    /// A silent bell.
    pub fn new() -> Self {
        Self { key: fresh_key(), inner: Arc::new((Pulse::new(), AtomicBool::new(false))) }
    }

    /// Rings.
    pub fn ring(&self) {
        touch(ObjectKind::Channel, self.key, Access::Write);
        self.inner.0.beat();
    }

    /// Begins to listen.
    pub fn listen(&self) -> Listener {
        touch(ObjectKind::Channel, self.key, Access::Read);
        let heard = self.inner.0.count();
        Listener { key: self.key, inner: Arc::clone(&self.inner), heard }
    }
}

impl Drop for Bell {
    fn drop(&mut self) {
        touch(ObjectKind::Channel, self.key, Access::Write);
        let (pulse, gone) = &*self.inner;
        gone.store(true, Ordering::Release);
        pulse.beat();
    }
}

/// Hears the rings of a [`Bell`].
#[derive(Debug)]
pub struct Listener {
    key: u64,
    inner: Arc<(Pulse, AtomicBool)>,
    heard: u64,
}

impl Listener {
    /// Waits for a ring since the listener began, or since it last heard one; ready at once when
    /// the bell is gone.
    pub async fn heard(&mut self) {
        touch(ObjectKind::Channel, self.key, Access::Read);
        let (pulse, gone) = &*self.inner;
        if !gone.load(Ordering::Acquire) {
            self.heard = pulse.after(self.heard).await;
        }
        touch(ObjectKind::Channel, self.key, Access::Read);
    }
}

/// Wakes one or all of those who wait. A permit given while nobody waits is kept.
#[derive(Debug)]
pub struct Notify {
    key: u64,
    inner: tokio::sync::Notify,
}

impl Default for Notify {
    fn default() -> Self {
        Self::new()
    }
}

impl Notify {
    /// A fresh one, without a permit.
    pub fn new() -> Self {
        Self { key: fresh_key(), inner: tokio::sync::Notify::new() }
    }

    /// Wakes one waiter, or leaves a permit for the next.
    pub fn notify_one(&self) {
        touch(ObjectKind::Channel, self.key, Access::Write);
        self.inner.notify_one();
    }

    /// Waits for a permit.
    pub async fn notified(&self) {
        touch(ObjectKind::Channel, self.key, Access::Write);
        self.inner.notified().await;
        touch(ObjectKind::Channel, self.key, Access::Write);
    }
}

/// A fair asynchronous lock: waiters are served first in, first out. For operations that span
/// awaits, such as the store's chain per id; never for shared state.
#[derive(Debug)]
pub struct Turnstile {
    key: u64,
    inner: Arc<tokio::sync::Mutex<()>>,
}

impl Default for Turnstile {
    fn default() -> Self {
        Self::new()
    }
}

impl Turnstile {
    /// A free turnstile.
    pub fn new() -> Self {
        Self { key: fresh_key(), inner: Arc::new(tokio::sync::Mutex::new(())) }
    }

    /// Waits for its turn; the turn ends when the pass is dropped.
    pub async fn pass(&self) -> Pass {
        touch(ObjectKind::Channel, self.key, Access::Write);
        let guard = Arc::clone(&self.inner).lock_owned().await;
        touch(ObjectKind::Channel, self.key, Access::Write);
        Pass { key: self.key, _guard: guard }
    }

    /// Whether somebody holds the pass.
    pub fn is_busy(&self) -> bool {
        touch(ObjectKind::Channel, self.key, Access::Read);
        self.inner.try_lock().is_err()
    }
}

/// The holder's turn at a [`Turnstile`].
#[derive(Debug)]
pub struct Pass {
    key: u64,
    _guard: tokio::sync::OwnedMutexGuard<()>,
}

impl Drop for Pass {
    fn drop(&mut self) {
        touch(ObjectKind::Channel, self.key, Access::Write);
    }
}

/// A bounded first-in-first-out queue.
pub fn bounded<T>(capacity: usize) -> (QueueSender<T>, QueueReceiver<T>) {
    let (sender, receiver) = mpsc::channel(capacity.max(1));
    let key = fresh_key();
    (QueueSender { key, inner: sender }, QueueReceiver { key, inner: receiver })
}

/// The sending half of [`bounded`].
#[derive(Debug)]
pub struct QueueSender<T> {
    key: u64,
    inner: mpsc::Sender<T>,
}

impl<T> Clone for QueueSender<T> {
    fn clone(&self) -> Self {
        Self { key: self.key, inner: self.inner.clone() }
    }
}

impl<T> QueueSender<T> {
    /// Sends without waiting; gives the value back when the queue is full or closed.
    pub fn try_send(&self, value: T) -> Result<(), T> {
        touch(ObjectKind::Channel, self.key, Access::Write);
        self.inner.try_send(value).map_err(|error| match error {
            mpsc::error::TrySendError::Full(value) | mpsc::error::TrySendError::Closed(value) => {
                value
            }
        })
    }

    /// Sends, waiting for room; gives the value back when the receiver is gone.
    pub async fn send(&self, value: T) -> Result<(), T> {
        touch(ObjectKind::Channel, self.key, Access::Write);
        self.inner.send(value).await.map_err(|error| error.0)
    }

    /// Whether the receiver is gone.
    pub fn is_closed(&self) -> bool {
        self.inner.is_closed()
    }
}

/// The receiving half of [`bounded`].
#[derive(Debug)]
pub struct QueueReceiver<T> {
    key: u64,
    inner: mpsc::Receiver<T>,
}

impl<T> QueueReceiver<T> {
    /// The next value; `None` once every sender is gone and the queue is empty.
    pub async fn recv(&mut self) -> Option<T> {
        touch(ObjectKind::Channel, self.key, Access::Write);
        let value = self.inner.recv().await;
        touch(ObjectKind::Channel, self.key, Access::Write);
        value
    }

    /// The next value, if one is there.
    pub fn try_recv(&mut self) -> Option<T> {
        touch(ObjectKind::Channel, self.key, Access::Write);
        self.inner.try_recv().ok()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;
    use std::task::{Wake, Waker};

    use super::*;

    struct Note(usize, Arc<Mutex<Vec<usize>>>);

    impl Wake for Note {
        fn wake(self: Arc<Self>) {
            self.1.lock().expect("one thread").push(self.0);
        }
    }

    #[test]
    fn a_latch_wakes_its_waiters_in_the_order_in_which_they_came() {
        let latch = Latch::new();
        let order = Arc::new(Mutex::new(Vec::new()));
        let mut waiters: Vec<_> = (0..40).map(|_| Box::pin(latch.wait())).collect();
        for (number, waiter) in waiters.iter_mut().enumerate() {
            let waker = Waker::from(Arc::new(Note(number, Arc::clone(&order))));
            assert!(waiter.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        }
        assert!(latch.set(7));
        assert!(!latch.set(8));
        assert_eq!(*order.lock().expect("one thread"), (0..40).collect::<Vec<_>>());
        for waiter in &mut waiters {
            let polled = waiter.as_mut().poll(&mut Context::from_waker(Waker::noop()));
            assert_eq!(polled, Poll::Ready(7));
        }
    }

    #[test]
    fn a_listener_hears_a_ring_between_its_look_and_its_wait_and_the_end_of_the_bell() {
        let bell = Bell::new();
        let mut listener = bell.listen();
        let poll = |listener: &mut Listener| {
            pin!(listener.heard()).poll(&mut Context::from_waker(Waker::noop())).is_ready()
        };
        assert!(!poll(&mut listener));
        bell.ring();
        assert!(poll(&mut listener));
        assert!(!poll(&mut listener));
        drop(bell);
        assert!(poll(&mut listener));
        assert!(poll(&mut listener));
    }
}
