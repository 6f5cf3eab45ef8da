//! Watches the files of networks that `access` names.

use std::sync::Arc;
use std::time::Duration;

use sluice_core::access::NetworkList;

/// How often they are looked at. A change of the links on the way to a file, as Kubernetes makes it, is one as well,
/// and so is one on a network file system: neither is reported by inotify.
const INTERVAL: Duration = Duration::from_secs(1);

/// Reads lists again when their files change.
pub(crate) async fn watch(lists: Vec<Arc<NetworkList>>) {
    loop {
        tokio::time::sleep(INTERVAL).await;
        let looked_at = lists.clone();
        let looking = move || looked_at.iter().for_each(|list| refresh(list));
        if tokio::task::spawn_blocking(looking).await.is_err() {
            return;
        }
    }
}

fn refresh(list: &NetworkList) {
    let file = list.file().display();
    match list.refresh() {
        Ok(None) => {}
        Ok(Some(networks)) => tracing::info!(%file, networks, "read a list of networks again"),
        Err(error) => {
            tracing::warn!(%file, "a list of networks cannot be used, and stays as it was: {error}")
        }
    }
}
