//! The verdict table of core, all of it, replayed against files.

use std::fs;

use leasehold::backends::file::FileTarget;
use leasehold::core::fence::Fence;
use leasehold::core::fence_record::{FenceRecord, PendingWrite};
use leasehold::targets::Target;
use leasehold::targets::conformance::{OLD, TargetBench, replay, whole};

use crate::kit::Place;

crate::tests!(every_case_of_the_table);

const TEMP: &str = ".today.json.leasehold-new-0123456789abcdef0123456789abcdef";

/// Whether the payload of an unfinished write is still there.
#[derive(Clone, Copy, PartialEq)]
enum Unfinished {
    Waiting,
    Gone,
}

struct Files {
    place: Place,
    target: FileTarget,
    unfinished: Unfinished,
}

impl TargetBench for Files {
    fn install(&mut self, stored: Option<&FenceRecord>, content: &str) -> Option<Fence> {
        let _ = fs::remove_file(self.place.dir().join(TEMP));
        fs::write(self.place.artefact(), content).unwrap();
        let Some(record) = stored else {
            let _ = fs::remove_file(self.place.fence());
            return None;
        };
        fs::write(self.place.fence(), record.encode()).unwrap();
        let waiting = self.unfinished == Unfinished::Waiting;
        if record.pending.is_some() && waiting {
            // The only unfinished write of the table.
            fs::write(self.place.dir().join(TEMP), "d1").unwrap();
        }
        Some(if waiting { record.finished() } else { record.taken_back() }.fence)
    }

    fn content(&mut self) -> String {
        self.place.content()
    }

    fn target(&mut self) -> &mut dyn Target {
        &mut self.target
    }

    fn unfinished(&mut self, fence: &Fence) -> Option<FenceRecord> {
        let pending = PendingWrite { temp: TEMP.into(), before: String::new(), over: None };
        Some(FenceRecord::pending(fence.clone(), pending))
    }
}

fn every_case_of_the_table() {
    let cases = whole();
    for unfinished in [Unfinished::Waiting, Unfinished::Gone] {
        let place = Place::quick();
        let target = place.file();
        fs::write(place.artefact(), OLD).unwrap();
        let count = replay(&mut Files { place, target, unfinished }, &cases);
        println!("{count} cases");
        assert!(count > 20_000);
    }
}
