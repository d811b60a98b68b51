//! mqadmin says the same of our controller and of RocketMQ's: two groups of Java brokers live through the
//! same events, one on each, and what every command printed is compared. What differs on purpose stands
//! in one table.

use std::time::{Duration, Instant};

use crate::processes::{BROKER, CLUSTER, mqadmin, version};
use crate::whole::{Group, Kind};

const PATIENCE: Duration = Duration::from_secs(60);

/// A command that is answered otherwise on purpose; the same table stands in docs/compatibility.md.
/// Both sides must say what is written here: a difference that has gone is an error too.
struct Difference {
    step: &'static str,
    /// The releases it is seen with begin so.
    releases: &'static str,
    java: &'static str,
    ours: &'static str,
}

const DIFFERENCES: [Difference; 2] = [
    // fastjson2 writes {1:"address"}, which the reader of the same mqadmin refuses. The election has happened.
    Difference {
        step: "electMaster: the other one",
        releases: "5.5",
        java: "not support unquoted name",
        ours: "#BrokerMasterAddr\t<broker 2>",
    },
    // No path, address or member changes by a request here.
    Difference {
        step: "updateControllerConfig: a path",
        releases: "5",
        java: "update controller config success!",
        ours: "refused with 16",
    },
];

/// Settings that have another default here (how often is scanned), or name a folder of this machine.
const OTHER_SETTINGS: [&str; 3] = [
    "scanInactiveMasterInterval",
    "scanNotActiveBrokerInterval",
    "controllerStorePath",
];

/// What one command printed in one step.
struct Said {
    step: String,
    text: String,
}

struct Scene {
    group: Group,
    said: Vec<Said>,
}

impl Scene {
    /// Runs these commands in one go and keeps what they say.
    fn ask(&mut self, steps: &[(&str, String)]) {
        let commands: Vec<Vec<String>> = steps.iter().map(|(_, line)| self.words(line)).collect();
        for ((step, _), text) in steps.iter().zip(mqadmin(&commands)) {
            self.said.push(Said {
                step: (*step).to_owned(),
                text: self.normal(&text),
            });
        }
    }

    /// What is not said in a step of its own.
    fn look(&self, line: &str) -> String {
        let said = mqadmin(&[self.words(line)]);
        self.normal(&said[0])
    }

    /// The words of a command; CTL stands for the controller, B1 and B2 for the brokers. Each is told the name
    /// server, else it looks for one outside of this machine.
    fn words(&self, line: &str) -> Vec<String> {
        let line = line
            .replace("CTL", &self.group.controller_addr)
            .replace("B1", &self.group.address(0))
            .replace("B2", &self.group.address(1));
        let words = line.split(' ').chain(["-n", &self.group.namesrv_addr]);
        words.map(str::to_owned).collect()
    }

    /// Without what no two groups have in common: ports, folders, times, and how an error is worded. Replicas and
    /// brokers come in any order.
    fn normal(&self, text: &str) -> String {
        let mut text = text.to_owned();
        for (at, name) in [(0, "broker 1"), (1, "broker 2")] {
            let named = format!("<{name}>");
            let ha = format!("<HA of {name}>");
            text = text
                .replace(&self.group.address(at), &named)
                .replace(&self.group.ha_address(at), &ha);
        }
        let text = text.replace(&self.group.controller_addr, "<controller>");
        if let Some(error) = error_of(&text) {
            return error;
        }
        let mut lines: Vec<String> = text
            .lines()
            .map(str::trim_end)
            .filter(|line| !line.is_empty() && !is_of_the_moment(line))
            .map(without_port)
            .collect();
        if let Some(first) = lines
            .iter()
            .position(|line| line.contains("InSyncReplica:"))
        {
            lines[first..].sort();
        }
        let text = lines.join("\n");
        let mut brokers: Vec<_> = text.split("#clusterName").collect();
        brokers.sort_by_key(|text| text.split("#brokerAddr").nth(1));
        brokers
            .iter()
            .map(|text| text.trim_end())
            .collect::<Vec<_>>()
            .join("\n#clusterName")
    }
}

/// The code of a refusal, or the line of an exception.
fn error_of(text: &str) -> Option<String> {
    if !text.contains("SubCommandException") {
        return None;
    }
    let code = text.split("CODE: ").nth(1);
    let code = code.and_then(|rest| rest.split_whitespace().next());
    Some(match code {
        Some(code) => format!("refused with {code}"),
        None => text.to_owned(),
    })
}

