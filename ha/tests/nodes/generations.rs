//! Masters and slaves that speak as the releases of RocketMQ do: 5.0.0, 5.1.0, and 5.1.1 and later.

use epochlog_ha::{AckPolicy, Error, HaConfig, HaService, HandshakeAnswerForm, TransportKind};

use crate::bed::{Node, assert_equal, assert_holds, wait_until};

const KIND: TransportKind = TransportKind::Auto;

/// A node that tells its address as slave, and takes slaves that do as master.
fn by_address(config: &mut HaConfig) {
    config.accept_address_handshake = true;
    config.slave_address = Some("127.0.0.1:10912".parse().unwrap());
}

fn as_5_0_0(config: &mut HaConfig) {
    by_address(config);
    config.answer_form = HandshakeAnswerForm::Long;
}

fn as_5_1_1(config: &mut HaConfig) {
    config.extension = false;
}

/// Epochs, a fail-over with a tail to cut, and a restart, between two of one generation.
fn replicates(name: &str, tune: fn(&mut HaConfig), tells_its_id: bool) {
    let (a, b) = (Node::tuned(1, KIND, tune), Node::tuned(2, KIND, tune));
    a.lead(1, &[1]);
    let mut written = a.write_all(20, AckPolicy::Local);
    b.follow(1, &a);
    assert_equal(&[&a, &b]);
    let seen = a.ha.runtime_info().connections;
    let ids: Vec<_> = seen.iter().map(|it| it.broker_id).collect();
    assert_eq!(ids, [tells_its_id.then_some(2)], "{name}");
    a.lead(2, &[1]);
    written.extend(a.write_all(20, AckPolicy::Local));
    assert_equal(&[&a, &b]);
    // The slave leads; what the old master writes alone meanwhile is cut.
    b.lead(3, &[2]);
    written.extend(b.write_all(5, AckPolicy::Local));
    a.write_all(3, AckPolicy::Local);
    let a = a.restarted();
    a.follow(3, &b);
    assert_equal(&[&b, &a]);
    assert_holds(&a, &written);
}

#[test]
fn nodes_of_each_generation_replicate_among_themselves() {
    replicates("5.0.0", as_5_0_0, false);
    replicates("5.1.0", by_address, false);
    replicates("5.1.1", as_5_1_1, true);
}

#[test]
fn a_master_tells_slaves_of_two_generations_apart_and_serves_both() {
    let a = Node::tuned(1, KIND, |config| config.accept_address_handshake = true);
    let (old, new) = (Node::tuned(2, KIND, by_address), Node::new(3, KIND));
    a.lead(1, &[1, 3]);
    old.follow(1, &a);
    new.follow(1, &a);
    a.write_all(20, AckPolicy::AllInSync);
    assert_equal(&[&a, &old, &new]);
    let mut ids: Vec<_> = a.ha.runtime_info().connections;
    ids.sort_by_key(|it| it.broker_id);
    let ids: Vec<_> = ids.iter().map(|it| (it.broker_id, it.extended)).collect();
    assert_eq!(ids, [(None, false), (Some(3), true)]);
    assert_eq!(a.ha.next_proposal(), None, "without an id nobody joins");
}

#[test]
fn a_slave_that_tells_its_address_counts_as_the_id_it_is_known_by() {
    type Tune = fn(&mut HaConfig);
    fn known(config: &mut HaConfig) {
        by_address(config);
        config.address_ids.insert("127.0.0.1:10912".to_owned(), 2);
    }
    let forms: [(Tune, Tune); 2] = [
        (known, by_address),
        (
            |config| {
                known(config);
                config.answer_form = HandshakeAnswerForm::Long;
            },
            as_5_0_0,
        ),
    ];
    for (master, slave) in forms {
        let (a, b) = (Node::tuned(1, KIND, master), Node::tuned(2, KIND, slave));
        a.lead(1, &[1, 2]);
        let mut written = a.write_all(20, AckPolicy::Local);
        b.follow(1, &a);
        written.extend(a.write_all(20, AckPolicy::AllInSync));
        assert_equal(&[&a, &b]);
        assert_holds(&b, &written);
    }
}

#[test]
fn a_master_that_takes_ids_only_leaves_a_slave_that_tells_its_address() {
    let (a, old) = (Node::new(1, KIND), Node::tuned(2, KIND, by_address));
    a.lead(1, &[1]);
    a.write_all(3, AckPolicy::Local);
    old.follow(1, &a);
    wait_until(
        || format!("{:#?}", a.ha.runtime_info()),
        || !a.ha.runtime_info().metrics.closes_by_master.is_empty(),
    );
    assert_eq!(old.store.end_offset(), 0);
    a.write_all(3, AckPolicy::Local);
}

#[test]
fn an_address_that_does_not_fit_into_the_handshake_is_no_setting() {
    let node = Node::new(1, KIND);
    let mut config = HaConfig::on_loopback(1);
    let longest = "[1111:2222:3333:4444:5555:6666:7777:8888%4294967295]:65535";
    config.slave_address = Some(longest.parse().unwrap());
    let refused = HaService::start(node.store.clone(), config).err();
    assert!(
        matches!(
            &refused,
            Some(Error::Setting {
                name: "slave_address",
                ..
            })
        ),
        "{refused:?}"
    );
}
