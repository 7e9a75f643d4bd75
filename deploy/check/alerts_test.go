package check

import (
	"bytes"
	"flag"
	"os"
	"testing"

	"github.com/google/go-cmp/cmp"
	monitoringv1 "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	"sigs.k8s.io/yaml"
)

var updateAlerts = flag.Bool("update-alerts", false, "write the alerts of deploy/prometheus to the component and to the chart")

const (
	alertsOfComponent = "../kubernetes/components/alerts/rules.yaml"
	alertsOfChart     = "../chart/files/alerts.yaml"
)

// ruleHead is what stands before the alerts in the component's object.
const ruleHead = `# Made of deploy/prometheus/alerts.yaml: go test . -run TestAlerts -update-alerts in deploy/check writes it.
apiVersion: monitoring.coreos.com/v1
kind: PrometheusRule
metadata:
  name: alerts
  labels: {app.kubernetes.io/name: alerts}
spec:
`

// TestAlerts: the objects for the Prometheus operator have the alerts that promtool has checked, no
// other and in the same words; and only where somebody asks for them.
func TestAlerts(t *testing.T) {
	source := read("../prometheus/alerts.yaml")
	groups := source[bytes.Index(source, []byte("groups:\n")):]
	component := []byte(ruleHead)
	for line := range bytes.Lines(groups) {
		if len(bytes.TrimSpace(line)) > 0 {
			component = append(component, "  "...)
		}
		component = append(component, line...)
	}
	for file, want := range map[string][]byte{alertsOfComponent: component, alertsOfChart: groups} {
		if *updateAlerts {
			must(t, os.WriteFile(file, want, 0o644))
		}
		if got, err := os.ReadFile(file); err != nil || !bytes.Equal(got, want) {
			t.Errorf("%s has other alerts than deploy/prometheus/alerts.yaml (%v): go test . -run TestAlerts -update-alerts writes them", file, err)
		}
	}
	var want monitoringv1.PrometheusRuleSpec
	must(t, yaml.UnmarshalStrict(groups, &want))
	asked := 0
	for _, r := range everything(t) {
		for name, rule := range all[*monitoringv1.PrometheusRule](r) {
			asked++
			difference := cmp.Diff(want, rule.Spec)
			not(t, difference != "", "%s: %s differs from deploy/prometheus/alerts.yaml:\n%s", r.name, name, difference)
		}
		not(t, r.name == "chart, as it comes" && len(all[*monitoringv1.PrometheusRule](r)) > 0,
			"the chart has alerts that nobody has asked for")
	}
	if asked < 3 { // the example, every component, the chart with everything
		t.Errorf("%d ways of rendering have alerts", asked)
	}
}
