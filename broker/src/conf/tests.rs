//! Tables over configuration texts.

use std::path::Path;
use std::time::Duration;

use epochlog_engine::RetentionPolicy;
use epochlog_raft_glue::client::Addresses;

use super::*;

fn pairs(text: &str) -> Vec<(usize, String, String)> {
    let properties = parse_properties(text).expect("reads");
    properties
        .into_iter()
        .map(|p| (p.line, p.key, p.value))
        .collect()
}

#[test]
fn properties_read_as_java_reads_them() {
    // Line, key and value as java.util.Properties gives them.
    type Wanted<'a> = &'a [(usize, &'a str, &'a str)];
    let table: &[(&str, Wanted<'_>)] = &[
        ("a=b", &[(1, "a", "b")]),
        ("  a : b \r\n", &[(1, "a", "b ")]),
        ("a b c", &[(1, "a", "b c")]),
        ("a\t=\tb", &[(1, "a", "b")]),
        ("a==b", &[(1, "a", "=b")]),
        ("a", &[(1, "a", "")]),
        ("# no\n ! no\n\n\na=1", &[(5, "a", "1")]),
        (
            "a = 1,\\\n    2,\\\n  3\nb=4",
            &[(1, "a", "1,2,3"), (4, "b", "4")],
        ),
        ("a=1\\\\\nb=2", &[(1, "a", "1\\"), (2, "b", "2")]),
        ("a\\ b\\=c\\:d = e", &[(1, "a b=c:d", "e")]),
        (
            "a=\\u0041\\t\\n\\q\\ud83d\\ude00",
            &[(1, "a", "A\t\nq\u{1F600}")],
        ),
        ("a=1\na=2", &[(1, "a", "1"), (2, "a", "2")]),
        ("path=C:\\\\store#1", &[(1, "path", "C:\\store#1")]),
        ("a=1\\", &[(1, "a", "1")]),
        ("=1", &[(1, "", "1")]),
        ("", &[]),
    ];
    for (text, want) in table {
        let want: Vec<_> = want
            .iter()
            .map(|(l, k, v)| (*l, (*k).into(), (*v).into()))
            .collect();
        assert_eq!(pairs(text), want, "{text:?}");
    }
}

#[test]
fn a_broken_escape_names_its_line() {
    for text in ["a=1\nb=\\u12", "a=1\nb=\\u+123", "a=1\nb=\\ud83d"] {
        let error = Reader::parse(Path::new("broker.conf"), text)
            .expect_err(text)
            .to_string();
        assert!(error.starts_with("broker.conf:2: \\u"), "{error}");
    }
}

const BROKER: &str = "enableControllerMode=true\ncontrollerAddr=127.0.0.1:9878\n";

fn broker(more: &str) -> Result<BrokerConf, ConfError> {
    BrokerConf::read(Reader::parse(
        Path::new("broker.conf"),
        &format!("{BROKER}{more}"),
    )?)
}

fn controller(text: &str) -> Result<ControllerConf, ConfError> {
    ControllerConf::read(Reader::parse(Path::new("controller.conf"), text)?)
}

#[test]
fn a_broker_has_java_defaults() {
    let conf = broker("brokerName=b\nstorePathRootDir=/data/s\n").expect("reads");
    assert_eq!(conf.cluster_name, "DefaultCluster");
    assert_eq!((conf.listen.port(), conf.ha_listen.port()), (10911, 10912));
    assert_eq!(conf.segment_size, 1 << 30);
    assert_eq!(conf.queue_file_size, 6_000_000);
    assert_eq!(conf.retention.policy, RetentionPolicy::default());
    assert_eq!(conf.retention.delete_when, [4]);
    assert_eq!(conf.identity_path, Path::new("/data/s/brokerIdentity"));
    assert_eq!(conf.slave_timeout, Duration::from_secs(3));
    assert_eq!(conf.flush_disk_type, FlushDiskType::Async);
    assert_eq!((conf.in_sync_replicas, conf.min_in_sync_replicas), (1, 1));
    assert_eq!((conf.broker_ip, conf.name_servers), (None, None));
    assert!(conf.warnings.is_empty(), "{:?}", conf.warnings);
}

#[test]
fn every_key_of_a_broker_takes_effect() {
    let conf = broker(
        "brokerClusterName=C\nbrokerName=B\nbrokerIP1=10.0.0.1\nbrokerIP2=10.0.0.2\n\
         bindAddress=127.0.0.1\nlistenPort=11\nhaListenPort=15\nstorePathRootDir=/s\n\
         storePathBrokerIdentity=/i\nmappedFileSizeCommitLog=8192\nmappedFileSizeConsumeQueue=199\n\
         flushDiskType=SYNC_FLUSH\n\
         enabledAppendPropCRC=TRUE\nmaxMessageSize=100\nallAckInSyncStateSet=true\n\
         inSyncReplicas=3\nminInSyncReplicas=2\nasyncLearner=true\nhaTransferBatchSize=4096\n\
         haAllowedPeers=10.0.0.3, ::1\nhaAllowedBrokerIds=2,3\nhaAutoResync=true\n\
         haSendHeartbeatInterval=11\nhaHousekeepingInterval=12\nhaMaxTimeSlaveNotCatchup=13\n\
         slaveTimeout=14\nsyncFlushTimeout=15\nbrokerHeartbeatInterval=16\n\
         controllerHeartBeatTimeoutMills=170\nleaseMills=65\nleaseAckMills=12\nsyncBrokerMetadataPeriod=18\n\
         checkSyncStateSetPeriod=19\nbrokerElectionPriority=1\nautoCreateTopicEnable=false\n\
         defaultTopicQueueNums=4\nregionId=R\ntraceOn=false\nstartAcceptSendRequestTimeStamp=9\n\
         fetchControllerAddrByDnsLookup=true\nbrokerRole=SLAVE\n\
         namesrvAddr=10.0.0.4:9876;names:9876\nfetchNameSrvAddrByDnsLookup=true\n",
    )
    .expect("reads");
    assert!(conf.warnings.is_empty(), "{:?}", conf.warnings);
    let ms = Duration::from_millis;
    let want = BrokerConf {
        cluster_name: "C".into(),
        broker_name: "B".into(),
        broker_ip: "10.0.0.1".parse().ok(),
        ha_ip: "10.0.0.2".parse().ok(),
        listen: "127.0.0.1:11".parse().expect("address"),
        ha_listen: "127.0.0.1:15".parse().expect("address"),
        store_dir: "/s".into(),
        identity_path: "/i".into(),
        segment_size: 8192,
        queue_file_size: 200,
        retention: conf.retention.clone(),
        flush_disk_type: FlushDiskType::Sync,
        append_property_crc: true,
        max_message_len: 100,
        controller_mode: true,
        controller_addr: "127.0.0.1:9878".into(),
        name_servers: Addresses::parse("10.0.0.4:9876;names:9876").ok(),
        all_ack_in_sync_state_set: true,
        in_sync_replicas: 3,
        min_in_sync_replicas: 2,
        async_learner: true,
        ha_allowed_peers: vec![
            "10.0.0.3".parse().expect("address"),
            "::1".parse().expect("address"),
        ],
        ha_allowed_broker_ids: vec![2, 3],
        ha_auto_resync: true,
        ha_transfer_batch_len: 4096,
        ha_heartbeat_interval: ms(11),
        ha_housekeeping_interval: ms(12),
        ha_max_time_slave_not_catchup: ms(13),
        slave_timeout: ms(14),
        sync_flush_timeout: ms(15),
        heartbeat_interval: ms(16),
        lease: ms(65),
        lease_ack: ms(12),
        heartbeat_timeout: ms(170),
        metadata_period: ms(18),
        sync_state_set_period: ms(19),
        election_priority: 1,
        auto_create_topic: false,
        default_topic_queue_nums: 4,
        region_id: "R".into(),
        trace_on: false,
        accept_send_from_ms: 9,
        warnings: Vec::new(),
        effective: conf.effective.clone(),
    };
    assert_eq!(conf, want);
    assert!(conf.effective.contains(&("slaveTimeout", "14".into())));
}

#[test]
fn every_key_of_retention_takes_effect() {
    let conf = broker(
        "fileReservedTime=48\ndeleteWhen=04;16\ndiskMaxUsedSpaceRatio=5\n\
         diskSpaceCleanForciblyRatio=80\ndiskSpaceWarningLevelRatio=99\ndeleteFileBatchMax=3\n\
         cleanFileForciblyEnable=true\ncleanResourceInterval=20\ncommitLogMaxSize=1000\n\
         truncatedReservedTime=1\ntruncatedMaxSize=7\n",
    )
    .expect("reads");
    assert!(conf.warnings.is_empty(), "{:?}", conf.warnings);
    let want = RetentionConf {
        policy: RetentionPolicy {
            reserved_ms: Some(48 * 3_600_000),
            max_log_bytes: Some(1000),
            disk_max_used_percent: 10,
            disk_clean_forcibly_percent: 80,
            disk_warning_percent: 90,
            batch_max: 3,
            saved_reserved_ms: Some(3_600_000),
            saved_max_bytes: Some(7),
        },
        delete_when: vec![4, 16],
        clean_resource_interval: Duration::from_millis(20),
    };
    assert_eq!(conf.retention, want);
    let conf = broker("cleanFileForciblyEnable=false\n").expect("reads");
    let percent = conf.retention.policy.disk_clean_forcibly_percent;
    assert_eq!(percent, 100, "never");
}

#[test]
fn a_bad_value_names_file_line_key_value_and_what_is_allowed() {
    let table = [
        ("listenPort=0", "listenPort", "1 to 65535"),
        ("listenPort=x1", "listenPort", "1 to 65535"),
        (
            "mappedFileSizeCommitLog=12",
            "mappedFileSizeCommitLog",
            "from 4096",
        ),
        ("flushDiskType=async", "flushDiskType", "ASYNC_FLUSH"),
        (
            "allAckInSyncStateSet=yes",
            "allAckInSyncStateSet",
            "true or false",
        ),
        ("brokerName=a#b", "brokerName", "'#'"),
        ("brokerIP1=0.0.0.0", "brokerIP1", "IP address"),
        ("deleteWhen=4;24", "deleteWhen", "00 to 23"),
        (
            "diskMaxUsedSpaceRatio=0.75",
            "diskMaxUsedSpaceRatio",
            "0 to 100",
        ),
        ("minInSyncReplicas=0", "minInSyncReplicas", "from 1"),
        ("brokerRole=BOSS", "brokerRole", "SLAVE"),
        ("slaveTimeout=-1", "slaveTimeout", "from 10"),
        ("bindAddress=localhost", "bindAddress", "IP address"),
        ("namesrvAddr=names", "namesrvAddr", "host:port"),
    ];
    for (line, key, allowed) in table {
        let error = broker(line).expect_err(line).to_string();
        assert!(
            error.starts_with(&format!("broker.conf:3: {line} is not")),
            "{error}"
        );
        assert!(error.contains(key) && error.contains(allowed), "{error}");
    }
    for (text, key) in [
        ("minInSyncReplicas=2", "inSyncReplicas=1"),
        ("haListenPort=10911", "haListenPort=10911"),
        (
            "namesrvAddr=a:1\nlistenPort=20\nhaListenPort=18",
            "haListenPort=18",
        ),
        ("namesrvAddr=a:1\nlistenPort=2", "listenPort=2"),
        ("leaseMills=9900", "leaseMills=9900"),
        ("leaseAckMills=8800", "leaseMills=1200"),
        (
            "brokerHeartbeatInterval=10000",
            "controllerHeartBeatTimeoutMills=10000",
        ),
    ] {
        let error = broker(text).expect_err(text).to_string();
        assert!(error.contains(key), "{error}");
    }
}

#[test]
fn without_a_controller_the_refusal_says_so() {
    let reader = Reader::parse(Path::new("broker.conf"), "brokerRole=SLAVE").expect("reads");
    let error = BrokerConf::read(reader)
        .expect_err("no controller")
        .to_string();
    assert!(error.contains("enableControllerMode") && error.contains("not supported yet"));
    let reader = Reader::parse(Path::new("broker.conf"), "enableControllerMode=true");
    let error = BrokerConf::read(reader.expect("reads"))
        .expect_err("no address")
        .to_string();
    assert!(error.contains("controllerAddr is missing"), "{error}");
}

#[test]
fn unknown_and_repeated_keys_are_warned_about_once_each() {
    let conf = broker("transientStorePoolSize=5\nbrokerName=a\nbrokerName=b\n").expect("reads");
    assert_eq!(conf.broker_name, "b");
    assert_eq!(conf.warnings.len(), 2, "{:?}", conf.warnings);
    assert!(conf.warnings[0].starts_with("broker.conf:5: brokerName stands also in line 4"));
    assert!(conf.warnings[1].starts_with("broker.conf:3: transientStorePoolSize is not supported"));
}

const CONTROLLER: &str = "controllerDLegerPeers=n0-127.0.0.1:9877;n1-c1.example:9878\n";

#[test]
fn a_controller_knows_its_peers_and_itself() {
    let text = format!("{CONTROLLER}controllerDLegerSelfId=n1\nmappedFileSize=5\n");
    let conf = controller(&text).expect("reads");
    assert_eq!(conf.self_address(), "c1.example:9878");
    assert_eq!(conf.peers.len(), 2);
    assert_eq!(conf.scan_not_active_interval, Duration::from_millis(500));
    assert!(!conf.elect_unclean_master && conf.notify_role_changed);
    assert_eq!(conf.warnings.len(), 1);
}

#[test]
fn a_controller_that_is_not_among_its_peers_is_refused() {
    let table = [
        (CONTROLLER.to_owned(), "controllerDLegerSelfId is missing"),
        (
            format!("{CONTROLLER}controllerDLegerSelfId=n2"),
            "an id of controllerDLegerPeers",
        ),
        (
            "controllerDLegerSelfId=n0".to_owned(),
            "controllerDLegerPeers is missing",
        ),
        (
            "controllerDLegerPeers=n0:1.2.3.4:5".to_owned(),
            "n0-host:port",
        ),
        ("controllerDLegerPeers=n0-h:1;n0-h:2".to_owned(), "once"),
        ("controllerDLegerPeers=n0-h:1;n1-h:1".to_owned(), "once"),
        ("controllerDLegerPeers=n0-h:0".to_owned(), "n0-host:port"),
        ("controllerType=jRaft".to_owned(), "DLedger"),
    ];
    for (text, want) in table {
        let error = controller(&text).expect_err(&text).to_string();
        assert!(error.contains(want), "{error}");
    }
}

#[test]
fn a_file_that_is_not_utf8_is_read_as_latin1() {
    let dir = tempfile::tempdir().expect("temp dir");
    let path = dir.path().join("broker.conf");
    std::fs::write(&path, [BROKER.as_bytes(), b"brokerName=caf\xe9\n"].concat()).expect("writes");
    assert_eq!(
        BrokerConf::open(&path).expect("reads").broker_name,
        "caf\u{e9}"
    );
    let gone = BrokerConf::open(&dir.path().join("none"))
        .expect_err("no file")
        .to_string();
    assert!(gone.contains("none"), "{gone}");
}

#[test]
fn a_controller_that_joins_and_preferred_leaders() {
    let text = "controllerDLegerPeers=n0-h:1;n3-h:4\ncontrollerDLegerSelfId=n3\n";
    let conf = controller(text).expect("reads");
    assert!(!conf.join && conf.preferred_leaders.is_empty());
    let more = "controllerJoin=true\npreferredLeaderIds= n0; n7 ;\n";
    let conf = controller(&format!("{text}{more}")).expect("reads");
    assert!(conf.join && conf.warnings.is_empty(), "{:?}", conf.warnings);
    assert_eq!(conf.preferred_leaders, ["n0", "n7"]);
    let error = controller(&format!("{text}preferredLeaderIds=n0-h\n"));
    let error = error.expect_err("no id").to_string();
    assert!(
        error.contains("controller.conf:3: preferredLeaderIds=n0-h"),
        "{error}"
    );
}

#[test]
fn one_file_serves_a_broker_and_its_embedded_controller() {
    const BOTH: &str = "enableControllerMode=true\nbrokerName=b\nlistenPort=11\n\
        controllerDLegerPeers=n0-10.0.0.1:7;n1-10.0.0.2:7\ncontrollerDLegerSelfId=n1\n\
        bindAddress=10.0.0.2\nleaseWaitMills=1600\nleaseMills=1300\n";
    let read = |more: &str| {
        let text = format!("{BOTH}{more}");
        EmbeddedConf::read(Reader::parse(Path::new("broker.conf"), &text)?)
    };
    let conf = read("colour=red\n").expect("reads");
    assert_eq!(conf.broker.controller_addr, "10.0.0.1:7;10.0.0.2:7");
    assert_eq!(conf.broker.lease, Duration::from_millis(1300));
    assert_eq!(conf.controller.lease_wait, Duration::from_millis(1600));
    assert_eq!(conf.controller.bind_ip, "10.0.0.2".parse().ok());
    let unknown = ["broker.conf:9: colour is not supported and has no effect"];
    assert_eq!(
        (
            conf.broker.warnings.as_slice(),
            conf.controller.warnings.len()
        ),
        (&unknown.map(String::from)[..], 0)
    );
    let keys: Vec<&str> = conf.effective().iter().map(|(key, _)| *key).collect();
    for key in [
        "bindAddress",
        "leaseMills",
        "leaseWaitMills",
        "controllerAddr",
    ] {
        assert_eq!(
            keys.iter().filter(|known| **known == key).count(),
            1,
            "{key}"
        );
    }
    let given = read("controllerAddr=c.example:7\n").expect("reads");
    assert_eq!(given.broker.controller_addr, "c.example:7");
    for (more, why) in [
        (
            "haListenPort=7\n",
            "broker.conf:9: haListenPort=7 is not allowed: a port other than the controller's",
        ),
        ("leaseWaitMills=1\n", "leaseWaitMills=1"),
        ("leaseMills=1\n", "leaseMills=1"),
    ] {
        let error = read(more).expect_err(more).to_string();
        assert!(error.contains(why), "{error}");
    }
    let alone = broker("controllerDLegerSelfId=n1\n").expect("reads");
    assert_eq!(
        alone.warnings.len(),
        1,
        "a key of a controller has no effect there"
    );
}
