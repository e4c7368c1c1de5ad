//! The connection to the Kubernetes API.

use kube::config::{Config, InClusterError, KubeConfigOptions, Kubeconfig, KubeconfigError};
use std::path::Path;
use std::time::Duration;

/// A bookmark comes about once a minute on every watch. Where nothing at all is heard for longer,
/// the peer is gone although no packet said so; reading on would miss deletions.
const SILENCE: Duration = Duration::from_secs(90);
const CONNECT: Duration = Duration::from_secs(10);

/// Why there is no client.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClientError {
    /// The named kubeconfig, or the named context in it, cannot be used.
    #[error("kubeconfig: {0}")]
    Kubeconfig(#[source] KubeconfigError),
    /// Neither in a cluster nor a default kubeconfig.
    #[error("no way to the Kubernetes API: in-cluster: {in_cluster}; kubeconfig: {kubeconfig}")]
    NotFound {
        /// Why this is not a Pod with a service account.
        in_cluster: InClusterError,
        /// Why the default kubeconfig cannot be used.
        #[source]
        kubeconfig: KubeconfigError,
    },
    /// The settings were found, but no client can be made of them.
    #[error("client: {0}")]
    Client(#[source] kube::Error),
}

/// A client from the kubeconfig named here, else from the Pod's service account, else from the
/// default kubeconfig. Naming only a context means the default kubeconfig. Makes no connection yet.
pub async fn client(kubeconfig: Option<&Path>, context: Option<&str>) -> Result<kube::Client, ClientError> {
    let options = KubeConfigOptions { context: context.map(str::to_owned), ..Default::default() };
    let mut config = match (kubeconfig, context) {
        (Some(path), _) => {
            let file = Kubeconfig::read_from(path).map_err(ClientError::Kubeconfig)?;
            Config::from_custom_kubeconfig(file, &options).await.map_err(ClientError::Kubeconfig)?
        }
        (None, Some(_)) => Config::from_kubeconfig(&options).await.map_err(ClientError::Kubeconfig)?,
        (None, None) => match Config::incluster() {
            Ok(config) => config,
            Err(in_cluster) => Config::from_kubeconfig(&options)
                .await
                .map_err(|kubeconfig| ClientError::NotFound { in_cluster, kubeconfig })?,
        },
    };
    config.connect_timeout = Some(CONNECT);
    config.read_timeout = Some(SILENCE);
    // its own retries reach minutes of waiting; watches and Events have theirs
    config.default_retry = false;
    kube::Client::try_from(config).map_err(ClientError::Client)
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = "apiVersion: v1
kind: Config
clusters: [{name: a, cluster: {server: 'http://127.0.0.1:1'}}]
users: [{name: u, user: {token: t}}]
contexts: [{name: one, context: {cluster: a, user: u, namespace: there}}]
";

    #[tokio::test]
    async fn a_named_kubeconfig_is_used_and_its_faults_are_told() {
        let path = std::env::temp_dir().join(format!("tak-kubeconfig-{}", std::process::id()));
        assert!(matches!(client(Some(&path), None).await, Err(ClientError::Kubeconfig(_))));
        std::fs::write(&path, FILE).unwrap();
        let found = client(Some(&path), Some("one")).await;
        let wrong = client(Some(&path), Some("two")).await;
        std::fs::remove_file(&path).unwrap();
        assert_eq!(found.unwrap().default_namespace(), "there");
        assert!(matches!(wrong, Err(ClientError::Kubeconfig(_))));
    }
}
