//! The files in packaging/: they parse, and every command line of ours in them is one that the binary takes.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::world::{Ended, World, binary};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging").canonicalize().unwrap()
}

/// All files below packaging/ with this ending.
fn files(ending: &str) -> Vec<(PathBuf, String)> {
    let mut found = Vec::new();
    let mut folders = vec![root()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.to_str().unwrap().ends_with(ending) {
                let text = std::fs::read_to_string(&path).unwrap();
                found.push((path, text));
            }
        }
    }
    assert!(!found.is_empty(), "no file ends with {ending}");
    found
}

/// Whether a program is there to be asked.
fn asked(program: &str, args: &[&str]) -> Option<Ended> {
    Command::new(program).args(args).output().ok().map(Ended::from)
}

/// What stands between two marks, each time.
fn between<'a>(text: &'a str, open: &'a str, close: &'a str) -> impl Iterator<Item = &'a str> {
    text.split(open).skip(1).filter_map(move |rest| rest.split_once(close).map(|(inside, _)| inside))
}

/// The arguments of every command of ours in a file of any of these kinds.
fn commands(path: &str, text: &str) -> Vec<Vec<String>> {
    let lines: Vec<String> = if path.ends_with(".plist") {
        let array = |array| between(array, "<string>", "</string>").collect::<Vec<_>>().join(" ");
        between(text, "<array>", "</array>").map(array).collect()
    } else if path.ends_with(".yml") || path.ends_with("Containerfile") {
        // A list of arguments alone is for an image whose entry point we are.
        let lists = text.lines().filter_map(|line| {
            let (key, list) = line.trim().split_once(['[']).filter(|(_, list)| list.starts_with('"'))?;
            let own = ["args:", "command:", "CMD", "ENTRYPOINT"].contains(&key.trim());
            let list = list.trim_end_matches(']').replace(['"', ','], " ");
            own.then(|| if list.trim() == "leasehold" { String::new() } else { format!("leasehold {list}") })
        });
        let plain = text.lines().filter_map(|line| line.split_once("run: ").map(|(_, line)| line.to_owned()));
        lists.chain(plain).collect()
    } else if path.ends_with(".md") {
        let fenced = text.split("```").skip(1).step_by(2).flat_map(str::lines);
        let spans = text.split("```").step_by(2).flat_map(|prose| prose.split('`').skip(1).step_by(2));
        fenced.chain(spans).filter(|line| line.starts_with("leasehold ")).map(str::to_owned).collect()
    } else {
        let code = text.lines().filter(|line| !line.starts_with('#'));
        code.map(|line| line.strip_prefix("ExecStart=").unwrap_or(line).to_owned()).collect()
    };
    lines.iter().filter_map(|line| ours(line)).collect()
}

/// The arguments after our name, up to where the shell goes on with something else.
fn ours(line: &str) -> Option<Vec<String>> {
    let mut words = line.split_whitespace();
    let mut command = true;
    // A name in the place of a command: at the beginning, or after the shell's own signs.
    for word in words.by_ref() {
        if command && (word == "leasehold" || word.ends_with("/leasehold")) {
            return Some(
                words.take_while(|word| !["&&", "||", "|", ";", "…"].contains(word)).map(unquoted).collect(),
            );
        }
        command = ["&&", "||", "|", ";"].contains(&word) || word.contains('*');
    }
    None
}

fn unquoted(word: &str) -> String {
    word.trim_matches(['"', '\'']).to_owned()
}

/// Whether the binary takes it: help is given for what could be parsed so far.
fn taken(world: &World, arguments: &[String]) -> bool {
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).chain(["--help"]).collect();
    world.run(&arguments).code == 0
}

#[test]
fn every_command_line_is_one_that_works() {
    let world = World::new();
    let mut seen = Vec::new();
    for (path, text) in files("") {
        let name = path.to_str().unwrap().to_owned();
        if name.contains("/git-hooks/") || name.ends_with(".timer") {
            continue;
        }
        let commands = commands(&name, &text);
        assert!(!commands.is_empty(), "{name} starts nothing of ours");
        for arguments in commands {
            assert!(taken(&world, &arguments), "{name}: leasehold {}", arguments.join(" "));
            seen.push(arguments.last().cloned().unwrap_or_default());
        }
    }
    let count = |word: &str| seen.iter().filter(|last| *last == word).count();
    // A unit, a property list, an image and its composition; a unit, cron, a property list, a workflow and a pod.
    assert!(count("daemon") >= 4 && count("tick") >= 5, "{seen:?}");
    assert!(!world.path(".local").exists(), "nothing was run");
}

#[test]
fn a_command_line_with_a_mistake_is_caught() {
    let world = World::new();
    let samples = [
        ("a.service", "ExecStart=/usr/bin/leasehold --confg /etc/l.toml daemon"),
        ("a.crontab", "* * * * *  cd /x && /usr/local/bin/leasehold tikc"),
        ("a.plist", "<array><string>/x/leasehold</string><string>deamon</string></array>"),
        ("a.yml", "      - run: leasehold tick --once"),
        ("a.yml", "  args: [\"--confg\", \"/x\", \"tick\"]"),
        ("Containerfile", "CMD [\"demon\"]"),
        ("a.md", "```\nleasehold plan --nxt 3\n```\n"),
        ("a.md", "as `leasehold histroy`"),
    ];
    for (path, text) in samples {
        let found = commands(path, text);
        assert_eq!(found.len(), 1, "{path}: {text}: {found:?}");
        assert!(!taken(&world, &found[0]), "{text}");
    }
    assert!(commands("a.service", "ExecStart=/usr/bin/echo leasehold tikc\n# leasehold tikc").is_empty());
}

