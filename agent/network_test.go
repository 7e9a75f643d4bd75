package agent

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/execagent/execagent/internal/egress"
	"github.com/execagent/execagent/internal/netproxy/rules"
	"github.com/execagent/execagent/protocol"
	"github.com/execagent/execagent/test/rig"
)

// proxied returns the params of a start with a proxy that allows these patterns, also on local
// addresses, and asks about others.
func proxied(id, command string, allow ...string) object {
	domains := map[string]string{}
	for _, pattern := range allow {
		domains[pattern] = protocol.DomainAllow
	}
	p := sh(id, command)
	p["networkProxy"] = object{
		"proxy": object{
			"enabled": true, "enableSocks5": true, "enableSocks5Udp": false, "allowUpstreamProxy": true,
			"dangerouslyAllowAllUnixSockets": false, "mode": "full", "domains": domains, "allowLocalBinding": true,
		},
		"policyDecisionTimeoutMs": 600_000,
	}
	return p
}

// printProxy prints where the proxy is, and then waits for its input.
const printProxy = `echo "$HTTP_PROXY"; read x`

// proxyOf starts a process and returns where its proxy is. A process of the same user, as this
// test is one, may use it, since nothing confines the process.
func (c *client) proxyOf(t *testing.T, params object) *url.URL {
	t.Helper()
	var r protocol.StartResult
	c.must("process/start", params, &r)
	rig.Is(t, r.Network, protocol.NetworkAdvisory, "the network")
	var line []byte
	c.await("the address of the proxy", func(notes []note) bool {
		line = nil
		for _, n := range notes {
			if n.method == protocol.MethodProcessOutput && n.id == r.ProcessID {
				line = append(line, n.data...)
			}
		}
		return slices.Contains(line, '\n')
	})
	first, _, _ := strings.Cut(string(line), "\n")
	return rig.Value(url.Parse(first))
}

