//! The operations behind the control socket.

use std::cell::OnceCell;
use std::rc::Rc;
use std::time::Duration;

use hyper::{Method, StatusCode};
use serde_json::{Value, json};

use super::bans;
use super::caches;
use super::reload::{Refused, Reloader};
use super::services::Services;
use super::upgrade::{READY_TIMEOUT, Upgrader};
use crate::commands::{Api, Failure, Upgrade};

/// Carries out commands.
pub(super) struct Operator {
    pub(super) reloader: Reloader,
    pub(super) upgrader: Rc<Upgrader>,
    pub(super) services: OnceCell<Rc<Services>>,
}

impl Api for Operator {
    async fn reload(&self) -> Result<Value, Failure> {
        match self.reloader.reload().await {
            Ok(applied) => Ok(json!({ "notes": applied.notes })),
            Err(Refused::Mistakes(error)) => {
                let mistakes: Vec<_> = error.to_string().lines().map(str::to_owned).collect();
                Err(Failure::mistakes("configuration refused", &mistakes))
            }
            Err(Refused::UpgradeUnderWay(error)) => {
                let body = json!({ "error": error.to_string(), "busy": true });
                Err(Failure::with(StatusCode::CONFLICT, body))
            }
            Err(Refused::Failed(message)) => Err(Failure::new(StatusCode::CONFLICT, &message.to_string())),
        }
    }

    async fn bans(&self, method: &Method, path: &str, body: &[u8]) -> Result<Value, Failure> {
        bans::answer(&self.reloader.site.live.load(), method, path, body)
    }

    async fn caches(&self, method: &Method, path: &str, body: &[u8]) -> Result<Value, Failure> {
        caches::answer(&self.reloader.site.live.load_full(), method, path, body).await
    }

    async fn fleet(&self) -> Result<Value, Failure> {
        match self.services.get().map(|services| services.fleet()) {
            Some(Some(fleet)) => Ok(json!(fleet.view().await)),
            Some(None) => {
                Err(Failure::new(StatusCode::NOT_FOUND, "no fleet: store is off in the configuration"))
            }
            None => Err(Failure::new(StatusCode::SERVICE_UNAVAILABLE, "sluice is still starting")),
        }
    }

    async fn services(&self, method: &Method, path: &str, body: &[u8]) -> Result<Value, Failure> {
        match self.services.get() {
            Some(services) => services.answer(method, path, body).await,
            None => Err(Failure::new(StatusCode::SERVICE_UNAVAILABLE, "sluice is still starting")),
        }
    }

    async fn upgrade(&self, wanted: Upgrade) -> Result<Value, Failure> {
        let patience = wanted.timeout_ms.map_or(READY_TIMEOUT, Duration::from_millis);
        // Runs to completion even if the client disconnects: otherwise two processes would run side by side.
        let upgrader = Rc::clone(&self.upgrader);
        let task = tokio::task::spawn_local(async move { upgrader.upgrade(wanted.binary, patience).await });
        let pid = task.await.unwrap_or_else(|error| Err(format!("the upgrade task failed: {error}").into()));
        let pid = pid.map_err(|reason| Failure::new(StatusCode::CONFLICT, &reason.to_string()))?;
        Ok(json!({ "pid": pid }))
    }
}
