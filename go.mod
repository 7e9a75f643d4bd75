module github.com/execagent/execagent

go 1.26.8

// The product. docs/adr/0001-libraries.md has the longer reasons.
require (
	github.com/BurntSushi/toml v1.6.0 // environmentConfig/read, environments.toml: complete TOML 1.0
	github.com/aws/aws-sdk-go-v2 v1.47.7 // AWS signatures: the signer alone
	github.com/bmatcuk/doublestar/v4 v4.10.4 // deny globs
	github.com/creack/pty v1.1.24 // terminals: opening a pty, its size
	github.com/flynn/noise v1.1.0 // the relay's ciphers, and cipher states
	github.com/google/uuid v1.6.0 // session ids, ids of threads and turns
	github.com/gorilla/websocket v1.5.3 // both ends of every WebSocket
	github.com/klauspost/compress v1.20.3 // answers to http/request: zstd, and deflate that returns what was flushed
	github.com/landlock-lsm/go-landlock v0.11.0 // Landlock rulesets
	github.com/segmentio/asm v1.2.1 // base64 with vector instructions
	go.starlark.net v0.0.0-20260908191801-89a6a09411d5 // rules about commands: the language of their files
	go.yaml.in/yaml/v3 v3.0.6 // front matter of skills
	golang.org/x/crypto v0.58.0 // sealed boxes of agent identities
	golang.org/x/crypto/x509roots/fallback v0.0.0-20261030153154-30a33513ff6d // trusted roots where the host has none
	golang.org/x/net v0.62.0 // names of hosts in other letters than ASCII, for patterns; proxies of the environment; an interpreter for the filters, in tests
	golang.org/x/sync v0.24.0 // weighted semaphores: bounds on bytes in flight
	golang.org/x/sys v0.49.0 // Linux calls that syscall no longer grows
	golang.org/x/text v0.43.0 // rules about commands: canonical forms of Unicode
	kernel.org/pub/linux/libs/security/libcap/psx v1.2.77 // system calls on all threads, also of builds with cgo
	mvdan.cc/sh/v3 v3.14.1 // rules about commands: the commands in a script of a shell
)

// Clients that project capabilities, never the agent.
require github.com/modelcontextprotocol/go-sdk v1.8.0 // MCP servers: the protocol's own library

// The registry, never the agent.
require (
	github.com/nats-io/nats-server/v2 v2.15.2 // state and routing, embedded
	github.com/nats-io/nats.go v1.55.0 // the same, of a cluster
	github.com/prometheus/client_golang v1.25.0 // metrics
	github.com/prometheus/common v0.72.0 // their text, read again by "registry status"
	golang.org/x/time v0.16.0 // limits of rates
)

// Test dependencies.
require (
	github.com/google/go-cmp v0.7.0 // differences that people can read
	github.com/google/jsonschema-go v0.4.3 // the JSON Schema of the contract, against the decoders
	github.com/moby/profiles/seccomp v0.2.4 // the filter that Docker puts on containers
	github.com/opencontainers/runtime-spec v1.2.1 // its types
	github.com/prometheus/client_model v0.6.3 // metrics, as tests compare them
	github.com/rogpeppe/go-internal v1.16.0 // testscript: the command line as its users type it
	go.uber.org/goleak v1.3.0 // no goroutine outlives its test
	google.golang.org/protobuf v1.36.12 // a second implementation of the relay's frames
	pgregory.net/rapid v1.3.0 // properties, with counterexamples made small
	sigs.k8s.io/yaml v1.6.0 // the alerts in deploy
)

// The compiler of the filters, for sandbox/filtergen alone (cgo).
require github.com/seccomp/libseccomp-golang v0.11.1

require golang.org/x/tools v0.51.0 // indirect; of testscript

require (
	github.com/antithesishq/antithesis-sdk-go v0.8.0-default-no-op // indirect
	github.com/aws/smithy-go v1.28.8 // indirect
	github.com/beorn7/perks v1.0.1 // indirect
	github.com/cespare/xxhash/v2 v2.3.0 // indirect
	github.com/google/go-tpm v0.9.8 // indirect
	github.com/minio/highwayhash v1.0.4 // indirect
	github.com/munnerz/goautoneg v0.0.0-20191010083416-a7dc8b61c822 // indirect
	github.com/nats-io/jwt/v2 v2.8.2 // indirect
	github.com/nats-io/nkeys v0.4.16 // indirect
	github.com/nats-io/nuid v1.0.1 // indirect
	github.com/prometheus/procfs v0.22.0 // indirect
	github.com/segmentio/encoding v0.5.4 // indirect
	github.com/yosida95/uritemplate/v3 v3.0.2 // indirect
	go.yaml.in/yaml/v2 v2.4.4 // indirect
	golang.org/x/oauth2 v0.37.0 // indirect
)
