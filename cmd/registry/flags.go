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
		Create keysCreateFlags `cmd:"" help:"Make an API key and print it, once."`
		List   keysListFlags   `cmd:"" aliases:"ls" help:"List API keys, without the keys themselves."`
		Rotate keysRotateFlags `cmd:"" help:"Replace an API key by a new one with the same id and rights."`
		Revoke keysRevokeFlags `cmd:"" aliases:"rm" help:"Make an API key invalid, at once."`
	} `cmd:"" help:"API keys of executors and harnesses."`
	Identities struct {
		Add    identitiesAddFlags    `cmd:"" help:"Let an agent identity be an executor."`
		List   identitiesListFlags   `cmd:"" aliases:"ls" help:"List agent identities."`
		Remove identitiesRemoveFlags `cmd:"" aliases:"rm" help:"Make an agent identity invalid, at once."`
	} `cmd:"" help:"Agents that prove with a key of their own who they are."`
	Config struct {
		Show configShowFlags `cmd:"" help:"Tell which options are set, and where."`
	} `cmd:"" help:"Tell which options are set, and where."`
	Environments environmentsFlags `cmd:"" help:"List the environments that are online."`
	Status       statusFlags       `cmd:"" help:"Tell what runs, with which limits, and who is online."`
	Backup       backupFlags       `cmd:"" help:"Write all that a registry has to keep to a file."`
	Restore      restoreFlags      `cmd:"" help:"Read such a file into an empty store."`
	Version      versionFlags      `cmd:"" help:"Print the version and what it is compatible with."`
	Completion   completionFlags   `cmd:"" help:"Print a completion script for a shell."`
}

// versionFlags say how to print the version.
type versionFlags struct {
	JSON bool `name:"json" env:"REGISTRY_VERSION_JSON" help:"Print it as a JSON object."`
}

func (f *versionFlags) run(sys system) error { return build.This("registry").Print(sys.stdout, f.JSON) }

const description = `Runs the registry and rendezvous of remote mode: executors register and wait here, harnesses find them here. What they say to each other passes through encrypted; the registry cannot read it, but for environments that --direct names.

The options of the server need no command before them: registry serve --help lists them.

Every option can also be given as an environment variable, named in its help, and in files: registry config show tells of them.

Examples:

  registry --listen 127.0.0.1:8080                            serve on this machine
  registry keys create --role executor --environment 'ci-*'   make a key for executors
  registry keys create --role harness --environment 'ci-*'    and one for those who use them
  registry environments                                       tell who is online
  registry status                                             tell what runs, and its limits`

