//! Everything else a file target must get right.

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use leasehold::backends::file::{FileTarget, digest};
use leasehold::core::fence::{Bearer, FenceMode, RefusalReason};
use leasehold::core::name::Name;
use leasehold::targets::{Class, Content, Target, TargetError};

use crate::kit::{Attempt, Kind, Place, actor, bearer, publish};

crate::tests!(
    several_writes_and_a_retry,
    two_writers_of_one_run,
    a_file_without_a_fence_is_only_sealed,
    damaged_fences_refuse_everybody,
    another_lease_is_refused_by_name,
    links_and_directories_are_refused,
    permissions_are_kept,
    the_group_is_kept_or_loses_its_rights,
    a_watched_write_is_on_disk_although_it_is_not_counted,
    a_busy_lock_has_an_end,
    only_who_may_write_the_directory_can_hold_the_lock,
    a_removed_lock_file_is_noticed,
    a_full_disk_changes_nothing,
    a_mount_point_is_refused,
    what_a_successor_writes_did_not_go_round,
);

fn reason(error: &TargetError) -> Option<RefusalReason> {
    match error {
        TargetError::Refused(refused) => Some(refused.reason),
        _ => None,
    }
}

fn several_writes_and_a_retry() {
    let place = Place::new();
    let (mut target, me) = (place.target(), bearer(41));
    assert_eq!(target.class(), Class::Atomic);
    assert_eq!(target.show().unwrap(), None);
    target.seal(&me, FenceMode::Enforce).unwrap();
    target.seal(&me, FenceMode::Enforce).unwrap();
    let first = target.write(&me, Some(1), Content::Bytes(b"one")).unwrap();
    let again = target.write(&me, Some(1), Content::Bytes(b"one")).unwrap();
    assert_eq!((first.repeat, again.repeat), (false, true));
    assert_eq!(
        reason(&target.write(&me, Some(1), Content::Bytes(b"uno")).unwrap_err()),
        Some(RefusalReason::Sequence)
    );
    assert_eq!(target.write(&me, None, Content::Bytes(b"two")).unwrap().seq, 2);
    assert_eq!(place.content(), "two");
    assert_eq!(place.stored().fence.digest, digest(b"two"));
    target.seal(&bearer(42), FenceMode::Enforce).unwrap();
    let refused = target.write(&me, None, Content::Bytes(b"three")).unwrap_err().to_string();
    let path = place.artefact();
    let wanted = format!(
        "write refused: your token 41 is older than 42, which file:{} has seen. This run lost its lease while \
         it was paused: its output is stale and was not written. Nothing to repair: run it again",
        path.display()
    );
    assert_eq!(refused, wanted);
    place.assert_tidy();
}

fn two_writers_of_one_run() {
    let place = Place::quick();
    place.target().seal(&bearer(5), FenceMode::Enforce).unwrap();
    // Each takes the next number; nobody is refused, nothing is lost.
    let children = ["a", "b"].map(|content| actor("many", &place, 5, content).spawn().unwrap());
    for child in children {
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success(), "{output:?}");
    }
    assert_eq!(place.stored().fence.seq, 40);
    place.assert_tidy();
    // Both insist on the same number: one is in, the other is told.
    for round in 0..10 {
        place.target().seal(&bearer(6 + round), FenceMode::Enforce).unwrap();
        let children = ["a", "b"].map(|content| actor("write", &place, 6 + round, content).spawn().unwrap());
        let outputs = children.map(|child| child.wait_with_output().unwrap());
        let mut codes = outputs.each_ref().map(|output| output.status.code().unwrap());
        let winner = if codes[0] == 0 { "a" } else { "b" };
        assert_eq!(place.content(), winner);
        codes.sort_unstable();
        assert_eq!(codes, [0, 76], "{outputs:?}");
    }
}