// through makes a request by way of a proxy, and returns the status and what is wrong.
func through(t *testing.T, proxy *url.URL, target string) (status int, refusal string) {
	t.Helper()
	transport := &http.Transport{Proxy: http.ProxyURL(proxy), DisableKeepAlives: true}
	defer transport.CloseIdleConnections()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	resp, err := transport.RoundTrip(rig.Value(http.NewRequestWithContext(ctx, http.MethodGet, target, nil)))
	if err != nil {
		return 0, err.Error()
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	rig.Must(t, err)
	var blocked struct{ Reason string }
	_ = json.Unmarshal(body, &blocked) // of a destination it is nothing of the kind
	return resp.StatusCode, blocked.Reason
}

func wantThrough(t *testing.T, proxy *url.URL, target string, status int, refusal string) {
	t.Helper()
	got, why := through(t, proxy, target)
	rig.Is(t, fmt.Sprintf("%d %s", got, why), fmt.Sprintf("%d %s", status, refusal), "%s", target)
}

// wantGone waits until nothing listens where a proxy was. A child that some other test is just
// forking has the socket, too, until it executes its program.
func wantGone(t *testing.T, proxy *url.URL) {
	t.Helper()
	rig.Until(t, "nothing listens at "+proxy.Host, func() bool {
		conn, err := net.Dial("tcp", proxy.Host)
		if err == nil {
			_ = conn.Close()
		}
		return err != nil
	})
}

// TestNetworkAnswers: the client decides about names, and is told what became of them.
func TestNetworkAnswers(t *testing.T) {
	t.Parallel()
	destination := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	defer destination.Close()
	r := newHarness(t, Config{})
	c := r.attach("")
	proxy := c.proxyOf(t, proxied("p", printProxy, "localhost"))
	session := c.session
	c.drop()

	// While nobody is attached nobody is asked; the same, told once.
	for range 3 {
		wantThrough(t, proxy, destination.URL, http.StatusForbidden, rules.ReasonNotAllowed)
	}
	raw, drop := r.resume(t, session)
	if d := raw.decision(); d.Decision != "deny" || d.Source != rules.SourceDecider || d.Reason != rules.ReasonNotAllowed || d.ProcessID != "p" {
		t.Errorf("what happened while nobody was attached: %+v", d)
	}
	for i, tt := range []struct {
		answer           string
		status           int
		decision, reason string
		override         bool
	}{
		{`"result":{"decision":{"type":"allow"}}`, 200, "allow", rules.ReasonNotAllowed, true},
		{`"result":{"decision":{"type":"deny","reason":"no"}}`, 403, "deny", "no", false},
		{`"result":{"decision":{"type":"ask","reason":""}}`, 403, "ask", rules.ReasonPolicyDenied, false},
		{`"result":{"decision":{"type":"ask"}}`, 403, "deny", rules.ReasonNotAllowed, false},
		{`"error":{"code":1,"message":"m"}`, 403, "deny", rules.ReasonNotAllowed, false},
	} {
		done := make(chan struct{})
		go func() {
			defer close(done)
			status, _ := through(t, proxy, destination.URL)
			rig.Is(t, status, tt.status, "%s: status", tt.answer)
		}()
		if m := raw.next(); m.Method != protocol.MethodNetworkPolicyRequest || m.Params.ProcessID != "p" || fmt.Sprint(m.ID) != strconv.Itoa(i+1) {
			t.Fatalf("%+v, want question %d", m, i+1)
		}
		raw.send(`{"id":%d,%s}`, i+1, tt.answer)
		d := raw.decision()
		if d.Decision != tt.decision || d.Source != rules.SourceDecider || d.Reason != tt.reason || d.PolicyOverride != tt.override {
			t.Errorf("%s: %+v", tt.answer, d)
		}
		<-done
	}
	// The connection is lost while a question waits.
	done := make(chan struct{})
	go func() {
		defer close(done)
		wantThrough(t, proxy, destination.URL, http.StatusForbidden, rules.ReasonNotAllowed)
	}()
	raw.next()
	drop()
	waitFor(t, done, "a refusal")
}

// decision returns the next message, which tells of a verdict.
func (c *raw) decision() (d protocol.PolicyDecision) {
	c.t.Helper()
	text := c.Next(c.t)
	var m struct {
		Method string
		Params protocol.PolicyDecision
	}
	if err := json.Unmarshal([]byte(text), &m); err != nil || m.Method != protocol.MethodNetworkPolicyDecision {
		c.t.Fatalf("%s, want a verdict; %v", text, err)
	}
	return m.Params
}

// TestNetworkLives: a proxy lives until its process is closed, is terminated, or was not started:
// TestMain would find what still runs of one.
func TestNetworkLives(t *testing.T) {
	t.Parallel()
	r := newHarness(t, Config{})
	c := r.attach("")
	broken := proxied("p", "")
	broken["argv"] = []string{"/nonexistent"}
	rig.Is(t, c.call("process/start", broken, nil) != nil, true, "a program that does not exist is refused")

	proxy := c.proxyOf(t, proxied("p", printProxy))
	wantThrough(t, proxy, "http://169.254.0.1/", http.StatusForbidden, rules.ReasonNotAllowed)
	c.must("process/write", object{"processId": "p", "chunk": []byte("\n"), "writeId": "w"}, nil)
	c.awaitNote(protocol.MethodProcessClosed, "p")
	wantGone(t, proxy)

	proxy = c.proxyOf(t, proxied("q", printProxy))
	c.must("process/terminate", object{"processId": "q"}, nil)
	wantGone(t, proxy)

	// A child that holds the output keeps the proxy.
	proxy = c.proxyOf(t, proxied("r", `echo "$HTTP_PROXY"; sleep 1000 & exit`))
	c.awaitNote(protocol.MethodProcessExited, "r")
	status, _ := through(t, proxy, "http://a.invalid/")
	rig.Is(t, status, http.StatusForbidden, "status after the exit, before the end")
	c.must("process/terminate", object{"processId": "r"}, nil)
	wantGone(t, proxy)
}

// TestNetworkKeepsToItself: what the agent itself listens at is out of reach, whatever is allowed:
// for its clients, and for other processes.
func TestNetworkKeepsToItself(t *testing.T) {
	t.Parallel()
	own := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	defer own.Close()
	other := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	defer other.Close()
	r := newHarness(t, Config{Listening: []Listening{{Addr: netip.MustParseAddrPort(own.Listener.Addr().String()), Authenticated: true}}})
	c := r.attach("")
	proxy := c.proxyOf(t, proxied("p", printProxy, "*"))
	next := c.proxyOf(t, proxied("q", printProxy, "*"))
	wantThrough(t, proxy, other.URL, http.StatusOK, "")
	wantThrough(t, proxy, own.URL, http.StatusForbidden, rules.ReasonPolicyDenied)
	wantThrough(t, proxy, next.String(), http.StatusForbidden, rules.ReasonPolicyDenied)
	wantThrough(t, proxy, proxy.String(), http.StatusForbidden, rules.ReasonPolicyDenied)
	_, port, _ := net.SplitHostPort(own.Listener.Addr().String())
	for _, host := range []string{"localhost", "[::1]", "0.0.0.0", "127.9.9.9", "[::ffff:127.0.0.1]"} {
		wantThrough(t, proxy, "http://"+host+":"+port, http.StatusForbidden, rules.ReasonPolicyDenied)
	}
}

// TestNetworkOperator: a client can only tighten what the operator says. A change holds for processes
// that run too.
func TestNetworkOperator(t *testing.T) {
	t.Parallel()
	destination := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	defer destination.Close()
	compile := func(r rules.Rules) *Network {
		return &Network{&egress.Operator{Ceiling: rig.Value(rules.Compile(r))}}
	}
	r := newHarness(t, Config{Network: compile(rules.Rules{Local: true, Domains: map[string]rules.Action{"127.0.0.1": rules.Allow}})})
	c := r.attach("")
	first := c.proxyOf(t, proxied("p", printProxy, "*"))
	wantThrough(t, first, destination.URL, http.StatusOK, "")
	wantThrough(t, first, "http://other.invalid/", http.StatusForbidden, rules.ReasonNotAllowed)
	r.agent.SetNetwork(compile(rules.Rules{Local: true, Domains: map[string]rules.Action{"127.0.0.1": rules.Deny}}))
	wantThrough(t, first, destination.URL, http.StatusForbidden, rules.ReasonDenied)
	wantThrough(t, c.proxyOf(t, proxied("q", printProxy, "*")), destination.URL, http.StatusForbidden, rules.ReasonDenied)
}

// TestRequireNetworkEnforcement: nothing is started that could reach the network without a proxy.
func TestRequireNetworkEnforcement(t *testing.T) {
	t.Parallel()
	r := newHarness(t, Config{RequireNetworkEnforcement: true})
	c := r.attach("")
	readAll := func(network string) object { return managed(network, special("root", "read")) }
	unixSockets := object{"sandbox": readAll("enabled"), "enforceManagedNetwork": true, "networkProxy": proxied("", "", "*")["networkProxy"]}
	unixSockets["networkProxy"].(object)["proxy"].(object)["dangerouslyAllowAllUnixSockets"] = true
	for i, tt := range []struct {
		name   string
		change object
		proxy  bool
		ok     bool
	}{
		{"no sandbox", object{}, false, false},
		{"advisory", object{}, true, false},
		{"network enabled", object{"sandbox": readAll("enabled")}, true, false},
		{"permissions disabled", object{"sandbox": disabled}, true, false},
		{"the client's own proxy", object{"sandbox": readAll("restricted"), "enforceManagedNetwork": true,
			"env": object{"PATH": "/bin", "HTTP_PROXY": "http://127.0.0.1:9"}}, false, false},
		{"all UNIX sockets", unixSockets, false, false},
		{"named sockets", object{"sandbox": managed("restricted", object{"access": "write", "path": object{"type": "unix_socket", "path": "file:///s"}},
			special("root", "read"))}, false, false},
		{"named devices", object{"sandbox": managed("restricted", object{"access": "write", "path": object{"type": "device", "path": "file:///dev/null"}},
			special("root", "read"))}, false, false},
		{"no network", object{"sandbox": readAll("restricted")}, false, true},
		{"enforced", object{"sandbox": readAll("enabled"), "enforceManagedNetwork": true}, true, true},
	} {
		params := sh(fmt.Sprint("p", i), "exit 0")
		if tt.proxy {
			params = proxied(fmt.Sprint("p", i), "exit 0")
		}
		maps.Copy(params, tt.change)
		err := c.call("process/start", params, nil)
		if tt.ok {
			rig.Is(t, err, nil, "%s", tt.name)
			continue
		}
		wantCode(t, tt.name, err, protocol.CodeInvalidRequest)
		rig.Says(t, err, "--require-network-enforcement", "%s", tt.name)
	}
}

// TestUnixSockets: the sockets that a client allows for its proxy count if the operator says so. One that its
// policy denies is shown then.
func TestUnixSockets(t *testing.T) {
	t.Parallel()
	dir := rig.Value(filepath.EvalSymlinks(t.TempDir()))
	for _, name := range []string{"a", "b", "c"} {
		rig.Listen(t, "unix", dir+"/"+name, func(net.Conn) {})
	}
	for _, count := range []bool{false, true} {
		c := newHarness(t, Config{UnixSockets: count}).attach("")
		params := proxied("p", "for f in a b c; do test -S "+dir+"/$f && echo $f; done; true", "*")
		params["networkProxy"].(object)["proxy"].(object)["unixSockets"] = object{dir + "/a": "allow", dir + "/b": "deny"}
		params["managedNetwork"] = object{"allowUnixSockets": []string{dir + "/b", dir + "/c"}}
		params["enforceManagedNetwork"] = true
		params["sandbox"] = managed("restricted", special("root", "read"), object{"access": "deny", "path": object{"type": "path", "path": "file://" + dir}})
		c.must("process/start", params, nil)
		c.awaitNote("process/closed", "p")
		rig.Is(t, c.output("p"), map[bool]string{true: "a\nc\n"}[count], "the sockets that are shown, if they count: %v", count)
	}
}

// TestRequireNetworkEnforcementOfAgent: nor does the agent itself connect for a client to what the
// operator's policy does not allow.
func TestRequireNetworkEnforcementOfAgent(t *testing.T) {
	t.Parallel()
	destination := httptest.NewServer(http.RedirectHandler("http://127.0.0.2:9/", http.StatusFound))
	defer destination.Close()
	place := strings.TrimPrefix(destination.URL, "http://")
	policy := rig.Value(NewNetwork(&NetworkPolicy{Allow: []string{"localhost", "127.0.0.1"}, Local: true}, nil))
	requests := rig.Value(NewNetwork(&NetworkPolicy{Allow: []string{"GET 127.0.0.1/ok"}}, nil))
	unix := rig.Listen(t, "unix", t.TempDir()+"/s", func(net.Conn) {}).String()
	free := managed("enabled", special("root", "read"))
	for name, tt := range map[string]struct {
		network *Network
		method  string
		params  object
		says    string // "": it is done
	}{
		"a socket":                        {nil, "socket/open", object{"address": "tcp://" + place}, "no --network-policy"},
		"a socket in a sandbox":           {nil, "socket/open", object{"address": "tcp://" + place, "sandbox": free}, "no --network-policy"},
		"a socket, disabled sandbox":      {nil, "socket/open", object{"address": "tcp://" + place, "sandbox": disabled}, "no --network-policy"},
		"a UNIX socket, disabled sandbox": {policy, "socket/open", object{"address": "unix://" + unix, "sandbox": disabled}, "UNIX socket"},
		"allowed, disabled sandbox":       {policy, "socket/open", object{"address": "tcp://" + place, "sandbox": disabled}, ""},
		"a named UNIX socket": {policy, "socket/open", object{"address": "unix://" + unix, "sandbox": managed("restricted", special("root", "read"),
			object{"access": "write", "path": object{"type": "unix_socket", "path": "file://" + unix}})}, "UNIX socket"},
		"a UNIX socket":                     {policy, "socket/open", object{"address": "unix://" + unix}, "UNIX socket"},
		"a request":                         {nil, "http/request", object{"url": destination.URL}, "no --network-policy"},
		"a request, not allowed":            {policy, "http/request", object{"url": "http://127.0.0.2:9/"}, "not allowed"},
		"a redirect that is not allowed":    {policy, "http/request", object{"url": destination.URL}, "not allowed"},
		"an allowed socket":                 {policy, "socket/open", object{"address": "tcp://" + place}, ""},
		"an allowed socket in a sandbox":    {policy, "socket/open", object{"address": "tcp://" + place, "sandbox": free}, ""},
		"an allowed request":                {policy, "http/request", object{"url": destination.URL, "redirectPolicy": "stop"}, ""},
		"a path that is not allowed":        {requests, "http/request", object{"url": destination.URL + "/no", "redirectPolicy": "stop"}, "request not allowed"},
		"a path that is allowed":            {requests, "http/request", object{"url": destination.URL + "/ok?q", "redirectPolicy": "stop"}, ""},
		"a path with another Host":          {requests, "http/request", object{"url": destination.URL + "/ok", "headers": []object{{"name": "Host", "value": "b.org"}}}, "Host header"},
		"a socket to what has requests":     {requests, "socket/open", object{"address": "tcp://" + place}, "mitm required"},
		"no network, so nothing is refused": {nil, "socket/open", object{"address": "tcp://" + place, "sandbox": managed("restricted", special("root", "read"))}, "Operation not permitted"},
	} {
		maps.Copy(tt.params, object{"socketId": "s", "method": "GET", "requestId": "r"})
		err := newHarness(t, Config{RequireNetworkEnforcement: true, Network: tt.network}).attach("").call(tt.method, tt.params, nil)
		if tt.says == "" {
			rig.Is(t, err, nil, "%s", name)
			continue
		}
		wantCode(t, name, err, protocol.CodeInvalidRequest)
		rig.Says(t, err, tt.says, "%s", name)
	}
}

// TestNetworkEnforced: a confined process reaches what is allowed through its proxy, and nothing
// without.
func TestNetworkEnforced(t *testing.T) {
	t.Parallel()
	destination := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "here") }))
	defer destination.Close()
	place := strings.TrimPrefix(destination.URL, "http://")
	host, port, _ := strings.Cut(place, ":")
	params := proxied("p", fmt.Sprintf(`
		proxy=${HTTP_PROXY#http://}
		exec 3<>/dev/tcp/${proxy%%:*}/${proxy#*:} && printf 'GET http://%[1]s/ HTTP/1.1\r\nHost: %[1]s\r\nConnection: close\r\n\r\n' >&3 && cat <&3
		(exec 4<>/dev/tcp/%[2]s/%[3]s) 2>/dev/null && echo open || echo shut`, place, host, port), "127.0.0.1")
	params["argv"].([]string)[0] = "/bin/bash"
	params["enforceManagedNetwork"] = true
	params["sandbox"] = managed("restricted", special("root", "read"))
	c := newHarness(t, Config{}).attach("")
	var r protocol.StartResult
	c.must("process/start", params, &r)
	if r.Network != "" || !slices.ContainsFunc(r.SandboxLayers, func(l string) bool { return strings.HasPrefix(l, "proxy:") }) {
		t.Errorf("%+v, want a layer of the proxy and no advisory network", r)
	}
	c.awaitNote(protocol.MethodProcessClosed, "p")
	out := c.output("p")
	if !strings.HasPrefix(out, "HTTP/1.1 200 OK\r\n") || !strings.Contains(out, "here") || !strings.HasSuffix(out, "shut\n") {
		t.Errorf("%q", out)
	}
}

