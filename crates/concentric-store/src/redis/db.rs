//! Connections, and the execution of the script.

use super::{
    tls::is_untrusted,
    values::{Call, Method, Of, Reply, escape, micros},
};
use crate::{Fault, Options};
use concentric_core::{
    context::Environment,
    store::{StoreError, Tenant},
};
use redis::{
    AsyncConnectionConfig, Client, Cmd, ConnectionAddr, ConnectionInfo, ErrorKind, RedisError,
    Value, aio::MultiplexedConnection,
};
use std::{
    fmt,
    sync::{
        Arc, Mutex as Lock, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};
use tokio::{
    sync::{Mutex, Semaphore},
    time::{Instant, sleep, timeout},
};

/// How often a call is repeated, not counting attempts that had no effect.
const REPEATS: u32 = 3;

/// The time at which a tenant was put into the list of tenants, if the caller has not done that.
const NEVER: &str = "0";

/// How many other nodes of a cluster a call is sent to.
const HOPS: u32 = 5;

/// The number of parts of the list of tenants.
pub(super) const SHARDS: u16 = 8;

/// The number of requests that are under way on a connection.
const PER_CONNECTION: usize = 64;

/// The number of nodes that are asked again for the nodes of a cluster, and the time that each has to answer.
const LOOKUPS: usize = 5;
const LOOKUP: Duration = Duration::from_secs(1);

/// The number of hash slots of a cluster.
const SLOTS: u16 = 16_384;

/// The number of nodes that a store connects to.
const MAX_NODES: usize = 1_024;

const SCRIPT: &str = concat!(
    include_str!("lua/common.lua"),
    include_str!("lua/logs.lua"),
    include_str!("lua/runs.lua"),
    include_str!("lua/cache.lua"),
    include_str!("lua/events.lua"),
    include_str!("lua/threads.lua"),
    include_str!("lua/effects.lua"),
    include_str!("lua/purge.lua"),
);

const LIMITS: &str = include_str!("lua/limits.lua");

/// A script and its hash.
struct Script(&'static str, String);

impl Script {
    fn new(text: &'static str) -> Self {
        Self(text, sha1_smol::Sha1::from(text).digest().to_string())
    }
}

/// The parts of a store that its calls need.
pub(super) struct Db {
    nodes: Lock<Nodes>,
    script: Script,
    limits: Script,
    // Of the connections.
    name: String,
    pub(super) options: Options,
}

/// The servers, and the one of each hash slot if they are a cluster.
struct Nodes {
    all: Vec<Arc<Node>>,
    slots: Option<Vec<usize>>,
}

struct Node {
    address: ConnectionAddr,
    client: Client,
    connections: Vec<Connection>,
    // How many requests may begin on these connections.
    requests: Semaphore,
    renewals: Connection,
    renewing: Semaphore,
}

/// A connection, which is made when it is used.
#[derive(Default)]
struct Connection {
    // With the number of connections that were lost.
    current: Mutex<(u64, Option<MultiplexedConnection>)>,
    requests: AtomicUsize,
}

/// Counts a request while it exists.
struct Counted<'a>(&'a AtomicUsize);

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Whether a call may be repeated after the connection was lost, when it may have been executed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Repeat {
    /// Yes: it recognises that it has been executed, or has the same result again.
    Yes,
    /// No: its result would be another one.
    No,
}

/// The failure of one attempt to execute a call.
enum Failure {
    /// Nothing was sent.
    NotSent(Fault),
    /// The server did not execute the call, and may do so later.
    Refused(RedisError),
    /// The connection was lost.
    Lost(RedisError),
    Failed(RedisError),
    TimedOut,
}

pub(super) fn database(why: &'static str) -> Fault {
    Fault::Database(why.into())
}

/// The fault of a failed command.
pub(super) fn failed(error: RedisError) -> Fault {
    Fault::Database(Box::new(error))
}

/// The number of a key's hash slot.
fn slot(tag: &[u8]) -> u16 {
    let sum = tag.iter().fold(0_u16, |sum, byte| {
        (0..8).fold(sum ^ (u16::from(*byte) << 8), |sum, _| match sum & 0x8000 {
            0 => sum << 1,
            _ => (sum << 1) ^ 0x1021,
        })
    });
    sum % SLOTS
}

/// The part of the list of tenants that a tenant is in.
pub(super) fn shard(tenant: &Tenant) -> u16 {
    slot(tenant.0.as_bytes()) % SHARDS
}

impl Node {
    fn new(info: ConnectionInfo, connections: usize) -> Result<Self, Fault> {
        Ok(Self {
            address: info.addr().clone(),
            client: Client::open(info).map_err(failed)?,
            connections: (0..connections).map(|_| Connection::default()).collect(),
            requests: Semaphore::new(
                connections
                    .saturating_mul(PER_CONNECTION)
                    .min(Semaphore::MAX_PERMITS),
            ),
            renewals: Connection::default(),
            renewing: Semaphore::new(PER_CONNECTION * 4),
        })
    }

    /// The connection with the fewest requests.
    fn connection(&self) -> &Connection {
        let connections = self.connections.iter();
        let idle = connections.min_by_key(|it| it.requests.load(Ordering::Relaxed));
        idle.unwrap_or(&self.renewals)
    }
}

impl Connection {
    /// The connection and its number.
    async fn get(
        &self,
        client: &Client,
        name: &str,
        wait: Duration,
    ) -> Result<(u64, MultiplexedConnection), Failure> {
        let get = async {
            let mut current = self.current.lock().await;
            if let (number, Some(connection)) = &*current {
                return Ok((*number, connection.clone()));
            }
            // The calls have deadlines of their own.
            let config = AsyncConnectionConfig::new()
                .set_connection_timeout(Some(wait))
                .set_response_timeout(None);
            let made = client.get_multiplexed_async_connection_with_config(&config);
            let mut made = made.await.map_err(|error| match error.kind() {
                ErrorKind::AuthenticationFailed => Failure::Failed(error),
                _ if is_untrusted(&error) => Failure::NotSent(Fault::Untrusted(Box::new(error))),
                _ => Failure::NotSent(failed(error)),
            })?;
            // For the list of the server's clients. The command may be disabled.
            let name = redis::cmd("CLIENT").arg("SETNAME").arg(name).to_owned();
            let _ = made.send_packed_command(&name).await;
            current.1 = Some(made.clone());
            Ok((current.0, made))
        };
        match timeout(wait, get).await {
            Ok(got) => got,
            Err(_) => Err(Failure::NotSent(database(
                "the connection to the server timed out",
            ))),
        }
    }

    /// Closes the connection with this number, so that the next call makes another one.
    async fn lose(&self, number: u64) {
        let mut current = self.current.lock().await;
        if current.0 == number {
            *current = (number + 1, None);
        }
    }
}

impl Nodes {
    /// The node of a hash slot; any node if it is not known.
    fn of(&self, slot: u16) -> Option<Arc<Node>> {
        let slots = self.slots.as_ref();
        let at = slots.and_then(|slots| slots.get(usize::from(slot)));
        self.all.get(at.copied().unwrap_or_default()).cloned()
    }

    /// The nodes of a cluster, first those with hash slots, and the one of this slot last.
    fn others(&self, slot: u16) -> Vec<Arc<Node>> {
        let Some(slots) = &self.slots else {
            return Vec::new();
        };
        let of_slot = slots.get(usize::from(slot));
        let mut all: Vec<_> = (0..self.all.len()).collect();
        all.sort_by_cached_key(|at| (of_slot == Some(at), !slots.contains(at)));
        let nodes = all.into_iter().filter_map(|at| self.all.get(at));
        nodes.cloned().collect()
    }

    /// The position of the node with this address, which is added if it is new.
    fn add(&mut self, address: &ConnectionAddr, options: &Options) -> Result<usize, Fault> {
        if let Some(at) = self.all.iter().position(|node| node.address == *address) {
            return Ok(at);
        }
        let Some(first) = self.all.first().filter(|_| self.all.len() < MAX_NODES) else {
            return Err(database("the cluster has too many nodes"));
        };
        let info = first.client.get_connection_info().clone();
        let node = Node::new(info.set_addr(address.clone()), options.pool_size.max(1))?;
        self.all.push(Arc::new(node));
        Ok(self.all.len() - 1)
    }

    fn set_slots(&mut self, range: std::ops::RangeInclusive<usize>, at: usize) {
        let slots = self
            .slots
            .get_or_insert_with(|| vec![0; usize::from(SLOTS)]);
        for slot in slots.get_mut(range).unwrap_or_default() {
            *slot = at;
        }
    }
}

/// The address of another node, which may have the host of the node that named it, and is encrypted as that is.
fn address(host: &str, port: u16, named_by: &ConnectionAddr) -> ConnectionAddr {
    let mut address = named_by.clone();
    let (ConnectionAddr::Tcp(of, at)
    | ConnectionAddr::TcpTls {
        host: of, port: at, ..
    }) = &mut address
    else {
        return ConnectionAddr::Tcp(host.to_owned(), port);
    };
    if !matches!(host, "" | "?") {
        host.clone_into(of);
    }
    *at = port;
    address
}

impl Db {
    pub(super) fn new(info: ConnectionInfo, options: Options) -> Result<Self, Fault> {
        let size = options.pool_size.max(1);
        Ok(Self {
            nodes: Lock::new(Nodes {
                all: vec![Arc::new(Node::new(info, size)?)],
                slots: None,
            }),
            name: format!("concentric:{}", options.schema),
            script: Script::new(SCRIPT),
            limits: Script::new(LIMITS),
            options,
        })
    }

    fn nodes(&self) -> MutexGuard<'_, Nodes> {
        self.nodes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Executes a method, which may need that its tenant is in the list of tenants.
    pub(super) async fn call(&self, call: Call<'_>, repeat: Repeat) -> Result<Reply, StoreError> {
        self.call_with(&call, repeat, false).await
    }

    /// Executes a method that renews a lease.
    pub(super) async fn renew(&self, call: Call<'_>) -> Result<Reply, StoreError> {
        self.call_with(&call, Repeat::Yes, true).await
    }

    /// Pushes staged turns, and returns how many there are then; 0 if they are not staged any more. After a
    /// connection was lost they may be there twice, which the script finds.
    pub(super) async fn push(&self, call: Call<'_>) -> Result<i64, StoreError> {
        let reply = self.execute(&call, Repeat::Yes, false, NEVER).await?;
        reply.int(0)
    }

    async fn call_with(
        &self,
        call: &Call<'_>,
        repeat: Repeat,
        renews: bool,
    ) -> Result<Reply, StoreError> {
        let mut listed = NEVER.to_owned();
        for _ in 0..=REPEATS {
            let reply = self.execute(call, repeat, renews, &listed).await?;
            let Of::Tenant(tenant) = call.of else {
                return Ok(reply);
            };
            if reply.code()? != "unlisted" {
                return Ok(reply);
            }
            // Before the write, so that the list never lacks a lease.
            let add = Call::new(Of::Shard(shard(tenant)), "list_add")
                .text(tenant.0.as_str())
                .bytes(super::values::bytes(reply.get(1)?)?);
            self.execute(&add, Repeat::Yes, renews, NEVER).await?;
            // The script asks again if the call does not follow in time.
            listed = super::values::text(reply.get(2)?)?.to_owned();
        }
        Err(database("the tenant was not put into the list of tenants in time").into())
    }

    async fn execute(
        &self,
        call: &Call<'_>,
        repeat: Repeat,
        renews: bool,
        listed: &str,
    ) -> Result<Reply, StoreError> {
        let began = Instant::now();
        let wait = self.options.pool_wait;
        for repeats in 0.. {
            let failure = match self.attempt(call, renews, listed, began).await {
                Ok(value) => return Reply::new(value),
                Err(failure) => failure,
            };
            let pause = pause(repeats);
            let ends = began.elapsed().saturating_add(pause) > wait;
            // Other attempts have no effects, so their number is limited by the time only.
            let was_last = repeats >= REPEATS && matches!(failure, Failure::Lost(_));
            let is_last = was_last || ends || !failure.may_repeat(repeat);
            if !is_last {
                tracing::debug!(error = %failure, "a call of the script is repeated");
                sleep(pause).await;
            }
            // Also in the end, so that the next call is not sent to a node that is gone.
            if failure.may_be_of_a_gone_node() {
                self.find_nodes_again(call).await;
            }
            if is_last {
                return Err(failure.into());
            }
        }
        Err(Fault::Closed.into())
    }

    async fn attempt(
        &self,
        call: &Call<'_>,
        renews: bool,
        listed: &str,
        began: Instant,
    ) -> Result<Value, Failure> {
        let (key, tag) = self.key(call.of);
        let slot = slot(tag.as_bytes());
        let mut node = self.nodes().of(slot).ok_or_else(no_node)?;
        for _ in 0..HOPS {
            let moved = match self
                .attempt_on(&node, call, &key, renews, listed, began)
                .await?
            {
                Ok(value) => return Ok(value),
                Err(moved) => moved,
            };
            node = self.follow(&moved, slot, &node.address)?;
        }
        Err(no_node())
    }

    /// Executes a call on a node; fails with its answer if another node has the hash slot.
    async fn attempt_on(
        &self,
        node: &Node,
        call: &Call<'_>,
        key: &str,
        renews: bool,
        listed: &str,
        began: Instant,
    ) -> Result<Result<Value, RedisError>, Failure> {
        let lane = match renews {
            true => &node.renewing,
            false => &node.requests,
        };
        let left = self.options.pool_wait.saturating_sub(began.elapsed());
        let Ok(Ok(_permit)) = timeout(left, lane.acquire()).await else {
            return Err(Failure::NotSent(Fault::Busy));
        };
        let connection = match renews {
            true => &node.renewals,
            false => node.connection(),
        };
        connection.requests.fetch_add(1, Ordering::Relaxed);
        let _counted = Counted(&connection.requests);
        let (number, made) = connection
            .get(&node.client, &self.name, self.options.pool_wait)
            .await?;
        let by_hash = self.command(call, key, listed, false);
        let mut done = self.send(&made, &by_hash).await;
        if matches!(&done, Ok(Err(error)) if error.code() == Some("NOSCRIPT")) {
            done = self
                .send(&made, &self.command(call, key, listed, true))
                .await;
        }
        let failure = match done {
            Ok(Ok(value)) => return Ok(Ok(value)),
            Ok(Err(error)) if error.code() == Some("MOVED") => return Ok(Err(error)),
            Ok(Err(error)) => classify(error),
            Err(_) => Failure::TimedOut,
        };
        if !matches!(failure, Failure::Failed(_)) {
            connection.lose(number).await;
        }
        Err(failure)
    }

    /// Sends a command; fails if there is no result in time.
    async fn send(
        &self,
        connection: &MultiplexedConnection,
        command: &Cmd,
    ) -> Result<Result<Value, RedisError>, tokio::time::error::Elapsed> {
        let mut connection = connection.clone();
        let sent = command.query_async(&mut connection);
        timeout(self.options.statement_timeout, sent).await
    }

    /// The first part of the keys of a call, and the part of it that determines the hash slot.
    fn key(&self, of: Of<'_>) -> (String, String) {
        let tag = match of {
            Of::Tenant(tenant) => format!("t:{}", escape(&tenant.0)),
            Of::Shard(shard) => format!("s:{shard}"),
            Of::Store => "meta".to_owned(),
            Of::Bucket(bucket) => format!("q:{}", escape(bucket)),
        };
        (format!("{}:{{{tag}}}", self.options.schema), tag)
    }

    fn command(&self, call: &Call<'_>, key: &str, listed: &str, with_text: bool) -> Cmd {
        let mut command = Cmd::new();
        let (Script(text, sha), method) = match call.method {
            Method::Push(id) => {
                command.arg("RPUSHX").arg(format!("{key}:p:{id}"));
                for argument in &call.arguments {
                    command.arg(&**argument);
                }
                return command;
            }
            Method::Script(method) => (&self.script, method),
            Method::Limits(method) => (&self.limits, method),
        };
        command.arg(if with_text { "EVAL" } else { "EVALSHA" });
        command.arg(if with_text { text } else { sha.as_str() });
        command.arg(1).arg(key).arg(method).arg(listed);
        let now = self.options.own_now().map(|now| micros(now).to_string());
        command.arg(now.unwrap_or_default());
        for argument in &call.arguments {
            command.arg(&**argument);
        }
        command
    }

    /// The node that has a hash slot, as another one has answered.
    fn follow(
        &self,
        moved: &RedisError,
        slot: u16,
        named_by: &ConnectionAddr,
    ) -> Result<Arc<Node>, Failure> {
        let Some((host, port)) = moved.redirect_node() else {
            return Err(no_node());
        };
        let mut nodes = self.nodes();
        let at = nodes.add(&address(host, port, named_by), &self.options);
        let at = at.map_err(Failure::NotSent)?;
        nodes.set_slots(usize::from(slot)..=usize::from(slot), at);
        nodes.all.get(at).cloned().ok_or_else(no_node)
    }

    /// Executes a command on a node.
    async fn command_on(&self, node: &Node, command: &Cmd) -> Result<Value, Failure> {
        let wait = self.options.pool_wait;
        let (number, made) = node.renewals.get(&node.client, &self.name, wait).await?;
        match self.send(&made, command).await {
            Ok(done) => done.map_err(classify),
            Err(_) => {
                node.renewals.lose(number).await;
                Err(Failure::TimedOut)
            }
        }
    }

    /// The result of a command for administrators; `None` if the server has disabled it, or lacks it. Repeats the
    /// command while the server refuses it, for example because it starts.
    async fn ask(&self, node: &Node, command: &Cmd) -> Result<Option<Value>, Failure> {
        let began = Instant::now();
        for repeats in 0.. {
            let pause = pause(repeats);
            match self.command_on(node, command).await {
                Ok(value) => return Ok(Some(value)),
                Err(Failure::Failed(error)) if is_disabled(&error) => return Ok(None),
                Err(Failure::Refused(_))
                    if began.elapsed().saturating_add(pause) <= self.options.pool_wait => {}
                Err(failure) => return Err(failure),
            }
            sleep(pause).await;
        }
        Err(no_node())
    }

    /// Asks a node which node has which hash slot.
    async fn find_nodes_on(&self, node: &Node) -> Result<(), Failure> {
        let command = redis::cmd("CLUSTER").arg("SLOTS").to_owned();
        match self.ask(node, &command).await? {
            Some(Value::Array(ranges)) => self
                .set_nodes(&ranges, &node.address)
                .map_err(Failure::NotSent),
            // It has no support for clusters, or does not tell.
            _ => Ok(()),
        }
    }

    /// Asks the nodes which of them has which hash slot. Does nothing if the server is not in a cluster.
    pub(super) async fn find_nodes(&self) -> Result<(), Fault> {
        let all = self.nodes().all.clone();
        let mut failure = no_node();
        for node in all {
            match self.find_nodes_on(&node).await {
                Ok(()) => return Ok(()),
                Err(Failure::Failed(error)) => return Err(failed(error)),
                Err(other) => failure = other,
            }
        }
        Err(failure.into())
    }

    /// Asks some of the nodes of a cluster again, the one that a call has failed on last.
    async fn find_nodes_again(&self, call: &Call<'_>) {
        let (_, tag) = self.key(call.of);
        let all = self.nodes().others(slot(tag.as_bytes()));
        for node in all.into_iter().take(LOOKUPS) {
            match timeout(LOOKUP, self.find_nodes_on(&node)).await {
                Ok(Ok(())) => return,
                Ok(Err(error)) => tracing::debug!(%error, "a node did not tell the others"),
                Err(_) => tracing::debug!("a node did not tell the others in time"),
            }
        }
    }

    fn set_nodes(&self, ranges: &[Value], named_by: &ConnectionAddr) -> Result<(), Fault> {
        let mut nodes = self.nodes();
        for range in ranges {
            let malformed = || database("the list of the cluster's nodes is malformed");
            let Value::Array(range) = range else {
                return Err(malformed());
            };
            let [
                Value::Int(first),
                Value::Int(last),
                Value::Array(primary),
                ..,
            ] = &**range
            else {
                return Err(malformed());
            };
            let [host, Value::Int(port), ..] = &**primary else {
                return Err(malformed());
            };
            let host = super::values::text(host).unwrap_or_default();
            let size = |n: &i64| usize::try_from(*n).map_err(|_| malformed());
            let port = u16::try_from(*port).map_err(|_| malformed())?;
            let at = nodes.add(&address(host, port, named_by), &self.options)?;
            nodes.set_slots(size(first)?..=size(last)?, at);
        }
        Ok(())
    }

    /// Checks that all servers keep acknowledged writes, unless the caller accepts that they do not.
    pub(super) async fn check_durability(&self) -> Result<(), Fault> {
        if self.options.accept_loss {
            return Ok(());
        }
        let all = match &*self.nodes() {
            Nodes { all, slots: None } => all.clone(),
            // The first one may be a replica.
            Nodes {
                all,
                slots: Some(slots),
            } => {
                let has_slots = |at: &usize| slots.contains(at);
                let all = all.iter().enumerate().filter(|(at, _)| has_slots(at));
                all.map(|(_, node)| Arc::clone(node)).collect()
            }
        };
        for node in all {
            for (setting, needed) in [
                ("appendonly", "yes"),
                ("appendfsync", "always"),
                ("no-appendfsync-on-rewrite", "no"),
                ("maxmemory-policy", "noeviction"),
            ] {
                let command = redis::cmd("CONFIG").arg("GET").arg(setting).to_owned();
                let found = match self.ask(&node, &command).await? {
                    Some(Value::Array(found)) => found,
                    _ => Vec::new(),
                };
                let found = found
                    .get(1)
                    .and_then(|value| super::values::text(value).ok());
                if found != Some(needed) {
                    return Err(Fault::Volatile {
                        setting: setting.into(),
                        found: found.unwrap_or_default().to_owned().into(),
                        needed: needed.into(),
                    });
                }
            }
        }
        Ok(())
    }
}

fn no_node() -> Failure {
    Failure::NotSent(database("no node of the cluster can be reached"))
}

/// The pause before a repetition, random so that many callers do not come back at the same time.
fn pause(repeats: u32) -> Duration {
    const FIRST: u64 = 20;
    let longest = FIRST << (3 * repeats.min(REPEATS - 1));
    let random = Environment::system().random().next_u64();
    Duration::from_millis(longest / 2 + random % (longest / 2))
}

/// Whether the server has disabled a command, or does not know it.
fn is_disabled(error: &RedisError) -> bool {
    error.kind() != ErrorKind::AuthenticationFailed
        && matches!(error.code(), Some("ERR" | "NOPERM"))
}

fn classify(error: RedisError) -> Failure {
    match error.code() {
        // A hash slot is being moved: the script must not run while a node has only some of its keys. It is
        // refused because its first key, which determines the slot, never exists.
        Some("ASK" | "TRYAGAIN") => Failure::Refused(error),
        // The server starts, executes another script, has no primary, or has become a replica.
        Some("LOADING" | "BUSY" | "CLUSTERDOWN" | "MASTERDOWN" | "READONLY") => {
            Failure::Refused(error)
        }
        None if error.kind() == ErrorKind::Io || error.is_unrecoverable_error() => {
            Failure::Lost(error)
        }
        _ => Failure::Failed(error),
    }
}

impl Failure {
    fn may_be_of_a_gone_node(&self) -> bool {
        match self {
            Self::NotSent(Fault::Busy) | Self::Failed(_) => false,
            Self::NotSent(_) | Self::Refused(_) | Self::Lost(_) | Self::TimedOut => true,
        }
    }

    fn may_repeat(&self, repeat: Repeat) -> bool {
        match self {
            Self::NotSent(Fault::Untrusted(_)) => false,
            Self::NotSent(_) | Self::Refused(_) => true,
            Self::Lost(_) => repeat == Repeat::Yes,
            Self::Failed(_) | Self::TimedOut => false,
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotSent(fault) => fault.fmt(f),
            Self::Refused(error) | Self::Lost(error) | Self::Failed(error) => error.fmt(f),
            Self::TimedOut => f.write_str("timed out"),
        }
    }
}

impl From<Failure> for Fault {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::NotSent(fault) => fault,
            Failure::Refused(error) | Failure::Lost(error) | Failure::Failed(error) => {
                failed(error)
            }
            Failure::TimedOut => database("the script did not return in time"),
        }
    }
}

impl From<Failure> for StoreError {
    fn from(failure: Failure) -> Self {
        Fault::from(failure).into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hash_slot_is_that_of_the_cluster() {
        // From the specification of Redis clusters.
        assert_eq!(slot(b"123456789"), 0x31C3);
        assert_eq!(slot(b""), 0);
    }
}
