//! Every operation of the control API: methods and paths as in `config/openapi.yaml`. Anything else is refused.

use sluice_core::service::api::parse_path;

/// Placeholder for the name of a service in [`OPERATIONS`].
const SERVICE: &str = "{service}";

/// Method and path of each.
const OPERATIONS: &[(&str, &str)] = &[
    ("POST", "/v1/reload"),
    ("POST", "/v1/upgrade"),
    ("GET", "/v1/bans"),
    ("POST", "/v1/bans"),
    ("DELETE", "/v1/bans/{client}"),
    ("GET", "/v1/caches"),
    ("POST", "/v1/caches/purge"),
    ("GET", "/v1/fleet"),
    ("GET", "/v1/services"),
    ("DELETE", "/v1/services/{service}"),
    ("POST", "/v1/services/{service}/deploy"),
    ("POST", "/v1/services/{service}/pause"),
    ("POST", "/v1/services/{service}/resume"),
    ("POST", "/v1/services/{service}/rollout/deploy"),
    ("POST", "/v1/services/{service}/rollout/set"),
    ("POST", "/v1/services/{service}/rollout/stop"),
    ("POST", "/v1/services/{service}/set-weight"),
    ("POST", "/v1/services/{service}/disable"),
    ("POST", "/v1/services/{service}/enable"),
    ("POST", "/v1/services/{service}/stop"),
];

/// The methods of a path; empty if there is no such path.
pub(super) fn methods(path: &str) -> Vec<&'static str> {
    let of_service = parse_path(path).map(|(_, command)| match command {
        "" => format!("/v1/services/{SERVICE}"),
        command => format!("/v1/services/{SERVICE}/{command}"),
    });
    let of_ban =
        path.strip_prefix("/v1/bans/").filter(|client| !client.is_empty()).map(|_| "/v1/bans/{client}");
    let path = of_service.as_deref().or(of_ban).unwrap_or(path);
    OPERATIONS.iter().filter(|(_, known)| *known == path).map(|(method, _)| *method).collect()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::collections::BTreeSet;

    use serde::Serialize;
    use serde_json::Value;
    use sluice_core::service::api::{
        ApiError, DeployRequest, Done, ListResponse, Listed, PauseRequest, RolloutDeployRequest,
        RolloutSetRequest, SetWeightRequest, StopRequest, TargetRequest,
    };
    use sluice_core::service::options::{
        DeploymentOptions, HealthCheckConfig, InFlightLimit, ServiceOptions, TargetOptions,
    };

    use super::*;

    fn document() -> Value {
        serde_yaml::from_str(include_str!("../../../../config/openapi.yaml")).unwrap()
    }

    #[test]
    fn openapi_lists_exactly_the_operations() {
        let document = document();
        let documented: BTreeSet<(String, &str)> = document["paths"]
            .as_object()
            .unwrap()
            .iter()
            .flat_map(|(path, item)| {
                let methods = item.as_object().unwrap().keys().filter(|key| *key != "parameters");
                methods.map(|method| (method.to_uppercase(), path.as_str()))
            })
            .collect();
        let routed: BTreeSet<(String, &str)> =
            OPERATIONS.iter().map(|(method, path)| ((*method).to_owned(), *path)).collect();
        assert_eq!(documented, routed);
    }

    /// Asserts that a schema has the same properties as a complete value, and the same defaults.
    fn same(document: &Value, schema: &str, whole: impl Serialize, default: impl Serialize) {
        let properties = document["components"]["schemas"][schema]["properties"].as_object().unwrap();
        let (whole, default) = (serde_json::to_value(whole).unwrap(), serde_json::to_value(default).unwrap());
        let names = |keys: serde_json::map::Keys<'_>| keys.cloned().collect::<BTreeSet<String>>();
        assert_eq!(names(properties.keys()), names(whole.as_object().unwrap().keys()), "{schema}");
        for (name, property) in properties {
            if let (Some(documented), Some(value)) = (property.get("default"), default.get(name)) {
                assert_eq!(documented, value, "{schema}.{name}");
            }
        }
    }

    #[test]
    fn openapi_lists_every_field_and_default() {
        let document = document();
        let text = || "x".to_owned();
        let options = ServiceOptions {
            exclude_metrics_paths: vec![text()],
            client_ip_header: text(),
            tls_on_demand_url: text(),
            ..ServiceOptions::default()
        };
        let target = TargetOptions {
            max_in_flight: Some(InFlightLimit::Auto),
            queue_size: Some(1),
            ..TargetOptions::default()
        };
        same(&document, "ServiceOptions", options, ServiceOptions::default());
        same(&document, "TargetOptions", target, TargetOptions::default());
        same(&document, "HealthCheckConfig", HealthCheckConfig::default(), HealthCheckConfig::default());
        same(&document, "DeploymentOptions", DeploymentOptions::default(), DeploymentOptions::default());
        same(&document, "DeployRequest", DeployRequest::default(), DeployRequest::default());
        same(
            &document,
            "RolloutDeployRequest",
            RolloutDeployRequest::default(),
            RolloutDeployRequest::default(),
        );
        same(&document, "RolloutSetRequest", RolloutSetRequest::default(), RolloutSetRequest::default());
        same(&document, "PauseRequest", PauseRequest::default(), PauseRequest::default());
        same(&document, "StopRequest", StopRequest::default(), StopRequest::default());
        same(&document, "TargetRequest", TargetRequest::default(), TargetRequest::default());
        same(&document, "SetWeightRequest", SetWeightRequest::default(), SetWeightRequest::default());
        same(&document, "Done", Done { note: Some(text()) }, Done::default());
        let error = ApiError { error: text(), details: vec![text()] };
        same(&document, "Error", error, ApiError::default());
        same(&document, "Services", ListResponse::default(), ListResponse::default());
        let listed = Listed { host: text(), path: text(), tls: false, target: text(), state: text() };
        same(&document, "Service", &listed, &listed);
    }

    #[test]
    fn methods_are_found_by_path() {
        for (path, methods_of_it) in [
            ("/v1/reload", &["POST"][..]),
            ("/v1/services", &["GET"]),
            ("/v1/services/web", &["DELETE"]),
            ("/v1/services/a%2Fb/rollout/set", &["POST"]),
            ("/v1/services/", &[]),
            ("/v1/services/%zz/stop", &[]),
            ("/v1/services/web/nothing", &[]),
            ("/v1/services/{service}", &["DELETE"]),
            ("/v1/bans", &["GET", "POST"]),
            ("/v1/bans/2001:db8::1", &["DELETE"]),
            ("/v1/bans/", &[]),
            ("/v1/caches", &["GET"]),
            ("/v1/caches/purge", &["POST"]),
            ("/v1/caches/other", &[]),
            ("/", &[]),
        ] {
            assert_eq!(methods(path), methods_of_it, "{path}");
        }
    }
}
