package egress

import (
	"net"
	"slices"
	"strconv"
	"strings"

	"github.com/execagent/execagent/internal/sandbox/gate"
)

// noNames are the variables with the hosts that are reached without a proxy (network.md 6).
var noNames = [...]string{"NO_PROXY", "no_proxy", "NPM_CONFIG_NOPROXY", "npm_config_noproxy", "BUNDLE_NO_PROXY"}

// Hosts that are reached without the proxy, if local addresses are treated like any others. Where the
// network is enforced nothing is beyond loopback.
var (
	loopbackHosts = []string{"localhost", "127.0.0.1", "::1"}
	localHosts    = append(loopbackHosts[:3:3], "10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16")
)

// direct returns the hosts that the process reaches without the proxy. Where the network is enforced
// these are its own servers, but not at hosts that an entry allows: these are the ones of this host.
func (w *Network) direct() []string {
	local := w.plan.asked.Proxy.AllowLocalBinding
	switch {
	case !w.enforced && local:
		return localHosts
	case w.enforced && !w.onHost && (local || w.plan.OwnServers):
		return slices.DeleteFunc(slices.Clone(loopbackHosts), w.plan.policy.Names)
	}
	return nil
}

// environ returns an environment in which programs find the proxies at these addresses, and the hosts
// that they reach without. It replaces existing values of the variables. socks may be nil.
func environ(env []string, http, socks net.Addr, direct []string, local bool) []string {
	httpURL := "http://" + http.String()
	allURL := httpURL
	if socks != nil {
		allURL = "socks5h://" + socks.String() // the proxy resolves names
	}
	set := make([]string, 0, len(gate.HTTPVariables)+len(gate.AllVariables)+len(noNames)+4)
	add := func(value string, names ...string) {
		for _, name := range names {
			set = append(set, name+"="+value)
		}
	}
	add(httpURL, gate.HTTPVariables[:]...)
	add(allURL, gate.AllVariables[:]...)
	add(strings.Join(direct, ","), noNames[:]...)
	add("1", "NODE_USE_ENV_PROXY", "CODEX_NETWORK_PROXY_ACTIVE")
	add("true", "ELECTRON_GET_USE_PROXY")
	add(strconv.Itoa(btoi(local)), "CODEX_NETWORK_ALLOW_LOCAL_BINDING")
	return overlay(env, set)
}

func btoi(b bool) int {
	if b {
		return 1
	}
	return 0
}

// overlay returns env with these variables, "K=V", instead of those of their names.
func overlay(env, set []string) []string {
	names := make(map[string]struct{}, len(set))
	for _, entry := range set {
		name, _, _ := strings.Cut(entry, "=")
		names[name] = struct{}{}
	}
	kept := slices.DeleteFunc(slices.Clone(env), func(entry string) bool {
		name, _, _ := strings.Cut(entry, "=")
		_, replaced := names[name]
		return replaced
	})
	return append(kept, set...)
}
