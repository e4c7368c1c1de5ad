# The image as `make image` builds it, for those who build with Docker, Podman, Buildah or Kaniko:
#   docker buildx build --platform linux/amd64,linux/arm64 --build-arg VERSION=… --build-arg REVISION=$(git rev-parse HEAD) .
FROM docker.io/library/rust:1.95.0-bookworm AS build
RUN apt-get update \
 && apt-get install -y --no-install-recommends build-essential ca-certificates libcap2-bin perl pkg-config python3 \
 && rm -rf /var/lib/apt/lists/*
WORKDIR /src
COPY . .
RUN cargo build --locked --release --bin tak-os-ingress \
 && hack/rootfs.sh target/release/tak-os-ingress /rootfs \
 && setcap cap_net_bind_service=+ep /rootfs/usr/bin/tak-os-ingress

FROM scratch
ARG VERSION=unknown
ARG REVISION=unknown
LABEL org.opencontainers.image.title="tak-os-ingress" \
      org.opencontainers.image.description="A Kubernetes ingress controller and proxy in one process" \
      org.opencontainers.image.version="$VERSION" \
      org.opencontainers.image.revision="$REVISION" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.source="https://gitlab.com/tak-os-platform/tak-os-containers/tak-os-ingress"
COPY --from=build /rootfs/ /
ENV SSL_CERT_FILE=/etc/ssl/certs/ca-certificates.crt
USER 65532:65532
EXPOSE 80 443 9090
ENTRYPOINT ["/usr/bin/tak-os-ingress"]
