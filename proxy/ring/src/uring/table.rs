//! The operations in progress on a ring, by number. Pure: no kernel, no unsafe code.

use std::task::{Context, Poll, Waker};

use slab::Slab;

/// Room for operations before the table grows.
const ROOM: usize = 256;

/// The number of an operation: its place, and a counter that tells the operations of a place apart, so that a late
/// cancellation or completion reaches no other operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Id {
    place: u32,
    turn: u32,
}

impl Id {
    /// In the form passed to the kernel.
    pub(super) fn user_data(self) -> u64 {
        u64::from(self.turn) << 32 | u64::from(self.place)
    }

    /// From the form that the kernel returned.
    pub(super) fn from_user_data(user_data: u64) -> Self {
        // Each half as `user_data` combined them.
        Self { place: user_data as u32, turn: (user_data >> 32) as u32 }
    }
}

/// What the kernel returned for an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Completion {
    /// A count, a descriptor, or a negative error.
    pub(super) result: i32,
    /// IORING_CQE_F_*: which buffer it took, if it took one.
    pub(super) flags: u32,
}

impl From<i32> for Completion {
    fn from(result: i32) -> Self {
        Self { result, flags: 0 }
    }
}

/// Data of an operation whose future was dropped.
pub(super) trait Abandoned {
    /// Frees it, and what the operation returned.
    fn end(self: Box<Self>, completion: Completion);
}

/// The progress of an operation.
enum State {
    UnderWay(Option<Waker>),
    Completed(Completion),
    Abandoned(Box<dyn Abandoned>),
    /// The kernel may have lost its completion. Its data is never freed.
    Lost,
}

/// The end of an operation, from its future's point of view.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum End {
    /// The future owns the data again.
    Completed(Completion),
    /// The data must not be accessed or freed any more.
    Lost,
}

/// What a completion requires. Do it without borrowing the table, because it may use the table again.
pub(super) enum Due {
    Nothing,
    Wake(Waker),
    End(Box<dyn Abandoned>, Completion),
}

impl Due {
    pub(super) fn perform(self) {
        match self {
            Self::Nothing => {}
            Self::Wake(waker) => waker.wake(),
            Self::End(data, completion) => data.end(completion),
        }
    }
}

/// All operations of a ring that have not ended, or whose end has not been observed.
pub(super) struct Table {
    operations: Slab<(u32, State)>,
    turn: u32,
}

impl Table {
    pub(super) fn new() -> Self {
        Self { operations: Slab::with_capacity(ROOM), turn: 0 }
    }

    /// Adds a new operation.
    pub(super) fn begin(&mut self) -> Id {
        self.turn = self.turn.wrapping_add(1);
        let place = self.operations.insert((self.turn, State::UnderWay(None)));
        // The place fits: 2^32 operations would need a quarter of a terabyte for this table.
        Id { place: place as u32, turn: self.turn }
    }

    fn state(&mut self, id: Id) -> Option<&mut State> {
        let (turn, state) = self.operations.get_mut(id.place as usize)?;
        (*turn == id.turn).then_some(state)
    }

    fn remove(&mut self, id: Id) {
        self.operations.remove(id.place as usize);
    }

    /// Whether its completion is still to come.
    pub(super) fn is_under_way(&mut self, id: Id) -> bool {
        matches!(self.state(id), Some(State::UnderWay(_) | State::Abandoned(_)))
    }

    /// Records the kernel's completion of an operation.
    pub(super) fn complete(&mut self, id: Id, completion: Completion) -> Due {
        let Some(state) = self.state(id) else { return Due::Nothing };
        match std::mem::replace(state, State::Completed(completion)) {
            State::UnderWay(Some(waker)) => Due::Wake(waker),
            State::UnderWay(None) | State::Completed(_) => Due::Nothing,
            State::Abandoned(data) => {
                self.remove(id);
                Due::End(data, completion)
            }
            State::Lost => {
                self.remove(id);
                Due::Nothing
            }
        }
    }

    /// The end of an operation. After that, the number may be reused.
    pub(super) fn poll(&mut self, id: Id, cx: &Context<'_>) -> Poll<End> {
        let end = match self.state(id) {
            Some(State::UnderWay(Some(waker))) if waker.will_wake(cx.waker()) => return Poll::Pending,
            Some(State::UnderWay(waker)) => {
                *waker = Some(cx.waker().clone());
                return Poll::Pending;
            }
            Some(State::Completed(completion)) => End::Completed(*completion),
            // The place stays occupied: the kernel may still complete the operation.
            Some(State::Lost | State::Abandoned(_)) | None => return Poll::Ready(End::Lost),
        };
        self.remove(id);
        Poll::Ready(end)
    }

    /// Keeps the data of an operation whose future was dropped, until the operation has ended.
    pub(super) fn abandon(&mut self, id: Id, data: Box<dyn Abandoned>) -> Due {
        match self.state(id) {
            Some(State::Completed(completion)) => {
                let completion = *completion;
                self.remove(id);
                Due::End(data, completion)
            }
            Some(state @ State::UnderWay(_)) => {
                *state = State::Abandoned(data);
                Due::Nothing
            }
            Some(State::Lost | State::Abandoned(_)) | None => {
                std::mem::forget(data);
                Due::Nothing
            }
        }
    }

