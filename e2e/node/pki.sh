#!/usr/bin/env bash
# Keys, certificates and kubeconfigs: pki.sh for the control plane, pki.sh I for node I. What is there stays.
set -euo pipefail
# shellcheck source=env.sh
. "$(dirname "$0")/env.sh"
P=$RUN/pki
mkdir -p "$P"
cd "$P"

key() { openssl ecparam -name prime256v1 -genkey -noout -out "$1.key"; }
cert() { # NAME SUBJECT USAGE [NAMES]
  key "$1"
  printf 'basicConstraints=CA:FALSE\nkeyUsage=critical,digitalSignature\nextendedKeyUsage=%s\n' "$3" >"$1.ext"
  [ -z "${4:-}" ] || echo "subjectAltName=$4" >>"$1.ext"
  openssl req -new -key "$1.key" -subj "$2" -out "$1.csr"
  openssl x509 -req -in "$1.csr" -CA ca.crt -CAkey ca.key -CAcreateserial -days 30 -extfile "$1.ext" -out "$1.crt" 2>/dev/null
  rm -f "$1.csr" "$1.ext"
}
kubeconfig() { # NAME CERTIFICATE ADDRESS
  cat >"$RUN/$1.kubeconfig" <<Y
apiVersion: v1
kind: Config
current-context: e2e
clusters: [{name: e2e, cluster: {server: "https://$3:$API_PORT", certificate-authority: $P/ca.crt}}]
users: [{name: $1, user: {client-certificate: $P/$2.crt, client-key: $P/$2.key}}]
contexts: [{name: e2e, context: {cluster: e2e, user: $1}}]
Y
  chmod 600 "$RUN/$1.kubeconfig"
}

if [ $# = 1 ]; then
  name=node$1
  [ ! -e "$name-server.crt" ] || exit 0
  cert "$name" "/O=system:nodes/CN=system:node:$name" clientAuth
  cert "$name-server" "/CN=$name" serverAuth "DNS:$name,IP:$NET.$1,IP:127.0.0.1"
  kubeconfig "$name" "$name" "$NET.1"
  kubeconfig "$name-proxy" kube-proxy "$NET.1"
  exit 0
fi
[ ! -e .done ] || exit 0
key ca
openssl req -x509 -new -key ca.key -subj /CN=e2e-ca -days 30 -out ca.crt \
  -addext basicConstraints=critical,CA:TRUE -addext keyUsage=critical,keyCertSign,cRLSign,digitalSignature
cert apiserver /CN=kube-apiserver serverAuth "DNS:kubernetes,DNS:kubernetes.default,DNS:kubernetes.default.svc,DNS:localhost,IP:127.0.0.1,IP:10.96.0.1,IP:$NET.1"
cert apiserver-kubelet-client /O=system:masters/CN=kube-apiserver-kubelet-client clientAuth
cert admin /O=system:masters/CN=admin clientAuth
cert kube-controller-manager /CN=system:kube-controller-manager clientAuth
cert kube-scheduler /CN=system:kube-scheduler clientAuth
cert kube-proxy /CN=system:kube-proxy clientAuth
key sa
openssl ec -in sa.key -pubout -out sa.pub 2>/dev/null
for user in admin kube-controller-manager kube-scheduler; do kubeconfig $user $user 127.0.0.1; done
touch .done
