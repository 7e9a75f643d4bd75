package main

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/execagent/execagent/cmd/internal/cli"
	"github.com/execagent/execagent/cmd/internal/program"
	"github.com/execagent/execagent/internal/build"
	"github.com/execagent/execagent/internal/registry/limits"
	"github.com/execagent/execagent/internal/registry/store"
	"github.com/execagent/execagent/internal/unixsocket"
	"github.com/execagent/execagent/registry"
)

// commandLine is the grammar of the command line, and lists all commands.
type commandLine struct {
	Serve serveFlags `cmd:"" default:"withargs" help:"Serve executors and harnesses. This is the default command."`
	Keys  struct {
		Create keysCreateFlags `cmd:"" help:"Make an API key, and print it once."`
		List   keysListFlags   `cmd:"" aliases:"ls" help:"List API keys, without the keys themselves."`
		Rotate keysRotateFlags `cmd:"" help:"Replace an API key by a new one with the same id and rights."`
		Revoke keysRevokeFlags `cmd:"" aliases:"rm" help:"Make an API key invalid at once."`
	} `cmd:"" help:"API keys of executors and harnesses."`
	Identities struct {
		Add    identitiesAddFlags    `cmd:"" help:"Let an agent identity register environments."`
		List   identitiesListFlags   `cmd:"" aliases:"ls" help:"List agent identities."`
		Remove identitiesRemoveFlags `cmd:"" aliases:"rm" help:"Make an agent identity invalid at once."`
	} `cmd:"" help:"Agents that sign in with a key of their own."`
	Config struct {
		Show configShowFlags `cmd:"" help:"Show which options are set, and where."`
	} `cmd:"" help:"Show which options are set, and where."`
	Environments environmentsFlags `cmd:"" help:"List the environments that are online."`
	Status       statusFlags       `cmd:"" help:"Show which processes run, their limits, and who is online."`
	Backup       backupFlags       `cmd:"" help:"Write everything that a registry must keep to a file."`
	Restore      restoreFlags      `cmd:"" help:"Restore a backup into an empty store."`
	Version      versionFlags      `cmd:"" help:"Print the version and what it is compatible with."`
	Completion   completionFlags   `cmd:"" help:"Print a completion script for a shell."`
}

// ownFlags are the flags of the program itself, which take effect at once.
type ownFlags struct {
	Version bool `help:"Print the version, like registry version."`
}

// versionFlags say how to print the version.
type versionFlags struct {
	JSON   bool   `name:"json" env:"REGISTRY_VERSION_JSON" help:"Print the version as a JSON object, as -o json does."`
	Output string `short:"o" name:"output" default:"text" enum:"text,json" placeholder:"FORMAT" help:"Output format: text, or json for programs. Default: ${default}."`
}

func (f *versionFlags) run(sys system) error {
	return build.This("registry").Print(sys.stdout, f.JSON || f.Output == "json")
}

const description = `Runs the registry and rendezvous of remote mode. Executors register and wait here; harnesses find them here. Their traffic passes through encrypted. The registry cannot read it, except for environments that --direct names.

Without a command, registry starts the server. registry serve --help lists the server's options.

An option whose help names an environment variable can also be set by that variable, or in a file (see registry config show --help).

Examples:

  registry --listen 127.0.0.1:8080                            serve on this machine
  registry keys create --role executor --environment 'ci-*'   make a key for executors
  registry keys create --role harness --environment 'ci-*'    make a key for harnesses, which use them
  registry environments                                       show who is online
  registry status                                             show which processes run, and their limits`

// commands returns the commands of the program, for a user with the homes of a system.
func commands(sys system) *cli.App {
	data := defaultData(sys)
	return &cli.App{
		Name:        "registry",
		Description: description,
		Commands:    commandLine{},
		Own:         ownFlags{},
		Sections: []cli.Section{
			{Key: "store", Title: "Where keys, identities and registrations are stored:"},
			{Key: "web", Title: "How clients connect:"},
			{Key: "limits", Title: "Limits of each principal, at each registry process (a negative number is no limit):"},
			{Key: "memory", Title: "Memory:"},
			{Key: "log", Title: "Log:"},
		},
		Vars: map[string]string{
			"data":          data,
			"data_help":     cmp.Or(data, "none, without an absolute HOME or XDG_STATE_HOME"),
			"requests":      fmt.Sprint(limits.DefaultRequests),
			"request_burst": fmt.Sprint(limits.DefaultRequestBurst),
			"connections":   fmt.Sprint(limits.DefaultConnections),
			"streams":       fmt.Sprint(limits.DefaultStreams),
			"bytes":         fmt.Sprint(limits.DefaultBytes),
			"grace":         registry.DefaultGrace.String(),
			"skew":          registry.DefaultClockSkew.String(),
		},
	}
}