// TestNetworkTerminated: process/terminate refuses what waits for the client's answer.
func TestNetworkTerminated(t *testing.T) {
	t.Parallel()
	r := newHarness(t, Config{})
	c := r.attach("")
	proxy := c.proxyOf(t, proxied("p", printProxy))
	session := c.session
	c.drop()
	raw, _ := r.resume(t, session)
	done := make(chan struct{})
	go func() {
		defer close(done)
		status, _ := through(t, proxy, "http://a.invalid/")
		rig.Is(t, status == http.StatusOK, false, "let through by nobody")
	}()
	rig.Is(t, raw.next().Method, protocol.MethodNetworkPolicyRequest, "the client hears")
	raw.call(7, protocol.MethodProcessTerminate, object{"processId": "p"})
	waitFor(t, done, "a refusal")
	for fmt.Sprint(raw.next().ID) != "7" { // before it, the verdict
	}
	wantGone(t, proxy)
}

// TestNetworkMasks: credentials are masked whatever is started, a placeholder is good for its own
// process alone, and the certificate is there for a sandbox that shows almost nothing.
func TestNetworkMasks(t *testing.T) {
	t.Parallel()
	const secret = "tok_abcdefghijabcdefghij"
	var mu sync.Mutex
	var seen []string
	destination := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		seen = append(seen, r.Header.Get("Authorization"))
	}))
	defer destination.Close()
	masked := func(id, command string, env object) object {
		p := proxied(id, command, "127.0.0.1")
		proxy := p["networkProxy"].(object)["proxy"].(object)
		proxy["credentialMasking"] = true
		proxy["credentialProviders"] = object{"x": object{"env": []string{"TOK"}, "patterns": []string{"tok_[a-z]{20}"}, "url_prefixes": []string{destination.URL}}}
		env["PATH"] = "/usr/bin:/bin"
		p["env"] = env
		return p
	}
	c := newHarness(t, Config{}).attach("")
	for i, argv := range [][]string{{"/bin/sh", "-c", "env"}, {"/bin/sh", "-lc", "env"}, {"/usr/bin/env"}, {"/usr/bin/env", "sh", "-c", "env"}} {
		params := masked(fmt.Sprint("m", i), "", object{"TOK": secret, "OTHER": "x " + secret + " y"})
		params["argv"] = argv
		if out := output(c, params); strings.Contains(out, secret) || !strings.Contains(out, "CODEX_NETWORK_PROXY_CREDENTIAL_BROKER_ACTIVE=1") {
			t.Errorf("%q: %s", argv, out)
		}
	}
	// The first process shows its placeholder; the second has none of its own.
	show := `echo "$HTTP_PROXY"; echo "$TOK"; read x`
	c.proxyOf(t, masked("p", show, object{"TOK": secret}))
	second := c.proxyOf(t, masked("q", show, object{}))
	c.must("process/write", object{"processId": "p", "chunk": []byte("\n"), "writeId": "w"}, nil)
	c.awaitNote(protocol.MethodProcessClosed, "p")
	placeholder := strings.Fields(c.output("p"))[1]
	req := rig.Value(http.NewRequestWithContext(t.Context(), http.MethodGet, destination.URL, nil))
	req.Header.Set("Authorization", "Bearer "+placeholder)
	transport := &http.Transport{Proxy: http.ProxyURL(second), DisableKeepAlives: true}
	_ = rig.Value(transport.RoundTrip(req)).Body.Close()
	mu.Lock()
	if len(seen) != 1 || seen[0] != "Bearer "+placeholder || placeholder == secret {
		t.Errorf("the destination has got %q for the placeholder %q of another process", seen, placeholder)
	}
	mu.Unlock()

	params := masked("s", `[ -s "$SSL_CERT_FILE" ] && echo "the certificate is there"; (echo >>"$SSL_CERT_FILE") 2>/dev/null || echo "and stays"`, object{"TOK": secret})
	params["enforceManagedNetwork"] = true
	params["sandbox"] = managed("restricted", special("minimal", "read"))
	params["cwd"] = "file:///usr"
	rig.Is(t, output(c, params), "the certificate is there\nand stays\n", "in a sandbox")
}

