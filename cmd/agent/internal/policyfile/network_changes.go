package policyfile

import (
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/execagent/execagent/agent"
)

// maxNamed is how many patterns of each list changes names.
const maxNamed = 20

// changes describes the difference between p and next in one line; "" if there is none. For
// credentials and an upstream proxy, it says only that they differ.
func changes(p, next *agent.NetworkPolicy) string {
	var parts []string
	for _, list := range []struct {
		name     string
		old, new []string
	}{{"allow", p.Allow, next.Allow}, {"deny", p.Deny, next.Deny}, {"ask", p.Ask, next.Ask}, {"ports", texts(p.Ports), texts(next.Ports)}} {
		var words []string
		words = append(words, missing("+", list.new, list.old)...)
		words = append(words, missing("-", list.old, list.new)...)
		if more := len(words) - maxNamed; more > 0 {
			words = append(words[:maxNamed], fmt.Sprintf("and %d more", more))
		}
		if len(words) > 0 {
			parts = append(parts, list.name+" "+strings.Join(words, " "))
		}
	}
	if p.Local != next.Local {
		parts = append(parts, fmt.Sprintf("local %v", next.Local))
	}
	if p.Upstream != next.Upstream {
		parts = append(parts, "another upstream")
	}
	if p.TCPUpstream != next.TCPUpstream {
		parts = append(parts, "another tcp_upstream")
	}
	if !reflect.DeepEqual(p.Masking, next.Masking) {
		parts = append(parts, "other masking")
	}
	return strings.Join(parts, "; ")
}

// missing returns the members of a that are not in b, each with sign before it. b is sorted.
func missing(sign string, a, b []string) (out []string) {
	for _, text := range a {
		if _, ok := slices.BinarySearch(b, text); !ok {
			out = append(out, sign+text)
		}
	}
	return out
}

func texts(ports []uint16) (out []string) {
	for _, p := range ports {
		out = append(out, strconv.Itoa(int(p)))
	}
	slices.Sort(out)
	return out
}
