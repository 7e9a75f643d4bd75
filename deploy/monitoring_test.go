package deploy_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/execagent/execagent/test/rig"
)

// rules has the members of a file of Prometheus' rules that the tests look at.
type rules struct {
	Groups []struct {
		Rules []struct {
			Alert, Expr         string
			Labels, Annotations map[string]string
		}
	}
}

func alerts(t *testing.T) (all rules) {
	t.Helper()
	decode(t, "prometheus/alerts.yaml", &all)
	return all
}

func decode(t *testing.T, file string, into any) {
	t.Helper()
	data, err := os.ReadFile(file)
	if err == nil {
		err = yaml.Unmarshal(data, into)
	}
	if err != nil {
		t.Fatalf("%s: %v", file, err)
	}
}

// TestPrometheus: Prometheus takes the rules and the configuration, and each alert fires in its
// case.
func TestPrometheus(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("promtool"); err != nil {
		if os.Getenv("CI") != "" {
			t.Fatal(err)
		}
		t.Skip("promtool is needed (Debian's package prometheus)")
	}
	calls := [][]string{{"check", "rules", "alerts.yaml"}, {"check", "config", "scrape.yaml"}}
	if rig.Runs(rig.Merge) { // it takes three seconds
		calls = append(calls, []string{"test", "rules", "alerts_test.yaml"})
	}
	for _, args := range calls {
		cmd := exec.CommandContext(t.Context(), "promtool", args...)
		cmd.Dir = "prometheus"
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%q: %v\n%s", args, err, out)
		}
	}
}

// TestAlertCases: each alert has a case in which it fires, a severity, and a paragraph of
// docs/operation.md.
func TestAlertCases(t *testing.T) {
	t.Parallel()
	var cases struct {
		Tests []struct {
			AlertRuleTest []struct {
				Alertname string
				ExpAlerts []any `json:"exp_alerts"`
			} `json:"alert_rule_test"`
		}
	}
	decode(t, "prometheus/alerts_test.yaml", &cases)
	fires, rests := map[string]bool{}, map[string]bool{}
	for _, test := range cases.Tests {
		for _, c := range test.AlertRuleTest {
			fires[c.Alertname] = fires[c.Alertname] || len(c.ExpAlerts) > 0
			rests[c.Alertname] = rests[c.Alertname] || len(c.ExpAlerts) == 0
		}
	}
	page, err := os.ReadFile("../docs/operation.md")
	rig.Must(t, err)
	for _, group := range alerts(t).Groups {
		for _, rule := range group.Rules {
			if !fires[rule.Alert] || !rests[rule.Alert] {
				t.Errorf("%s: fires in a case: %v, rests in one: %v", rule.Alert, fires[rule.Alert], rests[rule.Alert])
			}
			if severity := rule.Labels["severity"]; severity != "critical" && severity != "warning" {
				t.Errorf("%s: severity %q", rule.Alert, severity)
			}
			if !strings.Contains(string(page), "`"+rule.Alert+"`") {
				t.Errorf("docs/operation.md does not say what to do about %s", rule.Alert)
			}
		}
	}
}

// names finds the metrics in an expression of PromQL.
var names = regexp.MustCompile(`\b(?:agent|registry|process|go)_[a-z0-9_]+`)

// TestMetricNames: all metrics of rules and dashboard are in docs/metrics.md, which tests compare
// with the pages that the programs serve.
func TestMetricNames(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../docs/metrics.md")
	rig.Must(t, err)
	known := map[string]bool{}
	for _, row := range regexp.MustCompile("(?m)^\\| `([a-z0-9_]+)` \\| (gauge|counter|histogram|summary) \\|").FindAllStringSubmatch(string(page), -1) {
		known[row[1]] = true
		if row[2] == "histogram" {
			known[row[1]+"_bucket"], known[row[1]+"_count"], known[row[1]+"_sum"] = true, true, true
		}
	}
	used := map[string]string{}
	for _, group := range alerts(t).Groups {
		for _, rule := range group.Rules {
			for _, name := range names.FindAllString(rule.Expr, -1) {
				used[name] = rule.Alert
			}
		}
	}
	panels := dashboard(t)
	for _, p := range panels {
		for _, target := range p.Targets {
			for _, name := range names.FindAllString(target.Expr, -1) {
				used[name] = p.Title
			}
		}
	}
	if len(used) < 40 {
		t.Fatalf("only %d metrics are used", len(used))
	}
	for _, name := range slices.Sorted(maps.Keys(used)) {
		if !known[name] {
			t.Errorf("%s: there is no metric %s", used[name], name)
		}
	}
}

type panel struct {
	Title, Type string
	Targets     []struct{ Expr string }
}

func dashboard(t *testing.T) []panel {
	t.Helper()
	files, err := filepath.Glob("grafana/*.json")
	if err != nil || len(files) != 1 {
		t.Fatalf("%q: %v", files, err)
	}
	data, err := os.ReadFile(files[0])
	rig.Must(t, err)
	var board struct{ Panels []panel }
	rig.Must(t, json.Unmarshal(data, &board))
	return board.Panels
}

// TestDashboard: Prometheus can read the expressions of all panels.
func TestDashboard(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("promtool"); err != nil {
		t.Skip("promtool is needed (Debian's package prometheus)")
	}
	var text strings.Builder
	text.WriteString("groups:\n  - name: panels\n    rules:\n")
	n := 0
	for _, p := range dashboard(t) {
		for _, target := range p.Targets {
			// What Grafana puts in.
			expr := strings.NewReplacer("$__rate_interval", "5m", "$agent", ".*", "$registry", ".*").Replace(target.Expr)
			fmt.Fprintf(&text, "      - {record: panel:%d, expr: %q}\n", n, expr)
			n++
		}
	}
	file := filepath.Join(t.TempDir(), "panels.yaml")
	rig.Must(t, os.WriteFile(file, []byte(text.String()), 0o600))
	if out, err := exec.CommandContext(t.Context(), "promtool", "check", "rules", file).CombinedOutput(); err != nil || n < 40 {
		t.Errorf("%d expressions: %v\n%s", n, err, out)
	}
}
