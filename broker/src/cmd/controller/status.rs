//! `epochlog controller status`: how a group of controllers stands, and what it decided.

use std::process::ExitCode;
use std::time::Duration;

use comfy_table::{Table, presets};
use epochlog_raft_glue::admin::{ControllerStatus, MemberLag, SetStatus};
use epochlog_raft_glue::client::ControllerClient;
use serde::Serialize;
use tokio::task::JoinSet;

use super::GroupArgs;

const ASK_LIMIT: Duration = Duration::from_secs(2);

/// Show how the controllers stand, and every broker set they know
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    group: GroupArgs,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// What came back from everybody asked: those named, and those they named.
#[derive(Serialize)]
struct Shown {
    /// The one that leads, in the newest term; it knows what is decided and who is alive.
    leader: Option<ControllerStatus>,
    controllers: Vec<Asked>,
}

#[derive(Clone, Serialize)]
struct Asked {
    address: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    status: Option<ControllerStatus>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

/// Exit code 1 when nobody leads.
pub(super) async fn run(args: &Args) -> Result<ExitCode, Box<dyn std::error::Error>> {
    let client = args.group.client(ASK_LIMIT)?;
    let shown = look(&client).await;
    if args.json {
        println!("{}", serde_json::to_string(&shown)?);
    } else {
        print!("{}", text(&shown));
    }
    Ok(match shown.leader {
        Some(_) => ExitCode::SUCCESS,
        None => ExitCode::FAILURE,
    })
}

async fn look(client: &ControllerClient) -> Shown {
    client.refresh_addresses().await;
    let mut controllers = ask(client, client.addresses()).await;
    let mut further: Vec<String> = Vec::new();
    for status in controllers.iter().filter_map(|it| it.status.as_ref()) {
        let members = status.members.iter().map(|member| &member.address);
        further.extend(members.chain(&status.leader_address).cloned());
    }
    further.sort();
    further.dedup();
    further.retain(|address| !controllers.iter().any(|it| it.address == *address));
    for asked in ask(client, further).await {
        // The same one may have two addresses.
        let id = asked.status.as_ref().map(|status| status.id);
        let ids = controllers
            .iter()
            .map(|it| it.status.as_ref().map(|s| s.id));
        if id.is_none() || !ids.into_iter().any(|known| known == id) {
            controllers.push(asked);
        }
    }
    let ready = controllers.iter().filter_map(|it| it.status.as_ref());
    let leader = ready.filter(|it| it.is_ready).max_by_key(|it| it.term);
    Shown {
        leader: leader.cloned(),
        controllers,
    }
}

async fn ask(client: &ControllerClient, addresses: Vec<String>) -> Vec<Asked> {
    let mut asked = JoinSet::new();
    for (at, address) in addresses.into_iter().enumerate() {
        let client = client.clone();
        asked.spawn(async move {
            let answer = client.status(&address).await;
            let error = answer.as_ref().err().map(ToString::to_string);
            let status = answer.ok();
            let asked = Asked {
                address,
                status,
                error,
            };
            (at, asked)
        });
    }
    let mut all = asked.join_all().await;
    all.sort_by_key(|(at, _)| *at);
    all.into_iter().map(|(_, asked)| asked).collect()
}

fn table<const N: usize>(header: [&str; N]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::UTF8_FULL_CONDENSED);
    table.set_header(header);
    table
}

