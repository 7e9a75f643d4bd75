package e2e

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/execagent/execagent/client"
	"github.com/execagent/execagent/protocol"
	"github.com/execagent/execagent/rpc"
	"github.com/execagent/execagent/test/rawclient"
	"github.com/execagent/execagent/test/rig"
	"github.com/execagent/execagent/transport"
)

// page is a page of metrics, as Prometheus reads it: families by name.
type page map[string]*dto.MetricFamily

// scrape asks for a page, and holds it to the rules of Prometheus.
func scrape(t testing.TB, url string) page {
	t.Helper()
	response, err := http.Get(url) // the client has a bound, see TestMain
	rig.Must(t, err)
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil || response.StatusCode != http.StatusOK {
		t.Fatalf("%s: status %d, %v", url, response.StatusCode, err)
	}
	return readPage(t, text)
}

func readPage(t testing.TB, text []byte) page {
	t.Helper()
	parser := expfmt.NewTextParser(model.LegacyValidation)
	families, err := parser.TextToMetricFamilies(bytes.NewReader(text))
	if err != nil {
		t.Fatalf("%v:\n%s", err, text)
	}
	problems, err := promlint.New(bytes.NewReader(text)).Lint()
	rig.Must(t, err)
	for _, p := range problems {
		t.Errorf("%s: %s", p.Metric, p.Text)
	}
	return families
}

// values returns the value of every series, or of a histogram how many values it has counted.
func (p page) values() map[string]float64 {
	all := map[string]float64{}
	for name, family := range p {
		for _, m := range family.GetMetric() {
			var labels []string
			for _, l := range m.GetLabel() {
				labels = append(labels, l.GetValue())
			}
			series := strings.TrimSpace(name + " " + strings.Join(labels, " "))
			switch {
			case m.Counter != nil:
				all[series] = m.GetCounter().GetValue()
			case m.Gauge != nil:
				all[series] = m.GetGauge().GetValue()
			case m.Histogram != nil:
				all[series] = float64(m.GetHistogram().GetSampleCount())
			}
		}
	}
	return all
}

// observed is an agent whose metrics are read.
type observed struct {
	*rig.Program
	url, metrics string
	complaints   *rig.Transcript
	was          map[string]float64
}

// observe starts an agent whose page is at --health-listen.
func observe(t *testing.T, argv ...string) *observed {
	t.Helper()
	address := rig.FreeAddress(t)
	cmd := exec.Command(argv[0], append(argv[1:], "--health-listen", address, "--state-dir", t.TempDir()+"/state")...)
	o := &observed{metrics: "http://" + address + "/metrics", complaints: &rig.Transcript{}}
	cmd.Stderr = o.complaints
	o.Program = rig.Start(t, cmd)
	o.url = o.Line(t)
	o.was = scrape(t, o.metrics).values()
	return o
}

// moved waits until each of these has changed by as much since the last call.
func (o *observed) moved(t *testing.T, by map[string]float64) {
	t.Helper()
	var now map[string]float64
	rig.Until(t, fmt.Sprint("metrics move by ", by), func() bool {
		now = scrape(t, o.metrics).values()
		for series, n := range by {
			if _, ok := now[series]; !ok {
				t.Fatalf("there is no %s", series)
			}
			if now[series]-o.was[series] != n {
				return false
			}
		}
		return true
	})
	o.was = now
}

