//! Holds the house to its plan: which crate may use which, where unsafe code may stand, how long a
//! file may grow, that every member takes the workspace's lints, and that the documents have
//! neither dead links nor empty sections.

#![expect(
    clippy::unwrap_used,
    reason = "a test stops where something is missing"
)]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

const MAX_CODE_LINES: usize = 600;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("the crate lies in the workspace")
        .into()
}

fn files(dir: &Path, extension: &str, into: &mut Vec<PathBuf>) {
    let mut entries: Vec<_> = fs::read_dir(dir)
        .unwrap_or_else(|error| panic!("{}: {error}", dir.display()))
        .map(|entry| entry.unwrap().path())
        .collect();
    entries.sort();
    for path in entries {
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        if path.is_dir() {
            if name != "target" && !name.starts_with('.') {
                files(&path, extension, into);
            }
        } else if path.extension().is_some_and(|found| found == extension) {
            into.push(path);
        }
    }
}

fn sources() -> Vec<PathBuf> {
    let mut found = Vec::new();
    for member in ["engine", "ha", "raft-glue", "broker", "benches"] {
        files(&root().join(member), "rs", &mut found);
    }
    assert!(
        found.len() > 20,
        "the scan found only {} source files",
        found.len()
    );
    found
}

fn shown(path: &Path) -> String {
    path.strip_prefix(root())
        .unwrap_or(path)
        .display()
        .to_string()
}

/// For each member: the workspace crates and the outside crates it names, of every kind.
fn dependencies() -> BTreeMap<String, BTreeSet<String>> {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--no-deps", "--format-version", "1"])
        .current_dir(root())
        .output()
        .expect("cargo runs");
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let metadata: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let packages = metadata["packages"].as_array().unwrap();
    packages
        .iter()
        .map(|package| {
            let names = package["dependencies"].as_array().unwrap().iter();
            let names = names
                .map(|one| one["name"].as_str().unwrap().to_owned())
                .collect();
            (package["name"].as_str().unwrap().to_owned(), names)
        })
        .collect()
}

#[test]
fn crates_use_each_other_only_along_the_arrows() {
    let allowed: BTreeMap<&str, &[&str]> = BTreeMap::from([
        ("epochlog-engine", &[][..]),
        ("epochlog-ha", &["epochlog-engine"][..]),
        ("epochlog-raft-glue", &[][..]),
        (
            "epochlog-broker",
            &["epochlog-engine", "epochlog-ha", "epochlog-raft-glue"][..],
        ),
        (
            "epochlog-benches",
            &["epochlog-engine", "epochlog-ha", "epochlog-raft-glue"][..],
        ),
    ]);
    let found = dependencies();
    let members: BTreeSet<&str> = found.keys().map(String::as_str).collect();
    assert_eq!(members, allowed.keys().copied().collect());
    for (member, names) in &found {
        for name in names.iter().filter(|name| name.starts_with("epochlog-")) {
            assert!(
                allowed[member.as_str()].contains(&name.as_str()),
                "{member} must not depend on {name}"
            );
        }
    }
}

#[test]
fn every_outside_crate_with_an_owner_is_used_by_its_owner_alone() {
    let owners = BTreeMap::from([
        ("memmap2", "epochlog-engine"),
        ("io-uring", "epochlog-ha"),
        ("tokio-uring", "epochlog-ha"),
        ("raft", "epochlog-raft-glue"),
        ("redb", "epochlog-raft-glue"),
    ]);
    for (member, names) in dependencies() {
        // The benches hold the raw limits, which are made of the very crates they judge.
        for (outside, owner) in owners.iter().filter(|_| member != "epochlog-benches") {
            assert!(
                member == *owner || !names.contains(*outside),
                "{outside} belongs to {owner}, but {member} names it"
            );
            if member == *owner {
                assert!(names.contains(*outside), "{owner} no longer uses {outside}");
            }
        }
    }
}

#[test]
fn every_member_takes_the_lints_of_the_workspace() {
    for member in ["engine", "ha", "raft-glue", "broker", "benches"] {
        let path = root().join(member).join("Cargo.toml");
        let text = fs::read_to_string(&path).unwrap();
        let manifest: toml::Table = text.parse().unwrap();
        let lints = manifest
            .get("lints")
            .and_then(|lints| lints.get("workspace"));
        assert_eq!(
            lints.and_then(toml::Value::as_bool),
            Some(true),
            "{}",
            shown(&path)
        );
    }
}

/// The line without its `//` comment and without what stands between quotes.
fn bare(line: &str) -> String {
    let mut out = String::new();
    let mut quoted = false;
    let mut escaped = false;
    let mut last = ' ';
    for letter in line.chars() {
        if quoted {
            quoted = escaped || letter != '"';
            escaped = !escaped && letter == '\\';
        } else if letter == '"' && last != '\'' {
            quoted = true;
        } else if letter == '/' && last == '/' {
            out.pop();
            break;
        } else {
            out.push(letter);
        }
        last = letter;
    }
    out
}

