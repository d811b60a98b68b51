//! `epochlog controller transfer`: makes another controller the leader.

use std::process::ExitCode;
use std::time::Instant;

use super::members::{leader_status, member_of};
use super::{GroupArgs, REQUEST_LIMIT};

/// Hand the leadership among the controllers to another member
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    group: GroupArgs,
    /// The member that is to lead: its name, or its number
    #[arg(long, value_name = "ID")]
    to: String,
}

pub(super) async fn run(args: &Args) -> Result<ExitCode, Box<dyn std::error::Error>> {
    let client = args.group.client(REQUEST_LIMIT)?;
    let before = leader_status(&client).await?;
    let to = member_of(&before, &args.to)?;
    let begin = Instant::now();
    client.transfer_leader(to.id).await?;
    println!(
        "{} leads group {}, after {} ms",
        to.name,
        before.group,
        begin.elapsed().as_millis()
    );
    let preferred = &before.preferred_leaders;
    if !preferred.is_empty() && !preferred.contains(&to.name) {
        println!(
            "it is not one of preferredLeaderIds ({}): it hands over to one of these again",
            preferred.join(";")
        );
    }
    Ok(ExitCode::SUCCESS)
}
