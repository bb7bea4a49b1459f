# What can be done here. Every target says what it does and how long it took.
# Variables of the development cluster: hack/README.md.

SHELL := bash
# Outside the work tree, so that a new checkout finds its dependencies built.
export CARGO_TARGET_DIR := $(or $(CARGO_TARGET_DIR),$(shell hack/target))

.PHONY: help demo demo-down test test-fast test-full dev-up dev-down dev-status crds chart image e2e lint advisories bench

help: ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 14

demo: ## the main job, end to end: a retry topology from a manifest, and replays of what died
	@hack/demo

demo-down: ## ends what the demo started
	@hack/demo down

test: ## everything that CI runs: lint, unit, real brokers, real Kubernetes, the demo
	@hack/test all

test-fast: ## what needs neither cluster nor broker
	@hack/test fast

test-full: ## everything, with the long kill and soak series
	@REDRIVE_TEST_FULL=1 hack/test all

dev-up: ## the development cluster: Kubernetes with a node, RabbitMQ 4.3 and 4.0
	@hack/dev up

dev-down: ## stops it; its data stays
	@hack/dev down

dev-status: ## what runs, where, and its logs
	@hack/dev status

crds: ## writes crds/ from the types
	@hack/step "writing crds/" env UPDATE_CRDS=1 cargo test --quiet --test crds

chart: ## writes what is generated in charts/redrive: copies of crds/ and admission/, the table of values
	@hack/step "writing charts/redrive" env UPDATE_CHART=1 cargo test --quiet --test chart

image: ## the image for amd64 and arm64 as an OCI layout, and what is built into it (SBOM)
	@hack/step "making the image" hack/image

e2e: ## the chart with the built image on the development cluster's node, by itself
	@hack/e2e

lint: ## formatter, clippy, dependencies, shell scripts
	@hack/lint

advisories: ## known vulnerabilities among the dependencies (needs the advisory database)
	@hack/step "asking the advisory database" "$$(hack/tools cargo-deny)" check advisories

bench: ## the figures of docs/benchmarks.md, side by side with their anchors
	@hack/bench
