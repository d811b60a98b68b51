//! `epochlog controller members`: adds, removes and replaces controllers of a running group.
//!
//! Every command may be given again when it was interrupted: what is done already is passed over.

use std::error::Error;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use epochlog_raft_glue::admin::{BEHIND_LIMIT, ControllerStatus, MemberRequest, MemberStatus};
use epochlog_raft_glue::client::{ControllerClient, ControllerError};

use super::{GroupArgs, REQUEST_LIMIT};

const LOOK_AGAIN: Duration = Duration::from_millis(100);

/// Change who is a member of a running group of controllers
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Add a controller that runs with controllerJoin=true; it gets a vote when it has caught up
    Add {
        #[command(flatten)]
        group: GroupArgs,
        #[command(flatten)]
        new: NewArgs,
        /// Leave it without a vote
        #[arg(long)]
        learner: bool,
    },
    /// Give a vote to a member that has none, once it has caught up
    Promote {
        #[command(flatten)]
        group: GroupArgs,
        #[command(flatten)]
        member: MemberArgs,
        #[command(flatten)]
        wait: WaitArgs,
    },
    /// Remove a member
    Remove {
        #[command(flatten)]
        group: GroupArgs,
        #[command(flatten)]
        member: MemberArgs,
    },
    /// Put a new controller, which runs with controllerJoin=true, in the place of another
    Replace {
        #[command(flatten)]
        group: GroupArgs,
        /// The member that goes, dead or alive: its name, or its number
        #[arg(long, value_name = "ID")]
        old: String,
        #[command(flatten)]
        new: NewArgs,
    },
}

#[derive(Debug, clap::Args)]
struct MemberArgs {
    /// The member: its name (controllerDLegerSelfId), or its number
    #[arg(long, value_name = "ID")]
    id: String,
}

#[derive(Debug, clap::Args)]
struct NewArgs {
    /// Name of the new controller (its controllerDLegerSelfId), one that was never used
    #[arg(long, value_name = "ID")]
    id: String,
    /// Where the other controllers and the brokers reach it
    #[arg(long, value_name = "HOST:PORT")]
    peer: String,
    #[command(flatten)]
    wait: WaitArgs,
}

#[derive(Debug, clap::Args)]
struct WaitArgs {
    /// How long it may take to catch up, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 60)]
    wait: u64,
}

type Done = Result<(), Box<dyn Error>>;

pub(super) async fn run(args: &Args) -> Result<ExitCode, Box<dyn Error>> {
    let group = match &args.command {
        Command::Add { group, .. }
        | Command::Promote { group, .. }
        | Command::Remove { group, .. }
        | Command::Replace { group, .. } => group,
    };
    let client = group.client(REQUEST_LIMIT)?;
    match &args.command {
        Command::Add { new, learner, .. } => add(&client, new, *learner).await,
        Command::Promote { member, wait, .. } => promote(&client, &member.id, wait).await,
        Command::Remove { member, .. } => remove(&client, &member.id).await,
        Command::Replace { old, new, .. } => replace(&client, old, new).await,
    }?;
    tell(&leader_status(&client).await?);
    Ok(ExitCode::SUCCESS)
}

async fn add(client: &ControllerClient, new: &NewArgs, learner: bool) -> Done {
    let status = leader_status(client).await?;
    let is_voter = status
        .members
        .iter()
        .any(|it| it.name == new.id && it.is_voter);
    if is_voter {
        return Err(format!("{} is a member with a vote already", new.id).into());
    }
    begin(client, new).await?;
    if learner {
        return Ok(());
    }
    promote(client, &new.id, &new.wait)
        .await
        .map_err(|error| unfinished(new, &error))
}

async fn promote(client: &ControllerClient, id: &str, wait: &WaitArgs) -> Done {
    let id = caught_up(client, id, wait).await?;
    change(client, vec![MemberRequest::Promote { id }]).await
}

async fn remove(client: &ControllerClient, id: &str) -> Done {
    let status = leader_status(client).await?;
    let id = member_of(&status, id)?.id;
    change(client, vec![MemberRequest::Remove { id }]).await
}