fn a_file_without_a_fence_is_only_sealed() {
    let place = Place::new();
    fs::write(place.artefact(), "made by hand").unwrap();
    let mut target = place.target();
    let refused = target.write(&bearer(3), None, Content::Bytes(b"x")).unwrap_err();
    assert_eq!(reason(&refused), Some(RefusalReason::NotSealed));
    assert!(refused.to_string().contains("no run has fenced"), "{refused}");
    assert_eq!((place.content().as_str(), target.show().unwrap()), ("made by hand", None));
    assert_eq!(place.names(), ["today.json"], "nothing was written, and nothing is left");
    target.seal(&bearer(3), FenceMode::Enforce).unwrap();
    assert_eq!(place.content(), "made by hand", "sealing writes nothing");
    target.write(&bearer(3), None, Content::Bytes(b"x")).unwrap();
    assert_eq!(place.content(), "x");
}

fn damaged_fences_refuse_everybody() {
    let place = Place::new();
    publish(&place, 3, "good");
    let good = fs::read_to_string(place.fence()).unwrap();
    let pending = good
        .replace("\"state\":\"done\"", "\"state\":\"pending\"")
        .replace("}\n", ",\"temp\":\"other.json\",\"before\":\"\"}\n");
    let newer = good.replace("_fence\":1", "_fence\":3");
    let half = &good[..good.len() / 2];
    let others_file = place.dir().join("other.json");
    fs::write(&others_file, "good").unwrap();
    for bad in ["", "\n", "34", half, "{}", &pending, &newer] {
        fs::write(place.fence(), bad).unwrap();
        let mut target = place.target();
        for error in [
            target.seal(&bearer(9), FenceMode::Enforce).unwrap_err(),
            target.write(&bearer(3), None, Content::Bytes(b"x")).unwrap_err(),
            target.show().unwrap_err(),
        ] {
            assert!(matches!(error, TargetError::BadFence { .. }), "{bad:?}: {error}");
            assert!(error.to_string().contains("Nothing was written"), "{error}");
        }
        assert_eq!(place.content(), "good");
        assert_eq!(fs::read_to_string(place.fence()).unwrap(), bad, "a fence nobody understands stays");
    }
    fs::remove_file(place.fence()).unwrap();
    symlink("other.json", place.fence()).unwrap();
    assert!(matches!(
        place.target().seal(&bearer(9), FenceMode::Enforce).unwrap_err(),
        TargetError::BadFence { .. }
    ));
    assert_eq!(fs::read_to_string(others_file).unwrap(), "good");
}

fn another_lease_is_refused_by_name() {
    let place = Place::new();
    publish(&place, 50, "good");
    let other = Bearer { lease: Name::new("other").unwrap(), ..bearer(70) };
    for error in [
        place.target().seal(&other, FenceMode::Enforce).unwrap_err(),
        place.target().write(&other, None, Content::Bytes(b"x")).unwrap_err(),
    ] {
        assert_eq!(reason(&error), Some(RefusalReason::OtherLease));
        assert!(error.to_string().contains("belongs to the lease site, and this run holds other"), "{error}");
    }
    assert_eq!(place.content(), "good");
}

