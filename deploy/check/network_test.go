package check

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// place is a pod that may be at an end of a connection.
type place struct {
	namespace string
	labels    labels.Set
	outside   string // an address outside of the cluster, instead
}

const ours = "execagent"

// others are the pods of other namespaces that the policies are about, and one that none is about.
var others = map[string]place{
	"ingress":    {namespace: "ingress-nginx", labels: labels.Set{"app.kubernetes.io/name": "ingress-nginx"}},
	"dns":        {namespace: "kube-system", labels: labels.Set{"k8s-app": "kube-dns"}},
	"prometheus": {namespace: "monitoring", labels: labels.Set{"app.kubernetes.io/name": "prometheus"}},
	"stranger":   {namespace: "elsewhere", labels: labels.Set{"app.kubernetes.io/name": "registry"}},
	"neighbour":  {namespace: ours, labels: labels.Set{"app.kubernetes.io/name": "something"}},
	"internet":   {outside: "198.51.100.7"},
}

// passes reports whether the policies of a set of objects let a connection through: what is selected
// by no policy of a direction is free, and else one of them has to allow it.
func passes(t *testing.T, r rendered, from, to place, protocol corev1.Protocol, port int32) bool {
	t.Helper()
	in, out := verdict{}, verdict{}
	for _, p := range all[*networkingv1.NetworkPolicy](r) {
		directions := p.Spec.PolicyTypes
		not(t, len(directions) == 0, "%s: the policy %s does not say its directions", r.name, p.Name)
		if slices.Contains(directions, networkingv1.PolicyTypeEgress) && from.namespace == ours && matches(&p.Spec.PodSelector, from.labels) {
			out.selected = true
			for _, rule := range p.Spec.Egress {
				out.allowed = out.allowed || peer(rule.To, to) && portOf(r, rule.Ports, to, protocol, port)
			}
		}
		if slices.Contains(directions, networkingv1.PolicyTypeIngress) && to.namespace == ours && matches(&p.Spec.PodSelector, to.labels) {
			in.selected = true
			for _, rule := range p.Spec.Ingress {
				in.allowed = in.allowed || peer(rule.From, from) && portOf(r, rule.Ports, to, protocol, port)
			}
		}
	}
	return in.passes() && out.passes()
}

// verdict is what the policies of one direction say.
type verdict struct{ selected, allowed bool }

func (v verdict) passes() bool { return v.allowed || !v.selected }

func matches(s *metav1.LabelSelector, l labels.Set) bool {
	return value(metav1.LabelSelectorAsSelector(s)).Matches(l)
}

// peer reports whether a rule is about a place. A rule without peers is about all.
func peer(peers []networkingv1.NetworkPolicyPeer, p place) bool {
	for _, rule := range peers {
		switch {
		case rule.IPBlock != nil:
			if p.outside != "" && strings.HasPrefix(p.outside, strings.TrimSuffix(rule.IPBlock.CIDR, ".0/24")) {
				return true
			}
		case p.outside != "":
		case rule.NamespaceSelector == nil && p.namespace != ours:
		case rule.NamespaceSelector != nil && !matches(rule.NamespaceSelector, labels.Set{"kubernetes.io/metadata.name": p.namespace}):
		case rule.PodSelector != nil && !matches(rule.PodSelector, p.labels):
		default:
			return true
		}
	}
	return len(peers) == 0
}

// portOf reports whether a rule is about a port of the place.
func portOf(r rendered, ports []networkingv1.NetworkPolicyPort, p place, protocol corev1.Protocol, port int32) bool {
	for _, rule := range ports {
		number := int32(-1)
		if rule.Port.Type == intstr.Int {
			number = rule.Port.IntVal
		} else if w, ok := workloads(r)[p.labels["app.kubernetes.io/name"]]; ok && p.namespace == ours {
			number, _ = w.port(*rule.Port)
		}
		if *rule.Protocol == protocol && number == port {
			return true
		}
	}
	return len(ports) == 0
}

// TestNetwork: who can connect to whom. Each row that is not wanted is tried too.
func TestNetwork(t *testing.T) {
	t.Parallel()
	const tcp, udp = corev1.ProtocolTCP, corev1.ProtocolUDP
	type connection struct {
		from, to string
		protocol corev1.Protocol
		port     int32
	}
	ports := []int32{53, 80, 443, 4222, 6222, 7300, 7301, 7302, 8222}
	for _, r := range everything(t) {
		if r.name == "registry" || r.name == "chart, without policies" {
			continue
		}
		want := map[connection]bool{}
		places := maps.Clone(others)
		parts := workloads(r)
		for part, w := range parts {
			places[part] = place{namespace: ours, labels: w.pod.Labels}
			want[connection{part, "dns", udp, 53}], want[connection{part, "dns", tcp, 53}] = true, true
		}
		_, worker := parts["worker"]
		_, registry := parts["registry"]
		_, nats := parts["nats"]
		monitored := strings.HasPrefix(r.name, "chart") && (strings.HasSuffix(r.name, "everything") || strings.HasSuffix(r.name, "workers alone")) ||
			r.name == "overlays/example" || r.name == "every component"
		if worker {
			want[connection{"worker", "ingress", tcp, 443}] = true
			want[connection{"prometheus", "worker", tcp, 7301}] = monitored
		}
		if registry {
			want[connection{"ingress", "registry", tcp, 7300}] = true
			want[connection{"prometheus", "registry", tcp, 7302}] = monitored
		}
		if registry && nats {
			want[connection{"registry", "nats", tcp, 4222}] = true
			want[connection{"nats", "nats", tcp, 6222}] = true
		}
		count := 0
		for from, a := range places {
			for to, b := range places {
				if a.namespace != ours && b.namespace != ours || from == "neighbour" && b.namespace != ours || a.namespace != ours && to == "neighbour" || from == "neighbour" && to == "neighbour" {
					continue // nothing of ours
				}
				for _, protocol := range []corev1.Protocol{tcp, udp} {
					for _, port := range ports {
						c := connection{from, to, protocol, port}
						got := passes(t, r, a, b, protocol, port)
						not(t, got != want[c], "%s: %s to %s, %s %d: %v, want %v", r.name, from, to, protocol, port, got, want[c])
						if got {
							count++
						}
					}
				}
			}
		}
		not(t, count == 0, "%s: nothing can connect to anything", r.name)
	}
}

// asJSON is a value as the API has it.
func asJSON(v any) string {
	return string(value(json.MarshalIndent(v, "", "  ")))
}
