package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/execagent/execagent/cmd/internal/program"
	"github.com/execagent/execagent/internal/registry/store"
	"github.com/execagent/execagent/internal/unixsocket"
)

const (
	// statusTimeout bounds how long a registry may take to answer.
	statusTimeout = 10 * time.Second
	// maxStatus bounds an answer of a registry, in bytes.
	maxStatus = 1 << 20
)

// statusFlags name the registry to ask, and say how to print its status.
type statusFlags struct {
	URL    string `env:"REGISTRY_URL" name:"url" placeholder:"URL" help:"Ask the process at this URL and not the store: http://HOST:PORT where it answers /readyz, or unix:///PATH."`
	Output string `short:"o" default:"text" enum:"text,json" env:"REGISTRY_OUTPUT" placeholder:"FORMAT" help:"Output format: text, or json for programs. Default: ${default}."`
	storeFlags
}

func (*statusFlags) Help() string {
	return `With the store (--data or --nats-url), the command shows all processes of the registry, their versions and limits, the executors that are online, and the keys. With --url, the command shows the answers of one process at /readyz and /metrics, and needs neither the store nor a key.

Examples:

    registry status
    registry status --url http://127.0.0.1:8080

Exit codes: 0 when it serves, 1 when no process runs, is ready or can be asked, 2 for a wrong command line.`
}

// Check checks the flags of the store. The parser calls it.
func (f *statusFlags) Check() error {
	if f.URL == "" {
		return f.storeFlags.Check()
	}
	if unixsocket.Is(f.URL) {
		_, err := unixsocket.Path(f.URL)
		return err
	}
	if u, err := url.Parse(f.base()); err != nil || u.Host == "" || u.User != nil || u.Scheme != "http" && u.Scheme != "https" {
		return errors.New("--url is not http://HOST:PORT, HOST:PORT or https://")
	}
	return nil
}

// base returns the URL without the path of a probe.
func (f *statusFlags) base() string {
	base := strings.TrimRight(strings.TrimSuffix(f.URL, "/readyz"), "/")
	if !strings.Contains(base, "://") {
		base = "http://" + base
	}
	if rest, ok := strings.CutPrefix(base, "http://:"); ok {
		base = "http://127.0.0.1:" + rest
	}
	return base
}

func (f *statusFlags) run(sys system) error {
	ctx, cancel := sys.context()
	defer cancel()
	if f.URL != "" {
		return f.ask(ctx, sys)
	}
	return f.withExisting(sys, func(ctx context.Context, st *store.Store) error { return f.look(ctx, sys, st) })
}

// storeStatus is the status of a registry according to its store.
type storeStatus struct {
	Store      store.Backend       `json:"store"`
	Servers    []store.Server      `json:"servers"`
	Registered int                 `json:"registered"` // environments, online or not
	Online     []store.Environment `json:"online"`
	Keys       struct {
		Valid   int `json:"valid"`
		Expired int `json:"expired"`
		Revoked int `json:"revoked"`
	} `json:"keys"`
}

// errNotRunning says that the store exists, but no process serves it.
var errNotRunning = errors.New("no process of this registry is running")

// look prints the status from the store.
func (f *statusFlags) look(ctx context.Context, sys system, st *store.Store) error {
	s := storeStatus{Store: st.Backend()}
	var err error
	if s.Servers, err = st.Servers(ctx); err != nil {
		return err
	}
	if s.Online, err = st.Environments(ctx); err != nil {
		return err
	}
	known, err := st.Known(ctx)
	if err != nil {
		return err
	}
	s.Registered = len(known)
	keys, err := st.Keys(ctx)
	if err != nil {
		return err
	}
	for _, k := range keys {
		switch {
		case !k.Revoked.IsZero():
			s.Keys.Revoked++
		case !k.Expires.IsZero() && !time.Now().Before(k.Expires):
			s.Keys.Expired++
		default:
			s.Keys.Valid++
		}
	}
	if err := f.print(sys.stdout, s, s.text); err != nil {
		return err
	}
	if len(s.Servers) == 0 {
		return errNotRunning
	}
	return nil
}

func (f *statusFlags) print(w io.Writer, v any, text func(io.Writer) error) error {
	if f.Output != "json" {
		return text(w)
	}
	return program.PrintJSON(w, v)
}