// defaultData returns the folder of the state for the case that no flag names a folder. It returns
// "" if the folder would be relative, because a registry that is started in another working
// directory would not find the keys.
func defaultData(sys system) string {
	state := sys.state
	if state == "" && filepath.IsAbs(sys.home) {
		state = filepath.Join(sys.home, ".local", "state")
	}
	if !filepath.IsAbs(state) {
		return ""
	}
	return filepath.Join(state, "execagent-registry")
}

// storeFlags name the place for the state of a registry.
type storeFlags struct {
	Data         string `default:"${data}" env:"REGISTRY_DATA" type:"path" group:"store" placeholder:"DIR" help:"Folder for an embedded NATS server. Not used with --nats-url. Default: ${data_help}."`
	NATSURL      string `env:"REGISTRY_NATS_URL" name:"nats-url" group:"store" placeholder:"URL" help:"NATS cluster with JetStream, 2.11 or newer; several servers are separated by commas."`
	NATSCreds    string `env:"REGISTRY_NATS_CREDS" name:"nats-creds" type:"path" group:"store" placeholder:"FILE" help:"Credentials file for --nats-url."`
	NATSReplicas int    `env:"REGISTRY_NATS_REPLICAS" name:"nats-replicas" group:"store" placeholder:"N" help:"Number of servers of the cluster that keep a copy of everything, 1 to 5. Default: unchanged; 1 for a new store."`
}

// Check finds flags that contradict each other. A command that embeds these flags and has its own
// Check calls this Check there, because its own Check hides this one from the parser.
func (f *storeFlags) Check() error {
	switch {
	case f.NATSURL == "" && f.NATSCreds != "":
		return errors.New("--nats-creds needs --nats-url")
	case f.NATSURL == "" && f.NATSReplicas != 0:
		return errors.New("--nats-replicas needs --nats-url")
	case f.NATSReplicas < 0 || f.NATSReplicas > 5:
		return fmt.Errorf("--nats-replicas %d is not 1 to 5", f.NATSReplicas)
	case f.NATSURL == "" && f.Data == "":
		return errors.New("--data is missing, and there is no default because neither XDG_STATE_HOME nor HOME is an absolute path")
	}
	return nil
}

// config returns the configuration of the store: in a NATS cluster, else in the folder.
func (f *storeFlags) config(logger *slog.Logger) store.Config {
	cfg := store.Config{URL: f.NATSURL, CredentialsFile: f.NATSCreds, Replicas: f.NATSReplicas, Logger: logger}
	if f.NATSURL == "" {
		cfg.Dir = f.Data
	}
	return cfg
}

