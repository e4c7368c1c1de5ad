# The one entrance. Programs are built below ~/.cache/tak-os-ingress (XDG_CACHE_HOME and CARGO_TARGET_DIR are honoured).
SHELL := /usr/bin/env bash
.SHELLFLAGS := -euo pipefail -c
.NOTPARALLEL:
.DEFAULT_GOAL := help
ENV := . hack/env.sh;

.PHONY: help deps build release demo test check fmt lint doc deny unit testbed e2e manifest image sbom dashboards loadtest bench e2e-node conformance fuzz

help: ## this list
	@sed -n 's/^\([a-z0-9-]*\):.*## /\1\t/p' Makefile | while IFS=$$'\t' read -r name text; do printf '%-11s %s\n' "$$name" "$$text"; done

deps: ## install what this machine lacks
	@hack/deps.sh test

build: ## development build
	@$(ENV) cargo build --locked --bin tak-os-ingress

release: ## release build, optimised by a profile (PGO=off: without)
	@hack/deps.sh build
	@hack/release.sh

demo: ## install, build, serve the bundled example, show a page through HTTP and HTTPS
	@hack/deps.sh build
	@hack/demo.sh

test: ## install, then everything below
	@hack/test.sh

check: fmt lint doc deny ## formatting, lints, documentation, dependency rules

fmt:
	@$(ENV) cargo fmt --all --check

lint:
	@$(ENV) cargo clippy --locked --workspace --all-targets -- -D warnings

doc:
	@$(ENV) RUSTDOCFLAGS=-Dwarnings cargo doc --locked --no-deps --workspace

deny:
	@hack/deny.sh

unit: ## tests that need no cluster
	@$(ENV) cargo test --locked

testbed: ## build the API server, the etcd and the kubectl of the cluster tests
	@$(ENV) e2e/testbed/build.sh

e2e: ## tests of the binary, with and without a cluster
	@hack/e2e.sh

e2e-node: ## the image as a DaemonSet on two real nodes on this machine; needs root
	@hack/e2e-node.sh

conformance: ## the Gateway API's suite against the image on a real node on this machine; needs root
	@hack/conformance.sh

manifest: ## default/020-daemonset.yaml for a cluster without Orbit: IMAGE=NAME:TAG [OUT=FILE] [OPTIONS=--type=LoadBalancer]
	@hack/render.sh $(IMAGE) $(OPTIONS) $(if $(OUT),--out=$(OUT))

image: ## an image file, without a container engine: [IMAGE=NAME:TAG] [OUT=FILE] [BINARY=FILE]
	@IMAGE="$(IMAGE)" OUT="$(OUT)" BINARY="$(BINARY)" hack/image.sh

sbom: ## bill of materials (CycloneDX) and licences into a folder: [OUT=DIR]
	@$(ENV) hack/sbom.py "$(or $(OUT),$$CARGO_TARGET_DIR/sbom)"

dashboards: ## check dashboards and alerts, against a real Prometheus too
	@hack/dashboards.sh

loadtest: ## check the k6 scripts (none is run)
	@hack/loadtest.sh

bench: ## side by side with other proxies on this machine: [ARGS='--scenarios h1_1k']
	@hack/bench.sh $(ARGS)

fuzz: ## look for inputs that break a reader: each target for FUZZ_SECONDS (60)
	@hack/fuzz.sh run
