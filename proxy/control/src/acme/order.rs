//! Obtains one certificate (RFC 8555 section 7.4): order, authorizations, challenge, finalization, download.
//!
//! Only the certificate is stored: a repeated order reuses what the authority still remembers.

use std::time::Duration;

use instant_acme::{
    AuthorizationHandle, AuthorizationStatus, ChallengeStatus, Identifier, NewOrder, Order, OrderStatus,
    RetryPolicy,
};
use sluice_config as config;
use sluice_core::tls::Certificate;

use super::account::Session;
use super::challenge::{ChallengeMethods, Shown};
use super::failure::Failure;
use super::{made, window};

/// First delay before polling the authority for the validation result; later delays are longer.
const POLL_FIRST: Duration = Duration::from_millis(500);
const POLL_GROWTH: f32 = 1.5;

/// Orders a certificate for `name`: the chain and its key, in PEM.
///
/// # Errors
/// The authority's reason why there is none.
pub(super) async fn obtain(
    session: &Session,
    name: &str,
    config: &config::Acme,
    ways: &ChallengeMethods,
    replaced: Option<&Certificate>,
) -> Result<String, Failure> {
    let identifiers = [Identifier::Dns(name.to_owned())];
    let mut wanted = NewOrder::new(&identifiers);
    if let Some(profile) = &config.profile {
        wanted = wanted.profile(profile);
    }
    if let Some(id) = replaced.and_then(window::leaf).and_then(|leaf| window::identifier(&leaf)) {
        wanted = wanted.replaces(id);
    }
    let polls = RetryPolicy::new().initial_delay(POLL_FIRST).backoff(POLL_GROWTH);
    let polls = polls.timeout(Duration::from_millis(config.order_timeout_ms));
    let mut order = session.account.new_order(&wanted).await?;
    let mut shown = Vec::new();
    let authorized = authorize(&mut order, ways, &polls, &mut shown).await;
    for one in shown {
        one.withdraw().await;
    }
    authorized?;
    let (key, request) = made::request(name).map_err(Failure::from)?;
    order.finalize_csr(&request).await?;
    let chain = order.poll_certificate(&polls).await?;
    Ok(format!("{chain}\n{key}"))
}

/// Publishes the challenge responses and waits until the authority has validated them. The entries of `shown` stay
/// until then.
async fn authorize(
    order: &mut Order,
    ways: &ChallengeMethods,
    polls: &RetryPolicy,
    shown: &mut Vec<Shown>,
) -> Result<(), Failure> {
    let mut authorizations = order.authorizations();
    while let Some(authorization) = authorizations.next().await {
        shown.extend(show(authorization?, ways).await?);
    }
    if order.state().status == OrderStatus::Ready {
        return Ok(());
    }
    match order.poll_ready(polls).await {
        Ok(OrderStatus::Ready) => Ok(()),
        Ok(_) => Err(reason(order).await),
        Err(error) => Err(error.into()),
    }
}

/// Publishes the response for one name, unless it is authorized already.
async fn show(
    mut authorization: AuthorizationHandle<'_>,
    ways: &ChallengeMethods,
) -> Result<Option<Shown>, Failure> {
    match authorization.status {
        AuthorizationStatus::Valid => return Ok(None),
        AuthorizationStatus::Pending => {}
        other => return Err(Failure::new(format!("the authorization is {other:?}"))),
    }
    let Some(mut challenge) = authorization.challenge(ways.challenge_type()) else {
        return Err(Failure::new(format!("the authority does not offer {}", ways.kind)));
    };
    let identifier = challenge.identifier().identifier.clone();
    let Identifier::Dns(name) = identifier else {
        return Err(Failure::new("the authority asks for an identifier that is not a DNS name"));
    };
    let shown = ways.show(&name, &challenge.token, &challenge.key_authorization()).await?;
    if let Err(error) = challenge.set_ready().await {
        shown.withdraw().await;
        return Err(error.into());
    }
    Ok(Some(shown))
}

/// Why validation failed; only the challenge contains the reason (RFC 8555 section 8).
async fn reason(order: &mut Order) -> Failure {
    let mut authorizations = order.authorizations();
    while let Some(authorization) = authorizations.next().await {
        let Ok(mut authorization) = authorization else { continue };
        let Ok(state) = authorization.refresh().await else { continue };
        let failed = state.challenges.iter().find(|challenge| challenge.status == ChallengeStatus::Invalid);
        if let Some(problem) = failed.and_then(|challenge| challenge.error.as_ref()) {
            return Failure::of_problem(problem);
        }
    }
    Failure::new("the authority gives no reason why the order is invalid")
}