// serveFlags are the flags of the server.
type serveFlags struct {
	Listen       string        `default:"127.0.0.1:8080" env:"REGISTRY_LISTEN" group:"web" placeholder:"ADDRESS" help:"Where to listen: an address such as 127.0.0.1:8080, localhost:8080 or :8080 for all addresses; its URL; or unix:///PATH for a proxy on this machine. Port 0 takes a free one. The bound URL is printed on one line; with --log-format json it is only logged. Default: ${default}."`
	AllowUID     []uint32      `env:"REGISTRY_ALLOW_UID" name:"allow-uid" group:"web" placeholder:"UID" help:"User who may also connect to the UNIX socket, in addition to this user and root. Can be repeated."`
	Metrics      string        `env:"REGISTRY_METRICS_LISTEN" name:"metrics-listen" group:"web" placeholder:"HOST:PORT" help:"Serve /metrics, /healthz and /readyz on this address, over plain http and without a key. Then --listen does not serve /metrics."`
	PublicURL    string        `env:"REGISTRY_PUBLIC_URL" name:"public-url" group:"web" placeholder:"URL" help:"URL of this registry for clients. Rendezvous URLs begin with it, and AWS signatures must be for its host. Default: the URL of each request; AWS signatures are then accepted only for localhost."`
	TLSCert      string        `env:"REGISTRY_TLS_CERT" name:"tls-cert" type:"path" group:"web" placeholder:"FILE" help:"Certificate chain (PEM). The certificate and its key are read again when the files change, and at SIGHUP."`
	TLSKey       string        `env:"REGISTRY_TLS_KEY" name:"tls-key" type:"path" group:"web" placeholder:"FILE" help:"Private key (PEM) of --tls-cert."`
	BehindProxy  bool          `env:"REGISTRY_BEHIND_PROXY" group:"web" help:"Serve plain http on an address that is not loopback, because TLS ends at a proxy in front. Make sure that nobody else can reach the port."`
	TrustProxy   bool          `env:"REGISTRY_TRUST_PROXY" group:"web" help:"Trust X-Forwarded-Proto and X-Forwarded-Host. The proxy must set or remove them on every request."`
	DrainTimeout time.Duration `default:"25s" env:"REGISTRY_DRAIN_TIMEOUT" group:"web" placeholder:"DURATION" help:"How long streams may take to move to another registry process after SIGTERM. Default: ${default}."`
	Grace        time.Duration `default:"${grace}" env:"REGISTRY_GRACE" group:"web" placeholder:"DURATION" help:"How long to keep a stream that can be resumed while one of its websockets is missing. Default: ${default}."`
	Direct       string        `env:"REGISTRY_DIRECT" group:"web" placeholder:"PATTERN" help:"Environments that may use the direct transport; * stands for any characters. Whoever runs this registry, or a proxy in front where TLS ends, can read and change all traffic of these environments. Default: none."`
	ClockSkew    time.Duration `default:"${skew}" env:"REGISTRY_CLOCK_SKEW" group:"web" placeholder:"DURATION" help:"How far the clocks of agent identities may be off. Default: ${default}."`

	Requests     float64      `default:"${requests}" env:"REGISTRY_REQUESTS" group:"limits" placeholder:"N" help:"API requests per second. Default: ${default}."`
	RequestBurst int          `default:"${request_burst}" env:"REGISTRY_REQUEST_BURST" group:"limits" placeholder:"N" help:"API requests in one burst. Default: ${default}."`
	Connections  int          `default:"${connections}" env:"REGISTRY_CONNECTIONS" group:"limits" placeholder:"N" help:"Open websockets. Default: ${default}."`
	Streams      int          `default:"${streams}" env:"REGISTRY_STREAMS" group:"limits" placeholder:"N" help:"Streams of the principal's websockets; for an executor, also the streams that wait for a harness. Default: ${default}."`
	Bytes        program.Size `default:"${bytes}" env:"REGISTRY_BYTES" group:"limits" placeholder:"N" help:"Bytes relayed per second. Each frame counts as its length plus 4 KiB. Default: ${default}."`

	MemoryLimit program.Size `env:"REGISTRY_MEMORY_LIMIT" name:"memory-limit" group:"memory" placeholder:"SIZE" help:"Memory that the process may use. At most half of it may be held for clients that are slow to read or send; when this half is nearly full, the streams that hold the most are ended. It is also the garbage collector's limit, unless GOMEMLIMIT is set. Default: three quarters of the memory of the process's control group, or of the machine."`

	storeFlags

	LogLevel  string `default:"info" enum:"debug,info,warn,error" env:"REGISTRY_LOG_LEVEL" group:"log" placeholder:"LEVEL" help:"What to log on standard error: debug, info, warn or error. Default: ${default}."`
	LogFormat string `default:"text" enum:"text,json" env:"REGISTRY_LOG_FORMAT" group:"log" placeholder:"FORMAT" help:"How to log: text or json. With json, nothing else is printed. Default: ${default}."`
}

func (*serveFlags) Help() string {
	return `Serves until SIGTERM or SIGINT. Then it refuses new websockets, lets streams move to other processes on the same NATS cluster, and ends. A second signal ends it at once. At SIGHUP it looks for a new certificate.

/healthz, /readyz and /metrics need no key. If strangers can reach --listen, move /metrics to another address with --metrics-listen.

Examples:

    registry --listen 127.0.0.1:8080
    registry --listen :8443 --tls-cert cert.pem --tls-key key.pem --public-url https://registry.example.com:8443
    registry --listen :8080 --behind-proxy --trust-proxy --nats-url nats://nats:4222 --nats-replicas 3
    registry --listen unix:///run/registry/socket --allow-uid 33 --trust-proxy

Exit codes: 0 after an orderly end, 1 when it cannot serve, 2 for a wrong command line.`
}