#[test]
fn unsafe_code_stands_in_the_mapping_and_the_transports_only() {
    let mut seen = 0;
    for path in sources() {
        let name = shown(&path);
        let allowed = name == "engine/src/region.rs"
            || name.starts_with("engine/src/region/")
            || name.starts_with("ha/src/transport/")
            || name.starts_with("benches/");
        for (number, line) in fs::read_to_string(&path).unwrap().lines().enumerate() {
            let line = bare(line);
            let words = line.split(|letter: char| !letter.is_alphanumeric() && letter != '_');
            if words.into_iter().any(|word| word == "unsafe") {
                assert!(
                    allowed,
                    "{name}:{}: unsafe code does not belong here",
                    number + 1
                );
                seen += 1;
            }
        }
    }
    assert!(seen > 0, "the scan does not recognise unsafe code any more");
}

fn code_lines(text: &str) -> usize {
    let code = text.split("\n#[cfg(test)]").next().unwrap_or_default();
    code.lines()
        .map(str::trim)
        .filter(|line| !line.is_empty() && !line.starts_with("//"))
        .count()
}

#[test]
fn no_file_outgrows_its_noun() {
    for path in sources() {
        let lines = code_lines(&fs::read_to_string(&path).unwrap());
        let name = shown(&path);
        assert!(
            lines <= MAX_CODE_LINES,
            "{name} has {lines} lines of code: a noun is missing"
        );
    }
}

#[test]
fn every_source_file_opens_with_its_story() {
    for path in sources() {
        let text = fs::read_to_string(&path).unwrap();
        // Tables of a file's own tests, kept beside it, belong to that file's story.
        let told = text.starts_with("//!") || path.to_string_lossy().ends_with("tests.rs");
        assert!(told, "{} does not say what it holds", shown(&path));
    }
}

/// A bare `matches!(..);` throws its answer away, so a test made of it cannot fail; neither rustc
/// nor clippy says so.
#[test]
fn no_comparison_throws_its_answer_away() {
    for path in sources() {
        for (number, line) in fs::read_to_string(&path).unwrap().lines().enumerate() {
            let thrown =
                line.trim_start().starts_with("matches!(") && line.trim_end().ends_with(");");
            assert!(
                !thrown,
                "{}:{}: matches! without assert!",
                shown(&path),
                number + 1
            );
        }
    }
}

fn documents() -> Vec<PathBuf> {
    let mut found = Vec::new();
    files(&root(), "md", &mut found);
    assert!(found.iter().any(|path| path.ends_with("README.md")));
    found
}

/// The targets of inline links, outside code fences.
fn link_targets(text: &str) -> Vec<String> {
    let mut targets = Vec::new();
    let mut fenced = false;
    for line in text.lines() {
        if line.trim_start().starts_with("```") {
            fenced = !fenced;
        }
        if fenced {
            continue;
        }
        for part in line.split("](").skip(1) {
            targets.extend(part.split(')').next().map(str::to_owned));
        }
    }
    targets
}

#[test]
fn links_in_the_documents_lead_somewhere() {
    for document in documents() {
        let text = fs::read_to_string(&document).unwrap();
        for target in link_targets(&text) {
            if target.starts_with("https://") {
                continue;
            }
            let (file, anchor) = target.split_once('#').unwrap_or((&target, ""));
            let path = match file {
                "" => document.clone(),
                _ => document.parent().unwrap().join(file),
            };
            assert!(
                path.exists(),
                "{}: {target} leads nowhere",
                shown(&document)
            );
            if !anchor.is_empty() {
                let known = anchors(&fs::read_to_string(&path).unwrap());
                assert!(
                    known.contains(anchor),
                    "{}: no heading {target}",
                    shown(&document)
                );
            }
        }
    }
}

fn anchors(text: &str) -> BTreeSet<String> {
    let slug = |heading: &str| {
        let heading = heading.trim_start_matches('#').trim().to_lowercase();
        let kept = heading
            .chars()
            .filter(|c| c.is_alphanumeric() || " -_".contains(*c));
        kept.map(|c| if c == ' ' { '-' } else { c }).collect()
    };
    text.lines()
        .filter(|line| line.starts_with('#'))
        .map(slug)
        .collect()
}

#[test]
fn no_section_of_a_document_is_empty() {
    for document in documents() {
        let text = fs::read_to_string(&document).unwrap();
        let mut open: Option<(usize, String)> = None;
        let mut fenced = false;
        for line in text.lines().chain(["# end"]) {
            if line.trim_start().starts_with("```") {
                fenced = !fenced;
            }
            let depth = line.chars().take_while(|letter| *letter == '#').count();
            let heading = !fenced && depth > 0 && line.chars().nth(depth) == Some(' ');
            if heading {
                if let Some((above, title)) = open.take() {
                    let filled = depth > above;
                    assert!(filled, "{}: section {title:?} is empty", shown(&document));
                }
                open = Some((depth, line.to_owned()));
            } else if !line.trim().is_empty() && line.trim() != "..." {
                open = None;
            }
        }
    }
}
