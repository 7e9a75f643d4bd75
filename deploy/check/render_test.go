package check

import (
	"bytes"
	"cmp"
	"fmt"
	"iter"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"testing"

	monitoringv1 "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	"helm.sh/helm/v3/pkg/chart"
	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/chartutil"
	"helm.sh/helm/v3/pkg/engine"
	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"
	"sigs.k8s.io/yaml"
)

// must ends a test of which a step failed.
func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// value is the result of a step that cannot fail unless something is broken.
func value[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// not fails a test if something is so that must not be.
func not(t *testing.T, is bool, format string, args ...any) {
	t.Helper()
	if is {
		t.Errorf(format, args...)
	}
}

// read returns what is in a file.
func read(file string) []byte { return value(os.ReadFile(file)) }

// kinds are the types of the objects that may be rendered, by version and kind.
var kinds = map[string]func() metav1.Object{
	"apps/v1 Deployment":                      func() metav1.Object { return new(appsv1.Deployment) },
	"apps/v1 StatefulSet":                     func() metav1.Object { return new(appsv1.StatefulSet) },
	"autoscaling/v2 HorizontalPodAutoscaler":  func() metav1.Object { return new(autoscalingv2.HorizontalPodAutoscaler) },
	"monitoring.coreos.com/v1 PodMonitor":     func() metav1.Object { return new(monitoringv1.PodMonitor) },
	"monitoring.coreos.com/v1 PrometheusRule": func() metav1.Object { return new(monitoringv1.PrometheusRule) },
	"monitoring.coreos.com/v1 ServiceMonitor": func() metav1.Object { return new(monitoringv1.ServiceMonitor) },
	"networking.k8s.io/v1 Ingress":            func() metav1.Object { return new(networkingv1.Ingress) },
	"networking.k8s.io/v1 NetworkPolicy":      func() metav1.Object { return new(networkingv1.NetworkPolicy) },
	"policy/v1 PodDisruptionBudget":           func() metav1.Object { return new(policyv1.PodDisruptionBudget) },
	"v1 ConfigMap":                            func() metav1.Object { return new(corev1.ConfigMap) },
	"v1 Service":                              func() metav1.Object { return new(corev1.Service) },
}

// rendered is what is applied together.
type rendered struct {
	name    string
	objects map[string]metav1.Object // by kind and name
}

// all returns the objects of one type, by name.
func all[T metav1.Object](r rendered) map[string]T {
	found := map[string]T{}
	for _, o := range r.objects {
		if o, ok := o.(T); ok {
			found[o.GetName()] = o
		}
	}
	return found
}

// decode decodes documents, each strictly.
func decode(t *testing.T, name string, documents []byte) rendered {
	t.Helper()
	r := rendered{name, map[string]metav1.Object{}}
	for document := range bytes.SplitSeq(append([]byte("\n"), documents...), []byte("\n---\n")) {
		if len(bytes.TrimSpace(stripComments(document))) == 0 {
			continue
		}
		document = append(slices.Clip(document), '\n') // which was the separator's
		var meta metav1.TypeMeta
		if err := yaml.Unmarshal(document, &meta); err != nil {
			t.Fatalf("%s: %v\n%s", name, err, document)
		}
		make, ok := kinds[meta.APIVersion+" "+meta.Kind]
		if !ok {
			t.Fatalf("%s: %s %s is no object that is expected here:\n%s", name, meta.APIVersion, meta.Kind, document)
		}
		o := make()
		if err := yaml.UnmarshalStrict(document, o); err != nil {
			t.Fatalf("%s: %s: %v\n%s", name, meta.Kind, err, document)
		}
		id := meta.Kind + " " + o.GetName()
		if _, twice := r.objects[id]; twice || o.GetName() == "" {
			t.Fatalf("%s: %q is there twice, or has no name", name, id)
		}
		r.objects[id] = o
	}
	return r
}

// stripComments leaves out lines that are comments.
func stripComments(document []byte) []byte {
	var kept []byte
	for line := range bytes.Lines(document) {
		if !bytes.HasPrefix(bytes.TrimSpace(line), []byte("#")) {
			kept = append(kept, line...)
		}
	}
	return kept
}

const kustomizations = "../kubernetes"

// kustomize builds a kustomization as kubectl kustomize does.
func kustomize(t *testing.T, name string, files filesys.FileSystem, dir string) rendered {
	t.Helper()
	built, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(files, dir)
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return decode(t, name, value(built.AsYaml()))
}

// overlay builds a kustomization that somebody may write beside ours.
func overlay(t *testing.T, name, kustomization string) rendered {
	t.Helper()
	files := filesys.MakeFsInMemory()
	err := filepath.WalkDir(kustomizations, func(file string, entry os.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		text, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		inside, err := filepath.Rel(kustomizations, file)
		if err != nil {
			return err
		}
		return files.WriteFile(path.Join("/kubernetes", inside), text)
	})
	must(t, err)
	must(t, files.WriteFile("/kubernetes/overlays/own/kustomization.yaml", []byte(kustomization)))
	return kustomize(t, name, files, "/kubernetes/overlays/own")
}

// release is the name of the release that helm renders.
const release = "x7k"

// values of charts.
type values = map[string]any

// loadChart loads the chart.
func loadChart(t *testing.T) *chart.Chart {
	t.Helper()
	c := value(loader.Load(cmp.Or(os.Getenv("RELEASED_CHART"), "../chart"))) // make release-test names a released one
	must(t, c.Validate())
	return c
}

// helm renders the chart as helm template does. The notes are what helm prints after an
// installation.
func helm(c *chart.Chart, v values) (documents []byte, notes string, err error) {
	// All values are strings, numbers, lists and maps, so a copy by YAML is one.
	text, err := yaml.Marshal(v)
	if err != nil {
		return nil, "", err
	}
	own := values{}
	if err := yaml.Unmarshal(text, &own); err != nil {
		return nil, "", err
	}
	all, err := chartutil.ToRenderValues(c, own, chartutil.ReleaseOptions{Name: release, Namespace: "execagent", Revision: 1, IsInstall: true}, chartutil.DefaultCapabilities)
	if err != nil {
		return nil, "", err
	}
	files, err := engine.Render(c, all)
	if err != nil {
		return nil, "", err
	}
	for _, name := range slices.Sorted(maps.Keys(files)) {
		if path.Base(name) == "NOTES.txt" {
			notes = files[name]
			continue
		}
		documents = fmt.Appendf(documents, "---\n%s\n", files[name])
	}
	return documents, notes, nil
}

// tools are the values that every release with workers needs.
func tools(v values) values {
	all, worker := values{}, values{"image": values{"repository": "example.com/tools", "tag": "1"}}
	own, _ := v["worker"].(values)
	maps.Copy(worker, own)
	maps.Copy(all, v)
	all["worker"] = worker
	return all
}

// each returns each workload of a part, "" for all of them, of each way of rendering.
func each(t *testing.T, part string) iter.Seq2[rendered, workload] {
	return func(yield func(rendered, workload) bool) {
		for _, r := range everything(t) {
			not(t, len(workloads(r)) == 0, "%s runs nothing", r.name)
			for name, w := range workloads(r) {
				if (part == "" || part == name) && !yield(r, w) {
					return
				}
			}
		}
	}
}

// everything is each way of rendering that is checked.
func everything(t *testing.T) []rendered {
	t.Helper()
	disk := filesys.MakeFsOnDisk()
	list := []rendered{
		kustomize(t, "registry", disk, kustomizations+"/registry"),
		kustomize(t, "overlays/example", disk, kustomizations+"/overlays/example"),
		overlay(t, "every component", ownOverlay("nats", "nats-creds", "ingress", "hpa", "key-file", "user-namespaces", "monitoring-registry", "monitoring-worker", "alerts")),
		overlay(t, "with prefix", "namePrefix: a-\n"+ownOverlay("nats", "ingress", "hpa")),
		overlay(t, "NATS elsewhere", ownOverlay("nats-creds", "ingress")),
	}
	c := loadChart(t)
	for name, v := range charts {
		documents, _, err := helm(c, v)
		if err != nil {
			t.Fatalf("chart, %s: %v", name, err)
		}
		list = append(list, decode(t, "chart, "+name, documents))
	}
	return list
}

// ownOverlay is a kustomization of registry and worker with some components.
func ownOverlay(components ...string) string {
	text := "namespace: execagent\nresources: [../../registry, ../../worker]\nimages: [{name: example.com/tools, newTag: \"1\"}]\ncomponents:\n"
	for _, c := range components {
		text += "  - ../../components/" + c + "\n"
	}
	return text
}

// charts are values of releases, by what they are for.
var charts = map[string]values{
	"as it comes": tools(nil),
	"everything": tools(values{
		"imagePullSecrets": []any{"pull"},
		"registry": values{
			"nats": values{"creds": true}, "env": values{"REGISTRY_GRACE": "1m"}, "autoscaling": values{"enabled": true},
			"nodeSelector": values{"pool": "edge"}, "tolerations": []any{values{"key": "edge", "operator": "Exists"}},
			"networkPolicy": values{"egress": []any{values{"to": []any{values{"ipBlock": values{"cidr": "192.0.2.0/24"}}}}}},
		},
		"nats": values{"storage": values{"className": "fast"}},
		"worker": values{
			"args": []any{"--session-ttl=5m"}, "env": values{"LANG": "C.UTF-8"}, "userNamespaces": values{"enabled": true}, "keyFile": true,
			"registryURL": "https://other.example.com", "user": 1000650000,
			"networkPolicy": values{"egress": []any{values{"to": []any{values{"ipBlock": values{"cidr": "192.0.2.0/24"}}}}}},
		},
		"monitoring": values{"enabled": true, "alerts": true},
	}),
	"registry alone, NATS elsewhere": {
		"worker": values{"enabled": false}, "nats": values{"enabled": false},
		"registry": values{"nats": values{"creds": true}, "publicURL": "https://registry.example.com:8443"},
	},
	"workers alone": tools(values{
		"registry": values{"enabled": false}, "nats": values{"enabled": false}, "monitoring": values{"enabled": true},
		"worker": values{"registryURL": "https://registry.example.net"},
	}),
	"without policies": tools(values{
		"registry": values{"networkPolicy": values{"enabled": false}, "ingress": values{"enabled": false}},
		"worker":   values{"networkPolicy": values{"enabled": false}},
	}),
}

// plain is a text without the release's name.
func plain(text []byte) []byte { return bytes.ReplaceAll(text, []byte(release+"-"), nil) }
