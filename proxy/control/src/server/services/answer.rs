//! The services part of the control API: maps paths to commands, JSON to their arguments, and errors to statuses.

use std::rc::Rc;

use hyper::{Method, StatusCode};
use serde_json::{Value, json};
use sluice_core::service::adjust::Change;
use sluice_core::service::api::{ApiError, Done, SetWeightRequest, TargetRequest, parse_path};
use sluice_core::service::error::ServiceError;

use super::Services;
use crate::commands::{Failure, read};

impl Services {
    /// Responds to one request. A change completes even if its client disconnects.
    ///
    /// # Errors
    /// The error for the client.
    pub(in crate::server) async fn answer(
        self: &Rc<Self>,
        method: &Method,
        path: &str,
        body: &[u8],
    ) -> Result<Value, Failure> {
        if path == "/v1/services" {
            if method != Method::GET {
                return Err(Failure::new(StatusCode::METHOD_NOT_ALLOWED, "only GET"));
            }
            return Ok(json!(self.list()));
        }
        let Some((service, command)) = parse_path(path) else {
            return Err(Failure::new(StatusCode::NOT_FOUND, "no such operation"));
        };
        let command = match (method, command) {
            (&Method::DELETE, "") => "remove".to_owned(),
            (&Method::POST, command) if !command.is_empty() => command.to_owned(),
            _ => {
                return Err(Failure::new(
                    StatusCode::METHOD_NOT_ALLOWED,
                    "method not allowed; use POST, or DELETE on a service",
                ));
            }
        };
        let (services, body) = (Rc::clone(self), body.to_vec());
        let task = tokio::task::spawn_local(async move { services.audited(&service, &command, &body).await });
        match task.await {
            Ok(answer) => answer,
            Err(_) => Err(Failure::new(StatusCode::INTERNAL_SERVER_ERROR, "the command failed unexpectedly")),
        }
    }

    async fn audited(&self, service: &str, command: &str, body: &[u8]) -> Result<Value, Failure> {
        let asked = String::from_utf8_lossy(body).into_owned();
        tracing::info!(service, command, asked, "received a service command");
        let change = self.site.changes.begin(format!("{command} of {service}"));
        let outcome = match &change {
            Ok(_) => self.carry_out(service, command, body).await?,
            Err(error) => Err(ServiceError::Busy(error.to_string())),
        };
        match outcome {
            Ok(done) => {
                tracing::info!(service, command, note = done.note, "service command completed");
                Ok(json!(done))
            }
            Err(error) => {
                let details = error.details().join("; ");
                tracing::error!(service, command, %error, details, "refused; nothing has changed");
                let status = StatusCode::from_u16(error.status()).unwrap_or(StatusCode::BAD_REQUEST);
                Err(Failure::with(status, json!(ApiError::from(&error))))
            }
        }
    }

    /// The outer error is about the request, the inner one about the service.
    async fn carry_out(
        &self,
        service: &str,
        command: &str,
        body: &[u8],
    ) -> Result<Result<Done, ServiceError>, Failure> {
        let done = match command {
            "deploy" => self.deploy(service, read(body)?).await,
            "remove" => self.remove(service).await,
            "pause" => self.pause(service, read(body)?).await,
            "stop" => self.stop(service, read(body)?).await,
            "resume" => self.resume(service).await,
            "rollout/deploy" => self.rollout_deploy(service, read(body)?).await,
            "rollout/set" => self.rollout_set(service, read(body)?).await,
            "rollout/stop" => self.rollout_stop(service).await,
            "set-weight" => {
                let SetWeightRequest { target, weight } = read(body)?;
                return Ok(self.adjust(service, &target, Change::weight(weight)).await);
            }
            "disable" | "enable" => {
                let change = if command == "enable" { Change::Enable } else { Change::Disable };
                let TargetRequest { target } = read(body)?;
                return Ok(self.adjust(service, &target, Ok(change)).await);
            }
            _ => return Err(Failure::new(StatusCode::NOT_FOUND, "no such operation")),
        };
        Ok(done.map(|()| Done::default()))
    }
}