fn is_of_the_moment(line: &str) -> bool {
    let moments = ["#TransferSpeed", "#LastReadTime", "#LastWriteTime"];
    // What RocketMQ logs about itself goes the same way as what it prints.
    let logged = ["WARN ", "ERROR "];
    let mut all = moments.iter().chain(&logged);
    all.any(|begin| line.starts_with(begin))
}

/// A line about a slave begins with the port of its connection; speed and name of the state change.
fn without_port(line: &str) -> String {
    let words: Vec<_> = line.split_whitespace().collect();
    match words
        .first()
        .and_then(|word| word.strip_prefix("127.0.0.1:"))
    {
        Some(port) if words.len() >= 6 && port.parse::<u16>().is_ok() => {
            format!("<slave> ack {} behind {}", words[1], words[2])
        }
        _ => line.to_owned(),
    }
}

/// The life of one group.
async fn live(controller: Kind) -> Vec<Said> {
    let mut group = Group::start(controller);
    group.add(Kind::Java);
    group
        .wait_until("a first master", |view| view.master == 1)
        .await;
    group.add(Kind::Java);
    let both = group
        .wait_until("both in the set", |view| view.members == [1, 2])
        .await;
    group.produce(&both, "first", 20).await;
    let mut scene = Scene {
        group,
        said: Vec::new(),
    };
    scene.both_live().await;
    scene.the_other_leads().await;
    scene.one_is_gone().await;
    scene.settings();
    scene.said
}

impl Scene {
    async fn both_live(&mut self) {
        self.level("B1").await;
        let set = format!("getSyncStateSet -a CTL -b {BROKER}");
        self.ask(&[
            ("getSyncStateSet", set),
            (
                "getSyncStateSet: by cluster",
                format!("getSyncStateSet -a CTL -c {CLUSTER}"),
            ),
            (
                "getSyncStateSet: unknown set",
                "getSyncStateSet -a CTL -b nobody".into(),
            ),
            (
                "getControllerMetaData",
                "getControllerMetaData -a CTL".into(),
            ),
            ("haStatus: master", "haStatus -b B1".into()),
            ("haStatus: slave", "haStatus -b B2".into()),
            ("getBrokerEpoch", format!("getBrokerEpoch -b {BROKER}")),
            (
                "electMaster: the one that leads",
                format!("electMaster -a CTL -b 1 -bn {BROKER} -c {CLUSTER}"),
            ),
            (
                "electMaster: unknown id",
                format!("electMaster -a CTL -b 9 -bn {BROKER} -c {CLUSTER}"),
            ),
            (
                "electMaster: unknown set",
                format!("electMaster -a CTL -b 1 -bn nobody -c {CLUSTER}"),
            ),
            (
                "cleanBrokerMetadata: a live one",
                format!("cleanBrokerMetadata -a CTL -b 2 -bn {BROKER} -c {CLUSTER}"),
            ),
            (
                "cleanBrokerMetadata: unknown set",
                format!("cleanBrokerMetadata -a CTL -b 2 -bn nobody -c {CLUSTER}"),
            ),
            (
                "cleanBrokerMetadata: a set with a master",
                format!("cleanBrokerMetadata -a CTL -bn {BROKER} -c {CLUSTER}"),
            ),
            (
                "cleanBrokerMetadata: no list of ids",
                format!("cleanBrokerMetadata -a CTL -b one -bn {BROKER} -c {CLUSTER}"),
            ),
            (
                "getSyncStateSet: nothing has changed",
                format!("getSyncStateSet -a CTL -b {BROKER}"),
            ),
        ]);
    }

    async fn the_other_leads(&mut self) {
        self.ask(&[(
            "electMaster: the other one",
            format!("electMaster -a CTL -b 2 -bn {BROKER} -c {CLUSTER}"),
        )]);
        let view = self
            .group
            .wait_until("the other leads both", |view| {
                view.master == 2 && view.members == [1, 2]
            })
            .await;
        self.group.produce(&view, "second", 20).await;
        self.level("B2").await;
        self.ask(&[
            (
                "getSyncStateSet: after the election",
                format!("getSyncStateSet -a CTL -b {BROKER}"),
            ),
            (
                "getBrokerEpoch: after the election",
                format!("getBrokerEpoch -b {BROKER}"),
            ),
            ("haStatus: new master", "haStatus -b B2".into()),
        ]);
    }