// Check finds flags that contradict each other, or with which keys would be sent unencrypted. The
// parser calls it.
func (f *serveFlags) Check() error {
	host, _, err := net.SplitHostPort(f.address())
	unix := unixsocket.Is(f.Listen)
	if unix {
		_, err = unixsocket.Path(f.Listen)
	}
	switch {
	case unix && err != nil:
		return fmt.Errorf("--listen %.200q: %w", f.Listen, err)
	case unix && f.TLSCert != "":
		return errors.New("--tls-cert cannot be used with a UNIX socket, because TLS ends at the proxy in front")
	case unix && f.PublicURL == "" && !f.TrustProxy:
		return errors.New("a UNIX socket needs --public-url or --trust-proxy, because clients cannot use rendezvous URLs without a host")
	case !unix && len(f.AllowUID) > 0:
		return errors.New("--allow-uid needs --listen unix:///PATH")
	case slices.Contains(f.AllowUID, math.MaxUint32):
		return errors.New("--allow-uid 4294967295 is not a user")
	case err != nil:
		return fmt.Errorf("--listen %.100q is not HOST:PORT", f.Listen)
	case strings.HasPrefix(f.Listen, "https://") && f.TLSCert == "":
		return fmt.Errorf("--listen %.100s needs --tls-cert and --tls-key", f.Listen)
	case strings.HasPrefix(f.Listen, "http://") && f.TLSCert != "":
		return fmt.Errorf("--listen %.100s cannot be used with --tls-cert: write https://", f.Listen)
	case (f.TLSCert == "") != (f.TLSKey == ""):
		return errors.New("--tls-cert and --tls-key must be given together")
	case f.TLSCert == "" && !f.BehindProxy && !unix && !loopback(host):
		return fmt.Errorf("--listen %s is not a loopback address, and keys would be sent unencrypted: give --tls-cert and --tls-key, or --behind-proxy if TLS ends at a proxy in front", f.Listen)
	case f.TLSCert != "" && f.BehindProxy:
		return errors.New("--behind-proxy cannot be used with --tls-cert")
	case f.BehindProxy && f.PublicURL == "" && !f.TrustProxy:
		return errors.New("--behind-proxy needs --public-url or --trust-proxy, because rendezvous URLs would otherwise be without TLS")
	case f.Metrics != "" && !hostAndPort(f.Metrics):
		return fmt.Errorf("--metrics-listen %.100q is not HOST:PORT", f.Metrics)
	case f.DrainTimeout < 0:
		return fmt.Errorf("--drain-timeout %v is negative", f.DrainTimeout)
	case f.Grace <= 0:
		return fmt.Errorf("--grace %v is not positive", f.Grace)
	case f.Direct != "" && store.CheckPattern(f.Direct) != nil:
		return fmt.Errorf("--direct %.64q: %w", f.Direct, store.CheckPattern(f.Direct))
	case f.ClockSkew <= 0:
		return fmt.Errorf("--clock-skew %v is not positive", f.ClockSkew)
	}
	if f.MemoryLimit != 0 && f.MemoryLimit < minMemoryLimit {
		return fmt.Errorf("--memory-limit %d is less than 64M", f.MemoryLimit)
	}
	for _, limit := range []struct {
		name string
		zero bool
	}{
		{"requests", f.Requests == 0}, {"request-burst", f.RequestBurst == 0}, {"connections", f.Connections == 0},
		{"streams", f.Streams == 0}, {"bytes", f.Bytes == 0},
	} {
		if limit.zero {
			return fmt.Errorf("--%s 0 would refuse everybody: for no limit give a negative number", limit.name)
		}
	}
	return f.storeFlags.Check()
}

// address returns the HOST:PORT of --listen, which may be written as a URL.
func (f *serveFlags) address() string {
	for _, scheme := range []string{"http://", "https://"} {
		if address, ok := strings.CutPrefix(f.Listen, scheme); ok {
			return strings.TrimSuffix(address, "/")
		}
	}
	return f.Listen
}

func hostAndPort(address string) bool {
	_, _, err := net.SplitHostPort(address)
	return err == nil
}

// loopback reports whether only this machine can reach a listener on host.
func loopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

// limits returns the limits of every principal that has no limits of its own.
func (f *serveFlags) limits() store.Limits {
	return store.Limits{Requests: f.Requests, RequestBurst: f.RequestBurst, Connections: f.Connections, Streams: f.Streams, Bytes: int64(f.Bytes)}
}