func (o *observed) connect(t *testing.T, cfg client.Config) *client.Client {
	t.Helper()
	cfg.Dial = func(ctx context.Context) (rpc.Conn, error) { return transport.Dial(ctx, o.url, transport.DialConfig{}) }
	c, err := client.Connect(rig.Context(t), cfg)
	rig.Must(t, err)
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// ran runs a program to its end.
func ran(t *testing.T, c *client.Client, params protocol.StartParams) *client.Process {
	t.Helper()
	params.Cwd, params.Env = protocol.NewPathURI("/"), map[string]string{"PATH": "/usr/bin:/bin"}
	p, err := c.Start(rig.Context(t), params)
	rig.Must(t, err)
	if !params.PipeStdin {
		rig.Must(t, rig.Err(p.Wait(rig.Context(t))))
	}
	return p
}

// TestMetrics: each metric moves with what it counts.
func TestMetrics(t *testing.T) {
	t.Parallel()
	dir := rig.Value(filepath.EvalSymlinks(t.TempDir()))
	o := observe(t, rig.Agent(t), "--listen", "ws://127.0.0.1:0")
	c := o.connect(t, client.Config{})
	o.moved(t, map[string]float64{"agent_connections websocket": 1, "agent_sessions attached": 1, "agent_request_duration_seconds initialize": 1})

	ran(t, c, protocol.StartParams{ProcessID: "true", Argv: []string{"true"}})
	ran(t, c, protocol.StartParams{ProcessID: "3", Argv: []string{"sh", "-c", "printf 12345; printf 123 >&2; exit 3"}})
	ran(t, c, protocol.StartParams{ProcessID: "kill", Argv: []string{"sh", "-c", "kill -9 $$"}})
	ran(t, c, protocol.StartParams{ProcessID: "tty", Argv: []string{"printf", "1234567"}, TTY: true})
	o.moved(t, map[string]float64{
		"agent_processes_started_total none": 4, "agent_process_start_seconds none": 4, "agent_request_duration_seconds process/start": 4,
		"agent_process_exits_total code0": 2, "agent_process_exits_total code": 1, "agent_process_exits_total signal": 1,
		"agent_processes closed": 4, "agent_processes running": 0,
		"agent_output_bytes_total stdout": 5, "agent_output_bytes_total stderr": 3, "agent_output_bytes_total pty": 7,
	})
	if o.was["agent_retained_bytes"] < 15 || o.was["agent_retained_limit_bytes"] < o.was["agent_retained_bytes"] {
		t.Errorf("%v of %v bytes are retained", o.was["agent_retained_bytes"], o.was["agent_retained_limit_bytes"])
	}

	cat := ran(t, c, protocol.StartParams{ProcessID: "cat", Argv: []string{"cat"}, PipeStdin: true})
	rig.Must(t, cat.Write(rig.Context(t), []byte("123456789")))
	o.moved(t, map[string]float64{"agent_input_bytes_total": 9, "agent_processes running": 1, "agent_output_bytes_total stdout": 9})

	box := readOnly(dir)
	ran(t, c, protocol.StartParams{ProcessID: "box", Argv: []string{"true"}, Sandbox: box})
	means := "namespaces"
	now := scrape(t, o.metrics).values()
	for _, other := range []string{"supervised", "refused"} { // this host has no namespaces
		if now["agent_processes_started_total "+other] > 0 {
			means = other
		}
	}
	o.moved(t, map[string]float64{"agent_processes_started_total " + means: 1, "agent_process_start_seconds " + means: 1})

	rig.Must(t, c.FS(box).WriteFile(rig.Context(t), dir+"/f", []byte("x")))
	rig.Must(t, rig.Err(c.FS(box).Stat(rig.Context(t), dir+"/f")))
	o.moved(t, map[string]float64{
		"agent_helpers idle": 1, "agent_helpers busy": 0, "agent_helper_starts_total": 1, "agent_helper_lookups_total miss": 1,
	})
	rig.Is(t, o.was["agent_helper_lookups_total hit"] == 0, false, "no policy was in use already")

	rig.Is(t, rig.Err(c.FS(nil).Stat(rig.Context(t), dir+"/missing")), fs.ErrNotExist, "a file that is missing")
	wrong := *box
	wrong.WindowsSandboxLevel = "mxc"
	rig.Is(t, rig.Err(c.FS(&wrong).Stat(rig.Context(t), dir)) != nil, true, "a sandbox of another system is refused")
	_ = c.Call(rig.Context(t), "fs/unheardOf", &protocol.PathParams{Path: protocol.NewPathURI("/")}, nil)
	o.moved(t, map[string]float64{
		"agent_request_errors_total -32004": 1, "agent_request_errors_total -32601": 1, "agent_request_errors_total -32600": 1,
		"agent_request_duration_seconds other": 1, "agent_sandbox_refusals_total request": 1,
	})

	watch, err := c.FS(nil).Watch(rig.Context(t), dir, true)
	rig.Must(t, err)
	file, err := c.FS(nil).Open(rig.Context(t), dir+"/f", protocol.OpenRead)
	rig.Must(t, err)
	server := rig.Listen(t, "tcp", "127.0.0.1:0", rig.Echo)
	socket, err := c.DialSocket(rig.Context(t), "tcp://"+server.String(), nil)
	rig.Must(t, err)
	o.moved(t, map[string]float64{"agent_watches": 1, "agent_file_handles": 1, "agent_sockets": 1})
	_, _, _ = watch.Close(), file.Close(), socket.Close()
	o.moved(t, map[string]float64{"agent_watches": -1, "agent_file_handles": -1, "agent_sockets": -1})
	rig.Must(t, c.FS(nil).Copy(rig.Context(t), dir+"/f", dir+"/g"))
	o.moved(t, map[string]float64{"agent_request_duration_seconds fs/copy": 1})

	named := o.connect(t, client.Config{SessionName: "n"})
	o.moved(t, map[string]float64{"agent_named_sessions": 1, "agent_sessions attached": 1})
	_, _ = named.Close(), c.Close()
	o.moved(t, map[string]float64{"agent_sessions attached": -2, "agent_sessions detached": 2, "agent_connections websocket": -2, "agent_named_sessions": 0})
	if o.was["agent_message_budget_limit_bytes"] < 1<<20 {
		t.Errorf("messages have %v bytes", o.was["agent_message_budget_limit_bytes"])
	}
}

// TestMetricsRefused: what is refused is counted, by the reason.
func TestMetricsRefused(t *testing.T) {
	t.Parallel()
	launcher := rig.Launcher(t, t.TempDir())
	o := observe(t, launcher, rig.Agent(t), "--listen", "ws://127.0.0.1:0", "--sandbox-minimum", "full")
	c := o.connect(t, client.Config{})
	ran(t, c, protocol.StartParams{ProcessID: "p", Argv: []string{"true"}, Sandbox: readOnly("/tmp")})
	o.moved(t, map[string]float64{
		"agent_sandbox_refusals_total host": 1, "agent_process_exits_total refused": 1, "agent_processes_started_total refused": 1,
	})

	supervised := observe(t, launcher, rig.Agent(t), "--listen", "ws://127.0.0.1:0")
	c = supervised.connect(t, client.Config{})
	ran(t, c, protocol.StartParams{ProcessID: "p", Argv: []string{"sh", "-c", "echo out; echo err >&2"}, Sandbox: readOnly("/tmp")})
	supervised.moved(t, map[string]float64{
		"agent_processes_started_total supervised": 1, "agent_process_exits_total code0": 1, "agent_output_bytes_total stderr": 4,
	})
}

// ask sends a request for the metrics of a listener with a token and an origin, if there are any.
func ask(t *testing.T, by *http.Client, method, url, token, origin string) (response *http.Response, text []byte, err error) {
	t.Helper()
	request, err := http.NewRequestWithContext(rig.Context(t), method, "http"+strings.TrimPrefix(url, "ws")+"/metrics", nil)
	rig.Must(t, err)
	if token != "" {
		request.Header.Set("Authorization", "Bearer "+token)
	}
	if origin != "" {
		request.Header.Set("Origin", origin)
	}
	if response, err = by.Do(request); err != nil {
		return nil, nil, err
	}
	defer response.Body.Close()
	text, err = io.ReadAll(response.Body)
	return response, text, err
}

// metricsAnswer is what somebody gets who asks a listener for its metrics.
type metricsAnswer struct {
	name, url, method, token, origin string
	client                           *http.Client
	status                           int // 0: the handshake fails
}

// answered asks for the metrics in each of these ways. Who may not have them gets none of them.
func answered(t *testing.T, rows []metricsAnswer) {
	t.Helper()
	for _, tt := range rows {
		response, text, err := ask(t, cmp.Or(tt.client, http.DefaultClient), cmp.Or(tt.method, "GET"), tt.url, tt.token, tt.origin)
		if tt.status == 0 {
			if _, ok := errors.AsType[*tls.CertificateVerificationError](err); !ok {
				t.Errorf("%s: %v", tt.name, err)
			}
			continue
		}
		rig.Must(t, err)
		rig.Is(t, response.StatusCode, tt.status, "%s: status", tt.name)
		if tt.status != 200 || tt.method == "HEAD" {
			lacks(t, string(text), "agent_")
			continue
		}
		rig.Is(t, len(readPage(t, text)) < 40, false, "%s: the page is short:\n%s", tt.name, text)
		rig.Is(t, response.Header.Get("Content-Type"), "text/plain; version=0.0.4; charset=utf-8", "%s: type", tt.name)
	}
}

// TestMetricsOfListener: the listener has the page when it is asked to, for those who could
// connect.
func TestMetricsOfListener(t *testing.T) {
	t.Parallel()
	token := filepath.Join(t.TempDir(), "token")
	replace(t, token, []byte("let me in\n"))
	guarded := []string{"--listen", "ws://127.0.0.1:0", "--ws-auth", "capability-token", "--ws-token-file", token}
	o := observe(t, append([]string{rig.Agent(t), "--metrics"}, guarded...)...)
	silent := observe(t, append([]string{rig.Agent(t)}, guarded...)...)
	answered(t, []metricsAnswer{
		{name: "without a token", url: o.url, status: 401},
		{name: "with a wrong one", url: o.url, token: "x", status: 401},
		{name: "with the token", url: o.url, token: "let me in", status: 200},
		{name: "only the header", url: o.url, method: "HEAD", token: "let me in", status: 200},
		{name: "to be changed", url: o.url, method: "POST", token: "let me in", status: 405},
		{name: "by a browser", url: o.url, token: "let me in", origin: "null", status: 403},
		{name: "where nobody asked for it", url: silent.url, token: "let me in", status: 404},
	})
	rig.Is(t, rig.Err(transport.Dial(rig.Context(t), o.url, transport.DialConfig{})) != nil, true, "a client without a token is refused")
	o.moved(t, map[string]float64{"agent_refused_clients_total token": 3, "agent_refused_clients_total origin": 1, "agent_connections websocket": 0})

	for _, args := range [][]string{{"--listen", "stdio"}, {"--remote", "http://127.0.0.1:1", "--environment-id", "e"}} {
		has(t, says(t, rig.Command(t, rig.Agent(t), append(args, "--metrics")...)), "--metrics needs a listener", "exit ")
	}
}

// TestMetricsOfSecureListener: over TLS the listener has the page for those who could connect; it
// says until when the certificate is valid, also right after a renewal that no client has seen.
func TestMetricsOfSecureListener(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	cert, key, token := filepath.Join(dir, "agent.crt"), filepath.Join(dir, "agent.key"), filepath.Join(dir, "token")
	replace(t, token, []byte("let me in\n"))
	certify(t, dir, "ca", "ca")
	certify(t, dir, "agent", "ca")
	o := observe(t, rig.Agent(t), "--listen", "127.0.0.1:0", "--tls-cert", cert, "--tls-key", key, "--metrics",
		"--ws-auth", "capability-token", "--ws-token-file", token)
	const series = "agent_tls_certificate_not_after_timestamp_seconds"
	ends := func() float64 { return float64(certificate(t, dir, "agent").Leaf.NotAfter.Unix()) }
	rig.Is(t, o.was[series], ends(), "%s", series)
	certify(t, dir, "agent", "ca")
	o.moved(t, map[string]float64{series: ends() - o.was[series]})

	knowing := &http.Client{Timeout: patience, Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: authority(t, dir, "ca"), MinVersion: tls.VersionTLS12}}}
	defer knowing.CloseIdleConnections()
	answered(t, []metricsAnswer{
		{name: "with the token", url: o.url, token: "let me in", client: knowing, status: 200},
		{name: "without a token", url: o.url, client: knowing, status: 401},
		{name: "with a wrong one", url: o.url, token: "x", client: knowing, status: 401},
		{name: "by who does not know the authority", url: o.url, token: "let me in"},
	})
	o.moved(t, map[string]float64{"agent_refused_clients_total token": 2, "agent_refused_clients_total tls": 1})
}

