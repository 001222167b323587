//! The list by which dropped slots come home.

use doorbell_core::free_list::FreeList;
use doorbell_core::sync::AtomicU32;
use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;

/// The list, and a witness for the memory that each index stands for.
struct Home {
    list: FreeList<Vec<AtomicU32>>,
    memory: Vec<UnsafeCell<()>>,
}

impl Home {
    fn new(indices: u32) -> Arc<Self> {
        Arc::new(Self {
            list: FreeList::new((0..indices).map(|_| AtomicU32::new(0)).collect()),
            memory: (0..indices).map(|_| UnsafeCell::new(())).collect(),
        })
    }

    /// Touches the memory of an index, as its owner may.
    fn touch(&self, index: u32) {
        self.memory[index as usize].with_mut(|_| ());
    }
}

#[test]
fn whoever_takes_an_index_owns_its_memory() {
    loom::model(|| {
        let home = Home::new(2);
        let threads: Vec<_> = (0..2)
            .map(|index| {
                let home = Arc::clone(&home);
                thread::spawn(move || {
                    home.touch(index);
                    home.list.put(index);
                })
            })
            .collect();
        let mut taken = Vec::new();
        home.list.take_all(|index| {
            home.touch(index);
            taken.push(index);
        });
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        home.list.take_all(|index| {
            home.touch(index);
            taken.push(index);
        });
        taken.sort_unstable();
        assert_eq!(taken, [0, 1], "each comes home once");
    });
}

#[test]
fn an_index_may_go_out_again_while_another_comes_home() {
    loom::model(|| {
        let home = Home::new(2);
        home.list.put(0);
        let other = {
            let home = Arc::clone(&home);
            thread::spawn(move || {
                home.touch(1);
                home.list.put(1);
            })
        };
        let mut taken = Vec::new();
        home.list.take_all(|index| {
            home.touch(index);
            // Its new owner puts it back at once, while the taker still walks the list.
            home.list.put(index);
            taken.push(index);
        });
        other.join().unwrap();
        let mut rest = Vec::new();
        home.list.take_all(|index| {
            home.touch(index);
            rest.push(index);
        });
        rest.sort_unstable();
        assert_eq!(rest, [0, 1], "nothing is lost: first {taken:?}");
    });
}