/// `[Section]` and `Key=value`, nothing else.
fn sections(text: &str) -> Result<Vec<&str>, String> {
    let mut found = Vec::new();
    for line in text.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        match line.strip_prefix('[').and_then(|line| line.strip_suffix(']')) {
            Some(section) => found.push(section),
            None if found.is_empty() => return Err(format!("{line}: in no section")),
            None => {
                let key = line.split_once('=').map_or("", |(key, _)| key);
                if key.is_empty() || !key.chars().all(|c| c.is_ascii_alphanumeric()) {
                    return Err(format!("{line}: no key"));
                }
            }
        }
    }
    Ok(found)
}

/// Whether systemd takes these units; nothing if there is none to ask.
fn verified(world: &World, units: &[(&str, String)]) -> Option<bool> {
    asked("systemd-analyze", &["--version"])?;
    let paths = units.iter().map(|(name, text)| {
        // The binary that is there, and a user that is.
        let text =
            text.replace("/usr/bin/leasehold", binary().to_str().unwrap()).replace("=leasehold\n", "=root\n");
        world.write(name, &text)
    });
    let paths: Vec<PathBuf> = paths.collect();
    let ended = Ended::from(Command::new("systemd-analyze").arg("verify").args(&paths).output().unwrap());
    let about_these = |line: &&str| units.iter().any(|(name, _)| line.contains(name));
    Some(ended.code == 0 && ended.err.lines().filter(about_these).count() == 0)
}

#[test]
fn units_are_units() {
    let mut units = files(".service");
    units.extend(files(".timer"));
    for (path, text) in &units {
        let found = sections(text).unwrap_or_else(|why| panic!("{}: {why}", path.display()));
        assert_eq!(found[0], "Unit", "{}", path.display());
        let kind = if path.extension().unwrap() == "timer" { "Timer" } else { "Service" };
        assert!(found.contains(&kind), "{}", path.display());
    }
    assert!(sections("User=me\n").is_err() && sections("[Unit]\nnonsense\n").is_err());
    let world = World::new();
    let units: Vec<(&str, String)> = units
        .iter()
        .map(|(path, text)| (path.file_name().unwrap().to_str().unwrap(), text.clone()))
        .collect();
    if let Some(verified) = verified(&world, &units) {
        assert!(verified, "systemd-analyze verify");
        let bad = units.iter().map(|(name, text)| (*name, text.replace("KillMode=", "KilMode=")));
        assert_eq!(self::verified(&world, &bad.collect::<Vec<_>>()), Some(false), "a mistake is caught");
    }
}

/// Whether Python can read a file with this expression; nothing if it cannot be asked.
fn python(module: &str, read: &str, path: &Path) -> Option<bool> {
    asked("python3", &["-c", &format!("import {module}")]).filter(|ended| ended.code == 0)?;
    let script = format!("import sys, {module}; {read}");
    Some(asked("python3", &["-c", &script, path.to_str().unwrap()])?.code == 0)
}

#[test]
fn property_lists_and_yaml_are_what_they_say() {
    let world = World::new();
    let plist = "d = plistlib.load(open(sys.argv[1], 'rb')); assert d['ProgramArguments'][0].endswith('/leasehold') and d['Label']";
    let yaml = "d = yaml.safe_load(open(sys.argv[1])); assert isinstance(d, dict) and d";
    for (path, text) in files(".plist") {
        let opened = text.matches("<dict>").count() + text.matches("<array>").count();
        assert_eq!(
            opened,
            text.matches("</dict>").count() + text.matches("</array>").count(),
            "{}",
            path.display()
        );
        assert_ne!(python("plistlib", plist, &path), Some(false), "{}", path.display());
    }
    for (path, text) in files(".yml") {
        assert!(!text.contains('\t'), "{}: a tab", path.display());
        let even = |line: &str| (line.len() - line.trim_start().len()).is_multiple_of(2);
        assert!(text.lines().all(even), "{}", path.display());
        assert_ne!(python("yaml", yaml, &path), Some(false), "{}", path.display());
    }
    let bad = world.write("bad", "<plist><dict>\n  - {a: [}\n");
    assert_ne!(python("plistlib", plist, &bad), Some(true));
    assert_ne!(python("yaml", yaml, &bad), Some(true));
}

#[test]
fn the_crontab_has_five_times_before_its_command() {
    for (path, text) in files(".crontab") {
        let lines: Vec<&str> = text.lines().filter(|line| !line.starts_with('#')).collect();
        assert!(!lines.is_empty());
        for line in lines {
            let times = |word: &str| word.chars().all(|c| c.is_ascii_digit() || "*/,-".contains(c));
            assert_eq!(
                line.split_whitespace().take_while(|word| times(word)).count(),
                5,
                "{}",
                path.display()
            );
            assert!(!line.contains('%'), "cron makes a new line of it");
        }
    }
}
