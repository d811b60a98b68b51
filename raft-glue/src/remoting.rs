//! RocketMQ's remoting protocol: frames in both header codings, the typed headers and bodies of the
//! controller and send requests, a pipelining client and a server.
//!
//! Invariants: no length read from the wire is used before its limit is checked; every frame names
//! its own coding and an answer uses the coding of its request; nothing here knows what a request
//! means.

mod bodies;
mod client;
mod codes;
mod command;
mod frame;
mod header;
mod headers;
mod json;
mod lives;
mod naming;
mod server;

#[cfg(test)]
mod tests;

pub use bodies::{
    BrokerEpochCache, BrokerMemberGroup, BrokerReplicaInfo, BrokerReplicasInfo, ElectMasterBody,
    EpochSpan, HaClientRuntimeInfo, HaConnectionRuntimeInfo, HaRuntimeInfoBody, InSyncReplica,
    SyncStateSetBody,
};
pub use client::{Client, ClientConfig, RemotingError};
pub use codes::{request_code, response_code};
pub use command::{Coding, ExtFields, Language, PROTOCOL_VERSION, RemotingCommand};
pub use frame::{FrameError, MAX_EXT_FIELDS, MAX_FRAME_LEN, decode, encode, encode_head};
pub use header::{FieldValue, HeaderError, TypedHeader};
pub use headers::{
    AlterSyncStateSetRequest, AlterSyncStateSetResponse, ApplyBrokerIdRequest,
    ApplyBrokerIdResponse, BrokerHeartbeatRequest, BrokerHeartbeatResponse, CleanBrokerDataRequest,
    ElectMasterRequest, ElectMasterResponse, ExchangeHaInfoRequest, ExchangeHaInfoResponse,
    GetMetadataResponse, GetNextBrokerIdRequest, GetNextBrokerIdResponse, GetReplicaInfoRequest,
    GetReplicaInfoResponse, HandOverRequest, NotifyRoleChangedRequest, RegisterBrokerRequest,
    RegisterBrokerResponse, SendMessageRequest, SendMessageResponse,
};
pub use json::{from_json, quote_integer_keys};
pub use lives::{lives_text, read_lives};
pub use naming::{
    NameServerRegisterRequest, NameServerRegisterResponse, NameServerUnregisterRequest,
};
pub use server::{Handler, Peer, Server, ServerConfig};