// TestMetricsHostile: nothing that clients send makes the page longer.
func TestMetricsHostile(t *testing.T) {
	t.Parallel()
	o := observe(t, rig.Agent(t), "--listen", "ws://127.0.0.1:0")
	c := o.connect(t, client.Config{})
	conn, err := rawclient.Dial(rig.Context(t), o.url)
	rig.Must(t, err)
	defer conn.Close()
	raw := rawclient.New(conn)
	const n = 200
	for i := range n {
		random := rand.Text()
		raw.Sendf(t, `{"id":%d,"method":"%s\n\" } 1","params":{"path":"file:///%[2]s"}}`, 2*i, random)
		raw.Sendf(t, `{"id":%d,"method":"fs/%s","params":{}}`, 2*i+1, random)
		_, _ = c.FS(nil).Stat(rig.Context(t), "/"+random)
		_ = c.Call(rig.Context(t), protocol.MethodProcessRead, &protocol.ReadParams{ProcessID: random}, nil)
		raw.Next(t)
		raw.Next(t)
	}
	raw.Sendf(t, "no JSON")
	raw.Next(t)
	o.connect(t, client.Config{ClientName: "agent_x{y=\"z\"} 1", SessionName: "a.b"})
	now := scrape(t, o.metrics).values()
	rig.Same(t, "the series of the page", slices.Sorted(maps.Keys(o.was)), slices.Sorted(maps.Keys(now)))
	o.moved(t, map[string]float64{"agent_request_duration_seconds other": 2 * n, "agent_request_errors_total -32601": 2 * n, "agent_request_errors_total -32004": n})
}