fn links_and_directories_are_refused() {
    let place = Place::new();
    let real = place.dir().join("real.json");
    fs::write(&real, "real").unwrap();
    symlink("real.json", place.artefact()).unwrap();
    let unfit = |error: TargetError, word: &str| {
        assert!(matches!(error, TargetError::Unfit { .. }), "{error}");
        assert!(error.to_string().contains(word), "{error}");
    };
    unfit(place.target().seal(&bearer(1), FenceMode::Enforce).unwrap_err(), "symbolic link");
    unfit(place.target().write(&bearer(1), None, Content::Bytes(b"x")).unwrap_err(), "symbolic link");
    fs::remove_file(place.artefact()).unwrap();
    // A link put there after sealing is not written through, nor replaced.
    place.target().seal(&bearer(1), FenceMode::Enforce).unwrap();
    symlink("real.json", place.artefact()).unwrap();
    unfit(place.target().write(&bearer(1), None, Content::Bytes(b"x")).unwrap_err(), "symbolic link");
    assert_eq!(fs::read_to_string(&real).unwrap(), "real");
    fs::remove_file(place.artefact()).unwrap();
    fs::create_dir(place.artefact()).unwrap();
    unfit(place.target().write(&bearer(1), None, Content::Bytes(b"x")).unwrap_err(), "directory");
    fs::remove_dir(place.artefact()).unwrap();
    symlink("real.json", place.dir().join(".leasehold-lock")).unwrap();
    fs::remove_file(place.dir().join(".today.json.leasehold-lock")).unwrap();
    symlink("real.json", place.dir().join(".today.json.leasehold-lock")).unwrap();
    assert!(matches!(
        place.target().seal(&bearer(1), FenceMode::Enforce).unwrap_err(),
        TargetError::Io { .. }
    ));
    let long = "x".repeat(230);
    for bad in ["", ".", "..", "a/", &long, ".today.json.leasehold-fence"] {
        let path = format!("{}/{bad}", place.dir().display());
        assert!(matches!(FileTarget::open(&path), Err(TargetError::Unfit { .. })) || bad == ".", "{bad:?}");
    }
    assert!(matches!(FileTarget::open(place.dir().join("no/where")), Err(TargetError::Unfit { .. })));
}

fn permissions_are_kept() {
    let place = Place::new();
    let mode = |path: &Path| fs::metadata(path).unwrap().mode() & 0o7777;
    publish(&place, 1, "new");
    // What the shell's own redirection would have made of it.
    let plain = place.dir().join("plain");
    assert!(Command::new("sh").arg("-c").arg("> \"$0\"").arg(&plain).status().unwrap().success());
    assert_eq!(mode(&place.artefact()), mode(&plain) & 0o644);
    for wanted in [0o600, 0o640, 0o755, 0o444] {
        fs::set_permissions(place.artefact(), fs::Permissions::from_mode(wanted)).unwrap();
        place.target().write(&bearer(1), None, Content::Bytes(b"again")).unwrap();
        assert_eq!(mode(&place.artefact()), wanted);
    }
    if rustix::process::geteuid().is_root() {
        std::os::unix::fs::chown(place.artefact(), Some(12345), Some(54321)).unwrap();
        place.target().write(&bearer(1), None, Content::Bytes(b"again")).unwrap();
        let found = fs::metadata(place.artefact()).unwrap();
        assert_eq!((found.uid(), found.gid()), (12345, 54321));
    }
}

/// A process in a role, as this user, who is in this group besides its own.
fn in_role_as(place: &Place, (user, group): (u32, u32), role: &str, token: u64, content: &str) {
    let binary = place.dir().join("actor");
    if !binary.exists() {
        fs::copy(std::env::current_exe().unwrap(), &binary).unwrap();
    }
    let mut command = Command::new("setpriv");
    command.args(["--reuid", &user.to_string(), "--regid", &user.to_string()]);
    command.args(["--groups", &group.to_string()]).arg("--").arg(&binary);
    crate::kit::in_role(&mut command, role, place, token, content);
    let output = command.current_dir(place.dir()).output().unwrap();
    assert!(output.status.success(), "{user} in {group}: {output:?}");
}

