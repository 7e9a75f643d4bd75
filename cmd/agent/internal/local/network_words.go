package local

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/execagent/execagent/internal/egress"
	"github.com/execagent/execagent/internal/netproxy/rules"
	"github.com/execagent/execagent/protocol"
)

// NetworkWords holds the values of --network.
type NetworkWords struct {
	// Managed says that the network is a proxy with a policy. Otherwise it is the host's network if
	// On is set.
	Managed, On bool

	// Plain says that connections are not transparent: programs have to use the proxy that their
	// variables name.
	Plain bool

	local   bool              // names may resolve to local and private addresses
	domains map[string]string // allow or deny, by pattern or request rule
	review  []string          // patterns and request rules that the user is asked about
}

// usage lists the values of --network.
const usage = "on, off, ask, or allow=HOST,… deny=HOST,… ask=HOST,… local; METHOD HOST/PATH stands where HOST may"

// wordsOf returns the words of a value, which spaces separate. A word that begins with HOST/PATH belongs to the
// word before, because a request rule, METHOD HOST/PATH, has a space.
func wordsOf(value string) (words []string) {
	for word := range strings.FieldsSeq(value) {
		first, _, _ := strings.Cut(word, ",")
		before, _, _ := strings.Cut(first, "/")
		if last := len(words) - 1; last >= 0 && len(before) < len(first) && !strings.Contains(before, "=") && strings.Contains(words[last], "=") {
			words[last] += " " + word
			continue
		}
		words = append(words, word)
	}
	return words
}

// ParseNetwork reads the values of --network.
func ParseNetwork(values []string) (w NetworkWords, err error) {
	off := false
	w.domains = map[string]string{}
	for _, value := range values {
		for _, word := range wordsOf(value) {
			verb, list, given := strings.Cut(word, "=")
			hosts := strings.FieldsFunc(list, func(r rune) bool { return r == ',' })
			if given && len(hosts) == 0 {
				return w, fmt.Errorf("--network %s= names no host", verb)
			}
			switch {
			case word == "on":
				w.On = true
			case word == "off":
				off = true
			case word == "ask":
				w.Managed = true
			case word == "local":
				w.Managed, w.local = true, true
			case verb == "ask" && given:
				w.Managed, w.review = true, append(w.review, hosts...)
			case (verb == protocol.DomainAllow || verb == protocol.DomainDeny) && given:
				w.Managed = true
				for _, host := range hosts {
					if other, ok := w.domains[host]; ok && other != verb {
						return w, fmt.Errorf("--network allows and denies %s", host)
					}
					w.domains[host] = verb
				}
			default:
				return w, fmt.Errorf("--network %q is not one of %s", word, usage)
			}
		}
	}
	switch {
	case w.On && off, w.Managed && (w.On || off):
		return w, errors.New("--network on, off and values that name hosts cannot be used together")
	case w.Managed:
		_, err = w.plan(false)
	}
	return w, err
}

// AllowToo allows further hosts, such as those of a profile. It leaves out a host that a word of --network is
// about. A request rule that allows or asks is such a word, because it may let only some requests through.
func (w *NetworkWords) AllowToo(hosts []string) error {
	if len(hosts) == 0 {
		return nil
	}
	w.Managed = true
	about, requests, ports := w.Hosts(), rules.Rules{Domains: map[string]rules.Action{}}, []string{"443"}
	for word, verb := range about {
		_, target, isRequest := strings.Cut(word, " ")
		if !isRequest || verb == protocol.DomainDeny {
			continue
		}
		requests.Domains[word] = rules.Action(verb)
		if place, _, _ := strings.Cut(target, "/"); strings.Contains(place, ":") {
			ports = append(ports, place[strings.LastIndexByte(place, ':')+1:])
		}
	}
	limited, err := rules.Compile(requests)
	if err != nil {
		return err
	}
	for _, host := range hosts {
		name, port, named := strings.Cut(host, ":")
		some := slices.ContainsFunc(ports, func(p string) bool {
			if named {
				p = port
			}
			n, err := strconv.ParseUint(p, 10, 16)
			return err == nil && limited.HasRequestRulesFor(strings.ToLower(name), uint16(n))
		})
		if about[host] == "" && !some {
			w.domains[host] = protocol.DomainAllow
		}
	}
	_, err = w.plan(false)
	return err
}

// LimitsRequests reports whether only some requests to a host are allowed or asked about.
func (w *NetworkWords) LimitsRequests() bool {
	for word, verb := range w.Hosts() {
		if strings.Contains(word, " ") && verb != protocol.DomainDeny {
			return true
		}
	}
	return false
}

// Everywhere returns the words with which a command also reaches all public hosts that they neither deny nor ask about.
func (w *NetworkWords) Everywhere() (all NetworkWords, err error) {
	all = *w
	all.domains, all.Managed = maps.Clone(w.domains), true
	all.domains["*"] = protocol.DomainAllow
	_, err = all.plan(false)
	return all, err
}

// Hosts returns allow, deny or ask for each pattern of hosts and each request rule.
func (w *NetworkWords) Hosts() map[string]string {
	all := maps.Clone(w.domains)
	for _, host := range w.review {
		all[host] = "ask"
	}
	return all
}

// networkPatience is the timeout of a question about the network, in milliseconds. It is long,
// because the command gives up earlier.
const networkPatience = 24 * 60 * 60 * 1000

// plan returns the network that the words describe. asks says whether the user can be asked.
func (w *NetworkWords) plan(asks bool) (*egress.Plan, error) {
	plan, err := egress.Of(w.Proxy(asks), "command")
	if err != nil {
		return nil, fmt.Errorf("--network: %w", err)
	}
	plan.OwnServers, plan.Transparent = true, !w.Plain
	return plan, nil
}

// Proxy returns the proxy that the words describe, for a request. asks says whether the user can be asked.
func (w *NetworkWords) Proxy(asks bool) *protocol.NetworkProxy {
	asked := &protocol.NetworkProxy{Proxy: protocol.ProxyParams{
		Enabled: true, EnableSocks5: true, AllowUpstreamProxy: true, AllowLocalBinding: w.local, Mode: protocol.ProxyFull,
		Domains: w.domains, ReviewDomains: w.review,
	}}
	if asks {
		asked.PolicyDecisionTimeoutMs = new(uint64(networkPatience))
	}
	return asked
}