// TestMetricsInFlood: a page is made while an agent has very much to do, and what it counts is
// all of it.
func TestMetricsInFlood(t *testing.T) {
	t.Parallel()
	size := 16 << 20
	if rig.Runs(rig.Merge) {
		size = 256 << 20
	}
	o := observe(t, rig.Agent(t), "--listen", "ws://127.0.0.1:0")
	c := o.connect(t, client.Config{})
	p, err := c.Start(rig.Context(t), protocol.StartParams{
		Argv: []string{"/usr/bin/head", "-c", fmt.Sprint(size), "/dev/zero"}, Cwd: protocol.NewPathURI("/"), Env: map[string]string{},
	})
	rig.Must(t, err)
	ended := make(chan error, 1)
	go func() {
		_, err := p.CopyOutput(rig.Context(t), io.Discard, io.Discard)
		ended <- err
	}()
	pages, last := 0, 0.0
	for over := false; !over; {
		select {
		case err := <-ended:
			rig.Must(t, err)
			over = true
		default:
			now := scrape(t, o.metrics).values()["agent_output_bytes_total stdout"]
			rig.Is(t, now < last, false, "output shrinks from %v to %v", last, now)
			pages, last = pages+1, now
		}
	}
	o.moved(t, map[string]float64{"agent_output_bytes_total stdout": float64(size)})
	t.Logf("%d pages", pages)
}

