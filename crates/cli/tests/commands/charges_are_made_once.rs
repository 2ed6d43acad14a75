//! A charge in steps, by a run that is killed at each of its ledger writes: the other side, which knows keys, is asked
//! again where nobody can tell, and charges once; a step that is recorded is not done again.
#![cfg(target_os = "linux")]

use std::fs;

use crate::world::{Ended, World, binary, until};

/// Charges once for a key, as providers do; and writes down that it was asked.
const PROVIDER: &str = "#!/bin/sh\necho asked >> asked\nmkdir \"key-$(echo \"$LEASEHOLD_KEY\" | tr / .)\" 2>/dev/null && \
                        echo \"$LEASEHOLD_KEY\" >> charged\nexit 0\n";
const JOB: &str = "\"$LH\" step charge -- ./provider && \"$LH\" step mail -- sh -c 'echo mail >> mails'";
const ONCE: [&str; 9] = ["once", "order-7", "--if-unknown", "retry", "--", "sh", "-c", JOB, "sh"];

fn lines(world: &World, name: &str) -> Vec<String> {
    fs::read_to_string(world.path(name)).unwrap_or_default().lines().map(Into::into).collect()
}

/// Killed before the `nth` write to the database by one of its threads; nothing if there is none.
fn killed(world: &World, nth: u32) -> Option<()> {
    let line = world.command(&ONCE);
    let mut strace = world.program("strace");
    strace.args(["-f", "-qq", "-o", "/dev/null", "-e", "trace=pwrite64"]);
    strace.args(["-e", &format!("inject=pwrite64:signal=KILL:when={nth}")]);
    strace.arg(line.get_program()).args(line.get_args());
    (Ended::from(strace.output().unwrap()).code != 0).then_some(())
}

fn recorded(world: &World) -> Vec<String> {
    let history = world.run(&["--json", "why", "order-7"]);
    // 64: it was killed before anything was recorded.
    assert!([0, 64].contains(&history.code), "{history:#?}");
    let history = history.out;
    let row: Option<serde_json::Value> =
        history.lines().next().map(|line| serde_json::from_str(line).unwrap());
    let steps = row.and_then(|row| row["steps"].as_array().cloned()).unwrap_or_default();
    steps.iter().map(|step| step.as_str().unwrap().to_owned()).collect()
}

#[test]
fn whenever_its_run_is_killed() {
    let mut kills = 0;
    for nth in 1.. {
        let mut world = World::new();
        world.variables.push(("LH".into(), binary().to_str().unwrap().into()));
        world.script("provider", PROVIDER);
        if killed(&world, nth).is_none() {
            break;
        }
        kills += 1;
        let (steps, asked, mails) =
            (recorded(&world), lines(&world, "asked").len(), lines(&world, "mails").len());
        assert!(asked >= steps.len().min(1), "{nth}: {steps:?} are recorded, and nobody was asked");
        until("it is done", || {
            let ended = world.run(&ONCE);
            (ended.code == 0 && !ended.err.contains("held by")).then_some(())
        });
        world.run(&ONCE).is(0, "").names(&["skipped order-7: done"]);
        assert_eq!(lines(&world, "charged"), ["order-7/charge"], "{nth}");
        assert_eq!(recorded(&world), ["charge", "mail"], "{nth}");
        let again = |step: &str| usize::from(!steps.iter().any(|done| done == step));
        assert!(
            lines(&world, "asked").len() <= asked + again("charge"),
            "{nth}: {steps:?} was charged again"
        );
        assert!(lines(&world, "mails").len() <= mails + again("mail"), "{nth}: {steps:?} was mailed again");
    }
    println!("killed {kills} times");
    assert!(kills > 3, "only {kills}");
}

/// The gap that no record closes: charged, and nobody has written it down. Only the key keeps it from being charged twice.
#[test]
fn killed_between_the_charge_and_its_record() {
    for (keys, charges) in [(true, 1), (false, 2)] {
        let mut world = World::new();
        world.variables.push(("LH".into(), binary().to_str().unwrap().into()));
        let killer = "test -e killed || { until test -s pid; do sleep 0.02; done; touch killed; kill -9 $(cat pid); exit 1; }";
        let provider = PROVIDER.replace("exit 0\n", &format!("{killer}\nexit 0\n"));
        // The control: a provider that knows no keys.
        let provider = if keys { provider } else { provider.replace("mkdir ", "mkdir -p ") };
        world.script("provider", &provider);
        let first = world.start(&ONCE);
        world.write("pid", &first.pid().to_string());
        assert_eq!(first.ended().code, 137);
        assert_eq!((recorded(&world), lines(&world, "asked").len()), (Vec::new(), 1));
        until("it is done", || {
            let ended = world.run(&ONCE);
            (ended.code == 0 && !ended.err.contains("held by")).then_some(())
        });
        assert_eq!((lines(&world, "asked").len(), lines(&world, "charged").len()), (2, charges));
        assert_eq!(recorded(&world), ["charge", "mail"]);
    }
}