/// Written by somebody who is not its owner: the group goes with the file if the writer is in it, and where
/// it cannot, the rights that were the group's are nobody's.
fn the_group_is_kept_or_loses_its_rights() {
    let (owner, writer, shared, strange): (u32, u32, u32, u32) = (12345, 12346, 54321, 54322);
    assert!(rustix::process::geteuid().is_root(), "this test needs users: run it as root");
    for (group, kept) in [(shared, (shared, 0o640)), (strange, (writer, 0o600))] {
        let place = Place::quick();
        std::os::unix::fs::chown(place.dir(), Some(writer), Some(writer)).unwrap();
        publish(&place, 1, "old");
        place.target().seal(&bearer(2), FenceMode::Enforce).unwrap();
        fs::set_permissions(place.artefact(), fs::Permissions::from_mode(0o640)).unwrap();
        std::os::unix::fs::chown(place.artefact(), Some(owner), Some(group)).unwrap();
        in_role_as(&place, (writer, shared), "write", 2, "new");
        let found = fs::metadata(place.artefact()).unwrap();
        assert_eq!((found.gid(), found.mode() & 0o7777), kept, "group {group}");
        assert_eq!((found.uid(), place.content().as_str()), (writer, "new"));
    }
}

/// The count is lost to a full disk; what was let in is acknowledged, so it must be on disk all the same.
fn a_watched_write_is_on_disk_although_it_is_not_counted() {
    let place = Place::new();
    publish(&place, 2, "good");
    place.target().set_mode(FenceMode::Observe).unwrap();
    let attempt = Attempt { role: "write", token: 1, content: "let in" };
    let renames: Vec<_> =
        attempt.points(&place, false).into_iter().filter(|point| point.name == "renameat").collect();
    assert_eq!(renames.len(), 2, "the artefact, and the fence that counts: {renames:?}");
    let (code, log) = attempt.log_failing_at(&place, &renames[1], "ENOSPC");
    assert_eq!((code, place.content().as_str(), place.stored().fence.let_in), (0, "let in", 0), "{log}");
    let (_, after) = log.split_once("\"today.json\")").unwrap_or_else(|| panic!("never renamed: {log}"));
    let directory = format!("<{}>)", place.dir().display());
    let synced = after.lines().any(|line| line.starts_with("fsync(") && line.contains(&directory));
    assert!(synced, "the name is not on disk: {log}");
}

fn a_busy_lock_has_an_end() {
    let place = Place::new();
    place.target().seal(&bearer(1), FenceMode::Enforce).unwrap();
    let lock = fs::File::open(place.dir().join(".today.json.leasehold-lock")).unwrap();
    lock.lock().unwrap();
    let mut hasty = place.file().with_patience(Duration::from_millis(40));
    for error in [
        hasty.seal(&bearer(2), FenceMode::Enforce).unwrap_err(),
        hasty.write(&bearer(1), None, Content::Bytes(b"x")).unwrap_err(),
    ] {
        let me = std::process::id();
        let named = matches!(error, TargetError::Busy { holder: Some(pid), .. } if pid == me);
        assert!(named, "{error}");
        assert!(error.to_string().contains(&format!("kill -9 {me}")), "{error}");
    }
    // And a lock that is let go of is waited for.
    let waiting = std::thread::spawn({
        let mut target = place.target();
        move || target.seal(&bearer(2), FenceMode::Enforce)
    });
    drop(lock);
    waiting.join().unwrap().unwrap();
}

