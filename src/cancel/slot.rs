//! The cancel slot: who came first, a cancellation or the result (contract P3).

use crate::vocabulary::CancelCause;

/// What became of a cancellation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CancelDecision {
    /// The first one, before the result: it owns the outcome.
    Accepted,
    /// An earlier one was accepted with this cause.
    Already(CancelCause),
    /// The result was published first and stands.
    AfterPublication,
}

/// The one place where a cancellation and a result meet. The first write wins.
#[derive(Debug, Default)]
pub struct CancelSlot {
    cause: Option<CancelCause>,
    published: bool,
}

impl CancelSlot {
    /// Writes `cause` if nothing was written and no result was published.
    pub fn accept(&mut self, cause: CancelCause) -> CancelDecision {
        match (self.cause, self.published) {
            (Some(first), _) => CancelDecision::Already(first),
            (None, true) => CancelDecision::AfterPublication,
            (None, false) => {
                self.cause = Some(cause);
                CancelDecision::Accepted
            }
        }
    }

    /// Publishes the result and returns the cancellation that was accepted before it, if any.
    pub fn publish(&mut self) -> Option<CancelCause> {
        self.published = true;
        self.cause
    }

    /// The accepted cause.
    pub fn cause(&self) -> Option<CancelCause> {
        self.cause
    }

    /// Whether the result was published.
    pub fn is_published(&self) -> bool {
        self.published
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_cause_wins() {
        let mut slot = CancelSlot::default();
        assert_eq!(slot.accept(CancelCause::Kill), CancelDecision::Accepted);
        assert_eq!(
            slot.accept(CancelCause::OwnerDisposed),
            CancelDecision::Already(CancelCause::Kill)
        );
        assert_eq!(slot.publish(), Some(CancelCause::Kill));
    }

    #[test]
    fn a_cancellation_after_publication_changes_nothing() {
        let mut slot = CancelSlot::default();
        assert_eq!(slot.publish(), None);
        assert_eq!(slot.accept(CancelCause::Kill), CancelDecision::AfterPublication);
        assert_eq!(slot.cause(), None);
    }
}
