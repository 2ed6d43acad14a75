//! Many writes at once to SQLite: one transaction, and each write stands by itself.

use leasehold::core::ids::WriteId;
use leasehold::stores::{BatchWrite, Cas, open};
use pollster::block_on;

#[test]
fn each_stands_by_itself() {
    let dir = std::env::temp_dir().join(format!("leasehold-many-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    let mut store = open(&format!("sqlite:{}", dir.join("s.db").display())).unwrap_or_else(|e| panic!("{e}"));
    let write =
        |key: &str, id| BatchWrite { key: key.into(), expected: None, write: WriteId(id), body: vec![1] };
    let answers = block_on(store.cas_many(&[write("k/a", 1), write("k/b", 2)]));
    assert!(answers.iter().all(|answer| matches!(answer, Cas::Written { .. })), "{answers:?}");
    // One is there already: the others are written all the same.
    let answers = block_on(store.cas_many(&[write("k/c", 3), write("k/a", 4), write("k/d", 5)]));
    let written: Vec<bool> = answers.iter().map(|answer| matches!(answer, Cas::Written { .. })).collect();
    assert_eq!((written, &answers[1]), (vec![true, false, true], &Cas::Conflict));
    // Nothing is left open: another connection sees them, and writes.
    let mut other = open(&format!("sqlite:{}", dir.join("s.db").display())).unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(block_on(other.list("k/", "", 10)).unwrap().len(), 4);
    assert!(matches!(block_on(other.cas("k/e", None, WriteId(6), &[1])), Cas::Written { .. }));
    assert_eq!(block_on(store.cas_many(&[])), []);
    std::fs::remove_dir_all(&dir).unwrap();
}