/// To lock a file it is enough to read it, so those who only may read the directory must not.
fn only_who_may_write_the_directory_can_hold_the_lock() {
    assert!(rustix::process::geteuid().is_root(), "this test needs users: run it as root");
    let (alice, bob, shared, nobody): (u32, u32, u32, u32) = (12345, 12346, 54321, 65534);
    // Of a user, in whose directory root has been; of a group; of all; and of a temporary directory.
    for (owner, mode, first, next, kept_out) in [
        (alice, 0o755, None, (alice, alice), true),
        (alice, 0o775, Some((bob, shared)), (alice, shared), true),
        (alice, 0o777, Some((bob, bob)), (alice, alice), false),
        (0, 0o1777, Some((bob, bob)), (bob, bob), true),
    ] {
        let place = Place::quick();
        std::os::unix::fs::chown(place.dir(), Some(owner), Some(shared)).unwrap();
        fs::set_permissions(place.dir(), fs::Permissions::from_mode(mode)).unwrap();
        match first {
            Some(user) => in_role_as(&place, user, "seal", 1, ""),
            None => drop(place.target().seal(&bearer(1), FenceMode::Enforce).unwrap()),
        }
        let lock = place.beside("lock");
        let opens = |user: u32| {
            let mut command = Command::new("setpriv");
            command.args(["--reuid", &user.to_string(), "--clear-groups", "cat"]).arg(&lock);
            command.output().unwrap().status.success()
        };
        assert_eq!(opens(nobody), !kept_out, "{mode:o}");
        in_role_as(&place, next, "write", 1, "new");
        assert_eq!(place.content(), "new", "{mode:o}");
        // One that an earlier version made is not kept open for all.
        fs::set_permissions(&lock, fs::Permissions::from_mode(0o644)).unwrap();
        assert!(opens(nobody), "the harness cannot see a lock that is open for all");
        in_role_as(&place, first.unwrap_or(next), "seal", 2, "");
        assert_eq!(opens(nobody), !kept_out, "{mode:o}");
    }
}

fn a_removed_lock_file_is_noticed() {
    let place = Place::new();
    place.target().seal(&bearer(1), FenceMode::Enforce).unwrap();
    let path = place.dir().join(".today.json.leasehold-lock");
    let old = fs::File::open(&path).unwrap();
    old.lock().unwrap();
    let waiting = std::thread::spawn({
        let mut target = place.target();
        move || target.seal(&bearer(2), FenceMode::Enforce)
    });
    // Whoever waits for the old one must not think it is inside when it gets that.
    fs::remove_file(&path).unwrap();
    drop(old);
    waiting.join().unwrap().unwrap();
    place.target().write(&bearer(2), None, Content::Bytes(b"x")).unwrap();
    place.assert_tidy();
}

/// A file system of 64 KiB.
struct Tiny(Place);

impl Tiny {
    fn mount() -> Self {
        let place = Place::new();
        let mount =
            Command::new("mount").args(["-t", "tmpfs", "-o", "size=64k", "tmpfs"]).arg(place.dir()).output();
        let mounted = mount.as_ref().is_ok_and(|output| output.status.success());
        if !mounted {
            println!("SKIPPED: a tmpfs of 64 KiB cannot be mounted here: {mount:?}");
        }
        assert!(mounted, "this test needs to mount a tmpfs: run it as root");
        Self(place)
    }
}

impl Drop for Tiny {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(self.0.dir()).status();
    }
}

/// Something mounted over an artefact.
struct Mounted(std::path::PathBuf);

impl Mounted {
    fn over(place: &Place, kind: Kind) -> Self {
        let path = place.artefact();
        let mut mount = Command::new("mount");
        match kind {
            Kind::File => {
                let other = place.dir().join("other");
                fs::write(&other, "of another").unwrap();
                mount.arg("--bind").arg(other)
            }
            Kind::Tree => mount.args(["-t", "tmpfs", "-o", "size=64k", "tmpfs"]),
        };
        let mount = mount.arg(&path).output();
        let mounted = mount.as_ref().is_ok_and(|output| output.status.success());
        assert!(mounted, "SKIPPED: this test needs to mount something: run it as root: {mount:?}");
        Self(path)
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(&self.0).status();
    }
}