func (s *storeStatus) text(w io.Writer) error {
	where := s.Store.Folder + s.Store.Server
	if _, err := fmt.Fprintf(w, "store: %s (NATS %s) at %s\nkeys: %d valid, %d expired, %d revoked\nenvironments: %d registered, %d online\n\n", s.Store.Kind, s.Store.Version, where,
		s.Keys.Valid, s.Keys.Expired, s.Keys.Revoked, s.Registered, len(s.Online)); err != nil {
		return err
	}
	err := program.PrintTable(w, s.Servers, "NODE\tVERSION\tSTARTED\tREQUESTS\tBURST\tCONNECTIONS\tSTREAMS\tBYTES\tGRACE", func(v store.Server) []any {
		if v.Version == "" {
			return []any{v.Node, "older", "", "", "", "", "", "", ""}
		}
		return []any{v.Node, v.Version, v.Started.Format(time.RFC3339), v.Limits.Requests, v.Limits.RequestBurst, v.Limits.Connections, v.Limits.Streams, v.Limits.Bytes, v.Grace}
	})
	if err != nil || len(s.Online) == 0 {
		return err
	}
	if _, err := fmt.Fprintln(w); err != nil {
		return err
	}
	return printEnvironments(w, false, s.Online)
}

// processStatus is the status that a process reports.
type processStatus struct {
	URL       string             `json:"url"`
	Ready     bool               `json:"ready"`
	State     string             `json:"state"`
	Version   string             `json:"version,omitempty"`
	Executors float64            `json:"executors"` // websockets
	Harnesses float64            `json:"harnesses"`
	Streams   float64            `json:"streams"`
	Limits    map[string]float64 `json:"limits,omitempty"`
	Elsewhere bool               `json:"metrics_elsewhere,omitempty"` // so the other values are unknown
}

// ask prints the status of the process at the URL.
func (f *statusFlags) ask(ctx context.Context, sys system) error {
	ctx, cancel := context.WithTimeout(ctx, statusTimeout)
	defer cancel()
	s := processStatus{URL: f.base(), Limits: map[string]float64{}}
	client, base := http.DefaultClient, s.URL
	if unixsocket.Is(f.URL) {
		path, _ := unixsocket.Path(f.URL) // Check has checked the path
		client, base = &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return unixsocket.Dial(ctx, path)
		}}}, "http://registry"
		defer client.CloseIdleConnections()
	}
	status, text, err := get(ctx, client, base+"/readyz")
	if err != nil {
		return err
	}
	s.Ready, s.State = status == http.StatusOK, printable(strings.TrimSpace(text))
	if !s.Ready && status != http.StatusServiceUnavailable {
		return fmt.Errorf("%s/readyz answers %d: is that a registry?", s.URL, status)
	}
	switch status, text, err = get(ctx, client, base+"/metrics"); {
	case err != nil:
		return err
	case status == http.StatusNotFound:
		s.Elsewhere = true
	default:
		if err := s.take(text); err != nil {
			return err
		}
	}
	if err := f.print(sys.stdout, s, s.text); err != nil {
		return err
	}
	if !s.Ready {
		return fmt.Errorf("it is not ready: %s", s.State)
	}
	return nil
}

// take reads the values of /metrics.
func (s *processStatus) take(text string) error {
	parser := expfmt.NewTextParser(model.LegacyValidation)
	families, err := parser.TextToMetricFamilies(strings.NewReader(text))
	if err != nil {
		return fmt.Errorf("reading %s/metrics: %w", s.URL, err)
	}
	each := func(name, label string, take func(of string, value float64)) {
		for _, m := range families["registry_"+name].GetMetric() {
			of := ""
			for _, pair := range m.GetLabel() {
				if pair.GetName() == label {
					of = pair.GetValue()
				}
			}
			take(of, m.GetGauge().GetValue())
		}
	}
	each("build_info", "version", func(version string, _ float64) { s.Version = version })
	each("limit", "name", func(name string, value float64) { s.Limits[name] = value })
	each("streams", "", func(_ string, value float64) { s.Streams = value })
	each("websockets", "role", func(role string, value float64) {
		if role == "executor" {
			s.Executors = value
		} else {
			s.Harnesses = value
		}
	})
	return nil
}

func (s *processStatus) text(w io.Writer) error {
	var b strings.Builder
	if s.Elsewhere {
		_, err := fmt.Fprintf(w, "url: %s\nstate: %s\nthis address has no /metrics: for more details, name the address of --metrics-listen\n", s.URL, s.State)
		return err
	}
	fmt.Fprintf(&b, "url: %s\nstate: %s\nversion: %s\nwebsockets: %v of executors, %v of harnesses\nstreams: %v\n",
		s.URL, s.State, printable(s.Version), s.Executors, s.Harnesses, s.Streams)
	for _, name := range slices.Sorted(maps.Keys(s.Limits)) {
		fmt.Fprintf(&b, "limit %s: %s\n", printable(name), strconv.FormatFloat(s.Limits[name], 'f', -1, 64))
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// get returns the status and the body of the answer at a URL.
func get(ctx context.Context, client *http.Client, link string) (status int, text string, err error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, link, nil)
	if err != nil {
		return 0, "", err
	}
	response, err := client.Do(request)
	if err != nil {
		return 0, "", err
	}
	defer response.Body.Close()
	content, err := io.ReadAll(io.LimitReader(response.Body, maxStatus))
	return response.StatusCode, string(content), err
}