    /// Marks all operations in progress as lost: the kernel lost completions, and it is unknown which.
    pub(super) fn lose_all(&mut self) -> Vec<Waker> {
        let mut wakers = Vec::new();
        for (_, (_, state)) in &mut self.operations {
            if let State::UnderWay(waker) = state {
                wakers.extend(waker.take());
                *state = State::Lost;
            }
        }
        wakers
    }

    /// Number of occupied places.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.operations.len()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::cell::Cell;
    use std::rc::Rc;

    use proptest::prelude::*;

    use super::*;

    struct Data(Rc<Cell<Option<i32>>>);

    impl Abandoned for Data {
        fn end(self: Box<Self>, completion: Completion) {
            self.0.set(Some(completion.result));
        }
    }

    fn cx() -> Context<'static> {
        Context::from_waker(Waker::noop())
    }

    #[test]
    fn operation_numbers_are_unique() {
        let mut table = Table::new();
        let first = table.begin();
        assert_eq!(Id::from_user_data(first.user_data()), first);
        table.complete(first, Completion::from(7)).perform();
        assert_eq!(table.poll(first, &cx()), Poll::Ready(End::Completed(Completion::from(7))));
        let second = table.begin();
        assert_eq!(second.place, first.place);
        assert!(!table.is_under_way(first) && table.is_under_way(second));
        table.complete(first, Completion::from(9)).perform();
        assert_eq!(
            table.poll(second, &cx()),
            Poll::Pending,
            "a late completion does not end another operation"
        );
        assert_eq!(table.poll(first, &cx()), Poll::Ready(End::Lost));
    }

    #[test]
    fn abandoned_data_is_freed_at_its_completion() {
        let mut table = Table::new();
        let (id, ended) = (table.begin(), Rc::new(Cell::new(None)));
        table.abandon(id, Box::new(Data(Rc::clone(&ended)))).perform();
        assert_eq!(ended.get(), None);
        table.complete(id, Completion::from(3)).perform();
        assert_eq!((ended.get(), table.len()), (Some(3), 0));
        let (id, ended) = (table.begin(), Rc::new(Cell::new(None)));
        table.complete(id, Completion::from(4)).perform();
        table.abandon(id, Box::new(Data(Rc::clone(&ended)))).perform();
        assert_eq!((ended.get(), table.len()), (Some(4), 0));
    }

    #[test]
    #[cfg_attr(miri, ignore = "it leaks on purpose")]
    fn lost_operation_ends_its_future_and_frees_nothing() {
        let mut table = Table::new();
        let (waited_for, abandoned, completed) = (table.begin(), table.begin(), table.begin());
        let ended = Rc::new(Cell::new(None));
        table.abandon(abandoned, Box::new(Data(Rc::clone(&ended)))).perform();
        table.complete(completed, Completion::from(1)).perform();
        assert_eq!(table.poll(waited_for, &cx()), Poll::Pending);
        assert_eq!(table.lose_all().len(), 1);
        assert_eq!(table.poll(waited_for, &cx()), Poll::Ready(End::Lost));
        assert_eq!(table.poll(completed, &cx()), Poll::Ready(End::Completed(Completion::from(1))));
        let kept = Rc::new(Cell::new(None));
        table.abandon(waited_for, Box::new(Data(Rc::clone(&kept)))).perform();
        assert_eq!(Rc::strong_count(&kept), 2, "the kernel may still write to the data");
        // These completions were not lost.
        table.complete(waited_for, Completion::from(5)).perform();
        table.complete(abandoned, Completion::from(6)).perform();
        assert_eq!((ended.get(), kept.get(), table.len()), (Some(6), None, 0));
    }

    proptest! {
        #[test]
        fn each_operation_ends_once(steps in prop::collection::vec((0..4u8, any::<prop::sample::Index>()), 1..200)) {
            let mut table = Table::new();
            let (mut futures, mut in_kernel, mut freed) = (Vec::new(), Vec::new(), Vec::new());
            for (step, which) in steps {
                match step {
                    0 => {
                        let id = table.begin();
                        futures.push(id);
                        in_kernel.push(id);
                    }
                    1 if !in_kernel.is_empty() => {
                        let id = in_kernel.swap_remove(which.index(in_kernel.len()));
                        table.complete(id, Completion::from(id.turn as i32)).perform();
                    }
                    2 if !futures.is_empty() => {
                        let at = which.index(futures.len());
                        let id = futures[at];
                        match table.poll(id, &cx()) {
                            Poll::Pending => prop_assert!(in_kernel.contains(&id)),
                            Poll::Ready(end) => {
                                prop_assert_eq!(end, End::Completed(Completion::from(id.turn as i32)));
                                futures.swap_remove(at);
                            }
                        }
                    }
                    3 if !futures.is_empty() => {
                        let id = futures.swap_remove(which.index(futures.len()));
                        let ended = Rc::new(Cell::new(None));
                        table.abandon(id, Box::new(Data(Rc::clone(&ended)))).perform();
                        freed.push((id, ended));
                    }
                    _ => {}
                }
                for (id, ended) in &freed {
                    prop_assert_eq!(ended.get().is_none(), in_kernel.contains(id));
                }
            }
            for id in in_kernel {
                table.complete(id, Completion::from(0)).perform();
            }
            futures.iter().for_each(|id| assert!(table.poll(*id, &cx()).is_ready()));
            prop_assert_eq!(table.len(), 0);
            prop_assert!(freed.iter().all(|(_, ended)| ended.get().is_some()));
        }
    }
}