/// Nothing can be put in the place of what is mounted, which is on another file system besides: said before anything
/// is written.
fn a_mount_point_is_refused() {
    for kind in [Kind::File, Kind::Tree] {
        let place = Place::of(kind);
        match kind {
            Kind::File => fs::write(place.artefact(), "by hand").unwrap(),
            Kind::Tree => fs::create_dir(place.artefact()).unwrap(),
        }
        let refused = |error: TargetError| {
            let said = error.to_string();
            assert!(matches!(error, TargetError::Unfit { .. }), "{said}");
            assert!(
                said.contains("is a mount point") && said.contains("Mount its directory instead"),
                "{said}"
            );
        };
        let mounted = Mounted::over(&place, kind);
        let before = place.names();
        refused(place.target().seal(&bearer(1), FenceMode::Enforce).unwrap_err());
        refused(place.write(1, None, "x").unwrap_err());
        assert_eq!(place.names(), before, "{kind:?}: something was left beside it");
        drop(mounted);
        // Without it, it is an artefact like any other; and with it again, a run that was let in is not.
        let _ = fs::remove_file(place.dir().join("other"));
        place.target().seal(&bearer(1), FenceMode::Enforce).unwrap();
        if kind == Kind::Tree {
            continue;
        }
        place.write(1, None, "good").unwrap();
        let mounted = Mounted::over(&place, kind);
        refused(place.write(1, None, "x").unwrap_err());
        drop(mounted);
        assert_eq!(place.content(), "good");
    }
}

/// Makes a file of so many pages, or as many as there is room for. One at a time: of a file that was written at once and cut
/// the kernel may keep what was cut off.
fn fill(path: &Path, pages: u64) -> u64 {
    let _ = fs::remove_file(path);
    let mut file = fs::File::create(path).unwrap();
    (0..pages).take_while(|_| file.write_all(&[0; 4096]).is_ok()).count() as u64
}

fn a_full_disk_changes_nothing() {
    let tiny = Tiny::mount();
    let place = &tiny.0;
    publish(place, 1, "good");
    let before = fs::read(place.fence()).unwrap();
    let full = |error: TargetError| {
        let said = error.to_string();
        assert!(matches!(error, TargetError::Io { .. }), "{said}");
        assert!(said.contains("No space left") && said.contains("Nothing was changed"), "{said}");
        assert_eq!(fs::read(place.fence()).unwrap(), before);
        assert_eq!(place.content(), "good");
    };
    full(place.target().write(&bearer(1), None, Content::Bytes(&vec![b'x'; 100_000])).unwrap_err());
    place.assert_tidy();
    // Room for the payload, none for the fence: found by filling up all but 0, 1, 2... pages.
    let (mut refused, mut fitted) = (0, 0);
    for pages in 0..8 {
        let filler = place.dir().join("filler");
        let all = fill(&filler, u64::MAX);
        fill(&filler, all - pages);
        match place.target().write(&bearer(1), None, Content::Bytes(b"good")) {
            Ok(_) => fitted += 1,
            Err(error) => {
                assert_eq!(fitted, 0, "more room, and yet: {error}");
                full(error);
                refused += 1;
            }
        }
        match place.target().seal(&bearer(1), FenceMode::Enforce) {
            Ok(_) => {}
            Err(error) => full(error),
        }
        fs::remove_file(&filler).unwrap();
        place.assert_tidy();
    }
    println!("{refused} refused for want of room, {fitted} fitted");
    assert!(refused >= 2 && fitted >= 1);
    place.target().write(&bearer(1), None, Content::Bytes(b"after")).unwrap();
    assert_eq!(place.content(), "after");
}

/// An overtaken run looks back: what a later one has written there went through the fence.
fn what_a_successor_writes_did_not_go_round() {
    for kind in [Kind::File, Kind::Tree] {
        let place = Place::of(kind);
        let mut target = place.target();
        for text in [None, Some("own")] {
            target.seal(&bearer(1), FenceMode::Enforce).unwrap();
            text.map(|text| place.write(1, None, text).unwrap());
            assert_eq!(target.aftermath(&bearer(1)), None);
        }
        publish(&place, 2, "of the successor");
        assert_eq!(target.aftermath(&bearer(1)), None);
        fs::remove_file(place.artefact()).unwrap();
        fs::write(place.artefact(), "past the fence").unwrap();
        assert_eq!(target.aftermath(&bearer(1)), None, "for whom it has been replaced already");
    }
}