// commands are the commands of the program, for a user with the homes of a system.
func commands(sys system) *cli.App {
	data := defaultData(sys)
	return &cli.App{
		Name:        "registry",
		Description: description,
		Commands:    commandLine{},
		Sections: []cli.Section{
			{Key: "store", Title: "Where keys, identities and registrations are:"},
			{Key: "web", Title: "How clients come in:"},
			{Key: "limits", Title: "Limits of a principal, at each registry process; negative: none:"},
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

// defaultData returns the folder of the state, for when no flag names another. It
// returns "" if the folder would be relative: a registry that is started in
// another working directory would not know the keys.
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

// storeFlags say where the state of a registry is kept.
type storeFlags struct {
	Data         string `default:"${data}" env:"REGISTRY_DATA" type:"path" group:"store" placeholder:"DIR" help:"Folder for an embedded NATS server. Not used with --nats-url. Default: ${data_help}."`
	NATSURL      string `env:"REGISTRY_NATS_URL" name:"nats-url" group:"store" placeholder:"URL" help:"NATS cluster with JetStream, 2.11 or newer; several servers are separated by commas."`
	NATSCreds    string `env:"REGISTRY_NATS_CREDS" name:"nats-creds" type:"path" group:"store" placeholder:"FILE" help:"Credentials file for --nats-url."`
	NATSReplicas int    `env:"REGISTRY_NATS_REPLICAS" name:"nats-replicas" group:"store" placeholder:"N" help:"In how many servers of the cluster everything is, 1 to 5. Default: as it is, 1 at first."`
}

// Check finds flags that contradict each other. A command that embeds these flags and
// has a Check of its own calls it there, because its own hides it from the parser.
func (f *storeFlags) Check() error {
	switch {
	case f.NATSURL == "" && f.NATSCreds != "":
		return errors.New("--nats-creds needs --nats-url")
	case f.NATSURL == "" && f.NATSReplicas != 0:
		return errors.New("--nats-replicas needs --nats-url")
	case f.NATSReplicas < 0 || f.NATSReplicas > 5:
		return fmt.Errorf("--nats-replicas %d is not 1 to 5", f.NATSReplicas)
	case f.NATSURL == "" && f.Data == "":
		return errors.New("--data is needed: by default it is in XDG_STATE_HOME, else in HOME, which is no absolute path here")
	}
	return nil
}

// config says how to open the store: of a NATS cluster, else in the folder.
func (f *storeFlags) config(logger *slog.Logger) store.Config {
	cfg := store.Config{URL: f.NATSURL, CredentialsFile: f.NATSCreds, Replicas: f.NATSReplicas, Logger: logger}
	if f.NATSURL == "" {
		cfg.Dir = f.Data
	}
	return cfg
}

// serveFlags are the flags of the server.
type serveFlags struct {
	Listen       string        `default:"127.0.0.1:8080" env:"REGISTRY_LISTEN" group:"web" placeholder:"ADDRESS" help:"Where to listen: 127.0.0.1:8080, localhost:8080, :8080 for all addresses, or the URL of one; port 0 takes a free one; or unix:///PATH, for a proxy on this machine. The bound URL is printed as one line, or with --log-format json logged alone. Default: ${default}."`
	AllowUID     []uint32      `env:"REGISTRY_ALLOW_UID" name:"allow-uid" group:"web" placeholder:"UID" help:"User who may connect to a UNIX socket too, besides this one and root. Can be repeated."`
	Metrics      string        `env:"REGISTRY_METRICS_LISTEN" name:"metrics-listen" group:"web" placeholder:"HOST:PORT" help:"Serve /metrics at a port of its own, in plain http and without a key, with /healthz and /readyz; --listen has no /metrics then."`
	PublicURL    string        `env:"REGISTRY_PUBLIC_URL" name:"public-url" group:"web" placeholder:"URL" help:"What clients know the registry by; the rendezvous URLs start with it, and AWS signatures have to be for its host. Default: what the request came to; signatures count for localhost alone."`
	TLSCert      string        `env:"REGISTRY_TLS_CERT" name:"tls-cert" type:"path" group:"web" placeholder:"FILE" help:"Certificate chain (PEM). It is read again, with its key, when the files change, or at SIGHUP."`
	TLSKey       string        `env:"REGISTRY_TLS_KEY" name:"tls-key" type:"path" group:"web" placeholder:"FILE" help:"Its private key (PEM)."`
	BehindProxy  bool          `env:"REGISTRY_BEHIND_PROXY" group:"web" help:"Serve plain http on an address that is not a loopback one: TLS ends at a proxy in front, and nobody else can reach the port."`
	TrustProxy   bool          `env:"REGISTRY_TRUST_PROXY" group:"web" help:"Believe X-Forwarded-Proto and X-Forwarded-Host, which the proxy sets or removes on every request."`
	DrainTimeout time.Duration `default:"25s" env:"REGISTRY_DRAIN_TIMEOUT" group:"web" placeholder:"DURATION" help:"How long streams may take to move to another registry process after SIGTERM. Default: ${default}."`
	Grace        time.Duration `default:"${grace}" env:"REGISTRY_GRACE" group:"web" placeholder:"DURATION" help:"How long a stream that can be resumed is kept without one of its websockets. Default: ${default}."`
	Direct       string        `env:"REGISTRY_DIRECT" group:"web" placeholder:"PATTERN" help:"Environments that may use the direct transport; * stands for any characters. Whoever runs this registry, or a proxy in front that ends TLS, can read and change all that is said there. Default: none."`
	ClockSkew    time.Duration `default:"${skew}" env:"REGISTRY_CLOCK_SKEW" group:"web" placeholder:"DURATION" help:"How far the clocks of agent identities may be off. Default: ${default}."`

	Requests     float64      `default:"${requests}" env:"REGISTRY_REQUESTS" group:"limits" placeholder:"N" help:"API requests per second. Default: ${default}."`
	RequestBurst int          `default:"${request_burst}" env:"REGISTRY_REQUEST_BURST" group:"limits" placeholder:"N" help:"API requests at once. Default: ${default}."`
	Connections  int          `default:"${connections}" env:"REGISTRY_CONNECTIONS" group:"limits" placeholder:"N" help:"Open websockets. Default: ${default}."`
	Streams      int          `default:"${streams}" env:"REGISTRY_STREAMS" group:"limits" placeholder:"N" help:"Streams of its websockets, and of those of an executor's that no harness has come for. Default: ${default}."`
	Bytes        program.Size `default:"${bytes}" env:"REGISTRY_BYTES" group:"limits" placeholder:"N" help:"Bytes relayed per second; each frame counts its length plus 4 KiB. Default: ${default}."`

	MemoryLimit program.Size `env:"REGISTRY_MEMORY_LIMIT" name:"memory-limit" group:"memory" placeholder:"SIZE" help:"How much the process may take. Half of it may be held for clients that do not read or send in time; when that is nearly used up, the streams that hold the most end. It is also the limit of the garbage collector, unless GOMEMLIMIT is set. Default: three quarters of the memory of its control group, or of the machine."`

	storeFlags

	LogLevel  string `default:"info" enum:"debug,info,warn,error" env:"REGISTRY_LOG_LEVEL" group:"log" placeholder:"LEVEL" help:"What to log on standard error: debug, info, warn or error. Default: ${default}."`
	LogFormat string `default:"text" enum:"text,json" env:"REGISTRY_LOG_FORMAT" group:"log" placeholder:"FORMAT" help:"How to log: text, or json, with which nothing else is printed. Default: ${default}."`
}

func (*serveFlags) Help() string {
	return `Serves until SIGTERM or SIGINT. Then it refuses new websockets, lets streams move to other processes on the same NATS cluster, and ends; a second signal ends it at once. SIGHUP makes it look for a new certificate.

/healthz, /readyz and /metrics need no key. Where strangers reach --listen, move the last with --metrics-listen.

Examples:

    registry --listen 127.0.0.1:8080
    registry --listen :8443 --tls-cert cert.pem --tls-key key.pem --public-url https://registry.example.com:8443
    registry --listen :8080 --behind-proxy --trust-proxy --nats-url nats://nats:4222 --nats-replicas 3
    registry --listen unix:///run/registry/socket --allow-uid 33 --trust-proxy

Exit codes: 0 after an orderly end, 1 when it cannot serve, 2 for a wrong command line.`
}

// Check finds flags that contradict each other, or that would send keys in clear
// text. The parser calls it.
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
		return errors.New("--tls-cert has no meaning with a UNIX socket: TLS ends at the proxy in front")
	case unix && f.PublicURL == "" && !f.TrustProxy:
		return errors.New("a UNIX socket needs --public-url or --trust-proxy: the rendezvous URLs would lead nowhere")
	case !unix && len(f.AllowUID) > 0:
		return errors.New("--allow-uid needs --listen unix:///PATH")
	case slices.Contains(f.AllowUID, math.MaxUint32):
		return errors.New("--allow-uid 4294967295 is no user")
	case err != nil:
		return fmt.Errorf("--listen %.100q is not HOST:PORT", f.Listen)
	case strings.HasPrefix(f.Listen, "https://") && f.TLSCert == "":
		return fmt.Errorf("--listen %.100s needs --tls-cert and --tls-key", f.Listen)
	case strings.HasPrefix(f.Listen, "http://") && f.TLSCert != "":
		return fmt.Errorf("--listen %.100s is not what --tls-cert is for: say https://", f.Listen)
	case (f.TLSCert == "") != (f.TLSKey == ""):
		return errors.New("--tls-cert and --tls-key need each other")
	case f.TLSCert == "" && !f.BehindProxy && !unix && !loopback(host):
		return fmt.Errorf("--listen %s is not a loopback address, and keys would travel in clear text: give --tls-cert and --tls-key, or --behind-proxy where TLS ends at a proxy in front", f.Listen)
	case f.TLSCert != "" && f.BehindProxy:
		return errors.New("--behind-proxy has no meaning with --tls-cert")
	case f.BehindProxy && f.PublicURL == "" && !f.TrustProxy:
		return errors.New("--behind-proxy needs --public-url or --trust-proxy: the rendezvous URLs would send clients past TLS")
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
			return fmt.Errorf("--%s 0 would let nobody in; a negative number is no limit", limit.name)
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

// limits returns the limits of every principal without limits of its own.
func (f *serveFlags) limits() store.Limits {
	return store.Limits{Requests: f.Requests, RequestBurst: f.RequestBurst, Connections: f.Connections, Streams: f.Streams, Bytes: int64(f.Bytes)}
}