// TestMetricsRemote: the link to a registry is seen, and its end, and its return.
func TestMetricsRemote(t *testing.T) {
	rig.Tier(t, rig.Merge)
	t.Parallel()
	s := rig.NewSite(t)
	proxy := rig.NewProxy(t, s.Address)
	address := rig.FreeAddress(t)
	s.At(proxy.Address()).Serve(t, "ci-1", "--health-listen", address)
	o := &observed{metrics: "http://" + address + "/metrics"}
	s.Run(t, "ci-1", "echo", "here")
	o.was = map[string]float64{}
	o.moved(t, map[string]float64{
		"agent_relay_link_up": 1, "agent_relay_reconnects_total": 0, "agent_processes_started_total none": 1, "agent_relay_streams": 0,
		"agent_refused_clients_total handshake": 0, "agent_connections relay": 0,
	})
	for _, direction := range []string{"sent", "received"} {
		if n := o.was["agent_relay_bytes_total "+direction]; n < 1000 {
			t.Errorf("%v bytes were %s", n, direction)
		}
	}
	harness := connect(t, s.Exec(t, "ci-1", "cat"))
	o.moved(t, map[string]float64{"agent_relay_streams": 1, "agent_connections relay": 1})
	proxy.Refuse(1 << 20)
	proxy.Cut()
	o.moved(t, map[string]float64{"agent_relay_link_up": -1})
	proxy.Refuse(0)
	o.moved(t, map[string]float64{"agent_relay_link_up": 1, "agent_relay_reconnects_total": 1, "agent_relay_streams": 0})
	_ = harness.stdin.Close()
	rig.Is(t, harness.Exit(t), 0, "exit code")
	o.moved(t, map[string]float64{"agent_relay_streams": -1})
}