// TestNetworkHides: what the operator masks no process sees, also none that has no proxy.
func TestNetworkHides(t *testing.T) {
	t.Parallel()
	operator := egress.Operator{Masking: map[string]protocol.CredentialProvider{
		"forge": {Env: []string{"FORGE_TOKEN"}, Patterns: []string{"fg_[a-z]{20}"}, URLPrefixes: []string{"https://forge.example"}},
	}}
	secret := "fg_abcdefghijabcdefghij"
	c := newHarness(t, Config{Network: &Network{&operator}, Environ: []string{
		"PATH=/usr/bin:/bin", "FORGE_TOKEN=" + secret, "FORGE_URL=https://u:" + secret + "@forge.example/",
	}}).attach("")
	plain := sh("plain", "env; echo end")
	inSandbox := sh("sandbox", "env; echo end")
	inSandbox["sandbox"] = managed("restricted", special("root", "read"))
	for id, params := range map[string]object{"plain": plain, "sandbox": inSandbox, "proxied": proxied("proxied", "env; echo end")} {
		// Without the variable itself, and with others that contain its value.
		params["envPolicy"] = object{"inherit": "all", "ignoreDefaultExcludes": true, "exclude": []string{"FORGE_TOKEN"}, "set": object{}, "includeOnly": []string{}}
		out := output(c, params)
		rig.Is(t, !strings.Contains(out, secret) && strings.HasSuffix(out, "end\n"), true, "%s: %s", id, out)
	}
}

