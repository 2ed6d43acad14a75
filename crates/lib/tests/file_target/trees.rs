//! What is particular to trees: versions, links, and who still reads an old one.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::time::Duration;

use leasehold::backends::file::tree::TreeTarget;
use leasehold::core::fence::FenceMode;
use leasehold::targets::{Content, Target, TargetError};

use crate::kit::{Kind, Place, bearer, publish};

crate::tests!(
    a_plain_directory_becomes_a_version,
    a_reader_keeps_the_version_it_is_in,
    a_version_that_was_never_current_replaces_nothing,
    links_are_copied_and_foreign_ones_are_refused,
    what_cannot_be_copied_changes_nothing,
    a_pipe_in_a_tree_holds_nobody_up,
    the_same_content_under_the_same_number_is_written_all_the_same,
);

fn versions(place: &Place) -> usize {
    place.names().iter().filter(|name| name.contains(".leasehold-v-")).count()
}

fn a_plain_directory_becomes_a_version() {
    let place = Place::of(Kind::Tree);
    fs::create_dir_all(place.artefact().join("deep")).unwrap();
    fs::write(place.artefact().join("page"), "by hand").unwrap();
    fs::write(place.artefact().join("deep/page"), "by hand").unwrap();
    place.target().seal(&bearer(1), FenceMode::Enforce).unwrap();
    assert_eq!(place.content(), "by hand");
    let reader = fs::File::open(place.artefact().join("page")).unwrap();
    let mut target = TreeTarget::open_with(place.artefact(), Duration::from_secs(60)).unwrap();
    let drafts = Place::new();
    Kind::Tree.with("first", drafts.dir(), |content| target.write(&bearer(1), None, content)).unwrap();
    assert_eq!((place.content().as_str(), versions(&place)), ("first", 2));
    assert_eq!(std::io::read_to_string(reader).unwrap(), "by hand");
    place.assert_tidy();
}

/// With a grace, a version stays that was current a moment ago; without one, it would be pulled away
/// under its readers, which is how we know that the grace does it.
fn a_reader_keeps_the_version_it_is_in() {
    for (grace, stays) in [(Duration::from_secs(60), true), (Duration::ZERO, false)] {
        let place = Place::of(Kind::Tree);
        publish(&place, 1, "first");
        let entered = fs::canonicalize(place.artefact()).unwrap();
        let mut target = TreeTarget::open_with(place.artefact(), grace).unwrap();
        for text in ["second", "third"] {
            let drafts = Place::new();
            Kind::Tree.with(text, drafts.dir(), |content| target.write(&bearer(1), None, content)).unwrap();
        }
        assert_eq!(entered.join("page").exists(), stays, "{grace:?}");
        assert_eq!(place.content(), "third");
    }
}

/// A writer died with its version named and not yet current: that version says nothing about when the one that
/// is served was replaced.
fn a_version_that_was_never_current_replaces_nothing() {
    let place = Place::of(Kind::Tree);
    publish(&place, 1, "first");
    let served = fs::canonicalize(place.artefact()).unwrap();
    let name = served.file_name().unwrap().to_str().unwrap();
    let orphan = served.with_file_name(name.replace("-v-1.1.", "-v-1.2."));
    assert_ne!(orphan, served);
    fs::create_dir(&orphan).unwrap();
    let grace = Duration::from_secs(3);
    while fs::metadata(&orphan).unwrap().modified().unwrap().elapsed().unwrap() <= grace {
        std::thread::yield_now();
    }
    let mut target = TreeTarget::open_with(place.artefact(), grace).unwrap();
    target.seal(&bearer(2), FenceMode::Enforce).unwrap();
    let drafts = Place::new();
    Kind::Tree.with("second", drafts.dir(), |content| target.write(&bearer(2), None, content)).unwrap();
    assert_eq!(place.content(), "second");
    assert!(served.join("page").exists(), "its readers lost it at once");
    assert!(!orphan.exists());
}

fn links_are_copied_and_foreign_ones_are_refused() {
    let (place, drafts) = (Place::of(Kind::Tree), Place::new());
    fs::write(drafts.dir().join("page"), "x").unwrap();
    symlink("/etc/passwd", drafts.dir().join("link")).unwrap();
    let mut target = place.target();
    target.seal(&bearer(1), FenceMode::Enforce).unwrap();
    target.write(&bearer(1), None, Content::Directory(drafts.dir())).unwrap();
    let link = fs::read_link(place.artefact().join("link")).unwrap();
    assert_eq!(link, Path::new("/etc/passwd"));
    fs::remove_file(place.artefact()).unwrap();
    symlink(drafts.dir(), place.artefact()).unwrap();
    for error in [
        target.seal(&bearer(2), FenceMode::Enforce).unwrap_err(),
        target.write(&bearer(1), None, Content::Directory(drafts.dir())).unwrap_err(),
    ] {
        assert!(matches!(error, TargetError::Unfit { .. }), "{error}");
    }
}

fn what_cannot_be_copied_changes_nothing() {
    let place = Place::of(Kind::Tree);
    publish(&place, 1, "good");
    let before = fs::read(place.fence()).unwrap();
    let odd = Place::new();
    rustix::fs::mkfifoat(rustix::fs::CWD, odd.dir().join("pipe"), rustix::fs::Mode::RUSR).unwrap();
    let none = odd.dir().join("nothing");
    let own = place.dir().to_owned();
    for source in [odd.dir(), &none, &own] {
        let error = place.target().write(&bearer(1), None, Content::Directory(source)).unwrap_err();
        assert!(error.to_string().contains("Nothing was changed"), "{error}");
    }
    let error = place.target().write(&bearer(1), None, Content::Bytes(b"x")).unwrap_err();
    assert!(error.to_string().contains("--from"), "{error}");
    assert_eq!((place.content().as_str(), fs::read(place.fence()).unwrap()), ("good", before));
    place.assert_tidy();
}

/// Only what is a file is opened to look at what is there.
fn a_pipe_in_a_tree_holds_nobody_up() {
    let place = Place::of(Kind::Tree);
    publish(&place, 1, "good");
    let plain = place.target().fingerprint().unwrap();
    let pipe = place.artefact().join("pipe");
    rustix::fs::mkfifoat(rustix::fs::CWD, &pipe, rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR).unwrap();
    let (told, hears) = std::sync::mpsc::channel();
    let mut target = place.target();
    let looking = std::thread::spawn(move || told.send(target.fingerprint()));
    let seen = hears.recv_timeout(Duration::from_secs(20));
    // If it hangs there, this lets it go.
    drop(fs::File::options().read(true).write(true).open(&pipe));
    let seen = seen.expect("it waits for somebody to write into the pipe").unwrap();
    looking.join().unwrap().unwrap();
    assert_ne!(seen, plain, "a pipe more is another tree");
}

/// After a reset of the fence a version can get the very name of the one that is current, which may have been edited.
fn the_same_content_under_the_same_number_is_written_all_the_same() {
    let place = Place::of(Kind::Tree);
    publish(&place, 1, "report");
    let name = fs::read_link(place.artefact()).unwrap();
    for page in ["page", "deep/page"] {
        fs::write(place.artefact().join(page), "edited by hand").unwrap();
    }
    let reader = fs::File::open(place.artefact().join("page")).unwrap();
    place.target().forget().unwrap();
    publish(&place, 1, "report");
    assert_eq!(fs::read_link(place.artefact()).unwrap(), name, "then this shows nothing");
    assert_eq!(place.content(), "report");
    assert_eq!(std::io::read_to_string(reader).unwrap(), "edited by hand");
    place.assert_tidy();
}