fn text(shown: &Shown) -> String {
    let mut out = String::new();
    match &shown.leader {
        Some(leader) => {
            out += &format!(
                "{} leads the controllers of group {} in term {}; entries {} to {}, committed to {}{}\n",
                leader.name,
                leader.group,
                leader.term,
                leader.first,
                leader.last,
                leader.committed,
                match leader.is_joint {
                    true => "; a change of members is under way",
                    false => "",
                }
            );
            out += &format!("{}\n", members(leader, &shown.controllers));
        }
        None => out += "nobody leads: is a majority of the controllers running?\n",
    }
    out += &format!("{}\n", own_words(&shown.controllers));
    // Without a leader: what the others remember, each behind by an unknown time.
    let newest = shown.leader.as_ref().or_else(|| {
        let all = shown.controllers.iter().filter_map(|it| it.status.as_ref());
        all.max_by_key(|it| (it.applied, it.term))
    });
    for set in newest.map(|it| it.sets.as_slice()).unwrap_or_default() {
        out += &broker_set(set);
    }
    if let Some(count) = newest.map(|it| it.sets_left_out).filter(|count| *count > 0) {
        out += &format!("{count} more broker sets are not shown\n");
    }
    out
}

/// The members as the leader knows them.
fn members(leader: &ControllerStatus, asked: &[Asked]) -> Table {
    let mut table = table([
        "member", "id", "address", "vote", "matched", "behind", "seen",
    ]);
    for member in &leader.members {
        let lag = member.progress.unwrap_or_default();
        let MemberLag {
            matched, behind, ..
        } = lag;
        let answers = asked
            .iter()
            .any(|it| it.status.as_ref().is_some_and(|it| it.id == member.id));
        let seen = match (lag.is_active, lag.needs_snapshot) {
            (_, true) => "takes a snapshot",
            (true, _) => "by the leader",
            // The leader counts anew in each election timeout.
            (false, _) if answers => "from here only",
            (false, _) => "no",
        };
        table.add_row([
            member.name.clone(),
            member.id.to_string(),
            member.address.clone(),
            if member.is_voter { "yes" } else { "learner" }.to_owned(),
            matched.to_string(),
            behind.to_string(),
            seen.to_owned(),
        ]);
    }
    table
}

/// What each controller says of itself.
fn own_words(asked: &[Asked]) -> Table {
    let mut table = table(["asked", "says", "term", "applied", "last"]);
    for it in asked {
        let row = match &it.status {
            Some(status) => [
                format!("{} {}", status.name, it.address),
                status.role.to_string(),
                status.term.to_string(),
                status.applied.to_string(),
                status.last.to_string(),
            ],
            None => [
                it.address.clone(),
                it.error.clone().unwrap_or_default(),
                String::new(),
                String::new(),
                String::new(),
            ],
        };
        table.add_row(row);
    }
    table
}

fn broker_set(set: &SetStatus) -> String {
    let ids: Vec<String> = set.sync_state_set.iter().map(u64::to_string).collect();
    let master = match set.master {
        Some(id) if set.is_confirmed => format!("master {id}"),
        Some(id) => format!("master {id}, which does not serve yet,"),
        None => "no master".to_owned(),
    };
    let lease = match set.lease_ms {
        Some(0) => "; no lease is out".to_owned(),
        Some(ms) => format!("; a lease may run for {ms} ms more"),
        None => String::new(),
    };
    let mut text = format!(
        "set {} of {}: {master} in epoch {}; in sync {} (epoch {}){lease}\n",
        set.broker,
        set.cluster,
        set.master_epoch,
        ids.join(","),
        set.sync_state_set_epoch
    );
    let mut table = table([
        "broker",
        "address",
        "alive",
        "heard ms ago",
        "epoch",
        "end",
        "confirmed",
    ]);
    let or_dash = |value: Option<String>| value.unwrap_or_else(|| "-".to_owned());
    for it in &set.brokers {
        table.add_row([
            it.id.to_string(),
            it.address.clone(),
            if it.is_alive { "yes" } else { "no" }.to_owned(),
            or_dash(it.heartbeat_age_ms.map(|ms| ms.to_string())),
            or_dash(it.epoch.map(|epoch| epoch.to_string())),
            or_dash(it.max_offset.map(|end| end.to_string())),
            or_dash(it.confirm_offset.map(|end| end.to_string())),
        ]);
    }
    text += &format!("{table}\n");
    text
}
