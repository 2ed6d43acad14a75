//! Steps of an item: what is said of one that was not run.

use crate::world::{World, binary};

#[test]
fn a_step_that_was_not_run_is_not_told_as_done() {
    let world = World::new();
    let step = |name: &str| {
        let script = format!("\"{}\" step '{name}' -- touch never", binary().display());
        world.run(&["once", "k", "--attempts", "9", "--", "sh", "-c", &script])
    };
    for (name, bytes) in [("", 0), (&"x".repeat(129)[..], 129)] {
        let ended = step(name).is(64, "a name of 1 to 128 bytes").is(64, "Nothing was run");
        assert!(ended.err.contains(&format!("this one has {bytes}")), "{ended:#?}");
        assert!(!ended.err.contains("is done"), "{ended:#?}");
    }
    assert!(!world.path("never").exists());
    // Nobody is there to ask.
    let gone = "LEASEHOLD_SOCKET=/nowhere \"$0\" step x -- touch never";
    let ended = world.run(&["once", "l", "--", "sh", "-c", gone, &binary().display().to_string()]);
    ended.is(76, "the run it belongs to is over. Nothing was run");
    assert!(!world.path("never").exists());
    // The longest that there may be.
    step(&"x".repeat(128)).is(0, "");
    assert!(world.path("never").exists());
}
