//! The runs that an operator sees.

use std::{
    cmp::Reverse,
    collections::{HashMap, HashSet},
    sync::Arc,
    time::{Duration, SystemTime},
};

use concentric_core::{
    RunId, Str, ThreadId,
    store::{RunSummary, StoreError, Tenant},
};

use super::{
    config::{Config, fingerprint},
    fold::{End, end},
    operator::Operator,
};
use crate::{refused::Refused, run::RunLog};

/// The maximum number of waiting runs that are read of each tenant.
const WAITING: usize = 1000;

/// Which runs are listed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Show {
    Live,
    Waiting,
    Ended,
}

impl Show {
    pub(super) const ALL: [Self; 3] = [Self::Live, Self::Waiting, Self::Ended];

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Live => "live",
            Self::Waiting => "waiting",
            Self::Ended => "ended",
        }
    }

    pub(super) const fn title(self) -> &'static str {
        match self {
            Self::Live => "Live",
            Self::Waiting => "Waiting",
            Self::Ended => "Ended",
        }
    }

    pub(super) fn parse(name: Option<&str>) -> Option<Self> {
        match name {
            None => Some(Self::Live),
            Some(name) => Self::ALL.into_iter().find(|it| it.name() == name),
        }
    }
}

/// The name of a run: its tenant, its conversation, and the id of the request that started it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct RunName {
    pub(super) tenant: Str,
    pub(super) thread: Str,
    pub(super) run: Str,
}

impl RunName {
    fn of_log(log: &RunLog) -> Self {
        let (tenant, thread, run) = log.name().clone();
        Self {
            tenant,
            thread,
            run,
        }
    }

    pub(super) fn of_stored(run: &RunSummary) -> Self {
        Self {
            tenant: run.key.tenant.0.clone(),
            thread: run.key.thread.as_str().into(),
            run: run.client_id.as_str().into(),
        }
    }

    pub(super) fn tenant(&self) -> Tenant {
        Tenant(self.tenant.clone())
    }

    /// The fields of a query or a form.
    pub(super) fn fields(&self) -> [(&'static str, &str); 3] {
        [
            ("tenant", &self.tenant),
            ("thread", &self.thread),
            ("run", &self.run),
        ]
    }
}

/// A run in a list.
pub(super) struct Row {
    pub(super) name: RunName,
    pub(super) agent: Option<Str>,
    pub(super) begun: Option<SystemTime>,
    pub(super) status: &'static str,
    log: Option<Arc<RunLog>>,
}

impl Row {
    /// The end of the run. Not read before it is shown, since a list is long.
    pub(super) fn end(&self) -> Option<End> {
        end(&self.log.as_ref()?.terminal()?)
    }
}

/// The runs that an operator sees, in three lists, the newest first; the waiting ones are the oldest first.
#[derive(Default)]
pub(super) struct Listing {
    live: Vec<Row>,
    waiting: Vec<Row>,
    ended: Vec<Row>,
    /// Whether more runs wait.
    is_cut: bool,
}

impl Listing {
    pub(super) async fn read(config: &Config, operator: &Operator) -> Result<Self, Refused> {
        let mut listing = Self::default();
        let logs = config.logs.as_ref();
        let logs = logs.map_or_else(Vec::new, |logs| logs.of_tenants(&operator.tenants));
        let logs: HashMap<RunName, Arc<RunLog>> = logs
            .into_iter()
            .map(|log| (RunName::of_log(&log), log))
            .collect();
        let mut waiting = HashSet::new();
        for tenant in &operator.tenants {
            for run in self::waiting(config, tenant).await? {
                let name = RunName::of_stored(&run);
                let log = logs.get(&name);
                listing.waiting.push(Row {
                    agent: log.and_then(|log| log.about().agent.clone()),
                    begun: log.map(|log| log.about().begun),
                    status: "waiting",
                    log: None,
                    name: name.clone(),
                });
                waiting.insert(name);
            }
        }
        listing.is_cut = listing.waiting.len() >= WAITING;
        for (name, log) in logs {
            let is_live = !log.is_ended();
            if !is_live && waiting.contains(&name) {
                continue;
            }
            let rows = match is_live {
                true => &mut listing.live,
                false => &mut listing.ended,
            };
            rows.push(Row {
                name,
                agent: log.about().agent.clone(),
                begun: Some(log.about().begun),
                status: if is_live { "running" } else { "ended" },
                log: Some(log),
            });
        }
        for rows in [&mut listing.live, &mut listing.ended] {
            rows.sort_by(|a, b| (Reverse(a.begun), &a.name).cmp(&(Reverse(b.begun), &b.name)));
        }
        Ok(listing)
    }

    pub(super) fn rows(&self, show: Show) -> &[Row] {
        match show {
            Show::Live => &self.live,
            Show::Waiting => &self.waiting,
            Show::Ended => &self.ended,
        }
    }

    /// The number of runs in a list.
    pub(super) fn count(&self, show: Show) -> String {
        let more = show == Show::Waiting && self.is_cut;
        let count = self.rows(show).len();
        format!("{count}{}", if more { "+" } else { "" })
    }

    /// A text that changes when another run is in the list, or fewer.
    pub(super) fn fingerprint(&self, show: Show) -> String {
        let names = self.rows(show).iter().map(|row| {
            let [tenant, thread, run] = row.name.fields();
            format!("{:?}", (tenant.1, thread.1, run.1))
        });
        let names: Vec<String> = names.collect();
        fingerprint(names.iter().map(String::as_str))
    }
}

/// The runs of a tenant that wait for replies.
pub(super) async fn waiting(config: &Config, tenant: &Tenant) -> Result<Vec<RunSummary>, Refused> {
    match &config.runs {
        Some(store) => {
            let found = store.list_waiting(tenant.clone(), WAITING).await;
            found.map_err(|error| failed(&error))
        }
        None => Ok(Vec::new()),
    }
}

/// The log of a run in this process.
pub(super) fn log(config: &Config, name: &RunName) -> Option<Arc<RunLog>> {
    let logs = config.logs.as_ref()?;
    logs.find(&name.tenant(), &name.thread, &name.run)
}

/// A run in the store.
pub(super) async fn stored(config: &Config, name: &RunName) -> Result<Option<RunSummary>, Refused> {
    let Some(store) = &config.runs else {
        return Ok(None);
    };
    let (thread, run) = (ThreadId::new(&*name.thread), RunId::new(&*name.run));
    match store.find_by_client_id(name.tenant(), thread, run).await {
        Ok(found) => Ok(Some(found)),
        Err(StoreError::NotFound) => Ok(None),
        Err(error) => Err(failed(&error)),
    }
}

/// The refusal of a page that does not exist.
pub(super) fn not_found() -> Refused {
    Refused::not_found("not_found", "This page does not exist.")
}

/// The response to a request whose store failed.
pub(super) fn failed(error: &StoreError) -> Refused {
    tracing::error!(error = ?error, "the store of a console failed");
    Refused::internal()
}

/// The time from `from` to `to`.
pub(super) fn between(from: SystemTime, to: SystemTime) -> Duration {
    to.duration_since(from).unwrap_or_default()
}