/// The new one comes first as a learner, so that nothing waits for it while it is empty; then it
/// gets its vote and the old one goes in one step.
async fn replace(client: &ControllerClient, old: &str, new: &NewArgs) -> Done {
    let status = leader_status(client).await?;
    let old = match member_of(&status, old) {
        Ok(old) => old,
        Err(_)
            if status
                .members
                .iter()
                .any(|it| it.name == new.id && it.is_voter) =>
        {
            println!("{old} is no member any more, and {} is one", new.id);
            return Ok(());
        }
        Err(error) => return Err(error),
    };
    if old.name == new.id {
        return Err(format!(
            "{} cannot replace itself: a controller that lost its store comes back under a name \
             that was never used",
            new.id
        )
        .into());
    }
    if status.leader == Some(old.id) {
        return Err(format!(
            "{} leads: hand the leadership over first (epochlog controller transfer)",
            old.name
        )
        .into());
    }
    begin(client, new).await?;
    let rest = async {
        let id = caught_up(client, &new.id, &new.wait).await?;
        let steps = vec![
            MemberRequest::Promote { id },
            MemberRequest::Remove { id: old.id },
        ];
        change(client, steps).await
    };
    rest.await.map_err(|error| unfinished(new, &error))
}

/// Makes the new one a learner.
async fn begin(client: &ControllerClient, new: &NewArgs) -> Done {
    if new.id.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(format!(
            "--id {}: a new controller is called as in its controllerDLegerSelfId, such as n3",
            new.id
        )
        .into());
    }
    let step = MemberRequest::AddLearner {
        name: new.id.clone(),
        address: new.peer.clone(),
    };
    change(client, vec![step]).await?;
    println!("{} is a member without a vote", new.id);
    Ok(())
}

fn unfinished(new: &NewArgs, error: &dyn std::fmt::Display) -> Box<dyn Error> {
    format!(
        "{error}\n{} stays a member without a vote; the same command goes on from there",
        new.id
    )
    .into()
}

/// Waits until a member may get a vote; gives its id.
async fn caught_up(
    client: &ControllerClient,
    name: &str,
    wait: &WaitArgs,
) -> Result<u64, Box<dyn Error>> {
    let end = Instant::now() + Duration::from_secs(wait.wait);
    loop {
        let status = leader_status(client).await?;
        let member = member_of(&status, name)?;
        let lag = member.progress.unwrap_or_default();
        let is_close = lag.is_active && lag.matched > 0 && lag.behind < BEHIND_LIMIT;
        if is_close || member.is_voter {
            return Ok(member.id);
        }
        if Instant::now() >= end {
            return Err(format!(
                "{} did not catch up within {} s: {} entries behind, {}",
                member.name,
                wait.wait,
                lag.behind,
                match lag.is_active {
                    true => "heard of",
                    false => "not heard of by the leader",
                }
            )
            .into());
        }
        tokio::time::sleep(LOOK_AGAIN).await;
    }
}

async fn change(client: &ControllerClient, steps: Vec<MemberRequest>) -> Done {
    client
        .change_members(steps)
        .await
        .map_err(|error| match error {
            ControllerError::Refused { remark, .. } => remark.into(),
            error => error.into(),
        })
}

/// What the leader says of the group.
pub(super) async fn leader_status(
    client: &ControllerClient,
) -> Result<ControllerStatus, Box<dyn Error>> {
    let leader = client.find_leader().await?;
    Ok(client.status(&leader).await?)
}

/// The member with this name, or else with this number.
pub(super) fn member_of(
    status: &ControllerStatus,
    text: &str,
) -> Result<MemberStatus, Box<dyn Error>> {
    let by_name = status.members.iter().find(|it| it.name == text);
    let by_id = || status.members.iter().find(|it| it.id.to_string() == text);
    by_name.or_else(by_id).cloned().ok_or_else(|| {
        let all: Vec<String> = status
            .members
            .iter()
            .map(|it| format!("{} (number {})", it.name, it.id))
            .collect();
        format!("{text} is no member: there are {}", all.join(", ")).into()
    })
}

fn tell(status: &ControllerStatus) {
    let text = |with_vote: bool| {
        let chosen = status.members.iter().filter(|it| it.is_voter == with_vote);
        let entries: Vec<String> = chosen
            .map(|it| format!("{}-{}", it.name, it.address))
            .collect();
        entries.join(";")
    };
    println!("members with a vote: {}", text(true));
    if status.members.iter().any(|it| !it.is_voter) {
        println!("members without a vote: {}", text(false));
    }
    let addresses: Vec<&str> = status
        .members
        .iter()
        .map(|it| it.address.as_str())
        .collect();
    println!("for controllerAddr of the brokers: {}", addresses.join(";"));
}
