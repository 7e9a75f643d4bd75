module github.com/execagent/execagent

go 1.26.8

// The product. docs/adr/0001-libraries.md has the longer reasons.
require (
	github.com/BurntSushi/toml v1.6.0 // environmentConfig/read: complete TOML 1.0
	github.com/alecthomas/kong v1.17.0 // command line: flags and variables from one struct
	github.com/bmatcuk/doublestar/v4 v4.10.4 // deny globs
	github.com/creack/pty v1.1.24 // terminals: opening a pty, its size
	github.com/google/uuid v1.6.0 // session ids
	github.com/gorilla/websocket v1.5.3 // both ends of the WebSocket transport
	github.com/landlock-lsm/go-landlock v0.11.0 // Landlock rulesets
	github.com/segmentio/asm v1.2.1 // base64 with vector instructions
	golang.org/x/crypto/x509roots/fallback v0.0.0-20261030153154-30a33513ff6d // trusted roots where the host has none
	golang.org/x/sync v0.24.0 // weighted semaphores: bounds on bytes in flight
	golang.org/x/sys v0.49.0 // Linux calls that syscall no longer grows
	kernel.org/pub/linux/libs/security/libcap/psx v1.2.77 // system calls on all threads, also of builds with cgo
)

// Test dependencies.
require (
	github.com/google/go-cmp v0.7.0 // differences that people can read
	github.com/rogpeppe/go-internal v1.16.0 // testscript: the command line as its users type it
	go.uber.org/goleak v1.3.0 // no goroutine outlives its test
	golang.org/x/net v0.62.0 // an interpreter for the filters
	pgregory.net/rapid v1.3.0 // properties, with counterexamples made small
)

// The compiler of the filters, for sandbox/filtergen alone (cgo).
require github.com/seccomp/libseccomp-golang v0.11.1

require golang.org/x/tools v0.26.0 // indirect; of testscript