// output returns what a process has printed so far.
func (c *client) output(id string) string {
	var b strings.Builder
	for _, chunk := range c.read(id, 0).Chunks {
		b.Write(chunk.Chunk)
	}
	return b.String()
}

// TestCeilingWithoutNetwork: under such a ceiling a process that asks for a proxy starts, without any
// network, and SIGHUP changes nothing about that.
func TestCeilingWithoutNetwork(t *testing.T) {
	t.Parallel()
	r := newHarness(t, Config{SandboxCeiling: sandboxOf(t, managed("restricted", special("root", "read"))), RequireNetworkEnforcement: true, TransparentTCP: true})
	r.agent.SetNetwork(rig.Value(NewNetwork(&NetworkPolicy{Allow: []string{"*"}, Local: true}, nil)))
	params := proxied("p", "exit 0", "*")
	maps.Copy(params, object{"sandbox": managed("enabled", special("root", "write")), "enforceManagedNetwork": true})
	var started protocol.StartResult
	c := r.attach("")
	c.must("process/start", params, &started)
	rig.Is(t, started.Network, "", "the network")
	rig.Is(t, strings.Contains(fmt.Sprint(started.SandboxLayers), "proxy"), false, "%q: a proxy", started.SandboxLayers)
	_, err := r.agent.networks.Admit(t.Context(), "127.0.0.1:9", "", "", "")
	rig.Says(t, err, "not allowed", "what the proxies of the agent reach")
}
