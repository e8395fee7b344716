//! The settings of a server.

#[cfg(feature = "oauth")]
use crate::oauth::OAuth;
use crate::{limits::McpLimits, stdio::StdioCommand};
use concentric_core::{Annotations, BoxModel, Str, ToolSpec};
use concentric_tools::ToolPins;
use secrecy::SecretString;
use std::{sync::Arc, time::Duration};

#[derive(Clone)]
pub(crate) enum Place {
    Stdio(StdioCommand),
    Http {
        url: Str,
        bearer: Option<SecretString>,
        allow_private: bool,
        #[cfg(feature = "oauth")]
        oauth: Option<Box<OAuth>>,
    },
}

pub(crate) type Annotate = dyn Fn(&ToolSpec) -> Option<Annotations> + Send + Sync;

#[derive(Clone)]
pub(crate) struct Config {
    pub(crate) name: Str,
    pub(crate) place: Place,
    pub(crate) annotate: Option<Arc<Annotate>>,
    pub(crate) pins: Option<ToolPins>,
    pub(crate) accept_changes: bool,
    pub(crate) roots: Option<Arc<[String]>>,
    pub(crate) sampling: Option<BoxModel>,
    pub(crate) limits: McpLimits,
    pub(crate) connect_timeout: Duration,
    pub(crate) call_timeout: Duration,
    pub(crate) idle_timeout: Duration,
    pub(crate) answer_timeout: Duration,
}
