//! Concentric's agents behind HTTP.
//!
//! [`ag_ui`] speaks the AG-UI protocol, version 1.0: a run is one `POST` with a JSON body, and its
//! answer is a stream of server-sent events. [`AgUiLayer`](ag_ui::AgUiLayer) makes of an agent a
//! service that any HTTP server of tower's kind can mount, as axum; existing clients
//! (`@ag-ui/client`, `@tanstack/ai-client`) consume it unchanged.
//! [`AdmissionLayer`](admission::AdmissionLayer) limits how many runs there are at once.

pub mod admission;
pub mod ag_ui;
