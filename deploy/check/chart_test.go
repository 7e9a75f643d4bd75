package check

import (
	"bytes"
	"encoding/json"
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/yaml"
)

// TestAgree: the chart and the kustomization render the same objects, but for what each names and
// labels in its own way.
func TestAgree(t *testing.T) {
	t.Parallel()
	everything := values{
		"registry":   values{"nats": values{"creds": true}, "autoscaling": values{"enabled": true}},
		"worker":     values{"keyFile": true, "userNamespaces": values{"enabled": true}},
		"monitoring": values{"enabled": true, "alerts": true},
	}
	for name, test := range map[string]struct {
		components []string
		values     values
	}{
		"the least": {[]string{"nats", "ingress"}, values{}},
		"the most":  {[]string{"nats", "nats-creds", "ingress", "hpa", "key-file", "user-namespaces", "monitoring-registry", "monitoring-worker", "alerts"}, everything},
	} {
		text, _, err := helm(loadChart(t), tools(test.values))
		must(t, err)
		chart := decode(t, "chart", plain(text))
		own := overlay(t, "kustomization", ownOverlay(test.components...))
		got, want := neutral(t, chart), neutral(t, own)
		difference := cmp.Diff(want, got)
		not(t, difference != "", "%s: the chart (+) differs from the kustomization (-):\n%s", name, difference)
	}
}

// generated finds the name of a ConfigMap that kustomize has made, which has a hash of its content.
var generated = regexp.MustCompile(`"nats-[a-z0-9]{10}"`)

// version finds the version of our images: the chart has a placeholder, see TestVersions.
var version = regexp.MustCompile(`(execagent/(agent|registry)):[0-9a-z.-]+`)

// neutral returns the objects as JSON decodes them, without what a chart or a kustomization adds.
func neutral(t *testing.T, r rendered) map[string]any {
	t.Helper()
	objects := map[string]any{}
	for id, o := range r.objects {
		var v any
		text := version.ReplaceAllString(generated.ReplaceAllString(asJSON(o), `"nats"`), "$1:0.0.0")
		must(t, json.Unmarshal([]byte(text), &v))
		objects[strings.Trim(generated.ReplaceAllString(`"`+id[strings.Index(id, " ")+1:]+`"`, `"nats"`), `"`)+" "+id[:strings.Index(id, " ")]] = without(v)
	}
	return objects
}

// without leaves out labels and members that only the one or the other sets, and defaults of the
// API that are written down.
func without(v any) any {
	switch v := v.(type) {
	case map[string]any:
		for _, name := range []string{"app.kubernetes.io/instance", "app.kubernetes.io/managed-by", "app.kubernetes.io/version", "app.kubernetes.io/part-of", "helm.sh/chart", "creationTimestamp", "status"} {
			delete(v, name)
		}
		if v["imagePullPolicy"] == "IfNotPresent" {
			delete(v, "imagePullPolicy")
		}
		for _, name := range []string{"env", "volumes", "volumeMounts"} { // whose order says nothing here
			if list, ok := v[name].([]any); ok {
				slices.SortFunc(list, func(a, b any) int {
					return strings.Compare(a.(map[string]any)["name"].(string), b.(map[string]any)["name"].(string))
				})
			}
		}
		for name := range maps.Clone(v) {
			v[name] = without(v[name])
		}
	case []any:
		for i := range v {
			v[i] = without(v[i])
		}
	}
	return v
}

// TestWrongValues: what the chart does not know or cannot use is refused before anything is
// rendered, by name.
func TestWrongValues(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"{}":                                      "worker.image.repository is your image with tools",
		"worker: {image: {repository: a}}":        "worker.image.tag",
		"worker: {image: {tag: latest}}":          "worker.image.tag",
		"worker: {user: 0}":                       "worker.user",
		"worker: {args: [sh]}":                    "worker.args",
		"wroker: {}":                              "wroker",
		"registry: {replicas: none}":              "registry.replicas",
		"registry: {replica: 2}":                  "replica",
		"registry: {publicURL: \"http://a\"}":     "registry.publicURL",
		"registry: {env: {REGISTRY_BYTES: [1]}}":  "registry.env.REGISTRY_BYTES",
		"worker: {image: {tag: 1.1}}":             "worker.image.tag",
		"registry: {networkPolicy: {from: []}}":   "registry.networkPolicy.from",
		"registry: {networkPolicy: {from: [{}]}}": "registry.networkPolicy.from",
	} {
		v := values{}
		must(t, yaml.Unmarshal([]byte(text), &v))
		if _, _, err := helm(loadChart(t), v); err == nil || !strings.Contains(strings.NewReplacer("/", ".").Replace(err.Error()), want) {
			t.Errorf("%s: %v, want an error about %s", text, err, want)
		}
	}
}

// TestNumbers: what looks like a number and is none may come as one, as by --set.
func TestNumbers(t *testing.T) {
	t.Parallel()
	for tag, line := range map[any]string{1: "image: example.com/tools:1\n", 20260101: "image: example.com/tools:20260101\n", "1.10": "image: example.com/tools:1.10\n"} {
		text, _, err := helm(loadChart(t), tools(values{
			"worker":   values{"image": values{"repository": "example.com/tools", "tag": tag}},
			"registry": values{"env": values{"REGISTRY_BYTES": 20000000, "REGISTRY_X": true}},
		}))
		must(t, err)
		for _, want := range []string{line, "value: \"20000000\"", "value: \"true\""} {
			not(t, !strings.Contains(string(text), want), "%v: no %q in\n%s", tag, want, text)
		}
	}
}

// TestSchema: the schema knows each value that there is, and no other.
func TestSchema(t *testing.T) {
	t.Parallel()
	var schema struct {
		node
		Definitions map[string]node
	}
	text := read("../chart/values.schema.json")
	must(t, json.Unmarshal(text, &schema))
	var compare func(where string, n node, v any)
	compare = func(where string, n node, v any) {
		if ref, ok := strings.CutPrefix(n.Ref, "#/definitions/"); ok {
			n = schema.Definitions[ref]
		}
		members, ok := v.(map[string]any)
		if !ok || n.Properties == nil {
			return
		}
		for name, child := range members {
			_, ok := n.Properties[name]
			not(t, !ok, "the schema does not know %s.%s", where, name)
			compare(where+"."+name, n.Properties[name], child)
		}
		for name := range n.Properties {
			_, ok := members[name]
			not(t, !ok && name != "global", "values.yaml does not have %s.%s", where, name)
		}
	}
	compare("", schema.node, map[string]any(loadChart(t).Values))
}

// node is a part of a JSON schema.
type node struct {
	Ref        string `json:"$ref"`
	Properties map[string]node
}

// TestNotes: the notes name what is waited for.
func TestNotes(t *testing.T) {
	t.Parallel()
	for name, want := range map[string][]string{
		"as it comes":                    {"Secret registry-nats", "nats://registry:$password@x7k-nats:4222", "deploy/x7k-registry", "'x7k-worker-*'", "generic worker", "--registry https://registry.example.com "},
		"registry alone, NATS elsewhere": {"with url and creds"},
		"workers alone":                  {"https://registry.example.net"},
	} {
		_, notes, err := helm(loadChart(t), charts[name])
		must(t, err)
		for _, text := range want {
			not(t, !strings.Contains(notes, text), "%s: the notes do not have %q:\n%s", name, text, notes)
		}
		not(t, bytes.Contains([]byte(notes), []byte("\n\n\n")), "%s: the notes have gaps:\n%s", name, notes)
	}
}