    async fn one_is_gone(&mut self) {
        self.group.kill(0);
        self.group
            .wait_until("a set of one", |view| view.members == [2])
            .await;
        let gone = Instant::now() + PATIENCE;
        let set = format!("getSyncStateSet -a CTL -b {BROKER}");
        while !self
            .look(&set)
            .contains("brokerId=1, brokerAddress='<broker 1>', isAlive=false")
            && !self.look(&set).contains("alive=false")
        {
            assert!(Instant::now() < gone, "{}", self.look(&set));
        }
        self.ask(&[
            ("getSyncStateSet: one is gone", set.clone()),
            (
                "electMaster: one that is gone",
                format!("electMaster -a CTL -b 1 -bn {BROKER} -c {CLUSTER}"),
            ),
            (
                "cleanBrokerMetadata",
                format!("cleanBrokerMetadata -a CTL -b 1 -bn {BROKER} -c {CLUSTER}"),
            ),
            ("getSyncStateSet: one is cleaned", set.clone()),
            (
                "cleanBrokerMetadata: again",
                format!("cleanBrokerMetadata -a CTL -b 1 -bn {BROKER} -c {CLUSTER}"),
            ),
            (
                "cleanBrokerMetadata: all, alive or not",
                format!("cleanBrokerMetadata -a CTL -bn {BROKER} -l"),
            ),
        ]);
    }

    fn settings(&mut self) {
        self.ask(&[
            ("getControllerConfig", "getControllerConfig -a CTL".into()),
            (
                "updateControllerConfig",
                "updateControllerConfig -a CTL -k enableElectUncleanMaster -v true".into(),
            ),
            (
                "updateControllerConfig: one that may not be changed",
                "updateControllerConfig -a CTL -k configStorePath -v /x".into(),
            ),
            (
                "updateControllerConfig: a path",
                "updateControllerConfig -a CTL -k controllerStorePath -v /x".into(),
            ),
            (
                "getControllerConfig: changed",
                "getControllerConfig -a CTL".into(),
            ),
        ]);
    }

    /// Waits until the slave has all and has said so.
    async fn level(&self, master: &str) {
        let give_up = Instant::now() + PATIENCE;
        loop {
            let said = self.look(&format!("haStatus -b {master}"));
            if said
                .lines()
                .any(|line| line.starts_with("<slave>") && line.ends_with("behind 0"))
            {
                return;
            }
            assert!(Instant::now() < give_up, "{said}\n{}", self.group.logs());
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    }
}

fn settings_of(text: &str) -> Vec<(String, String)> {
    let lines = text.lines().filter_map(|line| line.split_once('='));
    let pairs = lines.map(|(key, value)| (key.trim().to_owned(), value.trim().to_owned()));
    pairs.filter(|(key, _)| !key.is_empty()).collect()
}

/// Whatever setting our controller tells, RocketMQ's tells too, with the same value.
fn compare_settings(step: &str, java: &str, ours: &str, wrong: &mut Vec<String>) {
    let java = settings_of(java);
    for (key, value) in settings_of(ours) {
        let theirs = java.iter().find(|(name, _)| *name == key);
        let theirs = theirs.map(|(_, value)| value.as_str());
        if theirs != Some(&value) && !OTHER_SETTINGS.contains(&key.as_str()) {
            wrong.push(format!("{step}: {key} is {value} here, {theirs:?} there"));
        }
    }
}

fn difference(step: &str) -> Option<&'static Difference> {
    let release = version();
    let known = |it: &&Difference| it.step == step && release.starts_with(it.releases);
    DIFFERENCES.iter().find(known)
}

fn compare(java: &[Said], ours: &[Said]) -> Vec<String> {
    let mut wrong = Vec::new();
    assert_eq!(java.len(), ours.len());
    for (java, ours) in java.iter().zip(ours) {
        let step = &java.step;
        if step.starts_with("getControllerConfig") {
            compare_settings(step, &java.text, &ours.text, &mut wrong);
        } else if let Some(known) = difference(step) {
            if !java.text.contains(known.java) || !ours.text.contains(known.ours) {
                wrong.push(format!(
                    "{step}: not as the table says\n--- Java\n{}\n--- ours\n{}",
                    java.text, ours.text
                ));
            }
        } else if java.text != ours.text {
            wrong.push(format!(
                "{step}\n--- Java\n{}\n--- ours\n{}",
                java.text, ours.text
            ));
        }
    }
    wrong
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a JVM; .ci/interop runs it"]
async fn mqadmin_says_the_same_of_our_controller_and_of_rocketmqs() {
    let java = live(Kind::Java).await;
    let ours = live(Kind::Ours).await;
    if std::env::var("EPOCHLOG_SHOW").is_ok() {
        for (java, ours) in java.iter().zip(&ours) {
            println!(
                "=== {}\n--- Java\n{}\n--- ours\n{}",
                java.step, java.text, ours.text
            );
        }
    }
    let wrong = compare(&java, &ours);
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
}
