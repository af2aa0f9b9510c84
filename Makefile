# The two commands that matter: `make demo` and `make test`. Each does all of its own set-up on a fresh Debian 12 as root.
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
.PHONY: help setup build lint test sdks prepare demo bench faults soak fuzz clean

CARGO ?= cargo
# Engines, kernel, templates and golden snapshots that demo and tests share; made once.
export WAKEFUL_TEST_CACHE ?= $(CURDIR)/target/test-cache
WAKEFUL := target/release/wakeful
NEXTEST := $(shell $(CARGO) nextest --version >/dev/null 2>&1 && echo yes)

help:  ## What there is
	@sed -n 's/^\([a-z]*\):.*##/\1\t/p' $(MAKEFILE_LIST)

setup:  ## Packages to build with
	@scripts/host-setup

build: setup  ## The program `wakeful`, with the agent inside
	$(CARGO) build --release --locked --workspace --bins

# Each runtime by its name: with `auto` a runsc that cannot be had would be a warning.
prepare: build  ## Engines, kernel and built-in templates for demo and tests, for every runtime; one that is missing is a failure
	@mkdir -p "$$WAKEFUL_TEST_CACHE"
	$(WAKEFUL) setup --runtime gvisor --data-dir "$$WAKEFUL_TEST_CACHE/data"
	$(WAKEFUL) setup --runtime qemu --data-dir "$$WAKEFUL_TEST_CACHE/data"

lint: setup  ## Format, clippy, documentation
	$(CARGO) fmt --all --check
	$(CARGO) clippy --release --locked --workspace --all-targets -- -D warnings
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --release --locked --workspace --no-deps --quiet

sdks: prepare  ## The SDKs: types, drift, examples of their pages, and one list of scenarios against a real daemon
	@scripts/host-setup chromium nodejs python3-venv
	sdks/python/scripts/test
	sdks/typescript/scripts/test

test: prepare lint sdks  ## All tests, with real engines; a missing engine is a failure
	@scripts/host-setup attr bind9-dnsutils busybox-static curl dnsmasq-base docker-registry e2fsprogs iproute2 iputils-ping nftables nodejs openssl python3-venv skopeo sqlite3 tmux umoci zstd
ifeq ($(NEXTEST),yes)
	$(CARGO) nextest run --release --locked --workspace
else
	RUST_TEST_THREADS=2 $(CARGO) test --release --locked --workspace --tests
endif

demo: prepare  ## Create, count in memory, sleep, wake, on every runtime, and check it from outside
	@$(CARGO) run --release --locked --quiet --package wakeful-testkit --bin wakeful-demo

bench: prepare  ## What the daemon adds to the bare engine; ARGS=--quick for a look
	@$(WAKEFUL) bench --data-dir "$$WAKEFUL_TEST_CACHE/data" $(ARGS)

faults: prepare  ## SIGKILL at every point that the daemon names, to itself and to the engine
	WAKEFUL_FAULTS=all $(CARGO) test --release --locked --package wakeful-testkit --test it -- \
		faults::killed_at_any_point_nothing_is_lost_and_nothing_left --nocapture $(ARGS)

soak: prepare  ## What takes its time: random lives of sandboxes (ARGS="--cycles 500"), a connection silent for eleven minutes
	@scripts/host-setup python3
	$(CARGO) run --release --locked --quiet --package wakeful-testkit --bin wakeful-soak -- $(ARGS)
	WAKEFUL_SOAK=1 $(CARGO) test --release --locked --package wakeful-testkit --test it -- \
		previews::an_idle_websocket_lets_it_sleep

fuzz: setup  ## Every reader of foreign bytes under libFuzzer, for as long as ARGS says
	scripts/fuzz $(ARGS)

clean:  ## Everything that was built
	$(CARGO) clean
