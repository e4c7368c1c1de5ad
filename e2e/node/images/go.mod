// What runs in the Pods of the node tests: ../build.sh builds it.
module tak-os-ingress/e2e/node/images

go 1.26.0