// TestMetricsOfOthers: an ordinary user, whose agent may not read all of procfs about itself, has
// the same page; and the log has no line that is not JSON.
func TestMetricsOfOthers(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("every agent here is of an ordinary user")
	}
	t.Parallel()
	address := rig.FreeAddress(t)
	program := socketFolder(t) + "/agent"
	cmd := exec.Command(program, "--listen", "ws://127.0.0.1:0", "--health-listen", address, "--log-format", "json", "--log-level", "debug")
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: credential(nobody)}
	var log rig.Transcript
	cmd.Stderr = &log
	rig.Start(t, cmd)
	rig.Until(t, "it answers probes", func() bool { return rig.Status("http://"+address+"/readyz") == http.StatusOK })
	now := scrape(t, "http://"+address+"/metrics").values()
	for _, series := range []string{"process_open_fds", "process_max_fds", "process_resident_memory_bytes", "process_start_time_seconds", "go_goroutines"} {
		rig.Is(t, now[series] == 0, false, "%s is 0", series)
	}
	allJSON(t, log.String())
}

// metricRow finds a row of a table of metrics: name, type, labels.
var metricRow = regexp.MustCompile("(?m)^\\| `([a-z_]+)` \\| (gauge|counter|histogram|summary) \\| (.*?) ?\\| (.*) \\|$")

// TestMetricsInDocs: the tables of docs/metrics.md have what the pages have.
func TestMetricsInDocs(t *testing.T) {
	t.Parallel()
	text := rig.Value(os.ReadFile("../../docs/metrics.md"))
	section, _, _ := strings.Cut(string(text), "\n## Registry")
	listening := observe(t, rig.Agent(t), "--listen", "ws://127.0.0.1:0")
	s := rig.NewSite(t, "--direct", "ci-3")
	remote, forwards, directly := rig.FreeAddress(t), rig.FreeAddress(t), rig.FreeAddress(t)
	s.Serve(t, "ci-3", "--health-listen", directly, "--transport", "direct")
	s.Serve(t, "ci-1", "--health-listen", remote)
	s.Start(t, rig.Agent(t), []string{"CODEX_API_KEY=" + s.Executor}, nil,
		"forward", "--connect", listening.url, "--remote", s.URL(), "--environment-id", "ci-2", "--health-listen", forwards)
	up := func(address string) page {
		var p page
		rig.Until(t, "the link is measured", func() bool {
			if rig.Status("http://"+address+"/readyz") != http.StatusOK {
				return false
			}
			p = scrape(t, "http://"+address+"/metrics")
			return true
		})
		return p
	}
	served, forwarded := up(remote), up(forwards)
	all := scrape(t, listening.metrics)
	maps.Copy(all, up(directly))
	maps.Copy(all, served)
	cert, key := selfSigned(t)
	maps.Copy(all, scrape(t, observe(t, rig.Agent(t), "--listen", "127.0.0.1:0", "--tls-cert", cert, "--tls-key", key).metrics))

	documented := map[string]bool{}
	for _, row := range metricRow.FindAllStringSubmatch(section, -1) {
		name, kind, labels, meaning := row[1], row[2], row[3], row[4]
		documented[name] = true
		family := all[name]
		if family == nil {
			t.Errorf("no page has %s", name)
			continue
		}
		rig.Is(t, strings.ToLower(family.GetType().String()), kind, "%s is a", name)
		if got, want := forwarded[name] != nil, strings.HasPrefix(meaning, "F; ") || !strings.HasPrefix(name, "agent_"); got != want && name != "agent_refused_clients_total" {
			t.Errorf("%s is on the page of forward: %v, want %v", name, got, want)
		}
		for label := range strings.SplitSeq(labels, "; ") {
			if label == "" {
				continue
			}
			label, values, ok := strings.Cut(strings.Replace(label, "`", "", 2), ": ")
			if !ok {
				t.Errorf("%s: label %q is not read", name, label)
			}
			for _, m := range slices.Concat(family.GetMetric(), scrape(t, listening.metrics)[name].GetMetric()) {
				i := slices.IndexFunc(m.GetLabel(), func(l *dto.LabelPair) bool { return l.GetName() == label })
				if kind != "summary" && (i < 0 || len(m.GetLabel()) != strings.Count(labels, "`")/2) {
					t.Errorf("%s has the labels %v", name, m.GetLabel())
				} else if i >= 0 && values != "…" && !slices.Contains(strings.Split(values, ", "), m.GetLabel()[i].GetValue()) {
					t.Errorf("%s: label %s has the value %s", name, label, m.GetLabel()[i].GetValue())
				}
			}
		}
	}
	for name := range all {
		if !documented[name] {
			t.Errorf("docs/metrics.md has no row for %s", name)
		}
	}
	rig.Is(t, len(documented) < 50, false, "%d rows were read", len(documented))
}
